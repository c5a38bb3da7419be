"""How a world can be seen: as bodies in a plane or in space, which anybody can draw, or by its suite's visualiser."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from rookery.types import Array, PyTree


class Scene(NamedTuple):
    """Bodies in the plane, each a disc; where they are now."""

    position: Array  # [bodies, 2]
    heading: Array  # [bodies] rad, counter-clockwise from the x axis; NaN for a body without one
    visible: Array  # [bodies] bool


class Scenery(NamedTuple):
    """What does not change in a picture of a world: its frame, its walls, who the bodies are."""

    lower: tuple[float, float]  # corners of the plane
    upper: tuple[float, float]
    bodies: tuple[str, ...]  # names; bodies of one name are drawn in one colour
    radii: tuple[float, ...]  # of the bodies, in the plane's unit
    walls: tuple[tuple[float, float, float, float], ...] = ()  # x, y of one end, x, y of the other
    goals: tuple[tuple[float, float, float], ...] = ()  # x, y, radius
    reaches: tuple[float, ...] = ()  # of the bodies: how far away they have an effect, 0 for none; or nothing for all


class Pose(NamedTuple):
    """Bodies in space, each a rigid frame that shapes are fixed to; where the frames are now."""

    position: Array  # [bodies, 3] metres, of the frame's origin
    rotation: Array  # [bodies, 4] unit quaternion w, x, y, z: from the frame to the world


class Shape(NamedTuple):
    """A solid that is fixed to a body, or to the world; in that body's frame. The world's z points upwards."""

    link: int  # which of the bodies of a `Pose`; -1 for the world
    kind: Literal["capsule", "sphere", "box", "cylinder", "plane"]
    # Metres. capsule and cylinder: radius, half length along their own z (a capsule's without its caps);
    # sphere: radius; box: half sizes along x, y, z; plane, which faces its own z: half sizes along x, y, 0 for no end.
    size: tuple[float, ...]
    position: tuple[float, float, float]  # metres, of its middle
    rotation: tuple[float, float, float, float]  # unit quaternion w, x, y, z: from the shape to the body
    colour: tuple[float, float, float, float] | None = None  # red, green, blue, opacity in [0, 1]; None: nobody chose
    role: Literal["body", "goal"] = "body"  # a goal is shown; nothing touches it


class SceneFn(Protocol):
    """What is to be seen of an environment's state."""

    def __call__(self, state: PyTree) -> Scene: ...


class BodiesFn(Protocol):
    """Where the bodies of an environment's state are."""

    def __call__(self, state: PyTree) -> Pose: ...


class FilmFn(Protocol):
    """Draw one episode, on the host, with a suite's own visualiser.

    Args:
      states: the environment's states, leaves `[T + 1, ...]`, the first that of the reset.
      rewards: `[T + 1]`, or `[T + 1, I]`.
      path: a `.gif`; written.
    """

    def __call__(self, states: PyTree, rewards: Array, path: str) -> None: ...


class Picture(NamedTuple):
    """How a world is drawn: a scene in its scenery, bodies of some shapes, or a film; the others are None."""

    scene: SceneFn | None = None
    scenery: Scenery | None = None
    film: FilmFn | None = None
    bodies: BodiesFn | None = None
    shapes: tuple[Shape, ...] = ()  # of the bodies, and of what stands around them
    seconds: float | None = None  # that a step takes; None where a world has no such clock


def inside(picture: Picture | None, field: str) -> Picture | None:
    """The picture of a wrapper, whose state keeps that of the world it wraps in `field`."""
    if picture is None:
        return None
    return picture._replace(
        scene=None if picture.scene is None else partial(_seen_inside, picture.scene, field),
        film=None if picture.film is None else partial(_film_inside, picture.film, field),
        bodies=None if picture.bodies is None else partial(_seen_inside, picture.bodies, field),
    )


def _seen_inside(see: Callable[[PyTree], Any], field: str, state: PyTree) -> Any:
    return see(getattr(state, field))


def _film_inside(film: FilmFn, field: str, states: PyTree, rewards: Array, path: str) -> None:
    film(getattr(states, field), rewards, path)
