"""Helpers of the suite adapters: silent imports, JAX's standard promotion rules, states with strong types."""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from rookery.envs.base import EnvState


@contextlib.contextmanager
def standard_promotion() -> Iterator[None]:
    """Allow mixed types and ranks, which suites use while they are imported, built or traced.

    Deprecation and future warnings are ignored.
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


@contextlib.contextmanager
def ignored_warning(message: str) -> Iterator[None]:
    """Ignore the warning that begins with `message`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=message)
        yield


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Suppress the output of an import, and remove the environment variables that it sets.

    The import of JaxMARL resets the output streams, so `sys.__stdout__` is replaced too and `sys.stderr` is restored.
    """
    before, original_stdout, original_stderr, sink = dict(os.environ), sys.__stdout__, sys.stderr, io.StringIO()
    try:
        sys.__stdout__ = sink  # pyright: ignore[reportAttributeAccessIssue]
        with standard_promotion(), contextlib.redirect_stdout(sink):
            yield
    finally:
        sys.stderr = original_stderr
        sys.__stdout__ = original_stdout  # pyright: ignore[reportAttributeAccessIssue]
        for name in os.environ.keys() - before.keys():
            del os.environ[name]


@contextlib.contextmanager
def environment_variables(**values: str) -> Iterator[None]:
    """Set environment variables while the context is active."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def check_unwrapped(adapt: str, env: Any) -> None:
    """Check that an environment object has no wrapper of Brax or Playground that ends, restarts or batches episodes.

    Args:
      adapt: the function that adapts the object, for the message.
      env: the object.

    Raises:
      ValueError: it has one.
    """
    while env is not None:
        if type(env).__module__ in ("brax.envs.wrappers.training", "mujoco_playground._src.wrapper"):
            raise ValueError(
                f"{adapt} adds the time limit and the resets itself; give the environment without its "
                f"{type(env).__name__}, such as env.unwrapped."
            )
        env = getattr(env, "__dict__", {}).get("env")


def strongly_typed(state: EnvState) -> EnvState:
    """Make the types of a state's leaves strong (not weak types), so that resets and steps return the same types."""
    return jax.tree.map(_strongly_typed, state)


def _strongly_typed(leaf: object) -> jax.Array:
    array = jnp.asarray(leaf)
    return jax.lax.convert_element_type(array, array.dtype)
