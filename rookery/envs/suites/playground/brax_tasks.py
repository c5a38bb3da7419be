"""Brax's locomotion tasks on the current MJX, with its implementation for JAX or for Warp.

Observation, reward and termination are computed by Brax's classes, and the robots are Brax's files with Brax's solver
options for its backend `mjx`; only the physics are stepped here, by MJX itself. Brax's backend keeps the whole of
MJX's `Data` in its state. These tasks keep what the next step and the outputs read: joint coordinates, velocities, the
poses of the links, and the acceleration that the solver starts from. A test compares the trajectories.

Warp has one pool of contacts for all environments of a batch, whose size must be known when it is allocated. The pool
is scratch memory of a step, so it is allocated in the step, with room for every contact that the model can have in
every environment of the batch, however many axes are mapped.

Brax's classes stop the constraint solver early, for the ant and the humanoid after one iteration, where the result is
that of the solver rather than of the equations. MJX for JAX has the solver that they were made with and stops alike.
Warp has another solver, which runs until it has converged.
"""

import copy
import functools
import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from rookery.envs.base import Environment
from rookery.envs.suites import third_party
from rookery.envs.suites.brax import adapter as brax
from rookery.envs.suites.brax.adapter import StateReaders, Variant
from rookery.envs.suites.playground import loading
from rookery.envs.suites.third_party import BraxRobot, MujocoModel
from rookery.types import Array, PyTree

BACKEND = "mjx"
_OPTIONS = ("timestep", "iterations", "ls_iterations", "solver", "disableflags")  # that Brax's classes set
WARP_ITERATIONS = 100
"""The most iterations of Warp's constraint solver, and of its line search; it stops where it has converged."""


class Physics(NamedTuple):
    """State of the physics between two steps, with the fields that Brax's classes read."""

    q: Array  # joint coordinates, `[q]`
    qd: Array  # joint velocities, `[v]`
    x: PyTree  # poses of the L links, Brax's `Transform`; one physics step behind `q`, as on Brax's backend
    xd: PyTree  # velocities of the links, Brax's `Motion`
    warm_start: Array  # joint accelerations that the constraint solver starts from, `[v]`


class Engine(NamedTuple):
    """A robot's model, and the memory that its physics need."""

    mj_model: MujocoModel  # MuJoCo's model
    model: PyTree  # MJX's model
    impl: str  # one of `loading.IMPLEMENTATIONS`
    frames: int  # physics steps per environment step
    contacts: int  # the most contacts that one environment can have
    constraints: int  # the most rows of constraints that one environment can have


def make(
    name: str,
    episode_length: int = brax.EPISODE_LENGTH,
    impl: str | None = None,
    variant: Variant = brax.PLAIN,
    **options: object,
) -> Environment:
    """Build a task of Brax on MJX, or a variant of one.

    Actions are clipped to [-1, 1]. Physics that are not finite terminate the episode. Call this function outside of any
    traced function, since it loads the model.

    Args:
      name: Brax's name, e.g. `hopper`.
      episode_length: steps until truncation, at least 1.
      impl: MJX's implementation, `jax` or `warp`; by default `loading.default_implementation()`.
      variant: `OMNI`, or a variant of the modules `feet` and `walls` of Brax's adapter; by default the unmodified task.
      **options: for the constructor of Brax's environment, e.g. `terminate_when_unhealthy=False`.

    Raises:
      ImportError: Brax, MJX or Warp is not installed.
      ValueError: the name, the implementation or an option is unknown, or the variant does not fit the robot.
    """
    impl = loading.checked_implementation(impl)
    if "backend" in options:
        raise ValueError(f"the tasks mjx_* run on MJX only; for another backend use Brax's task {name!r}.")
    _require(impl)
    on_mjx = variant._replace(prepare=functools.partial(_prepare, variant, impl))
    environment = brax.make(name, episode_length, BACKEND, on_mjx, **options)
    return environment._replace(settings=environment.recorded(impl=impl))


def _require(impl: str) -> None:
    """Import what the implementation needs, without output."""
    try:
        with third_party.quiet_import():
            if impl == "warp":
                loading.quiet_warp()
            for module in ("brax.envs", "mujoco.mjx"):
                importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this task needs MuJoCo's MJX, Warp and Brax, which cannot be imported ({error}); install them: "
            f"{loading.INSTALL}"
        ) from error


def _prepare(variant: Variant, impl: str, brax_env: BraxRobot, name: str) -> StateReaders:
    """Prepare a variant, and step the physics of Brax's environment by MJX itself after its changes of the model."""
    readers = variant.prepare(brax_env, name)
    engine = _engine(brax_env, impl)
    brax_env.pipeline_init = functools.partial(_start, engine)
    brax_env.pipeline_step = functools.partial(_step, engine)
    return readers


