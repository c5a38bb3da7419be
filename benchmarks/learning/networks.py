"""SAC with dense layers, with normalised observations, with normalised layers in its critics, and with SimBa.

    python -m benchmarks.learning.networks --steps 100000 --picture docs/evidence/learning_networks.png

Each contender is one command line, `rookery train sac --env gym:HalfCheetah-v5 --seeds 5` with its flags; all other
settings are the defaults that come with its network. `small simba` has blocks of a quarter of the paper's widths, or a
half in the policy, for machines without a GPU: an update with the paper's widths takes about 40 times as long as one of
the default network. `--contenders`, `--updates-per-step` and `--batch-size` fit the work to the machine. Interrupted
runs are resumed and existing runs are not repeated, so the command can be stopped and continued.

Members are scored by the last evaluation of the run, 10 full deterministic episodes of each; no selection used it.
`over mlp` is the probability that a run is better than one of the default network, with its 95 % interval.
"""

from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.learning.defaults import Run, line, train
from rookery.report import statistics
from rookery.report.compare import compare

CONTENDERS: dict[str, tuple[str, ...]] = {
    "mlp": (),
    "mlp, normalised": ("--normalize-observations",),
    "layer norm": ("--layer-norm",),
    "simba": ("--network", "simba"),
    "small simba": ("--network", "simba", "--hidden-sizes", "64", "--critic-hidden-sizes", "128", "128"),
}

QUICK = "--hidden-sizes 16 --critic-hidden-sizes 16 16 --eval-episodes 2"
"""Flags of every contender in a smoke test."""


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--env", default="gym:HalfCheetah-v5", help="task (%(default)s)")
    made.add_argument("--contenders", nargs="+", default=["mlp", "layer norm", "simba"], choices=list(CONTENDERS))
    made.add_argument("--steps", type=int, default=100_000, help="environment steps of each member (%(default)s)")
    made.add_argument("--seeds", type=int, default=5, help="members of each contender (%(default)s)")
    made.add_argument("--updates-per-step", type=float, default=1.0, help="of every contender (%(default)s)")
    made.add_argument("--batch-size", type=int, default=256, help="transitions of an update (%(default)s)")
    made.add_argument("--every", type=int, default=5_000, help="environment steps between evaluations (%(default)s)")
    made.add_argument("--runs", default="runs/networks", help="folder of the run directories (%(default)s)")
    made.add_argument("--picture", help="output file of the figure of the learning curves")
    options = harness.parse(made)
    if options.quick:
        options.steps, options.every, options.seeds, options.updates_per_step = 2_000, 1_000, 2, 0.04
    load, rows = harness.load(), []
    shared = ["--steps-per-generation", str(options.every), "--updates-per-step", str(options.updates_per_step)]
    shared += ["--batch-size", str(options.batch_size)]
    shared += QUICK.split() if options.quick else []
    folders = [Path(options.runs) / name.replace(",", "").replace(" ", "-") for name in options.contenders]
    for name, folder in zip(options.contenders, folders, strict=True):
        generations = max(1, options.steps // options.every)
        run = Run("sac", options.env, options.seeds, generations, more=(*CONTENDERS[name], *shared))
        rows.append({"contender": name, **line(run, folder, train(run, folder))})
        print({key: value for key, value in rows[-1].items() if not isinstance(value, list)}, flush=True)
    harness.report("learning_networks", options, with_comparison(rows), load)
    if options.picture:
        compare(folders, options.picture)


def with_comparison(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the probability of improvement over the default network, where that was trained."""
    usual = [row["returns"] for row in rows if row["contender"] == "mlp"]
    for row in rows if usual else ():
        if row["contender"] != "mlp":
            better = statistics.estimate(statistics.probability_of_improvement, row["returns"], usual[0])
            row |= {"over mlp": float(better.value), "low over": float(better.low), "high over": float(better.high)}
    return rows


if __name__ == "__main__":
    main()
