"""Twin networks: two networks of one kind, as a pair or in one batched network."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.networks.base import ApplyFn, Network
from rookery.types import Array, Key, Observation, PyTree


def twin(network: Network) -> Network:
    """Combine two independently initialised copies of a network: `[..., 1] -> [..., 2]`.

    Its parameters are a pair, whose matrix products are separate, or `Stacked`, with batched products: see
    `stack_twins`.
    """
    return Network(partial(_twin_init, network), partial(_twin_apply, network))


def first_twin(network: Network) -> ApplyFn:
    """Return the forward pass of the first twin alone: parameters of `twin(network)`, inputs -> `[..., 1]`.

    Slicing the output of both twins would cost both: XLA still computes the matrix products of the second.
    """
    return partial(_first_apply, network)


def smaller_twin(network: Network) -> ApplyFn:
    """Return the smaller output of both twins: parameters of `twin(network)`, inputs -> `[..., 1]`."""
    return partial(_smaller_apply, network)


class Stacked(NamedTuple):
    """Parameters of twin networks in one tree, so that one operation computes a layer of both."""

    both: PyTree
    """Leaves `[2, ...]`."""


def stack_twins(tree: PyTree) -> PyTree:
    """Stack the parameters of each `twin` in a tree, such as those in the state of its optimiser."""
    return jax.tree.map(lambda node: Stacked(trees.stack(node)) if _is_pair(node) else node, tree, is_leaf=_is_pair)


def separate_twins(tree: PyTree) -> PyTree:
    """The inverse of `stack_twins`."""
    return jax.tree.map(
        lambda node: (trees.take(node.both, 0), trees.take(node.both, 1)) if isinstance(node, Stacked) else node,
        tree,
        is_leaf=lambda node: isinstance(node, Stacked),
    )


def _is_pair(node: PyTree) -> bool:
    return type(node) is tuple and len(node) == 2


def _twin_init(network: Network, key: Key) -> PyTree:
    first, second = jax.random.split(key)
    return network.init(first), network.init(second)


def _twin_apply(network: Network, params: PyTree, *inputs: Array | Observation) -> Array:
    if not isinstance(params, Stacked):
        return jnp.concatenate([network.apply(single, *inputs) for single in params], axis=-1)
    # A shared input has to be repeated: with an unmapped one, vmap's products transpose their results.
    repeated = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (2, *leaf.shape)), inputs)
    return jnp.moveaxis(jax.vmap(network.apply)(params.both, *repeated)[..., 0], 0, -1)


def _smaller_apply(network: Network, params: PyTree, *inputs: Array | Observation) -> Array:
    return jnp.min(_twin_apply(network, params, *inputs), axis=-1, keepdims=True)


def _first_apply(network: Network, params: PyTree, *inputs: Array | Observation) -> Array:
    return network.apply(trees.take(params.both, 0) if isinstance(params, Stacked) else params[0], *inputs)
