"""Features of any shape as vectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import features

SHAPE = {"image": (2, 3, 2), "speed": (2,), "time": ()}


def values(dtype: str = "float32", leading: tuple[int, ...] = ()) -> dict[str, jax.Array]:
    def fill(shape: tuple[int, ...]) -> jax.Array:
        count = int(np.prod((*leading, *shape)))
        return jnp.arange(count, dtype=dtype).reshape(*leading, *shape)

    return {name: fill(shape) for name, shape in SHAPE.items()}


def test_the_size_is_that_of_all_arrays() -> None:
    assert features.feature_size((10, 10, 4)) == 400
    assert features.feature_size(SHAPE) == 12 + 2 + 1


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_flattening_can_be_undone(leading: tuple[int, ...]) -> None:
    original = values(leading=leading)
    flat = features.flatten_features(original, len(leading))
    assert flat.shape == (*leading, 15)
    restored = features.unflatten_features(SHAPE, flat)
    assert jax.tree.structure(restored) == jax.tree.structure(original)
    for name, array in original.items():
        assert restored[name].dtype == array.dtype
        np.testing.assert_array_equal(restored[name], array)


def test_names_give_the_order_booleans_become_numbers_and_pixels_are_scaled_among_others() -> None:
    flat = features.flatten_features({"b": jnp.float32(2.0), "a": jnp.ones(2)})
    np.testing.assert_array_equal(flat, [1.0, 1.0, 2.0])
    np.testing.assert_array_equal(features.flatten_features(jnp.asarray([True, False])), [1.0, 0.0])
    pixels = jnp.asarray([[0, 51], [102, 255]], jnp.uint8)
    assert features.flatten_features(pixels).dtype == jnp.uint8, "alone"
    mixed = features.flatten_features({"image": pixels, "speed": jnp.ones(1)})
    assert mixed.dtype == jnp.float32
    np.testing.assert_allclose(mixed, [0.0, 0.2, 0.4, 1.0, 1.0], rtol=1e-6)


@pytest.mark.parametrize("nothing", [{}, (), None])
def test_no_array_is_an_error(nothing: object) -> None:
    with pytest.raises(ValueError, match=r"^features must be at least one array, got "):
        features.flatten_features(nothing)


@pytest.mark.parametrize(
    ("shape", "image"),
    [((4,), False), ((4, 4), False), ((4, 4, 1), True), (SHAPE, True), ({"a": (2, 2)}, False), (None, False)],
)
def test_images_have_three_axes(shape: object, image: bool) -> None:
    assert features.has_image(shape) == image
