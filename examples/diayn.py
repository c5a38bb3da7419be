"""Skill discovery without a task reward by DIAYN: `python examples/diayn.py [--small]`.

In an empty room, the agent observes a skill and is rewarded if a discriminator recognises the skill from the states
that the agent reaches. Afterwards each skill is converted to a separate policy.
"""

import argparse

import jax
import numpy as np

import rookery


def main(small: bool, run_dir: str) -> None:
    """Discover skills, print where each ends, and act with one of them."""
    room = rookery.make("point_room", episode_length=20 if small else 100)
    env = rookery.skills(room, num_skills=4 if small else 8)  # adds the skill to the observations
    hidden_sizes = (8,) if small else (64, 64)
    config = rookery.agents.SacConfig(hidden_sizes=hidden_sizes)
    discovery = rookery.agents.DiaynConfig(discriminator_hidden_sizes=hidden_sizes)
    agent = rookery.diayn(rookery.sac(env.spec, config), env.spec, discovery)  # or with td3, or a user-defined agent
    learner_config = rookery.learners.OffPolicyConfig(
        num_envs=8 if small else 50,
        steps_per_generation=400 if small else 5_000,
        updates_per_step=0.125 if small else 0.1,
        batch_size=16 if small else 256,
        warmup_steps=80 if small else 1_000,
        eval_episodes=4 if small else 16,
    )
    learner = rookery.off_policy(agent, env, learner_config)
    program = rookery.seeds(learner)  # or rookery.pbt(learner, population_size=8), with the accuracy as fitness
    result = rookery.run(program, generations=3 if small else 20, run_dir=run_dir, overwrite=True)

    first, last = result.history[0], result.history[-1]
    print(f"skills recognised: {first['accuracy'][0]:.0%} of the steps -> {last['accuracy'][0]:.0%}")
    evaluated_skills = jax.device_get(jax.jit(program.evaluate)(result.state, jax.random.key(1)))
    ends = (
        evaluated_skills["descriptors"][0].reshape(-1, env.spec.skill.size, 2).mean(axis=0)
    )  # skills alternate over episodes
    for skill, end in enumerate(ends):
        print(f"  skill {skill} ends at {np.round(end, 2)}")

    # Fold a skill into the network weights: the result is a SAC agent for the environment without skills.
    member = jax.tree.map(lambda leaf: leaf[0], result.state.members)
    policies = rookery.learners.freeze_skills(rookery.sac(env.spec, config), env.spec, rookery.genotype(member))
    third = jax.tree.map(lambda leaf: leaf[2], policies)
    _, start = room.reset(jax.random.key(0))
    action = rookery.act(rookery.sac(room.spec, config), third, start.observation)
    print(f"the first action of skill 2 is {np.asarray(action).round(2)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few seconds instead of minutes")
    parser.add_argument("--run-dir", default="runs/example-diayn", help="run directory")
    arguments = parser.parse_args()
    main(arguments.small, arguments.run_dir)
