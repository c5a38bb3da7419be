"""The feet of Brax's robots, found by their geometry, and the descriptor that they make: which of them walk, how much.

A foot's contact is its own height over the floor, computed from its link's pose. It equals the engine's distance of
contact to 1e-7, on every backend, and costs nothing; asking the engine (`debug=True`) costs 15 % of the speed.
"""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from rookery.envs import base
from rookery.envs.suites.brax import adapter as brax
from rookery.envs.suites.brax.adapter import Reading, Variant
from rookery.types import Array

CONTACT_HEIGHT = 5e-3  # metres; a foot at rest hovers within a millimetre of the floor
PLANE, SPHERE, CAPSULE = 0, 2, 3  # MuJoCo's `mjtGeom`


class Feet(NamedTuple):
    """The feet of a robot as spheres and capsules on links, F of them, as constants of the model."""

    links: np.ndarray  # [F] int, which link carries the foot
    centres: np.ndarray  # [F, 3] metres, centre of the foot in the link's frame
    axes: np.ndarray  # [F, 3] metres, half of the capsule's length along its axis in the link's frame; 0 for a sphere
    radii: np.ndarray  # [F] metres
    floor: float  # metres, height of the floor


def ground_contact(feet: int) -> Variant:
    """The environment with the ground contact of its feet as the descriptor: their shares of the episode's steps.

    A foot has contact when it is less than 5 mm above the floor at the end of a step; `[feet]` in [0, 1].

    Args:
      feet: how many the robot has; the loaded model must have as many.
    """
    spec = base.descriptor_spec("ground contact of each foot", "mean", (0.0,) * feet, (1.0,) * feet)
    return Variant(partial(_stand, feet), spec)


def _stand(feet: int, world: Any, name: str) -> Reading:
    del name
    return Reading(brax.own_observation, brax.own_reward, partial(_contacts, find_feet(world.sys, feet)))


def _contacts(feet: Feet, state: Any) -> Array:
    x = state.pipeline_state.x
    return (foot_heights(feet, x.pos, x.rot) < CONTACT_HEIGHT).astype(jnp.float32)


def foot_heights(feet: Feet, positions: Array, rotations: Array) -> Array:
    """Distance of each foot's lowest point from the floor, `[F]` in metres, negative inside it.

    Args:
      feet: from `find_feet`.
      positions: `[links, 3]` of the links, metres.
      rotations: `[links, 4]` of the links, unit quaternions (w, x, y, z).
    """
    w, x, y, z = rotations[feet.links].T
    upwards = jnp.stack([2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)], axis=-1)
    rise = jnp.sum(upwards * feet.centres, axis=-1)
    droop = jnp.abs(jnp.sum(upwards * feet.axes, axis=-1))
    return positions[feet.links, 2] + rise - droop - feet.radii - feet.floor


def find_feet(system: Any, expected: int) -> Feet:
    """Describe a robot's feet.

    Args:
      system: Brax's system of the loaded model.
      expected: how many feet the robot has.

    Raises:
      ValueError: the model has no level floor, another number of feet, or feet that are neither sphere nor capsule.
    """
    model = system.mj_model
    floor, feet = floor_and_feet(model)
    if len(feet) != expected:
        raise ValueError(f"expected {expected} feet, the model has {len(feet)}; use the task without descriptor.")
    if any(model.geom_type[g] not in (SPHERE, CAPSULE) for g in feet):
        raise ValueError("feet must be spheres or capsules; use the task without descriptor.")
    halves = [model.geom_size[g, 1] if model.geom_type[g] == CAPSULE else 0.0 for g in feet]
    return Feet(
        links=np.asarray([model.geom_bodyid[g] - 1 for g in feet]),
        centres=np.asarray(model.geom_pos[feet], np.float32),
        axes=np.asarray([half * _axis(model, g) for half, g in zip(halves, feet, strict=True)], np.float32),
        radii=np.asarray(model.geom_size[feet, 0], np.float32),
        floor=float(model.geom_pos[floor, 2]),
    )


def floor_and_feet(model: Any) -> tuple[int, list[int]]:
    """Find the floor and a robot's feet, as ids of geometries: a foot collides with the floor, on a link with no other.

    Links' names are no help: the ant's lower legs have none. Torso and thighs that may touch the floor carry links;
    arms and heads that carry none do not collide with it. Nor do walls.

    Args:
      model: MuJoCo's model.

    Raises:
      ValueError: the model has no level floor, or several.
    """
    planes = [g for g in range(model.ngeom) if model.geom_type[g] == PLANE and model.geom_bodyid[g] == 0]
    levels = [g for g in planes if np.allclose(_axis(model, g), (0.0, 0.0, 1.0))]
    if len(levels) != 1:
        raise ValueError(f"feet need one level floor, the model has {len(levels)}; use the task without descriptor.")
    parents = set(model.body_parentid[1:].tolist())
    geoms = range(model.ngeom)
    return levels[0], [g for g in geoms if model.geom_bodyid[g] not in parents and _collide(model, g, levels[0])]


def _collide(model: Any, one: int, other: int) -> bool:
    """MuJoCo's rule: either geometry's type meets the other's affinity."""
    return bool(
        model.geom_contype[one] & model.geom_conaffinity[other]
        or model.geom_contype[other] & model.geom_conaffinity[one]
    )


def _axis(model: Any, geom: int) -> np.ndarray:
    """Unit vector `[3]` of a geometry's own z axis in the frame of its body."""
    w, x, y, z = model.geom_quat[geom]
    return np.asarray([2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y)])
