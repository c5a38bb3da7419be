"""Does PPO learn by its bare defaults? One command makes every run, the picture and the table of docs/learning.md.

    python -m benchmarks.learning.defaults --runs runs/defaults --picture docs/learning_ppo.png

Each run is a command line that gives the task, the seeds and the budget, and nothing else (but that teams are scored by
the prey's return, which changes nothing that is learned: the mean of all is 0 in a game of zero sum). A run that is
there already is not made again. Members are scored by the run's own last evaluation, 10 full deterministic episodes of
each; nothing was selected by it. `first` is the evaluation after the first generation. The picture is that of `rookery
compare`.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import harness
from rookery.experiments.lineage import lineage
from rookery.report import statistics
from rookery.report.compare import compare
from rookery.storage.csv_log import read_csv


class Run(NamedTuple):
    """One command line, without where its folder is."""

    kind: str
    env: str
    seeds: int
    generations: int
    fitness: str | None = None  # the agent of a team by whose return it is scored

    @property
    def words(self) -> list[str]:
        """After `rookery`."""
        sizes = ["--seeds", str(self.seeds), "--generations", str(self.generations)]
        score = ["--fitness", self.fitness] if self.fitness else []
        return ["train", self.kind, "--env", self.env, *sizes, *score]


RUNS = (
    Run("ppo", "CartPole-v1", 10, 7),
    Run("ppo", "hopper", 5, 16),
    Run("ppo", "walker2d", 5, 20),
    Run("ippo", "pursuit_continuous", 5, 60, "prey"),
)


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--runs", default="runs/defaults", help="where the runs are kept (%(default)s)")
    made.add_argument("--picture", help="where to draw the curves")
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
    """Seconds of the command, or 0 where the run is there already."""
    if (folder / "metrics.csv").exists() and len(read_csv(folder / "metrics.csv")["generation"]) >= run.generations:
        return 0.0
    started = time.perf_counter()
    command = [sys.executable, "-c", "import rookery.cli.app; rookery.cli.app.main()"]
    subprocess.run([*command, *run.words, "--run-dir", str(folder), "--overwrite", "--quiet"], check=True)
    return time.perf_counter() - started


def line(run: Run, folder: Path, seconds: float) -> dict[str, Any]:
    """A line of the table: what the members are worth at the end, and what they were at first."""
    metrics, fitness = read_csv(folder / "metrics.csv"), lineage(folder).fitness
    scores = fitness[-1]
    middle = statistics.estimate(statistics.interquartile_mean, {run.env: scores})
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
