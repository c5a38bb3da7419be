"""Learning curves at equal environment steps and with equal settings: Rookery beside SBX, or beside Brax's trainers.

    python -m benchmarks.learning.gymnasium --agents sac td3 --steps 200000 --work runs/gymnasium
    python -m benchmarks.learning.gymnasium --agents ppo --steps 1000000 --work runs/gymnasium
    python -m benchmarks.learning.gymnasium --agents dqn --tasks CartPole-v1 --steps 50000 --work runs/gymnasium
    python -m benchmarks.learning.gymnasium --against brax --agents sac ppo --steps 1000000 --work runs/brax

Rookery trains all seeds as one population of independent members, by `rookery train <agent> --seeds 5`, the peer one
after the other. The common settings are in `benchmarks.peers_gymnasium` (those of SBX) and `benchmarks.peers_brax`. The
policies of all are evaluated alike, about every `--every` steps: by the mean return of 10 full deterministic episodes
with the same seeds, in a plain loop over objects of Gymnasium (or in Brax's own environment), not by the libraries.
Seeds of the members are derived from seed 0 of the run, and those of members that are added from their number; the
peer's are 0, 1, 2, ...

Work that is done is not repeated: an interrupted run of Rookery is resumed, and each run of the peer is stored when it
is complete, in `benchmarks/results/curves`. So the command can be stopped and continued, and several processes can
share the tasks. `--only-report` makes the table and the figure of what there is.
"""

import argparse
import json
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from benchmarks import harness, peers_brax, peers_gymnasium
from benchmarks.learning.defaults import Run
from benchmarks.learning.defaults import train as train_run
from rookery.deploy.policy import evaluator_of, select
from rookery.distributed.mesh import here
from rookery.experiments import warm_start
from rookery.learners.rollout import normalize_features
from rookery.report import statistics
from rookery.report.figures import style
from rookery.storage.csv_log import read_csv
from rookery.storage.run_dir import open_existing
from rookery.types import Genotype, Observation

PEERS: dict[str, ModuleType] = {"sbx": peers_gymnasium, "brax": peers_brax}
TASKS = {
    "sbx": ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5"),
    "brax": ("hopper", "halfcheetah", "walker2d"),
}
PREFIX = {"sbx": "gym:", "brax": ""}
"""Of the peer's name of a task, in Rookery's."""
EPISODES, FIRST_SEED = 10, 100_000
"""Episodes of an evaluation, and the seed of the first; the others follow."""
harness.PACKAGES = (*harness.PACKAGES, "gymnasium", "mujoco", "sbx-rl", "stable-baselines3", "torch")


def main() -> None:
    made = harness.learning_parser(__doc__, ".")
    made.add_argument("--against", choices=list(PEERS), default="sbx", help="the peer (%(default)s)")
    made.add_argument("--agents", nargs="+", default=["sac"], choices=peers_gymnasium.AGENTS, help="(%(default)s)")
    made.add_argument("--tasks", nargs="+", help="the peer's names (by default three robots)")
    made.add_argument("--contenders", nargs="+", choices=["ours", "peer"], default=["ours", "peer"])
    made.add_argument("--steps", type=int, default=200_000, help="environment steps of each run (%(default)s)")
    made.add_argument("--every", type=int, default=10_000, help="environment steps between evaluations (%(default)s)")
    made.add_argument("--hidden-sizes", type=int, nargs="+", help="units of each layer (by default 64 64)")
    made.add_argument("--seeds", type=int, default=5, help="runs of each contender (%(default)s)")
    made.add_argument("--work", default="runs/gymnasium", help="folder of Rookery's runs (%(default)s)")
    options = harness.parse(made)
    options.tasks = options.tasks or list(TASKS[options.against])
    if options.quick:
        options.steps, options.every, options.seeds = 1_024, 512, 2
    load, kept = harness.load(), Path(options.curves) / options.against
    kept.mkdir(parents=True, exist_ok=True)
    for task in [] if options.only_report else options.tasks:
        for agent in options.agents:
            if "ours" in options.contenders:
                ours(options, agent, task, kept)
            if "peer" in options.contenders:
                theirs(options, agent, task, kept)
    report(options, list(curves(kept)), load)


