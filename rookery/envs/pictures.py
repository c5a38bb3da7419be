"""How a world can be seen: as bodies in a plane, which anybody can draw, or by its own suite's visualiser."""

from functools import partial
from typing import NamedTuple, Protocol

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


class SceneFn(Protocol):
    """What is to be seen of an environment's state."""

    def __call__(self, state: PyTree) -> Scene: ...


class FilmFn(Protocol):
    """Draw one episode, on the host, with a suite's own visualiser.

    Args:
      states: the environment's states, leaves `[T + 1, ...]`, the first that of the reset.
      rewards: `[T + 1]`, or `[T + 1, I]`.
      path: a `.gif`; written.
    """

    def __call__(self, states: PyTree, rewards: Array, path: str) -> None: ...


class Picture(NamedTuple):
    """How a world is drawn: a scene in its scenery, or a film; the other is None."""

    scene: SceneFn | None = None
    scenery: Scenery | None = None
    film: FilmFn | None = None


def inside(picture: Picture | None, field: str) -> Picture | None:
    """The picture of a wrapper, whose state keeps that of the world it wraps in `field`."""
    if picture is None:
        return None
    scene = None if picture.scene is None else partial(_scene_inside, picture.scene, field)
    film = None if picture.film is None else partial(_film_inside, picture.film, field)
    return picture._replace(scene=scene, film=film)


def _scene_inside(scene: SceneFn, field: str, state: PyTree) -> Scene:
    return scene(getattr(state, field))


def _film_inside(film: FilmFn, field: str, states: PyTree, rewards: Array, path: str) -> None:
    film(getattr(states, field), rewards, path)
