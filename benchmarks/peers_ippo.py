"""jaxagents' IPPO on pursuit: the contender of `benchmarks.ippo`, in a separate virtual environment and process.

    benchmarks/peers.sh && .venv-peers-jaxagents/bin/python benchmarks/peers_ippo.py 3

It runs with the Python 3.12 and the older JAX that jaxagents needs, and therefore does not import Rookery. It compiles
the program, prints a line of JSON, and then trains the given number of updates for every line of input, and prints the
seconds that each training took. With `--rounds 2` it trains twice without input.

The environment is `rookery.envs.tasks.pursuit.pursuit_continuous` with jaxagents' interface: the motion, capture,
rewards, time limit, start states and observations are the same. The networks equal Rookery's: for each agent 128 and 64
tanh units on its observation, orthogonal weights, and the logarithm of the deviation as a parameter.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy

numpy.bool = bool  # type: ignore[misc] # gymnax 0.0.6 uses this name, which numpy removed

import flax.linen as nn  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import struct  # noqa: E402
from gymnax.environments.environment import Environment  # noqa: E402
from jaxagents.ippo import IPPO  # noqa: E402
from jaxagents.utils.ippo_utils import AgentConfig, HyperParameters, OptimizerParams  # noqa: E402

ENVS, ROLLOUT, EPOCHS, MINIBATCH_ENVS, HIDDEN = 128, 200, 10, 16, (128, 64)
SPEED, RADIUS, MARGIN, DRAWS = jnp.array([0.01, 0.03]), 0.2, 0.1, 64
VIEW = 9


@struct.dataclass
class Chase:
    """State of the environment; the predator is first."""

    position: jax.Array  # [2, 2]
    heading: jax.Array  # [2]
    time: jax.Array


@struct.dataclass
class NoParams:
    """Empty environment parameters."""


class Pursuit(Environment):
    """One predator and one prey; jaxagents' wrapper implements the time limit."""

    n_actors = 2

    def reset_env(self, rng: jax.Array, params: NoParams) -> tuple[jax.Array, Chase]:
        del params
        keys = jax.random.split(rng, 3)
        predator = jax.random.uniform(keys[0], (2,))
        places = jax.random.uniform(keys[1], (DRAWS, 2))
        far = jnp.minimum(jnp.linalg.norm(places - predator, axis=-1), RADIUS + MARGIN)
        heading = jax.random.uniform(keys[2], (2,), minval=-math.pi, maxval=math.pi)
        state = Chase(jnp.stack([predator, places[jnp.argmax(far)]]), heading, jnp.zeros((), jnp.int32))
        return view(state), state

    def step_env(self, rng: jax.Array, state: Chase, action: jax.Array, params: NoParams) -> tuple:
        del rng, params
        turned = state.heading + math.pi * jnp.clip(action, -1.0, 1.0)
        heading = jnp.mod(turned + math.pi, 2 * math.pi) - math.pi
        position = jnp.clip(state.position + SPEED[:, None] * towards(heading), 0.0, 1.0)
        caught = jnp.linalg.norm(position[0] - position[1]) <= RADIUS
        reward = jnp.where(caught, jnp.array([100.0, -100.0]), jnp.array([-1.0, 1.0]))
        state = Chase(position, heading, state.time + 1)
        return view(state), state, reward, caught, {}


def towards(heading: jax.Array) -> jax.Array:
    return jnp.stack([jnp.cos(heading), jnp.sin(heading)], axis=-1)


def view(state: Chase) -> jax.Array:
    """Observations of both agents, concatenated `[18]`.

    Each contains the elapsed time, the agent's position and heading, the other's relative position and its heading.
    """
    facing, place = towards(state.heading), 2.0 * state.position - 1.0
    away = state.position[::-1] - state.position
    clock = jnp.full((2, 1), state.time / ROLLOUT)
    return jnp.concatenate([clock, place, facing, away, facing[::-1]], axis=-1).reshape(-1)


