"""Off-policy agents for user-defined training loops.

A training state carries its key and its update count; `jax.vmap` maps the functions over a population. Rookery's
programs (`pbt`, `me_pbt`, ...) do not use this module: they pass keys to their functions, so that runs resume exactly.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import hyperparams, normalize
from rookery.agents.base import IntrinsicReward, OffPolicyAgent
from rookery.buffers import Buffer, BufferState
from rookery.compat.qdax.env_batch import Batch, BatchState, replace_env_state, start_states_of, unroll
from rookery.compat.records import Record, check, check_counts, shared_count, split_key, typed_key
from rookery.envs.base import Step
from rookery.gradients import Learned
from rookery.hyperparams import Space
from rookery.learners import off_policy, rollout
from rookery.learners.base import Member
from rookery.types import Array, Evaluation, Genotype, Hyper, Key, Metrics, PyTree

PlayFn = Callable[[BatchState, Any], tuple[BatchState, Any, Any]]
"""(environment states, training state) -> both after a step, and the transitions."""


class TrainState(Record):
    """Training state of one agent. Every use of its key replaces it by the next key."""

    learned: PyTree
    """The agent's state."""
    hyper: Hyper
    """Hyper-parameters, `[]` each."""
    key: Array
    """`[2]` uint32."""
    steps: Array
    """`[]` int32, number of updates."""
    normalizer: PyTree
    """Running statistics of the observations, or None."""


class Played(NamedTuple):
    """Observations and actions of a step of E environments."""

    observation: Array
    """`[E, O]`."""
    action: Array
    """`[E, A]`."""
    next_observation: Array
    """`[E, O]`, of the true successor."""


def init_state(kind: type, agent: OffPolicyAgent, key: Key, hyper: Hyper, normalized_size: int = 0) -> Any:
    """Initialise a training state.

    Args:
      kind: class of the training state.
      agent: the agent.
      key: consumed.
      hyper: hyper-parameters, `[]` each.
      normalized_size: number of leading elements of an observation to normalise; 0 for none.
    """
    next_key, agent_key = split_key(key)
    hyper = jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), hyper)
    normalizer = normalize.init(normalized_size) if normalized_size else None
    return kind(agent.start(agent.init(agent_key)), hyper, next_key, jnp.zeros((), jnp.int32), normalizer)


def resample(space: Space, training_state: Any) -> Any:
    """Resample every evolved hyper-parameter of a training state, each on its scale."""
    key, draw_key = split_key(training_state.key)
    drawn = hyperparams.sample(space, draw_key)
    return training_state.replace(
        key=key, hyper=training_state.hyper._replace(**{name: getattr(drawn, name) for name in space.domains})
    )


def explore_actions(agent: OffPolicyAgent, state: PyTree, hyper: Hyper, observation: Array, key: Key) -> Array:
    """Exploring actions `[..., A]` for observations `[..., O]`; the key is consumed."""
    *leading, size = observation.shape
    action = rollout.explore(agent, state, hyper, observation.reshape(math.prod(leading), size), typed_key(key))
    return action.reshape(*leading, action.shape[-1])


def play(
    agent: OffPolicyAgent,
    batch: Batch,
    state: BatchState,
    training_state: Any,
    skill: Array,
    explore: bool = True,
    observe: bool = True,
) -> tuple[BatchState, Any, Played]:
    """Step E environments, or a single environment without a leading axis.

    Args:
      agent: the agent.
      batch: the environments.
      state: environment states.
      training_state: training state of the agent.
      skill: `[E, S]`, appended to the observations; S may be 0.
      explore: take exploring actions; otherwise deterministic actions as in evaluations.
      observe: add the observations to the running statistics.

    Returns:
      Environment states and training state after the step, and the observations and actions.
    """
    key, explore_key = split_key(training_state.key)
    observation = jnp.concatenate([state.obs, skill], axis=-1)
    inputs = rollout.view(training_state.normalizer, observation)
    if explore:
        action = explore_actions(agent, training_state.learned, training_state.hyper, inputs, explore_key)
    else:
        action = agent.act(training_state.learned.params, inputs)
    after, normalizer = batch.step(state, action), training_state.normalizer
    if observe and normalizer is not None:
        normalizer = normalize.update(normalizer, state.obs.reshape(-1, state.obs.shape[-1]))
    reached = jnp.concatenate([after.info["final_obs"], skill], axis=-1)
    return after, training_state.replace(key=key, normalizer=normalizer), Played(observation, action, reached)


