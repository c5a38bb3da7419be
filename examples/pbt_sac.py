"""Population Based Training of SAC: `python examples/pbt_sac.py [--small]`.

Each component can be replaced by a user-defined one: `Environment`, `Agent`, `Learner` and `Program` are NamedTuples of
pure functions.
"""

import argparse

import numpy as np

import rookery


def main(small: bool, run_dir: str) -> None:
    """Train a population on Brax's hopper (or, with `small`, on a point in a room) and print the best member."""
    env = rookery.make("point_room", episode_length=20) if small else rookery.make("hopper")
    agent = rookery.sac(env.spec, rookery.agents.SacConfig(hidden_sizes=(8,) if small else (64, 64)))
    learner_config = rookery.learners.OffPolicyConfig(
        num_envs=4 if small else 25,
        steps_per_generation=200 if small else 5_000,
        batch_size=8 if small else 64,
        warmup_steps=40 if small else 1_000,
        eval_episodes=2 if small else 10,
    )
    learner = rookery.off_policy(agent, env, learner_config)

    # The evolved hyper-parameters with their scales and bounds; other fields keep their defaults.
    space = rookery.hyperparams.space(
        agent.space.defaults,
        {
            "discount": rookery.hyperparams.OneMinusLog(0.9, 0.999),
            "policy_lr": rookery.hyperparams.LogUniform(3e-5, 3e-3),
            "critic_lr": rookery.hyperparams.LogUniform(3e-5, 3e-3),
            "reward_scaling": rookery.hyperparams.LogUniform(0.1, 10.0),
        },
    )
    population = 4 if small else 8
    program = rookery.pbt(learner, space, population, best_fraction=0.25, replace_fraction=0.25)
    result = rookery.run(program, seed=0, generations=3 if small else 36, run_dir=run_dir, overwrite=True)

    first, last = result.history[0], result.history[-1]
    best = int(np.nanargmax(last["fitness"]))
    print(f"best return {np.nanmax(first['fitness']):.1f} -> {last['fitness'][best]:.1f}, by member {best} with")
    for name in space.domains:
        print(f"  {name:16} {last[f'hyper/{name}'][best]:.4g}")
    print(f"{result.run_dir}/lineage.csv records every member in every generation")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few seconds instead of minutes")
    parser.add_argument("--run-dir", default="runs/example", help="run directory")
    arguments = parser.parse_args()
    main(arguments.small, arguments.run_dir)
