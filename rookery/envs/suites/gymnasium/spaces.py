"""Observation and action spaces of Gymnasium as the vectors that agents use."""

import operator
import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rookery.envs.base import DescriptorSpec, EnvSpec, TakenAction
from rookery.envs.host.base import HostWarning, Sizes
from rookery.features import Part, Shape, feature_size

if TYPE_CHECKING:
    import gymnasium

    Env = gymnasium.Env[Any, Any]
    Space = gymnasium.Space[Any]


class Observations(NamedTuple):
    """How observations become features."""

    size: int
    """O."""
    dtype: np.dtype
    """float32, or uint8 where all parts are pixels."""
    shape: Shape | None
    """Shape of the parts, or a dictionary of shapes; None if they are a vector."""
    encode: Callable[[object], np.ndarray]
    """Observation -> features `[O]`.

    Raises:
      ValueError: the observation does not have the shape of its space, or a value that its space cannot hold.
    """
    given: tuple[Part, ...]
    """The parts of an observation, in the order of their features."""


class Actions(NamedTuple):
    """How the actions of an agent become those of the environment."""

    size: int
    """Number of dimensions, or of discrete actions, of all parts together."""
    discrete: bool
    decode: Callable[[np.ndarray], Any]
    """Action of the agent, `[..., A]` in [-1, 1], or `[...]` or `[..., K]` int32 -> action of the environment, with the
    same axes before its own shape; those of a Discrete space as int, or as lists of int."""
    taken: TakenAction
    """Type, shape and bounds of the environment's actions."""
    categories: tuple[int, ...] = ()
    """Numbers of categories of the K parts of a discrete action, as in `EnvSpec`."""

    def are_valid(self, actions: np.ndarray) -> np.ndarray:
        """Whether an agent's outputs were finite, `[N]`, for N actions; a discrete policy signals others by -1."""
        valid = actions >= 0 if self.discrete else np.isfinite(actions)
        return np.asarray(valid.reshape(len(actions), -1).all(axis=1))


def sizes(observed: Observations, acted: Actions, descriptor: int, measures: Iterable[str] = ()) -> Sizes:
    """The sizes of the arrays that are exchanged with the host; `descriptor` is D."""
    action = (len(acted.categories),) * bool(acted.categories) if acted.discrete else (acted.size,)
    return Sizes(observed.size, observed.dtype, descriptor, action, acted.discrete, tuple(measures))


def spec(
    name: str,
    observed: Observations,
    acted: Actions,
    episode_length: int,
    descriptor: DescriptorSpec | None = None,
    measures: Mapping[str, str] | None = None,
) -> EnvSpec:
    """The spec of an environment with these spaces; `episode_length` in steps, `measures`: name -> meaning."""
    sizes, shape = (observed.size, acted.size, episode_length), observed.shape
    spec = EnvSpec(name, *sizes, acted.discrete, descriptor=descriptor, observation_shape=shape)
    return spec._replace(
        measures=measures or None, given=observed.given, taken=acted.taken, categories=acted.categories
    )


_PIXELS, _FLOATS = np.dtype(np.uint8), np.dtype(np.float32)
_SIDE = 10
"""Smallest height and width of an image that is recognised, that of MinAtar; the other side is at most `_RATIO` as
long. Smaller or longer arrays of uint8 are as often tables, boards or memory."""
_RATIO = 4
_OBSERVATION = "its observation"


class _Part(NamedTuple):
    """A part of an observation."""

    shape: tuple[int, ...]
    dtype: np.dtype
    encode: Callable[[object], np.ndarray]
    given: Part


def observations(space: "Space", name: str, remedy: str | None = None) -> Observations:
    """Read an observation space: a Box of any shape, a Discrete or MultiDiscrete space (one-hot), MultiBinary, or a
    Dict or Tuple of these.

    Args:
      remedy: the end of the message, for environments that cannot be wrapped; by default it names a wrapper.

    Raises:
      ValueError: the space is of another kind, or nested, or holds no number.

    Warns:
      HostWarning: an array of uint8 is read as a vector, though it may be an image.
    """
    parts = _subspaces(space)
    if parts is None:
        part = _part(space, name, _OBSERVATION, remedy)
        shape = part.shape if len(part.shape) > 1 else None
        return Observations(feature_size(part.shape), part.dtype, shape, part.encode, (part.given,))
    if not parts:
        raise ValueError(_no_number(name, space))
    entries = {
        key: _part(inner, f"{name}, entry {key!r}", f"entry {key!r} of {_OBSERVATION}", remedy)
        for key, inner in parts.items()
    }
    shape = {str(key): entry.shape for key, entry in entries.items()}
    pixels = all(entry.dtype == np.uint8 for entry in entries.values())
    # JAX orders the entries of a dictionary by their keys.
    ordered = dict(sorted(entries.items(), key=lambda item: str(item[0])))
    dtype = np.dtype(np.uint8 if pixels else np.float32)
    size = feature_size(shape)
    vector = all(len(entry.shape) <= 1 for entry in entries.values())
    given = tuple(entry.given._replace(path=(key,)) for key, entry in ordered.items())
    return Observations(size, dtype, None if vector else shape, partial(_encode_entries, ordered, dtype), given)


