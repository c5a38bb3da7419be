"""Search spaces: how a member's hyper-parameters are sampled, perturbed and clipped to their bounds.

A `Hyper` is a NamedTuple of float scalars declared next to its agent; the annotation of each field has its meaning and
its domain (`Field`). A `Space` defines which of the fields evolve, on which scale and between which bounds; the other
fields keep their default values.
"""

import abc
import collections
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np

from rookery.settings import HYPER_NAMES, LARGEST_COUNT, SettingError, check_names, float32, unknown_name
from rookery.types import Array, HyperT, Key

FIXED, EVOLVE = "fixed", "evolve"


@dataclass(frozen=True)
class Domain(abc.ABC):
    """The values of one field, and the scale on which it is sampled uniformly and perturbed."""

    low: float
    """Lower bound, in the unit of the field."""
    high: float
    """Upper bound, in the unit of the field."""
    is_whole: ClassVar[bool] = False
    """Whether all values are whole numbers, in float32 as those of other domains."""

    def __post_init__(self) -> None:
        """Take numbers of NumPy, and whole ones beyond int32, as Python's floats."""
        for name, bound in (("low", self.low), ("high", self.high)):
            if type(bound) is not int or abs(bound) > LARGEST_COUNT:
                object.__setattr__(self, name, float(str(bound) if type(bound) is int else bound))

    @abc.abstractmethod
    def at(self, fraction: Array) -> Array:
        """Return the value at `fraction` (in [0, 1]) of the interval, measured on the domain's scale."""

    @abc.abstractmethod
    def fraction(self, value: Array) -> Array:
        """Return the position of a value in the interval, in [0, 1]: the inverse of `at`."""

    def scale(self, value: Array, factor: Array) -> Array:
        """Multiply by `factor` on the domain's scale, without clipping: `value * factor` unless a class says more."""
        return value * factor

    def another(self, fraction: Array, value: Array) -> Array:
        """The value at `fraction` of the interval, in [0, 1), for one that is resampled; a `Choice` takes another one
        than `value`."""
        del value
        return self.clip(self.at(fraction))

    def clip(self, value: Array) -> Array:
        """The nearest value within the bounds, as float32."""
        return jnp.clip(jnp.asarray(value, jnp.float32), self.low, self.high)

    def features(self, fraction: Array) -> Array:
        """Coordinates of the value at `fraction` `[...]` for a kernel, `[..., F]`: the fraction itself, of whole
        numbers that of the value (Garrido-Merchan 2020, arXiv:1805.03463)."""
        return (self.fraction(self.at(fraction)) if self.is_whole else fraction)[..., None]

    def __str__(self) -> str:
        """The values in words: "in [0.1, 10]"."""
        return f"in [{self.low:g}, {self.high:g}]"


@dataclass(frozen=True)
class Uniform(Domain):
    """Uniform between the bounds; a perturbation multiplies the value, or shifts it in an interval across 0."""

    def at(self, fraction: Array) -> Array:
        """`low + fraction (high - low)`."""
        return self.low + fraction * (self.high - self.low)

    def fraction(self, value: Array) -> Array:
        """`(value - low) / (high - low)`."""
        return (value - self.low) / (self.high - self.low)

    def scale(self, value: Array, factor: Array) -> Array:
        """`value * factor`, but a step from a value near 0 is one from a thousandth of the interval: 0 is no trap.

        In an interval across 0, where a factor could not change the sign, a shift by `log(factor)` times a quarter of
        the interval: 5.6 % of it up or down for the factors 1.25 and 0.8.
        """
        span = self.high - self.low
        if self.low < 0.0 < self.high:
            return value + 0.25 * span * jnp.log(factor)
        least = 1e-3 * span if self.low >= 0.0 else -1e-3 * span
        return jnp.where(jnp.abs(value) < abs(least), value + (factor - 1.0) * least, value * factor)


