"""Settings that many kinds of run share: task, devices, islands; choices in a search space; conditions of settings."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from rookery.learners.rollout import PREFIX
from rookery.networks import Precision
from rookery.settings import FRACTION, Within, check_fields


@dataclass(frozen=True)
class DevicesConfig:
    """The devices of a run whose program is user-defined."""

    devices: Annotated[int | None, Within(1)] = None
    """Number of devices to shard the population over (it must divide the population). By default the largest number
    available that divides it; on a CPU, each core is a device."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class EnvironmentConfig:
    """The task and the devices of a run."""

    env: str = "hopper"
    """Name of the task (`rookery envs` lists all), or a user-defined factory of an environment:
    package.module:factory or path/to/file.py:factory."""
    episode_length: Annotated[int | None, Within(1)] = None
    """Environment steps after which an episode is truncated; by default the task's standard length."""
    backend: str | None = None
    """Physics engine of a Brax task: spring (the default), positional, generalized or mjx."""
    option: tuple[str, ...] = ()
    """Options of the task (docs/reference/tasks.md) or parameters of a user-defined factory, as name=value, such as
    predator_speed=3."""
    frame_stack: Annotated[int, Within(1)] = 1
    """Number of latest observations that the agent reads in each step, images joined by their channels."""
    devices: Annotated[int | None, Within(1)] = None
    """Number of devices to shard the population over (it must divide the population, or for map-elites the batch). By
    default the largest number available that divides it; on a CPU, each core is a device."""
    exact: bool = False
    """Compute the members of a device one after the other, not batched: slower, but bit-identical results on any number
    of devices."""
    precision: Precision = "auto"
    """Precision of the networks' matrix products: auto is tf32 (inputs of 10 bits) on a GPU and float32 on a CPU;
    bfloat16 has 7 bits. All else is float32."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class IslandsConfig:
    """Islands: populations that train independently and exchange genotypes without waiting for each other.

    Raises:
      ValueError: a value outside its range.
    """

    islands: Annotated[int, Within(1)] = 1
    """Divide the population into this number of islands, which exchange members or elites without waiting for each
    other."""
    migrate_every: Annotated[int, Within(1)] = 10
    """Generations of an island between two exchanges."""
    migrate_fraction: Annotated[float, FRACTION] = 0.25
    """Share of an island's members, the worst, that an exchange may replace, and share of all, the best, to draw from
    (at least one each; 0: none); of a repertoire the share of elites that are published."""

    def __post_init__(self) -> None:
        check_fields(self)


def parameter_flag(name: str) -> str:
    """The flag of a hyper-parameter: `tau` -> `--space.tau`, and `env_prey_speed` of an environment's parameter ->
    `--space.env.prey-speed`."""
    return f"--space.{re.sub(f'^{PREFIX}', 'env.', name)}".replace("_", "-")


class Rule(NamedTuple):
    """A condition without which settings of a kind of run have no effect."""

    part: str  # the part of the settings; "" for those at the top
    names: tuple[str, ...]  # the settings
    used: Callable[[Any], bool]  # the part, or all settings of the run by name -> whether they have an effect
    needed: str  # what they need, after "has an effect only"


ISLAND_RULES = (
    Rule("islands", ("migrate_every", "migrate_fraction"), lambda islands: islands.islands > 1, "with {islands}"),
)
