"""Run directories with known contents."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rookery.storage.csv_log import write_table
from rookery.storage.run_dir import create

METRICS = {
    "env_steps": (100.0, 200.0, 300.0),
    "best_fitness": (1.0, 3.0, 2.0),
    "median_fitness": (0.5, 1.0, 1.5),
    "worst_fitness": (0.0, -1.0, 1.0),
    "seconds": (2.0, 3.0, 4.0),
    "steps_per_second": (50.0, 33.0, 25.0),
}
"""Three generations."""
MEMBERS = {
    "generation": (0, 0, 1, 1, 2, 2),
    "member": (0, 1, 0, 1, 0, 1),
    "parent": (0, 1, 0, 0, 0, 1),
    "fitness": (1.0, 0.0, 3.0, -1.0, 2.0, 1.0),
    "rate": (0.1, 0.2, 0.1, 0.125, 0.1, 0.125),
    "tau": (0.5,) * 6,
}
"""Two members in three generations; in the second, member 0 had a child in the place of member 1."""
SQUARE = ((0.25, 0.25), (0.25, 0.75), (0.75, 0.25), (0.75, 0.75))
"""Centroids of four cells."""


def write(
    path: Path,
    config: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = METRICS,
    members: Mapping[str, Any] | None = None,
    journal: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """A folder with `config.json`, and the tables that are given."""
    settings = {"kind": "python", "environment": {"env": "room"}, "run": {"seed": 7, "generations": 3}} | dict(
        config or {}
    )
    run = create(path, settings, overwrite=True)
    if metrics is not None:
        write_table(run.metrics_file, {"generation": range(len(metrics["env_steps"])), **metrics})
    if members is not None:
        write_table(run.lineage_file, members)
    if journal:
        run.journal_file.write_text("".join(json.dumps(event) + "\n" for event in journal))
    run.release()
    return path


def write_repertoire(path: Path, centroids: Any = SQUARE, fitness: Sequence[float] = (1.0, 2.0, 3.0, 4.0)) -> None:
    """Add `repertoire.csv`; every elite lies on its centroid."""
    columns: dict[str, Any] = {"cell": range(len(fitness)), "fitness": fitness}
    elites = np.where(np.isfinite(fitness)[:, None], centroids, np.nan)
    for kind, places in (("descriptor", elites), ("centroid", centroids)):
        columns |= {f"{kind}/{axis}": values for axis, values in enumerate(zip(*places, strict=True))}
    write_table(path / "repertoire.csv", columns)
