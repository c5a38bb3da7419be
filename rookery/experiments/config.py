"""Settings that every kind of run shares (task, devices, islands), and the flags of a search space."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from typing_extensions import Doc

from rookery.distributed.mesh import Precision
from rookery.factories import Within, check_fields
from rookery.hyperparams import Field, Space
from rookery.learners.widths import NAME as WIDTH


@dataclass(frozen=True)
class DevicesConfig:
    """The devices of a run whose program is user-defined."""

    devices: Annotated[int | None, Within(1)] = None
    """Number of devices to shard the population over (at least 1; it must divide the population). By default the
    largest number available that divides it; on a CPU, each core is a device."""

    def __post_init__(self) -> None:
        """Check the number."""
        check_fields(self)


@dataclass(frozen=True)
class EnvironmentConfig:
    """The task and the devices of a run."""

    env: str = "hopper"
    """Name of the task (`rookery envs` lists all), or a user-defined factory of an environment:
    package.module:factory or path/to/file.py:factory."""
    episode_length: Annotated[int | None, Within(1)] = None
    """Environment steps after which an episode is truncated (at least 1); by default the task's standard length."""
    backend: str | None = None
    """Physics engine of a Brax task: spring (the default), positional, generalized or mjx."""
    option: tuple[str, ...] = ()
    """Options of the task (docs/reference/tasks.md) or parameters of a user-defined factory, as name=value, such as
    predator_speed=3."""
    frame_stack: Annotated[int, Within(1)] = 1
    """Number of latest observations that the agent reads in each step, images joined by their channels (at least 1)."""
    devices: Annotated[int | None, Within(1)] = None
    """Number of devices to shard the population over (at least 1; it must divide the population, or for map-elites the
    batch). By default the largest number available that divides it; on a CPU, each core is a device."""
    exact: bool = False
    """Compute the members of a device one after the other, not batched: slower, but bit-identical results on any number
    of devices."""
    precision: Precision = "float32"
    """Precision of matrix products on a GPU, also in physics: tf32 can be faster and rounds their inputs to 10 bits."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)


@dataclass(frozen=True)
class IslandsConfig:
    """Islands: populations that train independently and exchange genotypes without waiting for each other.

    Raises:
      ValueError: a value outside its range.
    """

    islands: Annotated[int, Within(1)] = 1
    """Divide the population into this number of islands (at least 1), which exchange members or elites without waiting
    for each other."""
    migrate_every: Annotated[int, Within(1)] = 10
    """Generations of an island between two exchanges (at least 1)."""
    migrate_fraction: float = 0.25
    """Share of an island's members, the worst, that an exchange may replace, and share of all, the best, to draw from
    (at least one each; 0: none); of a repertoire the share of elites that are published, in [0, 1]."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)
        if not 0.0 <= self.migrate_fraction <= 1.0:
            raise ValueError(f"migrate_fraction must lie in [0, 1], got {self.migrate_fraction}.")


Chosen = tuple[float, float] | float | Literal["fixed"]
"""Choice for one hyper-parameter: the bounds within which it evolves, a fixed value, or "fixed" at its default; for a
parameter of the task also "evolve"."""

FLAG = "space."
"""Prefix of the flags of a search space, as in `--space.discount`."""


def space_flags(space: Space, continuous: Space | None = None, width: Field | None = None) -> Any:
    """A TypedDict with one flag `--space.<name>` for every hyper-parameter of an agent; flags not given are absent.

    Args:
      space: search space of the agent; with `continuous` given, that for discrete actions.
      continuous: search space for continuous actions, if its defaults differ.
      width: the declaration of the width of the networks, if it can be chosen.
    """
    flags = {}
    for name, entry in space.fields.items():
        default, other = _default(space, name), _default(continuous or space, name)
        default += "" if other == default else f"; with continuous actions it {other}"
        flags[FLAG + name] = Annotated[Chosen, Doc(f"{entry.meaning}, in {entry.range}; by default it {default}.")]
    if width is not None:
        meaning = f"{width.meaning} (at least {width.low:g}; default: all)."
        flags[f"{FLAG}{WIDTH}"] = Annotated[Chosen, Doc(meaning)]
    return TypedDict("SpaceFlags", flags, total=False)  # pyright: ignore[reportArgumentType]


def _default(space: Space, name: str) -> str:
    domain, value = space.domains.get(name), getattr(space.defaults, name)
    return f"evolves in [{domain.low:g}, {domain.high:g}], or is {value:g}" if domain else f"is {value:g}"
