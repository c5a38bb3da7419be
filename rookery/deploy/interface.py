"""Observations as an environment gives them, and actions as it takes them, by the content of `policy.json`.

Exported scripts contain this file, so it needs NumPy alone.
"""

import numpy as np


def encode(about, observation, xp=np):
    """The features of an observation as the environment gives it, or of features themselves; also of a batch.

    Args:
      about: the content of `policy.json`.
      observation: a number, an array, or a dictionary or tuple of them. Where the environment gives one number, an
        array `[1]` is the features of one observation; where it gives a tuple, features are an array.
      xp: the module `numpy`, or `jax.numpy`.

    Returns:
      `[O]`, for a team `[I, O]`, with the axis of the batch before them.

    Raises:
      ValueError: the observation has another shape, or a value that the environment cannot give.
    """
    own, axes = about["observation"], 1 if about["team"] else 0
    parts, dtype = own["features"], np.dtype(own["type"])
    is_tuple = isinstance(observation, tuple) and isinstance((parts[0]["path"] or [""])[0], int)
    array = None if is_tuple else _array(observation, xp)
    whole = array is not None and parts[0]["path"] == [] and _fits(parts[0], array, axes)
    if array is not None and whole and parts[0]["shape"] == [] and parts[0]["encoding"] != "one-hot":
        whole = array.shape[axes:] != (1,)  # the features of one observation, and no batch of one number
    if not whole and array is not None and array.shape[-1:] == (own["size"],) and 0 <= array.ndim - axes - 1 <= 1:
        return _numbers(array, "by type", dtype)
    rows = [_encode_part(part, _at(observation, part["path"]), axes, dtype, xp) for part in parts]
    vector = rows[0] if len(rows) == 1 else xp.concatenate(rows, axis=-1)
    if vector.shape[-1] != own["size"]:
        raise ValueError(f"the policy reads {own['size']} numbers, the last of which are the mask of the actions.")
    return vector


def decode(about, action, xp=np):
    """An action of the policy as the environment takes it, or a batch of them `[N, ...]`.

    Args:
      about: the content of `policy.json`.
      action: `[A]` in [-1, 1], or `[]` or `[K]` int32.
      xp: the module `numpy`, or `jax.numpy`.

    Raises:
      ValueError: the action is that of outputs which were not finite.
    """
    taken, discrete = about["action"].get("environment"), about["action"]["kind"] != "continuous"
    if taken is None:
        return action
    if xp is np and not np.all(action >= 0 if discrete else np.isfinite(action)):
        raise ValueError("the outputs of the policy are not finite.")
    shape, wide = tuple(taken["shape"]), np.float64 if xp is np else np.float32
    if discrete:
        parts = action.reshape((*action.shape[: action.ndim - bool(shape)], *shape))
        number = parts + xp.asarray(taken["low"], action.dtype).reshape(shape)
        return (
            int(number)
            if xp is np and number.ndim == 0
            else number.astype(taken["type"] if shape and xp is np else action.dtype)
        )
    low, high = (xp.asarray(taken[side], wide).reshape(shape) for side in ("low", "high"))
    share = 0.5 * (xp.clip(action.reshape(action.shape[:-1] + shape).astype(wide), -1.0, 1.0) + 1.0)
    return xp.asarray(xp.clip((1.0 - share) * low + share * high, low, high), taken["type"] if xp is np else wide)


def _array(value, xp):
    """A value as an array of numbers; None if it is something else, such as a dictionary, or masked."""
    if np.ma.is_masked(value):
        return None
    if isinstance(value, np.ndarray):  # JAX takes no other order of bytes
        value = np.asarray(value).astype(value.dtype.newbyteorder("="), copy=False)
    try:
        array = xp.asarray(value)
    except (TypeError, ValueError):
        return None
    numbers = ("bool", "int", "uint", "float", "bfloat")  # by name, since bfloat16 has the kind of bytes
    return array if array.dtype.name.startswith(numbers) else None


def _at(value, path):
    """The part of an observation at a path of keys."""
    for key in path:
        try:
            fields = getattr(value, "_fields", getattr(value, "__dataclass_fields__", ()))
            value = getattr(value, key) if key in fields else value[key]
        except (LookupError, TypeError):
            raise ValueError(f"the observation has no entry {key!r}, which the policy reads.") from None
    return value


def _fits(part, array, axes):
    """Whether an array is such a part, or a batch of them; features that are one-hot are floating-point."""
    shape, more = tuple(part["shape"]), array.ndim - len(part["shape"]) - axes
    known = more in (0, 1) and array.shape[array.ndim - len(shape) :] == shape
    return known and (more == 0 or part["encoding"] != "one-hot" or array.dtype.kind in "biu")


def _encode_part(part, value, axes, dtype, xp):
    array, name = _array(value, xp), f"the entry {part['path'][-1]!r}" if part["path"] else "the observation"
    if array is None or not _fits(part, array, axes):
        given = "no number" if array is None else f"of shape {array.shape}"
        raise ValueError(f"{name} is {given}, but the policy reads {tuple(part['shape'])}.")
    lead = array.shape[: array.ndim - len(part["shape"])]
    if part["encoding"] == "one-hot":
        numbers = array.reshape((*lead, -1)) - xp.asarray(part["starts"])
        counts = part["counts"]
        if xp is np and not np.all((numbers >= 0) & (numbers < np.asarray(counts)) & (numbers % 1 == 0)):
            values = [f"{a} to {a + n - 1}" for a, n in zip(part["starts"], counts, strict=True)]
            raise ValueError(f"{name} is {value}, but its values are {', '.join(values)}.")
        hot = [numbers[..., i : i + 1] == xp.arange(count) for i, count in enumerate(counts)]
        return xp.concatenate(hot, axis=-1).astype(np.float32)
    array = xp.moveaxis(array, -3, -1) if part["channels_first"] else array
    return _numbers(array.reshape((*lead, -1)), part["encoding"], dtype)


def _numbers(array, encoding, dtype):
    """Numbers in the type of the policy's observations; among others, pixels become numbers in [0, 1]."""
    alone = dtype == np.uint8
    if alone and array.dtype.kind not in "iu":
        raise ValueError(f"the policy reads pixels, uint8 in 0..255, got {array.dtype}; do not divide them by 255.")
    pixels = alone or encoding == "pixels" or (encoding == "by type" and array.dtype == np.uint8)
    unsure = pixels and isinstance(array, np.ndarray) and array.dtype != np.uint8
    if unsure and not np.all((array >= 0) & (array <= 255) & (array == np.floor(array))):
        raise ValueError("pixels are whole numbers in 0..255; do not divide them by 255.")
    if alone:
        return array.astype(np.uint8)
    return array.astype(np.float32) / np.float32(255.0) if pixels else array.astype(np.float32)
