"""gymnax's environments: what they say of themselves, and the end of a task apart from the end of time."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import registry
from rookery.envs.base import Step
from rookery.envs.suites import gymnax, third_party

BALANCE = np.asarray([0.1, 0.3, 1.0, 0.5], np.float32)  # a linear policy that keeps CartPole's pole up


@cache
def compiled(name: str, **options: Any) -> tuple[Any, Any, Any]:
    """An environment with its compiled functions."""
    env = registry.make(name, **options)
    return env, jax.jit(env.reset), jax.jit(env.step)


def rolled(made: tuple[Any, Any, Any], policy: Any, steps: int) -> Step:
    """The steps of one episode and those after its end, `[steps, ...]`; the policy gets the features."""
    _, reset, step = made
    state, last = reset(jax.random.key(0))
    found = []
    for key in jax.random.split(jax.random.key(1), steps):
        state, last = step(state, np.int32(policy(np.asarray(last.observation.features))), key)
        found.append(last)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *found)


def test_every_environment_is_a_task_with_the_limit_of_the_suite_or_refused_with_a_reason() -> None:
    with third_party.quiet_import():
        from gymnax import registered_envs
    assert set(gymnax.TASKS) | set(gymnax.UNSUPPORTED) == set(registered_envs)
    assert not set(gymnax.TASKS) & set(gymnax.UNSUPPORTED)
    for name, sizes in gymnax.TASKS.items():
        assert sizes.episode_length == gymnax.load(name).params.max_steps_in_episode


def test_an_upright_pole_is_truncated_and_a_falling_one_is_terminated() -> None:
    made = compiled("CartPole-v1")
    standing = rolled(made, lambda features: features @ BALANCE > 0.0, 500)
    assert not np.any(standing.terminated | standing.broken)
    np.testing.assert_array_equal(standing.truncated, np.arange(1, 501) == 500)
    assert float(np.sum(standing.reward)) == 500.0
    falling = rolled(made, lambda _: 1, 12)
    end = int(np.argmax(falling.terminated))
    assert 5 < end < 12
    assert not np.any(falling.truncated)
    assert abs(float(falling.observation.features[end, 2])) > 0.2094  # 12 degrees, where the suite lets it fall


def test_actions_are_scaled_to_the_bounds_of_the_suite() -> None:
    env, suite_env = registry.make("Pendulum-v1"), gymnax.load("Pendulum-v1")
    actions, key = jnp.asarray([[-1.0], [0.25], [7.0]]), jax.random.key(1)

    @jax.jit
    def both(key: jax.Array) -> Any:
        state, _ = env.reset(jax.random.key(0))
        _, step = jax.vmap(env.step, in_axes=(None, 0, None))(state, actions, key)
        own_step = jax.vmap(suite_env.env.step_env, in_axes=(None, None, 0, None))
        with third_party.standard_promotion():
            torque = 2.0 * jnp.minimum(actions, 1.0)
            observation, _, reward, _, _ = own_step(key, state.inner, torque, suite_env.params)
        return step, observation, reward

    step, observation, reward = both(key)
    np.testing.assert_allclose(step.observation.features, observation, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(step.reward, reward, rtol=1e-5)


def test_uneven_bounds_are_scaled_dimension_by_dimension() -> None:
    _, reset, step_ = compiled("PointRobot-misc")
    state, start = reset(jax.random.key(0))
    _, step = step_(state, jnp.asarray([-1.0, 0.5]), jax.random.key(1))
    np.testing.assert_allclose(step.observation.features[:2] - start.observation.features[:2], [-0.1, 0.05], atol=1e-6)


def test_the_chain_ends_with_its_last_link_and_time_ends_it_before() -> None:
    last = lambda _: 4  # noqa: E731  the reward of this action is at the end
    whole = rolled(compiled("DiscountingChain-bsuite"), last, 100)
    np.testing.assert_array_equal(whole.terminated, np.arange(1, 101) == 100)
    assert not np.any(whole.truncated)
    assert float(whole.reward[-1]) == float(np.sum(whole.reward)) == 1.0
    cut = rolled(compiled("DiscountingChain-bsuite", episode_length=50), last, 50)
    assert (bool(cut.truncated[-1]), bool(cut.terminated[-1])) == (True, False)
    np.testing.assert_allclose(cut.observation.features[-1, 1], 0.5)  # the time on the suite's own scale


def test_a_place_is_a_one_hot_vector() -> None:
    _, start = compiled("FrozenLake-misc")[1](jax.random.key(0))
    np.testing.assert_array_equal(start.observation.features, np.eye(16)[0])


def test_mistakes_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"gymnax has no environment 'CartPole-v9'; `rookery envs` lists"):
        gymnax.make("CartPole-v9")
    with pytest.raises(ValueError, match=r"MNISTBandit-bsuite is not supported: it downloads its images"):
        gymnax.make("MNISTBandit-bsuite")
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(ImportError, match=r'install it: pip install "rookery\[gymnax\]"'):
        registry.make("CartPole-v1")


def test_a_classic_task_is_drawn_with_pygame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env, reset, _ = compiled("CartPole-v1")
    state, start = jax.tree.map(lambda leaf: leaf[None], reset(jax.random.key(0)))
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(ImportError, match=r'with pygame .*; install it: pip install "gymnax\[visualize\]"'):
        env.picture.film(state, start.reward, str(tmp_path / "film.gif"))
    assert not any(tmp_path.iterdir())