@dataclass(frozen=True)
class LogUniform(Domain):
    """Uniform in the logarithm, for rates and scales; a perturbation shifts the logarithm."""

    def at(self, fraction: Array) -> Array:
        """`low^(1 - fraction) high^fraction`."""
        return jnp.exp(math.log(self.low) + fraction * (math.log(self.high) - math.log(self.low)))

    def fraction(self, value: Array) -> Array:
        """`(log value - log low) / (log high - log low)`."""
        return (jnp.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))


@dataclass(frozen=True)
class OneMinusLog(Domain):
    """Uniform in log(1 - x), for discounts: 0.9, 0.99 and 0.999 are equally spaced.

    A bound is at most 0.999999, beyond which float32 cannot make small steps; the constant 1 is valid.
    """

    def at(self, fraction: Array) -> Array:
        """`1 - (1 - low)^(1 - fraction) (1 - high)^fraction`."""
        low, high = math.log1p(-self.low), math.log1p(-self.high)
        return -jnp.expm1(low + fraction * (high - low))

    def fraction(self, value: Array) -> Array:
        """Position of `log(1 - value)` between `log(1 - low)` and `log(1 - high)`."""
        low, high = math.log1p(-self.low), math.log1p(-self.high)
        return (jnp.log1p(-value) - low) / (high - low)

    def scale(self, value: Array, factor: Array) -> Array:
        """`1 - (1 - value) * factor`: multiply the distance to 1."""
        return 1.0 - (1.0 - value) * factor


@dataclass(frozen=True)
class Whole(Uniform):
    """Whole numbers, each as likely as any other, the bounds included; a perturbation moves by at least 1."""

    is_whole: ClassVar[bool] = True

    def at(self, fraction: Array) -> Array:
        """`low + floor(fraction (high - low + 1))`, at most `high`."""
        return jnp.minimum(self.low + jnp.floor(fraction * (self.high - self.low + 1.0)), self.high)

    def fraction(self, value: Array) -> Array:
        """`(value - low + 1/2) / (high - low + 1)`, the middle of the interval that `at` maps to the value."""
        return (value - self.low + 0.5) / (self.high - self.low + 1.0)

    def scale(self, value: Array, factor: Array) -> Array:
        """The result of `Uniform.scale`, rounded away from `value`."""
        return _rounded_away(value, Uniform.scale(self, value, factor))


@dataclass(frozen=True)
class LogWhole(LogUniform):
    """Whole numbers, uniform in the logarithm before they are rounded, for sizes and counts."""

    is_whole: ClassVar[bool] = True

    def at(self, fraction: Array) -> Array:
        """`low^(1 - fraction) high^fraction`, rounded."""
        return jnp.round(LogUniform.at(self, fraction))

    def scale(self, value: Array, factor: Array) -> Array:
        """`value * factor`, rounded away from `value`."""
        return _rounded_away(value, LogUniform.scale(self, value, factor))


def _rounded_away(value: Array, scaled: Array) -> Array:
    """A whole number moved to another one, by at least 1, so that small numbers change too."""
    step = scaled - value
    return value + jnp.sign(step) * jnp.ceil(jnp.abs(step))


