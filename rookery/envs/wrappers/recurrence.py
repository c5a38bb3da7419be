"""Recurrence: a wrapper that stores the carry that an agent outputs and adds it to the next observation.

With it, the action of a recurrent agent remains a function of parameters and observation, so the code that runs,
evaluates and resets episodes supports recurrent agents without changes.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery.envs.base import ActionWithCarry, Environment, EnvState, Step, parameterize_inside
from rookery.envs.rendering import scene
from rookery.types import Key, PyTree


class CarryState(NamedTuple):
    """State of the wrapped environment, and the agent's recurrent state."""

    inner: EnvState  # state of the wrapped environment
    carry: PyTree  # leaves `[H]`, or `[I, H]` for a team


def with_carry(environment: Environment, carry_sizes: PyTree) -> Environment:
    """Wrap an environment so that its actions are `ActionWithCarry` and its observations contain the carry.

    The carry is 0 in the first step of an episode.

    Args:
      environment: without skills and without a carry; in a team each agent has a separate carry.
      carry_sizes: sizes of the vectors of the carry, H each; without a leaf the environment is returned unchanged.

    Raises:
      ValueError: the environment has a carry already, or has skills, or another assignment and the agent has a carry,
        or a size is below 1.
    """
    spec, sizes = environment.spec, jax.tree.leaves(carry_sizes)
    if min(sizes, default=1) < 1:
        raise ValueError(f"the sizes of a carry must be at least 1, got {carry_sizes}.")
    if spec.recurrent or spec.skill is not None or (environment.assignment is not None and sizes):
        present = "a carry" if spec.recurrent else "skills" if spec.skill else "an assignment"
        raise ValueError(f"{spec.name} has {present} already; pass an environment without {present}.")
    if not sizes:
        return environment
    return environment._replace(
        reset=partial(_reset, environment, carry_sizes),
        step=partial(_step, environment),
        spec=spec._replace(recurrent=True),
        picture=scene.inside(environment.picture, "inner"),
        announce=None,
        parameterize=parameterize_inside(environment, partial(with_carry, carry_sizes=carry_sizes)),
    )


def _reset(environment: Environment, carry_sizes: PyTree, key: Key) -> tuple[CarryState, Step]:
    state, step = environment.reset(key)
    carry = initial_carry(carry_sizes, step.reward.shape)
    return CarryState(state, carry), step.observing(carry=carry)


def initial_carry(carry_sizes: PyTree, axes: tuple[int, ...] = ()) -> PyTree:
    """The carry in the first step of an episode: zeros `[*axes, H]` for every size."""
    return jax.tree.map(lambda size: jnp.zeros((*axes, size)), carry_sizes)


def _step(environment: Environment, state: CarryState, action: ActionWithCarry, key: Key) -> tuple[CarryState, Step]:
    inner, step = environment.step(state.inner, action.action, key)
    return CarryState(inner, action.carry), step.observing(carry=action.carry)
