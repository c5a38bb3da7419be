"""Loading of MuJoCo Playground's environments: implementation of the physics, robot models, and silence."""

import functools
import importlib.util
from types import ModuleType
from typing import Any

import jax

from rookery.envs.suites import third_party
from rookery.envs.suites.brax.adapter import quiet_model_load
from rookery.envs.suites.playground import tasks
from rookery.envs.suites.third_party import PlaygroundEnv
from rookery.settings import check_counts
from rookery.types import PyTree

INSTALL = 'pip install "rookery[playground]"'
DOWNLOAD = (
    "python -c 'from mujoco_playground._src import mjx_env; mjx_env.ensure_menagerie_exists()'  # about 1 GB, needs git"
)
IMPLEMENTATIONS = ("jax", "warp")


def default_implementation() -> str:
    """`warp` on a single GPU, for which it was written, if it is installed; `jax` on all other machines: it is faster
    on a CPU, runs on several devices and does not need warp-lang."""
    is_suited = jax.default_backend() == "gpu" and jax.device_count() == 1
    return "warp" if is_suited and _has_warp() else "jax"


def checked_implementation(impl: str | None) -> str:
    """The given implementation, or the default.

    Raises:
      ValueError: it is unknown.
      ImportError: it is `warp`, and warp-lang is not installed.
    """
    if impl not in (None, *IMPLEMENTATIONS):
        raise ValueError(f"impl must be {' or '.join(IMPLEMENTATIONS)}, got {impl!r}.")
    if impl == "warp" and not _has_warp():
        raise ImportError("impl=warp needs NVIDIA Warp, which is not installed: pip install warp-lang, or impl=jax.")
    return impl or default_implementation()


def _has_warp() -> bool:
    return importlib.util.find_spec("warp") is not None


def load(name: str, impl: str | None = None, naconmax: int | None = None) -> Any:
    """Load an environment of Playground without wrappers; see `adapter.make` for arguments and errors."""
    if name not in tasks.TASKS:
        raise ValueError(f"MuJoCo Playground has no task {name!r}; `rookery envs playground` lists them.")
    chosen = checked_implementation(impl)
    check_counts(naconmax=1 if naconmax is None else naconmax)
    registry = suite()
    _check_robot(name)
    given = {"impl": chosen, "naconmax": naconmax}
    config = registry.get_default_config(name)
    if impl == "warp" and "impl" not in config:
        raise ValueError(f"{name} runs on impl jax only.")
    overrides = {key: value for key, value in given.items() if value is not None and key in config}
    with third_party.standard_promotion(), quiet_model_load():
        env = registry.load(name, config_overrides=overrides)
    if implementation(env) == "warp":
        env._mjx_model = without_iteration_messages(env.mjx_model)
    return env


def implementation(env: PlaygroundEnv) -> str:
    """The implementation that an environment's model was made for."""
    return str(env.mjx_model.impl.value)


def without_iteration_messages(model: PyTree) -> PyTree:
    """Suppress Warp's messages that the solver stopped at its limit of iterations, as it is meant to.

    Messages about contacts or constraints for which there is no memory are kept.
    """
    from mujoco.mjx.third_party.mujoco_warp import OverflowType

    shown = model.opt._impl.warn_overflow & ~int(OverflowType.ITERATIONS | OverflowType.LS_ITERATIONS)
    return model.tree_replace({"opt._impl.warn_overflow": shown})


def quiet_warp() -> None:
    """Import Warp, if it is installed, without its messages about devices and about each kernel that it loads."""
    if not _has_warp():
        return
    warp = importlib.import_module("warp")
    if hasattr(warp, "LOG_ERROR"):
        warp.config.log_level = warp.LOG_ERROR
    else:  # earlier releases
        warp.config.quiet = True


@functools.cache
def suite() -> ModuleType:
    """Import Playground's registry without its output; an ImportError if it is not installed."""
    try:
        with third_party.quiet_import():
            quiet_warp()
            from mujoco_playground import registry
    except ImportError as error:
        raise ImportError(
            f"this task needs MuJoCo Playground, which cannot be imported ({error}); install it: {INSTALL}"
        ) from error
    return registry


def _check_robot(name: str) -> None:
    """Check that the models of legged robots, arms and hands exist, which Playground does not contain.

    Playground would download them here, at an unexpected moment and in each process of a run.
    """
    from mujoco_playground._src import mjx_env

    if name not in tasks.CONTROL_SUITE and not mjx_env.MENAGERIE_PATH.exists():
        raise ImportError(
            f"{name} needs robot models that MuJoCo Playground does not contain (MuJoCo Menagerie); download them "
            f"once: {DOWNLOAD}"
        )
