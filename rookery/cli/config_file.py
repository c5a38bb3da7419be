"""Settings of a run in a TOML or YAML file: `rookery train --config FILE` reads one, `--print-config` writes one.

A file becomes words of the command line in front of those that are typed, so that both are checked by the same code.
"""

import json
import os
import re
import textwrap
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from rookery.cli import flags, parameters
from rookery.cli.options import FLAG, HEADINGS, flag_of, in_groups, metavar, options_of_kind
from rookery.experiments.kinds import kinds
from rookery.experiments.spec import RunSpec
from rookery.factories import user_path
from rookery.storage.record import PROGRAM

SUFFIXES = (".toml", ".yaml", ".yml")
_NOT_IN_A_FILE = ("--config", "--print-config")


class CommandLine(NamedTuple):
    """The words of a command line, after those of its config file."""

    words: list[str]
    file: str = ""
    """The config file as it was typed; "" without one."""
    given: Mapping[str, tuple[str, Any]] = types.MappingProxyType({})
    """Flag -> name and value in the file, for each setting of the file that is not typed."""

    def explain(self, message: str) -> str:
        """An error message that names the file, if a setting or a value of the file is in the message."""
        if " has no flag " in message:  # which was typed: `expand` reports those of the file
            return message
        found = [flag for flag in self.given if re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", message)]
        values = [value for _, value in self.given.values() if isinstance(value, str)]
        places = [str(user_path(value.partition(":")[0]).absolute()) for value in values]
        if not found and not any(text in message for text in [*map(repr, values), *places]):
            return message
        for flag in found:
            message = re.sub(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", self.given[flag][0], message)
        return f"{self.file}: {message}"


def expand(arguments: Sequence[str], train_flags: flags.Flags) -> CommandLine:
    """Put the settings of the file in `--config` into a command line, before the typed words, which take precedence.

    Args:
      arguments: the words that were typed.
      train_flags: flags of `rookery train` for every kind of run.

    Raises:
      FlagError: the file cannot be read, or has a kind or a setting that does not exist, or a value of a wrong type.
    """
    file = _file(arguments)
    if not file:
        return CommandLine([*arguments])
    settings = read(file)
    index = _kind_index(arguments, train_flags)
    typed_kind = arguments[index].replace("_", "-") if index else None
    if typed_kind not in (None, *kinds()):
        # the parser reports a kind that does not exist
        return CommandLine([*arguments] if index == 1 else ["train", typed_kind])
    kind = _kind(file, settings.pop("kind", None), typed_kind)
    places = _positional(arguments, index, typed_kind)
    rest = [word for i, word in enumerate(arguments) if i not in (0, *places)]
    recorded = _factory(file, kind, settings)
    positional = [arguments[i] for i in places[1:]] or recorded
    known = {**train_flags, **flags.flags_of(kinds()[kind])}
    known = {flag: hint for flag, hint in known.items() if flag not in _NOT_IN_A_FILE}
    if parameters.kind_of(["train", kind]):
        named = (flag_of(name) for name, _ in _flat(file, settings))
        known |= {flag: parameters.Choice for flag in named if parameters.is_flag(flag)}
    alias = {"--seeds": "--population"} if kinds()[kind].method.is_independent else {}
    given = _given(file, kind, settings, (known, alias))
    typed = {_plain(word.partition("=")[0], known, alias) for word in rest if word.startswith("--")}
    words = {flag: _words(file, name, value, (flag, known[flag])) for flag, (name, value) in given.items()}
    used = [flag for flag in given if flag not in typed]
    before = [word for flag in used for word in words[flag]]
    return CommandLine(["train", kind, *positional, *before, *rest], file, {flag: given[flag] for flag in used})


def _positional(arguments: Sequence[str], index: int, kind: str | None) -> list[int]:
    """The indices of the kind of run and, after `program`, of its function; [] if no kind was typed."""
    has_function = kind == PROGRAM and "".join(arguments[index + 1 : index + 2])[:1] not in ("", "-")
    return [index, index + 1][: 1 + has_function] if index else []


def _factory(file: str, kind: str, settings: dict[str, Any]) -> list[str]:
    """The function of a user-defined program in a file, which has no flag; it is taken out of the settings."""
    if kind != PROGRAM or "factory" not in settings:
        return []
    factory = settings.pop("factory")
    if not isinstance(factory, str):
        raise flags.FlagError(f"{file}: factory must be a word such as ./mine.py:build, got {_shown(factory)}.")
    return [factory]


def _kind_index(arguments: Sequence[str], train_flags: flags.Flags) -> int:
    """The index of the kind of run in a command line, or of the word in its place; 0 if there is none."""
    for index, word in enumerate(arguments):
        before = arguments[index - 1]
        is_value = before.startswith("--") and "=" not in before and train_flags.get(before) is not bool
        if index > 0 and not word.startswith("-") and not is_value:
            after_file = "--config" in (arguments[index - 2], before.partition("=")[0])
            if word.replace("_", "-") in kinds() or index == 1 or after_file:
                return index
    return 0


def _file(arguments: Sequence[str]) -> str:
    """The file in `--config`; "" if there is none, or the command is not `train`."""
    places = [i for i, word in enumerate(arguments) if word.partition("=")[0] == "--config"]
    if arguments[:1] != ["train"] or not places:
        return ""
    if len(places) > 1:
        raise flags.FlagError(f"--config can be given once, got it {len(places)} times; put all settings in one file.")
    following = "".join(arguments[places[0] + 1 : places[0] + 2])
    file = arguments[places[0]].partition("=")[2] or following
    return file if not file.startswith("-") else ""


def _given(
    file: str, kind: str, settings: Mapping[str, Any], names: tuple[flags.Flags, Mapping[str, str]]
) -> dict[str, tuple[str, Any]]:
    """The settings of a file: flag -> name and value in the file.

    Args:
      file: for messages.
      kind: of run.
      settings: in the file.
      names: the flags of the kind of run, and the aliases of flags.
    """
    known, alias = names
    given: dict[str, tuple[str, Any]] = {}
    for name, value in _flat(file, settings):
        flag = alias.get(flag_of(name), flag_of(name))
        if name.startswith("--"):
            raise flags.FlagError(f"{file}: write {name} without its dashes, as {name.removeprefix('--')}.")
        if flag not in known:
            possible = {**known} | {other: known[meant] for other, meant in alias.items()}
            raise flags.FlagError(f"{file}: {_unknown(flag, kind, possible)}")
        if flag in given:
            raise flags.FlagError(f"{file}: {name} is given twice, as {given[flag][0]} too; leave one of them out.")
        given[flag] = (name, value)
    return given


def _plain(flag: str, known: flags.Flags, alias: Mapping[str, str]) -> str:
    """The flag of a setting for a typed flag: `--no-exact` -> `--exact`, `--num_envs` -> `--num-envs`."""
    flag = flag.replace("_", "-")
    flag = alias.get(flag, flag)
    return flag if flag in known else re.sub("^--no-", "--", flag)


def _kind(file: str, kind: Any, typed: str | None) -> str:
    """The kind of run, of the file or of the command line."""
    if kind is None and typed is None:
        raise flags.FlagError(f'{file} has no kind; add one, such as kind = "pbt-sac", or type it after train.')
    if kind is None:
        return str(typed)
    try:
        flags.check_name("kind of run", str(kind), [*kinds()])
    except flags.FlagError as error:
        raise flags.FlagError(f"{file}: {error}") from None
    kind = str(kind).replace("_", "-")
    if typed not in (kind, None):
        raise flags.FlagError(f"{file} is for {kind}, but {typed} was typed; leave one of the two out.")
    return kind


def _flat(file: str, settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Settings with the tables `option` and `space` written out as flags have them."""
    flat: list[tuple[str, Any]] = []
    for name, value in settings.items():
        if not isinstance(value, Mapping):
            flat.append((name, value))
        elif name == "space":
            for key, choice in value.items():
                inner = choice.items() if key == "env" and isinstance(choice, Mapping) else ()
                flat += [(f"{FLAG}env.{name}", chosen) for name, chosen in inner] or [(FLAG + str(key), choice)]
        elif name == "option":
            for inner, choice in value.items():
                if not isinstance(choice, str | int | float):
                    raise flags.FlagError(f"{file}: {name} {inner} must be a number or a word, got {_shown(choice)}.")
            pairs = ((inner, int(choice) if isinstance(choice, bool) else choice) for inner, choice in value.items())
            flat.append((name, [f"{inner}={choice}" for inner, choice in pairs]))
        else:
            raise flags.FlagError(
                f"{file}: {name} is a table; only option and space are tables, all other settings are at the top."
            )
    return flat


def _unknown(flag: str, kind: str, known: flags.Flags) -> str:
    command = f"rookery train {kind}"
    message = flags.unknown_flag(flag, [], command, known).replace(
        f"{command} has no flag", f"{command} has no setting"
    )
    return re.sub(r"(?<= )--(?!help)", "", message)


def _words(file: str, name: str, value: Any, option: tuple[str, Any]) -> list[str]:
    """The words of the command line for a setting of a file.

    Args:
      file: for the message.
      name: of the setting in the file.
      value: in the file.
      option: the flag, and the type of its value.
    """
    flag, hint = option
    has_none = type(None) in typing.get_args(hint)
    if has_none and (value is None or value == "None"):
        return [flag, "None"]
    if hint in (bool, bool | None):
        if not isinstance(value, bool):
            raise flags.FlagError(f"{file}: {name} must be true or false, got {_shown(value)}.")
        return [flag if value else flag.replace("--", "--no-", 1)]
    values = value if isinstance(value, list) and " " in metavar(hint) else [value]
    if any(isinstance(v, bool) or not isinstance(v, str | int | float) or str(v).startswith("--") for v in values):
        raise flags.FlagError(f"{file}: {name} must be {flags.describe_values(metavar(hint))}, got {_shown(value)}.")
    return [flag, *map(str, values)] if isinstance(value, list) else [f"{flag}={value}"]


def _shown(value: Any) -> str:
    """A value in a message, as files write it."""
    return json.dumps(value, default=str, ensure_ascii=False)


def read(file: str) -> dict[str, Any]:
    """The settings in a TOML or YAML file.

    Raises:
      FlagError: the file cannot be read, or is not valid.
    """
    path = user_path(file)
    if path.suffix not in SUFFIXES:
        raise flags.FlagError(f"--config must be a file that ends in .toml, .yaml or .yml, got {file}.")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise flags.FlagError(f"there is no file {file}; --config needs a TOML or YAML file.") from None
    except IsADirectoryError:
        raise flags.FlagError(f"{file} is a folder; --config needs a TOML or YAML file.") from None
    except OSError as error:
        raise flags.FlagError(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise flags.FlagError(f"{file} is not UTF-8 text.") from None
    return _expanded(file, _toml(file, text) if path.suffix == ".toml" else _yaml(file, text))


def _expanded(file: str, value: Any) -> Any:
    """The settings in a file with the variables in their texts, `$NAME` and `${NAME}`, as a shell would expand them."""
    if isinstance(value, dict):
        return {name: _expanded(file, inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_expanded(file, inner) for inner in value]
    found = os.path.expandvars(value) if isinstance(value, str) else value
    if isinstance(found, str) and (missing := re.search(r"\$(\{[A-Za-z_]\w*\}|[A-Za-z_]\w*)", found)):
        raise flags.FlagError(
            f"{file}: the variable {missing[0]} in {_shown(value)} is not set; set it, or write its value."
        )
    return found


def _toml(file: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of more digits than Python reads
        raise flags.FlagError(f"{file} is not valid TOML: {error}.") from None


def _yaml(file: str, text: str) -> dict[str, Any]:
    try:
        _check_names(file, yaml.compose(text, yaml.SafeLoader))
        settings = yaml.safe_load(text)
    except flags.FlagError:
        raise
    except yaml.MarkedYAMLError as error:
        place = f" (at line {error.problem_mark.line + 1})" if error.problem_mark else ""
        raise flags.FlagError(f"{file} is not valid YAML: {error.problem}{place}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # such as the date 2026-13-45
        raise flags.FlagError(f"{file} is not valid YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(settings, dict | None):
        raise flags.FlagError(f"{file} must have lines such as `population: 16`, got {_shown(settings)}.")
    return {str(name): value for name, value in (settings or {}).items()}


def _check_names(file: str, node: Any) -> None:
    """Check that no name of a YAML table is there twice; PyYAML takes the last one."""
    names: set[str] = set()
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if str(key.value) in names:
            raise flags.FlagError(f"{file}: {key.value} is given twice (at line {key.start_mark.line + 1}).")
        names.add(str(key.value))
        _check_names(file, value)


def to_toml(spec: RunSpec, default: RunSpec) -> str:
    """All settings of a run as TOML, from which `expand` makes the same config.

    Settings without a value (None) are named in comments; where the default has a value, they are written as "None".

    Args:
      spec: the run.
      default: the run without any flag, apart from `--init-from` and `--replay-schedule`.
    """
    kind, settings, usual = spec.kind, spec.flat, default.flat
    lines = ["# `rookery train --config FILE` trains with these settings;"]
    lines += [f"# `rookery train {kind.name} --help` describes them.", f'kind = "{kind.name}"']
    lines += [f"factory = {_literal(settings['factory'])}"] if "factory" in settings else []
    for heading, options in in_groups([*options_of_kind(kind)]).items():
        values = {option.name: option.value(settings) for option in options}
        unset = [option.name for option in options if option.value(settings) is option.value(usual) is None]
        lines += ["", f"# {heading}"]
        if heading == HEADINGS["space"]:
            values |= parameters.chosen_in(spec.space)
        lines += [f"{name} = {_literal(value)}" for name, value in values.items() if name not in unset]
        lines += _comment(f"without a value: {', '.join(unset)}") if unset else []
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 80, break_on_hyphens=False, initial_indent="# ", subsequent_indent="# ")


def _literal(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps("None" if value is None else value, ensure_ascii=False).replace("\x7f", "\\u007f")
