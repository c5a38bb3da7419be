"""Adam with a traced rate equals Optax's bit by bit; Polyak averages by hand."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rookery import gradients

RATES = (1e-2, 3e-4)


def parameters() -> dict[str, jax.Array]:
    keys = jax.random.split(jax.random.key(0), 2)
    return {"kernel": jax.random.normal(keys[0], (5, 3)), "bias": jax.random.normal(keys[1], (3,))}


def slopes(step: int) -> dict[str, jax.Array]:
    return jax.tree.map(lambda leaf: jnp.sin((step + 1.0) * leaf) * 10.0 ** (step - 2), parameters())


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("compiled", "rectified"), [(False, False), (True, False), (True, True)])
def test_adam_is_bit_equal_to_optax(rate: float, compiled: bool, rectified: bool) -> None:
    optimizer = (optax.radam if rectified else optax.adam)(rate)

    def reference(params: dict[str, jax.Array], moments: Any, slope: dict[str, jax.Array]) -> Any:
        with jax.numpy_dtype_promotion("standard"):  # as Optax needs it
            updates, moments = optimizer.update(slope, moments, params)
        return optax.apply_updates(params, updates), moments

    adam = partial(gradients.adam, rectified=rectified)
    ours, theirs = (jax.jit(adam), jax.jit(reference)) if compiled else (adam, reference)
    learned = gradients.start(parameters())
    params, moments = parameters(), optimizer.init(parameters())
    for step in range(8):  # the rate of RAdam is rectified from the sixth step on
        learned = ours(learned, slopes(step), jnp.float32(rate))
        params, moments = theirs(params, moments, slopes(step))
        for name in params:
            np.testing.assert_array_equal(learned.params[name], params[name])


def test_the_first_step_is_the_rate_against_the_slope() -> None:
    # Both moments are corrected for their start, so the first step is rate x slope / (|slope| + 1e-8).
    learned = gradients.adam(
        gradients.start(jnp.asarray([1.0, 1.0, 1.0])), jnp.asarray([4.0, -0.1, 0.0]), jnp.float32(0.5)
    )
    np.testing.assert_allclose(learned.params, [0.5, 1.5, 1.0], rtol=1e-5)
    # rate x slope / (|slope| + epsilon): 0.5 x 3 / (3 + 1).
    learned = gradients.adam(gradients.start(jnp.asarray([1.0])), jnp.asarray([3.0]), jnp.float32(0.5), epsilon=1.0)
    np.testing.assert_allclose(learned.params, [1.0 - 0.375], rtol=1e-5)


def test_members_have_separate_rates_in_one_compilation() -> None:
    traces = []

    def step(learned: gradients.Learned, slope: dict, rate: jax.Array) -> gradients.Learned:
        traces.append(rate)
        return gradients.adam(learned, slope, rate)

    both = jax.jit(jax.vmap(step, in_axes=(None, None, 0)))
    for rates in (jnp.asarray(RATES), jnp.asarray([0.5, 0.25])):
        moved = both(gradients.start(parameters()), slopes(0), rates).params["bias"]
        for index, rate in enumerate(rates):
            single = gradients.adam(gradients.start(parameters()), slopes(0), rate).params["bias"]
            np.testing.assert_allclose(moved[index], single, rtol=1e-6)
    assert len(traces) == 1


def test_polyak_by_hand() -> None:
    # 1 + 0.25 x (3 - 1) = 1.5; -4 + 0.25 x (0 + 4) = -3.
    target, new = {"a": jnp.asarray([1.0, -4.0])}, {"a": jnp.asarray([3.0, 0.0])}
    assert gradients.polyak(target, new, jnp.float32(0.25))["a"].tolist() == [1.5, -3.0]
    assert gradients.polyak(target, new, jnp.float32(0.0))["a"].tolist() == [1.0, -4.0]
    assert gradients.polyak(target, new, jnp.float32(1.0))["a"].tolist() == [3.0, 0.0]
    assert target["a"].tolist() == [1.0, -4.0]


def test_a_gradient_above_the_limit_is_scaled_to_the_limit() -> None:
    # The norm over all leaves is 5: sqrt(3^2 + 4^2).
    tree = {"a": jnp.asarray([3.0, 0.0]), "b": jnp.asarray([[-4.0]])}
    short = gradients.clip_norm(tree, jnp.float32(0.5))
    np.testing.assert_allclose(short["a"], [0.3, 0.0], rtol=1e-6)
    np.testing.assert_allclose(short["b"], [[-0.4]], rtol=1e-6)
    for limit in (5.0, 6.0):
        same = gradients.clip_norm(tree, jnp.float32(limit))
        assert same["a"].tolist() == [3.0, 0.0]
        assert same["b"].tolist() == [[-4.0]]


def test_a_zero_gradient_stays_and_members_have_separate_limits() -> None:
    slopes_of_two = jnp.asarray([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]])
    clipped = jax.vmap(gradients.clip_norm)(slopes_of_two, jnp.asarray([1.0, 10.0, 1.0]))
    np.testing.assert_allclose(clipped, [[0.6, 0.8], [3.0, 4.0], [0.0, 0.0]], rtol=1e-6)
