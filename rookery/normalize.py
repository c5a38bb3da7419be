"""Running mean and variance of observations, means over masked rows, and spectral normalisation of kernels."""

from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rookery.features import as_floats
from rookery.types import Array, Key, PyTree


class RunningStatistics(NamedTuple):
    """Statistics of all rows processed so far (Chan 1979: parallel variance)."""

    count: Array  # pyright: ignore[reportIncompatibleMethodOverride]
    """`[]` float32, number of rows; it stays at 2^20 times those of an update, beyond which float32 loses their
    squares: then the oldest rows lose weight."""
    mean: Array
    """`[O]`."""
    squares: Array
    """`[O]`, sum of squared deviations from the mean."""


def init(size: int) -> RunningStatistics:
    """Return statistics of zero rows; normalising with them is the identity."""
    return RunningStatistics(jnp.zeros(()), jnp.zeros((size,)), jnp.zeros((size,)))


def update(statistics: RunningStatistics, rows: Array, counts: Array | bool = True) -> RunningStatistics:
    """Update with `rows` `[B, O]` where `counts` (`[B]` bool) is True; rows that are not finite are ignored.

    A number that is absurd beside those seen so far counts as one at the limit, see `_limit`: a few rows can neither
    overflow the squares nor hide a feature for the rest of a run, and a feature whose scale changes is followed within
    some updates. When the count has reached its limit the oldest rows lose weight.
    """
    chex.assert_shape(rows, (None, statistics.mean.shape[0]))
    # As in `normalize`: XLA would otherwise reshape the rows as it fuses them, and their sums are rounded differently.
    statistics, rows, counts = jax.lax.optimization_barrier((statistics, rows, counts))
    valid = counts & jnp.isfinite(rows).all(axis=1)
    rows = jnp.where(valid[:, None], jnp.clip(as_floats(rows), -_LARGEST, _LARGEST), 0.0)
    added = jnp.sum(valid.astype(jnp.float32))
    # The first rows themselves may be absurd: they are forgotten where that shows beside the rows that follow.
    absurd = jnp.abs(statistics.mean) > 100.0 * (1.0 + jnp.max(jnp.abs(rows), axis=0))
    kept = ~(absurd & (added > 0) & (statistics.count <= 8.0 * added))
    seen = jnp.where(kept, statistics.count, 0.0)
    mean, squares = jnp.where(kept, statistics.mean, 0.0), jnp.where(kept, statistics.squares, 0.0)

    distance = jnp.where(valid[:, None], jnp.abs(rows - mean[None]), jnp.inf)
    limit = _limit(seen, mean, squares, distance, added)
    rows = jnp.where(valid[:, None], jnp.clip(rows, (mean - limit)[None], (mean + limit)[None]), 0.0)
    count = jnp.maximum(seen + added, 1.0)
    batch_mean = jnp.sum(rows, axis=0) / jnp.maximum(added, 1.0)
    batch_squares = jnp.sum(jnp.where(valid[:, None], (rows - batch_mean[None]) ** 2, 0.0), axis=0)
    delta = batch_mean - mean
    between = delta**2 * (seen * added / count)
    total = jnp.minimum(statistics.count + added, _MOST_UPDATES * rows.shape[0])
    return RunningStatistics(
        count=total,
        mean=mean + delta * (added / count),
        squares=(squares + batch_squares + between) * (total / jnp.maximum(seen + added, 1.0)),
    )


_MOST_UPDATES = 2.0**20
_LARGEST = 1e12  # its square, times the largest count, is a float32


def _limit(seen: Array, mean: Array, squares: Array, distance: Array, added: Array) -> Array:
    """The largest distance from the mean that counts, `[O]`, given that of the new rows, `[B, O]`, inf where masked.

    It is the usual distance times the root of the number of rows, with 100 more, at most times 32, and at least 10:
    after those 100, one row about doubles the variance at most. Beyond 32 standard deviations are less than a
    thousandth of the numbers of any feature (Chebyshev), and rarer absurd ones add less than the rows between them
    dilute, so that their number does not matter. The usual distance is the largest of three: the standard deviation so
    far, with one row more at distance 10, so that a constant feature can change; the harmonic mean of the new
    distances, after the first update with one more of 0: rows that agree on a new scale raise it, and single absurd
    ones do not; and a distance that float32 resolves beside the mean.
    """
    so_far = jnp.sqrt((squares + 100.0) / (seen + 1.0))
    one = jnp.minimum(seen, 1.0)
    harmonic = (added + one) / jnp.maximum(one + jnp.sum(1.0 / (1.0 + distance), axis=0), _SMALL) - 1.0
    usual = jnp.maximum(jnp.maximum(so_far, harmonic), 2.0**-20 * jnp.abs(mean))
    return jnp.maximum(jnp.minimum(jnp.sqrt(seen + added + 100.0), 32.0) * usual, 10.0)


