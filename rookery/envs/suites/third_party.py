"""Helpers of the suite adapters: silent imports, JAX's standard promotion rules, states with strong types.

The Protocols say what the adapters read of MuJoCo's and Brax's objects, which these packages do not describe by types.
"""

import contextlib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rookery.envs.base import EnvState
from rookery.types import Array, Key, PyTree


class Named(Protocol):
    """A body or geometry of a `MujocoModel`."""

    id: int
    name: str


class SolverOptions(Protocol):
    """The options of a `MujocoModel`."""

    iterations: int
    ls_iterations: int


class MujocoModel(Protocol):
    """MuJoCo's `MjModel`: `ngeom` geometries, each with one row of the arrays `geom_*`, and the tree of bodies."""

    ngeom: int
    nu: int
    opt: SolverOptions
    geom_type: np.ndarray
    geom_bodyid: np.ndarray
    geom_size: np.ndarray
    geom_pos: np.ndarray
    geom_quat: np.ndarray
    geom_aabb: np.ndarray
    geom_contype: np.ndarray
    geom_conaffinity: np.ndarray
    geom_group: np.ndarray
    geom_rgba: np.ndarray
    body_parentid: np.ndarray
    body_rootid: np.ndarray

    def geom(self, key: int | str, /) -> Named: ...

    def body(self, key: int | str, /) -> Named: ...


class Poses(Protocol):
    """Brax's `Transform` of the L links."""

    pos: Array  # `[L, 3]`, metres
    rot: Array  # `[L, 4]`, unit quaternions


class Physics(Protocol):
    """What every backend of Brax has in its pipeline state."""

    q: Array  # joint coordinates
    x: Poses


class BraxState(Protocol):
    """Brax's `State` after a reset or a step."""

    pipeline_state: Physics
    obs: PyTree
    reward: Array
    done: Array
    metrics: Mapping[str, Array]
    info: Mapping[str, PyTree]


class BraxSystem(Protocol):
    """Brax's `System` of a robot."""

    mj_model: MujocoModel
    opt: PyTree
    actuator: PyTree


class BraxEnv(Protocol):
    """Brax's `Env`, which a user may define."""

    @property
    def action_size(self) -> int: ...

    def reset(self, key: Key, /) -> PyTree: ...

    def step(self, state: PyTree, action: Array, /) -> PyTree: ...


class BraxRobot(BraxEnv, Protocol):
    """Brax's `PipelineEnv`: the environment of a robot."""

    sys: BraxSystem
    pipeline_init: PyTree
    pipeline_step: PyTree
    _n_frames: int

    @property
    def backend(self) -> str: ...

    @property
    def dt(self) -> float: ...


class PlaygroundEnv(BraxEnv, Protocol):
    """Playground's `MjxEnv`, whose functions have the form of Brax's."""

    @property
    def mj_model(self) -> MujocoModel: ...

    @property
    def mjx_model(self) -> PyTree: ...

    @property
    def dt(self) -> float: ...


class BodyPoses(Protocol):
    """MJX's `Data`: poses of the bodies."""

    xpos: Array  # `[bodies, 3]`, metres
    xquat: Array  # `[bodies, 4]`, unit quaternions


class PlaygroundOutput(Protocol):
    """Playground's `State` after a reset or a step."""

    data: BodyPoses
    obs: PyTree
    reward: Array
    done: Array


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


def imported(module: str, package: str, install: str) -> ModuleType:
    """A module of a suite, imported without its output; an ImportError names the command that installs it."""
    try:
        with quiet_import():
            return importlib.import_module(module)
    except ImportError as error:
        text = f"this task needs {package}, which cannot be imported ({error}); install it: {install}"
        raise ImportError(text) from error


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
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def check_unwrapped(adapt: str, env: object) -> None:
    """Raise a ValueError if an environment object, given to the function `adapt`, has a wrapper of Brax or Playground
    that ends, restarts or batches episodes."""
    while env is not None:
        if type(env).__module__ in ("brax.envs.wrappers.training", "mujoco_playground._src.wrapper"):
            raise ValueError(
                f"{adapt} adds the time limit and the resets itself; give the environment without its "
                f"{type(env).__name__}, such as env.unwrapped."
            )
        env = getattr(env, "__dict__", {}).get("env")


def strongly_typed(state: EnvState) -> EnvState:
    """Make the types of a state's leaves strong (not weak types), so that resets and steps return the same types."""
    arrays = jax.tree.map(jnp.asarray, state)
    return jax.tree.map(lambda array: jax.lax.convert_element_type(array, array.dtype), arrays)
