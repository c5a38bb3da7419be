"""MAP-Elites and ME-PBT in the documented form, over this library's repertoire, selection and learners."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery import buffers, trees
from rookery.compat.qdax import cells as by_hand
from rookery.compat.qdax.env_batch import Batch, BatchState, restarted
from rookery.compat.qdax.off_policy import check_population
from rookery.compat.qdax.records import ReplayBuffer, Transition
from rookery.compat.records import Record, check, check_counts, split, typed
from rookery.distributed import layout
from rookery.populations.sharding import WHOLE
from rookery.qd import centroids as cells
from rookery.qd import pbt_emitter
from rookery.qd import repertoire as repertoires
from rookery.types import Array, Key, Metrics, PyTree

__all__ = ["DistributedMAPElites", "MAPElites", "MapElitesRepertoire", "PBTEmitter", "PBTEmitterConfig"]
__all__ += ["PBTEmitterState", "compute_cvt_centroids", "compute_euclidean_centroids", "default_qd_metrics"]
__all__ += ["isoline_variation", "sac_pbt_variation_fn", "td3_pbt_variation_fn"]


def compute_cvt_centroids(
    num_descriptors: int, num_init_cvt_samples: int, num_centroids: int, minval: Any, maxval: Any, key: Key
) -> Array:
    """Centroids `[C, D]` of a centroidal Voronoi tessellation between limits, numbers or `[D]`; see `centroids.cvt`."""
    lower, upper = limits_of(num_descriptors, minval, maxval)
    return cells.cvt(typed(key), num_centroids, lower, upper, num_init_cvt_samples)


def compute_euclidean_centroids(grid_shape: tuple[int, ...], minval: Any, maxval: Any) -> Array:
    """Centroids `[C, D]` of an even grid between limits, numbers or `[D]`, in the order of numpy's `meshgrid`: of two
    dimensions the first varies fastest; of three the third, then the first, then the second."""
    size = len(grid_shape)
    centroids = cells.grid(tuple(grid_shape), *limits_of(size, minval, maxval))
    if size == 1:
        return centroids
    return jnp.swapaxes(centroids.reshape(*grid_shape, size), 0, 1).reshape(-1, size)


def limits_of(size: int, *limits: Any) -> list[list[float]]:
    """Each limit `[size]`, given as that or as one number for all dimensions; else a `ValueError`."""
    fit = all(np.ndim(limit) == 0 or len(limit) == size for limit in limits)
    check(fit, f"limits of {size} dimensions must be numbers or {size} of them, got {limits}.")
    return [np.broadcast_to(np.asarray(limit, np.float64), size).tolist() for limit in limits]


class MapElitesRepertoire(by_hand.Cells):
    """C cells, each with the best genotype found there."""


def default_qd_metrics(repertoire: MapElitesRepertoire, qd_offset: float) -> Metrics:
    """`qd_score`, the sum over elites of fitness plus offset; `max_fitness`; `coverage` in percent."""
    told, occupied = repertoires.metrics(repertoire.repertoire), repertoire.repertoire.occupied
    score = jnp.sum(jnp.where(occupied, repertoire.fitnesses + qd_offset, 0.0))
    return {"qd_score": score, "max_fitness": told["max_fitness"], "coverage": told["coverage"]}


isoline_variation = by_hand.isoline_variation


def sac_pbt_variation_fn(
    training_state1: Any, training_state2: Any, key: Key, iso_sigma: float, line_sigma: float
) -> Any:
    """Children `[B, ...]` of pairs of agents: policy, critics and temperature vary; the rest is the first parent's."""
    first, second = training_state1.learned, training_state2.learned
    children = isoline_variation(first.params, second.params, key, iso_sigma, line_sigma)
    varied = {name: getattr(first, name)._replace(params=child) for name, child in children._asdict().items()}
    return training_state1.replace(learned=first._replace(**varied))


td3_pbt_variation_fn = sac_pbt_variation_fn  # of TD3 policy and critics


