"""A user-defined program: a function that builds agent, learner and population method in Python.

    python examples/own_program.py

The command line trains the same program, with the parameters of the function as options, and finds it again:

    rookery train program examples/own_program.py:build --option width=64 --generations 20
    rookery evaluate runs/program-own_program-0
"""

import argparse

import rookery


def build(width: int = 32, population: int = 4, small: bool = False) -> rookery.Program:
    """SAC with one hidden layer; a population that selects by the mean of two evaluations."""
    env = rookery.make("point_trap", episode_length=20 if small else 100)
    agent = rookery.sac(env.spec, rookery.agents.SacConfig(hidden_sizes=(width,)))
    config = rookery.learners.OffPolicyConfig(
        num_envs=4,
        steps_per_generation=40 if small else 1_000,
        batch_size=8 if small else 64,
        buffer_size=20_000,
        warmup_steps=20 if small else 500,
        eval_episodes=2,
    )
    space = rookery.choose(agent.space, discount=(0.9, 0.999), policy_lr=(1e-4, 1e-2), alpha_lr="fixed")
    return rookery.pbt(rookery.off_policy(agent, env, config), space, population, smooth=2)


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--run-dir", default="runs/own_program")
    made.add_argument("--small", action="store_true")
    options = made.parse_args()

    program = build(width=8, small=True) if options.small else build()
    rookery.run(program, generations=2 if options.small else 20, run_dir=options.run_dir, overwrite=True)

    run = rookery.load(options.run_dir, program)
    fitness = run.evaluate(episodes=5)["fitness"]
    print(f"on fresh episodes: {fitness.max():.2f}, with discount {run.best().hyper.discount:.4f}")


if __name__ == "__main__":
    main()
