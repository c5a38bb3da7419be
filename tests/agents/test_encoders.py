"""Encoders: convolutions by hand, and agents that read images, pytrees and user-defined encoders."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import hyperparams, networks
from rookery.agents.base import OffPolicyAgent
from rookery.agents.diayn import DiaynConfig, diayn
from rookery.agents.encoders import Convolution, Reader, convolutional, reader
from rookery.agents.ppo import PpoConfig, ppo
from rookery.agents.sac import SacConfig, sac
from rookery.agents.td3 import Td3Config, td3
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


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_convolutions_equal_loops(leading: tuple[int, ...]) -> None:
    layers = (Convolution(4, 3, 2), Convolution(3, 2, 1))
    encoder = convolutional((9, 8, 2), layers, 5)
    params = encoder.init(jax.random.key(0))
    images = jax.random.normal(jax.random.key(1), (*leading, 9, 8, 2))
    encoded = np.asarray(encoder.apply(params, images)).reshape(-1, 5)
    for image, found in zip(np.asarray(images).reshape(-1, 9, 8, 2), encoded, strict=True):
        hidden, channels = image, 2
        for layer, weights in zip(layers, params["images"][0], strict=True):
            kernel = np.asarray(weights["kernel"]).reshape(layer.kernel, layer.kernel, channels, layer.channels)
            hidden, channels = convolved(hidden, kernel, np.asarray(weights["bias"]), layer.stride), layer.channels
        dense = params["dense"]
        expected = np.maximum(hidden.reshape(-1) @ np.asarray(dense["kernel"]) + np.asarray(dense["bias"]), 0.0)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_kernels_are_orthogonal_with_the_gain_of_relu() -> None:
    params = convolutional((9, 9, 2), (Convolution(4, 3, 1),), 6).init(jax.random.key(0))
    for layer in (params["images"][0][0], params["dense"]):
        kernel = np.asarray(layer["kernel"])
        np.testing.assert_allclose(kernel.T @ kernel, 2.0 * np.eye(kernel.shape[1]), atol=1e-5)
        assert not layer["bias"].any()


def test_other_features_join_the_dense_layer() -> None:
    encoder = convolutional(IMAGE, (Convolution(4, 3, 1),), 5)
    params = encoder.init(jax.random.key(0))
    inputs = {"image": jnp.ones((2, 6, 5, 2)), "speed": jnp.asarray([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])}
    first, second = encoder.apply(params, inputs)
    assert not np.allclose(first, second)


@pytest.mark.parametrize(
    ("shape", "name", "layers", "units"),
    [
        ((84, 84, 4), "auto", 3, 512),
        ((36, 36, 1), "auto", 3, 512),
        ((35, 84, 4), "auto", 1, 128),
        ((10, 10, 4), "auto", 1, 128),
        ((84, 84, 4), "small", 1, 128),
        ((36, 36, 1), "nature", 3, 512),
    ],
)
def test_the_size_of_the_image_chooses_the_encoder(shape: tuple, name: Any, layers: int, units: int) -> None:
    read = reader(spec_of(shape), name)
    assert read.encoder is not None
    params = jax.eval_shape(read.encoder.init, jax.random.key(0))
    assert (len(params["images"][0]), read.size, read.encoded_size) == (layers, units, units)


@pytest.mark.parametrize("shape", [None, (4,), (8, 8), (2, 3, 4), (1, 1, 1)])  # the last two: smaller than a kernel
def test_vectors_are_read_as_they_are(shape: Any) -> None:
    spec = EnvSpec("vectors", feature_size(shape or (7,)), 2, 10, observation_shape=shape)
    assert reader(spec, "auto") == Reader(spec.observation_size, spec)
    assert reader(spec_of((10, 10, 4)), "none").size == 400


@pytest.mark.parametrize(
    ("shape", "name", "message"),
    [
        ((10, 10, 4), "mnih", "encoder must be auto, none, nature or small, got 'mnih'."),
        ((8, 8), "small", r"encoder small reads images, but the observations of images have the shape \(8, 8\)"),
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
    params = network.init(jax.random.key(0))
    assert type(params) is Encoded
    features, skill = jnp.asarray([1.0, 2.0, 3.0]), jnp.asarray([0.0, 1.0])
    head = params.head["params"]["Dense_0"]
    expected = jnp.concatenate([features @ params.encoder, skill]) @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(network.apply(params, Observation(features, skill)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (
            Encoder(lambda _: (), lambda _, features: features.sum()),
            r"must return a vector for each observation, \['F'\] for features with leading axes \(\), got \[\]",
        ),
        (
            Encoder(lambda _: (), lambda _, features: features.reshape(-1)),
            r"\[2, 3, 'F'\] for features with leading axes \(2, 3\), got \[18\]",
        ),
        (
            Encoder(lambda _: jnp.ones((5, 2)), lambda params, features: features @ params),
            r"the encoder raised TypeError for features of shape \(3,\) with leading axes \(\)",
        ),
    ],
)
def test_the_mistakes_of_an_encoder_are_sentences(encoder: Encoder, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reader(EnvSpec("vectors", 3, 2, 10), "auto", encoder)


def act_of(name: str, spec: EnvSpec, encoder: Encoder | None) -> tuple[Any, Any]:
    """An agent's initial parameters, and its deterministic action as a function of them."""
    sizes: dict[str, Any] = {"hidden_sizes": (4,)}
    if name == "evolved":
        actor = policy(spec, PolicyConfig(**sizes), encoder)
        return actor.init, actor.act
    configs = {"sac": (sac, SacConfig), "td3": (td3, Td3Config), "ppo": (ppo, PpoConfig)}
    make, config = configs[name]
    agent = make(spec, config(**sizes), encoder)
    return agent.init, agent.act


