"""Steps of learning whose rates are traced: Adam with the learning rate as an argument, and Polyak averages."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from rookery.types import PyTree, Scalar


class Learned(NamedTuple):
    """Parameters beside their optimiser's state."""

    params: PyTree
    moments: optax.OptState


def start(params: PyTree) -> Learned:
    """Parameters with fresh Adam moments."""
    return Learned(params, optax.scale_by_adam().init(params))


def adam(learned: Learned, gradients: PyTree, learning_rate: Scalar, epsilon: float = 1e-8) -> Learned:
    """One Adam step (Kingma 2015, arXiv:1412.6980); `learning_rate` is a `[]` leaf, bit-equal to `optax.adam`."""
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer count
        updates, moments = optax.scale_by_adam(eps=epsilon).update(gradients, learned.moments)
    params = jax.tree.map(lambda param, update: param - learning_rate * update, learned.params, updates)
    return Learned(params, moments)


def clip_norm(gradients: PyTree, limit: Scalar) -> PyTree:
    """The gradients, made shorter where their global norm is above `limit` (`[]`, above 0)."""
    norm = optax.tree.norm(gradients)
    scale = limit / jnp.maximum(norm, limit)
    return jax.tree.map(lambda gradient: gradient * scale, gradients)


def polyak(target: PyTree, params: PyTree, tau: Scalar) -> PyTree:
    """`target + tau (params - target)`, leaf by leaf; `tau` `[]` in [0, 1]."""
    return jax.tree.map(lambda old, new: old + tau * (new - old), target, params)
