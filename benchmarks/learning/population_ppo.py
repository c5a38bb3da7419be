"""Populations of 32 PPO agents at equal environment steps: PBT, PB2, MF-PBT, random search, and defaults.

    python -m benchmarks.learning.population_ppo --runs runs/population --picture docs/evidence/learning_population.png

All contenders train 32 members by the same training loop in the same environment (`BUDGETS`), and search PPO's default
space; they differ only in the choice of hyper-parameters, and in the rates of `defaults` and `random search`, which
fall to 0 over the run as by default in `rookery train ppo`. MF-PBT has four sub-populations of eight, with the
frequencies of its paper (arXiv:2506.03225).

A run's score is the mean return of its best member, by the last generation's evaluation, over fresh episodes.
`defaults` is scored by its best member of 32 too. What the report needs of a finished run is kept in
`benchmarks/results/curves/population_ppo`, and these runs are not repeated, so the benchmark can be stopped and
continued, and processes can share the tasks, seeds or contenders; `--only-report` makes the tables and the figure of
what there is. The figure shows those of `--contenders`, which takes the remedies of `REMEDIES` as well, which are tried
where PBT is not better.

`--scale gpu` trains all seeds of a contender as one program, with 256 environments for each member and fitness from
training (`GPU`), and stops after `--minutes`; the same command continues. Its files are `--runs`, about 3 MB for each
run, and a folder of its own for finished ones.
"""

import argparse
import dataclasses
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from benchmarks import harness
from benchmarks.learning import seeds_at_once
from benchmarks.learning.population import run_folder, scored, summary, train
from rookery.agents.ppo import PpoConfig
from rookery.distributed.mesh import here
from rookery.experiments import build
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.kinds import configure
from rookery.experiments.spec import RunSpec
from rookery.learners.on_policy import OnPolicyConfig
from rookery.populations.config import PbtConfig
from rookery.report import statistics
from rookery.report.figures import style
from rookery.storage.lineage import lineage
from rookery.training.config import RunConfig

POPULATION, FREQUENCIES = 32, (1, 10, 25, 50)
EPISODES, FRESH_BLOCKS = 4, 32
"""Evaluation episodes of a member in a generation, and blocks of as many episodes for the score."""


class Budget(NamedTuple):
    """Training budget of a task, for each member."""

    num_envs: int
    rollout_length: int
    updates: int
    """Updates in a generation."""
    generations: int
    epochs: int
    minibatches: int
    fitness_from: Literal["evaluation", "training"] = "evaluation"


BUDGET = Budget(num_envs=16, rollout_length=64, updates=4, generations=100, epochs=4, minibatches=4)
BUDGETS: dict[str, Budget] = dict.fromkeys(("hopper", "walker2d", "pursuit_continuous", "Pendulum-v1"), BUDGET)
BUDGETS |= {
    "CartPole-v1": BUDGET._replace(updates=1, generations=60),
    "Breakout-MinAtar": BUDGET._replace(updates=2, generations=60),
}
GPU = Budget(256, 32, updates=16, generations=153, epochs=4, minibatches=8, fitness_from="training")
"""20 million steps of each member."""
GPU_BUDGETS: dict[str, Budget] = dict.fromkeys(("hopper", "walker2d", "halfcheetah", "ant"), GPU)
CONTENDERS: Mapping[str, PbtConfig | bool] = {
    "defaults": False,  # independent members, hyper-parameters not drawn
    "random search": True,
    "PBT": PbtConfig(),
    "PB2": PbtConfig(perturb="pb2"),
    "MF-PBT": PbtConfig(exploit="multi-frequency", frequencies=FREQUENCIES),
}
REMEDIES: Mapping[str, PbtConfig] = {
    "PBT, every 5 generations": PbtConfig(),
    "PBT, every 10 generations": PbtConfig(),
    "PBT, automatic": PbtConfig(exploit_interval="auto"),
    "PBT, every 5 generations, choices": PbtConfig(),
    "PBT, mean of 3 evaluations": PbtConfig(smooth=3),
    "PBT, factors 0.5 and 2": PbtConfig(perturb_factors=(0.5, 2.0)),
    "PBT, no resampling": PbtConfig(resample_probability=0.0),
    "PBT, every 5 generations, rates fall": PbtConfig(),
    "MF-PBT, rates fall": PbtConfig(exploit="multi-frequency", frequencies=FREQUENCIES),
}
CHOICES = {name: "evolve" for name in ("activation", "advantages", "epochs", "value_clipping")}
"""What evolves in addition to the default space where the contender's name says choices."""
RATES_FALL = ("PBT, every 5 generations, rates fall", "MF-PBT, rates fall")
"""Remedies whose learning rates fall to 0 over the run, too."""
ALL, REFERENCES = (*CONTENDERS, *REMEDIES), ("defaults", "random search", "PBT")
SCHEDULE = 5
"""Points of a schedule that are kept, evenly over the run."""
FITNESS = {"pursuit_continuous": "prey"}


