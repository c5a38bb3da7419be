"""MAP-Elites and ME-PBT in the documented form, over this library's repertoire, selection and learners."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rookery import buffers, trees
from rookery import devices as placing
from rookery.compat.populations import Population
from rookery.compat.records import ReplayBuffer
from rookery.envs.batch import Batch, BatchState, restarted
from rookery.learners.by_hand import check_population
from rookery.populations.api import member_keys
from rookery.populations.by_hand import common, renewed
from rookery.populations.placement import WHOLE, moved
from rookery.qd import centroids as cells
from rookery.qd import pbt_emitter, variation
from rookery.qd import repertoire as repertoires
from rookery.records import Record, check, split, typed
from rookery.types import Array, Key, Metrics, PyTree


def compute_cvt_centroids(
    num_descriptors: int,
    num_init_cvt_samples: int,
    num_centroids: int,
    minval: float | Sequence[float],
    maxval: float | Sequence[float],
    key: Key,
) -> Array:
    """Centroids `[C, D]` of a centroidal Voronoi tessellation between limits, numbers or `[D]`; see `centroids.cvt`."""
    lower, upper = (jnp.broadcast_to(jnp.asarray(limit), num_descriptors).tolist() for limit in (minval, maxval))
    return cells.cvt(typed(key), num_centroids, lower, upper, num_init_cvt_samples)


def compute_euclidean_centroids(
    grid_shape: tuple[int, ...], minval: float | Sequence[float], maxval: float | Sequence[float]
) -> Array:
    """Centroids `[C, D]` of an even grid between limits, numbers or `[D]`; the last dimension varies fastest."""
    lower, upper = (jnp.broadcast_to(jnp.asarray(limit), len(grid_shape)).tolist() for limit in (minval, maxval))
    return cells.grid(tuple(grid_shape), lower, upper)


class MapElitesRepertoire(Record):
    """C cells, each with the best genotype found there."""

    genotypes: PyTree  # leaves [C, ...]
    fitnesses: Array  # [C]; -inf where a cell is empty
    descriptors: Array  # [C, D]
    centroids: Array  # [C, D]

    @classmethod
    def init_default(cls, genotype: PyTree, centroids: Array) -> "MapElitesRepertoire":
        """Empty cells for genotypes like this one."""
        return cls(*repertoires.empty(genotype, centroids))

    @classmethod
    def init(cls, genotypes: PyTree, fitnesses: Array, descriptors: Array, centroids: Array) -> "MapElitesRepertoire":
        """Cells with the best of a first batch, `[B, ...]`."""
        return cls.init_default(trees.take(genotypes, 0), centroids).add(genotypes, descriptors, fitnesses)

    def add(
        self, batch_of_genotypes: PyTree, batch_of_descriptors: Array, batch_of_fitnesses: Array
    ) -> "MapElitesRepertoire":
        """Let a batch `[B, ...]` compete for the cells; what is not finite stays out, ties go to who was there."""
        fitnesses = batch_of_fitnesses.reshape(-1)
        return MapElitesRepertoire(
            *repertoires.add(self.library, batch_of_genotypes, fitnesses, batch_of_descriptors)[0]
        )

    def select(self, key: Key, num_samples: int, selector: Any = None) -> "MapElitesRepertoire":
        """Rows `[num_samples, ...]` of occupied cells, drawn uniformly or by `selector.select`; the key is consumed.

        Raises:
          ValueError: all cells are empty.
        """
        if selector is not None:
            return selector.select(self, key, num_samples)
        return trees.take(self, repertoires.sample(self.library, typed(key), num_samples))

    @property
    def library(self) -> repertoires.Repertoire:
        """The same as the library's."""
        return repertoires.Repertoire(self.genotypes, self.fitnesses, self.descriptors, self.centroids)


def default_qd_metrics(repertoire: MapElitesRepertoire, qd_offset: float) -> Metrics:
    """`qd_score`, the sum over elites of fitness plus offset; `max_fitness`; `coverage` in percent."""
    told = repertoires.metrics(repertoire.library)
    score = jnp.sum(jnp.where(repertoire.library.occupied, repertoire.fitnesses + qd_offset, 0.0))
    return {"qd_score": score, "max_fitness": told["max_fitness"], "coverage": told["coverage"]}


def isoline_variation(
    x1: PyTree,
    x2: PyTree,
    key: Key,
    iso_sigma: float,
    line_sigma: float,
    minval: float | None = None,
    maxval: float | None = None,
) -> PyTree:
    """Children `[B, ...]` of pairs of parents by iso+line (Vassiliades 2018), kept in bounds; the key is consumed."""
    keys = member_keys(typed(key), jax.tree.leaves(x1)[0].shape[0])
    breed = partial(variation.iso_line, config=variation.VariationConfig(iso_sigma, line_sigma))
    return jax.tree.map(lambda leaf: jnp.clip(leaf, minval, maxval), jax.vmap(breed)(x1, x2, keys))


