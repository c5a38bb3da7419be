"""Settings of a run in a TOML or YAML file: `rookery train --config FILE` reads one, `--print-config` writes one."""

import json
import os
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from rookery.cli.options import HEADINGS, in_groups, options_of_kind
from rookery.cli.parser import CommandLineError
from rookery.experiments.config import parameter_flag
from rookery.experiments.spec import RunSpec
from rookery.learners.rollout import PREFIX
from rookery.settings import user_path

SUFFIXES = (".toml", ".yaml", ".yml")


class ConfigFile(NamedTuple):
    """A config file."""

    path: str = ""  # as it was typed; "" without one
    settings: Mapping[str, Any] = {}  # name of a setting, as in the file -> value


def path_in(words: Sequence[str]) -> str:
    """The file in `--config`, which may be given once; "" if there is none."""
    places = [place for place, word in enumerate(words) if word.partition("=")[0] == "--config"]
    if len(places) > 1:
        raise CommandLineError(f"--config is given {len(places)} times; put all settings in one file.")
    if not places:
        return ""
    following = "".join(words[places[0] + 1 : places[0] + 2])
    return words[places[0]].partition("=")[2] or ("" if following.startswith("-") else following)


def read(file: str) -> dict[str, Any]:
    """The settings in a TOML or YAML file: name -> value; those of the tables `option` and `space` as flags have them.

    A `CommandLineError` says why the file cannot be read, or is not valid.
    """
    path = user_path(file)
    if path.suffix not in SUFFIXES:
        raise CommandLineError(f"--config must be a file that ends in .toml, .yaml or .yml, got {file}.")
    language = "TOML" if path.suffix == ".toml" else "YAML"
    try:
        text = path.read_text(encoding="utf-8-sig")
        settings = tomllib.loads(text) if language == "TOML" else _yaml(text)
    except OSError as error:
        problem = f"{file} cannot be read: {error.strerror}"
        raise CommandLineError(f"{problem}; --config needs a TOML or YAML file.") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise CommandLineError(f"{file} is not valid {language}: {' '.join(str(error).split())}.") from None
    found = dict(_flat(file, _expanded(file, settings)))
    for name in found:
        if name.replace("_", "-") in ("config", "print-config"):
            raise CommandLineError(f"{file}: {name} is no setting of a file; leave it out.")
    return found


def _flat(file: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Settings with the tables `option` and `space` written out as flags have them."""
    for name, value in settings.items():
        if name == "option" and isinstance(value, Mapping):
            for inner, choice in value.items():
                if not isinstance(choice, str | int | float):
                    raise CommandLineError(f"{file}: option {inner} must be a number or a word, got {choice!r}.")
            pairs = {inner: int(choice) if isinstance(choice, bool) else choice for inner, choice in value.items()}
            yield name, [f"{inner}={choice}" for inner, choice in pairs.items()]
        elif name in ("space", "space.env") and isinstance(value, Mapping):
            yield from _flat(file, {f"{name}.{inner}": choice for inner, choice in value.items()})
        else:
            yield name, value


def _expanded(file: str, value: object) -> Any:
    """The settings in a file with the variables in their texts, `$NAME` and `${NAME}`, as a shell would expand them."""
    if isinstance(value, dict):
        return {name: _expanded(file, inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_expanded(file, inner) for inner in value]
    found = os.path.expandvars(value) if isinstance(value, str) else value
    if isinstance(found, str) and (missing := re.search(r"\$(\{[A-Za-z_]\w*\}|[A-Za-z_]\w*)", found)):
        raise CommandLineError(
            f"{file}: the variable {missing[0]} in {value!r} is not set; set it, or write its value."
        )
    return found


def _yaml(text: str) -> dict[str, Any]:
    _check_names(yaml.compose(text, yaml.SafeLoader))
    settings = yaml.safe_load(text)
    if not isinstance(settings, dict | None):
        raise ValueError("it must have lines such as `population: 16`")
    return {str(name): value for name, value in (settings or {}).items()}


def _check_names(node: object) -> None:
    """Check that no name of a YAML table is there twice; PyYAML takes the last one."""
    names: set[str] = set()
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if str(key.value) in names:
            raise ValueError(f"{key.value} is given twice (at line {key.start_mark.line + 1})")
        names.add(str(key.value))
        _check_names(value)


def to_toml(spec: RunSpec, default: RunSpec) -> str:
    """All settings of a run as TOML, from which `read` makes the same config.

    Settings without a value (None) are named in comments; where the run without any flag, apart from `--init-from` and
    `--replay-schedule`, has a value, they are written as "None".
    """
    kind, settings, usual = spec.kind, spec.flat, default.flat
    lines = ["# `rookery train --config FILE` trains with these settings;"]
    lines += [f"# `rookery train {kind.name} --help` describes them.", f'kind = "{kind.name}"']
    lines += [f"factory = {_literal(settings['factory'])}"] if "factory" in settings else []
    for heading, options in in_groups([one for one in options_of_kind(kind) if not one.is_required]).items():
        values = {option.name: option.value(settings) for option in options}
        unset = [option.name for option in options if option.value(settings) is option.value(usual) is None]
        lines += ["", f"# {heading}"]
        if heading == HEADINGS["space"]:
            values |= {parameter_flag(name): spec.space[name] for name in spec.space if name.startswith(PREFIX)}
        lines += [
            f"{name.removeprefix('--')} = {_literal(value)}" for name, value in values.items() if name not in unset
        ]
        if unset:
            text = f"without a value: {', '.join(unset)}"
            lines += textwrap.wrap(text, 80, break_on_hyphens=False, initial_indent="# ", subsequent_indent="# ")
    return "\n".join(lines) + "\n"


def _literal(value: object) -> str:
    """A value in TOML."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps("None" if value is None else value, ensure_ascii=False).replace("\x7f", "\\u007f")
