"""Cost of jaxagents' documented IPPO API compared with Rookery's API, for the same work.

    python -m benchmarks.compat_ippo [--quick]

The work is that of `benchmarks/ippo.py`: one predator and one prey, continuous headings; an update is 200 steps of 128
environments, 10 epochs of the actors and 10 of the critics in 8 minibatches, networks of tanh (128, 64) for each agent,
no evaluations, early stopping disabled. The adapter uses the same task as a user-defined environment, and one module
with a separate network for each agent, which reads that agent's part of the joint observation; its minibatches consist
of whole rollouts. Both contenders alternate in one process.
"""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

import rookery
from benchmarks import harness
from benchmarks import ippo as settings
from rookery.agents.multi_agent import independent
from rookery.agents.ppo import PpoConfig, ppo
from rookery.compat.jaxagents import IPPO, AgentConfig, HyperParameters, OptimizerParams
from rookery.learners.on_policy import OnPolicyConfig, on_policy


class Pursuit:
    """Rookery's pursuit as a gymnax-style environment; the observations of both agents are one vector."""

    n_actors = 2

    def __init__(self) -> None:
        self.env = rookery.make(settings.TASK, episode_length=settings.ROLLOUT)

    def reset_env(self, key: jax.Array, _: Any) -> tuple[jax.Array, Any]:
        state, step = self.env.reset(key)
        return step.observation.features.ravel(), state

    def step_env(self, key: jax.Array, state: Any, actions: jax.Array, _: Any) -> tuple:
        state, step = self.env.step(state, actions[:, None], key)
        return step.final_observation.features.ravel(), state, step.reward, step.terminated.all(), {}


class Tower(nn.Module):
    """Network of one agent."""

    gain: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for size in settings.HIDDEN:
            x = nn.tanh(nn.Dense(size, kernel_init=nn.initializers.orthogonal(2.0**0.5))(x))
        return nn.Dense(1, kernel_init=nn.initializers.orthogonal(self.gain))(x)


class Towers(nn.Module):
    """Networks of all agents, with concatenated outputs as in jaxagents' example."""

    config: Any
    gain: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.concatenate([Tower(self.gain)(part) for part in jnp.split(x, 2, axis=-1)], axis=-1)


class Normal(IPPO):
    """IPPO with normal distributions of standard deviation 1, as in jaxagents' example."""

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
    """Contender that calls `train` of the documented API, each time from initial parameters."""

    def __init__(self, updates: int):
        config = AgentConfig(
            n_steps=updates,
            batch_size=settings.ENVS,
            minibatch_size=settings.ENVS // settings.MINIBATCHES,
            rollout_length=settings.ROLLOUT,
            actor_epochs=settings.EPOCHS,
            critic_epochs=settings.EPOCHS,
            actor_network=partial(Towers, gain=0.01),
            critic_network=partial(Towers, gain=1.0),
            optimizer=optax.adam,
            eval_frequency=updates,
            max_episode_steps=settings.ROLLOUT,
        )
        self.agent = Normal(Pursuit(), None, config, eval_during_training=False)
        rates = settings.CHOSEN["actor_lr"], settings.CHOSEN["critic_lr"]
        optimizers = [OptimizerParams(rate, 1e-5, settings.CHOSEN["max_grad_norm"]) for rate in rates]
        self.hyperparams = HyperParameters(0.99, 0.97, 0.2, 0.005, settings.CHOSEN["kl_threshold"], *optimizers)

    def __call__(self) -> None:
        jax.block_until_ready(self.agent.train(jax.random.key(0), self.hyperparams))


def library(updates: int) -> harness.Loop:
    """Rookery's contender of `benchmarks/ippo.py`."""
    env = rookery.make(settings.TASK, episode_length=settings.ROLLOUT)
    config = PpoConfig(
        settings.HIDDEN, actor_epochs=settings.EPOCHS, critic_epochs=settings.EPOCHS, minibatches=settings.MINIBATCHES
    )
    learner_config = OnPolicyConfig(num_envs=settings.ENVS, rollout_length=settings.ROLLOUT, evaluate_every=updates)
    learner = on_policy(independent(ppo(env.spec, config), env.spec), env, learner_config)
    carry = jax.jit(partial(settings.begin, learner))(jax.random.key(0))
    program = harness.compile_program(partial(settings.train, learner), carry, donate=(0,))
    return harness.Loop(program.call, harness.Held(carry))


def main() -> None:
    made = harness.parser(__doc__, rounds=5)
    made.add_argument("--updates", type=int, default=5, help="updates of one timed call (%(default)s)")
    options = harness.parse(made)
    if options.quick:
        options.updates = 1
    load = harness.load()
    contenders = {"library": library(options.updates), "documented": Documented(options.updates)}
    times = harness.interleave(contenders, options.rounds)
    steps = options.updates * settings.ENVS * settings.ROLLOUT
    row = {
        "updates": options.updates,
        **{f"{name}/s": steps / value.median for name, value in times.items()},
        **harness.speedup(times["documented"], times["library"]),
        "seconds": {name: value.seconds for name, value in times.items()},
    }
    harness.report("compat_ippo", options, [row], load)


if __name__ == "__main__":
    main()
