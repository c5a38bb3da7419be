"""A batch of environments for loops of one's own: it resets itself, and its state carries the keys.

Learners do not use it: they pass keys and fresh start states in.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.compat.records import Record, check, split, typed
from rookery.envs import base, registry
from rookery.envs.wrappers.auto_reset import auto_reset, start_bank
from rookery.types import Array, Key, PyTree


class Now(NamedTuple):
    """A world's state beside its descriptor."""

    inner: base.EnvState
    descriptor: Array  # [D]


class BatchState(Record):
    """Where environments stand, `[E, ...]`, or one alone; `obs` is what they act on next.

    `info` has `truncation`, `final_obs` (the true successor, also where the episode ended), and of a task with a
    descriptor `state_descriptor` and `final_state_descriptor`.
    """

    pipeline_state: Now
    obs: Array  # [E, O]
    reward: Array  # [E]
    done: Array  # [E] 1 where an episode ended in the last step, for either reason
    metrics: dict[str, Array]
    info: dict[str, Any]


class EvalMetrics(NamedTuple):
    """What `eval_metrics` keeps in `info["completed_eval_metrics"]` of each environment, `[E]`."""

    current_episode_metrics: dict[str, Array]
    completed_episodes_metrics: dict[str, Array]
    completed_episodes: Array
    completed_episodes_steps: Array
    steps: Array  # of the current episode


class Options(NamedTuple):
    """How a batch behaves."""

    auto_reset: bool = True  # begin the next episode in the step that ends the last one
    eval_metrics: bool = False  # count finished episodes and their returns
    fixed_init_state: bool = False  # every episode begins in the same state


class Batch:
    """A batch of environments of one task; actions lie in [-1, 1].

    An episode that ends is followed by one from any of the start states that its batch was reset to.

    Args:
      world: any environment for one agent with continuous actions.
      batch_size: E, at least 1; None for one environment without a leading axis.
      options: how it behaves.

    Raises:
      ValueError: the world has discrete actions or a team, or there is no environment.
    """

    def __init__(self, world: base.Environment, batch_size: int | None, options: Options) -> None:
        spec = world.spec
        fits = not spec.discrete and spec.team is None
        check(fits, f"{spec.name} has discrete actions or a team; a batch is of one agent with continuous actions.")
        check(batch_size is None or batch_size >= 1, f"batch_size must be at least 1, or None, got {batch_size}.")
        self.world = world._replace(reset=partial(_reset, world), step=partial(_step, world))
        self.batch_size, self.options, self.name = batch_size, options, spec.name
        self.observation_size, self.action_size = spec.observation_size, spec.action_size
        self.episode_length = spec.episode_length
        if spec.descriptor:  # others have no such attributes
            self.descriptor_length = self.state_descriptor_length = spec.descriptor.size
            self.descriptor_limits = (list(spec.descriptor.lower), list(spec.descriptor.upper))

    def start_states(self, key: Key, size: int) -> tuple[Now, base.Step]:
        """Draw start states and their first steps, `[size, ...]`; the key is consumed."""
        if self.options.fixed_init_state:
            return jax.vmap(lambda _: self.world.reset(jax.random.key(0)))(jnp.arange(size))
        return start_bank(self.world, key, size)

    def reset(self, rng: Key) -> BatchState:
        """Begin an episode in each environment; the key, of either kind, is consumed."""
        start_key, own_key = jax.random.split(typed(rng))
        count = self.batch_size or 1
        now, step = self.start_states(start_key, count)
        zeros, own = jnp.zeros(count), jax.random.key_data(jax.random.split(own_key, count))
        info = {"rng": own, "first": {"state": now, "obs": step.observation}, **_told(now, step)}
        if self.options.eval_metrics:
            info["completed_eval_metrics"] = EvalMetrics({"reward": zeros}, {"reward": zeros}, zeros, zeros, zeros)
        state = BatchState(now, step.observation, step.reward, zeros, {}, info)
        return state if self.batch_size else trees.take(state, 0)

    def step(self, state: BatchState, action: Array) -> BatchState:
        """Advance by one step.

        Args:
          state: `[E, ...]` with any E, or one alone.
          action: `[E, A]`, or `[A]`.

        Raises:
          ValueError: the actions do not fit the states.
        """
        fitting = (*state.reward.shape, self.action_size)
        check(action.shape == fitting, f"actions of {self.name} must be {fitting} here, got {action.shape}.")
        check(len(fitting) <= 2, f"states {state.reward.shape} are of more than one batch; map step with jax.vmap.")
        if len(fitting) == 1:
            return trees.take(self.step(jax.tree.map(lambda leaf: leaf[None], state), action[None]), 0)
        own, keys = jax.vmap(split)(state.info["rng"])
        first, world = state.info["first"], self.world
        if self.options.auto_reset:
            world = auto_reset(world, _as_starts(first["state"], first["obs"]))
        now, step = jax.vmap(world.step)(state.pipeline_state, action, keys)
        done = step.ended.astype(jnp.float32)
        info = {**state.info, "rng": own, **_told(now, step)}
        if self.options.eval_metrics:
            info["completed_eval_metrics"] = _counted(info["completed_eval_metrics"], step.reward, done)
        return BatchState(now, step.observation, step.reward, done, {}, info)


