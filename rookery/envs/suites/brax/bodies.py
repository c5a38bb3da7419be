"""How Brax's robots look: the geometries of the loaded model, and where its links are.

Shapes are the model's spheres, capsules, cylinders, boxes and planes. Meshes, ellipsoids and height fields are left
out, and what the model makes invisible: the spheres by which a body meets walls. Pictures of materials are not used.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from rookery.envs.rendering.scene import Picture, Pose, Shape

# MuJoCo's `mjtGeom` -> what it is here, and how many of its three sizes say something.
_KINDS = {
    0: ("plane", 2),
    2: ("sphere", 1),
    3: ("capsule", 2),
    5: ("cylinder", 2),
    6: ("box", 3),
}
_NO_COLOUR = (0.5, 0.5, 0.5, 1.0)  # what MuJoCo writes where the model says nothing
_GOALS = ("goal", "target")  # how Brax's models call the bodies that are there to be reached
_GOAL_RADIUS, _GOAL_HEIGHT = 0.5, 0.02  # metres; the tasks give their goal no size
_GOAL_COLOUR = (0.1, 0.6, 0.3, 0.6)


def picture(world: Any, goal: tuple[float, float] | None = None) -> Picture:
    """Bodies in space.

    Args:
      world: Brax's environment, as the task uses it.
      goal: x and y in metres of a goal on the ground that is not in the model; shown as a flat disc.
    """
    around = () if goal is None else (_goal(goal),)
    return Picture(bodies=bodies, shapes=(*shapes(world.sys.mj_model), *around), seconds=_number(world.dt))


def shapes(model: Any) -> tuple[Shape, ...]:
    """What can be seen of a model; those of the world itself are floors, walls and rails.

    Args:
      model: MuJoCo's; its bodies after the world are Brax's links, in their order.
    """
    return tuple(_shape(model, geom) for geom in range(model.ngeom) if _is_seen(model, geom))


def bodies(state: Any) -> Pose:
    """Where the links are; on `mjx` one step of the physics behind the joints.

    Args:
      state: Brax's pipeline state, of any backend.
    """
    return Pose(jnp.asarray(state.x.pos, jnp.float32), jnp.asarray(state.x.rot, jnp.float32))


def _is_seen(model: Any, geom: int) -> bool:
    return int(model.geom_type[geom]) in _KINDS and model.geom_rgba[geom, 3] > 0.0


def _shape(model: Any, geom: int) -> Shape:
    kind, count = _KINDS[int(model.geom_type[geom])]
    colour = _numbers(model.geom_rgba[geom])
    return Shape(
        link=int(model.geom_bodyid[geom]) - 1,
        kind=kind,  # pyright: ignore[reportArgumentType]  # one of the five
        size=_numbers(model.geom_size[geom, :count]),
        position=_numbers(model.geom_pos[geom]),
        rotation=_numbers(model.geom_quat[geom]),
        colour=None if colour == _NO_COLOUR else colour,
        role="goal" if model.body(model.geom_bodyid[geom]).name in _GOALS else "body",
    )


def _goal(place: tuple[float, float]) -> Shape:
    size = (_GOAL_RADIUS, _GOAL_HEIGHT / 2)
    return Shape(-1, "cylinder", size, (*place, _GOAL_HEIGHT / 2), (1.0, 0.0, 0.0, 0.0), _GOAL_COLOUR, "goal")


def _numbers(row: Any) -> tuple[Any, ...]:
    return tuple(_number(number) for number in row)


def _number(number: Any) -> float:
    """A plain float, as short as single precision tells it."""
    return float(str(np.float32(number)))
