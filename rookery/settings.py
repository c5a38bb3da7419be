"""Values and names that come from outside: their checks, and the errors about them.

The range of a number is declared in the annotation of its field (`Within`). `check_fields` checks the fields of a
config, `check_counts` and `check_numbers` arguments, `check_names` the names of columns, flags, files and tags.
"""

import dataclasses
import difflib
import functools
import math
import operator
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

ConfigT = TypeVar("ConfigT")

GUIDES = "docs/guides"
"""Folder of the guides, from which errors and the help name one: the beginning of their addresses."""


def config_from(
    cls: type[ConfigT], config: ConfigT | None, keywords: Mapping[str, Any], others: Sequence[str] = ()
) -> ConfigT:
    """A config, or the one whose fields are given as keywords in its place.

    `others` are further keywords of the function that was called, to suggest. A TypeError if both are given, the config
    is another object, or a keyword is no field of it; a ValueError if a value is invalid.
    """
    names = [field.name for field in dataclasses.fields(cls)]  # pyright: ignore[reportArgumentType]
    for keyword in keywords:
        if config is not None:
            raise TypeError(f"give either config or the keywords {sorted(keywords)}, not both.")
        if keyword not in names:
            begins = [name for name in (*others, *names) if name.startswith(keyword)]
            remedy = suggestion(keyword, begins or [*others, *names], f"it has {', '.join(names)}.")
            raise TypeError(f"{cls.__name__} has no field {keyword}; {remedy}")
    if config is not None and not isinstance(config, cls):
        raise SettingTypeError(
            "config", config, f"must be a {cls.__name__}", "give its fields as keywords, or build one"
        )
    return config if config is not None else cls(**keywords)


def user_path(path: str | os.PathLike[str]) -> Path:
    """The path that a user means: `~` and `~NAME` at its beginning are home folders, as in a shell; a ValueError if it
    has a null character."""
    if "\0" in str(path):  # the error of the system does not name the path
        raise ValueError(f"{str(path)!r} has a null character, which the name of no file has; change it.")
    return Path(os.path.expanduser(path))


KEY_COLUMNS = ("generation", "member", "parent", "cell", "skill", "episode", "step", "opponent")
"""Columns of whole numbers, which say what the row of a table is about."""
MEASURE, RETURN, BEST, TRAIN_RETURN = "measure/", "return", "best/", "train_return"
"""Columns of what is reported of an evaluation beside its fitness: the sum of a measure over an episode and, with
measures, the return; in `metrics.csv` their means, and after `best/` those of the member with the highest fitness."""
ROUND = "round"  # column of `lineage.csv` and `metrics.csv`, see `selection.Rounds`
AGENT_RETURN = "return/"  # begins the columns with the returns of a team's agents, by which reports know a team
CALLBACK = "callback/"  # begins the columns of `lineage.csv` with the numbers of members that a callback returned
ROW_NAMES = (
    *("generation", "member", "env_steps", "best_fitness", "median_fitness", "worst_fitness", "mean_fitness"),
    *("replaced", "best_rating", "best_smoothed_rating"),
    *("seconds", "steps_per_second", "seconds_tables", "seconds_checkpoint", "seconds_evaluation"),
)
"""Columns of `metrics.csv` that are computed for every program."""
RESERVED_COLUMNS = (*(name for name in KEY_COLUMNS if name != "parent"), *ROW_NAMES, BEST)
"""Columns that no metric of a program or of an emitter can be."""
METRIC_NAMES = (
    *(*KEY_COLUMNS, *ROW_NAMES, "fitness", "diverged", "rating", "smoothed_fitness", "smoothed_rating", "reward"),
    *("episode_length", "coverage", "qd_score", "normalized_qd_score", "max_fitness", "below_offset", "added"),
    *("improved", "rejected", "outside", "evaluation_steps", "revived", ROUND, "exploit_interval"),
    *("broken_", "hyper/", "descriptor/", "best_fitness/", "league_", "member/", "members/", RETURN, AGENT_RETURN),
    *(MEASURE, BEST, TRAIN_RETURN, f"{TRAIN_RETURN}/", "train_episodes", "train_episode_length"),
)
"""Metrics that a population method computes for any agent and any emitter, and beginnings of such names."""
MEASURE_NAMES = ("fitness", RETURN)
"""What no measure of an environment can be called, since commands know these by the same names."""
HYPER_NAMES = (*KEY_COLUMNS, "fitness", "rating", RETURN, ROUND, MEASURE, CALLBACK)
"""Columns of `lineage.csv` beside the hyper-parameters."""


