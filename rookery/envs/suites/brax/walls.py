"""Brax's walking robots among walls: a trap on the straight way, and a maze.

Top views (metres; the robot starts at s, which is the origin, and faces along x):

    trap       y
           3.5 |          #############
           2.5 |          #############
               |                     ##
             0 s                     ##  end wall: its face at x = 11.5 for the ant, 8.5 for the humanoid
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

Walls are boxes of the world, 1 m thick, 2 m high and reaching 2 m below the floor: pushed hard, robots climb walls of
1 m, and a fallen robot, of which only the feet meet the floor, would slip underneath. Only the feet and a few spheres
in the robot's body meet walls; a leg's capsule would cost five times as much. The spheres have no mass, so a walled
robot moves as a free one does.

Source: the trap and maze that QDax had for Brax 1 (Chalumeau 2023, arXiv:2308.03665).
Deviation: walls are boxes, not capsules of 1 m height; the humanoid observes its position as the ant does, and its body
meets the walls, not only its feet.
"""

import importlib
from functools import partial
from importlib import resources
from typing import Any, NamedTuple
from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np

from rookery.envs import base
from rookery.envs.base import DescriptorSpec
from rookery.envs.suites.brax import adapter as brax
from rookery.envs.suites.brax import feet as brax_feet
from rookery.envs.suites.brax.adapter import Reading, Variant
from rookery.types import Array

BACKENDS = ("spring", "positional", "mjx")  # on `generalized`, robots are thrown by walls or pass through them
WALL_BIT = 2  # of MuJoCo's collision masks; the floor has 1
HEIGHT = 2.0  # metres above the floor, and below it
GOAL = (35.0, 0.0)  # metres, in the maze
FREE_HEIGHT = (0.2, 5.0)  # metres; the torso's in the maze, so that jumping does not end an episode


class Wall(NamedTuple):
    """A box's outline from above, in metres."""

    left: float  # least x
    right: float  # greatest x
    near: float  # least y
    far: float  # greatest y


class Robot(NamedTuple):
    """What walls must know of a robot."""

    trap_face: float  # metres, x of the inner face of the trap's end wall
    spheres: tuple[tuple[str, float], ...]  # what meets walls beside the feet: name of a body, radius in metres


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
    Wall(10.5, 19.5, 7.0, 8.0),  # a dead end before it
    Wall(9.5, 10.5, 20.25, 39.75),  # on the way round
)
TRAP_DESCRIPTOR = base.descriptor_spec("final x, y of the torso", "final", (0.0, -8.0), (30.0, 8.0))
MAZE_DESCRIPTOR = base.descriptor_spec("final x, y of the torso", "final", (-5.0, -5.0), (40.0, 40.0))


def trap_walls(face: float) -> tuple[Wall, ...]:
    """A U that is open towards the robot: the end wall's face at x = `face`, side walls from 5 m before it."""
    return (
        Wall(face, face + 1.0, -2.5, 2.5),
        Wall(face - 5.0, face + 1.0, -3.5, -2.5),
        Wall(face - 5.0, face + 1.0, 2.5, 3.5),
    )


def add_walls(world: Any, name: str, walls: tuple[Wall, ...]) -> None:
    """Put walls into a world that `brax.load` gave; the robot and what the backend has set up stay as they are.

    The model is read again from Brax's own file, with the walls in it. Walls take the ids after the floor's, so those
    of the robot's geometries shift.

    Args:
      world: Brax's environment; its system is replaced.
      name: the robot's, one of `ROBOTS`.
      walls: at least one.

    Raises:
      ValueError: walls do not hold on the world's backend, or the robot is not known here.
    """
    if name not in ROBOTS:
        raise ValueError(f"walls know {sorted(ROBOTS)}, not {name!r}: what of a robot meets them must be declared.")
    if world.backend not in BACKENDS:
        raise ValueError(
            f"walls do not hold on backend {world.backend!r}: robots are thrown by them or pass through; "
            f"use one of {list(BACKENDS)}."
        )
    mjcf: Any = importlib.import_module("brax.io.mjcf")
    text = resources.files("brax").joinpath("envs", "assets", f"{name}.xml").read_text()
    with brax.quiet_model_load():
        walled = mjcf.loads(_with_walls(text, world.sys.mj_model, ROBOTS[name].spheres, walls))
    world.sys = walled.replace(opt=world.sys.opt, actuator=world.sys.actuator)


