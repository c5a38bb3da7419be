"""Ensembles: several networks of one kind, as a tuple or in one batched network; twins are two."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.networks.base import ApplyFn, Network
from rookery.types import Array, Key, Observation, PyTree


def twin(network: Network, count: int = 2) -> Network:
    """Combine independently initialised copies of a network, two or `count` of them: `[..., 1] -> [..., count]`.

    Its parameters are a tuple, whose matrix products are separate, or `Stacked`, with batched products: see
    `stack_twins`.
    """
    return Network(partial(_twin_init, network, count), partial(_twin_apply, network))


def first_twin(network: Network) -> ApplyFn:
    """Return the forward pass of the first twin alone: parameters of `twin(network)`, inputs -> `[..., 1]`.

    Slicing the output of all twins would cost all: XLA still computes the matrix products of the others.
    """
    return partial(_first_apply, network)


def smaller_twin(network: Network) -> ApplyFn:
    """Return the smallest output of the twins: parameters of `twin(network)`, inputs -> `[..., 1]`."""
    return partial(_reduced_apply, network, jnp.min)


def mean_twin(network: Network) -> ApplyFn:
    """Return the mean output of the twins: parameters of `twin(network)`, inputs -> `[..., 1]`."""
    return partial(_reduced_apply, network, jnp.mean)


class Stacked(NamedTuple):
    """Parameters of twin networks in one tree, so that one operation computes a layer of all."""

    all: PyTree
    """Leaves `[count, ...]`."""


def stack_twins(tree: PyTree) -> PyTree:
    """Stack the parameters of each `twin` in a tree, such as those in the state of its optimiser."""
    return jax.tree.map(lambda node: Stacked(trees.stack(node)) if _is_tuple(node) else node, tree, is_leaf=_is_tuple)


def separate_twins(tree: PyTree) -> PyTree:
    """The inverse of `stack_twins`."""
    return jax.tree.map(
        lambda node: (
            tuple(trees.take(node.all, index) for index in range(_count(node))) if isinstance(node, Stacked) else node
        ),
        tree,
        is_leaf=lambda node: isinstance(node, Stacked),
    )


def _count(stacked: Stacked) -> int:
    return jax.tree.leaves(stacked.all)[0].shape[0]


def _is_tuple(node: PyTree) -> bool:
    return type(node) is tuple and len(node) > 1


def _twin_init(network: Network, count: int, key: Key) -> PyTree:
    stacked = jax.vmap(network.init)(jax.random.split(key, count))
    return tuple(trees.take(stacked, index) for index in range(count))


def _twin_apply(network: Network, params: PyTree, *inputs: Array | Observation) -> Array:
    if not isinstance(params, Stacked):
        return jnp.concatenate([network.apply(single, *inputs) for single in params], axis=-1)
    # A shared input has to be repeated: with an unmapped one, vmap's products transpose their results.
    repeated = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (_count(params), *leaf.shape)), inputs)
    return jnp.moveaxis(jax.vmap(network.apply)(params.all, *repeated)[..., 0], 0, -1)


def _reduced_apply(
    network: Network, reduce: Callable[..., Array], params: PyTree, *inputs: Array | Observation
) -> Array:
    return reduce(_twin_apply(network, params, *inputs), axis=-1, keepdims=True)


def _first_apply(network: Network, params: PyTree, *inputs: Array | Observation) -> Array:
    return network.apply(trees.take(params.all, 0) if isinstance(params, Stacked) else params[0], *inputs)
