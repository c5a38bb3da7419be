"""The flags of the command line, and one error message for each kind of invalid flag."""

import contextlib
import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rookery.cli.options import options_of, options_of_kind
from rookery.experiments.spec import Kind
from rookery.factories import LARGEST_COUNT, suggestion

try:  # not part of tyro's stable interface; without it, tyro's own messages are shown
    from tyro._errors import on_parse_error
except ImportError:
    on_parse_error = None

Flags = Mapping[str, Any]
"""Flag -> the type of its value."""

_DIGITS = 100
"""Digits of a whole number that are read and shown; Python reads no more than 4,300."""
_VALUES = {"INT": "whole number", "FLOAT": "number", "STR": "word", "PATH": "path"}


class FlagError(ValueError):
    """An invalid word in a command line; the message is one sentence that names the flag or the word."""


def flags_of(command: type | Kind) -> dict[str, Any]:
    """The flags of a command or of a kind of run, from its dataclass fields; fields without a default have no flag.

    Returns:
      Flag, such as `--num-envs` -> the type of its value.
    """
    options = options_of_kind(command) if isinstance(command, Kind) else options_of(command)
    return {option.flag: option.hint for option in options}


def with_values(words: Sequence[str], flags: Flags) -> list[str]:
    """Write out the values of optional switches: `--flag` as `--flag True`, `--no-flag` as `--flag False`.

    An optional switch is of type `bool | None`, for which tyro requires a value.

    Args:
      words: of the command line.
      flags: of the command.
    """
    found: list[str] = []
    for word, following in zip(words, [*words, ""][1:], strict=True):
        flag = word.replace("_", "-")
        positive = re.sub("^--no-", "--", flag)
        if flags.get(flag) == bool | None and following not in ("True", "False", "None"):
            found += [flag, "True"]
        elif flag not in flags and flags.get(positive) == bool | None:
            found += [positive, "False"]
        else:
            found.append(word)
    return found


def as_typed(message: str, flags: Flags, names: Mapping[str, str]) -> str:
    """An error message in which the names of settings are replaced by their flags.

    A name without an underscore can also be an ordinary word, so it is replaced only at the beginning of the message.

    Args:
      message: of an error.
      flags: of the command.
      names: additional names of settings in messages -> flag.
    """
    settings = {re.sub(r"^--(space\.)?", "", flag).replace("-", "_"): flag for flag in flags} | dict(names)
    # Columns of metrics.csv that `storage.best_checkpoint` lists may equal names of settings; they stay as they are.
    message, separator, columns = message.partition("; the metrics are ")
    for name, flag in settings.items():
        begins = r"(?<![\w./\"'=-])" if "_" in name else r"(?:^|(?<=^the interval of ))"
        message = re.sub(rf"{begins}{re.escape(name)}(?![\w(=/\"'])(?!\.\w)", flag, message)
    return message + separator + columns


def check(words: Sequence[str], command: str, flags: Flags) -> None:
    """Check for flags that a command does not have, and for values that are empty, not finite or beyond int32.

    Of a flag that is given twice the last value counts, except for `--option`, whose values belong together.

    Args:
      words: of the command line.
      command: the command in it, such as `rookery train sac`.
      flags: of the command.

    Raises:
      FlagError: a flag or a value is invalid.
    """
    before = ""
    for word in words:
        flag, is_joined, value = word.partition("=") if word.startswith("--") else (before, "", word)
        flag = flag.replace("_", "-")
        if word.startswith("--") and flag not in flags and re.sub("^--no-", "--", flag) not in flags:
            raise FlagError(unknown_flag(flag, words, command, flags))
        if value == "" and (is_joined or not word):
            raise FlagError(f"{flag or 'a value'} is empty; give {'it a value' if flag else 'one'}, or leave it out.")
        if not _is_finite(value) and "float" in str(flags.get(flag, "")):
            raise FlagError(f"{flag} must be a finite number, got {value}.")
        if re.fullmatch(r"[+-]?\d+", value) and "int" in str(flags.get(flag, "")):
            largest = 2**32 - 1 if flag == "--seed" else LARGEST_COUNT
            if len(value) > _DIGITS or not -largest <= int(value) <= largest:
                raise FlagError(f"{flag} must be at most {largest}, got {value:.{_DIGITS}}.")
        before = flag if word.startswith("--") else before
    if sum(word.partition("=")[0] == "--option" for word in words) > 1:
        raise FlagError("--option is given twice; give it once with all values: --option width=4 population=8.")


def _is_finite(value: str) -> bool:
    """Whether a word is no number that a float cannot hold, such as nan, inf or 1e400."""
    try:
        return math.isfinite(float(value))
    except ValueError:
        return True


def check_name(label: str, word: str, known: Sequence[str]) -> None:
    """Check that a command or a kind of run exists.

    Args:
      label: "command" or "kind of run", for the message.
      word: the name to check.
      known: the valid names.

    Raises:
      FlagError: it does not exist; the message lists similar names, or all names if none is similar.
    """
    if word.replace("_", "-") not in known:
        raise FlagError(f"there is no {label} {word!r}; {suggestion(word, known)}")


