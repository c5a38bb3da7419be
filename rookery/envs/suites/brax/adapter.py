"""Adapter for Brax environments with few changes to Brax; needs the extra `brax`, which is imported on first use.

The adapter carries only the physics state between steps: every step passes a new `State` to Brax, because Brax's `step`
mutates the metrics of its argument. Brax's time limit is not used; `time_limit.limit_episode` truncates, so Brax's
`done` always means terminated. Brax computes with mixed types and ranks; its calls run under JAX's standard promotion
rules, whatever the caller's rules are.
"""

import contextlib
import importlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.envs import base
from rookery.envs.base import DescriptorSpec, Environment, EnvSpec, EnvState, Step
from rookery.envs.rendering import scene
from rookery.envs.suites import third_party
from rookery.envs.suites.brax import bodies as brax_bodies
from rookery.envs.suites.brax import patches, rewards
from rookery.envs.suites.third_party import BraxEnv, BraxRobot, BraxState
from rookery.envs.wrappers import time_limit
from rookery.features import feature_size, flatten_features, is_shape
from rookery.settings import SettingError, verbatim
from rookery.types import Array, Key, PyTree

EPISODE_LENGTH = 1000
OMNI_ROBOTS = ("ant", "humanoid")
OMNI_PLANAR_ROBOTS = ("halfcheetah",)
BACKENDS = ("spring", "positional", "generalized", "mjx")
ONLY_BACKENDS = {"swimmer": ("generalized",)}  # Brax does not support the others
INSTALL = 'pip install "rookery[brax]"'


class StateReaders(NamedTuple):
    """Functions that compute a task's outputs from Brax's `State` after a reset (except the reward) or a step."""

    observation: Callable[[BraxState], Array]  # -> `[O]` float32
    reward: Callable[[BraxState], Array]  # -> `[]` float32
    descriptor: Callable[[PyTree], Array]  # -> `[D]` float32


class Descriptor(NamedTuple):
    """The descriptor of an object of Brax or MuJoCo Playground, for `from_brax` and `from_playground`."""

    spec: DescriptorSpec
    """Meaning and limits."""
    function: Callable[[PyTree], Array]
    """The suite's `State` -> `[D]`."""


class Variant(NamedTuple):
    """Differences between a task and Brax's environment of the same robot."""

    prepare: Callable[[BraxRobot, str], StateReaders]
    """Takes Brax's environment, which it may modify, and its name."""
    descriptor: DescriptorSpec | None = None
    """None: the task has no descriptor."""
    options: Mapping[str, object] = MappingProxyType({})
    """Options for the constructor of Brax's environment."""
    goal: tuple[float, float] | None = None
    """x and y in metres of a goal that is not in the model; used for drawing only."""
    reward_parts: tuple[str, ...] = rewards.ALL
    """The parts of Brax's reward that the task's reward includes, see `rewards.parts_of`."""


def make(
    name: str,
    episode_length: int = EPISODE_LENGTH,
    backend: str | None = None,
    variant: Variant | None = None,
    **options: object,
) -> Environment:
    """Build a Brax environment, or a variant of one.

    Actions are clipped to [-1, 1] before they are passed to Brax. Non-finite physics terminate the episode. Call this
    function outside of any traced function, since it loads the model.

    Args:
      name: Brax's name, e.g. `hopper`.
      episode_length: steps until truncation, at least 1.
      backend: `spring`, `positional`, `generalized` or `mjx`; by default `default_backend(name)`.
      variant: `OMNI`, or a variant of the modules `feet` and `walls`; by default the unmodified environment.
      **options: for the constructor of Brax's environment, e.g. `terminate_when_unhealthy=False`.

    Raises:
      ImportError: Brax is not installed.
      ValueError: the name, the backend or an option is unknown, or the variant does not fit the robot or the backend.
    """
    variant = variant or PLAIN
    brax_env = load(name, default_backend(name) if backend is None else backend, **{**variant.options, **options})
    readers = variant.prepare(brax_env, name)
    # Jitted separately, so that training and evaluation trace the physics once, whatever their batch sizes.
    measures = rewards.measures_of(name)
    reset = jax.jit(partial(_reset, brax_env, readers, measures))
    step = jax.jit(partial(_step, brax_env, readers, measures, rewards.parts_of(name, variant.reward_parts)))
    start = jax.eval_shape(reset, jax.random.key(0))[1]
    spec = EnvSpec(
        name=name,
        observation_size=start.observation.features.shape[0],
        action_size=brax_env.action_size,
        episode_length=episode_length,
        descriptor=variant.descriptor,
        parameters=rewards.parameters_of(name, variant.reward_parts),
        measures=measures or None,
    )
    picture = brax_bodies.picture(brax_env, variant.goal)
    environment = Environment(reset, partial(rewards.unweighted_step, step), spec, picture=picture)
    environment = rewards.with_weights(environment, step)
    return time_limit.limit_episode(time_limit.guard_physics(environment), episode_length)