def mean_of(counts: Array, values: Array) -> Array:
    """Mean of `values` where `counts` is True (equal shapes); `[]`, 0 if `counts` is False everywhere."""
    return jnp.sum(jnp.where(counts, values, 0.0)) / jnp.maximum(jnp.sum(counts.astype(jnp.float32)), 1.0)


LIMIT = 10.0
"""Default clipping limit: normalised observations are in [-10, 10], as in CleanRL and Stable-Baselines3."""


def normalize(statistics: RunningStatistics, observation: Array, limit: float = LIMIT) -> Array:
    """Return `(observation - mean) / std` clipped to +-`limit`, `[..., O]`; the identity for fewer than two rows."""
    # The barrier stops XLA from fusing this with preceding operations, so that every device layout gives equal bits.
    statistics, observation = jax.lax.optimization_barrier((statistics, observation))
    observation = as_floats(observation)
    initialized, shape = statistics.count > 1.0, (1,) * (observation.ndim - 1) + (-1,)
    mean = jnp.where(initialized, statistics.mean, 0.0).reshape(shape)
    bound = jnp.where(initialized, limit, jnp.inf)
    return jnp.clip((observation - mean) / deviation(statistics).reshape(shape), -bound, bound)


def deviation(statistics: RunningStatistics) -> Array:
    """Standard deviation that observations are divided by, `[O]`; 1 for fewer than two rows."""
    variance = statistics.squares / jnp.maximum(statistics.count, 1.0)
    return jnp.where(statistics.count > 1.0, jnp.sqrt(jnp.maximum(variance, 1e-8)), 1.0)


_SMALL = 1e-12


def start_vectors(params: PyTree, key: Key) -> tuple[Array, ...]:
    """Random vectors of length 1, `[O]` for each kernel `[I, O]` of a network; the key is consumed."""
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 2]
    keys = jax.random.split(key, len(kernels))
    return tuple(_unit(jax.random.normal(k, kernel.shape[1:])) for k, kernel in zip(keys, kernels, strict=True))


def normalize_kernels(
    params: PyTree, vectors: tuple[Array, ...], iterations: int = 1
) -> tuple[PyTree, tuple[Array, ...]]:
    """Divide each kernel of a network by its largest singular value, which makes a ReLU network 1-Lipschitz.

    Source: Miyato 2018, "Spectral Normalization for Generative Adversarial Networks" (arXiv:1802.05957).

    Args:
      params: parameters of the network; biases are unchanged.
      vectors: estimates of the leading right singular vectors, from `start_vectors` or the last call.
      iterations: power iterations (Miyato 2018, Algorithm 1), at least 1; one suffices where the kernels have changed
        little since the last call.

    Returns:
      The parameters with normalised kernels, and the new vectors. Gradients pass through the kernels only.
    """
    leaves, structure = jax.tree.flatten(params)
    remaining, normalized, moved = list(vectors), [], []
    for leaf in leaves:
        if leaf.ndim == 2:
            left, vector = _iterate(jax.lax.stop_gradient(leaf), remaining.pop(0), iterations)
            moved.append(vector)
            leaf = leaf / jnp.maximum(_product(left, _product(leaf, vector)), _SMALL)  # noqa: PLW2901
        normalized.append(leaf)
    return jax.tree.unflatten(structure, normalized), tuple(moved)


def _iterate(kernel: Array, vector: Array, iterations: int) -> tuple[Array, Array]:
    """The leading left and right singular vectors after some power iterations."""
    for _ in range(iterations):
        vector = _unit(_product(_unit(_product(kernel, vector)), kernel))
    return _unit(_product(kernel, vector)), vector


_product = partial(jnp.matmul, precision="highest")


def _unit(vector: Array) -> Array:
    return vector / jnp.sqrt(jnp.sum(jnp.square(vector)) + _SMALL)
