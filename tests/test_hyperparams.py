"""Search spaces: draws are uniform on the declared scale, perturbations independent and inside the bounds."""

import math
from collections import namedtuple
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import hyperparams
from rookery.agents import ppo_settings
from rookery.agents.sac import SPACE as SAC_SPACE
from rookery.agents.skills.diayn import space as diayn_space
from rookery.agents.td3 import SPACE as TD3_SPACE
from rookery.hyperparams import (
    Choice,
    Domain,
    Field,
    LogUniform,
    LogWhole,
    OneMinusLog,
    Uniform,
    Whole,
    choose,
    describe,
)

MEMBERS = 2_000
FACTORS = (0.8, 1.25)


class Knobs(NamedTuple):
    noise: jax.Array | float = 0.25
    rate: jax.Array | float = 1e-3
    discount: jax.Array | float = 0.99
    fixed: jax.Array | float = 7.0


DOMAINS = {"noise": Uniform(0.0, 1.0), "rate": LogUniform(1e-5, 1e-1), "discount": OneMinusLog(0.9, 0.999)}
SPACE = hyperparams.space(Knobs(), DOMAINS)
TO_UNIT = {
    "noise": lambda x: x,
    "rate": lambda x: (np.log10(x) + 5) / 4,  # 1e-5 -> 0, 1e-1 -> 1
    "discount": lambda x: (-np.log10(1 - x) - 1) / 2,  # 0.9 -> 0, 0.999 -> 1
}


def keys(seed: int, count: int = MEMBERS) -> jax.Array:
    return jax.random.split(jax.random.key(seed), count)


def perturbed(hyper: Knobs, seed: int, resample: float, count: int = MEMBERS) -> Knobs:
    """`count` children of one parent."""
    change = partial(hyperparams.perturb, SPACE, hyper, factors=FACTORS, resample_probability=resample)
    return jax.jit(jax.vmap(change))(keys(seed, count))


def up(children: Knobs) -> np.ndarray:
    """`[members, 3]`: which fields took the factor 1.25 (a discount's distance to 1 grows, so it falls)."""
    start = hyperparams.defaults(SPACE)
    grown = [np.asarray(children.noise) > start.noise, np.asarray(children.rate) > start.rate]
    return np.stack([*grown, np.asarray(children.discount) < start.discount], axis=1)