@contextlib.contextmanager
def parse_errors(words: Sequence[str], command: str, flags: Flags) -> Iterator[None]:
    """Context in which tyro's parse errors raise `FlagError`, if the installed tyro reports them as events.

    Args:
      words: of the command line.
      command: the command in it, such as `rookery train sac`.
      flags: of the command.
    """

    def handle(event: Any) -> None:
        with contextlib.suppress(AttributeError):  # other versions of tyro have other events: tyro's message is shown
            if message := _parse_error_message(event, words, command, flags):
                raise FlagError(message)

    with on_parse_error(handle) if on_parse_error is not None else contextlib.nullcontext():
        yield


def _parse_error_message(event: Any, words: Sequence[str], command: str, flags: Flags) -> str | None:
    """The error message for an event of `tyro._errors`, or None for an unknown event."""
    kind = type(event).__name__
    argument = getattr(event, "argument", None)
    unknown = {"UnrecognizedArgs": "tokens", "MissingArgs": "unrecognized_tokens"}.get(kind)
    message = None
    if unknown and getattr(event, unknown):
        message = unknown_flag(getattr(event, unknown)[0], words, command, flags)
    elif kind == "MissingArgs":
        metavar = event.missing_arguments[0].arg.lowered.metavar
        message = f"{command} needs {metavar}; `{command} --help` describes it."
    elif argument is not None:
        message = _wrong_value(argument, words)
    elif kind == "InstantiationFailure":
        message = event.message
    return message


def unknown_flag(token: str, words: Sequence[str], command: str, flags: Flags) -> str:
    """The message for a flag that the command does not have, or for a superfluous word."""
    if not re.match("--?[a-z]", token):
        before = [word for word in words[: _place(token, words)] if word.startswith("--")]
        after = f" after {before[-1]}" if before else ""
        return f"{token!r}{after} is one word too many for {command}; `{command} --help` lists its arguments."
    if command == "rookery train":
        return f"{command} needs a kind of run before {token}, such as pbt-sac; `{command} --help` lists them."
    near = similar_flags(token, list(flags))
    remedy = f"did you mean {' or '.join(near)}?" if near else f"`{command} --help` lists all flags."
    if token.startswith("--space.") and near:
        remedy = f"{remedy} A parameter of the task is --space.env.NAME."
    return f"{command} has no flag {token}; {remedy}"


def similar_flags(token: str, flags: Sequence[str]) -> list[str]:
    """The flags that a user may have meant: of the same beginning, similarly spelt, or of a hyper-parameter of that
    name (`--lr` and `--learning-rate` for `--space.policy-lr`)."""
    of_space = [flag for flag in flags if flag.startswith("--space.")]
    if token.startswith("--space."):
        return difflib.get_close_matches(token, of_space) or of_space
    others = [flag for flag in flags if flag not in of_space]
    name = token.lstrip("-").replace("learning-rate", "lr")
    begins = [flag for flag in others if flag.startswith(f"--{name}")]
    rates = [flag for flag in of_space if f"-{flag.removeprefix('--space.')}".endswith(f"-{name}")]
    return begins or rates or difflib.get_close_matches(token, others)


def _place(token: str, words: Sequence[str]) -> int:
    return words.index(token) if token in words else len(words)


def _wrong_value(argument: Any, words: Sequence[str]) -> str:
    """The message for an argument with an invalid value or an invalid number of values."""
    metavar = re.sub(r"\[/?bold\]", "", str(argument.lowered.metavar))
    if argument.is_positional():
        return f"{metavar} must be {describe_values(metavar)}."
    names = argument.lowered.name_or_flags
    place = next((i for i, word in enumerate(words) if word.partition("=")[0].replace("_", "-") in names), len(words))
    values = words[place].partition("=")[2].split() if place < len(words) else []
    for word in words[place + 1 :] if not values else ():
        if word.startswith("--"):
            break
        values.append(word)
    choices = re.findall(r"[a-z][\w/-]*", metavar)
    near = difflib.get_close_matches(values[0], choices) if values else []
    remedy = f"; did you mean {near[0]}?" if near else "; separate them by spaces." if _several(values) else "."
    values = values if " " in metavar else values[:1]
    return f"{names[0]} must be {describe_values(metavar)}, got {' '.join(values) or 'nothing'}{remedy}"


def _several(values: Sequence[str]) -> bool:
    """Whether numbers are separated by commas, as in `64,64`."""
    return bool(values) and re.fullmatch(r"[\d.e+-]+(,[\d.e+-]+)+,?", values[0]) is not None


def describe_values(metavar: str) -> str:
    """A description of a metavar: `{FLOAT FLOAT}|FLOAT|{fixed}` -> "2 numbers or a number or fixed"."""
    alternatives = []
    for option in metavar.split("|"):
        kinds = re.findall(r"[A-Z]{3,}", option)
        value = _VALUES.get(kinds[0], kinds[0]) if kinds else ""
        if not kinds:
            alternatives += [choice for choice in option.strip("{}").split(",") if choice != "None"]
        elif "..." in option:
            alternatives.append(f"{value}s")
        else:
            alternatives.append(f"a {value}" if len(kinds) == 1 else f"{len(kinds)} {value}s")
    return " or ".join(alternatives)
