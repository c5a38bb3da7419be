"""The interface between population methods and the training loop: `Program(init, step)`.

PBT, independent seeds and MAP-Elites all implement it. A state has three parts, so that one rule shards any program
over devices: every leaf of `members` is `[P, ...]` and is sharded along P; `shared` is small and replicated on every
device; every leaf of `cells` is `[C, ...]` and is replicated, or sharded along C if `Program.divides_cells` is set.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from typing_extensions import TypeVar

from rookery.envs.base import DescriptorSpec
from rookery.hyperparams import Space
from rookery.learners.base import Learner
from rookery.populations.config import Timing
from rookery.settings import MEASURE, RETURN
from rookery.types import NO_SETTINGS, Array, Evaluation, Hyper, Key, Metrics, PyTree, Settings

MembersT = TypeVar("MembersT", infer_variance=True)
"""The members of a population: `Member` with leaves `[P, ...]`, or () for a program without members that learn."""
SharedT = TypeVar("SharedT", infer_variance=True)
"""The replicated part of a program's state."""


class ProgramState(NamedTuple, Generic[MembersT, SharedT]):
    """The complete state of a program between two generations."""

    members: MembersT
    """Leaves `[P, ...]`: the members of the population."""
    shared: SharedT
    """Arrays that are replicated on every device."""
    cells: PyTree = ()
    """Leaves `[C, ...]`: the genotypes of a repertoire."""


ProgramStateT = TypeVar("ProgramStateT", bound=ProgramState, infer_variance=True)


class InitFn(Protocol[ProgramStateT]):
    """Create the state before the first generation; the key is consumed."""

    def __call__(self, key: Key) -> ProgramStateT: ...


class StepFn(Protocol[ProgramStateT]):
    """Run one generation; the key is consumed.

    Returns:
      The state, and metrics `[]` or `[P]`. `fitness` `[P]` is needed. `parent` `[P]` int32 is the member that each one
      is a copy of, or -1 for a new one; without it each is its own. A program with a repertoire also reports
      `max_fitness` `[]`, which is -inf while the repertoire is empty. Some other names have a meaning: `diverged`,
      `hyper/NAME`, `return`, `measure/NAME` and `rating` `[P]`, and `broken_episodes`. A mean over the members of every
      other one is a column of `metrics.csv`.
    """

    def __call__(self, state: ProgramStateT, key: Key) -> tuple[ProgramStateT, Metrics]: ...


class EvaluateProgramFn(Protocol[ProgramStateT]):
    """Evaluate every member from fresh start states without changing the state; the key is consumed.

    Returns:
      Metrics `[P]` or `[P, N]`: `fitness`, `returns`, `lengths`, `descriptor` `[P, D]`, `descriptors` `[P, N, D]`,
      `hyper/...`, and the additional metrics that an agent with an intrinsic reward records per episode.
    """

    def __call__(self, state: ProgramStateT, key: Key) -> Metrics: ...


class TableFn(Protocol[ProgramStateT]):
    """The repertoire of a state as a table: column -> `[C]`; the column `fitness` is -inf where a cell is empty."""

    def __call__(self, state: ProgramStateT) -> Mapping[str, Array]: ...


class Program(NamedTuple, Generic[ProgramStateT]):
    """A population method bound to its learner."""

    init: InitFn[ProgramStateT]
    step: StepFn[ProgramStateT]
    evaluate: EvaluateProgramFn[ProgramStateT]
    population_size: int
    steps_per_generation: int
    """Environment steps of the whole population."""
    space: Space | None = None
    """Hyper-parameter space, recorded in the run directory; None for a program without hyper-parameters."""
    batch_size: int | None = None
    """Genotypes evaluated per generation; None if they are the members of the population."""
    table: TableFn[ProgramStateT] | None = None
    """None for a program without a repertoire."""
    divides_cells: bool = False
    """Whether the repertoire is sharded over the devices by cells."""
    descriptor: DescriptorSpec | None = None
    """Descriptor of the task, recorded in the run directory."""
    task: str | None = None
    """Name of the task, recorded in the run directory."""
    timing: Timing | None = None
    """The generations in which the population selects; None for a program without selection."""
    independent: bool = False
    """Whether no member replaces another and all share one configuration, so that each is a separate run."""
    learner: Learner | None = None
    """The learner of its members, with which policies are read from their states; None if it trains no agents."""
    scoring: Any = None
    """The `rookery.qd.Scoring` of its genotypes; None for a program without a repertoire."""
    archive: Any = None
    """The `rookery.qd.Archive` that decides which genotypes its repertoire keeps; None without a repertoire."""
    settings: Settings = NO_SETTINGS
    """Names and configs of all its parts, recorded in the run directory."""
    recipe: Any = None
    """How it is built again, a `populations.rebuild.Recipe`; None if it cannot be."""

    def __repr__(self) -> str:
        """The method, the task and the population; all that it binds would be a megabyte of text."""
        method = self.settings.get("population_method", "program")
        return f"Program({method} on {self.task}, population {self.population_size})"


class PopulationMap(Protocol):
    """Maps a function of one member over the population: `jax.vmap`, or its version sharded over devices."""

    def __call__(self, function: Callable, mapped: tuple, shared: tuple) -> PyTree:
        """Call `function(*mapped[i], *shared)` for every member i; outputs are stacked along a leading axis `[P]`."""
        ...


def vmap(function: Callable, mapped: tuple, shared: tuple) -> PyTree:
    """The default `PopulationMap`: all members in one `jax.vmap` on one device."""
    axes = (0,) * len(mapped) + (None,) * len(shared)
    return jax.vmap(function, in_axes=axes)(*mapped, *shared)


def member_keys(key: Key, population_size: int) -> Key:
    """One key per member, `fold_in(key, member)`, `[P]`; a member's key depends on no number of members or devices."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(population_size))


def evaluation_metrics(evaluation: Evaluation) -> dict[str, Array]:
    """What a program's `evaluate` returns: the fields of an evaluation `[P, ...]` by name, with the entries of
    `episodes` merged in."""
    fields = {**evaluation._asdict(), "descriptor": known_descriptor(evaluation)}
    return {**fields, **fields.pop("episodes")}


def known_descriptor(evaluation: Evaluation) -> Array:
    """The descriptors `[P, D]` of an evaluation `[P, ...]`; NaN where the physics broke."""
    return jnp.where(evaluation.broken[:, None] > 0, jnp.nan, evaluation.descriptor)


def measure_metrics(evaluation: Evaluation) -> dict[str, Array]:
    """The means over episodes of the measures and of the return, `[P]`, of an evaluation `[P, ...]`; {} without
    measures, where the fitness alone is reported."""
    sums = {name: values for name, values in evaluation.episodes.items() if name.startswith(MEASURE)}
    sums = {RETURN: evaluation.returns, **sums} if sums else {}
    return {name: jnp.mean(values, axis=1) for name, values in sums.items()}


def hyper_metrics(hyper: Hyper) -> Metrics:
    """Hyper-parameters `[P]` by name, with the prefix `hyper/`."""
    return {f"hyper/{name}": values for name, values in hyper._asdict().items()}
