"""Distributions as pure functions of their parameters; noise is an argument, so that callers can draw it ahead.

The parameters are the outputs of a network's last layer: `[..., 2 A]` for the normal and the tanh-normal, with the mean
first; `[..., S]` for a direction in S dimensions.
"""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import Array

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # Haarnoja 2018, the authors' code


def normal_parameters(outputs: Array) -> tuple[Array, Array]:
    """Split `[..., 2 A]` into the mean and the log standard deviation clipped to [-20, 2], `[..., A]` each."""
    mean, log_std = jnp.split(outputs, 2, axis=-1)
    return mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)


@jax.custom_vjp
def bounded_log_std(log_std: Array) -> Array:
    """Clip a learned log standard deviation `[A]` to [-20, 2], with a gradient that restores values out of range.

    The gradient of a plain clip is 0 outside the bounds, so a parameter that one Adam step moves outside would never
    return. Here a parameter outside keeps the gradient at the bound if descent along it moves the parameter towards the
    bound, and 0 if not; added to either is the signed distance to the bound, the gradient of half the squared distance.
    """
    return jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX)


def _bounded_log_std_forward(log_std: Array) -> tuple[Array, Array]:
    bounded = bounded_log_std(log_std)
    return bounded, log_std - bounded


def _bounded_log_std_backward(excess: Array, gradient: Array) -> tuple[Array]:
    outwards = excess * gradient < 0.0
    return (jnp.where(outwards, 0.0, gradient) + excess,)


bounded_log_std.defvjp(_bounded_log_std_forward, _bounded_log_std_backward)


def normal_log_prob(outputs: Array, value: Array, exists: Array | None = None) -> Array:
    """Log density of a diagonal normal at `value` `[..., A]`; `[...]`, in nats.

    Args:
      outputs: `[..., 2 A]`; the log standard deviation is used unclipped (`bounded_log_std` bounds a learned one).
      value: `[..., A]`.
      exists: `[..., A]` bool, mask of the dimensions that exist; all dimensions by default.
    """
    mean, log_std = jnp.split(outputs, 2, axis=-1)
    return _standard_log_density((value - mean) * jnp.exp(-log_std), log_std, exists)


def normal_entropy(outputs: Array, exists: Array | None = None) -> Array:
    """Entropy of a diagonal normal over the dimensions where `exists` is True; `[...]`, in nats."""
    _, log_std = jnp.split(outputs, 2, axis=-1)
    return jnp.sum(log_std + 0.5 * math.log(2 * math.pi * math.e), axis=-1, where=exists)


def tanh_normal_sample(outputs: Array, noise: Array) -> tuple[Array, Array]:
    """Draw a reparametrised sample of a tanh-squashed normal, with its log density.

    Args:
      outputs: `[..., 2 A]`.
      noise: `[..., A]`, standard normal.

    Returns:
      Action `[..., A]` in [-1, 1] and log density `[...]` in nats (Haarnoja 2018, arXiv:1812.05905, Eq. 26); log(1 -
      tanh(u)^2) is computed as 2 (log 2 - u - softplus(-2 u)), which does not overflow.
    """
    mean, log_std = normal_parameters(outputs)
    chex.assert_equal_shape([mean, noise])
    unsquashed = mean + jnp.exp(log_std) * noise
    squash = 2.0 * (math.log(2.0) - unsquashed - jax.nn.softplus(-2.0 * unsquashed))
    return jnp.tanh(unsquashed), _standard_log_density(noise, log_std) - jnp.sum(squash, axis=-1)


def tanh_normal_mode(outputs: Array) -> Array:
    """Return the squashed mean, `[..., A]` in [-1, 1]: the deterministic action for evaluation."""
    return jnp.tanh(normal_parameters(outputs)[0])


def masked_logits(logits: Array, exists: Array) -> Array:
    """Logits `[..., A]` of a categorical that never draws an action for which `exists` `[..., A]` is False."""
    return jnp.where(exists, logits, _MASKED_LOGIT)