def _engine(brax_env: BraxRobot, impl: str) -> Engine:
    from mujoco import mjx

    mj_model = copy.deepcopy(brax_env.sys.mj_model)
    for option in _OPTIONS:  # Brax's classes set them in their own copy of the options
        setattr(mj_model.opt, option, np.asarray(getattr(brax_env.sys.opt, option)).item())
    if impl == "warp":
        mj_model.opt.iterations = mj_model.opt.ls_iterations = WARP_ITERATIONS
    with third_party.standard_promotion():
        model = mjx.put_model(mj_model, impl=impl, device=jnp.zeros(()).device)
        bounds: Any = mjx.make_data(mj_model, impl="jax")._impl  # MJX for JAX has a row for each that is possible
    if impl == "warp":
        model = loading.without_iteration_messages(model)
    return Engine(mj_model, model, impl, brax_env._n_frames, bounds.ncon, bounds.nefc)


def _start(engine: Engine, q: Array, qd: Array) -> Physics:
    """Physics at rest or in motion, before the first step: `pipeline_init` of Brax's environment."""
    action = jnp.zeros((engine.mj_model.nu,), jnp.float32)
    return _run(engine, 0, (q, qd, jnp.zeros_like(qd), action))


def _step(engine: Engine, state: Physics, action: Array) -> Physics:
    """All physics steps of one environment step: `pipeline_step` of Brax's environment."""
    return _run(engine, engine.frames, (state.q, state.qd, state.warm_start, action))


def _run(engine: Engine, frames: int, arguments: tuple[Array, ...]) -> Physics:
    if engine.impl == "jax":
        return _simulate(engine, frames, 1, arguments)
    batch = jax.tree.map(lambda array: array[None], arguments)
    return jax.tree.map(lambda array: array[0], _batched(engine, frames, 1)(*batch))


def _batched(engine: Engine, frames: int, count: int) -> Callable[..., Physics]:
    """The function of a whole batch `[count, ...]` of Warp, which grows with every axis that `vmap` adds."""
    function = custom_vmap(functools.partial(_simulate_batch, engine, frames, count))
    function.def_vmap(functools.partial(_widen, engine, frames, count))
    return function


def _simulate_batch(engine: Engine, frames: int, count: int, *arguments: Array) -> Physics:
    return jax.vmap(functools.partial(_simulate, engine, frames, count))(arguments)


def _widen(
    engine: Engine, frames: int, count: int, size: int, mapped: PyTree, *arguments: Array
) -> tuple[Physics, PyTree]:
    """Batching rule: run a batch of `size * count` environments."""
    wide = [
        array if with_axis else jnp.broadcast_to(array, (size, *array.shape))
        for array, with_axis in zip(arguments, mapped, strict=True)
    ]
    flat = [array.reshape(size * count, *array.shape[2:]) for array in wide]
    result = _batched(engine, frames, size * count)(*flat)
    shaped = jax.tree.map(lambda array: array.reshape(size, count, *array.shape[1:]), result)
    return shaped, jax.tree.map(lambda _: True, shaped)


def _simulate(engine: Engine, frames: int, count: int, arguments: tuple[Array, ...]) -> Physics:
    """Run `frames` physics steps of one environment; 0 computes the poses only.

    `count` environments of the batch share Warp's pool of contacts. `arguments` are joint coordinates, joint
    velocities, the accelerations that the solver starts from, and the action.
    """
    from mujoco import mjx

    q, qd, warm_start, action = arguments
    # JAX calls a batching rule after the caller has left its context, so the context is entered here.
    with third_party.standard_promotion():
        data = _data(engine, count).replace(qpos=q, qvel=qd, qacc_warmstart=warm_start, ctrl=action)
        if frames == 0:
            return _read(engine, mjx.forward(engine.model, data))
        data, _ = jax.lax.scan(lambda data, _: (mjx.step(engine.model, data), None), data, None, frames)
        return _read(engine, data)


def _data(engine: Engine, count: int) -> PyTree:
    """MJX's `Data` of one environment, with Warp's pool of contacts for `count` environments."""
    from mujoco import mjx

    pool: dict[str, Any] = {"naconmax": count * max(engine.contacts, 1), "njmax": max(engine.constraints, 1)}
    with jax.ensure_compile_time_eval():
        device = jnp.zeros(()).device  # of this process; MJX would use the first device of the first process
        data = mjx.make_data(engine.mj_model, device, engine.impl, **(pool if engine.impl == "warp" else {}))
        values = jax.tree.map(np.asarray, data)
    return jax.tree.map(_short, values)


def _short(values: np.ndarray) -> Array:
    """An array whose elements are all equal as one number: the compiled program would contain all of them."""
    if values.size and (values == values.flat[0]).all():
        return jnp.full(values.shape, values.flat[0], values.dtype)
    return jnp.asarray(values)


def _read(engine: Engine, data: PyTree) -> Physics:
    """Compute what Brax's classes read, as `brax.mjx.pipeline.step` does."""
    from brax.base import Motion, Transform

    velocity = Motion(vel=data.cvel[1:, 3:], ang=data.cvel[1:, :3])
    offset = data.xpos[1:] - data.subtree_com[engine.mj_model.body_rootid[1:]]
    return Physics(
        q=data.qpos,
        qd=data.qvel,
        x=Transform(pos=data.xpos[1:], rot=data.xquat[1:]),
        xd=Transform.create(pos=offset).vmap().do(velocity),
        warm_start=data.qacc_warmstart,
    )
