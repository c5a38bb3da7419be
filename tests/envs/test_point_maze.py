"""The maze's walls, goal and known way through."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import registry
from rookery.envs.base import Environment
from rookery.envs.tasks import point_maze

LOWER, UPPER = point_maze.WALLS
WAY = ((0.7, -0.6), (0.7, -0.3), (-0.7, 0.1), (-0.7, 0.3), point_maze.GOAL)


def moved(position: tuple[float, float], action: tuple[float, float]) -> np.ndarray:
    return np.asarray(point_maze.move(jnp.asarray(position), jnp.asarray(action), point_maze.WALLS))


@pytest.mark.parametrize("wall", [LOWER, UPPER])
@pytest.mark.parametrize("side", [-1.0, 1.0])
def test_walls_block_from_both_sides_and_let_slide(wall: tuple[float, float, float], side: float) -> None:
    height, left, right = wall
    for x, gap in ((left + 0.01, 1e-6), (right - 0.11, 0.09)):
        start = (x, height + side * gap)
        np.testing.assert_allclose(moved(start, (1.0, -side)), [x + 0.1, start[1]], atol=1e-6)
        np.testing.assert_allclose(moved(start, (0.0, side)), [x, start[1] + 0.1 * side], atol=1e-6)


def test_what_counts_is_where_the_path_crosses() -> None:
    assert moved((0.45, -0.51), (1.0, 1.0))[1] == pytest.approx(-0.51)  # crosses at x = 0.46, ends beside the wall
    assert moved((0.45, -0.59), (1.0, 1.0))[1] == pytest.approx(-0.49)  # crosses at x = 0.54, in the gap
    # A point on the line of a wall counts as above.
    np.testing.assert_allclose(moved((0.55, -0.5), (-1.0, 0.0)), [0.45, -0.5], atol=1e-6)
    np.testing.assert_allclose(moved((0.45, -0.5), (0.0, -1.0)), [0.45, -0.5], atol=1e-6)
    np.testing.assert_allclose(moved((0.45, -0.5), (0.0, 1.0)), [0.45, -0.4], atol=1e-6)


def test_no_walk_ever_tunnels() -> None:
    """Pushing up and down at random, a point that changes sides was in the gap when it did."""

    def walk(key: jax.Array) -> jax.Array:
        actions = jnp.clip(2.0 * jax.random.normal(key, (300, 2)), -1.0, 1.0)

        def advance(position: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
            position = point_maze.move(position, action, point_maze.WALLS)
            return position, position

        return jax.lax.scan(advance, jnp.asarray(point_maze.START), actions)[1]

    paths = np.asarray(jax.jit(jax.vmap(walk))(jax.random.split(jax.random.key(0), 64)), np.float64)
    assert np.abs(paths).max() <= 1.0
    for height, left, right in point_maze.WALLS:
        before, after = paths[:, :-1], paths[:, 1:]
        crossed = (before[..., 1] < height) != (after[..., 1] < height)
        share = (height - before[crossed][:, 1]) / (after - before)[crossed][:, 1]
        crossing = before[crossed][:, 0] + share * (after - before)[crossed][:, 0]
        assert crossing.size > 10, "walks that never cross prove nothing"
        assert not ((crossing > left + 1e-5) & (crossing < right - 1e-5)).any()


def follow(env: Environment, way: Sequence[tuple[float, float]], stride: float) -> tuple[bool, int, float, np.ndarray]:
    """Walk along waypoints: whether the episode terminated, its steps, return and last observation."""
    step = jax.jit(env.step)
    state, result = env.reset(jax.random.key(3))
    total, remaining = 0.0, list(way)
    for t in range(1, env.spec.episode_length + 1):
        if len(remaining) > 1 and np.abs(np.asarray(result.observation.features) - remaining[0]).max() < 0.02:
            remaining.pop(0)
        action = jnp.clip((jnp.asarray(remaining[0]) - result.observation.features) / stride, -1.0, 1.0)
        state, result = step(state, action, jax.random.key(t))
        total += float(result.reward)
        if bool(result.ended):
            return bool(result.terminated), t, total, np.asarray(result.final_observation.features)
    raise AssertionError("neither the goal nor the clock ended the episode")


def test_the_known_way_reaches_the_goal() -> None:
    terminated, steps, total, last = follow(registry.make("point_maze"), WAY, point_maze.STRIDE)
    assert terminated
    assert steps < 45
    assert total > -50
    assert np.linalg.norm(last - np.asarray(point_maze.GOAL)) <= point_maze.GOAL_RADIUS + 1e-6


def test_the_greedy_way_is_a_dead_end() -> None:
    terminated, steps, total, last = follow(registry.make("point_maze"), (point_maze.GOAL,), point_maze.STRIDE)
    assert not terminated
    assert steps == point_maze.EPISODE_LENGTH
    assert -280 < total < -100
    assert LOWER[0] - point_maze.STRIDE < last[1] < LOWER[0]


def test_rewards_are_minus_the_distance_and_within_the_offset() -> None:
    env = registry.make("point_maze")
    state = env.reset(jax.random.key(0))[0]._replace(inner=jnp.asarray([1.0, -1.0]))
    step = env.step(state, jnp.zeros(2), jax.random.key(1))[1]
    assert float(step.reward) == pytest.approx(-np.hypot(1.4, 1.8), abs=1e-6)
    assert float(step.reward) + registry.find("point_maze").qd_offset >= 0


def test_the_room_has_no_goal_and_costs_only_control() -> None:
    env = registry.make("point_room")
    state = env.reset(jax.random.key(0))[0]._replace(inner=jnp.asarray(point_maze.GOAL))
    _, step = env.step(state, jnp.asarray([1.0, -0.5]), jax.random.key(1))
    assert float(step.reward) == pytest.approx(-0.0125, abs=1e-7)
    assert not bool(step.terminated)
    np.testing.assert_allclose(step.observation.features, [-0.3, 0.75], atol=1e-6)
