"""The options of a command, from the fields of its dataclass: flag, type, explanation, and heading in the help.

A field needs no entry here: it belongs to the heading of the dataclass that it is in.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from cyclopts import Parameter

from rookery.experiments.agents import AgentRow
from rookery.experiments.config import parameter_flag
from rookery.experiments.methods import program
from rookery.experiments.spec import Kind, RunSpec
from rookery.experiments.wrappers import team
from rookery.hyperparams import Field, Space
from rookery.learners import n_step, widths
from rookery.learners.base import EvaluationConfig
from rookery.learners.rollout import PREFIX
from rookery.settings import Within, range_of
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
    "league": "population method",
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
    *("factory", "env", "population", "ga-population", "batch-size", "num-skills", "member", "seed", "generations"),
    *("steps", "steps-per-generation", "num-envs", "hidden-sizes", "devices", "init-from", "run-dir", "overwrite"),
    *("config", "print-config", "plan"),
)
"""Options that the help shows first, where a kind of run has them."""

_POSITIONAL = Parameter()
T = TypeVar("T")
Positional = Annotated[T, _POSITIONAL]  # type of an argument that is given by its place, without a flag

Chosen = tuple[float, float] | float | Literal["fixed"]  # the choice for a hyper-parameter that is a number
_Evolving = Chosen | Literal["evolve"]  # likewise, of one with a domain in its declaration
_Any = tuple[str, ...] | _Evolving | str  # likewise, of a parameter of a task, which may have names
ENVIRONMENT = "--space.env."
"""Beginning of the flags of the task's parameters, which depend on the task and not on the kind of run."""


class Option(NamedTuple):
    """An option of a command."""

    flag: str
    """Such as `--num-envs`; of an argument without a flag its name, such as `RUN`."""
    path: tuple[str, ...]
    """The field's name, after the names of the parts that it is in: `("learner", "num_envs")`."""
    hint: Any
    """Type of the value."""
    part: str
    """The part that it belongs to in the help, a key of `HEADINGS`."""
    explanation: str
    """What it means."""
    aliases: tuple[str, ...] = ()
    """Other flags of the same meaning."""
    is_required: bool = False
    within: Within | None = None
    """The valid numbers."""

    @property
    def name(self) -> str:
        """The flag without its dashes."""
        return self.flag.removeprefix("--")

    @property
    def flags(self) -> tuple[str, ...]:
        """The flag and its other names."""
        return self.flag, *self.aliases

    @property
    def is_switch(self) -> bool:
        """Whether the option is turned on and off, and needs no value."""
        return self.hint in (bool, bool | None)

    @property
    def heading(self) -> str:
        """The heading of the help that the option belongs to."""
        is_important = self.name in IMPORTANT and self.part != "options"
        return MAIN if is_important else HEADINGS.get(self.part, self.part.replace("_", " "))

    def value(self, config: object) -> Any:
        """The value of the option in a config; None if a search space does not choose it."""
        for name in self.path:
            config = config.get(name) if isinstance(config, Mapping) else getattr(config, name)
        return config


def options_of(config: type, path: tuple[str, ...] = ()) -> Iterator[Option]:
    """The options of a command or of a part of a run, from its dataclass.

    The fields of a class come before those that it inherits.
    """

    def depth(entry: dataclasses.Field[Any]) -> int:
        return config.__mro__.index(_owner(config, entry))

    hints = typing.get_type_hints(config, include_extras=True)
    for entry in sorted(dataclasses.fields(config), key=depth):
        hint, within, notes = hints[entry.name], range_of(hints[entry.name]), ()
        if typing.get_origin(hint) is Annotated:
            hint, *notes = typing.get_args(hint)
        inner, given = (*path, entry.name), [note for note in notes if isinstance(note, Parameter)]
        names = [name for note in given for name in note.name or ()]
        is_required = entry.default is entry.default_factory is dataclasses.MISSING
        if dataclasses.is_dataclass(hint):
            yield from () if is_required else options_of(typing.cast(type, hint), inner)
            continue
        flag = entry.name.upper() if _POSITIONAL in given else (names or [flag_of(entry.name)])[0]
        part = _OWNERS.get(_owner(config, entry), "".join(path[:1]))
        aliases = tuple(name for note in given for name in note.alias or ())
        yield Option(flag, inner, hint, part, explanation_of(config, entry.name), aliases, is_required, within)


