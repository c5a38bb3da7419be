"""Shared parts of the tests of agents: specs, batches and small networks of PPO."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery import networks
from rookery.agents.actor_critic import ActorCritic
from rookery.agents.ppo import PpoConfig
from rookery.envs.base import EnvSpec, SkillSpec, descriptor_spec
from rookery.envs.wrappers.skills import KINDS
from rookery.types import Observation, PyTree, Transition

SPEC = EnvSpec("test", observation_size=3, action_size=2, episode_length=10)
PLACE = descriptor_spec("place", "final", (-1.0, -1.0), (1.0, 1.0))
SKILLED = SPEC._replace(descriptor=PLACE, skill=SkillSpec("one-hot", 4))
CHOOSING = SPEC._replace(discrete=True, action_size=5)
SPHERE = SPEC._replace(skill=SkillSpec("sphere", 3))
BATCH = 8
SMALL_PPO = partial(
    PpoConfig, hidden_sizes=(4,), actor_epochs=2, critic_epochs=3, minibatches=2, normalize_rewards=False
)


def transitions(key: jax.Array, spec: EnvSpec = SPEC, rows: int = BATCH) -> Transition:
    """Rows of random numbers, the first two terminated; with skills in the form for an intrinsic reward."""
    keys = jax.random.split(key, 6)
    if spec.discrete:
        action = jax.random.randint(keys[1], (rows,), 0, spec.action_size)
    else:
        action = jax.random.uniform(keys[1], (rows, spec.action_size), minval=-1.0, maxval=1.0)
    batch = Transition(
        observation=Observation(jax.random.normal(keys[0], (rows, spec.observation_size))),
        action=action,
        reward=jax.random.normal(keys[2], (rows,)),
        next_observation=Observation(jax.random.normal(keys[3], (rows, spec.observation_size))),
        terminated=jnp.arange(rows) < 2,
    )
    if spec.skill is None:
        return batch
    chosen = jax.vmap(partial(KINDS[spec.skill.kind].draw, spec.skill.size))(jax.random.split(keys[4], rows))
    observation, next_observation = (
        observation._replace(skill=chosen) for observation in (batch.observation, batch.next_observation)
    )
    extras = jax.random.normal(keys[5], (rows, spec.descriptor_size)) if spec.descriptor else ()
    if spec.has_previous and spec.descriptor:
        extras = (extras, extras[::-1])
    return batch._replace(observation=observation, next_observation=next_observation, extras=extras)


drawn_transitions = jax.jit(transitions, static_argnames=("spec", "rows"))


def numbers(tree: PyTree) -> np.ndarray:
    """All numbers of a tree in one row."""
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def linear(size: int, outputs: int) -> networks.Core:
    return networks.core(size, (), outputs, output_gain=1.0)


def layer(kernel: Any, bias: Any) -> PyTree:
    """Parameters of a network without hidden layers: a kernel `[I, O]` and a bias `[O]`."""
    return {"params": {"Dense_0": {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}}}


def nets_of(spec: EnvSpec) -> ActorCritic:
    return ActorCritic(linear(spec.input_size, spec.action_size), linear(spec.input_size, 1), spec)
