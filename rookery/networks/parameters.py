"""Changes of the parameters of networks, wherever they are in a tree."""

from functools import partial

import jax
import jax.numpy as jnp

from rookery.networks.encoders import Encoded
from rookery.types import Array, PyTree


def freeze_inputs(params: PyTree, start: int, values: Array) -> PyTree:
    """Remove inputs with constant values from networks, without changing the networks' outputs.

    The contribution of a constant input to the first layer does not depend on the other inputs, so it is added to that
    layer's bias.

    Args:
      params: parameters of any number of networks, each with at least `start + S` inputs; other leaves, among them
        those of encoders, are unchanged.
      start: index of the first constant input.
      values: `[S]`, the constants.

    Raises:
      ValueError: a network has fewer inputs.
    """
    return jax.tree.map(partial(_freeze, start, values), params, is_leaf=is_network)


def is_network(tree: PyTree) -> bool:
    """Whether a node of a tree has the parameters of a network, alone or with an encoder."""
    if isinstance(tree, Encoded):
        return True
    layers = tree.get("params") if isinstance(tree, dict) else None
    return isinstance(layers, dict) and _FIRST_LAYER in layers


_FIRST_LAYER = "Dense_0"


def _freeze(start: int, values: Array, params: PyTree) -> PyTree:
    if not is_network(params):
        return params
    if isinstance(params, Encoded):
        return params._replace(head=_freeze(start, values, params.head))
    layer, end = params["params"][_FIRST_LAYER], start + values.shape[0]
    kernel, bias = layer["kernel"], layer["bias"]
    if kernel.shape[0] < end:
        raise ValueError(
            f"a network of {kernel.shape[0]} inputs has no inputs {start} to {end - 1} to freeze; pass the "
            "parameters of a network that reads them."
        )
    bias = bias + jnp.tensordot(values, kernel[start:end], axes=1, precision="highest")
    layer = {**layer, "kernel": jnp.concatenate([kernel[:start], kernel[end:]]), "bias": bias}
    return {**params, "params": {**params["params"], _FIRST_LAYER: layer}}
