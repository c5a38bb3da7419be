"""What a run is told: one frozen dataclass per kind of run. The command line and `config.json` are derived from it.

The parts are the configs of the rooms below, so that a setting is declared, documented and checked in one place only.
"""

import dataclasses
import difflib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rookery.agents.sac import SacConfig
from rookery.learners.off_policy import OffPolicyConfig
from rookery.populations.pbt import PbtConfig


@dataclass(frozen=True)
class WorldConfig:
    """Where the members live, and on what machine."""

    env: str = "hopper"
    """Task; `rookery envs` lists them."""
    episode_length: int | None = None
    """Steps until an episode is truncated (at least 1); the task's own by default."""
    backend: str | None = None
    """Physics of a Brax task: spring (the default), positional, generalized or mjx."""
    devices: int | None = None
    """Devices to spread the population over; by default as many as divide it, on a CPU its cores."""
    exact: bool = False
    """Map members one by one: slower, but the same bits on any number of devices."""


@dataclass(frozen=True)
class RunConfig:
    """What every kind of run shares.

    Raises:
      ValueError: a count below 1.
    """

    seed: int = 0
    """Seed of the run; with the same versions and devices it decides every bit."""
    generations: int = 50
    """Generations to run (at least 1)."""
    run_dir: str | None = None
    """Folder of the run; runs/<kind>-<env>-<seed> by default."""
    checkpoint_every: int = 5
    """Generations between checkpoints (at least 1); the last generation is always saved."""
    keep: int = 3
    """Checkpoints kept (at least 1)."""
    overwrite: bool = False
    """Replace a run that the folder already holds."""
    quiet: bool = False
    """Print nothing but errors."""

    def __post_init__(self) -> None:
        """Check the counts."""
        for name in ("generations", "checkpoint_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")


@dataclass(frozen=True)
class SacRun:
    """Soft actor-critic: independent members, one by default.

    Source: Haarnoja 2018 (arXiv:1812.05905).
    """

    population: int = 1
    """Members, each with a seed of its own (at least 1)."""
    draw_hyper: bool = False
    """Draw each member's hyper-parameters from the search space: random search."""
    world: WorldConfig = field(default_factory=WorldConfig)
    run: RunConfig = field(default_factory=RunConfig)
    learner: OffPolicyConfig = field(default_factory=OffPolicyConfig)
    agent: SacConfig = field(default_factory=SacConfig)


@dataclass(frozen=True)
class PbtSacRun:
    """Population Based Training of soft actor-critic agents.

    Sources: Jaderberg 2017 (arXiv:1711.09846), Haarnoja 2018 (arXiv:1812.05905).
    """

    population: int = 8
    """P, members (at least 1; a multiple of the devices)."""
    world: WorldConfig = field(default_factory=WorldConfig)
    run: RunConfig = field(default_factory=RunConfig)
    pbt: PbtConfig = field(default_factory=PbtConfig)
    learner: OffPolicyConfig = field(default_factory=OffPolicyConfig)
    agent: SacConfig = field(default_factory=SacConfig)


AnyRun = SacRun | PbtSacRun

KINDS: dict[str, type[AnyRun]] = {"sac": SacRun, "pbt-sac": PbtSacRun}
"""Name on the command line -> config."""


PYTHON = "python"
"""The kind that `config.json` names for a run whose program the command line cannot rebuild."""


def kind_of(config: AnyRun) -> str:
    """A config's name on the command line."""
    return next(name for name, kind in KINDS.items() if kind is type(config))


def to_record(config: AnyRun) -> dict[str, Any]:
    """A config as JSON values."""
    return {"kind": kind_of(config), **dataclasses.asdict(config)}


def from_record(record: Mapping[str, Any]) -> AnyRun:
    """A config from what `to_record` gave, after a round trip through JSON.

    Raises:
      ValueError: the kind or a field is unknown here, or a field is missing: another version wrote it; or the run was
        started from Python.
    """
    values = dict(record)
    kind = values.pop("kind", None)
    if kind == PYTHON:
        raise ValueError("this run was started from Python; continue it there: run(program, run_dir=..., resume=True).")
    if kind not in KINDS:
        raise ValueError(f"this version knows no run of kind {kind!r}; it knows {', '.join(KINDS)}.")
    return _revive(KINDS[kind], values, kind)


def _revive(cls: type, values: Mapping[str, Any], where: str) -> Any:
    names = [entry.name for entry in dataclasses.fields(cls)]
    strange = sorted(set(values) ^ set(names))
    if strange:
        raise ValueError(
            f"config.json was written by an incompatible version of rookery: {where} differs in {', '.join(strange)}; "
            "use the version that wrote it (it stands in config.json)."
        )
    types = typing.get_type_hints(cls)
    return cls(**{name: _revive_value(types[name], values[name], name) for name in names})


def _revive_value(hint: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _revive(typing.cast(type, hint), value, name)
    return tuple(value) if isinstance(value, list) else value


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """A clause that names the known names nearest to a mistaken one."""
    near = difflib.get_close_matches(name, list(known))
    return f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(known)}."
