"""Does the winner's schedule alone, without a population, make an agent as good as the winner?

    python -m benchmarks.learning.replay --runs runs/learning

For the PBT runs that `benchmarks.learning.population` left behind: eight fresh agents follow the schedule of the
winner's line of descent from their first step, and so inherit nothing that anybody learned. Everybody is judged on the
same fresh episodes. A winner was chosen among eight, so its fair counterpart is the best of the eight fresh agents;
their range says what seeds alone do.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import harness
from benchmarks.learning.population import BUDGETS, config_of, fresh_returns
from rookery.experiments import build, lineage
from rookery.experiments.config import RunConfig
from rookery.training import loop


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--agents", nargs="+", default=["sac", "td3"])
    made.add_argument("--envs", nargs="+", default=list(BUDGETS))
    made.add_argument("--contender", default="PBT")
    made.add_argument("--seeds", type=int, default=2)
    made.add_argument("--runs", default="runs/learning")
    options = harness.parse(made)
    jax.config.update("jax_compilation_cache_dir", f"{options.runs}/cache")
    cases = [(agent, env, seed) for agent in options.agents for env in options.envs for seed in range(options.seeds)]
    harness.report("learning_replay", options, [measure(options, *case) for case in cases], harness.load())


def measure(options: argparse.Namespace, agent: str, env: str, seed: int) -> dict[str, Any]:
    """One line: a winner's score, and those of eight fresh agents under its schedule."""
    bred = Path(options.runs) / f"{options.contender.lower()}-{agent}-{env}-{seed}"
    scored = json.loads((bred / "score.json").read_text())
    config = dataclasses.replace(config_of(agent, env, "defaults"), draw_hyper=False)
    built = build.build(config, lineage.lineage(bred).schedule())
    result = loop.run(built.program, RunConfig(100 + seed, BUDGETS[env].generations, quiet=True), built.mesh)
    fresh = np.sort(fresh_returns(built, result, seed).mean(axis=1))  # on the winner's own episodes
    return {
        "agent": agent,
        "env": env,
        "run": seed,
        "winner": scored["score"],
        "best of 8": float(fresh[-1]),
        "median": float(np.median(fresh)),
        "worst": float(fresh[0]),
        "scores": fresh.tolist(),
    }


if __name__ == "__main__":
    main()
