"""Networks: a multi-layer perceptron by hand, its first weights, twins that differ, and SimBa by its equations."""

import re
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import networks


def dense(params: dict) -> list[tuple[np.ndarray, np.ndarray]]:
    """Kernel and bias of every layer, first to last."""
    layers = params["params"]
    return [(np.asarray(layers[name]["kernel"]), np.asarray(layers[name]["bias"])) for name in sorted(layers)]


def test_a_perceptron_equals_the_same_numbers_by_hand() -> None:
    network = networks.mlp([1, 1], [2], 1)
    params = jax.jit(network.init)(jax.random.key(0))
    kernels = jnp.asarray([[1.0, -1.0], [2.0, 3.0]]), jnp.asarray([[0.5], [4.0]])
    biases = jnp.asarray([0.5, -1.0]), jnp.asarray([0.25])
    for name, kernel, bias in zip(("Dense_0", "Dense_1"), kernels, biases, strict=True):
        assert params["params"][name]["kernel"].shape == kernel.shape
        params["params"][name] = {"kernel": kernel, "bias": bias}
    # hidden = relu([1 + 4 + 0.5, -1 + 6 - 1]) = [5.5, 4]; output = 2.75 + 16 + 0.25.
    assert network.apply(params, jnp.asarray([1.0]), jnp.asarray([2.0])).tolist() == [19.0]
    # hidden = relu([-1 + 0 + 0.5, 1 + 0 - 1]) = [0, 0]; only the bias remains.
    assert network.apply(params, jnp.asarray([-1.0]), jnp.asarray([0.0])).tolist() == [0.25]


def test_hidden_layers_are_normalised_before_their_activation() -> None:
    network = networks.mlp([1], [3], 1, layer_norm=True)
    params = jax.jit(network.init)(jax.random.key(0))
    given = {"Dense_0": ([[1.0, 2.0, 3.0]], [0.0, 0.0, 0.0]), "Dense_1": ([[1.0], [10.0], [100.0]], [0.5])}
    for name, (kernel, bias) in given.items():
        params["params"][name] = {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}
    params["params"]["LayerNorm_0"] = {"scale": jnp.asarray([1.0, 1.0, 2.0]), "bias": jnp.asarray([3.0, 0.0, 0.0])}
    # Of [2, 4, 6] the mean is 4, the variance 8/3: relu([3 - s, 0, 2 s]) with s = sqrt(3/2), whatever the input's size.
    expected = (3.0 - 1.5**0.5) + 100.0 * 2.0 * 1.5**0.5 + 0.5
    for size in (2.0, 700.0):
        np.testing.assert_allclose(network.apply(params, jnp.asarray([size])), [expected], rtol=1e-5)


def test_leading_axes_are_kept_and_rows_do_not_mix() -> None:
    network = networks.mlp([3], [4], 2)
    params = jax.jit(network.init)(jax.random.key(0))
    inputs = jax.random.normal(jax.random.key(1), (5, 6, 3))
    outputs = network.apply(params, inputs)
    assert outputs.shape == (5, 6, 2)
    np.testing.assert_allclose(outputs[4, 2], network.apply(params, inputs[4, 2]), rtol=1e-5, atol=1e-6)


def test_first_weights_have_their_declared_distribution_and_biases_are_zero() -> None:
    network = networks.mlp([50], [200], 40, output_scale=0.01)
    (first, first_bias), (last, last_bias) = dense(jax.jit(network.init)(jax.random.key(0)))
    # LeCun 1998: variance 1 / fan in; that of the last layer is scaled. Uniform in +-sqrt(3 x variance).
    for kernel, limit in ((first, np.sqrt(3 / 50)), (last, np.sqrt(3 * 0.01 / 200))):
        assert 0.98 * limit < np.abs(kernel).max() <= limit * (1 + 1e-6)
        assert np.std(kernel) == pytest.approx(limit / np.sqrt(3), rel=0.03)
    assert not first_bias.any()
    assert not last_bias.any()


