"""What the command line does with runs that there are, from evaluating to exporting them; and the list of tasks."""

import contextlib
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console

from rookery.deploy import evaluate
from rookery.deploy import render as rendering
from rookery.envs import registry
from rookery.report import tables
from rookery.report.figures.skills import draw_skills
from rookery.storage import run_dir
from rookery.storage.checkpoint import Checkpointer, CheckpointError


@dataclass(frozen=True)
class Evaluate:
    """Judge every member of a run's newest checkpoint, or every elite of its repertoire, on fresh start states."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    episodes: int = 100
    """Full deterministic episodes per member (at least 1)."""
    seed: int = 0
    """Seed of the start states."""
    checkpoint: str = "last"
    """Which checkpoint: last, best (by the metric that the run was told), or the number of a generation."""


@dataclass(frozen=True)
class Render:
    """Draw an episode of who was best in a run, as a film: our own worlds in the plane, gymnax's and JaxMARL's."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    picture: Path | None = None
    """Where to draw it, ending in .gif, or in .mp4 where ffmpeg is installed; episode.gif in the run's folder by
    default."""
    member: int | None = None
    """Who acts (counted from 0); by default who was best when last judged."""
    skill: int | None = None
    """Which skill of a run that discovers skills (counted from 0); the first by default."""
    seed: int = 0
    """Seed of the start state."""
    checkpoint: str = "last"
    """Which checkpoint: last, best (by the metric that the run was told), or the number of a generation."""


@dataclass(frozen=True)
class Envs:
    """List the tasks."""


@dataclass(frozen=True)
class Compare:
    """Compare runs over their seeds: interquartile means with 95 % intervals, and who probably is better.

    Runs whose settings are equal but for the seed form a group; independent members (--seeds 8) are runs, each with its
    own environment steps. Definitions: Agarwal 2021 (arXiv:2108.13264).
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs."""
    picture: Path = Path("comparison.png")
    """Where to draw the comparison."""
    score: str | None = None
    """Column of metrics.csv to compare by, such as qd_score or coverage; by default the fitness, of a population that
    of its best member."""
    resamples: int = 5_000
    """Bootstrap resamples behind each interval (at least 1)."""
    fresh: int | None = None
    """Evaluate the checkpoint of each run on so many fresh episodes (at least 1) and compare these: of independent
    members each, otherwise the member or elite that was best in the run's own evaluations, which are optimistic."""
    checkpoint: str = "last"
    """Which checkpoint of each run fresh episodes are of: last, best (by the metric that the run was configured with),
    or the number of a generation."""
    seed: int = 0
    """Seed of the start states of fresh episodes."""


@dataclass(frozen=True)
class Report:
    """Write a run's page, to look at, to point at and to play; of several runs side by side."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs."""
    page: Path | None = None
    """Where to write it; report.html in the run's folder by default, or here for several runs."""
    rollouts: int | Literal["all"] = 12
    """Episodes that the page plays (at least 0), or all: of cells spread over the repertoire, of skills, or of the best
    members."""
    seed: int = 0
    """Seed of the state that they start from."""
    serve: bool = False
    """Show the page at an address of this machine instead, and refresh it as the run goes on, until Ctrl-C."""
    host: str = "127.0.0.1"
    """Where to serve it; by default nobody but this machine can see it."""
    port: int = 8000
    """Port to serve it at; 0 takes any that is free."""


@dataclass(frozen=True)
class Export:
    """Write a policy of a run as a folder that acts without this library, and check that it acts alike."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""
    to: Path | None = None
    """Where to write it, a folder that is new, empty or of an earlier export; policy in the run's folder by default."""
    cell: str | None = None
    """Of a repertoire: best (the default), a cell's number, or a descriptor such as 0.2,0.8, whose nearest is taken."""
    member: int | None = None
    """Of a population, counted from 0; by default who was best when last judged."""
    skill: int | None = None
    """Which skill is built in, of a run that discovers skills (counted from 0); the first by default."""
    checkpoint: str = "last"
    """Which checkpoint: last, best (by the metric that the run was told), or the number of a generation."""


def evaluator(command: Evaluate) -> None:
    """`rookery evaluate RUN`."""
    generation, metrics = evaluate.evaluate(command.run, command.episodes, command.seed, command.checkpoint)
    console = Console()
    console.print(f"{command.run}, generation {generation}", highlight=False, soft_wrap=True)
    told = tables.repertoire_examination if "stored_fitness" in metrics else tables.examination
    console.print(told(metrics))
    for part in tables.examined_scores(metrics):
        console.print(part)
    if "agents" in metrics:
        console.print(tables.team_examination(metrics))
    if "skill" in metrics:
        console.print(tables.skill_examination(metrics, int(metrics["best_member"])))
        if metrics["descriptor"].shape[1]:
            console.print(f"skills     {draw_skills(command.run)}", highlight=False, soft_wrap=True)


def render(command: Render) -> None:
    """`rookery render RUN`."""
    from rookery.report.figures.animation import animate

    path = command.picture or command.run / "episode.gif"
    played = rendering.render(command.run, command.member, command.skill, command.seed, command.checkpoint)
    scenes = played.scenes
    if scenes is None:
        rendering.film(played, path)
    else:
        animate(played.picture.scenery, scenes, played.returns, path, title=played.title)
    returns = ", ".join(f"{name} {values[-1]:,.4g}" for name, values in played.returns.items())
    who = "the best" if played.member is None else f"member {played.member}"
    console, steps = Console(), len(played.rewards) - 1
    console.print(f"{who}, generation {played.generation}: {steps} steps, {returns}", highlight=False, soft_wrap=True)
    console.print(f"picture   {path}", highlight=False, soft_wrap=True)


