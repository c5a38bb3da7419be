"""Neural networks as pairs of pure functions. This is the only module that imports flax."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rookery import trees
from rookery.features import Shape, as_floats, unflatten_features
from rookery.types import Array, Key, Observation, PyTree

Precision = Literal["auto", "float32", "tf32", "bfloat16"]
"""Precision of the matrix products of networks: auto is JAX's own default, which is TF32 on a GPU and float32 on a CPU;
float32; tf32 rounds the inputs of products to 10 bits of mantissa on a GPU; bfloat16 to 7 bits, everywhere."""

ResultT = TypeVar("ResultT")
_PRODUCTS = {"float32": "highest", "tf32": "tensorfloat32"}
_rounds = jax.make_user_context(False)  # part of the key of `jax.jit`'s cache, so that a change traces again


@contextlib.contextmanager
def computing_in(precision: Precision) -> Iterator[None]:
    """Trace networks with a precision within the context.

    In bfloat16 the inputs of the products of dense layers are rounded in the forward and the backward pass (mixed
    precision, Micikevicius 2018, arXiv:1710.03740), and so are the gradients of kernels, which are float32 in type.
    Parameters, the optimiser's moments, biases, recurrent units, the outputs of networks and every loss are float32.
    Environments compute in float32 in every context. Of nested contexts the innermost counts.

    Example:
      >>> with rookery.networks.computing_in("bfloat16"):
      ...     state, metrics = agent.update(state, hyper, batch, noise, step)
    """
    with contextlib.ExitStack() as contexts:
        if precision != "auto":
            contexts.enter_context(_rounds(precision == "bfloat16"))
            contexts.enter_context(jax.default_matmul_precision(_PRODUCTS.get(precision)))
        yield


def call_in(precision: Precision, function: Callable[..., ResultT], *arguments: Any) -> ResultT:
    """Call a function within `computing_in`."""
    with computing_in(precision):
        return function(*arguments)


def hidden_product(inputs: Array, kernel: Array) -> Array:
    """The product `[..., I] x [I, F]` of a hidden layer in the precision of the context, see `computing_in`."""
    if not _rounds.value:
        return inputs @ kernel
    return (inputs.astype(jnp.bfloat16) @ kernel.astype(jnp.bfloat16)).astype(jnp.float32)


def _rounded_product(inputs: Array, kernel: Array, *arguments: object, **options: object) -> Array:
    product = partial(jax.lax.dot_general, inputs.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16), *arguments)
    return product(**options).astype(jnp.float32)


def _layer(size: int, kernel_init: Callable, is_last: bool = False) -> nn.Dense:
    """A dense layer in the precision of the context; the sums of a last layer are float32 in each of them."""
    product: Callable | None = None
    if _rounds.value:
        product = partial(_rounded_product, preferred_element_type=jnp.float32) if is_last else _rounded_product
    return nn.Dense(size, kernel_init=kernel_init, dot_general=product)


class InitFn(Protocol):
    """Initialise parameters; the key is consumed."""

    def __call__(self, key: Key) -> PyTree: ...


class ApplyFn(Protocol):
    """Map parameters and inputs with any leading axes to outputs with the same leading axes.

    An observation is one input: `[..., EnvSpec.input_size]`, see `input_vector`.
    """

    def __call__(self, params: PyTree, *inputs: Array | Observation) -> Array: ...


class Network(NamedTuple):
    """A network of one member: parameter initialisation and forward pass."""

    init: InitFn
    apply: ApplyFn


def input_vector(observation: Array | Observation) -> Array:
    """The vector that a network reads, `[..., EnvSpec.input_size]`: the agent's index, the features and the skill.

    An array is returned unchanged.
    """
    if not isinstance(observation, Observation):
        return observation
    parts = (observation.agent, as_floats(observation.features), observation.skill)
    present = [part for part in parts if part is not None]
    return present[0] if len(present) == 1 else jnp.concatenate(present, axis=-1)


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "silu": nn.silu,
    "elu": nn.elu,
}
"""Name -> activation of hidden layers."""


class Mlp(nn.Module):
    """Dense layers with an activation between them, ReLU by default; inputs are concatenated along the last axis.

    With `layer_norm`, each hidden layer is normalised before its activation (Ba 2016, arXiv:1607.06450).
    """

    hidden_sizes: Sequence[int]
    output_size: int
    output_init: Callable
    hidden_init: Callable = nn.initializers.lecun_uniform()
    activation: Callable = nn.relu
    layer_norm: bool = False

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        """`[..., I1], [..., I2], ... -> [..., output_size]`."""
        hidden = jnp.concatenate(inputs, axis=-1)
        for size in self.hidden_sizes:
            hidden = _layer(size, self.hidden_init)(hidden)
            hidden = self.activation(nn.LayerNorm()(hidden) if self.layer_norm else hidden)
        return _layer(self.output_size, self.output_init, is_last=True)(hidden)


class RecurrentMlp(nn.Module):
    """Dense tanh layers, a gated recurrent unit (Cho 2014, arXiv:1406.1078), and a linear layer on its state."""

    hidden_sizes: Sequence[int]
    memory_size: int
    output_size: int

    @nn.compact
    def __call__(self, memory: Array, observation: Array) -> tuple[Array, Array]:
        """`[..., H], [..., O] -> [..., H], [..., output_size]`."""
        hidden = observation
        for size in self.hidden_sizes:
            hidden = nn.tanh(_layer(size, _ZEROS)(hidden))
        memory, hidden = nn.GRUCell(self.memory_size, kernel_init=_ZEROS, recurrent_kernel_init=_ZEROS)(memory, hidden)
        return memory, _layer(self.output_size, _ZEROS, is_last=True)(hidden)


_ZEROS = nn.initializers.zeros  # placeholders: `_init_orthogonal` draws the weights


def mlp(
    input_sizes: Sequence[int],
    hidden_sizes: Sequence[int],
    output_size: int,
    output_scale: float = 1.0,
    layer_norm: bool = False,
) -> Network:
    """Build a multi-layer perceptron over one or more inputs.

    Args:
      input_sizes: size of the last axis of each input.
      hidden_sizes: widths of the hidden layers.
      output_size: size of the output.
      output_scale: the initial weights of the last layer are uniform with the variance `output_scale` / inputs; a small
        value gives initial outputs near 0. In the hidden layers the scale is 1 (LeCun 1998, "Efficient BackProp").
      layer_norm: normalise each hidden layer before its activation, see `Mlp`.

    Raises:
      ValueError: a size is below 1.
    """
    if min(*input_sizes, *hidden_sizes, output_size) < 1:
        raise ValueError(f"layer sizes must be at least 1, got {(*input_sizes, *hidden_sizes, output_size)}.")
    output_init = nn.initializers.variance_scaling(output_scale, "fan_in", "uniform")
    module = Mlp(tuple(hidden_sizes), output_size, output_init, layer_norm=layer_norm)
    return Network(partial(_init, module, tuple(input_sizes)), partial(_apply, module))


class Core(NamedTuple):
    """A network with optional memory: memory `[..., H]` and observation -> next memory and outputs."""

    init: InitFn
    apply: "RecurrentApplyFn"
    memory_size: int
    """H, the size of the memory; 0 for a feed-forward network."""


class RecurrentApplyFn(Protocol):
    """Map parameters, memory `[..., H]` and an observation to the next memory `[..., H]` and outputs."""

    def __call__(self, params: PyTree, memory: Array, observation: Array | Observation) -> tuple[Array, Array]: ...


def core(
    input_size: int,
    hidden_sizes: Sequence[int],
    output_size: int,
    output_gain: float,
    memory_size: int = 0,
    activation: str = "tanh",
) -> Core:
    """Build layers with orthogonal weights, tanh by default, as recommended for policy gradients (Andrychowicz 2020,
    arXiv:2006.05990).

    Args:
      input_size: O.
      hidden_sizes: widths of the hidden layers.
      output_size: size of the output.
      output_gain: gain of the last layer's orthogonal weights; the gain is sqrt(2) in hidden layers and 1 in the
        recurrent unit.
      memory_size: H, the width of a gated recurrent unit before the last layer; 0 omits the unit.
      activation: of the hidden layers without a recurrent unit, a name of `ACTIVATIONS`.

    Raises:
      ValueError: a layer size is below 1, or `memory_size` is below 0.
    """
    if min(input_size, *hidden_sizes, output_size) < 1 or memory_size < 0:
        raise ValueError(
            f"layer sizes must be at least 1, got {(input_size, *hidden_sizes, output_size)}, {memory_size}."
        )
    gains = {f"Dense_{layer}": math.sqrt(2.0) for layer in range(len(hidden_sizes))}
    gains |= {f"Dense_{len(hidden_sizes)}": output_gain}
    if memory_size:
        module: nn.Module = RecurrentMlp(tuple(hidden_sizes), memory_size, output_size)
        init = partial(_init_orthogonal, module, (memory_size, input_size), gains)
        return Core(init, partial(_apply_with_memory, module), memory_size)
    module = Mlp(tuple(hidden_sizes), output_size, _ZEROS, _ZEROS, ACTIVATIONS[activation])
    return Core(partial(_init_orthogonal, module, (input_size,), gains), partial(_apply_without_memory, module), 0)


def _init_orthogonal(module: nn.Module, input_sizes: tuple[int, ...], gains: dict[str, float], key: Key) -> PyTree:
    """Initialise a module with orthogonal kernels and zero biases.

    One normal draw supplies the numbers of all kernels: every separate draw would add as much compile time as training
    a layer does.
    """
    shapes = jax.eval_shape(partial(_init, module, input_sizes), key)
    paths, structure = jax.tree.flatten_with_path(shapes)
    sizes = [leaf.size if leaf.ndim == 2 else 0 for _, leaf in paths]
    numbers = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
    leaves = [
        gains.get(path[1].key, 1.0) * orthogonal(kernel_numbers.reshape(leaf.shape))
        if leaf.ndim == 2
        else jnp.zeros(leaf.shape, leaf.dtype)
        for (path, leaf), kernel_numbers in zip(paths, numbers, strict=True)
    ]
    return jax.tree.unflatten(structure, leaves)


def orthogonal(numbers: Array) -> Array:
    """Return a matrix `[M, N]` with orthonormal columns (rows if M < N), uniformly distributed for normal `numbers`.

    Uses Gram-Schmidt with every column orthogonalised twice, which suffices for rounding errors (Giraud 2005). LAPACK's
    factorisation is avoided because it occasionally hangs where CPU cores are used as devices.
    """
    if numbers.shape[0] < numbers.shape[1]:
        return orthogonal(numbers.T).T

    product = partial(jnp.matmul, precision="highest")

    def add_column(basis: Array, column: tuple[Array, Array]) -> tuple[Array, None]:
        index, vector = column
        for _ in range(2):
            vector = vector - product(basis, product(basis.T, vector))
        return basis.at[:, index].set(vector / jnp.linalg.norm(vector)), None

    return jax.lax.scan(add_column, jnp.zeros_like(numbers), (jnp.arange(numbers.shape[1]), numbers.T))[0]


def _apply_with_memory(
    module: nn.Module, params: PyTree, memory: Array, observation: Array | Observation
) -> tuple[Array, Array]:
    memory_and_outputs: Any = module.apply(params, memory, input_vector(observation))
    return memory_and_outputs


def _apply_without_memory(
    module: nn.Module, params: PyTree, memory: Array, observation: Array | Observation
) -> tuple[Array, Array]:
    return memory, _apply(module, params, observation)


class EncodeFn(Protocol):
    """Map parameters and features with any leading axes to vectors `[..., F]`.

    Features are float32, `[..., *EnvSpec.observation_shape]`, or a pytree of them; `[..., O]` without a shape.
    """

    def __call__(self, params: PyTree, features: PyTree, /) -> Array: ...


class Encoder(NamedTuple):
    """A network that reads the features of an observation, in front of the networks of an agent."""

    init: Callable[[Key], PyTree]
    """Initialises parameters; the key is consumed."""
    apply: EncodeFn
    """Encodes features."""


class Encoded(NamedTuple):
    """Parameters of a network with an encoder."""

    encoder: PyTree
    """Parameters of the encoder."""
    head: PyTree
    """Parameters of the network that reads the encoder's output."""


