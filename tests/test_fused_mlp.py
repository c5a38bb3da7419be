"""The fused kernels of `benchmarks.fused_mlp`, interpreted on a CPU, beside plain products with the same rounding."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import described_gpu, fused_sac, work
from benchmarks.fused_mlp import Tiles, Weights, loss, mlp
from benchmarks.kernels import count_kernels, custom_calls
from rookery import networks
from rookery.types import Array, Observation

MEMBERS, CRITICS, ROWS, INPUTS, HIDDEN, OUTPUTS = 2, 2, 20, 23, (32, 64), 3
"""Two blocks of 16 rows, 32 inputs and 16 outputs, which are larger than the arrays, and two chunks of columns."""
TILES = Tiles(rows=16, chunk=16, interpret=True)


def rounded(array: Array) -> Array:
    return array.astype(jnp.bfloat16).astype(jnp.float32)


@jax.custom_vjp
def product(left: Array, right: Array) -> Array:
    """A product whose inputs, and those of whose derivatives, are rounded."""
    return rounded(left) @ rounded(right)


product.defvjp(
    lambda left, right: (product(left, right), (left, right)),
    lambda kept, slopes: (product(slopes, jnp.swapaxes(kept[1], 1, 2)), product(jnp.swapaxes(kept[0], 1, 2), slopes)),
)


def plain(weights: Weights, inputs: Array) -> Array:
    hidden = jnp.repeat(inputs, CRITICS, axis=0)
    for weight, bias in ((weights.w1, weights.b1), (weights.w2, weights.b2)):
        hidden = jax.nn.relu(product(hidden, weight) + bias[:, None])
    return product(hidden, weights.w3) + weights.b3[:, None]


def plain_loss(weights: Weights, inputs: Array, target: Array) -> Array:
    errors = plain(weights, inputs) - jnp.repeat(target, CRITICS, axis=0)
    return 0.5 * jnp.mean(jnp.sum(errors**2, axis=2), axis=1)


def draw(seed: int, *shape: int) -> Array:
    """Multiples of a quarter in [-1, 1]: the sums of their products are exact in float32, in any order."""
    return jnp.asarray(np.random.default_rng(seed).integers(-4, 5, shape) / 4, jnp.float32)


COUNT = MEMBERS * CRITICS
WEIGHTS = Weights(
    draw(1, COUNT, INPUTS, HIDDEN[0]),
    draw(2, COUNT, HIDDEN[0]),
    draw(3, COUNT, *HIDDEN),
    draw(4, COUNT, HIDDEN[1]),
    draw(5, COUNT, HIDDEN[1], OUTPUTS),
    draw(6, COUNT, OUTPUTS),
)
BATCH = draw(7, MEMBERS, ROWS, INPUTS)


@pytest.mark.parametrize("stored", [True, False])
def test_fused_outputs_and_all_their_gradients_are_those_of_plain_products(stored: bool):
    slopes = draw(8, COUNT, ROWS, OUTPUTS)
    fused = jax.jit(partial(jax.vjp, partial(mlp, TILES._replace(stored=stored))))
    outputs, back = fused(WEIGHTS, BATCH)
    expected, plain_back = jax.vjp(plain, WEIGHTS, BATCH)
    np.testing.assert_array_equal(outputs, expected)
    for found, wanted in zip(jax.tree.leaves(back(slopes)), jax.tree.leaves(plain_back(slopes)), strict=True):
        assert np.any(wanted)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("stored", [True, False])
def test_the_gradient_of_the_fused_loss_is_that_of_the_plain_one(stored: bool):
    """Errors are divided by the number of rows, so sums in float32 are rounded, by 2^-24 of their terms each time.

    The scales are powers of two, so that errors are rounded to bfloat16 alike before and after their product.
    """
    target, scale = draw(9, MEMBERS, ROWS, OUTPUTS), jnp.exp2(jnp.arange(COUNT, dtype=jnp.float32))
    fused = partial(loss, TILES._replace(stored=stored))
    np.testing.assert_allclose(fused(WEIGHTS, BATCH, target), plain_loss(WEIGHTS, BATCH, target), rtol=1e-6)
    found, wanted = (
        jax.jit(jax.grad(lambda weights, of=of: jnp.sum(scale * of(weights, BATCH, target))))(WEIGHTS)
        for of in (fused, plain_loss)
    )
    for mine, other in zip(found, wanted, strict=True):
        assert np.any(other)
        np.testing.assert_allclose(mine, other, rtol=0.0, atol=1e-6 * float(jnp.max(jnp.abs(other))))


@pytest.mark.parametrize("stacked", [True, False])
def test_sac_with_kernels_computes_what_its_networks_do(stacked: bool):
    shapes = work.Shapes(1, hidden_sizes=(32, 32), observation_size=5, action_size=2)
    agents: list[Any] = [fused_sac.with_kernels(shapes, one, interpret=True) for one in ("auto", "fused")]
    nets, fused = (agent.update.args[0] for agent in agents)
    observation, action = Observation(draw(10, 7, 5)), draw(11, 7, 2)
    critics = nets.critic.init(jax.random.key(0))
    critics = networks.stack_twins(critics) if stacked else critics
    for name, params, inputs in (
        ("critic", critics, (observation, action)),
        ("policy", nets.policy.init(jax.random.key(1)), (observation,)),
    ):
        found, wanted = (getattr(one, name).apply(params, *inputs) for one in (fused, nets))
        # Weights, inputs and two layers are rounded by at most 2^-9 of themselves.
        np.testing.assert_allclose(found, wanted, atol=2.0**-6 * float(jnp.max(jnp.abs(wanted))), rtol=0.0)


@pytest.mark.skipif(bool(described_gpu.missing()), reason=described_gpu.missing() or "")
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize(("stored", "kernels"), [(True, 2), (False, 1)])
def test_the_kernels_compile_for_a_gpu(stored: bool, kernels: int):
    gradient = jax.grad(lambda weights, *batch: jnp.sum(loss(Tiles(16, 16, stored=stored), weights, *batch)))
    compiled = described_gpu.compile_for_gpu(gradient, WEIGHTS, BATCH, draw(9, MEMBERS, ROWS, OUTPUTS))
    assert count_kernels(compiled.text).kinds["custom-call"] == kernels
    assert custom_calls(compiled.text) == ["__gpu$xla.gpu.triton"]
