"""The run loop: one generation after the other, logged, saved, and continued exactly.

The loop is where keys are born: generation g of a run uses `fold_in(run_key, g)` and nothing else, so a run that was
killed and resumed draws the same numbers as one that never stopped.
"""

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rookery import hyperparams
from rookery.distributed import device_memory, mesh, programs, sync
from rookery.distributed.mesh import Mesh
from rookery.experiments.config import RunConfig
from rookery.experiments.config_io import DESCRIPTOR, INDEPENDENT, PYTHON
from rookery.populations.base import Program, ProgramState
from rookery.populations.stages import Work
from rookery.signals import Interrupted, Requests
from rookery.storage import run_dir as folders
from rookery.storage.best_checkpoint import Best
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.csv_log import RunLog
from rookery.storage.events import Journal
from rookery.storage.exit_reasons import Diverged, lost, stopped, stopped_within
from rookery.training import memory_plan as plans
from rookery.training.compilation import Compiler
from rookery.training.generation import Generations, Pause
from rookery.training.metrics import Spent, summarize
from rookery.training.progress import Reporter
from rookery.training.run_writer import AfterSave, Outlets
from rookery.types import Key


class Result(NamedTuple):
    """What a run leaves in memory."""

    state: ProgramState
    history: list[dict[str, np.ndarray]]  # one per generation run: the program's metrics
    run_dir: Path | None
    memory: device_memory.Usage | None = None  # planned and used; None where nothing was left to run


def plan(program: Program, config: RunConfig, over: Mesh) -> plans.Plan:
    """What a run would hold, with the generation compiled as `run` compiles it: where a cache keeps it, `run` finds it.

    Raises:
      ValueError: the devices cannot share the program, or `best_by` names no metric.
    """
    template = programs.template(program, over)
    compiler = Compiler(program, over, template)
    Best(config.best_by).check(_columns(program, compiler.metrics))
    working = plans.working_memory(*compiler.compile())
    return plans.plan(program, over, template)._replace(working=working)


def run(
    program: Program,
    config: RunConfig | None = None,
    over: Mesh | None = None,
    resume: bool = False,
    record: Mapping[str, Any] | None = None,
    command: Sequence[str] | None = None,
    after_save: Callable[[Path], None] | None = None,
    **options: Any,
) -> Result:
    """Run a program for `generations` generations.

    Args:
      program: PBT, seeds, or your own.
      config: a `RunConfig`; or give its fields as keywords: `run(program, generations=20, run_dir="runs/mine")`.
        Without a `run_dir` nothing is written.
      over: the mesh to spread the population over; the first device of each process by default.
      resume: continue what `run_dir` holds, up to `generations`.
      record: what `config.json` says of the program, so that the command line can rebuild it.
      command: the words of the command line that started the run, for its journal.
      after_save: called by process 0 with the run's folder whenever a checkpoint was begun, which may not be whole yet.

    Returns:
      The final state and the metrics of the generations run.

    Raises:
      ValueError: a mistake in the configuration, or a folder that cannot be used.
      Interrupted: Ctrl-C or SIGTERM came; the generation was finished and saved.
      Diverged: no member is finite any more.
      CheckpointError: a checkpoint could not be written or read.

    Warns:
      AfterSaveWarning: `after_save` raised an exception; told once, and the run goes on.
    """
    if config is not None and options:
        raise TypeError(f"give either config or the keywords {sorted(options)}, not both.")
    config = config or RunConfig(**options)
    if resume and config.run_dir is None:
        raise ValueError("resume needs the run_dir of the run to continue.")
    over = over or mesh.make_mesh(jax.process_count())
    template = programs.template(program, over)
    _check_alike(config, resume, over, template)
    first_key, run_key = jax.random.split(jax.random.key(config.seed))
    compiler = Compiler(program, over, template)
    best = Best(config.best_by)
    if config.best_by not in (None, "best_fitness"):  # only a traced generation tells, and nothing is written yet
        best.check(_columns(program, compiler.metrics))
    with contextlib.ExitStack() as stack:
        requests = stack.enter_context(Requests())  # until the last save is whole
        outlets, begun = Outlets(Journal()), Begun(None, 0)
        if config.run_dir is not None:
            folder = stack.enter_context(_open(program, config, resume, record))
            journal = stack.enter_context(Journal(folder if sync.is_first() else None))
            checkpoints = stack.enter_context(
                Checkpointer(folder.checkpoints, config.keep, replaces=folder.interrupted)
            )
            if resume:
                begun = restore(folder, checkpoints, template, lambda: compiler.work)
            log = stack.enter_context(RunLog(folder, begun.generation)) if sync.is_first() else None
            outlets = Outlets(journal, checkpoints, log, folder, AfterSave(after_save) if after_save else None)
            if resume and sync.is_first():
                best.recall(folder, checkpoints)
        first = begun.generation
        reporter = Reporter(config.generations, first, config.quiet or not sync.is_first())
        if begun.state is not None and first >= config.generations:
            reporter.say(f"generation {first} is already reached; give a larger --generations to run on.")
            return Result(begun.state, [], outlets.run_dir)
        stack.enter_context(reporter)
        meter = plans.Meter(program, over, template)
        outlets.journal.begin(first, over, meter.read, command)
        generations, state = _compile(program, compiler, begun, first_key, requests, reporter)
        outlets.journal.compiled(reporter.seconds_compiling)
        meter.begin(generations.compiled, state)
        state, history = _Loop(program, config, generations, outlets, reporter, requests, best).run(
            begun._replace(state=state), run_key
        )
        outlets.wait()
        return Result(state, history, outlets.run_dir, meter.read())


