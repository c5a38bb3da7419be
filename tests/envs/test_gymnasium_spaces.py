"""Spaces of Gymnasium as features, and agents' actions as those of the environment."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from rookery.envs.host.base import HostWarning
from rookery.envs.suites.gymnasium.spaces import actions, observations
from rookery.features import feature_size, unflatten_features

FLOATS, PIXELS = np.dtype(np.float32), np.dtype(np.uint8)
MAXIMUM = float(np.finfo(np.float32).max)


def box(shape: tuple[int, ...], dtype: Any = np.float32) -> Box:
    return Box(0 if dtype == np.uint8 else -1, 255 if dtype == np.uint8 else 1, shape, dtype)


@pytest.mark.parametrize(
    ("space", "observation", "features", "shape"),
    [
        (box((3,), np.float64), np.asarray([0.5, -1.0, 0.25]), [0.5, -1.0, 0.25], None),
        (box(()), np.float32(0.5), [0.5], None),
        (box((2, 2)), np.asarray([[1, 2], [3, 4]], np.float32), [1, 2, 3, 4], (2, 2)),
        (box((2,), np.uint8), np.asarray([7, 255], np.uint8), [7, 255], None),  # not pixels: numbers as they are
        (Box(-5, 5, (2,), np.int64), np.asarray([-5, 3]), [-5, 3], None),
        (Discrete(3, start=2), np.int64(2), [1, 0, 0], None),
        (MultiDiscrete([2, 2], start=[5, -1]), np.asarray([5, 0]), [1, 0, 0, 1], None),
        (MultiBinary(3), np.asarray([1, 0, 1], np.int8), [1, 0, 1], None),
        (MultiBinary((2, 2)), np.asarray([[1, 0], [0, 1]], np.int8), [1, 0, 0, 1], (2, 2)),
        (Dict({"b": Discrete(2), "a": box((2,))}), {"b": 1, "a": np.asarray([3.0, 4.0])}, [3, 4, 0, 1], None),
        (Tuple([Discrete(2), box(())]), (1, 0.5), [0, 1, 0.5], None),
    ],
)
def test_observations_by_hand(space: Any, observation: Any, features: Any, shape: Any) -> None:
    read = observations(space, "env")
    encoded = read.encode(observation)
    np.testing.assert_array_equal(encoded, np.asarray(features, np.float32))
    assert (encoded.dtype, read.dtype, read.size, read.shape) == (FLOATS, FLOATS, len(features), shape)


SIDES = 10, 12
COLOURS = np.arange(360, dtype=np.int64).reshape(*SIDES, 3) % 256


def test_pixels_keep_their_type() -> None:
    read = observations(box((*SIDES, 3), np.uint8), "env")
    encoded = read.encode(COLOURS.astype(np.uint8))
    np.testing.assert_array_equal(encoded, COLOURS.reshape(-1))
    assert (encoded.dtype, read.dtype, read.shape) == (PIXELS, PIXELS, (*SIDES, 3))
    two = observations(Tuple([box((10, 10, 1), np.uint8), box((*SIDES, 3), np.uint8)]), "env")
    encoded = two.encode((np.full((10, 10, 1), 9, np.uint8), COLOURS.astype(np.uint8)))
    assert (encoded.tolist(), encoded.dtype, two.dtype) == ([9] * 100 + COLOURS.ravel().tolist(), PIXELS, PIXELS)
    assert two.shape == {"0": (10, 10, 1), "1": (*SIDES, 3)}


def test_images_have_their_channels_last():
    """A grey image gets a channel; frames that `FrameStackObservation` stacks come first and move to the end."""
    grey = observations(box(SIDES, np.uint8), "env")
    pixels = np.arange(120, dtype=np.uint8).reshape(SIDES)
    assert (grey.shape, grey.dtype) == ((*SIDES, 1), PIXELS)
    np.testing.assert_array_equal(grey.encode(pixels), np.arange(120))
    stacked = observations(box((2, *SIDES), np.uint8), "env")
    frames = np.stack([pixels, 100 + pixels])
    assert (stacked.shape, stacked.dtype) == ((*SIDES, 2), PIXELS)
    np.testing.assert_array_equal(stacked.encode(frames).reshape(*SIDES, 2)[..., 1], 100 + pixels)
    with pytest.raises(ValueError, match=r"the shape \(2, 12, 10\), but its space \(2, 10, 12\)"):
        stacked.encode(np.zeros((2, 12, 10), np.uint8))
    # Planes of 0 and 1, or kinds of cells, are no pixels: a division by 255 would make them nearly equal.
    planes = observations(Box(0, 1, (4, *SIDES), np.uint8), "env")
    assert (planes.shape, planes.dtype, planes.encode(np.ones((4, *SIDES), np.uint8)).max()) == (
        (*SIDES, 4),
        FLOATS,
        1.0,
    )


NO_IMAGES = (2, 128), (9, 9), (10, 41), (8, 8, 12), (7, 7, 3), (10, 10, 10)


@pytest.mark.parametrize("shape", [*NO_IMAGES, (2, 10, 41)])
def test_an_array_that_may_be_no_image_is_a_vector(shape: tuple[int, ...]) -> None:
    with pytest.warns(
        HostWarning, match=rf"^env, entry 'a': .* {re.escape(str(shape))} are read as a vector .*encoder="
    ):
        read = observations(Dict({"a": box(shape, np.uint8)}), "env")
    values = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    encoded = read.encode({"a": values})
    np.testing.assert_array_equal(encoded, values.reshape(-1))  # numbers as they are
    assert (encoded.dtype, read.dtype, read.shape) == (FLOATS, FLOATS, None)


def test_pixels_beside_numbers_are_divided_by_255() -> None:
    space = Dict({"z": box((2,)), "image": box((*SIDES, 3), np.uint8), "m": box(())})
    read = observations(space, "env")
    image = COLOURS.astype(np.uint8)
    encoded = read.encode({"z": np.asarray([0.5, -0.5]), "image": image, "m": np.float32(2.0)})
    assert (encoded.dtype, read.dtype, read.size) == (FLOATS, FLOATS, 363)
    expected = np.concatenate([image.reshape(-1) / np.float32(255.0), [2.0, 0.5, -0.5]])
    np.testing.assert_array_equal(encoded, expected.astype(np.float32))
    assert feature_size(read.shape) == 363
    parts = unflatten_features(read.shape, jnp.asarray(encoded))
    np.testing.assert_array_equal(parts["image"], image.astype(np.float32) / np.float32(255.0))
    np.testing.assert_array_equal(parts["z"], [0.5, -0.5])
    assert float(parts["m"]) == 2.0


def test_entries_follow_in_the_order_of_jax() -> None:
    entries = 11  # "10" is before "2"
    read = observations(Tuple([box((1, 1, 1)) for _ in range(entries)]), "env")
    encoded = read.encode(tuple(np.full((1, 1, 1), i, np.float32) for i in range(entries)))
    np.testing.assert_array_equal(encoded, jax.tree.leaves({str(i): float(i) for i in range(entries)}))


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        (box((3,)), np.zeros(4), r"the shape \(4,\), but its space \(3,\)"),
        (Discrete(3, start=2), 5, "is 5, but its space has the values 2 to 4"),
        (MultiDiscrete([2, 3]), np.asarray([2, 0]), "is 2, but its space has the values 0 to 1"),
        (Discrete(3), 1.5, r"its observation is 1\.5, but its space has the values 0 to 2"),
        (Dict({"a": Discrete(3)}), {"b": 1}, r"its observation is \{'b': 1\}, without the entry 'a'"),
        (Tuple([Discrete(3), box(())]), (1,), r"its observation is \(1,\), without the entry 1"),
        (Dict({"a": Discrete(3)}), {"a": 1, "b": 1}, "its observation has the entry 'b', which its space lacks"),
        *(
            (box((2,), np.uint8), [value, 1.0], f"has the value {value}, which its space of type uint8 cannot hold")
            for value in (0.5, 300.0, -1.0, np.nan)
        ),
        (box((2,), np.uint8), [300, 1], "has the value 300, which its space of type uint8 cannot hold"),
        (Tuple([box((3, *SIDES), np.uint8)]), [np.full((3, *SIDES), 0.25)], r"^entry 0 .* has the value 0\.25, which"),
        (MultiBinary(2), [0, 2], "has the value 2, which its space of type bool cannot hold"),
        (box((2,)), ["1", "2"], r"its observation is \['1', '2'\] instead of numbers"),
        (box((1,)), np.ones(1, complex), r"its observation is array\(\[1\.\+0\.j\]\) instead of numbers"),
    ],
)
def test_observations_outside_of_their_space(space: Any, observation: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        observations(space, "env").encode(observation)


@pytest.mark.parametrize(
    ("space", "observation", "features"),
    [
        (box((2,), np.uint8), [3.0, 255.0], [3, 255]),
        (MultiBinary(2), [True, False], [1, 0]),
        (Discrete(3), 2.0, [0, 0, 1]),
        (box((2,)), jnp.asarray([0.5, 1.0], jnp.bfloat16), [0.5, 1.0]),
    ],
)
def test_other_types_that_hold_the_same_numbers(space: Any, observation: Any, features: Any) -> None:
    np.testing.assert_array_equal(observations(space, "env").encode(observation), features)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Dict({"a": Dict({"b": Discrete(2)})}), r"of env, entry 'a' are nested Dict spaces; .*FlattenObservation"),
        (spaces.Text(5), "of env are of the space Text.*which no agent reads; use a gymnasium.ObservationWrapper"),
        (MultiDiscrete(np.asarray([[2, 3], [2, 2]])), "of env are of the space MultiDiscrete"),
        (Dict({f"note {i}": box((0,)) for i in range(99)}), "of env, entry 'note 0' are of the space Box"),
        (box((0,)), "of env are of the space Box.*, which holds no number"),
        (Dict({}), r"of env are of the space Dict\(\), which holds no number"),
    ],
)
def test_observations_that_no_agent_reads(space: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        observations(space, "env")
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("low", "high", "middle", "dtype"),
    [
        (-2.0, 2.0, 0.0, np.float32),
        (0.1, 0.7, 0.5 * (0.1 + 0.7), np.float64),
        (-1e20, 1.0, -5e19, np.float64),
        (-MAXIMUM, MAXIMUM, 0.0, np.float32),  # the difference of the bounds is no float32
        (-1e308, 1.5e308, 2.5e307, np.float64),  # nor a float64
    ],
)
def test_actions_are_rescaled_to_the_bounds(low: float, high: float, middle: float, dtype: Any) -> None:
    space = Box(np.full(2, low, dtype), np.full(2, high, dtype), dtype=dtype)
    read = actions(space, "env")
    assert (read.size, read.discrete) == (2, False)
    for action, expected in ((-1.0, low), (0.0, middle), (1.0, high), (-7.0, low), (np.inf, high)):
        decoded = read.decode(np.full(2, action, np.float32))
        np.testing.assert_array_equal(decoded, np.full(2, expected, dtype))
        assert decoded.dtype == dtype
        assert space.contains(decoded)


def test_bounds_and_shapes_of_actions_are_kept() -> None:
    space = Box(np.asarray([[-5, 0], [1, -1]], np.float32), np.asarray([[1e6, 8], [2, 3]], np.float32))
    read = actions(space, "env")
    decoded = read.decode(np.asarray([-1.0, -0.5, 0.0, 0.25], np.float32))
    assert read.size == 4
    np.testing.assert_array_equal(decoded, np.asarray([[-5.0, 2.0], [1.5, 1.5]], np.float32))
    scalar = actions(Box(-2.0, 4.0, (), np.float32), "env")
    assert (scalar.size, float(scalar.decode(np.asarray([0.5], np.float32)))) == (1, 2.5)
    assert np.shape(scalar.decode(np.asarray([0.5], np.float32))) == ()


def test_discrete_actions_are_counted_from_the_start_of_the_space() -> None:
    read = actions(Discrete(3, start=2), "env")
    assert (read.size, read.discrete) == (3, True)
    decoded = [read.decode(np.asarray(index, np.int32)) for index in range(3)]
    assert (decoded, {type(action) for action in decoded}) == ([2, 3, 4], {int})


def of_parts(counts: Any, start: Any) -> MultiDiscrete:
    return MultiDiscrete(np.asarray(counts), start=np.asarray(start))


@pytest.mark.parametrize(
    ("space", "categories", "action", "expected"),
    [
        (of_parts([[2, 4], [3, 1]], [[0, 5], [-1, 9]]), (2, 4, 3, 1), [1, 3, 0, 0], [[1, 8], [-1, 9]]),
        (MultiBinary((2, 2)), (2, 2, 2, 2), [0, 1, 1, 0], [[0, 1], [1, 0]]),
    ],
)
def test_the_parts_of_an_action_are_categories(
    space: Any, categories: tuple[int, ...], action: list[int], expected: list[list[int]]
) -> None:
    read = actions(space, "env")
    assert read.categories == categories
    assert read.size == sum(categories)
    decoded = read.decode(np.asarray(action, np.int32))
    assert decoded.tolist() == expected
    assert space.contains(decoded)
    assert read.decode(np.zeros((3, 4), np.int32)).shape == (3, 2, 2)
    assert read.are_valid(np.asarray([action, [-1] * 4])).tolist() == [True, False]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Box(-np.inf, np.inf, (2,)), r"an action of env has no bounds .*RescaleAction or ClipAction"),
        (Box(0, 5, (2,), np.int32), "the actions of env are of the space Box.*gymnasium.ActionWrapper"),
        (MultiDiscrete(np.zeros(0, int)), "the actions of env are of the space MultiDiscrete.*, which holds no number"),
        (box((0,)), "the actions of env are of the space Box.*, which holds no number"),
    ],
)
def test_actions_that_no_agent_takes(space: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        actions(space, "env")
