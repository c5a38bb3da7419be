"""The division of a run into islands: the settings of each, and the program that they share."""

import dataclasses
import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from rookery.distributed.signals import Requests
from rookery.experiments import build, warm_start
from rookery.experiments.config_io import from_record, run_record
from rookery.experiments.spec import Built, RunSpec
from rookery.islands.island import Island, Schedule
from rookery.islands.migration import Migration, migration
from rookery.islands.store import Store
from rookery.learners.off_policy import OffPolicyConfig
from rookery.populations.config import check_population
from rookery.qd.pbt_emitter import counts
from rookery.settings import SettingError, divisors
from rookery.storage import sources
from rookery.storage.island_files import ImportJournal, island_dir
from rookery.storage.record import ISLAND
from rookery.storage.run_dir import RunFolder, open_existing
from rookery.training.callbacks import Callback, Required
from rookery.training.compilation import Compiler
from rookery.training.config import RunConfig
from rookery.training.host_episodes import host_episodes
from rookery.training.loop import Result, RunOptions, Sharing, result_of, turns
from rookery.training.start_point import has_checkpoint

CallbacksFn = Callable[[], Sequence[Callback | Required]]  # makes the callbacks of one island, in its process


def check(spec: RunSpec) -> RunSpec:
    """The run, if it can be divided into islands; a ValueError if its kind has none, or a setting is incompatible with
    them."""
    settings = spec.flat
    if "islands" not in settings:
        raise SettingError("islands", None, f"has no effect on a run of kind {spec.kind.name}", "leave it out")
    count, population = settings["islands"].islands, settings["population"]
    if population % count or population < count:
        lower = population // count * count
        remedy = f"use {f'{lower} or ' if lower else ''}{lower + count}, or another number of {{islands}}"
        raise SettingError("population", population, f"cannot be divided evenly into {count} {{islands}}", remedy)
    if settings.get("replay_schedule") is not None:
        raise SettingError("islands", count, "has nothing to exchange with {replay_schedule}", "leave one of them out")
    if settings.get("member") == "agent":
        raise SettingError("islands", count, "exchanges whole teams", "leave it out, or use {member} team")
    if settings.get("select_by") == "rating":
        remedy = "leave it out, or use {select_by} fitness"
        raise SettingError("islands", count, "cannot exchange by ratings, which compare one population", remedy)
    if "pbt" in settings and settings["pbt"].is_automatic:
        problem = "cannot be automatic with {islands}, which would bring members of other rounds"
        raise SettingError("exploit_interval", "auto", problem, "give a number of steps, or leave {islands} out")
    cells = settings.get("cells")
    if cells is not None and cells.survival != "best-of-cell":
        problem = f"merges repertoires cell by cell, which {cells.survival} does not have"
        raise SettingError("islands", count, problem, "leave it out, or use {survival} best-of-cell")
    _check_size(spec, count)
    return spec


_LARGEST = 2**16  # members of an island up to which a suitable number is searched


