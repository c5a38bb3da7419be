"""Emitters without a population: iso+line variation of elites, and the combination of several emitters."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.populations.base import member_keys
from rookery.populations.sharding import HERE, Rows
from rookery.qd import repertoire as repertoires
from rookery.qd.base import Bank, Emitter, EmitterState, EmitterStateT, Scoring, check_proposals, emitted
from rookery.qd.repertoire import Added, Repertoire
from rookery.qd.staged import staged_ask
from rookery.qd.variation import VariationConfig, child
from rookery.settings import check_counts
from rookery.types import Evaluation, GenotypeT, Key, Metrics, PyTree


class EmitterBindings(NamedTuple, Generic[GenotypeT]):
    """The static arguments of the iso+line emitter."""

    scoring: Scoring[GenotypeT]
    batch_size: int
    variation: VariationConfig
    rows: Rows


def iso_line(
    scoring: Scoring[GenotypeT],
    batch_size: int,
    variation: VariationConfig | None = None,
    rows: Rows = HERE,
) -> Emitter[EmitterState[tuple[()], tuple[()]], GenotypeT]:
    """Emitter of iso+line variations of two elites, drawn uniformly from the occupied cells.

    Source: Vassiliades 2018, arXiv:1804.03906. While the repertoire is empty it proposes initial genotypes.

    Args:
      scoring: creates the initial genotypes.
      batch_size: B, at least 1.
      variation: the standard deviations of the operator.
      rows: reads the genotypes of the repertoire.

    Returns:
      The emitter.

    Raises:
      ValueError: `batch_size` is below 1.

    Example:
      >>> arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
      >>> emitter = rookery.qd.iso_line(arm, batch_size=64)
    """
    check_counts(batch_size=batch_size)
    bindings = EmitterBindings(scoring, batch_size, variation or VariationConfig(), rows)
    settings = {"variation": vars(bindings.variation)}
    return Emitter(_empty_state, partial(_ask, bindings), _ignore_evaluation, batch_size, settings=settings)


def _empty_state(key: Key, bank: Bank) -> EmitterState[tuple[()], tuple[()]]:
    del key, bank
    return EmitterState((), ())


def _ignore_evaluation(state: EmitterStateT, evaluation: Evaluation, added: Added) -> tuple[EmitterStateT, Metrics]:
    del evaluation, added
    return state, {}


def _ask(
    bindings: EmitterBindings, state: EmitterState, repertoire: Repertoire, bank: Bank, key: Key
) -> tuple[EmitterState, PyTree, Metrics]:
    parents_key, children_key = jax.random.split(key)
    # Read outside of the branch: XLA would fuse the reads into the loop that makes noise, and not vectorise it.
    cells = repertoires.draw(repertoire, parents_key, 2 * bindings.batch_size)
    parents = bindings.rows.take(repertoire.genotypes, cells)
    vary, begin = partial(_vary, bindings), partial(_initial_genotypes, bindings)
    return state, jax.lax.cond(repertoire.occupied.any(), vary, begin, parents, bank, children_key), {}


def _vary(bindings: EmitterBindings[GenotypeT], parents: GenotypeT, bank: Bank, key: Key) -> GenotypeT:
    """Create children `[B, ...]` of parents `[2 B, ...]`."""
    del bank
    first = jax.tree.map(lambda leaf: leaf[: bindings.batch_size], parents)
    second = jax.tree.map(lambda leaf: leaf[bindings.batch_size :], parents)
    keys = member_keys(key, bindings.batch_size)
    return jax.vmap(partial(child, config=bindings.variation))(first, second, keys)


def _initial_genotypes(bindings: EmitterBindings, parents: PyTree, bank: Bank, key: Key) -> PyTree:
    keys = member_keys(key, bindings.batch_size)
    initial = jax.vmap(bindings.scoring.init_genotype, in_axes=(0, None))(keys, bank)
    check_proposals(initial, parents, bindings.batch_size)
    return initial


def mix(emitters: Sequence[Emitter[Any, GenotypeT]]) -> Emitter[EmitterState[tuple, tuple], GenotypeT]:
    """Combine several emitters: each proposes a part of the batch and receives the evaluation of that part only.

    The tables of a run describe the first emitter with a population; metrics of all others have the emitter's index as
    a prefix, such as `1/critic_loss`.

    Args:
      emitters: at least one.

    Returns:
      The combined emitter.

    Raises:
      ValueError: there is no emitter.
      TypeError: something else is given than several emitters.

    Example:
      >>> arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
      >>> emitters = [rookery.qd.iso_line(arm, batch_size=48), rookery.qd.iso_line(arm, batch_size=16)]
      >>> emitter = rookery.qd.mix(emitters)
    """
    emitters = tuple(emitters)
    if not emitters:
        raise ValueError("mix needs at least one emitter.")
    if not all(isinstance(emitter, Emitter) for emitter in emitters):
        raise TypeError("mix takes a list of emitters, such as [iso_line(scoring, 8), cma_mae(scoring, 60)].")
    return Emitter(
        init=partial(_init_all, emitters),
        ask=partial(_ask_all, emitters),
        tell=partial(_tell_all, emitters),
        batch_size=sum(emitter.batch_size for emitter in emitters),
        population_size=math.gcd(*(emitter.population_size for emitter in emitters)),
        steps=sum(emitter.steps for emitter in emitters),
        learns_from_transitions=any(emitter.learns_from_transitions for emitter in emitters),
        settings={"emitters": [{"batch_size": emitter.batch_size, **emitter.settings} for emitter in emitters]},
    )


def _init_all(emitters: tuple[Emitter, ...], key: Key, bank: Bank) -> EmitterState:
    keys = jax.random.split(key, len(emitters))
    return _joined([emitted("init", emitter.init(key, bank)) for emitter, key in zip(emitters, keys, strict=True)])


def _joined(states: Sequence[EmitterState]) -> EmitterState:
    return EmitterState(tuple(state.members for state in states), tuple(state.shared for state in states))


def _split(state: EmitterState) -> list[EmitterState]:
    return [EmitterState(*parts) for parts in zip(state.members, state.shared, strict=True)]


def _ask_all(
    emitters: tuple[Emitter, ...], state: EmitterState, repertoire: Repertoire, bank: Bank, key: Key
) -> tuple[EmitterState, PyTree, Metrics]:
    keys = jax.random.split(key, len(emitters))
    parts = zip(emitters, _split(state), keys, strict=True)
    asked = [staged_ask(emitter.ask)(part, repertoire, bank, key) for emitter, part, key in parts]
    states, proposals, metrics = zip(*asked, strict=True)
    return _joined(states), jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *proposals), _named(emitters, metrics)


def _tell_all(
    emitters: tuple[Emitter, ...], state: EmitterState, evaluation: Evaluation, added: Added
) -> tuple[EmitterState, Metrics]:
    results, first = [], 0
    for emitter, part in zip(emitters, _split(state), strict=True):
        rows = jnp.arange(first, first + emitter.batch_size)
        returned = emitter.tell(part, *trees.take((evaluation, added), rows))
        results.append(emitted("tell", returned, ("metrics",), part))
        first += emitter.batch_size
    states, metrics = zip(*results, strict=True)
    return _joined(states), _named(emitters, metrics)


def _named(emitters: tuple[Emitter, ...], metrics: Sequence[Metrics]) -> dict:
    """The metrics of the first emitter with a population under their names, the others' under index and name."""
    first = next((index for index, emitter in enumerate(emitters) if emitter.population_size), 0)
    named = dict(metrics[first])
    for index, others in enumerate(metrics):
        if index != first:
            named |= {f"{index}/{name}": values for name, values in others.items()}
    return named
