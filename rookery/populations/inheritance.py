"""What a child takes from its parent, and how its hyper-parameters then differ."""

from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp

from rookery import hyperparams, trees
from rookery.hyperparams import Space
from rookery.learners.api import Member
from rookery.populations import api
from rookery.populations.api import HERE, Rows
from rookery.types import Array, Hyper, Key, PyTree


class Perturbation(Protocol):
    """What `perturb` must be told; `PbtConfig` is one."""

    @property
    def perturb(self) -> str:
        """`resample`, or anything else for a step on each scale."""
        ...

    @property
    def perturb_factors(self) -> tuple[float, float]:
        """The two factors of a step."""
        ...

    @property
    def resample_probability(self) -> float:
        """Chance that a hyper-parameter is drawn afresh instead."""
        ...


def inherit(
    members: Member, parents: Array, donors: Array | None = None, buffers_too: bool = False, rows: Rows = HERE
) -> Member:
    """Every member takes what `parents` `[P]` says: state, hyper-parameters, normaliser; O(parameters).

    Args:
      members: `[P, ...]`.
      donors: whose hyper-parameters each takes, `[P]`; the parents' by default.
      buffers_too: copy the parents' rows as well, a few children at a time and in place.
      rows: how members are reached, where they lie on several devices.

    Returns:
      `[P, ...]`; environment states, and by default buffers, stay with the slot.
    """
    state, normalizer = moved((members.state, members.normalizer), parents, rows, in_place=True)
    hyper = trees.take(members.hyper, parents if donors is None else donors)
    members = members._replace(state=state, hyper=hyper, normalizer=normalizer)
    if buffers_too:
        members = members._replace(buffer=moved(members.buffer, parents, rows, in_place=True))
    return members


def moved(tree: PyTree, sources: Array, rows: Rows = HERE, in_place: bool = False) -> PyTree:
    """A tree `[P, ...]` whose row i is row `sources[i]` of the given one.

    Only rows that come from elsewhere are moved, a few at a time: what crosses between devices, and what a device holds
    of it at once, grows with the rows that move and not with the population.

    Args:
      tree: leaves `[P, ...]`.
      sources: `[P]` int32.
      rows: how rows are reached.
      in_place: write into the given tree, for sources that form a forest, as parents do.
    """
    size, depth = sources.shape[0], _depth(sources)
    # A row must be read before it changes, so the deepest move first. Around a circle all are equally deep.
    deepest_first, count = jnp.argsort(-depth), jnp.sum(depth > 0)
    at_once = rows_at_once(tree)

    def move(index: Array, result: PyTree) -> PyTree:
        places = index * at_once + jnp.arange(at_once)
        slots = deepest_first[jnp.minimum(places, size - 1)]
        arriving = rows.take(result if in_place else tree, sources[slots])
        return rows.put(result, jnp.where(places < count, slots, size + places), arriving)

    return jax.lax.fori_loop(0, -(-count // at_once), move, tree)


def _depth(parents: Array) -> Array:
    """How many steps each member stands below a survivor, or P on a circle; `[P]`. A parent may be a child itself."""
    members = jnp.arange(parents.shape[0])

    def climb(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        ancestor, depth = carry
        return parents[ancestor], depth + (parents[ancestor] != ancestor).astype(jnp.int32)

    return jax.lax.fori_loop(0, parents.shape[0], climb, (members, jnp.zeros_like(members)))[1]


def rows_at_once(tree: PyTree) -> int:
    """How many rows of a tree `[P, ...]` `moved` moves at a time: an eighth, and no more than 64 MB."""
    leaves = jax.tree.leaves(tree)
    size = leaves[0].shape[0]
    row_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) // size
    return max(1, min(size // 8, _MOST_BYTES // max(row_bytes, 1)))


_MOST_BYTES = 64 * 2**20


def perturb(config: Perturbation, space: Space, hyper: Hyper, key: Key, is_child: Array) -> Hyper:
    """New hyper-parameters for the children, each drawn from its own key; survivors keep theirs.

    Args:
      hyper: `[P]`, already inherited.
      key: consumed.
      is_child: `[P]` bool.
    """
    keys = api.member_keys(key, is_child.shape[0])
    if config.perturb == "resample":
        fresh = jax.vmap(partial(hyperparams.sample, space))(keys)
        evolving = {name: getattr(fresh, name) for name in space.domains}
        changed = hyper._replace(**evolving)
    else:
        change = partial(
            hyperparams.perturb,
            space,
            factors=config.perturb_factors,
            resample_probability=config.resample_probability,
        )
        changed = jax.vmap(change)(hyper, keys)
    return trees.where(is_child, changed, hyper)
