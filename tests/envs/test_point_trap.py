"""The trap's corners are closed, the greedy way ends in it, and there is a way around it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import registry
from rookery.envs.tasks import point_maze
from tests.envs.test_point_maze import follow

TOP, LEFT, RIGHT = point_maze.TRAP_END[0]
FOOT = point_maze.TRAP_SIDES[0][1]
AROUND = ((0.6, -0.75), (0.6, 0.1), point_maze.TRAP_GOAL)


def inside(position: np.ndarray) -> np.ndarray:
    """Whether points `[..., 2]` are in the U."""
    x, y = position[..., 0], position[..., 1]
    return (x > LEFT) & (x < RIGHT) & (y >= FOOT) & (y < TOP)


def moved(position: tuple[float, float], action: tuple[float, float]) -> np.ndarray:
    env = registry.make("point_trap")
    state = env.reset(jax.random.key(0))[0]._replace(inner=jnp.asarray(position))
    return np.asarray(env.step(state, jnp.asarray(action), jax.random.key(1))[1].final_observation.features)


@pytest.mark.parametrize("toward", [-1.0, 1.0])
def test_side_walls_stop_motion_from_either_side_and_allow_sliding(toward: float) -> None:
    x, lower, upper = point_maze.TRAP_SIDES[int(toward > 0)]
    for height in (lower + 0.06, 0.5 * (lower + upper), upper - 0.06):
        for start in (x - 0.02 * toward, x + 0.02 * toward):
            push = 1.0 if start < x else -1.0
            np.testing.assert_allclose(moved((start, height), (push, 1.0)), [start, height + 0.05], atol=1e-6)
    np.testing.assert_allclose(moved((x - 0.02, lower - 0.03), (1.0, 0.0)), [x + 0.03, lower - 0.03], atol=1e-6)


def test_no_point_leaves_through_a_corner() -> None:
    for x, sideways in ((LEFT + 0.01, -1.0), (RIGHT - 0.01, 1.0)):
        np.testing.assert_allclose(moved((x, TOP - 0.01), (sideways, 1.0)), [x, TOP - 0.01], atol=1e-6)


def test_no_walk_ever_leaves_or_enters_but_through_the_open_side() -> None:
    env = registry.make("point_trap")

    def walk(key: jax.Array) -> jax.Array:
        start_key, action_key = jax.random.split(key)
        actions = jnp.clip(2.0 * jax.random.normal(action_key, (150, 2)) + jnp.asarray([[0.0, 0.4]]), -1.0, 1.0)

        def advance(state: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
            state, result = env.step(state, action, action_key)
            return state, result.final_observation.features

        state = env.reset(start_key)[0]._replace(inner=jax.random.uniform(start_key, (2,), minval=-0.8, maxval=0.3))
        return jax.lax.scan(advance, state, actions)[1]

    paths = np.asarray(jax.jit(jax.vmap(walk))(jax.random.split(jax.random.key(0), 256)), np.float64)
    before, after = paths[:, :-1], paths[:, 1:]
    crossed = inside(before) != inside(after)
    assert crossed.sum() > 50, "walks that never cross prove nothing"
    least = np.minimum(before[crossed][:, 1], after[crossed][:, 1])
    assert (least < FOOT).all(), "one of the two places lies below the feet of the side walls"


def test_the_greedy_way_ends_under_the_end_wall() -> None:
    way = (point_maze.TRAP_GOAL,)
    terminated, _, total, last = follow(registry.make("point_trap"), way, point_maze.TRAP_STRIDE)
    assert not terminated
    assert -160 < total < -150
    assert inside(last)
    assert TOP - point_maze.TRAP_STRIDE < last[1] < TOP


def test_the_way_around_reaches_the_goal() -> None:
    terminated, _, total, last = follow(registry.make("point_trap"), AROUND, point_maze.TRAP_STRIDE)
    assert terminated
    assert total > -60
    assert np.linalg.norm(last - np.asarray(point_maze.TRAP_GOAL)) <= point_maze.GOAL_RADIUS + 1e-6


def test_the_offset_covers_the_farthest_corner() -> None:
    farthest = np.hypot(1.0 + abs(point_maze.TRAP_GOAL[0]), 1.0 + point_maze.TRAP_GOAL[1])
    assert 0 <= registry.find("point_trap").qd_offset - farthest < 0.01
