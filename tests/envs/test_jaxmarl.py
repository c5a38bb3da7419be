"""JaxMARL's environments: teams as arrays, masks, and the end of a task apart from the end of time."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageSequence

from rookery import trees
from rookery.envs import registry
from rookery.envs.base import Environment, Step
from rookery.envs.suites import third_party
from rookery.envs.suites.jaxmarl import adapter as jaxmarl
from rookery.envs.suites.jaxmarl import tasks as jaxmarl_tasks


@cache
def compiled(name: str, **options: Any) -> tuple[Environment, Any, Any]:
    """An environment with its compiled functions."""
    env = registry.make(name, **options)
    return env, jax.jit(env.reset), jax.jit(env.step)


def rolled(made: tuple[Environment, Any, Any], policy: Any, steps: int) -> tuple[Any, Step]:
    """All states `[steps + 1, ...]` of an episode, also after its end, and the steps `[steps + 1, I, ...]`, of which
    the first is that of the reset; the policy gets the time."""
    _, reset, step = made
    found = [reset(jax.random.key(0))]
    for time in range(steps):
        found.append(step(found[-1][0], policy(time), jax.random.fold_in(jax.random.key(1), time)))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)


def test_every_environment_is_a_task_or_refused_with_a_reason() -> None:
    with third_party.quiet_import():
        from jaxmarl import registered_envs
        from jaxmarl.environments import overcooked_layouts, overcooked_v2_layouts
        from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO
    expected = {jaxmarl_tasks.SMAX + name for name in MAP_NAME_TO_SCENARIO}
    expected |= {jaxmarl_tasks.OVERCOOKED + name for name in overcooked_layouts}
    expected |= {jaxmarl_tasks.OVERCOOKED_V2 + name for name in overcooked_v2_layouts}
    expected |= {name for name in registered_envs if not name.startswith("JaxRobotarium")} | set(jaxmarl_tasks.MABRAX)
    assert set(jaxmarl_tasks.TASKS) | set(jaxmarl_tasks.UNSUPPORTED) == expected
    assert not set(jaxmarl_tasks.TASKS) & set(jaxmarl_tasks.UNSUPPORTED)


def test_unequal_observations_are_padded_and_the_clock_truncates() -> None:
    made = compiled("MPE_simple_tag_v3")
    env = made[0]
    assert env.spec.team == (
        ("adversary_0", "adversary_1", "adversary_2", "agent_0"),
        (16, 16, 16, 14),
        (5, 5, 5, 5),
        True,
    )
    assert not env.spec.masked
    _, steps = rolled(made, lambda time: (time + np.arange(4, dtype=np.int32)) % 5, 30)
    assert bool(trees.all_finite(steps))
    assert not np.any(steps.observation.features[:, 3, 14:])
    assert np.all(np.any(steps.observation.features[:, :3, 14:], axis=(0, 2)))
    assert not np.any(steps.terminated)
    np.testing.assert_array_equal(steps.truncated, np.repeat(np.arange(31)[:, None] >= 25, 4, axis=1))
    np.testing.assert_array_equal(steps.observation.features, steps.final_observation.features)


def test_rewards_and_observations_are_the_suites_own() -> None:
    env, suite_env = registry.make("MPE_simple_spread_v3"), jaxmarl.load("MPE_simple_spread_v3", 25)
    action = jnp.asarray([0, 1, 2], jnp.int32)

    @jax.jit
    def compare(key: jax.Array) -> Any:
        state, _ = env.reset(key)
        _, step = env.step(state, action, key)
        with third_party.standard_promotion():
            named = dict(zip(suite_env.agents, action, strict=True))
            observations, _, rewards, _, _ = suite_env.env.step_env(key, state.inner, named)
        own = [jnp.stack([found[agent] for agent in suite_env.agents]) for found in (observations, rewards)]
        return (step.observation.features, step.reward), own

    for found, own in zip(*compare(jax.random.key(3)), strict=True):
        np.testing.assert_allclose(found, own, rtol=1e-5, atol=1e-6)


def test_unequal_actions_have_a_mask_and_continuous_ones_are_scaled() -> None:
    speaking, reset, _ = compiled("MPE_simple_speaker_listener_v4")
    _, start = reset(jax.random.key(0))
    assert speaking.spec.masked
    np.testing.assert_array_equal(start.observation.action_mask, np.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool))
    assert not np.any(start.observation.features[0, 3:11])
    suite_env = jaxmarl.load("MPE_simple_world_comm_v3", 25)
    given = jaxmarl._actions(suite_env, jnp.full((6, 9), 5.0).at[1, :2].set(jnp.asarray([-7.0, 0.0])))
    assert [given[agent].shape for agent in suite_env.agents] == [(9,)] + [(5,)] * 5
    np.testing.assert_allclose(given["adversary_0"], [0.0, 0.5, 1.0, 1.0, 1.0])
    steered = suite_env._replace(lower=suite_env.lower - 3.0)  # from -3 to 1
    np.testing.assert_allclose(jaxmarl._actions(steered, jnp.full((6, 9), 0.5))["agent_1"], [0.0] * 5)


@pytest.fixture
def battle() -> tuple[Any, Any]:
    return compiled("SMAX_3m", episode_length=60)[1:]


def test_a_dead_unit_can_do_nothing_and_shares_the_end_of_the_battle(battle: tuple[Any, Any]) -> None:
    reset, step = battle
    state, _ = reset(jax.random.key(0))
    dead = []
    for t in range(60):
        state, suite_step = step(state, jnp.full((3,), 4, jnp.int32), jax.random.key(t))
        dead.append((np.asarray(suite_step.observation.action_mask) == [0, 0, 0, 0, 1, 0, 0, 0]).all(axis=-1))
        assert not np.any(suite_step.truncated)
        assert np.asarray(suite_step.terminated).tolist() == [bool(dead[-1].all())] * 3
        if np.any(suite_step.terminated):
            break
    assert dead[-1].all(), "three marines that only stand are shot"
    assert any(units.any() and not units.all() for units in dead), "one unit dies before the others"


def test_a_dead_unit_is_paid_the_victory(battle: tuple[Any, Any]) -> None:
    reset, step = battle
    state, _ = reset(jax.random.key(0))
    place = jnp.asarray([[10.0, 16.0], [12.0, 16.0], [30.0, 3.0], [13.0, 16.0], [1.0, 30.0], [1.0, 30.0]])
    health = jnp.asarray([0.0, 45.0, 45.0, 1.0, 0.0, 0.0])  # the first ally is dead, one enemy has a breath left
    inner = state.inner.state.replace(unit_positions=place, unit_health=health, unit_alive=health > 0.0)
    state = state._replace(inner=state.inner.replace(state=inner))
    _, suite_step = step(state, jnp.asarray([4, 5, 4], jnp.int32), jax.random.key(1))
    assert bool(np.all(suite_step.terminated))
    assert float(suite_step.reward[0]) > 1.0
    np.testing.assert_allclose(suite_step.reward, suite_step.reward[0])


def test_a_kitchen_observes_its_time_and_never_terminates() -> None:
    made = compiled("overcooked_cramped_room", episode_length=41)
    _, steps = rolled(made, lambda _: np.full(2, 4, np.int32), 42)
    assert not np.any(steps.terminated)
    np.testing.assert_array_equal(steps.truncated[:, 0], np.arange(43) >= 41)
    hurry = np.asarray(steps.observation.features).reshape(43, 2, 20, 26)[..., 25]  # fewer than 40 steps are left
    np.testing.assert_array_equal(hurry.all(axis=(1, 2)), np.arange(43) >= 2)
    assert not hurry[1].any()


def test_a_wrong_announcement_or_the_time_limit_ends_the_riddle() -> None:
    _, steps = rolled(compiled("switch_riddle"), lambda time: np.full(3, 2 if time == 6 else 0, np.int32), 7)
    np.testing.assert_array_equal(steps.terminated[:, 0], np.arange(8) == 7)
    np.testing.assert_array_equal(steps.truncated[:, 0], np.arange(8) == 6)
    np.testing.assert_array_equal(steps.terminated[:, 0], steps.terminated[:, 2])
    assert abs(float(steps.reward[-1, 1])) == 1.0


def test_a_game_of_coins_is_not_begun_anew_within_an_episode() -> None:
    states, steps = rolled(compiled("coin_game", episode_length=12), lambda _: np.full(2, 4, np.int32), 12)
    np.testing.assert_array_equal(steps.truncated[:, 0], np.arange(13) == 12)
    assert not np.any(steps.terminated)
    np.testing.assert_array_equal(states.inner.step, np.arange(13))
    assert len(np.unique(states.inner.red_pos, axis=0)) == 1, "an agent that remains is not moved"


def test_only_the_agent_in_turn_has_moves_in_hanabi() -> None:
    _, start = compiled("hanabi")[1](jax.random.key(0))
    masks = np.asarray(start.observation.action_mask)
    assert masks.shape[1] == 21
    assert sorted(masks.sum(axis=1))[0] == 1, "the other can only wait"
    assert sorted(masks.sum(axis=1))[1] > 5.0
    assert masks.dtype == bool


def test_mistakes_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"JaxMARL has no environment 'MPE_simple'; `rookery envs` lists"):
        jaxmarl.make("MPE_simple")
    with pytest.raises(ValueError, match=r"LearnedPolicyEnemySMAX is not supported: it needs a trained enemy policy"):
        jaxmarl.make("LearnedPolicyEnemySMAX")
    with monkeypatch.context() as without:
        without.setattr("jaxmarl.registration.MABRAX_AVAILABLE", False)
        with pytest.raises(ImportError, match=r'install it: pip install "rookery\[brax,jaxmarl\]"'):
            registry.make("hopper_3x1")
    monkeypatch.setitem(sys.modules, "jaxmarl", None)
    with pytest.raises(ImportError, match=r'install it: pip install "rookery\[jaxmarl\]"'):
        registry.make("MPE_simple_spread_v3")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("MPE_simple_tag_v3", {}),
        ("SMAX_3m", {"episode_length": 60}),
        ("overcooked_cramped_room", {"episode_length": 41}),
        ("Catch-bsuite", {}),
    ],
)
def test_a_film_has_a_frame_for_every_state_and_leaves_nothing_behind(
    name: str, options: dict, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from matplotlib import pyplot

    before = matplotlib.get_backend(), dict(matplotlib.rcParams)
    env, *_ = made = compiled(name, **options)
    states, steps = rolled(made, lambda time: np.full(env.spec.action_shape, time, np.int32), 2)
    capfd.readouterr()
    assert env.picture is not None
    assert env.picture.film is not None
    env.picture.film(states, steps.reward, str(tmp_path / "film.gif"))
    with Image.open(tmp_path / "film.gif") as images:
        first, *_, last = (np.asarray(image.convert("L")) for image in ImageSequence.Iterator(images))
        assert getattr(images, "n_frames", 1) == 3
    assert (first != last).any(), "something moves"
    assert pyplot.get_fignums() == []
    assert (matplotlib.get_backend(), dict(matplotlib.rcParams)) == before
    assert capfd.readouterr() == ("", "")


def test_listing_imports_no_simulator_and_the_imports_of_gymnax_and_jaxmarl_are_quiet_and_change_nothing() -> None:
    code = """
import os, sys, warnings
from rookery.envs import registry
registry.table()
simulators = {"brax", "mujoco", "gymnax", "gymnasium", "jaxmarl", "mujoco_playground", "warp"}
assert not simulators & set(sys.modules)
before = dict(os.environ), list(warnings.filters), sys.stdout, sys.__stdout__, sys.stderr
for task in ("CartPole-v1", "switch_riddle"):
    registry.make(task)
assert before == (dict(os.environ), list(warnings.filters), sys.stdout, sys.__stdout__, sys.stderr)
assert {"gymnax", "jaxmarl"} <= set(sys.modules)
"""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
