"""What the command line calls its settings, and one sentence for each mistake in them."""

import contextlib
import dataclasses
import difflib
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

try:  # not part of tyro's stable interface; without it, tyro's own messages are shown
    from tyro._errors import on_parse_error
except ImportError:
    on_parse_error = None

Flags = Mapping[str, Any]
"""Flag -> the type of its value."""

_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_VALUES = {"INT": "whole number", "FLOAT": "number", "STR": "word", "PATH": "path"}


class FlagError(ValueError):
    """A mistake in the words of a command line; the message is one sentence that names the flag or the word."""


def flags_of(config: type) -> dict[str, Any]:
    """The flags of a command or of a kind of run, from the fields of its dataclass; what has no default is none."""
    found: dict[str, Any] = {}
    hints = typing.get_type_hints(config)
    for entry in dataclasses.fields(config):
        hint = hints[entry.name]
        if dataclasses.is_dataclass(hint):
            found |= flags_of(typing.cast(type, hint))
        elif typing.is_typeddict(hint):
            found |= {_flag(name): kind for name, kind in typing.get_type_hints(hint).items()}
        elif entry.default is not dataclasses.MISSING or entry.default_factory is not dataclasses.MISSING:
            found[_flag(entry.name)] = hint
    return found


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def with_values(words: Sequence[str], flags: Flags) -> list[str]:
    """The words of a command line in which a switch that may be left open, `--flag` or `--no-flag`, has its value."""
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
    """A message in which settings are called by the flags that set them.

    A name of one word is also a word of prose: it is taken for a flag only where a sentence begins with it.

    Args:
      message: of an error.
      flags: of the command.
      names: other names that a message may give a setting -> its flag.
    """
    settings = {re.sub(r"^--(space\.)?", "", flag).replace("-", "_"): flag for flag in flags} | dict(names)
    message, lists, known = message.partition("; there are ")  # columns of a table, say, of which some are called alike
    for name, flag in settings.items():
        begins = r"(?<![\w./\"'=-])" if "_" in name else r"(?:^|(?<=^the interval of ))"
        message = re.sub(rf"{begins}{re.escape(name)}(?![\w(=/\"'])(?!\.\w)", flag, message)
    return message + lists + known


def check(words: Sequence[str], command: str, flags: Flags) -> None:
    """Refuse flags that a command does not have, and values that no flag takes: empty ones, numbers without bounds.

    Args:
      words: of the command line.
      command: the command in it, such as `rookery train sac`.
      flags: of the command.

    Raises:
      FlagError: there is one.
    """
    before = ""
    for word in words:
        flag, is_joined, value = word.partition("=") if word.startswith("--") else (before, "", word)
        flag = flag.replace("_", "-")
        if word.startswith("--") and flag not in flags and re.sub("^--no-", "--", flag) not in flags:
            raise FlagError(_unknown(flag, words, command, flags))
        if value == "" and (is_joined or not word):
            raise FlagError(f"{flag or 'a value'} is empty; give {'it a value' if flag else 'one'}, or leave it out.")
        if _NOT_FINITE.fullmatch(value) and "float" in str(flags.get(flag, "")):
            raise FlagError(f"{flag} must be a finite number, got {value}.")
        if re.fullmatch(r"[+-]?\d+", value) and abs(int(value)) >= 2**63 and "int" in str(flags.get(flag, "")):
            raise FlagError(f"{flag} must lie between -2^63 and 2^63, got {value}.")
        before = flag if word.startswith("--") else before


def check_name(what: str, word: str, known: Sequence[str]) -> None:
    """Refuse a command or a kind that there is not.

    Raises:
      FlagError: names what is near, or all where nothing is.
    """
    if word.replace("_", "-") not in known:
        near = difflib.get_close_matches(word.lower(), known, cutoff=0.5)
        remedy = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}."
        raise FlagError(f"there is no {what} {word!r}; {remedy}")


