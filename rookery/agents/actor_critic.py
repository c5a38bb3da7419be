"""A stochastic policy and a critic: how both split an observation, keep a memory, and define action distributions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery import distributions, networks
from rookery.envs.base import EnvSpec
from rookery.types import Array, PyTree


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
    """Spec of the environment, without the agent's memory."""


class ObservationParts(NamedTuple):
    """The parts of an observation."""

    sensed: Array
    """`[..., O]`."""
    exists: Array | None
    """`[..., A]` bool, mask of the available actions or action dimensions; None if all are."""
    policy_memory: Array
    """`[..., H]`."""
    critic_memory: Array
    """`[..., H]`."""


def split_observation(nets: ActorCritic, observation: Array) -> ObservationParts:
    """Split an observation `[..., O]` into its parts, see `EnvSpec.sensed_size`; the policy's memory precedes the
    critic's."""
    spec, environment_size = nets.spec, nets.spec.observation_size
    policy_end = environment_size + nets.policy.memory_size
    return ObservationParts(
        sensed=observation[..., : spec.sensed_size],
        exists=observation[..., spec.sensed_size : environment_size] > 0.5 if spec.masked else None,
        policy_memory=observation[..., environment_size:policy_end],
        critic_memory=observation[..., policy_end:],
    )


def distribution(nets: ActorCritic, policy: Policy, outputs: Array, exists: Array | None) -> Array:
    """Parameters of the action distribution: logits `[..., A]`, or mean and log standard deviation `[..., 2 A]`."""
    if not nets.spec.discrete:
        log_std = distributions.bounded_log_std(policy.log_std)
        return jnp.concatenate([outputs, jnp.broadcast_to(log_std, outputs.shape)], axis=-1)
    return outputs if exists is None else distributions.masked_logits(outputs, exists)


def log_prob_and_entropy(
    nets: ActorCritic, parameters: Array, action: Array, exists: Array | None
) -> tuple[Array, Array]:
    """Log density of an action `[..., A]` (or `[...]` int32) and entropy of the distribution; `[...]` each, in nats."""
    if nets.spec.discrete:
        log_prob = distributions.categorical_log_prob(parameters, action)
        return log_prob, distributions.categorical_entropy(parameters)
    log_prob = distributions.normal_log_prob(parameters, action, exists)
    return log_prob, distributions.normal_entropy(parameters, exists)


def unroll(core: networks.Core, params: PyTree, memory: Array, observation: Array, begins: Array) -> Array:
    """Apply a network along sequences, resetting its memory where an episode begins.

    Args:
      core: the network.
      params: its parameters.
      memory: `[B, H]`, before the first step.
      observation: `[L, B, O]`.
      begins: `[L, B]` bool, True at the first step of an episode.

    Returns:
      Outputs `[L, B, ...]`.
    """
    if not core.memory_size:
        return core.apply(params, memory[None], observation)[1]

    def advance(memory: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        return core.apply(params, jnp.where(step[1][:, None], 0.0, memory), step[0])

    return jax.lax.scan(advance, memory, (observation, begins))[1]