def sac_pbt_variation_fn(
    training_state1: Any, training_state2: Any, key: Key, iso_sigma: float, line_sigma: float
) -> Any:
    """Children `[B, ...]` of pairs of agents: policy, critics and temperature vary; the rest is the first parent's."""
    first, second = training_state1.learned, training_state2.learned
    children = isoline_variation(first.params, second.params, key, iso_sigma, line_sigma)
    varied = {name: getattr(first, name)._replace(params=child) for name, child in children._asdict().items()}
    return training_state1.replace(learned=first._replace(**varied))


td3_pbt_variation_fn = sac_pbt_variation_fn  # policy and critics of TD3


class MAPElites:
    """MAP-Elites on one device (Mouret 2015, arXiv:1504.04909).

    Args:
      scoring_function: genotypes `[B, ...]` and a key -> fitnesses `[B]`, descriptors `[B, D]`, extra scores.
      emitter: has `init`, `emit` and `state_update`, as `PBTEmitter`.
      metrics_function: of a repertoire, e.g. `partial(default_qd_metrics, qd_offset=0.0)`.
    """

    _shares = staticmethod(lambda: WHOLE)

    def __init__(self, scoring_function: Callable, emitter: Any, metrics_function: Callable) -> None:
        self._score, self._emitter, self._measure = scoring_function, emitter, metrics_function

    def init(self, genotypes: PyTree, centroids: Array, key: Key) -> tuple[MapElitesRepertoire, Any, Metrics]:
        """Score a first batch `[B, ...]`, fill the cells, and let the emitter begin; the key is consumed."""
        score_key, emitter_key = jax.random.split(typed(key))
        scored = self._score(genotypes, score_key)
        everybody = self._shares().gather((genotypes, *scored[:2]))
        repertoire = MapElitesRepertoire.init(*everybody, centroids)
        emitter_state = self._emitter.init(emitter_key, repertoire, genotypes, *scored)
        return self._told(repertoire, emitter_state, genotypes, scored)

    def update(
        self, repertoire: MapElitesRepertoire, emitter_state: Any, key: Key
    ) -> tuple[MapElitesRepertoire, Any, Metrics]:
        """Emit, score, add, tell the emitter: one generation; the key is consumed."""
        emit_key, score_key = jax.random.split(typed(key))
        genotypes, extra = self._emitter.emit(repertoire, emitter_state, emit_key)
        fitnesses, descriptors, extra_scores = self._score(genotypes, score_key)
        everybody = self._shares().gather((genotypes, descriptors, fitnesses))
        return self._told(
            repertoire.add(*everybody), emitter_state, genotypes, (fitnesses, descriptors, {**extra_scores, **extra})
        )

    def scan_update(self, carry: tuple, _: Any) -> tuple[tuple, Metrics]:
        """`update` for `jax.lax.scan`; the carry is repertoire, emitter state and key."""
        repertoire, emitter_state, key = carry
        kept, own = jax.random.split(key)
        repertoire, emitter_state, metrics = self.update(repertoire, emitter_state, own)
        return (repertoire, emitter_state, kept), metrics

    def _told(self, repertoire: MapElitesRepertoire, emitter_state: Any, genotypes: PyTree, scored: tuple) -> tuple:
        emitter_state = self._emitter.state_update(emitter_state, repertoire, genotypes, *scored)
        return repertoire, emitter_state, self._measure(repertoire)


class DistributedMAPElites(MAPElites):
    """The same inside a mapped axis `"p"`: each device scores its share, and all have the same repertoire."""

    _shares = staticmethod(partial(placing.shares, "p"))

    def get_distributed_init_fn(self, centroids: Array, devices: Sequence[Any] | None) -> Callable:
        """`init` as a function of `genotypes` `[devices, B, ...]` and `key` `[devices]`."""
        return placing.map_over(lambda genotypes, key: self.init(genotypes, centroids, key), "p", devices)

    def get_distributed_update_fn(self, num_iterations: int, devices: Sequence[Any] | None) -> Callable:
        """`num_iterations` of `update` as a function of repertoire, emitter state and key, `[devices, ...]` each;
        metrics are `[devices, num_iterations]`."""

        def update(repertoire: MapElitesRepertoire, emitter_state: Any, key: Key) -> tuple:
            carry, metrics = jax.lax.scan(self.scan_update, (repertoire, emitter_state, key), length=num_iterations)
            return *carry[:2], metrics

        return placing.map_over(update, "p", devices)


class PBTEmitterState(Record):
    """The population that trains, `[P, ...]`."""

    replay_buffers: ReplayBuffer
    env_states: BatchState  # [P, E, ...]
    training_states: Any
    key: Array  # [2] uint32


