"""Observation and action spaces of Gymnasium as the vectors that agents use."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rookery.envs.base import DescriptorSpec, EnvSpec
from rookery.envs.host.base import Sizes
from rookery.features import Shape, feature_size


class Observations(NamedTuple):
    """How observations become features."""

    size: int
    """O."""
    dtype: np.dtype
    """float32, or uint8 where all parts are pixels."""
    shape: Shape | None
    """Shape of the parts, or a dictionary of shapes; None if they are a vector."""
    encode: Callable[[Any], np.ndarray]
    """Observation -> features `[O]`.

    Raises:
      ValueError: the observation does not have the shape of its space.
    """


class Actions(NamedTuple):
    """How the actions of an agent become those of the environment."""

    size: int
    """Number of dimensions, or of discrete actions."""
    discrete: bool
    decode: Callable[[np.ndarray], Any]
    """Action of the agent, `[..., A]` in [-1, 1] or `[...]` int32 -> action of the environment, with the same axes
    before its own shape; discrete ones as int, or as lists of int."""

    def are_valid(self, actions: np.ndarray) -> np.ndarray:
        """Whether an agent's outputs were finite, `[N]`, for N actions; a discrete policy signals others by -1."""
        return np.asarray(actions >= 0 if self.discrete else np.isfinite(actions).all(axis=1))


def sizes(observed: Observations, acted: Actions, descriptor: int) -> Sizes:
    """The sizes of the arrays that are exchanged with the host; `descriptor` is D."""
    return Sizes(observed.size, observed.dtype, descriptor, () if acted.discrete else (acted.size,), acted.discrete)


def spec(
    name: str, observed: Observations, acted: Actions, episode_length: int, descriptor: DescriptorSpec | None = None
) -> EnvSpec:
    """The spec of an environment with these spaces; `episode_length` in steps."""
    sizes = observed.size, acted.size, episode_length
    return EnvSpec(name, *sizes, acted.discrete, descriptor=descriptor, observation_shape=observed.shape)


class _Part(NamedTuple):
    """A part of an observation."""

    shape: tuple[int, ...]
    dtype: np.dtype
    encode: Callable[[Any], np.ndarray]


def observations(space: Any, name: str, remedy: str | None = None) -> Observations:
    """Read an observation space: a Box of any shape, a Discrete or MultiDiscrete space (one-hot), MultiBinary, or a
    Dict or Tuple of these.

    Args:
      space: of Gymnasium.
      name: of the environment, for messages.
      remedy: the end of the message, for environments that cannot be wrapped; by default it names a wrapper.

    Raises:
      ValueError: the space is of another kind, or nested.
    """
    parts = _subspaces(space)
    if parts is None:
        part = _part(space, name, remedy)
        shape = part.shape if len(part.shape) > 1 else None
        return Observations(feature_size(part.shape), part.dtype, shape, part.encode)
    entries = {key: _part(inner, f"{name}, entry {key!r}", remedy) for key, inner in parts.items()}
    shape = {str(key): entry.shape for key, entry in entries.items()}
    pixels = all(entry.dtype == np.uint8 for entry in entries.values())
    # JAX orders the entries of a dictionary by their keys.
    ordered = dict(sorted(entries.items(), key=lambda item: str(item[0])))
    dtype = np.dtype(np.uint8 if pixels else np.float32)
    size = feature_size(shape)
    vector = all(len(entry.shape) <= 1 for entry in entries.values())
    return Observations(size, dtype, None if vector else shape, partial(_encode_entries, ordered, dtype))


