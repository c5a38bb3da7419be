"""Scoring functions for MAP-Elites: they map a vector to a fitness and a descriptor, without an episode."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery.envs import base
from rookery.envs.base import DescriptorSpec
from rookery.settings import check_counts, unknown_name
from rookery.types import Array, Key

EDGE = 5.12  # the usual search domain of the sphere and Rastrigin functions is [-5.12, 5.12]^n
SHIFT = 0.4 * EDGE  # each entry of the optimum of the sphere and Rastrigin functions


class Function(NamedTuple):
    """A scoring function, which MAP-Elites optimises without an environment."""

    name: str
    """Name of the function."""
    init: Callable[[Key], Array]
    """Draws an initial genotype, `[n]` float32; the key is consumed."""
    score: Callable[[Array], tuple[Array, Array]]
    """A genotype `[n]` -> its fitness `[]`, higher is better, and its descriptor `[D]`, both float32."""
    bounds: tuple[float, float] | None
    """Limits to which variation clips every entry; None: entries are unbounded."""
    descriptor: DescriptorSpec
    """Meaning and limits of the descriptor."""
    worst_fitness: float
    """Fitness that counts as 0 in a QD score."""
    size: int
    """n, the size of a genotype."""


def function(name: str, size: int | None = None) -> Function:
    """Build a scoring function.

    `arm`: a planar arm with n = 8 joints, as in Vassiliades 2018 (arXiv:1804.03906). Genotypes are in [0, 1]^n; entry x
    rotates its joint by (2 x - 1) pi relative to the previous link; the n equal links have a total length of 1. The
    descriptor is the position of the end of the arm, with the square [-1, 1]^2 around the base scaled to [0, 1]^2. The
    fitness is minus the standard deviation of the entries, in [-0.5, 0].

    `sphere` and `rastrigin`: n = 20; the two functions with a linear projection (Fontaine 2020, arXiv:1912.02400),
    shifted so that the optimum is at 2.048 in every entry. The fitness is 100 at the optimum and 0 where every entry is
    -5.12; it has no lower bound. The descriptor has one dimension for each half of the entries, the sum over that half
    of x, or of 5.12 / x where `|x|` > 5.12.

    Args:
      name: one of `names()`.
      size: n, the size of the genotype; the default is given above. At least 1 for `arm`, else even and at least 2.

    Deviation: the arm's fitness is minus the standard deviation of the entries; the paper has the variance of angles.

    Raises:
      ValueError: there is no such function (the message suggests similar names), or the size is invalid.

    Example:
      >>> rookery.envs.function("arm", 4).size
      4
    """
    if name not in _FUNCTIONS:
        raise unknown_name("env", name, "scoring function", _FUNCTIONS)
    build, default_size = _FUNCTIONS[name]
    return build(name, default_size if size is None else size)


def names() -> tuple[str, ...]:
    """The names of all scoring functions."""
    return tuple(_FUNCTIONS)


def _arm(name: str, size: int) -> Function:
    check_counts(**{f"the size of {name!r}": size})
    descriptor = base.descriptor_spec("end of the arm x, y", "final", (0.0, 0.0), (1.0, 1.0))
    init = partial(_uniform, size, 0.0, 1.0)
    return Function(name, init, _score_arm, (0.0, 1.0), descriptor, -0.5, size)


def _score_arm(genotype: Array) -> tuple[Array, Array]:
    direction = jnp.cumsum((2.0 * genotype - 1.0) * math.pi)  # of each link
    end = jnp.stack([jnp.mean(jnp.cos(direction)), jnp.mean(jnp.sin(direction))])
    return -jnp.std(genotype), 0.5 * (end + 1.0)


def _projected(height: Callable[[Array], Array], name: str, size: int) -> Function:
    """Build a function whose fitness sums `height` over the entries and whose descriptor is a linear projection."""
    if size < 2 or size % 2:
        raise ValueError(f"the size of {name!r} must be even and at least 2, got {size}.")
    limit = EDGE * size / 2
    descriptor = base.descriptor_spec("sum of each half", "final", (-limit, -limit), (limit, limit))
    descriptor = descriptor._replace(names=("sum of the first half", "sum of the second half"))
    init = partial(_uniform, size, -EDGE, EDGE)
    return Function(name, init, partial(_score_projected, height), None, descriptor, 0.0, size)


def _score_projected(height: Callable[[Array], Array], genotype: Array) -> tuple[Array, Array]:
    worst = height(jnp.asarray(-EDGE - SHIFT, genotype.dtype))
    fitness = 100.0 * (1.0 - jnp.mean(height(genotype - SHIFT)) / worst)
    inside = jnp.abs(genotype) <= EDGE
    contribution = jnp.where(inside, genotype, EDGE / jnp.where(inside, 1.0, genotype))
    return fitness, jnp.sum(contribution.reshape(2, -1), axis=1)


def _rastrigin_height(distance: Array) -> Array:
    """`d^2 + 10 - 10 cos(2 pi d)`, in a form that is exactly 0 for d = 0 in floating point."""
    return jnp.square(distance) + 20.0 * jnp.square(jnp.sin(math.pi * distance))


def _uniform(size: int, low: float, high: float, key: Key) -> Array:
    return jax.random.uniform(key, (size,), jnp.float32, low, high)


_FUNCTIONS: dict[str, tuple[Callable[[str, int], Function], int]] = {  # factory and default size
    "arm": (_arm, 8),
    "sphere": (partial(_projected, jnp.square), 20),
    "rastrigin": (partial(_projected, _rastrigin_height), 20),
}
