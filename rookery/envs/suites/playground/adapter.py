"""Adapter for MuJoCo Playground and for user-defined environments on MJX; needs the extra `playground`.

Playground's `State` contains the whole of MJX's `Data`, and dictionaries of metrics and info. The adapter carries only
the arrays that a step reads, found by tracing one: everything else would be copied in every step, written to
checkpoints and divided over devices. Warp's pool of contacts, which all environments of a batch share, is scratch
memory that a step fills anew, and is not carried either.

Playground's time limit and automatic reset are not used: `time_limit.limit_episode` truncates, so Playground's `done`
always means terminated.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from rookery.envs import base
from rookery.envs.base import Environment, EnvSpec, EnvState, Step
from rookery.envs.suites import third_party
from rookery.envs.suites.brax.adapter import Descriptor, no_descriptor
from rookery.envs.suites.playground import loading
from rookery.envs.suites.playground.picture import picture
from rookery.envs.suites.playground.randomization import Randomization, RandomizeFn, randomization
from rookery.envs.suites.playground.tasks import TASKS
from rookery.envs.suites.third_party import PlaygroundEnv, PlaygroundOutput
from rookery.envs.wrappers import time_limit
from rookery.features import feature_size, flatten_features, is_shape
from rookery.types import Array, Key, PyTree

EPISODE_LENGTH = 1000
POLICY_OBSERVATION = "state"
"""What a policy reads where observations are a dictionary; the rest is for critics during training."""


class Carried(NamedTuple):
    """How the state between two steps is made of Playground's `State`."""

    treedef: PyTree
    """Structure of the `State`."""
    absent: tuple[jax.ShapeDtypeStruct | None, ...]
    """Shape and type of each leaf that no step reads; None for those that are carried."""

    def reduce(self, state: PyTree) -> EnvState:
        """The leaves that are carried."""
        leaves = jax.tree.leaves(state)
        return tuple(leaf for leaf, absent in zip(leaves, self.absent, strict=True) if absent is None)

    def restore(self, carried: EnvState) -> PyTree:
        """Playground's `State` with zeros for the leaves that no step reads."""
        given = iter(carried)
        leaves = [next(given) if absent is None else jnp.zeros(absent.shape, absent.dtype) for absent in self.absent]
        return jax.tree.unflatten(self.treedef, leaves)


class PlaygroundState(NamedTuple):
    """State of an environment between two steps."""

    physics: EnvState  # the leaves of Playground's `State` that a step reads
    parameters: tuple[Array, ...]  # random parameters of the episode's physics; empty if they are not randomised


class Functions(NamedTuple):
    """What the adapter calls of a user's environment."""

    env: "PlaygroundEnv | _Jitted"  # Playground's environment, or its functions `reset` and `step`
    descriptor: Callable[[PyTree], Array]  # Playground's `State` -> `[D]`
    randomization: Randomization | None  # randomised parameters of the physics

    def draw(self, key: Array) -> tuple[Array, ...]:
        """Random parameters of an episode."""
        return () if self.randomization is None else self.randomization.draw(key)

    def model(self, parameters: tuple[Array, ...]) -> contextlib.AbstractContextManager[None]:
        """Trace the environment's functions with the given parameters."""
        return contextlib.nullcontext() if self.randomization is None else self.randomization.applied(parameters)


