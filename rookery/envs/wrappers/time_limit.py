"""Wrappers that end episodes: the time limit, and the termination of episodes with non-finite physics."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import trees
from rookery.envs.base import Environment, EnvState, Step, announce_inside, parameterize_inside
from rookery.envs.host.base import LARGEST_REWARD
from rookery.envs.rendering import scene
from rookery.networks import call_in
from rookery.settings import check_counts
from rookery.types import Array, Key


class TimeLimitState(NamedTuple):
    """State of the wrapped environment, and the step counter."""

    inner: EnvState  # state of the wrapped environment
    time: Array  # steps since the reset, `[]` int32


def limit_episode(environment: Environment, length: int) -> Environment:
    """Truncate episodes after `length` steps; a step that also terminates is terminated, not truncated.

    An episode that goes on with an action mask that allows no action ends as broken, as by `guard_physics`: the agent
    would have to take an action that is forbidden.

    The limit replaces one that `limit_episode` added before; any other truncation of the environment remains.

    Raises:
      ValueError: `length` is below 1; the environment has skills or another assignment, which must be added outside of
        the time limit; or its episodes run on the host.

    Example:
      >>> env = rookery.envs.limit_episode(rookery.make("point_room"), 10)
      >>> env.spec.episode_length
      10
    """
    check_counts(episode_length=length)
    if environment.assignment is not None:
        present = "skills" if environment.spec.skill else "an assignment"
        raise ValueError(f"{environment.spec.name} has {present}; apply limit_episode first, then {present}.")
    if environment.host is not None:
        raise ValueError(
            f"episodes of {environment.spec.name} run on the host and end there; give the length to the function that "
            f"made it: rookery.make(name, episode_length={length})."
        )
    return environment._replace(
        reset=partial(_timed_reset, environment),
        step=partial(_timed_step, environment, length),
        spec=environment.spec._replace(episode_length=length),
        picture=scene.inside(environment.picture, "inner"),
        announce=announce_inside(environment, "inner"),
        parameterize=parameterize_inside(environment, partial(limit_episode, length=length)),
        settings=environment.recorded(episode_length=length),
    )


def _timed_reset(environment: Environment, key: Key) -> tuple[TimeLimitState, Step]:
    state, step = environment.reset(key)
    return TimeLimitState(state, jnp.zeros((), jnp.int32)), step


def _timed_step(
    environment: Environment, length: int, state: TimeLimitState, action: Array, key: Key
) -> tuple[TimeLimitState, Step]:
    inner, step = environment.step(_without_limit(state.inner), action, key)
    time, truncated = count_step(state.time, step.terminated, length)
    step = step._replace(truncated=truncated | (step.truncated & ~step.terminated))
    mask = step.observation.action_mask
    if mask is not None:
        step = _broken_where(jnp.any(~environment.spec.allows_action(mask) & ~step.ended), step)
    return TimeLimitState(inner, time), step


def _broken_where(broken: Array, step: Step) -> Step:
    """End an episode as broken if `broken`, `[]` bool; the numbers of its observation and descriptor are kept."""
    return step._replace(
        reward=jnp.where(broken, 0.0, step.reward),
        terminated=step.terminated | broken,
        truncated=step.truncated & ~broken,
        broken=step.broken | broken,
        measures=jax.tree.map(partial(jnp.where, broken, 0.0), step.measures),
    )


def _without_limit(state: EnvState) -> EnvState:
    """Keep the counters of limits inside of another limit from reaching them: their next step is counted as none."""
    return jax.tree.map(
        lambda node: node._replace(time=-jnp.ones_like(node.time)) if _is_timed(node) else node,
        state,
        is_leaf=_is_timed,
    )


def count_step(time: Array, terminated: Array, length: int) -> tuple[Array, Array]:
    """Count a step: steps since the reset, this one included, and whether the time limit truncates the episode."""
    time = time + 1
    return time, (time >= length) & ~terminated


def stagger(state: EnvState, count: int, length: int) -> tuple[EnvState, Array]:
    """Spread the ends of the first episodes of E environments evenly over the time limit.

    Environment e starts as if `e length / E` steps had passed, rounded down, so its first episode is truncated earlier.
    Environments whose episodes do not terminate would otherwise all be in the same phase of an episode, and with them
    the rows of each rollout (rsl_rl has the same option, `init_at_random_ep_len`, with random places).

    Args:
      state: `[E, ...]`, at the start of an episode; it is unchanged where no `limit_episode` counts the steps.
      count: E.
      length: steps until truncation.

    Returns:
      The states, and `[E]` bool: whether the episode starts at its beginning.
    """
    is_timed = False
    passed = jnp.asarray(np.arange(count, dtype=np.int64) * length // count, jnp.int32)

    def staggered(node: EnvState) -> EnvState:
        nonlocal is_timed
        is_timed |= _is_timed(node)
        return node._replace(time=node.time + passed) if _is_timed(node) else node

    state = jax.tree.map(staggered, state, is_leaf=_is_timed)
    return state, (passed == 0) | (not is_timed)


def _is_timed(node: EnvState) -> bool:
    return isinstance(node, TimeLimitState)


def guard_physics(environment: Environment) -> Environment:
    """Compute in float32, and terminate an episode in the step whose outputs, apart from its measures, are not finite,
    or whose reward is beyond `LARGEST_REWARD`.

    On a GPU JAX's own default for matrix products is TF32, in which a simulation drifts; networks keep their precision.

    That step has `broken` set, reward and measures 0, and its non-finite numbers replaced by 0. The environment's state
    keeps its non-finite numbers until the next reset. An environment that is guarded already, inside of this package's
    wrappers, or that runs on the host, where its numbers are checked, is returned unchanged. Learners, evaluations and
    `skills` guard their environments.

    Example:
      >>> env = rookery.envs.limit_episode(rookery.envs.guard_physics(rookery.make("point_room")), 10)
    """
    if environment.host is not None or _is_guarded(environment):
        return environment
    return environment._replace(
        reset=partial(call_in, "float32", environment.reset),
        step=partial(_guarded_step, environment),
        parameterize=parameterize_inside(environment, guard_physics),
    )


def _is_guarded(environment: Environment) -> bool:
    """Whether its step is a guarded one, with nothing but wrappers of this package around it, which change no number:
    what a user puts around it, as in `environment._replace(step=...)`, may not be finite."""
    step = environment.step
    if not isinstance(step, partial):
        return False
    is_wrapper = step.func.__module__.startswith(__name__.rpartition(".")[0] + ".")
    return step.func is _guarded_step or (is_wrapper and _is_guarded(step.args[0]))


def _guarded_step(environment: Environment, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]:
    state, step = call_in("float32", environment.step, state, action, key)
    # Not its measures, which training need not compute: they only spoil what is computed from them.
    broken = step.broken | ~trees.all_finite((step.final_observation, step.descriptor))
    broken |= ~jnp.all(jnp.abs(step.reward) <= LARGEST_REWARD)
    clean = partial(jax.tree.map, partial(jnp.nan_to_num, posinf=0.0, neginf=0.0))
    return state, _broken_where(broken, step)._replace(
        observation=clean(step.observation),
        final_observation=clean(step.final_observation),
        descriptor=clean(step.descriptor),
    )