@dataclass(frozen=True, init=False)
class Choice(Domain):
    """One of several names, such as `Choice("tanh", "relu")`, which has no scale.

    The value of a hyper-parameter is the place of its name among all names, from 0 on. A perturbation keeps it, and one
    that resamples takes another name, each as likely as any other.

    Args:
      *names: that can be drawn, at least two.
      among: all names of the field, in the order of its values; by default `names`.

    Raises:
      ValueError: there are fewer than two names, two are equal, or one is no name for a column of a table.
    """

    names: tuple[str, ...]
    """The names that can be drawn."""
    among: tuple[str, ...]
    """All names of the field; the value i stands for `among[i]`."""
    is_whole: ClassVar[bool] = True

    def __init__(self, *names: str, among: Sequence[str] = ()):
        check_names("choice", names, (FIXED, EVOLVE))
        if len(names) < 2:
            raise ValueError(f"a Choice needs two names or more, got {', '.join(names) or 'none'}.")
        among = tuple(among) or names
        if unknown := [name for name in names if name not in among]:
            raise unknown_name("names", unknown[0], "choice named", among)
        for field, value in {"low": 0.0, "high": len(among) - 1.0, "names": names, "among": among}.items():
            object.__setattr__(self, field, value)

    def at(self, fraction: Array) -> Array:
        """The value of the name at `fraction` of the list."""
        return self._value(jnp.floor(fraction * len(self.names)))

    def fraction(self, value: Array) -> Array:
        """The middle of the interval that `at` maps to the value."""
        return (self._place(value) + 0.5) / len(self.names)

    def scale(self, value: Array, factor: Array) -> Array:
        """The value itself."""
        del factor
        return value

    def another(self, fraction: Array, value: Array) -> Array:
        """Another name than that of `value`; see `Domain.another`."""
        others = len(self.names) - 1
        shift = 1.0 + jnp.minimum(jnp.floor(others * fraction), others - 1.0)
        return self._value((self._place(value) + shift) % len(self.names))

    def clip(self, value: Array) -> Array:
        """The value, or that of the first name if it is another one."""
        return self._value(self._place(value))

    def features(self, fraction: Array) -> Array:
        """One of `[..., len(names)]` is the root of 1/2: any two names have the distance 1, that of the two ends of
        another domain."""
        place = jnp.minimum(fraction * len(self.names), len(self.names) - 1.0).astype(jnp.int32)
        return math.sqrt(0.5) * jax.nn.one_hot(place, len(self.names), dtype=jnp.float32)

    def __str__(self) -> str:
        """The values in words: "among tanh, relu"."""
        return f"among {', '.join(self.names)}"

    def _value(self, place: Array) -> Array:
        """The value of the name at a place `[...]` in `names`; beyond the end, of the last."""
        values = jnp.asarray([self.among.index(name) for name in self.names], jnp.float32)
        return values[jnp.minimum(place.astype(jnp.int32), len(self.names) - 1)]

    def _place(self, value: Array) -> Array:
        """The place of a value `[...]` in `names`; 0 if it is not there."""
        places = [self.names.index(name) if name in self.names else 0 for name in self.among]
        return jnp.asarray(places, jnp.float32)[jnp.asarray(value).astype(jnp.int32)]


class Field(NamedTuple):
    """Static description of a hyper-parameter, in the annotation of a `Hyper`'s field.

    For example `discount: Annotated[Scalar, Field("discount factor", OneMinusLog(0.9, 0.999))] = 0.99`.
    """

    meaning: str
    """Description shown in the command line's help."""
    domain: Domain | type[Domain]
    """The domain in which it evolves by default; or, if it is fixed by default, only the scale, such as
    `LogUniform`."""
    low: float = 0.0
    """Lowest valid value."""
    high: float = math.inf
    """Highest valid value."""
    zero: bool = False
    """Whether the constant 0 is valid although the logarithmic scale excludes it."""
    remedy: str = ""
    """What allows a value above the highest one, for the message that rejects it."""
    evolves: bool = True
    """Whether it evolves by default; if not, "evolve" chooses its domain."""

    @property
    def scale(self) -> Any:
        """Constructor of the domain that two bounds give."""
        return self.domain if isinstance(self.domain, type) else type(self.domain)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the values of a `Choice`, in their order; () of a number."""
        return self.domain.among if isinstance(self.domain, Choice) else ()

    def shown(self, value: float) -> str:
        """A value in text: its name or its number."""
        return self.names[int(value)] if self.names else f"{value:g}"

    @property
    def range(self) -> str:
        """The valid values in text: "one of tanh, relu", or "in [0, 1]"; a logarithmic scale excludes its end point."""
        if self.names:
            return f"one of {', '.join(self.names)}"
        left = "(0" if self.scale is LogUniform and not self.zero else f"[{self.low:g}"
        high = min(self.high, 1.0) if self.scale is OneMinusLog else self.high
        right = f"{high:g}" + (")" if math.isinf(high) else "]")
        return f"in {left}, {right}"


class Space(NamedTuple, Generic[HyperT]):
    """A search space: default values of all fields of a `Hyper`, and the domains of the fields that evolve."""

    defaults: HyperT
    """A `Hyper` of Python floats."""
    domains: Mapping[str, Domain]
    """Field name -> domain, for the fields that evolve."""
    fields: Mapping[str, Field] = MappingProxyType({})
    """Field name -> description; if not empty, only these fields can be chosen."""
    optional: "Space[Any] | None" = None
    """Fields that become part of the `Hyper` when `choose` chooses them, such as an environment's parameters."""


