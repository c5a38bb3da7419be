"""What a run writes while it lives: its tables and TensorBoard events; and the reader of the tables."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from rookery.storage.run_dir import RunFolder, write_atomically

INTEGER_COLUMNS = ("generation", "member", "parent", "cell", "skill", "episode", "step")
"""Columns that `read_csv` gives as int64; all others are float64."""


class RunLog:
    """Appends one generation at a time, flushed, so that a killed run loses at most the line it was writing.

    TensorBoard's events are written by a thread of their own and follow within about a second.

    Args:
      folder: the caller holds its lock.
      resume_generation: the first generation that will be written. Rows of it and of later ones, and a last line that
        is only half written, are cut away (atomically), and TensorBoard forgets those steps. 0 begins anew.

    Raises:
      ValueError: a line that should stay does not begin with its generation.
    """

    def __init__(self, folder: RunFolder, resume_generation: int = 0):
        import tensorboardX

        self._metrics = _Table(folder.metrics_file, resume_generation)
        self._lineage = _Table(folder.lineage_file, resume_generation)
        self._cells = _Table(folder.cells_file, resume_generation)
        self._elites = _last_elites(folder.cells_file)
        # The suffix: the name's own time is in whole seconds, and a file of the same name would be overwritten.
        self._events = tensorboardX.SummaryWriter(
            str(folder.events),
            purge_step=resume_generation if resume_generation > 0 else None,
            flush_secs=1,
            filename_suffix=f".{time.time_ns()}",
        )

    def write(self, generation: int, row: Mapping[str, Any], members: Mapping[str, Any]) -> None:
        """Append a generation.

        Args:
          generation: greater than every one written before.
          row: name -> scalar, a column each of `metrics.csv`. The first row fixes the columns.
          members: name -> `[P]`, a column each of `lineage.csv`: `parent` and `fitness` first, then hyper-parameters.
            Empty for a program without members.

        Raises:
          ValueError: other columns than before, a generation that is not new, or arrays that are not all `[P]`.
        """
        numbers = {name: float(value) for name, value in row.items()}
        columns = _member_columns(members)
        self._metrics.append({"generation": [generation], **{name: [value] for name, value in numbers.items()}})
        if columns:
            population = len(columns["parent"])
            self._lineage.append(
                {"generation": [generation] * population, "member": list(range(population)), **columns}
            )
        self._write_events(generation, numbers, columns)

    def write_cells(self, generation: int, fitness: Any) -> None:
        """Append to `cells.csv` the cells whose elite changed its fitness since the last time; at first, all occupied.

        A reader takes the last row of a cell up to a generation; a generation without a change has no rows.

        Args:
          generation: the last one that is finished, counted from 0; greater than every one that has rows.
          fitness: `[C]`, of each cell's elite; not finite where a cell is empty.

        Raises:
          ValueError: a generation that is not new.
        """
        held = dict(enumerate(np.asarray(fitness, np.float64).tolist()))
        changed = {cell: now for cell, now in held.items() if math.isfinite(now) and self._elites.get(cell) != now}
        if changed:
            self._cells.append(
                {"generation": [generation] * len(changed), "cell": list(changed), "fitness": list(changed.values())}
            )
            self._elites |= changed

    def close(self) -> None:
        """Close the files."""
        self._metrics.close()
        self._lineage.close()
        self._cells.close()
        self._events.close()

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_events(self, generation: int, row: Mapping[str, float], columns: Mapping[str, Sequence[float]]) -> None:
        for name, value in row.items():
            self._events.add_scalar(name, value, generation)
        for name, values in columns.items():
            finite = [value for value in values if np.isfinite(value)]
            if name != "parent" and finite:
                self._events.add_scalar(f"members/median_{name}", float(np.median(finite)), generation)


def read_csv(path: Path) -> dict[str, np.ndarray]:
    """Columns of a table that a run wrote: name -> `[rows]`, int64 for `INTEGER_COLUMNS` and float64 otherwise.

    Floats come back bit-equal to what was written. A last line that is only half written is left out, so a live run
    can be read.

    Raises:
      OSError: the file cannot be read.
      ValueError: a line has another number of fields than the first, or a field is no number.
    """
    header, lines = _read_lines(path)
    fields = [line.split(",") for line in lines]
    for number, row in enumerate(fields, start=2):
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {number} has {len(row)} fields instead of {len(header)}; mend or delete it."
            )
    columns = zip(*fields, strict=True) if fields else [()] * len(header)
    return {name: _parse(path, name, column) for name, column in zip(header, columns, strict=True)}


def write_table(path: Path, columns: Mapping[str, Any]) -> None:
    """Write a whole table at once, atomically: name -> `[rows]`. Numbers read back to the same bits."""
    arrays = [np.asarray(values, _type_of(name)).tolist() for name, values in columns.items()]
    lines = [",".join(columns), *(",".join(map(repr, row)) for row in zip(*arrays, strict=True))]
    write_atomically(path, "\n".join([*lines, ""]))


def _type_of(name: str) -> type:
    """Of a column's numbers."""
    return np.int64 if name in INTEGER_COLUMNS else np.float64


