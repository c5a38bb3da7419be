"""Which skills are good enough to be rewarded for being different.

Source: Kumar 2020, "One Solution is Not All You Need: Few-Shot Extrapolation via Structured MaxEnt RL"
(arXiv:2010.14484).
"""

from typing import NamedTuple

import jax.numpy as jnp

from rookery.envs.base import SkillSpec, Step
from rookery.types import Array

RATE = 0.2  # of the running means: about the last ten episodes count


class Aim(NamedTuple):
    """When a skill's return is good enough, in units of return."""

    target: float | None  # None: a share of the best running mean that any skill has had
    fraction: float  # that share, in (0, 1]
    margin: float  # by how much the target may be missed, at least 0


class Returns(NamedTuple):
    """What is known of the skills' returns; M one-hot skills, or one entry for all of a sphere."""

    mean: Array  # [M] running mean over the episodes that ended
    known: Array  # [M] bool: one has
    best: Array  # [] greatest mean so far; 0 before the first episode has ended: a state must be finite


def nothing(skill: SkillSpec) -> Returns:
    """Before the first episode."""
    count = skill.size if skill.kind == "one-hot" else 1
    return Returns(jnp.zeros((count,)), jnp.zeros((count,), bool), jnp.zeros(()))


def record(skill: SkillSpec, returns: Returns, steps: Step) -> Returns:
    """Take in the episodes that end in these steps `[E]`; unfinished ones do not count, nor does what is not finite."""
    ended = steps.ended & jnp.isfinite(steps.pursued.episode_return)
    value = jnp.where(ended, steps.pursued.episode_return, 0.0)
    weight = ended[:, None].astype(jnp.float32)
    if skill.kind == "one-hot":
        weight = weight * steps.pursued.skill  # [E, M]
    count = jnp.sum(weight, axis=0)
    mean = jnp.sum(weight * value[:, None], axis=0) / jnp.maximum(count, 1.0)
    rate = 1.0 - (1.0 - RATE) ** count  # episodes that end together count as much as one after the other
    moved = jnp.where(returns.known, returns.mean + rate * (mean - returns.mean), mean)
    known = returns.known | (count > 0.0)
    mean = jnp.where(count > 0.0, moved, returns.mean)
    past = jnp.where(returns.known.any(), returns.best, -jnp.inf)
    best = jnp.maximum(past, jnp.max(jnp.where(known, mean, -jnp.inf)))
    return Returns(
        mean=mean,
        known=known,
        best=jnp.where(known.any(), best, 0.0),
    )


def near_best(aim: Aim, returns: Returns, chosen: Array) -> Array:
    """Whether skills may seek diversity: `R(z) >= target - margin` (Kumar 2020, Eq. 6).

    Args:
      aim: target and margin.
      returns: what the skills return.
      chosen: `[B, S]`, the skills that are asked about.

    Returns:
      `[B]` bool; False for a skill of which no episode has ended.
    Deviation: a skill's return is the running mean of its finished episodes, where the paper's algorithm asks for that
    of the episode that a transition is of: the condition is on the policy, and old rows do not say what it returns now.
    Without a target, the paper takes the return of a policy that was trained for the task before; here it is the
    greatest running mean that any skill has had, so that one lucky episode of an exploring policy sets no target.
    """
    target = aim.target if aim.target is not None else returns.best - (1.0 - aim.fraction) * jnp.abs(returns.best)
    near = returns.known & (returns.mean >= target - aim.margin)
    if near.shape[0] == 1:  # a sphere
        return jnp.broadcast_to(near, chosen.shape[:1])
    return near[jnp.argmax(chosen, axis=-1)]
