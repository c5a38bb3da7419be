"""The options of a command, from the fields of its dataclass: flag, type, explanation, and heading in the help.

A field needs no entry here: it belongs to the heading of the dataclass that it is in.
"""

import ast
import copy
import dataclasses
import functools
import inspect
import itertools
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import tyro
from typing_extensions import Doc

from rookery.experiments.agents import AgentRow
from rookery.experiments.config import Chosen, parameter_flag
from rookery.experiments.methods import program
from rookery.experiments.spec import Kind, RunSpec
from rookery.experiments.wrappers import team
from rookery.hyperparams import Space
from rookery.learners import widths
from rookery.learners.base import EvaluationConfig
from rookery.storage.record import SKILL_METHODS

MAIN = "main options"
HEADINGS = {
    "program": "program",
    "environment": "environment",
    "skills": "environment",
    "pbt": "population method",
    "me_pbt": "population method",
    "cma_mae": "population method",
    "pga_me": "population method",
    "dcrl_me": "population method",
    "cells": "population method",
    "islands": "islands",
    "variation": "population method",
    "": "population method",
    "agent": "agent",
    "policy": "agent",
    **dict.fromkeys(SKILL_METHODS, "agent"),
    "learner": "learner",
    "evaluation": "evaluation",
    "space": "search space",
    "run": "output",
    "tracking": "tracking",
    "processes": "cluster",
}
"""Part of a config -> heading, in the order of the help; "" for settings that are in no part. A part that is not listed
is a heading of its own."""

_OWNERS: dict[type, str] = {EvaluationConfig: "evaluation", type(team.WRAPPER.settings): "agent"}
_OWNERS[type(program.METHOD.settings)] = "program"
"""Dataclasses whose settings are in a part with others -> heading of their own."""

IMPORTANT = (
    *("env", "population", "ga-population", "batch-size", "num-skills", "member", "seed", "generations", "steps"),
    *("steps-per-generation", "num-envs", "hidden-sizes", "devices", "init-from", "run-dir", "overwrite"),
    *("config", "print-config", "plan"),
)
"""Options that the help shows first, where a kind of run has them."""

FLAG = "space."
"""Prefix of the flags of a search space, as in `--space.discount`."""
_POSITIONAL = typing.get_args(tyro.conf.Positional[int])[1]
_NAMES = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}


class Option(NamedTuple):
    """An option of a command."""

    flag: str
    """Such as `--num-envs`."""
    path: tuple[str, ...]
    """The field's name, after the names of the parts that it is in: `("learner", "num_envs")`."""
    hint: Any
    """Type of the value."""
    owner: type
    """Dataclass that declares the field; for a search space, its TypedDict."""

    @property
    def name(self) -> str:
        """The flag without its dashes."""
        return self.flag.removeprefix("--")

    @property
    def is_switch(self) -> bool:
        """Whether the option is turned on and off, and needs no value."""
        return self.hint in (bool, bool | None)

    @property
    def heading(self) -> str:
        """The heading of the help that the option belongs to."""
        part = _OWNERS.get(self.owner, "".join(self.path[:-1][:1]))
        return MAIN if self.name in IMPORTANT else HEADINGS.get(part, part.replace("_", " "))

    @property
    def metavar(self) -> str:
        """The value in the usage, such as `INT`; "" for a switch."""
        return "" if self.is_switch else metavar(self.hint)

    def value(self, config: Any) -> Any:
        """The value of the option in a config; None if a search space does not choose it."""
        for name in self.path:
            config = config.get(name) if isinstance(config, typing.Mapping) else getattr(config, name)
        return config

    def explanation(self) -> str:
        """The docstring of the field, on one line; "" if there is none."""
        if typing.is_typeddict(self.owner):
            hint = typing.get_type_hints(self.owner, include_extras=True)[self.path[-1]]
            inner = typing.get_args(hint)[1:]
            return next((note.documentation for note in inner if isinstance(note, Doc)), "")
        return explanation_of(self.owner, self.path[-1])


def options_of(config: type, path: tuple[str, ...] = ()) -> Iterator[Option]:
    """The options of a command or of a part of a run: its dataclass fields with a default that are not positional.

    The fields of a class come before those that it inherits.
    """

    def depth(entry: dataclasses.Field[Any]) -> int:
        return config.__mro__.index(_owner(config, entry))

    hints = typing.get_type_hints(config, include_extras=True)
    for entry in sorted(dataclasses.fields(config), key=depth):
        hint, notes = hints[entry.name], ()
        if typing.get_origin(hint) is typing.Annotated:
            hint, *notes = typing.get_args(hint)
        name = next((note.name for note in notes if getattr(note, "name", None)), entry.name)
        inner = (*path, entry.name)
        if not _has_default(entry):
            continue
        if dataclasses.is_dataclass(hint):
            yield from options_of(typing.cast(type, hint), inner)
        elif _POSITIONAL not in notes:
            yield Option(flag_of(name), inner, hint, _owner(config, entry))


def options_of_kind(kind: Kind) -> Iterator[Option]:
    """The options of a kind of run."""
    usual = kind.default()
    for settings in (usual.wrapper, usual.method):
        yield from (option for option in options_of(type(settings)) if option.path != ("factory",))
    for name, part in usual.flat.items():
        if name in ("agent", "environment", "run", "learner"):
            yield from options_of(type(part), (name,))
    if kind.agent is not None:
        flags = space_flags(kind.agent, kind.method.has_width)
        for name, hint in typing.get_type_hints(flags).items():
            yield Option(parameter_flag(name), ("space", name), hint, flags)


