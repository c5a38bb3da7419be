"""Pictures of MuJoCo's robots: the geometries of the loaded model, and the poses of its bodies."""

import functools
from collections.abc import Callable

import jax.numpy as jnp

from rookery.envs.rendering.scene import Picture, Pose
from rookery.envs.suites import third_party
from rookery.envs.suites.brax import bodies
from rookery.envs.suites.third_party import PlaygroundEnv
from rookery.types import PyTree


def picture(env: PlaygroundEnv, restore: Callable[[PyTree], PyTree]) -> Picture:
    """The picture of an environment of Playground; `restore` makes its `State` from the physics of a
    `PlaygroundState`."""
    seconds = float(env.dt) if hasattr(env, "dt") else None
    return Picture(bodies=functools.partial(_bodies, env, restore), shapes=bodies.shapes(env.mj_model), seconds=seconds)


def _bodies(env: PlaygroundEnv, restore: Callable[[PyTree], PyTree], state: PyTree) -> Pose:
    """Poses of the bodies from 1 on, computed from the coordinates of the joints."""
    from mujoco import mjx

    data = restore(state.physics).data
    with third_party.standard_promotion():
        blank = mjx.make_data(env.mj_model, impl="jax")
        placed = blank.replace(qpos=data.qpos, mocap_pos=data.mocap_pos, mocap_quat=data.mocap_quat)
        placed = mjx.kinematics(_model(env), placed)
    return Pose(jnp.asarray(placed.xpos[1:], jnp.float32), jnp.asarray(placed.xquat[1:], jnp.float32))


@functools.lru_cache(maxsize=8)
def _model(env: PlaygroundEnv) -> PyTree:
    from mujoco import mjx

    return mjx.put_model(env.mj_model, impl="jax")