def _check_size(spec: RunSpec, count: int) -> None:
    """Raise a SettingError unless each of `count` islands has as many members as its selection and its devices need."""
    population = spec.method.population
    size = population // count
    wrong = _unsuitable(spec, size)
    if not wrong:
        return
    suitable = next((more for more in range(size + 1, _LARGEST) if not _unsuitable(spec, more)), None)
    fewer = [one for one in divisors(population) if one < count]
    fewer = next((one for one in reversed(fewer) if not _unsuitable(spec, population // one)), None)
    remedies = [f"give {{population}} {suitable * count}"] if suitable else []
    remedies += ["leave it out" if fewer == 1 else f"give {fewer}"] if fewer else []
    remedy = ", or ".join(remedies) or "change the settings of the selection"
    raise SettingError("islands", count, f"gives each {size} member{'s' * (size != 1)}: {wrong}", remedy)


def _unsuitable(spec: RunSpec, size: int) -> str:
    """Why an island cannot have this number of members; "" if it can."""
    devices, settings = spec.environment.devices or 1, spec.flat
    if devices > 0 and size % devices:
        return f"they cannot be divided evenly over {devices} devices"
    try:
        if "pbt" in settings:
            check_population(settings["pbt"], size)
        if "me_pbt" in settings:
            counts(settings["me_pbt"], size)
    except SettingError as error:
        return f"{{{error.field}}} {error.problem}"
    return ""


def seed_of(seed: int, island: int) -> int:
    """The seed of an island's run, in 0 to 2^32 - 1: a hash of the run's seed and the number of the island."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{island}".encode()).digest()[:4], "big")


def config_of(spec: RunSpec, island: int) -> RunSpec:
    """The run of an island: a share of the population, a seed and a run directory of its own."""
    assert spec.run.run_dir is not None
    folder, islands = str(island_dir(spec.run.run_dir, island)), spec.method.islands
    alone = dataclasses.replace(islands, islands=1)
    by_fitness = {"select_by": "fitness"} if spec.flat.get("select_by") == "auto" else {}  # no exchange by ratings
    share = spec.replace(population=spec.method.population // islands.islands, islands=alone, **by_fitness)
    seed = seed_of(spec.run.seed, island)
    return share.with_run(run_dir=folder, seed=seed, quiet=True, live=False, overwrite=False)


def resumed(folder: RunFolder, islands: int | None, changed: Mapping[str, Any]) -> RunSpec:
    """The description with which a run of islands continues, with the `changed` fields of `RunConfig`; a ValueError if
    `islands` is less than the run has (None: as many)."""
    sources.use(folder)
    spec = check(from_record(folder.config))
    own = spec.method.islands
    wanted = own.islands if islands is None else islands
    if wanted < own.islands:
        raise ValueError(
            f"{folder.path} has {own.islands} islands, got {wanted}; give {own.islands} or more, which adds islands."
        )
    more = spec.replace(
        population=spec.method.population // own.islands * wanted, islands=dataclasses.replace(own, islands=wanted)
    )
    return more.with_run(run_dir=str(folder.path), **changed)


class Builder:
    """Builds the program of the islands of this process, and opens each of them.

    Args:
      spec: the whole run; for one that exists, `as_recorded`.
      begins: start from the run in `init_from`, if one is given, also where every island has a checkpoint.
      together: number of islands that this process holds.
    """

    def __init__(self, spec: RunSpec, begins: bool = False, together: int = 1):
        self._spec, self._begins, self._together = spec, begins, together

    @cached_property
    def built(self) -> Built:
        """The program, and the parts that it is made of."""
        spec = config_of(self._spec, 0)
        built = build.build(spec, populations=self._together)
        run_dir, numbers = str(self._spec.run.run_dir), range(self._spec.method.islands.islands)
        if self._begins or not all(has_checkpoint(island_dir(run_dir, number)) for number in numbers):
            built = built._replace(program=warm_start.start_from(spec, built))
        return built

    def another(self) -> "Builder":
        """A builder with the same arguments, which builds a program of its own."""
        return Builder(self._spec, self._begins, self._together)

    @property
    def on_host(self) -> bool:
        """Whether the environments run on the host. Their running episodes belong to one run, so that each island needs
        a builder, and with it a compiled program, of its own."""
        return host_episodes(self.built.program) is not None

    @cached_property
    def compiler(self) -> Compiler:
        """Compiles the program."""
        return Compiler(self.built.program, self.built.mesh)

    @cached_property
    def migration(self) -> Migration:
        """The exchange of the program's genotypes."""
        settings = self._spec.flat
        perturbation = settings["pbt"] if "pbt" in settings else settings["me_pbt"]
        return migration(self.built.program, self.built.mesh, settings["islands"].migrate_fraction, perturbation)

    def record(self, number: int) -> dict[str, Any]:
        """The settings of an island, to record in its `config.json`."""
        spec, built = config_of(self._spec, number), self.built
        complete = dataclasses.replace(built.spec or spec, run=spec.run, environment=spec.environment)
        complete = complete.with_environment(devices=built.mesh.devices.size)
        settings = {"number": number, **vars(self._spec.method.islands)}
        return {**run_record(complete, built.space), ISLAND: settings}

    def exchange(self, number: int, journal: ImportJournal, replays: bool = False) -> Island:
        """The exchange of an island."""
        program, learner = self.built.program, self.built.learner
        assert learner is not None
        steps = program.steps_per_generation // program.population_size
        schedule = Schedule(self._spec.method.islands.migrate_every, learner.untrained_generations, steps)
        store = Store(RunFolder(str(self._spec.run.run_dir)).publications, read_only=replays)
        seed = seed_of(self._spec.run.seed, number)
        return Island(number, seed, self.migration, schedule, store, journal, replays)

    def turns(
        self, number: int, requests: Requests, command: Sequence[str] | None, callbacks: CallbacksFn
    ) -> Generator[int, None, Result]:
        """Run an island, or continue it, one generation at a time; see `training.loop.turns`."""
        config = config_of(self._spec, number).run
        folder = RunFolder(str(config.run_dir))
        exchange = self.exchange(number, ImportJournal(folder.imports_file))
        sharing = Sharing(exchange, requests, self.compiler)
        resume, record = folder.config_file.is_file(), self.record(number)
        options = RunOptions(resume, record, command, callbacks=callbacks(), shared=sharing)
        return turns(self.built.program, config, self.built.mesh, options)

    def replayed(self, number: int, run_dir: Path, generations: int, journal: ImportJournal) -> Result:
        """Run an island again from its seed, in another folder, with the exchanges of a journal, which stays as it
        is."""
        seed = seed_of(self._spec.run.seed, number)
        patience = self._spec.run.patience
        config = RunConfig(seed, generations, str(run_dir), generations, 1, patience=patience, quiet=True)
        sharing = Sharing(self.exchange(number, journal, replays=True), Requests(), self.compiler)
        options = RunOptions(record=self.record(number), shared=sharing)
        return result_of(turns(self.built.program, config, self.built.mesh, options))


def as_recorded(spec: RunSpec, number: int, devices: int | None = None) -> RunSpec:
    """The run with what an island has recorded of the machine that it began on: the number of devices, or else
    `devices`, and the size of the replay buffers. A run that gives them keeps its own."""
    folder = island_dir(str(spec.run.run_dir), number)
    learner = spec.learner
    if (folder / "config.json").is_file():
        recorded = from_record(open_existing(folder).config)
        devices = recorded.environment.devices
        if isinstance(learner, OffPolicyConfig) and learner.buffer_size is None:
            assert isinstance(recorded.learner, OffPolicyConfig)
            learner = dataclasses.replace(learner, buffer_size=recorded.learner.buffer_size)
    spec = dataclasses.replace(spec, learner=learner)
    return spec.with_environment(devices=devices) if spec.environment.devices is None else spec