def from_brax(
    env: Any, episode_length: int = EPISODE_LENGTH, name: str | None = None, descriptor: Descriptor | None = None
) -> Environment:
    """Adapt an environment object of Brax, or a user-defined one of its class `Env`, without Brax's wrappers.

    Actions are clipped to [-1, 1]. The whole state of Brax is kept between steps, with its `info` and `metrics`.
    Non-finite physics terminate the episode. Call this function outside of any traced function.

    Args:
      env: the environment, whose `done` means that the task ended.
      episode_length: steps until truncation, at least 1.
      name: name of the task; by default that of the class.
      descriptor: for quality diversity; its function maps Brax's `State` to `[D]` float32.

    Raises:
      ValueError: the object has no `reset`, `step` and `action_size`, or one of Brax's wrappers for training.

    Example:
      >>> env = rookery.from_brax(brax.envs.get_environment("inverted_pendulum"))
    """
    if not all(hasattr(env, attribute) for attribute in ("reset", "step", "action_size")):
        raise ValueError(f"from_brax takes an environment of Brax, got {type(env).__name__}; for a task use make.")
    third_party.check_unwrapped("from_brax", env)
    patches.apply()
    name = name or type(env).__name__.lower()
    read_descriptor = no_descriptor if descriptor is None else descriptor.function
    reset = jax.jit(partial(_reset_object, env, read_descriptor))
    step = jax.jit(partial(_step_object, env, read_descriptor))
    with _standard_promotion():
        shape = jax.tree.map(lambda leaf: tuple(leaf.shape), jax.eval_shape(env.reset, jax.random.key(0)).obs)
    spec = EnvSpec(
        name=name,
        observation_size=feature_size(shape),
        action_size=env.action_size,
        episode_length=episode_length,
        descriptor=None if descriptor is None else descriptor.spec,
        observation_shape=None if is_shape(shape) and len(shape) == 1 else shape,
    )
    picture = scene.inside(brax_bodies.picture(env, None), "pipeline_state") if hasattr(env, "sys") else None
    environment = Environment(reset, step, spec, picture=picture)
    return time_limit.limit_episode(time_limit.guard_physics(environment), episode_length)


def _reset_object(env: BraxEnv, descriptor: Callable[[PyTree], Array], key: Key) -> tuple[EnvState, Step]:
    with _standard_promotion():
        state = third_party.strongly_typed(env.reset(key))
        return state, base.first_step(flatten_features(state.obs), jnp.asarray(descriptor(state), jnp.float32))


def _step_object(
    env: BraxEnv, descriptor: Callable[[PyTree], Array], state: EnvState, action: Array, key: Key
) -> tuple[EnvState, Step]:
    del key  # the state of an environment that draws random numbers contains its key
    # Environments write into these dictionaries, which must not change the state of the caller.
    before = state.replace(info=dict(state.info), metrics=dict(state.metrics))
    with _standard_promotion():
        after = third_party.strongly_typed(env.step(before, jnp.clip(action, -1.0, 1.0)))
        done, reached = jnp.asarray(after.done, jnp.float32) > 0.5, jnp.asarray(descriptor(after), jnp.float32)
        return after, base.next_step(flatten_features(after.obs), native_reward(after), done, reached)


def default_backend(name: str) -> str:
    """Return `spring`, or `generalized` for `swimmer`, which supports no other backend."""
    return ONLY_BACKENDS.get(name, BACKENDS)[0]


def load(name: str, backend: str, **options: object) -> Any:
    """Load Brax's environment without wrappers; see `make` for arguments and errors."""
    allowed = ONLY_BACKENDS.get(name, BACKENDS)
    if backend not in allowed:
        problem = f"is no engine of Brax's {verbatim(name)}"
        raise SettingError("backend", backend, problem, f"use {' or '.join(allowed)}")
    try:  # without its output: messages about the optional Warp, and jaxopt's deprecation warning
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore", DeprecationWarning)
            from brax import envs
    except ImportError as error:
        raise ImportError(f"this task needs Brax, which cannot be imported ({error}); install it: {INSTALL}") from error
    patches.apply()
    with quiet_model_load():
        try:
            return envs.get_environment(name, backend=backend, **options)
        except KeyError as error:
            raise ValueError(f"Brax has no environment {name!r}; `rookery envs` lists the supported ones.") from error
        except TypeError as error:
            raise ValueError(f"Brax's {name} does not take the options {sorted(options)}: {error}.") from error