def make(
    env_name: str,
    *,
    batch_size: int | None = None,
    episode_length: int = 1000,
    auto_reset: bool = True,
    eval_metrics: bool = False,
    fixed_init_state: bool = False,
    backend: str = "spring",
    **overrides: Any,
) -> Batch:
    """A batch of environments of one task, e.g. `walker2d_uni`; outside of any trace.

    Args:
      env_name: one of `rookery envs`, with continuous actions and one agent.
      batch_size: E, at least 1; None for one environment without a leading axis.
      episode_length: steps until truncation, at least 1.
      auto_reset: begin the next episode in the step that ends the last one.
      eval_metrics: count finished episodes and their returns, see `EvalMetrics`.
      fixed_init_state: every episode begins in the same state.
      backend: of Brax's physics; other tasks have none.
      **overrides: what else the task lets one choose.

    Raises:
      ImportError: the task's suite is not installed.
      ValueError: there is no such task, or a value is out of its range.
    """
    physics = {"backend": backend} if "backend" in registry.find(env_name).overrides else {}
    world = registry.make(env_name, episode_length=episode_length, **physics, **overrides)
    return Batch(world, batch_size, Options(auto_reset, eval_metrics, fixed_init_state))


def unroll(play: Callable[..., tuple], state: BatchState, agent: PyTree, length: int) -> tuple[BatchState, PyTree, Any]:
    """`length` steps of `play(state, agent) -> state, agent, told`: both after them, and what was told, `[T, ...]`."""

    def step(carry: tuple, _: None) -> tuple[tuple, Any]:
        state, agent, told = play(*carry)
        return (state, agent), told

    (state, agent), told = jax.lax.scan(step, (state, agent), length=length)
    return state, agent, told


def first_episodes(reward_t: Array, done_t: Array, action_t: Array) -> tuple[Array, Array]:
    """Returns `[E]` of the first episodes in `[T, E, ...]`, NaN where one of their actions was not finite; and which
    steps came after these, `[T, E]` bool."""
    ended = (done_t > 0.5).astype(jnp.int32)
    after = jnp.cumsum(ended, axis=0) > ended
    is_finite = (jnp.isfinite(action_t).all(axis=-1) | after).all(axis=0)
    return jnp.where(is_finite, jnp.sum(jnp.where(after, 0.0, reward_t), axis=0), jnp.nan), after


def starts(state: BatchState) -> tuple[Now, base.Step]:
    """States `[E, ...]` as start states of an evaluation."""
    return _as_starts(state.pipeline_state, state.obs)


def continued(state: BatchState, now: Now, obs: Array) -> BatchState:
    """States `[..., E]` as somebody else has left their worlds, with what they act on next; nothing has just ended."""
    zeros = jnp.zeros_like(state.reward)
    info = {**state.info, "truncation": zeros, "final_obs": obs}
    if "state_descriptor" in info:
        info |= dict.fromkeys(("state_descriptor", "final_state_descriptor"), now.descriptor)
    return state.replace(pipeline_state=now, obs=obs, reward=zeros, done=zeros, info=info)


def restarted(state: BatchState, needed: Array) -> BatchState:
    """States `[P, E, ...]`, back at the start states of their batch where `needed` `[P]`."""
    first = state.info["first"]
    return trees.where(needed, continued(state, first["state"], first["obs"]), state)


def _reset(world: base.Environment, key: Key) -> tuple[Now, base.Step]:
    inner, step = world.reset(key)
    return Now(inner, step.descriptor), step


def _step(world: base.Environment, now: Now, action: Array, key: Key) -> tuple[Now, base.Step]:
    inner, step = world.step(now.inner, action, key)
    return Now(inner, step.descriptor), step


def _as_starts(now: Now, obs: Array) -> tuple[Now, base.Step]:
    return now, jax.vmap(base.first_step)(obs, now.descriptor)


def _told(now: Now, step: base.Step) -> dict[str, Array]:
    told = {"truncation": step.truncated.astype(jnp.float32), "final_obs": step.final_observation}
    if not step.descriptor.shape[-1]:
        return told
    return {**told, "state_descriptor": now.descriptor, "final_state_descriptor": step.descriptor}


def _counted(before: EvalMetrics, reward: Array, done: Array) -> EvalMetrics:
    total, steps = before.current_episode_metrics["reward"] + reward, before.steps + 1.0
    return EvalMetrics(
        {"reward": (1.0 - done) * total},
        {"reward": before.completed_episodes_metrics["reward"] + done * total},
        before.completed_episodes + done,
        before.completed_episodes_steps + done * steps,
        (1.0 - done) * steps,
    )
