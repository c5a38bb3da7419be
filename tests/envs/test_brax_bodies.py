"""How Brax's robots look: every task's shapes, and that poses and shapes together are where MuJoCo has them."""

import importlib
from typing import Any

import jax
import numpy as np
import pytest

from rookery.envs import registry
from rookery.envs.rendering.scene import Pose, Shape
from rookery.envs.suites.brax import adapter as brax
from rookery.envs.suites.brax import bodies as brax_bodies
from rookery.envs.suites.brax import walls as brax_walls

ROBOTS = {  # links, shapes of the links, shapes of the surroundings
    "hopper": (4, 4, 1),
    "walker2d": (7, 7, 1),
    "halfcheetah": (7, 8, 1),
    "ant": (9, 17, 1),
    "humanoid": (11, 17, 1),
    "humanoidstandup": (11, 17, 1),
    "inverted_pendulum": (2, 2, 1),
    "inverted_double_pendulum": (3, 3, 2),
    "pusher": (9, 19, 1),
    "reacher": (3, 4, 6),
    "swimmer": (3, 3, 1),
}
SIZES = {"capsule": 2, "sphere": 1, "box": 3, "cylinder": 2, "plane": 2}
NO_TURN = (1.0, 0.0, 0.0, 0.0)


def test_every_task_of_brax_is_one_of_these_robots() -> None:
    here = {name.split("_")[0] for name in ROBOTS}
    assert {name.split("_")[0] for name in registry.names() if registry.find(name).suite == "brax"} == here


@pytest.mark.parametrize("robot", sorted(ROBOTS))
def test_shapes_of_every_robot(robot: str) -> None:
    system = brax.load(robot, brax.default_backend(robot)).sys
    model = system.mj_model
    assert [model.body(body).name for body in range(1, model.nbody)] == system.link_names
    shapes = brax_bodies.shapes(model)
    links, own, around = ROBOTS[robot]
    assert {shape.link for shape in shapes} == set(range(-1, links))
    assert [sum(shape.link >= 0 for shape in shapes), sum(shape.link < 0 for shape in shapes)] == [own, around]
    for shape in shapes:
        assert len(shape.size) == SIZES[shape.kind]
        assert np.linalg.norm(shape.rotation) == pytest.approx(1.0, abs=1e-6)
        assert all(type(number) is float for part in shape[2:5] for number in part)


def test_shapes_by_hand_and_the_goal_of_a_model() -> None:
    shapes = brax_bodies.shapes(brax.load("ant", "spring").sys.mj_model)
    assert shapes[0] == Shape(-1, "plane", (40.0, 40.0), (0.0, 0.0, 0.0), NO_TURN, None)
    brown = (0.4, 0.33, 0.26, 1.0)
    assert shapes[1] == Shape(0, "sphere", (0.25,), (0.0, 0.0, 0.0), NO_TURN, brown)
    assert shapes[8] == Shape(2, "sphere", (0.08,), (0.4, 0.4, 0.0), NO_TURN, brown)
    goals = [shape for shape in brax_bodies.shapes(brax.load("reacher", "spring").sys.mj_model) if shape.role == "goal"]
    assert [(shape.link, shape.kind) for shape in goals] == [(2, "sphere")]


def test_walls_are_drawn_and_collision_shapes_are_not() -> None:
    picture: Any = registry.make("ant_maze").picture
    assert [shape.link for shape in picture.shapes if shape.kind == "box"] == [-1] * 7
    assert sum(shape.link >= 0 for shape in picture.shapes) == ROBOTS["ant"][1]  # without the sphere in the torso
    assert picture.seconds == 0.05
    assert [shape.position[:2] for shape in picture.shapes if shape.role == "goal"] == [brax_walls.GOAL]


def turned(rotation: Any, vector: Any) -> np.ndarray:
    """A vector `[3]` after a rotation, a unit quaternion (w, x, y, z)."""
    w, axis = rotation[0], np.asarray(rotation[1:], np.float64)
    return vector + 2.0 * np.cross(axis, np.cross(axis, vector) + w * np.asarray(vector))


def test_a_robot_is_where_mujoco_has_it() -> None:
    env: Any = registry.make("hopper")
    assert env.picture.seconds == 0.008
    reset = jax.jit(env.reset)
    state, _ = reset(jax.random.key(3))
    pose: Pose = jax.device_get(env.picture.bodies(state))
    mujoco = importlib.import_module("mujoco")
    model = brax.load("hopper", "spring").sys.mj_model
    data = mujoco.MjData(model)
    data.qpos[:] = np.asarray(state.inner.q)
    assert np.abs(data.qpos[2:]).max() > 1e-3  # bent, so that an order or a turn that is wrong shows
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(pose.position, data.xpos[1:], atol=1e-6)
    for geom, shape in enumerate(env.picture.shapes[1:], start=1):
        place = pose.position[shape.link] + turned(pose.rotation[shape.link], shape.position)
        np.testing.assert_allclose(place, data.geom_xpos[geom], atol=1e-6)
        along = turned(pose.rotation[shape.link], turned(shape.rotation, (0.0, 0.0, 1.0)))
        np.testing.assert_allclose(along, data.geom_xmat[geom].reshape(3, 3)[:, 2], atol=1e-6)


def test_a_team_that_shares_a_robot_is_drawn_as_that_robot() -> None:
    env: Any = registry.make("hopper_3x1")
    alone: Any = registry.make("hopper")
    assert env.picture.shapes == alone.picture.shapes
    assert env.picture.seconds == 0.008
    see = env.picture.bodies
    pose = jax.eval_shape(lambda key: see(env.reset(key)[0]), jax.random.key(0))
    assert (pose.position.shape, pose.rotation.shape) == ((4, 3), (4, 4))