class _Table:
    """A CSV file that grows at its end; its columns are those of its first row."""

    def __init__(self, path: Path, resume_generation: int):
        self._path = path
        self._header, self._last_generation = _cut(path, resume_generation)
        self._file: IO[str] | None = None

    def append(self, columns: Mapping[str, Sequence[float]]) -> None:
        header = list(columns) if self._header is None else self._header
        self._check(columns, header)
        if self._file is None:
            self._file = open(self._path, "a", encoding="utf-8", newline="")  # noqa: SIM115 - closed by close()
        if self._header is None:
            self._file.write(",".join(header) + "\n")
        # repr of a Python float is the shortest text that reads back to the same bits
        for row in zip(*(columns[name] for name in header), strict=True):
            self._file.write(",".join(map(repr, row)) + "\n")
        self._file.flush()
        self._header, self._last_generation = header, int(columns["generation"][0])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _check(self, columns: Mapping[str, Sequence[float]], header: list[str]) -> None:
        generation = columns["generation"][0]
        if generation <= self._last_generation:
            raise ValueError(f"{self._path} ends at generation {self._last_generation}; {generation} comes too late.")
        unusable = [name for name in columns if set(name) & set(',"\r\n')]
        if unusable:
            raise ValueError(f"A column name holds no comma, quote or line break; change {unusable}.")
        missing, new = sorted(set(header) - set(columns)), sorted(set(columns) - set(header))
        if missing or new:
            raise ValueError(
                f"{self._path} has fixed columns; generation {generation} lacks {missing} and brings {new}: "
                "give every generation the same names."
            )


def _last_elites(path: Path) -> dict[int, float]:
    """Cell -> fitness, as `cells.csv` last says."""
    table = read_csv(path) if path.exists() else {}
    return dict(zip(table["cell"].tolist(), table["fitness"].tolist(), strict=True)) if table else {}


def _member_columns(members: Mapping[str, Any]) -> dict[str, list[Any]]:
    if not members:
        return {}
    if not {"parent", "fitness"} <= set(members):
        raise ValueError(f"The members' arrays need `parent` and `fitness`; given: {sorted(members)}.")
    names = ["parent", "fitness", *(name for name in members if name not in ("parent", "fitness"))]
    arrays = {name: np.asarray(members[name]) for name in names}
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) != 1 or len(arrays["parent"].shape) != 1 or arrays["parent"].size == 0:
        raise ValueError(
            f"The members' arrays must all be [P]; given: { {name: array.shape for name, array in arrays.items()} }."
        )
    return {name: array.astype(_type_of(name)).tolist() for name, array in arrays.items()}


def _cut(path: Path, generation: int) -> tuple[list[str] | None, int]:
    """Cut a table before `generation`; gives its header (None if no row stays) and the last generation in it."""
    if not path.exists():
        return None, -1
    header, lines = _read_lines(path)
    generations = _parse(path, "generation", [line.partition(",")[0] for line in lines])
    kept = [line for line, its_own in zip(lines, generations, strict=True) if its_own < generation]
    if not kept:
        path.unlink()
        return None, -1
    write_atomically(path, "\n".join([",".join(header), *kept, ""]))
    return header, int(generations[generations < generation].max())


def _read_lines(path: Path) -> tuple[list[str], list[str]]:
    """The header's names and the lines below it; what stands after the last line break was never finished."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return (lines[0].split(",") if lines else []), lines[1:]


def _parse(path: Path, name: str, column: Sequence[str]) -> np.ndarray:
    try:
        return np.array(column, dtype=str).astype(_type_of(name))
    except ValueError as error:
        raise ValueError(f"{path}, column {name} is damaged: {error}; mend or delete the line.") from error
