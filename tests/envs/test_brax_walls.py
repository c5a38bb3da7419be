"""Robots among walls: where the walls are, that they hold, and what the tasks read off the state."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import registry
from rookery.envs.base import Step
from rookery.envs.suites.brax import adapter as brax
from rookery.envs.suites.brax import feet as brax_feet
from rookery.envs.suites.brax import walls as brax_walls
from rookery.envs.wrappers import time_limit

ROBOT = {"ant_trap": "ant", "humanoid_trap": "humanoid", "ant_maze": "ant"}
VARIANT = {"ant_trap": brax_walls.TRAP, "humanoid_trap": brax_walls.TRAP, "ant_maze": brax_walls.MAZE}
RADIUS = {"ant": 0.25, "humanoid": 0.2}  # of the torso's collision spheres
PUSHES = 10  # robots of one run; a test may use fewer
STEPS = {"ant": 25, "humanoid": 50}  # of 0.05 and 0.015 seconds
YIELD = 0.05  # metres; how far a robot thrown at a wall may dent it

OUTLINES = {  # least x, greatest x, least y, greatest y
    "ant_trap": [(11.5, 12.5, -2.5, 2.5), (6.5, 12.5, -3.5, -2.5), (6.5, 12.5, 2.5, 3.5)],
    "humanoid_trap": [(8.5, 9.5, -2.5, 2.5), (3.5, 9.5, -3.5, -2.5), (3.5, 9.5, 2.5, 3.5)],
    "ant_maze": [
        (-5.5, 40.5, -5.5, -4.5),
        (-5.5, 40.5, 39.5, 40.5),
        (-5.5, -4.5, -4.5, 39.5),
        (39.5, 40.5, -4.5, 39.5),
        (19.5, 20.5, -4.5, 19.5),
        (10.5, 19.5, 7.0, 8.0),
        (9.5, 10.5, 20.25, 39.75),
    ],
}


class Push(NamedTuple):
    """A robot put somewhere with a velocity, and the bound that its torso must reach and not pass."""

    x: float
    y: float
    speed_x: float
    speed_y: float
    axis: int  # 0: x, 1: y
    face: float | None  # of the wall ahead; None where there is none


TRAP = [
    Push(5.5, 0.0, 10.0, 0.0, 0, 8.5),
    Push(6.0, 0.0, 0.0, 10.0, 1, 2.5),
    Push(6.0, 0.0, 0.0, -10.0, 1, -2.5),
    Push(12.0, 0.0, -10.0, 0.0, 0, 9.5),
    Push(6.0, -6.0, 0.0, 10.0, 1, -3.5),
    Push(5.5, 5.5, 10.0, 0.0, 0, None),
]
MAZE = [
    Push(17.0, 2.0, 10.0, 0.0, 0, 19.5),
    Push(15.0, 10.0, 0.0, -10.0, 1, 8.0),
    Push(7.0, 30.0, 10.0, 0.0, 0, 9.5),
    Push(37.0, 20.0, 10.0, 0.0, 0, 39.5),
    Push(-2.0, 20.0, -10.0, 0.0, 0, -4.5),
    Push(5.0, 37.0, 0.0, 10.0, 1, 39.5),
    Push(5.0, -2.0, 0.0, -10.0, 1, -4.5),
    Push(8.5, 14.0, 10.0, 0.0, 0, None),
]
PUSHED = {"humanoid_trap": TRAP, "ant_maze": MAZE}  # each robot and each kind of walls


@cache
def walled(task: str) -> Any:
    """Brax's system with the walls of a task."""
    environment = brax.load(ROBOT[task], "spring", **VARIANT[task].options)
    VARIANT[task].prepare(environment, ROBOT[task])
    return environment


