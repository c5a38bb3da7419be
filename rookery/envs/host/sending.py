"""How a compiled program calls a Python function on the host."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback
from numpy.typing import ArrayLike

from rookery.types import Array

Function = Callable[[np.ndarray], Sequence[np.ndarray]]
"""An argument, whose memory is the program's and must not be kept -> results of the declared shapes and types."""
Results = Sequence[jax.ShapeDtypeStruct]


def send(function: Function, results: Results, argument: Array) -> Sequence[Array]:
    """Call a function of one array once in each execution.

    On a CPU the function reads and writes the program's memory, which takes 3 microseconds; `io_callback`, which makes
    JAX arrays of it, takes 100 and is used on other devices. In a program for several devices the call must be inside
    of `shard_map`.

    Args:
      function: the function.
      results: shapes and types of its results.
      argument: its argument.
    """
    in_place = partial(_send_in_place, function, tuple(results))
    return jax.lax.platform_dependent(argument, cpu=in_place, default=partial(send_copy, function, tuple(results)))


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
