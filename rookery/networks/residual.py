"""SimBa: residual blocks with layer normalisation.

Source: Lee 2024, "SimBa: Simplicity Bias for Scaling Up Parameters in Deep Reinforcement Learning" (arXiv:2410.09754).
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from rookery.networks.base import Network
from rookery.networks.dense import forward, layer
from rookery.networks.weights import initialize, orthogonal
from rookery.settings import SettingError
from rookery.types import Array, Observation, PyTree

LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0  # the authors' code
EXPANSION = 4
"""Width of a block's hidden layer, in widths of the block."""


class ResidualBlock(nn.Module):
    """Layer normalisation, a layer of four times the width with ReLU, and one back to it, added to the input."""

    width: int

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """`[..., width] -> [..., width]`."""
        hidden = nn.relu(layer(EXPANSION * self.width)(nn.LayerNorm()(inputs)))
        return inputs + layer(self.width)(hidden)


class ResidualMlp(nn.Module):
    """A linear layer, residual blocks, layer normalisation, and a linear layer; inputs are concatenated."""

    widths: Sequence[int]
    output_size: int

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        """`[..., I1], [..., I2], ... -> [..., output_size]`."""
        hidden = layer(self.widths[0])(jnp.concatenate(inputs, axis=-1))
        for width in self.widths:
            hidden = ResidualBlock(width)(hidden)
        return layer(self.output_size, is_last=True)(nn.LayerNorm()(hidden))


def _kernel(output_scale: float, path: tuple, numbers: Array) -> Array:
    """Orthogonal in the first and the last layer; He's in the blocks, variance 2 / inputs."""
    name = path[1].key
    if name.startswith(ResidualBlock.__name__):
        return math.sqrt(2.0 / numbers.shape[0]) * numbers
    return math.sqrt(output_scale if name == _LAST else 1.0) * orthogonal(numbers)


_LAST = "Dense_1"  # the first is Dense_0, as in other networks


def simba(
    input_sizes: Sequence[int], hidden_sizes: Sequence[int], output_size: int, output_scale: float = 1.0
) -> Network:
    """Build the network of SimBa over one or more inputs, whose observations its authors normalise (Lee 2024, section
    4).

    Args:
      input_sizes: size of the last axis of each input.
      hidden_sizes: the width of each residual block, all equal.
      output_size: size of the output.
      output_scale: the initial weights of the last layer are orthogonal with the gain sqrt(`output_scale`), and those
        of the first with the gain 1; the weights of the blocks are normal with the variance 2 / inputs (He 2015,
        arXiv:1502.01852).

    Raises:
      ValueError: a size is below 1, there is no block, or the widths differ.

    Deviation: the authors' code cuts the normal weights at two standard deviations.

    Example:
      >>> critic = rookery.networks.simba((17, 6), (512, 512), 1)
    """
    if len({*hidden_sizes}) != 1 or min(*input_sizes, *hidden_sizes, output_size) < 1:
        raise ValueError(
            "layer sizes must be at least 1, and the widths of at least one residual block equal, got "
            f"{tuple(input_sizes)}, {tuple(hidden_sizes)}, {output_size}."
        )
    module = ResidualMlp(tuple(hidden_sizes), output_size)
    init = partial(initialize, module, tuple(input_sizes), partial(_kernel, output_scale))
    return Network(init, partial(forward, module))


def squashed_std(network: Network) -> Network:
    """Squash the log standard deviations, the second half of the outputs `[..., 2 A]`, into [-10, 2] by a tanh (the
    authors' code)."""
    return network._replace(apply=partial(_squashed_std, network))


def _squashed_std(network: Network, params: PyTree, *inputs: Array | Observation) -> Array:
    mean, log_std = jnp.split(network.apply(params, *inputs), 2, axis=-1)
    share = 0.5 * (1.0 + jnp.tanh(log_std))
    return jnp.concatenate([mean, LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) * share], axis=-1)


def check(config: Any) -> None:
    """Check the settings of an agent with this network.

    Raises:
      SettingError: there is no width, or widths differ; or `layer_norm`, which every block has, is on.
    """
    for name in ("hidden_sizes", "critic_hidden_sizes"):
        if len({*getattr(config, name, (1,))}) != 1:
            problem = "must be equal widths, one for each residual block of {network} simba"
            raise SettingError(name, getattr(config, name), problem, "give such as 128 128")
    if getattr(config, "layer_norm", False):
        problem = "has no effect with {network} simba, which normalises every block"
        raise SettingError("layer_norm", None, problem, "leave it out")
