"""Quality diversity by ask and tell: `rookery.qd.Search`, for solutions that are evaluated outside of this library.

It is the generation of `map_elites`, cut between the proposals and their evaluation; the keys are those of a run.
"""

import contextlib
import hashlib
import json
import operator
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike

from rookery import trees
from rookery.distributed import mesh, programs
from rookery.experiments.cells import find_cells
from rookery.experiments.kinds import kind_of
from rookery.experiments.methods import cma_mae as cma_mae_runs
from rookery.experiments.methods import map_elites as map_elites_runs
from rookery.populations.base import ProgramState
from rookery.populations.sharding import ONE_DEVICE
from rookery.populations.stages import StagedStep, split, staged_step
from rookery.qd.archives import Archive
from rookery.qd.base import Emitter, EmitterState, Scoring
from rookery.qd.map_elites import MapElitesBindings, begin, bind, keep, map_elites, propose, repertoire_of, with_emitter
from rookery.qd.repertoire import Elite, Repertoire, best
from rookery.qd.scoring import evaluation_outside, host_scoring
from rookery.report.page import write_report
from rookery.settings import SettingError, check_counts, divisors, suggestion, type_of, unknown_name, verbatim
from rookery.storage.checkpoint import Checkpointer, CheckpointError, CheckpointWarning
from rookery.storage.csv_log import RunLog, TableWarning, read_last
from rookery.storage.events import Diverged, Journal
from rookery.storage.manifest import digest_of
from rookery.storage.record import PYTHON, SEARCH, check_keys, kind_label
from rookery.storage.run_dir import append_line, create, open_existing, output_to
from rookery.training.compilation import Compiler
from rookery.training.config import RunConfig
from rookery.training.generation_loop import ELITE, Pace, lost
from rookery.training.loop import run_config
from rookery.training.memory_plan import Meter
from rookery.training.metrics import WallTimes, summarize
from rookery.training.program_record import changes, program_record, record_of_new, record_of_resumed
from rookery.training.run_writer import RunWriters
from rookery.training.start_point import restore
from rookery.types import Array, Evaluation, Key, Metrics, PyTree, Record

METHODS: Mapping[str, Any] = {"map-elites": (map_elites_runs, "variation"), "cma-mae": (cma_mae_runs, "cma_mae")}
"""Name -> module with the settings, and the part of them that is the emitter's."""
_OF_RUNS = ("checkpoint_every", "checkpoint_seconds", "keep", "patience", "overwrite")
_DIGEST = "search_sha256"  # key of `config.json`, whose value shows whether the arguments were edited
_SAMPLES = 36  # of each distribution of CMA-MAE, at least, as in its paper


