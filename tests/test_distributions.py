"""Action distributions against formulas written out in double precision, and at the edge of what floats hold."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from rookery import distributions

HALF_LOG_TWO_PI = 0.9189385332046727
direction_log_ratio = jax.jit(distributions.direction_log_ratio)
tanh_normal_sample = jax.jit(distributions.tanh_normal_sample)


def outputs(mean: list[float], log_std: list[float]) -> jax.Array:
    return jnp.asarray([*mean, *log_std], jnp.float32)


def test_parameters_are_split_mean_first_and_the_log_std_is_clipped() -> None:
    mean, log_std = distributions.normal_parameters(outputs([3.0, -30.0, 30.0], [0.5, -30.0, 30.0]))
    assert mean.tolist() == [3.0, -30.0, 30.0]
    assert log_std.tolist() == [0.5, -20.0, 2.0]


def test_normal_log_density_by_hand() -> None:
    # Standard normal at 0 and at 1; std e at 2 + 3 e: -(3^2)/2 - 1 - log sqrt(2 pi). Densities of dimensions add up.
    one = distributions.normal_log_prob(outputs([0.0], [0.0]), jnp.zeros(1))
    two = distributions.normal_log_prob(outputs([0.0, 2.0], [0.0, 1.0]), jnp.asarray([1.0, 2.0 + 3.0 * math.e]))
    assert float(one) == pytest.approx(-HALF_LOG_TWO_PI, rel=1e-6)
    assert float(two) == pytest.approx(-0.5 - 4.5 - 1.0 - 2 * HALF_LOG_TWO_PI, rel=1e-5)


def test_normal_entropy_by_hand() -> None:
    # log(sigma sqrt(2 pi e)) = log sigma + 1/2 + log sqrt(2 pi), summed over dimensions.
    entropy = distributions.normal_entropy(outputs([5.0, 6.0], [0.25, -1.0]))
    assert float(entropy) == pytest.approx(-0.75 + 2 * (0.5 + HALF_LOG_TWO_PI), rel=1e-6)


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -0.7), (-1.2, 0.4)])
def test_squashed_log_density_equals_the_numerical_change_of_variables(mean: float, log_std: float) -> None:
    noise = np.linspace(-2.0, 2.0, 41)
    single = outputs([mean], [log_std])
    action, log_prob = tanh_normal_sample(jnp.broadcast_to(single, (41, 2)), jnp.asarray(noise, jnp.float32)[:, None])
    std, h = math.exp(log_std), 1e-5
    np.testing.assert_allclose(action[:, 0], np.tanh(mean + std * noise), rtol=1e-5, atol=1e-6)
    slope = (np.tanh(mean + std * (noise + h)) - np.tanh(mean + std * (noise - h))) / (2 * h)
    expected = -0.5 * noise**2 - HALF_LOG_TWO_PI - np.log(slope)  # p(action) = p(noise) / |d action / d noise|
    np.testing.assert_allclose(log_prob, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.3, 0.5), (-1.0, 0.2)])
def test_squashed_density_integrates_to_one(mean: float, std: float) -> None:
    single = outputs([mean], [math.log(std)])
    grid = jnp.linspace(-5.0, 5.0, 20_001)
    action, log_prob = tanh_normal_sample(jnp.broadcast_to(single, (20_001, 2)), grid[:, None])
    density, action = np.exp(np.asarray(log_prob, np.float64)), np.asarray(action[:, 0], np.float64)
    area = np.sum((density[1:] + density[:-1]) / 2 * np.diff(action))
    assert area == pytest.approx(1.0, abs=2e-3)


def test_extreme_values_stay_finite_and_so_do_their_gradients() -> None:
    def log_prob(parameters: jax.Array, noise: jax.Array) -> jax.Array:
        return tanh_normal_sample(parameters, noise)[1]

    cases = itertools.product([-1e4, -50.0, 0.0, 50.0, 1e4], [-1e4, -20.0, 2.0, 1e4], [-6.0, 0.0, 6.0])
    parameters, noise = jnp.split(jnp.asarray(list(cases), jnp.float32), [2], axis=1)
    action, density = tanh_normal_sample(parameters, noise)
    assert (np.abs(action) <= 1.0).all()
    assert np.isfinite(density).all()
    assert np.isfinite(jax.jit(jax.vmap(jax.grad(log_prob)))(parameters, noise)).all()


def test_far_out_the_log_density_grows_as_it_must() -> None:
    # u = 30: -log(1 - tanh(u)^2) = 2 u - log 4 up to e^-60, where tanh itself has long been 1 in floats.
    log_prob = tanh_normal_sample(outputs([30.0], [0.0]), jnp.zeros(1))[1]
    assert float(log_prob) == pytest.approx(-HALF_LOG_TWO_PI + 60.0 - math.log(4.0), rel=1e-6)


def test_the_mode_is_the_squashed_mean() -> None:
    mode = distributions.tanh_normal_mode(outputs([0.5, -2.0], [1.0, -3.0]))
    np.testing.assert_allclose(mode, [math.tanh(0.5), math.tanh(-2.0)], rtol=1e-6)


def test_categorical_log_probability_and_entropy_by_hand() -> None:
    logits = jnp.log(jnp.asarray([0.2, 0.3, 0.5])) + 4.0  # a shift of all logits changes nothing
    log_probs = [float(distributions.categorical_log_prob(logits, jnp.asarray(i))) for i in range(3)]
    np.testing.assert_allclose(log_probs, np.log([0.2, 0.3, 0.5]), rtol=1e-5)
    rows = jnp.broadcast_to(logits, (1, 3, 3))  # leading axes are kept
    np.testing.assert_allclose(distributions.categorical_log_prob(rows, jnp.arange(3)[None]), [log_probs], rtol=1e-5)
    assert distributions.categorical_entropy(rows).shape == (1, 3)
    expected = -(0.2 * math.log(0.2) + 0.3 * math.log(0.3) + 0.5 * math.log(0.5))
    assert float(distributions.categorical_entropy(logits)) == pytest.approx(expected, rel=1e-5)


def test_a_certain_choice_has_no_entropy_and_finite_numbers() -> None:
    logits = jnp.asarray([1e4, -1e4, 0.0])
    assert float(distributions.categorical_entropy(logits)) == 0.0
    assert float(distributions.categorical_log_prob(logits, jnp.asarray(0))) == 0.0
    assert float(distributions.categorical_log_prob(logits, jnp.asarray(1))) == -2e4
    assert np.isfinite(jax.grad(distributions.categorical_entropy)(logits)).all()
    alone = distributions.masked_logits(jnp.asarray([50.0, -50.0, 80.0]), jnp.asarray([False, True, False]))
    assert float(distributions.categorical_log_prob(alone, jnp.asarray(1))) == 0.0  # however small its logit
    assert float(distributions.categorical_entropy(alone)) == 0.0


def test_the_parts_of_an_action_are_independent_categoricals() -> None:
    shares = jnp.asarray([0.2, 0.8, 0.5, 0.3, 0.2, 1.0])
    logits = jnp.broadcast_to(jnp.log(shares), (3, 6))  # leading axes are kept
    parts = distributions.by_part(logits, (2, 3, 1))
    assert parts.shape == (3, 3, 3)
    chosen = jnp.asarray([[1, 0, 0], [0, 2, 0], [1, 1, 0]])
    log_prob = distributions.categorical_log_prob(parts, chosen).sum(axis=-1)
    np.testing.assert_allclose(np.exp(log_prob), [0.8 * 0.5, 0.2 * 0.2, 0.8 * 0.3], rtol=1e-5)
    by_hand = [-sum(p * math.log(p) for p in part) for part in ((0.2, 0.8), (0.5, 0.3, 0.2), (1.0,))]
    np.testing.assert_allclose(distributions.categorical_entropy(parts)[0], by_hand, atol=1e-6)
    drawn = jax.random.categorical(jax.random.key(0), parts[0], shape=(4_000, 3))
    for part, expected in zip(drawn.T, ((0.2, 0.8), (0.5, 0.3, 0.2), (1.0,)), strict=True):
        np.testing.assert_allclose(np.bincount(part) / 4_000, expected, atol=0.03)
    assert distributions.by_part(logits, ()) is logits


# --- unavailable actions and dimensions


def test_an_unavailable_action_has_probability_zero_and_is_never_drawn() -> None:
    # Of logits log(0.2), log(0.3), log(0.5) without the second: 2/7 and 5/7.
    exists = jnp.asarray([True, False, True])
    logits = distributions.masked_logits(jnp.log(jnp.asarray([0.2, 0.3, 0.5])), exists)
    log_probs = [float(distributions.categorical_log_prob(logits, jnp.asarray(i))) for i in range(3)]
    np.testing.assert_allclose(np.exp(log_probs), [2 / 7, 0.0, 5 / 7], rtol=1e-5)
    assert math.isfinite(log_probs[1])
    entropy = -(2 / 7 * math.log(2 / 7) + 5 / 7 * math.log(5 / 7))
    assert float(distributions.categorical_entropy(logits)) == pytest.approx(entropy, rel=1e-5)
    drawn = jax.random.categorical(jax.random.key(0), logits, shape=(2_000,))
    assert set(np.asarray(drawn).tolist()) == {0, 2}


def test_masked_logits_have_gradients_for_available_actions_only() -> None:
    def objective(logits: jax.Array) -> jax.Array:
        masked = distributions.masked_logits(logits, jnp.asarray([True, False, True]))
        entropy = distributions.categorical_entropy(masked)
        return distributions.categorical_log_prob(masked, jnp.asarray(2)) + entropy

    slope = jax.grad(objective)(jnp.asarray([0.3, 7.0, -0.2]))
    assert np.isfinite(slope).all()
    assert float(slope[1]) == 0.0
    assert float(slope[0]) != 0.0


def test_an_unavailable_dimension_has_no_effect_on_density_and_entropy() -> None:
    both, exists = outputs([0.3, -0.2], [0.1, -0.5]), jnp.asarray([False, True])
    value = jnp.asarray([jnp.float32(1e3), 0.7])
    alone = outputs([-0.2], [-0.5])
    expected = float(distributions.normal_log_prob(alone, value[1:]))
    assert float(distributions.normal_log_prob(both, value, exists)) == pytest.approx(expected, rel=1e-6)
    entropy = float(distributions.normal_entropy(alone))
    assert float(distributions.normal_entropy(both, exists)) == pytest.approx(entropy, rel=1e-6)
    slope = jax.grad(distributions.normal_log_prob)(both, value, exists)
    assert slope[jnp.asarray([0, 2])].tolist() == [0.0, 0.0]


# --- directions


CONCENTRATIONS = [0.0, 0.1, 1.0, 10.0, 50.0]


def log_mean(size: int, concentration: float) -> float:
    """The logarithm of the mean of exp(k cosine) over a sphere: Gamma(S/2) (2/k)^(S/2-1) I_(S/2-1)(k)."""
    if concentration == 0.0:
        return 0.0
    order = size / 2 - 1
    bessel = math.log(scipy.special.ive(order, concentration)) + concentration
    return math.lgamma(size / 2) + order * math.log(2 / concentration) + bessel


def direction(size: int) -> np.ndarray:
    vector = np.arange(1.0, size + 1.0)
    return vector / np.linalg.norm(vector)


def test_the_reference_for_the_density_of_directions() -> None:
    for concentration in (0.1, 1.0, 10.0, 50.0):
        sinh = math.log(math.sinh(concentration) / concentration)
        assert log_mean(3, concentration) == pytest.approx(sinh, rel=1e-9)
        angles = np.arange(720) * math.pi / 360
        around = np.mean(np.exp(concentration * np.cos(angles)))
        assert log_mean(2, concentration) == pytest.approx(math.log(around), rel=1e-9)


@pytest.mark.parametrize("size", [2, 3, 5, 30])
def test_a_directions_log_ratio_against_bessel_functions(size: int) -> None:
    mean = direction(size)
    values = np.stack([mean, -mean, np.eye(size)[0]])
    outputs = np.asarray(CONCENTRATIONS)[:, None, None] * mean
    found = direction_log_ratio(
        jnp.asarray(np.broadcast_to(outputs, (5, 3, size)), jnp.float32),
        jnp.asarray(np.broadcast_to(values, (5, 3, size)), jnp.float32),
    )
    cosines = values @ mean
    expected = [[k * cosine - log_mean(size, k) for cosine in cosines] for k in CONCENTRATIONS]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("size", [2, 3])
def test_a_directions_density_has_the_mean_of_the_uniform_one(size: int) -> None:
    # All directions of a circle; of a sphere, height and angle (Archimedes), in the middle of cells of equal area.
    angle = (np.arange(64) + 0.5) * math.pi / 32
    height = (np.arange(400) + 0.5) / 200 - 1.0 if size == 3 else np.zeros(1)
    around = np.sqrt(1 - height**2)[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1)[None]
    every = np.concatenate([around, np.broadcast_to(height[:, None, None], (len(height), 64, 1))], axis=-1)
    every = jnp.asarray(every.reshape(-1, 3)[:, :size], jnp.float32)
    for concentration in (0.0, 1.0, 10.0):
        outputs = jnp.broadcast_to(jnp.asarray(concentration * direction(size), jnp.float32), every.shape)
        ratio = direction_log_ratio(outputs, every)
        assert float(jnp.mean(jnp.exp(ratio))) == pytest.approx(1.0, rel=1e-3)


def test_a_direction_that_is_more_than_certain_counts_as_certain() -> None:
    mean, value = direction(3), jnp.asarray([0.0, 0.0, 1.0])
    certain, more = (direction_log_ratio(jnp.asarray(k * mean, jnp.float32), value) for k in (50.0, 5_000.0))
    assert float(more) == pytest.approx(float(certain), rel=1e-5)


@pytest.mark.parametrize("size", [2, 5])
def test_an_unknown_direction_has_a_slope_towards_the_value(size: int) -> None:
    # d (o v - A(|o|)) / d o at o = 0 is v, since A begins as k^2 / 2 S.
    value = jnp.asarray(direction(size), jnp.float32)
    slope = jax.jit(jax.grad(distributions.direction_log_ratio))(jnp.zeros(size), value)
    np.testing.assert_allclose(slope, value, rtol=1e-4, atol=1e-6)
    far = jax.jit(jax.grad(distributions.direction_log_ratio))(jnp.full((size,), 1e4), value)
    assert np.isfinite(far).all()


def test_the_areas_of_spheres() -> None:
    assert math.exp(distributions.direction_log_area(2)) == pytest.approx(2 * math.pi, rel=1e-12)
    assert math.exp(distributions.direction_log_area(3)) == pytest.approx(4 * math.pi, rel=1e-12)
    assert math.exp(distributions.direction_log_area(4)) == pytest.approx(2 * math.pi**2, rel=1e-12)
