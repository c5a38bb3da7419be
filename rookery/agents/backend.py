"""The device that programs are traced for, where it decides which of two equal computations is the faster one."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from rookery.types import Array, PyTree

CHUNK = 4
"""Members that `in_chunks` maps together, at most."""

_platform = jax.make_user_context(None)  # part of the key of `jax.jit`'s cache, so that a change traces again


def tracing_for(platform: str | None) -> contextlib.AbstractContextManager[None]:
    """Trace programs for `platform` ("cpu", "gpu", "tpu") within the context; None: for `jax.default_backend()`.

    It is needed only to compile for a device that this process does not have.

    Example:
      >>> with rookery.agents.backend.tracing_for("gpu"):
      ...     lowered = jax.jit(step).lower(state)
    """
    return _platform(platform)


def platform() -> str:
    """The platform that programs are traced for: "cpu", "gpu" or "tpu"."""
    return _platform.value or jax.default_backend()


def switch(name: str) -> Any:
    """The value of one of JAX's switches, such as "jax_debug_nans", also in a context that sets it."""
    return getattr(jax.config, name)


def prefers_few_kernels() -> bool:
    """Whether equal work is faster in fewer, larger operations, even if some of it is moved or computed in vain.

    True on a GPU, where the start of a kernel takes microseconds: for networks of a few hundred units as long as the
    kernel itself. On a CPU, separate smaller matrix products stay in the cache (10 to 14 % faster for twin critics).
    """
    return platform() == "gpu"


def in_chunks(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Return the function; on a CPU, `jax.vmap` of it maps over at most `CHUNK` members at a time, one chunk after the
    other.

    A loop of many updates then works on arrays that fit in the cache: for 16 members with networks of 64 units an
    update of PPO takes three quarters of the processor time. The chunks are equally large, so that the function is
    compiled once. On a GPU all members are mapped at once.

    Args:
      function: takes pytrees of arrays, by position.
    """
    chunked = jax.custom_batching.custom_vmap(function)
    chunked.def_vmap(partial(_map_chunks, function))
    return chunked


def _map_chunks(
    function: Callable[..., PyTree], size: int, in_batched: PyTree, *arguments: PyTree
) -> tuple[PyTree, PyTree]:
    leaves, structure = jax.tree.flatten(arguments)
    flags = jax.tree.leaves(in_batched)
    call = partial(
        _call, function, structure, [None if flag else leaf for leaf, flag in zip(leaves, flags, strict=True)]
    )
    mapped = [leaf for leaf, flag in zip(leaves, flags, strict=True) if flag]
    if size <= CHUNK or prefers_few_kernels():
        outputs = jax.vmap(call)(mapped)
    else:
        outputs = jax.lax.map(call, mapped, batch_size=max(n for n in range(1, CHUNK + 1) if size % n == 0))
    return outputs, jax.tree.map(lambda _: True, outputs)


def _call(
    function: Callable[..., PyTree], structure: PyTree, shared: list[Array | None], mapped: list[Array]
) -> PyTree:
    """Call the function with the leaves of its arguments: those of one member, in the places where `shared` is None."""
    rest = iter(mapped)
    leaves = [next(rest) if leaf is None else leaf for leaf in shared]
    return function(*jax.tree.unflatten(structure, leaves))
