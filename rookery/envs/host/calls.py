"""Calls from compiled programs to the host: one for all members and environments of a device.

`jax.vmap` over environments and over members adds rows to the same call (`custom_vmap`). The calls are unordered; the
order of the steps of an episode follows from its state, which each call returns.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from numpy.typing import ArrayLike, DTypeLike

from rookery.envs import base
from rookery.envs.base import Step
from rookery.envs.host.base import BROKEN, FRESH, TERMINATED, TRUNCATED, Host, HostState, Rows
from rookery.types import Array, Key, Observation, PyTree

Function = Callable[[np.ndarray], Sequence[np.ndarray]]
"""An argument, whose memory is the program's and must not be kept -> results of the declared shapes and types."""
Results = Sequence[jax.ShapeDtypeStruct]


def reset(host: Host, key: Key) -> tuple[HostState, Step]:
    """The start of an episode, whose seed is drawn with the key."""
    seed = jax.random.randint(key, (), 0, np.iinfo(np.int32).max)
    sizes = host.sizes
    results = [_row(sizes.dtype, sizes.features), _row(jnp.float32, sizes.descriptor)]
    features, descriptor = _mapped(_Target(host.reset, results, send_copy), seed)
    action = jnp.zeros(sizes.action, jnp.int32 if sizes.discrete else jnp.float32)
    zeros = dict.fromkeys(sizes.measures, jnp.zeros(())) or None
    return HostState(jnp.asarray(FRESH, jnp.int32), seed, action), base.first_step(features, descriptor, measures=zeros)


def announce(host: Host, state: HostState, action: Array) -> HostState:
    """Let the host begin the step that `step` will take with the same action, while the device does other work."""
    target = _Target(host.announce, [_row(jnp.int32)], omits=host.steps_here)
    (slot,) = _mapped(target, state.slot, state.seed, action)
    return state._replace(slot=slot)


def step(host: Host, state: HostState, action: Array, key: Key) -> tuple[HostState, Step]:
    """Step the environment, which ends the episode if an output is not finite; the key is not used."""
    del key
    sizes = host.sizes
    results = [_row(jnp.int32), _row(sizes.dtype, sizes.features), _row(jnp.float32), _row(jnp.int32)]
    results.append(_row(jnp.float32, sizes.descriptor))
    if sizes.measures:
        results.append(_row(jnp.float32, len(sizes.measures)))
    target = _Target(host.step, results)
    slot, features, reward, flags, descriptor, *measures = _mapped(target, state.slot, state.seed, action)
    observation = Observation(features)
    return HostState(slot, state.seed, action), Step(
        observation=observation,
        reward=reward,
        terminated=(flags & TERMINATED) > 0,
        truncated=(flags & TRUNCATED) > 0,
        final_observation=observation,
        descriptor=descriptor,
        broken=(flags & BROKEN) > 0,
        measures={name: measures[0][place] for place, name in enumerate(sizes.measures)} or None,
    )


def send(function: Function, results: Results, argument: Array) -> Sequence[Array]:
    """Call a function of one array once in each execution.

    On a CPU the function reads and writes the program's memory, which takes 3 microseconds; `io_callback`, which makes
    JAX arrays of it, takes 100 and is used on other devices. In a program for several devices the call must be inside
    of `shard_map`.
    """
    in_place = partial(_send_in_place, function, tuple(results))
    return jax.lax.platform_dependent(argument, cpu=in_place, default=partial(send_copy, function, results))


def send_copy(function: Function, results: Results, argument: Array) -> Sequence[Array]:
    """Like `send`, on any device, also in a program for several devices outside of `shard_map`."""
    return tuple(io_callback(function, tuple(results), argument))


def _send_in_place(function: Function, results: tuple[jax.ShapeDtypeStruct, ...], argument: Array) -> tuple[Array, ...]:
    return tuple(buffer_callback(partial(_fill, function), results, has_side_effect=True)(argument))


def _fill(function: Function, context: object, outputs: Sequence[ArrayLike], argument: ArrayLike) -> None:
    """Write the results of the function into the program's buffers."""
    del context
    for output, values in zip(outputs, function(np.asarray(argument)), strict=True):
        if values.size:
            np.asarray(output)[...] = values


def _row(dtype: DTypeLike, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


class _Target(NamedTuple):
    """A function of the host."""

    function: Callable[..., Rows]
    results: list[jax.ShapeDtypeStruct]
    """Of one row."""
    send: Callable[..., Sequence[Array]] = send
    """How it is called; start states are drawn for several devices together, which only `send_copy` supports."""
    omits: Callable[[int], bool] | None = None
    """Whether it is not called for so many rows, and its results are its first inputs."""


def _mapped(target: _Target, *inputs: Array) -> list[Array]:
    """Call the host for one row; `jax.vmap` makes it a call for many rows."""
    return _batched(target, ())(*inputs)


def _batched(target: _Target, shape: tuple[int, ...]) -> Callable:
    """A call for the rows of the mapped axes `shape`, whose leaves are `[*shape, ...]`."""
    call = custom_vmap(partial(_call, target, shape))
    call.def_vmap(partial(_add_axis, target, shape))
    return call


def _add_axis(
    target: _Target, shape: tuple[int, ...], size: int, batched: list[bool], *inputs: Array
) -> tuple[list[Array], list[bool]]:
    rows = [
        leaf if is_batched else jnp.broadcast_to(leaf, (size, *leaf.shape))
        for leaf, is_batched in zip(inputs, batched, strict=True)
    ]
    return _batched(target, (size, *shape))(*rows), [True] * len(target.results)


def _call(target: _Target, shape: tuple[int, ...], *inputs: Array) -> list[PyTree]:
    """Call the host with one array of 4-byte columns, since each array that is passed takes time."""
    count, axes = math.prod(shape), len(shape)
    if target.omits is not None and target.omits(count):
        return list(inputs[: len(target.results)])
    rows = [jax.lax.bitcast_convert_type(leaf, jnp.int32).reshape(count, -1) for leaf in inputs]
    columns = [(math.prod(leaf.shape[axes:]), leaf.shape[axes:], leaf.dtype) for leaf in inputs]
    outputs = [jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype) for leaf in target.results]
    packed_call = partial(_call_packed, target.function, columns, shape)
    found = target.send(packed_call, outputs, jnp.concatenate(rows, axis=1))
    return [leaf.reshape(*shape, *leaf.shape[1:]) for leaf in found]


def _call_packed(
    function: Callable[..., Rows],
    columns: list[tuple[int, tuple[int, ...], np.dtype]],
    shape: tuple[int, ...],
    packed: ArrayLike,
) -> Rows:
    """Call the host with the arrays that the columns of `packed`, `[n, C]` int32, consist of."""
    packed, first, rows = np.array(packed), 0, []  # a copy: the memory is XLA's
    for size, column_shape, dtype in columns:
        part = packed[:, first : first + size].view(dtype)
        rows.append(part.reshape(len(packed), *column_shape))
        first += size
    return function(shape, *rows)
