"""Environments of Gymnasium with known values, and some that misbehave."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from rookery.envs.base import Environment, Step, descriptor_spec, first_step
from rookery.envs.host.base import BROKEN, FRESH, TERMINATED, TRUNCATED, Event, HostState
from rookery.envs.host.pool import HostPool
from rookery.envs.suites.gymnasium.adapter import from_gymnasium
from rookery.types import Observation

LIMIT = 6
END = 4
"""Step that terminates the episodes of even starts."""
HIGH = 2.5
"""A first dimension of an action above it, and a seed of `BAD`, make a faulty environment fail."""
BAD = 13


class Log:
    """What happened to the environments of a test."""

    def __init__(self) -> None:
        self.created, self.steps, self.closed = 0, [], 0


class Counter(gymnasium.Env):
    """Counts steps from a random start; episodes of even starts terminate, those of odd ones go on."""

    def __init__(self, log: Log | None = None):
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Box(np.asarray([-1.0, 0.0], np.float32), np.asarray([3.0, 10.0], np.float32))
        self.log, self.seed, self.start, self.time, self.noise = log or Log(), 0, 0, 0, 0.0
        self.log.created += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.seed, self.start, self.time = seed or 0, int(self.np_random.integers(100)), 0
        self.noise = self.np_random.random()
        return self.observed(), self.info()

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        self.time += 1
        self.noise = self.np_random.random()
        self.log.steps.append(self.seed)
        reward = float(action[0] + 2.0 * action[1]) + self.noise
        return self.observed(), reward, self.start % 2 == 0 and self.time >= END, False, self.info()

    def observed(self) -> np.ndarray:
        return np.asarray([self.start, self.time, self.noise])

    def info(self) -> dict[str, Any]:
        return {"share": self.time / LIMIT}

    def close(self) -> None:
        self.log.closed += 1


class Faulty(Counter):
    """Fails in a way of its own after a high action; `in_reset` instead for the seed `BAD`."""

    def __init__(self, fault: Callable[[], Any], log: Log | None = None, in_reset: bool = False):
        super().__init__(log)
        self.fault, self.in_reset = fault, in_reset

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        found = super().reset(seed=seed)
        return (self.fault() if self.in_reset and seed == BAD else found[0]), found[1]

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        observation, reward, terminated, truncated, info = super().step(action)
        parts = {"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated}
        if not self.in_reset and action[0] > HIGH:
            found = self.fault()
            parts |= found if isinstance(found, dict) else {"observation": found}
        return *parts.values(), info


def raise_error() -> None:
    raise RuntimeError("the motor is stuck.\nmore lines")


def nan_observation() -> np.ndarray:
    return np.asarray([1.0, np.nan, 3.0])


STUCK = f"the motor is stuck ({__file__}, line {raise_error.__code__.co_firstlineno + 1})"
"""The message of `raise_error`, with its place."""


def exit_program() -> None:
    sys.exit(0)


def interrupt() -> None:
    raise KeyboardInterrupt


def nan_reward() -> dict[str, float]:
    return {"reward": float("nan")}


RELEASED = threading.Event()
"""Set at the end of a test, so that no thread waits for ever."""


def hang() -> None:
    RELEASED.wait(60.0)


def sleep_for_ever() -> None:
    time.sleep(3_600.0)


def kill_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Unseeded(Counter):
    """Ignores its seed."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self.start, self.time, self.noise = np.random.default_rng().integers(2**40), 0, 0.0
        return self.observed(), {}


class Resumable(Counter):
    """Its running episodes can be saved."""

    def save_state(self) -> Mapping[str, np.ndarray]:
        words = np.asarray([self.np_random.bit_generator.state["state"][name] for name in ("state", "inc")], object)
        halves = [[int(word) >> 64, int(word) & (2**64 - 1)] for word in words]
        numbers = np.asarray([self.start, self.time, self.noise])
        return {"numbers": numbers, "generator": np.asarray(halves, np.uint64)}

    def load_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        start, count, self.noise = arrays["numbers"].tolist()
        self.start, self.time = int(start), int(count)
        words = [(int(high) << 64) | int(low) for high, low in arrays["generator"]]
        state = self.np_random.bit_generator.state
        self.np_random.bit_generator.state = {**state, "state": dict(zip(("state", "inc"), words, strict=True))}