def test_twins_have_separate_weights_and_their_outputs_are_stacked() -> None:
    single = networks.mlp([2, 1], [4], 1)
    pair = networks.twin(single)
    params = jax.jit(pair.init)(jax.random.key(0))
    observation, action = jnp.ones((7, 2)), jnp.ones((7, 1))
    values = pair.apply(params, observation, action)
    assert values.shape == (7, 2)
    for index in range(2):
        np.testing.assert_allclose(values[:, index : index + 1], single.apply(params[index], observation, action))
    assert (dense(params[0])[0][0] != dense(params[1])[0][0]).all()


def test_frozen_inputs_join_the_bias() -> None:
    # Inputs 1 and 2 of four are constant: the same outputs from the other two, by hand and by the network.
    network, smaller = networks.mlp([2, 2], [3], 1), networks.mlp([1, 1], [3], 1)
    params = jax.jit(network.init)(jax.random.key(0))
    params["params"]["Dense_0"]["bias"] = jnp.asarray([0.5, -0.25, 1.0])
    frozen = networks.freeze_inputs(params, 1, jnp.asarray([2.0, -3.0]))
    kernel = dense(params)[0][0]
    (first, bias), *rest = dense(frozen)
    np.testing.assert_array_equal(first, kernel[[0, 3]])
    np.testing.assert_allclose(bias, 2.0 * kernel[1] - 3.0 * kernel[2] + [0.5, -0.25, 1.0], rtol=1e-6)
    np.testing.assert_array_equal(rest[0][0], dense(params)[1][0])
    seen, other = jnp.asarray([[0.7], [-1.0]]), jnp.asarray([[0.1], [4.0]])
    shown = jnp.concatenate([seen, jnp.full((2, 1), 2.0)], axis=1), jnp.concatenate([-jnp.full((2, 1), 3.0), other], 1)
    np.testing.assert_allclose(smaller.apply(frozen, seen, other), network.apply(params, *shown), rtol=1e-5, atol=1e-6)


def test_freezing_changes_only_networks() -> None:
    network = networks.mlp([3], [], 2)
    pair = jax.jit(networks.twin(network).init)(jax.random.key(0))
    tree = {"pair": pair, "alpha": jnp.float32(0.5), "params": jnp.arange(3.0)}
    frozen = networks.freeze_inputs(tree, 2, jnp.ones(1))
    assert frozen["alpha"] is tree["alpha"]
    assert frozen["params"] is tree["params"]
    assert [dense(single)[0][0].shape for single in frozen["pair"]] == [(2, 2), (2, 2)]
    assert dense(pair[0])[0][0].shape == (3, 2)  # the caller's tree is unchanged


def normalised(params: dict, values: np.ndarray) -> np.ndarray:
    """Layer normalisation (Ba 2016, Eq. 4)."""
    centred = values - values.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + 1e-6)
    return centred / deviation * params["scale"] + params["bias"]


def linear(params: dict, values: np.ndarray) -> np.ndarray:
    return values @ params["kernel"] + params["bias"]


def test_simba_equals_the_equations_of_its_paper() -> None:
    network = networks.simba([3, 2], [4, 4], 2)
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    leaves, structure = jax.tree.flatten(shapes)
    random = np.random.default_rng(0)
    params = jax.tree.unflatten(structure, [random.normal(size=leaf.shape).astype(np.float32) for leaf in leaves])
    one, two = random.normal(size=(5, 3)).astype(np.float32), random.normal(size=(5, 2)).astype(np.float32)

    layers = jax.tree.map(partial(np.asarray, dtype=np.float64), params["params"])
    hidden = linear(layers["Dense_0"], np.concatenate([one, two], axis=1))
    for block in (layers["ResidualBlock_0"], layers["ResidualBlock_1"]):
        wide = np.maximum(linear(block["Dense_0"], normalised(block["LayerNorm_0"], hidden)), 0.0)
        assert wide.shape == (5, 16)
        hidden = hidden + linear(block["Dense_1"], wide)
    expected = linear(layers["Dense_1"], normalised(layers["LayerNorm_0"], hidden))
    np.testing.assert_allclose(jax.jit(network.apply)(params, one, two), expected, rtol=2e-4, atol=2e-4)


