"""One generation of PBT with QDax alone, as a user would write it, for the comparison in `cold_start`.

    python -m benchmarks.qdax_script --env hopper --population 8 --hidden-sizes 64 64 --batch-size 64 5000

It does not import Rookery, and donates no arguments, as in QDax's examples.
"""

import argparse

import jax
import jax.numpy as jnp
from qdax.baselines.pbt import PBT
from qdax.baselines.sac_pbt import PBTSAC, PBTSacConfig
from qdax.core.neuroevolution.sac_td3_utils import warmstart_buffer
from qdax.tasks.brax.v2 import create

ENVS, WARMUP, EPISODES, EPISODE_LENGTH, ROWS = 25, 1_000, 10, 1000, 100_000


def main() -> None:
    options = parse()
    population = options.population
    env = create(options.env, batch_size=ENVS, episode_length=EPISODE_LENGTH, backend="spring")
    eval_env = create(options.env, batch_size=EPISODES, episode_length=EPISODE_LENGTH, backend="spring")
    keys = jax.random.key_data(jax.random.split(jax.random.key(0), 3))
    env_states = jax.jit(jax.vmap(env.reset))(jax.random.split(keys[0], population))
    first_states = jax.jit(jax.vmap(eval_env.reset))(jax.random.split(keys[1], population))

    config = PBTSacConfig(
        batch_size=options.batch_size,
        episode_length=EPISODE_LENGTH,
        policy_hidden_layer_size=tuple(options.hidden_sizes),
        critic_hidden_layer_size=tuple(options.hidden_sizes),
    )
    agent = PBTSAC(config, env.action_size)
    init = agent.get_init_fn(population, env.action_size, env.observation_size, ROWS)
    states, stores = jax.jit(init)(keys[2])

    def warm(store, state, env_state):
        return warmstart_buffer(store, state, env_state, lambda *now: agent.play_step_fn(*now, env=env), WARMUP, ENVS)

    stores, env_states, states = jax.jit(jax.vmap(warm))(stores, states, env_states)
    train = jax.jit(agent.get_train_fn(env, (options.steps - WARMUP) // ENVS, ENVS, 1.0))
    (states, env_states, stores), _ = train(states, env_states, stores)
    fitness, _ = jax.jit(agent.get_eval_fn(eval_env))(states, first_states)
    replaced = population // 4
    exploit = jax.jit(PBT(population, replaced, replaced).update_states_and_buffer)
    states, stores = jax.block_until_ready(exploit(keys[0], fitness, states, stores))
    print(f"generation 1 of 1  best {float(jnp.max(fitness)):.1f}  median {float(jnp.median(fitness)):.1f}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="hopper")
    parser.add_argument("--population", type=int, default=8)
    parser.add_argument("--hidden-sizes", type=int, nargs=2, default=[64, 64])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("steps", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