def _subspaces(space: Any) -> dict[Any, Any] | None:
    """The entries of a Dict or Tuple space; None for others."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else None


def _part(space: Any, name: str, remedy: str | None) -> _Part:
    from gymnasium import spaces

    floats = np.dtype(np.float32)
    if isinstance(space, spaces.Box):
        shape = tuple(space.shape)
        if space.dtype == np.uint8 and len(shape) in (2, 3):
            return _image(shape)
        return _Part(shape, floats, partial(_encode_box, shape, floats))
    if isinstance(space, spaces.Discrete):
        return _Part((int(space.n),), floats, partial(_encode_discrete, int(space.n), int(space.start)))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        counts = tuple(int(count) for count in space.nvec)
        starts = tuple(int(start) for start in space.start)
        return _Part((sum(counts),), floats, partial(_encode_multi_discrete, counts, starts))
    if isinstance(space, spaces.MultiBinary):
        shape = tuple(space.shape)
        return _Part(shape, floats, partial(_encode_box, shape, floats))
    if _subspaces(space) is not None:
        raise ValueError(
            f"the observations of {name} are nested {type(space).__name__} spaces; "
            + (remedy or "flatten them by gymnasium.wrappers.FlattenObservation.")
        )
    raise ValueError(
        f"the observations of {name} are of the space {space}, which no agent reads; "
        + (remedy or "use a gymnasium.ObservationWrapper that makes them a Box or a Dict of boxes.")
    )


def _image(shape: tuple[int, ...]) -> _Part:
    """An image as networks read it, (height, width, channels): a grey one gets a channel, and channels that come first,
    as in `FrameStackObservation`, move to the end."""
    pixels = np.dtype(np.uint8)
    if len(shape) == 2:
        return _Part((*shape, 1), pixels, partial(_encode_box, shape, pixels))
    if shape[0] < min(shape[1:]):
        return _Part((*shape[1:], shape[0]), pixels, partial(_encode_channels, shape))
    return _Part(shape, pixels, partial(_encode_box, shape, pixels))


def _encode_channels(shape: tuple[int, ...], observation: Any) -> np.ndarray:
    """Image `[C, H, W]` -> features `[H * W * C]`."""
    flat = _encode_box(shape, np.dtype(np.uint8), observation)
    return np.moveaxis(flat.reshape(shape), 0, -1).reshape(-1)


def _encode_box(shape: tuple[int, ...], dtype: np.dtype, observation: Any) -> np.ndarray:
    array = np.asarray(observation)
    if array.shape != shape:
        raise ValueError(f"its observation has the shape {array.shape}, but its space {shape}")
    return array.astype(dtype, copy=False).reshape(-1)


def _encode_discrete(count: int, start: int, observation: Any) -> np.ndarray:
    features, index = np.zeros(count, np.float32), int(observation) - start
    if not 0 <= index < count:
        raise ValueError(
            f"its observation is {observation}, but its space has the values {start} to {start + count - 1}"
        )
    features[index] = 1.0
    return features


def _encode_multi_discrete(counts: tuple[int, ...], starts: tuple[int, ...], observation: Any) -> np.ndarray:
    if np.shape(observation) != (len(counts),):
        raise ValueError(f"its observation has the shape {np.shape(observation)}, but its space {(len(counts),)}")
    triples = zip(counts, starts, np.asarray(observation).tolist(), strict=True)
    return np.concatenate([_encode_discrete(*triple) for triple in triples])


def _encode_entries(entries: dict[Any, _Part], dtype: np.dtype, observation: Any) -> np.ndarray:
    """Encode the entries of a Dict or Tuple; pixels beside other entries become numbers in [0, 1]."""
    parts = []
    for key, entry in entries.items():
        part = entry.encode(observation[key])
        parts.append(part / np.float32(255.0) if part.dtype == np.uint8 and dtype != np.uint8 else part)
    return np.concatenate(parts, dtype=dtype)


def actions(space: Any, name: str, remedy: str | None = None) -> Actions:
    """Read an action space: a Box with finite bounds, which [-1, 1] is rescaled to, or a Discrete space.

    `name` and `remedy` are parts of messages, as in `observations`.

    Raises:
      ValueError: the space is of another kind, or a bound is infinite.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return Actions(int(space.n), True, partial(_decode_discrete, int(space.start)))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ValueError(
                f"an action of {name} has no bounds ({space}); "
                + (remedy or "give it some by gymnasium.wrappers.RescaleAction or ClipAction in make_env.")
            )
        return Actions(int(np.prod(space.shape)), False, partial(_decode_box, low, high, space.dtype))
    raise ValueError(
        f"the actions of {name} are of the space {space}, but agents act in a Box of floats or in a Discrete space; "
        + (remedy or "use a gymnasium.ActionWrapper that offers one of them.")
    )


def _decode_discrete(start: int, action: np.ndarray) -> Any:
    return (action.astype(np.int64) + start).tolist()


def _decode_box(low: np.ndarray, high: np.ndarray, dtype: Any, action: np.ndarray) -> np.ndarray:
    shaped = action.astype(np.float64).reshape(action.shape[:-1] + low.shape)
    share = 0.5 * (_clip(shaped, -1.0, 1.0) + 1.0)
    return _clip((1.0 - share) * low + share * high, low, high).astype(dtype)  # exact at -1 and 1, without overflow


def _clip(values: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """`np.clip`, in a third of its time for few numbers."""
    return np.minimum(np.maximum(values, low), high)
