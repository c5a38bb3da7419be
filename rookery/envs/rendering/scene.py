"""Descriptions of how an environment is drawn: bodies in a plane, bodies in space, or the suite's visualiser."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

from rookery.types import Array, PyTree


class Scene(NamedTuple):
    """State of bodies in the plane, each drawn as a disc."""

    position: Array
    """Centres, `[bodies, 2]`."""
    heading: Array
    """Angles in rad, counter-clockwise from the x axis, `[bodies]`; NaN for a body without a heading."""
    visible: Array
    """Whether the body is drawn, `[bodies]` bool."""


class Scenery(NamedTuple):
    """Constant part of a planar picture: its limits, walls and goals, and the names and sizes of the bodies."""

    lower: tuple[float, float]
    """x and y of the lower left corner."""
    upper: tuple[float, float]
    """x and y of the upper right corner."""
    bodies: tuple[str, ...]
    """Names of the bodies; bodies with the same name have the same colour."""
    radii: tuple[float, ...]
    """Radii of the bodies, in the unit of the plane."""
    walls: tuple[tuple[float, float, float, float], ...] = ()
    """Line segments: x and y of one end, x and y of the other."""
    goals: tuple[tuple[float, float, float], ...] = ()
    """Goal discs: x, y, radius."""
    reaches: tuple[float, ...] = ()
    """Radius within which each body affects others, 0 for none; an empty tuple means 0 for all."""
    ground: tuple[tuple[float, float], ...] = ()
    """Points x, y of the surface of the ground, from the left to the right; what lies below is filled. Of a height
    function they are `tuple((x, height(x)) for x in places)`."""


class Pose(NamedTuple):
    """State of bodies in space, each a rigid frame to which shapes are attached."""

    position: Array
    """Origins of the frames in metres, `[bodies, 3]`."""
    rotation: Array
    """Unit quaternions w, x, y, z from the body frame to the global frame, `[bodies, 4]`."""


class Shape(NamedTuple):
    """A solid attached to a body, or to the global frame, whose z axis points upwards; in the frame of that body."""

    link: int
    """Index into the bodies of a `Pose`; -1 for the global frame."""
    kind: Literal["capsule", "sphere", "ellipsoid", "box", "cylinder", "plane"]
    """Type of the solid."""
    size: tuple[float, ...]
    """Metres. Capsule and cylinder: radius, half length along the shape's z axis (for a capsule without its caps);
    sphere: radius; ellipsoid and box: half sizes along x, y, z; plane, normal to its z axis: half sizes along x and y,
    0 if infinite."""
    position: tuple[float, float, float]
    """Centre, metres."""
    rotation: tuple[float, float, float, float]
    """Unit quaternion w, x, y, z from the shape's frame to the body frame."""
    colour: tuple[float, float, float, float] | None = None
    """Red, green, blue and opacity in [0, 1]; None: the model defines no colour."""
    role: Literal["body", "goal"] = "body"
    """A goal is drawn but takes no part in collisions."""


class FilmFn(Protocol):
    """Draw one episode, on the host, with the suite's visualiser.

    Args:
      states: the environment's states, leaves `[T + 1, ...]`; the first is the state after the reset. They may be those
        of some of the steps, with the sums of the rewards in between, unless `Picture.replays`.
      rewards: `[T + 1]`, or `[T + 1, I]`.
      path: the `.gif` file to write.
    """

    def __call__(self, states: PyTree, rewards: Array, path: str) -> None: ...


class Picture(NamedTuple):
    """How an environment is drawn: by `scene` and `scenery`, by `bodies` and `shapes`, or by `film`."""

    scene: Callable[[PyTree], Scene] | None = None
    """Environment state -> the bodies in the plane."""
    scenery: Scenery | None = None
    """Constant part of the planar picture."""
    film: FilmFn | None = None
    """The suite's visualiser."""
    bodies: Callable[[PyTree], Pose] | None = None
    """Environment state -> the poses of the bodies in space."""
    shapes: tuple[Shape, ...] = ()
    """Shapes of the bodies and of their surroundings."""
    seconds: float | None = None
    """Simulated duration of a step; None if the environment defines none."""
    replays: bool = False
    """Whether `film` repeats the episode, so that it needs the states of all steps and chooses its frames itself."""


def inside(picture: Picture | None, field: str) -> Picture | None:
    """The picture of a wrapper whose state has that of the wrapped environment in `field`."""

    def within(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
        return function and (lambda state, *more: function(getattr(state, field), *more))

    if picture is None:
        return None
    return picture._replace(scene=within(picture.scene), film=within(picture.film), bodies=within(picture.bodies))
