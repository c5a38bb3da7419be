"""Brax's environments as Rookery's, touched as little as possible; needs the extra `brax`, imported on first use.

Only the physics state is carried between steps: every step hands Brax a fresh `State`, since Brax's own `step` writes
into the metrics of the one that it is given. Brax's time limit is never used; `api.limit_episode` counts instead, so
Brax's `done` always means terminated. Brax computes with mixed types and ranks; its calls run under JAX's standard
promotion rules whatever the caller's are.
"""

import contextlib
import importlib
import io
import warnings
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.envs import api
from rookery.envs.api import DescriptorSpec, Environment, EnvSpec, EnvState, Step
from rookery.types import Array, Key

EPISODE_LENGTH = 1000
BACKENDS = ("spring", "positional", "generalized", "mjx")
ONLY_BACKENDS = {"swimmer": ("generalized",)}  # Brax refuses the others
CONTACT_HEIGHT = 5e-3  # metres; a foot at rest hovers within a millimetre of the floor
INSTALL = 'pip install "rookery[brax]"'


class Feet(NamedTuple):
    """The feet of a robot as spheres and capsules on links, F of them, as constants of the model."""

    links: np.ndarray  # [F] int, which link carries the foot
    centres: np.ndarray  # [F, 3] metres, centre of the foot in the link's frame
    axes: np.ndarray  # [F, 3] metres, half of the capsule's length along its axis in the link's frame; 0 for a sphere
    radii: np.ndarray  # [F] metres
    floor: float  # metres, height of the floor


def make(
    name: str, episode_length: int = EPISODE_LENGTH, backend: str | None = None, feet: int = 0, **options: Any
) -> Environment:
    """Build one of Brax's environments.

    Actions are clipped to [-1, 1] before Brax sees them. Physics that are no longer finite terminate the episode. Call
    it outside of any traced function: it loads the model.

    Args:
      name: Brax's own name, e.g. `hopper`.
      episode_length: steps until truncation, at least 1.
      backend: `spring`, `positional`, `generalized` or `mjx`; by default `default_backend(name)`.
      feet: how many feet the robot has; more than 0 makes their ground contact the descriptor `[feet]`: 1 where a foot
        is less than 5 mm above the floor at the end of the step, else 0, meaned over the episode.
      **options: for the constructor of Brax's environment, e.g. `terminate_when_unhealthy=False`.

    Raises:
      ImportError: Brax is not installed.
      ValueError: the name, the backend or an option is unknown, or the robot has another number of feet.
    """
    world = load(name, backend or default_backend(name), **options)
    soles = find_feet(world.sys, feet) if feet else None
    # One jit around each: training and evaluation trace the physics once, whatever their batch sizes.
    reset = jax.jit(partial(_reset, world, soles))
    step = jax.jit(partial(_step, world, soles))
    start = jax.eval_shape(reset, jax.random.key(0))[1]
    spec = EnvSpec(
        name=name,
        observation_size=start.observation.shape[0],
        action_size=world.action_size,
        episode_length=episode_length,
        descriptor=feet_descriptor(feet) if feet else None,
    )
    return api.limit_episode(api.guard_physics(Environment(reset, step, spec)), episode_length)


def default_backend(name: str) -> str:
    """`spring` where the environment runs on it, as all do but `swimmer` (`generalized`)."""
    return ONLY_BACKENDS.get(name, BACKENDS)[0]


def feet_descriptor(feet: int) -> DescriptorSpec:
    """Share of the episode's steps that each foot touches the ground, `[feet]` in [0, 1]."""
    return api.descriptor_spec("ground contact of each foot", "mean", (0.0,) * feet, (1.0,) * feet)


def load(name: str, backend: str, **options: Any) -> Any:
    """Brax's own environment, unwrapped; see `make` for arguments and errors."""
    allowed = ONLY_BACKENDS.get(name, BACKENDS)
    if backend not in allowed:
        raise ValueError(f"Brax's {name} does not run on backend {backend!r}; use one of {list(allowed)}.")
    envs = _import_envs()
    _mend_fluid()
    with _quiet_model_load():
        try:
            return envs.get_environment(name, backend=backend, **options)
        except KeyError as error:
            raise ValueError(f"Brax has no environment {name!r}; `rookery envs` lists those it has.") from error
        except TypeError as error:
            raise ValueError(f"Brax's {name} does not take the options {sorted(options)}: {error}.") from error


def _import_envs() -> Any:
    """`brax.envs`, without what the import says: lines about the optional Warp, and jaxopt's farewell."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore", DeprecationWarning)
            from brax import envs
    except ImportError as error:
        raise ImportError(f"this task needs Brax, which cannot be imported ({error}); install it: {INSTALL}") from error
    return envs


def _mend_fluid() -> None:
    """Let Brax's fluid forces, which only the swimmer has, go on calling `clip` with `a_min`: JAX has dropped it."""
    fluid: Any = importlib.import_module("brax.fluid")
    fluid.jp = SimpleNamespace(**{**vars(jnp), "clip": _clip})


def _clip(array: Array, a_min: float | None = None, a_max: float | None = None) -> Array:
    return jnp.clip(array, a_min, a_max)


