"""Adapter for gymnax environments; needs the extra `gymnax`, which is imported on first use.

gymnax's `step_env` reports termination without the time limit. The adapter uses neither the time limit nor the
automatic reset of gymnax: `time_limit.limit_episode` truncates, with the suite's limit as the default length.
Observations are flattened to one vector; the spec keeps their shape, so that images are read by convolutions.

Deviation: an integer observation that denotes a position (`FrozenLake-misc`) becomes a one-hot vector.
`DiscountingChain-bsuite` *terminates* after its 100 steps, because the chain ends there and pays its last reward in
that step.

Observations that contain the time (the two chains, the bandits of `misc`, `MetaMaze-misc`, `PointRobot-misc`) use the
suite's scale for it, whatever the episode length.

Unsupported: `MNISTBandit-bsuite`, which downloads its images.
"""

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.envs import base
from rookery.envs.base import Environment, EnvSpec, EnvState, Step
from rookery.envs.rendering import frames as films
from rookery.envs.rendering import scene
from rookery.envs.suites import third_party
from rookery.envs.wrappers import time_limit
from rookery.features import Shape, flatten_features, is_shape
from rookery.types import Array, Key, PyTree

if TYPE_CHECKING:
    from gymnax.environments.environment import Environment as GymnaxEnv

INSTALL = 'pip install "rookery[gymnax]"'
INSTALL_RENDERER = 'pip install "gymnax[visualize]"'
UNSUPPORTED = {"MNISTBandit-bsuite": "it downloads its images, and tasks must not download data"}
# pygame needs a display and an audio device unless both drivers are dummies
HEADLESS_VARIABLES = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
CHAIN = "DiscountingChain-bsuite"
CLASSIC = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")
GRIDS = ("Asterix-MinAtar", "Breakout-MinAtar", "Freeway-MinAtar", "Seaquest-MinAtar", "SpaceInvaders-MinAtar")
DRAWN = (*CLASSIC, *GRIDS, "Catch-bsuite", "FourRooms-misc", "MetaMaze-misc", "PointRobot-misc", "Pong-misc")


class Sizes(NamedTuple):
    """Sizes of an environment for the registry; a test compares them with the suite."""

    observation_size: int  # O
    action_size: int  # number of dimensions, or of discrete actions
    episode_length: int  # time limit of the suite, in steps
    discrete: bool = True  # whether actions are discrete


TASKS = {
    "CartPole-v1": Sizes(4, 2, 500),
    "Pendulum-v1": Sizes(3, 1, 200, discrete=False),
    "Acrobot-v1": Sizes(6, 3, 500),
    "MountainCar-v0": Sizes(2, 3, 200),
    "MountainCarContinuous-v0": Sizes(2, 1, 999, discrete=False),
    "Asterix-MinAtar": Sizes(400, 5, 1000),
    "Breakout-MinAtar": Sizes(400, 3, 1000),
    "Freeway-MinAtar": Sizes(700, 3, 2500),
    "Seaquest-MinAtar": Sizes(1000, 6, 1000),
    "SpaceInvaders-MinAtar": Sizes(600, 4, 1000),
    "Catch-bsuite": Sizes(50, 3, 1000),
    "DeepSea-bsuite": Sizes(64, 2, 8),
    "MemoryChain-bsuite": Sizes(3, 2, 1000),
    "UmbrellaChain-bsuite": Sizes(3, 2, 100),
    "DiscountingChain-bsuite": Sizes(2, 5, 100),
    "SimpleBandit-bsuite": Sizes(1, 11, 100),
    "FourRooms-misc": Sizes(4, 4, 500),
    "MetaMaze-misc": Sizes(15, 4, 200),
    "PointRobot-misc": Sizes(6, 2, 100, discrete=False),
    "BernoulliBandit-misc": Sizes(4, 2, 100),
    "GaussianBandit-misc": Sizes(4, 2, 100),
    "Reacher-misc": Sizes(8, 2, 100, discrete=False),
    "Swimmer-misc": Sizes(16, 2, 500, discrete=False),
    "Pong-misc": Sizes(3600, 3, 1000),
    "FrozenLake-misc": Sizes(16, 4, 100),
}


