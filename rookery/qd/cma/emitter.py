"""CMA-MAE and CMA-ME: normal distributions that are adapted to the proposals that improve the repertoire most.

Sources: Fontaine 2020, "Covariance Matrix Adaptation for the Rapid Illumination of Behavior Space" (CMA-ME,
arXiv:1912.02400), and Fontaine 2023, "Covariance Matrix Adaptation MAP-Annealing" (CMA-MAE, arXiv:2205.10752). The two
differ in the archive: `archives.annealed` with a learning rate below 1 gives CMA-MAE, one without gives CMA-ME.
Deviations: the improvement in an empty cell without a threshold is measured from the fitness that counts as 0 in the QD
score, and does not rank before all others; samples beyond the bounds are clipped to them, not drawn again.
Every device computes the same distributions.
"""

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from rookery import trees
from rookery.populations.base import member_keys
from rookery.populations.sharding import ONE_DEVICE, Placement
from rookery.qd import repertoire as repertoires
from rookery.qd.base import Bank, Emitter, EmitterState, Scoring, check_proposals
from rookery.qd.cma import distribution
from rookery.qd.cma.config import CmaMaeConfig
from rookery.qd.repertoire import Added, Repertoire
from rookery.settings import SettingError, check_counts, config_from
from rookery.types import Array, Evaluation, Genotype, Key, Metrics, PyTree

LARGEST_FULL = 1_000
"""Numbers in a genotype up to which the covariance can be full: each distribution stores its square three times."""


class CmaMaeBindings(NamedTuple):
    """The static arguments of the emitter."""

    scoring: Scoring
    config: CmaMaeConfig
    initial_sigma: float
    batch_size: int
    placement: Placement


class CmaShared(NamedTuple):
    """The state of E distributions over genotypes of n numbers."""

    distributions: distribution.CmaState
    """Leaves `[E, ...]`."""
    samples: Array
    """`[B, n]`, the latest proposals."""
    restarts: Array
    """`[E]` bool, the distributions that begin anew in the next generation."""
    number: Array
    """`[]` int32, all restarts so far."""


def cma_mae(
    scoring: Scoring, batch_size: int = 540, config: CmaMaeConfig | None = None, placement: Placement = ONE_DEVICE
) -> Emitter[EmitterState[tuple[()], CmaShared], PyTree]:
    """The emitter of CMA-MAE and CMA-ME, for functions and small policies.

    Args:
      scoring: from `function_scoring`, `named_scoring` or `policy_scoring`.
      batch_size: B, a multiple of the number of distributions, at least two samples each.
      config: the distributions.
      placement: the placement of the repertoire; every device computes the same distributions.

    Returns:
      The emitter.

    Raises:
      ValueError: the distributions cannot divide the batch, or a genotype is too long for a full covariance or contains
        other things than floating-point parameters.

    Example:
      >>> arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
      >>> cells = rookery.qd.grid((8, 8), arm.descriptor.lower, arm.descriptor.upper)
      >>> program = rookery.map_elites(arm, rookery.qd.annealed(cells), rookery.qd.cma_mae(arm, batch_size=60))
    """
    config = config_from(CmaMaeConfig, config, {})
    least = 2 * config.emitters
    check_counts(0, batch_size=batch_size)
    if batch_size < least or batch_size % config.emitters:
        lower = batch_size // config.emitters * config.emitters
        remedy = f"{lower} or {lower + config.emitters}" if lower >= least else f"{least}"
        problem = f"must be a multiple of the number of {{emitters}} ({config.emitters}), at least {least}"
        raise SettingError("batch_size", batch_size, problem, f"use {remedy}")
    size = _size(_genotype(scoring))
    if config.covariance == "auto":
        config = dataclasses.replace(config, covariance="full" if size <= LARGEST_FULL else "diagonal")
    if config.covariance == "full" and size > LARGEST_FULL:
        problem = f"must be diagonal for genotypes of more than {LARGEST_FULL} numbers, such as these of {size}"
        raise SettingError("covariance", "full", problem, "use it, or smaller {hidden_sizes}")
    initial_sigma = config.initial_sigma or _default_sigma(scoring)
    bindings = CmaMaeBindings(scoring, config, initial_sigma, batch_size, placement)
    settings = {"cma_mae": {**vars(config), "initial_sigma": initial_sigma}}
    return Emitter(
        partial(_init, bindings), partial(_ask, bindings), partial(_tell, bindings), batch_size, settings=settings
    )


def _genotype(scoring: Scoring) -> PyTree:
    bank = jax.eval_shape(scoring.start_states, jax.random.key(0))
    return jax.eval_shape(scoring.init_genotype, jax.random.key(0), bank)


def _size(genotype: PyTree) -> int:
    """n, the numbers of a genotype.

    Raises:
      ValueError: it contains hyper-parameters or numbers of another type.
    """
    extra = jax.tree.leaves(genotype[1:]) if isinstance(genotype, Genotype) else []
    leaves = jax.tree.leaves(genotype)
    if extra or not leaves or any(leaf.dtype != jnp.float32 for leaf in leaves):
        raise ValueError(
            "cma_mae needs genotypes of float32 parameters alone, without hyper-parameters or statistics; evolve the "
            "policies of policy_scoring, or use iso_line."
        )
    return sum(leaf.size for leaf in leaves)


