"""Environments that misbehave end their episodes and are reported; no exception reaches the caller."""

import itertools
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs.base import Environment, Step
from rookery.envs.check import check_interface
from rookery.envs.host.base import ENDED
from rookery.envs.host.workers import Worker
from rookery.envs.suites.gymnasium import adapter
from rookery.envs.suites.gymnasium.adapter import from_gymnasium
from rookery.envs.wrappers.auto_reset import start_bank
from tests.envs import gymnasium_environments as own
from tests.envs.gymnasium_environments import BAD, Counter, Faulty, Log, adapted, limited, play, starts, stepper

SEEDS = (3, 5, 7, 9)
ALL: dict[int, int] = dict(enumerate(SEEDS))
FAULTY = jnp.zeros((4, 2)).at[2, 0].set(1.0)
"""Actions, of which the third makes its environment fail."""


EXITS, INTERRUPTS = (fault.__code__.co_firstlineno + 1 for fault in (own.exit_program, own.interrupt))
RESULTS: list[tuple[dict[str, Any], str]] = [
    ({"observation": np.zeros(4)}, "its observation has the shape (4,), but its space (3,)"),
    ({"observation": [[1], [2, 3], [4]]}, "its observation is [[1], [2, 3], [4]] instead of numbers"),
    ({"reward": np.ones(1)}, "its reward is array([1.]) of shape (1,) instead of one number"),
    ({"reward": None}, "its reward is None instead of numbers"),
    ({"reward": "1.0"}, "its reward is '1.0' instead of numbers"),
    ({"reward": np.ma.masked}, "its reward is masked instead of numbers"),
    ({"reward": 1j}, "its reward is 1j instead of numbers"),
    ({"terminated": "False"}, "its terminated is 'False' instead of true or false"),
    ({"truncated": np.zeros(2, bool)}, "its truncated is array([False, False]) instead of true or false"),
]
"""Parts of what a step returns, and what is wrong."""


def given(**parts: Any) -> Callable[[], Any]:
    return lambda: parts


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """Threads that hang in a test end with it."""
    own.RELEASED.clear()
    yield
    own.RELEASED.set()


def idle(_: Any) -> np.ndarray:
    return np.zeros(2, np.float32)


def assert_rows(step: Step, seeds: Mapping[int, int], time: int = 0) -> None:
    """Steps of rows, row -> seed, are those of environment objects."""
    for row, seed in seeds.items():
        plain = play(limited(Counter), seed, idle)[time]
        assert not step.broken[row]
        assert float(step.reward[row]) == np.float32(plain.reward)
        np.testing.assert_array_equal(step.final_observation.features[row], np.float32(plain.next_observation))


def assert_starts(step: Step, seeds: Mapping[int, int]) -> None:
    for row, seed in seeds.items():
        np.testing.assert_array_equal(step.observation.features[row], np.float32(Counter().reset(seed=seed)[0]))


def assert_others_go_on(environment: Environment, step: Callable, state: Any, result: Step) -> None:
    """Of two workers one was lost, which had two of the episodes, the third among them; all can be begun again."""
    broken = np.asarray(result.broken)
    assert (broken[2], broken.sum()) == (True, 2)
    others = {row: SEEDS[row] for row in np.flatnonzero(~broken).tolist()}
    for row in {*range(4)} - {*others}:
        assert_broken(result, row)
    assert_rows(result, others)
    _, result = step(state, jnp.zeros((4, 2)))
    assert_rows(result, others, time=1)
    _, result = step(starts(environment, SEEDS)[0], jnp.zeros((4, 2)))
    assert_rows(result, ALL)


def assert_broken(step: Step, row: int) -> None:
    assert (bool(step.broken[row]), bool(step.terminated[row]), bool(step.truncated[row])) == (True, True, False)
    assert float(step.reward[row]) == 0.0
    np.testing.assert_array_equal(step.final_observation.features[row], 0.0)


