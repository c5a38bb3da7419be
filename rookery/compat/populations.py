"""Populations of SAC and TD3 in the documented form: train, evaluate, and let the worst inherit from the best."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from rookery import devices, trees
from rookery.agents.api import Curiosity
from rookery.compat.algorithms import RING, SAC, TD3, Acting, member_of
from rookery.compat.environments import Extractor
from rookery.compat.records import PBTSacTrainingState, PBTTD3TrainingState, ReplayBuffer, Transition
from rookery.envs.batch import Batch, BatchState, continued, starts
from rookery.learners import off_policy, rollout
from rookery.populations import selection
from rookery.populations.api import member_keys
from rookery.populations.placement import WHOLE, Shares, moved
from rookery.qd.scoring import descriptor_of
from rookery.records import check, in_step, typed
from rookery.types import Array, Evaluation, Genotype, Key, Metrics


class Population:
    """What populations of one kind of agent can do; everything is `[P, ...]`."""

    def get_init_fn(
        self: Any, population_size: int, action_size: int, observation_size: int, buffer_size: int
    ) -> Callable[[Key], tuple[Any, ReplayBuffer]]:
        """A function of a key: training states and empty replay buffers."""

        def init(key: Key) -> tuple[Any, ReplayBuffer]:
            newborn = partial(self.init, action_size=action_size, observation_size=observation_size)
            keys = jax.random.split(typed(key), population_size)
            empty = ReplayBuffer.init(buffer_size, Transition.init_dummy(observation_size, action_size))
            return jax.vmap(newborn)(keys), trees.stack([empty] * population_size)

        return init

    def get_eval_fn(self: Any, eval_env: Batch) -> Callable[[Any, BatchState], tuple[Array, Array]]:
        """A function of training states and first environment states `[P, E, ...]`: mean returns `[P]` and returns
        `[P, E]` of deterministic episodes; NaN for an agent one of whose actions was not finite.

        Raises:
          ValueError: the environment's episodes are not as long as the configuration says.
        """
        judge = self._judge(eval_env)

        def evaluate(states: Any, first_env_states: BatchState) -> tuple[Array, Array]:
            evaluation = judge(states, first_env_states)
            return evaluation.fitness, evaluation.returns

        return evaluate

    def get_eval_qd_fn(self: Any, eval_env: Batch, descriptor_extraction_fn: Callable) -> Callable:
        """Likewise mean returns `[P]`, mean descriptors `[P, D]`, returns `[P, E]` and descriptors `[P, E, D]`.

        With the task's own descriptor (`environments.descriptor_extractor`) no transition is stored, and an agent that
        broke the physics has a mean return of NaN.

        Raises:
          ValueError: the environment has no descriptor, or its episodes are not as long as the configuration says.
        """
        own, judge = Extractor(descriptor_of(eval_env.world.spec).kind), self._judge(eval_env)
        if descriptor_extraction_fn != own:
            play = partial(self.play_qd_step_fn, env=eval_env, deterministic=True, evaluation=True)
            evaluate_one = partial(self.eval_qd_policy_fn, play_step_fn=play)
            return jax.vmap(partial(evaluate_one, descriptor_extraction_fn=descriptor_extraction_fn))

        def evaluate(states: Any, first_env_states: BatchState) -> tuple[Array, Array, Array, Array]:
            evaluation = judge(states, first_env_states)
            fitness = jnp.where(evaluation.broken == 0, evaluation.fitness, jnp.nan)
            return fitness, evaluation.descriptor, evaluation.returns, evaluation.episodes["descriptors"]

        return evaluate

    def _judge(self: Any, eval_env: Batch) -> Callable[[Any, BatchState], Evaluation]:
        length, theirs = self._config.episode_length, eval_env.episode_length
        check(
            length == theirs, f"episode_length is {length}, but an episode of this {eval_env.name} has {theirs} steps."
        )

        def judge(agent: Any, first: BatchState) -> Evaluation:
            act, config = self._mind(first.obs.shape[-1]).act, rollout.EvaluationConfig()
            judge = rollout.Judge(act, eval_env.world, config, first.obs.shape[0])
            genotype = Genotype(Acting(agent.policy_params), (), agent.normalization_running_stats)
            return rollout.evaluate(judge, genotype, starts(first), typed(first.info["rng"][0]))

        def judge_all(states: Any, first_env_states: BatchState) -> Evaluation:
            _check_sizes(states, first_env_states)
            return jax.vmap(judge)(states, first_env_states)

        return judge_all

    def get_train_fn(
        self: Any, env: Batch, num_iterations: int, env_batch_size: int, grad_updates_per_step: float
    ) -> Callable[[Any, BatchState, ReplayBuffer], tuple[tuple[Any, BatchState, ReplayBuffer], Metrics]]:
        """A function of training states, environment states `[P, E, ...]` and replay buffers: those three after
        `num_iterations` steps of E = `env_batch_size` environments, with `int(grad_updates_per_step * E)` updates after
        each; and metrics `[P, num_iterations]`, means over the updates. Resets begin from states drawn in each call.

        Raises:
          ValueError: there would be no update, or the environment does not reset itself or counts episodes. When the
            function is called: the states are of another number of environments, or of different populations.
        """
        updates = int(grad_updates_per_step * env_batch_size)
        product = f"grad_updates_per_step x env_batch_size = {grad_updates_per_step} x {env_batch_size}"
        check(updates >= 1, f"{product} is less than one update per iteration; raise one of them.")
        plain = env.options.auto_reset and not env.options.eval_metrics
        check(plain, "training needs an environment with auto_reset=True and eval_metrics=False.")
        agent = self._agent(env.observation_size, 0)._replace(curiosity=Curiosity(_keep, _observe, None, None))  # pyright: ignore[reportArgumentType]
        life = self._life(env_batch_size, num_iterations, updates / env_batch_size)
        return partial(_train, off_policy.Parts(agent, env.world, RING, life), env)


def _train(
    parts: off_policy.Parts, env: Batch, training_state: Any, env_state: BatchState, replay_buffer: ReplayBuffer
) -> tuple[tuple[Any, BatchState, ReplayBuffer], Metrics]:
    config = parts.config
    _check_sizes(training_state, env_state, replay_buffer, envs=config.num_envs)
    keys = jax.vmap(lambda key: jax.random.split(typed(key), 3))(training_state.key)
    bank = env.start_states(keys[0, 2], config.start_states)
    done = jax.vmap(in_step, out_axes=None)(training_state.steps) // config.updates
    members = member_of(training_state, replay_buffer, rollout.Lives(env_state.pipeline_state, env_state.obs))
    live = partial(off_policy.live, parts, iterations=done + jnp.arange(config.iterations))
    members, (_, metrics, reward, broken) = jax.vmap(lambda member, key: live(member, bank, key))(members, keys[:, 1])
    after = training_state.replace(
        learned=members.state,
        normalization_running_stats=members.normalizer,
        key=jax.random.key_data(keys[:, 0]),
        steps=training_state.steps + config.iterations * config.updates,
    )
    lives, told = members.env_state, {**metrics, "reward": reward, "broken_steps": broken}
    env_state = continued(env_state, lives.state, lives.observation)
    return (after, env_state, replay_buffer.replace(state=members.buffer)), told


def _check_sizes(states: Any, env_states: BatchState, *more: Any, envs: int | None = None) -> None:
    """Refuse what does not belong to one population, or has another number of environments than was said."""
    shape = env_states.reward.shape
    check(len(shape) == 2, f"environment states must be [P, E, ...], got {shape}; reshape what reset gave.")
    check_population(states.steps, env_states.reward, *(buffer.state.size for buffer in more))
    check(envs in (None, shape[1]), f"env_batch_size is {envs}, but the states have {shape[1]} environments each.")


def check_population(*arrays: Array) -> None:
    """Refuse what is not of one population, `[P, ...]` each."""
    sizes = [array.shape[:1] for array in arrays]
    check(len(set(sizes)) == 1, f"all that is of one population needs one leading axis, got {sizes}.")


def _keep(step: Any) -> Array:
    return step.truncated


def _observe(state: Any, steps: Any) -> Any:
    del steps
    return state


class PBTSAC(Population, SAC):
    """A population of SAC agents, whose hyper-parameters evolve."""

    kind = PBTSacTrainingState


class PBTTD3(Population, TD3):
    """A population of TD3 agents, whose hyper-parameters evolve."""

    kind = PBTTD3TrainingState


class PBT:
    """Population Based Training by truncation (Jaderberg 2017, arXiv:1711.09846).

    Args:
      population_size: P, of all devices.
      num_best_to_replace_from: parents are drawn from so many of the best.
      num_worse_to_replace: so many of the worst are replaced; 0 replaces nobody.

    Raises:
      ValueError: both together exceed the population, or one is negative.
    """

    def __init__(self, population_size: int, num_best_to_replace_from: int, num_worse_to_replace: int) -> None:
        best, worst = num_best_to_replace_from, num_worse_to_replace
        told = f"{best} best and {worst} replaced members"
        check(min(best, worst) >= 0, f"{told} must not be negative.")
        check(best + worst <= population_size, f"{told} exceed the population of {population_size}; lower one of them.")
        self._size, self._best, self._worst = population_size, best, worst

    def update_states_and_buffer(
        self, key: Key, population_returns: Array, training_state: Any, replay_buffer: ReplayBuffer
    ) -> tuple[Any, ReplayBuffer]:
        """The worst take state and buffer of a parent drawn from the best, and hyper-parameters of their own.

        Args:
          key: consumed.
          population_returns: `[P]`; what is not finite ranks last, is replaced and is never a parent.
          training_state: `[P, ...]`.
          replay_buffer: `[P, ...]`.

        Raises:
          ValueError: these are of another population.
        """
        return self._exploit(key, population_returns, training_state, replay_buffer, WHOLE)

    def update_states_and_buffer_pmap(
        self, key: Key, population_returns: Array, training_state: Any, replay_buffer: ReplayBuffer
    ) -> tuple[Any, ReplayBuffer]:
        """The same inside a mapped axis `"p"`: each device gives its share, and the whole population is ranked.

        The key is the first device's, so that it does not matter how many there are.
        """
        return self._exploit(key, population_returns, training_state, replay_buffer, devices.shares("p"))

    def _exploit(self, key: Key, returns: Array, states: Any, replay_buffer: ReplayBuffer, shares: Shares) -> tuple:
        fitness = shares.gather(jnp.ravel(returns))
        held = fitness.shape[0]
        check(held == self._size, f"population_size is {self._size}, but there are returns of {held} members.")
        check_population(returns, states.steps, replay_buffer.state.size)
        # Mixed with a key that moves on, since programs are known that pass the same one in every generation.
        key = jax.random.fold_in(common(key, shares), shares.gather(states.key[:1])[0, 0])
        parents_key, own_key = jax.random.split(key)
        parents = selection.truncation(fitness, parents_key, max(self._best, 1), self._worst)
        states, replay_buffer = moved((states, replay_buffer), parents, shares.rows, in_place=True)
        return renewed(states, parents != jnp.arange(held), own_key, shares), replay_buffer


def common(key: Key, shares: Shares) -> Key:
    """The first device's key, for decisions that all must make alike."""
    return typed(shares.gather(jax.random.key_data(typed(key))[None])[0])


def renewed(states: Any, is_new: Array, key: Key, shares: Shares) -> Any:
    """Newcomers with keys and hyper-parameters of their own, each drawn for its place in the whole population.

    Args:
      states: this share of the training states.
      is_new: `[P]` bool, of the whole population.
      key: the same on all devices; consumed.
    """
    fresh, new = shares.own((jax.random.key_data(member_keys(key, is_new.shape[0])), is_new))
    drawn = jax.vmap(type(states).resample_hyperparams)(states.replace(key=fresh))
    return trees.where(new, drawn, states)
