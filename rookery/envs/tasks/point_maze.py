"""A point in a square: `point_maze` and `point_trap`, whose greedy paths are dead ends, and the empty `point_room`.

Geometry of the maze (lengths without unit; the square is [-1, 1]^2, x to the right, y upwards):

    y =  1.0  +-----------------------+
              |      G                |   goal zone: the disc of radius 0.1 around (-0.4, 0.8)
    y =  0.2  |     ------------------|   upper wall: x in [-0.5, 1.0], the way round is on the left
              |                       |
    y = -0.5  |------------------     |   lower wall: x in [-1.0, 0.5], the way round is on the right
              |           s           |   start: (0.0, -0.9), uniform noise of 0.05 on either axis
    y = -1.0  +-----------------------+

Walking towards the goal ends under the lower wall, at (-0.4, -0.5) and 1.3 from the goal; the way on is on the right,
0.9 away from there. Past it, walking towards the goal ends under the upper wall, 0.6 from the goal and 0.1 from the way
on. The whole way takes about 24 steps and returns about -23; the dead ends return about -270 and -135. Soft
actor-critic finds it within 60 thousand steps; with the goal in the middle, half a unit to go back at either wall, it
stays under the upper one.

A step moves the point by `action / 10`, so by at most 0.1 along either axis. A wall stops the motion across it, not
the motion along it: who pushes against a wall slides. Everything is pure JAX.

Geometry of the trap, a U that is open towards the start:

    y =  1.0  +-----------------------+
              |           G           |   goal zone: the disc of radius 0.1 around (0.0, 0.75)
    y =  0.0  |      -----------      |   end wall: x in [-0.5, 0.5]
              |      |         |      |   side walls: x = -0.5 and 0.5, y in [-0.6, 0.0]
    y = -0.6  |      |         |      |
              |           s           |   start: (0.0, -0.8), uniform noise of 0.05 on either axis
    y = -1.0  +-----------------------+

Walking towards the goal ends under the end wall, 0.75 from the goal; the way out leads 0.6 back, away from the goal. A
step is half as long as in the maze, so that who moves at random hardly ever gets around.
"""

from functools import partial

import jax
import jax.numpy as jnp

from rookery.envs import base
from rookery.envs.base import Environment, EnvSpec, Step
from rookery.envs.rendering.scene import Picture, Scene, Scenery
from rookery.envs.wrappers import time_limit
from rookery.types import Array, Key

EPISODE_LENGTH = 200
STRIDE = 0.1  # distance along an axis per step with an action of 1
START = (0.0, -0.9)
START_NOISE = 0.05
WALLS = ((-0.5, -1.0, 0.5), (0.2, -0.5, 1.0))  # y, left end, right end
GOAL = (-0.4, 0.8)
GOAL_RADIUS = 0.1
TRAP_STRIDE = 0.05
TRAP_START = (0.0, -0.8)
TRAP_GOAL = (0.0, 0.75)
TRAP_END = ((0.0, -0.5, 0.5),)  # y, left end, right end
TRAP_SIDES = ((-0.5, -0.6, 0.0), (0.5, -0.6, 0.0))  # x, lower end, upper end
ROOM_START = (0.0, 0.0)
CONTROL_COST = 0.01
BODY_RADIUS = 0.04  # of the disc that a picture shows
DESCRIPTOR = base.descriptor_spec("final x, y", "final", (-1.0, -1.0), (1.0, 1.0))


def point_maze(episode_length: int = EPISODE_LENGTH) -> Environment:
    """The maze: minus the distance to the goal as the reward, terminated inside the goal zone.

    Observation `[2]` and descriptor `[2]` are the position, in [-1, 1]^2; the action `[2]` is clipped to [-1, 1]; the
    reward lies in [-2.29, 0] per step.

    Args:
      episode_length: steps until truncation, at least 1.

    Raises:
      ValueError: `episode_length` is below 1.
    """
    return _environment("point_maze", START, _maze_step, episode_length, _scenery(GOAL, WALLS))


def point_trap(episode_length: int = EPISODE_LENGTH) -> Environment:
    """The trap: minus the distance to the goal as the reward, terminated inside the goal zone.

    Observation, action and descriptor as in `point_maze`; the reward lies in [-2.02, 0] per step.

    Args:
      episode_length: steps until truncation, at least 1.

    Raises:
      ValueError: `episode_length` is below 1.
    """
    scenery = _scenery(TRAP_GOAL, TRAP_END, TRAP_SIDES)
    return _environment("point_trap", TRAP_START, _trap_step, episode_length, scenery)


