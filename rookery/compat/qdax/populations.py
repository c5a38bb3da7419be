"""Populations of SAC and TD3 agents in QDax's documented form, and Population Based Training."""

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
from rookery.compat.records import check, check_counts, typed_key
from rookery.distributed import layout
from rookery.populations.base import valid_fitness
from rookery.populations.sharding import WHOLE, Shares
from rookery.qd.scoring import descriptor_of
from rookery.types import Array, Key, Metrics

__all__ = ["PBT", "PBTSAC", "PBTTD3"]


class Population:
    """Methods of populations of one kind of agent; all leaves are `[P, ...]`."""

    def get_init_fn(self: Any, population_size: int, action_size: int, observation_size: int, buffer_size: int) -> Any:
        """Return a function of a key that creates training states and empty replay buffers.

        Raises:
          ValueError: `population_size` is below 1.
        """
        check_counts(population_size=population_size)

        def init(key: Key) -> tuple[Any, ReplayBuffer]:
            init_member = partial(self.init, action_size=action_size, observation_size=observation_size)
            empty = ReplayBuffer.init(buffer_size, Transition.init_dummy(observation_size, action_size))
            keys = jax.random.split(typed_key(key), population_size)
            return jax.vmap(init_member)(keys), trees.stack([empty] * population_size)

        return init

    def get_eval_fn(self: Any, eval_env: Batch) -> Callable[[Any, State], tuple[Array, Array]]:
        """Return an evaluation function of training states and initial environment states `[P, E, ...]`.

        It runs one deterministic episode per environment, and returns the mean returns `[P]`, NaN where an action was
        not finite, and the returns `[P, E]`.
        """
        evaluator = self._evaluator(eval_env)
        return lambda states, first_env_states: evaluator(states, first_env_states)[::2]

    def get_eval_qd_fn(self: Any, eval_env: Batch, descriptor_extraction_fn: Callable) -> Callable:
        """Return an evaluation function as `get_eval_fn`, with descriptors.

        It returns mean returns `[P]`, mean descriptors `[P, D]`, returns `[P, E]` and descriptors `[P, E, D]`. With the
        task's descriptor, from `environments.descriptor_extractor`, no transitions are stored; with a user-defined
        function the episodes are run twice.

        Raises:
          ValueError: the environment has no descriptor.
        """
        task_extractor, evaluator = Extractor(descriptor_of(eval_env.environment.spec).kind), self._evaluator(eval_env)
        if descriptor_extraction_fn == task_extractor:
            return evaluator
        play = partial(self.play_qd_step_fn, env=eval_env, deterministic=True, evaluation=True)
        arguments = {"play_step_fn": play, "descriptor_extraction_fn": descriptor_extraction_fn}
        describe = jax.vmap(partial(self.eval_qd_policy_fn, **arguments))

        def evaluate(states: Any, first_env_states: State) -> tuple[Array, ...]:
            evaluated, played = evaluator(states, first_env_states), describe(states, first_env_states)
            return evaluated[0], played[1], evaluated[2], played[3]

        return evaluate

    def _evaluator(self: Any, eval_env: Batch) -> Callable[[Any, State], tuple[Array, ...]]:
        configured, length = self._config.episode_length, eval_env.episode_length
        check(
            configured == length,
            f"episode_length is {configured}, but episodes of {eval_env.name} have {length} steps; make them equal.",
        )

        def evaluator(states: Any, first: State) -> tuple[Array, ...]:
            outputs = off_policy.evaluator(self._agent(eval_env.observation_size), eval_env, states, first)
            fitness = valid_fitness(outputs.fitness, outputs.broken)
            return fitness, outputs.descriptor, outputs.returns, outputs.episodes["descriptors"]

        return evaluator

    def get_train_fn(
        self: Any, env: Batch, num_iterations: int, env_batch_size: int, grad_updates_per_step: float
    ) -> Callable[[Any, State, ReplayBuffer], tuple[tuple[Any, State, ReplayBuffer], Metrics]]:
        """Return a training function of training states, environment states `[P, E, ...]` and replay buffers.

        It makes `num_iterations` steps of E = `env_batch_size` environments, each followed by
        `int(grad_updates_per_step * E)` updates, and returns the three arguments after them and the metrics
        `[P, num_iterations]`, means over updates. `off_policy.train` documents its errors.
        """
        off_policy.check_training(env)
        check_counts(num_iterations=num_iterations)
        agent = self._agent(env.observation_size)
        config = off_policy.training_config(
            self._config.batch_size, env_batch_size, num_iterations, grad_updates_per_step
        )

        def train(states: Any, env_states: State, replay_buffers: ReplayBuffer) -> tuple:
            rows = type(replay_buffers.state.rows)
            check(
                rows is Transition,
                f"training stores a Transition, but the buffers were created for {rows.__name__}.",
            )
            outputs = off_policy.train(agent, env, RING, config, states, env_states, replay_buffers.state)
            return (*outputs[:2], replay_buffers.replace(state=outputs[2])), outputs[3]

        return train


