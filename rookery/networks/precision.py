"""The precision of the matrix products of networks, which a context chooses."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp

from rookery.types import Array

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


def product(is_last: bool) -> Callable | None:
    """The product of a dense layer in the precision of the context, in place of `dot_general`; None: that itself."""
    if not _rounds.value:
        return None
    return partial(_rounded_product, preferred_element_type=jnp.float32) if is_last else _rounded_product


def _rounded_product(inputs: Array, kernel: Array, *arguments: object, **options: object) -> Array:
    product = partial(jax.lax.dot_general, inputs.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16), *arguments)
    return product(**options).astype(jnp.float32)
