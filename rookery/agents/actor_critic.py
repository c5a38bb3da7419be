"""A stochastic policy beside a critic: how both read an observation, remember, and what actions are drawn from."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery import distributions, networks
from rookery.envs.base import EnvSpec
from rookery.types import Array, PyTree


class Policy(NamedTuple):
    """What the policy consists of."""

    network: PyTree
    log_std: PyTree  # [A] of continuous actions, () of discrete ones


class ActorCritic(NamedTuple):
    """Two networks that see the same observation, and how it is read."""

    policy: networks.Core  # memory, observation -> memory, logits or means [..., A]
    critic: networks.Core  # memory, observation -> memory, value [..., 1]
    spec: EnvSpec  # without the memory


class Seen(NamedTuple):
    """An observation in its parts."""

    sensed: Array  # [..., O]
    exists: Array | None  # [..., A] bool, the actions or dimensions that there are; None: all
    policy_memory: Array  # [..., H]
    critic_memory: Array  # [..., H]


def see(nets: ActorCritic, observation: Array) -> Seen:
    """Take an observation `[..., O]` apart, see `EnvSpec.sensed_size`; the policy's memory comes first."""
    spec, shown = nets.spec, nets.spec.observation_size
    middle = shown + nets.policy.memory_size
    return Seen(
        sensed=observation[..., : spec.sensed_size],
        exists=observation[..., spec.sensed_size : shown] > 0.5 if spec.masked else None,
        policy_memory=observation[..., shown:middle],
        critic_memory=observation[..., middle:],
    )


def distribution(nets: ActorCritic, policy: Policy, outputs: Array, exists: Array | None) -> Array:
    """What actions are drawn from: logits `[..., A]`, or mean and log standard deviation `[..., 2 A]`."""
    if not nets.spec.discrete:
        log_std = distributions.bounded_log_std(policy.log_std)
        return jnp.concatenate([outputs, jnp.broadcast_to(log_std, outputs.shape)], axis=-1)
    return outputs if exists is None else distributions.masked_logits(outputs, exists)


def log_prob_and_entropy(
    nets: ActorCritic, parameters: Array, action: Array, exists: Array | None
) -> tuple[Array, Array]:
    """Of an action `[..., A]`, or `[...]` int32, drawn from `distribution`; `[...]` each, in nats."""
    if nets.spec.discrete:
        log_prob = distributions.categorical_log_prob(parameters, action)
        return log_prob, distributions.categorical_entropy(parameters)
    log_prob = distributions.normal_log_prob(parameters, action, exists)
    return log_prob, distributions.normal_entropy(parameters, exists)


def unroll(core: networks.Core, params: PyTree, memory: Array, observation: Array, begins: Array) -> Array:
    """Outputs `[L, B, ...]` of a network that follows sequences, and forgets where an episode begins.

    Args:
      memory: `[B, H]`, before the first step.
      observation: `[L, B, O]`.
      begins: `[L, B]` bool.
    """
    if not core.memory_size:
        return core.apply(params, memory[None], observation)[1]

    def follow(memory: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        return core.apply(params, jnp.where(step[1][:, None], 0.0, memory), step[0])

    return jax.lax.scan(follow, memory, (observation, begins))[1]
