"""Brax's walking robots with walls: a trap straight ahead of the robot, and a maze.

Top views (metres; the robot starts at s, the origin, and faces along x):

    trap       y
           3.5 |          #############
           2.5 |          #############
               |                     ##
             0 s                     ##  end wall with its face at x = 11.5 for the ant, 8.5 for the humanoid
               |                     ##
          -2.5 |          #############
          -3.5 |          #############
               +----------|----------|-- x
                        face - 5    face

    maze    40 +----------#-------------------+
               |          #                   |
            30 |          #                   |
               |          #                   |
            20 |          #      #            |
               |                 #            |
            10 |                 #            |
           7.5 |           #######            |
               |                 #            |
             0 |   s             #         G  |   goal: (35, 0)
            -5 +-----------------#------------+
              -5   0      10     20        35 40

Walls are static boxes, 1 m thick, 2 m high and extending 2 m below the floor: robots that push hard climb walls of 1 m,
and a fallen robot, of which only the feet collide with the floor, would slip underneath. Only the feet and a few
spheres in the robot's body collide with walls; collisions of a leg's capsule would cost five times as much. The spheres
have no mass, so they do not change the robot's dynamics away from walls.

Source: the trap and maze that QDax had for Brax 1 (Chalumeau 2023, arXiv:2308.03665).
Deviation: walls are boxes, not capsules of 1 m height; the humanoid observes its position, as the ant does, and its
body collides with the walls, not only its feet.
"""

import importlib
from functools import partial
from importlib import resources
from typing import NamedTuple
from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np

from rookery.envs import base
from rookery.envs.base import DescriptorSpec
from rookery.envs.suites.brax import adapter as brax
from rookery.envs.suites.brax import feet as brax_feet
from rookery.envs.suites.brax.adapter import StateReaders, Variant
from rookery.envs.suites.third_party import BraxRobot, BraxState, MujocoModel
from rookery.settings import SettingError
from rookery.types import Array

BACKENDS = ("spring", "positional", "mjx")  # on `generalized`, walls eject robots or let them pass
WALL_BIT = 2  # of MuJoCo's collision masks; the floor has 1
HEIGHT = 2.0  # metres above the floor, and below it
GOAL = (35.0, 0.0)  # metres, in the maze
HEALTHY_HEIGHT = (0.2, 5.0)  # metres; range of the torso's height in the maze, wide enough for jumps


class Wall(NamedTuple):
    """A box's outline from above, in metres."""

    left: float  # smallest x
    right: float  # largest x
    near: float  # smallest y
    far: float  # largest y


class Robot(NamedTuple):
    """Properties of a robot that the wall tasks need."""

    trap_face: float
    """x of the inner face of the trap's end wall, metres."""
    spheres: tuple[tuple[str, float], ...]
    """Spheres that collide with walls in addition to the feet: name of the body, radius in metres."""


ROBOTS = {
    "ant": Robot(11.5, (("torso", 0.25),)),
    "humanoid": Robot(8.5, (("torso", 0.2), ("pelvis", 0.15))),
}
MAZE_WALLS = (
    Wall(-5.5, 40.5, -5.5, -4.5),  # the outer square
    Wall(-5.5, 40.5, 39.5, 40.5),
    Wall(-5.5, -4.5, -4.5, 39.5),
    Wall(39.5, 40.5, -4.5, 39.5),
    Wall(19.5, 20.5, -4.5, 19.5),  # between start and goal
    Wall(10.5, 19.5, 7.0, 8.0),  # a dead end in front of it
    Wall(9.5, 10.5, 20.25, 39.75),  # on the detour
)
TRAP_DESCRIPTOR = base.descriptor_spec("final x, y of the torso", "final", (0.0, -8.0), (30.0, 8.0), cell=1.0)
MAZE_DESCRIPTOR = base.descriptor_spec("final x, y of the torso", "final", (-5.0, -5.0), (40.0, 40.0), cell=1.0)


def trap_walls(face: float) -> tuple[Wall, ...]:
    """U-shaped walls, open towards the robot: the end wall's face is at x = `face`, side walls begin 5 m before it."""
    return (
        Wall(face, face + 1.0, -2.5, 2.5),
        Wall(face - 5.0, face + 1.0, -3.5, -2.5),
        Wall(face - 5.0, face + 1.0, 2.5, 3.5),
    )


