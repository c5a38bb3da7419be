"""The flags of an environment's parameters, `--space.env.NAME`, which depend on the task and not on the kind of run."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rookery.cli.flags import FlagError, describe_values
from rookery.cli.options import FLAG, metavar
from rookery.experiments.config import Chosen, parameter_flag
from rookery.experiments.kinds import kinds
from rookery.learners.rollout import PREFIX

FLAGS = f"--{FLAG}env."
"""Beginning of these flags."""

Choice = Chosen | Literal["evolve"]
"""Type of their values."""

_WORDS = ("fixed", "evolve")


def kind_of(words: Sequence[str]) -> str:
    """The kind of run in a command line whose search space can include an environment's parameters; "" if none is."""
    known, name = kinds(), "".join(words[1:2]).replace("_", "-") if words[:1] == ["train"] else ""
    return name if name in known and known[name].agent is not None else ""


def is_flag(word: str) -> bool:
    """Whether a word is the flag of a parameter."""
    return word.startswith(FLAGS) and len(word.partition("=")[0]) > len(FLAGS)


def taken(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Take the flags of parameters out of a command line; the last one counts if a flag is there twice.

    Returns:
      The other words, and `env_<name>` -> choice, as in a run's `space`.

    Raises:
      FlagError: a flag has too few or too many values, or values of a wrong type.
    """
    if not kind_of(words):
        return [*words], {}
    rest: list[str] = []
    found: dict[str, Any] = {}
    flag, values = "", []
    for word in [*words, "--"]:
        if flag and not word.startswith("--"):
            values.append(word)
            continue
        if flag:
            found[_setting(flag)] = _choice(flag, values)
        flag, _, first = word.partition("=") if is_flag(word) else ("", "", "")
        values = first.split()
        rest += [] if flag else [word]
    return rest[:-1], found


def named(words: Sequence[str]) -> dict[str, str]:
    """The names in messages of the parameters in a command line: `env_<name>` -> flag."""
    flags = [word.partition("=")[0] for word in words if is_flag(word)]
    return {_setting(flag): parameter_flag(_setting(flag)) for flag in flags}


def chosen_in(space: Mapping[str, Any]) -> dict[str, Any]:
    """The choices of parameters in a run's `space`: flag without its dashes -> choice."""
    return {parameter_flag(name).removeprefix("--"): space[name] for name in space if name.startswith(PREFIX)}


def _setting(flag: str) -> str:
    return PREFIX + flag.removeprefix(FLAGS).replace("-", "_")


def _choice(flag: str, values: Sequence[str]) -> Any:
    if len(values) == 1 and values[0] in _WORDS:
        return values[0]
    numbers: list[float] = []
    with contextlib.suppress(ValueError):
        numbers = [float(value) for value in values]
    if len(numbers) not in (1, 2):
        got = " ".join(values) or "nothing"
        raise FlagError(f"{flag} must be {describe_values(metavar(Choice))}, got {got}.")
    if any(re.fullmatch(r"[+-]?(nan|inf|infinity)", value, re.IGNORECASE) for value in values):
        raise FlagError(f"{flag} must be a finite number, got {' '.join(values)}.")
    return tuple(numbers) if len(numbers) == 2 else numbers[0]
