"""Search spaces: how the hyper-parameters of a member are drawn, perturbed and kept in bounds.

A `Hyper` is a NamedTuple of float scalars declared beside its agent. A `Space` says which of its fields evolve, on
which scale and between which bounds; the others keep their default.
"""

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rookery.types import Array, Hyper, Key

FIXED = "fixed"


class Domain(Protocol):
    """One field's interval and the scale on which draws are uniform and perturbations multiply.

    Domains of different scales are never equal.
    """

    @property
    def low(self) -> float:
        """Lower bound, in the field's own unit."""
        ...

    @property
    def high(self) -> float:
        """Upper bound, in the field's own unit."""
        ...

    def at(self, fraction: Array) -> Array:
        """The value that lies at `fraction` (in [0, 1]) of the way from one bound to the other, on the scale."""
        ...

    def fraction(self, value: Array) -> Array:
        """Where a value lies: the inverse of `at`."""
        ...

    def scale(self, value: Array, factor: Array) -> Array:
        """Multiply by `factor` on the declared scale, without clipping."""
        ...


@dataclass(frozen=True)
class Uniform:
    """Uniform between the bounds; a perturbation multiplies the value."""

    low: float
    high: float

    def at(self, fraction: Array) -> Array:
        """`low + fraction (high - low)`."""
        return self.low + fraction * (self.high - self.low)

    def fraction(self, value: Array) -> Array:
        """`(value - low) / (high - low)`."""
        return (value - self.low) / (self.high - self.low)

    def scale(self, value: Array, factor: Array) -> Array:
        """`value * factor`."""
        return value * factor


@dataclass(frozen=True)
class LogUniform:
    """Uniform in the logarithm, for rates and scales; a perturbation is a shift of the logarithm."""

    low: float
    high: float

    def at(self, fraction: Array) -> Array:
        """`low^(1 - fraction) high^fraction`."""
        return jnp.exp(math.log(self.low) + fraction * (math.log(self.high) - math.log(self.low)))

    def fraction(self, value: Array) -> Array:
        """In the logarithm."""
        return (jnp.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))

    def scale(self, value: Array, factor: Array) -> Array:
        """`log value + log factor`, in the logarithm."""
        return value * factor


@dataclass(frozen=True)
class OneMinusLog:
    """Uniform in log(1 - x), for discounts: 0.9, 0.99 and 0.999 lie equally far apart."""

    low: float
    high: float

    def at(self, fraction: Array) -> Array:
        """`1 - (1 - low)^(1 - fraction) (1 - high)^fraction`."""
        low, high = math.log1p(-self.low), math.log1p(-self.high)
        return -jnp.expm1(low + fraction * (high - low))

    def fraction(self, value: Array) -> Array:
        """In log(1 - x)."""
        low, high = math.log1p(-self.low), math.log1p(-self.high)
        return (jnp.log1p(-value) - low) / (high - low)

    def scale(self, value: Array, factor: Array) -> Array:
        """Multiply the distance to 1."""
        return 1.0 - (1.0 - value) * factor


class Field(NamedTuple):
    """A hyper-parameter, whoever searches it: what it means, its natural scale, and the values that make sense."""

    meaning: str
    scale: Callable[[float, float], Domain]  # Uniform, LogUniform or OneMinusLog
    low: float = 0.0
    high: float = math.inf
    zero: bool = False
    """Whether 0, which no logarithmic scale has, is valid as the one value."""

    @property
    def range(self) -> str:
        """The valid values in words; a logarithm leaves out its end."""
        left = "(0" if self.scale is LogUniform and not self.zero else f"[{self.low:g}"
        right = "1)" if self.scale is OneMinusLog else f"{self.high:g}" + (")" if math.isinf(self.high) else "]")
        return f"{left}, {right}"


class Space(NamedTuple):
    """Default values for every field of a `Hyper`, the domains of those that evolve, and what each field is."""

    defaults: Hyper
    domains: Mapping[str, Domain]
    fields: Mapping[str, Field] = MappingProxyType({})


_ANYTHING = Field("", Uniform, low=-math.inf)

Choice = Domain | tuple[float, float] | float | str
"""How a field is chosen: a domain; two bounds, on the field's own scale; one value; or "fixed", at its default."""


def space(defaults: Hyper, domains: Mapping[str, Domain], fields: Mapping[str, Field] | None = None) -> Space:
    """Declare a search space.

    Args:
      defaults: a `Hyper` of Python floats.
      domains: field name -> `Uniform`, `LogUniform` or `OneMinusLog`; fields left out do not evolve.
      fields: field name -> its meaning, scale and valid values; then only these can be chosen (`choose`). Without any,
        every field can, and takes every value, uniformly.

    Raises:
      ValueError: a name is not a field of `defaults`, an interval is empty, or its bounds lie outside its scale or its
        field.
    """
    fields = MappingProxyType(dict(fields or {}))
    for name, domain in domains.items():
        _check_name(name, defaults._fields)
        _check_domain(name, domain, fields.get(name, _ANYTHING))
    return Space(defaults, MappingProxyType(dict(domains)), fields)