class PBTSAC(Population, SAC):
    """A population of SAC agents with evolved hyper-parameters."""

    kind = PBTSacTrainingState


class PBTTD3(Population, TD3):
    """A population of TD3 agents with evolved hyper-parameters."""

    kind = PBTTD3TrainingState


class PBT:
    """Population Based Training by truncation selection (Jaderberg 2017, arXiv:1711.09846).

    Counts refer to the whole population, over all devices.

    Raises:
      ValueError: a count is negative, or the counts exceed the population.
    """

    def __init__(self, population_size: int, num_best_to_replace_from: int, num_worse_to_replace: int) -> None:
        self._size, self._counts = population_size, (num_best_to_replace_from, num_worse_to_replace)
        check_counts(population_size=population_size)
        description = "{} best and {} replaced members".format(*self._counts)
        check(min(self._counts) >= 0, f"{description} must not be negative.")
        check(
            sum(self._counts) <= population_size,
            f"{description} exceed the population of {population_size}; lower one.",
        )

    def update_states_and_buffer(
        self, key: Key, population_returns: Array, training_state: Any, replay_buffer: ReplayBuffer
    ) -> tuple[Any, ReplayBuffer]:
        """Replace the worst members by copies of parents drawn from the best.

        A child copies its parent's training state and buffer, and resamples its hyper-parameters. Members with
        non-finite returns rank last, are replaced, and are never parents.

        Args:
          key: consumed.
          population_returns: `[P]`.
          training_state: leaves `[P, ...]`.
          replay_buffer: leaves `[P, ...]`.

        Raises:
          ValueError: the arguments have different numbers of members, or other than `population_size`.
        """
        return self._update(key, population_returns, training_state, replay_buffer, WHOLE)

    def update_states_and_buffer_pmap(
        self, key: Key, population_returns: Array, training_state: Any, replay_buffer: ReplayBuffer
    ) -> tuple[Any, ReplayBuffer]:
        """As `update_states_and_buffer`, inside a mapped axis `"p"` where each device passes its share.

        All members are ranked together.
        """
        return self._update(key, population_returns, training_state, replay_buffer, layout.shares("p"))

    def _update(self, key: Key, returns: Array, states: Any, replay_buffer: ReplayBuffer, shares: Shares) -> tuple:
        check(jnp.ndim(returns) == 1, f"population_returns must be mean returns [P], got shape {jnp.shape(returns)}.")
        off_policy.check_population(returns, states.steps, replay_buffer.state.size)
        total = jax.eval_shape(shares.gather, returns).shape[0]
        check(
            total == self._size,
            f"population_size is {self._size}, but population_returns has {total} members; make them equal.",
        )
        renew = type(states).resample_hyperparams
        return truncate(returns, states, replay_buffer, key, self._counts, renew, shares)
