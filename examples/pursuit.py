"""A predator and a prey that learn from each other, on one page: `python examples/pursuit.py [--small]`.

Independent PPO: each has parameters of its own, and to each the other is a part of the world. First a sweep over
learning rates in one compiled call, then a population of teams that evolves.
"""

import argparse

import jax
import jax.numpy as jnp

import rookery


def main(small: bool, run_dir: str) -> None:
    """Sweep, evolve, and ask the best predator what it does."""
    env = rookery.make("pursuit_continuous", episode_length=20 if small else 200)
    config = rookery.PpoConfig(hidden_sizes=(8,) if small else (64, 64))
    agent = rookery.independent(rookery.ppo(env.spec, config), env.spec)  # or shared(ppo(identify(env).spec), ...)
    life = rookery.OnPolicyConfig(
        num_envs=4 if small else 32,
        rollout_length=8 if small else 128,
        evaluate_every=2 if small else 10,
        fitness="prey",  # one wins what the other loses, so the mean of both would say nothing
    )
    learner = rookery.on_policy(agent, env, life)

    rates = jnp.logspace(-4, -2, 2 if small else 8)
    hypers = jax.vmap(lambda rate: learner.space.defaults._replace(actor_lr=rate, critic_lr=rate))(rates)
    key, generations = jax.random.key(0), 1 if small else 20
    sweep = jax.jit(jax.vmap(lambda hyper: rookery.train(learner, key, hyper, generations)))
    _, evaluations, _ = sweep(hypers)
    for rate, returns in zip(rates, evaluations.episodes["return/prey"].mean(axis=-1), strict=True):
        print(f"rate {rate:.0e}: the prey's return {returns[0]:.0f} -> {returns[-1]:.0f}")

    program = rookery.pbt(learner, population_size=4)  # or rookery.pbt_roles: predators and prey evolve apart
    result = rookery.run(program, generations=2 if small else 20, run_dir=run_dir, overwrite=True)
    best = int(result.history[-1]["fitness"].argmax())
    member = jax.tree.map(lambda leaf: leaf[best], result.state.members)
    _, start = env.reset(jax.random.key(1))
    action = rookery.act(agent, rookery.genotype(member), start.observation)  # of both, [2, 1]
    print(f"the predator's first turn: {float(action[0, 0]):.2f} of half a circle")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few seconds instead of minutes")
    parser.add_argument("--run-dir", default="runs/example-pursuit", help="folder of the run")
    arguments = parser.parse_args()
    main(arguments.small, arguments.run_dir)
