"""Search spaces: how the hyper-parameters of a member are drawn, perturbed and kept in bounds.

A `Hyper` is a NamedTuple of float scalars declared beside its agent. A `Space` says which of its fields evolve, on
which scale and between which bounds; the others keep their default.
"""

import difflib
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rookery.types import Array, Hyper, Key


class Domain(Protocol):
    """One field's interval and the scale on which draws are uniform and perturbations multiply."""

    @property
    def low(self) -> float:
        """Lower bound, in the field's own unit."""
        ...

    @property
    def high(self) -> float:
        """Upper bound, in the field's own unit."""
        ...

    def sample(self, key: Key) -> Array:
        """Draw a value; the key is consumed."""
        ...

    def scale(self, value: Array, factor: Array) -> Array:
        """Multiply by `factor` on the declared scale, without clipping."""
        ...


class Uniform(NamedTuple):
    """Uniform between the bounds; a perturbation multiplies the value."""

    low: float
    high: float

    def sample(self, key: Key) -> Array:
        """Draw uniformly; `[]`."""
        return jax.random.uniform(key, (), minval=self.low, maxval=self.high)

    def scale(self, value: Array, factor: Array) -> Array:
        """`value * factor`."""
        return value * factor


class LogUniform(NamedTuple):
    """Uniform in the logarithm, for rates and scales; a perturbation is a shift of the logarithm."""

    low: float
    high: float

    def sample(self, key: Key) -> Array:
        """Draw uniformly in the logarithm; `[]`."""
        return jnp.exp(jax.random.uniform(key, (), minval=math.log(self.low), maxval=math.log(self.high)))

    def scale(self, value: Array, factor: Array) -> Array:
        """`log value + log factor`, in the logarithm."""
        return value * factor


class OneMinusLog(NamedTuple):
    """Uniform in log(1 - x), for discounts: 0.9, 0.99 and 0.999 lie equally far apart."""

    low: float
    high: float

    def sample(self, key: Key) -> Array:
        """Draw uniformly in log(1 - x); `[]`."""
        bounds = math.log1p(-self.high), math.log1p(-self.low)
        return -jnp.expm1(jax.random.uniform(key, (), minval=bounds[0], maxval=bounds[1]))

    def scale(self, value: Array, factor: Array) -> Array:
        """Multiply the distance to 1."""
        return 1.0 - (1.0 - value) * factor


class Space(NamedTuple):
    """Default values for every field of a `Hyper`, and the domains of those that evolve."""

    defaults: Hyper
    domains: Mapping[str, Domain]


def space(defaults: Hyper, domains: Mapping[str, Domain]) -> Space:
    """Declare a search space.

    Args:
      defaults: a `Hyper` of Python floats.
      domains: field name -> `Uniform`, `LogUniform` or `OneMinusLog`; fields left out do not evolve.

    Raises:
      ValueError: a name is not a field of `defaults`, an interval is empty, or its bounds lie outside its scale.
    """
    for name, domain in domains.items():
        _check_domain(name, domain, defaults._fields)
    return Space(defaults, MappingProxyType(dict(domains)))


def _check_domain(name: str, domain: Domain, fields: tuple[str, ...]) -> None:
    if name not in fields:
        near = difflib.get_close_matches(name, fields) or fields
        raise ValueError(f"{name!r} is no hyper-parameter here; did you mean {' or '.join(near)}?")
    if not (math.isfinite(domain.low) and math.isfinite(domain.high) and domain.low < domain.high):
        raise ValueError(f"the interval of {name} is empty: [{domain.low}, {domain.high}]; give low < high.")
    if isinstance(domain, LogUniform) and domain.low <= 0:
        raise ValueError(f"{name} is drawn on a logarithmic scale and needs a lower bound above 0, got {domain.low}.")
    if isinstance(domain, OneMinusLog) and domain.high >= 1:
        raise ValueError(
            f"{name} is drawn on the scale log(1 - x) and needs an upper bound below 1, got {domain.high}."
        )


def sample(space: Space, key: Key) -> Hyper:
    """One member's hyper-parameters: each evolving field from its own key, inside its bounds; the rest default.

    Returns:
      A `Hyper` of `[]` float32.
    """
    draws = {
        name: clip_value(domain, domain.sample(jax.random.fold_in(key, index)))
        for index, (name, domain) in enumerate(space.domains.items())
    }
    return defaults(space)._replace(**draws)


def defaults(space: Space) -> Hyper:
    """The default values as `[]` float32."""
    return jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), space.defaults)


def perturb(space: Space, hyper: Hyper, key: Key, factors: tuple[float, float], resample_probability: float) -> Hyper:
    """PBT's "explore" for one child (Jaderberg 2017, arXiv:1711.09846, section 4).

    Each evolving field, independently, is drawn afresh with `resample_probability`, else multiplied on its own scale by
    one of the two `factors` (chosen evenly), then clipped to its bounds.

    Returns:
      A `Hyper` of `[]` float32; fields that do not evolve are unchanged.
    Deviation: the scale of a discount is 1 - x; the paper multiplies x itself, which can leave (0, 1).
    """
    changed = {}
    for index, (name, domain) in enumerate(space.domains.items()):
        draw_key, choice_key, fresh_key = jax.random.split(jax.random.fold_in(key, index), 3)
        factor = jnp.where(jax.random.bernoulli(choice_key), factors[0], factors[1])
        scaled = domain.scale(getattr(hyper, name), factor)
        fresh = jax.random.bernoulli(fresh_key, resample_probability)
        changed[name] = clip_value(domain, jnp.where(fresh, domain.sample(draw_key), scaled))
    return hyper._replace(**changed)


def clip(space: Space, hyper: Hyper) -> Hyper:
    """Bring every evolving field back into its bounds."""
    return hyper._replace(**{name: clip_value(d, getattr(hyper, name)) for name, d in space.domains.items()})


def clip_value(domain: Domain, value: Array) -> Array:
    """`value` inside the domain's bounds, as float32."""
    return jnp.clip(jnp.asarray(value, jnp.float32), domain.low, domain.high)
