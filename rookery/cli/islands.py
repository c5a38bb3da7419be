"""The command line of islands: `rookery train KIND --islands I`, `rookery resume RUN` and `rookery replay-island`."""

import dataclasses
import functools
from pathlib import Path
from typing import Annotated

from rookery import running
from rookery.cli.options import Positional
from rookery.distributed.initialize import ProcessesConfig
from rookery.experiments.config_io import from_record
from rookery.experiments.spec import RunSpec
from rookery.islands import plan, replay_island
from rookery.report.formatting import counted
from rookery.settings import SettingError, Within
from rookery.storage import events
from rookery.storage.island_files import check_is_no_island, island_dir, islands_of
from rookery.storage.run_dir import RunFolder, open_existing
from rookery.tracking import TrackingConfig, continued, trackers
from rookery.training.terminal import terminal


@dataclasses.dataclass(frozen=True)
class ReplayIsland:
    """Run an island again from its seed and its recorded imports, and compare all bits with its newest checkpoint."""

    run: Positional[Path]
    """Run directory of all islands."""
    island: Annotated[Positional[int], Within(0)]
    """Number of the island (0 to the number of islands - 1)."""


def has_islands(spec: RunSpec, processes: ProcessesConfig) -> bool:
    """Whether a run is divided into islands; a ValueError if a setting is incompatible with that."""
    if not _wanted(spec):
        if processes.ray_address is not None:
            raise SettingError("ray_address", None, "has an effect only with {islands}", "give it, or leave this out")
        return False
    plan.check(spec)
    _check_alone(processes)
    return True


def _wanted(spec: RunSpec) -> bool:
    return "islands" in spec.flat and spec.method.islands.islands > 1


def planned(spec: RunSpec) -> RunSpec:
    """The spec that `--plan` builds: that of one island, which it says, or the given one without islands."""
    if not _wanted(spec):
        return spec
    one, quiet = plan.config_of(plan.check(spec), 0), spec.run.quiet
    share = f"one of {spec.method.islands.islands} islands"
    running.show(spec.run, f"{share}; a process with several holds the state of each, and works on one at a time")
    return one.with_run(quiet=quiet)


def _check_alone(processes: ProcessesConfig) -> None:
    """Raise a ValueError if processes are asked for, which runs of islands do not have."""
    if processes.wanted:
        raise ValueError(
            "the processes of jax.distributed cannot run islands; give --ray-address to place them on several "
            "machines, or leave the flags of processes out."
        )


def check_resumed(run: Path, processes: ProcessesConfig) -> None:
    """Raise a ValueError if a run that processes of `jax.distributed` are to resume has islands."""
    if _divided(open_existing(run)):
        _check_alone(processes)


def _divided(folder: RunFolder) -> bool:
    spec = from_record(folder.config)
    found = islands_of(folder.path)
    if found and int(found[-1].name) >= (count := spec.method.islands.islands if _wanted(spec) else 1):
        number = int(found[-1].name) + 1
        raise ValueError(
            f"{folder.config_file} was changed: its number of islands is {count}, but there is {found[-1]}; put "
            f"{number} islands and their members back into it."
        )
    return _wanted(spec)


def train(spec: RunSpec, processes: ProcessesConfig, tracking: TrackingConfig) -> None:
    """`rookery train KIND --islands I`."""
    callbacks = functools.partial(trackers, tracking, quiet=True)
    callbacks()  # a tracker that cannot be used is an error before anything is written
    running.start_islands(plan.check(spec), callbacks, False, events.command_line(), processes.ray_address)


def resume(
    run: Path,
    islands: int | None,
    devices: int | None,
    processes: ProcessesConfig,
    tracking: TrackingConfig,
    **changed: object,
) -> bool:
    """`rookery resume RUN`, if it is a run of islands; returns whether it is one. An island of one, and a flag that is
    only for runs of islands, are a ValueError."""
    check_is_no_island(run)
    folder = open_existing(run)
    if not _divided(folder):
        for name, value in (("islands", islands), ("ray_address", processes.ray_address)):
            if value is not None:
                raise SettingError(
                    name, None, "has an effect only for a run that was started with {islands}", "leave it out"
                )
        return False
    _check_alone(processes)
    spec = plan.resumed(folder, islands, changed)
    if devices is not None:
        spec = spec.with_environment(devices=devices)
    callbacks = functools.partial(trackers, continued(tracking, island_dir(run, 0)), quiet=True)
    callbacks()
    running.start_islands(spec, callbacks, True, events.command_line(), processes.ray_address)
    return True


def replay(command: ReplayIsland) -> None:
    """`rookery replay-island RUN I`."""
    found = replay_island(command.run, command.island)
    console = terminal()
    console.print_line(
        f"island {found.island} of {command.run}, run again up to generation {found.generation} with "
        f"{counted(found.imports, 'recorded import')}: equal bit by bit"
    )
    console.print_line(f"state         {counted(found.leaves, 'array')}, {found.bytes:,} bytes")
    console.print_line(f"tables        {counted(found.rows, 'row')} of metrics.csv and lineage.csv, without times")
    console.print_line(f"publications  {counted(found.publications, 'checksum')}")
