"""Variation: create a child genotype from two parents."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rookery.settings import Within, check_fields
from rookery.types import Array, Genotype, Key, PyTree, Scalar

_Tree = TypeVar("_Tree")


@dataclass(frozen=True)
class VariationConfig:
    """Configuration of the iso+line operator.

    Raises:
      ValueError: a negative standard deviation.
    """

    iso_sigma: Annotated[float, Within(0)] = 0.005
    """Standard deviation of the Gaussian noise added to every parameter of a child; whole numbers need a larger one,
    such as 0.5."""
    line_sigma: Annotated[float, Within(0)] = 0.05
    """Standard deviation of the step along the line between the parents, in units of their distance."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)


class Sigmas(NamedTuple):
    """The numbers of a `VariationConfig`, possibly traced."""

    iso_sigma: Scalar
    line_sigma: Scalar


def iso_line(first: _Tree, second: _Tree, key: Key, config: VariationConfig | Sigmas) -> _Tree:
    """`x1 + iso_sigma N(0, I) + line_sigma N(0, 1) (x2 - x1)` over all parameters of one pair of parents.

    Source: Vassiliades 2018, "Discovering the Elite Hypervolume by Leveraging Interspecies Correlation"
    (arXiv:1804.03906), Eq. 1. The step along the line is one number for the whole tree.

    Args:
      first: x1, a tree of floating-point and whole numbers and truth values. The change of the last two is rounded at
        random to one of the whole numbers around it, so that it is right in the mean; a number that would leave the
        range of its type remains that of x1.
      second: x2, a tree of the same structure.
      key: consumed.
      config: the standard deviations.

    Returns:
      The child, a tree of the same structure.

    Raises:
      TypeError: a leaf is of another type, such as a random key.
    """
    noise_key, round_key = jax.random.split(key)
    leaves, structure = jax.tree.flatten(first)
    # One draw for all leaves: each separate one would add a hundred instructions to the compiled program.
    ends = np.cumsum([1, *(leaf.size for leaf in leaves)])
    line, *noises = jnp.split(jax.random.normal(noise_key, (ends[-1],)), ends[:-1])
    thresholds = jnp.split(jax.random.uniform(round_key, (ends[-1],)), ends[:-1])[1:]
    rows = zip(leaves, jax.tree.leaves(second), noises, thresholds, strict=True)
    step, sigma = config.line_sigma * line[0], config.iso_sigma
    children = [_vary(a, b, step, sigma * c.reshape(a.shape), d.reshape(a.shape)) for a, b, c, d in rows]
    return jax.tree.unflatten(structure, children)


def _vary(first: Array, second: Array, step: Array, noise: Array, threshold: Array) -> Array:
    if jnp.issubdtype(first.dtype, jnp.floating):
        return first + noise.astype(first.dtype) + step.astype(first.dtype) * (second - first)
    if first.dtype != bool and not jnp.issubdtype(first.dtype, jnp.integer):
        raise TypeError(
            f"iso_line varies floating-point numbers, whole numbers and truth values, but the genotype has a leaf of "
            f"type {first.dtype}; leave it out of the genotype."
        )
    start, end = first.astype(jnp.float32), second.astype(jnp.float32)
    change = noise + step * (end - start)
    change = jnp.floor(change + threshold)
    if first.dtype == bool:
        return start + change > 0.5
    limits = jnp.iinfo(first.dtype)
    margin = 0 if limits.bits <= 16 else limits.max // 2**24  # so that float32 has both ends
    least = float(limits.min + margin * (limits.min < 0))
    inside = (start + change >= least) & (start + change <= float(limits.max - margin))
    size = jnp.abs(change).astype(jnp.uint32).astype(first.dtype)  # of a change that int32 may not have
    return jnp.where(inside, jnp.where(change < 0, first - size, first + size), first)


def child(first: _Tree, second: PyTree, key: Key, config: VariationConfig) -> _Tree:
    """Create one child by iso+line; hyper-parameters and observation statistics are copied from the first parent.

    Args:
      first: a `Genotype`, of which only the parameters vary, or any other tree, of which all leaves vary, see
        `iso_line`.
      second: a genotype of the same structure.
      key: consumed.
      config: the standard deviations.

    Returns:
      The child, of the same structure.
    """
    if isinstance(first, Genotype):
        return first._replace(params=iso_line(first.params, second.params, key, config))
    return iso_line(first, second, key, config)
