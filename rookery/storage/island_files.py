"""The files of a run of islands.

`RUN/islands/<number>` is the run directory of an island; its `imports.jsonl` has one line for each exchange.
"""

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.storage.csv_log import check_columns, read_last
from rookery.storage.manifest import generations
from rookery.storage.record import ISLAND
from rookery.storage.run_dir import RunFolder, RunFolderError, append_line, open_existing, resume_command


class IslandWarning(UserWarning):
    """An exchange of an island is incomplete; the island continues."""


class Import(NamedTuple):
    """What an island took from a publication."""

    island: int  # number of the island that published it
    generation: int  # number of generations that island had finished
    file: str  # name of the publication
    slot: int | None  # the member that was replaced; None where elites were added to a repertoire
    fitness: float  # fitness of the genotype; of the best one of several elites
    member: int | None = None  # slot of the member in the island that published it; None for elites


class Exchange(NamedTuple):
    """An exchange of an island: a line of `imports.jsonl`."""

    generation: int  # number of finished generations
    experience: int  # environment steps of one member of the island
    published: str | None  # name of the island's publication; None if there is none
    imports: tuple[Import, ...]
    notes: tuple[str, ...] = ()  # sentences about publications that were left out


_IMPORT = (int, int, str, int | None, float | int, int | None)  # types of the fields
_EXCHANGE = (int, int, str | None, tuple, tuple)


def island_dir(run_dir: str | os.PathLike[str], number: int) -> Path:
    """The run directory of an island."""
    return RunFolder(run_dir).islands / str(number)


def islands_of(run_dir: str | os.PathLike[str]) -> list[Path]:
    """The run directories of the islands of a run, also of one that has lost its `config.json`, by their number; [] for
    any other run."""
    folder = RunFolder(run_dir).islands
    found = (path for path in folder.glob("*") if re.fullmatch(r"\d+", path.name)) if folder.is_dir() else ()
    begun = (path for path in found if any((path / name).is_file() for name in ("config.json", "metrics.csv")))
    return sorted(begun, key=lambda path: int(path.name))


def best_of(run_dir: str | os.PathLike[str]) -> Path:
    """The run directory of the island with the best member or elite in its last generation (a RunFolderError if none is
    finite, a ValueError if the table of one is damaged or lost); any other run itself."""
    islands = islands_of(run_dir)
    if not islands:
        return Path(run_dir)
    scores = [_best_fitness(_last(path)) for path in islands]
    if not np.isfinite(scores).any():
        raise RunFolderError(f"{run_dir} has no island with a finished generation yet; wait for the first one.")
    return islands[int(np.nanargmax(np.where(np.isfinite(scores), scores, np.nan)))]


def reached(island: Path) -> tuple[int, float]:
    """The number of finished generations of an island, and the fitness of its best member or elite in the last."""
    try:
        last = _last(island)
        return int(last.get("generation", -1)) + 1, _best_fitness(last)
    except (OSError, ValueError, OverflowError):  # being written, or wrong, which its own process says
        return 0, -np.inf


def _last(island: Path) -> dict[str, float]:
    """The last row of an island's table; {} before its first generation, a ValueError if it is damaged or lost."""
    table = RunFolder(island).metrics_file
    last = read_last(table)
    if last:
        check_columns(table, last, ("generation", "best_fitness"))
    elif generations(RunFolder(island).checkpoints):
        remedy = "put a copy of the file back, or give the folder of one island"
        raise ValueError(f"{island} has lost all rows of metrics.csv; {remedy}.")
    return last


def _best_fitness(last: Mapping[str, float]) -> float:
    return last.get("max_fitness", last.get("best_fitness", -np.inf))


def check_is_no_island(run_dir: str | os.PathLike[str]) -> None:
    """Raise RunFolderError if a run directory is that of an island, which only its whole run can continue."""
    folder = open_existing(run_dir)
    if ISLAND in folder.config:
        raise RunFolderError(
            f"{folder.path} is an island of {folder.path.parent.parent}; continue all of its islands: "
            f"{resume_command(folder.path.parent.parent)}"
        )


class ImportJournal:
    """The exchanges of an island; a resumed island repeats those that it recorded before it was stopped.

    Args:
      path: `imports.jsonl` of the island's run directory, whose lock the caller holds; None keeps them in memory only.
      recorded: exchanges to repeat; by default those in the file.
    """

    def __init__(self, path: Path | None, recorded: Sequence[Exchange] | None = None):
        self._path = path
        known = recorded if recorded is not None else read_exchanges(path) if path else ()
        self._recorded = {exchange.generation: exchange for exchange in known}

    def recorded(self, generation: int) -> Exchange | None:
        """The exchange that is recorded for a number of finished generations, or None."""
        return self._recorded.get(generation)

    def before(self, generation: int) -> list[Exchange]:
        """The exchanges before a number of finished generations, oldest first."""
        return [self._recorded[known] for known in sorted(self._recorded) if known < generation]

    def append(self, exchange: Exchange) -> None:
        """Record an exchange and flush it to disk, before it is applied; a later one of a generation replaces it."""
        if self._path is not None:
            content = {**exchange._asdict(), "imports": [entry._asdict() for entry in exchange.imports]}
            append_line(self._path, content)
        self._recorded[exchange.generation] = exchange


def ancestors(
    parents: Mapping[int, np.ndarray], exchanges: Mapping[int, Sequence[Exchange]], individual: tuple[int, int, int]
) -> list[tuple[int, int, int]]:
    """The ancestors of a member across islands, oldest first, with the member itself at the end.

    Args:
      parents: number of an island -> `[G, P]`, the parent of each member in the generation before; -1: imported.
      exchanges: number of an island -> its exchanges.
      individual: island, generation (counted from 1) and member.

    Returns:
      Island, generation (counted from 1) and member of each, one for each generation that one of them trained in: none
      between that of a publication and that of its import. The line ends where an import is not recorded.
    """
    number, generation, member = individual
    row, line = generation - 1, []
    while row >= 0:
        line.append((number, row + 1, member))
        parent = int(parents[number][row, member]) if row > 0 else member
        if parent >= 0:
            row, member = row - 1, parent
            continue
        arrived = (exchange for exchange in exchanges[number] if exchange.generation == row)
        entries = (entry for exchange in arrived for entry in exchange.imports if entry.slot == member)
        found = next(entries, None)
        if found is None or found.member is None:
            break
        source = parents.get(found.island, np.empty((0, 0)))
        if not (1 <= found.generation <= min(row, len(source)) and 0 <= found.member < source.shape[1]):
            break  # an edited line, or the table of another island is lost
        number, row, member = found.island, found.generation - 1, found.member
    return line[::-1]


def read_exchanges(path: Path) -> list[Exchange]:
    """The exchanges in `imports.jsonl`, the last one of each generation, by generation; [] without the file.

    Lines that are incomplete or damaged are left out.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    found = {}
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            content: Mapping[str, Any] = json.loads(line)
            imports = tuple(Import(**entry) for entry in content["imports"])
            notes = tuple(map(str, content.get("notes", ())))
            exchange = Exchange(**{**content, "imports": imports, "notes": notes})
            rows = ((exchange, _EXCHANGE), *((entry, _IMPORT) for entry in imports))
            if all(isinstance(value, kind) for row, kinds in rows for value, kind in zip(row, kinds, strict=True)):
                found[exchange.generation] = exchange
    return [found[generation] for generation in sorted(found)]
