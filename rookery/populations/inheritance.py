"""What a child takes from its parent, and how its hyper-parameters then differ."""

from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp

from rookery import hyperparams, trees
from rookery.hyperparams import Space
from rookery.learners.api import Member
from rookery.populations import api
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


def inherit(members: Member, parents: Array, donors: Array | None = None, buffers_too: bool = False) -> Member:
    """Every member takes what `parents` `[P]` says: state, hyper-parameters, normaliser; O(parameters).

    Args:
      members: `[P, ...]`.
      donors: whose hyper-parameters each takes, `[P]`; the parents' by default.
      buffers_too: copy the parents' rows as well, one child at a time and in place.

    Returns:
      `[P, ...]`; environment states, and by default buffers, stay with the slot.
    """
    state, normalizer = trees.take((members.state, members.normalizer), parents)
    hyper = trees.take(members.hyper, parents if donors is None else donors)
    members = members._replace(state=state, hyper=hyper, normalizer=normalizer)
    if buffers_too:
        depth = _depth(parents)
        copy = partial(_copy_rows, jnp.argsort(-depth), parents)
        members = members._replace(buffer=jax.lax.fori_loop(0, jnp.sum(depth > 0), copy, members.buffer))
    return members


def _depth(parents: Array) -> Array:
    """How many steps each member stands below a survivor; `[P]`. A parent may be a child itself, of a better one."""
    members = jnp.arange(parents.shape[0])

    def climb(_: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        ancestor, depth = carry
        return parents[ancestor], depth + (parents[ancestor] != ancestor).astype(jnp.int32)

    return jax.lax.fori_loop(0, parents.shape[0], climb, (members, jnp.zeros_like(members)))[1]


def _copy_rows(deepest_first: Array, parents: Array, index: Array, tree: PyTree) -> PyTree:
    """Copy the parent's row of one child in place; the deepest come first, so that a row is read before it changes."""
    child = deepest_first[index]

    def copy(leaf: Array) -> Array:
        row = jax.lax.dynamic_index_in_dim(leaf, parents[child], keepdims=True)
        return jax.lax.dynamic_update_slice_in_dim(leaf, row, child, axis=0)

    return jax.tree.map(copy, tree)


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
