"""Skills without a reward, discovered by DIAYN, on one page: `python examples/diayn.py [--small]`.

In an empty room an agent is shown a skill and rewarded for being recognised by where it goes. Afterwards each skill is
an agent by itself.
"""

import argparse

import jax
import numpy as np

import rookery


def main(small: bool, run_dir: str) -> None:
    """Discover skills, tell where each ends, and let one of them act."""
    room = rookery.make("point_room", episode_length=20 if small else 100)
    env = rookery.skills(room, num_skills=4 if small else 8)  # observations end in the skill
    hidden_sizes = (8,) if small else (64, 64)
    config = rookery.SacConfig(hidden_sizes=hidden_sizes)
    discovery = rookery.DiaynConfig(discriminator_hidden_sizes=hidden_sizes)
    agent = rookery.diayn(rookery.sac(env.spec, config), env.spec, discovery)  # or around td3, or your own
    life = rookery.OffPolicyConfig(
        num_envs=8 if small else 50,
        steps_per_generation=400 if small else 5_000,
        updates_per_step=0.125 if small else 0.1,
        batch_size=16 if small else 256,
        warmup_steps=80 if small else 1_000,
        eval_episodes=4 if small else 16,
    )
    learner = rookery.off_policy(agent, env, life)
    program = rookery.seeds(learner)  # or rookery.pbt(learner, population_size=8), selected by accuracy
    result = rookery.run(program, generations=3 if small else 20, run_dir=run_dir, overwrite=True)

    first, last = result.history[0], result.history[-1]
    print(f"skills recognised: {first['accuracy'][0]:.0%} of the steps -> {last['accuracy'][0]:.0%}")
    examined = jax.device_get(jax.jit(program.evaluate)(result.state, jax.random.key(1)))
    ends = examined["descriptors"][0].reshape(-1, env.spec.skill.size, 2).mean(axis=0)  # episodes take skills in turn
    for skill, end in enumerate(ends):
        print(f"  skill {skill} ends at {np.round(end, 2)}")

    # A skill frozen into the agent's weights: a SAC agent that sees the room as it is.
    member = jax.tree.map(lambda leaf: leaf[0], result.state.members)
    policies = rookery.freeze_skills(rookery.sac(env.spec, config), env.spec, rookery.genotype(member))
    third = jax.tree.map(lambda leaf: leaf[2], policies)
    _, start = room.reset(jax.random.key(0))
    action = rookery.act(rookery.sac(room.spec, config), third, start.observation)
    print(f"skill 2 begins with {np.asarray(action).round(2)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few seconds instead of minutes")
    parser.add_argument("--run-dir", default="runs/example-diayn", help="folder of the run")
    arguments = parser.parse_args()
    main(arguments.small, arguments.run_dir)
