"""The emitter of ME-PBT in QDax's documented form, with Rookery's selection and learners."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rookery import buffers, trees
from rookery.compat.qdax.environments import Batch, BatchState
from rookery.compat.qdax.map_elites import EmitterState, MapElitesRepertoire, Selector, isoline_variation
from rookery.compat.qdax.populations import Population, check_population, exploit
from rookery.compat.qdax.records import PBTStateT, PBTTrainingState, ReplayBuffer, Transition
from rookery.compat.records import Record, check, check_equal, split_key, typed_key
from rookery.distributed import layout
from rookery.populations.sharding import WHOLE
from rookery.qd.pbt_emitter import MePbtConfig, counts
from rookery.settings import check_counts
from rookery.types import Array, Key, PyTree

__all__ = ["PBTEmitter", "PBTEmitterConfig", "PBTEmitterState", "sac_pbt_variation_fn", "td3_pbt_variation_fn"]


def sac_pbt_variation_fn(
    training_state1: PBTStateT, training_state2: PBTStateT, key: Key, iso_sigma: float, line_sigma: float
) -> PBTStateT:
    """Children `[B, ...]` of pairs of agents.

    Policy, critics and temperature are varied; all other values are copied from the first parent.
    """
    first, second = training_state1.learned, training_state2.learned
    children = isoline_variation(first.params, second.params, key, iso_sigma, line_sigma)
    varied = {name: getattr(first, name)._replace(params=child) for name, child in children._asdict().items()}
    return training_state1.replace(learned=first._replace(**varied))


td3_pbt_variation_fn = sac_pbt_variation_fn  # varies policy and critics of TD3


class PBTEmitterState(EmitterState):
    """State of the trained population, leaves `[P, ...]`."""

    replay_buffers: ReplayBuffer
    env_states: BatchState
    """`[P, E, ...]`."""
    training_states: PBTTrainingState
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
        self,
        pbt_agent: Population,
        config: PBTEmitterConfig,
        env: Batch,
        variation_fn: Callable[[PBTTrainingState, PBTTrainingState, Key], PBTTrainingState],
        selector: Selector | None = None,
    ) -> None:
        self._config, self._env, self._vary, self._selector = config, env, variation_fn, selector
        check_counts(pg_population_size_per_device=config.pg_population_size_per_device, num_devices=config.num_devices)
        check_counts(buffer_size=config.buffer_size, env_batch_size=config.env_batch_size)
        self._size, each = config.pg_population_size_per_device, config.env_batch_size
        shares = config.fraction_to_replace_from_best, config.fraction_best_to_replace_from
        fractions = MePbtConfig(*shares, config.fraction_to_replace_from_samples)
        self._counts = counts(fractions, self._size * config.num_devices)
        fits = env.batch_size == self._size * each
        check(fits, f"env must be a batch of {self._size} x {each} environments, not of {env.batch_size}.")
        self._train = pbt_agent.get_train_fn(env, config.num_training_iterations, each, config.grad_updates_per_step)

    @property
    def batch_size(self) -> int:
        """Number of genotypes that one device emits."""
        return self._config.ga_population_size_per_device + self._size

    def init(
        self,
        key: Key,
        repertoire: PyTree,
        genotypes: PyTree,
        fitnesses: PyTree,
        descriptors: PyTree,
        extra_scores: PyTree,
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
        return PBTEmitterState(held, env_states, jax.vmap(members.init_optimizers_states)(members), key)

    def emit(
        self, repertoire: MapElitesRepertoire, emitter_state: PBTEmitterState, key: Key
    ) -> tuple[PBTTrainingState, dict]:
        """Emit variations of elites, then the trained members, as genotypes."""
        count, members = self._config.ga_population_size_per_device, _as_genotypes(emitter_state.training_states)
        if count == 0:
            return members, {}
        # Folded with the emitter's key, because some training loops pass the same key in every generation.
        keys = jax.random.split(jax.random.fold_in(typed_key(key), emitter_state.key[0]), 3)
        first, second = (repertoire.genotypes_or(members, keys[i], count, self._selector) for i in range(2))
        children = self._vary(first, second, keys[2])
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), children, members), {}

    def state_update(
        self,
        emitter_state: PBTEmitterState,
        repertoire: MapElitesRepertoire,
        genotypes: PyTree,
        fitnesses: Array,
        descriptors: PyTree,
        extra_scores: PyTree,
    ) -> PBTEmitterState:
        """Replace the worst members by children of the best, the next worst by elites; then train all members."""
        del genotypes, descriptors, extra_scores
        next_key, exploit_key = split_key(emitter_state.key)
        states, held = emitter_state.training_states, emitter_state.replay_buffers
        devices, members = self._config.num_devices, _as_genotypes(states)
        check_equal("num_devices", devices, layout.axis_size("p"), "{} devices share the axis 'p'")

        def draw(key: Key, count: int) -> tuple[Array, PBTTrainingState]:
            elites = repertoire.genotypes_or(members, key, count, self._selector)
            return repertoire.occupied.any(), jax.vmap(states.init_optimizers_states)(elites)

        fitness, shares = fitnesses.reshape(-1)[-self._size :], layout.shares("p") if devices > 1 else WHOLE
        states, _, replaced = exploit(self._counts, fitness, states, exploit_key, shares, draw_elites=draw)
        # The replay buffers and environment states of diverged members may be invalid.
        held = held.replace(state=buffers.clear(held.state, replaced))
        env_states = emitter_state.env_states.restarted(replaced)
        (states, env_states, held), _ = self._train(states, env_states, held)
        return PBTEmitterState(held, env_states, states, next_key)


def _as_genotypes(states: PBTStateT) -> PBTStateT:
    """Remove optimizer states and targets."""
    return jax.vmap(states.empty_optimizers_states)(states)