@pytest.mark.parametrize("name", ["sac", "td3", "ppo", "evolved"])
def test_every_agent_reads_an_encoder_of_ones_own(name: str) -> None:
    spec = EnvSpec("vectors", 3, 2, 10)
    init, act = act_of(name, spec, linear(4))
    params = init(jax.random.key(0))
    blind = jax.tree.map(lambda leaf: jnp.zeros_like(leaf) if leaf.shape == (3, 4) else leaf, params)
    one, other = Observation(jnp.asarray([1.0, 2.0, 3.0])), Observation(jnp.asarray([3.0, -2.0, 0.0]))
    assert not np.allclose(act(params, one), act(params, other), rtol=0.0, atol=1e-7)
    np.testing.assert_array_equal(act(blind, one), act(blind, other))


@pytest.mark.parametrize("name", ["sac", "td3", "ppo", "evolved"])
def test_pixels_of_8_bits_are_read_as_numbers_in_the_unit_interval(name: str) -> None:
    for shape in ((10, 10, 1), None):
        spec = EnvSpec("pixels", 100, 2, 10, observation_shape=shape)
        init, act = act_of(name, spec, None)
        params = init(jax.random.key(0))
        pixels = jax.random.randint(jax.random.key(1), (100,), 0, 256).astype(jnp.uint8)
        expected = act(params, Observation(pixels.astype(jnp.float32) / 255.0))
        np.testing.assert_array_equal(act(params, Observation(pixels)), expected)


def test_a_recurrent_policy_reads_images() -> None:
    spec = spec_of((10, 10, 1), discrete=True)
    agent = ppo(spec, PpoConfig(hidden_sizes=(4,), recurrent=True, memory_size=3))
    params = agent.init(jax.random.key(0))
    zeros = jnp.zeros(100)
    carry = jax.tree.map(jnp.zeros, agent.carry_sizes)
    assert agent.act(params, Observation(zeros, carry=carry)).carry.policy.shape == (3,)


def test_statistics_of_images_are_off_by_default() -> None:
    assert ppo(spec_of((4,))).normalize
    assert not ppo(spec_of((10, 10, 1))).normalize


def test_frozen_skills_of_an_agent_with_an_encoder_act_equally() -> None:
    position = descriptor_spec("position", "final", (-1.0, -1.0), (1.0, 1.0))
    spec = EnvSpec("vectors", 3, 2, 10, skill=SkillSpec("one-hot", 2), descriptor=position)
    plain = sac(spec._replace(skill=None), SacConfig(hidden_sizes=(4,)), linear(5))
    inner: OffPolicyAgent = sac(spec, SacConfig(hidden_sizes=(4,)), linear(5))
    agent = diayn(inner, spec, DiaynConfig(discriminator_hidden_sizes=(4,)))
    params = agent.init(jax.random.key(0))
    frozen = freeze_skills(inner, spec, Genotype(params, hyperparams.defaults(agent.space), None)).params
    features, action = jnp.asarray([1.0, 2.0, 3.0]), jnp.asarray([0.5, -0.5])
    for index, skill in enumerate(jnp.eye(2)):
        single = jax.tree.map(lambda leaf, index=index: leaf[index], frozen)
        expected = agent.act(params, Observation(features, skill))
        np.testing.assert_allclose(plain.act(single, Observation(features)), expected, rtol=1e-5)
        first, _ = single.critic
        assert first.head["params"]["Dense_0"]["kernel"].shape == (5 + action.shape[0], 4)