_MASKED_LOGIT = -1e9  # finite, so that a probability of 0 times its logarithm is 0


def by_part(logits: Array, categories: tuple[int, ...]) -> Array:
    """Logits `[..., A]` of the parts of an action one after another as `[..., K, M]`: a categorical for each part.

    Args:
      logits: `[..., A]`.
      categories: number of categories of each part, their sum is A; of the M = `max(categories)` logits of a part those
        that do not exist are never drawn. (): the action is one index, and the logits are returned as they are.
    """
    if not categories:
        return logits
    ends = np.cumsum(categories)[:-1].tolist()
    missing = [(0, 0)] * (logits.ndim - 1)
    return jnp.stack(
        [
            jnp.pad(part, [*missing, (0, max(categories) - part.shape[-1])], constant_values=_MASKED_LOGIT)
            for part in jnp.split(logits, ends, axis=-1)
        ],
        axis=-2,
    )


def categorical_log_prob(logits: Array, value: Array) -> Array:
    """Log probability of `value` `[...]` int32 under `logits` `[..., A]`; `[...]`, in nats."""
    chosen = jax.nn.one_hot(value, logits.shape[-1], dtype=bool)  # a gather has a scatter as gradient, slow on a CPU
    return jnp.sum(jax.nn.log_softmax(logits), axis=-1, where=chosen)


def categorical_entropy(logits: Array) -> Array:
    """Entropy of `logits` `[..., A]`; `[...]`, in nats."""
    log_probs = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


GREATEST_CONCENTRATION = 50.0  # of a direction; on a circle its mean resultant length is 0.99
_NODES = 64  # quadrature nodes; exact to float32 up to GREATEST_CONCENTRATION


def direction_log_ratio(outputs: Array, value: Array) -> Array:
    """Log density of a von Mises-Fisher distribution on the unit sphere, relative to the uniform distribution.

    Args:
      outputs: `[..., S]`, S at least 2: the mean direction times the concentration. A length above 50 is treated as 50;
        length 0 gives the uniform distribution.
      value: `[..., S]`, of length 1.

    Returns:
      `[...]`, in nats: `outputs value - A`, where A is the log of the mean of `exp(outputs u)` over all u on the sphere
      (Mardia and Jupp 2000, section 9.3.2), by Gauss quadrature in the cosine between `outputs` and u.
    """
    length = jnp.sqrt(jnp.sum(jnp.square(outputs), axis=-1, keepdims=True) + 1e-12)  # finite gradient at 0
    concentration = jnp.minimum(length, GREATEST_CONCENTRATION)
    cosines, log_weights = (jnp.asarray(side, jnp.float32) for side in _quadrature(outputs.shape[-1]))
    shape = (1,) * (outputs.ndim - 1) + (-1,)
    log_mean = jax.nn.logsumexp(concentration * cosines.reshape(shape) + log_weights.reshape(shape), axis=-1)
    return jnp.sum(outputs * (concentration / length) * value, axis=-1) - log_mean


def direction_log_area(size: int) -> float:
    """Log area of the unit sphere in S dimensions: minus the log density of its uniform distribution."""
    return math.log(2.0) + 0.5 * size * math.log(math.pi) - math.lgamma(0.5 * size)


@functools.cache
def _quadrature(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and log weights for a mean over the sphere in `size` dimensions; the weight density is `(1 -
    cosine^2)^((size - 3) / 2)`."""
    import scipy.special  # slow to import, and only some skills need it

    cosines, weights = scipy.special.roots_gegenbauer(_NODES, 0.5 * size - 1.0)
    return cosines, np.log(weights / weights.sum())


def _standard_log_density(noise: Array, log_std: Array, exists: Array | None = None) -> Array:
    return jnp.sum(-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi), axis=-1, where=exists)
