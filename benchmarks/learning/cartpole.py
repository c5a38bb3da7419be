"""PPO on CartPole-v1 with at most 150 thousand environment steps, or PQN with at most 500 thousand.

    python -m benchmarks.learning.cartpole --seed 1 --picture docs/evidence/learning_cartpole.png
    python -m benchmarks.learning.cartpole --agent pqn --picture docs/evidence/learning_cartpole_pqn.png

Ten independent members, as in `rookery train ppo --env CartPole-v1 --seeds 10 --generations 7 --eval-episodes 100
--start-states 100 --actor-epochs 8 --critic-epochs 8 --minibatches 4 --no-normalize-rewards --no-normalize-observations
--space.actor-lr 2e-3 --space.critic-lr 2e-3`, each evaluated by the mean return of 100 full deterministic episodes
after every 20,480 steps. The highest possible return is 500; above 475 the task counts as solved. The last row is the
final evaluation, over 100 episodes from new start states. `--rate 2.5e-4 --epochs 4 --constant` gives the default
settings of teams; `benchmarks.learning.defaults` runs PPO's default settings. PQN has its defaults, which are its
authors' settings for this task, as in `rookery train pqn --seeds 10 --generations 24 --eval-episodes 100 --start-states
100`.
"""

import argparse
import time
from functools import partial
from typing import Any

import jax
import numpy as np

import rookery
from benchmarks import harness
from rookery.agents.base import OnPolicyAgent
from rookery.agents.ppo import PpoConfig, ppo
from rookery.agents.pqn import PqnConfig, pqn
from rookery.envs.base import EnvSpec
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.report import statistics
from rookery.report.figures import style

TASK, SEEDS, EPISODES = "CartPole-v1", 10, 100
SOLVED, BEST = 475.0, 500.0


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--agent", choices=sorted(AGENTS), default="ppo", help="agent (%(default)s)")
    made.add_argument(
        "--seed", type=int, default=0, help="seed of the run, from which the members' seeds are derived (%(default)s)"
    )
    made.add_argument(
        "--rate", type=float, default=2e-3, help="PPO: learning rate of Adam, of policy and critic (%(default)s)"
    )
    made.add_argument("--epochs", type=int, default=8, help="PPO: passes over each rollout (%(default)s)")
    made.add_argument(
        "--constant", action="store_true", help="keep the learning rates constant, instead of annealing them to 0"
    )
    made.add_argument("--picture", help="output file of the figure of the learning curves")
    options = harness.parse(made)
    load, started = harness.load(), time.perf_counter()
    env, config, most_steps = rookery.make(TASK), *LEARNERS[options.agent]
    generations = 1 if options.quick else most_steps // config.steps_per_generation
    agent, choices = AGENTS[options.agent](env.spec, options, generations * config.evaluate_every)
    space = rookery.choose(agent.space, **choices)
    program = rookery.seeds(on_policy(agent, env, config), space, population_size=SEEDS)
    result = rookery.run(program, seed=options.seed, generations=generations, quiet=True)
    seconds = time.perf_counter() - started
    curves = np.array([metrics["fitness"] for metrics in result.history])  # [G, SEEDS]
    fresh = jax.jit(program.evaluate)(result.state, jax.random.key(10_000 + options.seed))
    steps = [config.steps_per_generation * (generation + 1) for generation in range(generations)]
    rows = [line(str(step), values) for step, values in zip(steps, curves, strict=True)]
    rows.append(line("at the end, fresh", np.asarray(fresh["fitness"])) | {"seconds": seconds})
    harness.report("learning_cartpole" + ("" if options.agent == "ppo" else f"_{options.agent}"), options, rows, load)
    if options.picture:
        draw(steps, curves, options)


def of_ppo(spec: EnvSpec, options: argparse.Namespace, updates: int) -> tuple[OnPolicyAgent, dict[str, float]]:
    """PPO, and its hyper-parameters that are not defaults."""
    config = PpoConfig(
        actor_epochs=options.epochs,
        critic_epochs=options.epochs,
        minibatches=4,
        normalize_rewards=False,
        anneal_updates=0 if options.constant else updates,
    )
    return ppo(spec, config), {"actor_lr": options.rate, "critic_lr": options.rate}


def of_pqn(spec: EnvSpec, options: argparse.Namespace, updates: int) -> tuple[OnPolicyAgent, dict[str, float]]:
    """PQN with its defaults."""
    share = PqnConfig().exploration_share
    anneal = 0 if options.constant else updates
    return pqn(spec, exploration_updates=round(share * updates), anneal_updates=anneal), {}


AGENTS = {"ppo": of_ppo, "pqn": of_pqn}
EVALUATED = partial(OnPolicyConfig, normalize_observations=False, eval_episodes=EPISODES, start_states=EPISODES)
LEARNERS = {
    "ppo": (EVALUATED(), 150_000),
    "pqn": (EVALUATED(num_envs=32, rollout_length=64), 500_000),
}
"""Agent -> settings of its learner, and the largest number of environment steps."""


def line(when: str, returns: np.ndarray) -> dict[str, Any]:
    """A row of the table: the interquartile mean over the members `[SEEDS]`, its interval, and the number solved."""
    middle = statistics.estimate(statistics.interquartile_mean, returns)
    row = {"steps": when, "return": middle.value, "low": middle.low, "high": middle.high}
    return row | {"lowest": float(returns.min()), "solved": int((returns > SOLVED).sum()), "returns": returns.tolist()}


def draw(steps: list[int], curves: np.ndarray, options: argparse.Namespace) -> None:
    """Plot a thin line for each member, and a thick line for their mean."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes, thousands = figure.subplots(), np.asarray(steps) / 1e3
    axes.plot(thousands, curves, color=style.PALETTE[1], linewidth=0.7, alpha=0.5)
    axes.plot(
        thousands,
        curves.mean(axis=1),
        color=style.PALETTE[1],
        linewidth=2.2,
        label=f"{options.agent.upper()} ({SEEDS} seeds)",
    )
    axes.axhline(SOLVED, color=style.QUIET, linewidth=1.0, linestyle="--", label="solved")
    axes.set_ylim(0.0, BEST * 1.03)
    axes.set_title("CartPole-v1, mean return", fontsize=10, color=style.INK, loc="left")
    axes.set_xlabel("thousand environment steps", fontsize=8)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    style.tidy(axes)
    figure.savefig(options.picture, dpi=130)


if __name__ == "__main__":
    main()