def compare(command: Compare) -> None:
    """`rookery compare RUN RUN ...`."""
    from rookery.report import compare as comparing

    fresh = None if command.fresh is None else comparing.Fresh(command.fresh, command.checkpoint, command.seed)
    if fresh is None and (command.checkpoint, command.seed) != ("last", 0):
        raise ValueError("--checkpoint and --seed say which fresh episodes to run; give --fresh, or leave them out.")
    comparison = comparing.compare(command.runs, command.picture, command.resamples, score=command.score, fresh=fresh)
    console = Console()
    for part in comparing.tables(comparison):
        console.print(part)
    console.print(f"picture   {command.picture}", highlight=False, soft_wrap=True)


def report(command: Report) -> None:
    """`rookery report RUN RUN ...`."""
    from rookery.report.page import check_runs, write_report
    from rookery.report.serve import server

    console = Console()
    if isinstance(command.rollouts, int) and command.rollouts < 0:
        raise ValueError(f"rollouts must be at least 0, or all, got {command.rollouts}.")
    if command.serve and command.page is not None:
        raise ValueError(f"a page that is served is not written to {command.page}; leave out --page, or --serve.")
    runs = check_runs(command.runs, command.page, begun=not command.serve)
    count = None if command.rollouts == "all" else command.rollouts
    roll_out = partial(_roll_out, console, count, command.seed)
    if not command.serve:
        for run in runs if count != 0 else ():
            roll_out(run)
        console.print(f"report    {write_report(runs, command.page)}", highlight=False, soft_wrap=True)
        return
    with server(runs, command.host, command.port) as listening, contextlib.suppress(KeyboardInterrupt):
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        host, port = listening.server_address[:2]
        told = f"[{host!s}]" if ":" in str(host) else host
        console.print(f"report    http://{told}:{port}/  (Ctrl-C ends it)", highlight=False, soft_wrap=True)
        try:
            for run in runs if count != 0 else ():  # the page is there, and shows them when they are
                roll_out(run)
            threading.Event().wait()
        finally:
            listening.shutdown()


def _roll_out(console: Console, count: int | None, seed: int, run: Path) -> None:
    """Let who learned in a run play, for the page; what cannot be played is told, and the page does without it."""
    from rookery.deploy.episodes import record_episodes, write_episodes

    try:
        if Checkpointer(run_dir.open_existing(run).checkpoints, read_only=True).empty:
            raise CheckpointError(f"{run} has not written its first checkpoint.")
        write_episodes(run, record_episodes(run, count, seed))
        opened = run_dir.open_existing(run)
        if "skills" in opened.config and not _is_newer(opened.skills_file, opened.metrics_file):
            evaluate.evaluate(run, _EPISODES_PER_SKILL * int(opened.config["skills"]["num_skills"]), seed)
    except (ValueError, ImportError, OSError, CheckpointError) as error:
        console.print(f"note      no episodes to play: {error}", highlight=False, soft_wrap=True, markup=False)


def _is_newer(file: Path, other: Path) -> bool:
    return file.exists() and file.stat().st_mtime_ns >= other.stat().st_mtime_ns


_EPISODES_PER_SKILL = 3


def export(command: Export) -> None:
    """`rookery export RUN`."""
    from rookery.deploy import export as exporting

    choice = {"cell": command.cell, "member": command.member, "skill": command.skill}
    made = exporting.export(command.run, command.to, **choice, checkpoint=command.checkpoint)
    chosen = {"cell": made.cell, "member": made.member, "skill": made.skill}
    who = ", ".join(f"{name} {value}" for name, value in chosen.items() if value is not None) or "the best"
    console = Console()
    console.print(f"{who}, generation {made.generation}", highlight=False, soft_wrap=True)
    for name, difference in made.differences.items():
        alike = f"acts alike on {made.observations:,} observations, to {difference:.1g}"
        console.print(f"{name:17} {alike}", highlight=False, soft_wrap=True)
    if made.without_onnx:
        console.print(f"no policy.onnx    {made.without_onnx}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"policy            {made.path}", highlight=False, soft_wrap=True)


def envs(_: Envs) -> None:
    """`rookery envs`."""
    wide = Console(width=max(Console().width, 128))  # on less, the descriptors would be left out
    wide.print(tables.tasks_table(list(registry.table())))


COMMANDS = {
    "evaluate": (Evaluate, evaluator),
    "render": (Render, render),
    "compare": (Compare, compare),
    "report": (Report, report),
    "export": (Export, export),
    "envs": (Envs, envs),
}
"""Name -> what it is told, and what it does."""


def act(command: Any) -> None:
    """Carry out a command of this file.

    Raises:
      ValueError: what the command was told is wrong, or a file of a run cannot be read or written.
    """
    try:
        next(do for kind, do in COMMANDS.values() if type(command) is kind)(command)
    except OSError as error:
        if error.filename is None:
            raise
        raise ValueError(f"{error.filename}: {error.strerror}; check who may use it, and its disk's space.") from error
