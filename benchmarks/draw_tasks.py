"""Draw the figures of the quality-diversity tasks: docs/reference/tasks/*.png.

    python -m benchmarks.draw_tasks

Robots, walls and feet are drawn from the loaded models, point environments from the constants of their tasks.
"""

import importlib
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Polygon, Rectangle
from matplotlib.ticker import MultipleLocator
from scipy.spatial import ConvexHull

from benchmarks.harness import ROOT
from rookery.envs import registry
from rookery.envs.base import DescriptorSpec
from rookery.envs.suites.brax import adapter as brax
from rookery.envs.suites.brax import feet as brax_feet
from rookery.envs.suites.brax import walls as brax_walls
from rookery.envs.tasks import point_maze
from rookery.report.figures.style import INK, PALETTE, QUIET

PICTURES = ROOT / "docs" / "reference" / "tasks"
BODY, WALL, FOOT, GOAL, LIMITS = "#f3d9a4", "#a9b6be", PALETTE[0], PALETTE[4], PALETTE[1]
PLANE, SPHERE, CAPSULE, BOX = 0, 2, 3, 6  # MuJoCo's `mjtGeom`
TURN = {"ant": 20.0, "humanoid": 90.0}  # degrees about the vertical axis, so that no foot hides another
STRIDE = {"walker2d": (3, -0.7)}  # index of a joint coordinate, and its angle, so that no foot hides another
CORNERS = np.stack(np.meshgrid(*[(-1.0, 1.0)] * 3), axis=-1).reshape(-1, 3)
ROUND = np.stack([np.cos(np.linspace(0, 2 * np.pi, 48)), np.sin(np.linspace(0, 2 * np.pi, 48))], axis=-1)


class PointTask(NamedTuple):
    """Geometry of a point environment; a wall is given by its coordinate and its two ends."""

    start: tuple[float, float]
    goal: tuple[float, float] | None = None
    across: tuple[tuple[float, float, float], ...] = ()  # y, left end, right end
    along: tuple[tuple[float, float, float], ...] = ()  # x, lower end, upper end


class Scene(NamedTuple):
    """A loaded model in its start position."""

    model: Any
    centres: np.ndarray  # [geometries, 3] metres
    frames: np.ndarray  # [geometries, 3, 3] axes of the geometries, in columns
    positions: np.ndarray  # [links, 3] metres
    rotations: np.ndarray  # [links, 3, 3]


POINT_TASKS = {
    "point_maze": PointTask(point_maze.START, point_maze.GOAL, point_maze.WALLS),
    "point_trap": PointTask(point_maze.TRAP_START, point_maze.TRAP_GOAL, point_maze.TRAP_END, point_maze.TRAP_SIDES),
    "point_room": PointTask(point_maze.ROOM_START),
}


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, draw in (
        ("point_worlds", draw_point_tasks),
        ("feet", draw_feet),
        ("omni", draw_omni),
        ("traps", draw_traps),
        ("ant_maze", draw_maze),
    ):
        path = PICTURES / f"{name}.png"
        draw().savefig(path, dpi=100)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


def draw_point_tasks() -> Figure:
    """All point environments, side by side."""
    figure = Figure(figsize=(3.1 * len(POINT_TASKS), 3.3), layout="constrained")
    for axes, (name, task) in zip(row(figure, len(POINT_TASKS)), POINT_TASKS.items(), strict=True):
        prepare(axes, name)
        draw_limits(axes, descriptor(name), margin=0.06)
        ends = [((left, y), (right, y)) for y, left, right in task.across]
        ends += [((x, low), (x, high)) for x, low, high in task.along]
        for one, other in ends:
            axes.plot(*zip(one, other, strict=True), color=WALL, linewidth=4, solid_capstyle="butt")
        if task.goal is not None:
            mark_goal(axes, task.goal, point_maze.GOAL_RADIUS)
        mark_start(axes, task.start)
        axes.xaxis.set_major_locator(MultipleLocator(0.5))
        axes.yaxis.set_major_locator(MultipleLocator(0.5))
    return figure


