"""Scoring functions for MAP-Elites: a vector has a fitness and a descriptor, without any episode."""

import difflib
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rookery.envs import base
from rookery.envs.base import DescriptorSpec
from rookery.types import Array, Key

EDGE = 5.12  # the square [-5.12, 5.12]^n is where the sphere and Rastrigin's function are usually searched
SHIFT = 0.4 * EDGE  # every entry of their optimum


class InitFn(Protocol):
    """Draw a genotype to begin with, `[n]` float32; the key is consumed."""

    def __call__(self, key: Key) -> Array: ...


class ScoreFn(Protocol):
    """A genotype `[n]` -> its fitness `[]`, higher is better, and its descriptor `[D]`, both float32."""

    def __call__(self, genotype: Array) -> tuple[Array, Array]: ...


class Function(NamedTuple):
    """What MAP-Elites can search without an environment."""

    name: str
    init: InitFn
    score: ScoreFn
    bounds: tuple[float, float] | None  # between which variation must keep every entry; None leaves them free
    descriptor: DescriptorSpec
    worst_fitness: float  # counts as 0 in a QD score
    size: int  # n


def function(name: str, size: int | None = None) -> Function:
    """Build a scoring function.

    `arm`: a planar arm of n = 8 joints, as in Vassiliades 2018 (arXiv:1804.03906). Genotypes lie in [0, 1]^n; entry x
    turns its joint by (2 x - 1) pi against the link before; n equal links have length 1 together. The descriptor is
    where the arm ends, the square [-1, 1]^2 around its base scaled to [0, 1]^2; the fitness is minus the standard
    deviation of the entries, in [-0.5, 0].

    `sphere` and `rastrigin`: n = 20; the two functions with a linear projection (Fontaine 2020, arXiv:1912.02400),
    shifted so that the optimum is at 2.048 in every entry. The fitness is 100 there and 0 in the corner where every
    entry is -5.12; nothing bounds it below. An entry x counts x in the descriptor, or 5.12 / x beyond +-5.12, and the
    descriptor is the sum of each half of the entries.

    Args:
      name: one of `names()`.
      size: n, the size of the genotype; by default as above. At least 1 for `arm`, else even and at least 2.

    Deviation: the arm's fitness is minus the standard deviation of the entries; the paper has the variance of angles.

    Raises:
      ValueError: there is no such function (the message names the nearest), or it cannot have this size.
    """
    if name not in _FUNCTIONS:
        near = difflib.get_close_matches(name, _FUNCTIONS, n=3, cutoff=0.5) or _FUNCTIONS
        raise ValueError(f"there is no scoring function {name!r}; did you mean {' or '.join(near)}?")
    build, usual_size = _FUNCTIONS[name]
    return build(name, usual_size if size is None else size)


def names() -> tuple[str, ...]:
    """All functions' names."""
    return tuple(_FUNCTIONS)


def _arm(name: str, size: int) -> Function:
    if size < 1:
        raise ValueError(f"the size of {name!r} must be at least 1 joint, got {size}.")
    descriptor = base.descriptor_spec("end of the arm x, y", "final", (0.0, 0.0), (1.0, 1.0))
    init = partial(_uniform, size, 0.0, 1.0)
    return Function(name, init, _score_arm, (0.0, 1.0), descriptor, -0.5, size)


def _score_arm(genotype: Array) -> tuple[Array, Array]:
    direction = jnp.cumsum((2.0 * genotype - 1.0) * math.pi)  # of each link
    end = jnp.stack([jnp.mean(jnp.cos(direction)), jnp.mean(jnp.sin(direction))])
    return -jnp.std(genotype), 0.5 * (end + 1.0)


def _projected(height: Callable[[Array], Array], name: str, size: int) -> Function:
    """A sum of `height` over the entries, with a linear projection for the descriptor."""
    if size < 2 or size % 2:
        raise ValueError(f"the size of {name!r} must be even and at least 2, got {size}.")
    limit = EDGE * size / 2
    descriptor = base.descriptor_spec("sum of each half", "final", (-limit, -limit), (limit, limit))
    init = partial(_uniform, size, -EDGE, EDGE)
    return Function(name, init, partial(_score_projected, height), None, descriptor, 0.0, size)


def _score_projected(height: Callable[[Array], Array], genotype: Array) -> tuple[Array, Array]:
    worst = height(jnp.asarray(-EDGE - SHIFT, genotype.dtype))
    fitness = 100.0 * (1.0 - jnp.mean(height(genotype - SHIFT)) / worst)
    inside = jnp.abs(genotype) <= EDGE
    counted = jnp.where(inside, genotype, EDGE / jnp.where(inside, 1.0, genotype))
    return fitness, jnp.sum(counted.reshape(2, -1), axis=1)


def _sphere_height(distance: Array) -> Array:
    return jnp.square(distance)


def _rastrigin_height(distance: Array) -> Array:
    """`d^2 + 10 - 10 cos(2 pi d)`, in a form that rounding leaves at 0 for d = 0."""
    return jnp.square(distance) + 20.0 * jnp.square(jnp.sin(math.pi * distance))


def _uniform(size: int, low: float, high: float, key: Key) -> Array:
    return jax.random.uniform(key, (size,), jnp.float32, low, high)


_FUNCTIONS: dict[str, tuple[Callable[[str, int], Function], int]] = {  # how to build it, and its size by default
    "arm": (_arm, 8),
    "sphere": (partial(_projected, _sphere_height), 20),
    "rastrigin": (partial(_projected, _rastrigin_height), 20),
}
