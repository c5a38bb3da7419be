"""Environments of Gymnasium in compiled programs equal the environment objects, step by step."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.spaces import Box, Discrete
from jax.experimental import io_callback

from rookery.agents.sac import SacConfig, sac
from rookery.distributed import layout
from rookery.distributed.mesh import make_mesh
from rookery.envs import registry
from rookery.envs.base import Environment, Step, descriptor_spec
from rookery.envs.host.base import ENDED, FRESH, TRUNCATED
from rookery.envs.suites.envpool import episodes as envpool_episodes
from rookery.envs.suites.gymnasium import spaces
from rookery.envs.suites.gymnasium.adapter import from_gymnasium
from rookery.envs.suites.gymnasium.measures import Sums, keys_of
from rookery.envs.wrappers import auto_reset
from rookery.envs.wrappers.time_limit import limit_episode
from rookery.learners import rollout
from rookery.learners.off_policy import off_policy
from rookery.types import PyTree
from tests.envs import gymnasium_environments as own
from tests.envs.gymnasium_environments import END, LIMIT, Counter, Log, Plain, act, adapted, limited, play, starts

SEEDS = (3, 4, 5, 6)
KEYS = jax.random.split(jax.random.key(0), len(SEEDS))


@pytest.fixture(scope="module")
def counter() -> Environment:
    return adapted(Counter)


def test_the_first_updates_on_the_host_have_transitions_to_learn_from(counter: Environment) -> None:
    """The updates of a step come before its transitions are stored there."""
    learner = off_policy(sac(counter.spec, SacConfig(hidden_sizes=(4,))), counter, warmup_steps=0)
    assert learner.settings["learner"]["warmup_steps"] == 1
    room = registry.make("point_room")
    learner = off_policy(sac(room.spec, SacConfig(hidden_sizes=(4,))), room, warmup_steps=0)
    assert learner.settings["learner"]["warmup_steps"] == 0


def test_another_time_limit_belongs_to_the_environment_on_the_host(counter: Environment) -> None:
    with pytest.raises(ValueError, match=r"run on the host and end there; .*rookery\.make\(name, episode_length=5\)"):
        limit_episode(counter, 5)


def compiled(function: Callable, **axes: Any) -> Callable:
    return jax.jit(jax.vmap(function, **axes))


def acts(features: Any) -> np.ndarray:
    return np.stack([act(row) for row in np.asarray(features)])


def follow(
    environment: Environment, count: int, seeds: Sequence[int] = SEEDS, step: Callable | None = None
) -> list[tuple[Any, Step]]:
    """The states and steps `[E, ...]` of a policy in episodes with these seeds; by default nothing is compiled."""
    state, first = starts(environment, seeds)
    return go_on(step or own.stepper(environment), state, first.observation.features, count)


def go_on(step: Callable, state: Any, features: Any, count: int) -> list[tuple[Any, Step]]:
    found = []
    for _ in range(count):
        state, result = step(state, acts(features), KEYS[: len(features)])
        features = result.observation.features
        found.append((state, jax.tree.map(np.asarray, result)))
    return found


def assert_steps(steps: list[Step], row: int, expected: list[Plain]) -> None:
    """The steps of one row are those of an episode object, and then those of an ended episode."""
    for t, step in enumerate(steps):
        found = (step.reward[row], step.terminated[row], step.truncated[row], step.broken[row])
        features = step.final_observation.features[row]
        if t < len(expected):
            plain = expected[t]
            assert found == (np.float32(plain.reward), plain.terminated, plain.truncated, False)
            np.testing.assert_array_equal(features, np.float32(plain.next_observation))
        else:
            assert found == (0.0, False, True, False)
            np.testing.assert_array_equal(features, 0.0)


class TestSteps:
    @pytest.mark.parametrize("announced", [False, True])
    def test_steps_equal_those_of_the_object(self, counter: Environment, announced: bool) -> None:
        def step(state: Any, action: jax.Array, key: jax.Array) -> tuple:
            state = counter.announce(state, action) if announced and counter.announce else state
            return counter.step(state, action, key)

        found = follow(counter, LIMIT + 2, step=compiled(step))
        ends = set()
        for row, seed in enumerate(SEEDS):
            expected = play(limited(Counter), seed)
            assert_steps([step for _, step in found], row, expected)
            ends.add((len(expected), expected[-1].terminated, expected[-1].truncated))
            np.testing.assert_array_equal(found[-1][0].slot[row], ENDED)
        assert ends == {(END, True, False), (LIMIT, False, True)}, "both kinds of end were seen"

    def test_resets_draw_seeds(self, counter: Environment) -> None:
        states, first = jax.jit(jax.vmap(counter.reset))(KEYS)
        assert np.asarray(states.slot).tolist() == [FRESH] * len(SEEDS)
        assert len(set(np.asarray(states.seed).tolist())) == len(SEEDS)
        for row, seed in enumerate(np.asarray(states.seed).tolist()):
            observation = Counter().reset(seed=seed)[0]
            np.testing.assert_array_equal(first.observation.features[row], np.float32(observation))

    def test_a_step_that_terminates_at_the_limit_is_terminated(self) -> None:
        last = follow(adapted(Counter, limit=END), END)[-1][1]
        even = np.asarray([Counter().reset(seed=seed)[0][0] % 2 == 0 for seed in SEEDS])
        assert set(even.tolist()) == {True, False}
        np.testing.assert_array_equal(last.terminated, even)
        np.testing.assert_array_equal(last.truncated, ~even)

    def test_a_shorter_episode_length_truncates(self) -> None:
        environment = adapted(Counter, episode_length=2)
        assert environment.spec.episode_length == 2
        steps = [step for _, step in follow(environment, 3)]
        for row, seed in enumerate(SEEDS):
            expected = play(limited(Counter), seed, limit=2)
            assert_steps(steps, row, [expected[0], expected[1]._replace(truncated=True)])

    @pytest.mark.parametrize(
        ("space", "action", "taken"),
        [
            (Discrete(3, start=2), np.asarray([1], np.int32), 3),
            (Box(-2.0, 4.0, ()), np.asarray([[0.5]], np.float32), np.float32(2.5)),  # an array without an axis
        ],
    )
    def test_actions_are_those_of_the_space_and_images_keep_their_type(
        self, space: Any, action: np.ndarray, taken: Any
    ) -> None:
        actions: list[Any] = []
        pixels = Box(0, 255, (10, 10, 3), np.uint8)
        environment = adapted(partial(own.Shaped, pixels, space, actions), workers=1)
        spec = environment.spec
        assert (spec.observation_shape, spec.discrete) == ((10, 10, 3), isinstance(space, Discrete))
        state, first = starts(environment, [1])
        _, step = own.stepper(environment)(state, action)
        pixels.seed(1)
        for found in (first, step):
            assert found.observation.features.dtype == np.uint8
            np.testing.assert_array_equal(found.observation.features[0], pixels.sample().reshape(-1))
        assert actions == [taken]
        assert space.contains(actions[0])


class TestCalls:
    """One call for all members and environments of a device."""

    @pytest.fixture
    def counted(self) -> tuple[Environment, list[tuple[int, ...]]]:
        environment, shapes = adapted(Counter), []
        host, step = own.pool_of(environment), own.pool_of(environment).step

        def counted_step(shape: tuple[int, ...], slots: Any, seeds: Any, actions: Any) -> Any:
            shapes.append(shape)
            return step(shape, slots, seeds, actions)

        host.step = counted_step
        return environment, shapes

    def nested(self, environment: Environment) -> tuple[PyTree, jax.Array, list[list[Plain]]]:
        """States and actions `[2, 3, ...]` of six episodes, and the first step of each object."""
        seeds = range(20, 26)
        state, first = starts(environment, seeds)
        state, actions = jax.tree.map(
            lambda leaf: jnp.asarray(leaf).reshape(2, 3, *leaf.shape[1:]), (state, acts(first.observation.features))
        )
        return state, actions, [play(limited(Counter), seed, limit=1) for seed in seeds]

    @pytest.mark.parametrize(("devices", "exact"), [(1, True), (2, False)])
    def test_of_devices(self, counted: Any, devices: int, exact: bool) -> None:
        environment, shapes = counted
        state, actions, expected = self.nested(environment)
        mapped = layout.population_map(make_mesh(devices), exact)
        batch = jax.vmap(environment.step, in_axes=(0, 0, None))

        def steps(state: Any, actions: Any) -> Any:
            return mapped(lambda inputs: batch(*inputs, KEYS[0]), ((state, actions),), ())

        _, result = jax.jit(steps)(state, actions)
        flat = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(6, *leaf.shape[2:]), result)
        for row, steps_of_object in enumerate(expected):
            assert_steps([flat], row, steps_of_object)
        assert [int(np.prod(shape)) for shape in shapes] == [3, 3]

    def test_an_argument_that_is_not_mapped_is_repeated(self, counted: Any) -> None:
        environment, shapes = counted
        state, _, _ = self.nested(environment)
        state = jax.tree.map(lambda leaf: leaf[0], state)
        batch = jax.vmap(environment.step, in_axes=(0, None, None))
        _, result = jax.jit(batch)(state, jnp.asarray([0.5, -0.5]), KEYS[0])
        for row, seed in enumerate((20, 21, 22)):
            plain = play(limited(Counter), seed, lambda _: np.asarray([0.5, -0.5]), limit=1)
            assert float(result.reward[row]) == np.float32(plain[0].reward)
        assert shapes == [(3,)]


class TestSlots:
    def test_ended_episodes_are_not_stepped(self) -> None:
        log = Log()
        follow(adapted(partial(Counter, log), workers=1), LIMIT + 3)
        lengths = {seed: len(play(limited(Counter), seed)) for seed in SEEDS}
        assert {seed: log.steps.count(seed) for seed in SEEDS} == lengths

    def test_objects_are_reused_and_closed(self) -> None:
        log = Log()
        environment = adapted(partial(Counter, log))
        env = auto_reset.auto_reset(environment, auto_reset.start_bank(environment, jax.random.key(2), 4))

        def advance(carry: Any, key: jax.Array) -> Any:
            state, action = carry
            state, result = jax.vmap(env.step)(state, action, jax.random.split(key, 4))
            return (state, action), result.ended

        state, _ = starts(environment, SEEDS)
        roll = jax.jit(partial(jax.lax.scan, advance))
        (state, _), over = roll((state, jnp.zeros((4, 2))), jax.random.split(jax.random.key(3), 60))
        assert int(jnp.sum(over)) >= 4 * (60 // LIMIT)
        # One to read the spaces, one for each of the running episodes, and one of each worker for first observations.
        assert log.created <= 1 + 4 + 2
        running = set(np.asarray(state.slot).tolist()) - {FRESH}
        pool = own.pool_of(environment)
        assert pool.save() is None
        assert set(pool._of_slot) == running
        assert sum(pool._counts) == len(running)
        pool.close()
        assert log.created == log.closed > 4

    def test_abandoned_slots_are_freed_and_their_episodes_broken(self) -> None:
        log = Log()
        environment = adapted(partial(Counter, log), workers=1)
        host, step = own.pool_of(environment), own.stepper(environment)
        expected = play(limited(Counter), SEEDS[0])[2]
        for _ in range(5):
            found = follow(environment, 2)
            slots = np.asarray(found[-1][0].slot)
            host.keep(slots[:1].tolist())
            assert set(host._of_slot) == {slots[0]}
            [(state, kept)] = go_on(step, found[-1][0], found[-1][1].observation.features, 1)
            assert float(kept.reward[0]) == np.float32(expected.reward)
            assert (kept.broken & kept.terminated).tolist() == [False, True, True, True]
            assert not kept.reward[1:].any()
            assert np.asarray(state.slot).tolist() == [slots[0], ENDED, ENDED, ENDED]
            host.keep(())
        assert log.created <= 1 + 4

    def test_a_state_that_is_stepped_twice_is_a_failure(self) -> None:
        environment = adapted(Counter)
        [(state, _)] = follow(environment, 1, SEEDS[:2])
        state = jax.tree.map(lambda leaf: np.asarray(leaf)[[0, 1, 0]], state)
        own.stepper(environment)(state, np.zeros((3, 2), np.float32))
        failure = own.failure_of(environment)
        assert failure.row == 2
        assert "was stepped twice from one state of a running episode" in failure.text


class Waiting(Counter):
    """A step waits for an event, and records that it has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.released, self.was_released = BEGUN, RELEASED, None

    def step(self, action: np.ndarray) -> Any:
        self.begun.release()
        self.info_of_step = self.released.wait(30.0)
        return super().step(action)

    def info(self) -> dict[str, Any]:
        return {"share": float(getattr(self, "info_of_step", True))}


