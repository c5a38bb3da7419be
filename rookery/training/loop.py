"""The training loop: runs generations, logs and saves each, and resumes a run exactly.

All random keys come from this loop: generation g uses only `fold_in(run_key, g)`, so a run that was killed and resumed
draws the same random numbers as one that never stopped.
"""

import contextlib
import dataclasses
import hashlib
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rookery.distributed import device_memory, mesh, programs, sync
from rookery.distributed.mesh import Mesh
from rookery.distributed.signals import Requests
from rookery.populations.base import Program, ProgramState
from rookery.populations.stages import StagedStep, staged_step
from rookery.settings import LARGEST_COUNT, RESERVED_COLUMNS, SettingError, check_names, config_from, verbatim
from rookery.storage import sources
from rookery.storage.best_checkpoint import Best
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.csv_log import RunLog
from rookery.storage.events import Journal
from rookery.storage.record import check_keys, without_defaults
from rookery.storage.run_dir import RunFolder, create, open_existing
from rookery.storage.sources import SourceWarning
from rookery.training import memory_plan as plans
from rookery.training import terminal
from rookery.training.callbacks import Callback, Callbacks, Required, Start, number_required
from rookery.training.compilation import Compiler
from rookery.training.config import RunConfig
from rookery.training.generation import Generations
from rookery.training.generation_loop import ExchangeFn, Loop, Pace
from rookery.training.host_episodes import HostEpisodes, host_episodes
from rookery.training.metrics import WallTimes, summarize
from rookery.training.program_record import record_of_new, record_of_resumed
from rookery.training.progress import Reporter
from rookery.training.run_writer import AfterSave, RunWriters
from rookery.training.start_point import StartPoint, restore
from rookery.trees import flatten_mapping
from rookery.types import Key, PyTree, Record


class Result(NamedTuple):
    """The result of a run."""

    state: ProgramState
    """The final state of the program."""
    history: list[dict[str, np.ndarray]]
    """The program's metrics of each generation that this call ran."""
    run_dir: Path | None
    """The run directory; None if nothing was written."""
    memory: device_memory.Usage | None = None
    """Planned and measured device memory; None if no generation was left to run."""

    def __repr__(self) -> str:
        """A summary without the arrays."""
        return f"Result({len(self.history)} generations, run_dir={self.run_dir and str(self.run_dir)!r})"


def plan(program: Program, config: RunConfig, over: Mesh) -> plans.Plan:
    """Plan the device memory of a run, including the working memory of the compiled generation.

    The generation is compiled as in `run`, which therefore finds it in the persistent compilation cache, if that is on.

    Args:
      program: the program to plan for.
      config: of the run.
      over: the mesh to shard the population over.

    Raises:
      ValueError: the devices cannot divide the program evenly, or `best_by` names no metric.
    """
    return compile_plan(program, config, over)[0]


def compile_plan(program: Program, config: RunConfig, over: Mesh) -> tuple[plans.Plan, programs.Stages]:
    """The plan of a run and the compiled stages that it was made from; see `plan`."""
    compiler = Compiler(program, over)
    planned = plans.plan(program, over, compiler.template)
    plans.check_fits(planned, compiler.work)
    Best(config.best_by).check(_columns(program, compiler.metrics))
    stages = compiler.compile()
    return planned._replace(working=plans.working_memory(stages, planned.held)), stages