def test_simba_has_the_parameters_of_its_paper() -> None:
    # Embedding, blocks of a normalisation and two layers, a normalisation and the last layer.
    def parameters(inputs: int, width: int, blocks: int, outputs: int) -> int:
        block = 2 * width + (width * 4 * width + 4 * width) + (4 * width * width + width)
        return (inputs + 1) * width + blocks * block + 2 * width + (width + 1) * outputs

    for network, expected in (
        (networks.simba([17], [128], 12), parameters(17, 128, 1, 12)),
        (networks.simba([17, 6], [512, 512], 1), parameters(23, 512, 2, 1)),
    ):
        params = jax.eval_shape(network.init, jax.random.key(0))
        assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected


def test_the_first_weights_of_simba_are_orthogonal_and_those_of_its_blocks_hes() -> None:
    network = networks.simba([3], [64, 64], 2, output_scale=0.25)
    layers = jax.tree.map(np.asarray, jax.jit(network.init)(jax.random.key(0))["params"])
    first, last = layers["Dense_0"]["kernel"], layers["Dense_1"]["kernel"]
    np.testing.assert_allclose(first @ first.T, np.eye(3), atol=1e-5)
    np.testing.assert_allclose(last.T @ last, 0.25 * np.eye(2), atol=1e-5)
    blocks = [layers["ResidualBlock_0"], layers["ResidualBlock_1"]]
    for block in blocks:
        for name, inputs in (("Dense_0", 64), ("Dense_1", 256)):
            assert block[name]["kernel"].std() == pytest.approx(np.sqrt(2.0 / inputs), rel=0.03)
    assert (blocks[0]["Dense_0"]["kernel"] != blocks[1]["Dense_0"]["kernel"]).all()
    for path, leaf in jax.tree.leaves_with_path(layers):
        if path[-1].key != "kernel":
            assert (leaf == (path[-1].key == "scale")).all()


def test_simbas_deviations_are_squashed_and_its_means_are_not() -> None:
    outputs = jnp.asarray([[-5.0, 7.0, -100.0, 100.0], [0.5, 0.0, 0.0, 0.5]])
    linear_network = networks.mlp([4], [], 4)
    identity = {"params": {"Dense_0": {"kernel": jnp.eye(4), "bias": jnp.zeros(4)}}}
    found = networks.NETWORKS["simba"].gaussian(linear_network).apply(identity, outputs)
    expected = [[-5.0, 7.0, -10.0, 2.0], [0.5, 0.0, -4.0, -4.0 + 6.0 * np.tanh(0.5)]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_frozen_inputs_of_simba_join_the_bias_of_its_first_layer() -> None:
    network, smaller = networks.simba([4], [4], 2), networks.simba([2], [4], 2)
    params, values = jax.jit(network.init)(jax.random.key(0)), jnp.asarray([0.5, -2.0])
    seen = jax.random.normal(jax.random.key(1), (3, 2))
    whole = jnp.concatenate([seen[:, :1], jnp.broadcast_to(values, (3, 2)), seen[:, 1:]], axis=1)
    frozen = networks.freeze_inputs(params, 1, values)
    np.testing.assert_allclose(smaller.apply(frozen, seen), network.apply(params, whole), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("widths", [(), (4, 8), (0,)])
def test_simba_needs_equal_widths(widths: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=rf"equal, got \(2,\), {re.escape(str(widths))}, 1\.$"):
        networks.simba([2], widths, 1)


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda: networks.mlp([0], [4], 1), r"\(0, 4, 1\)"),
        (lambda: networks.mlp([2], [4, 0], 1), r"\(2, 4, 0, 1\)"),
        (lambda: networks.mlp([2], [4], -1), r"\(2, 4, -1\)"),
        (lambda: networks.core(2, [0], 1, output_gain=1.0), r"\(2, 0, 1\), 0"),
        (lambda: networks.core(2, [4], 1, output_gain=1.0, memory_size=-1), r"\(2, 4, 1\), -1"),
    ],
)
def test_a_size_below_one_is_an_error(make: Callable[[], object], got: str) -> None:
    with pytest.raises(ValueError, match=rf"^layer sizes must be at least 1, got {got}\.$"):
        make()


