"""Runs a program, or a run from its description, and writes everything that a run folder contains: `rookery.run`, and
what `rookery.train` and the command line share."""

import contextlib
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax

from rookery import factories
from rookery.deploy.evaluate import evaluate
from rookery.distributed import layout
from rookery.distributed.mesh import Mesh, describe
from rookery.distributed.programs import check_switches
from rookery.distributed.signals import Interrupted
from rookery.distributed.sync import connect, is_first, process_count
from rookery.envs import custom
from rookery.experiments import build, warm_start, warm_start_settings
from rookery.experiments.config_io import run_record
from rookery.experiments.methods.program import check_program
from rookery.experiments.spec import Built, RunSpec
from rookery.islands import IslandError, run_islands
from rookery.islands.plan import CallbacksFn
from rookery.learners.base import FitnessConfig
from rookery.populations.base import Program
from rookery.populations.pbt import check_rates_training
from rookery.report import tables
from rookery.report.figures import curves
from rookery.report.figures.repertoire import draw_repertoire
from rookery.report.formatting import counted
from rookery.report.page import write_report
from rookery.report.sections.summary import evaluation_share
from rookery.settings import SettingError
from rookery.storage.csv_log import read_csv
from rookery.storage.island_files import best_of, islands_of
from rookery.storage.lineage import Schedule, check_agent, lineage, record_of
from rookery.storage.record import PROGRAM, PYTHON, agent_of, method_of
from rookery.storage.run_dir import OutputWarning, RunFolderError, check_new, open_existing
from rookery.training import Callback, Required, loop
from rookery.training.config import RunConfig
from rookery.training.loop import Result, RunOptions
from rookery.training.program_record import changes
from rookery.training.start_point import has_checkpoint
from rookery.training.terminal import Terminal, terminal


class ProgramWarning(UserWarning):
    """The program of a resumed run differs from the one that the run recorded, or its warm-up fills the whole run."""


WrittenT = TypeVar("WrittenT")


def run(
    program: Program,
    config: RunConfig | None = None,
    over: Mesh | None = None,
    resume: bool = False,
    record: Mapping[str, Any] | None = None,
    command: Sequence[str] | None = None,
    after_save: Callable[[Path], None] | None = None,
    callbacks: Sequence[Callback | Required] = (),
    **options: object,
) -> Result:
    """Run a program for `generations` generations, and write what `rookery train` writes into its run directory.

    Args:
      program: the population program, such as `pbt(...)`, `seeds(...)` or a user-defined one.
      config: a `RunConfig`; without a `run_dir` nothing is written.
      over: the mesh to shard the population over; by default all devices that divide the population evenly (on a CPU,
        cores are devices only with `rookery.distributed.use_cores` or `jax_num_cpu_devices`), or those that the
        program was built for by its `placement`. A program without a recipe to build it again, such as one that is
        written from scratch, runs on one device of each process.
      resume: continue the run in `run_dir` up to generation `generations`. Its seed, and the generations, checkpoints
        and `best_by` that `options` leave out, are those that the run recorded.
      record: the entry of `config.json` in place of the settings of the program.
      command: the words of the command line, for the journal.
      after_save: called by process 0 with the run directory after each start of a background checkpoint.
      callbacks: functions that process 0 calls after each generation, or trackers; see `rookery.training.Callback`.
      **options: fields of `RunConfig` in place of `config`: `run(program, generations=20, run_dir="runs/mine")`.

    Returns:
      The final state and the metrics of the generations run.

    Raises:
      TypeError: this is no program, both `config` and `options` are given, or a callback cannot be called.
      ValueError: the configuration is invalid, the run directory cannot be used, or a continued run has another seed.
      Interrupted: Ctrl-C, SIGTERM or SIGHUP stopped the run; its progress is saved.
      Diverged: no member has finite values any more, or a repertoire was empty for `patience` generations.
      CheckpointError: a checkpoint could not be written or read.
      CallbackError: a `Required` callback failed; the progress is saved.

    Warns:
      ProgramWarning: the resumed run recorded other settings than those of the program; or no update is made, since the
        warm-up fills the run.
      CallbackWarning, AfterSaveWarning: a callback or `after_save` raised an exception; once each; the run continues.

    Example:
      >>> arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
      >>> cells = rookery.qd.grid((8, 8), arm.descriptor.lower, arm.descriptor.upper)
      >>> result = rookery.run(rookery.map_elites(arm, cells), generations=2, quiet=True)
      >>> len(result.history)
      2
    """
    check_program(program)
    config = loop.run_config(config, options, resume)
    over = over or layout.mesh_of(program)
    program = layout.place(program, over)
    if config.run_dir is not None:
        if not (resume or config.overwrite) and jax.process_count() == 1:  # before the line says that it runs
            check_new(config.run_dir, "resume=True")
        show(config, f"{title(program, over)}, in {config.run_dir}")
    return train(program, config, over, RunOptions(resume, record, command, after_save, callbacks))


