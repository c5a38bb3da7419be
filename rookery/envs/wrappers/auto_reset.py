"""Automatic resets from a bank of start states."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.envs.base import Environment, EnvState, Step, parameterize_inside
from rookery.types import Array, Key


def start_bank(environment: Environment, key: Key, size: int) -> tuple[EnvState, Step]:
    """Draw `size` start states, `[K, ...]`, from which resets and evaluations select by index.

    The bank avoids a full reset in every step, which takes a fifth of the environment's time. A start state whose
    observation or descriptor is not finite, in which the physics broke before any action, is replaced by another one of
    the bank.
    """
    return _starts(environment, jax.random.split(key, size))


def start_state(environment: Environment, key: Key) -> tuple[EnvState, Step]:
    """The start state of a key, `environment.reset(key)`, or another one where that is not finite."""
    return trees.take(_starts(environment, jnp.concatenate([key[None], jax.random.split(key, 7)])), 0)


def _starts(environment: Environment, keys: Key) -> tuple[EnvState, Step]:
    state, first = jax.vmap(environment.reset)(keys)
    finite, places = jax.vmap(trees.all_finite)((first.observation, first.descriptor)), jnp.arange(len(keys))
    others = jnp.argsort(~finite, stable=True)[places % jnp.maximum(jnp.sum(finite), 1)]
    return trees.take((state, first), jnp.where(finite, places, others))


def start_environments(
    environment: Environment, bank: tuple[EnvState, Step], key: Key, num_envs: int
) -> tuple[EnvState, Step]:
    """Begin an episode in each of E = `num_envs` slots from the start states `bank`; states and steps are `[E,
    ...]`."""
    size = bank[1].reward.shape[0]
    if environment.assignment is None:
        return trees.take(bank, trees.indices(key, (num_envs,), size))
    start_key, first_key = jax.random.split(key)
    start = trees.take(bank, trees.indices(start_key, (num_envs,), size))
    first_keys = jax.random.split(first_key, num_envs)
    return jax.vmap(environment.assignment.first)(start, jnp.arange(num_envs), first_keys)


def auto_reset(environment: Environment, bank: tuple[EnvState, Step]) -> Environment:
    """Make the step that ends an episode begin the next one, from a start state drawn from `bank`.

    In that step `observation` is the new episode's first, while `final_observation`, `reward` and `descriptor` are
    those of the true successor.
    """
    return environment._replace(
        step=partial(_auto_reset_step, environment, bank),
        parameterize=parameterize_inside(environment, partial(auto_reset, bank=bank)),
    )


class Draws(NamedTuple):
    """The random numbers of one step with automatic reset, which do not depend on the environment's state."""

    step_key: Key  # key of the environment's step
    start: Array  # `[]` int32, index of the start state of the next episode, used if the episode ends
    next_key: Key  # key of the next episode's assignment


def draw(bank: tuple[EnvState, Step], key: Key) -> Draws:
    """Draw the random numbers of one step; the key is consumed.

    A loop over time draws those of all steps before it begins: within it, each draw is a loop of small operations.
    """
    step_key, start_key, next_key = jax.random.split(key, 3)
    return Draws(step_key, trees.indices(start_key, (), bank[1].reward.shape[0]), next_key)


def _auto_reset_step(
    environment: Environment, bank: tuple[EnvState, Step], state: EnvState, action: Array, key: Key
) -> tuple[EnvState, Step]:
    return step(environment, bank, state, action, draw(bank, key))


def step(
    environment: Environment, bank: tuple[EnvState, Step], state: EnvState, action: Array, draws: Draws
) -> tuple[EnvState, Step]:
    """Advance one step and begin the next episode if it ends this one: the step of `auto_reset` with given draws."""
    state, taken = environment.step(state, action, draws.step_key)
    start_state, start = trees.take(bank, draws.start)
    if environment.assignment is not None:
        start_state, start = environment.assignment.next((start_state, start), state, draws.next_key)
    state = trees.where(taken.over, start_state, state)
    return state, taken._replace(observation=trees.where(taken.over, start.observation, taken.observation))
