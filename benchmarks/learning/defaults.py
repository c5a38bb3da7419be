"""PPO with default settings: makes every run, the figure and the table of docs/evidence/learning.md.

    python -m benchmarks.learning.defaults --runs runs/defaults --picture docs/evidence/learning_ppo.png

Each run is a command line with only the task, the seeds and the budget (and for teams the prey's return as fitness,
which does not affect training: in a zero-sum game the mean over all agents is 0). Existing runs are not repeated.
Members are scored by the last evaluation of the run, 10 full deterministic episodes of each; no selection used it.
`first` is the evaluation after the first generation. The figure is that of `rookery compare`.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import harness
from rookery.report import statistics
from rookery.report.compare import compare
from rookery.storage.csv_log import read_csv
from rookery.storage.lineage import lineage


class Run(NamedTuple):
    """One command line, without its run directory."""

    kind: str
    env: str
    seeds: int
    generations: int
    fitness: str | None = None  # the agent whose return is the fitness of a team
    more: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """Arguments after `rookery`."""
        members = "--population" if self.kind.startswith("pbt") else "--seeds"
        sizes = [members, str(self.seeds), "--generations", str(self.generations)]
        score = ["--fitness", self.fitness] if self.fitness else []
        return ["train", self.kind, "--env", self.env, *sizes, *score, *self.more]


RUNS = (
    Run("ppo", "CartPole-v1", 10, 7),
    Run("ppo", "hopper", 5, 16),
    Run("ppo", "walker2d", 5, 20),
    Run("ippo", "pursuit_continuous", 5, 60, "prey"),
)


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--runs", default="runs/defaults", help="folder of the run directories (%(default)s)")
    made.add_argument("--picture", help="output file of the figure of the learning curves")
    options = harness.parse(made)
    load, rows = harness.load(), []
    runs = [run._replace(seeds=2, generations=1) for run in RUNS] if options.quick else RUNS
    for run in runs:
        folder = Path(options.runs) / f"{run.kind}-{run.env}"
        rows.append(line(run, folder, train(run, folder)))
        print({name: value for name, value in rows[-1].items() if not isinstance(value, list)}, flush=True)
    harness.report("learning_defaults", options, rows, load)
    if options.picture:
        compare([Path(options.runs) / f"{run.kind}-{run.env}" for run in runs], options.picture)


def train(run: Run, folder: Path) -> float:
    """Train if the run does not exist, or resume it; return the seconds of the command, or 0 if it exists."""
    if (folder / "metrics.csv").exists() and len(read_csv(folder / "metrics.csv")["generation"]) >= run.generations:
        return 0.0
    started = time.perf_counter()
    command = [sys.executable, "-c", "import rookery.cli.app; rookery.cli.app.main()"]
    words = ["resume", str(folder)] if (folder / "config.json").exists() else [*run.words, "--run-dir", str(folder)]
    subprocess.run([*command, *words, "--quiet"], check=True)
    return time.perf_counter() - started


def line(run: Run, folder: Path, seconds: float) -> dict[str, Any]:
    """A row of the table: final and first returns of the members."""
    metrics, fitness = read_csv(folder / "metrics.csv"), lineage(folder).fitness
    scores = fitness[-1]
    middle = statistics.estimate(statistics.interquartile_mean, scores)
    return {
        "command": " ".join(["rookery", *run.words]),
        "steps of each": int(metrics["env_steps"][-1] / run.seeds),
        "first": float(np.median(fitness[0])),
        "return": float(middle.value),
        "low": float(middle.low),
        "high": float(middle.high),
        "median": float(np.median(scores)),
        "lowest": float(scores.min()),
        "seconds": seconds,
        "returns": scores.tolist(),
    }


if __name__ == "__main__":
    main()
