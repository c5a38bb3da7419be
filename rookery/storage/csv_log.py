"""The CSV tables that a run writes during training, beside its TensorBoard events, and the reader of the tables."""

import csv
import io
import math
import os
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO

import numpy as np
from numpy.typing import ArrayLike

from rookery.settings import KEY_COLUMNS
from rookery.storage.record import CHOICES
from rookery.storage.run_dir import RunFolder, output_to, write_atomically
from rookery.storage.tensorboard import Events

_LONGEST_ROW = 2**16
MEMBER_COLUMNS = ("generation", "member", "parent", "fitness")  # the first columns of `lineage.csv`
HAS_MEMBERS = "replaced"  # column of `metrics.csv` of a run that has `lineage.csv`
_MOST_LOST = 1000  # rows that may be lost for each that is there: they are filled in, in memory
INTEGER_COLUMNS = KEY_COLUMNS  # columns that `read_csv` returns as int64; all others are float64

Names = Mapping[str, Sequence[str]]
"""Column of `lineage.csv` with a name in each row -> the names whose places stand for them elsewhere."""


class TableWarning(UserWarning):
    """A table has lost rows; the run continues."""


class RunLog:
    """Appends one generation at a time and flushes, so that a killed run loses at most an incomplete last line.

    Args:
      folder: the run directory; the caller holds its lock.
      resume_generation: the first generation to be written. Rows of this and later generations, and an incomplete last
        line, are removed (atomically), and TensorBoard discards those steps. Rows that are lost are filled in, see
        `filled`. 0 starts new tables.

    Attributes:
      recorded: number of generations in the tables before rows were removed.

    Raises:
      ValueError: a line is damaged, or `resume_generation` is far beyond the rows (`are_too_few`).

    Warns:
      TableWarning: `metrics.csv` or `lineage.csv` lacked rows of generations before `resume_generation`, or `cells.csv`
        had none.
      OutputWarning: a row cannot be written; it is tried again with the next one.
    """

    def __init__(self, folder: RunFolder, resume_generation: int = 0):
        metrics = _existing(folder.metrics_file, "generation")
        generations = metrics.get("generation", ())
        self.recorded = 1 + max(map(int, generations), default=-1)
        if are_too_few(len(generations), resume_generation):
            problem = f"has {len(generations)} rows, but the checkpoint is of generation {resume_generation}"
            raise ValueError(f"{folder.metrics_file} {problem}; put a copy of it back, or delete that checkpoint.")
        self._names: Names = folder.config.get(CHOICES, {})
        has_members = HAS_MEMBERS in metrics
        self._metrics = _Table(folder.metrics_file, resume_generation, is_expected=True)
        self._lineage = _Table(folder.lineage_file, resume_generation, names=self._names, is_expected=has_members)
        every = folder.config.get("run", {}).get("checkpoint_every", resume_generation + 1)  # so far
        planned = metrics.get("coverage", np.zeros(0))[: resume_generation // every * every]
        has_cells = bool((planned > 0).any())
        self._cells = _Table(folder.cells_file, resume_generation, has_all_generations=False, is_expected=has_cells)
        last = _existing(folder.cells_file, "cell", "fitness")
        self._elites = dict(zip(last["cell"].tolist(), last["fitness"].tolist(), strict=True)) if last else {}
        self._events = Events(folder.events, resume_generation)

    def write(self, generation: int, row: Mapping[str, float], members: Mapping[str, ArrayLike]) -> None:
        """Append a generation to `metrics.csv` and `lineage.csv`.

        Args:
          generation: greater than every generation written before.
          row: column name -> scalar, for `metrics.csv`.
          members: column name -> `[P]`, for `lineage.csv`: `parent` and `fitness`, then other numbers and the
            hyper-parameters. Empty for a program without members.

        Raises:
          ValueError: the generation is not new, or an array is not `[P]`.
        """
        numbers = {name: float(value) for name, value in row.items()}
        columns = _member_columns(members)
        self._metrics.append({"generation": [generation], **{name: [value] for name, value in numbers.items()}})
        if columns:
            population = len(columns["parent"])
            self._lineage.append(
                {"generation": [generation] * population, "member": list(range(population)), **columns}
            )
        self._events.add(generation, numbers | self._summary(columns))

    def add(self, generation: int, row: Mapping[str, float], members: Mapping[str, ArrayLike]) -> None:
        """Add columns to the rows of the generation that was written last, of the form of `write`."""
        columns = {name: np.asarray(values, np.float64).tolist() for name, values in members.items()}
        self._metrics.amend({name: [value] for name, value in row.items()})
        if columns:
            self._lineage.amend(columns)
        self._events.add(generation, {**row, **self._summary(columns)})

    def _summary(self, columns: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """The median of each column, and for one of names the share of each name."""
        named = {name: column for name, column in columns.items() if name in self._names}
        medians = {name: column for name, column in columns.items() if name != "parent" and name not in named}
        return {f"members/median_{name}": _median(column) for name, column in medians.items()} | {
            f"members/share_{share}": value for share, value in shares(named, self._names).items()
        }

    def write_cells(self, generation: int, fitness: ArrayLike) -> None:
        """Append to `cells.csv` the cells whose elite's fitness changed since the last call.

        The first call writes all occupied cells. The fitness of a cell at a generation is its last row up to it;
        a generation without changes has no rows.

        Args:
          generation: the last finished generation, counted from 0; greater than every generation with rows.
          fitness: `[C]`, the fitness of each cell's elite; not finite for an empty cell.

        Raises:
          ValueError: the generation is not new.
        """
        current = dict(enumerate(np.asarray(fitness, np.float64).tolist()))
        changed = {cell: new for cell, new in current.items() if math.isfinite(new) and self._elites.get(cell) != new}
        if changed:
            self._cells.append(
                {"generation": [generation] * len(changed), "cell": list(changed), "fitness": list(changed.values())}
            )
            self._elites |= changed

    def sync(self) -> None:
        """Flush the tables to disk, before a checkpoint that relies on them is complete."""
        for table in (self._metrics, self._lineage, self._cells):
            table.sync()

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


def _median(values: Sequence[float]) -> float:
    """The median of the finite values; NaN without any."""
    finite = [value for value in values if math.isfinite(value)]
    return float(np.median(finite)) if finite else math.nan


def shares(columns: Mapping[str, ArrayLike], names: Names) -> dict[str, float]:
    """The share of each name among the members: `activation/relu` -> share, of columns of hyper-parameters `[P]`."""
    return {
        f"{column}/{name}": float(np.mean(np.asarray(values) == place))
        for column, values in columns.items()
        for place, name in enumerate(names[column])
    }


def read_csv(path: Path, names: Names = MappingProxyType({})) -> dict[str, np.ndarray]:
    """Read a table of a run.

    Floats are bit-equal to the written ones. Blank lines are ignored, and an incomplete last line, so the tables can be
    read during training.

    Args:
      path: of the table.
      names: column of names -> the names, whose places in this order are returned.

    Returns:
      Column name -> `[rows]`, int64 for `INTEGER_COLUMNS` and float64 otherwise.

    Raises:
      OSError: the file cannot be read.
      ValueError: a line's number of fields differs from the first line's, or a field is not a number or a name.
    """
    header, rows = _read_rows(path)
    for number, row in rows:
        if len(row) != len(header):
            raise ValueError(
                f"{path}, line {number} has {len(row)} fields instead of {len(header)}; correct or delete it."
            )
    columns = zip(*(row for _, row in rows), strict=True) if rows else [()] * len(header)
    return {name: _parse(path, name, column, names.get(name)) for name, column in zip(header, columns, strict=True)}


def read_table(path: Path, names: Names = MappingProxyType({})) -> dict[str, np.ndarray]:
    """As `read_csv`, but {} if there is no such file: a run that begins anew removes its tables while others read."""
    try:
        return read_csv(path, names)
    except FileNotFoundError:
        return {}


def read_members(folder: RunFolder) -> dict[str, np.ndarray]:
    """The columns of `lineage.csv` of a run whose configuration is known; {} without the file, or if it is empty."""
    return _existing(folder.lineage_file, *MEMBER_COLUMNS, names=folder.config.get(CHOICES, {}))


def check_columns(
    path: Path, table: Container[str], needed: Iterable[str], remedy: str = "put a copy of the file back"
) -> None:
    """Raise ValueError if a table lacks some of the needed columns."""
    if missing := [name for name in needed if name not in table]:
        raise ValueError(f"{path} lacks the columns {', '.join(missing)}; {remedy}.")


def read_last(path: Path) -> dict[str, float]:
    """The last complete row of a table, without reading the others; {} if it has none or there is no such file, a
    ValueError if it is damaged."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return {}
    with file:
        header = file.readline()
        start = file.tell()
        file.seek(max(start, file.seek(0, 2) - _LONGEST_ROW))
        lines = list(filter(bytes.strip, file.read().split(b"\n")[:-1]))  # an incomplete last line has no end
    if not header.endswith(b"\n") or not lines:
        return {}
    try:
        names, values = csv.reader(line.decode("utf-8-sig") for line in (header, lines[-1]))
        return {name: float(value) for name, value in zip(names, values, strict=True)}
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} is damaged in its last line: {error}; correct or delete the line.") from error


def write_table(path: Path, columns: Mapping[str, ArrayLike], names: Names = MappingProxyType({})) -> None:
    """Write a complete table, column name -> `[rows]`, atomically; numbers are read back bit-equal, see `read_csv`."""
    arrays = {name: np.asarray(values, _type_of(name)).tolist() for name, values in columns.items()}
    write_atomically(path, _as_csv([list(columns), *_texts(arrays, names)]))


def _type_of(name: str) -> type:
    return np.int64 if name in INTEGER_COLUMNS else np.float64


class _Table:
    """A CSV file to which rows are appended; a column is NaN in the rows that lack it."""

    def __init__(
        self,
        path: Path,
        resume_generation: int,
        has_all_generations: bool = True,
        names: Names = MappingProxyType({}),
        is_expected: bool = False,
    ):
        self._path, self._lost, self._names = path, has_all_generations and resume_generation > 0, names
        self._header, self._last_generation = _resumed(path, resume_generation, has_all_generations, names, is_expected)
        self._file: IO[bytes] | None = None
        self._size, self._pending = 0, b""  # bytes of the file, and lines that could not be written yet
        self._rows: Mapping[str, Sequence[float]] = {}  # appended last
        self._lines = b""  # likewise, as text

    def append(self, columns: Mapping[str, Sequence[float]]) -> None:
        generation = int(columns["generation"][0])
        if generation <= self._last_generation:
            raise ValueError(
                f"{self._path} ends at generation {self._last_generation}, so generation {generation} cannot be "
                "appended; append later generations only."
            )
        self._last_generation = generation
        if self._header is None:
            self._header, size = list(columns), len(columns["generation"])
            self._pending += _as_csv([self._header]).encode()
            if self._lost:
                new = {name: np.asarray(values, _type_of(name)) for name, values in columns.items()}
                before = {name: column[:-size].tolist() for name, column in filled(new, generation + 1)[0].items()}
                self._pending += _as_csv(_texts(before, self._names)).encode()
        self._put(columns)

    def amend(self, columns: Mapping[str, Sequence[float]]) -> None:
        """Add columns to the rows that were appended last."""
        if self._pending:  # they could not be written yet
            self._pending = self._pending[: -len(self._lines)]
        else:
            self._size -= len(self._lines)
        self._put({**self._rows, **columns})

    def _put(self, columns: Mapping[str, Sequence[float]]) -> None:
        assert self._header is not None
        self._rows = columns
        if any(name not in self._header for name in columns):
            self._widen([name for name in columns if name not in self._header])
        unknown = [math.nan] * len(columns["generation"])
        values = {name: columns.get(name, unknown) for name in self._header}
        self._lines = _as_csv(_texts(values, self._names)).encode()
        self._pending += self._lines
        with output_to(self._path):
            self._write()

    def _widen(self, names: Sequence[str]) -> None:
        """Add columns, whose values in earlier rows are unknown; later if the file cannot be written now."""
        with output_to(self._path):
            self._write()
        if self._pending:
            return  # a closed file would lose the place where complete lines end
        self.close()
        with output_to(self._path):
            try:
                table = read_csv(self._path, self._names)
            except ValueError as error:
                raise OSError(str(error).rstrip(".")) from error
            unknown = np.full(len(table["generation"]), np.nan)
            write_table(self._path, {**table, **dict.fromkeys(names, unknown)}, self._names)
            self._header = [*table, *names]

    def _write(self) -> None:
        """Write all lines that are pending, or none; an OSError if the file is gone."""
        if self._file is not None and not os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno())):
            self._file.close()  # another one has its name, such as an editor's
            self._file = None
        if self._file is None:
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
            self._size = self._file.tell()
        self._file.truncate(self._size)  # the part that a failed attempt has written
        rest = self._pending
        while rest:
            rest = rest[self._file.write(rest) :]
        self._size, self._pending = self._size + len(self._pending), b""

    def sync(self) -> None:
        if self._file is not None:
            with output_to(self._path):
                self._write()
                os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            with output_to(self._path):
                self._write()
            self._file.close()
            self._file = None


def _existing(path: Path, *needed: str, names: Names = MappingProxyType({})) -> dict[str, np.ndarray]:
    """The columns of a table; {} if the file does not exist or is empty."""
    table = read_table(path, names)
    check_columns(path, table, needed if table else ())
    return table


def _member_columns(members: Mapping[str, ArrayLike]) -> dict[str, list[float]]:
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


def _resumed(
    path: Path, generation: int, has_all_generations: bool, names: Names, is_expected: bool
) -> tuple[list[str] | None, int]:
    """Remove rows from `generation` on, and fill in those that are lost; returns the header and the last generation.

    The header is None, and the generation -1, if no row remains.
    """
    table = _existing(path, "generation", names=names)
    kept = {name: column[table["generation"] < generation] for name, column in table.items()}
    if not kept or not len(kept["generation"]):
        lost = range(generation if path.exists() or is_expected else 0)
        path.unlink(missing_ok=True)
    else:
        kept, lost = filled(kept, generation) if has_all_generations else (kept, [])
        write_table(path, kept, names)
    if lost and (has_all_generations or is_expected):
        warnings.warn(f"{path} {lost_rows(lost)}; the run continues from its checkpoint", TableWarning, stacklevel=5)
    return ([*kept], int(kept["generation"][-1])) if kept and len(kept["generation"]) else (None, -1)


def are_too_few(rows: int, generations: int) -> bool:
    """Whether a table with these rows is no table of so many generations, whose number is then damaged."""
    return generations > _MOST_LOST * (rows + 1000)


def filled(table: Mapping[str, np.ndarray], generations: int) -> tuple[dict[str, np.ndarray], list[int]]:
    """A table of a run with the rows of all generations; those that are lost are unknown: NaN, and -1 for parents.

    Rows are put in order, and of repeated ones the last counts. Environment steps are known, since every generation
    makes equally many.

    Args:
      table: column name -> `[rows]`: a row for each generation or, with a column `member`, for each member in each.
      generations: their number; rows of later ones are left out.

    Returns:
      The table, and the generations whose rows are lost.
    """
    keys = np.stack([table["generation"], table.get("member", np.zeros_like(table["generation"]))])
    last = len(keys[0]) - 1 - np.unique(keys[:, ::-1], axis=1, return_index=True)[1]
    table = {name: values[last] for name, values in table.items()}
    generation = table["generation"]
    known = (generation >= 0) & (generation < generations)
    if not known.any():
        return dict(table), []
    counts = np.bincount(generation[known], minlength=generations)
    sizes = np.bincount(counts[counts > 0])
    size = len(sizes) - 1 - int(sizes[::-1].argmax())  # rows of a generation: the commonest count
    lost = np.flatnonzero(counts != size)
    known &= ~np.isin(generation, lost)
    member = table.get("member", np.zeros_like(generation))
    if (known.all() and not len(lost)) or not ((member[known] >= 0) & (member[known] < size)).all():
        return dict(table), []
    places = generation[known] * size + member[known]
    rows = {"generation": np.repeat(np.arange(generations), size), "member": np.tile(np.arange(size), generations)}
    for name in set(table) - set(rows):
        rows[name] = np.full(generations * size, -1 if name in INTEGER_COLUMNS else np.nan, _type_of(name))
        rows[name][places] = table[name][known]
    if "env_steps" in table:
        first = generation[known][0]
        rows["env_steps"] = np.arange(1, generations + 1) * (table["env_steps"][known][0] / (first + 1))
    return {name: rows[name] for name in table}, lost.tolist()


def lost_rows(generations: Sequence[int]) -> str:
    """The end of a sentence about a table that lacks the rows of these generations."""
    numbers = f"generation {generations[0]}"
    if len(generations) > 1:
        numbers = f"{len(generations)} generations between {generations[0]} and {generations[-1]}"
    return f"has lost the rows of {numbers}, whose values are unknown (NaN)"


def _read_rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The column names, and the rows below the header with the numbers of their lines; blank lines, and text after the
    last line break, which is incomplete, are ignored."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")  # editors may begin the file with a mark
    try:
        reader = csv.reader(io.StringIO(text[: text.rfind("\n") + 1]))
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise ValueError(f"{path} is damaged: {error}; put a copy of it back, or move it away.") from error
    return (rows[0][1] if rows else []), rows[1:]


def _as_csv(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _texts(columns: Mapping[str, Sequence[float]], names: Names) -> Iterator[tuple[str, ...]]:
    """The rows of columns; `repr` of a Python float is the shortest text that reads back to the same bits."""
    texts = (
        [names[name][int(value)] if math.isfinite(value) else repr(value) for value in column]
        if name in names
        else map(repr, column)
        for name, column in columns.items()
    )
    return zip(*texts, strict=True)


def _parse(path: Path, name: str, column: Sequence[str], names: Sequence[str] | None) -> np.ndarray:
    if names is not None:
        places = {name: repr(float(place)) for place, name in enumerate(names)}
        column = [places.get(text, text) for text in column]
    try:
        return np.array(column, dtype=object).astype(_type_of(name))
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path}, column {name} is damaged: {error}; correct or delete the line.") from error