def _default_sigma(scoring: Scoring) -> float:
    if scoring.bounds is not None:
        return (scoring.bounds[1] - scoring.bounds[0]) / 5
    return 0.5 if scoring.evaluator is None else 0.05


def _flatten(genotypes: PyTree) -> Array:
    return jax.vmap(lambda genotype: ravel_pytree(genotype)[0])(genotypes)


def _init(bindings: CmaMaeBindings, key: Key, bank: Bank) -> EmitterState[tuple[()], CmaShared]:
    """Distributions around initial genotypes."""
    keys = member_keys(key, bindings.config.emitters)
    means = _flatten(jax.vmap(bindings.scoring.init_genotype, in_axes=(0, None))(keys, bank))
    samples = jnp.zeros((bindings.batch_size, means.shape[1]))
    none = jnp.zeros((bindings.config.emitters,), bool)
    return EmitterState((), CmaShared(_start(bindings, means), samples, none, jnp.zeros((), jnp.int32)))


def _start(bindings: CmaMaeBindings, means: Array) -> distribution.CmaState:
    diagonal = bindings.config.covariance == "diagonal"
    return jax.vmap(lambda mean: distribution.start(mean, bindings.initial_sigma, diagonal))(means)


def _ask(
    bindings: CmaMaeBindings, state: EmitterState, repertoire: Repertoire, bank: Bank, key: Key
) -> tuple[EmitterState, PyTree, Metrics]:
    """Restart distributions where needed, at random elites, or without any at initial genotypes, and draw samples."""
    elite_key, sample_key, init_key = jax.random.split(key, 3)
    cells = repertoires.draw(repertoire, elite_key, bindings.config.emitters)
    elites = bindings.placement.cells.take(repertoire.genotypes, cells)
    keys = member_keys(init_key, bindings.config.emitters)
    initial = jax.vmap(bindings.scoring.init_genotype, in_axes=(0, None))(keys, bank)
    check_proposals(initial, elites, bindings.config.emitters)
    starts = trees.where(repertoire.occupied.any(), elites, initial)
    draw = partial(_draw, bindings)
    shared, proposals = bindings.placement.everywhere(draw, state.shared, starts, state.shared.restarts, sample_key)
    return state._replace(shared=shared), proposals, {}


def _draw(
    bindings: CmaMaeBindings, shared: CmaShared, starts: PyTree, needed: Array, key: Key
) -> tuple[CmaShared, PyTree]:
    count = bindings.config.emitters
    distributions = trees.where(needed, _start(bindings, _flatten(starts)), shared.distributions)
    keys = member_keys(key, count)
    drawn = jax.vmap(partial(distribution.sample, count=bindings.batch_size // count))(distributions, keys)
    samples = drawn.reshape(bindings.batch_size, -1)
    if bindings.scoring.bounds is not None:
        samples = jnp.clip(samples, *bindings.scoring.bounds)
    _, unflatten = ravel_pytree(trees.take(starts, 0))
    number = shared.number + jnp.sum(needed)
    return CmaShared(distributions, samples, jnp.zeros_like(needed), number), jax.vmap(unflatten)(samples)


def _tell(
    bindings: CmaMaeBindings, state: EmitterState, evaluation: Evaluation, added: Added
) -> tuple[EmitterState, Metrics]:
    """Rank the samples of each distribution by their improvement of the archive, and adapt the distribution.

    Returns:
      The state, and metrics `[]`: `sigma`, the mean step size; `restarts`, the number of restarts so far.
    """
    adapt = partial(_adapt, bindings)
    shared = bindings.placement.everywhere(adapt, state.shared, added.improvement, evaluation.fitness)
    metrics = {"sigma": jnp.mean(shared.distributions.sigma), "restarts": shared.number}
    return state._replace(shared=shared), metrics


def _adapt(bindings: CmaMaeBindings, shared: CmaShared, improvement: Array, fitness: Array) -> CmaShared:
    config = bindings.config
    improvement = jnp.where(jnp.isposinf(improvement), fitness - bindings.scoring.qd_offset, improvement)
    shape = (config.emitters, bindings.batch_size // config.emitters)
    values, samples = improvement.reshape(shape), shared.samples.reshape(*shape, -1)
    order = jnp.argsort(-values, axis=1, stable=True)
    ranked = jnp.take_along_axis(values, order, axis=1)
    accepted = jnp.sum(ranked > 0, axis=1)
    finite = jnp.sum(ranked > -jnp.inf, axis=1)
    parents = jnp.minimum(finite, shape[1] // 2) if config.parents == "half" else accepted
    ranked_samples = jnp.take_along_axis(samples, order[..., None], axis=1)
    distributions = jax.vmap(distribution.update)(shared.distributions, ranked_samples, parents)
    has_converged = jax.vmap(partial(distribution.has_converged, sigma=bindings.initial_sigma))
    restarts = has_converged(distributions, ranked[:, 0], ranked[:, -1])
    if config.restart == "no-improvement":
        restarts = restarts | (accepted == 0)
    return shared._replace(distributions=distributions, restarts=restarts)