def draw_feet() -> Figure:
    """All robots from the side, with coloured feet, numbered like the dimensions of the descriptor."""
    robots = [name.removesuffix("_uni") for name in registry.names() if name.endswith("_uni")]
    figure = Figure(figsize=(2.0 * len(robots), 2.5), layout="constrained")
    for axes, robot in zip(row(figure, len(robots)), robots, strict=True):
        prepare(axes, f"{robot}_uni")
        loaded = brax.load(robot, "spring")
        scene, angle = place(loaded, STRIDE.get(robot)), np.deg2rad(TURN.get(robot, 0.0))
        view = np.asarray([[np.cos(angle), np.sin(angle), 0.0], [0.0, 0.0, 1.0]])
        draw_robot(axes, scene, view)
        feet = brax_feet.find_feet(loaded.sys, descriptor(f"{robot}_uni").size)
        axes.axhline(feet.floor, color=WALL, linewidth=2, zorder=0)
        for number, link in enumerate(feet.links):
            ends = [feet.centres[number] + sign * feet.axes[number] for sign in (-1.0, 1.0)]
            ends = np.asarray([scene.positions[link] + scene.rotations[link] @ end for end in ends]) @ view.T
            axes.add_patch(hull(np.concatenate([end + feet.radii[number] * ROUND for end in ends]), FOOT, 5))
            below = (ends[:, 0].mean(), feet.floor - 0.08)
            axes.annotate(str(number), below, color=FOOT, ha="center", va="top", fontsize=10)
        axes.set(xlim=(-0.95, 0.95), ylim=(-0.35, 1.75), xticks=(-0.5, 0.0, 0.5), yticks=(0.0, 0.5, 1.0, 1.5))
    return figure


def draw_omni() -> Figure:
    """The square of final positions, with an enlarged inset of the robot."""
    figure = Figure(figsize=(7.0, 3.7), layout="constrained")
    for axes, robot in zip(row(figure, len(brax.OMNI_ROBOTS)), brax.OMNI_ROBOTS, strict=True):
        prepare(axes, f"{robot}_omni")
        draw_limits(axes, descriptor(f"{robot}_omni"), margin=2.0)
        scene = place(brax.load(robot, "spring"))
        draw_robot(axes, scene, np.eye(3)[:2], line=0.25)
        inset = axes.inset_axes((0.6, 0.6, 0.34, 0.34))
        inset.spines[:].set_color(QUIET)
        draw_robot(inset, scene, np.eye(3)[:2])
        inset.set(aspect="equal", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1), xticks=[], yticks=[])
        axes.indicate_inset_zoom(inset, edgecolor=QUIET)
    return figure


def draw_traps() -> Figure:
    """Both traps from above."""
    figure = Figure(figsize=(10.0, 3.2), layout="constrained")
    for axes, robot in zip(row(figure, len(brax_walls.ROBOTS)), sorted(brax_walls.ROBOTS), strict=True):
        prepare(axes, f"{robot}_trap")
        draw_limits(axes, descriptor(f"{robot}_trap"), margin=1.5)
        draw_walled(axes, robot, brax_walls.TRAP)
    return figure


def draw_maze() -> Figure:
    """The maze from above."""
    figure = Figure(figsize=(5.4, 5.6), layout="constrained")
    (axes,) = row(figure, 1)
    prepare(axes, "ant_maze")
    draw_limits(axes, descriptor("ant_maze"), margin=1.5)
    draw_walled(axes, "ant", brax_walls.MAZE)
    mark_goal(axes, brax_walls.GOAL, 0.5)
    return figure


def draw_walled(axes: Axes, robot: str, variant: brax.Variant) -> None:
    """Draw a robot and its walls, from above."""
    loaded = brax.load(robot, "spring", **variant.options)
    variant.prepare(loaded, robot)
    scene = place(loaded)
    for geom in range(scene.model.ngeom):
        if scene.model.geom_bodyid[geom] == 0 and scene.model.geom_type[geom] == BOX:
            axes.add_patch(hull(outline(scene, geom, np.eye(3)[:2]), WALL, 2))
    draw_robot(axes, scene, np.eye(3)[:2], line=0.25)
    axes.annotate("start", (1.2, 0.0), color=INK, ha="left", va="center", fontsize=9)
    axes.xaxis.set_major_locator(MultipleLocator(5.0))
    axes.yaxis.set_major_locator(MultipleLocator(5.0))


