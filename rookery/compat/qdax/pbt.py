"""Population Based Training on training states, for user-defined training loops.

The functions run on one device, or inside a mapped axis where each device holds its share of the population
(`distributed.layout.shares`).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.compat.records import typed_key
from rookery.populations import selection
from rookery.populations.base import member_keys
from rookery.populations.sharding import WHOLE, Shares, moved
from rookery.types import Array, Key, PyTree

RenewFn = Callable[[Any], Any]
"""Training state of one member -> the same with hyper-parameters resampled with the member's key."""


def common_key(key: Key, states: Any, shares: Shares = WHOLE) -> Key:
    """A key that is equal on all devices.

    It is the first device's key, folded with the key of the first member. The member's key changes over time, so the
    result differs between generations even if a training loop passes the same key in each.
    """
    first = shares.gather((jax.random.key_data(typed_key(key))[None], states.key[:1]))
    return jax.random.fold_in(typed_key(first[0][0]), first[1][0, 0])


def finite_fitness(fitness: Array, states: Any) -> Array:
    """Fitness `[P]`, NaN for each member with a non-finite parameter, even if its actions are finite."""
    return jnp.where(jax.vmap(trees.all_finite)(states.learned), fitness, jnp.nan)


def truncate(
    fitness: Array, states: Any, data: PyTree, key: Key, counts: tuple[int, int], renew: RenewFn, shares: Shares = WHOLE
) -> tuple[Any, PyTree]:
    """Exploit by truncation selection, see `selection.truncation`: the worst members copy a parent among the best.

    A child copies its parent's whole state except the key and the hyper-parameters, which are new for each child.

    Args:
      fitness: of this device's share; the whole population is ranked.
      states: training states of this device's share.
      data: further data that a child copies, e.g. its parent's buffer.
      key: consumed.
      counts: number of best members that parents are drawn from, and number of worst members that are replaced.
      renew: see `RenewFn`.
      shares: access to the other devices' shares.

    Returns:
      The training states and data of this device's share.
    """
    all_fitness = shares.gather(finite_fitness(fitness, states))
    parents_key, new_key = jax.random.split(common_key(key, states, shares))
    parents = selection.truncation(all_fitness, parents_key, max(counts[0], 1), counts[1])
    states, data = moved((states, data), parents, shares.rows, in_place=True)
    return renew_members(states, parents != jnp.arange(all_fitness.shape[0]), new_key, renew, shares), data


def renew_members(states: Any, is_new: Array, key: Key, renew: RenewFn, shares: Shares = WHOLE) -> Any:
    """Give replaced members new keys and hyper-parameters.

    Args:
      states: training states of this device's share.
      is_new: `[P]` bool, for the whole population.
      key: equal on all devices; consumed.
      renew: see `RenewFn`.
      shares: access to the other devices' shares.
    """
    keys, is_new_here = shares.local((jax.random.key_data(member_keys(key, is_new.shape[0])), is_new))
    return trees.where(is_new_here, jax.vmap(renew)(states.replace(key=keys)), states)
