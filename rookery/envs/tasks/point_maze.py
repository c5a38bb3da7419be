"""A point in a square: `point_maze` and `point_trap`, whose greedy paths are dead ends, `point_goal` with a sparse
reward, and the empty `point_room`.

Geometry of the maze (dimensionless lengths; the square is [-1, 1]^2, x to the right, y upwards):

    y =  1.0  +-----------------------+
              |      G                |   goal zone: the disc of radius 0.1 around (-0.4, 0.8)
    y =  0.2  |     ------------------|   upper wall: x in [-0.5, 1.0], with a gap on the left
              |                       |
    y = -0.5  |------------------     |   lower wall: x in [-1.0, 0.5], with a gap on the right
              |           s           |   start: (0.0, -0.9), uniform noise of +-0.05 on both axes
    y = -1.0  +-----------------------+

The greedy path towards the goal ends below the lower wall at (-0.4, -0.5), at distance 1.3 from the goal; the gap is
0.9 to the right. Behind it, the greedy path ends below the upper wall, 0.6 from the goal and 0.1 from the gap. The
optimal path takes about 24 steps and has a return of about -23; the dead ends have returns of about -270 and -135. Soft
actor-critic solves the maze within 60 thousand steps. With the goal at x = 0, where the detour at each wall is half a
unit, it stays below the upper wall.

A step moves the point by `action / 10`, so by at most 0.1 along each axis. A wall blocks the motion across it but not
the motion along it: a point that pushes against a wall slides along it. Everything is pure JAX. An `episode_length`
below 1 step is a `ValueError`.

Geometry of the trap, a U-shaped wall that is open towards the start:

    y =  1.0  +-----------------------+
              |           G           |   goal zone: the disc of radius 0.1 around (0.0, 0.75)
    y =  0.0  |      -----------      |   end wall: x in [-0.5, 0.5]
              |      |         |      |   side walls: x = -0.5 and 0.5, y in [-0.6, 0.0]
    y = -0.6  |      |         |      |
              |           s           |   start: (0.0, -0.8), uniform noise of +-0.05 on both axes
    y = -1.0  +-----------------------+

The greedy path towards the goal ends below the end wall, 0.75 from the goal; leaving the trap requires moving 0.6 away
from the goal. A step is half as long as in the maze, so that random actions very rarely lead around the trap.

`point_goal` has the start and the goal of the trap, half its step, and one wall: y = 0.0, x in [-1.0, 0.5]. The way
leads around its right end and takes about 60 steps.
"""

from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from rookery import hyperparams
from rookery.envs import base
from rookery.envs.base import Environment, EnvSpec, Step
from rookery.envs.rendering.scene import Picture, Scene, Scenery
from rookery.envs.wrappers import time_limit
from rookery.hyperparams import Field, Uniform
from rookery.types import Array, Key, Scalar

EPISODE_LENGTH = 200
STRIDE = 0.1  # distance along an axis per step at action 1
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
GOAL_STRIDE = 0.025
GOAL_WALLS = ((0.0, -1.0, 0.5),)  # y, left end, right end
ROOM_START = (0.0, 0.0)
CONTROL_COST = 0.01
BODY_RADIUS = 0.04  # of the disc in pictures
DESCRIPTOR = base.descriptor_spec("final x, y", "final", (-1.0, -1.0), (1.0, 1.0), cell=0.1, observed=True)


class ShapingWeights(NamedTuple):
    """Weights of rewards that are added in training; with the defaults the reward is that of the task."""

    progress_weight: Annotated[
        Scalar, Field("reward per unit of approach to the goal", Uniform(0.0, 2.0), low=-10.0)
    ] = 0.0
    x_weight: Annotated[Scalar, Field("reward per unit of motion to the right", Uniform(-1.0, 1.0), low=-10.0)] = 0.0


SHAPING = hyperparams.declared(ShapingWeights)
MEASURES = {
    "success": "1 in the step that reaches the goal zone",
    "approach": "decrease of the distance to the goal",
}


def point_maze(episode_length: int = EPISODE_LENGTH) -> Environment:
    """The maze: the reward is minus the distance to the goal; the episode terminates in the goal zone.

    Observation `[2]` and descriptor `[2]` are the position, in [-1, 1]^2; the action `[2]` is clipped to [-1, 1]; the
    reward is in [-2.29, 0] per step.
    """
    return _environment("point_maze", START, _maze_step, episode_length, _scenery(GOAL, WALLS))


def point_trap(episode_length: int = EPISODE_LENGTH) -> Environment:
    """The trap: the reward is minus the distance to the goal; the episode terminates in the goal zone.

    Observation, action and descriptor are those of `point_maze`; the reward is in [-2.02, 0] per step.
    """
    scenery = _scenery(TRAP_GOAL, TRAP_END, TRAP_SIDES)
    return _environment("point_trap", TRAP_START, _trap_step, episode_length, scenery)


def point_goal(episode_length: int = EPISODE_LENGTH) -> Environment:
    """A sparse reward behind a wall: 1 in the step that reaches the goal zone, which terminates the episode, else 0.

    Uniformly random actions do not reach the goal. The parameters (`ShapingWeights`) add rewards for motion: the
    approach to the goal alone leads into the dead end below the wall. Observation, action and descriptor are those of
    `point_maze`; measures are `success` and `approach`, by which the distance to the goal decreases.
    """
    spec = _spec("point_goal", episode_length)._replace(parameters=SHAPING, measures=MEASURES)
    environment = _sparse(spec, ShapingWeights())
    return time_limit.limit_episode(time_limit.guard_physics(environment), episode_length)


