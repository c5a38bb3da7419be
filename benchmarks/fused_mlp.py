"""An experiment: the MLPs of a population, forward and backward, in a few kernels for a GPU (Pallas, Triton).

A program of a kernel has one network and a block of rows of its batch. The inputs of products are bfloat16, their sums
float32. Of two hidden layers, the first is computed in chunks of columns, each of which goes at once into the sums of
the second layer; the backward pass computes both again. No activation is written to memory.

Gradients of weights have two forms, and only a device can show which is faster (`Tiles.stored`):
- partial sums: one kernel, in which a block of rows writes its share of every gradient, and XLA adds the shares. For
  160 networks of (256, 256) with batches of 256 in blocks of 64, the shares of the middle layer are 168 MB.
- stored: the first kernel writes the gradient of the second layer's sums once, in bfloat16 (21 MB for the same), and a
  second kernel, whose programs have a chunk of columns of the first layer and all rows, keeps its sums of weights'
  gradients in registers.

Both are deterministic: nothing is added atomically. Rounding differs from `--precision bfloat16` in one point: there
the sums of hidden layers are rounded to bfloat16 before the bias is added, here they are not.

JAX 0.11 warns that it will remove Pallas' backend for Triton. `benchmarks.fused_sac` compares with plain networks.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from rookery.types import Array

SMALLEST = 16
"""Triton's products have at least 16 rows, columns and terms, and sizes that are powers of two."""


class Weights(NamedTuple):
    """Weights and biases of N networks with inputs of I, layers of H and K, and outputs of O numbers, float32.

    H and K are powers of two from `SMALLEST`.
    """

    w1: Any  # [N, I, H]
    b1: Any  # [N, H]
    w2: Any  # [N, H, K]
    b2: Any  # [N, K]
    w3: Any  # [N, K, O]
    b3: Any  # [N, O]


class Tiles(NamedTuple):
    """How the work is divided. Sizes are powers of two from `SMALLEST`."""

    rows: int = 64
    """Rows of a block of the batch."""
    chunk: int = 64
    """Columns of the first hidden layer at a time, at most H."""
    warps: int = 8
    """Groups of 32 threads of a program."""
    stages: int = 2
    """Loads of the loops that are under way at once."""
    stored: bool = True
    """Two kernels for the gradients of weights, in place of one with partial sums; see the module."""
    interpret: bool = False
    """Compute without a GPU, slowly."""


class Sizes(NamedTuple):
    """Sizes of arrays whose blocks are larger than they are; what is outside of them is read as 0."""

    rows: int  # B
    inputs: int  # I
    outputs: int  # O


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def mlp(tiles: Tiles, weights: Weights, inputs: Array) -> Array:
    """Outputs `[N, B, O]` of N networks with ReLU.

    The gradients of weights and of inputs are kernels of their own; under `jax.jit` XLA removes the unused ones.

    Args:
      tiles: division of the work.
      weights: of the networks.
      inputs: `[M, B, I]`, where M divides N: each is the input of N / M networks in succession.
    """
    outputs = _float32(len(weights.w1), inputs.shape[1], weights.b3.shape[1])
    return _call(tiles, _forward_kernel, weights, (inputs,), [(outputs, _block(tiles, outputs))])[0]


def _mlp_forward(tiles: Tiles, weights: Weights, inputs: Array) -> tuple[Array, tuple[Weights, Array]]:
    return mlp(tiles, weights, inputs), (weights, inputs)


def _mlp_backward(tiles: Tiles, kept: tuple[Weights, Array], slopes: Array) -> tuple[Weights, Array]:
    weights, inputs = kept
    each = _float32(len(weights.w1), *inputs.shape[1:])
    (by_network,) = _call(tiles, _inputs_kernel, weights, (inputs, slopes), [(each, _block(tiles, each))])
    by_input = by_network.reshape(len(inputs), -1, *inputs.shape[1:]).sum(axis=1)
    return _gradient(tiles, weights, inputs, slopes, of_loss=False)[0], by_input