BEGUN, RELEASED = threading.Semaphore(0), threading.Event()


class TestAnnounce:
    def test_the_device_works_while_the_environments_step(self) -> None:
        RELEASED.clear()
        environment = adapted(Waiting, descriptor=own.SHARE, describe=lambda _, info: (info["share"], 0.0))
        announce, step = environment.announce, environment.step
        assert announce is not None

        def learn(state: Any, numbers: jax.Array) -> jax.Array:
            """A computation of the device, in the middle of which the environments may end their steps."""

            def release(sums: np.ndarray) -> np.ndarray:
                for _ in SEEDS[:2]:
                    assert BEGUN.acquire(timeout=30.0)
                RELEASED.set()
                return np.asarray(sums)

            return io_callback(release, jax.ShapeDtypeStruct((), jnp.float32), jnp.sum(numbers))

        def iterate(state: Any, action: jax.Array, numbers: jax.Array) -> Any:
            announced = jax.vmap(announce)(state, action)
            learned = learn(announced, numbers)
            return jax.vmap(step)(rollout.after(announced, learned), action, KEYS[:2]), learned

        state, _ = starts(environment, SEEDS[:2])
        (_, result), learned = jax.jit(iterate)(state, jnp.zeros((2, 2)), jnp.arange(4.0))
        assert float(learned) == 6.0
        np.testing.assert_array_equal(result.descriptor[:, 0], 1.0)  # each step was released before its time limit
        assert not result.broken.any()


