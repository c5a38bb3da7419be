"""Starts, continues and follows a run of islands, with either engine."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rookery.distributed.signals import Interrupted, Requests
from rookery.experiments.config_io import from_record, run_record
from rookery.experiments.spec import RunSpec
from rookery.islands import ray_engine
from rookery.islands.engine import take_turns
from rookery.islands.failures import IslandError, Outcome, record, sentences
from rookery.islands.plan import Builder, CallbacksFn, as_recorded, check
from rookery.islands.store import Store, StoreError
from rookery.settings import SettingError
from rookery.storage import sources
from rookery.storage.island_files import IslandWarning, island_dir, reached
from rookery.storage.record import with_first_defaults
from rookery.storage.run_dir import RunFolder, create, open_existing, resume_command
from rookery.training.run_writer import AfterSave
from rookery.training.terminal import terminal


def run_islands(
    spec: RunSpec,
    resume: bool = False,
    ray_address: str | None = None,
    command: Sequence[str] | None = None,
    after_exchange: Callable[[Path], None] | None = None,
    callbacks: CallbacksFn = tuple,
) -> list[Outcome]:
    """Run all islands of a run up to its number of generations.

    Args:
      spec: the whole run, with a run directory: `rookery.experiments.configure` makes it.
      resume: continue the run in `spec.run.run_dir`.
      ray_address: a cluster of Ray: `auto`, an address, or `local` for one that is started on this machine and stopped
        at the end; None lets the islands take turns in this process.
      command: the words of the command line, for the journals.
      after_exchange: called with the run directory when the islands have passed a further exchange; an exception
        becomes a warning.
      callbacks: makes those of one island, in its process.

    Returns:
      How each island ended: each has finished.

    Raises:
      ValueError: the run directory is in use or cannot be used, or a setting is invalid.
      Interrupted: a signal stopped the run; every island is saved. The message names islands that failed before.
      IslandError: islands failed, after all others have finished; its `outcomes` are how each island ended.

    Example:
      >>> spec = rookery.experiments.configure(
      ...     "pbt-sac",
      ...     islands=rookery.experiments.IslandsConfig(islands=4),
      ...     environment=rookery.experiments.EnvironmentConfig("point_maze"),
      ...     run=rookery.experiments.RunConfig(run_dir="runs/islands", generations=100),
      ... )
      >>> outcomes = rookery.islands.run_islands(spec)
    """
    spec = check(spec)
    if spec.run.run_dir is None:
        raise SettingError("run_dir", None, "is needed, since islands exchange by files", "give it in the RunConfig")
    run_dir = spec.run.run_dir
    builder = Builder(as_recorded(spec, 0) if resume else spec, not resume, spec.method.islands.islands)
    if ray_address is not None:
        ray_engine.check_installed()
    elif not resume:
        _ = builder.built  # whose errors come before there is a folder
    settings = run_record(spec)
    folder = open_existing(run_dir, write=True) if resume else _create(run_dir, settings, spec.run.overwrite)
    with folder:
        try:
            Store(folder.publications).check()
        except StoreError as error:
            raise ValueError(str(error)) from error
        if resume:
            finished = [generation for generation, _ in progress(folder, spec.method.islands.islands)]
            least = min(finished)
            if least >= spec.run.generations:  # as a run without islands, it keeps its settings
                text = f"generation {least} is already reached by all islands; give a larger --generations to continue."
                terminal(quiet=spec.run.quiet).print_line(text)
                return [Outcome(number) for number in range(spec.method.islands.islands)]
            _warn_of_lost(folder, max(finished))
            folder.reconfigure(with_first_defaults(settings, folder.config))
        shown = Follower(spec, folder, after_exchange)
        with Requests() as requests:
            if ray_address is None:
                outcomes = take_turns(spec, builder, requests, command, callbacks, shown)
            else:
                outcomes = ray_engine.run_actors(spec, ray_address, requests, command, callbacks, shown)
        record(outcomes, run_dir)
    shown.end()
    if any(outcome.stopped for outcome in outcomes):
        least = min(generation for generation, _ in progress(folder, spec.method.islands.islands))
        message = f"stopped, all islands after at least {least} generations, which are saved; continue with: "
        lines = [*sentences(outcomes), f"{message}{resume_command(run_dir)}"]
        raise Interrupted(requests.signum or 2, "\n".join(lines))
    if sentences(outcomes):
        raise IslandError(outcomes)
    return outcomes


def _create(run_dir: str, settings: dict[str, Any], overwrite: bool) -> RunFolder:
    folder = create(run_dir, settings, overwrite)
    sources.save(folder)
    return folder


def _warn_of_lost(folder: RunFolder, finished: int) -> None:
    """Warn of islands whose run directories are gone, or that never began, where another has finished generations."""
    for number in range(from_record(folder.config).method.islands.islands if finished else 0):
        path = island_dir(folder.path, number) / "config.json"
        if not path.is_file():
            text = f"island {number} begins with its first generation, since there is no {path}; if it was removed"
            warnings.warn(f"{text}, stop the run and put its folder back", IslandWarning, stacklevel=3)


def progress(folder: RunFolder, islands: int) -> list[tuple[int, float]]:
    """The number of finished generations of each island, and the fitness of its best member or elite in the last."""
    return [reached(island_dir(folder.path, number)) for number in range(islands)]


class Follower:
    """Prints a line whenever the islands have passed a further exchange, on average, and calls `after_exchange`
    then."""

    def __init__(self, spec: RunSpec, folder: RunFolder, after_exchange: Callable[[Path], None] | None):
        self._spec, self._folder = spec, folder
        self._after = AfterSave(after_exchange) if after_exchange is not None else None
        self._console = terminal(quiet=spec.run.quiet)
        self._shown, self._line = 0, ""

    def __call__(self) -> None:
        """Print the progress, if there is any."""
        found = progress(self._folder, self._spec.method.islands.islands)
        passed = sum(generation for generation, _ in found) // (len(found) * self._spec.method.islands.migrate_every)
        if passed > self._shown:
            self._shown = passed
            self._print(found)
            if self._after is not None:
                self._after(self._folder.path)

    def end(self) -> None:
        """Print what the islands have reached."""
        self._print(progress(self._folder, self._spec.method.islands.islands))

    def _print(self, found: Sequence[tuple[int, float]]) -> None:
        best = int(np.argmax([fitness if np.isfinite(fitness) else -np.inf for _, fitness in found]))
        generations = ", ".join(str(generation) for generation, _ in found)
        line = f"islands at generation {generations} of {self._spec.run.generations}"
        line += f"  best {found[best][1]:.4g} (island {best})"
        if line != self._line:  # the end prints again what an exchange in the last generation has printed
            self._console.print_line(line)
        self._line = line
