"""Population Based Training for loops of one's own, over apprentices: on one device, or inside a mapped axis where each
device gives its share of the population (`devices.shares`)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.compat.records import typed
from rookery.populations import selection
from rookery.populations.base import member_keys
from rookery.populations.sharding import WHOLE, Shares, moved
from rookery.types import Array, Key, PyTree

RenewFn = Callable[[Any], Any]
"""One apprentice -> the same with hyper-parameters drawn afresh, by its own key."""


def common(key: Key, many: Any, shares: Shares = WHOLE) -> Key:
    """A key that all devices have in common: the first one's, mixed with that of the first apprentice, which moves on;
    for there are loops that pass the same key in every generation."""
    first = shares.gather((jax.random.key_data(typed(key))[None], many.key[:1]))
    return jax.random.fold_in(typed(first[0][0]), first[1][0, 0])


def is_finite(fitness: Array, many: Any) -> Array:
    """Fitness `[P]`, NaN for whoever has learned a number that is not finite, though its actions may look well."""
    return jnp.where(jax.vmap(trees.all_finite)(many.learned), fitness, jnp.nan)


def truncate(
    fitness: Array, many: Any, data: PyTree, key: Key, counts: tuple[int, int], renew: RenewFn, shares: Shares = WHOLE
) -> tuple[Any, PyTree]:
    """The worst take everything from a parent among the best, see `selection.truncation`, but for key and
    hyper-parameters, which each child has of its own.

    Args:
      fitness: this share's; the whole population is ranked.
      many: apprentices, this share's.
      data: what a child takes besides, e.g. its parent's buffer.
      key: consumed.
      counts: how many of the best are drawn from, and how many of the worst are replaced.
      renew: see `RenewFn`.
    """
    everybodys = shares.gather(is_finite(fitness, many))
    parents_key, new_key = jax.random.split(common(key, many, shares))
    parents = selection.truncation(everybodys, parents_key, max(counts[0], 1), counts[1])
    many, data = moved((many, data), parents, shares.rows, in_place=True)
    return renewed(many, parents != jnp.arange(everybodys.shape[0]), new_key, renew, shares), data


def renewed(many: Any, is_new: Array, key: Key, renew: RenewFn, shares: Shares = WHOLE) -> Any:
    """Newcomers with keys and hyper-parameters of their own.

    Args:
      many: this share's apprentices.
      is_new: `[P]` bool, of the whole population.
      key: the same on all devices; consumed.
      renew: see `RenewFn`.
    """
    keys, mine = shares.own((jax.random.key_data(member_keys(key, is_new.shape[0])), is_new))
    return trees.where(mine, jax.vmap(renew)(many.replace(key=keys)), many)