def options_of_kind(kind: Kind) -> Iterator[Option]:
    """The options of a kind of run."""
    usual = kind.default()
    for option in (*options_of(type(usual.wrapper)), *options_of(type(usual.method))):
        seeds = ("--seeds",) if option.path == ("population",) and kind.method.is_independent else option.aliases
        yield option._replace(aliases=seeds, is_required=option.path == ("factory",))
    for name, part in usual.flat.items():
        if name in ("agent", "environment", "run", "learner"):
            yield from options_of(type(part), (name,))
    if kind.agent is not None:
        yield from _options_of_space(kind.agent, kind.method.has_width)


def _options_of_space(row: AgentRow, with_width: bool) -> Iterator[Option]:
    """An option for every hyper-parameter of an agent, and for the width of its networks if that can be chosen."""
    space = row.default_space
    other = row.continuous_space if row.default_space is row.space else None
    for name, entry in space.fields.items():
        default, continuous = _default(space, name), _default(other or space, name)
        default += "" if continuous == default else f"; with continuous actions it {continuous}"
        text = f"{entry.meaning}, {entry.range}; by default it {default}."
        yield Option(parameter_flag(name), ("space", name), _hint(entry), "space", text)
    optional = space.optional or Space((), {})
    for name, entry in optional.fields.items():
        text = f"{entry.meaning}, {entry.range}; by default it {_default(optional, name)}."
        yield Option(parameter_flag(name), ("space", name), _hint(entry), "space", text)
    if row.is_off_policy and not row.wrapper.has_skills:
        steps = n_step.SPACE.fields["n_step"]
        text = f"{steps.meaning}, {steps.range}; by default it is 1."
        yield Option(parameter_flag("n_step"), ("space", "n_step"), _Evolving, "space", text)
    if with_width and not (row.wrapper.has_skills or row.wrapper.is_team or row.is_evolved):
        width = widths.field()
        text = f"{width.meaning} (at least {width.low:g}; default: all)."
        yield Option(parameter_flag(widths.NAME), ("space", widths.NAME), Chosen, "space", text)


def _hint(field: Field) -> Any:
    """The type of the choices for a hyper-parameter."""
    if field.names:
        one = Literal[field.names]
        return tuple[one, ...] | one | Literal["fixed", "evolve"]
    return Chosen if isinstance(field.domain, type) else _Evolving


def _default(space: Space, name: str) -> str:
    domain, value = space.domains.get(name), space.fields[name].shown(getattr(space.defaults, name))
    return f"evolves {domain}, or is {value}" if domain else f"is {value}"


def environment_option(flag: str) -> Option:
    """The option of a parameter of the task, such as `--space.env.prey-speed`."""
    name = PREFIX + flag.removeprefix(ENVIRONMENT).replace("-", "_")
    return Option(parameter_flag(name), ("space", name), _Any, "space", "")


def with_values(config: Any, values: Mapping[tuple[str, ...], Any]) -> Any:
    """A dataclass, or a mapping, with other values: path of an option in it -> value."""
    if isinstance(config, Mapping):
        return {**config, **{name: value for (name,), value in values.items()}}
    changed = {path[0]: value for path, value in values.items() if len(path) == 1}
    for part in {path[0] for path in values if len(path) > 1}:
        inner = {path[1:]: value for path, value in values.items() if path[0] == part}
        before = config.flat[part] if isinstance(config, RunSpec) else getattr(config, part)
        changed[part] = with_values(before, inner)
    return config.replace(**changed) if isinstance(config, RunSpec) else dataclasses.replace(config, **changed)


def flag_of(name: str) -> str:
    """The flag of a setting: `num_envs` -> `--num-envs`."""
    return "--" + name.replace("_", "-")


def in_groups(options: Sequence[Option]) -> dict[str, list[Option]]:
    """Options by heading, in the order of the help: the important ones, those of `HEADINGS`, then all others."""
    order = dict.fromkeys([MAIN, *HEADINGS.values(), *(option.heading for option in options)])
    grouped = {heading: [option for option in options if option.heading == heading] for heading in order}
    grouped[MAIN].sort(key=lambda option: IMPORTANT.index(option.name))
    return {heading: members for heading, members in grouped.items() if members}


def _owner(config: type, entry: dataclasses.Field[Any]) -> type:
    """The class that declares a field."""
    return next(cls for cls in config.__mro__ if entry.name in inspect.get_annotations(cls))


def explanation_of(config: type, field: str) -> str:
    """The docstring of a field of a dataclass, on one line; "" if there is none."""
    found = (_docstrings(cls).get(field) for cls in config.__mro__)
    return " ".join(next(filter(None, found), "").split())


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
