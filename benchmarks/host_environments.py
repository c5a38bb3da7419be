"""Environment steps per second of environments on the host: Gymnasium's in threads and processes, and EnvPool's.

    python -m benchmarks.host_environments [--quick] [--task Hopper] [--environments 1 8 64] [--steps 100]

A call of the pool steps n environments with random actions; episodes that have ended begin again with another seed, of
64 start states, as in training. No agent, no compiled program. The contenders alternate in one process. EnvPool's
environments are created for each episode, so a task with short episodes (Hopper with random actions) is its worst case.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from benchmarks import harness
from rookery.envs import registry
from rookery.envs.host.base import ENDED, FRESH
from rookery.envs.host.pool import HostPool

START_STATES = 64


class Stepping:
    """Steps n environments of a pool with random actions; each call takes a number of steps.

    Args:
      pool: the environments.
      count: n.
      steps: of each environment in a call.
      discrete: number of actions, or 0 for continuous ones.
    """

    def __init__(self, pool: HostPool, count: int, steps: int, discrete: int):
        self._pool, self._count, self._steps = pool, count, steps
        generator = np.random.default_rng(0)
        shape = (steps, count)
        self._actions = (
            generator.integers(discrete, size=shape).astype(np.int32)
            if discrete
            else generator.uniform(-1.0, 1.0, (*shape, *pool.sizes.action)).astype(np.float32)
        )
        self._seeds: Iterator[int] = itertools.cycle(range(START_STATES))
        self._slots, self._episodes = np.full(count, FRESH), np.array([next(self._seeds) for _ in range(count)])
        pool.reset((START_STATES,), np.arange(START_STATES))

    def __call__(self) -> None:
        for actions in self._actions:
            self._slots, *_ = self._pool.step((self._count,), self._slots, self._episodes, actions)
            for row in np.flatnonzero(self._slots == ENDED).tolist():
                self._slots[row], self._episodes[row] = FRESH, next(self._seeds)
        if self._pool.failure is not None:
            raise RuntimeError(self._pool.failure.error)


def main() -> None:
    made = harness.parser(__doc__, rounds=5)
    made.add_argument("--task", default="Hopper", help="task of MuJoCo without its version (%(default)s)")
    made.add_argument("--environments", type=int, nargs="+", default=[1, 8, 64], help="numbers n (%(default)s)")
    made.add_argument("--steps", type=int, default=100, help="steps of each environment in a call (%(default)s)")
    options = harness.parse(made)
    if options.quick:
        options.environments, options.steps = [1, 4], 5
    load, rows = harness.load(), []
    contenders = {
        "gym, 1 thread": (f"gym:{options.task}-v5", {"workers": 1}),
        "gym, 2 threads": (f"gym:{options.task}-v5", {"workers": 2}),
        "gym, 2 processes": (f"gym:{options.task}-v5", {"workers": 2, "worker_kind": "processes"}),
        "envpool v4, 2 threads": (f"envpool:{options.task}-v4", {"num_threads": 2}),
        "envpool v5, 2 threads": (f"envpool:{options.task}-v5", {"num_threads": 2}),
    }
    for count in options.environments:
        made_environments = {name: registry.make(task, **settings) for name, (task, settings) in contenders.items()}
        calls = {
            name: Stepping(
                environment.host, count, options.steps, environment.spec.action_size * environment.spec.discrete
            )
            for name, environment in made_environments.items()
            if environment.host is not None
        }
        times = harness.interleave(calls, options.rounds)
        for name, measured in times.items():
            rates = harness.rates(measured, count * options.steps, "steps_per_second")
            row = {"task": options.task, "n": count, "contender": name, **rates}
            rows.append(row | harness.speedup(measured, times["gym, 1 thread"]))
        for environment in made_environments.values():
            if environment.host is not None:
                environment.host.close()
    harness.report("host_environments", options, rows, load)


if __name__ == "__main__":
    main()
