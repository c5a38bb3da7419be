"""jaxagents' IPPO on pursuit: the contender of `benchmarks.ippo`, in an environment and a process of its own.

    benchmarks/peers.sh && .venv-peers-jaxagents/bin/python benchmarks/peers_ippo.py 3

It runs where jaxagents does, with Python 3.12 and the JAX of its time, and so imports nothing of ours. It makes the
program, says so in a line of JSON, and then trains as many updates as it was told for every line that it reads; to
each it answers with the seconds that took. With `--rounds 2` it does that by itself.

The environment is `rookery.envs.tasks.pursuit.pursuit_continuous` written for its interface: same motion, capture,
rewards, clock, starts and views. The networks are the same for both: for either agent 128 and 64 tanh units on its own
view, orthogonal weights, and the logarithm of the deviation as a parameter.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy

numpy.bool = bool  # type: ignore[misc] # gymnax 0.0.6 asks for the name that numpy took away

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
    """The predator first."""

    position: jax.Array  # [2, 2]
    heading: jax.Array  # [2]
    time: jax.Array


@struct.dataclass
class Nothing:
    """There is nothing to choose."""


class Pursuit(Environment):
    """One predator and one prey; the clock is the wrapper's."""

    n_actors = 2

    def reset_env(self, rng: jax.Array, params: Nothing) -> tuple[jax.Array, Chase]:
        del params
        keys = jax.random.split(rng, 3)
        predator = jax.random.uniform(keys[0], (2,))
        places = jax.random.uniform(keys[1], (DRAWS, 2))
        far = jnp.minimum(jnp.linalg.norm(places - predator, axis=-1), RADIUS + MARGIN)
        heading = jax.random.uniform(keys[2], (2,), minval=-math.pi, maxval=math.pi)
        state = Chase(jnp.stack([predator, places[jnp.argmax(far)]]), heading, jnp.zeros((), jnp.int32))
        return view(state), state

    def step_env(self, rng: jax.Array, state: Chase, action: jax.Array, params: Nothing) -> tuple:
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
    """What both see, one after the other: the clock, oneself, how far away the other is and where it heads, `[18]`."""
    facing, place = towards(state.heading), 2.0 * state.position - 1.0
    away = state.position[::-1] - state.position
    clock = jnp.full((2, 1), state.time / ROLLOUT)
    return jnp.concatenate([clock, place, facing, away, facing[::-1]], axis=-1).reshape(-1)


class Mlp(nn.Module):
    """Of one agent: `[..., 9] -> [..., 1]`."""

    gain: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for size in HIDDEN:
            x = nn.tanh(nn.Dense(size, kernel_init=nn.initializers.orthogonal(math.sqrt(2.0)))(x))
        return nn.Dense(1, kernel_init=nn.initializers.orthogonal(self.gain))(x)


class Actor(nn.Module):
    """What either agent does: means and deviations `[..., 2]`, from what both see `[..., 18]`."""

    config: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return apart(x, 0.01), jnp.exp(self.param("log_std", nn.initializers.zeros, (2,)))


class Critic(nn.Module):
    """What either agent expects, `[..., 2]`."""

    config: Any

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return apart(x, 1.0)


def apart(x: jax.Array, gain: float) -> jax.Array:
    """A network for either agent; to be called in a module."""
    return jnp.concatenate([Mlp(gain)(x[..., :VIEW]), Mlp(gain)(x[..., VIEW:])], axis=-1)


class Hunters(IPPO):
    """What jaxagents leaves to its user: normal distributions."""

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
    """The agent; it counts the actor's epochs from 1, so that it is asked for one more than it shall make."""
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
    return Hunters(Pursuit(), Nothing(), config, eval_during_training=False)


def hyperparameters() -> HyperParameters:
    """Its example's; a divergence never stops it, so that all epochs are made."""
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
    parser.add_argument("--rounds", type=int, help="train by itself, so many times")
    options = parser.parse_args()
    agent, hyper = hunters(options.updates), hyperparameters()
    started = time.perf_counter()
    train = jax.jit(agent.train).lower(jax.random.PRNGKey(0), hyper).compile()
    say({"compile_s": time.perf_counter() - started, "jax": jax.__version__})
    for turn, _ in enumerate(sys.stdin if options.rounds is None else range(options.rounds)):
        started = time.perf_counter()
        runner = jax.block_until_ready(train(jax.random.PRNGKey(turn), hyper))[0]
        seconds = time.perf_counter() - started
        steps = int(runner.actor_training.step)
        say({"seconds": seconds, "actor_steps": steps, "finite": finite(runner), "peak_gb": peak_memory()})


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def peak_memory() -> float:
    """The most memory this process has ever held, in GB, where Linux tells."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith("VmHWM"))


def finite(runner: Any) -> bool:
    return all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree_util.tree_leaves(runner.actor_training.params))


if __name__ == "__main__":
    main()