class GymnaxEnvironment(NamedTuple):
    """An environment of gymnax with its parameters."""

    env: Any  # gymnax's environment object
    params: PyTree  # gymnax's environment parameters
    name: str  # gymnax's name
    num_positions: int | None  # number of values of an integer observation; None if observations are arrays
    lower: Array | None  # lower bounds of continuous actions, `[A]`; None if actions are discrete
    upper: Array | None  # upper bounds of continuous actions, `[A]`; None if actions are discrete
    shape: Shape | None  # shape of the observations, or a pytree of shapes; None if they are integers or vectors


def make(name: str, episode_length: int | None = None) -> Environment:
    """Build a gymnax environment.

    The observation is a flat float32 vector `[O]`. A discrete action is an int32 `[]`; a continuous action `[A]` is
    clipped to [-1, 1] and rescaled to the suite's bounds. Call this function outside of any traced function.

    Args:
      name: gymnax's name, e.g. `CartPole-v1`.
      episode_length: steps until truncation, at least 1; by default the suite's limit.

    Raises:
      ImportError: gymnax is not installed.
      ValueError: the name is unknown, the environment is not supported, or `episode_length` is below 1.
    """
    if name in UNSUPPORTED:
        raise ValueError(
            f"gymnax's {name} is not supported: {UNSUPPORTED[name]}; `rookery envs` lists the supported tasks."
        )
    if name not in TASKS:
        raise ValueError(f"gymnax has no environment {name!r}; `rookery envs` lists the supported ones.")
    length = TASKS[name].episode_length if episode_length is None else episode_length
    return _environment(load(name), length)


def from_gymnax(env: "GymnaxEnv", params: PyTree | None = None, episode_length: int | None = None) -> Environment:
    """Adapt an environment object of gymnax, or a user-defined one of its class `Environment`.

    Observations, actions and the time limit are converted as by `make`: `step_env` must report termination without the
    time limit.

    Args:
      env: the environment.
      params: its parameters; by default `env.default_params`.
      episode_length: steps until truncation, at least 1; by default `params.max_steps_in_episode`.

    Raises:
      ValueError: the object has no `reset_env` and `step_env`, its actions are neither discrete nor a box with finite
        limits, or it has no time limit and `episode_length` is None.

    Example:
      >>> env = rookery.from_gymnax(gymnax.make("CartPole-v1")[0])
    """
    if not (hasattr(env, "reset_env") and hasattr(env, "step_env")):
        raise ValueError(f"from_gymnax takes an environment of gymnax, got {type(env).__name__}; for a task use make.")
    params = env.default_params if params is None else params
    length = getattr(params, "max_steps_in_episode", None) if episode_length is None else episode_length
    if length is None:
        raise ValueError(f"{env.name} has no time limit of its own; give episode_length.")
    return _environment(_with_properties(env, params, str(env.name)), int(length))


def _environment(suite_env: GymnaxEnvironment, episode_length: int) -> Environment:
    # Jitted separately, so that training and evaluation trace the environment once, whatever their batch sizes.
    reset = jax.jit(partial(_reset, suite_env))
    step = jax.jit(partial(_step, suite_env))
    actions = suite_env.env.action_space(suite_env.params)
    discrete, features = suite_env.lower is None, jax.eval_shape(reset, jax.random.key(0))[1].observation.features
    action_size = int(actions.n) if discrete else int(actions.shape[0])
    sizes = features.shape[0], action_size, episode_length
    spec = EnvSpec(suite_env.name, *sizes, discrete, observation_shape=suite_env.shape)
    picture = scene.Picture(film=partial(_film, suite_env)) if suite_env.name in DRAWN else None
    environment = time_limit.guard_physics(Environment(reset, step, spec, picture=picture))
    return time_limit.limit_episode(environment, episode_length)


