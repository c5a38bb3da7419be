"""What a network is: parameter initialisation and forward pass, with or without a memory."""

from typing import NamedTuple, Protocol

import jax.numpy as jnp

from rookery.features import as_floats
from rookery.types import Array, Key, Observation, PyTree


class InitFn(Protocol):
    """Initialise parameters; the key is consumed."""

    def __call__(self, key: Key) -> PyTree: ...


class ApplyFn(Protocol):
    """Map parameters and inputs with any leading axes to outputs with the same leading axes.

    An observation is one input: `[..., EnvSpec.input_size]`, see `input_vector`.
    """

    def __call__(self, params: PyTree, *inputs: Array | Observation) -> Array: ...


class Network(NamedTuple):
    """A network of one member: parameter initialisation and forward pass."""

    init: InitFn
    apply: ApplyFn


class Core(NamedTuple):
    """A network with optional memory: memory `[..., H]` and observation -> next memory and outputs."""

    init: InitFn
    apply: "RecurrentApplyFn"
    memory_size: int
    """H, the size of the memory; 0 for a feed-forward network."""


class RecurrentApplyFn(Protocol):
    """Map parameters, memory `[..., H]` and an observation to the next memory `[..., H]` and outputs."""

    def __call__(self, params: PyTree, memory: Array, observation: Array | Observation) -> tuple[Array, Array]: ...


def input_vector(observation: Array | Observation) -> Array:
    """The vector that a network reads, `[..., EnvSpec.input_size]`: the agent's index, the features and the skill.

    An array is returned unchanged.
    """
    if not isinstance(observation, Observation):
        return observation
    parts = (observation.agent, as_floats(observation.features), observation.skill)
    present = [part for part in parts if part is not None]
    return present[0] if len(present) == 1 else jnp.concatenate(present, axis=-1)
