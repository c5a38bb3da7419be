"""The interfaces of quality diversity: `Scoring` evaluates genotypes, `Emitter` proposes new ones.

MAP-Elites connects them: ask the emitter, evaluate, add to the repertoire, tell the emitter. An emitter may keep a
population between generations (`members`, sharded over devices like any population).
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import TypeVar

from rookery.envs.base import DescriptorSpec
from rookery.learners.base import Bank, EvaluateFn, Evaluator, StartStatesFn
from rookery.populations.base import MembersT, SharedT
from rookery.qd.repertoire import Added, Repertoire
from rookery.settings import check_names, type_of
from rookery.types import NO_SETTINGS, Array, Evaluation, GenotypeT, Key, Metrics, PyTree, Settings


class InitGenotypeFn(Protocol[GenotypeT]):
    """Sample an initial genotype, which has no parent; the key is consumed."""

    def __call__(self, key: Key, bank: Bank) -> GenotypeT: ...


class Scoring(NamedTuple, Generic[GenotypeT]):
    """The search problem: initial genotypes and their evaluation. All functions are for one genotype."""

    name: str
    """Name of the task."""
    init_genotype: InitGenotypeFn[GenotypeT]
    start_states: StartStatesFn
    """The start states from which all genotypes of a generation are evaluated; () for a function."""
    evaluate: EvaluateFn[GenotypeT]
    """Evaluates one genotype; the key is consumed."""
    descriptor: DescriptorSpec
    qd_offset: float
    """The fitness that counts as 0 in the QD score."""
    steps: int
    """Maximum number of environment steps of an evaluation; 1 for a function."""
    bounds: tuple[float, float] | None = None
    """Lower and upper bound to which the numbers of a genotype are clipped, whole ones to those inside."""
    evaluator: Evaluator | None = None
    """The policy, environment and settings that `evaluate` uses; None if it runs no episodes of an environment."""
    settings: Settings = NO_SETTINGS
    """Names and configs of its parts, recorded in the run directory."""
    extras: Callable[[Evaluation], Mapping[str, Array]] | None = None
    """Values of an evaluation that are stored with an elite, see `qd.with_extras`; None: those that it reports."""


def check_scoring(scoring: Any) -> None:
    """Check that a search is given a scoring.

    Raises:
      TypeError: it is something else; the message contains the remedy.
    """
    if not isinstance(scoring, Scoring):
        remedy = "give a function or an environment to one: rookery.qd.policy_scoring(env)"
        raise TypeError(f"map_elites searches a Scoring, got {type_of(scoring)}; {remedy}.")


def check_proposals(proposed: PyTree, cells: PyTree, batch_size: int) -> None:
    """Check that an emitter proposes genotypes `[B, ...]` like those of the cells `[C, ...]`.

    Raises:
      ValueError: their number or their shapes differ, as those of another scoring.
    """
    needed, given = jax.tree.map(lambda leaf: (batch_size, *leaf.shape[1:]), cells), jax.tree.map(jnp.shape, proposed)
    if given != needed:
        raise ValueError(
            f"the emitter proposes genotypes of the shapes {given!s:.200}, but the search needs {needed!s:.200}; give "
            "the emitter the scoring of the search, and let it propose batch_size genotypes."
        )


def checked_extras(extras: Any) -> dict[str, Array]:
    """What is stored with an elite, as arrays.

    Raises:
      TypeError: it is no mapping of names to numbers or arrays.
      ValueError: a name cannot be that of a column.
    """
    if not isinstance(extras, Mapping):
        given = type_of(extras)
        raise TypeError(f"what is stored with an elite must be a dictionary of numbers or arrays, got {given}.")
    check_names("value stored with an elite", extras)
    return {name: jnp.asarray(value) for name, value in extras.items()}


class EmitterState(NamedTuple, Generic[MembersT, SharedT]):
    """The state of an emitter between two generations."""

    members: MembersT
    """Leaves `[P, ...]`, the population that the emitter keeps between generations; () without one."""
    shared: SharedT
    """Small arrays that are replicated on every device."""


EmitterStateT = TypeVar("EmitterStateT", bound=EmitterState, infer_variance=True)


class EmitterInitFn(Protocol[EmitterStateT]):
    """Create the state before the first generation; the key is consumed."""

    def __call__(self, key: Key, bank: Bank) -> EmitterStateT: ...


class AskFn(Protocol[EmitterStateT, GenotypeT]):
    """Propose B genotypes `[B, ...]`; the key is consumed. If the repertoire is empty, it proposes initial genotypes.

    Returns:
      The state, the genotypes, and metrics `[]` or `[P]`.
    """

    def __call__(
        self, state: EmitterStateT, repertoire: Repertoire[GenotypeT], bank: Bank, key: Key
    ) -> tuple[EmitterStateT, GenotypeT, Metrics]: ...


class TellFn(Protocol[EmitterStateT]):
    """Receive the evaluation `[B, ...]` of the proposals, and the result of adding them to the repertoire; the fitness
    of a rejected proposal is NaN.

    Returns:
      The state, and metrics `[]` or `[P]`; an emitter with a population reports its `fitness` `[P]`.
    """

    def __call__(self, state: EmitterStateT, evaluation: Evaluation, added: Added) -> tuple[EmitterStateT, Metrics]: ...


class Emitter(NamedTuple, Generic[EmitterStateT, GenotypeT]):
    """Proposes new genotypes and receives their evaluation."""

    init: EmitterInitFn[EmitterStateT]
    ask: AskFn[EmitterStateT, GenotypeT]
    tell: TellFn[EmitterStateT]
    batch_size: int
    """B, the number of proposals per generation."""
    population_size: int = 0
    """P, the size of the population that it keeps; for several populations, their greatest common divisor."""
    steps: int = 0
    """Environment steps in which its population is trained in a generation."""
    learns_from_transitions: bool = False
    """Whether `tell` needs the transitions of the evaluations, which are recorded only then."""
    settings: Settings = NO_SETTINGS
    """Its settings, recorded in the run directory."""


def emitted(method: str, returned: Any, parts: tuple[str, ...] = (), before: EmitterState | None = None) -> Any:
    """What `init`, `ask` or `tell` of an emitter returned: its state, or a tuple of its state and further parts.

    Args:
      method: the name of the function.
      returned: by it.
      parts: the names of what is returned after the state; the last part is the metrics.
      before: the state that was given; None for `init`.

    Raises:
      TypeError: it is something else, its state has other shapes or types than `before`, or a metric is no number.
    """
    found = returned if parts else (returned,)
    is_whole = isinstance(found, tuple | list) and len(found) == 1 + len(parts) and isinstance(found[0], EmitterState)
    if not is_whole or (parts and not isinstance(found[-1], Mapping)):
        needed = " and ".join(["an EmitterState", *parts])
        given = "an array" if isinstance(returned, jax.Array) else type_of(returned)
        raise TypeError(f"{method} of the emitter must return {needed}, got {given}.")
    for name, value in found[-1].items() if parts else ():
        kind = getattr(value, "dtype", type(value))
        if not (jnp.issubdtype(kind, np.number) or jnp.issubdtype(kind, np.bool_)):
            raise TypeError(f"the metric {name} that {method} of the emitter returns must be a number, got {value!r}.")
    if before is not None:
        shapes = [jax.tree.map(_shape, jax.eval_shape(lambda state=state: state)) for state in (before, found[0])]
        if shapes[0] != shapes[1]:
            raise TypeError(
                f"{method} of the emitter must return a state like the one that it is given, {shapes[0]!s:.200}, got "
                f"{shapes[1]!s:.200}."
            )
    return returned


def _shape(leaf: jax.ShapeDtypeStruct) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"