def run(
    program: Program,
    config: RunConfig | None = None,
    over: Mesh | None = None,
    resume: bool = False,
    record: Record | None = None,
    command: Sequence[str] | None = None,
    after_save: Callable[[Path], None] | None = None,
    callbacks: Sequence[Callback | Required] = (),
    **options: Any,
) -> Result:
    """Run a program for `generations` generations, and write its tables and checkpoints.

    `rookery.run` adds the pictures, the page and the choice of devices.

    Args:
      program: the population program, bound to its devices.
      config: a `RunConfig`; without a `run_dir` nothing is written.
      over: the mesh to shard the population over; by default the first device of each process.
      resume: continue the run in `run_dir` up to generation `generations`; what `options` leave out is as recorded.
      record: the config entry of `config.json`, from which the command line can rebuild the program.
      command: the words of the command line, for the journal.
      after_save: called by process 0 with the run directory after each start of a background checkpoint.
      callbacks: functions that process 0 calls after each generation, or trackers; see `rookery.training.Callback`.
      **options: fields of `RunConfig` in place of `config`: `run(program, generations=20, run_dir="runs/mine")`.

    Returns:
      The final state and the metrics of the generations run.

    Raises:
      TypeError: both `config` and `options` are given, or a callback cannot be called.
      ValueError: the configuration is invalid, the run directory cannot be used, or a continued run has another seed.
      Interrupted: Ctrl-C, SIGTERM or SIGHUP stopped the run; its progress is saved.
      Diverged: no member has finite values any more, or a repertoire was empty for `patience` generations.
      CheckpointError: a checkpoint could not be written or read.
      CallbackError: a `Required` callback failed; the progress is saved.
      HostError: an environment on the host failed; the progress is saved.

    Warns:
      CallbackWarning, AfterSaveWarning: a callback or `after_save` raised an exception; once each; the run continues.
    """
    config = run_config(config, options, resume)
    over = over or mesh.make_mesh(jax.process_count())
    return result_of(turns(program, config, over, RunOptions(resume, record, command, after_save, callbacks)))


class Sharing(NamedTuple):
    """What runs of one process share, and the exchange between them."""

    exchange: ExchangeFn
    requests: Requests
    """The signals that stop the run; the caller handles them."""
    compiler: Compiler
    """Compiles the program of all these runs once."""


class RunOptions(NamedTuple):
    """How a run is started, besides its configuration; the fields are explained in `run`."""

    resume: bool = False
    record: Record | None = None
    command: Sequence[str] | None = None
    after_save: Callable[[Path], None] | None = None
    callbacks: Sequence[Callback | Required] = ()
    shared: Sharing | None = None
    """What the run shares with others; by default it handles signals and compiles the program itself."""


def result_of(running: Generator[int, None, Result]) -> Result:
    """Run all generations of `turns`; returns its result."""
    while True:
        try:
            next(running)
        except StopIteration as stop:
            return stop.value


def turns(program: Program, config: RunConfig, over: Mesh, options: RunOptions) -> Generator[int, None, Result]:
    """`run`, one generation at a time: several runs of one process can take turns.

    Args:
      program: as for `run`.
      config: of the run.
      over: the mesh.
      options: how it is started, and what it shares with other runs.

    Yields:
      The number of finished generations, after each one, before its checkpoint; with `shared` also before the first
      one. A run that received a signal saves and stops when it is continued.

    Returns:
      The result of `run`.
    """
    resume, record, command, after_save, callbacks, shared = options
    if program.table is None and config.patience != RunConfig.patience:
        raise SettingError(
            "patience", None, "has an effect only on a repertoire, which this run has not", "leave it out"
        )
    compiler, host = shared.compiler if shared else Compiler(program, over), host_episodes(program)
    template = compiler.template
    _check_alike(config, resume, over, template, number_required(callbacks))
    # Check what can be checked before a folder is made.
    first_key, run_key = jax.random.split(jax.random.key(config.seed))
    plans.check_fits(plans.plan(program, over, template), compiler.work)
    _check_counters(program, config.generations)
    _check_metrics(program, compiler.metrics)
    best = _best(program, config, compiler)
    with device_memory.named_errors(), contextlib.ExitStack() as stack:
        # Handles signals until the last checkpoint is complete.
        requests = shared.requests if shared else stack.enter_context(Requests())
        # Open or resume the folder, and restore.
        writers, start = RunWriters(Journal()), StartPoint(None, 0)
        if config.run_dir is not None:
            folder = stack.enter_context(_open(program, config, resume, record))
            journal, checkpoints = _journal_and_checkpoints(stack, folder, config)
            if resume:
                check_keys(folder.config, folder.path)
                start = restore(folder, checkpoints, template, lambda: compiler.work)
                if start.state is not None and start.generation >= config.generations:
                    reporter = Reporter(config.generations, start.generation, config.quiet or not sync.is_first())
                    reached = f"generation {start.generation} is already reached"
                    reporter.message(f"{reached}; give a larger --generations to continue.")
                    return Result(start.state, [], folder.path)
                if sync.is_first():
                    _check_sources(folder, start.generation)
            log = stack.enter_context(RunLog(folder, start.generation)) if sync.is_first() else None
            writers = RunWriters(journal, checkpoints, log, folder, AfterSave(after_save) if after_save else None)
            if resume and sync.is_first():
                folder.reconfigure(record_of_resumed(folder.config, program, config, record))
                best.recall(folder, checkpoints)
        # Report and log.
        first, quiet = start.generation, config.quiet or not sync.is_first()
        untrained = program.learner.untrained_generations if program.learner else 0
        reporter = Reporter(config.generations, first, quiet, untrained=untrained, patience=config.patience)
        if resume:
            reporter.message(_continues(config, start, writers.log.recorded if writers.log else 0))
        stack.enter_context(reporter)
        meter = plans.Meter(program, over, template)
        writers.journal.started(first, over, meter.read, command, terminal.failures())
        called = stack.enter_context(Callbacks(callbacks, requests))
        recorded = writers.folder.config if writers.folder else record_of_new(program, config, record)
        called.begin(Start(without_defaults(recorded), writers.run_dir, first, config.generations))
        # Compile, then run the generations.
        generations, state = _compile(program, compiler, start, first_key, requests, reporter, writers.journal, host)
        meter.watch(generations.stages, state)
        often = shared.exchange if shared else None, Pace(config.checkpoint_seconds)
        parts = Loop(program, config, generations, writers, reporter, requests, best, called, host, *often)
        state, history = yield from parts.run(start._replace(state=state), run_key)
        writers.wait()
        return Result(state, history, writers.run_dir, meter.read())


