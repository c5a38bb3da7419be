"""Multi-layer perceptrons."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.core import Tracer

from rookery.networks.base import Network, input_vector
from rookery.networks.encoders import Encoded
from rookery.networks.parameters import is_network
from rookery.networks.precision import product
from rookery.networks.weights import ZEROS, initialize
from rookery.types import Array, Observation, PyTree

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "silu": nn.silu,
    "elu": nn.elu,
}
"""Name -> activation of hidden layers."""


def layer(size: int, is_last: bool = False) -> nn.Dense:
    """A dense layer in the precision of the context; the sums of a last layer are float32 in each of them."""
    return nn.Dense(size, kernel_init=ZEROS, dot_general=product(is_last))


class Mlp(nn.Module):
    """Dense layers with an activation between them, ReLU by default; inputs are concatenated along the last axis.

    With `layer_norm`, each hidden layer is normalised before its activation (Ba 2016, arXiv:1607.06450).
    """

    hidden_sizes: Sequence[int]
    output_size: int
    activation: Callable = nn.relu
    layer_norm: bool = False

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        """`[..., I1], [..., I2], ... -> [..., output_size]`."""
        hidden = jnp.concatenate(inputs, axis=-1)
        for size in self.hidden_sizes:
            hidden = layer(size)(hidden)
            hidden = self.activation(nn.LayerNorm()(hidden) if self.layer_norm else hidden)
        return layer(self.output_size, is_last=True)(hidden)


def mlp(
    input_sizes: Sequence[int],
    hidden_sizes: Sequence[int],
    output_size: int,
    output_scale: float = 1.0,
    layer_norm: bool = False,
) -> Network:
    """Build a multi-layer perceptron over one or more inputs.

    Args:
      input_sizes: size of the last axis of each input.
      hidden_sizes: widths of the hidden layers.
      output_size: size of the output.
      output_scale: the initial weights of the last layer are uniform with the variance `output_scale` / inputs; a small
        value gives initial outputs near 0. In the hidden layers the scale is 1 (LeCun 1998, "Efficient BackProp").
      layer_norm: normalise each hidden layer before its activation, see `Mlp`.

    Raises:
      ValueError: a size is below 1.
    """
    if min(*input_sizes, *hidden_sizes, output_size) < 1:
        raise ValueError(f"layer sizes must be at least 1, got {(*input_sizes, *hidden_sizes, output_size)}.")
    module = Mlp(tuple(hidden_sizes), output_size, layer_norm=layer_norm)
    kernel = partial(_uniform, {f"Dense_{len(hidden_sizes)}": output_scale})
    draw = partial(jax.random.uniform, minval=-1.0, maxval=1.0)
    return Network(partial(initialize, module, tuple(input_sizes), kernel, draw=draw), partial(forward, module))


def _uniform(scales: dict[str, float], path: tuple, numbers: Array) -> Array:
    return math.sqrt(3.0 * scales.get(path[1].key, 1.0) / numbers.shape[0]) * numbers


def forward(module: nn.Module, params: PyTree, *inputs: Array | Observation) -> Array:
    """The forward pass of a module, with the activation that the parameters name, see `activated`."""
    if _ACTIVATION in params:
        module = module.clone(activation=partial(_chosen_activation, params[_ACTIVATION]))
        params = {name: part for name, part in params.items() if name != _ACTIVATION}
    return jnp.asarray(module.apply(params, *map(input_vector, inputs)))


_ACTIVATION = "activation"


def activated(params: PyTree, hyper: object) -> PyTree:
    """Parameters for a forward pass with the activation that a member's hyper-parameters choose.

    Args:
      params: parameters of any number of networks; other leaves are unchanged.
      hyper: may have `activation` `[]`, a place in `ACTIVATIONS`; if not, the parameters are returned unchanged.
    """
    if not hasattr(hyper, _ACTIVATION):
        return params
    return jax.tree.map(partial(_activated, getattr(hyper, _ACTIVATION)), params, is_leaf=is_network)


def _activated(place: Array, params: PyTree) -> PyTree:
    if isinstance(params, Encoded):
        return params._replace(head=_activated(place, params.head))
    return {**params, _ACTIVATION: place} if is_network(params) else params


def _chosen_activation(place: Array, values: Array) -> Array:
    """The activation at a place, `[...]`; all are computed, unless the place is known when the program is traced."""
    functions = [*ACTIVATIONS.values()]
    if not isinstance(place, Tracer):
        return functions[int(place)](values)
    return jax.lax.select_n(place.astype(jnp.int32), *(function(values) for function in functions))