def make(
    name: str,
    episode_length: int | None = None,
    impl: str | None = None,
    randomize: bool = False,
    naconmax: int | None = None,
    descriptor: Callable[[PlaygroundEnv], Descriptor] | None = None,
) -> Environment:
    """Build a task of MuJoCo Playground.

    Actions are clipped to [-1, 1]. Physics that are not finite terminate the episode. Call this function outside of any
    traced function, since it loads the model.

    Args:
      name: Playground's name, e.g. `CheetahRun`.
      episode_length: steps until truncation, at least 1; by default Playground's.
      impl: MJX's implementation, `jax` or `warp`; by default `loading.default_implementation()`.
      randomize: draw the parameters of the physics for each episode, by the suite's function for the task.
      naconmax: for `warp`, the largest number of contacts of all environments of a batch together; by default
        Playground's, which suits 2,048 environments.
      descriptor: makes the descriptor from Playground's environment, for quality diversity.

    Raises:
      ImportError: Playground is not installed, or the task's robot has to be downloaded.
      ValueError: an argument is invalid, or the suite has no randomisation function for the task.
    """
    if not isinstance(randomize, bool):
        raise ValueError(f"randomize must be true or false, got {randomize!r}.")
    env = loading.load(name, impl, naconmax)
    function = loading.suite().get_domain_randomizer(name) if randomize and TASKS[name].randomized else None
    if randomize and function is None:
        named = ", ".join(task for task, sizes in TASKS.items() if sizes.randomized)
        raise ValueError(f"MuJoCo Playground has no randomisation function for {name}; it has some for {named}.")
    length = TASKS[name].episode_length if episode_length is None else episode_length
    return _environment(env, name, length, None if descriptor is None else descriptor(env), function)


def from_playground(
    env: PlaygroundEnv,
    episode_length: int | None = None,
    name: str | None = None,
    descriptor: Descriptor | None = None,
    randomization: RandomizeFn | None = None,
) -> Environment:
    """Adapt an environment object of MuJoCo Playground, or a user-defined one of its class `MjxEnv`, without wrappers.

    Actions are clipped to [-1, 1]. Where observations are a dictionary, agents read its entry `state`, or all of it if
    it has none. Physics that are not finite terminate the episode. Call this function outside of any traced function.

    Args:
      env: the environment, whose `done` means that the task ended.
      episode_length: steps until truncation, at least 1; by default that of the environment's config, or 1,000.
      name: name of the task; by default that of the class.
      descriptor: for quality diversity; its function maps Playground's `State` to `[D]` float32.
      randomization: a randomisation function of Playground, `(model, keys) -> (model, in_axes)`; each episode draws
        its own parameters.

    Raises:
      ValueError: the object has no `reset`, `step` and `mjx_model`, or one of the suite's wrappers for training; or its
        model cannot be randomised.

    Example:
      >>> pendulum = mujoco_playground.registry.load("PendulumSwingup", config_overrides={"impl": "jax"})
      >>> env = rookery.from_playground(pendulum)
    """
    if not all(hasattr(env, attribute) for attribute in ("reset", "step", "mjx_model", "action_size")):
        raise ValueError(
            f"from_playground takes an environment of MuJoCo Playground, got {type(env).__name__}; for a task use make."
        )
    third_party.check_unwrapped("from_playground", env)
    length = getattr(getattr(env, "_config", None), "episode_length", EPISODE_LENGTH)
    length = int(length) if episode_length is None else episode_length
    return _environment(env, name or type(env).__name__.lower(), length, descriptor, randomization)


def _environment(
    env: PlaygroundEnv, name: str, episode_length: int, descriptor: Descriptor | None, randomize: RandomizeFn | None
) -> Environment:
    read_descriptor = no_descriptor if descriptor is None else descriptor.function
    functions = Functions(env, read_descriptor, None if randomize is None else randomization(env, randomize))
    # Each trace of MJX takes seconds. With jit it is the same one here and in a run, unless parameters are drawn there.
    traced = functions._replace(env=_Jitted(jax.jit(env.reset, inline=True), jax.jit(env.step, inline=True)))
    carried, observed = _carried(traced, env.action_size, loading.implementation(env) == "warp")
    functions = traced if randomize is None else functions
    # Jitted separately, so that training and evaluation trace the physics once, whatever their batch sizes.
    reset = jax.jit(functools.partial(_reset, functions, carried))
    step = jax.jit(functools.partial(_step, functions, carried))
    shape = jax.tree.map(lambda leaf: tuple(leaf.shape), observed)
    spec = EnvSpec(
        name=name,
        observation_size=feature_size(shape),
        action_size=int(env.action_size),
        episode_length=episode_length,
        descriptor=None if descriptor is None else descriptor.spec,
        observation_shape=None if is_shape(shape) and len(shape) == 1 else shape,
    )
    settings = {"environment": {"impl": loading.implementation(env)}}
    environment = Environment(reset, step, spec, picture=picture(env, carried.restore), settings=settings)
    return time_limit.limit_episode(time_limit.guard_physics(environment), episode_length)


