"""The commands for existing runs, from `rookery evaluate` to `rookery export`, and the list of tasks."""

import contextlib
import dataclasses
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rookery.cli import listings
from rookery.cli.islands import ReplayIsland, replay
from rookery.cli.options import Positional
from rookery.deploy import evaluate
from rookery.deploy import render as rendering
from rookery.envs import registry
from rookery.envs.custom import is_custom
from rookery.factories import SUITE_PREFIXES
from rookery.report import tables
from rookery.report.figures.skills import draw_skills
from rookery.report.formatting import counted
from rookery.report.statistics import MOST_RESAMPLES
from rookery.settings import SettingError, Within
from rookery.storage import run_dir, sources
from rookery.storage.checkpoint import CheckpointError
from rookery.storage.island_files import best_of
from rookery.training.terminal import Terminal, terminal


@dataclass(frozen=True, kw_only=True)
class OfRun:
    """Options of a command that builds the parts of a run."""

    env: str | None = None
    """Factory in place of the recorded one of a user-defined environment, named as in `rookery train`. By default the
    recorded file, or where that is gone its copy in the run directory."""
    factory: str | None = None
    """Function in place of the recorded one of `rookery train program`, likewise."""

    def use_functions(self) -> None:
        """Build the parts of the run by these functions; see `storage.sources.replace`."""
        for run in getattr(self, "runs", None) or [getattr(self, "run")]:  # noqa: B009
            sources.replace(run, env=self.env, factory=self.factory)


@dataclass(frozen=True)
class Evaluate(OfRun):
    """Evaluate every member of a run's checkpoint, or every elite of its repertoire, on new start states."""

    run: Positional[Path]
    """Run directory."""
    episodes: Annotated[int, Within(1)] = 100
    """Full episodes with deterministic actions per member or elite."""
    goals: Annotated[int | None, Within(1)] = None
    """Also let the skills of the best member reach this number of goals, positions drawn within the limits of the
    task's descriptor; for runs of metra and lsd on a task whose descriptor is a position."""
    seed: int = 0
    """Seed of the start states and of the goals (an integer)."""
    checkpoint: str = "last"
    """Checkpoint to evaluate: last, best (by the run's `--best-by`), or the number of a
    generation."""
    tournament: bool = False
    """For agents that compete: every member of each role plays every member of the other roles, with `--episodes`
    episodes for each pair; prints their ratings, and writes tournament.csv and tournament.png into the run folder, in
    place of those of an earlier tournament."""
    against: Path | None = None
    """Run directory of the opponents of a tournament (its newest checkpoint); by default the members of the run play
    each other."""


@dataclass(frozen=True)
class Render(OfRun):
    """Render an episode of a run's best member or elite as an animation (planar tasks, gymnax, JaxMARL, Gymnasium)."""

    run: Positional[Path]
    """Run directory."""
    to: Annotated[Path | None, Parameter(alias="--picture")] = None
    """File to write, ending in .gif, or in .mp4 if ffmpeg is installed; by default episode.gif in the run directory."""
    member: Annotated[int | None, Within(0)] = None
    """Number of the member that acts (0 to population - 1); by default the best one in its last evaluation."""
    cell: str | None = None
    """Elite that acts, in a run with a repertoire: best (the default), a cell's index, or a descriptor such as
    0.2,0.8 for the nearest elite."""
    skill: Annotated[int | None, Within(0)] = None
    """Number of the skill, in a run that discovers skills (0 to number of skills - 1); by default 0."""
    seed: int = 0
    """Seed of the start state (an integer)."""
    checkpoint: str = "last"
    """Checkpoint to render: last, best (by the run's `--best-by`), or the number of a
    generation."""


@dataclass(frozen=True)
class Envs:
    """List all tasks, those that match a word, or everything about one."""

    name: Positional[str] = ""
    """A task, package.module:factory or gym:ID to describe; or a part of the names to list (ant). By default all."""