def check_names(what: str, names: Iterable[Any], taken: Iterable[str] = ()) -> None:
    """The one rule for names from outside that become columns, flags, files or tags.

    A name is a text of at most 200 letters, digits, `_`, `-`, `.`, `/` and inner spaces that begins with a letter, a
    digit or `_`, and a path in its shortest form; no two are equal, and none is taken.

    Args:
      what: what has these names, such as "metric of the agent".
      names: the names.
      taken: names that this library uses itself, and beginnings of such names, which end with "/" or "_".

    Raises:
      ValueError: a name breaks the rule; the message has it and the remedy.
    """
    known: set[str] = set()
    beginnings = tuple(name for name in taken if name[-1:] in ("/", "_"))
    for name in names:
        text = name if isinstance(name, str) and re.fullmatch(r"\w(?:[\w./ -]{0,198}[\w.-])?", name) else None
        if text is None or ".." in text or posixpath.normpath(text) != text:  # trackers may have files of these names
            raise ValueError(
                f"the {what} {name!r:.120} needs another name: letters, digits, _ - . / and inner spaces, at most 200, "
                "such as 'loss_1'."
            )
        if name in taken or name.startswith(beginnings):
            raise ValueError(
                f"the {what} {name!r} needs another name, since rookery uses it itself, such as 'my_{name}'."
            )
        if name in known:
            raise ValueError(f"the {what} {name!r} is there twice; give each one another name.")
        known.add(name)


LARGEST_COUNT = 2**31 - 1  # counters, indices and sizes of arrays are int32


class SettingError(ValueError):
    """A setting has an invalid value.

    Its text names the setting as a Python caller does; the command line shows the flag (`text`). In `problem` and
    `remedy`, `{name}` is another setting, which is shown likewise; text from outside is there as `verbatim(text)`.
    """

    def __init__(self, field: str, value: object, problem: str, remedy: str = ""):
        super().__init__(field, value, problem, remedy)
        self.field = field
        """Name of the setting, a keyword."""
        self.value = value
        """What was given; None if it says nothing."""
        self.problem = problem
        """What is wrong, after the name: "must be at least 1"."""
        self.remedy = remedy
        """What helps; "" if the problem says it."""

    def text(self, shown: Callable[[str], str] = str) -> str:
        """The error as one sentence.

        Args:
          shown: name of a setting -> the name that the reader knows.
        """
        is_type = isinstance(self, TypeError)
        got = "" if self.value is None and not is_type else f", got {(repr if is_type else _shown)(self.value)}"
        remedy = f"; {self.remedy}" if self.remedy else ""
        texts = self.problem, remedy if remedy.endswith(("?", ".")) else f"{remedy}."
        problem, remedy = (re.sub(r"\{\{|\{(\w+)\}", lambda it: shown(it[1]) if it[1] else "{", one) for one in texts)
        name = " x ".join(map(shown, self.field.split(" x ")))  # the field may be a product of settings
        return f"{name} {problem}{got}{remedy}"

    def __str__(self) -> str:
        return self.text()


def verbatim(text: object) -> str:
    """Text from outside, such as a path, for the texts of a `SettingError`: its braces mark no setting."""
    return str(text).replace("{", "{{")


class SettingTypeError(SettingError, TypeError):
    """A setting has a value of a wrong type."""


class UnknownNameError(SettingError):
    """A setting has a name that does not exist, such as that of a task."""

    def text(self, shown: Callable[[str], str] = str) -> str:
        """The error as one sentence, which is about the name; see `SettingError`."""
        name = shown(self.field)
        return f"{'' if name == self.field else f'{name}: '}{self.problem} {_shown(self.value)}; {self.remedy}"


def _shown(value: object) -> str:
    short = f"{value:g}" if isinstance(value, float) else repr(value)
    return short if not isinstance(value, float) or float(short) == value else str(value)