@cache
def rolling(task: str) -> Callable[..., tuple[Any, Step]]:
    """Compiled: coordinates `[PUSHES, ...]` and velocities -> states and steps, `[T, PUSHES, ...]`, without action."""
    environment, env = walled(task), registry.make(task)

    def start(q: jax.Array, qd: jax.Array) -> time_limit.TimeLimitState:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return time_limit.TimeLimitState(environment.pipeline_init(q, qd), jnp.zeros((), jnp.int32))

    def advance(state: Any, _: None) -> tuple[Any, tuple[Any, Step]]:
        action = jnp.zeros((PUSHES, env.spec.action_size))
        state, step = jax.vmap(env.step, in_axes=(0, 0, None))(state, action, jax.random.key(0))
        return state, ((state.inner.q, state.inner.qd, state.inner.x.pos), step)

    def roll(q: jax.Array, qd: jax.Array) -> tuple[Any, Step]:
        return jax.lax.scan(advance, jax.vmap(start)(q, qd), length=STEPS[ROBOT[task]])[1]

    return jax.jit(roll)


@pytest.mark.filterwarnings("ignore:Accessing `:DeprecationWarning")
def thrown(task: str, places: list[tuple[float, ...]], speeds: list[tuple[float, ...]]) -> tuple[Any, Step]:
    """Robots placed at (x, y) or (x, y, z) with a velocity along the same axes; see `rolling`."""
    system = walled(task).sys
    q = np.tile(np.asarray(system.init_q), (PUSHES, 1))
    qd = np.zeros((PUSHES, system.qd_size()), np.float32)
    for row, (place, speed) in enumerate(zip(places, speeds, strict=True)):
        q[row, : len(place)], qd[row, : len(speed)] = place, speed
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:, : len(places)], rolling(task)(q.astype(np.float32), qd))


@pytest.mark.parametrize("task", OUTLINES)
def test_positions_of_walls(task: str) -> None:
    model = walled(task).sys.mj_model
    boxes = [g for g in range(model.ngeom) if model.geom_type[g] == 6]
    low, high = (model.geom_pos[boxes] + sign * model.geom_size[boxes] for sign in (-1.0, 1.0))
    outlines = np.stack([low[:, 0], high[:, 0], low[:, 1], high[:, 1]], axis=1)
    np.testing.assert_allclose(outlines, OUTLINES[task], atol=1e-6)
    np.testing.assert_allclose(low[:, 2], -2.0, atol=1e-6)
    np.testing.assert_allclose(high[:, 2], 2.0, atol=1e-6)
    assert (model.geom_bodyid[boxes] == 0).all()
    np.testing.assert_allclose(model.geom_quat[boxes], [[1.0, 0.0, 0.0, 0.0]] * len(boxes))


@pytest.mark.parametrize("task", ["ant_maze", "humanoid_trap"])
def test_only_feet_and_spheres_in_the_body_collide_with_walls(task: str) -> None:
    model = walled(task).sys.mj_model
    plain = brax.load(ROBOT[task], "spring").sys.mj_model
    feet = {plain.geom(g).name for g in brax_feet.floor_and_feet(plain)[1]}
    bodies = {"ant": ["torso"], "humanoid": ["torso", "pelvis"]}[ROBOT[task]]
    touch = {bit: {g for g in range(model.ngeom) if model.geom_contype[g] & bit} for bit in (1, 2)}
    names = {bit: {model.geom(g).name for g in found} for bit, found in touch.items()}
    assert names == {1: feet, 2: feet | {f"{body}_meets_walls" for body in bodies}}
    assert {int(model.geom_type[g]) for g in touch[2]} == {2}
    torso = model.geom("torso_meets_walls")
    assert (float(torso.size[0]), torso.bodyid[0]) == (RADIUS[ROBOT[task]], 1)
    receives = {g: int(model.geom_conaffinity[g]) for g in range(model.ngeom) if model.geom_conaffinity[g]}
    assert receives.pop(brax_feet.floor_and_feet(model)[0]) == 1
    assert list(receives.values()) == [2] * len(OUTLINES[task])


