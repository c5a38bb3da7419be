"""Independent PPO of a predator and a prey: `python examples/pursuit.py [--small]`.

Each agent has separate parameters and treats the other as part of the environment. The example first sweeps learning
rates in one compiled call, then evolves a population of teams.
"""

import argparse

import jax
import jax.numpy as jnp

import rookery


def main(small: bool, run_dir: str) -> None:
    """Sweep, evolve, and print the first action of the best predator."""
    env = rookery.make("pursuit_continuous", episode_length=20 if small else 200)
    config = rookery.agents.PpoConfig(hidden_sizes=(8,) if small else (64, 64))
    agent = rookery.agents.independent(
        rookery.ppo(env.spec, config), env.spec
    )  # or shared(ppo(identify(env).spec), ...)
    learner_config = rookery.learners.OnPolicyConfig(
        num_envs=4 if small else 32,
        rollout_length=8 if small else 128,
        evaluate_every=2 if small else 10,
        fitness="prey",  # in a zero-sum game the mean of both returns is uninformative
    )
    learner = rookery.on_policy(agent, env, learner_config)

    rates = jnp.logspace(-4, -2, 2 if small else 8)
    hypers = jax.vmap(lambda rate: learner.space.defaults._replace(actor_lr=rate, critic_lr=rate))(rates)
    key, generations = jax.random.key(0), 1 if small else 20
    sweep = jax.jit(jax.vmap(lambda hyper: rookery.learners.train(learner, key, hyper, generations)))
    _, evaluations, _ = sweep(hypers)
    for rate, returns in zip(rates, evaluations.episodes["return/prey"].mean(axis=-1), strict=True):
        print(f"rate {rate:.0e}: the prey's return {returns[0]:.0f} -> {returns[-1]:.0f}")

    program = rookery.pbt(
        learner, population_size=4
    )  # or rookery.populations.pbt_roles, to evolve predators and prey separately
    result = rookery.run(program, generations=2 if small else 20, run_dir=run_dir, overwrite=True)
    best = int(result.history[-1]["fitness"].argmax())
    member = jax.tree.map(lambda leaf: leaf[best], result.state.members)
    _, start = env.reset(jax.random.key(1))
    action = rookery.act(agent, rookery.genotype(member), start.observation)  # of both agents, [2, 1]
    print(f"the predator's first turn: {float(action[0, 0]):.2f} of a half circle")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few seconds instead of minutes")
    parser.add_argument("--run-dir", default="runs/example-pursuit", help="run directory")
    arguments = parser.parse_args()
    main(arguments.small, arguments.run_dir)
