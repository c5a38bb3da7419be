"""The square root of a covariance matrix by matrix products.

LAPACK's eigendecomposition is avoided: its factorisations occasionally hang where CPU cores are used as devices.
"""

import jax
import jax.numpy as jnp

from rookery.types import Array

_ITERATIONS = 30  # enough for the largest condition number before a distribution restarts


def roots(covariance: Array) -> tuple[Array, Array]:
    """The square root of a positive definite matrix `[n, n]`, or of a diagonal `[n]`, and its inverse.

    Matrices are multiplied by scalars, not divided by them: XLA compiles a division in one of two ways, which round
    differently, and with another number of devices it may choose the other one.

    Source: Higham 2008, "Functions of Matrices", equation 6.35 (the coupled Newton-Schulz iteration).
    """
    if covariance.ndim == 1:
        root = jnp.sqrt(covariance)
        return root, 1.0 / root
    scale, identity = jnp.sqrt(jnp.sum(jnp.square(covariance))), jnp.eye(covariance.shape[0])

    def improve(_: int, pair: tuple[Array, Array]) -> tuple[Array, Array]:
        root, inverse = pair
        factor = 1.5 * identity - 0.5 * jnp.matmul(inverse, root, precision="highest")
        return jnp.matmul(root, factor, precision="highest"), jnp.matmul(factor, inverse, precision="highest")

    root, inverse = jax.lax.fori_loop(0, _ITERATIONS, improve, (covariance * (1.0 / scale), identity))
    root, inverse = 0.5 * (root + root.T), 0.5 * (inverse + inverse.T)
    return root * jnp.sqrt(scale), inverse * (jnp.sqrt(scale) / scale)
