"""Networks with orthogonal weights, and with a memory."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rookery.networks.base import Core, input_vector
from rookery.networks.dense import ACTIVATIONS, Mlp, forward, initialize, layer
from rookery.types import Array, Key, Observation, PyTree


class RecurrentMlp(nn.Module):
    """Dense tanh layers, a gated recurrent unit (Cho 2014, arXiv:1406.1078), and a linear layer on its state."""

    hidden_sizes: Sequence[int]
    memory_size: int
    output_size: int

    @nn.compact
    def __call__(self, memory: Array, observation: Array) -> tuple[Array, Array]:
        """`[..., H], [..., O] -> [..., H], [..., output_size]`."""
        hidden = observation
        for size in self.hidden_sizes:
            hidden = nn.tanh(layer(size, _ZEROS)(hidden))
        memory, hidden = nn.GRUCell(self.memory_size, kernel_init=_ZEROS, recurrent_kernel_init=_ZEROS)(memory, hidden)
        return memory, layer(self.output_size, _ZEROS, is_last=True)(hidden)


_ZEROS = nn.initializers.zeros  # placeholders: `_init_orthogonal` draws the weights


def core(
    input_size: int,
    hidden_sizes: Sequence[int],
    output_size: int,
    output_gain: float,
    memory_size: int = 0,
    activation: str = "tanh",
) -> Core:
    """Build layers with orthogonal weights, tanh by default, as recommended for policy gradients (Andrychowicz 2020,
    arXiv:2006.05990).

    Args:
      input_size: O.
      hidden_sizes: widths of the hidden layers.
      output_size: size of the output.
      output_gain: gain of the last layer's orthogonal weights; the gain is sqrt(2) in hidden layers and 1 in the
        recurrent unit.
      memory_size: H, the width of a gated recurrent unit before the last layer; 0 omits the unit.
      activation: of the hidden layers without a recurrent unit, a name of `ACTIVATIONS`.

    Raises:
      ValueError: a layer size is below 1, or `memory_size` is below 0.
    """
    if min(input_size, *hidden_sizes, output_size) < 1 or memory_size < 0:
        raise ValueError(
            f"layer sizes must be at least 1, got {(input_size, *hidden_sizes, output_size)}, {memory_size}."
        )
    gains = {f"Dense_{layer}": math.sqrt(2.0) for layer in range(len(hidden_sizes))}
    gains |= {f"Dense_{len(hidden_sizes)}": output_gain}
    if memory_size:
        module: nn.Module = RecurrentMlp(tuple(hidden_sizes), memory_size, output_size)
        init = partial(_init_orthogonal, module, (memory_size, input_size), gains)
        return Core(init, partial(_apply_with_memory, module), memory_size)
    module = Mlp(tuple(hidden_sizes), output_size, _ZEROS, _ZEROS, ACTIVATIONS[activation])
    return Core(partial(_init_orthogonal, module, (input_size,), gains), partial(_apply_without_memory, module), 0)


def _init_orthogonal(module: nn.Module, input_sizes: tuple[int, ...], gains: dict[str, float], key: Key) -> PyTree:
    """Initialise a module with orthogonal kernels and zero biases.

    One normal draw supplies the numbers of all kernels: every separate draw would add as much compile time as training
    a layer does.
    """
    shapes = jax.eval_shape(partial(initialize, module, input_sizes), key)
    paths, structure = jax.tree.flatten_with_path(shapes)
    sizes = [leaf.size if leaf.ndim == 2 else 0 for _, leaf in paths]
    numbers = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
    leaves = [
        gains.get(path[1].key, 1.0) * orthogonal(kernel_numbers.reshape(leaf.shape))
        if leaf.ndim == 2
        else jnp.zeros(leaf.shape, leaf.dtype)
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


def _apply_with_memory(
    module: nn.Module, params: PyTree, memory: Array, observation: Array | Observation
) -> tuple[Array, Array]:
    memory_and_outputs: Any = module.apply(params, memory, input_vector(observation))
    return memory_and_outputs


def _apply_without_memory(
    module: nn.Module, params: PyTree, memory: Array, observation: Array | Observation
) -> tuple[Array, Array]:
    return memory, forward(module, params, observation)