_ANY_VALUE = Field("", Uniform, low=-math.inf)

Chosen = Domain | tuple[float, float] | tuple[str, ...] | float | str
"""How to choose a field: a domain; two bounds on the field's scale, or several names of a `Choice`; a constant, or one
name; "fixed" for its default value; or "evolve" for the domain that its declaration has."""


def declared(kind: type[HyperT]) -> Space[HyperT]:
    """Return the default search space of a `Hyper`, from its defaults and the `Field` in each field's annotation.

    A field without one keeps its default and cannot be chosen.

    Raises:
      ValueError: as in `space`.
    """
    hints = get_type_hints(kind, include_extras=True)
    notes = ((name, note) for name, hint in hints.items() for note in getattr(hint, "__metadata__", ()))
    fields = {name: note for name, note in notes if isinstance(note, Field)}
    domains = {
        name: field.domain for name, field in fields.items() if field.evolves and not isinstance(field.domain, type)
    }
    return space(kind(), domains, fields)


def without(space: Space[HyperT], name: str) -> Space[HyperT]:
    """Return the space in which the field `name` keeps its default and cannot be chosen."""
    domains, fields = (
        {other: given[other] for other in given if other != name} for given in (space.domains, space.fields)
    )
    return space._replace(domains=MappingProxyType(domains), fields=MappingProxyType(fields))


def join(first: Space, second: Space, names: Sequence[str] | None = None) -> Space:
    """Return the space of a `Hyper` that has the fields of both spaces' `Hyper`s, in this order; of the second space's
    only those in `names`, by default all.

    The type of its `Hyper` is created here, since its fields are known only at run time; `select` converts it to the
    type of either space. It is flat, so that flags, columns and stored leaves are named by their field alone.
    """
    names = second.defaults._fields if names is None else names
    check_names("hyper-parameter", (*first.defaults._fields, *names))
    kind = _joined_type((*first.defaults._fields, *names))
    # The fields of a space that declares none must still be available to `choose`.
    fields, more = (given.fields or dict.fromkeys(given.defaults._fields, _ANY_VALUE) for given in (first, second))
    return space(
        kind(**first.defaults._asdict(), **{name: getattr(second.defaults, name) for name in names}),
        {**first.domains, **{name: domain for name, domain in second.domains.items() if name in names}},
        {**fields, **{name: field for name, field in more.items() if name in names}},
    )._replace(optional=first.optional)


def with_optional(space: Space[HyperT], more: Space[Any]) -> Space[HyperT]:
    """Return the space with further optional fields."""
    return space._replace(optional=join(space.optional, more) if space.optional else more)


@functools.cache
def _joined_type(names: tuple[str, ...]) -> Any:
    """Cached, so that two joins of the same fields give pytrees of equal structure."""
    return collections.namedtuple("JoinedHyper", names)


def select(like: Any, hyper: object) -> Any:
    """Return the values that a joined `Hyper` has for the fields of another one, `like`, as one of its type; of a
    `Space` for the fields of its `Hyper` and the optional ones that the joined one has."""
    if isinstance(like, Space):
        optional = [name for name in like.optional.fields if hasattr(hyper, name)] if like.optional else []
        like = (join(like, like.optional, optional) if like.optional and optional else like).defaults
    return like._replace(**{name: getattr(hyper, name) for name in like._fields})


