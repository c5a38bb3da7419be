"""The kinds of run: every method of `methods` with every agent that it can train."""

import dataclasses
import functools
import importlib.metadata
import math
import warnings
from collections.abc import Mapping
from typing import Any

from rookery.experiments.agents import rows
from rookery.experiments.methods import METHODS
from rookery.experiments.spec import Kind, RunSpec
from rookery.experiments.wrappers import WRAPPERS
from rookery.factories import RAISED, place_of
from rookery.hyperparams import Choice, Chosen, Space, describe
from rookery.settings import POSITIVE, SettingError, check_numbers, unknown_name

PLUGINS = "rookery.kinds"
"""Group of the entry points of installed packages that add agents and methods: functions without arguments, which add a
row to `agents.AGENTS` or append to `methods.METHODS`."""


class KindWarning(UserWarning):
    """A kind of run that an installed package adds cannot be used."""


@functools.cache
def _add_plugins() -> None:
    """Let installed packages add their agents and methods; a `KindWarning` names one that cannot."""
    for plugin in importlib.metadata.entry_points(group=PLUGINS):
        try:
            plugin.load()()
        except RAISED as error:
            reason = f"{type(error).__name__}: {str(error).rstrip('.')}{place_of(error)}"
            message = f"{plugin.value} adds no kind of run ({reason}); repair or uninstall the package"
            warnings.warn(message, KindWarning, stacklevel=3)


def kinds() -> dict[str, Kind]:
    """All kinds of run: name on the command line -> kind. Of two with the same name the first is used, with a
    KindWarning."""
    _add_plugins()
    found: dict[str, Kind] = {}
    for method in METHODS:
        trained = [None] if method.trains is None else [row for row in rows(WRAPPERS) if method.trains(row)]
        for row in trained:
            name = method.name.format(agent=row.name if row else "")
            if name in found:
                used, other = (one.build.__module__ for one in (found[name].method, method))
                text = f"two kinds of run are named {name}; that of {used} is used, not that of {other}"
                warnings.warn(text, KindWarning, stacklevel=2)
            found.setdefault(name, Kind(name, method, row))
    return found


def configure(kind: str, **settings: object) -> RunSpec:
    """A run of a kind with the given settings, and the defaults of all others.

    Args:
      kind: a kind of `rookery train`, such as "pbt-sac".
      **settings: its settings, named like the flags, such as `env`, `population` and `hidden_sizes`, or whole parts:
        `environment`, `run`, `learner`, `agent`, `pbt`, `islands`, ... Choices in the search space are a mapping:
        `space={"discount": 0.98, "policy_lr": (1e-4, 1e-2)}`.

    Raises:
      ValueError: there is no such kind, or a setting is invalid.
      TypeError: the kind has no such setting.

    Example:
      >>> spec = rookery.experiments.configure("pbt-sac", population=4, generations=20, run_dir="runs/mine")
    """
    return kind_of(kind).default().replace(**settings)


def kind_of(name: str) -> Kind:
    """The kind of run of a name; a ValueError that lists similar ones if there is none."""
    known = kinds()
    if name not in known:
        raise unknown_name("kind", name, "kind of run", known)
    return known[name]


def with_steps(spec: RunSpec, usual: RunSpec, steps: float | None) -> RunSpec:
    """The run with the number of generations in which each member makes `steps` environment steps, rounded up.

    None changes nothing; `usual` is the run with the defaults.

    Raises:
      ValueError: no agents train, the number is not above 0, or the generations are given too.
    """
    if steps is None:
        return spec
    if spec.member_steps is None:
        problem = f"is for kinds whose members train a known number of steps, not for {spec.kind.name}"
        raise SettingError("steps", None, problem, "give {generations}")
    check_numbers(POSITIVE, steps=steps)
    if spec.run.generations != usual.run.generations:
        raise SettingError("steps", None, "and {generations} say the same", "leave one out")
    return spec.with_run(generations=math.ceil(steps / spec.member_steps))


def with_space(spec: RunSpec, space: Space | None) -> RunSpec:
    """The run with the full search space filled in, so that changed defaults of a later version do not affect it."""
    return spec if space is None else dataclasses.replace(spec, space=bounds_or_values(space))


def bounds_or_values(space: Space) -> dict[str, Chosen]:
    """The choices that give a search space: name -> bounds or names, or the value."""
    evolving: dict[str, Chosen] = {
        name: domain.names if isinstance(domain, Choice) else (domain.low, domain.high)
        for name, domain in space.domains.items()
    }
    return {**describe(space), **evolving}


def check_effects(spec: RunSpec) -> None:
    """Raise a ValueError if a setting differs from the kind's default and has no effect, with what it would need."""
    chosen, usual = spec.flat, spec.kind.default().flat
    for rule in spec.kind.rules:
        own, default = (_named(settings[rule.part] if rule.part else settings) for settings in (chosen, usual))
        changed = [name for name in rule.names if own[name] != default[name]]
        if changed and not rule.used(chosen[rule.part] if rule.part else chosen):
            raise SettingError(changed[0], None, f"has an effect only {rule.needed}", "change that, or leave this out")


def _named(part: object) -> Mapping[str, Any]:
    return part if isinstance(part, Mapping) else vars(part)