class TestExceptions:
    @pytest.mark.parametrize(
        ("fault", "message"),
        [
            (own.raise_error, f"raised RuntimeError in step 1: {own.STUCK}"),
            (own.exit_program, rf"raised SystemExit in step 1: 0 ({own.__file__}, line {EXITS})"),
            (own.interrupt, rf"raised KeyboardInterrupt in step 1: no message ({own.__file__}, line {INTERRUPTS})"),
            *[(given(**parts), f"raised ValueError in step 1: {message}") for parts, message in RESULTS],
        ],
    )
    def test_in_a_step(self, fault: Callable, message: str) -> None:
        log = Log()
        environment = adapted(partial(Faulty, fault, log), workers=1)
        step = stepper(environment)
        state, _ = starts(environment, SEEDS)
        state, result = step(state, FAULTY)
        assert_broken(result, 2)
        others = {row: SEEDS[row] for row in (0, 1, 3)}
        assert_rows(result, others)
        failure = own.failure_of(environment)
        assert (failure.text, failure.row, failure.shape) == (message, 2, (4,))
        assert failure.slots.tolist() == [0, 1, ENDED, 3]
        assert log.closed == 2, "the object that failed is discarded, after the one whose spaces were read"
        _, result = step(state, jnp.zeros((4, 2)))  # the others go on, in this worker too
        assert_rows(result, others, time=1)
        assert bool(result.truncated[2])

    def test_in_a_reset(self) -> None:
        log = Log()
        environment = adapted(partial(Faulty, own.raise_error, log, in_reset=True), workers=1)
        pool, seeds = own.pool_of(environment), (3, BAD, 7, 9)
        state, first = starts(environment, seeds)
        failure = own.failure_of(environment)
        assert (failure.text, failure.row) == (f"raised RuntimeError in reset: {own.STUCK}", 1)
        np.testing.assert_array_equal(first.observation.features[1], 0.0)
        others = {row: seeds[row] for row in (0, 2, 3)}
        assert_starts(first, others)
        pool.failure = None
        _, result = stepper(environment)(state, jnp.zeros((4, 2)))
        assert_broken(result, 1)
        assert_rows(result, others)
        assert own.failure_of(environment).text == f"raised RuntimeError in reset: {own.STUCK}"
        assert log.closed == 3

    @pytest.mark.parametrize(
        ("reset", "message"),
        [
            (np.zeros(2), "array([0., 0.]), instead of (observation, info)"),
            ((np.zeros(2), {}), "4 values, (array([0., 0.]), 0.0, False, {}), instead of (observation, reward, "),
        ],
    )
    def test_in_the_interface_of_old_versions(self, reset: Any, message: str) -> None:
        """An array of two numbers can be unpacked like a pair."""
        space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
        parts = {"observation_space": space, "action_space": space, "reset": lambda *_, **__: reset}
        old = type("Old", (gymnasium.Env,), parts | {"step": lambda *_: (np.zeros(2), 0.0, False, {})})
        failure = own.pool_of(from_gymnasium(old, episode_length=2, workers=1)).try_step()
        assert re.match(rf"it raised ValueError in (reset|step 1): it returned {re.escape(message)}", failure)

    def test_the_first_failure_is_kept_and_none_reaches_a_compiled_program(self) -> None:
        environment = adapted(partial(Faulty, own.raise_error))
        state, _ = starts(environment, SEEDS)
        step = jax.jit(jax.vmap(environment.step))
        _, result = step(state, jnp.ones((4, 2)), jax.random.split(jax.random.key(0), 4))
        assert result.broken.all()
        assert own.failure_of(environment).row == 0

    def test_of_the_descriptor(self) -> None:
        environment = adapted(Counter, descriptor=own.SHARE, describe=lambda _, info: [info["share"]])
        starts(environment, [1])
        text = "raised ValueError in reset: its descriptor has the shape (1,) instead of (2,)"
        assert own.failure_of(environment).text == text


class TestOneObjectForSeveralEpisodes:
    """Episodes that run side by side on one object would mix without a word."""

    @pytest.mark.parametrize("count", [1, 2])
    def test_is_found(self, count: int) -> None:
        """Also inside of new wrappers, and where a factory has several objects in turn."""
        objects = itertools.cycle([Counter() for _ in range(count)])
        environment = adapted(lambda: next(objects), workers=1)
        same = "raised ValueError in reset: make_env returned the same Counter object twice; create a new one in each"
        if count == 1:
            with pytest.raises(ValueError, match=re.escape(f"it {same}")):
                check_interface(environment)
            assert own.pool_of(environment).failure is None
        starts(environment, SEEDS)
        stepper(environment)(starts(environment, SEEDS)[0], jnp.zeros((4, 2)))
        assert own.failure_of(environment).text.startswith(same)