def point_room(episode_length: int = EPISODE_LENGTH) -> Environment:
    """The empty square: no walls, no goal, no termination; episodes start near the centre.

    The task is intended for skill discovery, which uses an intrinsic reward. The environment's reward is a control
    cost, -0.01 times the squared norm of the action, in [-0.02, 0] per step. Observation, action and descriptor are
    those of `point_maze`.
    """
    return _environment("point_room", ROOM_START, _room_step, episode_length, _scenery())


def _environment(
    name: str, start: tuple[float, float], step: base.StepFn, episode_length: int, scenery: Scenery
) -> Environment:
    spec = _spec(name, episode_length)
    environment = Environment(partial(_reset, start), step, spec, picture=Picture(_scene, scenery))
    return time_limit.limit_episode(time_limit.guard_physics(environment), episode_length)


def _spec(name: str, episode_length: int) -> EnvSpec:
    return EnvSpec(name, observation_size=2, action_size=2, episode_length=episode_length, descriptor=DESCRIPTOR)


def _sparse(spec: EnvSpec, weights: ShapingWeights) -> Environment:
    return Environment(
        _sparse_reset,
        partial(_sparse_step, weights),
        spec,
        picture=Picture(_scene, _scenery(TRAP_GOAL, GOAL_WALLS)),
        parameterize=partial(_sparse, spec),
    )


def _scenery(
    goal: tuple[float, float] | None = None,
    horizontal: tuple[tuple[float, float, float], ...] = (),
    vertical: tuple[tuple[float, float, float], ...] = (),
) -> Scenery:
    """Build the scenery from horizontal walls (y, left end, right end) and vertical walls (x, lower end, upper end)."""
    walls = [(left, y, right, y) for y, left, right in horizontal]
    walls += [(x, lower, x, upper) for x, lower, upper in vertical]
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
    return _goal_step(GOAL, move(state, action, WALLS))


def _goal_step(goal: tuple[float, float], position: Array) -> tuple[Array, Step]:
    distance = jnp.linalg.norm(position - jnp.asarray(goal, jnp.float32))
    return position, base.next_step(position, -distance, distance <= GOAL_RADIUS, position)


def _trap_step(state: Array, action: Array, key: Key) -> tuple[Array, Step]:
    """Move along x, then along y: with two axis-parallel motions the point cannot pass through a corner."""
    del key  # the trap is deterministic
    along_x, along_y = action * jnp.asarray([1.0, 0.0]), action * jnp.asarray([0.0, 1.0])
    position = move(state[::-1], along_x[::-1], TRAP_SIDES, TRAP_STRIDE)[::-1]
    return _goal_step(TRAP_GOAL, move(position, along_y, TRAP_END, TRAP_STRIDE))


def _sparse_reset(key: Key) -> tuple[Array, Step]:
    position, step = _reset(TRAP_START, key)
    return position, step._replace(measures=dict.fromkeys(MEASURES, jnp.zeros(())))


def _sparse_step(weights: ShapingWeights, state: Array, action: Array, key: Key) -> tuple[Array, Step]:
    del key  # the task is deterministic
    position, goal = move(state, action, GOAL_WALLS, GOAL_STRIDE), jnp.asarray(TRAP_GOAL, jnp.float32)
    distance = jnp.linalg.norm(position - goal)
    approach = jnp.linalg.norm(state - goal) - distance
    reached = distance <= GOAL_RADIUS
    success = reached.astype(jnp.float32)
    shaping = weights.progress_weight * approach + weights.x_weight * (position[0] - state[0])
    measures = {"success": success, "approach": approach}
    return position, base.next_step(position, success + shaping, reached, position, measures=measures)


def _room_step(state: Array, action: Array, key: Key) -> tuple[Array, Step]:
    del key  # the environment is deterministic
    position = move(state, action, ())
    cost = CONTROL_COST * jnp.sum(jnp.square(jnp.clip(action, -1.0, 1.0)))
    return position, base.next_step(position, -cost, jnp.asarray(False), position)


def move(
    position: Array, action: Array, walls: tuple[tuple[float, float, float], ...], stride_length: float = STRIDE
) -> Array:
    """Move a point `[2]` by one step, an `action` `[2]` clipped to [-1, 1], blocked by horizontal walls (y, left end,
    right end).

    A point with the y of a wall counts as above it. The path is a straight segment, and a wall blocks it if the segment
    crosses the wall between its ends, whatever the length of the step. The point then keeps its y and takes its new x.
    """
    stride = stride_length * jnp.clip(action, -1.0, 1.0)
    target = jnp.clip(position + stride, -1.0, 1.0)
    rise = target[1] - position[1]
    blocked = jnp.asarray(False)
    for height, left, right in walls:
        changes_side = (position[1] < height) != (target[1] < height)
        fraction = (height - position[1]) / jnp.where(changes_side, rise, 1.0)
        crossing = position[0] + fraction * (target[0] - position[0])
        blocked |= changes_side & (left <= crossing) & (crossing <= right)
    return jnp.stack([target[0], jnp.where(blocked, position[1], target[1])])
