"""Initial parameters of networks."""

from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import Array, Key, PyTree

ZEROS = nn.initializers.zeros
"""Placeholders of kernels, which `initialize` makes."""


def initialize(
    module: nn.Module,
    input_sizes: tuple[int, ...],
    kernel: Callable[[tuple, Array], Array],
    key: Key,
    draw: Callable[[Key, tuple[int]], Array] = jax.random.normal,
) -> PyTree:
    """Initialise a module with biases of 0, scales of 1, and the kernels that a function makes of random numbers.

    One draw supplies the numbers of all kernels: every separate draw would add as much compile time as training a layer
    does.

    Args:
      module: the module.
      input_sizes: sizes of its inputs.
      kernel: takes the path of a kernel in the parameters and random numbers `[M, N]`.
      key: consumed.
      draw: gives independent random numbers of a shape, standard normal by default.
    """
    shapes = jax.eval_shape(module.init, key, *(jax.ShapeDtypeStruct((size,), jnp.float32) for size in input_sizes))
    paths, structure = jax.tree.flatten_with_path(shapes)
    sizes = [leaf.size if leaf.ndim == 2 else 0 for _, leaf in paths]
    numbers = jnp.split(draw(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
    leaves = [
        kernel(path, kernel_numbers.reshape(leaf.shape))
        if leaf.ndim == 2
        else jnp.full(leaf.shape, path[-1].key == "scale", leaf.dtype)
        for (path, leaf), kernel_numbers in zip(paths, numbers, strict=True)
    ]
    return jax.tree.unflatten(structure, leaves)


def orthogonal(numbers: Array) -> Array:
    """Return a matrix `[M, N]` with orthonormal columns (rows if M < N), uniformly distributed for normal `numbers`.

    Uses Gram-Schmidt with every column orthogonalised twice, which suffices for rounding errors (Giraud 2005). LAPACK's
    factorisation is avoided because it occasionally hangs where CPU cores are used as devices.
    """
    if numbers.shape[0] < numbers.shape[1]:
        return orthogonal(numbers.T).T

    product = partial(jnp.matmul, precision="highest")

    def add_column(basis: Array, column: tuple[Array, Array]) -> tuple[Array, None]:
        index, vector = column
        for _ in range(2):
            vector = vector - product(basis, product(basis.T, vector))
        return basis.at[:, index].set(vector / jnp.linalg.norm(vector)), None

    return jax.lax.scan(add_column, jnp.zeros_like(numbers), (jnp.arange(numbers.shape[1]), numbers.T))[0]