class MAPElites:
    """MAP-Elites on one device (Mouret 2015, arXiv:1504.04909); see `qd.by_hand.Loop` for scores and emitters."""

    axis: str | None = None

    def __init__(self, scoring_function: Callable, emitter: Any, metrics_function: Callable) -> None:
        shares = WHOLE if self.axis is None else layout.shares(self.axis)
        self._loop = by_hand.Loop(scoring_function, emitter, metrics_function, shares)

    def init(self, genotypes: PyTree, centroids: Array, key: Key) -> tuple[MapElitesRepertoire, Any, Metrics]:
        """Score a first batch `[B, ...]`, fill the cells, and let the emitter begin; the key is consumed."""
        return self._loop.begin(genotypes, partial(MapElitesRepertoire.init, centroids=centroids), typed(key))

    def update(self, repertoire: MapElitesRepertoire, emitter_state: Any, key: Key) -> tuple[Any, Any, Metrics]:
        """Emit, score, add, tell the emitter: one generation; the key is consumed."""
        return self._loop.turn(repertoire, emitter_state, typed(key))

    def scan_update(self, carry: tuple, _: Any) -> tuple[tuple, Metrics]:
        """`update` for `jax.lax.scan`; the carry is repertoire, emitter state and key."""
        repertoire, emitter_state, key = carry
        kept, own = jax.random.split(key)
        repertoire, emitter_state, metrics = self.update(repertoire, emitter_state, own)
        return (repertoire, emitter_state, kept), metrics


class DistributedMAPElites(MAPElites):
    """The same inside a mapped axis `"p"`: each device scores its share, and all have the same repertoire."""

    axis = "p"

    def get_distributed_init_fn(self, centroids: Array, devices: Sequence[Any] | None) -> Callable:
        """`init` as a function of `genotypes` `[devices, B, ...]` and `key` `[devices]`."""
        return layout.map_over(lambda genotypes, key: self.init(genotypes, centroids, key), "p", devices)

    def get_distributed_update_fn(self, num_iterations: int, devices: Sequence[Any] | None) -> Callable:
        """`num_iterations` of `update` as a function of `repertoire`, `emitter_state` and `key`, `[devices, ...]` each;
        metrics are `[devices, num_iterations]`."""

        def update(repertoire: MapElitesRepertoire, emitter_state: Any, key: Key) -> tuple:
            carry, metrics = jax.lax.scan(self.scan_update, (repertoire, emitter_state, key), length=num_iterations)
            return *carry[:2], metrics

        return layout.map_over(update, "p", devices)


class PBTEmitterState(Record):
    """The population that trains, `[P, ...]`."""

    replay_buffers: ReplayBuffer
    env_states: BatchState  # [P, E, ...]
    training_states: Any
    key: Array  # [2] uint32


class PBTEmitterConfig(Record):
    """Sizes are of one device, fractions of the population of all devices; the last is not needed."""

    buffer_size: int
    num_training_iterations: int
    env_batch_size: int
    grad_updates_per_step: float
    pg_population_size_per_device: int
    ga_population_size_per_device: int
    num_devices: int
    fraction_best_to_replace_from: float
    fraction_to_replace_from_best: float
    fraction_to_replace_from_samples: float
    fraction_sort_exchange: float


