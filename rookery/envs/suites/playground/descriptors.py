"""Descriptors of the Control Suite's robots that walk: contacts of the feet with the ground, and position."""

from functools import partial

import jax.numpy as jnp
import numpy as np

from rookery.envs import base
from rookery.envs.suites.brax import feet as brax_feet
from rookery.envs.suites.playground.adapter import Descriptor
from rookery.envs.suites.third_party import PlaygroundEnv, PlaygroundOutput
from rookery.types import Array

FEET = {
    "CheetahRun": ("bfoot", "ffoot"),
    "HopperHop": ("foot",),
    "HumanoidRun": ("right_foot", "left_foot"),
    "HumanoidWalk": ("right_foot", "left_foot"),
    "WalkerRun": ("right_foot", "left_foot"),
    "WalkerWalk": ("right_foot", "left_foot"),
}
"""Names of the feet's bodies, in the order of the descriptor's dimensions."""
_FOOT = {
    **{"bfoot": "the back foot", "ffoot": "the front foot", "foot": "the foot"},
    **{"right_foot": "the right foot", "left_foot": "the left foot"},
}
POSITION_AXES = {"HopperStand": 1, "HumanoidStand": 2, "WalkerStand": 1}
"""Number of horizontal axes along which the robot moves; the reward of these tasks does not depend on its position."""
_REACH = 25.0  # metres from the start: an average of 1 m/s for an episode of 25 s


def contacts(name: str) -> base.DescriptorSpec:
    """The fraction of the episode's steps in which each foot touches the ground, `[feet]` in [0, 1]."""
    feet = len(FEET[name])
    names = tuple(f"ground contact of {_FOOT.get(foot, foot)}" for foot in FEET[name])
    spec = base.descriptor_spec("ground contact of each foot", "mean", (0.0,) * feet, (1.0,) * feet)
    return spec._replace(names=names)


def position(name: str) -> base.DescriptorSpec:
    """The position of the torso at the end of the episode, `[axes]` in metres."""
    axes = POSITION_AXES[name]
    return base.descriptor_spec(
        f"final {'x, y'[: 3 * axes - 2]} of the torso", "final", (-_REACH,) * axes, (_REACH,) * axes, cell=1.0
    )


def ground_contact(name: str, env: PlaygroundEnv) -> Descriptor:
    """Descriptor `contacts`; a foot is in contact if it is less than 5 mm above the ground at the end of a step."""
    model = env.mj_model
    bodies = [model.body(foot).id for foot in FEET[name]]
    geoms = [geom for geom in range(model.ngeom) if model.geom_bodyid[geom] in bodies]
    floor = "floor" if any(model.geom(geom).name == "floor" for geom in range(model.ngeom)) else "ground"
    feet = brax_feet.geometry(model, model.geom(floor).id, geoms)
    owners = np.asarray([bodies.index(model.geom_bodyid[geom]) for geom in geoms])
    return Descriptor(contacts(name), partial(_contacts, feet, owners, len(bodies)))


def torso_position(name: str, env: PlaygroundEnv) -> Descriptor:
    """Descriptor `position`."""
    torso = env.mj_model.body("torso").id
    return Descriptor(position(name), partial(_position, torso, POSITION_AXES[name]))


def _contacts(feet: brax_feet.Feet, owners: np.ndarray, count: int, state: PlaygroundOutput) -> Array:
    heights = brax_feet.foot_heights(feet, state.data.xpos[1:], state.data.xquat[1:])
    lowest = jnp.full((count,), jnp.inf).at[owners].min(heights)
    return (lowest < brax_feet.CONTACT_HEIGHT).astype(jnp.float32)


def _position(torso: int, axes: int, state: PlaygroundOutput) -> Array:
    return jnp.asarray(state.data.xpos[torso, :axes], jnp.float32)
