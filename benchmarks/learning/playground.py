"""MuJoCo Playground: makes every run, the figure and the table of docs/evidence/learning.md.

    python -m benchmarks.learning.playground --runs runs/playground --picture docs/evidence/learning_playground.png

Each run is a command line with the task, the seeds, the budget, and a few settings: PPO with the suite's discount and
with 64 environments, SAC with smaller networks and fewer updates than by default, so that its runs fit two cores.
Existing runs are not repeated, and interrupted ones are resumed. Members are scored by the last evaluation of the run,
10 full deterministic episodes of each; it selected nothing for PPO and SAC, but the population selects by such
evaluations.
"""

from pathlib import Path

from benchmarks import harness
from benchmarks.learning.defaults import Run, line, train
from rookery.report.compare import compare

TASKS = ("CartpoleSwingup", "CheetahRun", "WalkerWalk")
PPO = ("--num-envs", "64", "--rollout-length", "64", "--space.discount", "0.995")
SAC = (
    *("--num-envs", "32", "--updates-per-step", "0.25", "--steps-per-generation", "16000", "--batch-size", "256"),
    *("--hidden-sizes", "128", "128", "--buffer-size", "500000"),
)
RUNS = {
    **{f"ppo-{task}": Run("ppo", task, 4, 50, more=PPO) for task in TASKS},
    **{f"sac-{task}": Run("sac", task, 4, 25, more=SAC) for task in TASKS},
    "pbt-ppo-CartpoleSwingup": Run("pbt-ppo", "CartpoleSwingup", 8, 50, more=PPO[:4]),
}


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--runs", default="runs/playground", help="folder of the run directories (%(default)s)")
    made.add_argument("--only", nargs="*", default=list(RUNS), help="names of the runs (default: all)")
    made.add_argument("--picture", help="output file of the figure of the learning curves")
    options = harness.parse(made)
    load, rows = harness.load(), []
    folders = {name: Path(options.runs) / name for name in options.only}
    for name, folder in folders.items():
        run = RUNS[name]._replace(seeds=2, generations=1) if options.quick else RUNS[name]
        rows.append(line(run, folder, train(run, folder)))
        print({name: value for name, value in rows[-1].items() if not isinstance(value, list)}, flush=True)
    harness.report("learning_playground", options, rows, load)
    if options.picture:
        compare([*folders.values()], options.picture)


if __name__ == "__main__":
    main()
