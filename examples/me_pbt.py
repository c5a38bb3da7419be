"""A repertoire of diverse agents, evolved by ME-PBT: `python examples/me_pbt.py [--small]`.

In `point_trap` a trap is on the way to the goal. A population selected by fitness alone stays in it; a repertoire keeps
the agents that end elsewhere and continues to train them.
"""

import argparse

import jax
import numpy as np

import rookery


def main(small: bool, run_dir: str) -> None:
    """Evolve a repertoire, and act with the agent that ends nearest to a chosen position."""
    env = rookery.make("point_trap", **({"episode_length": 20} if small else {}))
    agent = rookery.td3(env.spec, rookery.agents.Td3Config(hidden_sizes=(8,) if small else (64, 64), output_scale=1.0))
    learner_config = rookery.learners.OffPolicyConfig(
        num_envs=4 if small else 10,
        steps_per_generation=200 if small else 1_000,
        batch_size=8 if small else 64,
        warmup_steps=40 if small else 200,
        eval_episodes=2,
    )
    learner = rookery.off_policy(agent, env, learner_config)

    # ME-PBT works with any learner.
    cells = rookery.qd.grid((8, 8) if small else (16, 16), env.spec.descriptor.lower, env.spec.descriptor.upper)
    population, variations = (4, 4) if small else (10, 30)
    program = rookery.me_pbt(learner, cells, population_size=population, ga_population=variations)
    result = rookery.run(program, generations=3 if small else 60, run_dir=run_dir, overwrite=True)

    first, last = result.history[0], result.history[-1]
    for name in ("coverage", "qd_score", "max_fitness"):
        print(f"{name:12} {first[name]:10.1f} -> {last[name]:10.1f}")
    repertoire = rookery.qd.repertoire_of(result.state)
    elite = rookery.nearest(repertoire, (0.0, 0.9))
    _, start = env.reset(jax.random.key(0))
    action = rookery.act(agent, elite.genotype, start.observation)
    print(f"the elite nearest to (0.0, 0.9) ends at {rounded(elite.descriptor)}; its first action is {rounded(action)}")


def rounded(array: jax.Array) -> np.ndarray:
    """Round a vector for printing."""
    return np.asarray(array, np.float64).round(2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few seconds instead of minutes")
    parser.add_argument("--run-dir", default="runs/example-me-pbt", help="run directory")
    arguments = parser.parse_args()
    main(arguments.small, arguments.run_dir)
