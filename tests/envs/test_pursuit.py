"""Predators and prey: motions, captures and rewards computed by hand, and observations."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import registry
from rookery.envs.base import Environment, Step
from rookery.envs.tasks import pursuit
from rookery.envs.tasks.pursuit import PursuitState
from rookery.envs.wrappers.time_limit import TimeLimitState

KEY = jax.random.key(0)


def begun(env: Environment, positions: Any, headings: Any = None) -> TimeLimitState:
    """A state with the given positions."""
    position = jnp.asarray(positions, jnp.float32)
    heading = jnp.zeros(len(position)) if headings is None else jnp.asarray(headings, jnp.float32)
    prey = sum(name.startswith("prey") for name in env.spec.team.names)  # pyright: ignore[reportOptionalMemberAccess]
    chase = PursuitState(position, heading, jnp.zeros((prey,), jnp.int32), jnp.zeros((), jnp.int32))
    return TimeLimitState(chase, jnp.zeros((), jnp.int32))


def after(env: Environment, state: TimeLimitState, *actions: Any) -> tuple[TimeLimitState, list[Step]]:
    """The state after these actions, one per agent and step, and the steps."""
    step, steps = jax.jit(env.step), []
    for action in actions:
        taken = jnp.asarray(action, jnp.int32) if env.spec.discrete else jnp.asarray(action, jnp.float32)[:, None]
        state, result = step(state, taken, KEY)
        steps.append(result)
    return state, steps


def test_four_directions_at_the_speeds_in_sides_of_the_square_per_second() -> None:
    env = registry.make("pursuit_discrete")
    faster = registry.make("pursuit_discrete", predator_speed=2.0, prey_speed=0.0)
    place, step = np.asarray([[0.2, 0.5], [0.7, 0.5]]), jax.jit(env.step)
    for action, direction in enumerate([(1, 0), (0, 1), (-1, 0), (0, -1)]):
        state, _ = step(begun(env, place), jnp.full(2, action, jnp.int32), KEY)
        moved = np.asarray(state.inner.position) - place
        np.testing.assert_allclose(moved, [0.01 * np.asarray(direction), 0.03 * np.asarray(direction)], atol=1e-6)
        facing = np.stack([np.cos(state.inner.heading), np.sin(state.inner.heading)], axis=1)
        np.testing.assert_allclose(facing, [direction, direction], atol=1e-6)
    state, _ = after(faster, begun(faster, place), [1, 1])
    np.testing.assert_allclose(state.inner.position, [[0.2, 0.52], [0.7, 0.5]], atol=1e-6)


def test_any_heading_is_one_turn_away_and_the_border_lets_slide() -> None:
    env = registry.make("pursuit_continuous")
    start = begun(env, [[0.2, 0.5], [0.7, 0.5]], [0.0, 0.75 * math.pi])
    state, _ = after(env, start, [0.5, 0.5])
    # A quarter of the circle each: the predator moves up; the prey, at 3/4 pi before, moves down to the left.
    np.testing.assert_allclose(state.inner.heading, [0.5 * math.pi, -0.75 * math.pi], atol=1e-5)
    part = 0.03 / math.sqrt(2)
    np.testing.assert_allclose(state.inner.position, [[0.2, 0.51], [0.7 - part, 0.5 - part]], atol=1e-6)
    clipped, _ = after(env, start, [1.0, -1.0])
    beyond, _ = after(env, start, [7.0, -7.0])
    np.testing.assert_array_equal(clipped.inner.position, beyond.inner.position)
    # The border stops what runs against it, and lets it slide.
    start = begun(env, [[0.1, 0.995], [1.0, 0.5]], [math.pi / 2, math.pi / 4])
    state, _ = after(env, start, [0.0, 0.0])
    np.testing.assert_allclose(state.inner.position, [[0.1, 1.0], [1.0, 0.5 + part]], atol=1e-6)


@pytest.mark.parametrize(("away", "caught"), [(0.25, True), (0.2500001, False)])
def test_a_prey_is_caught_at_the_radius_and_not_beyond(away: float, caught: bool) -> None:
    env = registry.make("pursuit_discrete", capture_radius=0.25, predator_speed=0.0, prey_speed=0.0)
    _, (step,) = after(env, begun(env, [[0.25, 0.5], [0.25 + away, 0.5]]), [0, 0])
    assert step.terminated.tolist() == [caught, caught]
    assert step.reward.tolist() == ([100.0, -100.0] if caught else [-1.0, 1.0])


def test_one_against_one_ends_with_the_catch_and_nothing_follows() -> None:
    env = registry.make("pursuit_discrete", prey_speed=0.0)
    state, steps = after(env, begun(env, [[0.485, 0.5], [0.7, 0.5]]), [0, 0], [0, 0], [0, 0])
    assert [step.reward.tolist() for step in steps] == [[-1.0, 1.0], [100.0, -100.0], [0.0, 0.0]]
    assert [step.terminated.tolist() for step in steps] == [[False] * 2, [True] * 2, [True] * 2]
    assert not any(np.any(step.truncated) for step in steps)
    np.testing.assert_allclose(state.inner.position[0], [0.505, 0.5], atol=1e-6)  # no agent moves
    assert state.inner.caught.tolist() == [2]


def test_caught_prey_is_inactive_while_the_others_continue() -> None:
    env: Any = registry.make("pursuit_discrete", predators=2, prey=2, capture_radius=0.125, episode_length=3)
    names = ("predator_0", "predator_1", "prey_0", "prey_1")
    assert env.spec.team == (names, (17,) * 4, (4,) * 4, True)
    start = begun(env, [[0.125, 0.5], [0.5, 0.125], [0.25, 0.5], [0.875, 0.875]])
    state, steps = after(env, start, [2, 2, 2, 0], [0, 0, 0, 0], [0, 0, 0, 0])
    # The catch pays both predators; afterwards every step costs them again.
    assert [step.reward.tolist() for step in steps] == [[100, 100, -100, 1], [-1, -1, 0, 1], [-1, -1, 0, 1]]
    assert [step.terminated.tolist() for step in steps] == [[False, False, True, False]] * 3
    # The clock truncates all others, and terminates none.
    assert [step.truncated.tolist() for step in steps] == [[False] * 4] * 2 + [[True, True, False, True]]
    assert [bool(step.over) for step in steps] == [False, False, True]
    np.testing.assert_allclose(state.inner.position[2], [0.22, 0.5], atol=1e-6)
    assert env.picture.scene(state).visible.tolist() == [True, True, False, True]
    assert env.picture.scenery.bodies == ("predator", "predator", "prey", "prey")
    assert env.picture.scenery.reaches == (0.125, 0.125, 0.0, 0.0)
    # Two catches in one step pay twice.
    _, (step,) = after(env, begun(env, [[0.2, 0.2], [0.8, 0.8], [0.25, 0.2], [0.8, 0.75]]), [0, 0, 0, 0])
    assert step.reward.tolist() == [200.0, 200.0, -100.0, -100.0]
    assert bool(step.over)


def test_an_observation_has_the_agent_itself_then_its_kind_then_the_others() -> None:
    env = registry.make("pursuit_discrete", predators=2, prey=1, predator_speed=0.0, prey_speed=0.0, episode_length=4)
    start = begun(env, [[0.25, 0.5], [0.5, 0.5], [1.0, 0.0]])
    _, (step,) = after(env, start, [0, 1, 2])
    right, up, left = [1, 0], [0, 1], [-1, 0]
    expected = [
        [0.25, -0.5, 0, *right, 0.25, 0, *up, 0.75, -0.5, *left],
        [0.25, 0, 0, *up, -0.25, 0, *right, 0.5, -0.5, *left],
        [0.25, 1, -1, *left, -0.75, 0.5, *right, -0.5, 0.5, *up],
    ]
    np.testing.assert_allclose(step.observation.features, expected, atol=1e-6)


def test_agents_of_a_kind_are_observed_in_turn_and_caught_prey_is_not() -> None:
    env = registry.make("pursuit_discrete", predators=1, prey=3, capture_radius=0.1, predator_speed=0.0, prey_speed=0.0)
    start = begun(env, [[0.5, 0.5], [0.5, 0.55], [0.75, 0.5], [0.5, 1.0]])
    _, (step,) = after(env, start, [0, 0, 0, 0])
    rows = np.asarray(step.observation.features)[:, 1:].reshape(4, 4, 4)  # observing agent, place in the row, numbers
    assert step.terminated.tolist() == [False, True, False, False]
    np.testing.assert_array_equal(rows[0, 1], 0.0)
    np.testing.assert_allclose(rows[0, 2:, :2], [[0.25, 0.0], [0.0, 0.5]], atol=1e-6)
    # The second prey observes itself, the third, then the first, which is caught, then the predator.
    np.testing.assert_allclose(rows[2, :, :2], [[0.5, 0.0], [-0.25, 0.5], [0.0, 0.0], [-0.25, 0.0]], atol=1e-6)


def test_episodes_begin_apart_and_differ() -> None:
    env = registry.make("pursuit_continuous", predators=2, prey=2)
    state, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(3), 512))
    position = np.asarray(state.inner.position)
    away = np.linalg.norm(position[:, :2, None] - position[:, None, 2:], axis=-1)
    assert away.min() >= pursuit.CAPTURE_RADIUS + pursuit.START_MARGIN
    assert away.min() < 0.35  # and not by more than they must
    assert len(np.unique(position[:, :, 0])) > 2000
    np.testing.assert_allclose(position.mean(axis=(0, 1)), [0.5, 0.5], atol=0.03)
    heading = np.asarray(state.inner.heading)
    assert heading.min() < -3.0
    assert heading.max() > 3.0


def test_agents_start_as_far_apart_as_possible() -> None:
    env = registry.make("pursuit_continuous", capture_radius=0.99)
    state, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(4), 64))
    predator, prey = np.moveaxis(np.asarray(state.inner.position), 1, 0)
    farthest = np.linalg.norm(np.maximum(predator, 1.0 - predator), axis=-1)  # the corner opposite
    assert (np.linalg.norm(predator - prey, axis=-1) > 0.6 * farthest).all()


REFUSED = [
    ({"predators": 0}, r"^predators must lie in \[1, 1000\], got 0\.$"),
    ({"prey": 1_000_000}, r"^prey must lie in \[1, 1000\], got 1000000\.$"),
    ({"predator_speed": -1.0}, r"^predator_speed must be at least 0, got -1\.$"),
    ({"prey_speed": math.nan}, r"^prey_speed must be a finite number, got nan\.$"),
    ({"capture_radius": 1.0}, r"^capture_radius must lie in \(0, 1\), got 1\.$"),
]


@pytest.mark.parametrize(("overrides", "sentence"), REFUSED)
def test_what_makes_no_sense_is_refused(overrides: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        registry.make("pursuit_discrete", **overrides)