class OptionError(SettingError):
    """An option of a task or of a factory is invalid; the problem is a whole sentence."""

    def text(self, shown: Callable[[str], str] = str) -> str:
        """The sentence; see `SettingError`."""
        del shown
        return self.problem


def unknown_name(field: str, name: object, what: str, known: Iterable[str], otherwise: str = "") -> UnknownNameError:
    """The error for a setting with a name of a `what`, such as "task", that does not exist: the remedy is similar names
    or, if there are none, `otherwise`, by default all names."""
    return UnknownNameError(field, name, f"there is no {what}", suggestion(str(name), known, otherwise))


class Within(NamedTuple):
    """The valid values of a number, in the annotation of a config's field, as in `Annotated[int, Within(1)]`; of a
    tuple those of each item."""

    low: float = -math.inf
    high: float = math.inf
    """A whole number without another limit fits int32."""
    excluded: tuple[float, ...] = ()
    """Ends of the interval that are no valid values: `Within(0, excluded=(0,))` is every number above 0."""

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int | float) and self.low <= number <= self.high and number not in self.excluded

    def __str__(self) -> str:
        """The range in words: "at least 1", "above 0", "in [0, 1)"."""
        if self.high == math.inf:
            return f"{'above' if self.low in self.excluded else 'at least'} {self.low:g}"
        left, right = "(" if self.low in self.excluded else "[", ")" if self.high in self.excluded else "]"
        return f"in {left}{_numeral(self.low)}, {_numeral(self.high)}{right}"


POSITIVE = Within(0, excluded=(0,))  # numbers above 0
FRACTION = Within(0, 1)


