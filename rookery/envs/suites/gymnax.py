"""gymnax's environments as Rookery's; needs the extra `gymnax`, imported on first use.

gymnax tells a task's end from the clock's (`step_env` returns the former only), and its clock and automatic reset are
never used here: `api.limit_episode` counts, with the suite's own limit as the default length. Two things are told
otherwise than the suite tells them. An integer that names a place (`FrozenLake-misc`) is observed as a one-hot vector,
and every other observation, whatever its shape, as one vector of floats. And `DiscountingChain-bsuite` *terminates*
after its 100 steps: they are the chain, its last reward lies at the end, and nothing can follow. Where an observation
tells the time (the two chains, the bandits of `misc`, `MetaMaze-misc`, `PointRobot-misc`), it does so on the suite's
own scale, whatever the episode's length.

Left out: `MNISTBandit-bsuite`, which downloads its images.
"""

import importlib
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.envs import base
from rookery.envs.base import Environment, EnvSpec, EnvState, Step
from rookery.envs.rendering import frames as films
from rookery.envs.rendering import scene
from rookery.envs.suites import third_party
from rookery.envs.wrappers import time_limit
from rookery.types import Array, Key, PyTree

INSTALL = 'pip install "rookery[gymnax]"'
INSTALL_RENDERER = 'pip install "gymnax[visualize]"'
REFUSED = {"MNISTBandit-bsuite": "it downloads its images, and no task of Rookery's does"}
NO_DEVICES = {
    "SDL_VIDEODRIVER": "dummy",
    "SDL_AUDIODRIVER": "dummy",
}  # pygame looks for a screen and sound
CHAIN = "DiscountingChain-bsuite"
CLASSIC = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")
GRIDS = ("Asterix-MinAtar", "Breakout-MinAtar", "Freeway-MinAtar", "Seaquest-MinAtar", "SpaceInvaders-MinAtar")
DRAWN = (*CLASSIC, *GRIDS, "Catch-bsuite", "FourRooms-misc", "MetaMaze-misc", "PointRobot-misc", "Pong-misc")


class Sizes(NamedTuple):
    """What the registry says of an environment; a test holds it against the suite."""

    observation_size: int
    action_size: int  # dimensions, or number of discrete actions
    episode_length: int  # the suite's own limit
    discrete: bool = True


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


class World(NamedTuple):
    """gymnax's environment with its parameters."""

    env: Any
    params: Any
    name: str
    places: int | None  # how many there are, where an observation names one
    lower: Array | None  # of continuous actions, `[A]`; None where they are discrete
    upper: Array | None


def make(name: str, episode_length: int | None = None) -> Environment:
    """Build one of gymnax's environments.

    The observation is a flat float32 vector `[O]`. A discrete action is an int32 `[]`; a continuous one `[A]` lies in
    [-1, 1], is clipped to that, and stands for the suite's own bounds. Call it outside of any traced function.

    Args:
      name: gymnax's own name, e.g. `CartPole-v1`.
      episode_length: steps until truncation, at least 1; by default the suite's own limit.

    Raises:
      ImportError: gymnax is not installed.
      ValueError: the name is unknown or stands for what is not supported, or `episode_length` is below 1.
    """
    if name in REFUSED:
        raise ValueError(f"gymnax's {name} is not supported: {REFUSED[name]}; `rookery envs` lists what is.")
    if name not in TASKS:
        raise ValueError(f"gymnax has no environment {name!r}; `rookery envs` lists those it has.")
    world, sizes = load(name), TASKS[name]
    # One jit around each: training and evaluation trace the environment once, whatever their batch sizes.
    reset = jax.jit(partial(_reset, world))
    step = jax.jit(partial(_step, world))
    spec = EnvSpec(name, sizes.observation_size, sizes.action_size, sizes.episode_length, sizes.discrete)
    picture = scene.Picture(film=partial(_film, world)) if name in DRAWN else None
    environment = time_limit.guard_physics(Environment(reset, step, spec, picture=picture))
    return time_limit.limit_episode(environment, sizes.episode_length if episode_length is None else episode_length)


def load(name: str) -> World:
    """Gymnax's own environment, beside its parameters and the bounds of its actions; see `make` for errors."""
    suite = _import()
    with third_party.lenient():
        env, params = suite.make(name)
        actions, observations = env.action_space(params), env.observation_space(params)
        places = getattr(observations, "n", None)
        if hasattr(actions, "n"):
            return World(env, params, name, places, None, None)
        lower = np.broadcast_to(np.asarray(actions.low, np.float32), actions.shape)
        upper = np.broadcast_to(np.asarray(actions.high, np.float32), actions.shape)
    return World(env, params, name, places, jnp.asarray(lower), jnp.asarray(upper))


def _import() -> Any:
    """Gymnax itself; whatever its import has to say is kept back."""
    try:
        with third_party.quiet_import():
            import gymnax
    except ImportError as error:
        raise ImportError(
            f"this task needs gymnax, which cannot be imported ({error}); install it: {INSTALL}"
        ) from error
    return gymnax


def _reset(world: World, key: Key) -> tuple[EnvState, Step]:
    with third_party.lenient():
        observation, state = world.env.reset_env(key, world.params)
    return third_party.firm(state), base.first_step(_flat(world, observation), jnp.zeros((0,), jnp.float32))


def _step(world: World, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]:
    if world.lower is not None and world.upper is not None:
        action = world.lower + 0.5 * (jnp.clip(action, -1.0, 1.0) + 1.0) * (world.upper - world.lower)
    with third_party.lenient():
        observation, state, reward, terminated, _ = world.env.step_env(key, state, action, world.params)
        if world.name == CHAIN:
            terminated = terminated | (state.time >= world.params.max_steps_in_episode)
    state = third_party.firm(state)
    return state, base.next_step(_flat(world, observation), reward, terminated, jnp.zeros((0,), jnp.float32))


def _flat(world: World, observation: PyTree) -> Array:
    if world.places is not None:
        return jax.nn.one_hot(observation, world.places, dtype=jnp.float32)
    return jnp.ravel(jnp.asarray(observation, jnp.float32))


def _film(world: World, states: PyTree, rewards: Array, path: str) -> None:
    """Every state as gymnax's own visualiser draws it, with the return so far.

    Raises:
      ImportError: the renderer of the classic tasks, pygame, is not installed.
    """
    if world.name in CLASSIC:
        _need_renderer()
    with third_party.lenient(), third_party.environment_variables(**NO_DEVICES):
        from gymnax.visualize import vis_circle, visualizer

        frames = films.frames(states)
        with films.canvas((visualizer, vis_circle), figsize=(6, 5)) as figure:
            drawing = visualizer.Visualizer(world.env, world.params, frames, np.cumsum(np.asarray(rewards)))
            drawing.init()
            films.write(figure, drawing.update, len(frames), path, 1000 // drawing.interval)


def _need_renderer() -> None:
    try:
        with third_party.quiet_import():
            importlib.import_module("pygame")
    except ImportError as error:
        raise ImportError(f"gymnax draws this task with pygame ({error}); install it: {INSTALL_RENDERER}") from error
