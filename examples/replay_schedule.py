"""Compare schedule and selection: train TD3 agents with PB2, then train new agents with the best member's schedule.

    python examples/replay_schedule.py [--small]

A run's lineage contains the hyper-parameters of the best member's ancestors in each generation. `replay` trains any
number of new, independent agents with this schedule.
"""

import argparse

import numpy as np

import rookery


def main(small: bool, run_dir: str) -> None:
    """Run PB2 on Brax's reacher (or, with `small`, on a point in a room), then replay with four seeds."""
    env = rookery.make("point_room", episode_length=20) if small else rookery.make("reacher", episode_length=100)
    agent = rookery.td3(env.spec, rookery.agents.Td3Config(hidden_sizes=(8,) if small else (64, 64)))
    learner_config = rookery.learners.OffPolicyConfig(
        num_envs=4 if small else 10,
        steps_per_generation=200 if small else 1_000,
        batch_size=8 if small else 64,
        warmup_steps=40 if small else 1_000,
        eval_episodes=2 if small else 10,
    )
    learner = rookery.off_policy(agent, env, learner_config)
    generations = 3 if small else 30

    # Two bounds make a field evolve on its scale; "fixed" or one value keeps it constant.
    space = rookery.choose(agent.space, tau=(1e-3, 1e-1), noise_clip="fixed")
    program = rookery.pbt(learner, space, population_size=4 if small else 8, perturb="pb2")
    rookery.run(program, seed=0, generations=generations, run_dir=run_dir, overwrite=True)

    lineage = rookery.experiments.lineage(run_dir)
    best = lineage.best_member
    print(f"the best member is {best} with {lineage.fitness[-1, best]:.2f}; its lineage:")
    print("  " + " ".join(str(member) for member in lineage.ancestors()))
    schedule = lineage.schedule()
    for name in space.domains:
        print(f"  {name:18} {schedule.values[name][0]:.4g} -> {schedule.values[name][-1]:.4g}")

    values = rookery.experiments.at_steps(schedule, learner_config.steps_per_generation, generations)
    fresh = rookery.populations.replay(rookery.seeds(learner, population_size=4), values)
    returns = rookery.run(fresh, seed=1, generations=generations).history[-1]["fitness"]
    print(f"four new agents with that schedule: {', '.join(f'{value:.2f}' for value in np.sort(returns))}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a few seconds instead of minutes")
    parser.add_argument("--run-dir", default="runs/bred", help="run directory")
    arguments = parser.parse_args()
    main(arguments.small, arguments.run_dir)