def complete(spec: RunSpec, steps: float | None = None) -> tuple[RunSpec, Schedule | None]:
    """The run with its run directory and its absolute names, and the schedule that it replays.

    If its generations were given as `steps` of the environment of a member, that number is shown.
    """
    if steps is not None and spec.member_steps is not None:
        show(spec.run, f"{steps:,.0f} steps: {spec.run.generations:,} x {spec.member_steps:,} for each member")
    schedule, name, settings = None, spec.kind.name, spec.flat
    if not spec.kind.method.has_task:
        factory = settings["factory"]
        run_dir = spec.run.run_dir or f"runs/{name}-{factories.label(factory)}-{spec.run.seed}"
        return spec.replace(factory=factories.canonical(factory)).with_run(run_dir=run_dir), None
    if settings.get("replay_schedule") is not None:
        schedule = lineage(settings["replay_schedule"]).schedule()
        check_agent(schedule, agent_of(name))
        spec, name = warm_start_settings.without_population_method(spec), f"replay-{agent_of(name)}"
    run_dir = spec.run.run_dir or f"runs/{name}-{factories.label(spec.environment.env)}-{spec.run.seed}"
    given = {name: spec.flat.get(name) for name in _OTHER_RUNS}
    others = {name: str(Path(path).resolve()) for name, path in given.items() if path is not None}
    spec = spec.replace(**others).with_environment(env=custom.canonical(spec.environment.env))
    return spec.with_run(run_dir=run_dir), schedule


_OTHER_RUNS = ("init_from", "replay_schedule")
"""Settings that name the directory of another run, which a resumed run finds from any working directory."""


def start(
    spec: RunSpec,
    schedule: Schedule | None = None,
    callbacks: Sequence[Callback | Required] = (),
    resume: bool = False,
    command: Sequence[str] | None = None,
    finished: Callable[[], object] | None = None,
) -> Result:
    """Build a run from its complete description, and train it; see `train`.

    `command` has the words of the command line (None in Python); `finished` is called in every process when the run is
    saved, before the page is written.
    """
    run_dir, here = str(spec.run.run_dir), os.getcwd()
    if not (resume or spec.run.overwrite) and process_count() == 1:  # before anything is built
        check_new(run_dir, f"rookery.load({run_dir!r}).resume(generations=...)" if command is None else "")
    check_switches(has_infinities=False)  # before an agent is built
    built = build.build(spec, schedule)
    config = spec.run
    if os.getcwd() != here:  # a user's file has changed it
        run_dir = os.path.join(here, run_dir)
        config = spec.with_run(run_dir=run_dir).run
    connect(built.mesh)
    if not (resume and has_checkpoint(run_dir)):  # else the run in `init_from` is not needed any more
        built = built._replace(program=warm_start.start_from(spec, built))
    show(spec.run, f"{run_title(spec, built)}, in {run_dir}")
    record = run_record(built.spec or spec, built.space, built.program) | record_of(schedule)
    options = RunOptions(resume, record, command, callbacks=callbacks)
    return train(built.program, config, built.mesh, options, finished)