def space(defaults: HyperT, domains: Mapping[str, Domain], fields: Mapping[str, Field] | None = None) -> Space[HyperT]:
    """Declare a search space.

    Args:
      defaults: a `Hyper` of Python floats.
      domains: field name -> its domain; fields left out do not evolve.
      fields: field name -> its meaning, scale and valid values; `choose` then accepts only these fields. If None or
        empty, `choose` accepts every field with any value, on a uniform scale, or with the names of its `Choice`.

    Raises:
      ValueError: a name is not a field of `defaults`, an interval is empty, its bounds are invalid for its scale or its
        field, or the default of a `Choice` is not the place of a name.
    """
    if not fields and any(isinstance(domain, Choice) for domain in domains.values()):
        fields = {name: Field("", domains[name]) if name in domains else _ANY_VALUE for name in defaults._fields}
    fields = MappingProxyType(dict(fields or {}))
    check_names("hyper-parameter", defaults._fields, HYPER_NAMES)
    for name, field in fields.items():
        if field.names and getattr(defaults, name) not in range(len(field.names)):
            known = f"one of the names {', '.join(field.names)}"
            raise SettingError(name, getattr(defaults, name), f"must be the place of {known} by default, from 0 on")
    for name, domain in domains.items():
        _check_name(name, defaults._fields)
        _check_domain(name, domain, fields.get(name, _ANY_VALUE))
    return Space(defaults, MappingProxyType(dict(domains)), fields)


def choose(space: Space[HyperT], **choices: Chosen) -> Space[HyperT]:
    """Return the space with some fields chosen anew, as in `choose(agent.space, policy_lr=(1e-5, 1e-2),
    discount="fixed")`.

    Args:
      space: the search space of an agent.
      **choices: field name -> a domain; two bounds on the field's scale, or several names of a `Choice`; a constant or
        one name, which becomes the default and does not evolve; "fixed", which keeps the default and does not evolve;
        or "evolve", for the declared domain.

    Raises:
      ValueError: a name is not a field, an interval is empty, a value is outside the field's valid values, or no domain
        is declared.

    Example:
      >>> env = rookery.make("point_room")
      >>> space = rookery.choose(rookery.sac(env.spec).space, policy_lr=(1e-5, 1e-2), discount=0.98)
      >>> space.domains["policy_lr"], space.defaults.discount
      (LogUniform(low=1e-05, high=0.01), 0.98)
    """
    known = (*_names(space), *(space.optional.fields if space.optional else ()))
    joining = [name for name in known if name not in space.defaults._fields and choices.get(name, FIXED) != FIXED]
    space = join(space, space.optional, joining) if space.optional and joining else space
    domains, values = dict(space.domains), {}
    for name, choice in ((name, _plain(choice)) for name, choice in choices.items()):
        _check_name(name, known)
        field = space.fields.get(name, _ANY_VALUE)
        domains.pop(name, None)
        if choice == EVOLVE and not isinstance(field.domain, type):
            domains[name] = field.domain
        elif field.names and isinstance(choice, str) and choice != FIXED:
            values[name] = float(_place(name, choice, field))
        elif isinstance(choice, (int, float)) and not isinstance(choice, bool) and not field.names:
            _check_value(name, choice, field)
            values[name] = float(choice)
        elif isinstance(choice, (tuple, Domain)):
            domains[name] = _domain(name, choice, field)
            _check_domain(name, domains[name], field)
        elif choice != FIXED:
            words = repr(FIXED) if isinstance(field.domain, type) else f"{FIXED!r} or {EVOLVE!r}"
            valid = f"{field.range}, or several" if field.names else "two bounds, one value"
            raise SettingError(name, choice, f"must be {valid}, a domain or {words}")
    # In field order: each field's random number depends on its position, which must not depend on the order of choices.
    ordered = {name: domains[name] for name in space.defaults._fields if name in domains}
    return space._replace(defaults=space.defaults._replace(**values), domains=MappingProxyType(ordered))


