"""gymnax's environments: what they say of themselves, and the end of a task apart from the end of time."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from PIL import Image

from rookery.envs import registry
from rookery.envs.base import Environment, Step
from rookery.envs.suites import gymnax, third_party

BALANCE = np.asarray([0.1, 0.3, 1.0, 0.5], np.float32)  # a linear policy that keeps CartPole's pole up


def rolled(env: Environment, policy: Any, steps: int, seed: int = 0) -> Step:
    """All steps of one episode and those after its end, `[steps, ...]`."""

    def advance(carry: Any, key: jax.Array) -> Any:
        state, observation = carry
        state, step = env.step(state, policy(observation, key), key)
        return (state, step.observation.features), step

    def roll() -> Step:
        state, start = env.reset(jax.random.key(seed))
        keys = jax.random.split(jax.random.key(seed + 1), steps)
        return jax.lax.scan(advance, (state, start.observation.features), keys)[1]

    return jax.jit(roll)()


def test_the_table_is_what_the_suite_has() -> None:
    for name, sizes in gymnax.TASKS.items():
        suite_env = gymnax.load(name)
        assert sizes.episode_length == suite_env.params.max_steps_in_episode
        assert sizes.discrete == (suite_env.lower is None)
        if sizes.discrete:
            assert suite_env.env.action_space(suite_env.params).n == sizes.action_size


def test_every_environment_is_a_task_or_refused_with_a_reason() -> None:
    with third_party.quiet_import():
        from gymnax import registered_envs
    assert set(gymnax.TASKS) | set(gymnax.UNSUPPORTED) == set(registered_envs)
    assert not set(gymnax.TASKS) & set(gymnax.UNSUPPORTED)


def test_an_upright_pole_is_truncated_and_a_falling_one_is_terminated() -> None:
    env = registry.make("CartPole-v1")
    standing = rolled(env, lambda observation, _: jnp.asarray(observation @ BALANCE > 0.0, jnp.int32), 500)
    assert not np.any(standing.terminated)
    np.testing.assert_array_equal(standing.truncated, np.arange(1, 501) == 500)
    assert float(np.sum(standing.reward)) == 500.0
    falling = rolled(env, lambda *_: jnp.asarray(1, jnp.int32), 12)
    end = int(np.argmax(falling.terminated))
    assert 5 < end < 12
    assert not np.any(falling.truncated)
    assert abs(float(falling.observation.features[end, 2])) > 0.2094  # 12 degrees, where the suite lets it fall
    early = rolled(registry.make("CartPole-v1", episode_length=3), lambda *_: jnp.asarray(1, jnp.int32), 3)
    np.testing.assert_array_equal(early.truncated, [False, False, True])
    assert not np.any(early.terminated | standing.broken[:3])


@pytest.mark.parametrize(("name", "bound"), [("Pendulum-v1", 2.0), ("MountainCarContinuous-v0", 1.0)])
def test_actions_are_scaled_to_the_bounds_of_the_suite(name: str, bound: float) -> None:
    env, suite_env = registry.make(name), gymnax.load(name)
    actions, key = jnp.asarray([[-1.0], [0.25], [7.0]]), jax.random.key(1)

    @jax.jit
    def both(key: jax.Array) -> Any:
        state, _ = env.reset(jax.random.key(0))
        _, step = jax.vmap(env.step, in_axes=(None, 0, None))(state, actions, key)
        own_step = jax.vmap(suite_env.env.step_env, in_axes=(None, None, 0, None))
        with third_party.standard_promotion():
            observation, _, reward, _, _ = own_step(
                key, state.inner, bound * jnp.minimum(actions, 1.0), suite_env.params
            )
        return step, observation, reward

    step, observation, reward = both(key)
    np.testing.assert_allclose(step.observation.features, observation, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(step.reward, reward, rtol=1e-5)


def test_uneven_bounds_are_scaled_dimension_by_dimension() -> None:
    env = registry.make("PointRobot-misc")
    state, start = env.reset(jax.random.key(0))
    _, step = env.step(state, jnp.asarray([-1.0, 0.5]), jax.random.key(1))
    np.testing.assert_allclose(step.observation.features[:2] - start.observation.features[:2], [-0.1, 0.05], atol=1e-6)


def test_the_chain_ends_with_its_last_link_and_time_ends_it_before() -> None:
    last = lambda *_: jnp.asarray(4, jnp.int32)  # noqa: E731  the reward of this action is at the end
    whole = rolled(registry.make("DiscountingChain-bsuite"), last, 100)
    np.testing.assert_array_equal(whole.terminated, np.arange(1, 101) == 100)
    assert not np.any(whole.truncated)
    assert float(whole.reward[-1]) == float(np.sum(whole.reward)) == 1.0
    cut = rolled(registry.make("DiscountingChain-bsuite", episode_length=50), last, 50)
    assert (bool(cut.truncated[-1]), bool(cut.terminated[-1])) == (True, False)
    np.testing.assert_allclose(cut.observation.features[-1, 1], 0.5)  # the time on the suite's own scale


def test_a_place_is_a_one_hot_vector() -> None:
    _, start = registry.make("FrozenLake-misc").reset(jax.random.key(0))
    np.testing.assert_array_equal(start.observation.features, np.eye(16)[0])


def test_vmap_equals_a_loop_and_keys_decide() -> None:
    env = registry.make("CartPole-v1")
    keys = jax.random.split(jax.random.key(0), 3)
    states, starts = jax.jit(jax.vmap(env.reset))(keys)
    actions, reset, alone = jnp.asarray([0, 1, 0], jnp.int32), jax.jit(env.reset), jax.jit(env.step)
    after, steps = jax.jit(jax.vmap(env.step))(states, actions, keys)
    assert len({float(value) for value in starts.observation.features[:, 0]}) == 3
    for i in range(3):
        state, start = reset(keys[i])
        np.testing.assert_allclose(start.observation.features, starts.observation.features[i], rtol=1e-6)
        one, step = alone(state, actions[i], keys[i])
        np.testing.assert_allclose(step.observation.features, steps.observation.features[i], rtol=1e-5, atol=1e-7)
        assert int(one.time) == int(after.time[i]) == 1


def test_mistakes_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"gymnax has no environment 'CartPole-v9'; `rookery envs` lists"):
        gymnax.make("CartPole-v9")
    with pytest.raises(ValueError, match=r"MNISTBandit-bsuite is not supported: it downloads its images"):
        gymnax.make("MNISTBandit-bsuite")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        registry.make("CartPole-v1", episode_length=0)
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(ImportError, match=r'install it: pip install "rookery\[gymnax\]"'):
        registry.make("CartPole-v1")


def film(name: str, path: Path, steps: int = 2) -> None:
    """Of a reset and some steps."""
    env = registry.make(name)
    state, start = env.reset(jax.random.key(0))
    states, rewards = [state], [start.reward]
    for t in range(steps):
        state, step = env.step(state, jnp.zeros((), jnp.int32), jax.random.key(t))
        states.append(state)
        rewards.append(step.reward)
    assert env.picture is not None
    assert env.picture.film is not None
    env.picture.film(jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), jnp.stack(rewards), str(path))


@pytest.mark.parametrize("name", ["Catch-bsuite", "Breakout-MinAtar"])
def test_a_film_has_a_frame_for_every_state_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    from matplotlib import pyplot

    backend, settings = matplotlib.get_backend(), dict(matplotlib.rcParams)
    film(name, tmp_path / "film.gif")
    with Image.open(tmp_path / "film.gif") as images:
        assert getattr(images, "n_frames", 1) == 3
        first, last = [np.asarray(image.convert("L")) for image in frames_of(images, (0, 2))]
    assert (first != last).any(), "something moves"
    assert pyplot.get_fignums() == []
    assert (matplotlib.get_backend(), dict(matplotlib.rcParams)) == (backend, settings)


def frames_of(images: Any, indices: tuple[int, ...]) -> list[Any]:
    found = []
    for index in indices:
        images.seek(index)
        found.append(images.copy())
    return found


def test_a_classic_task_is_drawn_with_pygame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    with pytest.raises(ImportError, match=r'with pygame .*; install it: pip install "gymnax\[visualize\]"'):
        film("CartPole-v1", tmp_path / "film.gif")
    assert not any(tmp_path.iterdir())