class Search:
    """A search for diverse solutions that you evaluate: `ask` for a batch, evaluate it, `tell` the results.

    A simulator, a robot or a person can evaluate. The numbers are those of `map_elites` with `host_scoring`, the same
    method and seed. With a `run_dir` every `tell` is recorded, and `Search.load(run_dir)` continues bit for bit on the
    same machine and versions, also between `ask` and `tell`; `close`, or a `with` block, saves and releases the folder.

    Args:
      lower: lower bounds of a solution: an array, or a (nested) dictionary of arrays by names. If all numbers have
        the same bounds, the method works on them as they are, else on shares of each number's range, in [0, 1].
      upper: the upper bounds, of the same shapes.
      descriptor: the lower and upper limit of each of its D dimensions.
      method: "map-elites" (iso+line variation) or "cma-mae".
      batch_size: B, the number of solutions of an `ask`.
      seed: of all random numbers.
      run_dir: the run directory; without it nothing is written.
      **settings: `qd_offset=0.0`, the fitness that counts as 0 in the QD score and at which the thresholds of CMA-MAE
        begin; `name`, the task in reports; `checkpoint_every=5`, `keep=3`, `patience=100`, `overwrite=True`; and those
        of `rookery train map-elites` or `cma-mae`, named like the flags: `cells=1024`, `grid=(32, 32)`,
        `survival="dominated-novelty"`, `iso_sigma=0.01`, `emitters=4`. Distributions of CMA-MAE (`emitters`) have 36
        samples or more by default.

    Raises:
      ValueError: there is no such method, the bounds or limits are not finite or do not increase, a setting is invalid,
        or the run directory contains a run or is in use.
      TypeError: there is no such setting.

    Example:
      >>> search = rookery.qd.Search([-1] * 4, [1] * 4, descriptor=[(-1, 1), (-1, 1)], batch_size=8, grid=(4, 4))
      >>> solutions = search.ask()
      >>> search.tell(fitness=-np.square(solutions).sum(axis=1), descriptors=solutions[:, :2])
      >>> search.elites().genotypes.shape[1:]
      (4,)
    """

    def __init__(
        self,
        lower: PyTree,
        upper: PyTree,
        descriptor: ArrayLike,
        method: str = "map-elites",
        batch_size: int = 36,
        seed: int = 0,
        run_dir: str | Path | None = None,
        **settings: Any,
    ):
        run = {key: settings.pop(key) for key in _OF_RUNS if key in settings}
        described = {"lower": lower, "upper": upper, "descriptor": descriptor, "method": method}
        _check_names(lower)
        arguments = _plain({**described, "batch_size": batch_size, **settings})
        bindings, self._bounds = _described(**arguments)
        self._build(bindings, _run_config({**run, "seed": seed, "run_dir": run_dir}), arguments)

    @classmethod
    def of(cls, scoring: Scoring, centroids: ArrayLike | Archive, emitter: Emitter | None = None, **run: Any) -> Self:
        """A search with the arguments of `map_elites`: any archive, any emitter that trains nothing, a mix of emitters,
        or initial solutions of your own. The scoring's function is not called.

        Args:
          scoring: such as `host_scoring(None, init, lower, upper)`.
          centroids: or an archive.
          emitter: iso+line with a batch of 256 by default.
          **run: `seed`, `run_dir`, and the settings of a run that the class takes.

        Raises:
          ValueError: the emitter trains agents or learns from transitions, or as of `map_elites` and the class.
        """
        search = cls.__new__(cls)
        search._bounds = None
        search._build(_bound(scoring, centroids, emitter), _run_config(run), {})
        return search

    @classmethod
    def load(
        cls,
        run_dir: str | Path,
        scoring: Scoring | None = None,
        centroids: ArrayLike | Archive | None = None,
        emitter: Emitter | None = None,
        **run: Any,
    ) -> Self:
        """Continue a recorded search: from its newest checkpoint, and the results that were recorded since.

        Args:
          run_dir: the run directory.
          scoring: that of a search made by `of`, whose arguments its record cannot build.
          centroids: likewise.
          emitter: likewise.
          **run: other values of `checkpoint_every`, `checkpoint_seconds`, `keep` or `patience`.

        Raises:
          ValueError: the folder contains no search, it is in use, its `config.json` was edited, or this machine
            computes other solutions than those that were asked.
          CheckpointError: no checkpoint can be read.

        Warns:
          TableWarning: the last recorded line is damaged.
        """
        recorded = open_existing(run_dir).config
        if (arguments := recorded.get(SEARCH)) is None:
            kind = kind_label(recorded)
            raise ValueError(f"{run_dir} contains a run of {kind}, not a Search; continue it with `rookery resume`.")
        if bool(arguments) == (scoring is not None):
            remedy = "leave the scoring out" if arguments else "give the arguments of Search.of again"
            raise ValueError(f"{run_dir} records {'all' if arguments else 'no'} arguments of its search; {remedy}.")
        config = _run_config({**run, "run_dir": run_dir}, resume=True)
        if recorded.get(_DIGEST) not in (None, digest_of([arguments, config.seed])):
            raise ValueError(
                f"{run_dir} began with other arguments or another seed than those of its config.json; put a copy of "
                "that file back, or begin another search."
            )
        search = cls.__new__(cls)
        built = _described(**arguments) if scoring is None else (_bound(scoring, centroids, emitter), None)
        bindings, search._bounds = built
        search._build(bindings, config, arguments, resume=True)
        return search

    def _build(self, bindings: MapElitesBindings, config: RunConfig, arguments: Record, resume: bool = False) -> None:
        self._program, over = map_elites(bindings.scoring, bindings.archive, bindings.emitter), mesh.make_mesh(1)
        self._size, self._dimensions = bindings.emitter.batch_size, bindings.scoring.descriptor.size
        self._config, self._generation, self._saved, self._is_empty = config, 0, 0, True
        self._asked: tuple[EmitterState, PyTree, Metrics] | None = None
        self._closed: Path | None = None  # the run directory that was released
        self._finished: tuple[int, Metrics, float] = 0, {}, 0.0
        self._writers, self._pace, self._time = RunWriters(Journal()), Pace(config.checkpoint_seconds), time.monotonic()
        # Trace before a folder is made, and compile when it is known to be free.
        compiler, init = Compiler(self._program, over), programs.compile_program(self._program, over).init
        template = compiler.template
        first_key, run_key = jax.random.split(jax.random.key(config.seed))
        self._key = jax.random.key_data(run_key)  # a typed key would slow each call down
        ask, tell = partial(_ask, bindings, staged_step(self._program.step)), partial(_tell, bindings)
        asking = jax.jit(ask).lower(template, self._key, np.int32(0))
        results = (jax.ShapeDtypeStruct((self._size, *more), jnp.float32) for more in ((), (self._dimensions,)))
        telling = jax.jit(tell, donate_argnums=0).lower(template, asking.out_info, *results)
        with contextlib.ExitStack() as stack:
            state = self._open(stack, arguments, compiler, over, resume) if config.run_dir is not None else None
            self._ask, self._tell = map(programs.compile_lowered, (asking, telling))
            self._state: ProgramState = init(first_key) if state is None else state
            if resume:
                self._repeat()
            self._stack = stack.pop_all()

    def _open(
        self, stack: contextlib.ExitStack, arguments: Record, compiler: Compiler, over: mesh.Mesh, resume: bool
    ) -> ProgramState | None:
        """Create or open the run directory; returns the state of the newest checkpoint, None without one."""
        program, config = self._program, self._config
        run = {name: getattr(config, name) for name in ("seed", "run_dir", *_OF_RUNS)}
        record = {"kind": PYTHON, **program_record(program), SEARCH: arguments, "run": run}
        record[_DIGEST] = digest_of([arguments, config.seed])
        if not resume:
            folder = stack.enter_context(
                create(str(config.run_dir), record_of_new(program, config, record), config.overwrite)
            )
        else:
            folder = stack.enter_context(open_existing(str(config.run_dir), write=True))
            check_keys(folder.config, folder.path)
            if found := changes(folder.config, program):
                raise ValueError(f"the search differs from the one in {folder.path}: {'; '.join(found[:3])}.")
        journal, checkpoints = Journal(folder), stack.enter_context(Checkpointer(folder.checkpoints, config.keep))
        state = None
        if resume:
            start = restore(folder, checkpoints, compiler.template, lambda: compiler.work)
            state, self._generation = start.state, start.generation
            folder.reconfigure(record_of_resumed(folder.config, program, config, record))
        log = stack.enter_context(RunLog(folder, self._generation))
        journal.started(self._generation, over, Meter(program, over, compiler.template).read)
        self._writers, self._saved = RunWriters(journal, checkpoints, log, folder), self._generation
        return state

    def _repeat(self) -> None:
        """Ask and tell again what was recorded since the checkpoint."""
        path = self._results
        results, asked = _recorded(path, (self._size, self._dimensions))
        for number in range(self._generation, max(max(results, default=-1) + 1, max(asked, default=0))):
            if number not in results:
                raise ValueError(f"{path} lacks the results of generation {number + 1}; put a copy of it back.")
            self._check_asked(results[number]["asked"])
            self._finish(*results[number]["arrays"])
        if self._generation in asked:
            self._check_asked(asked[self._generation])

    def _check_asked(self, digest: str) -> None:
        """Ask again, and check that the solutions are those that were asked before."""
        if self._digest(self._propose()) != digest:
            raise ValueError(
                f"{self._results.parent} was asked for other solutions in generation {self._generation + 1} than those "
                "that are computed here; continue on the machine and with the versions that its journal names."
            )

    @property
    def _results(self) -> Path:
        assert self._writers.folder is not None
        return self._writers.folder.results_file

    @staticmethod
    def _digest(genotypes: PyTree) -> str:
        leaves = (np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(genotypes))
        return hashlib.sha256(b"".join(leaves)).hexdigest()[:16]

    def __repr__(self) -> str:
        """The class, the task and the generation."""
        return f"Search({self._program.task!r}, {self._generation} batches evaluated)"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None = None, error: BaseException | None = None, trace: TracebackType | None = None
    ) -> None:
        with self._stack:
            self._writers.journal.__enter__()
            self._save()
            with _saving(self._writers):
                self._writers.wait()
            self._writers.journal.__exit__(kind, error, trace)
        self._closed = self._writers.folder.path if self._writers.folder else self._closed
        self._writers = RunWriters(Journal())

    def _check_open(self) -> None:
        if self._closed is not None:
            remedy = f"continue it by rookery.qd.Search.load({str(self._closed)!r}), which asks for the same solutions"
            raise ValueError(f"the search in {self._closed} is closed, so that nothing is recorded; {remedy}.")

    def close(self) -> None:
        """Save, and release the run directory; no effect without one, or the second time."""
        self.__exit__()

    @property
    def generation(self) -> int:
        """The number of batches whose results are known."""
        return self._generation

    @property
    def metrics(self) -> dict[str, float]:
        """The row of `metrics.csv` after the latest `tell`: `coverage`, `qd_score`, `max_fitness`, ...; {} before."""
        number, metrics, seconds = self._finished
        if metrics:
            return summarize(self._program, number, jax.device_get(metrics), WallTimes(seconds))
        folder = self._writers.folder if self._generation else None  # of a search that was loaded
        return read_last(folder.metrics_file) if folder else {}

    def ask(self) -> Any:
        """The solutions to evaluate next, NumPy arrays `[B, ...]`; the same ones again until `tell` was called.

        While nothing has been feasible they are initial solutions.
        """
        is_new = self._asked is None
        genotypes = self._propose()
        if is_new and self._writers.folder is not None:
            with output_to(self._results):  # without this line, `load` waits for `ask`, which proposes the same
                append_line(self._results, {"generation": self._generation, "asked": self._digest(genotypes)})
        return self._scaled(genotypes)

    def _propose(self) -> PyTree:
        asked = self._asked = self._asked or self._ask(self._state, self._key, np.int32(self._generation))
        return asked[1]

    def _scaled(self, genotypes: PyTree) -> Any:
        """Genotypes as the caller has them: writable arrays within the bounds."""
        if self._bounds is None:
            return jax.tree.map(np.array, genotypes)
        return jax.tree.map(_at, genotypes, *self._bounds)

    def tell(self, fitness: ArrayLike, descriptors: ArrayLike) -> None:
        """Give the results of the solutions that `ask` returned.

        Args:
          fitness: `[B]`, higher is better; NaN, or masked, for a solution that failed, which is not kept.
          descriptors: `[B, D]`; NaN likewise.

        Raises:
          ValueError: nothing is asked, the shapes differ, a number is infinite, or a recorded search is closed.
          OSError: the results cannot be recorded, so that nothing has changed; call `tell` again.
          Diverged: nothing has been feasible in `patience` batches. The results are recorded.

        Warns:
          CheckpointWarning: a checkpoint could not be saved; the search continues, and no result is lost.
        """
        self._check_open()
        if self._asked is None:
            problem = f"batch {self._generation} has its results already" if self._generation else "nothing is asked"
            raise ValueError(f"{problem}; call ask, which returns the solutions to evaluate next.")
        with np.errstate(over="ignore"):
            fitness, descriptors = (trees.unmasked(values, np.float32) for values in (fitness, descriptors))
        if fitness.shape != (self._size,) or descriptors.shape != (self._size, self._dimensions):
            raise ValueError(
                f"tell needs the fitness [{self._size}] and the descriptors [{self._size}, {self._dimensions}] of all "
                f"solutions that ask returned, got the shapes {list(fitness.shape)} and {list(descriptors.shape)}."
            )
        if np.isinf(fitness).any() or np.isinf(descriptors).any():
            row = int(np.argmax(np.isinf(fitness) | np.isinf(descriptors).any(axis=1)))
            raise ValueError(f"the result of solution {row} is infinite in float32; give NaN for one that failed.")
        if self._writers.folder is not None:
            self._record(fitness, descriptors)
        self._finish(fitness, descriptors)
        if self._is_empty and self._generation >= self._config.patience:
            raise Diverged(lost(self._generation, ELITE, None, None))

    def _record(self, fitness: np.ndarray, descriptors: np.ndarray) -> None:
        assert self._asked is not None
        line = {"generation": self._generation, "asked": self._digest(self._asked[1])}
        line |= {"fitness": _numbers(fitness), "descriptors": [_numbers(row) for row in descriptors]}
        try:
            append_line(self._results, line)
        except OSError as error:
            reason = f"{self._results} cannot be written ({error.strerror}), so that these results are not recorded"
            raise OSError(error.errno, f"{reason}; free space or put the folder back, and call tell again") from error

    def _finish(self, fitness: np.ndarray, descriptors: np.ndarray) -> None:
        assert self._asked is not None
        self._log()
        self._state, metrics = self._tell(self._state, self._asked, fitness, descriptors)
        now = time.monotonic()
        self._finished = self._generation, metrics, now - self._time
        self._asked, self._time = None, now
        self._generation += 1
        # A repertoire that has an elite keeps one, so that the host does not wait for the result.
        self._is_empty = self._is_empty and not bool(np.isfinite(metrics["max_fitness"]))
        self._log()
        if self._generation % self._config.checkpoint_every == 0 or self._pace.is_due():
            self._save()

    def _log(self) -> None:
        """Write the row of the latest batch, unless it is written; Ctrl-C may have come first."""
        number, metrics, _ = self._finished
        if self._writers.folder is not None and metrics and number >= self._writers.journal.reached:
            self._writers.write(number, self.metrics, jax.device_get(metrics))

    def _save(self) -> None:
        """Save a checkpoint and the table of the repertoire, unless they are saved."""
        if self._writers.folder is None or self._saved == self._generation:
            return
        self._log()
        with _saving(self._writers):
            self._pace.saved(self._writers.save(self._generation, self._state, self._program.table))
            self._saved = self._generation

    def elites(self) -> Repertoire:
        """The best solutions so far: the N occupied cells, with NumPy arrays `[N, ...]`."""
        repertoire = jax.device_get(repertoire_of(self._state))
        occupied = np.flatnonzero(repertoire.occupied)
        found = jax.tree.map(lambda leaf: leaf[occupied], repertoire)
        return found._replace(genotypes=self._scaled(found.genotypes))

    def best(self) -> Elite:
        """The elite with the highest fitness; a ValueError if nothing has been feasible."""
        found = jax.device_get(best(repertoire_of(self._state)))
        return found._replace(genotype=self._scaled(found.genotype))

    def report(self) -> Path:
        """Save, and write the page `report.html` in the run directory; returns its path.

        Raises:
          ValueError: the search has no run directory, or no results yet, or is closed.
        """
        self._check_open()
        if self._writers.folder is None or not self._generation:
            raise ValueError("a report needs results that are recorded; give a run_dir, and call tell.")
        self._save()
        return write_report([self._writers.folder.path])


