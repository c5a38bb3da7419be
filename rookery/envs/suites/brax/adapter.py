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
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.envs import base
from rookery.envs.base import DescriptorSpec, Environment, EnvSpec, EnvState, Step
from rookery.envs.suites.brax import bodies as brax_bodies
from rookery.envs.wrappers import time_limit
from rookery.types import Array, Key

EPISODE_LENGTH = 1000
OMNI_ROBOTS = ("ant", "humanoid")
BACKENDS = ("spring", "positional", "generalized", "mjx")
ONLY_BACKENDS = {"swimmer": ("generalized",)}  # Brax refuses the others
INSTALL = 'pip install "rookery[brax]"'


class Reading(NamedTuple):
    """What a task reads off Brax's state, after a reset (no reward then) or a step."""

    observation: Callable[[Any], Array]  # [O] float32
    reward: Callable[[Any], Array]  # []
    descriptor: Callable[[Any], Array]  # [D] float32


class Variant(NamedTuple):
    """How a task differs from Brax's environment of the same robot."""

    prepare: Callable[[Any, str], Reading]  # takes the world, which it may change, and its name
    descriptor: DescriptorSpec | None = None
    options: Mapping[str, Any] = MappingProxyType({})  # for the constructor of Brax's environment
    goal: tuple[float, float] | None = None  # x, y in metres of a place to reach that is not in the model; shown only


def make(
    name: str,
    episode_length: int = EPISODE_LENGTH,
    backend: str | None = None,
    variant: Variant | None = None,
    **options: Any,
) -> Environment:
    """Build one of Brax's environments, or a variant of it.

    Actions are clipped to [-1, 1] before Brax sees them. Physics that are no longer finite terminate the episode. Call
    it outside of any traced function: it loads the model.

    Args:
      name: Brax's own name, e.g. `hopper`.
      episode_length: steps until truncation, at least 1.
      backend: `spring`, `positional`, `generalized` or `mjx`; by default `default_backend(name)`.
      variant: `OMNI`, or one of `brax_feet` and `brax_walls`; by default the environment as Brax has it.
      **options: for the constructor of Brax's environment, e.g. `terminate_when_unhealthy=False`.

    Raises:
      ImportError: Brax is not installed.
      ValueError: the name, the backend or an option is unknown, or the variant does not fit the robot or the backend.
    """
    variant = variant or PLAIN
    world = load(name, backend or default_backend(name), **{**variant.options, **options})
    reading = variant.prepare(world, name)
    # One jit around each: training and evaluation trace the physics once, whatever their batch sizes.
    reset = jax.jit(partial(_reset, world, reading))
    step = jax.jit(partial(_step, world, reading))
    start = jax.eval_shape(reset, jax.random.key(0))[1]
    spec = EnvSpec(
        name=name,
        observation_size=start.observation.shape[0],
        action_size=world.action_size,
        episode_length=episode_length,
        descriptor=variant.descriptor,
    )
    environment = Environment(reset, step, spec, picture=brax_bodies.picture(world, variant.goal))
    return time_limit.limit_episode(time_limit.guard_physics(environment), episode_length)


def default_backend(name: str) -> str:
    """`spring` where the environment runs on it, as all do but `swimmer` (`generalized`)."""
    return ONLY_BACKENDS.get(name, BACKENDS)[0]


def load(name: str, backend: str, **options: Any) -> Any:
    """Brax's own environment, unwrapped; see `make` for arguments and errors."""
    allowed = ONLY_BACKENDS.get(name, BACKENDS)
    if backend not in allowed:
        raise ValueError(f"Brax's {name} does not run on backend {backend!r}; use one of {list(allowed)}.")
    envs = _import_envs()
    _mend_fluid()
    _mend_loader()
    with quiet_model_load():
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


def _mend_loader() -> None:
    """Let models lie where this process computes: MJX would put them on the first device of the first process."""
    loader: Any = importlib.import_module("brax.io.mjcf")
    loader.mjx = SimpleNamespace(**{**vars(importlib.import_module("mujoco.mjx")), "put_model": _put_model})


def _put_model(model: Any) -> Any:
    return importlib.import_module("mujoco.mjx").put_model(model, device=jnp.zeros(()).device)


def _clip(array: Array, a_min: float | None = None, a_max: float | None = None) -> Array:
    return jnp.clip(array, a_min, a_max)


@contextlib.contextmanager
def quiet_model_load() -> Iterator[None]:
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


def _reset(world: Any, reading: Reading, key: Key) -> tuple[EnvState, Step]:
    with _lenient():
        start = world.reset(key)
    return start.pipeline_state, base.first_step(reading.observation(start), reading.descriptor(start))


def _step(world: Any, reading: Reading, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]:
    del key  # Brax's physics are deterministic
    from brax.envs import State

    zero = jnp.zeros((), jnp.float32)
    fresh = State(pipeline_state=state, obs=zero, reward=zero, done=zero)  # no environment of Brax's reads the rest
    with _lenient():
        after = world.step(fresh, jnp.clip(action, -1.0, 1.0))
    done = jnp.asarray(after.done, jnp.float32) > 0.5
    said = base.next_step(reading.observation(after), reading.reward(after), done, reading.descriptor(after))
    return after.pipeline_state, said


def own_observation(state: Any) -> Array:
    """The environment's, `[O]`."""
    return jnp.asarray(state.obs, jnp.float32)


def own_reward(state: Any) -> Array:
    """The environment's, `[]`."""
    return jnp.asarray(state.reward, jnp.float32)


def no_descriptor(state: Any) -> Array:
    """Of size 0."""
    del state
    return jnp.zeros((0,), jnp.float32)


def torso_position(state: Any) -> Array:
    """Where the torso is, x and y in metres, `[2]`; for a robot whose root moves freely.

    The root's own coordinates say it: the poses of the links are one step of the physics behind them on `mjx`.
    """
    return jnp.asarray(state.pipeline_state.q[:2], jnp.float32)


def _plain(world: Any, name: str) -> Reading:
    del world, name
    return Reading(own_observation, own_reward, no_descriptor)


def _omni(world: Any, name: str) -> Reading:
    del world
    if name not in OMNI_ROBOTS:
        raise ValueError(f"only {' and '.join(OMNI_ROBOTS)} walk wherever they like; {name} does not.")
    return Reading(own_observation, _undirected_reward, torso_position)


def _undirected_reward(state: Any) -> Array:
    """The environment's reward without the term for moving forward, `[]`."""
    return own_reward(state) - jnp.asarray(state.metrics["forward_reward"], jnp.float32)


PLAIN = Variant(_plain)
OMNI = Variant(_omni, base.descriptor_spec("final x, y of the torso", "final", (-30.0, -30.0), (30.0, 30.0)))
"""No direction is rewarded (ant and humanoid): what stays is the reward for living and the cost of control."""
