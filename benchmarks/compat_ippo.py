"""What the documented IPPO costs over the library's own path, for the same work.

    python -m benchmarks.compat_ippo [--quick]

The work is that of `benchmarks/ippo.py`: one predator and one prey, continuous headings; an update is 200 steps of 128
environments, 10 epochs of the actors and 10 of the critics in 8 minibatches, networks of tanh (128, 64) for each agent,
nobody judged, early stops out of reach. The adapter is given the same world as users write theirs, and one module with
a tower for each agent, which sees that agent's part of what both are shown; its minibatches are of whole rollouts. Both
take turns in one process.
"""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import rookery
from benchmarks import harness
from benchmarks import ippo as own
from rookery.agents.multi_agent import independent
from rookery.agents.ppo import PpoConfig, ppo
from rookery.compat.jaxagents import IPPO, AgentConfig, HyperParameters, OptimizerParams
from rookery.learners.on_policy import OnPolicyConfig, on_policy


class Pursuit:
    """The library's pursuit as a gymnax-style environment; what both see is one vector."""

    n_actors = 2

    def __init__(self) -> None:
        self.world = rookery.make(own.TASK, episode_length=own.ROLLOUT)

    def reset_env(self, key: jax.Array, _: Any) -> tuple[jax.Array, Any]:
        state, step = self.world.reset(key)
        return step.observation.ravel(), state

    def step_env(self, key: jax.Array, state: Any, actions: jax.Array, _: Any) -> tuple:
        state, step = self.world.step(state, actions[:, None], key)
        return step.final_observation.ravel(), state, step.reward, step.terminated.all(), {}


class Tower(nn.Module):
    """One agent's network."""

    gain: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for size in own.HIDDEN:
            x = nn.tanh(nn.Dense(size, kernel_init=nn.initializers.orthogonal(2.0**0.5))(x))
        return nn.Dense(1, kernel_init=nn.initializers.orthogonal(self.gain))(x)


class Towers(nn.Module):
    """Everybody's, one after the other as in jaxagents' example."""

    config: Any
    gain: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.concatenate([Tower(self.gain)(part) for part in jnp.split(x, 2, axis=-1)], axis=-1)


class Normal(IPPO):
    """Of a standard deviation of 1, as jaxagents' example has it."""

    def _entropy(self, training: Any, obs: jax.Array) -> jax.Array:
        return jnp.full(training.apply_fn(training.params, obs).shape, 0.5 * jnp.log(2 * jnp.pi * jnp.e))

    def _log_prob(self, training: Any, params: Any, obs: jax.Array, action: jax.Array) -> jax.Array:
        return jax.scipy.stats.norm.logpdf(action, training.apply_fn(params, obs))

    def policy(self, training: Any, obs: jax.Array) -> jax.Array:
        return training.apply_fn(training.params, obs)

    def _sample_actions(self, rng: jax.Array, training: Any, obs: jax.Array) -> jax.Array:
        mean = training.apply_fn(training.params, obs)
        return mean + jax.random.normal(rng, mean.shape)


class Documented:
    """A contender: `train`, which begins anew and tells of a bar to nobody."""

    def __init__(self, updates: int):
        config = AgentConfig(
            n_steps=updates,
            batch_size=own.ENVS,
            minibatch_size=own.ENVS // own.MINIBATCHES,
            rollout_length=own.ROLLOUT,
            actor_epochs=own.EPOCHS,
            critic_epochs=own.EPOCHS,
            actor_network=partial(Towers, gain=0.01),
            critic_network=partial(Towers, gain=1.0),
            optimizer=optax.adam,
            eval_frequency=updates,
            max_episode_steps=own.ROLLOUT,
        )
        self.agent = Normal(Pursuit(), None, config, eval_during_training=False)
        rates = own.CHOSEN["actor_lr"], own.CHOSEN["critic_lr"]
        optimizers = [OptimizerParams(rate, 1e-5, own.CHOSEN["max_grad_norm"]) for rate in rates]
        self.hyperparams = HyperParameters(0.99, 0.97, 0.2, 0.005, own.CHOSEN["kl_threshold"], *optimizers)

    def __call__(self) -> None:
        jax.block_until_ready(self.agent.train(jax.random.key(0), self.hyperparams))


def library(updates: int) -> harness.Loop:
    """The contender of `benchmarks/ippo.py`."""
    env = rookery.make(own.TASK, episode_length=own.ROLLOUT)
    config = PpoConfig(own.HIDDEN, actor_epochs=own.EPOCHS, critic_epochs=own.EPOCHS, minibatches=own.MINIBATCHES)
    life = OnPolicyConfig(num_envs=own.ENVS, rollout_length=own.ROLLOUT, evaluate_every=updates)
    learner = on_policy(independent(ppo(env.spec, config), env.spec), env, life)
    carry = jax.jit(partial(own.begin, learner))(jax.random.key(0))
    program = harness.compile_program(partial(own.train, learner), carry, donate=(0,))
    return harness.Loop(program.call, harness.Held(carry))


def main() -> None:
    made = harness.parser(__doc__, rounds=5)
    made.add_argument("--updates", type=int, default=5, help="of one timed call (%(default)s)")
    options = harness.parse(made)
    if options.quick:
        options.updates = 1
    load = harness.load()
    contenders = {"library": library(options.updates), "documented": Documented(options.updates)}
    times = harness.interleave(contenders, options.rounds)
    steps = options.updates * own.ENVS * own.ROLLOUT
    row = {
        "updates": options.updates,
        **{f"{name}/s": steps / value.median for name, value in times.items()},
        **harness.speedup(times["documented"], times["library"]),
        "seconds": {name: value.seconds for name, value in times.items()},
    }
    harness.report("compat_ippo", options, [row], load)


if __name__ == "__main__":
    main()