def _subspaces(space: "Space") -> Mapping[Any, "Space"] | None:
    """The entries of a Dict or Tuple space; None for others."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else None


def _part(space: "Space", name: str, what: str, remedy: str | None) -> _Part:
    """Read a space; `what` names the observation or its entry in the errors of `encode`."""
    from gymnasium import spaces

    if isinstance(space, spaces.Box | spaces.MultiBinary):
        part = _box(space, name, what)
    elif isinstance(space, spaces.Discrete):
        count, start = int(space.n), int(space.start)
        part = _one_hot((), (count,), (start,), partial(_encode_discrete, what, count, start))
    elif isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        counts = tuple(int(count) for count in space.nvec)
        starts = tuple(int(start) for start in space.start)
        part = _one_hot(space.shape, counts, starts, partial(_encode_multi_discrete, what, counts, starts))
    elif _subspaces(space) is not None:
        raise ValueError(
            f"the observations of {name} are nested {type(space).__name__} spaces; "
            + (remedy or "flatten them by gymnasium.wrappers.FlattenObservation.")
        )
    else:
        raise ValueError(
            f"the observations of {name} are of the space {space!s:.300}, which no agent reads; "
            + (remedy or "use a gymnasium.ObservationWrapper that makes them a Box or a Dict of boxes.")
        )
    if not feature_size(part.shape):
        raise ValueError(_no_number(name, space))
    return part


def _one_hot(
    shape: tuple[int, ...], counts: tuple[int, ...], starts: tuple[int, ...], encode: Callable[[object], np.ndarray]
) -> _Part:
    size = sum(counts)
    return _Part((size,), _FLOATS, encode, Part((), shape, "int64", "one-hot", size, counts=counts, starts=starts))


def _no_number(name: str, space: "Space") -> str:
    return (
        f"the observations of {name} are of the space {space!s:.300}, which holds no number; leave an empty entry out, "
        "and give an agent that needs no observation a constant one, such as a Box of shape (1,)."
    )


def _box(space: Any, name: str, what: str) -> _Part:
    """A Box or MultiBinary; arrays of uint8 that are surely images, as networks read them: (height, width, channels).

    A grey image gets a channel, and channels that come first, as in `FrameStackObservation`, move to the end. Their
    numbers are pixels if the limits are 0 and 255. Other arrays of uint8 with two or three axes become vectors.
    """
    from gymnasium import spaces

    shape, held = tuple(space.shape), np.dtype(space.dtype)
    given = Part((), shape, held.name, "numbers", feature_size(shape))
    if isinstance(space, spaces.MultiBinary):
        return _Part(shape, _FLOATS, partial(_encode_box, what, shape, np.dtype(bool), _FLOATS), given)
    if held != _PIXELS or len(shape) not in (2, 3) or 0 in shape:
        return _Part(shape, _FLOATS, partial(_encode_box, what, shape, held, _FLOATS), given)
    axis = _channel_axis(shape)
    if axis is None:
        text = (
            f"{name}: observations of uint8 of shape {shape} are read as a vector of numbers, since it is not certain "
            "that they are an image and where its channels are; give the agent an encoder= of your own that reads "
            f"them, or return images [height, width, channels] of at least {_SIDE} x {_SIDE} pixels."
        )
        warnings.warn(text, HostWarning, stacklevel=2)
        return _Part((given.size,), _FLOATS, partial(_encode_box, what, shape, held, _FLOATS), given)
    pixels = np.all(space.low == 0) and np.all(space.high == 255)
    dtype = _PIXELS if pixels else _FLOATS
    given = given._replace(encoding="pixels" if pixels else "numbers", channels_first=axis == 0)
    if axis == 0:
        return _Part((*shape[1:], shape[0]), dtype, partial(_encode_channels, what, shape, dtype), given)
    return _Part((*shape, 1)[:3], dtype, partial(_encode_box, what, shape, held, dtype), given)


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """The axis of the channels of an image, 2 for a grey one without; None if it is not certain to be an image."""
    for axis, channels, sides in ((2, shape[2:], shape[:2]), (0, shape[:1], shape[1:])):
        few = all(count < min(sides) for count in channels)
        if len(sides) == 2 and few and min(sides) >= _SIDE and max(sides) <= _RATIO * min(sides):
            return axis
    return None


def _encode_channels(what: str, shape: tuple[int, ...], dtype: np.dtype, observation: object) -> np.ndarray:
    """Image `[C, H, W]` -> features `[H * W * C]`."""
    flat = _encode_box(what, shape, _PIXELS, dtype, observation)
    return np.moveaxis(flat.reshape(shape), 0, -1).reshape(-1)


def _encode_box(what: str, shape: tuple[int, ...], held: np.dtype, dtype: np.dtype, observation: object) -> np.ndarray:
    """Array of a space whose type is `held` -> features of type `dtype`."""
    array = _numbers(what, observation)
    if array.shape != shape:
        raise ValueError(f"{what} has the shape {array.shape}, but its space {shape}")
    if array.dtype != held and held.kind != "f":
        with np.errstate(invalid="ignore"):  # NaN, which is found to differ
            wrong = array[array.astype(held) != array]
        if wrong.size:
            raise ValueError(f"{what} has the value {wrong[0]}, which its space of type {held} cannot hold")
    return array.astype(dtype, copy=False).reshape(-1)


def _numbers(what: str, value: object) -> np.ndarray:
    """A value as an array of real numbers."""
    try:
        array = np.asarray(value)
        if np.can_cast(array.dtype, np.float32, "same_kind") and not np.ma.is_masked(value):
            return array
    except (TypeError, ValueError):  # lists of several lengths
        pass
    raise ValueError(f"{what} is {reprlib.repr(value)} instead of numbers")


def checked_result(result: Any, parts: tuple[str, ...]) -> Any:
    """What a reset or a step returned; a ValueError unless it has these parts, as that of Gym before version 0.26."""
    if not isinstance(result, tuple | list) or len(result) != len(parts):
        count = f"{len(result)} values, " if isinstance(result, tuple) else ""
        raise ValueError(f"it returned {count}{reprlib.repr(result)}, instead of ({', '.join(parts)})")
    return result


def checked_number(what: str, value: Any) -> Any:
    """A value of a step, such as "its reward"; a ValueError if it is not one number."""
    if not isinstance(value, float | int) and _numbers(what, value).shape != ():
        raise ValueError(f"{what} is {reprlib.repr(value)} of shape {np.shape(value)} instead of one number")
    return value


def checked_flag(name: str, flag: object) -> bool:
    """A flag of a step, `terminated` or `truncated`; a ValueError if it is not one bool."""
    if not isinstance(flag, bool | np.bool_ | int):
        array = np.asarray(flag)
        if array.shape != () or array.dtype.kind not in "biu":
            raise ValueError(f"its {name} is {reprlib.repr(flag)} instead of true or false")
    return bool(flag)


def _encode_discrete(what: str, count: int, start: int, observation: object) -> np.ndarray:
    features, number = np.zeros(count, np.float32), _whole(observation)
    if number is None or not 0 <= number - start < count:
        raise ValueError(
            f"{what} is {_shown(observation)}, but its space has the values {start} to {start + count - 1}"
        )
    features[number - start] = 1.0
    return features


def _whole(value: Any) -> int | None:
    """A whole number as int, also one of a floating-point type; None if it is something else."""
    try:
        return operator.index(value)
    except TypeError:
        array = np.asarray(value)
        number = float(array) if array.shape == () and array.dtype.kind in "bf" else np.nan
        return int(number) if number.is_integer() else None


def _shown(value: object) -> str:
    return str(value) if isinstance(value, int | float | np.number) else reprlib.repr(value)


def _encode_multi_discrete(
    what: str, counts: tuple[int, ...], starts: tuple[int, ...], observation: object
) -> np.ndarray:
    array = _numbers(what, observation)
    if array.shape != (len(counts),):
        raise ValueError(f"{what} has the shape {array.shape}, but its space {(len(counts),)}")
    triples = zip(counts, starts, array.tolist(), strict=True)
    return np.concatenate([_encode_discrete(what, *triple) for triple in triples])


def _encode_entries(entries: dict[Any, _Part], dtype: np.dtype, observation: Any) -> np.ndarray:
    """Encode the entries of a Dict or Tuple; pixels beside other entries become numbers in [0, 1]."""
    parts = []
    for key, entry in entries.items():
        try:
            value = observation[key]
        except (LookupError, TypeError):
            raise ValueError(f"{_OBSERVATION} is {reprlib.repr(observation)}, without the entry {key!r}") from None
        part = entry.encode(value)
        parts.append(part / np.float32(255.0) if part.dtype == np.uint8 and dtype != np.uint8 else part)
    if len(observation) != len(entries):
        keys = observation if isinstance(observation, Mapping) else range(len(observation))
        other = next(key for key in keys if key not in entries)
        raise ValueError(f"{_OBSERVATION} has the entry {other!r}, which its space lacks")
    return np.concatenate(parts, dtype=dtype)


def actions(space: "Space", name: str, remedy: str | None = None) -> Actions:
    """Read an action space: a Box with finite bounds, which [-1, 1] is rescaled to, or a Discrete, MultiDiscrete or
    MultiBinary space.

    `name` and `remedy` are parts of messages, as in `observations`.

    Raises:
      ValueError: the space is of another kind, is empty, or a bound is infinite.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        count, start = int(space.n), int(space.start)
        taken = TakenAction("int64", (), (start,), (start + count - 1,))
        return Actions(count, True, partial(_decode_discrete, start), taken)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        binary = isinstance(space, spaces.MultiBinary)
        counts = np.full(space.shape, 2) if binary else np.asarray(space.nvec)
        starts = np.zeros(space.shape, np.int64) if binary else np.asarray(space.start)
        if not counts.size:
            raise ValueError(f"the actions of {name} are of the space {space!s:.300}, which holds no number.")
        low, high = (tuple(side.reshape(-1).tolist()) for side in (starts, starts + counts - 1))
        taken = TakenAction(np.dtype(space.dtype).name, tuple(space.shape), low, high)
        decode = partial(_decode_parts, starts, space.dtype)
        return Actions(int(counts.sum()), True, decode, taken, tuple(counts.reshape(-1).tolist()))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise ValueError(
                f"an action of {name} has no bounds ({space!s:.300}); "
                + (remedy or "give it some by gymnasium.wrappers.RescaleAction or ClipAction in make_env.")
            )
        if not low.size:
            raise ValueError(f"the actions of {name} are of the space {space!s:.300}, which holds no number.")
        bounds = tuple(low.reshape(-1).tolist()), tuple(high.reshape(-1).tolist())
        taken = TakenAction(np.dtype(space.dtype).name, tuple(space.shape), *bounds)
        return Actions(int(np.prod(space.shape)), False, partial(_decode_box, low, high, space.dtype), taken)
    raise ValueError(
        f"the actions of {name} are of the space {space!s:.300}, but agents act in a Box of floats or in a Discrete, "
        "MultiDiscrete or MultiBinary space; " + (remedy or "use a gymnasium.ActionWrapper that offers one of them.")
    )


def _decode_discrete(start: int, action: np.ndarray) -> int | list:
    return (action.astype(np.int64) + start).tolist()


def _decode_parts(starts: np.ndarray, dtype: np.dtype | None, action: np.ndarray) -> np.ndarray:
    return (action.reshape(action.shape[:-1] + starts.shape) + starts).astype(dtype)


def _decode_box(low: np.ndarray, high: np.ndarray, dtype: np.dtype, action: np.ndarray) -> np.ndarray:
    shaped = action.astype(np.float64).reshape(action.shape[:-1] + low.shape)
    share = 0.5 * (_clip(shaped, -1.0, 1.0) + 1.0)
    # Exact at -1 and 1, without overflow; `asarray` since NumPy makes a number of an array `[]`.
    return np.asarray(_clip((1.0 - share) * low + share * high, low, high).astype(dtype))


def _clip(values: np.ndarray, low: np.ndarray | float, high: np.ndarray | float) -> np.ndarray:
    """`np.clip`, in a third of its time for few numbers."""
    return np.minimum(np.maximum(values, low), high)
