"""Rookery's tasks with the documented functions of QDax: `create`, `descriptor_extractor`, `reward_offset`.

A batch of environments resets automatically, and its state contains the keys. Rookery's learners use the environment of
a batch instead (`Batch.environment`), and pass keys and new start states to it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.compat.qdax.records import QDTransition
from rookery.compat.records import Record, check, split_key, typed_key
from rookery.envs import base, descriptors, registry
from rookery.envs.wrappers.auto_reset import auto_reset, start_bank
from rookery.envs.wrappers.time_limit import guard_physics
from rookery.networks import input_vector
from rookery.types import Array, Key, Observation


class DescribedState(NamedTuple):
    """State of an environment with its descriptor."""

    inner: base.EnvState
    descriptor: Array
    """`[D]`."""


StartStates = tuple[DescribedState, base.Step]
"""Start states and their first steps, `[K, ...]`."""


class BatchState(Record):
    """States of environments `[E, ...]`, or of a single environment without a leading axis.

    `info` contains `truncation` and `final_obs` (the true successor, also at the end of an episode), and for tasks with
    a descriptor `state_descriptor` and `final_state_descriptor`.
    """

    pipeline_state: DescribedState
    obs: Array
    """`[E, O]`, observation for the next action."""
    reward: Array
    """`[E]`, NaN in a step in which the physics broke: a replay buffer stores no such step, no return is finite."""
    done: Array
    """`[E]`, 1 where an episode ended in the last step, by termination or truncation."""
    metrics: dict[str, Array]
    info: dict[str, Any]

    def moved_to(self, env_state: DescribedState, obs: Array) -> "BatchState":
        """Replace the environment states and observations; reward and done are 0, as no step preceded."""
        zeros = jnp.zeros_like(self.reward)
        info = {**self.info, "truncation": zeros, "final_obs": obs}
        if "state_descriptor" in info:
            info |= dict.fromkeys(("state_descriptor", "final_state_descriptor"), env_state.descriptor)
        return self.replace(pipeline_state=env_state, obs=obs, reward=zeros, done=zeros, info=info)

    def restarted(self, needed: Array) -> "BatchState":
        """Reset the states `[P, E, ...]` of the members where `needed` `[P]` to the start states of their batch."""
        env_state, step = self.info["first"]
        return trees.where(needed, self.moved_to(env_state, step.observation.features), self)


class EvalMetrics(NamedTuple):
    """Sums that `eval_metrics` keeps in `info["completed_eval_metrics"]`, `[E]` each."""

    current_episode_metrics: dict[str, Array]
    completed_episodes_metrics: dict[str, Array]
    completed_episodes: Array
    completed_episodes_steps: Array
    steps: Array
    """Steps of the current episode."""


class Batch:
    """A batch of environments of one task, with actions in [-1, 1]; `create` documents the arguments.

    After the end of an episode, the next one starts in any of the start states that the batch was reset to.

    Raises:
      ValueError: the environment has discrete actions or several agents, or `batch_size` is below 1.
    """

    def __init__(
        self,
        environment: base.Environment,
        batch_size: int | None,
        auto_reset: bool = True,
        eval_metrics: bool = False,
        fixed_init_state: bool = False,
    ) -> None:
        environment = guard_physics(environment)
        spec = environment.spec
        fits = not spec.discrete and spec.team is None
        check(fits, f"{spec.name} has discrete actions or a team; use a task with one agent and continuous actions.")
        check(batch_size is None or batch_size >= 1, f"batch_size must be at least 1, or None, got {batch_size}.")
        spec = spec._replace(observation_size=spec.input_size, skill=None)
        self.environment = environment._replace(
            reset=partial(_reset, environment), step=partial(_step, environment), spec=spec
        )
        self.auto_reset, self.eval_metrics, self.fixed_init_state = auto_reset, eval_metrics, fixed_init_state
        self.batch_size, self.name, self.episode_length = batch_size, spec.name, spec.episode_length
        self.observation_size, self.action_size = spec.observation_size, spec.action_size
        if spec.descriptor:  # as in QDax, other environments lack these attributes
            self.descriptor_length = self.state_descriptor_length = spec.descriptor.size
            self.descriptor_limits = (list(spec.descriptor.lower), list(spec.descriptor.upper))
            self.state_descriptor_limits, self.state_descriptor_name = self.descriptor_limits, spec.descriptor.meaning

    def start_states(self, key: Key, size: int) -> StartStates:
        """Draw start states and their first steps, `[size, ...]`; the key is consumed."""
        if self.fixed_init_state:
            return jax.vmap(lambda _: self.environment.reset(jax.random.key(0)))(jnp.arange(size))
        return start_bank(self.environment, key, size)

    def reset(self, rng: Key) -> BatchState:
        """Start an episode in each environment; the key, raw or typed, is consumed."""
        start_key, carried_key = jax.random.split(typed_key(rng))
        count = self.batch_size or 1
        env_state, step = first = self.start_states(start_key, count)
        zeros, keys = jnp.zeros(count), jax.random.key_data(jax.random.split(carried_key, count))
        info = {"rng": keys, "first": first, **_info(env_state, step)}
        if self.eval_metrics:
            info["completed_eval_metrics"] = EvalMetrics({"reward": zeros}, {"reward": zeros}, zeros, zeros, zeros)
        state = BatchState(env_state, step.observation.features, step.reward, zeros, {}, info)
        return state if self.batch_size else trees.take(state, 0)

    def step(self, state: BatchState, action: Array) -> BatchState:
        """Step the environments.

        Args:
          state: `[E, ...]` with any E, or a single state.
          action: `[E, A]`, or `[A]` for a single state.

        Raises:
          ValueError: the shape of `action` does not match the states.
        """
        fitting = (*state.reward.shape, self.action_size)
        check(action.shape == fitting, f"actions of {self.name} must be {fitting} here, got {action.shape}.")
        check(len(fitting) <= 2, f"states {state.reward.shape} have more than one batch axis; map step with jax.vmap.")
        if len(fitting) == 1:
            return trees.take(self.step(jax.tree.map(lambda leaf: leaf[None], state), action[None]), 0)
        next_keys, keys = jax.vmap(split_key)(state.info["rng"])
        environment = auto_reset(self.environment, state.info["first"]) if self.auto_reset else self.environment
        env_state, step = jax.vmap(environment.step)(state.pipeline_state, action, keys)
        step = step._replace(reward=jnp.where(step.broken, jnp.nan, step.reward))
        info = {**state.info, "rng": next_keys, **_info(env_state, step)}
        if self.eval_metrics:
            info["completed_eval_metrics"] = _update_eval_metrics(info["completed_eval_metrics"], step)
        return BatchState(env_state, step.observation.features, step.reward, step.ended.astype(jnp.float32), {}, info)


_WRITTEN = {"anttrap": "ant_trap", "humanoidtrap": "humanoid_trap", "antmaze": "ant_maze", "pointmaze": "point_maze"}
"""QDax's task name -> Rookery's task name, where they differ."""


def create(
    env_name: str,
    *,
    batch_size: int | None = None,
    episode_length: int = 1000,
    auto_reset: bool = True,
    eval_metrics: bool = False,
    fixed_init_state: bool = False,
    backend: str = "spring",
    **overrides: object,
) -> Batch:
    """Create a batch of environments of one task, e.g. `walker2d_uni`; not inside a traced function.

    Args:
      env_name: QDax's name of a task, or one listed by `rookery envs`, with continuous actions and one agent.
      batch_size: E, at least 1; None for a single environment without a leading axis.
      episode_length: steps until truncation, at least 1.
      auto_reset: start the next episode in the step that ends the current one.
      eval_metrics: count completed episodes and sum their returns, see `EvalMetrics`.
      fixed_init_state: start every episode in the same state.
      backend: physics backend of Brax; ignored by other tasks.
      **overrides: further options of the task.

    Raises:
      ImportError: the task's suite is not installed.
      ValueError: the task does not exist, or a value is out of its range.
    """
    name = _WRITTEN.get(env_name, env_name)
    physics = {"backend": backend} if "backend" in registry.find(name).overrides else {}
    environment = registry.make(name, episode_length=episode_length, **physics, **overrides)
    return Batch(environment, batch_size, auto_reset, eval_metrics, fixed_init_state)


def create_fn(env_name: str, **options: Any) -> Callable[..., Batch]:
    """A function of further options that calls `create` with these."""
    return partial(create, env_name, **options)


def _reset(environment: base.Environment, key: Key) -> StartStates:
    inner, step = environment.reset(key)
    return DescribedState(inner, step.descriptor), _as_vectors(step)


def _step(environment: base.Environment, env_state: DescribedState, action: Array, key: Key) -> StartStates:
    inner, step = environment.step(env_state.inner, action, key)
    return DescribedState(inner, step.descriptor), _as_vectors(step)


def _as_vectors(step: base.Step) -> base.Step:
    """A step whose observations are vectors, which end in the skill if there are skills."""
    observation, final = (Observation(input_vector(part)) for part in (step.observation, step.final_observation))
    return step._replace(observation=observation, final_observation=final)


def _info(env_state: DescribedState, step: base.Step) -> dict[str, Array]:
    output = {"truncation": step.truncated.astype(jnp.float32), "final_obs": step.final_observation.features}
    if not step.descriptor.shape[-1]:
        return output
    return {**output, "state_descriptor": env_state.descriptor, "final_state_descriptor": step.descriptor}


def _update_eval_metrics(before: EvalMetrics, step: base.Step) -> EvalMetrics:
    """Add a step; an episode in which the physics broke is not counted."""
    total, steps = before.current_episode_metrics["reward"] + step.reward, before.steps + 1.0
    completed = (step.ended & ~step.broken).astype(jnp.float32)
    return EvalMetrics(
        {"reward": jnp.where(step.ended, 0.0, total)},
        {"reward": before.completed_episodes_metrics["reward"] + jnp.where(completed > 0, total, 0.0)},
        before.completed_episodes + completed,
        before.completed_episodes_steps + completed * steps,
        jnp.where(step.ended, 0.0, steps),
    )


class Extractor(NamedTuple):
    """Computes a task's predefined descriptor from whole episodes."""

    kind: descriptors.Kind

    def __call__(self, transitions: QDTransition, mask: Array) -> Array:
        """Descriptors `[B, D]` of transitions `[B, T, ...]`; the mask `[B, T]` is true after the end of an episode."""
        summarise = jax.vmap(partial(descriptors.summarise, self.kind))
        return summarise(transitions.next_state_desc, ~jnp.asarray(mask, bool))


_DESCRIBED = {name: registry.find(_WRITTEN.get(name, name)) for name in (*registry.described(), *_WRITTEN)}
descriptor_extractor = {name: Extractor(task.descriptor.kind) for name, task in _DESCRIBED.items() if task.descriptor}
reward_offset = {name: task.qd_offset for name, task in _DESCRIBED.items()}
