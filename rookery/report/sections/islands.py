"""Section of a report of a run of islands, as JSON values: the curve of each, the migrations between them, and the
lineage of the best member across islands."""

from collections.abc import Mapping, Sequence

import numpy as np

from rookery.report.page_json import JsonObject, packed
from rookery.report.readers import RunRecord
from rookery.report.runs import finite_or_nan
from rookery.storage.island_files import Exchange, ancestors, read_exchanges


def islands_chapter(record: RunRecord) -> JsonObject | None:
    """The section of a run of islands; None for any other run."""
    if not record.islands:
        return None
    islands = {int(island.path.name): island for island in record.islands}
    exchanges = {number: read_exchanges(island.folder.imports_file) for number, island in islands.items()}
    return {
        "curves": [_curve(number, island) for number, island in islands.items()],
        "moves": _moves(exchanges),
        "line": [list(step) for step in _line(islands, exchanges)],
        "elites": any("coverage" in island.metrics for island in islands.values()),
        "notes": sorted({note for found in exchanges.values() for exchange in found for note in exchange.notes}),
    }


def _curve(number: int, island: RunRecord) -> JsonObject:
    metrics = island.metrics
    best = metrics.get("max_fitness", metrics["best_fitness"])
    return {
        "number": number,
        "env_steps": packed(metrics["env_steps"], precise=True),
        "best": packed(finite_or_nan(best)),
    }


def _moves(exchanges: Mapping[int, Sequence[Exchange]]) -> JsonObject:
    """One entry per import: island and generation that it came from, island, generation and slot that it entered."""
    rows = [
        (
            entry.island,
            entry.generation,
            number,
            exchange.generation,
            -1 if entry.slot is None else entry.slot,
            entry.fitness,
        )
        for number, found in sorted(exchanges.items())
        for exchange in found
        for entry in exchange.imports
    ]
    columns = np.array(rows, float).reshape(-1, 6).T
    names = ("from", "from_generation", "to", "to_generation", "slot", "fitness")
    return {name: packed(values, precise=True) for name, values in zip(names, columns, strict=True)}


def _line(islands: Mapping[int, RunRecord], exchanges: Mapping[int, Sequence[Exchange]]) -> list[tuple[int, int, int]]:
    """The ancestors of the best member of all islands, see `storage.island_files.ancestors`; [] for runs with a
    repertoire, whose elites have no slot, and where no fitness is finite."""
    if any("coverage" in island.metrics or not island.has_members for island in islands.values()):
        return []
    last = {number: island.lineage.fitness[-1] for number, island in islands.items()}
    finite = {number: np.where(np.isfinite(row), row, -np.inf) for number, row in last.items()}
    best = max(finite, key=lambda number: (finite[number].max(), -number))
    if not np.isfinite(finite[best].max()):
        return []
    parents = {number: island.lineage.parents for number, island in islands.items()}
    return ancestors(parents, exchanges, (best, len(parents[best]), int(finite[best].argmax())))
