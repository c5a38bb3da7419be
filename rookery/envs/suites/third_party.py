"""What the adapters of other people's suites share: quiet imports, lenient tracing, states of firm types."""

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from rookery.envs.base import EnvState


@contextlib.contextmanager
def lenient() -> Iterator[None]:
    """What a suite needs while it is imported, built or traced: mixed types and ranks, and no complaint of its own age
    or of what JAX will refuse one day."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


@contextlib.contextmanager
def ignored_warning(message: str) -> Iterator[None]:
    """Keep back the one warning that begins with `message`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=message)
        yield


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """Keep back what an import prints, and the environment variables that it sets.

    JaxMARL's puts the process's own outputs back into place halfway.
    """
    before, own_output, errors, silence = dict(os.environ), sys.__stdout__, sys.stderr, io.StringIO()
    try:
        sys.__stdout__ = silence  # pyright: ignore[reportAttributeAccessIssue]
        with lenient(), contextlib.redirect_stdout(silence):
            yield
    finally:
        sys.stderr = errors
        sys.__stdout__ = own_output  # pyright: ignore[reportAttributeAccessIssue]
        for name in os.environ.keys() - before.keys():
            del os.environ[name]


@contextlib.contextmanager
def environment_variables(**values: str) -> Iterator[None]:
    """Set environment variables for as long as this lasts."""
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


def firm(state: EnvState) -> EnvState:
    """A state whose types no Python number widens any more, so that resets and steps give the same types."""
    return jax.tree.map(_firm, state)


def _firm(leaf: object) -> jax.Array:
    array = jnp.asarray(leaf)
    return jax.lax.convert_element_type(array, array.dtype)