@contextlib.contextmanager
def mistakes(words: Sequence[str], command: str, flags: Flags) -> Iterator[None]:
    """Within this context a command line that tyro refuses raises `FlagError`, where tyro tells what is wrong.

    Args:
      words: of the command line.
      command: the command in it, such as `rookery train sac`.
      flags: of the command.
    """

    def told(event: Any) -> None:
        with contextlib.suppress(AttributeError):  # another version of tyro: it has a message of its own
            if sentence := _sentence(event, words, command, flags):
                raise FlagError(sentence)

    with on_parse_error(told) if on_parse_error is not None else contextlib.nullcontext():
        yield


def _sentence(event: Any, words: Sequence[str], command: str, flags: Flags) -> str | None:
    """What an event of `tyro._errors` says, or None for one that is not known here."""
    kind = type(event).__name__
    argument = getattr(event, "argument", None)
    unknown = {"UnrecognizedArgs": "tokens", "MissingArgs": "unrecognized_tokens"}.get(kind)
    sentence = None
    if unknown and getattr(event, unknown):
        sentence = _unknown(getattr(event, unknown)[0], words, command, flags)
    elif kind == "MissingArgs":
        metavar = event.missing_arguments[0].arg.lowered.metavar
        sentence = f"{command} needs {metavar}; `{command} --help` says which."
    elif kind == "MissingSubcommand":
        sentence = f"{command} needs one of {', '.join(event.subcommand_spec.parser_from_name)}."
    elif argument is not None:
        sentence = _wrong_value(argument, words)
    elif kind == "InstantiationFailure":
        sentence = event.message
    return sentence


def _unknown(token: str, words: Sequence[str], command: str, flags: Flags) -> str:
    """A flag that the command does not have, or a value that no flag takes."""
    if not re.match("--?[a-z]", token):
        before = [word for word in words[: _place(token, words)] if word.startswith("--")]
        after = f" after {before[-1]}" if before else ""
        return f"{token!r}{after} is one word too many for {command}; `{command} --help` says what it takes."
    same = [flag for flag in flags if flag.startswith("--space.") == token.startswith("--space.")]
    near = difflib.get_close_matches(token, same) or (same if token.startswith("--space.") else [])
    told = f"did you mean {' or '.join(near)}?" if near else f"`{command} --help` lists what there is."
    return f"{command} has no flag {token}; {told}"


def _place(token: str, words: Sequence[str]) -> int:
    return words.index(token) if token in words else len(words)


def _wrong_value(argument: Any, words: Sequence[str]) -> str:
    """A value, or a number of values, that the argument does not take."""
    metavar = re.sub(r"\[/?bold\]", "", str(argument.lowered.metavar))
    if argument.is_positional():
        return f"{metavar} must be {_values(metavar)}."
    names = argument.lowered.name_or_flags
    place = next((i for i, word in enumerate(words) if word.partition("=")[0].replace("_", "-") in names), len(words))
    values = words[place].partition("=")[2].split() if place < len(words) else []
    for word in words[place + 1 :] if not values else ():
        if word.startswith("--"):
            break
        values.append(word)
    choices = re.findall(r"[a-z][\w/-]*", metavar)
    near = difflib.get_close_matches(values[0], choices) if values else []
    remedy = f"; did you mean {near[0]}?" if near else "."
    values = values if " " in metavar else values[:1]
    return f"{names[0]} must be {_values(metavar)}, got {' '.join(values) or 'nothing'}{remedy}"


def _values(metavar: str) -> str:
    """What a metavar such as `{FLOAT FLOAT}|FLOAT|{fixed}` says, in words."""
    told = []
    for option in metavar.split("|"):
        kinds = re.findall(r"[A-Z]{3,}", option)
        value = _VALUES.get(kinds[0], kinds[0]) if kinds else ""
        if not kinds:
            told += [choice for choice in option.strip("{}").split(",") if choice != "None"]
        elif "..." in option:
            told.append(f"{value}s")
        else:
            told.append(f"a {value}" if len(kinds) == 1 else f"{len(kinds)} {value}s")
    return " or ".join(told)
