"""Effect of the best member's hyper-parameter schedule alone, without a population.

    python -m benchmarks.learning.replay --runs runs/learning

For the PBT runs of `benchmarks.learning.population`, eight new agents are trained with the schedule of the best
member's lineage from their first step, without inheriting parameters. All are evaluated on the same new episodes. The
best member was selected among eight, so it is compared with the best of the eight new agents; their range shows the
effect of the seed.
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
from rookery.experiments import build
from rookery.storage.lineage import lineage
from rookery.training import loop
from rookery.training.config import RunConfig


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
    """One row: the best member's score, and those of eight new agents with its schedule."""
    run_path = Path(options.runs) / f"{options.contender.lower()}-{agent}-{env}-{seed}"
    scored = json.loads((run_path / "score.json").read_text())
    generations = BUDGETS[env].generations
    config = dataclasses.replace(config_of(agent, env, "defaults", generations), draw_hyper=False)
    built = build.build(config, lineage(run_path).schedule())
    result = loop.run(built.program, RunConfig(100 + seed, generations, quiet=True), built.mesh)
    fresh = np.sort(fresh_returns(built, result, seed).mean(axis=1))  # on the same episodes as the best member
    return {
        "agent": agent,
        "env": env,
        "run": seed,
        "best member": scored["score"],
        "best of 8": float(fresh[-1]),
        "median": float(np.median(fresh)),
        "worst": float(fresh[0]),
        "scores": fresh.tolist(),
    }


if __name__ == "__main__":
    main()