NetworkT = TypeVar("NetworkT", Network, Core)


def with_encoder(network: NetworkT, encoder: Encoder, shape: Shape | None) -> NetworkT:
    """Encode the features of the observations that a network reads; the encoder has separate parameters.

    Args:
      network: reads observations whose features are the encoder's output `[..., F]`.
      encoder: reads the features.
      shape: of the features, `EnvSpec.observation_shape`; None: a vector.
    """
    return network._replace(
        init=partial(_init_encoded, network, encoder), apply=partial(_apply_encoded, network, encoder, shape)
    )


def _init_encoded(network: Network | Core, encoder: Encoder, key: Key) -> Encoded:
    encoder_key, head_key = jax.random.split(key)
    return Encoded(encoder.init(encoder_key), network.init(head_key))


def _apply_encoded(
    network: Network | Core, encoder: Encoder, shape: Shape | None, params: Encoded, *inputs: Any
) -> Any:
    return network.apply(params.head, *(_encode(encoder, shape, params.encoder, value) for value in inputs))


def _encode(encoder: Encoder, shape: Shape | None, params: PyTree, value: Array | Observation) -> Any:
    if not isinstance(value, Observation):
        return value
    features = as_floats(value.features)
    if shape is not None:
        features = unflatten_features(shape, features)
    return value._replace(features=encoder.apply(params, features))