@dataclass(frozen=True)
class Compare:
    """Compare groups of runs: interquartile means over seeds with 95 % intervals, and probabilities of improvement.

    Runs whose settings differ only in the seed form a group; each independent member (--seeds 8) counts as a run with
    separate environment steps. Definitions: Agarwal 2021 (arXiv:2108.13264).
    """

    runs: Positional[tuple[Path, ...]]
    """Run directories."""
    to: Annotated[Path, Parameter(alias="--picture")] = Path("comparison.png")
    """File to write the plot to."""
    score: str | None = None
    """Column of metrics.csv to compare, such as qd_score or coverage; by default the fitness, which for a population is
    that of its best member."""
    metric: str | None = None
    """Measure of the task (`rookery envs NAME`), or return, to compare in place of the fitness of the same members; it
    compares runs of different objectives too."""
    resamples: Annotated[int, Within(1, MOST_RESAMPLES)] = 5_000
    """Bootstrap resamples for each interval."""
    fresh: Annotated[int | None, Within(1)] = None
    """Compare by a new evaluation of each run's checkpoint on this number of episodes. It covers every independent
    member; of other runs, the member or elite that was best in the evaluations during training, whose maximum is
    optimistically biased."""
    checkpoint: str = "last"
    """Checkpoint of each run for `--fresh`: last, best (by the run's `--best-by`), or the
    number of a generation."""
    seed: int = 0
    """Seed of the start states for `--fresh` (an integer)."""


@dataclass(frozen=True)
class Report(OfRun):
    """Write an interactive HTML page with plots and recorded episodes of a run, or of several runs side by side."""

    runs: Positional[tuple[Path, ...]]
    """Run directories."""
    to: Annotated[Path | None, Parameter(alias="--page")] = None
    """File to write; by default report.html in the run directory, or in the working directory for several runs."""
    rollouts: Annotated[int | Literal["all"], Within(0)] = 12
    """Episodes to record for the page (or all): of elites spread over the repertoire, of the skills, or of the best
    members."""
    seed: int = 0
    """Seed of the start state of the episodes (an integer)."""
    serve: bool = False
    """Serve the page over HTTP, not as a file, and update it while the run continues, until Ctrl-C."""
    host: str = "127.0.0.1"
    """Host name or IP address to serve at; the default accepts connections from this machine only."""
    port: Annotated[int, Within(0, 65535)] = 8000
    """Port to serve at; 0 takes any free port."""


@dataclass(frozen=True)
class Export(OfRun):
    """Export a policy of a run as a folder that can be used without rookery, and check that its actions are equal."""

    run: Positional[Path]
    """Run directory."""
    to: Path | None = None
    """Folder to write: new, empty or an earlier export; by default policy in the run directory."""
    cell: str | None = None
    """Elite of a repertoire to export: best (the default), the number of a cell, or a descriptor such as 0.2,0.8, for
    the elite with the nearest descriptor."""
    member: Annotated[int | None, Within(0)] = None
    """Number of the member to export (0 to population - 1); by default the best one in its last evaluation."""
    skill: Annotated[int | None, Within(0)] = None
    """Number of the skill that the policy is fixed to, in a run that discovers skills (0 to number of skills - 1); by
    default 0."""
    checkpoint: str = "last"
    """Checkpoint to export from: last, best (by the run's `--best-by`), or the number
    of a generation."""


Command = Evaluate | Render | Envs | Compare | Report | Export | ReplayIsland


def evaluator(command: Evaluate) -> None:
    """`rookery evaluate RUN`."""
    if command.tournament:
        _tournament(command)
        return
    if command.against is not None:
        raise SettingError("against", None, "has an effect only with {tournament}", "give it, or leave this out")
    goals = None
    if command.goals is not None:
        goals = evaluate.evaluate_goals(command.run, command.goals, command.seed, command.checkpoint)
    generation, metrics = evaluate.evaluate(command.run, command.episodes, command.seed, command.checkpoint)
    console = terminal()
    console.print_line(f"{command.run}, generation {generation}")
    table = tables.repertoire_evaluation if "stored_fitness" in metrics else tables.member_evaluation
    console.print(table(metrics))
    for part in tables.evaluation_summary(metrics):
        console.print(part)
    if "agents" in metrics:
        console.print(tables.team_evaluation(metrics))
    if "skill" in metrics:
        console.print(tables.skill_evaluation(metrics, int(metrics["best_member"])))
        folder = run_dir.open_existing(command.run)
        if metrics["descriptor"].shape[1] and folder.skills_file.is_file():
            with run_dir.output_to(folder.skills_picture_file):
                console.print_line(f"skills     {draw_skills(command.run)}")
    if "cells" in metrics:
        console.print_line(tables.coverage_line(metrics))
    if goals is not None:
        console.print(tables.goal_evaluation(goals))


