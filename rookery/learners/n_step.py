"""Returns over several steps for off-policy agents, whose number is a hyper-parameter of each member.

Source: Hessel 2018, "Rainbow" (arXiv:1710.02298, Eq. 3). The sums of rewards are computed when a batch is read, from
rows of one environment that follow each other, so that the number of steps can change at any time.

Deviation: the rewards after the first are those of the policy that acted, without a correction; SAC's entropy bonus is
that of the last state alone.
"""

from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import hyperparams, trees
from rookery.agents.base import OffPolicyAgent
from rookery.buffers import BufferState
from rookery.hyperparams import Field, Whole
from rookery.types import Array, Hyper, Scalar, Transition

MOST = 10
"""Largest number of steps."""


class NStepHyper(NamedTuple):
    """The hyper-parameter."""

    n_step: Annotated[
        Scalar, Field("steps of a return before its value", Whole(1, 5), low=1.0, high=float(MOST), evolves=False)
    ] = 1.0


SPACE = hyperparams.declared(NStepHyper)


class Place(NamedTuple):
    """Which step of which environment a row is; `extras` of the stored transitions where the number is chosen."""

    environment: Array
    """`[]` int32."""
    time: Array
    """`[]` int32, the number of the environment's step in the run, from 1 on."""
    ended: Array
    """`[]` bool: the episode ended in the step."""


def with_space(agent: OffPolicyAgent) -> OffPolicyAgent:
    """The agent with the optional hyper-parameter, if it has a discount, and no reward of its own, which depends on the
    batch."""
    space = agent.space
    if agent.intrinsic_reward or not hasattr(space.defaults, "discount") or hasattr(space.defaults, "n_step"):
        return agent
    return agent._replace(space=hyperparams.with_optional(space, SPACE))


def is_chosen(hyper: Hyper) -> bool:
    """Whether hyper-parameters have a number of steps."""
    return hasattr(hyper, "n_step")


def placed(rows: Transition, ended: Array, count: Array) -> Transition:
    """The transitions `[E, ...]` of a step with their places; `count` `[]` int32 is the number of steps before it."""
    environments = jnp.arange(len(ended), dtype=jnp.int32)
    return rows._replace(extras=Place(environments, jnp.full_like(environments, count + 1), ended))


def read(state: BufferState, indices: Array, hyper: Any, num_envs: int) -> tuple[Transition, Any]:
    """Read transitions over at most `n_step` steps, fewer where an episode ends or the next row is not in the buffer.

    Args:
      state: a ring buffer of transitions with a `Place` each, `num_envs` of them from each step.
      indices: `[B]`, the first steps.
      hyper: of a member, each `[]`.
      num_envs: E.

    Returns:
      The transitions, with the discounted sum of the rewards and what follows the last step; and the hyper-parameters
      whose `discount` `[B]` is that of this value.
    """
    rows: Transition = state.rows
    reward, last, steps = jax.vmap(partial(_sum, rows, hyper, num_envs))(indices)
    next_observation, terminated = trees.take((rows.next_observation, rows.terminated), last)
    batch = trees.take(rows, indices)._replace(
        reward=reward, next_observation=next_observation, terminated=terminated, extras=()
    )
    return batch, hyper._replace(discount=hyper.discount**steps)


def _sum(rows: Transition, hyper: Any, num_envs: int, index: Array) -> tuple[Array, Array, Array]:
    """The discounted sum of the rewards from a row on, the index of the last one, and their number as float32."""
    after = jnp.arange(MOST, dtype=jnp.int32)
    window = (index + num_envs * after) % len(rows.reward)
    reward, place = trees.take((rows.reward, rows.extras), window)
    follows = (place.time == place.time[0] + after) & (place.environment == place.environment[0])
    goes_on = jnp.concatenate([jnp.ones(1, bool), follows[1:] & ~place.ended[:-1]])
    counts = (jnp.cumprod(goes_on.astype(jnp.int32)) > 0) & (after < hyper.n_step.astype(jnp.int32))
    steps = jnp.sum(counts, dtype=jnp.int32)
    total = jnp.sum(jnp.where(counts, hyper.discount ** after.astype(jnp.float32) * reward, 0.0))
    return total, window[steps - 1], steps.astype(jnp.float32)
