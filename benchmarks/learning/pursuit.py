"""Pursuit with one predator and one prey, both trained by independent PPO, in two speed regimes.

    python -m benchmarks.learning.pursuit --picture docs/evidence/pursuit_regimes.png

Five seeds of each regime are trained by one compiled call of `rookery.learners.train` mapped over the seeds; every team
is evaluated before training and after each generation, over full deterministic episodes. With one predator and one prey
the game is zero-sum, so that the prey's return describes both agents.
"""

import argparse
import time
from functools import partial
from typing import Any

import jax
import numpy as np

import rookery
from benchmarks import harness
from rookery.report import statistics
from rookery.report.figures import style

SEEDS, GENERATIONS, EPISODES = 5, 60, 64
REGIMES = {
    "prey three times as fast": {"predator_speed": 1.0, "prey_speed": 3.0},
    "predator three times as fast": {"predator_speed": 3.0, "prey_speed": 1.0},
}
LEARNER_CONFIG = rookery.learners.OnPolicyConfig(num_envs=32, eval_episodes=EPISODES, start_states=EPISODES)


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument(
        "--env", default="pursuit_continuous", help="pursuit_continuous or pursuit_discrete (%(default)s)"
    )
    made.add_argument("--picture", help="output file of the figure of the learning curves")
    options = harness.parse(made)
    load, rows, curves = harness.load(), [], {}
    for regime, speeds in REGIMES.items():
        started = time.perf_counter()
        evaluations = learn(options, speeds)
        curves[regime] = np.asarray(evaluations.episodes["return/prey"]).mean(axis=-1)  # [SEEDS, G + 1]
        caught = np.asarray(evaluations.episodes["terminated/prey"]).mean(axis=-1)
        for when, place in {"untrained": 0, "trained": -1}.items():
            row = line(regime, when, curves[regime][:, place], caught[:, place])
            rows.append(row | {"seconds": time.perf_counter() - started})
    steps = LEARNER_CONFIG.steps_per_generation * np.arange(curves[regime].shape[1])
    harness.report(f"learning_{options.env}", options, rows, load)
    if options.picture:
        draw(steps, curves, options)


def learn(options: argparse.Namespace, speeds: dict[str, float]) -> rookery.types.Evaluation:
    """Evaluations of all seeds, leaves `[SEEDS, G + 1, ...]`."""
    env = rookery.make(options.env, **speeds)
    agent = rookery.agents.independent(rookery.ppo(env.spec), env.spec)
    learner = rookery.on_policy(agent, env, LEARNER_CONFIG)
    train = partial(rookery.learners.train, learner, generations=1 if options.quick else GENERATIONS)
    return jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), SEEDS))[1]


def line(regime: str, when: str, returns: np.ndarray, caught: np.ndarray) -> dict[str, Any]:
    """A row of the table: interquartile means over the seeds `[SEEDS]` with confidence intervals."""
    both = {"prey's return": returns, "caught": caught}
    estimates = {name: statistics.estimate(statistics.interquartile_mean, values) for name, values in both.items()}
    row = {f"{name}{end}": getattr(of, part) for name, of in estimates.items() for end, part in ENDS.items()}
    return {"regime": regime, "when": when, **row, "returns": returns.tolist(), "share caught": caught.tolist()}


ENDS = {"": "value", " low": "low", " high": "high"}


def draw(steps: np.ndarray, curves: dict[str, np.ndarray], options: argparse.Namespace) -> None:
    """Plot a thin line for each seed, and a thick line for their mean."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for (regime, returns), colour in zip(curves.items(), (style.PALETTE[1], style.PALETTE[0]), strict=True):
        axes.plot(steps / 1e6, returns.T, color=colour, linewidth=0.7, alpha=0.5)
        axes.plot(steps / 1e6, returns.mean(axis=0), color=colour, linewidth=2.2, label=regime)
    axes.set_title(f"{options.env}: the prey's mean return", fontsize=10, color=style.INK, loc="left")
    axes.set_xlabel("million environment steps", fontsize=8)
    axes.legend(frameon=False, fontsize=8)
    style.tidy(axes)
    figure.savefig(options.picture, dpi=130)


if __name__ == "__main__":
    main()