@contextlib.contextmanager
def _quiet_model_load() -> Iterator[None]:
    """Keep back two messages that are known: Brax's about its own future, MuJoCo's about an attribute in its model.

    MuJoCo would also write its own into a log file in the working directory. Any other message becomes a warning.
    """
    mujoco = importlib.import_module("mujoco")
    messages: list[str] = []
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(messages.append)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Brax System", category=UserWarning)
            yield
    finally:
        mujoco.set_mju_user_warning(previous)
    for message in messages:
        if "settotalmass" not in message:
            warnings.warn(f"MuJoCo: {message}", stacklevel=3)


@contextlib.contextmanager
def _lenient() -> Iterator[None]:
    """What Brax needs while it is traced: mixed types and ranks, and no complaint that it uses MJX in an old way."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Accessing `", category=DeprecationWarning)
        yield


def _reset(world: Any, feet: Feet | None, key: Key) -> tuple[EnvState, Step]:
    with _lenient():
        start = world.reset(key)
    return start.pipeline_state, api.first_step(_observation(start), _descriptor(feet, start.pipeline_state))


def _step(world: Any, feet: Feet | None, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]:
    del key  # Brax's physics are deterministic
    from brax.envs import State

    zero = jnp.zeros((), jnp.float32)
    fresh = State(pipeline_state=state, obs=zero, reward=zero, done=zero)  # no environment of Brax's reads the rest
    with _lenient():
        after = world.step(fresh, jnp.clip(action, -1.0, 1.0))
    done = jnp.asarray(after.done, jnp.float32) > 0.5
    descriptor = _descriptor(feet, after.pipeline_state)
    return after.pipeline_state, api.next_step(_observation(after), after.reward, done, descriptor)


def _observation(state: Any) -> Array:
    return jnp.asarray(state.obs, jnp.float32)


def _descriptor(feet: Feet | None, physics: Any) -> Array:
    if feet is None:
        return jnp.zeros((0,), jnp.float32)
    return (foot_heights(feet, physics.x.pos, physics.x.rot) < CONTACT_HEIGHT).astype(jnp.float32)


def foot_heights(feet: Feet, positions: Array, rotations: Array) -> Array:
    """Distance of each foot's lowest point from the floor, `[F]` in metres, negative inside it.

    Args:
      feet: from `find_feet`.
      positions: `[links, 3]` of the links, metres.
      rotations: `[links, 4]` of the links, unit quaternions (w, x, y, z).
    """
    w, x, y, z = rotations[feet.links].T
    upwards = jnp.stack([2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)], axis=-1)
    rise = jnp.sum(upwards * feet.centres, axis=-1)
    droop = jnp.abs(jnp.sum(upwards * feet.axes, axis=-1))
    return positions[feet.links, 2] + rise - droop - feet.radii - feet.floor


def find_feet(system: Any, expected: int) -> Feet:
    """Find a robot's feet by their geometry: what collides with the floor and sits on a link that carries no other.

    Names are no help: the ant's feet have none. Torso and thighs that may touch the floor carry links; arms and heads
    that carry none do not collide with it.

    Args:
      system: Brax's system of the loaded model.
      expected: how many feet the robot has.

    Raises:
      ValueError: the model has no level floor, another number of feet, or feet that are neither sphere nor capsule.
    """
    model, kinds = system.mj_model, importlib.import_module("mujoco").mjtGeom
    plane, sphere, capsule = int(kinds.mjGEOM_PLANE), int(kinds.mjGEOM_SPHERE), int(kinds.mjGEOM_CAPSULE)
    planes = [g for g in range(model.ngeom) if model.geom_type[g] == plane and model.geom_bodyid[g] == 0]
    levels = [g for g in planes if np.allclose(_axis(model, g), (0.0, 0.0, 1.0))]
    if len(levels) != 1:
        raise ValueError(f"feet need one level floor, the model has {len(levels)}; use the task without descriptor.")
    floor = levels[0]
    parents = set(model.body_parentid[1:].tolist())
    feet = [g for g in range(model.ngeom) if model.geom_bodyid[g] not in parents and _collide(model, g, floor)]
    if len(feet) != expected:
        raise ValueError(f"expected {expected} feet, the model has {len(feet)}; use the task without descriptor.")
    if any(model.geom_type[g] not in (sphere, capsule) for g in feet):
        raise ValueError("feet must be spheres or capsules; use the task without descriptor.")
    halves = [model.geom_size[g, 1] if model.geom_type[g] == capsule else 0.0 for g in feet]
    return Feet(
        links=np.asarray([model.geom_bodyid[g] - 1 for g in feet]),
        centres=np.asarray(model.geom_pos[feet], np.float32),
        axes=np.asarray([half * _axis(model, g) for half, g in zip(halves, feet, strict=True)], np.float32),
        radii=np.asarray(model.geom_size[feet, 0], np.float32),
        floor=float(model.geom_pos[floor, 2]),
    )


def _collide(model: Any, one: int, other: int) -> bool:
    """MuJoCo's rule: either geometry's type meets the other's affinity."""
    return bool(
        model.geom_contype[one] & model.geom_conaffinity[other]
        or model.geom_contype[other] & model.geom_conaffinity[one]
    )


def _axis(model: Any, geom: int) -> np.ndarray:
    """Unit vector `[3]` of a geometry's own z axis in the frame of its body."""
    w, x, y, z = model.geom_quat[geom]
    return np.asarray([2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y)])
