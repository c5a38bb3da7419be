"""MAP-Elites and ME-PBT in QDax's documented form, with Rookery's repertoire, selection and learners."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery import buffers, trees
from rookery.compat.qdax import cells as cells_api
from rookery.compat.qdax.env_batch import Batch, BatchState, restart
from rookery.compat.qdax.off_policy import check_population
from rookery.compat.qdax.records import ReplayBuffer, Transition
from rookery.compat.records import Record, check, check_counts, split_key, typed_key
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
    return cells.cvt(typed_key(key), num_centroids, lower, upper, num_init_cvt_samples)


def compute_euclidean_centroids(grid_shape: tuple[int, ...], minval: Any, maxval: Any) -> Array:
    """Centroids `[C, D]` of an even grid between limits, numbers or `[D]`.

    The order is that of numpy's `meshgrid`: in two dimensions the first varies fastest; in three dimensions the third,
    then the first, then the second.
    """
    size = len(grid_shape)
    centroids = cells.grid(tuple(grid_shape), *limits_of(size, minval, maxval))
    if size == 1:
        return centroids
    return jnp.swapaxes(centroids.reshape(*grid_shape, size), 0, 1).reshape(-1, size)


def limits_of(size: int, *limits: Any) -> list[list[float]]:
    """Broadcast each limit, a number or `[size]`, to `[size]`.

    Raises:
      ValueError: a limit has another size.
    """
    fit = all(np.ndim(limit) == 0 or len(limit) == size for limit in limits)
    check(fit, f"limits of {size} dimensions must be one number or {size} numbers, got {limits}.")
    return [np.broadcast_to(np.asarray(limit, np.float64), size).tolist() for limit in limits]


class MapElitesRepertoire(cells_api.Cells):
    """C cells, each with the best genotype found in it."""


def default_qd_metrics(repertoire: MapElitesRepertoire, qd_offset: float) -> Metrics:
    """Metrics `qd_score` (sum over elites of fitness plus offset), `max_fitness`, and `coverage` in percent."""
    metrics, occupied = repertoires.metrics(repertoire.repertoire), repertoire.repertoire.occupied
    score = jnp.sum(jnp.where(occupied, repertoire.fitnesses + qd_offset, 0.0))
    return {"qd_score": score, "max_fitness": metrics["max_fitness"], "coverage": metrics["coverage"]}


isoline_variation = cells_api.isoline_variation


def sac_pbt_variation_fn(
    training_state1: Any, training_state2: Any, key: Key, iso_sigma: float, line_sigma: float
) -> Any:
    """Children `[B, ...]` of pairs of agents.

    Policy, critics and temperature are varied; all other values are copied from the first parent.
    """
    first, second = training_state1.learned, training_state2.learned
    children = isoline_variation(first.params, second.params, key, iso_sigma, line_sigma)
    varied = {name: getattr(first, name)._replace(params=child) for name, child in children._asdict().items()}
    return training_state1.replace(learned=first._replace(**varied))


td3_pbt_variation_fn = sac_pbt_variation_fn  # varies policy and critics of TD3


class MAPElites:
    """MAP-Elites on one device (Mouret 2015, arXiv:1504.04909).

    `cells.Loop` documents the scoring functions and emitters.
    """

    axis: str | None = None

    def __init__(self, scoring_function: Callable, emitter: Any, metrics_function: Callable) -> None:
        shares = WHOLE if self.axis is None else layout.shares(self.axis)
        self._loop = cells_api.Loop(scoring_function, emitter, metrics_function, shares)

    def init(self, genotypes: PyTree, centroids: Array, key: Key) -> tuple[MapElitesRepertoire, Any, Metrics]:
        """Score an initial batch `[B, ...]`, and create the repertoire and emitter state; the key is consumed."""
        return self._loop.begin(genotypes, partial(MapElitesRepertoire.init, centroids=centroids), typed_key(key))

    def update(self, repertoire: MapElitesRepertoire, emitter_state: Any, key: Key) -> tuple[Any, Any, Metrics]:
        """Run one generation: emit, score, add, update the emitter; the key is consumed."""
        return self._loop.turn(repertoire, emitter_state, typed_key(key))

    def scan_update(self, carry: tuple, _: Any) -> tuple[tuple, Metrics]:
        """Run `update` inside `jax.lax.scan`; the carry is repertoire, emitter state and key."""
        repertoire, emitter_state, key = carry
        next_key, update_key = jax.random.split(key)
        repertoire, emitter_state, metrics = self.update(repertoire, emitter_state, update_key)
        return (repertoire, emitter_state, next_key), metrics


class DistributedMAPElites(MAPElites):
    """MAP-Elites inside a mapped axis `"p"`: each device scores its share, and all hold the same repertoire."""

    axis = "p"

    def get_distributed_init_fn(self, centroids: Array, devices: Sequence[Any] | None) -> Callable:
        """Return `init` as a function of `genotypes` `[devices, B, ...]` and `key` `[devices]`."""
        return layout.map_over(lambda genotypes, key: self.init(genotypes, centroids, key), "p", devices)

    def get_distributed_update_fn(self, num_iterations: int, devices: Sequence[Any] | None) -> Callable:
        """Return a function of `repertoire`, `emitter_state` and `key`, `[devices, ...]` each.

        It runs `update` `num_iterations` times; its metrics are `[devices, num_iterations]`.
        """

        def update(repertoire: MapElitesRepertoire, emitter_state: Any, key: Key) -> tuple:
            carry, metrics = jax.lax.scan(self.scan_update, (repertoire, emitter_state, key), length=num_iterations)
            return *carry[:2], metrics

        return layout.map_over(update, "p", devices)


class PBTEmitterState(Record):
    """State of the trained population, leaves `[P, ...]`."""

    replay_buffers: ReplayBuffer
    env_states: BatchState
    """`[P, E, ...]`."""
    training_states: Any
    key: Array
    """`[2]` uint32."""


class PBTEmitterConfig(Record):
    """Configuration of `PBTEmitter`.

    Sizes refer to one device, fractions to the population of all devices. `fraction_sort_exchange` has no effect.
    """

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
    """ME-PBT emitter (Pierrot 2023, arXiv:2303.12803).

    It trains a population, adds its members to the repertoire, and replaces members by elites of the repertoire. With
    several devices it runs inside a mapped axis `"p"`.
    """

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
        """Number of genotypes that one device emits."""
        return self._config.ga_population_size_per_device + self._size

    def init(
        self, key: Key, repertoire: Any, genotypes: Any, fitnesses: Any, descriptors: Any, extra_scores: Any
    ) -> PBTEmitterState:
        """Initialise the population with the last genotypes, which the first `state_update` ranks.

        The key is consumed.
        """
        del repertoire, fitnesses, descriptors, extra_scores
        shape, env = (self._size, self._config.env_batch_size), self._env
        key, reset_key = split_key(key)
        env_states = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), env.reset(reset_key))
        members = jax.tree.map(lambda leaf: leaf[-self._size :], genotypes)
        check_population(members.steps, env_states.reward)
        bare = members.policy_optimizer_state == ()
        check(
            bare,
            "genotypes must not have optimizer states; call jax.vmap(states.empty_optimizers_states)(states) first.",
        )
        row = Transition.init_dummy(env.observation_size, env.action_size)
        held = trees.stack([ReplayBuffer.init(self._config.buffer_size, row)] * self._size)
        return PBTEmitterState(held, env_states, jax.vmap(type(members).init_optimizers_states)(members), key)

    def emit(self, repertoire: MapElitesRepertoire, emitter_state: PBTEmitterState, key: Key) -> tuple[Any, dict]:
        """Emit variations of elites, then the trained members, as genotypes."""
        count, members = self._config.ga_population_size_per_device, _without_optimizers(emitter_state.training_states)
        if count == 0:
            return members, {}
        # Folded with the emitter's key, because some training loops pass the same key in every generation.
        keys = jax.random.split(jax.random.fold_in(typed_key(key), emitter_state.key[0]), 3)
        first, second = (repertoire.genotypes_or(members, keys[i], count, self._selector) for i in range(2))
        children = self._vary(first, second, keys[2])
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), children, members), {}

    def state_update(
        self, emitter_state: Any, repertoire: Any, genotypes: Any, fitnesses: Array, descriptors: Any, extra_scores: Any
    ) -> PBTEmitterState:
        """Replace the worst members by children of the best, the next worst by elites; then train all members."""
        del genotypes, descriptors, extra_scores
        next_key, exploit_key = split_key(emitter_state.key)
        states, held = emitter_state.training_states, emitter_state.replay_buffers
        configured, available = self._config.num_devices, layout.axis_size("p")
        check(
            configured == available,
            f"num_devices is {configured}, but {available} devices share the axis 'p'; make them equal.",
        )
        shares = layout.shares("p") if configured > 1 else WHOLE
        draw = partial(repertoire.genotypes_or, _without_optimizers(states), selector=self._selector)
        elites = cells_api.Elites(repertoire.repertoire.occupied.any(), draw, type(states).init_optimizers_states)
        fitness, renew = fitnesses.reshape(-1)[-self._size :], type(states).resample_hyperparams
        states, diverged = cells_api.exploit(self._counts, fitness, states, elites, exploit_key, renew, shares)
        # The replay buffers and environment states of diverged members may be invalid.
        held = held.replace(state=buffers.clear(held.state, diverged))
        env_states = restart(emitter_state.env_states, diverged)
        (states, env_states, held), _ = self._train(states, env_states, held)
        return PBTEmitterState(held, env_states, states, next_key)


def _without_optimizers(states: Any) -> Any:
    """Remove optimizer states and targets, as in genotypes."""
    return jax.vmap(type(states).empty_optimizers_states)(states)