def _continues(config: RunConfig, start: StartPoint, recorded: int) -> str:
    """What a resumed run says first; `recorded` is the number of generations in its tables."""
    first = start.generation
    if start.state is None:
        return f"{config.run_dir} has no complete checkpoint, so the run starts from the beginning."
    lost = f"generations {first + 1} to {recorded}" if recorded > first + 1 else f"generation {first + 1}"
    again = f"; {lost} of the tables will be trained again" if recorded > first else ""
    return f"continues after generation {first}{again}"


def _check_counters(program: Program, generations: int) -> None:
    """Check that int32 can count the training iterations of a run."""
    iterations = max(staged_step(program.step).iterations, 1)
    if generations * iterations > LARGEST_COUNT:
        problem = f"must be at most {LARGEST_COUNT // iterations} with {iterations} iterations each, which int32 counts"
        raise SettingError("generations", generations, problem)


def _check_metrics(program: Program, metrics: Mapping[str, PyTree]) -> None:
    """Check the names and shapes of what a program from scratch reports; a ValueError names the metric."""
    if isinstance(program.step, StagedStep):  # the population method checks what agents and emitters report
        for name in (name for name, value in metrics.items() if value is None):
            raise ValueError(f"the metric {name} must be a number, but the agent or the learner returns None for it.")
        return
    check_names("metric of the program", metrics, RESERVED_COLUMNS)
    size = program.batch_size or program.population_size
    for name, value in {"fitness": None, **metrics}.items():
        shape = getattr(value, "shape", None)
        valid = [(size,)] if name in ("fitness", "parent") else [(), (size,)]
        if shape not in valid:
            needed = " or ".join(str([*one]) for one in valid)
            given = "no array" if shape is None else f"an array {[*shape]}"
            raise ValueError(f"the metric {name} of the program's step must be an array {needed}, but it is {given}.")


def run_config(config: RunConfig | None, options: Mapping[str, Any], resume: bool) -> RunConfig:
    """The config of a run from the arguments of `run`; it raises the errors of `run`.

    A run that is continued keeps the values that it recorded, except for those that `options` give.
    """
    recorded: Record = {}
    if resume:
        run_dir = config.run_dir if config else options.get("run_dir")
        if run_dir is None:
            raise SettingError("run_dir", None, "is needed to resume", "give the directory of the run to continue")
        recorded = open_existing(str(run_dir)).config.get("run", {})
    kept = {} if config else {name: recorded[name] for name in _KEPT if name in recorded}
    config = config_from(RunConfig, config, {**kept, **options})
    if config.seed != (seed := recorded.get("seed", config.seed)):
        problem = f"must be that of the run in {verbatim(config.run_dir)} ({seed})"
        raise SettingError("seed", config.seed, problem, "leave it out, or start a new run in another {run_dir}")
    return config


def _best(program: Program, config: RunConfig, compiler: Compiler) -> Best:
    """The record of the best checkpoint; its metric is checked by tracing, before anything is written."""
    best = Best(config.best_by)
    if config.best_by not in (None, "best_fitness"):
        best.check(_columns(program, compiler.metrics))
    return best


