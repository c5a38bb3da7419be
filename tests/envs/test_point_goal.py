"""The sparse goal: what its reward, its weights and its measures are, and that the greedy way is a dead end."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import registry
from rookery.envs.base import Environment
from rookery.envs.tasks import point_maze
from rookery.envs.tasks.point_maze import ShapingWeights
from tests.tiny import assert_equal

GOAL = np.asarray(point_maze.TRAP_GOAL)


@cache
def task() -> Environment:
    return registry.make("point_goal")


@cache
def stepping() -> Any:
    def step(weights: ShapingWeights, position: jax.Array, action: jax.Array) -> Any:
        environment = task()
        assert environment.parameterize is not None
        state = environment.reset(jax.random.key(0))[0]._replace(inner=position)
        return environment.parameterize(weights).step(state, action, jax.random.key(0))[1]

    return jax.jit(step)


def walk(*points: Any) -> tuple[np.ndarray, dict[str, float], float]:
    """Go straight to each point in turn: the last position, the sums of the measures, and the return of the task."""
    position, sums, total = np.asarray(point_maze.TRAP_START, np.float32), {"success": 0.0, "approach": 0.0}, 0.0
    for point in points:
        for _ in range(40):
            action = np.clip((np.asarray(point) - position) / point_maze.GOAL_STRIDE, -1.0, 1.0).astype(np.float32)
            step = stepping()(ShapingWeights(0.0, 0.0), position, action)
            position = np.asarray(step.final_observation.features)
            sums = {name: value + float(step.measures[name]) for name, value in sums.items()}
            total += float(step.reward)
            if step.terminated:
                return position, sums, total
    return position, sums, total


def test_the_greedy_way_is_a_dead_end() -> None:
    position, sums, total = walk(GOAL, GOAL)
    np.testing.assert_allclose(position, [0.0, -0.0], atol=point_maze.GOAL_STRIDE)
    assert (sums["success"], total) == (0.0, 0.0)
    assert sums["approach"] == pytest.approx(1.55 - (0.75 - position[1]), abs=1e-5)


def test_the_way_around_the_wall_reaches_the_goal() -> None:
    position, sums, total = walk((0.6, 0.05), GOAL)
    distance = np.linalg.norm(position - GOAL)
    assert distance <= point_maze.GOAL_RADIUS
    assert (sums["success"], total) == (1.0, 1.0)
    assert sums["approach"] == pytest.approx(1.55 - distance, abs=1e-5)


def test_each_weight_changes_its_part_of_the_reward() -> None:
    position, action = np.asarray([0.2, -0.5], np.float32), np.asarray([1.0, 0.5], np.float32)
    after = position + point_maze.GOAL_STRIDE * action
    approach = np.linalg.norm(position - GOAL) - np.linalg.norm(after - GOAL)
    for weights, expected in (
        (ShapingWeights(0.0, 0.0), 0.0),
        (ShapingWeights(2.0, 0.0), 2.0 * approach),
        (ShapingWeights(0.0, -3.0), -3.0 * 0.025),
        (ShapingWeights(0.5, 1.0), 0.5 * approach + 0.025),
    ):
        reward = stepping()(weights, position, action).reward
        assert float(reward) == pytest.approx(expected, abs=1e-6)


def test_the_task_itself_is_sparse() -> None:
    state = task().reset(jax.random.key(0))[0]._replace(inner=jnp.asarray([0.0, 0.6]))
    plain = jax.jit(task().step)(state, jnp.asarray([0.0, 1.0]), jax.random.key(0))[1]
    bound = stepping()(ShapingWeights(0.0, 0.0), jnp.asarray([0.0, 0.6]), jnp.asarray([0.0, 1.0]))
    assert (float(plain.reward), bool(plain.terminated)) == (0.0, False)
    assert_equal(plain.measures, bound.measures)
    reached = jax.jit(task().step)(state._replace(inner=jnp.asarray([0.0, 0.64])), jnp.ones(2), jax.random.key(0))[1]
    assert (float(reached.reward), bool(reached.terminated)) == (1.0, True)
