"""A gymnax-style environment, and subclasses of the documented IPPO as users write them."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

from rookery.compat.jaxagents import IPPO, AgentConfig, HyperParameters, OptimizerParams


@struct.dataclass
class Params:
    furthest: float = 2.0


@struct.dataclass
class State:
    goals: jax.Array  # [I]
    time: int = 0


class Goals:
    """Each of `n_actors` observes all goals; its reward is the negative distance of its action to its goal.

    Goals are drawn from [-2, 2], which actions clipped to [-1, 1] could not reach. With discrete actions, the correct
    action is 1 for a goal above 0, else 0. An episode terminates after a step in which the first goal was above 1.5.
    Observations have the shape (1, I).
    """

    def __init__(self, n_actors: int = 2, discrete: bool = False):
        self.n_actors, self.discrete = n_actors, discrete

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        goals = jax.random.uniform(key, (self.n_actors,), minval=-params.furthest, maxval=params.furthest)
        return goals[None], State(goals=goals)

    def step_env(self, key: jax.Array, state: State, actions: jax.Array, params: Params) -> tuple:
        correct = (state.goals > 0).astype(jnp.int32) if self.discrete else state.goals
        rewards = -jnp.abs(actions - correct).astype(jnp.float32)
        obs, next_state = self.reset_env(key, params)
        return (
            obs,
            State(goals=next_state.goals, time=state.time + 1),
            rewards,
            state.goals[0] > 1.5,
            {"actions": actions},
        )


def two_layers(x: jax.Array, outputs: int) -> jax.Array:
    return nn.Dense(outputs)(nn.tanh(nn.Dense(16)(x)))


class Actor(nn.Module):
    """For each actor an action, or the log odds of action 1."""

    config: Any
    outputs: int = 2

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return two_layers(x, self.outputs)


class Critic(nn.Module):
    config: Any
    n_critics: int = 2

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return two_layers(x, self.n_critics).squeeze()


class Continuous(IPPO):
    """A normal distribution around the network's outputs, with a fixed standard deviation."""

    log_std = -1.0

    @partial(jax.jit, static_argnums=(0,))
    def _entropy(self, actor_training, state):
        mus = actor_training.apply_fn(actor_training.params, state).squeeze()
        return jnp.full(mus.shape, self.log_std + 0.5 * jnp.log(2 * jnp.pi * jnp.e))

    @partial(jax.jit, static_argnums=(0, 4))  # as it is published
    def _log_prob(self, actor_training, params, state, actions):
        mus = actor_training.apply_fn(params, state).squeeze()
        return jax.scipy.stats.norm.logpdf(actions, mus, jnp.exp(self.log_std))

    @partial(jax.jit, static_argnums=(0,))
    def policy(self, actor_training, state):
        return actor_training.apply_fn(jax.lax.stop_gradient(actor_training.params), state).squeeze()

    @partial(jax.jit, static_argnums=(0,))
    def _sample_actions(self, rng, actor_training, state):
        mus = actor_training.apply_fn(jax.lax.stop_gradient(actor_training.params), state).squeeze()
        return mus + jnp.exp(self.log_std) * jax.random.normal(rng, mus.shape)


class Discrete(IPPO):
    """The network's outputs are the log odds of action 1."""

    def _logits(self, params, training, obs):
        odds = training.apply_fn(params, obs).reshape(self.n_actors, 1)
        return jax.nn.log_softmax(jnp.concatenate([jnp.zeros_like(odds), odds], axis=-1))

    def _entropy(self, training, obs):
        logits = self._logits(training.params, training, obs)
        return -jnp.sum(jnp.exp(logits) * logits, axis=-1)

    def _log_prob(self, training, params, obs, action):
        return jnp.take_along_axis(self._logits(params, training, obs), action[:, None], axis=-1)[:, 0]

    def policy(self, training, obs):
        return jnp.argmax(self._logits(training.params, training, obs), axis=-1)

    def _sample_actions(self, rng, training, obs):
        return jax.random.categorical(rng, self._logits(training.params, training, obs))


EVAL_KEY = jax.random.key(18)
CONFIG = AgentConfig(
    n_steps=5,
    batch_size=8,
    minibatch_size=4,
    rollout_length=8,
    actor_epochs=2,
    critic_epochs=3,
    actor_network=Actor,
    critic_network=Critic,
    optimizer=optax.adam,
    eval_frequency=2,
    eval_rng=EVAL_KEY,
    n_evals=6,
    max_episode_steps=5,
)
HYPER = HyperParameters(
    gamma=0.9,
    gae_lambda=0.9,
    eps_clip=0.2,
    ent_coeff=0.0,
    kl_threshold=1e6,
    actor_optimizer_params=OptimizerParams(learning_rate=3e-3, grad_clip=1.0),
    critic_optimizer_params=OptimizerParams(learning_rate=3e-3, grad_clip=1.0),
)


def numbers(tree: Any) -> list[jax.Array]:
    """The leaves; those that are typed keys as raw key data."""

    def raw(leaf: jax.Array) -> jax.Array:
        return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf

    return [raw(leaf) for leaf in jax.tree.leaves(tree)]