mlp.defvjp(_mlp_forward, _mlp_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def loss(tiles: Tiles, weights: Weights, inputs: Array, target: Array) -> Array:
    """Half the mean square of the errors of each network, summed over outputs, `[N]`.

    Its gradient computes the forward pass once, where that of `mlp` does so twice. It is that of the weights;
    inputs and targets are constants.

    Args:
      tiles: division of the work.
      weights: of the networks.
      inputs: `[M, B, I]`, as for `mlp`.
      target: `[M, B, O]`.
    """
    return _loss_forward(tiles, weights, inputs, target)[0]


def _loss_forward(tiles: Tiles, weights: Weights, inputs: Array, target: Array) -> tuple[Array, Weights]:
    gradient, squares = _gradient(tiles, weights, inputs, target, of_loss=True)
    return 0.5 * inputs.shape[1] * squares, gradient


def _loss_backward(tiles: Tiles, gradient: Weights, slopes: Array) -> tuple[Weights, None, None]:
    del tiles
    return Weights(*(leaf * slopes.reshape(-1, *[1] * (leaf.ndim - 1)) for leaf in gradient)), None, None


loss.defvjp(_loss_forward, _loss_backward)


def _gradient(tiles: Tiles, weights: Weights, inputs: Array, goal: Array, of_loss: bool) -> tuple[Weights, Array]:
    """The gradient of the weights, and the sums of squares of the outputs' slopes, `[N]`; see `_weights_kernel`."""
    blocks = pl.cdiv(inputs.shape[1], tiles.rows)
    shares = [*weights[3:], weights.b3, *([] if tiles.stored else weights[:3])]
    outs = [(_float32(len(leaf), blocks, *leaf.shape[1:]), _share(leaf)) for leaf in shares]
    if tiles.stored:
        second = jax.ShapeDtypeStruct((len(weights.w2), blocks * tiles.rows, weights.w2.shape[2]), jnp.bfloat16)
        outs.append((second, _block(tiles, second)))
    kernel = partial(_weights_kernel, of_loss=of_loss, stored=tiles.stored)
    found = _call(tiles, kernel, weights, (inputs, goal), outs)
    b2, w3, b3, squares, *first = (leaf.sum(axis=1) for leaf in found[: len(shares)])
    w1, b1, w2 = _columns(tiles, weights, inputs, found[-1]) if tiles.stored else first
    return Weights(w1, b1, w2, b2, w3, b3), squares.sum(axis=1)


def _columns(tiles: Tiles, weights: Weights, inputs: Array, slopes: Array) -> Sequence[Array]:
    """The gradients of `w1`, `b1` and `w2` from the slopes of the second layer's sums."""
    w1, b1, w2 = weights[:3]
    share, width = len(w1) // len(inputs), _fitted(inputs.shape[2])
    chunk = min(tiles.chunk, w1.shape[2])
    specs = [
        pl.BlockSpec((None, width, chunk), lambda n, k: (n, 0, k)),
        pl.BlockSpec((None, chunk), lambda n, k: (n, k)),
        pl.BlockSpec((None, chunk, w2.shape[2]), lambda n, k: (n, k, 0)),
    ]
    batch = pl.BlockSpec((None, slopes.shape[1], width), lambda n, _: (n // share, 0, 0))
    return pl.pallas_call(
        partial(_columns_kernel, rows=tiles.rows, sizes=_sizes(weights, inputs)),
        grid=(len(w1), w1.shape[2] // chunk),
        in_specs=[batch, _whole(slopes), *specs],
        out_specs=specs,
        out_shape=[_float32(*leaf.shape) for leaf in (w1, b1, w2)],
        **_compilation(tiles),
    )(inputs, slopes, w1, b1, w2.astype(jnp.bfloat16))


def _call(tiles: Tiles, kernel: Callable, weights: Weights, batches: Sequence[Array], outs: list) -> Sequence[Array]:
    """Call a kernel for every network and block of rows; `outs` has the shape and the block of each result."""
    shapes, out_specs = zip(*outs, strict=True)
    return pl.pallas_call(
        partial(kernel, chunk=min(tiles.chunk, weights.w1.shape[2]), sizes=_sizes(weights, batches[0])),
        grid=(len(weights.w1), pl.cdiv(batches[0].shape[1], tiles.rows)),
        in_specs=[*map(_whole, weights), *(_block(tiles, leaf, len(weights.w1) // len(leaf)) for leaf in batches)],
        out_specs=out_specs,
        out_shape=shapes,
        **_compilation(tiles),
    )(*weights._replace(w2=weights.w2.astype(jnp.bfloat16)), *batches)


def _compilation(tiles: Tiles) -> dict[str, Any]:
    options = triton.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages)
    return {"compiler_params": options, "interpret": tiles.interpret}


def _sizes(weights: Weights, inputs: Array) -> Sizes:
    return Sizes(inputs.shape[1], inputs.shape[2], weights.b3.shape[1])


def _float32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _fitted(size: int) -> int:
    """The size of a block that holds so many numbers."""
    return max(SMALLEST, pl.next_power_of_2(size))


def _block(tiles: Tiles, leaf: Any, share: int = 1) -> pl.BlockSpec:
    """A block of rows; `share` networks in succession have the same ones."""
    return pl.BlockSpec((None, tiles.rows, _fitted(leaf.shape[2])), lambda n, r: (n // share, r, 0))


def _whole(leaf: Array) -> pl.BlockSpec:
    """All of a network's leaf."""
    return pl.BlockSpec((None, *map(_fitted, leaf.shape[1:])), lambda n, _: (n, *[0] * (leaf.ndim - 1)))


def _share(leaf: Array) -> pl.BlockSpec:
    """A block's share of the gradient of a leaf, in `[N, blocks, ...]`."""
    return pl.BlockSpec((None, None, *map(_fitted, leaf.shape[1:])), lambda n, r: (n, r, *[0] * (leaf.ndim - 1)))


def _inside(shape: Sequence[int], limits: Sequence[Any]) -> Array:
    """Which elements of a block are within limits of its axes, where they are not None."""
    bounded = [(axis, limit) for axis, limit in enumerate(limits) if limit is not None]
    masks = [jax.lax.broadcasted_iota(jnp.int32, shape, axis) < limit for axis, limit in bounded]
    return reduce(jnp.logical_and, masks)


def _load(ref: Any, *limits: Any) -> Array:
    return triton.load(ref, mask=_inside(ref.shape, limits), other=0.0)


def _store(ref: Any, value: Array, *limits: Any) -> None:
    triton.store(ref, value, mask=_inside(ref.shape, limits))


def _dot(left: Array, right: Array, transpose_left: bool = False, transpose_right: bool = False) -> Array:
    """A product of two matrices, rounded to bfloat16, with sums in float32."""
    dimensions = ((int(not transpose_left),), (int(transpose_right),)), ((), ())
    rounded = left.astype(jnp.bfloat16), right.astype(jnp.bfloat16)
    return jax.lax.dot_general(*rounded, dimensions, preferred_element_type=jnp.float32)


def _first(rows: Array, w1: Array, b1: Array) -> Array:
    """A chunk of columns of the first hidden layer."""
    return jnp.maximum(_dot(rows, w1) + b1[None, :], 0.0)


def _second(rows: Array, refs: Weights, chunk: int, sizes: Sizes) -> Array:
    """The second hidden layer, `[rows, K]`."""

    def add(index: Array, total: Array) -> Array:
        at = pl.ds(index * chunk, chunk)
        w1 = _load(refs.w1.at[:, at], sizes.inputs)
        return total + _dot(_first(rows, w1, refs.b1[at]), refs.w2[at, :])

    start = jnp.zeros((rows.shape[0], refs.w2.shape[1]), jnp.float32)
    total = jax.lax.fori_loop(0, refs.w1.shape[1] // chunk, add, start)
    return jnp.maximum(total + refs.b2[...][None, :], 0.0)


def _third(second: Array, refs: Weights, sizes: Sizes) -> Array:
    """The outputs."""
    w3, b3 = _load(refs.w3, None, sizes.outputs), _load(refs.b3, sizes.outputs)
    return _dot(second, w3) + b3[None, :]


def _back(layer: Array, slopes: Array, weight: Array) -> Array:
    """Slopes of a hidden layer's sums from those of the next layer's, which `weight` leads to."""
    return jnp.where(layer > 0.0, _dot(slopes, weight, transpose_right=True), 0.0)


def _rows_left(ref: Any, sizes: Sizes) -> Array:
    """Rows of the batch from the first one of a program's block."""
    return sizes.rows - pl.program_id(1) * ref.shape[0]


def _forward_kernel(*arguments: Any, chunk: int, sizes: Sizes) -> None:
    *leaves, rows, outputs = arguments
    refs, left = Weights(*leaves), _rows_left(rows, sizes)
    second = _second(_load(rows, left, sizes.inputs), refs, chunk, sizes)
    _store(outputs, _third(second, refs, sizes), left, sizes.outputs)


def _inputs_kernel(*arguments: Any, chunk: int, sizes: Sizes) -> None:
    """The slopes of a block of inputs from those of its outputs."""
    *leaves, rows, goal, found = arguments
    refs, left = Weights(*leaves), _rows_left(rows, sizes)
    inputs, slopes = _load(rows, left, sizes.inputs), _load(goal, left, sizes.outputs)
    second = _second(inputs, refs, chunk, sizes)
    slopes = _back(second, slopes, _load(refs.w3, None, sizes.outputs)).astype(jnp.bfloat16)

    def add(index: Array, total: Array) -> Array:
        at = pl.ds(index * chunk, chunk)
        w1 = _load(refs.w1.at[:, at], sizes.inputs)
        d_first = _back(_first(inputs, w1, refs.b1[at]), slopes, refs.w2[at, :])
        return total + _dot(d_first, w1, transpose_right=True)

    start = jnp.zeros(inputs.shape, jnp.float32)
    total = jax.lax.fori_loop(0, refs.w1.shape[1] // chunk, add, start)
    _store(found, total, left, sizes.inputs)


def _weights_kernel(*arguments: Any, chunk: int, sizes: Sizes, of_loss: bool, stored: bool) -> None:
    """A block's share of the gradients of `b2`, `w3` and `b3`, the squares of its outputs' slopes, and the rest.

    Args:
      arguments: the weights, a block of inputs, the goal, the results.
      chunk: columns of the first layer at a time.
      sizes: of the arrays.
      of_loss: the goal is the targets of `loss`, in place of the slopes of the outputs.
      stored: the last result is the slopes of the second layer's sums; otherwise the last three are the block's share
        of the gradients of `w1`, `b1` and `w2`.
    """
    refs, rows, goal, (d_b2, d_w3, d_b3, squares, *rest) = Weights(*arguments[:6]), *arguments[6:8], arguments[8:]
    left = _rows_left(rows, sizes)
    inputs, slopes = _load(rows, left, sizes.inputs), _load(goal, left, sizes.outputs)
    second = _second(inputs, refs, chunk, sizes)
    if of_loss:
        slopes = (_third(second, refs, sizes) - slopes) / sizes.rows
        slopes = jnp.where(_inside(slopes.shape, [left]), slopes, 0.0)
    d_second = _back(second, slopes, _load(refs.w3, None, sizes.outputs))
    d_b2[...] = d_second.sum(axis=0)
    _store(d_w3, _dot(second, slopes, transpose_left=True), None, sizes.outputs)
    _store(d_b3, slopes.sum(axis=0), sizes.outputs)
    _store(squares, (slopes * slopes).sum(axis=0), sizes.outputs)
    d_second = d_second.astype(jnp.bfloat16)
    if stored:
        rest[0][...] = d_second
        return
    d_w1, d_b1, d_w2 = rest

    def write(index: Array, _: None) -> None:
        at = pl.ds(index * chunk, chunk)
        first = _first(inputs, _load(refs.w1.at[:, at], sizes.inputs), refs.b1[at])
        d_first = _back(first, d_second, refs.w2[at, :])
        _store(d_w1.at[:, at], _dot(inputs, d_first, transpose_left=True), sizes.inputs)
        d_b1[at] = d_first.sum(axis=0)
        d_w2[at, :] = _dot(first, d_second, transpose_left=True)

    jax.lax.fori_loop(0, refs.w1.shape[1] // chunk, write, None)


def _columns_kernel(*arguments: Any, rows: int, sizes: Sizes) -> None:
    """The gradients of a chunk of `w1`, `b1` and `w2`, from all rows of a batch, a block at a time."""
    batch, slopes, *refs, d_w1, d_b1, d_w2 = arguments
    w1, b1, w2 = _load(refs[0], sizes.inputs), refs[1][...], refs[2][...]

    def add(index: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        at = pl.ds(index * rows, rows)
        inputs, d_second = _load(batch.at[at, :], sizes.rows - index * rows, sizes.inputs), slopes[at, :]
        first = _first(inputs, w1, b1)
        d_first = _back(first, d_second, w2)
        return (
            totals[0] + _dot(inputs, d_first, transpose_left=True),
            totals[1] + d_first.sum(axis=0),
            totals[2] + _dot(first, d_second, transpose_left=True),
        )

    start = tuple(jnp.zeros(leaf.shape, jnp.float32) for leaf in (w1, b1, w2))
    total, d_b1[...], d_w2[...] = jax.lax.fori_loop(0, slopes.shape[0] // rows, add, start)
    _store(d_w1, total, sizes.inputs)