# --- networks with memory


def test_a_core_without_memory_is_a_perceptron_of_tanh_by_hand() -> None:
    core = networks.core(2, [2], 1, output_gain=1.0)
    params = jax.jit(core.init)(jax.random.key(0))
    params["params"]["Dense_0"] = {"kernel": jnp.asarray([[1.0, -1.0], [2.0, 3.0]]), "bias": jnp.asarray([0.5, -1.0])}
    params["params"]["Dense_1"] = {"kernel": jnp.asarray([[0.5], [4.0]]), "bias": jnp.asarray([0.25])}
    memory, outputs = jax.jit(core.apply)(params, jnp.zeros((0,)), jnp.asarray([0.1, 0.2]))
    expected = 0.5 * np.tanh(0.1 + 0.4 + 0.5) + 4.0 * np.tanh(-0.1 + 0.6 - 1.0) + 0.25
    np.testing.assert_allclose(outputs, [expected], rtol=1e-5)
    assert memory.shape == (core.memory_size,) == (0,)


@pytest.mark.parametrize("memory_size", [0, 5])
def test_the_weights_of_a_core_are_orthogonal_with_the_declared_gains(memory_size: int) -> None:
    core = networks.core(6, [4], 3, output_gain=0.01, memory_size=memory_size)
    (first, first_bias), *_, (last, last_bias) = (
        (np.asarray(layer["kernel"]), np.asarray(layer["bias"]))
        for layer in (jax.jit(core.init)(jax.random.key(0))["params"][name] for name in ("Dense_0", "Dense_1"))
    )
    assert last.shape == (memory_size or 4, 3)
    np.testing.assert_allclose(first.T @ first, 2.0 * np.eye(4), atol=1e-5)
    np.testing.assert_allclose(last.T @ last, 1e-4 * np.eye(3), atol=1e-9)
    assert not first_bias.any()
    assert not last_bias.any()


def test_a_core_with_memory_reads_it_and_keeps_rows_and_leading_axes_apart() -> None:
    core = networks.core(2, [4], 3, output_gain=1.0, memory_size=5)
    params = jax.jit(core.init)(jax.random.key(0))
    memory = jax.random.uniform(jax.random.key(1), (6, 7, 5), minval=-1.0, maxval=1.0)
    observation = 10.0 * jax.random.normal(jax.random.key(2), (6, 7, 2))
    after, outputs = jax.jit(core.apply)(params, memory, observation)
    assert after.shape == (6, 7, 5)
    assert outputs.shape == (6, 7, 3)
    assert (np.abs(after) <= 1.0).all()
    single, output = jax.jit(core.apply)(params, memory[4, 2], observation[4, 2])
    np.testing.assert_allclose(single, after[4, 2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(output, outputs[4, 2], rtol=1e-5, atol=1e-6)
    forgotten, other = jax.jit(core.apply)(params, jnp.zeros(5), observation[4, 2])
    assert (forgotten != single).all()
    assert (other != output).all()
    last = params["params"]["Dense_1"]  # the outputs come from the new memory
    np.testing.assert_allclose(output, single @ last["kernel"] + last["bias"], rtol=1e-4, atol=1e-5)