class _Jitted(NamedTuple):
    """The functions of an environment whose traces are kept."""

    reset: Callable[[Array], PyTree]
    step: Callable[[PyTree, Array], PyTree]


def _carried(functions: Functions, action_size: int, shares_arrays: bool) -> tuple[Carried, PyTree]:
    """Find the leaves of Playground's `State` that a step reads, directly or in a later step; and the observation.

    `shares_arrays`: some arrays belong to all environments of a batch together, as Warp's contacts do.
    """

    def reset(key: Array) -> PyTree:
        return third_party.strongly_typed(functions.env.reset(key))

    # Trace a reset and a step.
    with third_party.standard_promotion():
        keys = jax.eval_shape(lambda: jax.random.key_data(jax.random.split(jax.random.key(0), 3)))
        start = jax.eval_shape(reset, keys.update(shape=keys.shape[1:]))
        leaves, treedef = jax.tree.flatten(start)
        per_environment = [True] * len(leaves)
        if shares_arrays:
            batch = jax.tree.leaves(jax.eval_shape(jax.vmap(reset), keys))
            per_environment = [wide.shape == (3, *leaf.shape) for leaf, wide in zip(leaves, batch, strict=True)]
        action = jax.ShapeDtypeStruct((action_size,), jnp.float32)
        closed = jax.make_jaxpr(functools.partial(_advance, functions))(start, action)
    # What is read for the outputs, then what is read for that, until nothing is added.
    outputs = len(closed.jaxpr.outvars) - len(leaves)
    read = [False] * len(leaves)
    while True:
        _, used = partial_eval.dce_jaxpr(closed.jaxpr, [*read, *[True] * outputs])
        found = [one or (also and own) for one, also, own in zip(read, used, per_environment, strict=False)]
        if found == read:
            break
        read = found
    absent = (
        None if carried else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        for carried, leaf in zip(read, leaves, strict=True)
    )
    return Carried(treedef, tuple(absent)), _observed(start)


def _advance(functions: Functions, state: PyTree, action: Array) -> tuple[PyTree, PyTree]:
    """Playground's step, and what the adapter reads after it."""
    after = third_party.strongly_typed(functions.env.step(state, jnp.clip(action, -1.0, 1.0)))
    read = flatten_features(_observed(after)), after.reward, after.done, functions.descriptor(after)
    return after, read


def _reset(functions: Functions, carried: Carried, key: Key) -> tuple[EnvState, Step]:
    env, descriptor, _ = functions
    # Playground's environments store keys in their states, as arrays of integers.
    start_key, model_key = (key, key) if functions.randomization is None else jax.random.split(key)
    with third_party.standard_promotion():
        parameters = functions.draw(jax.random.key_data(model_key))
        with functions.model(parameters):
            start = third_party.strongly_typed(env.reset(jax.random.key_data(start_key)))
        features = flatten_features(_observed(start))
        state = PlaygroundState(carried.reduce(start), parameters)
        return state, base.first_step(features, jnp.asarray(descriptor(start), jnp.float32))


def _step(
    functions: Functions, carried: Carried, state: PlaygroundState, action: Array, key: Key
) -> tuple[EnvState, Step]:
    del key  # an environment that draws random numbers has its key in its state
    with third_party.standard_promotion():
        with functions.model(state.parameters):
            before = carried.restore(state.physics)
            after, (features, reward, done, reached) = _advance(functions, before, action)
        reward, done = jnp.asarray(reward, jnp.float32), jnp.asarray(done, jnp.float32) > 0.5
        step = base.next_step(features, reward, done, jnp.asarray(reached, jnp.float32))
        return PlaygroundState(carried.reduce(after), state.parameters), step


def _observed(state: PlaygroundOutput) -> PyTree:
    observation = state.obs
    return observation.get(POLICY_OBSERVATION, observation) if isinstance(observation, dict) else observation
