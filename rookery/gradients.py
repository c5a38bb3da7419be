"""Optimiser steps with traced rates: Adam with the learning rate as an argument, and Polyak averaging."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from rookery.types import PyTree, Scalar


class Learned(NamedTuple):
    """Parameters and the state of their optimiser."""

    params: PyTree
    moments: optax.OptState


def start(params: PyTree) -> Learned:
    """Return the parameters with freshly initialised Adam moments."""
    return Learned(params, optax.scale_by_adam().init(params))


def adam(learned: Learned, gradients: PyTree, learning_rate: Scalar, epsilon: float = 1e-8) -> Learned:
    """Apply one Adam step (Kingma 2015, arXiv:1412.6980) with learning rate `[]`; bit-equal to `optax.adam`."""
    with jax.numpy_dtype_promotion("standard"):  # optax computes float ** integer step count
        updates, moments = optax.scale_by_adam(eps=epsilon).update(gradients, learned.moments)
    params = jax.tree.map(lambda param, update: param - learning_rate * update, learned.params, updates)
    return Learned(params, moments)


def clip_norm(gradients: PyTree, limit: Scalar) -> PyTree:
    """Scale the gradients down so that their global norm is at most `limit` (`[]`, above 0)."""
    norm = optax.tree.norm(gradients)
    scale = limit / jnp.maximum(norm, limit)
    return jax.tree.map(lambda gradient: gradient * scale, gradients)


def polyak(target: PyTree, params: PyTree, tau: Scalar) -> PyTree:
    """Return `target + tau (params - target)` for every leaf; `tau` is `[]` in [0, 1]."""
    return jax.tree.map(lambda old, new: old + tau * (new - old), target, params)