class PBTEmitter:
    """ME-PBT: a population that trains, and breeds with the repertoire that it fills (Pierrot 2023, arXiv:2303.12803).

    With several devices, inside a mapped axis `"p"`."""

    def __init__(
        self, pbt_agent: Any, config: PBTEmitterConfig, env: Batch, variation_fn: Callable, selector: Any = None
    ) -> None:
        self._config, self._env, self._vary, self._selector = config, env, variation_fn, selector
        check_counts(pg_population_size_per_device=config.pg_population_size_per_device, num_devices=config.num_devices)
        check_counts(buffer_size=config.buffer_size, env_batch_size=config.env_batch_size)
        self._size, each = config.pg_population_size_per_device, config.env_batch_size
        shares = config.fraction_to_replace_from_best, config.fraction_best_to_replace_from
        fractions = pbt_emitter.MePbtConfig(*shares, config.fraction_to_replace_from_samples)
        self._counts = pbt_emitter.counts(fractions, self._size * config.num_devices)
        fits = env.batch_size == self._size * each
        check(fits, f"env must be a batch of {self._size} x {each} environments, not of {env.batch_size}.")
        self._train = pbt_agent.get_train_fn(env, config.num_training_iterations, each, config.grad_updates_per_step)

    @property
    def batch_size(self) -> int:
        """Genotypes that one device emits."""
        return self._config.ga_population_size_per_device + self._size

    def init(
        self, key: Key, repertoire: Any, genotypes: Any, fitnesses: Any, descriptors: Any, extra_scores: Any
    ) -> PBTEmitterState:
        """Begin with the last of the genotypes, whose fitnesses `state_update` will rank; the key is consumed."""
        del repertoire, fitnesses, descriptors, extra_scores
        shape, env = (self._size, self._config.env_batch_size), self._env
        key, reset_key = split(key)
        env_states = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), env.reset(reset_key))
        members = jax.tree.map(lambda leaf: leaf[-self._size :], genotypes)
        check_population(members.steps, env_states.reward)
        bare = members.policy_optimizer_state == ()
        check(bare, "genotypes have no optimisers here: jax.vmap(states.empty_optimizers_states)(states) first.")
        row = Transition.init_dummy(env.observation_size, env.action_size)
        held = trees.stack([ReplayBuffer.init(self._config.buffer_size, row)] * self._size)
        return PBTEmitterState(held, env_states, jax.vmap(type(members).init_optimizers_states)(members), key)

    def emit(self, repertoire: MapElitesRepertoire, emitter_state: PBTEmitterState, key: Key) -> tuple[Any, dict]:
        """Variations of elites, then the members that have trained, as genotypes."""
        count, members = self._config.ga_population_size_per_device, _stripped(emitter_state.training_states)
        if count == 0:
            return members, {}
        # Mixed, as there are loops that pass the same key in every generation.
        keys = jax.random.split(jax.random.fold_in(typed(key), emitter_state.key[0]), 3)
        first, second = (repertoire.genotypes_or(members, keys[i], count, self._selector) for i in range(2))
        children = self._vary(first, second, keys[2])
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), children, members), {}

    def state_update(
        self, emitter_state: Any, repertoire: Any, genotypes: Any, fitnesses: Array, descriptors: Any, extra_scores: Any
    ) -> PBTEmitterState:
        """The worst take a parent from the best, the next worst an elite; then all train."""
        del genotypes, descriptors, extra_scores
        kept, own_key = split(emitter_state.key)
        states, held = emitter_state.training_states, emitter_state.replay_buffers
        asked, there = self._config.num_devices, layout.axis_size("p")
        check(asked == there, f"num_devices is {asked}, but {there} devices share the axis 'p'.")
        shares = layout.shares("p") if asked > 1 else WHOLE
        draw = partial(repertoire.genotypes_or, _stripped(states), selector=self._selector)
        elites = by_hand.Elites(repertoire.repertoire.occupied.any(), draw, type(states).init_optimizers_states)
        fitness, renew = fitnesses.reshape(-1)[-self._size :], type(states).resample_hyperparams
        states, diverged = by_hand.exploit(self._counts, fitness, states, elites, own_key, renew, shares)
        # Whose predecessor diverged does not trust its data.
        held = held.replace(state=buffers.clear(held.state, diverged))
        env_states = restarted(emitter_state.env_states, diverged)
        (states, env_states, held), _ = self._train(states, env_states, held)
        return PBTEmitterState(held, env_states, states, kept)


def _stripped(states: Any) -> Any:
    """As genotypes."""
    return jax.vmap(type(states).empty_optimizers_states)(states)
