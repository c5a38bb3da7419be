"""Off-policy agents for loops of one's own: an apprentice carries its key and its counts, and `jax.vmap` makes many.

Programs (`pbt`, `me_pbt`, ...) do without: they pass keys in, and nothing is forgotten when a run is resumed.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import hyperparams, normalize
from rookery.agents.base import Agent, IntrinsicReward
from rookery.buffers import Buffer, BufferState
from rookery.compat.qdax.env_batch import Batch, BatchState, continued, starts, unroll
from rookery.compat.records import Record, check, check_counts, in_step, split, typed
from rookery.envs.base import Step
from rookery.gradients import Learned
from rookery.hyperparams import Space
from rookery.learners import off_policy, rollout
from rookery.learners.base import Member
from rookery.types import Array, Evaluation, Genotype, Hyper, Key, Metrics, PyTree

PlayFn = Callable[[BatchState, Any], tuple[BatchState, Any, Any]]
"""Environments and who acts in them -> both after a step, and the transitions."""


class TrainState(Record):
    """One agent. Its key moves on whenever it is used."""

    learned: PyTree  # the agent's state
    hyper: Hyper  # [] each
    key: Array  # [2] uint32
    steps: Array  # [] int32, updates made
    normalizer: PyTree  # running statistics of the observations, or None


class Played(NamedTuple):
    """What was seen and done in a step of E environments."""

    observation: Array  # [E, O]
    action: Array  # [E, A]
    next_observation: Array  # [E, O] the true successor


def born(kind: type, agent: Agent, key: Key, hyper: Hyper, statistics_of: int = 0) -> Any:
    """A newborn `kind` of apprentice.

    Args:
      statistics_of: how many numbers of an observation to normalise, 0 for none.
    """
    own, agent_key = split(key)
    hyper = jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), hyper)
    normalizer = normalize.init(statistics_of) if statistics_of else None
    return kind(agent.start(agent.init(agent_key)), hyper, own, jnp.zeros((), jnp.int32), normalizer)


def resample(space: Space, one: Any) -> Any:
    """The same apprentice with every hyper-parameter that evolves drawn afresh, on its own scale."""
    key, draw_key = split(one.key)
    drawn = hyperparams.sample(space, draw_key)
    return one.replace(key=key, hyper=one.hyper._replace(**{name: getattr(drawn, name) for name in space.domains}))


def choose(agent: Agent, state: PyTree, hyper: Hyper, observation: Array, key: Key) -> Array:
    """Exploring actions `[..., A]` for observations `[..., O]`; the key is consumed."""
    *leading, size = observation.shape
    action = rollout.explore(agent, state, hyper, observation.reshape(math.prod(leading), size), typed(key))
    return action.reshape(*leading, action.shape[-1])


def play(
    agent: Agent, batch: Batch, state: BatchState, one: Any, skill: Array, explore: bool = True, observe: bool = True
) -> tuple[BatchState, Any, Played]:
    """One step of E environments, or of one alone.

    Args:
      skill: `[E, S]`, what observations end in besides; S may be 0.
      explore: otherwise it acts as it is judged.
      observe: count the observations into its statistics.
    """
    key, explore_key = split(one.key)
    observation = jnp.concatenate([state.obs, skill], axis=-1)
    seen = rollout.view(one.normalizer, observation)
    if explore:
        action = choose(agent, one.learned, one.hyper, seen, explore_key)
    else:
        action = agent.act(one.learned.params, seen)
    after, normalizer = batch.step(state, action), one.normalizer
    if observe and normalizer is not None:
        normalizer = normalize.update(normalizer, state.obs.reshape(-1, state.obs.shape[-1]))
    reached = jnp.concatenate([after.info["final_obs"], skill], axis=-1)
    return after, one.replace(key=key, normalizer=normalizer), Played(observation, action, reached)


def updates_of(updates_per_step: float, num_envs: int) -> int:
    """Updates after a step of all environments: the product, rounded down.

    Raises:
      ValueError: it is below 1.
    """
    product = f"updates per step x environments = {updates_per_step} x {num_envs}"
    check(updates_per_step * num_envs >= 1, f"{product} is less than one update in each iteration; raise one of them.")
    return int(updates_per_step * num_envs)


def life(
    batch_size: int, num_envs: int = 1, iterations: int = 1, updates_per_step: float = 1.0
) -> off_policy.OffPolicyConfig:
    """The trip counts of `learn` and `train`: steps of each environment, with `updates_of` updates after each."""
    return off_policy.OffPolicyConfig(
        num_envs=num_envs,
        steps_per_generation=iterations * num_envs,
        updates_per_step=updates_of(updates_per_step, num_envs) / num_envs,
        batch_size=batch_size,
        buffer_size=num_envs,  # of no account: whoever has a buffer made it
        warmup_steps=0,
    )


def learn(agent: Agent, buffer: Buffer, one: Any, held: BufferState, batch_size: int) -> tuple[Any, Metrics]:
    """One update from a batch drawn from what a buffer holds; the apprentice and its metrics `[]`."""
    key, learn_key = split(one.key)
    bindings = off_policy.OffPolicyBindings(agent, None, buffer, life(batch_size))  # pyright: ignore[reportArgumentType] - nobody acts
    learned, metrics = off_policy.learn(bindings, _member(one, (), held), learn_key, in_step(one.steps))
    return one.replace(learned=learned, key=key, steps=one.steps + 1), metrics


def train(
    agent: Agent, batch: Batch, buffer: Buffer, config: off_policy.OffPolicyConfig, many: Any, *where: Any
) -> tuple[Any, BatchState, BufferState, Metrics]:
    """A population acts, stores and learns in its environments; resets begin from states drawn afresh.

    Args:
      agent: judged by the environment's reward; no `intrinsic_reward` of its own.
      buffer: rows come with `extras`, whether the clock ended the episode, bool.
      config: from `life`.
      many: apprentices `[P, ...]`.
      where: states of the environments `[P, E, ...]`, and what the buffers hold, `[P, ...]`.

    Returns:
      The three after it, and metrics `[P, iterations]`, averages over updates.

    Raises:
      ValueError: these are of different populations, the states of another number of environments; or the batch does
        not reset itself, or counts episodes.
    """
    state, held = where
    check_training(batch)
    shape, each = state.reward.shape, config.num_envs
    fits = len(shape) == 2 and shape[1] == each
    check(fits, f"states of {each} environments each must be [P, {each}, ...], got {shape}; reshape what reset gave.")
    check_population(many.steps, state.reward, held.size)
    kept, keys = jax.vmap(partial(split, count=3))(many.key)
    bank = batch.start_states(keys[0, 1], config.start_states)
    done = jax.vmap(in_step, out_axes=None)(many.steps) // config.updates
    config = dataclasses.replace(config, normalize_observations=many.normalizer is not None)
    bindings = off_policy.OffPolicyBindings(agent._replace(intrinsic_reward=_CLOCK), batch.world, buffer, config)
    train_iterations = partial(off_policy.train_iterations, bindings, iterations=done + jnp.arange(config.iterations))
    members = _member(many, rollout.EnvBatchState(state.pipeline_state, state.obs), held)
    members, (_, metrics, reward, broken) = jax.vmap(lambda member, key: train_iterations(member, bank, key))(
        members, keys[:, 0]
    )
    many = many.replace(
        learned=members.state,
        normalizer=members.normalizer,
        key=kept,
        steps=many.steps + config.iterations * config.updates,
    )
    state = continued(state, members.env_state.state, members.env_state.observation)
    return many, state, members.buffer, {**metrics, "reward": reward, "broken_steps": broken}


def warmstart_buffer(
    replay_buffer: Any,
    training_state: Any,
    env_state: BatchState,
    play_step_fn: PlayFn,
    num_warmstart_steps: int,
    env_batch_size: int,
) -> tuple[Any, BatchState, Any]:
    """Play at least `num_warmstart_steps` steps of E = `env_batch_size` environments into a buffer with `insert`."""
    check_counts(env_batch_size=env_batch_size)
    rounds = -(-num_warmstart_steps // env_batch_size)
    env_state, training_state, told = unroll(play_step_fn, env_state, training_state, rounds)
    _check_count(env_batch_size, told.rewards)
    return replay_buffer.insert(told), env_state, training_state


def do_iteration_fn(
    training_state: Any,
    env_state: BatchState,
    replay_buffer: Any,
    env_batch_size: int,
    grad_updates_per_step: float,
    play_step_fn: PlayFn,
    update_fn: Callable[[Any, Any], tuple[Any, Any, Metrics]],
) -> tuple[Any, BatchState, Any, Metrics]:
    """A step of E = `env_batch_size` environments, then `int(grad_updates_per_step * E)` updates.

    Args:
      replay_buffer: has `insert`.
      grad_updates_per_step: 0 for no update at all.
      update_fn: one who learns and a buffer -> both after an update, and metrics.

    Returns:
      Who learns, the environments, the buffer, and metrics `[updates, ...]`.

    Raises:
      ValueError: updates were asked for, but less than one.
    """
    updates = updates_of(grad_updates_per_step, env_batch_size) if grad_updates_per_step else 0
    env_state, training_state, transitions = play_step_fn(env_state, training_state)
    _check_count(env_batch_size, transitions.rewards)

    def update(carry: tuple, _: None) -> tuple[tuple, Metrics]:
        *after, metrics = update_fn(*carry)
        return tuple(after), metrics

    begun = (training_state, replay_buffer.insert(transitions))
    (training_state, replay_buffer), metrics = jax.lax.scan(update, begun, length=updates)
    return training_state, env_state, replay_buffer, metrics


def evaluator(agent: Agent, batch: Batch, many: Any, first: BatchState) -> Evaluation:
    """Judge a population `[P, ...]` by one full deterministic episode from each first state `[P, E, ...]`.

    Raises:
      ValueError: these are of different populations.
    """
    check_population(many.steps, first.reward)
    check(
        first.reward.ndim > 1, f"first states must be [P, E, ...], got {first.reward.shape}; reshape what reset gave."
    )
    evaluator = rollout.Evaluator(agent.act, batch.world, rollout.EvaluationConfig(), first.reward.shape[1])

    def of_one(one: Any, first: BatchState) -> Evaluation:
        genotype = Genotype(one.learned.params, (), one.normalizer)
        return rollout.evaluate(evaluator, genotype, starts(first), typed(first.info["rng"][0]))

    return jax.vmap(of_one)(many, first)


def check_training(batch: Batch) -> None:
    """Refuse environments that end for good, and those that count episodes, which training would not."""
    plain = batch.options.auto_reset and not batch.options.eval_metrics
    check(plain, "training needs environments with auto_reset=True and eval_metrics=False; create others to judge in.")


def check_population(*arrays: Array) -> None:
    """Refuse what is not of one population, `[P, ...]` each."""
    sizes = [array.shape[:1] for array in arrays]
    remedy = f"got {sizes}; reshape what reset gave to [P, E, ...]."
    check(len(set(sizes)) == 1 and sizes[0] != (), f"what is of one population needs one leading axis, {remedy}")


def _check_count(env_batch_size: int, rewards: Array) -> None:
    played = rewards.shape[-1:]
    check(played == (env_batch_size,), f"env_batch_size is {env_batch_size}, but {played} environments were played.")


def _keep(step: Step) -> Array:
    return step.truncated


def _observe(state: PyTree, steps: Step) -> PyTree:
    del steps
    return state


_CLOCK = IntrinsicReward(_keep, _observe, None, None)  # pyright: ignore[reportArgumentType] - it judges nobody


def _member(one: Any, lives: PyTree, held: BufferState) -> Member:
    bindings = jax.tree.leaves(one.learned, is_leaf=lambda tree: isinstance(tree, Learned))
    bare = any(isinstance(part, Learned) and part.moments == () for part in bindings)
    check(not bare, "these agents have no optimisers; agent.start, or init_optimizers_states, gives them some.")
    return Member(one.learned, one.hyper, one.normalizer, lives, held)