class Shaped(gymnasium.Env):
    """Observations and actions of given spaces: each observation is sampled, each action is kept in `actions`."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space, actions: list[Any] | None = None):
        self.observation_space, self.action_space = observation_space, action_space
        self.actions = [] if actions is None else actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.actions.append(action)
        return self.observation_space.sample(), 1.0, False, False, {}


def limited(create: Callable[[], gymnasium.Env], steps: int = LIMIT) -> gymnasium.Env:
    return TimeLimit(create(), steps)


def adapted(create: Callable[[], gymnasium.Env], limit: int = LIMIT, **options: Any) -> Environment:
    """The environment of an object with a time limit; two threads by default."""
    return from_gymnasium(partial(limited, create, limit), **{"workers": 2, **options})


SHARE = descriptor_spec("share of time and whether the start is even", "final", (0.0, 0.0), (1.0, 1.0))


def describe(env: Any, info: Mapping[str, Any]) -> tuple[float, float]:
    """A descriptor of the info and of the state."""
    return info["share"], float(env.unwrapped.start % 2 == 0)


def make() -> Environment:
    """The factory of the counter, for commands."""
    return adapted(Counter, descriptor=SHARE, describe=describe)


def resumable() -> Environment:
    """The factory of an environment whose running episodes are saved, for commands."""
    return adapted(Resumable)


def pool_of(environment: Environment) -> HostPool:
    assert isinstance(environment.host, HostPool)
    return environment.host


def failure_of(environment: Environment) -> Event:
    failure = pool_of(environment).failure
    assert failure is not None
    return failure


def starts(environment: Environment, seeds: Sequence[int]) -> tuple[HostState, Step]:
    """The starts of episodes with these seeds, `[n, ...]`."""
    pool, rows = pool_of(environment), np.asarray(seeds, np.int32)
    sizes, (features, descriptors) = pool.sizes, pool.reset((len(rows),), rows)
    action = jnp.zeros((len(rows), *sizes.action), jnp.int32 if sizes.discrete else jnp.float32)
    state = HostState(jnp.full(len(rows), FRESH, jnp.int32), jnp.asarray(rows), action)
    step = first_step(jnp.asarray(features), jnp.asarray(descriptors))
    flags = {name: jnp.zeros(len(rows), bool) for name in ("terminated", "truncated", "broken")}
    return state, step._replace(reward=jnp.zeros(len(rows)), **flags)


def stepper(environment: Environment) -> Callable[..., tuple[HostState, Step]]:
    """Steps of rows by the pool itself, for which nothing is compiled."""
    pool = pool_of(environment)

    def step(state: HostState, action: Any, *_: Any) -> tuple[HostState, Step]:
        rows: Any = pool.step(np.shape(state.slot), *map(np.asarray, (state.slot, state.seed, action)))
        slots, features, rewards, flags, descriptors, *measures = rows
        observation, named = Observation(features), pool.sizes.measures
        terminated, truncated, broken = ((flags & flag) > 0 for flag in (TERMINATED, TRUNCATED, BROKEN))
        numbers = {name: measures[0][:, place] for place, name in enumerate(named)} or None
        taken = Step(observation, rewards, terminated, truncated, observation, descriptors, broken, measures=numbers)
        return HostState(slots, state.seed, action), taken

    return step


class Plain(NamedTuple):
    """A step of an environment object."""

    observation: np.ndarray
    reward: float
    terminated: bool
    truncated: bool
    next_observation: np.ndarray


def raw_action(action: np.ndarray) -> np.ndarray:
    """An action of the counter, for one of the agent's."""
    return np.asarray([1.0, 5.0] + np.asarray([2.0, 5.0]) * np.asarray(action, np.float64), np.float32)


def act(observation: Any) -> np.ndarray:
    """A policy for the counter; multiples of 1/8 are rescaled without rounding."""
    start, count = np.asarray(observation, np.float64)[:2]
    return np.asarray([np.round(8.0 * np.sin(start + count)) / 8.0, np.round(8.0 * np.cos(count)) / 8.0], np.float32)


def play(env: gymnasium.Env, seed: int, policy: Callable[[Any], Any] = act, limit: int = 1_000) -> list[Plain]:
    """An episode of an environment object, whose actions a policy gives as an agent's."""
    observation, _ = env.reset(seed=seed)
    steps: list[Plain] = []
    while len(steps) < limit and not (steps and (steps[-1].terminated or steps[-1].truncated)):
        successor, reward, terminated, truncated, _ = env.step(raw_action(policy(observation)))
        flags = bool(terminated), bool(truncated and not terminated)
        steps.append(Plain(observation, float(reward), *flags, successor))
        observation = successor
    return steps
