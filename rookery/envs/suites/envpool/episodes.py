"""The environments of EnvPool: a `Runner` whose worker sends actions to EnvPool's threads and collects the results.

EnvPool takes the seed of an environment when it creates it and ignores seeds at a reset, after which the random numbers
continue. So that an episode is determined by its seed, every episode has a new environment. Those that are created
together are one instance of EnvPool, which is freed with the last of them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from rookery.envs.host.base import (
    BROKEN,
    TERMINATED,
    TRUNCATED,
    Sizes,
    StepRows,
    empty_rows,
    replace_nonfinite,
)
from rookery.envs.suites.gymnasium.measures import Measure, Sums
from rookery.envs.suites.gymnasium.spaces import Actions, Observations
from rookery.types import PyTree

_TOGETHER = 64  # largest number of environments of an instance: they are freed together


class EpisodeSettings(NamedTuple):
    """What the worker needs to create and step environments."""

    create: Callable[[Sequence[int]], "Instance"]
    """Seeds `[n]` -> an instance of EnvPool with n environments that returns its results one by one."""
    sizes: Sizes
    observations: Observations
    actions: Actions
    episode_length: int
    """Steps until truncation."""
    measures: tuple[Measure, ...] = ()


class Instance(Protocol):
    """Environments of EnvPool that were created together; results come one by one, as batches of one."""

    def async_reset(self) -> None: ...

    def send(self, actions: np.ndarray, numbers: np.ndarray, /) -> None: ...

    def recv(self, reset: bool = False) -> Any: ...


class _Fresh(NamedTuple):
    """An environment at its start."""

    instance: "Instance"
    number: int  # of the environment in its instance
    features: np.ndarray  # the first features, `[O]`


class _Episode:
    """A running episode."""

    def __init__(self, fresh: _Fresh, measures: tuple[Measure, ...]):
        self.instance, self.number, self.steps, self.sums = fresh.instance, fresh.number, 0, Sums(measures)


class Episodes:
    """All environments of EnvPool in a run; see `host.base.Runner`."""

    def __init__(self, task: EpisodeSettings):
        self._task = task
        self._episodes: dict[int, _Episode] = {}
        self._starts: dict[int, _Fresh] = {}
        """Seed -> its environment, for the latest start states; the first episode of each takes it."""

    def reset(self, seeds: Sequence[int]) -> StepRows:
        """See `Runner.reset`."""
        wanted = dict.fromkeys(seeds)
        self._starts = {seed: fresh for seed, fresh in self._starts.items() if seed in wanted}
        missing = [seed for seed in wanted if seed not in self._starts]
        self._starts.update(zip(missing, self._create(missing), strict=True))
        rows = empty_rows(self._task.sizes, len(seeds))
        rows.features[:] = [self._starts[seed].features for seed in seeds]
        return rows

    def step(self, slots: Sequence[int], seeds: Sequence[int], actions: np.ndarray) -> StepRows:
        """See `Runner.step`."""
        try:
            return self._step(slots, seeds, actions)
        except BaseException:
            self.free(slots)  # their states are unknown
            raise

    def free(self, slots: Sequence[int]) -> None:
        """See `Runner.free`."""
        for slot in slots:
            self._episodes.pop(slot, None)

    def save(self, slots: Sequence[int]) -> None:
        """See `Runner.save`; EnvPool gives no access to the state of an environment."""
        del slots

    def load(self, slots: Sequence[int], arrays: Mapping[str, np.ndarray]) -> None:
        """See `Runner.load`; never called, since nothing is saved."""
        raise NotImplementedError

    def close(self) -> None:
        """See `Runner.close`; an instance of EnvPool ends its threads when it is freed."""
        self._episodes.clear()
        self._starts.clear()

    def _step(self, slots: Sequence[int], seeds: Sequence[int], actions: np.ndarray) -> StepRows:
        rows = empty_rows(self._task.sizes, len(slots))
        self._open({slot: seed for slot, seed in zip(slots, seeds, strict=True) if seed >= 0})
        finite = self._task.actions.are_valid(actions)
        parts: dict[Instance, dict[int, int]] = {}  # instance -> number of the environment -> row
        for row, slot in enumerate(slots):
            episode = self._episodes.get(slot)
            if episode is None or not finite[row]:
                rows.flags[row] = TERMINATED | BROKEN  # lost with its worker, or the agent has diverged
                continue
            episode.steps += 1
            parts.setdefault(episode.instance, {})[episode.number] = row
        given = np.where(finite.reshape(-1, *[1] * (actions.ndim - 1)), actions, 0)
        decoded = np.asarray(self._task.actions.decode(given))
        for instance, row_of in parts.items():
            instance.send(decoded[list(row_of.values())], np.array(list(row_of), np.int32))
        for instance, row_of in parts.items():
            for _ in row_of:
                observation, reward, terminated, truncated, info = instance.recv()
                row = row_of[int(info["env_id"][0])]
                rows.features[row] = self._task.observations.encode(_only(observation))
                rows.rewards[row] = reward[0]
                episode = self._episodes[slots[row]]
                over = truncated[0] or episode.steps >= self._task.episode_length
                rows.flags[row] = TERMINATED if terminated[0] else TRUNCATED * bool(over)
                if self._task.measures:
                    cut = not (terminated[0] or truncated[0])
                    of_one = {key: value[0] for key, value in info.items() if np.ndim(value)}, _only(observation)
                    rows.measures[row] = episode.sums.step(*of_one, bool(rows.flags[row]), bool(over and cut))
        events = replace_nonfinite(rows)
        self.free([slots[row] for row in np.flatnonzero(rows.flags).tolist()])
        return rows._replace(events=events)

    def _open(self, seeds: Mapping[int, int]) -> None:
        """Begin episodes: slot -> seed."""
        found = {slot: self._starts.pop(seed, None) for slot, seed in seeds.items()}
        created = iter(self._create([seeds[slot] for slot, fresh in found.items() if fresh is None]))
        for slot, fresh in found.items():
            self._episodes[slot] = _Episode(next(created) if fresh is None else fresh, self._task.measures)

    def _create(self, seeds: Sequence[int]) -> list[_Fresh]:
        """New environments with these seeds."""
        found: list[_Fresh] = []
        for first in range(0, len(seeds), _TOGETHER):
            chunk = seeds[first : first + _TOGETHER]
            instance, features = self._task.create(chunk), {}
            instance.async_reset()
            for _ in chunk:
                observation, info = instance.recv(reset=True)
                # A copy, since the array belongs to EnvPool.
                features[int(info["env_id"][0])] = np.array(self._task.observations.encode(_only(observation)))
            found += [_Fresh(instance, number, features[number]) for number in range(len(chunk))]
        return found


def _only(observation: PyTree) -> PyTree:
    """The observation in a batch of one."""
    return {key: value[0] for key, value in observation.items()} if isinstance(observation, dict) else observation[0]