@contextlib.contextmanager
def _saving(writers: RunWriters) -> Iterator[None]:
    """Let a search continue with a warning if a checkpoint cannot be saved, since its results are recorded."""
    try:
        yield
    except CheckpointError as error:
        assert writers.folder is not None
        warnings.warn(f"{error} No result is lost: {writers.folder.results_file} has them.", CheckpointWarning, 5)


def _described(
    lower: PyTree,
    upper: PyTree,
    descriptor: Sequence[Sequence[float]],
    method: str,
    batch_size: int,
    qd_offset: float = 0.0,
    name: str = "search",
    **settings: Any,
) -> tuple[MapElitesBindings, tuple[PyTree, PyTree] | None]:
    """The search that the arguments of `Search` describe, and the bounds to which its genotypes are scaled, or None."""
    if method not in METHODS:
        raise unknown_name("method", method, "method of a Search named", METHODS)
    module, part = METHODS[method]
    usual = module.METHOD.settings
    known = {*vars(usual.cells), *vars(getattr(usual, part))} - {"shard_repertoire"}
    for key in settings.keys() - known:
        raise TypeError(f"a Search by {method} has no setting {key}; {suggestion(key, [*sorted(known), *_OF_RUNS])}")
    check_counts(batch_size=batch_size)
    programs.check_switches(has_infinities=True)  # before an emitter is built
    if part == "cma_mae":
        most = min(usual.cma_mae.emitters, max(batch_size // _SAMPLES, 1))
        settings = {"emitters": max(size for size in divisors(batch_size) if size <= most), **settings}
    chosen = kind_of(method).default().replace(batch_size=batch_size, **settings).method
    # All numbers have one pair of bounds, to which the method clips them.
    low, high = _checked(lower, upper)
    lows, unflatten = ravel_pytree(low)
    highs, is_scaled = ravel_pytree(high)[0], not (jnp.ptp(lows) == 0 and jnp.ptp(ravel_pytree(high)[0]) == 0)
    bounds = (0.0, 1.0) if is_scaled else (float(lows[0]), float(highs[0]))
    limits: np.ndarray = np.empty(0)
    with contextlib.suppress(TypeError, ValueError):
        limits = np.asarray(descriptor, np.float64)
    if limits.ndim != 2 or limits.shape[1] != 2:
        raise SettingError("descriptor", None, "needs a lower and an upper limit for each dimension, [(0, 1), (0, 1)]")
    init = partial(_uniform, unflatten, lows.size, bounds)
    scoring = host_scoring(None, init, *limits.T.tolist(), qd_offset=qd_offset, bounds=bounds, name=name)
    cells = find_cells(chosen.cells, scoring.descriptor, part == "cma_mae")
    return _bound(scoring, cells, module.emitter(scoring, chosen, ONE_DEVICE)), (low, high) if is_scaled else None


def _is_leaf(node: object) -> bool:
    return not isinstance(node, Mapping)


def _check_names(bounds: PyTree) -> None:
    """A solution is recorded as JSON, whose keys are strings."""
    for key, value in () if _is_leaf(bounds) else bounds.items():
        if not isinstance(key, str):
            raise SettingError(
                "lower", None, f"has the key {verbatim(key)}", "name each part of a solution by a string"
            )
        _check_names(value)


def _checked(*bounds: PyTree) -> list[PyTree]:
    """The lower and the upper bounds as arrays of float32."""
    try:
        found = [jax.tree.map(partial(np.asarray, dtype=np.float32), side, is_leaf=_is_leaf) for side in bounds]
    except (TypeError, ValueError) as error:
        raise SettingError("lower", None, "must be an array of numbers or a dictionary of arrays") from error
    shapes = [jax.tree.map(np.shape, side) for side in found]
    if shapes[0] != shapes[1] or not sum(leaf.size for leaf in jax.tree.leaves(found[0])):
        raise SettingError("lower", None, "must be numbers of the same shapes as {upper}")
    ends = zip(*map(jax.tree.leaves, found), strict=True)
    if not all(trees.has_finite_range(one, other) and (one < other).all() for one, other in ends):
        raise SettingError("lower", None, "must be finite and below {upper}, which must be finite, as their difference")
    return found


def _uniform(unflatten: Callable, size: int, bounds: tuple[float, float], key: Key) -> PyTree:
    return unflatten(jax.random.uniform(key, (size,), minval=bounds[0], maxval=bounds[1]))


def _bound(scoring: Scoring, centroids: Any, emitter: Emitter | None) -> MapElitesBindings:
    """The arguments of `map_elites`, checked; the emitter must leave the evaluation to others."""
    bindings = bind(scoring, centroids, emitter)
    if bindings.emitter.learns_from_transitions or bindings.emitter.population_size:
        raise ValueError("a Search cannot use an emitter that trains agents; use iso_line, cma_mae, or a mix of them.")
    return bindings


def _run_config(options: Mapping[str, Any], resume: bool = False) -> RunConfig:
    known = ("seed", "run_dir", *_OF_RUNS)
    for key in options.keys() - known:
        raise TypeError(f"a Search has no setting {key}; {suggestion(key, known)}")
    return run_config(None, options, resume)


def _ask(
    bindings: MapElitesBindings, step: StagedStep, state: ProgramState, key: Array, generation: Array
) -> tuple[EmitterState, PyTree, Metrics]:
    """The first half of a generation, with the keys that it has in a run; the repertoire stays as it is."""
    bank_key, keys = split(step, jax.random.fold_in(jax.random.wrap_key_data(key), generation))
    state, work = begin(bindings, state, bindings.scoring.start_states(bank_key), keys)
    state, genotypes, metrics = propose(bindings, state, work._replace(shared=work.shared[0]))
    return EmitterState(state.members, state.shared.emitter), genotypes, metrics


def _tell(
    bindings: MapElitesBindings,
    state: ProgramState,
    asked: tuple[EmitterState, PyTree, Metrics],
    fitness: Array,
    descriptors: Array,
) -> tuple[ProgramState, Metrics]:
    """The second half of a generation."""
    emitter_state, genotypes, proposed = asked
    evaluation = jax.vmap(_evaluated)(genotypes, fitness, descriptors)
    return keep(bindings, with_emitter(state, emitter_state), genotypes, evaluation, proposed)


def _evaluated(genotype: PyTree, fitness: Array, descriptor: Array) -> Evaluation:
    finite = jnp.where(trees.all_finite(genotype), fitness, jnp.nan)  # as in `evaluate_genotype`
    return evaluation_outside(finite, descriptor)


def _recorded(path: Path, shape: tuple[int, int]) -> tuple[dict[int, Record], dict[int, str]]:
    """The recorded results of batches [B, D]: generation -> line of the file with the `arrays`; and generation ->
    digest of the solutions asked. Lines that are damaged are left out, with a warning if it is the last one."""
    results, asked, is_damaged = {}, {}, False
    for line in path.read_text(encoding="utf-8-sig", errors="replace").splitlines() if path.is_file() else ():
        is_damaged = True
        with contextlib.suppress(ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
            event = json.loads(line)
            generation, digest = operator.index(event["generation"]), event["asked"]
            if "fitness" in event:
                arrays = event["arrays"] = [np.asarray(event[name], np.float32) for name in ("fitness", "descriptors")]
                if arrays[0].shape != shape[:1] or arrays[1].shape != shape:
                    continue
                results[generation] = event
            asked[generation] = digest
            is_damaged = False
    if is_damaged:
        problem = f"the last line of {path} is damaged and left out; results that it had must be given again"
        warnings.warn(problem, TableWarning, stacklevel=6)
    return results, asked


def _numbers(values: np.ndarray) -> list[float]:
    """The shortest numbers that are read back as the same float32."""
    return [float(str(value)) for value in values]


def _at(share: ArrayLike, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The numbers at a share of their ranges."""
    return np.clip(low + np.asarray(share) * (high - low), low, high)


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a search as JSON values."""
    return json.loads(json.dumps(arguments, default=_listed))


def _listed(value: Any) -> Any:
    listed = np.ma.asarray(value).tolist()  # None where it is masked
    if type(listed) is type(value):  # such as a complex number, bytes, or a generator
        raise TypeError(f"a Search takes texts, numbers and arrays of them, got {type_of(value)}.")
    return listed
