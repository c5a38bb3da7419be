"""Whether agents learn to break the physics, with negative and with positive rewards.

    python -m benchmarks.learning.broken_physics

On a line on which every step has the same reward, and all places beyond an edge break the physics, no action is better
than another. A rule for broken steps that favours them shows as a growing number of them. `--rule termination` gives
them a reward of 0, as simulators without a rule do.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

import rookery
from benchmarks import harness
from rookery import returns
from tests.learners.breaking import learner_of

AGENTS = ("sac", "td3", "ppo")


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--rule", choices=("worst", "termination"), default="worst")
    made.add_argument("--generations", type=int, default=8)
    made.add_argument("--seeds", type=int, default=4)
    options = harness.parse(made)
    if options.rule == "termination":
        returns.worst_value = lambda reward_t, *_, **__: jnp.zeros(reward_t.shape[1:])
    cases = [(agent, reward) for reward in (-1.0, 1.0) for agent in AGENTS]
    harness.report("broken_physics", options, [measure(options, *case) for case in cases], harness.load())


def measure(options: Any, agent: str, reward: float) -> dict[str, Any]:
    """One row: the share of training steps that broke the physics, and of members that do so when evaluated."""
    learner = learner_of(agent, reward)
    program = rookery.seeds(learner, population_size=options.seeds)
    history = rookery.run(program, generations=options.generations, quiet=True).history
    steps = program.steps_per_generation
    broken = [100.0 * float(np.sum(metrics["broken_steps"])) / steps for metrics in history]
    return {
        "agent": agent,
        "reward": reward,
        "broken at first %": broken[0],
        "broken at the end %": broken[-1],
        "members that break": int(np.sum(history[-1]["broken_episodes"] > 0)),
        "by generation %": broken,
    }


if __name__ == "__main__":
    main()
