"""Features of any shape as vectors: images, and pytrees of arrays.

An `Observation` holds its features as one vector, so that buffers, statistics and exports need to know no shapes. The
spec of an environment declares the shapes (`EnvSpec.observation_shape`), which encoders restore.
"""

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from rookery.types import Array, PyTree

Shape = Any
"""The shape of an array, a tuple of ints, or a pytree of such tuples, such as `{"image": (10, 10, 4), "speed": (2,)}`.
"""


class Part(NamedTuple):
    """A part of an observation as its environment gives it, and how it becomes features; `policy.json` lists them."""

    path: tuple[str | int, ...]
    """Keys that lead to it in a dictionary or tuple; of a whole observation none."""
    shape: tuple[int, ...]
    """Shape of the array that the environment gives."""
    type: str
    """NumPy's name of its type."""
    encoding: Literal["numbers", "pixels", "one-hot", "by type"]
    """Numbers as they are; pixels in 0..255, which are divided by 255 unless all parts are pixels; one-hot; or, by the
    type of the array, pixels for uint8 and numbers for all others."""
    size: int
    """Number of features."""
    channels_first: bool = False
    """Whether it is an image `[C, H, W]`, whose channels move to the end."""
    counts: tuple[int, ...] = ()
    """For one-hot: how many values each number has."""
    starts: tuple[int, ...] = ()
    """For one-hot: the first value of each number."""


def feature_size(shape: Shape) -> int:
    """O, the number of features of a shape, or of all arrays of a pytree of shapes.

    Example:
      >>> rookery.envs.feature_size({"image": (10, 10, 4), "speed": (2,)})
      402
    """
    return sum(math.prod(leaf) for leaf in _leaves(shape))


def flatten_features(features: PyTree, leading: int = 0) -> Array:
    """Flatten features to the vector `[O]` that an observation holds; the leaves of a pytree follow in JAX's order.

    Integers of 8 bits are pixels: an observation of pixels alone keeps their type, which takes a quarter of the memory,
    and networks read them as numbers in [0, 1]. Among arrays of other types they are converted here.

    Args:
      features: an array, or a pytree of arrays.
      leading: number of leading axes to keep: 1 for the features of a team, `[I, ...]`.

    Raises:
      ValueError: there is no array.

    Example:
      >>> rookery.envs.flatten_features({"image": jnp.zeros((10, 10, 4)), "speed": jnp.zeros(2)}).shape
      (402,)
    """
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(features)]
    if not leaves:
        raise ValueError(f"features must be at least one array, got {features}.")
    if any(leaf.dtype != jnp.uint8 for leaf in leaves):
        leaves = [as_floats(leaf) for leaf in leaves]
    return jnp.concatenate([leaf.reshape(*leaf.shape[:leading], -1) for leaf in leaves], axis=-1)


def unflatten_features(shape: Shape, vector: Array) -> PyTree:
    """The inverse of `flatten_features` for vectors `[..., O]`: leaves `[..., *shape]`."""
    leaves, start = [], 0
    for leaf in _leaves(shape):
        end = start + math.prod(leaf)
        leaves.append(vector[..., start:end].reshape(*vector.shape[:-1], *leaf))
        start = end
    return jax.tree.unflatten(jax.tree.structure(shape, is_leaf=is_shape), leaves)


def as_floats(array: Array) -> Array:
    """The array as float32; integers of 8 bits are pixels, which are divided by 255."""
    if array.dtype == jnp.uint8:
        return array.astype(jnp.float32) / 255.0
    return array.astype(jnp.float32)


def has_image(shape: Shape) -> bool:
    """Whether a shape, or one in a pytree of shapes, is that of an image, (height, width, channels)."""
    return any(is_image(leaf) for leaf in _leaves(shape))


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether a shape is that of an image, (height, width, channels)."""
    return len(shape) == 3


def is_shape(value: object) -> bool:
    """Whether a value is the shape of one array."""
    return isinstance(value, tuple) and all(isinstance(size, int) for size in value)


def _leaves(shape: Shape) -> list[tuple[int, ...]]:
    return jax.tree.leaves(shape, is_leaf=is_shape)
