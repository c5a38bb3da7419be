"""Distributions as pure functions of their parameters; noise is an argument, so that it can be drawn ahead.

Parameters are what a network's last layer gives: `[..., 2 A]` for the (tanh-)normal, mean first; `[..., S]` for a
direction in S dimensions.
"""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from rookery.types import Array

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # Haarnoja 2018, the authors' code


def normal_parameters(outputs: Array) -> tuple[Array, Array]:
    """Split `[..., 2 A]` into mean and log standard deviation, `[..., A]` each, the latter clipped to [-20, 2]."""
    mean, log_std = jnp.split(outputs, 2, axis=-1)
    return mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)


@jax.custom_vjp
def bounded_log_std(log_std: Array) -> Array:
    """A learned log standard deviation `[A]` within [-20, 2], with a gradient that leads back from beyond.

    The gradient of a clip is 0 beyond its bounds, so that a parameter that a step of Adam takes there never returns.
    Here a parameter beyond a bound has the gradient at the bound where a descent along it leads back, none where it
    leads further out, and how far beyond it is besides: the gradient of half the squared distance.
    """
    return jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)


def _bound(log_std: Array) -> tuple[Array, Array]:
    bounded = bounded_log_std(log_std)
    return bounded, log_std - bounded


def _lead_back(beyond: Array, gradient: Array) -> tuple[Array]:
    outwards = beyond * gradient < 0.0
    return (jnp.where(outwards, 0.0, gradient) + beyond,)


bounded_log_std.defvjp(_bound, _lead_back)


def normal_log_prob(outputs: Array, value: Array, exists: Array | None = None) -> Array:
    """Log density of a diagonal normal at `value` `[..., A]`; `[...]`, in nats.

    Args:
      outputs: `[..., 2 A]`, the log standard deviation as it is: `bounded_log_std` bounds one that is learned.
      value: `[..., A]`.
      exists: `[..., A]` bool, the dimensions that there are; all by default.
    """
    mean, log_std = jnp.split(outputs, 2, axis=-1)
    return _standard_log_density((value - mean) * jnp.exp(-log_std), log_std, exists)


def normal_entropy(outputs: Array, exists: Array | None = None) -> Array:
    """Entropy of a diagonal normal, of the dimensions that exist; `[...]`, in nats."""
    _, log_std = jnp.split(outputs, 2, axis=-1)
    return jnp.sum(log_std + 0.5 * math.log(2 * math.pi * math.e), axis=-1, where=exists)


def tanh_normal_sample(outputs: Array, noise: Array) -> tuple[Array, Array]:
    """A reparametrised draw from a normal squashed by tanh, and its log density.

    Args:
      outputs: `[..., 2 A]`.
      noise: `[..., A]`, standard normal.

    Returns:
      Action `[..., A]` in [-1, 1] and log density `[...]` in nats (Haarnoja 2018, arXiv:1812.05905, Eq. 26), with
      log(1 - tanh(u)^2) in the form that does not overflow: 2 (log 2 - u - softplus(-2 u)).
    """
    mean, log_std = normal_parameters(outputs)
    chex.assert_equal_shape([mean, noise])
    unsquashed = mean + jnp.exp(log_std) * noise
    squash = 2.0 * (math.log(2.0) - unsquashed - jax.nn.softplus(-2.0 * unsquashed))
    return jnp.tanh(unsquashed), _standard_log_density(noise, log_std) - jnp.sum(squash, axis=-1)


def tanh_normal_mode(outputs: Array) -> Array:
    """The squashed mean, `[..., A]` in [-1, 1]: the action for evaluation."""
    return jnp.tanh(normal_parameters(outputs)[0])


def masked_logits(logits: Array, exists: Array) -> Array:
    """Logits `[..., A]` of a categorical that never gives an action that does not exist (`[..., A]` bool)."""
    return jnp.where(exists, logits, _NEVER)


_NEVER = -1e9  # finite, so that a probability of 0 times its logarithm is 0


def categorical_log_prob(logits: Array, value: Array) -> Array:
    """Log probability of `value` `[...]` int32 under `logits` `[..., A]`; `[...]`, in nats."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), value[..., None], axis=-1)[..., 0]


def categorical_entropy(logits: Array) -> Array:
    """Entropy of `logits` `[..., A]`; `[...]`, in nats."""
    log_probs = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


GREATEST_CONCENTRATION = 50.0  # of a direction; a mean resultant length of 0.99 on a circle
_NODES = 64  # of the quadrature, exact to float32 up to that concentration


def direction_log_ratio(outputs: Array, value: Array) -> Array:
    """Log density of a von Mises-Fisher distribution over the unit sphere, relative to that of the uniform one.

    Args:
      outputs: `[..., S]`, S at least 2: the mean direction times the concentration; what is longer than 50 counts as
        50, and 0 is the uniform distribution itself.
      value: `[..., S]`, of length 1.

    Returns:
      `[...]`, in nats: `outputs value - A`, where A is the logarithm of the mean of `exp(outputs u)` over all u of the
      sphere (Mardia and Jupp 2000, section 9.3.2), by Gauss's quadrature in the cosine between the two.
    """
    length = jnp.sqrt(jnp.sum(jnp.square(outputs), axis=-1, keepdims=True) + 1e-12)  # 0 has a gradient, too
    concentration = jnp.minimum(length, GREATEST_CONCENTRATION)
    cosines, log_weights = (jnp.asarray(side, jnp.float32) for side in _quadrature(outputs.shape[-1]))
    shape = (1,) * (outputs.ndim - 1) + (-1,)
    log_mean = jax.nn.logsumexp(concentration * cosines.reshape(shape) + log_weights.reshape(shape), axis=-1)
    return jnp.sum(outputs * (concentration / length) * value, axis=-1) - log_mean


def direction_log_area(size: int) -> float:
    """Log area of the unit sphere in S dimensions, which is minus the log density of its uniform distribution."""
    return math.log(2.0) + 0.5 * size * math.log(math.pi) - math.lgamma(0.5 * size)


@functools.cache
def _quadrature(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and log weights of a mean over the sphere in `size` dimensions: the weights' density is
    `(1 - cosine^2)^((size - 3) / 2)`."""
    cosines, weights = scipy.special.roots_gegenbauer(_NODES, 0.5 * size - 1.0)
    return cosines, np.log(weights / weights.sum())


def _standard_log_density(noise: Array, log_std: Array, exists: Array | None = None) -> Array:
    return jnp.sum(-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi), axis=-1, where=exists)