class Begun(NamedTuple):
    """Where a run begins, or goes on."""

    state: ProgramState | None  # None where it is still to be made
    generation: int  # finished ones
    work: Work | None = None  # of a generation that was stopped on its way
    done: int = 0  # iterations of it that are done


def _compile(
    program: Program, compiler: Compiler, begun: Begun, key: Key, requests: Requests, reporter: Reporter
) -> tuple[Generations, ProgramState]:
    """The compiled generations, and the state to begin with, which is made where there is none."""
    started = time.monotonic()
    stages = compiler.compile(creates=begun.state is None)
    sync.meet()
    generations = Generations(program, stages, lambda: requests.signum, reporter.progress)
    state = generations.create(key) if begun.state is None else begun.state
    reporter.compiled(time.monotonic() - started)
    return generations, state


def _check_alike(config: RunConfig, resume: bool, over: Mesh, template: ProgramState) -> None:
    """Every process has to run the same program, over its share of the same devices."""
    shapes = [
        (jax.tree_util.keystr(path), leaf.shape, str(leaf.dtype)) for path, leaf in jax.tree.leaves_with_path(template)
    ]
    told = {
        "run": dataclasses.asdict(config),
        "resume": resume,
        "state": hashlib.sha256(repr(shapes).encode()).hexdigest(),
    }
    sync.connect(over)
    sync.check_alike(told)


def _columns(program: Program, metrics: Any) -> Iterable[str]:
    """The names that a generation's row of `metrics.csv` will have, from the shapes of its metrics."""
    told = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), metrics)
    return summarize(program, 0, told, Spent(1.0))


def restore(
    folder: folders.RunFolder, checkpoints: Checkpointer, template: ProgramState, work: Callable[[], Work]
) -> Begun:
    """The newest whole checkpoint of a run, or that of the generation it was interrupted in, if that is newer.

    A run that was killed before its first checkpoint begins anew, and so loses nothing but time.

    Warns:
      CheckpointWarning: a damaged checkpoint was passed over.

    Raises:
      CheckpointError: there are checkpoints, but none is whole, or it does not fit the template.
    """
    newest = -1 if sync.of_first(checkpoints.empty) else 0
    interrupted = Checkpointer(folder.interrupted, read_only=True)
    reached = sync.of_first(_latest(interrupted))
    if newest == 0 and reached >= 0:
        newest = sync.of_first(_latest(checkpoints))
    if reached > newest or reached == newest >= 0:
        (state, unfinished), metadata, generation = interrupted.restore((template, work()))
        return Begun(state, generation, unfinished, metadata[_DONE])
    if newest < 0:
        return Begun(None, 0)
    state, _, generation = checkpoints.restore(template)
    return Begun(state, generation)


def _latest(checkpoints: Checkpointer) -> int:
    """The generation of the newest whole checkpoint, -1 without one, for process 0; the others need not look."""
    latest = checkpoints.latest() if sync.is_first() else None
    return -1 if latest is None else latest


