"""Spectral normalisation, against singular values from NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from rookery import networks, normalize

KNOWN = {"bias": jnp.asarray([5.0, 6.0]), "kernel": jnp.asarray([[3.0, 0.0], [0.0, -4.0], [0.0, 0.0]])}


def test_a_known_kernel_is_divided_by_its_largest_singular_value() -> None:
    normalized_by = jax.jit(lambda key: normalize.normalize_kernels(KNOWN, normalize.start_vectors(KNOWN, key), 40))
    normalized, (vector,) = normalized_by(jax.random.key(0))
    np.testing.assert_allclose(normalized["kernel"], np.asarray(KNOWN["kernel"]) / 4.0, rtol=1e-5)
    np.testing.assert_array_equal(normalized["bias"], KNOWN["bias"])
    np.testing.assert_allclose(np.abs(vector), [0.0, 1.0], atol=1e-4)


def test_single_iterations_from_the_last_vectors_converge_to_a_network_that_is_1_lipschitz() -> None:
    network = networks.mlp((3,), (16, 16), 4)

    def prepare(key: jax.Array) -> tuple:
        params = jax.tree.map(lambda leaf: 3.0 * leaf + 0.1, network.init(key))
        vectors = normalize.start_vectors(params, key)

        def iterate(vectors: tuple, _: None) -> tuple:
            return normalize.normalize_kernels(params, vectors)[1], None

        vectors = jax.lax.scan(iterate, vectors, None, length=100)[0]
        normalized, _ = normalize.normalize_kernels(params, vectors)
        inputs = 5.0 * jax.random.normal(key, (200, 3))
        return normalized, inputs, network.apply(params, inputs), network.apply(normalized, inputs)

    normalized, inputs, before, after = jax.device_get(jax.jit(prepare)(jax.random.key(1)))
    for layer in normalized["params"].values():
        np.testing.assert_allclose(np.linalg.svd(layer["kernel"], compute_uv=False)[0], 1.0, rtol=1e-3)
    apart = np.linalg.norm(inputs[:100] - inputs[100:], axis=1)
    assert (np.linalg.norm(before[:100] - before[100:], axis=1) > apart).any()
    assert (np.linalg.norm(after[:100] - after[100:], axis=1) <= 1.01 * apart).all()


def test_gradients_have_no_component_along_a_scale_of_the_kernel() -> None:
    def output(scale: jax.Array) -> jax.Array:
        params = {"kernel": scale * jnp.asarray([[2.0, 1.0], [0.0, 1.0]])}
        normalized, _ = normalize.normalize_kernels(params, (jnp.asarray([1.0, 0.0]),), 30)
        return jnp.sum(normalized["kernel"])

    value, slope = jax.jit(jax.value_and_grad(output))(jnp.float32(1.5))
    largest = np.linalg.svd([[2.0, 1.0], [0.0, 1.0]], compute_uv=False)[0]
    np.testing.assert_allclose(value, 4.0 / largest, rtol=1e-5)
    np.testing.assert_allclose(slope, 0.0, atol=1e-5)


def test_a_kernel_of_zeros_stays_finite() -> None:
    zeros = {"kernel": jnp.zeros((2, 2))}
    normalized, vectors = jax.jit(normalize.normalize_kernels)(zeros, (jnp.asarray([1.0, 0.0]),))
    np.testing.assert_array_equal(normalized["kernel"], 0.0)
    assert np.isfinite(vectors[0]).all()
