"""Populations of SAC and TD3 in the documented form, and Population Based Training of them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.compat.qdax import off_policy
from rookery.compat.qdax.algorithms import RING, SAC, TD3
from rookery.compat.qdax.env_batch import Batch
from rookery.compat.qdax.env_batch import BatchState as State
from rookery.compat.qdax.environments import Extractor
from rookery.compat.qdax.pbt import truncate
from rookery.compat.qdax.records import PBTSacTrainingState, PBTTD3TrainingState, ReplayBuffer, Transition
from rookery.compat.records import check, check_counts, typed
from rookery.distributed import layout
from rookery.populations.base import valid_fitness
from rookery.populations.sharding import WHOLE, Shares
from rookery.qd.scoring import descriptor_of
from rookery.types import Array, Key, Metrics

__all__ = ["PBT", "PBTSAC", "PBTTD3"]


class Population:
    """What populations of one kind of agent can do; everything is `[P, ...]`."""

    def get_init_fn(self: Any, population_size: int, action_size: int, observation_size: int, buffer_size: int) -> Any:
        """A function of a key: training states and empty replay buffers. No member at all is a `ValueError`."""
        check_counts(population_size=population_size)

        def init(key: Key) -> tuple[Any, ReplayBuffer]:
            newborn = partial(self.init, action_size=action_size, observation_size=observation_size)
            empty = ReplayBuffer.init(buffer_size, Transition.init_dummy(observation_size, action_size))
            keys = jax.random.split(typed(key), population_size)
            return jax.vmap(newborn)(keys), trees.stack([empty] * population_size)

        return init

    def get_eval_fn(self: Any, eval_env: Batch) -> Callable[[Any, State], tuple[Array, Array]]:
        """A function of training states and first environment states `[P, E, ...]`: mean returns `[P]`, NaN where an
        action was not finite, and returns `[P, E]`, of a deterministic episode in each environment."""
        evaluator = self._judge(eval_env)
        return lambda states, first_env_states: evaluator(states, first_env_states)[::2]

    def get_eval_qd_fn(self: Any, eval_env: Batch, descriptor_extraction_fn: Callable) -> Callable:
        """Likewise mean returns `[P]`, mean descriptors `[P, D]`, returns `[P, E]` and descriptors `[P, E, D]`. By the
        task's own descriptor, of `environments.descriptor_extractor`, no transition is stored; by another the
        episodes are played twice. An environment without a descriptor is a `ValueError`."""
        own, evaluator = Extractor(descriptor_of(eval_env.world.spec).kind), self._judge(eval_env)
        if descriptor_extraction_fn == own:
            return evaluator
        play = partial(self.play_qd_step_fn, env=eval_env, deterministic=True, evaluation=True)
        told = {"play_step_fn": play, "descriptor_extraction_fn": descriptor_extraction_fn}
        describe = jax.vmap(partial(self.eval_qd_policy_fn, **told))

        def evaluate(states: Any, first_env_states: State) -> tuple[Array, ...]:
            judged, played = evaluator(states, first_env_states), describe(states, first_env_states)
            return judged[0], played[1], judged[2], played[3]

        return evaluate

    def _judge(self: Any, eval_env: Batch) -> Callable[[Any, State], tuple[Array, ...]]:
        asked, length = self._config.episode_length, eval_env.episode_length
        check(asked == length, f"episode_length is {asked}, but episodes of this {eval_env.name} have {length} steps.")

        def evaluator(states: Any, first: State) -> tuple[Array, ...]:
            told = off_policy.evaluator(self._agent(eval_env.observation_size), eval_env, states, first)
            fitness = valid_fitness(told.fitness, told.broken)
            return fitness, told.descriptor, told.returns, told.episodes["descriptors"]

        return evaluator

    def get_train_fn(
        self: Any, env: Batch, num_iterations: int, env_batch_size: int, grad_updates_per_step: float
    ) -> Callable[[Any, State, ReplayBuffer], tuple[tuple[Any, State, ReplayBuffer], Metrics]]:
        """A function of training states, environment states `[P, E, ...]` and replay buffers: those three after
        `num_iterations` steps of E = `env_batch_size` environments with `int(grad_updates_per_step * E)` updates after
        each, and metrics `[P, num_iterations]`, means over updates; see `by_hand.train` for its errors."""
        off_policy.check_training(env)
        check_counts(num_iterations=num_iterations)
        agent = self._agent(env.observation_size)
        config = off_policy.life(self._config.batch_size, env_batch_size, num_iterations, grad_updates_per_step)

        def train(states: Any, env_states: State, replay_buffers: ReplayBuffer) -> tuple:
            rows = type(replay_buffers.state.rows)
            check(rows is Transition, f"this stores a Transition, and the buffers were made for a {rows.__name__}.")
            told = off_policy.train(agent, env, RING, config, states, env_states, replay_buffers.state)
            return (*told[:2], replay_buffers.replace(state=told[2])), told[3]

        return train


class PBTSAC(Population, SAC):
    """A population of SAC agents, whose hyper-parameters evolve."""

    kind = PBTSacTrainingState


class PBTTD3(Population, TD3):
    """A population of TD3 agents, whose hyper-parameters evolve."""

    kind = PBTTD3TrainingState


class PBT:
    """Population Based Training by truncation (Jaderberg 2017, arXiv:1711.09846); counts are of the whole population,
    and to exceed it is a `ValueError`."""

    def __init__(self, population_size: int, num_best_to_replace_from: int, num_worse_to_replace: int) -> None:
        self._size, self._counts = population_size, (num_best_to_replace_from, num_worse_to_replace)
        check_counts(population_size=population_size)
        told = "{} best and {} replaced members".format(*self._counts)
        check(min(self._counts) >= 0, f"{told} must not be negative.")
        check(sum(self._counts) <= population_size, f"{told} exceed the population of {population_size}; lower one.")

    def update_states_and_buffer(
        self, key: Key, population_returns: Array, training_state: Any, replay_buffer: ReplayBuffer
    ) -> tuple[Any, ReplayBuffer]:
        """The worst take state and buffer of a parent drawn from the best, and hyper-parameters of their own. Returns
        `[P]` that are not finite rank last, are replaced and never a parent's. Other populations are a `ValueError`."""
        return self._update(key, population_returns, training_state, replay_buffer, WHOLE)

    def update_states_and_buffer_pmap(
        self, key: Key, population_returns: Array, training_state: Any, replay_buffer: ReplayBuffer
    ) -> tuple[Any, ReplayBuffer]:
        """The same inside a mapped axis `"p"`, where each device gives its share and all are ranked together."""
        return self._update(key, population_returns, training_state, replay_buffer, layout.shares("p"))

    def _update(self, key: Key, returns: Array, states: Any, replay_buffer: ReplayBuffer, shares: Shares) -> tuple:
        check(jnp.ndim(returns) == 1, f"population_returns must be the means, [P], got {jnp.shape(returns)}.")
        off_policy.check_population(returns, states.steps, replay_buffer.state.size)
        held = jax.eval_shape(shares.gather, returns).shape[0]
        check(held == self._size, f"population_size is {self._size}, but there are returns of {held} members.")
        renew = type(states).resample_hyperparams
        return truncate(returns, states, replay_buffer, key, self._counts, renew, shares)
