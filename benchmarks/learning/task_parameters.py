"""Populations whose rewards evolve, selected by a measure of the task: DexPBT (arXiv:2305.12127), section IV-B.

    python -m benchmarks.learning.task_parameters --picture docs/evidence/rewards.png

`point_goal` rewards only the goal, and `hopper` velocity along x, small actions and not falling. All contenders are
populations of PPO agents with the same settings and steps, their hyper-parameters evolve in PPO's default space, and
their fitness is a measure of the task (`--objective`): the share of episodes that reach the goal, or the distance
travelled. They differ in the parameters of the task, which are weights of the reward: those of the task, set by hand,
drawn once for each member (no selection), or evolving.

A run's score is the measure of its best member (by the last generation's evaluation) over new episodes, on the task
itself. What the report needs of a run is kept in `benchmarks/results/curves/task_parameters`, and these runs are not
repeated, so the benchmark can be stopped and continued, and processes can share the tasks or contenders;
`--only-report` makes the table and the figure of what there is.
"""

import argparse
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import rookery
from benchmarks import harness
from benchmarks.learning.population import summary
from rookery.report import statistics
from rookery.report.figures import style

FRESH_BLOCKS = 16
"""Blocks of as many new episodes as an evaluation has, for the score."""


class Task(NamedTuple):
    """A task, with what its contenders have in common."""

    objective: str
    evolving: tuple[str, ...]
    """Parameters of the task that evolve."""
    by_hand: Mapping[str, float]
    """Values that make the reward denser; empty if the task's reward is dense already."""
    population: int
    generations: int
    updates: int
    """Updates in a generation, each from 16 environments times 64 steps."""
    eval_episodes: int


TASKS = {
    "point_goal": Task("success", ("progress_weight", "x_weight"), {"progress_weight": 1.0}, 8, 40, 4, 16),
    "hopper": Task("distance", ("forward_weight", "control_weight", "healthy_weight"), {}, 16, 60, 4, 4),
}
CONTENDERS = ("the task's reward", "by hand", "drawn once", "evolving")


def main() -> None:
    made = harness.learning_parser(__doc__, "task_parameters")
    made.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    made.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    made.add_argument("--seeds", type=int, default=5, help="number of runs (%(default)s)")
    options = harness.parse(made)
    load, kept = harness.load(), Path("runs/task_parameters-quick" if options.quick else options.curves)
    kept.mkdir(parents=True, exist_ok=True)
    for task in [] if options.only_report else options.tasks:
        for seed in range(options.seeds):  # all contenders of a seed first, which an unfinished benchmark compares
            for contender in options.contenders:
                name = contender.replace(" ", "-").replace("'", "")
                path = kept / f"{task}-{name}-{seed}.json"
                if (contender != "by hand" or TASKS[task].by_hand) and not path.exists():
                    row = train(task, contender, seed, options.quick)
                    path.write_text(json.dumps(row) + "\n")
                    print(task, contender, seed, round(row["score"], 3), row["parameters"], flush=True)
    rows = [json.loads(path.read_text()) for path in sorted(kept.glob("*.json"))]
    harness.report("learning_task_parameters", options, table(rows), load)
    if options.picture:
        draw(rows, options)


@cache
def program(task: str, contender: str) -> rookery.Program:
    """The population of a contender."""
    settings = TASKS[task]
    env = rookery.make(task)
    config = rookery.learners.OnPolicyConfig(
        num_envs=16,
        rollout_length=64,
        evaluate_every=settings.updates,
        eval_episodes=settings.eval_episodes,
        start_states=32,
        objective=settings.objective,
    )
    agent = rookery.ppo(env.spec, actor_epochs=4, critic_epochs=4, minibatches=4)
    learner = rookery.on_policy(agent, env, config)
    if contender == "by hand":
        chosen = {f"env_{name}": value for name, value in settings.by_hand.items()}
    else:
        evolves = contender in ("drawn once", "evolving")
        chosen = {f"env_{name}": "evolve" for name in settings.evolving if evolves}
    space = rookery.choose(learner.space, **chosen)
    return rookery.pbt(
        learner, space, settings.population, exploit="none" if contender == "drawn once" else "truncation"
    )


def train(task: str, contender: str, seed: int, quick: bool) -> dict[str, Any]:
    """One run: the best member's measure in each generation, over new episodes at the end, and its parameters."""
    population, settings = program(task, contender), TASKS[task]
    generations = 2 if quick else settings.generations
    result = rookery.run(population, seed=seed, generations=generations, quiet=True)
    fitness = np.asarray([metrics["fitness"] for metrics in result.history])
    best = int(np.nanargmax(fitness[-1]))  # survives the selection that ends the generation
    evaluate = jax.jit(population.evaluate)
    keys = jax.random.split(jax.random.key(10_000 + seed), FRESH_BLOCKS)
    fresh = np.mean([np.asarray(evaluate(result.state, key)["fitness"]) for key in keys], axis=0)
    names = [name for name in result.history[-1] if name.startswith("hyper/env_")]
    return {
        "task": task,
        "contender": contender,
        "seed": seed,
        "score": float(fresh[best]),
        "best": np.nanmax(fitness, axis=1).tolist(),
        "steps": population.steps_per_generation * generations,
        "parameters": {name.removeprefix("hyper/env_"): float(result.history[-1][name][best]) for name in names},
    }


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Interquartile means over the seeds with intervals, and probabilities of improvement."""
    lines = []
    for task in TASKS:
        scores = {
            name: np.array([row["score"] for row in rows if (row["task"], row["contender"]) == (task, name)])
            for name in CONTENDERS
        }
        scores = {name: values for name, values in scores.items() if len(values)}
        for name in scores:
            mine = [row for row in rows if (row["task"], row["contender"]) == (task, name)]
            line = summary("ppo", task, name, scores, CONTENDERS if name == "evolving" else ())
            lines.append(line | {"steps": mine[0]["steps"], "parameters": [row["parameters"] for row in mine]})
    return lines


def draw(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Plot the best member's measure over environment steps: the interquartile mean over runs with its 95 % band."""
    figure = style.new_figure((5.2 * len(options.tasks), 3.8))
    for place, task in enumerate(options.tasks):
        axes = figure.add_subplot(1, len(options.tasks), place + 1)
        for number, name in enumerate(CONTENDERS):
            mine = [row for row in rows if (row["task"], row["contender"]) == (task, name)]
            if not mine:
                continue
            middle = statistics.over_runs(np.asarray([row["best"] for row in mine]).T)
            count = len(middle.value)
            steps = mine[0]["steps"] / TASKS[task].population * (1 + np.arange(count)) / count
            style.draw_estimate(axes, steps, middle, style.colour_of(number), label=f"{name} ({len(mine)})")
        style.title_axes(axes, f"best of {TASKS[task].population} PPO members on {task}")
        style.label_axes(axes, "environment steps of each member", TASKS[task].objective)
        style.count_steps(axes)
        axes.legend(frameon=False, fontsize=8)
    style.save_figure(figure, Path(options.picture))


if __name__ == "__main__":
    main()
