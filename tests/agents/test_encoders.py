"""Encoders: convolutions by hand, and agents that read images, pytrees and user-defined encoders."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import hyperparams, networks
from rookery.agents.base import OffPolicyAgent
from rookery.agents.encoders import SMALL, Convolution, Reader, convolutional, reader
from rookery.agents.ppo import PpoConfig, ppo
from rookery.agents.pqn import PqnConfig, pqn
from rookery.agents.sac import SacConfig, sac
from rookery.agents.skills.diayn import DiaynConfig, diayn
from rookery.agents.td3 import td3
from rookery.envs.base import EnvSpec, SkillSpec, descriptor_spec
from rookery.features import feature_size
from rookery.learners.skills import freeze_skills
from rookery.networks import Encoded, Encoder
from rookery.qd.scoring import PolicyConfig, policy
from rookery.types import Genotype, Observation

IMAGE = {"image": (6, 5, 2), "speed": (3,)}


def spec_of(shape: Any, **fields: Any) -> EnvSpec:
    return EnvSpec("images", feature_size(shape), 2, 10, observation_shape=shape, **fields)


def convolved(images: np.ndarray, kernel: np.ndarray, bias: np.ndarray, stride: int) -> np.ndarray:
    """A convolution by loops: `[H, W, C]`, `[k, k, C, F]` -> `[H', W', F]`."""
    size = kernel.shape[0]
    rows, columns = ((length - size) // stride + 1 for length in images.shape[:2])
    output = np.zeros((rows, columns, kernel.shape[-1]))
    for row in range(rows):
        for column in range(columns):
            top, left = row * stride, column * stride
            patch = images[top : top + size, left : left + size]
            output[row, column] = np.einsum("ijc,ijcf->f", patch, kernel) + bias
    return np.maximum(output, 0.0)


def test_convolutions_equal_loops() -> None:
    layers = (Convolution(4, 3, 2), Convolution(3, 2, 1))
    encoder = convolutional((9, 8, 2), layers, 5)
    params, apply = jax.jit(encoder.init)(jax.random.key(0)), jax.jit(encoder.apply)
    images = np.random.default_rng(1).normal(size=(2, 3, 9, 8, 2)).astype(np.float32)
    encoded = np.asarray(apply(params, images))
    assert encoded.shape == (2, 3, 5)
    for image, found in zip(images.reshape(-1, 9, 8, 2), encoded.reshape(-1, 5), strict=True):
        hidden, channels = image, 2
        for layer, weights in zip(layers, params["images"][0], strict=True):
            kernel = np.asarray(weights["kernel"]).reshape(layer.kernel, layer.kernel, channels, layer.channels)
            hidden, channels = convolved(hidden, kernel, np.asarray(weights["bias"]), layer.stride), layer.channels
        dense = params["dense"]
        expected = np.maximum(hidden.reshape(-1) @ np.asarray(dense["kernel"]) + np.asarray(dense["bias"]), 0.0)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(apply(params, images[1]), encoded[1], atol=1e-5)
    np.testing.assert_allclose(apply(params, images[1, 2]), encoded[1, 2], atol=1e-5)


def test_kernels_are_orthogonal_with_the_gain_of_relu() -> None:
    params = jax.jit(convolutional((9, 9, 2), (Convolution(4, 3, 1),), 6).init)(jax.random.key(0))
    for layer in (params["images"][0][0], params["dense"]):
        kernel = np.asarray(layer["kernel"])
        np.testing.assert_allclose(kernel.T @ kernel, 2.0 * np.eye(kernel.shape[1]), atol=1e-5)
        assert not layer["bias"].any()


def test_other_features_join_the_dense_layer() -> None:
    encoder = convolutional(IMAGE, (Convolution(4, 3, 1),), 5)
    inputs = {"image": jnp.ones((2, 6, 5, 2)), "speed": jnp.asarray([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])}
    first, second = jax.jit(lambda key: encoder.apply(encoder.init(key), inputs))(jax.random.key(0))
    assert not np.allclose(first, second)


@pytest.mark.parametrize(
    ("shape", "name", "layers", "units"),
    [
        ((36, 36, 1), "auto", 3, 512),
        ((35, 84, 4), "auto", 1, 128),
        ((84, 84, 4), "small", 1, 128),
    ],
)
def test_the_size_of_the_image_chooses_the_encoder(shape: tuple, name: Any, layers: int, units: int) -> None:
    read = reader(spec_of(shape), name)
    assert read.encoder is not None
    params = jax.eval_shape(read.encoder.init, jax.random.key(0))
    assert (len(params["images"][0]), read.size, read.encoded_size) == (layers, units, units)


@pytest.mark.parametrize("shape", [None, (8, 8), (2, 3, 4)])  # the last: smaller than a kernel
def test_vectors_are_read_as_they_are(shape: Any) -> None:
    spec = EnvSpec("vectors", feature_size(shape or (7,)), 2, 10, observation_shape=shape)
    assert reader(spec, "auto") == Reader(spec.observation_size, spec)
    assert reader(spec_of((10, 10, 4)), "none").size == 400


@pytest.mark.parametrize(
    ("shape", "name", "message"),
    [
        ((10, 10, 4), "mnih", "there is no encoder 'mnih'; use one of auto, none, nature, small."),
        ((8, 8), "small", r"encoder reads images, but the observations of images have the shape \(8, 8\), got 'small'"),
        ((20, 20, 1), "nature", r"an image of \(20, 20, 1\) is too small"),
    ],
)
def test_an_encoder_that_cannot_read_the_features_is_an_error(shape: tuple, name: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reader(spec_of(shape), name)


def linear(size: int) -> Encoder:
    """A user-defined encoder of a vector."""

    def init(key: jax.Array) -> Any:
        return jax.random.normal(key, (3, size))

    def apply(params: Any, features: Any) -> jax.Array:
        return features @ params

    return Encoder(init, apply)


def test_an_encoder_of_ones_own_reads_the_features_alone() -> None:
    spec = EnvSpec("vectors", 3, 2, 10, skill=SkillSpec("one-hot", 2))
    read = reader(spec, "auto", linear(4))
    assert (read.size, read.encoded_size) == (6, 4)
    assert sac(spec, encoder=linear(4)).settings["agent"]["encoder"] == "linear.<locals>.apply"
    network = read.network(networks.mlp((read.size,), (), 1))
    params = jax.jit(network.init)(jax.random.key(0))
    assert type(params) is Encoded
    features, skill = np.asarray([1.0, 2.0, 3.0], np.float32), np.asarray([0.0, 1.0], np.float32)
    head = params.head["params"]["Dense_0"]
    expected = np.concatenate([features @ params.encoder, skill]) @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(
        jax.jit(network.apply)(params, Observation(jnp.asarray(features), jnp.asarray(skill))), expected, rtol=1e-5
    )


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (lambda _, features: features.sum(), r"must return a vector .*\['F'\] .* leading axes \(\), got \[\]"),
        (lambda _, features: features.reshape(-1), r"\[2, 3, 'F'\] .* leading axes \(2, 3\), got \[18\]"),
        (lambda _, features: features @ np.ones((5, 2)), r"raised TypeError for features of shape \(3,\) with leading"),
    ],
)
def test_the_mistakes_of_an_encoder_are_sentences(apply: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reader(EnvSpec("vectors", 3, 2, 10), "auto", Encoder(lambda _: (), apply))


MAKERS: dict[str, Callable[..., Any]] = {
    **{make.__name__: partial(make, hidden_sizes=(4,)) for make in (sac, td3, ppo)},
    "evolved": lambda spec, encoder: policy(spec, PolicyConfig((4,)), encoder),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_every_agent_reads_an_encoder_of_ones_own(make: Callable[..., Any]) -> None:
    agent = make(EnvSpec("vectors", 3, 2, 10), encoder=linear(4))
    features = jnp.asarray([[1.0, 2.0, 3.0], [3.0, -2.0, 0.0]])

    def actions(key: jax.Array) -> list[jax.Array]:
        params = agent.init(key)
        blind = jax.tree.map(lambda leaf: jnp.zeros_like(leaf) if leaf.shape == (3, 4) else leaf, params)
        return [jax.vmap(lambda row, p=given: agent.act(p, Observation(row)))(features) for given in (params, blind)]

    seeing, blind = jax.jit(actions)(jax.random.key(0))
    assert not np.allclose(seeing[0], seeing[1], rtol=0.0, atol=1e-7)
    np.testing.assert_array_equal(blind[0], blind[1])


@pytest.mark.parametrize("name", ["ppo", "evolved"])  # all agents read them by the same network
def test_pixels_of_8_bits_are_read_as_numbers_in_the_unit_interval(name: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, 100, np.uint8)
    for shape in ((10, 10, 1), None):
        agent = MAKERS[name](EnvSpec("pixels", 100, 2, 10, observation_shape=shape), encoder=None)
        params, act = jax.jit(agent.init)(jax.random.key(0)), jax.jit(agent.act)
        expected = act(params, Observation(jnp.asarray(pixels.astype(np.float32) / np.float32(255.0))))
        np.testing.assert_allclose(act(params, Observation(jnp.asarray(pixels))), expected, rtol=1e-5)


def test_a_recurrent_policy_reads_images() -> None:
    agent = ppo(spec_of((10, 10, 1), discrete=True), PpoConfig(hidden_sizes=(4,), recurrent=True, memory_size=3))
    shown = Observation(jnp.zeros(100), carry=jax.tree.map(jnp.zeros, agent.carry_sizes))
    action = jax.eval_shape(lambda key: agent.act(agent.init(key), shown), jax.random.key(0))
    assert action.carry.policy.shape == (3,)


def test_normalised_convolutions_ignore_the_scale_of_an_image() -> None:
    shown = jax.random.uniform(jax.random.key(0), (3, 100))
    for layer_norm in (False, True):
        encoder = convolutional((10, 10, 1), SMALL, 5, layer_norm)
        params = jax.jit(encoder.init)(jax.random.key(1))
        once, twice = (encoder.apply(params, scale * shown.reshape(3, 10, 10, 1)) for scale in (1.0, 2.0))
        assert np.allclose(once, twice, rtol=1e-3, atol=1e-4) == layer_norm
    agent = pqn(spec_of((10, 10, 1), discrete=True), PqnConfig(hidden_sizes=(4,)))
    action = jax.eval_shape(lambda key: agent.act(agent.init(key), Observation(shown[0])), jax.random.key(0))
    assert (action.shape, action.dtype) == ((), jnp.int32)


def test_statistics_of_images_are_off_by_default() -> None:
    assert ppo(spec_of((4,))).normalize
    assert not ppo(spec_of((10, 10, 1))).normalize


def test_frozen_skills_of_an_agent_with_an_encoder_act_equally() -> None:
    position = descriptor_spec("position", "final", (-1.0, -1.0), (1.0, 1.0))
    spec = EnvSpec("vectors", 3, 2, 10, skill=SkillSpec("one-hot", 2), descriptor=position)
    plain = sac(spec._replace(skill=None), SacConfig(hidden_sizes=(4,)), linear(5))
    inner: OffPolicyAgent = sac(spec, SacConfig(hidden_sizes=(4,)), linear(5))
    agent = diayn(inner, spec, DiaynConfig(discriminator_hidden_sizes=(4,)))
    features = jnp.asarray([1.0, 2.0, 3.0])

    def both(key: jax.Array) -> tuple:
        params = agent.init(key)
        frozen = freeze_skills(inner, spec, Genotype(params, hyperparams.defaults(agent.space), None)).params
        alone = jax.vmap(lambda single: plain.act(single, Observation(features)))(frozen)
        return frozen, alone, jax.vmap(lambda skill: agent.act(params, Observation(features, skill)))(jnp.eye(2))

    frozen, alone, expected = jax.jit(both)(jax.random.key(0))
    np.testing.assert_allclose(alone, expected, rtol=1e-5)
    assert frozen.critic[0].head["params"]["Dense_0"]["kernel"].shape == (2, 5 + spec.action_size, 4)