def twin(network: Network) -> Network:
    """Combine two independently initialised copies of a network: `[..., 1] -> [..., 2]`.

    Its parameters are a pair, whose matrix products are separate, or `Stacked`, with batched products: see
    `stack_twins`.
    """
    return Network(partial(_twin_init, network), partial(_twin_apply, network))


def first_twin(network: Network) -> ApplyFn:
    """Return the forward pass of the first twin alone: parameters of `twin(network)`, inputs -> `[..., 1]`.

    Slicing the output of both twins would cost both: XLA still computes the matrix products of the second.
    """
    return partial(_first_apply, network)


def smaller_twin(network: Network) -> ApplyFn:
    """Return the smaller output of both twins: parameters of `twin(network)`, inputs -> `[..., 1]`."""
    return partial(_smaller_apply, network)


class Stacked(NamedTuple):
    """Parameters of twin networks in one tree, so that one operation computes a layer of both."""

    both: PyTree
    """Leaves `[2, ...]`."""


def stack_twins(tree: PyTree) -> PyTree:
    """Stack the parameters of each `twin` in a tree, such as those in the state of its optimiser."""
    return jax.tree.map(lambda node: Stacked(trees.stack(node)) if _is_pair(node) else node, tree, is_leaf=_is_pair)


def separate_twins(tree: PyTree) -> PyTree:
    """The inverse of `stack_twins`."""
    return jax.tree.map(
        lambda node: (trees.take(node.both, 0), trees.take(node.both, 1)) if isinstance(node, Stacked) else node,
        tree,
        is_leaf=lambda node: isinstance(node, Stacked),
    )


