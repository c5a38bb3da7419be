"""A stochastic policy and a critic: how both carry a memory and define action distributions."""

from typing import Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from rookery import distributions, networks
from rookery.agents import discrete
from rookery.envs.base import EnvSpec
from rookery.features import as_floats
from rookery.types import Array, Observation, PyTree


class Policy(NamedTuple):
    """Parameters of the policy."""

    network: PyTree
    """Parameters of the policy network."""
    log_std: PyTree
    """`[A]` for continuous actions, () for discrete actions."""


class ActorCritic(NamedTuple):
    """A policy network and a critic network that read the same observation, and the spec that describes it."""

    policy: networks.Core
    """Memory, observation -> memory, logits or means `[..., A]`."""
    critic: networks.Core
    """Memory, observation -> memory, value `[..., 1]`."""
    spec: EnvSpec
    """Spec of the environment, without the agent's carry."""


ValueT = TypeVar("ValueT")


class Memory(NamedTuple, Generic[ValueT]):
    """The carry of a recurrent agent: the memory of each network, `[..., H]`, or its size."""

    policy: ValueT
    """Memory of the policy network."""
    critic: ValueT
    """Memory of the critic network."""


def memory_of(observation: Observation) -> Memory[Array]:
    """The memory that an observation carries; of size 0 for networks without memory."""
    if observation.carry is not None:
        return observation.carry
    none = as_floats(observation.features[..., :0])
    return Memory(none, none)


def distribution(nets: ActorCritic, policy: Policy, outputs: Array, action_mask: Array | None) -> Array:
    """Parameters of the action distribution: logits `[..., A]`, of parts `[..., K, M]` (`distributions.by_part`), or
    mean and log standard deviation `[..., 2 A]`."""
    if not nets.spec.discrete:
        log_std = distributions.bounded_log_std(policy.log_std)
        return jnp.concatenate([outputs, jnp.broadcast_to(log_std, outputs.shape)], axis=-1)
    return distributions.by_part(discrete.available(outputs, action_mask), nets.spec.categories)


def log_prob_and_entropy(
    nets: ActorCritic, parameters: Array, action: Array, action_mask: Array | None
) -> tuple[Array, Array]:
    """Log density of an action `[..., A]` (or `[...]` or `[..., K]` int32) and entropy of the distribution; `[...]`
    each, in nats. The parts of an action are independent, so theirs add up."""
    if nets.spec.discrete:
        both = distributions.categorical_log_prob(parameters, action), distributions.categorical_entropy(parameters)
        return (both[0].sum(axis=-1), both[1].sum(axis=-1)) if nets.spec.categories else both
    log_prob = distributions.normal_log_prob(parameters, action, action_mask)
    return log_prob, distributions.normal_entropy(parameters, action_mask)


def unroll(core: networks.Core, params: PyTree, memory: Array, observation: Observation, begins: Array) -> Array:
    """Apply a network along sequences, resetting its memory where an episode begins.

    Args:
      core: the network.
      params: its parameters.
      memory: `[B, H]`, before the first step.
      observation: `[L, B, ...]`.
      begins: `[L, B]` bool, True at the first step of an episode.

    Returns:
      Outputs `[L, B, ...]`.
    """
    if not core.memory_size:
        # One axis of rows: with two, XLA transposes every layer's gradient on a CPU (a sixth of an update's time).
        shape = begins.shape
        rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), observation)
        outputs = core.apply(params, memory[:0], rows)[1]
        return outputs.reshape(*shape, *outputs.shape[1:])

    def advance(memory: Array, step: tuple[Observation, Array]) -> tuple[Array, Array]:
        return core.apply(params, jnp.where(step[1][:, None], 0.0, memory), step[0])

    return jax.lax.scan(advance, memory, (observation, begins))[1]