def uniformity_distance(unit: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance to the uniform law on [0, 1]."""
    ranked = np.sort(unit.astype(np.float64))
    steps = np.arange(len(ranked) + 1) / len(ranked)
    return float(max(np.max(steps[1:] - ranked), np.max(ranked - steps[:-1])))


@pytest.fixture(scope="module")
def population() -> Knobs:
    return jax.jit(jax.vmap(partial(hyperparams.sample, SPACE)))(keys(0))


def test_defaults_are_scalars_of_float32() -> None:
    values = hyperparams.defaults(SPACE)
    assert all(isinstance(leaf, jax.Array) and leaf.dtype == jnp.float32 and leaf.shape == () for leaf in values)
    np.testing.assert_allclose(list(map(float, values)), [0.25, 1e-3, 0.99, 7.0], rtol=1e-7)


def test_draws_are_uniform_on_the_declared_scale(population: Knobs) -> None:
    for name, domain in DOMAINS.items():
        draws = np.asarray(getattr(population, name))
        assert draws.dtype == np.float32
        assert draws.min() >= np.float32(domain.low)
        assert draws.max() <= np.float32(domain.high)
        bound = 1.95 / math.sqrt(MEMBERS)  # a uniform law exceeds it once in a thousand seeds
        assert uniformity_distance(TO_UNIT[name](draws.astype(np.float64))) < bound
        if name != "noise":  # the check distinguishes the scales
            plain = np.random.default_rng(0).uniform(domain.low, domain.high, MEMBERS)
            assert uniformity_distance(TO_UNIT[name](plain)) > 0.3


def test_draws_of_different_fields_and_members_are_independent(population: Knobs) -> None:
    unit = np.stack([TO_UNIT[name](np.asarray(getattr(population, name), np.float64)) for name in DOMAINS])
    bound = 4 / math.sqrt(MEMBERS)  # four standard errors of a correlation of 0
    assert np.abs(np.corrcoef(unit) - np.eye(3)).max() < bound
    for row in unit:
        assert abs(np.corrcoef(row[:-1], row[1:])[0, 1]) < bound
    assert len(np.unique(unit[1])) > MEMBERS * 0.99
    assert np.asarray(population.fixed).tolist() == [7.0] * MEMBERS, "it does not evolve"
    sample = jax.jit(partial(hyperparams.sample, SPACE))
    one, same, other = (sample(jax.random.key(seed)) for seed in (3, 3, 4))
    assert [float(x) for x in one] == [float(x) for x in same]
    assert all(float(getattr(one, name)) != float(getattr(other, name)) for name in DOMAINS)


def test_factors_act_on_the_declared_scale() -> None:
    # 0.25 x 0.8 and x 1.25; 1e-3 x both; a discount's distance to 1: 0.01 x 0.8 = 0.008 and 0.01 x 1.25 = 0.0125.
    expected = {"noise": (0.2, 0.3125), "rate": (8e-4, 1.25e-3), "discount": (0.992, 0.9875)}
    children = perturbed(hyperparams.defaults(SPACE), seed=1, resample=0.0)
    for name, pair in expected.items():
        found = np.unique(np.asarray(getattr(children, name)))
        np.testing.assert_allclose(found, sorted(pair), rtol=1e-6)
    assert np.asarray(children.fixed).tolist() == [7.0] * MEMBERS


def test_the_two_factors_are_equally_likely_and_independent_between_fields_and_members() -> None:
    grown = up(perturbed(hyperparams.defaults(SPACE), seed=2, resample=0.0)).astype(np.float64)
    sigma = 1 / math.sqrt(MEMBERS)
    assert np.abs(grown.mean(axis=0) - 0.5).max() < 4 * 0.5 * sigma
    assert np.abs(np.corrcoef(grown.T) - np.eye(3)).max() < 4 * sigma
    assert len(np.unique(grown, axis=0)) == 8  # all combinations of three fields occur
    for field in grown.T:
        assert abs(np.corrcoef(field[:-1], field[1:])[0, 1]) < 4 * sigma


def test_perturbations_are_clipped_to_the_bounds() -> None:
    top = Knobs(*(jnp.float32(x) for x in (0.9, 0.09, 0.9989, 7.0)))
    children = perturbed(top, seed=3, resample=0.0, count=64)
    # 0.9 x 1.25 and 0.09 x 1.25 pass their bounds, as does 1 - 0.0011 x 0.8 = 0.99912.
    np.testing.assert_allclose(np.unique(children.noise), [0.72, 1.0], rtol=1e-6)
    np.testing.assert_allclose(np.unique(children.rate), [0.072, 0.1], rtol=1e-6)
    np.testing.assert_allclose(np.unique(children.discount), [0.998625, 0.999], rtol=1e-6)
    bottom = Knobs(*(jnp.float32(x) for x in (0.0, 1.1e-5, 0.91, 7.0)))
    children = perturbed(bottom, seed=3, resample=0.0, count=64)
    np.testing.assert_allclose(np.unique(children.rate), [1e-5, 1.375e-5], rtol=1e-6)  # 1.1e-5 x 0.8 = 8.8e-6
    np.testing.assert_allclose(np.unique(children.discount), [0.9, 0.928], rtol=1e-6)  # 1 - 0.09 x 1.25 = 0.8875


def test_resampling_draws_from_the_whole_space() -> None:
    children = perturbed(hyperparams.defaults(SPACE), seed=4, resample=1.0)
    unit = np.stack([to_unit(np.asarray(getattr(children, name), np.float64)) for name, to_unit in TO_UNIT.items()])
    assert max(map(uniformity_distance, unit)) < 1.95 / math.sqrt(MEMBERS)
    assert np.abs(np.corrcoef(unit) - np.eye(3)).max() < 4 / math.sqrt(MEMBERS), "each field has its own draw"
    assert np.asarray(children.fixed).tolist() == [7.0] * MEMBERS


def test_each_field_is_resampled_independently_with_the_given_probability() -> None:
    children = perturbed(hyperparams.defaults(SPACE), seed=5, resample=0.25)
    scaled = {"noise": (0.2, 0.3125), "rate": (8e-4, 1.25e-3), "discount": (0.992, 0.9875)}
    fresh = np.stack(
        [
            ~np.isclose(np.asarray(getattr(children, name))[:, None], pair, rtol=1e-6).any(axis=1)
            for name, pair in scaled.items()
        ]
    ).astype(np.float64)
    sigma = 1 / math.sqrt(MEMBERS)
    assert np.abs(fresh.mean(axis=1) - 0.25).max() < 4 * math.sqrt(0.25 * 0.75) * sigma
    assert np.abs(np.corrcoef(fresh) - np.eye(3)).max() < 4 * sigma
    for name, is_fresh in zip(scaled, fresh, strict=True):  # whether to draw does not decide what is drawn
        draws = np.asarray(getattr(children, name), np.float64)[is_fresh == 1]
        assert uniformity_distance(TO_UNIT[name](draws)) < 1.95 / math.sqrt(len(draws))


def test_every_key_is_consumed_once_and_a_fresh_draw_does_not_depend_on_the_factor_beside_it() -> None:
    def lineage(key: jax.Array) -> Knobs:
        one, other = jax.random.split(key)
        return hyperparams.perturb(SPACE, hyperparams.sample(SPACE, one), other, FACTORS, 0.25)

    with jax.debug_key_reuse(True):  # raises where a key is used again
        assert np.isfinite(jax.jit(lineage)(jax.random.key(0))).all()
    doubled = partial(hyperparams.perturb, SPACE, hyperparams.defaults(SPACE), resample_probability=1.0)
    one, other = (jax.jit(partial(doubled, factors=factors))(jax.random.key(0)) for factors in (FACTORS, (0.5, 2.0)))
    assert [float(x) for x in one] == [float(x) for x in other]


@pytest.mark.parametrize(
    "domain",
    [
        Uniform(-1.0, 1.0),
        Uniform(-0.1, 5.0),
        Uniform(0.0, 1.0),
        Uniform(-2.0, 0.0),
        Uniform(1e-9, 3.0),
        Uniform(-5.0, -1.0),
        LogUniform(1e-5, 1e-1),
        LogUniform(1e-37, 1e-35),
        OneMinusLog(0.0, 0.999999),
        LogWhole(1.0, 64.0),
        Whole(0, 9),
        Whole(-5, 5),
        Whole(-9, -1),
    ],
    ids=repr,
)
def test_perturbations_without_resampling_reach_the_whole_interval(domain: Domain) -> None:
    space = hyperparams.space(Knobs(), {"noise": domain})

    def walk(hyper: Knobs, key: jax.Array) -> tuple[Knobs, Any]:
        hyper = hyperparams.perturb(space, hyper, key, FACTORS, 0.0)
        return hyper, hyper.noise

    def walks(first: Knobs, keys: jax.Array) -> jax.Array:
        return jax.vmap(lambda key: jax.lax.scan(walk, first, jax.random.split(key, 1_000))[1])(keys)

    compiled, few = jax.jit(walks), domain.is_whole or domain.high < 0.0  # a quarter skips some tenths of these
    for start in (jnp.clip(0.0, domain.low, domain.high), *(domain.at(jnp.float32(at)) for at in (0.0, 0.5, 1.0))):
        first = hyperparams.defaults(space)._replace(noise=jnp.asarray(start, jnp.float32))
        values = np.asarray(compiled(first, keys(7, 64)))
        assert (values != np.asarray(start)).any(axis=1).all(), "no value is a trap"
        assert (values >= np.float32(domain.low)).all()
        assert (values <= np.float32(domain.high)).all()
        fractions = np.asarray(domain.fraction(jnp.asarray(values)))
        assert len(np.unique(np.clip(10 * fractions, 0, 9.999).astype(int))) >= (7 if few else 10)


COUNTABLE = [
    Whole(0, 1),
    Whole(0, 9),
    Whole(-3, 3),
    LogWhole(1, 12),
    Choice("a", "b"),
    Choice("c", "a", among=("a", "b", "c")),
]


@pytest.mark.parametrize("domain", COUNTABLE, ids=repr)
def test_domains_of_countable_values(domain: Domain) -> None:
    """Draws and perturbations reach every value, both bounds included, from every value, and no other number."""
    space = hyperparams.space(Knobs(noise=0.0), {"noise": domain}, {"noise": Field("", domain, low=-9.0)})
    values = [2.0, 0.0] if domain == COUNTABLE[-1] else np.arange(domain.low, domain.high + 1).tolist()
    drawn = jax.jit(jax.vmap(partial(hyperparams.sample, space)))(keys(0, 500)).noise
    assert np.unique(drawn).tolist() == sorted(values)
    if not isinstance(domain, LogWhole):  # all values are equally likely: within five standard deviations of it
        counts = np.unique(drawn, return_counts=True)[1]
        assert np.abs(counts - 500 / len(values)).max() < 5 * math.sqrt(500 / len(values))
    change = jax.jit(
        jax.vmap(partial(hyperparams.perturb, space, factors=FACTORS, resample_probability=0.25), (None, 0))
    )
    for value in values:
        children = np.asarray(change(Knobs(noise=jnp.float32(value)), keys(1, 2000)).noise)
        assert np.unique(children).tolist() == sorted(values)
        assert float(domain.at(domain.fraction(jnp.float32(value)))) == value
        kept = np.mean(children == value)
        if isinstance(domain, Choice):
            assert abs(kept - 0.75) < 0.1, "a child keeps a name where it is not resampled, and gets another one there"
        elif domain.low < value < domain.high:
            assert kept < 0.2, "only a new sample can be the same number"
        assert float(domain.clip(jnp.float32(value))) == value
        for features in (domain.features(domain.fraction(jnp.float32(value))), domain.features(jnp.float32(0.999))):
            assert features.shape == ((len(values),) if isinstance(domain, Choice) else (1,))


def test_a_kernel_sees_whole_numbers_and_no_order_of_names() -> None:
    place = jnp.linspace(0.0, 1.0, 101)
    assert len(np.unique(Whole(1, 4).features(place))) == 4
    assert np.asarray(Uniform(1, 4).features(place)).ravel().tolist() == np.asarray(place).tolist()
    one_hot = np.unique(Choice("a", "b", "c").features(place), axis=0)
    distances = np.linalg.norm(one_hot[:, None] - one_hot[None], axis=-1)
    np.testing.assert_allclose(distances, 1.0 - np.eye(3), atol=1e-6)


@pytest.mark.parametrize("low", [-1.0, -100.0, -0.01])
def test_an_interval_across_0_is_perturbed_by_shares_of_it(low: float) -> None:
    domain = Uniform(low, 1.0)
    for value in (0.0, 0.5, 0.9 * low):
        shifts = [float(domain.scale(jnp.float32(value), jnp.float32(factor)) - value) for factor in FACTORS]
        np.testing.assert_allclose(np.divide(shifts, 1.0 - low), [-0.0558, 0.0558], rtol=5e-3)


def test_clip_changes_only_values_outside_the_bounds() -> None:
    clipped = hyperparams.clip(SPACE, Knobs(*(jnp.float32(x) for x in (-1.0, 1e-3, 1.5, 70.0))))
    np.testing.assert_allclose(list(map(float, clipped)), [0.0, 1e-3, 0.999, 70.0], rtol=1e-7)


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        ({"discont": OneMinusLog(0.9, 0.99)}, "^there is no hyper-parameter here named 'discont'; did you mean"),
        ({"zzz": Uniform(0, 1)}, r"named 'zzz'; use one of noise, rate, discount, fixed\.$"),
        ({"noise": Uniform(1.0, 1.0)}, r"^noise has an empty interval \[1\.0, 1\.0\]; give low < high, in"),
        ({"noise": Uniform(2.0, 1.0)}, r"^noise has an empty interval \[2\.0, 1\.0\]; give low < high, in"),
        ({"noise": Uniform(math.nan, 1.0)}, r"^noise has an empty interval \[nan, 1\.0\]"),
        ({"noise": Uniform(0.0, math.inf)}, r"^noise has an empty interval \[0\.0, inf\]"),
        ({"rate": LogUniform(0.0, 1.0)}, r"^rate is drawn on a logarithmic scale and needs a lower .* got 0\.$"),
        ({"rate": LogUniform(-1.0, 1.0)}, r"^rate is drawn on a logarithmic scale .* above 0 .*, got -1\.$"),
        ({"discount": OneMinusLog(0.9, 1.0)}, r"^discount has the scale log\(1 - x\) .* below 1 .*, got 1;"),
        ({"noise": Uniform(1e6, 1e6 + 0.01)}, r"^noise has an empty interval .* numbers that differ in float32\.$"),
        ({"noise": Uniform(-3e38, 3e38)}, r"^noise has an empty interval"),
        ({"rate": LogUniform(1e-40, 1.0)}, r"^rate is drawn .* above 0 \(at least 1\.2e-38\), got 1e-40\.$"),
    ],
)
def test_invalid_spaces_are_errors(domains: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hyperparams.space(Knobs(), domains)


def test_names_of_hyper_parameters() -> None:
    for name in ("fitness", "parent", "generation", "member", "rating", "step"):  # columns of the lineage
        with pytest.raises(ValueError, match=rf"^the hyper-parameter '{name}' needs another name"):
            hyperparams.space(namedtuple("Own", [name])(0.5), {})
    own = hyperparams.space(namedtuple("Own", ["rate"])(0.5), {})
    with pytest.raises(ValueError, match="the hyper-parameter 'rate' is there twice"):
        hyperparams.join(own, own)
    domains = dict(DOMAINS)
    made = hyperparams.space(Knobs(), domains)
    domains.clear()
    assert list(made.domains) == list(DOMAINS), "it is independent of the given mapping"


def test_fractions_lie_evenly_on_the_domains_scale() -> None:
    for name, domain in DOMAINS.items():
        fractions = jnp.linspace(0.0, 1.0, 11)
        values = domain.at(fractions)
        np.testing.assert_allclose(TO_UNIT[name](np.asarray(values, np.float64)), fractions, atol=2e-5)
        np.testing.assert_allclose(domain.fraction(values), fractions, atol=2e-5)


FIELDS = {
    "noise": hyperparams.Field("of actions", Uniform),
    "rate": hyperparams.Field("step size", LogUniform),
    "discount": hyperparams.Field("per step", OneMinusLog),
    "fixed": hyperparams.Field("a share", LogUniform, high=1e2),
}
DECLARED = hyperparams.space(Knobs(), DOMAINS, FIELDS)


class Mixed(NamedTuple):
    steps: Annotated[jax.Array | float, Field("steps of a return", Whole, low=1.0, high=8.0)] = 1.0
    layer: Annotated[jax.Array | float, Field("between layers", Choice("tanh", "relu", "silu"), evolves=False)] = 0.0
    order: Annotated[jax.Array | float, Field("of the rows", Choice("fixed_order", "shuffled"))] = 1.0


MIXED = hyperparams.declared(Mixed)


class TestChoose:
    def test_bounds_are_meant_on_the_fields_scale_and_a_domain_has_its_own(self) -> None:
        made = hyperparams.choose(DECLARED, rate=(1e-4, 1e-2), fixed=(1.0, 9.0))
        assert made.domains == DOMAINS | {"rate": LogUniform(1e-4, 1e-2), "fixed": LogUniform(1.0, 9.0)}
        assert made.defaults == Knobs()
        made = hyperparams.choose(DECLARED, rate=Uniform(1e-4, 1e-2))
        assert made.domains["rate"] == Uniform(1e-4, 1e-2)

    def test_bounds_are_any_two_numbers_and_a_value_any_number(self) -> None:
        pairs: Any = ([1e-4, 1e-2], np.asarray([1e-4, 1e-2]), (np.float64(1e-4), jnp.float32(1e-2)))
        for bounds in pairs:
            found = hyperparams.choose(DECLARED, rate=bounds).domains["rate"]
            np.testing.assert_allclose((found.low, found.high), (1e-4, 1e-2), rtol=1e-6)
            assert {type(found), type(found.low), type(found.high)} == {LogUniform, float}
        values: Any = (np.float32(0.5), jnp.float32(0.5), np.asarray(0.5))
        for value in values:
            made = hyperparams.choose(DECLARED, rate=value)
            assert (type(made.defaults.rate), made.defaults.rate, "rate" in made.domains) == (float, 0.5, False)

    def test_fixed_keeps_the_default_and_a_value_becomes_it(self) -> None:
        made = hyperparams.choose(DECLARED, rate="fixed", discount=0.95)
        assert list(made.domains) == ["noise"]
        assert made.defaults == Knobs(discount=0.95)
        drawn = hyperparams.sample(made, jax.random.key(0))
        assert (drawn.rate, drawn.discount) == (np.float32(1e-3), np.float32(0.95))

    @pytest.mark.parametrize("name", ["discount", "gae_lambda"])
    def test_a_constant_of_1_is_valid_on_the_scale_of_discounts(self, name: str) -> None:
        assert getattr(hyperparams.choose(ppo_settings.SPACE, **{name: 1}).defaults, name) == 1.0
        assert ppo_settings.SPACE.fields[name].range == "in [0, 1]"
        domains = hyperparams.choose(ppo_settings.SPACE, **{name: Uniform(0.5, 1.0)}).domains
        assert domains[name] == Uniform(0.5, 1.0)

    def test_the_order_of_choices_changes_no_draw(self) -> None:
        one = hyperparams.choose(DECLARED, rate=(1e-4, 1e-2), fixed=(1.0, 9.0))
        other = hyperparams.choose(hyperparams.choose(DECLARED, fixed=(1.0, 9.0), rate="fixed"), rate=(1e-4, 1e-2))
        draws = [hyperparams.sample(space, jax.random.key(0)) for space in (one, other)]
        assert [float(x) for x in draws[0]] == [float(x) for x in draws[1]]

    @pytest.mark.parametrize(
        ("choice", "message"),
        [
            ({"rat": 1.0}, r"^there is no hyper-parameter here named 'rat'; did you mean rate\?$"),
            ({"discount": 1.2}, r"^discount must lie in \[0, 1\], got 1\.2\.$"),
            ({"discount": (0.9, 1.0)}, r"at most 0\.999999\), got 1; the constant 1 is valid\.$"),
            ({"discount": (0.9, 0.9999999)}, r"^discount has the scale log\(1 - x\) .* got 0\.9999999; "),
            ({"noise": 1e39}, r"^noise must lie in \[0, inf\), got 1e\+39\.$"),
            ({"discount": (0.9, 1.2)}, r"needs an upper bound below 1 .*, got 1\.2"),
            ({"discount": (-0.5, 0.9)}, r"^discount must lie in \[0, 1\], got -0\.5\.$"),
            ({"rate": -1e-3}, r"^rate must lie in \(0, inf\), got -0\.001\.$"),
            ({"rate": (-1.0, 1.0)}, r"needs a lower bound above 0 .*, got -1"),
            ({"rate": Uniform(-1.0, 1.0)}, r"^rate must lie in \(0, inf\), got -1\.$"),
            ({"noise": (-0.1, 0.1)}, r"^noise must lie in \[0, inf\), got -0\.1\.$"),
            ({"fixed": (1.0, 200.0)}, r"^fixed must lie in \(0, 100\], got 200\.$"),
            ({"noise": math.nan}, r"^noise must lie in \[0, inf\), got nan\.$"),
            ({"noise": (0.1, 0.2, 0.3)}, r"^noise needs two numbers as bounds, got \(0\.1, 0\.2, 0\.3\)\.$"),
            ({"noise": ("a", "b")}, r"^noise needs two numbers as bounds, got \('a', 'b'\)\.$"),
            ({"noise": (0.2, 0.1)}, r"^noise has an empty interval"),
            ({"noise": 10**400}, r"^noise must lie in \[0, inf\), got 10{400}\.$"),
            ({"noise": (0, 10**400)}, r"^noise has an empty interval \[0, inf\]"),
            ({"noise": True}, r"^noise must be two bounds, one value, a domain or 'fixed', got True\.$"),
            ({"noise": (False, 2.0)}, r"^noise needs two numbers as bounds, got \(False, 2\.0\)\.$"),
            ({"noise": "loose"}, r"^noise must be two bounds, one value, a domain or 'fixed', got 'loose'\.$"),
        ],
    )
    def test_invalid_choices_are_errors(self, choice: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            hyperparams.choose(DECLARED, **choice)

    def test_names_and_whole_numbers(self) -> None:
        assert hyperparams.choices_of(MIXED) == {
            "layer": ("tanh", "relu", "silu"),
            "order": ("fixed_order", "shuffled"),
        }
        assert describe(MIXED)["layer"] == "tanh"
        made = choose(MIXED, steps=(1, 4), layer=("silu", "tanh"), order="shuffled")
        assert made.domains == {
            "steps": Whole(1, 4),
            "layer": Choice("silu", "tanh", among=MIXED.fields["layer"].names),
        }
        assert describe(made)["layer"] == {"scale": "Choice", "names": ["silu", "tanh"]}
        assert describe(made)["order"] == "shuffled"
        drawn = jax.vmap(partial(hyperparams.sample, made))(keys(0, 64))
        assert np.unique(drawn.layer).tolist() == [0.0, 2.0], "values are places among all names"
        assert choose(MIXED, layer="silu").defaults.layer == 2.0
        assert choose(MIXED, layer="evolve").domains["layer"] == MIXED.fields["layer"].domain
        assert "layer" not in choose(made, layer="fixed").domains
        assert hyperparams.other_values(MIXED, "layer") == [1.0, 2.0]
        assert set(hyperparams.other_values(MIXED, "steps")) == {2.0}
        undeclared = hyperparams.space(Knobs(fixed=1.0), {"fixed": Choice("a", "b")})
        assert describe(choose(undeclared, fixed="a", noise=3.0))["fixed"] == "a"

    @pytest.mark.parametrize(
        ("choice", "message"),
        [
            ({"layer": "tahn"}, r"^there is no choice named 'tahn'; did you mean tanh\?$"),
            ({"layer": ("relu", "tahn")}, r"^there is no choice named 'tahn'; did you mean tanh\?$"),
            ({"layer": ("relu", "relu")}, r"^layer needs two or more different names, got"),
            ({"layer": ("relu",)}, r"^layer needs two or more different names, got"),
            ({"layer": Choice("relu", "elu")}, r"^there is no choice named 'elu'; did you mean relu"),
            (
                {"layer": 1},
                r"^layer must be one of tanh, relu, silu, or several, a domain or 'fixed' or 'evolve', got 1",
            ),
            ({"layer": (0, 1)}, r"^there is no choice named 0; "),
            ({"layer": Uniform(0, 2)}, r"^layer must be one of tanh, relu, silu; give a Choice\.$"),
            ({"steps": 1.5}, r"^steps must be a whole number, got 1\.5\.$"),
            ({"steps": (1, 2.5)}, r"^steps must be a whole number, got 2\.5\.$"),
            ({"steps": Uniform(1, 2)}, r"^steps must be a whole number; give a Whole\.$"),
            ({"steps": (3, 3)}, r"^steps has an empty interval \[3, 3\]"),
            ({"steps": Choice("a", "b")}, r"^steps must be a whole number; give a Whole\.$"),
        ],
    )
    def test_invalid_names_and_whole_numbers_are_errors(self, choice: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            choose(MIXED, **choice)

    def test_invalid_declarations_of_names(self) -> None:
        with pytest.raises(ValueError, match=r"'evolve' needs another name"):
            Choice("evolve", "a")
        with pytest.raises(
            ValueError, match=r"^fixed must be the place of one of the names a, b by default, .* got 7\.$"
        ):
            hyperparams.space(Knobs(), {"fixed": Choice("a", "b")})
        with pytest.raises(ValueError, match=r"^noise must be a whole number, as both bounds of this domain, got 0\.5"):
            hyperparams.space(Knobs(), {"noise": Whole(0.5, 3)})

    def test_a_space_in_plain_values(self) -> None:
        assert hyperparams.describe(hyperparams.choose(DECLARED, noise="fixed", discount=0.95)) == {
            "noise": 0.25,
            "rate": {"scale": "LogUniform", "low": 1e-5, "high": 1e-1},
            "discount": 0.95,
            "fixed": 7.0,
        }


class Annotations(NamedTuple):
    noise: Annotated[jax.Array | float, FIELDS["noise"]] = 0.25
    rate: Annotated[jax.Array | float, hyperparams.Field("step size", LogUniform(1e-5, 1e-1), high=1.0)] = 1e-3
    internal: jax.Array | float = 2.0


class Added(NamedTuple):
    extra: Annotated[jax.Array | float, hyperparams.Field("of the wrapper", Uniform(0.0, 9.0))] = 4.0


class TestDeclarations:
    def test_the_annotations_declare_defaults_domains_and_descriptions(self) -> None:
        space = hyperparams.declared(Annotations)
        assert space.defaults == Annotations(0.25, 1e-3, 2.0)
        assert dict(space.domains) == {"rate": LogUniform(1e-5, 1e-1)}
        assert {name: field.meaning for name, field in space.fields.items()} == {
            "noise": "of actions",
            "rate": "step size",
        }
        assert choose(space, noise=(0.1, 0.2)).domains["noise"] == Uniform(0.1, 0.2)
        with pytest.raises(ValueError, match=r"^rate must lie in \(0, 1\], got 2\.$"):
            choose(space, rate=2.0)

    def test_what_cannot_be_declared_or_chosen(self) -> None:
        class Wrong(NamedTuple):
            rate: Annotated[jax.Array | float, hyperparams.Field("", LogUniform(1e-5, 2.0), high=1.0)] = 1e-3

        with pytest.raises(ValueError, match=r"^rate must lie in \(0, 1\], got 2\.$"):
            hyperparams.declared(Wrong)
        with pytest.raises(ValueError, match=r"^there is no hyper-parameter here named 'internal'"):
            choose(hyperparams.declared(Annotations), internal=1.0)
        space = hyperparams.without(hyperparams.declared(Annotations), "rate")
        assert (space.defaults, dict(space.domains), list(space.fields)) == (Annotations(), {}, ["noise"])
        # Every field of a space without descriptions can be chosen after a join.
        assert choose(hyperparams.join(SPACE, hyperparams.declared(Added)), fixed=-1.0).defaults.fixed == -1.0

    def test_joined_spaces_have_the_fields_of_both_in_order(self) -> None:
        first, second = hyperparams.declared(Annotations), hyperparams.declared(Added)
        space = hyperparams.join(first, second)
        assert space.defaults._asdict() == {"noise": 0.25, "rate": 1e-3, "internal": 2.0, "extra": 4.0}
        assert dict(space.domains) == {**first.domains, **second.domains}
        assert dict(space.fields) == {**first.fields, **second.fields}
        assert type(hyperparams.join(first, second).defaults) is type(space.defaults)
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(space.defaults)]
        assert paths == [".noise", ".rate", ".internal", ".extra"]  # as checkpoints name them
        hyper = space.defaults._replace(rate=0.5, extra=3.0)
        assert hyperparams.select(Annotations(), hyper) == Annotations(rate=0.5)
        assert hyperparams.select(Added(), hyper) == Added(3.0)


def test_domains_of_different_scales_are_never_equal() -> None:
    domains = [scale(0.8, 0.99) for scale in (Uniform, LogUniform, OneMinusLog)]
    assert [[one == other for other in domains] for one in domains] == np.eye(3, dtype=bool).tolist()
    assert Uniform(0.8, 0.99) != (0.8, 0.99)
    assert Uniform(0.8, 0.99) == Uniform(0.8, 0.99) != Uniform(0.8, 0.98)
    assert len({*domains, Uniform(0.8, 0.99)}) == 3


@pytest.mark.parametrize(
    "space", [SAC_SPACE, TD3_SPACE, ppo_settings.SPACE, ppo_settings.CONTINUOUS.space, diayn_space(SAC_SPACE)]
)
def test_a_perturbation_seldom_lands_on_a_bound_and_the_space_can_be_recorded_as_bounds(space) -> None:
    fractions = (jnp.arange(1_000, dtype=jnp.float32) + 0.5) / 1_000
    for name, domain in space.domains.items():
        scaled = jnp.stack([domain.scale(domain.at(fractions), jnp.float32(factor)) for factor in FACTORS])
        assert float(jnp.mean((scaled <= domain.low) | (scaled >= domain.high))) < 0.15, name
    # A run directory has bounds only, and a resumed run must draw on the same scales.
    bounds = {name: (d["low"], d["high"]) if isinstance(d, dict) else d for name, d in describe(space).items()}
    assert dict(choose(space, **bounds).domains) == dict(space.domains)