def _tournament(command: Evaluate) -> None:
    """`rookery evaluate RUN --tournament`."""
    from rookery.deploy.tournament import tournament
    from rookery.report.figures.tournament import draw_tournament

    if command.goals is not None:
        raise SettingError("goals", None, "has no effect with {tournament}", "leave one of them out")
    result = tournament(command.run, command.against, command.episodes, command.seed, command.checkpoint)
    opponents = "" if command.against is None else f" against {command.against}"
    title, console = f"{command.run}, generation {result.generation}{opponents}", terminal()
    console.print_line(f"{title}, {counted(command.episodes, 'episode')} per pair")
    for part in tables.tournament(result):
        console.print(part)
    folder = run_dir.open_existing(command.run)
    if folder.tournament_file.is_file():
        console.print_line(f"table     {folder.tournament_file}")
    with run_dir.output_to(folder.tournament_picture_file):
        picture = draw_tournament(result, folder.tournament_picture_file, folder.path.name + opponents)
        console.print_line(f"picture   {picture}")


def render(command: Render) -> None:
    """`rookery render RUN`."""
    path = command.to or command.run / "episode.gif"
    chosen = command.member, command.skill, command.seed, command.checkpoint
    played = rendering.render(command.run, *chosen, cell=command.cell, to=path)
    rendering.draw_episode(played, path)
    returns = ", ".join(f"{name} {values[-1]:z,.4g}" for name, values in played.returns.items())
    acting = {"cell": played.cell, "member": played.member}
    policy = ", ".join(f"{name} {value}" for name, value in acting.items() if value is not None) or "the best"
    console, steps = terminal(), len(played.rewards) - 1
    about = ", ".join(filter(None, (policy, f"generation {played.generation}", played.elite)))
    console.print_line(f"{about}: {steps} steps, {returns}")
    console.print_line(f"picture   {path}")


def compare(command: Compare) -> None:
    """`rookery compare RUN RUN ...`."""
    from rookery.report import compare as comparing

    fresh = None if command.fresh is None else evaluate.fresh(command.fresh, command.seed, command.checkpoint)
    if fresh is None and (command.checkpoint, command.seed) != ("last", 0):
        name = "checkpoint" if command.checkpoint != "last" else "seed"
        raise SettingError(name, None, "has an effect only with {fresh}", "give it, or leave this out")
    chosen = {"score": command.score, "fresh": fresh, "metric": command.metric}
    comparison = comparing.compare(command.runs, command.to, command.resamples, **chosen)
    console = terminal()
    for part in comparing.tables(comparison):
        console.print(part)
    console.print_line(f"picture   {comparison.picture}")


def report(command: Report) -> None:
    """`rookery report RUN RUN ...`."""
    from rookery.report.page import check_runs, write_report
    from rookery.report.serve import server

    console = terminal()
    if command.serve and command.to is not None:
        raise SettingError("to", None, "has no effect with {serve}", "leave one of them out")
    if not command.serve and (command.host, command.port) != (Report.host, Report.port):
        name = "host" if command.host != Report.host else "port"
        raise SettingError(name, None, "has an effect only with {serve}", "give it, or leave this out")
    runs = check_runs(command.runs, command.to, begun=not command.serve)
    count = None if command.rollouts == "all" else command.rollouts
    roll_out = partial(_roll_out, console, count, command.seed)
    if not command.serve:
        for run in runs if count != 0 else ():
            roll_out(run)
        console.print_line(f"report    {write_report(runs, command.to)}")
        return
    with server(runs, command.host, command.port) as listening, contextlib.suppress(KeyboardInterrupt):
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        host, port = listening.server_address[:2]
        address = f"[{host!s}]" if ":" in str(host) else host
        console.print_line(f"report    http://{address}:{port}/  (Ctrl-C ends it)")
        try:
            for run in runs if count != 0 else ():  # the page is served meanwhile and adds episodes when they are ready
                roll_out(run)
            threading.Event().wait()
        finally:
            listening.shutdown()


