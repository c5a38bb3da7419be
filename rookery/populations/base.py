"""The waist of the peoples: `Program(init, step)`, which is all that the run loop knows.

PBT, independent seeds and MAP-Elites look the same from outside. A state has three parts, so that one rule spreads any
of them over devices: every leaf of `members` is `[P, ...]` and is divided by members; `shared` is small and stands
whole on every device; every leaf of `cells` is `[C, ...]`, and stands whole or is divided, as the program says.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rookery.envs.base import DescriptorSpec
from rookery.hyperparams import Space
from rookery.populations.config import Timing
from rookery.types import Array, Evaluation, Hyper, Key, Metrics, PyTree


class ProgramState(NamedTuple):
    """Where a run stands."""

    members: PyTree  # leaves [P, ...]
    shared: PyTree  # replicated
    cells: PyTree = ()  # leaves [C, ...]: the genotypes of a repertoire


class InitFn(Protocol):
    """The state before the first generation; the key is consumed."""

    def __call__(self, key: Key) -> ProgramState: ...


class StepFn(Protocol):
    """One generation; the key is consumed. Metrics are `[]` or `[P]`, and `fitness` `[P]` is among them.

    Whose program has a repertoire gives `max_fitness` `[]` as well, -inf while it is empty.
    """

    def __call__(self, state: ProgramState, key: Key) -> tuple[ProgramState, Metrics]: ...


class EvaluateProgramFn(Protocol):
    """Judge every member on fresh start states without changing anything; the key is consumed.

    Returns:
      Metrics `[P]` or `[P, N]`: `fitness`, `returns`, `lengths`, `descriptor` `[P, D]`, `descriptors` `[P, N, D]`,
      `hyper/...`, and what a curious agent tells of its episodes.
    """

    def __call__(self, state: ProgramState, key: Key) -> Metrics: ...


class TableFn(Protocol):
    """What a state's repertoire holds: column -> `[C]`, with `fitness`, -inf where a cell is empty."""

    def __call__(self, state: ProgramState) -> Mapping[str, Array]: ...


class Program(NamedTuple):
    """A population method bound to its learner."""

    init: InitFn
    step: StepFn
    evaluate: EvaluateProgramFn
    population_size: int
    steps_per_generation: int  # environment steps of the whole population
    space: Space | None = None  # the hyper-parameters, for the run's folder; None where there are none
    batch_size: int | None = None  # genotypes judged per generation, where these are not the population itself
    table: TableFn | None = None  # None without a repertoire
    divides_cells: bool = False  # spread the repertoire over the devices by cells
    descriptor: DescriptorSpec | None = None  # of the task, for the run's folder
    task: str | None = None  # for the run's folder
    timing: Timing | None = None  # in which generations a population selects; None where it does not
    independent: bool = False  # no member replaces another and all are configured alike: each is a run by itself


class PopulationMap(Protocol):
    """How a function of one member becomes one of the population: `jax.vmap`, or that spread over devices."""

    def __call__(self, function: Callable, mapped: tuple, shared: tuple) -> Any:
        """`function(*mapped[i], *shared)` for every member i; outputs are stacked along a leading axis `[P]`."""
        ...


def vmap(function: Callable, mapped: tuple, shared: tuple) -> Any:
    """All members at once on one device: the default."""
    axes = (0,) * len(mapped) + (None,) * len(shared)
    return jax.vmap(function, in_axes=axes)(*mapped, *shared)


def member_keys(key: Key, population_size: int) -> Key:
    """One key per member, `fold_in(key, member)`, `[P]`: independent of how many members or devices there are."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(population_size))


def valid_fitness(fitness: Array, broken: Array) -> Array:
    """The fitness to select by: NaN where the physics broke in any episode of the evaluation.

    A broken episode ends early with reward 0: where rewards are negative, a policy that breaks the physics would win.

    Args:
      fitness: `[]` or `[P]`.
      broken: likewise, int32: episodes in which the physics broke.
    """
    return jnp.where(broken == 0, fitness, jnp.nan)


def examined(evaluation: Evaluation) -> dict[str, Array]:
    """An evaluation `[P, ...]` by the names of its parts, those of each episode among them; see `valid_fitness`."""
    told = evaluation._replace(fitness=valid_fitness(evaluation.fitness, evaluation.broken))._asdict()
    return {**told, **told.pop("episodes")}


def hyper_metrics(hyper: Hyper) -> Metrics:
    """Hyper-parameters `[P]` by name, under `hyper/`."""
    return {f"hyper/{name}": values for name, values in hyper._asdict().items()}