def main() -> None:
    made = harness.learning_parser(__doc__, "population_ppo")
    made.add_argument("--scale", default="cpu", choices=("cpu", "gpu"), help="budget (%(default)s)")
    made.add_argument("--minutes", type=float, default=8, help="of training, with --scale gpu (%(default)s)")
    made.add_argument("--envs", nargs="+", choices=list(BUDGETS | GPU_BUDGETS), help="(all of the scale)")
    made.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=ALL)
    made.add_argument("--seeds", type=int, default=5, help="number of runs (%(default)s)")
    made.add_argument("--first-seed", type=int, default=0, help="seed of the first run (%(default)s)")
    made.add_argument("--runs", default="runs/population_ppo", help="folder of the run directories (%(default)s)")
    options = harness.parse(made)
    is_cpu = options.scale == "cpu"
    load, runs, until = harness.load(), Path(options.runs), time.monotonic() + 60 * options.minutes
    kept = runs / "curves" if options.quick else Path(options.curves + "_gpu" * (not is_cpu))
    kept.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(runs / "cache"))
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    budgets: Mapping[str, Budget] = BUDGETS if is_cpu else GPU_BUDGETS
    options.envs = options.envs or list(budgets)
    if options.quick:
        budgets = {env: budget._replace(num_envs=8, rollout_length=8, generations=2) for env, budget in budgets.items()}
    for env in [] if options.only_report else options.envs:
        # All contenders of a seed first, so that an unfinished benchmark compares them.
        for group in [[seed] for seed in seeds] if is_cpu else [list(seeds)]:
            for contender in options.contenders:
                config = config_of(env, contender, budgets[env])
                folders = [run_folder(runs, config, contender, seed) for seed in group]
                paths = [kept / f"{folder.name}.json" for folder in folders]
                if all(path.exists() for path in paths):
                    continue
                if is_cpu:
                    train(runs, config, contender, budgets[env].generations, group, FRESH_BLOCKS)
                    found = [summary_of(folders[0])]
                else:
                    found = at_once(config, contender, budgets[env].generations, folders, group, until)
                for path, row in zip(paths, found, strict=False):
                    path.write_text(json.dumps(row) + "\n")
    report(options, kept, load)


def at_once(
    config: RunSpec, contender: str, generations: int, folders: list[Path], seeds: list[int], until: float
) -> list[dict[str, Any]]:
    """What `summary_of` returns, without schedules, of runs that are one program; [] if they are not finished."""
    built = build.build(dataclasses.replace(config, run=RunConfig(0, generations)), over=here())
    finished = seeds_at_once.advance(built.program, folders, seeds, generations, until)
    if finished is None:
        return []
    state, fitness = finished
    returns = seeds_at_once.returns(built.program, state, seeds, FRESH_BLOCKS).mean(axis=2)
    steps = built.program.steps_per_generation
    about = {"contender": contender, "agent": "ppo", "env": config.environment.env, "schedule": {}}
    about["steps_per_generation"] = steps // POPULATION
    return [
        {**about, "seed": seed, **scored(curve[-1], means, generations * steps), "best": np.nanmax(curve, 1).tolist()}
        for seed, curve, means in zip(seeds, fitness, returns, strict=True)
    ]


