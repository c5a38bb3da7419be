"""Observations as environments of Gymnasium give them, and actions as they take them, by the content of policy.json."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.deploy import interface

gymnasium: Any = pytest.importorskip("gymnasium")
from rookery.envs.suites.gymnasium import spaces  # noqa: E402

BOX = gymnasium.spaces.Box(-2.0, np.asarray([1.0, 3.0]), (2,), np.float64)
IMAGE = gymnasium.spaces.Box(0, 255, (12, 14, 3), np.uint8)
STACKED = gymnasium.spaces.Box(0, 255, (4, 12, 14), np.uint8)
OBSERVATIONS = {
    "box": BOX,
    "grid": gymnasium.spaces.Box(-1.0, 1.0, (2, 3), np.float32),
    "bytes": gymnasium.spaces.Box(0, 255, (5,), np.uint8),
    "image": IMAGE,
    "stacked": STACKED,
    "levels": gymnasium.spaces.Box(0, 7, (12, 14, 1), np.uint8),
    "discrete": gymnasium.spaces.Discrete(3, start=-1),
    "multi-discrete": gymnasium.spaces.MultiDiscrete(np.asarray([2, 3]), start=np.asarray([0, 5])),
    "multi-binary": gymnasium.spaces.MultiBinary(4),
    "dict": gymnasium.spaces.Dict(
        z=BOX, image=IMAGE, room=gymnasium.spaces.Discrete(4), flags=gymnasium.spaces.MultiBinary(2)
    ),
    "tuple": gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3), BOX]),
    "tuple of one": gymnasium.spaces.Tuple([BOX]),
    "number": gymnasium.spaces.Box(-1.0, 1.0, ()),
    "images": gymnasium.spaces.Dict(near=IMAGE, far=STACKED),
}
ACTIONS = {
    "box": BOX,
    "grid": gymnasium.spaces.Box(-1e30, 1e30, (2, 3), np.float32),
    "number": gymnasium.spaces.Box(-2.0, 4.0, ()),
    "discrete": gymnasium.spaces.Discrete(3, start=2),
    "multi-discrete": gymnasium.spaces.MultiDiscrete(np.asarray([[2, 5], [3, 2]]), start=np.asarray([[0, -1], [7, 0]])),
    "multi-binary": gymnasium.spaces.MultiBinary((2, 3)),
}


def about(observed: spaces.Observations, action: Any = None) -> dict[str, Any]:
    """The parts of policy.json, read back."""
    parts = [part._asdict() for part in observed.given]
    own = {"size": observed.size, "type": observed.dtype.name, "features": parts}
    return json.loads(json.dumps({"observation": own, "team": None, "action": action}))


@pytest.mark.filterwarnings("ignore:.*are read as a vector")
@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observations_become_the_features_that_were_trained_on(name: str) -> None:
    space = OBSERVATIONS[name]
    observed = spaces.observations(space, "an environment")
    description = about(observed)
    assert sum(part["size"] for part in description["observation"]["features"]) == observed.size
    space.seed(0)
    samples = [space.sample() for _ in range(3)]
    for sample in samples:
        expected = observed.encode(sample)
        found = interface.encode(description, sample)
        assert found.dtype == observed.dtype
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(interface.encode(description, expected), expected, "features are taken, too")
        np.testing.assert_allclose(jax.jit(lambda one: interface.encode(description, one, jnp))(sample), expected)
    if not name.startswith("tuple"):  # in which a batch would be of another type
        batch = jax.tree.map(lambda *leaves: np.stack(leaves), *samples)
        stacked = np.stack([observed.encode(sample) for sample in samples])
        np.testing.assert_array_equal(interface.encode(description, batch), stacked)
        np.testing.assert_array_equal(interface.encode(description, stacked), stacked)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, jnp.bfloat16])
def test_numbers_of_any_type_are_read(dtype: Any) -> None:
    observed = spaces.observations(BOX, "an environment")
    np.testing.assert_array_equal(interface.encode(about(observed), np.asarray([-1, 1], dtype)), [-1.0, 1.0])
    assert interface.encode(about(observed), [-1, 1]).dtype == np.float32
    for other in (np.asarray([-1, 1], dtype).astype(">f8"), np.ma.masked_array([-1.0, 1.0], False)):
        np.testing.assert_array_equal(interface.encode(about(observed), other, jnp), [-1.0, 1.0])


DIVIDED = {"flags": [0, 1], "image": np.full((12, 14, 3), 0.5), "room": 0, "z": [0.0, 0.0]}


@pytest.mark.parametrize(
    ("name", "observation", "message"),
    [
        ("box", np.ma.masked_array([1.0, 9.0], [False, True]), "the observation is no number, but the policy reads"),
        ("box", [1.0], r"the observation is of shape \(1,\), but the policy reads \(2,\)"),
        ("discrete", 2, "the observation is 2, but its values are -1 to 1"),
        ("multi-discrete", [0, 4], r"the observation is \[0, 4\], but its values are 0 to 1, 5 to 7"),
        ("dict", {"z": [0.0, 0.0]}, "the observation has no entry 'flags', which the policy reads"),
        ("image", np.zeros((12, 14, 3)), "reads pixels, uint8 in 0..255, got float64; do not divide"),
        ("image", np.full((12, 14, 3), 300), r"^pixels are whole numbers in 0\.\.255; do not divide them by 255\.$"),
        ("dict", DIVIDED, "pixels are whole numbers"),
    ],
)
def test_other_observations_are_rejected(name: str, observation: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interface.encode(about(spaces.observations(OBSERVATIONS[name], "an environment")), observation)


@pytest.mark.parametrize("name", ACTIONS)
def test_actions_are_those_that_the_environment_takes(name: str) -> None:
    space = ACTIONS[name]
    acted = spaces.actions(space, "an environment")
    names = {True: "multi-discrete" if acted.categories else "discrete", False: "continuous"}
    kind = {"kind": names[acted.discrete], "environment": acted.taken._asdict()}
    description = about(spaces.observations(BOX, "an environment"), kind)
    rng = np.random.default_rng(0)
    batch = rng.uniform(-1.5, 1.5, (4, acted.size)).astype("f4")
    if acted.discrete:
        counts = acted.categories or 3
        batch = rng.integers(0, counts, (4, len(acted.categories)) if acted.categories else 4, np.int32)
    for action in batch:
        taken = interface.decode(description, action)
        assert space.contains(taken)
        assert isinstance(taken, int if space.shape == () and acted.discrete else np.ndarray)
        np.testing.assert_array_equal(taken, acted.decode(action))
    np.testing.assert_array_equal(interface.decode(description, batch), acted.decode(batch))
    traced = jax.vmap(lambda action: interface.decode(description, action, jnp))(batch)
    np.testing.assert_allclose(traced, acted.decode(batch), rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="not finite"):
        interface.decode(description, batch[0] * 0 - 1 if acted.discrete else batch[0] * np.nan)