@contextlib.contextmanager
def quiet_model_load() -> Iterator[None]:
    """Suppress two known messages: Brax's deprecation notice, and MuJoCo's about the attribute `settotalmass`.

    MuJoCo would also write its message to a log file in the working directory. Any other message becomes a warning.
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
def _standard_promotion() -> Iterator[None]:
    """Allow mixed types and ranks, which Brax uses while it is traced, and ignore its deprecation warning about MJX."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Accessing `", category=DeprecationWarning)
        yield


def _reset(brax_env: BraxRobot, readers: StateReaders, measures: Mapping[str, str], key: Key) -> tuple[EnvState, Step]:
    with _standard_promotion():
        start = brax_env.reset(key)
    zeros = dict.fromkeys(measures, jnp.zeros(())) or None
    step = base.first_step(readers.observation(start), readers.descriptor(start), measures=zeros)
    return start.pipeline_state, step


def _step(
    brax_env: BraxRobot,
    readers: StateReaders,
    measures: Mapping[str, str],
    parts: Mapping[str, str],
    state: EnvState,
    action: Array,
    key: Key,
) -> rewards.Measured:
    del key  # Brax's physics are deterministic
    from brax.envs import State

    zero = jnp.zeros((), jnp.float32)
    before = State(pipeline_state=state, obs=zero, reward=zero, done=zero)  # Brax's environments read no other field
    with _standard_promotion():
        after = brax_env.step(before, jnp.clip(action, -1.0, 1.0))
    done = jnp.asarray(after.done, jnp.float32) > 0.5
    step = base.next_step(readers.observation(after), readers.reward(after), done, readers.descriptor(after))
    if measures:
        step = step._replace(measures={"distance": rewards.distance(state, after.pipeline_state)})
    measured = {weight: jnp.asarray(after.metrics[metric], jnp.float32) for weight, metric in parts.items()}
    return rewards.Measured(after.pipeline_state, step, measured)


def native_observation(state: BraxState) -> Array:
    """Observation of Brax's environment, `[O]` float32."""
    return jnp.asarray(state.obs, jnp.float32)


def native_reward(state: BraxState) -> Array:
    """Reward of Brax's environment, `[]` float32."""
    return jnp.asarray(state.reward, jnp.float32)


def no_descriptor(state: BraxState) -> Array:
    """Descriptor of size 0, for a task without a descriptor."""
    del state
    return jnp.zeros((0,), jnp.float32)


def torso_position(state: BraxState, axes: int = 2) -> Array:
    """X and y of the torso in metres, `[2]`, for a robot with a free root joint; x alone, `[1]`, for one in a plane.

    They are taken from the root's joint coordinates, since on `mjx` the link poses are one physics step behind them.
    """
    return jnp.asarray(state.pipeline_state.q[:axes], jnp.float32)


def _plain(brax_env: BraxRobot, name: str) -> StateReaders:
    del brax_env, name
    return StateReaders(native_observation, native_reward, no_descriptor)


def _omni(robots: tuple[str, ...], brax_env: BraxRobot, name: str) -> StateReaders:
    del brax_env
    if name not in robots:
        raise ValueError(f"this undirected task needs {' or '.join(robots)}; got {name}.")
    planar = name in OMNI_PLANAR_ROBOTS
    reward = partial(_undirected_reward, "reward_run" if planar else "forward_reward")
    return StateReaders(native_observation, reward, partial(torso_position, axes=1 if planar else 2))


def _undirected_reward(forward: str, state: BraxState) -> Array:
    """Reward of Brax's environment without the term for forward motion, the metric `forward`, `[]`."""
    return native_reward(state) - jnp.asarray(state.metrics[forward], jnp.float32)


PLAIN = Variant(_plain)
OMNI = Variant(
    partial(_omni, OMNI_ROBOTS),
    base.descriptor_spec("final x, y of the torso", "final", (-30.0, -30.0), (30.0, 30.0), cell=1.0),
    reward_parts=("control", "healthy"),
)
"""Undirected locomotion for ant and humanoid: the reward consists of the healthy reward and the control costs."""
OMNI_PLANAR = Variant(
    partial(_omni, OMNI_PLANAR_ROBOTS),
    base.descriptor_spec("final x of the torso", "final", (-100.0,), (100.0,), cell=1.0),
    reward_parts=("control",),
)
"""The same for a robot in a plane, the half cheetah: the reward is the control cost."""