def _is_pair(node: PyTree) -> bool:
    return type(node) is tuple and len(node) == 2


def freeze_inputs(params: PyTree, start: int, values: Array) -> PyTree:
    """Remove inputs with constant values from networks, without changing the networks' outputs.

    The contribution of a constant input to the first layer does not depend on the other inputs, so it is added to that
    layer's bias.

    Args:
      params: parameters of any number of networks, each with at least `start + S` inputs; other leaves, among them
        those of encoders, are unchanged.
      start: index of the first constant input.
      values: `[S]`, the constants.

    Raises:
      ValueError: a network has fewer inputs.
    """
    return jax.tree.map(partial(_freeze, start, values), params, is_leaf=_is_network)


def _is_network(tree: PyTree) -> bool:
    if isinstance(tree, Encoded):
        return True
    layers = tree.get("params") if isinstance(tree, dict) else None
    return isinstance(layers, dict) and _FIRST_LAYER in layers


_FIRST_LAYER = "Dense_0"


def _freeze(start: int, values: Array, params: PyTree) -> PyTree:
    if not _is_network(params):
        return params
    if isinstance(params, Encoded):
        return params._replace(head=_freeze(start, values, params.head))
    layer, end = params["params"][_FIRST_LAYER], start + values.shape[0]
    kernel, bias = layer["kernel"], layer["bias"]
    if kernel.shape[0] < end:
        raise ValueError(
            f"a network of {kernel.shape[0]} inputs has no inputs {start} to {end - 1} to freeze; pass the "
            "parameters of a network that reads them."
        )
    bias = bias + jnp.tensordot(values, kernel[start:end], axes=1, precision="highest")
    layer = {**layer, "kernel": jnp.concatenate([kernel[:start], kernel[end:]]), "bias": bias}
    return {**params, "params": {**params["params"], _FIRST_LAYER: layer}}