def point_room(episode_length: int = EPISODE_LENGTH) -> Environment:
    """The open room: no wall, no goal, never terminated; the start is in the middle.

    It is made for skill discovery, which brings its own reward. The room's is a control cost, -0.01 times the squared
    norm of the action, in [-0.02, 0] per step. Observation, action and descriptor as in `point_maze`.

    Args:
      episode_length: steps until truncation, at least 1.

    Raises:
      ValueError: `episode_length` is below 1.
    """
    return _environment("point_room", ROOM_START, _room_step, episode_length, _scenery())


def _environment(
    name: str, start: tuple[float, float], step: base.StepFn, episode_length: int, scenery: Scenery
) -> Environment:
    spec = EnvSpec(name, observation_size=2, action_size=2, episode_length=episode_length, descriptor=DESCRIPTOR)
    environment = Environment(partial(_reset, start), step, spec, picture=Picture(_scene, scenery))
    return time_limit.limit_episode(time_limit.guard_physics(environment), episode_length)


def _scenery(
    goal: tuple[float, float] | None = None,
    across: tuple[tuple[float, float, float], ...] = (),
    along: tuple[tuple[float, float, float], ...] = (),
) -> Scenery:
    """Walls as above: `across` as (y, left end, right end), `along` as (x, lower end, upper end)."""
    walls = [(left, y, right, y) for y, left, right in across] + [(x, lower, x, upper) for x, lower, upper in along]
    return Scenery(
        lower=(-1.0, -1.0),
        upper=(1.0, 1.0),
        bodies=("point",),
        radii=(BODY_RADIUS,),
        walls=tuple(walls),
        goals=() if goal is None else ((*goal, GOAL_RADIUS),),
    )


def _scene(state: Array) -> Scene:
    return Scene(state[None], jnp.full((1,), jnp.nan), jnp.ones((1,), bool))


def _reset(start: tuple[float, float], key: Key) -> tuple[Array, Step]:
    noise = jax.random.uniform(key, (2,), jnp.float32, -START_NOISE, START_NOISE)
    position = jnp.asarray(start, jnp.float32) + noise
    return position, base.first_step(position, position)


def _maze_step(state: Array, action: Array, key: Key) -> tuple[Array, Step]:
    del key  # the maze is deterministic
    return _towards(GOAL, move(state, action, WALLS))


def _towards(goal: tuple[float, float], position: Array) -> tuple[Array, Step]:
    distance = jnp.linalg.norm(position - jnp.asarray(goal, jnp.float32))
    return position, base.next_step(position, -distance, distance <= GOAL_RADIUS, position)


def _trap_step(state: Array, action: Array, key: Key) -> tuple[Array, Step]:
    """First along x, then along y: two straight motions find every corner closed."""
    del key  # the trap is deterministic
    along_x, along_y = action * jnp.asarray([1.0, 0.0]), action * jnp.asarray([0.0, 1.0])
    position = move(state[::-1], along_x[::-1], TRAP_SIDES, TRAP_STRIDE)[::-1]
    return _towards(TRAP_GOAL, move(position, along_y, TRAP_END, TRAP_STRIDE))


def _room_step(state: Array, action: Array, key: Key) -> tuple[Array, Step]:
    del key  # the room is deterministic
    position = move(state, action, ())
    cost = CONTROL_COST * jnp.sum(jnp.square(jnp.clip(action, -1.0, 1.0)))
    return position, base.next_step(position, -cost, jnp.asarray(False), position)


def move(
    position: Array, action: Array, walls: tuple[tuple[float, float, float], ...], stride_length: float = STRIDE
) -> Array:
    """The position `[2]` after one step; blocked by horizontal `walls`, given as (y, left end, right end).

    A point at y equal to a wall's counts as above it. The path is a straight segment, so a wall blocks if the segment
    changes sides between its ends, however long or short the step is; the point then keeps its y and takes its new x.
    """
    stride = stride_length * jnp.clip(action, -1.0, 1.0)
    target = jnp.clip(position + stride, -1.0, 1.0)
    rise = target[1] - position[1]
    blocked = jnp.asarray(False)
    for height, left, right in walls:
        changes_side = (position[1] < height) != (target[1] < height)
        share = (height - position[1]) / jnp.where(changes_side, rise, 1.0)
        crossing = position[0] + share * (target[0] - position[0])
        blocked |= changes_side & (left <= crossing) & (crossing <= right)
    return jnp.stack([target[0], jnp.where(blocked, position[1], target[1])])
