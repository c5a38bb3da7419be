"""The feet of Brax's robots, detected from the model's geometry, and the descriptor of their ground contacts.

A foot is in contact depending on its height above the floor, which is computed from its link's pose. That height equals
the contact distance of the physics engine to 1e-7 on every backend and has no measurable cost, whereas reading the
contact distance from the engine (`debug=True`) costs 15 % of the speed.
"""

from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from rookery.envs import base
from rookery.envs.suites.brax import adapter as brax
from rookery.envs.suites.brax.adapter import StateReaders, Variant
from rookery.envs.suites.third_party import BraxRobot, BraxState, BraxSystem, MujocoModel
from rookery.types import Array

CONTACT_HEIGHT = 5e-3  # metres; a foot at rest hovers within a millimetre of the floor
PLANE, SPHERE, CAPSULE = 0, 2, 3  # MuJoCo's `mjtGeom`


class Feet(NamedTuple):
    """The F feet of a robot as spheres and capsules attached to links; constants of the model."""

    links: np.ndarray  # index of the link of each foot, `[F]` int
    centres: np.ndarray  # centre of each foot in the link's frame, metres, `[F, 3]`
    axes: np.ndarray  # half the capsule's length along its axis, in the link's frame, metres, `[F, 3]`; 0 for a sphere
    radii: np.ndarray  # metres, `[F]`
    floor: float  # height of the floor, metres


def ground_contact(feet: int) -> Variant:
    """Variant whose descriptor is the fraction of the episode's steps in which each foot touches the ground.

    A foot is in contact if it is less than 5 mm above the floor at the end of a step. The descriptor is `[feet]` in
    [0, 1]; the loaded model must have the same number of feet.
    """
    spec = base.descriptor_spec("ground contact of each foot", "mean", (0.0,) * feet, (1.0,) * feet)
    names = tuple(f"ground contact of foot {foot + 1}" for foot in range(feet))
    return Variant(partial(_prepare_contacts, feet), spec._replace(names=names if feet > 1 else None))


def _prepare_contacts(feet: int, brax_env: BraxRobot, name: str) -> StateReaders:
    del name
    return StateReaders(brax.native_observation, brax.native_reward, partial(_contacts, find_feet(brax_env.sys, feet)))


def _contacts(feet: Feet, state: BraxState) -> Array:
    x = state.pipeline_state.x
    return (foot_heights(feet, x.pos, x.rot) < CONTACT_HEIGHT).astype(jnp.float32)


def foot_heights(feet: Feet, positions: Array, rotations: Array) -> Array:
    """Height of each foot's lowest point above the floor, `[F]` in metres, negative below the floor's surface.

    `positions` `[links, 3]` (metres) and `rotations` `[links, 4]` (unit quaternions w, x, y, z) are those of the links.
    """
    w, x, y, z = rotations[feet.links].T
    upwards = jnp.stack([2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)], axis=-1)
    rise = jnp.sum(upwards * feet.centres, axis=-1)
    droop = jnp.abs(jnp.sum(upwards * feet.axes, axis=-1))
    return positions[feet.links, 2] + rise - droop - feet.radii - feet.floor


def find_feet(system: BraxSystem, expected: int) -> Feet:
    """Find a robot's feet and their geometry in Brax's system of the loaded model.

    Raises:
      ValueError: the model has no level floor, another number of feet than `expected`, or feet that are neither sphere
        nor capsule.
    """
    model = system.mj_model
    floor, feet = floor_and_feet(model)
    if len(feet) != expected:
        raise ValueError(f"expected {expected} feet, the model has {len(feet)}; use the task without descriptor.")
    return geometry(model, floor, feet)


def geometry(model: MujocoModel, floor: int, feet: list[int]) -> Feet:
    """Read the geometry of feet, spheres or capsules, from MuJoCo's model by the ids of the geometries."""
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


def floor_and_feet(model: MujocoModel) -> tuple[int, list[int]]:
    """Find the floor and a robot's feet: geometries that collide with the floor and are attached to a leaf link.

    Names of links cannot identify feet, since the ant's lower legs have none. A torso or thigh that collides with the
    floor has child links; arms and heads, which have no child links, do not collide with the floor, nor do walls.

    Returns their geometry ids.

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


def _collide(model: MujocoModel, one: int, other: int) -> bool:
    """MuJoCo's collision rule: the contact type of one geometry matches the contact affinity of the other."""
    return bool(
        model.geom_contype[one] & model.geom_conaffinity[other]
        or model.geom_contype[other] & model.geom_conaffinity[one]
    )


def _axis(model: MujocoModel, geom: int) -> np.ndarray:
    """Unit vector `[3]` along a geometry's z axis, in the frame of its body."""
    w, x, y, z = model.geom_quat[geom]
    return np.asarray([2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y)])