@pytest.mark.parametrize("robot", sorted(brax_walls.ROBOTS))
def test_the_robot_is_the_plain_one(robot: str) -> None:
    plain, environment = brax.load(robot, "spring"), walled(f"{robot}_trap")
    assert environment.sys.mj_model.ngeom > plain.sys.mj_model.ngeom
    for part in ("link", "dof", "actuator", "opt", "init_q", "gravity"):
        ours, theirs = jax.tree.leaves(getattr(environment.sys, part)), jax.tree.leaves(getattr(plain.sys, part))
        assert len(ours) == len(theirs) > 0
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)
    count = {"ant": 4, "humanoid": 2}[robot]
    for one, other in zip(*(brax_feet.find_feet(w.sys, count) for w in (environment, plain)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("task", PUSHED)
def test_walls_hold(task: str) -> None:
    pushes = PUSHED[task]
    _, steps = thrown(task, [(p.x, p.y) for p in pushes], [(p.speed_x, p.speed_y) for p in pushes])
    assert not steps.broken.any()
    for push, path in zip(pushes, steps.descriptor.swapaxes(0, 1), strict=True):
        sign = np.sign((push.speed_x, push.speed_y)[push.axis])
        furthest = (sign * path[:, push.axis]).max()
        if push.face is None:
            assert furthest > push.x + 1.5, f"{push} stands free"
        else:
            rest = sign * push.face - RADIUS[ROBOT[task]]
            assert rest - 0.4 < furthest < rest + YIELD, push


@pytest.mark.parametrize("task", PUSHED)
def test_the_position_is_the_torsos_after_the_step(task: str) -> None:
    (q, qd, links), steps = thrown(task, [(-3.0, 2.0)], [(1.0, 0.0)])
    np.testing.assert_allclose(steps.descriptor, links[:, :, 0, :2], atol=1e-4)
    np.testing.assert_array_equal(steps.descriptor, q[:, :, :2])
    assert steps.descriptor[0, 0, 0] != pytest.approx(-3.0, abs=1e-3)  # it moved
    assert steps.descriptor[0, 0, 0] < 0.0  # and is not clipped to the limits of the trap
    centre, half = ([17.5, 17.5], [22.5, 22.5]) if task == "ant_maze" else ([15.0, 0.0], [15.0, 8.0])
    place = (q[:, :, :2] - np.asarray(centre)) / np.asarray(half)
    np.testing.assert_allclose(steps.observation.features[:, :, :2], place, atol=1e-5)
    own = np.concatenate([q[:, :, 2:], qd], axis=-1)
    np.testing.assert_array_equal(steps.observation.features[:, :, 2 : 2 + own.shape[-1]], own)


def test_the_traps_reward_is_the_environments() -> None:
    for robot in ("ant", "humanoid"):
        assert brax_walls.TRAP.prepare(brax.load(robot, "spring"), robot).reward is brax.native_reward


def test_the_mazes_reward_is_minus_the_distance_to_the_goal() -> None:
    (q, _, _), steps = thrown("ant_maze", [(32.0, 4.0), (-3.0, 0.0), (35.0, 0.0)], [(5.0, 0.0), (0.0, 0.0), (0.0, 0.0)])
    np.testing.assert_allclose(steps.reward, -np.hypot(35.0 - q[:, :, 0], q[:, :, 1]), rtol=1e-5, atol=1e-6)
    assert steps.reward[0].tolist() == pytest.approx([-5.0, -38.0, 0.0], abs=0.3)


def test_the_maze_ends_with_a_torso_too_low_or_too_high() -> None:
    upright, overturned = (1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0)
    places = [
        (0.0, 0.0, 1.5, *upright),
        (0.0, 0.0, 4.0, *upright),
        (0.0, 0.0, 6.0, *upright),
        (5.0, 0.0, 0.4, *overturned),
    ]
    (_, _, links), steps = thrown("ant_maze", places, [(0.0,)] * len(places))
    assert steps.terminated[0].tolist() == [False, False, True, False]
    assert steps.terminated[-1, 3], "an ant on its back sinks"
    torso = links[:, :, 0, 2]
    np.testing.assert_array_equal(steps.terminated, (torso < 0.2) | (torso > 5.0))


def test_walls_that_would_not_hold_are_refused() -> None:
    with pytest.raises(ValueError, match=r"backend does not support walls: .* pass through, got 'generalized'"):
        registry.make("ant_trap", backend="generalized")
    with pytest.raises(ValueError, match="not 'hopper'; add its collision spheres"):
        brax.make("hopper", variant=brax_walls.TRAP)