def load(name: str) -> GymnaxEnvironment:
    """Load an environment of gymnax with its parameters and action bounds; see `make` for errors."""
    suite = third_party.imported("gymnax", "gymnax", INSTALL)
    with third_party.standard_promotion():
        env, params = suite.make(name)
    return _with_properties(env, params, name)


def _with_properties(env: "GymnaxEnv", params: PyTree, name: str) -> GymnaxEnvironment:
    with third_party.standard_promotion():
        actions, num_positions = env.action_space(params), getattr(env.observation_space(params), "n", None)
        first = jax.eval_shape(env.reset_env, jax.random.key(0), params)[0]
    shape = jax.tree.map(lambda leaf: tuple(leaf.shape), first)
    shape = None if num_positions is not None or (is_shape(shape) and len(shape) <= 1) else shape
    if hasattr(actions, "n"):
        return GymnaxEnvironment(env, params, name, num_positions, None, None, shape)
    if len(getattr(actions, "shape", ())) != 1:
        raise ValueError(f"the actions of {name} must be discrete or a vector, got {type(actions).__name__}.")
    limits = [np.broadcast_to(np.asarray(side, np.float32), actions.shape) for side in (actions.low, actions.high)]
    if not np.isfinite(limits).all():
        raise ValueError(f"the action space of {name} is not bounded; give every dimension finite limits.")
    return GymnaxEnvironment(env, params, name, num_positions, jnp.asarray(limits[0]), jnp.asarray(limits[1]), shape)


def _reset(suite_env: GymnaxEnvironment, key: Key) -> tuple[EnvState, Step]:
    with third_party.standard_promotion():
        observation, state = suite_env.env.reset_env(key, suite_env.params)
    features = _flat(suite_env, observation)
    return third_party.strongly_typed(state), base.first_step(features, jnp.zeros((0,), jnp.float32))


def _step(suite_env: GymnaxEnvironment, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]:
    if suite_env.lower is not None and suite_env.upper is not None:
        action = suite_env.lower + 0.5 * (jnp.clip(action, -1.0, 1.0) + 1.0) * (suite_env.upper - suite_env.lower)
    with third_party.standard_promotion():
        observation, state, reward, terminated, _ = suite_env.env.step_env(key, state, action, suite_env.params)
        if suite_env.name == CHAIN:
            terminated = terminated | (state.time >= suite_env.params.max_steps_in_episode)
    state = third_party.strongly_typed(state)
    return state, base.next_step(_flat(suite_env, observation), reward, terminated, jnp.zeros((0,), jnp.float32))


def _flat(suite_env: GymnaxEnvironment, observation: PyTree) -> Array:
    if suite_env.num_positions is not None:
        return jax.nn.one_hot(observation, suite_env.num_positions, dtype=jnp.float32)
    return flatten_features(observation)


def _film(suite_env: GymnaxEnvironment, states: PyTree, rewards: Array, path: str) -> None:
    """Draw all states with gymnax's visualiser, together with the return so far; needs pygame for the classic tasks."""
    if suite_env.name in CLASSIC:
        _require_pygame()
    with third_party.standard_promotion(), third_party.environment_variables(**HEADLESS_VARIABLES):
        from gymnax.visualize import vis_circle, visualizer

        frames = films.frames(states)
        with films.canvas((visualizer, vis_circle), figsize=(6, 5)) as figure:
            drawing = visualizer.Visualizer(suite_env.env, suite_env.params, frames, np.cumsum(np.asarray(rewards)))
            drawing.init()
            films.write(figure, drawing.update, len(frames), path, 1000 // drawing.interval)


def _require_pygame() -> None:
    try:
        with third_party.quiet_import():
            importlib.import_module("pygame")
    except ImportError as error:
        raise ImportError(f"gymnax draws this task with pygame ({error}); install it: {INSTALL_RENDERER}") from error