class PBTEmitterConfig(Record):
    """Sizes are of one device, fractions of the population of all devices (Pierrot 2023, arXiv:2303.12803)."""

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
    """ME-PBT: a population that trains, and breeds with the repertoire that it fills.

    Args:
      pbt_agent: `PBTSAC` or `PBTTD3`.
      config: see there; where `num_devices` is above 1, all is used inside a mapped axis `"p"`.
      env: of P x E environments.
      variation_fn: parents, parents and a key -> children, `[B, ...]` each.
      selector: draws elites; uniformly by default.

    Raises:
      ValueError: the fractions exceed the population, or the environments are not P x E.
    """

    def __init__(
        self, pbt_agent: Population, config: PBTEmitterConfig, env: Batch, variation_fn: Callable, selector: Any = None
    ) -> None:
        self._agent, self._config, self._env = pbt_agent, config, env
        self._vary, self._selector = variation_fn, selector
        size, each = config.pg_population_size_per_device, config.env_batch_size
        fractions = pbt_emitter.MePbtConfig(
            replace_fraction=config.fraction_to_replace_from_best,
            best_fraction=config.fraction_best_to_replace_from,
            sample_fraction=config.fraction_to_replace_from_samples,
        )
        self._counts = pbt_emitter.counts(fractions, size * config.num_devices)
        check(env.batch_size == size * each, f"env must have {size} x {each} environments, has {env.batch_size}.")
        self._train = pbt_agent.get_train_fn(env, config.num_training_iterations, each, config.grad_updates_per_step)

    @property
    def batch_size(self) -> int:
        """Genotypes that one device emits."""
        return self._config.ga_population_size_per_device + self._config.pg_population_size_per_device

    def init(
        self,
        key: Key,
        repertoire: Any,
        genotypes: Any,
        fitnesses: Array,
        descriptors: Array,
        extra_scores: Any,
    ) -> PBTEmitterState:
        """Begin with the last of the genotypes, whose fitnesses `state_update` will rank; the key is consumed."""
        config, env = self._config, self._env
        size = config.pg_population_size_per_device
        key, reset_key = split(key)
        shape = (size, config.env_batch_size)
        env_states = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), env.reset(reset_key))
        members = jax.tree.map(lambda leaf: leaf[-size:], genotypes)
        check_population(members.steps, env_states.reward)
        empty = self._agent.get_init_fn(size, env.action_size, env.observation_size, config.buffer_size)(reset_key)[1]
        return PBTEmitterState(empty, env_states, jax.vmap(type(members).init_optimizers_states)(members), key)

    def emit(self, repertoire: MapElitesRepertoire, emitter_state: PBTEmitterState, key: Key) -> tuple[Any, dict]:
        """Variations of elites, then the members that have trained, as genotypes."""
        states, count = emitter_state.training_states, self._config.ga_population_size_per_device
        members = jax.vmap(type(states).empty_optimizers_states)(states)
        if not count:
            return members, {}
        key = jax.random.fold_in(typed(key), emitter_state.key[0])  # should the caller's be the same every time
        first_key, second_key, vary_key = jax.random.split(key, 3)
        first, second = (repertoire.select(k, count, self._selector).genotypes for k in (first_key, second_key))
        children = self._vary(first, second, vary_key)
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), children, members), {}

    def state_update(
        self,
        emitter_state: PBTEmitterState,
        repertoire: MapElitesRepertoire,
        genotypes: Any,
        fitnesses: Array,
        descriptors: Any,
        extra_scores: Any,
    ) -> PBTEmitterState:
        """The worst take a parent from the best, the next worst an elite; then all train."""
        size, states = self._config.pg_population_size_per_device, emitter_state.training_states
        shares = placing.shares("p") if self._config.num_devices > 1 else WHOLE
        fitness = shares.gather(fitnesses.reshape(-1)[-size:])
        kept, own_key = split(emitter_state.key)
        parents_key, elites_key, new_key = jax.random.split(common(own_key, states, shares), 3)
        parents, revived = pbt_emitter.origins(self._counts, fitness, parents_key)
        states = moved(states, parents, shares.rows, in_place=True)
        elites = repertoire.select(elites_key, fitness.shape[0], self._selector).genotypes
        elites = jax.vmap(type(states).init_optimizers_states)(shares.own(elites))
        states = trees.where(shares.own(revived), elites, states)
        is_new = revived | (parents != jnp.arange(fitness.shape[0]))
        states = renewed(states, is_new, new_key, type(states).resample_hyperparams, shares)
        diverged = shares.own(is_new & ~jnp.isfinite(fitness))  # whose data is not to be trusted
        held = emitter_state.replay_buffers
        clean = held.replace(state=trees.where(diverged, jax.vmap(buffers.clear)(held.state), held.state))
        env_states = restarted(emitter_state.env_states, diverged)
        (states, env_states, clean), _ = self._train(states, env_states, clean)
        return PBTEmitterState(clean, env_states, states, kept)