def add_walls(brax_env: BraxRobot, name: str, walls: tuple[Wall, ...]) -> None:
    """Add walls to an environment that `brax.load` returned; robot, solver options and actuators are unchanged.

    The model is loaded again from Brax's file with the walls added. The walls get the geometry ids after the floor's,
    so the ids of the robot's geometries shift.

    Args:
      brax_env: Brax's environment; its system is replaced.
      name: name of the robot, one of `ROBOTS`.
      walls: at least one.

    Raises:
      ValueError: the backend does not support walls, or the robot is not in `ROBOTS`.
    """
    if name not in ROBOTS:
        raise ValueError(
            f"walls support the robots {sorted(ROBOTS)}, not {name!r}; add its collision spheres to `walls.ROBOTS`."
        )
    if brax_env.backend not in BACKENDS:
        problem = "does not support walls: they eject robots or let them pass through"
        raise SettingError("backend", brax_env.backend, problem, f"use {' or '.join(BACKENDS)}")
    mjcf = importlib.import_module("brax.io.mjcf")
    text = resources.files("brax").joinpath("envs", "assets", f"{name}.xml").read_text()
    with brax.quiet_model_load():
        walled = mjcf.loads(_with_walls(text, brax_env.sys.mj_model, ROBOTS[name].spheres, walls))
    brax_env.sys = walled.replace(opt=brax_env.sys.opt, actuator=brax_env.sys.actuator)


def _with_walls(text: str, model: MujocoModel, spheres: tuple[tuple[str, float], ...], walls: tuple[Wall, ...]) -> str:
    """Return a robot's MJCF with walls, and with the collision bit of walls on its feet and on added `spheres`."""
    root = ElementTree.fromstring(text)
    for foot in brax_feet.floor_and_feet(model)[1]:
        mask = int(model.geom_contype[foot]) | WALL_BIT
        _find(root, "geom", model.geom(foot).name).set("contype", str(mask))
    for body, radius in spheres:
        sphere = {"name": f"{body}_meets_walls", "type": "sphere", "size": str(radius), "mass": "0"}
        mask = {"contype": str(WALL_BIT), "conaffinity": "0", "rgba": "0 0 0 0"}
        ElementTree.SubElement(_find(root, "body", body), "geom", {**sphere, **mask})
    for number, wall in enumerate(walls):
        box = {
            "name": f"wall_{number}",
            "type": "box",
            "pos": f"{(wall.left + wall.right) / 2} {(wall.near + wall.far) / 2} 0",
            "size": f"{(wall.right - wall.left) / 2} {(wall.far - wall.near) / 2} {HEIGHT}",
        }
        mask = {"contype": "0", "conaffinity": str(WALL_BIT), "rgba": "0.6 0.6 0.65 1"}
        ElementTree.SubElement(_find(root, "worldbody"), "geom", {**box, **mask})
    return ElementTree.tostring(root, encoding="unicode")


def _find(root: ElementTree.Element, tag: str, name: str | None = None) -> ElementTree.Element:
    found = root.find(f".//{tag}[@name='{name}']" if name else f".//{tag}")
    if found is None:
        raise ValueError(
            f"Brax's model has no {tag} {name or ''}: this release of Brax is not supported; run: {brax.INSTALL}"
        )
    return found


def _prepare_trap(brax_env: BraxRobot, name: str) -> StateReaders:
    add_walls(brax_env, name, trap_walls(ROBOTS[name].trap_face) if name in ROBOTS else ())
    return StateReaders(partial(positioned_observation, TRAP_DESCRIPTOR), brax.native_reward, brax.torso_position)


def _prepare_maze(brax_env: BraxRobot, name: str) -> StateReaders:
    add_walls(brax_env, name, MAZE_WALLS)
    return StateReaders(partial(positioned_observation, MAZE_DESCRIPTOR), _negative_goal_distance, brax.torso_position)


TRAP = Variant(_prepare_trap, TRAP_DESCRIPTOR)
"""Brax's environment with a trap ahead of the robot and the robot's position in the observation; same reward."""

MAZE = Variant(_prepare_maze, MAZE_DESCRIPTOR, {"healthy_z_range": HEALTHY_HEIGHT}, GOAL, reward_parts=())
"""The maze, for the ant: the reward is minus the distance to the goal, the episode terminates when the torso leaves
`HEALTHY_HEIGHT`, and the observation contains the robot's position."""


def positioned_observation(limits: DescriptorSpec, state: BraxState) -> Array:
    """Prepend the torso's x and y, scaled so that `limits` become [-1, 1], to the observation; `[2 + O]`."""
    lower, upper = np.asarray(limits.lower, np.float32), np.asarray(limits.upper, np.float32)
    position = (brax.torso_position(state) - (lower + upper) / 2.0) / ((upper - lower) / 2.0)
    return jnp.concatenate([position, brax.native_observation(state)])


def _negative_goal_distance(state: BraxState) -> Array:
    """Minus the distance from the torso to the goal, `[]` in metres."""
    return -jnp.linalg.norm(brax.torso_position(state) - jnp.asarray(GOAL, jnp.float32))