def settings_class(kind: Kind, usual: RunSpec) -> type:
    """A dataclass with the settings of a kind of run as fields, for the parser.

    Args:
      kind: of run.
      usual: the run with the defaults.
    """
    hints = {**typing.get_type_hints(type(usual.wrapper), include_extras=True)}
    hints |= typing.get_type_hints(type(usual.method), include_extras=True)
    fields = []
    if kind.agent is not None:
        hints["space"] = space_flags(kind.agent, kind.method.has_width, FLAG)
    for name, value in usual.flat.items():
        if name == "factory":
            fields.insert(0, (name, Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar=FACTORY)]))
        else:
            default = dataclasses.field(default_factory=functools.partial(copy.copy, value))
            fields.append((name, hints.get(name, type(value)), default))
    made = dataclasses.make_dataclass("Settings", fields, frozen=True)
    made.__doc__ = kind.title
    return made


FACTORY = "FILE.py:FUNCTION|MODULE:FUNCTION"


def space_flags(row: AgentRow, with_width: bool, prefix: str = "") -> Any:
    """A TypedDict with an entry for every hyper-parameter of an agent.

    Args:
      row: the agent.
      with_width: whether the width of the networks can be chosen.
      prefix: of the names.
    """
    space, flags = row.default_space, {}
    other = row.continuous_space if row.default_space is row.space else None
    for name, entry in space.fields.items():
        default, continuous = _default(space, name), _default(other or space, name)
        default += "" if continuous == default else f"; with continuous actions it {continuous}"
        flags[prefix + name] = Annotated[Chosen, Doc(f"{entry.meaning}, in {entry.range}; by default it {default}.")]
    if with_width and not row.wrapper.has_skills and not row.wrapper.is_team:
        width = widths.field()
        meaning = f"{width.meaning} (at least {width.low:g}; default: all)."
        flags[prefix + widths.NAME] = Annotated[Chosen, Doc(meaning)]
    return TypedDict("SpaceFlags", flags, total=False)  # pyright: ignore[reportArgumentType]


def _default(space: Space, name: str) -> str:
    domain, value = space.domains.get(name), getattr(space.defaults, name)
    return f"evolves in [{domain.low:g}, {domain.high:g}], or is {value:g}" if domain else f"is {value:g}"


def _owner(config: type, entry: dataclasses.Field[Any]) -> type:
    """The class that declares a field."""
    return next(cls for cls in config.__mro__ if entry.name in inspect.get_annotations(cls))


def arguments_of(command: type) -> dict[str, tuple[str, str]]:
    """The arguments of a command that have no flag: field -> their form in the usage, such as `[STR]`, and meaning."""
    found, hints = {}, typing.get_type_hints(command, include_extras=True)
    for entry in dataclasses.fields(command):
        hint, *notes = typing.get_args(hints[entry.name]) or (None,)
        if _POSITIONAL in notes:
            value = next((note.metavar for note in notes if getattr(note, "metavar", None)), metavar(hint))
            shown = f"[{value}]" if _has_default(entry) else value
            found[entry.name] = (shown, explanation_of(command, entry.name))
    return found


def _has_default(entry: dataclasses.Field[Any]) -> bool:
    return entry.default is not dataclasses.MISSING or entry.default_factory is not dataclasses.MISSING


def explanation_of(config: type, field: str) -> str:
    """The docstring of a field of a dataclass, on one line; "" if there is none."""
    found = (_docstrings(cls).get(field) for cls in config.__mro__)
    return " ".join(next(filter(None, found), "").split())


def flag_of(name: str) -> str:
    """The flag of a setting: `num_envs` -> `--num-envs`."""
    return "--" + name.replace("_", "-")


def in_groups(options: Sequence[Option]) -> dict[str, list[Option]]:
    """Options by heading, in the order of the help: the important ones, those of `HEADINGS`, then all others."""
    order = [MAIN, *dict.fromkeys(HEADINGS.values())]
    grouped = {heading: [option for option in options if option.heading == heading] for heading in order}
    grouped[MAIN].sort(key=lambda option: IMPORTANT.index(option.name))
    for option in options:
        if option.heading not in order:
            grouped.setdefault(option.heading, []).append(option)
    return {heading: members for heading, members in grouped.items() if members}


def metavar(hint: Any) -> str:
    """A type in the usage: `int | None` -> `INT`, `tuple[int, ...]` -> `INT ...`, `Literal["a", "b"]` -> `{a,b}`."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return "|".join(metavar(kind) for kind in inner if kind is not type(None))
    if origin is typing.Literal:
        choices = ",".join(map(str, inner))
        return f"{{{choices}}}" if "," in choices else choices
    if origin is tuple:
        return " ".join("..." if kind is ... else metavar(kind) for kind in inner)
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)).upper())


@functools.cache
def _docstrings(cls: type) -> dict[str, str]:
    """The docstrings of the fields that a class declares: the string after each annotation in its source."""
    try:
        body = typing.cast(ast.ClassDef, ast.parse(inspect.cleandoc(inspect.getsource(cls))).body[0]).body
    except (OSError, TypeError, SyntaxError):  # a class that was generated, or whose source is not there
        return {}
    return {
        field.target.id: text.value.value
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