def _roll_out(console: Terminal, count: int | None, seed: int, run: Path) -> None:
    """Record episodes of a run for its page; if that is not possible, print the reason and leave them out."""
    from rookery.deploy.episodes import add_episodes

    try:
        add_episodes(run, count, seed)
    except (ValueError, ImportError, OSError, CheckpointError) as error:
        console.print_line(f"note      no episodes recorded: {run_dir.sentence_of(error)}")


def export(command: Export) -> None:
    """`rookery export RUN`; of a run of islands, the policy of the best one."""
    from rookery.deploy.export import export as export_export

    choice = {"cell": command.cell, "member": command.member, "skill": command.skill}
    exported = export_export(command.run, command.to, **choice, checkpoint=command.checkpoint)
    chosen = {"cell": exported.cell, "member": exported.member, "skill": exported.skill}
    policy = ", ".join(f"{name} {value}" for name, value in chosen.items() if value is not None) or "the best"
    console = terminal()
    console.print_line(", ".join(filter(None, (policy, f"generation {exported.generation}", exported.elite))))
    for name, difference in exported.differences.items():
        agreement = f"equal actions on {exported.observations:,} observations, to within {difference:.1g}"
        console.print_line(f"{name:17} {agreement}")
    if exported.trained_in == "bfloat16":
        console.print_line("precision         float32; the run's networks compute in bfloat16")
    if exported.without_onnx:
        console.print_line(f"no policy.onnx    {exported.without_onnx}")
    console.print_line(f"policy            {exported.path}")


def envs(command: Envs) -> None:
    """`rookery envs [NAME]`."""
    console, word = terminal(), command.name.lower()
    if is_custom(command.name) or command.name.startswith(SUITE_PREFIXES):
        console.print(listings.task_table(registry.describe_environment(registry.make(command.name))))
        return
    chosen = [row for row in registry.table() if word in row["task"].lower() or word == row["suite"]]
    if not chosen and word not in ("gym", "gymnasium"):
        registry.find(command.name)  # raises with the nearest names
    for suite in dict.fromkeys(row["suite"] for row in chosen if len(chosen) > 1):
        console.print(listings.tasks_table(suite, [row for row in chosen if row["suite"] == suite]))
    for row in chosen:
        if row["task"] == command.name or len(chosen) == 1:
            console.print(listings.task_table(row))
    if len(chosen) > 1:
        console.print_line(f"{len(chosen)} tasks (act d: discrete actions); `rookery envs NAME` describes one")
    if not word or not chosen:
        console.print(
            "any environment of Gymnasium is gym: and its id, such as gym:Hopper-v5 or gym:my_package:MyEnv-v0; one of "
            "EnvPool is envpool: and its name"
        )


COMMANDS = {
    "evaluate": (Evaluate, evaluator),
    "render": (Render, render),
    "compare": (Compare, compare),
    "report": (Report, report),
    "export": (Export, export),
    "replay-island": (ReplayIsland, replay),
    "envs": (Envs, envs),
}
"""Name of the command -> its class, whose fields are its arguments, and the function that executes it."""


def execute(command: Command) -> None:
    """Execute a command of this module."""
    if isinstance(command, OfRun):
        command.use_functions()
    if isinstance(command, Evaluate | Render):
        command = dataclasses.replace(command, run=best_of(command.run))
    next(function for kind, function in COMMANDS.values() if type(command) is kind)(command)