class Mlp(nn.Module):
    """Network of one agent: `[..., 9] -> [..., 1]`."""

    gain: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for size in HIDDEN:
            x = nn.tanh(nn.Dense(size, kernel_init=nn.initializers.orthogonal(math.sqrt(2.0)))(x))
        return nn.Dense(1, kernel_init=nn.initializers.orthogonal(self.gain))(x)


class Actor(nn.Module):
    """Means and deviations of both agents' actions `[..., 2]`, from both observations `[..., 18]`."""

    config: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return separate_networks(x, 0.01), jnp.exp(self.param("log_std", nn.initializers.zeros, (2,)))


class Critic(nn.Module):
    """Values of both agents, `[..., 2]`."""

    config: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return separate_networks(x, 1.0)


def separate_networks(x: jax.Array, gain: float) -> jax.Array:
    """Separate networks for both agents; to be called in a flax module."""
    return jnp.concatenate([Mlp(gain)(x[..., :VIEW]), Mlp(gain)(x[..., VIEW:])], axis=-1)


class Hunters(IPPO):
    """The methods that jaxagents requires of a user, with normal distributions."""

    def _sample_actions(self, rng: jax.Array, training: Any, obs: jax.Array) -> jax.Array:
        mean, deviation = training.apply_fn(training.params, obs)
        return mean + deviation * jax.random.normal(rng, mean.shape)

    def _log_prob(self, training: Any, params: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
        mean, deviation = training.apply_fn(params, obs)
        return -0.5 * ((action - mean) / deviation) ** 2 - jnp.log(deviation) - 0.5 * math.log(2 * math.pi)

    def _entropy(self, training: Any, obs: jax.Array) -> jax.Array:
        return jnp.log(training.apply_fn(training.params, obs)[1]) + 0.5 * math.log(2 * math.pi * math.e)

    def policy(self, training: Any, obs: jax.Array) -> jax.Array:
        return training.apply_fn(training.params, obs)[0]


def hunters(updates: int) -> Hunters:
    """The agent; jaxagents makes one actor epoch less than configured, so it is configured with one more."""
    config = AgentConfig(
        n_steps=updates,
        batch_size=ENVS,
        minibatch_size=MINIBATCH_ENVS,
        rollout_length=ROLLOUT,
        actor_epochs=EPOCHS + 1,
        critic_epochs=EPOCHS,
        actor_network=Actor,
        critic_network=Critic,
        optimizer=optax.adam,
        eval_frequency=updates,
        max_episode_steps=ROLLOUT,
    )
    return Hunters(Pursuit(), NoParams(), config, eval_during_training=False)


def hyperparameters() -> HyperParameters:
    """Hyper-parameters of jaxagents' example, with a divergence limit that is never reached."""
    actor, critic = (OptimizerParams(learning_rate=rate, eps=1e-5, grad_clip=1.0) for rate in (3e-4, 5e-4))
    return HyperParameters(
        gamma=0.99,
        gae_lambda=0.97,
        eps_clip=0.2,
        ent_coeff=0.005,
        kl_threshold=1e9,
        actor_optimizer_params=actor,
        critic_optimizer_params=critic,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("updates", type=int)
    parser.add_argument("--rounds", type=int, help="number of trainings without input")
    options = parser.parse_args()
    agent, hyper = hunters(options.updates), hyperparameters()
    started = time.perf_counter()
    train = jax.jit(agent.train).lower(jax.random.PRNGKey(0), hyper).compile()
    print_message({"compile_s": time.perf_counter() - started, "jax": jax.__version__})
    for turn, _ in enumerate(sys.stdin if options.rounds is None else range(options.rounds)):
        started = time.perf_counter()
        runner = jax.block_until_ready(train(jax.random.PRNGKey(turn), hyper))[0]
        seconds = time.perf_counter() - started
        steps = int(runner.actor_training.step)
        print_message({"seconds": seconds, "actor_steps": steps, "finite": finite(runner), "peak_gb": peak_memory()})


def print_message(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def peak_memory() -> float:
    """Peak memory of this process in GB on Linux; 0 elsewhere."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith("VmHWM"))


def finite(runner: Any) -> bool:
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree_util.tree_leaves(runner.actor_training.params))


if __name__ == "__main__":
    main()