class TestHanging:
    @pytest.mark.parametrize("kind", ["threads", "processes"])
    def test_in_a_step(self, kind: str) -> None:
        fault = own.hang if kind == "threads" else own.sleep_for_ever
        timeout = 1.0 if kind == "threads" else 1.5  # of each of the rows of a process
        environment = adapted(partial(Faulty, fault), timeout=timeout, worker_kind=kind)
        pool, step = own.pool_of(environment), stepper(environment)
        state, _ = starts(environment, SEEDS)
        before = list(pool._workers)
        state, result = step(state, FAULTY)
        failure = own.failure_of(environment)
        assert failure.text == f"did not return from step within {timeout:g} s"
        if kind == "threads":
            assert failure.row == 2
        assert_others_go_on(environment, step, state, result)
        [lost] = [worker for worker in before if worker not in pool._workers]
        if kind == "processes":
            assert getattr(lost and lost._runner, "_process").returncode == -9  # noqa: B009 - a field of the one class
        pool.close()

    def test_in_a_reset(self) -> None:
        environment = adapted(partial(Faulty, own.hang, in_reset=True), timeout=1.0)
        state, first = starts(environment, (3, 5, BAD, 9))
        assert own.failure_of(environment).text == "did not return from reset within 1 s"
        assert_starts(first, {0: 3, 1: 5})
        state = jax.tree.map(lambda leaf: leaf[:2], state)
        _, result = stepper(environment)(state, jnp.zeros((2, 2)))
        assert_rows(result, {0: 3, 1: 5})

    def test_when_it_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The object whose spaces are read is left, and the process of a worker is ended."""
        monkeypatch.setattr(adapter, "_CLOSE_SECONDS", 0.1)
        monkeypatch.setattr(Counter, "close", lambda _: own.RELEASED.wait())
        assert adapted(Counter).spec.observation_size == 3
        killed = []
        runner: Any = SimpleNamespace(close=own.RELEASED.wait, kill=lambda: killed.append("process"))
        Worker(lambda: runner, "blocked").close(seconds=0.1)
        assert killed == ["process"]

    def test_a_slow_environment_does_not_hang(self) -> None:
        """The limit counts for each environment, not for all that a worker steps."""
        environment = adapted(Slow, timeout=2.0, workers=1)
        state, _ = starts(environment, SEEDS)
        _, result = stepper(environment)(state, jnp.zeros((4, 2)))
        assert own.pool_of(environment).failure is None
        assert_rows(result, ALL)


class Slow(Counter):
    """Four of its steps take longer than the limit of one."""

    def step(self, action: np.ndarray) -> Any:
        time.sleep(0.6)
        return super().step(action)


class TestProcesses:
    def test_steps_equal_those_of_the_object_also_of_a_module_beside_a_script(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "beside_the_script.py").write_text(
            "from tests.envs.gymnasium_environments import Faulty, exit_program, limited\n"
            "def make():\n    return limited(lambda: Faulty(exit_program))\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        import beside_the_script  # pyright: ignore[reportMissingImports]

        environment = from_gymnasium(beside_the_script.make, worker_kind="processes", workers=1)
        step = stepper(environment)
        state, first = starts(environment, SEEDS)
        assert_starts(first, ALL)
        for t in range(3):
            state, result = step(state, jnp.zeros((4, 2)))
            assert_rows(result, ALL, time=t)
        pool = own.pool_of(environment)
        pool.keep(np.asarray(state.slot)[:2].tolist())
        state, result = step(state, jnp.zeros((4, 2)))
        np.testing.assert_array_equal(result.broken, [False, False, True, True])
        assert pool.failure is None
        _, result = step(state, FAULTY[::-1])
        assert_broken(result, 1)
        text = f"raised SystemExit in step 5: 0 ({own.__file__}, line {EXITS})"
        assert (own.failure_of(environment).text, own.failure_of(environment).row) == (text, 1)
        processes = [getattr(worker._runner, "_process") for worker in pool._workers if worker]  # noqa: B009
        assert [process.poll() for process in processes] == [None]
        processes[0].terminate()  # as a cluster ends all processes of a job, of which the main one saves the run
        step(starts(environment, SEEDS)[0], jnp.zeros((4, 2)))
        assert [process.poll() for process in processes] == [None]
        pool.close()
        assert [process.poll() for process in processes] == [0], "it ends by itself"
        monkeypatch.delitem(sys.modules, "beside_the_script")

    def test_a_process_that_is_killed_is_started_again(self) -> None:
        environment = adapted(partial(Faulty, own.kill_process), worker_kind="processes", workers=2)
        pool, step = own.pool_of(environment), stepper(environment)
        state, _ = starts(environment, SEEDS)
        state, result = step(state, FAULTY)
        assert pool.failure is None
        assert [event.text for event in pool.warnings] == [
            "was lost: its process ended by signal 9; its worker was started again (1 of 3), and its episodes ended."
        ]
        assert_others_go_on(environment, step, state, result)
        pool.close()

    def test_a_process_that_is_killed_in_every_reset_is_a_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rookery.envs.host.pool._RESTARTS", 1)
        environment = adapted(partial(Faulty, own.kill_process, in_reset=True), worker_kind="processes", workers=1)
        pool = own.pool_of(environment)
        _, first = starts(environment, (BAD,))
        np.testing.assert_array_equal(first.observation.features, 0.0)
        assert len(pool.warnings) == 1
        assert own.failure_of(environment).text == "was lost: its process ended by signal 9"
        pool.close()


def test_a_seed_that_is_ignored_is_noted_once() -> None:
    environment = adapted(own.Unseeded)
    pool = own.pool_of(environment)
    for _ in range(2):
        state, _ = starts(environment, SEEDS)
        stepper(environment)(state, jnp.zeros((4, 2)))
    [event] = pool.warnings
    assert event.text.startswith("does not begin the same episode when it is reset with the same seed again")
    assert pool.failure is None


class Unsteady(Counter):
    """Its reset gives a number that is not finite for every other start."""

    def observed(self) -> np.ndarray:
        return np.where(self.start % 2 and not self.time, np.nan, super().observed())


def test_no_episode_begins_with_a_number_that_is_not_finite() -> None:
    environment = adapted(Unsteady)
    _, first = start_bank(environment, jax.random.key(0), 16)
    assert set(np.asarray(first.observation.features[:, 0]) % 2) == {0.0}
    [event] = own.pool_of(environment).warnings
    assert event.text.startswith("returned numbers that are not finite from a reset")