def start_islands(
    spec: RunSpec,
    callbacks: CallbacksFn = tuple,
    resume: bool = False,
    command: Sequence[str] | None = None,
    ray_address: str | None = None,
) -> None:
    """Train a run of islands, and write its page; see `islands.run_islands`."""
    count, run_dir = spec.method.islands.islands, Path(str(spec.run.run_dir))
    engine = "in turn in this process" if ray_address is None else "on Ray"
    size = spec.method.population // count
    show(spec.run, f"{spec.kind.name}: {count} islands of {counted(size, 'member')}, {engine}, in {run_dir}")
    live = _with_live_report(None) if spec.run.live else None
    spec = spec.with_run(run_dir=str(run_dir := run_dir.absolute()))  # a user's file may change the current folder
    try:
        try:
            run_islands(spec, resume, ray_address, command, live, callbacks)
        finally:
            has_progress = any((path / "metrics.csv").is_file() for path in islands_of(run_dir))
            has_begun = not isinstance(sys.exception(), ValueError)  # which is raised before any progress
            if has_begun and has_progress and (page := _write_page(run_dir)):
                show(spec.run, f"report     {page}")
    except IslandError:
        with contextlib.suppress(RunFolderError):  # no island has a finite fitness
            _show_best(spec.run, run_dir)
        raise
    learner = spec.learner
    if isinstance(learner, FitnessConfig) and learner.fitness_from == "training":
        _attempt(partial(_evaluate_at_end, learner.eval_episodes, spec.run, None), run_dir, "evaluation.csv")
        _write_page(run_dir)
    _show_best(spec.run, run_dir)


def _show_best(config: RunConfig, run_dir: Path) -> None:
    show(config, f"best       {best_of(run_dir)}")
    show(config, f"evaluate   rookery evaluate {run_dir}")


def run_title(spec: RunSpec, built: Built) -> str:
    """A run in one line: its kind, task, population, devices and timing."""
    if not spec.kind.method.has_task:
        return title(built.program, built.mesh)
    timing = f", {built.program.timing}" if built.program.timing else ""
    task = task_title(built.program, factories.label(spec.environment.env))
    return f"{spec.kind.name} on {task}: {build.call_method(spec, 'describe')} on {describe(built.mesh)}{timing}"


def title(program: Program, over: Mesh) -> str:
    """What runs where, such as `pbt-sac on hopper: population 8 on 2 cpu devices`."""
    size = f"{program.batch_size} genotypes a generation" if program.batch_size else ""
    cells = program.settings.get("cells", {}).get("cells") if program.table else None
    parts = [f"{cells} cells" if cells else "", size or f"population {program.population_size}"]
    name, timing = method_of(program.settings) or "a program", f", {program.timing}" if program.timing else ""
    task = f" on {task_title(program, program.task)}" if program.task else ""
    return f"{name}{task}: {', '.join(filter(None, parts))} on {describe(over)}{timing}"


def task_title(program: Program, name: str) -> str:
    """A task with the implementation of its physics, where it has several, such as `CheetahRun (impl warp)`."""
    implementation = program.settings.get("environment", {}).get("impl")
    return f"{name} (impl {implementation})" if implementation else name


def show(config: RunConfig, line: str) -> None:
    """Print a line, unless the run is quiet."""
    terminal(quiet=config.quiet or not is_first()).print_line(line)


def train(
    program: Program,
    config: RunConfig,
    over: Mesh,
    options: RunOptions,
    finished: Callable[[], object] | None = None,
) -> Result:
    """Run a program that is bound to its devices, then write the page and the pictures, and print a summary.

    After a signal or a full disk the page is written too, with the progress so far.
    `finished` is called in every process when the run is saved, before the page is written.
    """
    untrained = program.learner.untrained_generations if program.learner else 0
    if untrained >= config.generations:
        message = f"the warm-up lasts {untrained} generations, so that a run of {config.generations} makes no update"
        warnings.warn(f"{message}; give more generations, or fewer warmup_steps.", ProgramWarning, stacklevel=3)
    elif program.timing and program.timing.first > config.generations:
        first, last = program.timing.first, config.generations
        late = f"the run ends with generation {last}, before the first selection in generation {first}"
        show(config, f"note: {late}; give more generations, or a smaller exploit interval.")
    if program.settings.get("league", {}).get("league_every", 0) >= config.generations:
        late = f"the run ends with generation {config.generations}, before an entry of the league plays"
        show(config, f"note: {late}; give more generations, or a smaller league_every.")
    if options.resume:
        _warn_of_changes(program, str(config.run_dir))
    if config.live:
        options = options._replace(after_save=_with_live_report(options.after_save))
    try:
        result = loop.result_of(loop.turns(program, config, over, options))
    except (Exception, Interrupted) as error:
        if config.run_dir is not None and is_first() and not isinstance(error, ValueError):  # before any progress
            with contextlib.suppress(Exception):
                write_report([config.run_dir])
        raise
    if finished is not None:
        finished()
    if result.run_dir is not None and is_first():
        _write_outputs(program, config, result)
    return result


