"""Optimiser steps with traced rates: Adam with the learning rate as an argument, and Polyak averaging."""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rookery import hyperparams
from rookery.hyperparams import Field, LogUniform, OneMinusLog
from rookery.types import PyTree, Scalar


class AdamHyper(NamedTuple):
    """Constants of Adam, which are hyper-parameters of a member if they are chosen; see `adam`."""

    adam_b1: Annotated[
        Scalar, Field("decay of Adam's mean of gradients", OneMinusLog(0.5, 0.99), high=0.999999, evolves=False)
    ] = 0.9
    adam_b2: Annotated[
        Scalar, Field("decay of Adam's mean of squares", OneMinusLog(0.9, 0.9999), high=0.999999, evolves=False)
    ] = 0.999
    adam_epsilon: Annotated[
        Scalar, Field("what Adam adds to the root of the mean of squares", LogUniform(1e-9, 1e-3), evolves=False)
    ] = 1e-8
    weight_decay: Annotated[
        Scalar,
        Field(
            "part of a parameter that a step removes, times the rate", LogUniform(1e-6, 1e-1), zero=True, evolves=False
        ),
    ] = 0.0


ADAM = hyperparams.declared(AdamHyper)
"""Optional hyper-parameters of every agent that learns with `adam`."""


class Learned(NamedTuple):
    """Parameters and the state of their optimiser."""

    params: PyTree
    moments: optax.OptState


def start(params: PyTree) -> Learned:
    """Return the parameters with freshly initialised Adam moments."""
    return Learned(params, optax.scale_by_adam().init(params))


def adam(
    learned: Learned,
    gradients: PyTree,
    learning_rate: Scalar,
    epsilon: float = 1e-8,
    hyper: object = None,
    rectified: bool = False,
) -> Learned:
    """Apply one Adam step (Kingma 2015, arXiv:1412.6980); bit-equal to `optax.adam`, with weight decay to
    `optax.adamw` (Loshchilov 2019, arXiv:1711.05101), rectified to `optax.radam` (Liu 2020, arXiv:1908.03265).

    Args:
      learned: parameters and moments.
      gradients: of the parameters.
      learning_rate: `[]`.
      epsilon: Adam's, if `hyper` has none.
      hyper: a member's hyper-parameters, which may have fields of `AdamHyper`.
      rectified: correct the rate for the variance of the first steps (RAdam).
    """
    b1, b2 = getattr(hyper, "adam_b1", 0.9), getattr(hyper, "adam_b2", 0.999)
    with jax.numpy_dtype_promotion("standard"):  # optax computes float ** integer step count
        scale = optax.scale_by_radam if rectified else optax.scale_by_adam
        transform = scale(b1, b2, getattr(hyper, "adam_epsilon", epsilon))
        updates, moments = transform.update(gradients, learned.moments)
    if (decay := getattr(hyper, "weight_decay", None)) is not None:
        updates = jax.tree.map(lambda param, update: update + decay * param, learned.params, updates)
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