def other_values(space: Space, name: str) -> list[float]:
    """Return valid values of a field that differ from its default: its bounds, and values far below and above it; of a
    `Choice` all others."""
    value, field = float(getattr(space.defaults, name)), space.fields.get(name, _ANY_VALUE)
    bounds = (domain.low, domain.high) if (domain := space.domains.get(name)) else ()
    found = (*bounds, *(factor * value for factor in (1e-6, 0.01, 0.5, 2.0, 100.0)), value + 0.1)
    if field.scale.is_whole:
        found = range(len(field.names)) if field.names else (*map(round, found), value + 1.0, value - 1.0)
    return [float(other) for other in found if field.low <= other <= field.high and other != value]


def describe(space: Space) -> dict[str, Any]:
    """Return a space as plain values: field -> `{"scale", "low", "high"}` if it evolves, or `{"scale", "names"}`, else
    its default value or name."""
    description: dict[str, Any] = {name: getattr(space.defaults, name) for name in _names(space)}
    description |= {name: among[int(description[name])] for name, among in choices_of(space).items()}
    for name, domain in space.domains.items():
        names = {"names": list(domain.names)} if isinstance(domain, Choice) else None
        description[name] = {"scale": type(domain).__name__, **(names or {"low": domain.low, "high": domain.high})}
    return description


def choices_of(space: Space) -> dict[str, tuple[str, ...]]:
    """Name of each hyper-parameter that is a `Choice` -> the names of its values, in their order."""
    return {name: field.names for name, field in space.fields.items() if field.names and hasattr(space.defaults, name)}


def _names(space: Space) -> tuple[str, ...]:
    """Names of the fields that can be chosen: the declared fields, or all fields if none is declared."""
    return tuple(space.fields) or space.defaults._fields


def _plain(choice: Any) -> Any:
    """Arrays as Python's numbers, and sequences as tuples; other choices, such as domains, unchanged."""
    choice = choice.tolist() if hasattr(choice, "tolist") else choice
    return tuple(map(_plain, choice)) if isinstance(choice, list | tuple) else choice


def _domain(name: str, choice: Any, field: Field) -> Domain:
    """Return a domain unchanged, or build one from two bounds on the field's scale."""
    if field.names and isinstance(names := getattr(choice, "names", choice), tuple):
        if len({*names}) < max(2, len(names)):
            raise SettingError(name, " ".join(map(str, names)), "needs two or more different names")
        return Choice(*(field.names[_place(name, one, field)] for one in names), among=field.names)
    if not isinstance(choice, tuple):
        return choice
    if len(choice) != 2 or not all(type(bound) in (int, float) for bound in choice):
        raise SettingError(name, choice, "needs two numbers as bounds")
    return field.scale(*choice)


def _check_name(name: str, fields: tuple[str, ...]) -> None:
    if name not in fields:
        of_learner = "parameters of the task, and widths, are in the space of a learner, if it has them."
        otherwise = of_learner if name == "hidden_size" or name.startswith("env_") else ""
        raise unknown_name(name, name, "hyper-parameter here named", fields, otherwise)


def _place(name: str, value: Any, field: Field) -> int:
    if value not in field.names:
        raise unknown_name(name, value, "choice named", field.names)
    return field.names.index(value)


def _check_value(name: str, value: float, field: Field) -> None:
    above = field.scale is LogUniform and float32(value) <= 0 and not (field.zero and value == 0)
    below = field.scale is OneMinusLog and value > 1
    if above or below or not (math.isfinite(float32(value)) and field.low <= value <= field.high):
        remedy = field.remedy if value > field.high else ""
        raise SettingError(name, value, f"must lie {field.range}", remedy)
    if field.scale.is_whole and value != round(value):
        raise SettingError(name, value, "must be a whole number")