def _write_outputs(program: Program, config: RunConfig, result: Result) -> None:
    assert result.run_dir is not None
    run_dir, console = result.run_dir, terminal(quiet=config.quiet)
    outputs: dict[str, Path | str | None] = {"run": run_dir}
    learner = program.learner
    if learner and learner.evaluator and learner.rate_training and program.settings.get("member") != "agent":
        is_python = open_existing(run_dir).config.get("kind") == PYTHON
        at_end = partial(_evaluate_at_end, learner.evaluator.episodes, config, program if is_python else None)
        outputs["evaluation"] = _attempt(at_end, run_dir, "evaluation.csv")
    outputs["curves"] = _attempt(curves.draw_curves, run_dir, "curves.png")
    outputs["report"] = _write_page(run_dir)
    if program.table is not None:
        outputs["repertoire"] = _attempt(draw_repertoire, run_dir, "repertoire.png")
        _attempt(lambda path: console.print(tables.repertoire_summary(path)), run_dir, "summary")
    outputs["evaluate"] = f"rookery evaluate {shlex.quote(str(run_dir))}"
    if open_existing(run_dir).config.get("kind") == PYTHON:  # which no command can build again
        outputs["evaluate"] = f"rookery.load({str(run_dir)!r}, program).evaluate()"
    if (run_dir / "lineage.csv").exists():
        _attempt(lambda path: console.print(tables.summary(path)), run_dir, "summary")
        _attempt(lambda path: _note_share(program, path, console), run_dir, "note")
    if result.memory is not None:
        outputs["memory"] = str(result.memory)
    for name, value in outputs.items():
        if value is not None:
            console.print_line(f"{name:10} {value}")


def _note_share(program: Program, run_dir: Path, console: Terminal) -> None:
    """Print what to do where evaluations took more time than training."""
    share = evaluation_share(read_csv(open_existing(run_dir).metrics_file))
    learner = program.learner
    if share > 0.5 and program.table is None and program.space and learner and not learner.rate_training:
        longer = "longer generations (--evaluate-every, or --steps-per-generation)"
        remedy = longer
        if learner.evaluator is not None and learner.evaluator.intrinsic_reward is None:
            with contextlib.suppress(SettingError):
                check_rates_training(learner, program.space, program.settings.get("rating_opponents"))
                remedy = f"{longer} or --fitness-from training"
        console.print_line(f"note: evaluation took {share:.0%} of the time; give {remedy}.")


def _evaluate_at_end(episodes: int, config: RunConfig, program: Program | None, run_dir: Path) -> Path:
    """Evaluate the members of a run whose fitness comes from training episodes; returns the table of the best one."""
    if process_count() > 1:
        raise ValueError("a run of several processes is evaluated afterwards, by rookery evaluate")
    evaluate(run_dir, episodes, 0, "last" if config.best_by is None else "best", program)
    return open_existing(best_of(run_dir)).evaluation_file


def _write_page(run_dir: Path) -> Path | None:
    return _attempt(lambda path: write_report([path]), run_dir, "report.html")


def _attempt(write: Callable[[Path], WrittenT], run_dir: Path, what: str) -> WrittenT | None:
    """Write or print a table, picture or page of a finished run; a failure is a warning, since the run is saved."""
    try:
        return write(run_dir)
    except Exception as error:
        warnings.warn(f"no {what} was written ({type(error).__name__}: {error})", OutputWarning, stacklevel=2)
        return None


def _with_live_report(after_save: Callable[[Path], None] | None) -> Callable[[Path], None]:
    """Also write the report of the run in progress, which the browser reloads every 10 seconds."""

    def write(run_dir: Path) -> None:
        if after_save is not None:
            after_save(run_dir)
        write_report([run_dir], refresh=10)

    return write


def _warn_of_changes(program: Program, run_dir: str) -> None:
    """Warn if a program differs from the one that a run recorded, which then does not continue exactly."""
    recorded = open_existing(run_dir).config
    of_a_program = recorded.get("kind") in (PYTHON, PROGRAM)
    if of_a_program and is_first() and (found := changes(recorded, program)):
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        message = f"the program differs from the one that {run_dir} recorded: {'; '.join(found[:_SHOWN])}{more}"
        warnings.warn(message, ProgramWarning, stacklevel=4)


_SHOWN = 3
