"""CMA-ES: a normal distribution that is adapted to the best of its samples, with full or diagonal covariance.

Sources: Hansen 2016, "The CMA Evolution Strategy: A Tutorial" (arXiv:1604.00772), figure 6 with positive weights; for
the diagonal, Ros 2008, "A Simple Modification in CMA-ES Achieving Linear Time and Space Complexity". All functions are
for one distribution.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery.types import Array, Key

_LARGEST_CONDITION = 1e7  # of the covariance, beyond which float32 cannot represent it
_SMALLEST_WIDTH = 1e-11  # of the distribution, in units of its first one
_ITERATIONS = 30  # of the square root: enough for the largest condition number before a restart


class CmaState(NamedTuple):
    """A normal distribution over vectors of size n, with covariance `sigma^2 C`."""

    mean: Array
    """`[n]`."""
    sigma: Array
    """`[]`, the step size."""
    covariance: Array
    """`[n, n]`, C; `[n]` if it is diagonal."""
    path: Array
    """`[n]`, the evolution path of the covariance."""
    sigma_path: Array
    """`[n]`, the evolution path of the step size."""
    root: Array
    """The square root of C, of its shape."""
    inverse_root: Array
    """The inverse of `root`."""
    updates: Array
    """`[]` int32, number of updates."""


class Rates(NamedTuple):
    """The weights and learning rates for a number of parents (Hansen 2016, table 1), `[]` each but the first."""

    weights: Array
    """`[B]`, of the samples from the best to the worst; 0 for those that are no parents."""
    effective: Array
    """The variance-effective number of parents."""
    path: Array
    sigma_path: Array
    damping: Array
    rank_one: Array
    rank_mu: Array


def start(mean: Array, sigma: float, diagonal: bool = False) -> CmaState:
    """An isotropic distribution.

    Args:
      mean: `[n]`.
      sigma: the standard deviation.
      diagonal: keep only the diagonal of the covariance.
    """
    zeros = jnp.zeros_like(mean)
    identity = jnp.ones_like(mean) if diagonal else jnp.eye(mean.shape[0], dtype=mean.dtype)
    count = jnp.zeros((), jnp.int32)
    return CmaState(mean, jnp.full((), sigma, mean.dtype), identity, zeros, zeros, identity, identity, count)


def sample(state: CmaState, key: Key, count: int) -> Array:
    """Draw `count` vectors, `[count, n]`; the key is consumed."""
    normal = jax.random.normal(key, (count, state.mean.shape[0]), state.mean.dtype)
    return state.mean[None] + state.sigma * _times(state.root, normal)


def _times(matrix: Array, rows: Array) -> Array:
    """The product of a symmetric or diagonal matrix with each row."""
    return matrix[None] * rows if matrix.ndim == 1 else jnp.matmul(rows, matrix, precision="highest")


def rates(parents: Array, batch_size: int, size: int, diagonal: bool = False) -> Rates:
    """Weights and learning rates.

    Args:
      parents: `[]` int32, number of best samples that the distribution is adapted to; at least 1.
      batch_size: B.
      size: n.
      diagonal: the rates of a diagonal covariance, which learns (n + 2) / 3 times as fast.
    """
    number, n = jnp.maximum(parents, 1).astype(jnp.float32), float(size)
    place = jnp.arange(1.0, batch_size + 1.0)
    weights = jnp.where(place <= number, jnp.log(number + 0.5) - jnp.log(place), 0.0)
    weights = weights / jnp.sum(weights)
    effective = 1.0 / jnp.sum(jnp.square(weights))
    sigma_path = (effective + 2.0) / (n + effective + 5.0)
    damping = 1.0 + 2.0 * jnp.maximum(0.0, jnp.sqrt(jnp.maximum(effective - 1.0, 0.0) / (n + 1.0)) - 1.0) + sigma_path
    faster = (n + 2.0) / 3.0 if diagonal else 1.0
    rank_one = jnp.minimum(faster * 2.0 / ((n + 1.3) ** 2 + effective), 1.0)
    rank_mu = faster * 2.0 * (effective - 2.0 + 1.0 / effective) / ((n + 2.0) ** 2 + effective)
    path = (4.0 + effective / n) / (n + 4.0 + 2.0 * effective / n)
    return Rates(weights, effective, path, sigma_path, damping, rank_one, jnp.minimum(rank_mu, 1.0 - rank_one))


def update(state: CmaState, samples: Array, parents: Array) -> CmaState:
    """Adapt the distribution to its best samples (Hansen 2016, equations 41 to 47).

    Args:
      state: the distribution that the samples were drawn from.
      samples: `[B, n]`, from the best to the worst.
      parents: `[]` int32, the number of best samples to use; nothing changes if it is 0.
    """
    size, diagonal = state.mean.shape[0], state.covariance.ndim == 1
    rate = rates(parents, samples.shape[0], size, diagonal)
    steps = (samples - state.mean[None]) * (1.0 / state.sigma)
    step = jnp.sum(rate.weights[:, None] * steps, axis=0)
    whitened = _times(state.inverse_root, step[None])[0]
    sigma_path = (1.0 - rate.sigma_path) * state.sigma_path
    sigma_path = sigma_path + jnp.sqrt(rate.sigma_path * (2.0 - rate.sigma_path) * rate.effective) * whitened

    expected = math.sqrt(size) * (1.0 - 1.0 / (4.0 * size) + 1.0 / (21.0 * size**2))  # of the norm of N(0, I)
    length, updates = jnp.sqrt(jnp.sum(jnp.square(sigma_path))), state.updates + 1
    unbiased = length / jnp.sqrt(1.0 - (1.0 - rate.sigma_path) ** (2.0 * updates.astype(jnp.float32)))
    is_short = (unbiased < (1.4 + 2.0 / (size + 1.0)) * expected).astype(jnp.float32)  # else the path is stalled
    path = (1.0 - rate.path) * state.path
    path = path + is_short * jnp.sqrt(rate.path * (2.0 - rate.path) * rate.effective) * step

    lost = (1.0 - is_short) * rate.path * (2.0 - rate.path)  # variance of a stalled path
    kept = 1.0 - rate.rank_one * (1.0 - lost) - rate.rank_mu
    covariance = kept * state.covariance + rate.rank_one * _outer(path[None], path[None], diagonal)
    covariance = covariance + rate.rank_mu * _outer(rate.weights[:, None] * steps, steps, diagonal)
    covariance = covariance if diagonal else 0.5 * (covariance + covariance.T)
    root, inverse_root = roots(covariance)
    sigma = state.sigma * jnp.exp(jnp.minimum(rate.sigma_path / rate.damping * (length / expected - 1.0), 1.0))
    mean = state.mean + state.sigma * step
    changed = CmaState(mean, sigma, covariance, path, sigma_path, root, inverse_root, updates)
    return jax.tree.map(lambda new, old: jnp.where(parents > 0, new, old), changed, state)


def _outer(first: Array, second: Array, diagonal: bool) -> Array:
    """The sum of the outer products of rows `[B, n]`, or its diagonal."""
    return jnp.sum(first * second, axis=0) if diagonal else jnp.matmul(first.T, second, precision="highest")


def has_converged(state: CmaState, best: Array, worst: Array, sigma: float) -> Array:
    """Whether the distribution should restart, `[]` bool: it is too narrow beside the standard deviation `sigma` that
    it began with, ill-conditioned or not finite, or the best and the worst value of the generation are equal or neither
    is finite.

    Deviations: the values must be equal, not within 1e-12, since their unit may be small; the largest condition number
    (by Frobenius norms) is 1e7, what float32 can represent, not 1e14.
    """
    largest, smallest_inverse = _norm(state.root), _norm(state.inverse_root)
    ill = jnp.square(largest * smallest_inverse) > _LARGEST_CONDITION * state.mean.shape[0]
    finite = jnp.isfinite(largest) & jnp.isfinite(smallest_inverse) & jnp.isfinite(state.sigma)
    finite = finite & jnp.isfinite(state.mean).all()
    return ~finite | ill | (state.sigma * largest < _SMALLEST_WIDTH * sigma) | ~(best > worst)


def _norm(matrix: Array) -> Array:
    return jnp.sqrt(jnp.sum(jnp.square(matrix)))


def roots(covariance: Array) -> tuple[Array, Array]:
    """The square root of a positive definite matrix `[n, n]`, or of a diagonal `[n]`, and its inverse.

    By matrix products: LAPACK's factorisations occasionally hang where CPU cores are used as devices.
    Matrices are multiplied by scalars, not divided by them: XLA compiles a division in one of two ways, which round
    differently, and with another number of devices it may choose the other one.

    Source: Higham 2008, "Functions of Matrices", equation 6.35 (the coupled Newton-Schulz iteration).
    """
    if covariance.ndim == 1:
        root = jnp.sqrt(covariance)
        return root, 1.0 / root
    scale, identity = jnp.sqrt(jnp.sum(jnp.square(covariance))), jnp.eye(covariance.shape[0])

    def improve(_: int, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        root, inverse = pair
        factor = 1.5 * identity - 0.5 * jnp.matmul(inverse, root, precision="highest")
        return jnp.matmul(root, factor, precision="highest"), jnp.matmul(factor, inverse, precision="highest")

    root, inverse = jax.lax.fori_loop(0, _ITERATIONS, improve, (covariance * (1.0 / scale), identity))
    root, inverse = 0.5 * (root + root.T), 0.5 * (inverse + inverse.T)
    return root * jnp.sqrt(scale), inverse * (jnp.sqrt(scale) / scale)
