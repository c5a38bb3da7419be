"""Descriptors as conditions of a policy and a critic: scaling, the similarity of descriptors, and frozen conditions.

Source: Faldor 2024, "Synergizing Quality-Diversity with Descriptor-Conditioned Reinforcement Learning"
(arXiv:2401.08632).
"""

from typing import NamedTuple

import jax.numpy as jnp

from rookery import networks
from rookery.envs.base import DescriptorSpec, EnvSpec, SkillSpec
from rookery.learners.evaluation import Recorded
from rookery.types import Array, Observation, PyTree, Transition


class Conditions(NamedTuple):
    """How descriptors condition the networks."""

    descriptor: DescriptorSpec
    length_scale: float
    first_input: int
    """Index of the condition's first number in what the actor's first layer reads."""
    reward_offset: float = 0.0
    """Added to each reward before it is multiplied by a similarity: a negative one would favour other descriptors."""


def conditioned(spec: EnvSpec, size: int) -> EnvSpec:
    """The spec of observations with a condition of `size` numbers, in the place of a skill."""
    return spec._replace(skill=SkillSpec("sphere", size))


def scaled(descriptor: DescriptorSpec, values: Array) -> Array:
    """Descriptors `[..., D]` scaled from their limits to [-1, 1]."""
    shape = (1,) * (values.ndim - 1) + (descriptor.size,)
    lower, upper = (jnp.asarray(side, jnp.float32).reshape(shape) for side in (descriptor.lower, descriptor.upper))
    return 2.0 * (values - lower) / (upper - lower) - 1.0


def similarity(first: Array, second: Array, length_scale: float) -> Array:
    """`exp(-|d - d'| / l)` of scaled descriptors `[..., D]`, in (0, 1] (Faldor 2024, Eq. 4)."""
    distance = jnp.sqrt(jnp.sum(jnp.square(first - second), axis=-1))
    return jnp.exp(-distance / length_scale)


def rows(conditions: Conditions, recorded: Recorded, reached: Array, targets: Array) -> Transition:
    """Transitions `[B, T, ...]` with their target as condition, and rewards multiplied by the similarity.

    Deviation: the task's QD offset is added to a reward, so that dissimilarity never increases it.

    Args:
      conditions: limits and length scale.
      recorded: transitions `[B, T, ...]` of B policies.
      reached: `[B, D]`, the descriptors that were evaluated.
      targets: `[B, D]`, the scaled descriptor that each policy should reach; not finite where it is the one that it
        reached.
    """
    transitions, found = recorded.transitions, scaled(conditions.descriptor, reached)
    targets = jnp.where(jnp.isfinite(targets), targets, found)
    factor = similarity(found, targets, conditions.length_scale)

    def see(observation: Observation) -> Observation:
        shape = (*observation.features.shape[:2], targets.shape[1])
        return observation._replace(skill=jnp.broadcast_to(targets[:, None], shape))

    return transitions._replace(
        observation=see(transitions.observation),
        reward=(transitions.reward + conditions.reward_offset) * factor[:, None],
        next_observation=see(transitions.next_observation),
    )


def freeze(conditions: Conditions, params: PyTree, target: Array) -> PyTree:
    """The parameters of an actor for one scaled target `[D]`, without the condition among its inputs."""
    return networks.freeze_inputs(params, conditions.first_input, target)
