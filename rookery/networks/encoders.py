"""Networks that read the features of an observation, in front of the networks of an agent."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import jax

from rookery.features import Shape, as_floats, unflatten_features
from rookery.networks.base import Core, Network
from rookery.types import Array, Key, Observation, PyTree


class EncodeFn(Protocol):
    """Map parameters and features with any leading axes to vectors `[..., F]`.

    Features are float32, `[..., *EnvSpec.observation_shape]`, or a pytree of them; `[..., O]` without a shape.
    """

    def __call__(self, params: PyTree, features: PyTree, /) -> Array: ...


class Encoder(NamedTuple):
    """A network that reads the features of an observation, in front of the networks of an agent."""

    init: Callable[[Key], PyTree]
    """Initialises parameters; the key is consumed."""
    apply: EncodeFn
    """Encodes features."""


class Encoded(NamedTuple):
    """Parameters of a network with an encoder."""

    encoder: PyTree
    """Parameters of the encoder."""
    head: PyTree
    """Parameters of the network that reads the encoder's output."""


NetworkT = TypeVar("NetworkT", Network, Core)


def with_encoder(network: NetworkT, encoder: Encoder, shape: Shape | None) -> NetworkT:
    """Encode the features of the observations that a network reads; the encoder has separate parameters.

    Args:
      network: reads observations whose features are the encoder's output `[..., F]`.
      encoder: reads the features.
      shape: of the features, `EnvSpec.observation_shape`; None: a vector.
    """
    return network._replace(
        init=partial(_init_encoded, network, encoder), apply=partial(_apply_encoded, network, encoder, shape)
    )


def _init_encoded(network: Network | Core, encoder: Encoder, key: Key) -> Encoded:
    encoder_key, head_key = jax.random.split(key)
    return Encoded(encoder.init(encoder_key), network.init(head_key))


def _apply_encoded(
    network: Network | Core, encoder: Encoder, shape: Shape | None, params: Encoded, *inputs: Any
) -> Any:
    return network.apply(params.head, *(_encode(encoder, shape, params.encoder, value) for value in inputs))


def _encode(encoder: Encoder, shape: Shape | None, params: PyTree, value: Array | Observation) -> Any:
    if not isinstance(value, Observation):
        return value
    features = as_floats(value.features)
    if shape is not None:
        features = unflatten_features(shape, features)
    return value._replace(features=encoder.apply(params, features))