def _compile(
    program: Program,
    compiler: Compiler,
    start: StartPoint,
    key: Key,
    requests: Requests,
    reporter: Reporter,
    journal: Journal,
    host: HostEpisodes | None,
) -> tuple[Generations, ProgramState]:
    """The compiled generations and the first state, which is initialised here for a new run."""
    started = time.monotonic()
    stages = compiler.compile(creates=start.state is None)
    sync.barrier()
    failed = host.failed if host else None
    generations = Generations(program, stages, lambda: requests.signum, reporter.progress, failed)
    state = generations.create(key) if start.state is None else start.state
    if host is not None:
        if start.state is not None:
            state = host.restore(
                state, start.host, jax.random.fold_in(jax.random.fold_in(key, _RESTORED), start.generation)
            )
        elif host.failed(jax.block_until_ready(state)):
            raise host.error((), start.generation, journal.run_dir, saved=False)
    reporter.compiled(time.monotonic() - started)
    journal.compiled(reporter.seconds_compiling)
    return generations, state


def _check_alike(config: RunConfig, resume: bool, over: Mesh, template: ProgramState, required: int) -> None:
    """Check that every process runs the same program with the same config on the same global mesh."""
    shapes = [
        (jax.tree_util.keystr(path), leaf.shape, str(leaf.dtype)) for path, leaf in jax.tree.leaves_with_path(template)
    ]
    settings = {
        "run": dataclasses.asdict(config),
        "resume": resume,
        "state": hashlib.sha256(repr(shapes).encode()).hexdigest(),
        "required callbacks": required,
    }
    sync.connect(over)
    sync.check_alike(settings)


def _columns(program: Program, metrics: Mapping[str, jax.ShapeDtypeStruct]) -> Iterable[str]:
    """The columns that `metrics.csv` will have, from the shapes of the program's metrics."""
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), metrics)
    return summarize(program, 0, zeros, WallTimes(1.0))


def _journal_and_checkpoints(
    stack: contextlib.ExitStack, folder: RunFolder, config: RunConfig
) -> tuple[Journal, Checkpointer]:
    """The journal and the checkpoints of a run, which the stack closes."""
    journal = stack.enter_context(Journal(folder if sync.is_first() else None))
    checkpointer = Checkpointer(folder.checkpoints, config.keep, replaces=folder.interrupted)
    return journal, stack.enter_context(checkpointer)


def _open(program: Program, config: RunConfig, resume: bool, record: Record | None) -> RunFolder:
    """Open the run directory: process 0 creates and locks it, and the others wait until it has."""
    folder = _make(program, config, resume, record) if sync.is_first() else RunFolder(str(config.run_dir))
    # On a file system that is not shared, a directory of the same path may contain an older run, so the processes
    # compare the owner that the lock file records.
    if not sync.file_matches_process_zero(folder.owner_file):
        raise ValueError(
            f"process 0 has created {folder.path}, which this process cannot read; give a --run-dir on a file system "
            "that all processes share."
        )
    return folder


def _make(program: Program, config: RunConfig, resume: bool, record: Record | None) -> RunFolder:
    if resume:
        return open_existing(str(config.run_dir), write=True)
    folder = create(str(config.run_dir), record_of_new(program, config, record), config.overwrite)
    sources.save(folder)
    return folder


def _check_sources(folder: RunFolder, generation: int) -> None:
    """Check whether the code of a user's functions is that with which the run was trained.

    Raises:
      ValueError: it has changed, and the run is exact.

    Warns:
      SourceWarning: it has changed.
    """
    files = ", ".join(sources.changed(folder))
    if files and flatten_mapping(folder.config).get("environment.exact"):
        raise ValueError(f"{files} has changed since the run with --exact was started; put the recorded file back.")
    if files:
        message = f"{files} has changed since the run was started, and counts from generation {generation + 1} on"
        warnings.warn(message, SourceWarning, stacklevel=4)
        sources.save(folder)


_RESTORED = 2**31  # no number that a split of the same key has
_KEPT = ("seed", "generations", "checkpoint_every", "checkpoint_seconds", "keep", "best_by", "patience")
"""Fields of `RunConfig` that a run keeps when it is continued, unless others are given."""
