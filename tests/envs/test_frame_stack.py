"""Frame stacking: the features of the latest steps, joined along the last axis of each array."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import registry
from rookery.envs.base import Environment, EnvSpec, first_step, next_step
from rookery.envs.wrappers.auto_reset import auto_reset, start_bank
from rookery.envs.wrappers.frame_stack import stack_frames
from rookery.envs.wrappers.skills import skills
from rookery.envs.wrappers.time_limit import limit_episode
from rookery.features import feature_size, flatten_features, unflatten_features
from rookery.types import PyTree

LENGTH = 4


def counter(shape: Any) -> Environment:
    """An environment whose features all are the number of the step plus a random start."""
    spec = EnvSpec("counter", feature_size(shape), 1, LENGTH, observation_shape=shape)

    def features(state: jax.Array) -> jax.Array:
        return state + 100.0 * jnp.arange(spec.observation_size, dtype=jnp.float32)

    def reset(key: jax.Array) -> Any:
        state = jnp.round(jax.random.uniform(key, (), minval=0.0, maxval=50.0))
        return state, first_step(features(state), jnp.zeros(0))

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> Any:
        state = state + 1.0
        return state, next_step(features(state), jnp.ones(()), jnp.asarray(False), jnp.zeros(0))

    return limit_episode(Environment(reset, step, spec), LENGTH)


def frame(shape: Any, value: float) -> PyTree:
    size = feature_size(shape)
    return unflatten_features(shape, value + 100.0 * jnp.arange(size, dtype=jnp.float32))


@pytest.mark.parametrize(
    ("shape", "stacked"),
    [
        (None, None),
        ((2, 3, 2), (2, 3, 6)),
        ({"image": (2, 2, 1), "speed": (2,), "time": ()}, {"image": (2, 2, 3), "speed": (6,), "time": (3,)}),
    ],
)
def test_features_are_those_of_the_latest_steps(shape: Any, stacked: Any) -> None:
    environment = counter(shape or (2,))
    environment = environment._replace(spec=environment.spec._replace(observation_shape=shape))
    wrapped = stack_frames(environment, 3)
    assert wrapped.spec.observation_shape == stacked
    assert wrapped.settings["environment"]["frame_stack"] == 3
    assert wrapped.spec.observation_size == 3 * environment.spec.observation_size
    state, first = jax.jit(wrapped.reset)(jax.random.key(0))
    start = float(environment.reset(jax.random.key(0))[0].inner)
    steps, compiled = [first], jax.jit(wrapped.step)
    for key in jax.random.split(jax.random.key(1), 3):
        state, step = compiled(state, jnp.zeros(1), key)
        steps.append(step)
    values = [start, start, start, start + 1.0, start + 2.0, start + 3.0]
    for index, step in enumerate(steps):
        frames = [frame(shape or (2,), value) for value in values[index : index + 3]]
        joined = jax.tree.map(
            lambda *leaves: jnp.stack(leaves) if leaves[0].ndim == 0 else jnp.concatenate(leaves, axis=-1), *frames
        )
        np.testing.assert_array_equal(step.observation.features, flatten_features(joined))
        np.testing.assert_array_equal(step.final_observation.features, step.observation.features)


def test_an_automatic_reset_begins_with_frames_of_the_new_episode() -> None:
    wrapped = stack_frames(counter((1,)), 3)
    bank = jax.jit(partial(start_bank, wrapped, size=2))(jax.random.key(0))
    environment = auto_reset(wrapped, bank)
    state, _ = jax.tree.map(lambda leaf: leaf[0], bank)
    compiled, step = jax.jit(environment.step), None
    for key in jax.random.split(jax.random.key(1), LENGTH):
        state, step = compiled(state, jnp.zeros(1), key)
    assert step is not None
    assert bool(step.truncated)
    assert len(set(np.asarray(step.observation.features).tolist())) == 1
    np.testing.assert_array_equal(np.diff(step.final_observation.features), [1.0, 1.0])


def test_each_agent_of_a_team_has_its_frames() -> None:
    environment: Any = registry.make("pursuit_discrete", episode_length=LENGTH)
    wrapped: Any = stack_frames(environment, 2)
    first, single = (jax.jit(env.reset)(jax.random.key(0))[1] for env in (wrapped, environment))
    single = single.observation.features
    np.testing.assert_array_equal(first.observation.features, jnp.concatenate([single, single], axis=-1))
    assert wrapped.spec.team.observation_sizes == tuple(9 + size for size in environment.spec.team.observation_sizes)


def test_one_frame_changes_nothing_and_mistakes_are_errors() -> None:
    environment = counter((2,))
    assert stack_frames(environment, 1) is environment
    few, many = (jax.make_jaxpr(stack_frames(environment, count).reset)(jax.random.key(0)) for count in (2, 200))
    assert len(few.eqns) == len(many.eqns), "tracing takes no longer with more frames"
    with pytest.raises(ValueError, match=r"frame_stack must lie in \[1, 8388608\], got 0"):
        stack_frames(environment, 0)
    with pytest.raises(ValueError, match="apply stack_frames before adding them"):
        stack_frames(skills(registry.make("point_room"), 2), 2)