class TestThreads:
    """Where environments are stepped: a few of Gymnasium's own in the thread of the program, others by the workers."""

    @pytest.fixture
    def threads(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        names, step = [], PendulumEnv.step

        def recorded(env: PendulumEnv, action: np.ndarray) -> tuple:
            names.append(threading.current_thread().name)
            return step(env, action)

        monkeypatch.setattr(PendulumEnv, "step", recorded)
        return names

    @staticmethod
    def walk(env: Environment, rows: int) -> None:
        own.stepper(env)(starts(env, range(rows))[0], np.zeros((rows, 1), np.float32))

    @pytest.mark.parametrize(("rows", "here"), [(8, True), (9, False)])
    def test_few_environments_need_no_other_thread(self, threads: list[str], rows: int, here: bool) -> None:
        self.walk(registry.make("gym:Pendulum-v1", workers=2), rows)
        assert len(threads) == rows
        assert {name.startswith("gym:Pendulum-v1-") for name in threads} == {not here}

    @pytest.mark.parametrize(
        "options",
        [
            {"make_env": lambda: Unchanged(gymnasium.make("Pendulum-v1"))},
            {"describe": lambda *_: [0.0], "descriptor": descriptor_spec("x", "final", (0.0,), (1.0,))},
        ],
        ids=["wrapper", "descriptor"],
    )
    def test_functions_of_a_user_are_called_by_workers(self, threads: list[str], options: dict[str, Any]) -> None:
        env = from_gymnasium(**{"make_env": lambda: gymnasium.make("Pendulum-v1"), **options})
        self.walk(env, 1)
        assert [name.startswith("gym:Pendulum-v1-") for name in threads] == [True]


class Unchanged(gymnasium.Wrapper):
    """A wrapper of a user."""


class OneInstance:
    """An instance of EnvPool with one environment, whose info has the distance that was gone."""

    def __init__(self) -> None:
        self.time = 0

    def async_reset(self) -> None:
        self.time = 0

    def send(self, actions: np.ndarray, numbers: np.ndarray) -> None:
        assert (actions.shape, numbers.tolist()) == ((1,), [0])
        self.time += 1

    def recv(self, reset: bool = False) -> tuple:
        info = {"env_id": np.zeros(1, int), "gone": np.asarray([self.time * 0.5]), "players": {}}
        observation, ended = np.zeros((1, 1), np.float32), np.zeros(1, bool)
        return (observation, info) if reset else (observation, np.ones(1), ended, ended, info)


def time_of(info: Any, observation: Any) -> float:
    assert info["share"] == observation[1] / LIMIT
    return observation[1]


def left(info: Any, observation: Any) -> float:
    del observation
    return 2.5 - info["share"]


class TestMeasures:
    def test_the_sum_over_an_episode_is_its_last_number_the_sum_or_the_largest(self) -> None:
        measures: Any = {"share": "share", "time": time_of, "times": (time_of, "sum"), "highest": (left, "max")}
        environment = adapted(Counter, measures=measures)
        meanings = dict(environment.spec.measures or {})
        assert meanings["share"] == "info['share'], at the end of an episode"
        assert meanings["times"] == "a function of the info and the observation, summed over an episode"
        reset = environment.reset(KEYS[0])[1].measures or {}
        assert {name: float(value) for name, value in reset.items()} == dict.fromkeys(measures, 0.0)
        steps = [step for _, step in follow(environment, LIMIT + 2, step=compiled(environment.step))]
        sums = {name: np.sum([(step.measures or {})[name] for step in steps], axis=0) for name in measures}
        for row, seed in enumerate(SEEDS):
            length = len(play(limited(Counter), seed))
            expected = (length / LIMIT, length, length * (length + 1) / 2, 2.5 - 1 / LIMIT)
            np.testing.assert_allclose([sums[name][row] for name in measures], expected, rtol=1e-6)

    @pytest.mark.parametrize("length", [LIMIT, 2])
    def test_the_statistics_of_a_wrapper_are_known_by_name_and_unknown_where_an_episode_is_cut(self, length) -> None:
        record = gymnasium.wrappers.RecordEpisodeStatistics
        environment = from_gymnasium(lambda: record(limited(Counter)), length, measures={"episode": "episode"})
        steps = [step for _, step in follow(environment, length, SEEDS[:1])]
        assert own.pool_of(environment).failure is None
        found = [float((step.measures or {})["episode"][0]) for step in steps]
        end = len(play(limited(Counter), SEEDS[0], limit=length)) - 1
        total = sum(float(step.reward[0]) for step in steps) if length == LIMIT else np.nan
        np.testing.assert_allclose(found, [total if t == end else 0.0 for t in range(length)], rtol=1e-6)

    @pytest.mark.parametrize(
        ("numbers", "expected"), [([-1e6, 0.01], 0.01), ([np.nan, 3.0], np.nan), ([3.0, np.nan], np.nan)]
    )
    def test_the_largest_is_exact_and_unknown_where_one_is(self, numbers: list[float], expected: float) -> None:
        sums, last = Sums(keys_of("x", "max")), len(numbers) - 1
        added = [sums.step({"x": value}, None, place == last) for place, value in enumerate(numbers)]
        np.testing.assert_array_equal(np.sum(np.asarray(added, np.float32), axis=0), np.float32(expected))

    def test_an_info_that_is_no_dictionary_is_named(self) -> None:
        info: Any = ["x"]
        with pytest.raises(ValueError, match=r"its info is \['x'\] instead of a dictionary"):
            Sums(keys_of("x", "sum")).step(info, None, False)

    @pytest.mark.parametrize(
        ("measures", "message"),
        [
            ({"a": ("shar", "sum")}, "its info has no 'shar' for the measure (did you mean share?)"),
            ({"a": (lambda *given: given[1], "sum")}, "its measure a is array([.*of shape (3,) instead of one"),
        ],
    )
    def test_what_is_no_number_is_found_by_a_step(self, measures: Any, message: str) -> None:
        environment = adapted(Counter, measures=measures)
        begin, _, end = message.partition(".*")
        text = own.pool_of(environment).try_step()
        assert f"in step 1: {begin}" in text
        assert end in text

    def test_options_declare_them(self) -> None:
        environment = registry.make("gym:CartPole-v1", measure="is_success, episode", measure_by="max")
        assert dict(environment.spec.measures or {}) == {
            "is_success": "info['is_success'], the largest of an episode",
            "episode": "info['episode'], the largest of an episode",
        }
        with pytest.raises(ValueError, match="the measure a is taken by 'mean'; give one of last, sum, max"):
            registry.make("gym:CartPole-v1", measure="a", measure_by="mean")
        with pytest.raises(ValueError, match="the measure 'a b!' needs another name"):
            from_gymnasium(lambda: limited(Counter), measures={"a b!": "share"})

    def test_of_envpool(self) -> None:
        observed, acted = spaces.observations(Box(0, 1, (1,)), "one"), spaces.actions(Discrete(2), "one")
        measured = keys_of("gone", "last")
        sizes = spaces.sizes(observed, acted, 0, ["gone"])
        runner = envpool_episodes.Episodes(
            envpool_episodes.EpisodeSettings(lambda _: OneInstance(), sizes, observed, acted, 3, measured)
        )
        rows = [runner.step([0], [7 if time == 0 else -1], np.zeros(1, np.int32)) for time in range(3)]
        assert [row.measures.tolist() for row in rows] == [[[0.0]], [[0.0]], [[1.5]]]
        assert rows[-1].flags.tolist() == [TRUNCATED]


class TestNumbersThatAreNotFinite:
    def test_actions_end_the_episode_without_a_step(self) -> None:
        log = Log()
        environment = adapted(partial(Counter, log))
        state, _ = starts(environment, SEEDS)
        actions = np.zeros((4, 2), np.float32)
        actions[1, 0], actions[2, 1] = np.nan, np.inf
        _, result = own.stepper(environment)(state, actions)
        np.testing.assert_array_equal(result.broken, [False, True, True, False])
        np.testing.assert_array_equal(result.terminated, [False, True, True, False])
        assert not result.reward[1:3].any()
        assert not result.final_observation.features[1:3].any()
        assert sorted(log.steps) == [SEEDS[0], SEEDS[3]]
        assert own.pool_of(environment).failure is None

    def test_a_negative_index_is_such_an_action(self) -> None:
        environment = registry.make("gym:CartPole-v1", workers=1)
        _, result = own.stepper(environment)(starts(environment, [1, 2])[0], np.asarray([-1, 1], np.int32))
        np.testing.assert_array_equal(result.broken, [True, False])
        assert own.pool_of(environment).failure is None

    @pytest.mark.parametrize(
        ("fault", "features"), [(own.nan_observation, [1.0, 0.0, 3.0]), (own.nan_reward, None)], ids=["o", "r"]
    )
    def test_of_the_environment_end_its_episode(self, fault: Callable, features: list[float] | None) -> None:
        environment = adapted(partial(own.Faulty, fault))
        actions = np.zeros((4, 2), np.float32)
        actions[2, 0] = 1.0
        _, result = own.stepper(environment)(starts(environment, SEEDS)[0], actions)
        np.testing.assert_array_equal(result.broken, [False, False, True, False])
        assert (float(result.reward[2]), bool(result.terminated[2]), bool(result.truncated[2])) == (0.0, True, False)
        if features:
            np.testing.assert_array_equal(result.final_observation.features[2], features)
        assert own.pool_of(environment).failure is None