def _check_domain(name: str, domain: Domain, field: Field) -> None:
    if field.scale.is_whole and (not domain.is_whole or bool(field.names) != isinstance(domain, Choice)):
        known = field.range if field.names else "a whole number"
        raise SettingError(name, None, f"must be {known}", f"give a {field.scale.__name__}")
    if isinstance(domain, Choice):
        return
    low, high = float32(domain.low), float32(domain.high)
    if not (math.isfinite(low) and math.isfinite(float32(high - low)) and low < high):
        problem = f"has an empty interval [{domain.low}, {domain.high}]"
        raise SettingError(name, None, problem, "give low < high, in numbers that differ in float32")
    if isinstance(domain, LogUniform) and low < _SMALLEST:
        problem = f"is drawn on a logarithmic scale and needs a lower bound above 0 (at least {_SMALLEST:.2g})"
        raise SettingError(name, domain.low, problem)
    if isinstance(domain, OneMinusLog) and domain.high > _LARGEST_DISCOUNT:
        problem = f"has the scale log(1 - x) and needs an upper bound below 1 (at most {_LARGEST_DISCOUNT})"
        raise SettingError(name, domain.high, problem, "the constant 1 is valid")
    for bound in (domain.low, domain.high):
        _check_value(name, bound, field)
        if domain.is_whole and bound != round(bound):
            raise SettingError(name, bound, "must be a whole number, as both bounds of this domain")


_LARGEST_DISCOUNT = 0.999999  # 17 steps of float32 below 1
_SMALLEST = float(np.finfo(np.float32).tiny)


def sample(space: Space[HyperT], key: Key) -> HyperT:
    """One member's hyper-parameters, `[]` float32: evolving fields uniform on their scales, the others default."""
    # One draw for all fields: each separate one would add a hundred instructions to the compiled program.
    fractions = jax.random.uniform(key, (len(space.domains),))
    domains = enumerate(space.domains.items())
    return defaults(space)._replace(**{name: domain.clip(domain.at(fractions[i])) for i, (name, domain) in domains})


def defaults(space: Space[HyperT]) -> HyperT:
    """Return the default values as `[]` float32."""
    return jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), space.defaults)


def perturb(
    space: Space[HyperT], hyper: HyperT, key: Key, factors: tuple[float, float], resample_probability: float
) -> HyperT:
    """Perturb the hyper-parameters of one child: the "explore" of PBT (Jaderberg 2017, arXiv:1711.09846, section 4).

    Each evolving field is, independently, resampled with `resample_probability`, or else multiplied on its scale by one
    of the two `factors` (with equal probability; see `Uniform.scale` for values near 0 and intervals across 0), by at
    least 1 if it is a whole number; then it is clipped to its bounds. A `Choice` changes only where it is resampled, to
    another name.

    Returns:
      A `Hyper` of `[]` float32; fields that do not evolve are unchanged.
    Deviation: a discount is perturbed on the scale 1 - x; the paper multiplies x itself, which can leave (0, 1).
    """
    fractions, choices, chances = jax.random.uniform(key, (3, len(space.domains)))
    factor, fresh, changed = jnp.where(choices < 0.5, *factors), chances < resample_probability, {}
    for i, (name, domain) in enumerate(space.domains.items()):
        value = getattr(hyper, name)
        other = jnp.where(fresh[i], domain.another(fractions[i], value), domain.scale(value, factor[i]))
        changed[name] = domain.clip(other)
    return hyper._replace(**changed)


def resample(space: Space[HyperT], hyper: HyperT, key: Key) -> HyperT:
    """Replace every evolving field of one member by a new sample; the key is consumed."""
    fresh = sample(space, key)
    return hyper._replace(**{name: getattr(fresh, name) for name in space.domains})


def clip(space: Space[HyperT], hyper: HyperT) -> HyperT:
    """Clip every evolving field to its bounds."""
    return hyper._replace(**{name: domain.clip(getattr(hyper, name)) for name, domain in space.domains.items()})