def _open(program: Program, config: RunConfig, resume: bool, record: Mapping[str, Any] | None) -> folders.RunFolder:
    """The folder, which process 0 makes and holds; the others wait until it has."""
    folder = _make(program, config, resume, record) if sync.is_first() else folders.RunFolder(str(config.run_dir))
    # A folder of the same name on a disk of this process's own may hold an older run: who holds the lock tells.
    if not sync.sees_what_first_sees(folder.owner_file):
        raise ValueError(
            f"process 0 has made {folder.path}, which this process does not see; give a --run-dir on a file system "
            "that all processes share."
        )
    return folder


def _make(program: Program, config: RunConfig, resume: bool, record: Mapping[str, Any] | None) -> folders.RunFolder:
    run_dir = str(config.run_dir)
    described: dict[str, Any] = {INDEPENDENT: program.independent}
    described |= {DESCRIPTOR: program.descriptor._asdict()} if program.descriptor else {}
    if resume:
        folder = folders.open_existing(run_dir, write=True)
        folder.reconfigure({**(record or folder.config), **described})
        return folder
    from_python = {"kind": PYTHON, "space": hyperparams.describe(program.space) if program.space else None}
    from_python |= {"world": {"env": program.task}} if program.task else {}
    return folders.create(run_dir, {**(record or from_python), **described}, config.overwrite)


def _nothing_is_finite(metrics: Mapping[str, np.ndarray]) -> bool:
    """Whether no elite is left, or every member diverged; one that only broke the physics can still learn."""
    if "max_fitness" in metrics:
        return not np.isfinite(metrics["max_fitness"]).any()
    return bool(np.all(metrics.get("diverged", ~np.isfinite(metrics["fitness"]))))


_DONE = "iterations"  # what the metadata of an interrupted generation call those that are done


class _Loop(NamedTuple):
    """What the loop over generations needs, bound once."""

    program: Program
    config: RunConfig
    generations: Generations
    outlets: Outlets
    reporter: Reporter
    requests: Requests
    best: Best

    def run(self, begun: Begun, run_key: Key) -> tuple[ProgramState, list[dict[str, np.ndarray]]]:
        """From where the run begins to the last generation, or to the first signal."""
        history: list[dict[str, np.ndarray]] = []
        state, first, work, done = begun
        assert state is not None
        tables = checkpoint = 0.0
        for generation in range(first, self.config.generations):
            started = time.monotonic()
            key = jax.random.fold_in(run_key, generation)
            reached = self.generations.run(state, key, work, done)
            if isinstance(reached, Pause):
                raise self.pause(generation, reached)
            state, metrics = reached
            work, done = None, 0
            history.append(metrics)
            seconds = time.monotonic() - started
            row = summarize(self.program, generation, metrics, Spent(seconds, tables, checkpoint))
            self.outlets.write(generation, row, metrics)
            seeds = metrics["fitness"] if self.program.independent and self.program.population_size > 1 else None
            self.reporter.update(generation + 1, row, seeds)
            if _nothing_is_finite(metrics):
                of_a_repertoire = self.program.table is not None
                raise Diverged(lost(generation + 1, of_a_repertoire, self.outlets.checkpoints, self.outlets.run_dir))
            checkpoint = self.save(generation + 1, state, row)
            tables = time.monotonic() - started - seconds - checkpoint
        return state, history

    def pause(self, generation: int, pause: Pause) -> Interrupted:
        """Save a generation that a signal has stopped on its way; the exception says how to go on."""
        self.outlets.save_interrupted(generation, (pause.state, pause.work), {_DONE: pause.done})
        return Interrupted(pause.signum, stopped_within(generation, self.outlets.run_dir))

    def save(self, generation: int, state: ProgramState, row: Mapping[str, float]) -> float:
        """Save after `generation` generations if it is time, or if asked to stop; gives the seconds that it took."""
        last = generation == self.config.generations
        due = generation % self.config.checkpoint_every == 0
        saves = self.best.improves(generation, row) or due
        asked, saves = sync.agree(self.requests.signum, saves)
        seconds = 0.0
        if saves or last or asked is not None:
            seconds = self.outlets.save(generation, state, self.program.table, self.best.generation)
        if asked is not None and not last:
            raise Interrupted(asked, stopped(generation, self.outlets.run_dir))
        return seconds