def choose(space: Space, **choices: Choice) -> Space:
    """The space with some of its fields chosen anew: `choose(agent.space, policy_lr=(1e-5, 1e-2), discount="fixed")`.

    Args:
      space: an agent's.
      **choices: field name -> a domain; two bounds, on the field's own scale; one value, which becomes the default and
        does not evolve; or "fixed", which keeps the default and does not evolve.

    Raises:
      ValueError: a name is no field, an interval is empty, or a value lies outside the field's valid ones.
    """
    domains, values = dict(space.domains), {}
    for name, choice in choices.items():
        _check_name(name, _names(space))
        field = space.fields.get(name, _ANYTHING)
        domains.pop(name, None)
        if isinstance(choice, (int, float)):
            _check_value(name, choice, field)
            values[name] = float(choice)
        elif isinstance(choice, tuple) or hasattr(choice, "at"):
            domains[name] = _domain(name, choice, field)
            _check_domain(name, domains[name], field)
        elif choice != FIXED:
            raise ValueError(f"{name} must be two bounds, one value, a domain or {FIXED!r}, got {choice!r}.")
    # In the order of the fields: a draw's key is its place, and must not depend on the order of the choices.
    ordered = {name: domains[name] for name in space.defaults._fields if name in domains}
    return Space(space.defaults._replace(**values), MappingProxyType(ordered), space.fields)


def describe(space: Space) -> dict[str, Any]:
    """A space as plain values: field -> `{"scale", "low", "high"}` where it evolves, else its value."""
    told: dict[str, Any] = {}
    for name in _names(space):
        domain = space.domains.get(name)
        told[name] = getattr(space.defaults, name)
        if domain is not None:
            told[name] = {"scale": type(domain).__name__, "low": domain.low, "high": domain.high}
    return told


def _names(space: Space) -> tuple[str, ...]:
    """What can be chosen: the declared fields; all of a space that declares none."""
    return tuple(space.fields) or space.defaults._fields


def _domain(name: str, choice: Any, field: Field) -> Domain:
    """A domain as it is, or two bounds on the field's own scale."""
    if hasattr(choice, "at"):
        return choice
    if len(choice) != 2:
        raise ValueError(f"{name} needs two bounds, got {len(choice)}: {choice}.")
    return field.scale(*choice)


def _check_name(name: str, fields: tuple[str, ...]) -> None:
    if name not in fields:
        near = difflib.get_close_matches(name, fields) or fields
        raise ValueError(f"{name!r} is no hyper-parameter here; did you mean {' or '.join(near)}?")


def _check_value(name: str, value: float, field: Field) -> None:
    above = field.scale is LogUniform and value <= 0 and not (field.zero and value == 0)
    below = field.scale is OneMinusLog and value >= 1
    if above or below or not (math.isfinite(value) and field.low <= value <= field.high):
        raise ValueError(f"{name} must lie in {field.range}, got {value:g}.")


def _check_domain(name: str, domain: Domain, field: Field) -> None:
    if not (math.isfinite(domain.low) and math.isfinite(domain.high) and domain.low < domain.high):
        raise ValueError(f"the interval of {name} is empty: [{domain.low}, {domain.high}]; give low < high.")
    if isinstance(domain, LogUniform) and domain.low <= 0:
        raise ValueError(f"{name} is drawn on a logarithmic scale and needs a lower bound above 0, got {domain.low}.")
    if isinstance(domain, OneMinusLog) and domain.high >= 1:
        raise ValueError(
            f"{name} is drawn on the scale log(1 - x) and needs an upper bound below 1, got {domain.high}."
        )
    for bound in (domain.low, domain.high):
        _check_value(name, bound, field)


def sample(space: Space, key: Key) -> Hyper:
    """One member's hyper-parameters: each evolving field from its own key, inside its bounds; the rest default.

    Returns:
      A `Hyper` of `[]` float32.
    """
    draws = {
        name: draw(domain, jax.random.fold_in(key, index)) for index, (name, domain) in enumerate(space.domains.items())
    }
    return defaults(space)._replace(**draws)


def draw(domain: Domain, key: Key) -> Array:
    """A value uniform on the domain's scale, inside its bounds; `[]` float32."""
    return clip_value(domain, domain.at(jax.random.uniform(key)))


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
        changed[name] = clip_value(domain, jnp.where(fresh, draw(domain, draw_key), scaled))
    return hyper._replace(**changed)


def clip(space: Space, hyper: Hyper) -> Hyper:
    """Bring every evolving field back into its bounds."""
    return hyper._replace(**{name: clip_value(d, getattr(hyper, name)) for name, d in space.domains.items()})


def clip_value(domain: Domain, value: Array) -> Array:
    """`value` inside the domain's bounds, as float32."""
    return jnp.clip(jnp.asarray(value, jnp.float32), domain.low, domain.high)