def updates_of(updates_per_step: float, num_envs: int) -> int:
    """Number of updates after a step of all environments: the product, rounded down.

    Raises:
      ValueError: the product is below 1.
    """
    product = f"updates per step x environments = {updates_per_step} x {num_envs}"
    check(updates_per_step * num_envs >= 1, f"{product} is less than one update in each iteration; raise one of them.")
    return int(updates_per_step * num_envs)


def training_config(
    batch_size: int, num_envs: int = 1, iterations: int = 1, updates_per_step: float = 1.0
) -> off_policy.OffPolicyConfig:
    """Configuration of `learn` and `train`: `iterations` steps of each environment, `updates_of` updates after each."""
    return off_policy.OffPolicyConfig(
        num_envs=num_envs,
        steps_per_generation=iterations * num_envs,
        updates_per_step=updates_of(updates_per_step, num_envs) / num_envs,
        batch_size=batch_size,
        buffer_size=num_envs,  # unused: the caller creates the buffers
        warmup_steps=0,
    )


def learn(
    agent: OffPolicyAgent, buffer: Buffer, training_state: Any, held: BufferState, batch_size: int
) -> tuple[Any, Metrics]:
    """Update once from a batch sampled from a buffer; returns the training state and metrics `[]`."""
    key, learn_key = split_key(training_state.key)
    bindings = off_policy.OffPolicyBindings(agent, None, buffer, training_config(batch_size))  # pyright: ignore[reportArgumentType] - learning needs no environment
    learned, metrics = off_policy.learn(
        bindings, _member(training_state, (), held), learn_key, shared_count(training_state.steps)
    )
    return training_state.replace(learned=learned, key=key, steps=training_state.steps + 1), metrics


def train(
    agent: OffPolicyAgent,
    batch: Batch,
    buffer: Buffer,
    config: off_policy.OffPolicyConfig,
    states: Any,
    *env_and_buffers: Any,
) -> tuple[Any, BatchState, BufferState, Metrics]:
    """Train a population: act, store transitions, and update; every call draws new start states for resets.

    Args:
      agent: trained on the environment's reward; without `intrinsic_reward`.
      batch: the environments.
      buffer: stores transitions with `extras`, bool, whether the time limit ended the episode.
      config: from `training_config`.
      states: training states `[P, ...]`.
      env_and_buffers: environment states `[P, E, ...]`, and buffer states `[P, ...]`.

    Returns:
      Training states, environment states and buffer states after training, and metrics `[P, iterations]`, means over
      updates.

    Raises:
      ValueError: the arguments have different population sizes or numbers of environments; or the batch was created
        with `auto_reset=False` or with `eval_metrics=True`.
    """
    state, held = env_and_buffers
    check_training(batch)
    shape, each = state.reward.shape, config.num_envs
    fits = len(shape) == 2 and shape[1] == each
    check(
        fits, f"states of {each} environments each must be [P, {each}, ...], got {shape}; reshape the result of reset."
    )
    check_population(states.steps, state.reward, held.size)
    next_keys, keys = jax.vmap(partial(split_key, count=3))(states.key)
    bank = batch.start_states(keys[0, 1], config.start_states)
    done = jax.vmap(shared_count, out_axes=None)(states.steps) // config.updates
    config = dataclasses.replace(config, normalize_observations=states.normalizer is not None)
    bindings = off_policy.OffPolicyBindings(
        agent._replace(intrinsic_reward=_TRUNCATION_FLAG), batch.environment, buffer, config
    )
    train_iterations = partial(off_policy.train_iterations, bindings, iterations=done + jnp.arange(config.iterations))
    members = _member(states, rollout.EnvBatchState(state.pipeline_state, state.obs), held)
    members, (_, metrics, reward, broken) = jax.vmap(lambda member, key: train_iterations(member, bank, key))(
        members, keys[:, 0]
    )
    states = states.replace(
        learned=members.state,
        normalizer=members.normalizer,
        key=next_keys,
        steps=states.steps + config.iterations * config.updates,
    )
    state = replace_env_state(state, members.env_state.state, members.env_state.observation)
    return states, state, members.buffer, {**metrics, "reward": reward, "broken_steps": broken}