def ours(options: argparse.Namespace, agent: str, task: str, kept: Path) -> None:
    """Train the missing members, evaluate them in every checkpoint, and store their curves.

    They are one population, whose seed is the number of those that there are.
    """
    first = sum(path_of(kept, "rookery", agent, task, seed).exists() for seed in range(options.seeds))
    count = options.seeds - first
    if not count:
        return
    settings = settings_of(options, agent, task)
    every = settings.whole_rollouts(options.every)
    generations = max(1, options.steps // every)
    files = ("--checkpoint-every", "1", "--keep", str(generations), "--eval-episodes", "1", "--seed", str(first))
    more = (*peers_gymnasium.flags(settings, every), *files)
    run = Run(agent, f"{PREFIX[options.against]}{task}", count, generations, more=more)
    folder = Path(options.work) / f"{agent}-{task}-{first}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    train_run(run, folder)
    points = evaluate_run(options, task, folder, count, range(1, generations + 1))
    seconds = float(np.sum(read_csv(folder / "metrics.csv")["seconds"]))
    for member in range(count):
        row = {"steps": [every * (point + 1) for point in range(generations)], "returns": points[:, member].tolist()}
        row |= {"seconds": seconds, "command": " ".join(["rookery", *run.words])}
        store(kept, "rookery", agent, task, first + member, row)
    for entry in (folder / "checkpoints").iterdir():
        if f"{generations:08d}" not in entry.name:  # all but the last, which have replay buffers too
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def settings_of(options: argparse.Namespace, agent: str, task: str) -> peers_gymnasium.Settings:
    """The settings that both contenders have."""
    settings = PEERS[options.against].learning_settings(agent, task, options.steps)
    return settings._replace(hidden_sizes=tuple(options.hidden_sizes or settings.hidden_sizes))


def evaluate_run(
    options: argparse.Namespace, task: str, folder: Path, members: int, generations: Iterable[int]
) -> np.ndarray:
    """Returns `[G, members, EPISODES]` of the policies in the checkpoints of a run."""
    opened = open_existing(folder)
    config, built = warm_start.opened_on(opened, here())
    peer, points, act = PEERS[options.against], [], None
    for generation in generations:
        origin = warm_start.restore(opened, config, built, str(generation))
        act = act or peer.scaled(partial(_act, evaluator_of(origin).act), task)
        genotypes = [select(origin, member=member).genotype for member in range(members)]
        points.append([peer.returns(act, genotype, task, episode_seeds()) for genotype in genotypes])
    return np.asarray(points)


def _act(act: Any, genotype: Genotype, features: Any) -> Any:
    """A genotype's deterministic actions `[N, A]` for features `[N, O]`."""
    observation = normalize_features(genotype.normalizer, Observation(jax.numpy.asarray(features, "float32")))
    return jax.vmap(act, in_axes=(None, 0))(genotype.params, observation)


def theirs(options: argparse.Namespace, agent: str, task: str, kept: Path) -> None:
    """Train the peer's missing runs, and store the curve of each at once."""
    peer = PEERS[options.against]
    settings = settings_of(options, agent, task)
    every = settings.whole_rollouts(options.every)
    for seed in range(options.seeds):
        if path_of(kept, options.against, agent, task, seed).exists():
            continue
        row: dict[str, Any] = {"steps": [], "returns": []}
        whole = max(1, options.steps // every) * every
        row["seconds"] = peer.train(settings, seed, whole, every, partial(_add_point, peer, task, row))
        store(kept, options.against, agent, task, seed, row)


def _add_point(peer: ModuleType, task: str, row: dict[str, Any], steps: int, act: Any, params: Any) -> None:
    row["steps"].append(steps)
    row["returns"].append(peer.returns(act, params, task, episode_seeds()).tolist())


def episode_seeds() -> list[int]:
    """Seeds of the episodes of all evaluations."""
    return list(range(FIRST_SEED, FIRST_SEED + EPISODES))


def path_of(kept: Path, contender: str, agent: str, task: str, seed: int) -> Path:
    """The file of a learning curve."""
    return kept / f"{contender}-{agent}-{task}-{seed}.json"


def store(kept: Path, contender: str, agent: str, task: str, seed: int, row: dict[str, Any]) -> None:
    """Write a curve, whole or not at all, and print its end."""
    whole = {"contender": contender, "agent": agent, "task": task, "seed": seed, **row}
    path = path_of(kept, contender, agent, task, seed)
    path.with_suffix(".partial").write_text(json.dumps(whole) + "\n")
    path.with_suffix(".partial").replace(path)
    print(contender, agent, task, seed, f"{np.mean(row['returns'][-1]):.1f}", f"{row['seconds']:.0f} s", flush=True)


def curves(kept: Path) -> Iterable[dict[str, Any]]:
    """All stored curves."""
    return (json.loads(path.read_text()) for path in sorted(kept.glob("*.json")))


def report(options: argparse.Namespace, rows: list[dict[str, Any]], load: float) -> None:
    """Report the table: interquartile means with intervals, and probabilities of improvement over the peer."""
    cases = list(dict.fromkeys((row["agent"], row["task"]) for row in rows))
    lines = []
    for agent, task in cases:
        scores = {name: final(rows, name, agent, task) for name in ("rookery", options.against)}
        lines += [
            line(rows, name, agent, task, scores, options.against) for name, values in scores.items() if values.size
        ]
    harness.report(f"learning_{'gymnasium' if options.against == 'sbx' else 'brax'}", options, lines, load)
    if options.picture and rows:
        draw(rows, options)


def of(rows: list[dict[str, Any]], contender: str, agent: str, task: str) -> list[dict[str, Any]]:
    """The curves of a contender on a task."""
    return [row for row in rows if (row["contender"], row["agent"], row["task"]) == (contender, agent, task)]


def final(rows: list[dict[str, Any]], contender: str, agent: str, task: str) -> np.ndarray:
    """Mean returns `[runs]` of the last evaluation."""
    return np.array([np.mean(row["returns"][-1]) for row in of(rows, contender, agent, task)])


def line(
    rows: list[dict[str, Any]], name: str, agent: str, task: str, scores: dict[str, np.ndarray], peer: str
) -> dict[str, Any]:
    """One row of the table."""
    mine = of(rows, name, agent, task)
    middle = statistics.estimate(statistics.interquartile_mean, scores[name])
    seconds = [row["seconds"] for row in mine]
    found = {
        **{"agent": agent, "task": task, "contender": name, "runs": len(mine), "steps": mine[0]["steps"][-1]},
        **{"iqm": float(middle.value), "low": float(middle.low), "high": float(middle.high)},
        "seconds of all": seconds[0] if name == "rookery" else sum(seconds),
        "scores": scores[name].tolist(),
        "quarters": quarters(mine).mean(axis=0).tolist(),
        "curves": {str(row["seed"]): {"steps": row["steps"], "returns": row["returns"]} for row in mine},
    }
    if name == "rookery" and scores[peer].size:
        better = statistics.estimate(statistics.probability_of_improvement, scores["rookery"], scores[peer])
        found |= {f"over {peer}": float(better.value), "low over": float(better.low), "high over": float(better.high)}
        pairs = zip(quarters(mine).T, quarters(of(rows, peer, agent, task)).T, strict=True)
        found[f"quarters over {peer}"] = [
            float(statistics.probability_of_improvement(ours, theirs)) for ours, theirs in pairs
        ]
    return found


def quarters(rows: list[dict[str, Any]]) -> np.ndarray:
    """Mean returns `[runs, 4]` of the evaluations in each quarter of the training; fewer columns for under four."""
    curves = (np.mean(row["returns"], axis=1) for row in rows)
    return np.array([[np.mean(part) for part in np.array_split(curve, min(4, len(curve)))] for curve in curves])


def draw(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Plot the interquartile mean over the runs with its 95 % band, and a thin line for each run."""
    agents, tasks = (list(dict.fromkeys(row[name] for row in rows)) for name in ("agent", "task"))
    figure = style.new_figure((3.7 * len(tasks), 2.7 * len(agents)))
    for i, agent in enumerate(agents):
        for j, task in enumerate(tasks):
            if not any((row["agent"], row["task"]) == (agent, task) for row in rows):
                continue
            axes = figure.add_subplot(len(agents), len(tasks), i * len(tasks) + j + 1)
            for colour, name in enumerate(("rookery", options.against)):
                draw_curves(axes, of(rows, name, agent, task), style.colour_of(colour))
            style.title_axes(axes, f"{agent.upper()} on {task}")
            style.label_axes(axes, "environment steps", "return" if j == 0 else None)
            style.count_steps(axes)
            if i == j == 0:
                axes.legend(frameon=False, fontsize=8)
    style.save_figure(figure, Path(options.picture))


def draw_curves(axes: Any, rows: list[dict[str, Any]], colour: str) -> None:
    """The curves of one contender on one task."""
    if not rows:
        return
    steps = np.asarray(rows[0]["steps"])
    means = np.asarray([np.mean(row["returns"], axis=1) for row in rows]).T  # [points, runs]
    middle = statistics.over_runs(means)
    axes.plot(steps, means, color=colour, linewidth=0.6, alpha=0.35)
    style.draw_estimate(axes, steps, middle, colour, linewidth=2.0, label=f"{rows[0]['contender']} ({len(rows)} runs)")


if __name__ == "__main__":
    main()