def _with_walls(text: str, model: Any, spheres: tuple[tuple[str, float], ...], walls: tuple[Wall, ...]) -> str:
    """A robot's MJCF with walls, and with the bit by which its feet and `spheres` meet them."""
    root = ElementTree.fromstring(text)
    for foot in brax_feet.floor_and_feet(model)[1]:
        mask = int(model.geom_contype[foot]) | WALL_BIT
        _the(root, "geom", model.geom(foot).name).set("contype", str(mask))
    for body, radius in spheres:
        ball = {"name": f"{body}_meets_walls", "type": "sphere", "size": str(radius), "mass": "0"}
        mask = {"contype": str(WALL_BIT), "conaffinity": "0", "rgba": "0 0 0 0"}
        ElementTree.SubElement(_the(root, "body", body), "geom", {**ball, **mask})
    for number, wall in enumerate(walls):
        box = {
            "name": f"wall_{number}",
            "type": "box",
            "pos": f"{(wall.left + wall.right) / 2} {(wall.near + wall.far) / 2} 0",
            "size": f"{(wall.right - wall.left) / 2} {(wall.far - wall.near) / 2} {HEIGHT}",
        }
        mask = {"contype": "0", "conaffinity": str(WALL_BIT), "rgba": "0.6 0.6 0.65 1"}
        ElementTree.SubElement(_the(root, "worldbody"), "geom", {**box, **mask})
    return ElementTree.tostring(root, encoding="unicode")


def _the(root: ElementTree.Element, tag: str, name: str | None = None) -> ElementTree.Element:
    """The element of this tag, and of this name if one is given."""
    found = root.find(f".//{tag}[@name='{name}']" if name else f".//{tag}")
    if found is None:
        raise ValueError(f"Brax's model has no {tag} {name or ''}: this release of Brax is not known here.")
    return found


def _trap(world: Any, name: str) -> Reading:
    add_walls(world, name, trap_walls(ROBOTS[name].trap_face) if name in ROBOTS else ())
    return Reading(partial(placed_observation, TRAP_DESCRIPTOR), brax.own_reward, brax.torso_position)


def _maze(world: Any, name: str) -> Reading:
    add_walls(world, name, MAZE_WALLS)
    return Reading(partial(placed_observation, MAZE_DESCRIPTOR), _nearness, brax.torso_position)


TRAP = Variant(_trap, TRAP_DESCRIPTOR)
"""The environment with a trap ahead of the robot, which observes its position; the reward stays."""

MAZE = Variant(_maze, MAZE_DESCRIPTOR, {"healthy_z_range": FREE_HEIGHT}, GOAL)
"""The maze, for the ant: minus the distance to the goal as the reward, terminated when the torso leaves
`FREE_HEIGHT`; the robot observes its position."""


def placed_observation(limits: DescriptorSpec, state: Any) -> Array:
    """The torso's x and y, scaled so that `limits` become [-1, 1], before the environment's observation; `[2 + O]`."""
    lower, upper = np.asarray(limits.lower, np.float32), np.asarray(limits.upper, np.float32)
    place = (brax.torso_position(state) - (lower + upper) / 2.0) / ((upper - lower) / 2.0)
    return jnp.concatenate([place, brax.own_observation(state)])


def _nearness(state: Any) -> Array:
    """Minus the torso's distance to the goal, `[]` in metres."""
    return -jnp.linalg.norm(brax.torso_position(state) - jnp.asarray(GOAL, jnp.float32))