def warmstart_buffer(
    replay_buffer: Any,
    training_state: Any,
    env_state: BatchState,
    play_step_fn: PlayFn,
    num_warmstart_steps: int,
    env_batch_size: int,
) -> tuple[Any, BatchState, Any]:
    """Fill a buffer with at least `num_warmstart_steps` transitions of E = `env_batch_size` environments.

    Args:
      replay_buffer: has the method `insert`.
      training_state: acts in the environments.
      env_state: environment states `[E, ...]`.
      play_step_fn: see `PlayFn`.
      num_warmstart_steps: rounded up to whole steps of all environments.
      env_batch_size: E.

    Returns:
      The buffer, the environment states and the training state.
    """
    check_counts(env_batch_size=env_batch_size)
    rounds = -(-num_warmstart_steps // env_batch_size)
    env_state, training_state, transitions = unroll(play_step_fn, env_state, training_state, rounds)
    _check_count(env_batch_size, transitions.rewards)
    return replay_buffer.insert(transitions), env_state, training_state


def do_iteration_fn(
    training_state: Any,
    env_state: BatchState,
    replay_buffer: Any,
    env_batch_size: int,
    grad_updates_per_step: float,
    play_step_fn: PlayFn,
    update_fn: Callable[[Any, Any], tuple[Any, Any, Metrics]],
) -> tuple[Any, BatchState, Any, Metrics]:
    """Step E = `env_batch_size` environments, then make `int(grad_updates_per_step * E)` updates.

    Args:
      training_state: the agent that acts and learns.
      env_state: environment states `[E, ...]`.
      replay_buffer: has the method `insert`.
      env_batch_size: E.
      grad_updates_per_step: updates per environment step; 0 for no updates.
      play_step_fn: see `PlayFn`.
      update_fn: (training state, buffer) -> both after an update, and metrics.

    Returns:
      Training state, environment states, buffer, and metrics `[updates, ...]`.

    Raises:
      ValueError: the number of updates is above 0, but less than 1 per iteration.
    """
    updates = updates_of(grad_updates_per_step, env_batch_size) if grad_updates_per_step else 0
    env_state, training_state, transitions = play_step_fn(env_state, training_state)
    _check_count(env_batch_size, transitions.rewards)

    def update(carry: tuple, _: None) -> tuple[tuple, Metrics]:
        *after, metrics = update_fn(*carry)
        return tuple(after), metrics

    initial = (training_state, replay_buffer.insert(transitions))
    (training_state, replay_buffer), metrics = jax.lax.scan(update, initial, length=updates)
    return training_state, env_state, replay_buffer, metrics


def evaluator(agent: OffPolicyAgent, batch: Batch, states: Any, first: BatchState) -> Evaluation:
    """Evaluate a population `[P, ...]` in one full deterministic episode from each initial state `[P, E, ...]`.

    Raises:
      ValueError: the arguments have different population sizes.
    """
    check_population(states.steps, first.reward)
    check(
        first.reward.ndim > 1,
        f"initial states must be [P, E, ...], got {first.reward.shape}; reshape the result of reset.",
    )
    evaluator = rollout.Evaluator(agent.act, batch.environment, rollout.EvaluationConfig(), first.reward.shape[1])

    def evaluate_member(training_state: Any, first: BatchState) -> Evaluation:
        genotype = Genotype(training_state.learned.params, (), training_state.normalizer)
        return rollout.evaluate(evaluator, genotype, start_states_of(first), typed_key(first.info["rng"][0]))

    return jax.vmap(evaluate_member)(states, first)


def check_training(batch: Batch) -> None:
    """Check that environments reset automatically and keep no `eval_metrics`, which training does not update."""
    plain = batch.options.auto_reset and not batch.options.eval_metrics
    check(
        plain, "training needs environments with auto_reset=True and eval_metrics=False; create others for evaluation."
    )


def check_population(*arrays: Array) -> None:
    """Check that all arrays have the same leading axis, `[P, ...]`."""
    sizes = [array.shape[:1] for array in arrays]
    remedy = f"got {sizes}; reshape the result of reset to [P, E, ...]."
    check(len(set(sizes)) == 1 and sizes[0] != (), f"members of one population need one leading axis, {remedy}")


def _check_count(env_batch_size: int, rewards: Array) -> None:
    played = rewards.shape[-1:]
    check(
        played == (env_batch_size,),
        f"env_batch_size is {env_batch_size}, but {played} environments were stepped; make them equal.",
    )


def _truncated(step: Step) -> Array:
    return step.truncated


def _observe(state: PyTree, steps: Step) -> PyTree:
    del steps
    return state


_TRUNCATION_FLAG = IntrinsicReward(_truncated, _observe, None, None)  # pyright: ignore[reportArgumentType] - it computes no reward


def _member(training_state: Any, env_state: PyTree, held: BufferState) -> Member:
    bindings = jax.tree.leaves(training_state.learned, is_leaf=lambda tree: isinstance(tree, Learned))
    bare = any(isinstance(part, Learned) and part.moments == () for part in bindings)
    check(not bare, "these agents have no optimizer states; create them with agent.start or init_optimizers_states.")
    return Member(training_state.learned, training_state.hyper, training_state.normalizer, env_state, held)