def row(figure: Figure, count: int) -> list[Axes]:
    """`count` axes side by side."""
    return list(figure.subplots(1, count, squeeze=False)[0])


def prepare(axes: Axes, title: str) -> None:
    """Set equal scales, the title, and hide the frame."""
    axes.set_aspect("equal")
    axes.set_title(title, color=INK, fontsize=11, family="monospace")
    axes.tick_params(colors=QUIET, labelsize=8)
    for spine in axes.spines.values():
        spine.set_visible(False)


def descriptor(name: str) -> DescriptorSpec:
    """Descriptor of a task that has one."""
    found = registry.find(name).descriptor
    assert found is not None, f"{name} has no descriptor"
    return found


def draw_limits(axes: Axes, limits: DescriptorSpec, margin: float) -> None:
    """Draw the descriptor's limits, dashed, and set the view around them."""
    (left, low), (right, high) = limits.lower, limits.upper
    axes.set_xlim(left - margin, right + margin)
    axes.set_ylim(low - margin, high + margin)
    frame = Rectangle((left, low), right - left, high - low, fill=False, edgecolor=LIMITS, linestyle="--", zorder=4)
    axes.add_patch(frame)


def mark_start(axes: Axes, start: tuple[float, float]) -> None:
    axes.plot(*start, marker="x", color=INK, markersize=7, markeredgewidth=2, zorder=6)
    axes.annotate("start", start, (9, 0), textcoords="offset points", color=INK, va="center", fontsize=9)


def mark_goal(axes: Axes, goal: tuple[float, float], radius: float) -> None:
    axes.add_patch(Circle(goal, radius, color=GOAL, zorder=3))
    beside = (goal[0] + 1.5 * radius, goal[1])
    axes.annotate("goal", beside, color=GOAL, ha="left", va="center", fontsize=9)


def place(loaded: Any, stride: tuple[int, float] | None = None) -> Scene:
    """Brax's model in its start position, without noise; `stride` sets one joint."""
    mujoco = importlib.import_module("mujoco")
    model = loaded.sys.mj_model
    data = mujoco.MjData(model)
    data.qpos[:] = np.asarray(loaded.sys.init_q)
    if stride is not None:
        data.qpos[stride[0]] = stride[1]
    mujoco.mj_kinematics(model, data)
    turns = data.xmat[1:].reshape(-1, 3, 3)
    return Scene(model, data.geom_xpos.copy(), data.geom_xmat.reshape(-1, 3, 3).copy(), data.xpos[1:].copy(), turns)


def draw_robot(axes: Axes, scene: Scene, view: np.ndarray, line: float = 0.6) -> None:
    """Draw all visible geometries of links, the farthest first.

    Args:
      axes: axes to draw on.
      scene: the model.
      view: projection, `[2, 3]`.
      line: line width in points.
    """
    model = scene.model
    visible = [g for g in range(model.ngeom) if model.geom_bodyid[g] > 0 and model.geom_rgba[g, 3] > 0]
    depth = scene.centres @ np.cross(view[0], view[1])
    for order, geom in enumerate(sorted(visible, key=lambda g: depth[g])):
        axes.add_patch(hull(outline(scene, geom, view), BODY, 3 + order / len(visible), line))


def outline(scene: Scene, geom: int, view: np.ndarray) -> np.ndarray:
    """Points `[n, 2]` whose convex hull is the outline of a geometry."""
    kind, size, centre = scene.model.geom_type[geom], scene.model.geom_size[geom], view @ scene.centres[geom]
    frame = view @ scene.frames[geom]
    if kind == SPHERE:
        return centre + size[0] * ROUND
    if kind == CAPSULE:
        reach = size[1] * frame[:, 2]
        return np.concatenate([centre + sign * reach + size[0] * ROUND for sign in (-1.0, 1.0)])
    if kind == BOX:
        return centre + (CORNERS * size) @ frame.T
    raise ValueError(f"geometries of MuJoCo's kind {kind} cannot be drawn; add the kind to outline.")


def hull(points: np.ndarray, colour: str, order: float, line: float = 0.6) -> Polygon:
    """Filled convex hull of points."""
    corners = points[ConvexHull(points).vertices]
    return Polygon(corners, facecolor=colour, edgecolor=INK, linewidth=line, zorder=order)


if __name__ == "__main__":
    main()
