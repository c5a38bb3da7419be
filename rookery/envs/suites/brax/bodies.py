"""Pictures of Brax's robots: the geometries of the loaded model, and the poses of its links.

Shapes are the model's spheres, capsules, ellipsoids, cylinders, boxes and planes; a mesh is drawn as its bounding box.
Height fields are omitted, and so are geometries that MuJoCo's viewer does not show, such as the spheres that collide
with walls. Textures are not used.
"""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
import numpy as np

from rookery.envs.rendering.scene import Picture, Pose, Shape
from rookery.envs.suites.third_party import BraxRobot, MujocoModel, Physics

# MuJoCo's `mjtGeom` -> kind of `Shape`, and the number of used entries of its three sizes.
_KINDS = {
    0: ("plane", 2),
    2: ("sphere", 1),
    3: ("capsule", 2),
    4: ("ellipsoid", 3),
    5: ("cylinder", 2),
    6: ("box", 3),
}
_MESH = 7
_SHOWN_GROUPS = 3  # MuJoCo's viewer shows the groups below this number
_NO_COLOUR = (0.5, 0.5, 0.5, 1.0)  # MuJoCo's default if the model defines no colour
_GOALS = ("goal", "target")  # names of goal bodies in Brax's models
_GOAL_RADIUS, _GOAL_HEIGHT = 0.5, 0.02  # metres; the tasks define no size of their goal
_GOAL_COLOUR = (0.1, 0.6, 0.3, 0.6)


def picture(brax_env: BraxRobot, goal: tuple[float, float] | None = None) -> Picture:
    """The picture of a Brax environment with the task's modifications, and a flat disc at x and y in metres of a goal
    that is not in the model."""
    found = shapes(brax_env.sys.mj_model)
    if goal is not None:
        size, upright = (_GOAL_RADIUS, _GOAL_HEIGHT / 2), (1.0, 0.0, 0.0, 0.0)
        found += (Shape(-1, "cylinder", size, (*goal, _GOAL_HEIGHT / 2), upright, _GOAL_COLOUR, "goal"),)
    return Picture(bodies=bodies, shapes=found, seconds=_number(brax_env.dt))


def shapes(model: MujocoModel) -> tuple[Shape, ...]:
    """The visible geometries of a model, whose bodies from 1 on are Brax's links; those of body 0 are floors, walls and
    rails."""
    return tuple(_shape(model, geom) for geom in range(model.ngeom) if _is_visible(model, geom))


def bodies(state: Physics) -> Pose:
    """Poses of the links in a pipeline state; on `mjx` they are one physics step behind the joint coordinates."""
    return Pose(jnp.asarray(state.x.pos, jnp.float32), jnp.asarray(state.x.rot, jnp.float32))


def _is_visible(model: MujocoModel, geom: int) -> bool:
    drawable = int(model.geom_type[geom]) in (*_KINDS, _MESH)
    return bool(drawable and model.geom_group[geom] < _SHOWN_GROUPS and model.geom_rgba[geom, 3] > 0.0)


def _shape(model: MujocoModel, geom: int) -> Shape:
    if model.geom_type[geom] == _MESH:
        (kind, size), position = ("box", model.geom_aabb[geom, 3:]), _mesh_centre(model, geom)
    else:
        kind, count = _KINDS[int(model.geom_type[geom])]
        size, position = model.geom_size[geom, :count], model.geom_pos[geom]
    colour = _numbers(model.geom_rgba[geom])
    return Shape(
        link=int(model.geom_bodyid[geom]) - 1,
        kind=kind,  # pyright: ignore[reportArgumentType]  # one of the kinds above
        size=_numbers(size),
        position=_numbers(position),
        rotation=_numbers(model.geom_quat[geom]),
        colour=None if colour == _NO_COLOUR else colour,
        role="goal" if model.body(model.geom_bodyid[geom]).name in _GOALS else "body",
    )


def _mesh_centre(model: MujocoModel, geom: int) -> np.ndarray:
    """Centre of a mesh's bounding box in the frame of its body, metres, `[3]`."""
    w, vector = model.geom_quat[geom, 0], model.geom_quat[geom, 1:]
    centre = model.geom_aabb[geom, :3]
    turned = centre + 2.0 * np.cross(vector, np.cross(vector, centre) + w * centre)
    return model.geom_pos[geom] + turned


def _numbers(row: Iterable[float]) -> tuple[Any, ...]:
    return tuple(_number(number) for number in row)


def _number(number: float) -> float:
    """Convert to a Python float with the shortest decimal form that is exact in float32."""
    return float(str(np.float32(number)))
