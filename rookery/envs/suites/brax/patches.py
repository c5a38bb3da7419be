"""Corrections of Brax, which are made in its modules when the first environment is loaded."""

import importlib
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from rookery.envs.suites.third_party import MujocoModel
from rookery.types import Array, PyTree


def apply() -> None:
    """Correct the modules of Brax; a further call changes nothing."""
    _assign("brax.fluid", jp=SimpleNamespace(**{**vars(jnp), "clip": _clip}))
    mjx = vars(importlib.import_module("mujoco.mjx"))
    putting = SimpleNamespace(**{**mjx, "put_model": _put_model})
    _assign("brax.io.mjcf", mjx=putting, jp=SimpleNamespace(**{**vars(jnp), "array": _array}))
    for name in ("spring.joints", "spring.collisions", "positional.joints", "positional.collisions"):
        _assign(f"brax.{name}", segment_sum=segment_sum)
    summing = SimpleNamespace(**{**vars(jax), "ops": SimpleNamespace(segment_sum=segment_sum)})
    _assign("brax.positional.collisions", jax=summing)


def _assign(module: str, **values: object) -> None:
    vars(importlib.import_module(module)).update(values)


def segment_sum(data: Array, segment_ids: Array, num_segments: int) -> Array:
    """`jax.ops.segment_sum`, which adds in a fixed order on GPUs too.

    A GPU adds what is scattered to one place in any order, so that a run of a robot with more than two parts on one
    body could not be repeated bit by bit (the ant on an H100). XLA's option `xla_gpu_deterministic_ops` orders it, but
    computed other values (jaxlib 0.11.2).

    `data` `[N, ...]` are the forces on parts, `segment_ids` `[N]` the bodies that the parts belong to; others than 0 to
    num_segments - 1 are left out.
    """
    ordered, scattered = (partial(sums, num_segments=num_segments) for sums in (_in_order, jax.ops.segment_sum))
    return jax.lax.platform_dependent(data, segment_ids, cuda=ordered, rocm=ordered, default=scattered)


def _in_order(data: Array, segment_ids: Array, num_segments: int) -> Array:
    """The same sums, each over all parts with zeros for those of other bodies."""
    belongs = segment_ids[None] == jnp.arange(num_segments)[:, None]
    belongs = belongs.reshape(*belongs.shape, *[1] * (data.ndim - 1))
    return jnp.sum(jnp.where(belongs, data[None], jnp.zeros((), data.dtype)), axis=1, dtype=data.dtype)


def _clip(array: Array, a_min: float | None = None, a_max: float | None = None) -> Array:
    """`jax.numpy.clip` with the arguments that JAX removed and Brax's fluid forces (only the swimmer's) use."""
    return jnp.clip(array, a_min, a_max)


def _array(leaf: ArrayLike) -> Array:
    """`jax.numpy.array` without a compiled copy of each array that is one of JAX already, 42 for the ant."""
    return leaf if isinstance(leaf, jax.Array) else jnp.array(leaf)


def _put_model(model: MujocoModel) -> PyTree:
    """Load a model on this process's default device; MJX would use the first device of the first process."""
    return importlib.import_module("mujoco.mjx").put_model(model, device=jnp.zeros(()).device)
