"""Policy-gradient variation: a policy follows the gradient of a critic's value of its actions for some steps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery import gradients
from rookery.agents.base import ActFn
from rookery.buffers import Buffer, BufferState
from rookery.networks import ApplyFn
from rookery.types import Array, Key, Observation, PyTree


class Ascent(NamedTuple):
    """The static arguments of policy-gradient variation."""

    act: ActFn
    """The policy that is varied: parameters and observation -> action."""
    value: ApplyFn
    """The first critic."""
    buffer: Buffer
    """Samples the observations."""
    batch_size: int
    learning_rate: float


def vary(
    ascent: Ascent,
    params: PyTree,
    condition: Array | None,
    key: Key,
    critic: PyTree,
    stored: BufferState,
    steps: Array | int,
) -> PyTree:
    """Apply steps of Adam to the loss `-mean Q(s, policy(s))` (Nilsson 2021, Algorithm 2).

    Args:
      ascent: the networks, the batches and the learning rate.
      params: parameters of the policy.
      condition: `[D]`, what the critic is conditioned on; None for a critic without condition.
      key: consumed; each step folds in its number.
      critic: parameters of the critics, which do not change.
      stored: a buffer of observations without condition.
      steps: the number of steps; a traced 0 computes nothing.

    Returns:
      The parameters after the steps.
    """

    def loss(params: PyTree, observation: Observation) -> Array:
        conditioned = observation
        if condition is not None:
            shape = observation.features.shape[0], condition.shape[0]
            conditioned = observation._replace(skill=jnp.broadcast_to(condition, shape))
        return -jnp.mean(ascent.value(critic, conditioned, ascent.act(params, observation)))

    def step(number: Array, learned: gradients.Learned) -> gradients.Learned:
        indices = ascent.buffer.draw(stored, jax.random.fold_in(key, number), (ascent.batch_size,))
        gradient = jax.grad(loss)(learned.params, ascent.buffer.take(stored, indices))
        return gradients.adam(learned, gradient, ascent.learning_rate)

    return jax.lax.fori_loop(0, steps, step, gradients.start(params)).params
