"""Networks with orthogonal weights, and with a memory."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn

from rookery.networks.base import Core, input_vector
from rookery.networks.dense import ACTIVATIONS, Mlp, forward, layer
from rookery.networks.weights import ZEROS, initialize, orthogonal
from rookery.types import Array, Observation, PyTree


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
            hidden = nn.tanh(layer(size)(hidden))
        memory, hidden = nn.GRUCell(self.memory_size, kernel_init=ZEROS, recurrent_kernel_init=ZEROS)(memory, hidden)
        return memory, layer(self.output_size, is_last=True)(hidden)


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
    else:
        module = Mlp(tuple(hidden_sizes), output_size, ACTIVATIONS[activation])
    sizes = (memory_size, input_size) if memory_size else (input_size,)
    apply = _apply_with_memory if memory_size else _apply_without_memory
    init = partial(initialize, module, sizes, partial(_orthogonal, gains))
    return Core(init, partial(apply, module), memory_size)


def _orthogonal(gains: dict[str, float], path: tuple, numbers: Array) -> Array:
    return gains.get(path[1].key, 1.0) * orthogonal(numbers)


def _apply_with_memory(
    module: nn.Module, params: PyTree, memory: Array, observation: Array | Observation
) -> tuple[Array, Array]:
    memory_and_outputs: Any = module.apply(params, memory, input_vector(observation))
    return memory_and_outputs


def _apply_without_memory(
    module: nn.Module, params: PyTree, memory: Array, observation: Array | Observation
) -> tuple[Array, Array]:
    return memory, forward(module, params, observation)
