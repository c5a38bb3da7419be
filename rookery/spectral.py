"""Spectral normalisation: dense networks whose kernels have a largest singular value of 1.

Source: Miyato 2018, "Spectral Normalization for Generative Adversarial Networks" (arXiv:1802.05957).
"""

import jax
import jax.numpy as jnp

from rookery.types import Array, Key, PyTree

_SMALL = 1e-12


def start_vectors(params: PyTree, key: Key) -> tuple[Array, ...]:
    """Random vectors of length 1, `[O]` for each kernel `[I, O]` of a network; the key is consumed."""
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim == 2]
    keys = jax.random.split(key, len(kernels))
    return tuple(_unit(jax.random.normal(k, kernel.shape[1:])) for k, kernel in zip(keys, kernels, strict=True))


def normalize_kernels(
    params: PyTree, vectors: tuple[Array, ...], iterations: int = 1
) -> tuple[PyTree, tuple[Array, ...]]:
    """Divide each kernel of a network by its largest singular value, which makes a ReLU network 1-Lipschitz.

    Args:
      params: parameters of the network; biases are unchanged.
      vectors: estimates of the leading right singular vectors, from `start_vectors` or the last call.
      iterations: power iterations (Miyato 2018, Algorithm 1), at least 1; one suffices where the kernels have changed
        little since the last call.

    Returns:
      The parameters with normalised kernels, and the new vectors. Gradients pass through the kernels only.
    """
    leaves, structure = jax.tree.flatten(params)
    remaining, normalized, moved = list(vectors), [], []
    for leaf in leaves:
        if leaf.ndim == 2:
            left, vector = _iterate(jax.lax.stop_gradient(leaf), remaining.pop(0), iterations)
            moved.append(vector)
            leaf = leaf / jnp.maximum(left @ (leaf @ vector), _SMALL)  # noqa: PLW2901
        normalized.append(leaf)
    return jax.tree.unflatten(structure, normalized), tuple(moved)


def _iterate(kernel: Array, vector: Array, iterations: int) -> tuple[Array, Array]:
    """The leading left and right singular vectors after some power iterations."""
    for _ in range(iterations):
        left = _unit(kernel @ vector)
        vector = _unit(left @ kernel)
    return left, vector


def _unit(vector: Array) -> Array:
    return vector / jnp.sqrt(jnp.sum(jnp.square(vector)) + _SMALL)
