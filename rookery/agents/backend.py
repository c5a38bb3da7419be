"""The device that programs are traced for, where it decides which of two equal computations is the faster one."""

import contextlib

import jax

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


def prefers_few_kernels() -> bool:
    """Whether equal work is faster in fewer, larger operations, even if some of it is moved or computed in vain.

    True on a GPU, where the start of a kernel takes microseconds: for networks of a few hundred units as long as the
    kernel itself. On a CPU, separate smaller matrix products stay in the cache (10 to 14 % faster for twin critics).
    """
    return platform() == "gpu"