def _init(module: nn.Module, input_sizes: tuple[int, ...], key: Key) -> PyTree:
    return module.init(key, *(jnp.zeros((size,)) for size in input_sizes))


def _apply(module: nn.Module, params: PyTree, *inputs: Array | Observation) -> Array:
    if _ACTIVATION in params:
        module = module.clone(activation=partial(_chosen_activation, params[_ACTIVATION]))
        params = {name: part for name, part in params.items() if name != _ACTIVATION}
    return jnp.asarray(module.apply(params, *map(input_vector, inputs)))


_ACTIVATION = "activation"


def activated(params: PyTree, hyper: object) -> PyTree:
    """Parameters for a forward pass with the activation that a member's hyper-parameters choose.

    Args:
      params: parameters of any number of networks; other leaves are unchanged.
      hyper: may have `activation` `[]`, a place in `ACTIVATIONS`; if not, the parameters are returned unchanged.
    """
    if not hasattr(hyper, _ACTIVATION):
        return params
    return jax.tree.map(partial(_activated, getattr(hyper, _ACTIVATION)), params, is_leaf=_is_network)


def _activated(place: Array, params: PyTree) -> PyTree:
    if isinstance(params, Encoded):
        return params._replace(head=_activated(place, params.head))
    return {**params, _ACTIVATION: place} if _is_network(params) else params


def _chosen_activation(place: Array, values: Array) -> Array:
    """The activation at a place, `[...]`; all are computed, unless the place is known when the program is traced."""
    functions = [*ACTIVATIONS.values()]
    if not isinstance(place, Tracer):
        return functions[int(place)](values)
    return jax.lax.select_n(place.astype(jnp.int32), *(function(values) for function in functions))


def _twin_init(network: Network, key: Key) -> PyTree:
    first, second = jax.random.split(key)
    return network.init(first), network.init(second)


def _twin_apply(network: Network, params: PyTree, *inputs: Array | Observation) -> Array:
    if not isinstance(params, Stacked):
        return jnp.concatenate([network.apply(single, *inputs) for single in params], axis=-1)
    # A shared input has to be repeated: with an unmapped one, vmap's products transpose their results.
    repeated = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (2, *leaf.shape)), inputs)
    return jnp.moveaxis(jax.vmap(network.apply)(params.both, *repeated)[..., 0], 0, -1)


def _smaller_apply(network: Network, params: PyTree, *inputs: Array | Observation) -> Array:
    return jnp.min(_twin_apply(network, params, *inputs), axis=-1, keepdims=True)


def _first_apply(network: Network, params: PyTree, *inputs: Array | Observation) -> Array:
    return network.apply(trees.take(params.both, 0) if isinstance(params, Stacked) else params[0], *inputs)
