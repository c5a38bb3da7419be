"""The environment objects of one worker: a `Runner` for Gymnasium."""

import contextlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rookery.envs.host.base import (
    BROKEN,
    FAILED,
    TERMINATED,
    TRUNCATED,
    Sizes,
    StepRows,
    empty_rows,
    first_line,
    replace_nonfinite,
)
from rookery.envs.suites.gymnasium import states
from rookery.envs.suites.gymnasium.measures import Measure, Sums
from rookery.envs.suites.gymnasium.spaces import Actions, Observations, checked_flag, checked_number, checked_result
from rookery.factories import place_of

if TYPE_CHECKING:
    from rookery.envs.suites.gymnasium.spaces import Env

DescribeFn = Callable[[Any, Mapping[str, Any]], Any]
"""Environment object and the info of a step -> state descriptor `[D]`."""

_RESET, _STEP = ("observation", "info"), ("observation", "reward", "terminated", "truncated", "info")


class EpisodeSettings(NamedTuple):
    """What a worker needs to create and step environments."""

    make_env: Callable[[], "Env"]  # creates a new environment object
    sizes: Sizes
    observations: Observations
    actions: Actions
    descriptor: DescribeFn | None  # environment object and info -> state descriptor `[D]`; None without one
    episode_length: int  # steps until truncation
    measures: tuple[Measure, ...] = ()


class _Episode:
    """A running episode."""

    def __init__(self, env: "Env", measures: tuple[Measure, ...]):
        self.env, self.steps, self.sums = env, 0, Sums(measures)


class Episodes:
    """The environments of one worker; see `host.base.Runner`."""

    def __init__(self, task: EpisodeSettings):
        self._task = task
        self._episodes: dict[int, _Episode] = {}
        self._idle: list[Env] = []
        self.progress = (0, -1)

    def reset(self, seeds: Sequence[int]) -> StepRows:
        """See `Runner.reset`."""
        rows, events, starts = empty_rows(self._task.sizes, len(seeds)), {}, {}
        for row, seed in enumerate(seeds):
            self._count(-1)
            try:
                env, (features, rows.descriptors[row]) = self._open(seed)
            except BaseException as error:  # also SystemExit, which is one environment's failure
                events[row] = _described(error, "reset")
                continue
            rows.features[row], starts[row] = features, _checksum(features)
            self._idle.append(env)
        return rows._replace(events=events, starts=starts)

    def step(self, slots: Sequence[int], seeds: Sequence[int], actions: np.ndarray) -> StepRows:
        """See `Runner.step`."""
        rows, failures, starts = empty_rows(self._task.sizes, len(slots)), {}, {}
        valid = self._task.actions.are_valid(actions)
        decoded = self._task.actions.decode(actions)
        for row, (slot, seed) in enumerate(zip(slots, seeds, strict=True)):
            self._count(slot)
            try:
                if seed >= 0:
                    env, (features, _) = self._open(seed)
                    self._episodes[slot], starts[row] = _Episode(env, self._task.measures), _checksum(features)
                action = decoded[row, ...] if isinstance(decoded, np.ndarray) else decoded[row]
                self._step(rows, row, slot, action if valid[row] else None)
            except BaseException as error:  # also SystemExit, which is one environment's failure
                episode = self._episodes.get(slot)
                failures[row] = _described(error, f"step {episode.steps + 1}" if episode else "reset")
                rows.flags[row] = TERMINATED | BROKEN | FAILED
                rows.rewards[row] = 0.0
                rows.features[row], rows.descriptors[row] = 0, 0.0
                if episode:
                    close(self._episodes.pop(slot).env)  # its state is unknown
        events = replace_nonfinite(rows) | failures
        self.free([slot for slot, flags in zip(slots, rows.flags.tolist(), strict=True) if flags])
        return rows._replace(events=events, starts=starts)

    def free(self, slots: Sequence[int]) -> None:
        """See `Runner.free`."""
        for slot in slots:
            if slot in self._episodes:
                self._idle.append(self._episodes.pop(slot).env)

    def save(self, slots: Sequence[int]) -> dict[str, np.ndarray] | None:
        """See `Runner.save`."""
        saved = [states.save(self._episodes[slot].env) for slot in slots]
        if any(arrays is None for arrays in saved):
            return None
        columns = {name: np.stack([arrays[name] for arrays in saved if arrays]) for name in saved[0] or {}}
        return {"steps": np.asarray([self._episodes[slot].steps for slot in slots]), **columns}

    def load(self, slots: Sequence[int], arrays: Mapping[str, np.ndarray]) -> None:
        """See `Runner.load`."""
        for row, slot in enumerate(slots):
            env, _ = self._open(0)  # wrappers refuse to step without a reset
            states.load(env, {name: values[row] for name, values in arrays.items() if name != "steps"})
            self._episodes[slot] = _Episode(env, self._task.measures)
            self._episodes[slot].steps = int(arrays["steps"][row])

    def close(self) -> None:
        """See `Runner.close`."""
        self.free(list(self._episodes))
        while self._idle:
            close(self._idle.pop())

    def _step(self, rows: StepRows, row: int, slot: int, action: object) -> None:
        """Step one environment and write its results; the action is None if the agent's was not valid."""
        episode = self._episodes.get(slot)
        if episode is None or action is None:
            rows.flags[row] = TERMINATED | BROKEN  # lost with its worker, or the agent has diverged
            return
        task, env = self._task, episode.env
        observation, reward, terminated, truncated, info = checked_result(env.step(action), _STEP)
        rows.features[row], rows.rewards[row] = (
            task.observations.encode(observation),
            checked_number("its reward", reward),
        )
        terminated, truncated = checked_flag("terminated", terminated), checked_flag("truncated", truncated)
        if task.descriptor is not None:
            rows.descriptors[row] = self._descriptor(env, info)
        cut = not (terminated or truncated) and episode.steps + 1 >= task.episode_length
        if task.measures:
            rows.measures[row] = episode.sums.step(info, observation, terminated or truncated or cut, cut)
        episode.steps += 1
        truncated = not terminated and (truncated or cut)
        rows.flags[row] = TERMINATED * terminated + TRUNCATED * truncated

    def _open(self, seed: int) -> tuple["Env", tuple[np.ndarray, np.ndarray]]:
        """An environment object at the start of an episode, with the first features and the descriptor."""
        env = self._idle.pop() if self._idle else self._task.make_env()
        try:
            observation, info = checked_result(env.reset(seed=seed), _RESET)
            return env, (self._task.observations.encode(observation), self._descriptor(env, info))
        except BaseException:
            close(env)  # its state is unknown
            raise

    def _descriptor(self, env: "Env", info: Mapping[str, Any]) -> np.ndarray:
        size, describe = self._task.sizes.descriptor, self._task.descriptor
        if describe is None:
            return np.zeros(0, np.float32)
        values = np.asarray(describe(env, info), np.float32)
        if values.shape != (size,):
            raise ValueError(f"its descriptor has the shape {values.shape} instead of {(size,)}")
        return values

    def _count(self, slot: int) -> None:
        """Record that a call begins, for the time limit."""
        self.progress = (self.progress[0] + 1, slot)


def close(env: "Env") -> None:
    """Close an environment object that is discarded."""
    with contextlib.suppress(BaseException):
        env.close()


def _checksum(features: np.ndarray) -> int:
    return zlib.crc32(features.tobytes())


def _described(error: BaseException, method: str) -> str:
    return f"raised {type(error).__name__} in {method}: {first_line(error)}{place_of(error)}"