def _numeral(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def float32(value: float) -> float:
    """The value as compiled code has it: rounded to float32, infinite beyond 3.4e38, and 0 below 1.2e-38."""
    if abs(value) > 1e39:  # also whole numbers that no float can hold
        return math.inf if value > 0 else -math.inf
    with np.errstate(over="ignore"):
        return 0.0 if abs(value) < np.finfo(np.float32).tiny else float(np.float32(value))


_INT32 = Within(-LARGEST_COUNT - 1, LARGEST_COUNT)
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def check_counts(least: int = 1, most: int = LARGEST_COUNT, **numbers: object) -> None:
    """Check that arguments are whole numbers from `least` to `most`, by default the largest int32.

    Raises:
      SettingError: one is no whole number (it is a TypeError too), or out of range.
    """
    for name, value in numbers.items():
        _checked(name, int, value, Within(least, math.inf if most == LARGEST_COUNT else most))


def check_numbers(within: Within, **numbers: object) -> None:
    """Check that arguments are numbers in a range, finite in float32.

    Raises:
      SettingError: one is no number (it is a TypeError too), not finite, or out of range.
    """
    for name, value in numbers.items():
        _checked(name, float, value, within)


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three of the known names that are similar to a name, the most similar first."""
    known = [*known]
    return difflib.get_close_matches(name, known, cutoff=0.5) or difflib.get_close_matches(name.lower(), known)


def suggestion(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The remedy for a name that does not exist: similar ones; if none is similar `otherwise`, by default all names."""
    known = [*known]
    near = nearest(name, known)
    return f"did you mean {' or '.join(near)}?" if near else otherwise or f"use one of {', '.join(known)}."


def expand_paths(config: object, *names: str) -> None:
    """Expand `~` in the paths among a config's fields that are not None; a SettingError for what can be no path."""
    for name in names:
        if (path := getattr(config, name)) is not None:
            if not path or "\0" in path:
                raise SettingError(name, path, "must be a path", "leave it out for the default")
            object.__setattr__(config, name, str(user_path(path)))


def divisors(number: int) -> list[int]:
    """All divisors of a number above 0, in ascending order, found by trying those up to its square root."""
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


def check_fields(config: object) -> None:
    """Check the fields of a config that are numbers, switches, texts, tuples of them, or one of several words.

    Numbers are converted to Python's own types, and paths to text. A whole number fits int32 unless its annotation says
    otherwise (`Within`).

    Args:
      config: a frozen dataclass, in its `__post_init__`.

    Raises:
      SettingError: a value has another type (it is a TypeError too), a number is out of its range or not finite, a
        tuple has another length, or a value is none of the words of its `Literal`.
    """
    for name, (hint, words, within, is_optional, default) in _checked_fields(type(config)).items():
        value = getattr(config, name)
        if (value is None and is_optional) or any(type(value) is type(word) and value == word for word in words):
            continue
        if hint is None:
            remedy = suggestion(str(value), map(str, words), " ")
            raise SettingError(name, value, f"must be {' or '.join(map(str, words))}", remedy.strip())
        object.__setattr__(config, name, _converted(name, hint, default, value, within))


def range_of(hint: object) -> Within | None:
    """The range in the annotation of a field; None if it has none."""
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((note for note in notes if isinstance(note, Within)), None)


@functools.cache
def _checked_fields(cls: type) -> dict[str, tuple[Any, tuple[Any, ...], Within | None, bool, Any]]:
    """Fields that `check_fields` checks: name -> the type, None if it is one of several words; the words; the range;
    whether it may be None; and the default."""
    found, hints = {}, get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        within, hint = range_of(hints[field.name]), hints[field.name]
        hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        options = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
        is_optional = field.default is None or NoneType in options
        words = tuple(word for option in options if get_origin(option) is Literal for word in get_args(option))
        types = [option for option in options if option is not NoneType and get_origin(option) is not Literal]
        kinds = [get_args(one)[0] if get_origin(one) is tuple else one for one in types]
        if (words or types) and len(types) <= 1 and all(kind in _WORDS for kind in kinds):
            found[field.name] = (types or [None])[0], words, within, is_optional, field.default
    return found


def _converted(name: str, hint: Any, default: Any, value: Any, within: Within | None) -> Any:
    if get_origin(hint) is not tuple:
        return _checked(name, hint, value, within)
    kind, last = get_args(hint)[0], get_args(hint)[-1]
    what = "texts" if kind is str else "numbers"
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__") or getattr(value, "ndim", 1) == 0:
        shown = default or ((64, 64) if kind is int else ())
        example = f", such as {shown}" if shown else ""
        raise SettingTypeError(name, value, f"must be a sequence of {what}{example}")
    values = tuple(_checked(name, kind, item, within, "must each be") for item in value)
    if last is not ... and len(values) != len(get_args(hint)):
        raise SettingError(name, value, f"must be {len(get_args(hint))} {what}")
    return values


def _checked(name: str, kind: type, value: object, within: Within | None, must: str = "must be") -> Any:
    """A value of the given type and range."""
    try:
        converted = _of_type(kind, value)
    except (TypeError, OverflowError):
        raise SettingTypeError(name, value, f"{must} {_WORDS[kind]}") from None
    if kind is float and not math.isfinite(float32(converted)):
        raise SettingError(name, value, f"{must} a finite number{' of float32' * math.isfinite(converted)}")
    if kind is float and converted and not float32(converted) and within is not None and 0 in within.excluded:
        raise SettingError(name, value, f"{must} a number above 0 in float32", "give at least 1.2e-38")
    if within is not None and kind in (int, float) and converted not in within:
        must = must if within.high == math.inf else "must lie"
        raise SettingError(name, converted, f"{must} {within}")
    if kind is int and converted not in _INT32 and (within is None or within.high == math.inf):
        raise SettingError(name, converted, f"{must} at most {LARGEST_COUNT}, the largest int32")
    return float(converted) if kind is float else converted  # JAX takes no int beyond int32, and for some shares none


def _of_type(kind: type, value: Any) -> Any:
    if kind is str and isinstance(value, os.PathLike):
        return os.fsdecode(value)
    value = value.item() if kind is bool and hasattr(value, "item") else value
    if type(value) is kind or (isinstance(value, str) and kind is str):
        return value
    if kind in (bool, str) or isinstance(value, bool | str | bytes):
        raise TypeError
    number = operator.index(value) if kind is int else float(value)
    return value if type(value) is int else number


def type_of(value: object) -> str:
    """The type of a value as text, such as `None` or `an object of type dict`."""
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return "None" if value is None else f"an object of type {name}"