def config_of(env: str, contender: str, budget: Budget) -> RunSpec:
    """Configuration of the run, as the command line would create it with these settings."""
    choice = {**CONTENDERS, **REMEDIES}[contender]
    interval = re.search(r"every (\d+) generations", contender)
    if interval and isinstance(choice, PbtConfig):
        steps = budget.num_envs * budget.rollout_length * budget.updates
        choice = dataclasses.replace(choice, exploit_interval=int(interval[1]) * steps)
    parts: dict[str, Any] = {"draw_hyper": choice} if isinstance(choice, bool) else {"pbt": choice}
    team = "i" if env in FITNESS else ""
    kind = f"{team}ppo" if isinstance(choice, bool) else f"pbt-{team}ppo"
    learner = OnPolicyConfig(
        num_envs=budget.num_envs,
        rollout_length=budget.rollout_length,
        evaluate_every=budget.updates,
        eval_episodes=EPISODES,
        start_states=32,
        fitness=FITNESS.get(env),
        fitness_from=budget.fitness_from,
    )
    anneal = budget.updates * budget.generations if contender in RATES_FALL else None
    agent = PpoConfig(
        actor_epochs=budget.epochs,
        critic_epochs=budget.epochs,
        minibatches=budget.minibatches,
        anneal_updates=anneal,
        encoder="none",  # the images of MinAtar as vectors
    )
    if "choices" in contender:
        parts["space"] = CHOICES
    parts |= {"environment": EnvironmentConfig(env=env), "learner": learner, "agent": agent}
    return configure(kind, population=POPULATION, **parts)


def summary_of(folder: Path) -> dict[str, Any]:
    """What the report needs of a run: its scores, the best member's fitness in each generation, and its schedule."""
    found = lineage(folder)
    schedule = found.schedule()
    places = np.linspace(0, schedule.generations - 1, SCHEDULE).astype(int) if schedule.values else []
    return {
        **json.loads((folder / "score.json").read_text()),
        "steps_per_generation": found.steps_per_generation,
        "best": np.nanmax(found.fitness, axis=1).tolist(),
        "schedule": {name: np.asarray(values)[places].tolist() for name, values in schedule.values.items()},
    }


def report(options: argparse.Namespace, kept: Path, load: Any) -> None:
    """Report the table and the schedules, and draw the curves."""
    runs = [json.loads(path.read_text()) for path in sorted(kept.glob("*.json"))]
    rows = []
    for env in options.envs:
        named = {name: [run for run in runs if (run["env"], run["contender"]) == (env, name)] for name in ALL}
        named = {name: of_name for name, of_name in named.items() if of_name}
        scores = {name: np.array([run["score"] for run in of_name]) for name, of_name in named.items()}
        for name, of_name in named.items():
            schedules = {key: [run["schedule"][key] for run in of_name] for key in of_name[0]["schedule"]}
            rows.append({**summary("ppo", env, name, scores, REFERENCES), "schedules": schedules})
        if options.picture and named:
            draw(options, env, {name: of_name for name, of_name in named.items() if name in options.contenders})
    harness.report(f"learning_population_ppo{'-gpu' * (options.scale == 'gpu')}", options, rows, load)


def draw(options: argparse.Namespace, env: str, named: Mapping[str, list[dict[str, Any]]]) -> None:
    """Plot the best member's fitness over environment steps: the interquartile mean over runs with its 95 % band."""
    figure = style.new_figure((6.4, 4.0))
    axes = figure.add_subplot(1, 1, 1)
    for number, (name, of_name) in enumerate(named.items()):
        best = np.asarray([run["best"] for run in of_name]).T
        steps = of_name[0]["steps_per_generation"] * (1 + np.arange(len(best)))
        middle = statistics.over_runs(best)
        style.draw_estimate(axes, steps, middle, style.colour_of(number), label=f"{name} ({len(of_name)})")
    style.title_axes(axes, f"best of {POPULATION} PPO members on {env}")
    style.label_axes(axes, "environment steps of each member", "return")
    style.count_steps(axes)
    axes.legend(frameon=False, fontsize=8)
    path = Path(options.picture)
    style.save_figure(figure, path.with_name(f"{path.stem}_{env}{path.suffix}"))


if __name__ == "__main__":
    main()
