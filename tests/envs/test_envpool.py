"""EnvPool's environments behind the pool: the same transitions as EnvPool's own, whatever is stepped beside them."""

import importlib
import importlib.util
import sys
import warnings
from typing import Any

import numpy as np
import pytest

from rookery.envs import registry
from rookery.envs.base import Environment
from rookery.envs.host.base import BROKEN, ENDED, FRESH, TERMINATED, TRUNCATED
from rookery.envs.suites.envpool import adapter

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("envpool") is None, reason='EnvPool is not installed: pip install "rookery[envpool]"'
)


def actions_of(env: Environment, steps: int, seed: int) -> np.ndarray:
    """Random actions of an agent, `[steps, ...]`."""
    generator, sizes = np.random.default_rng(seed), env.host.sizes  # pyright: ignore[reportOptionalMemberAccess]
    if sizes.discrete:
        return generator.integers(env.spec.action_size, size=steps).astype(np.int32)
    return generator.uniform(-1.0, 1.0, (steps, *sizes.action)).astype(np.float32)


def only(observation: Any) -> Any:
    """The observation in a batch of one."""
    return {key: part[0] for key, part in observation.items()} if isinstance(observation, dict) else observation[0]


def expected(task: str, seed: int, actions: np.ndarray, scale: float = 1.0, **options: Any) -> list[tuple]:
    """Observation, reward, terminated, truncated of EnvPool's own steps, until the episode ends; the first has no
    reward."""
    envpool = importlib.import_module("envpool")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = envpool.make_gymnasium(task, num_envs=1, seed=[seed], **options)
        found: list[tuple] = [(only(own.reset()[0]),)]
    for action in actions:
        scaled = action if action.dtype == np.int32 else scale * action.astype(np.float64)
        observation, reward, terminated, truncated, _ = own.step(np.asarray([scaled], own.action_space.dtype))
        found.append((only(observation), float(reward[0]), bool(terminated[0]), bool(truncated[0])))
        if found[-1][2] or found[-1][3]:
            break
    return found


class Player:
    """Episodes in a pool, of which any subset can be stepped."""

    def __init__(self, env: Environment, seeds: list[int]):
        assert env.host is not None
        self.pool, self.seeds = env.host, np.asarray(seeds)
        self.slots, self.steps = np.full(len(seeds), FRESH), np.zeros(len(seeds), int)
        self.actions = np.stack([actions_of(env, 400, seed) for seed in seeds])
        self.found: list[list[tuple]] = [[(features,)] for features in self.pool.reset((len(seeds),), self.seeds)[0]]

    def step(self, rows: list[int]) -> None:
        actions = self.actions[rows, self.steps[rows]]
        slots, features, rewards, flags, _ = self.pool.step((len(rows),), self.slots[rows], self.seeds[rows], actions)
        self.steps[rows] += 1
        self.slots[rows] = slots
        for row, *values in zip(rows, features, rewards, flags, strict=True):
            self.found[row].append((values[0], *values[1:]))

    def running(self) -> list[int]:
        return [row for row in range(len(self.seeds)) if self.slots[row] != ENDED]


def compare(found: list[tuple], own: list[tuple]) -> None:
    assert len(found) == len(own)
    np.testing.assert_array_equal(found[0][0], np.asarray(own[0][0], np.float32).reshape(-1))
    for (features, reward, flags), (observation, own_reward, terminated, truncated) in zip(
        found[1:], own[1:], strict=True
    ):
        np.testing.assert_array_equal(features, np.asarray(observation, np.float32).reshape(-1))
        assert reward == np.float32(own_reward)
        assert flags == TERMINATED * terminated + TRUNCATED * truncated


@pytest.mark.parametrize(
    ("task", "scale", "length"), [("Hopper-v4", 1.0, 1000), ("Pendulum-v1", 2.0, 12), ("CartPole-v1", 1.0, 15)]
)
def test_the_transitions_are_those_of_envpool_in_any_order(task: str, scale: float, length: int):
    env = registry.make(f"envpool:{task}", episode_length=length, num_threads=2)
    player, generator = Player(env, [5, 6, 7, 5]), np.random.default_rng(0)
    while rows := player.running():
        player.step(generator.permutation(rows)[: generator.integers(1, len(rows) + 1)].tolist())
    player.pool.close()
    assert player.pool.failure is None
    kinds = set()
    for row, seed in enumerate(player.seeds.tolist()):
        own = expected(task, seed, player.actions[row], scale, max_episode_steps=length)
        compare(player.found[row], own)
        kinds.add(own[-1][2:])
    wanted = {"Hopper-v4": {(True, False)}, "Pendulum-v1": {(False, True)}}
    assert kinds == wanted.get(task, {(True, False), (False, True)})


def test_an_episode_does_not_depend_on_those_before_it():
    env = registry.make("envpool:Hopper-v5")
    for seeds in ([1, 2], [3, 1], [1, 1]):
        player = Player(env, seeds)
        while rows := player.running():
            player.step(rows)
        for row, seed in enumerate(seeds):
            compare(player.found[row], expected("Hopper-v5", seed, player.actions[row]))
    env.host.close()  # pyright: ignore[reportOptionalMemberAccess]


def test_a_task_that_ends_in_the_step_of_its_limit_has_terminated():
    actions = np.zeros((400, 3), np.float32)
    length = len(expected("Hopper-v4", 3, actions)) - 1
    assert expected("Hopper-v4", 3, actions, max_episode_steps=length)[-1][2:] == (False, True)  # as EnvPool reports it
    for limit, flags in ((length, TERMINATED), (length - 1, TRUNCATED)):
        player = Player(registry.make("envpool:Hopper-v4", episode_length=limit), [3])
        player.actions = actions[None]
        while player.running():
            player.step([0])
        player.pool.close()
        assert (len(player.found[0]) - 1, player.found[0][-1][2]) == (limit, flags)


def test_stacked_frames_become_an_image():
    env = registry.make("envpool:Pong-v5", episode_length=40)
    assert env.spec.observation_shape == (84, 84, 4)
    player = Player(env, [0])
    for _ in range(25):
        player.step([0])
    player.pool.close()
    own = expected("Pong-v5", 0, player.actions[0][:25])
    for found, theirs in zip(player.found[0], own, strict=True):
        assert found[0].dtype == np.uint8
        np.testing.assert_array_equal(found[0].reshape(84, 84, 4), np.transpose(theirs[0], (1, 2, 0)))
    assert (np.diff(player.found[0][-1][0].reshape(84, 84, 4).astype(int), axis=-1) != 0).any()  # the ball moves


def test_entries_of_a_dictionary_are_in_the_order_of_jax():
    env = registry.make("envpool:WalkerWalk-v1")
    assert (env.spec.observation_size, env.spec.observation_shape) == (24, None)
    player = Player(env, [4])
    player.step([0])
    player.pool.close()
    own = expected("WalkerWalk-v1", 4, player.actions[0][:1])[1][0]
    flat = np.concatenate([np.ravel(own[key]) for key in ("height", "orientations", "velocity")])
    np.testing.assert_array_equal(player.found[0][1][0], flat.astype(np.float32))


def test_an_action_that_is_not_finite_ends_its_episode_alone():
    env = registry.make("envpool:Hopper-v4")
    player = Player(env, [0, 1])
    player.actions[0, 1] = np.nan
    player.step([0, 1])
    player.step([0, 1])
    assert player.found[0][-1][2] == TERMINATED | BROKEN
    assert player.running() == [1]
    player.step([1])
    player.pool.close()
    compare(player.found[1], expected("Hopper-v4", 1, player.actions[1][:3]))


def test_environments_are_freed_with_their_episodes():
    env = registry.make("envpool:Hopper-v4", num_threads=1)
    player = Player(env, [0, 1])
    player.step([0, 1])
    runner = vars(player.pool)["_workers"][0]._runner
    assert set(runner._episodes) == set(player.slots.tolist())  # pyright: ignore
    assert not runner._starts  # pyright: ignore
    player.pool.keep([int(player.slots[1])])
    while player.running() != [0]:
        player.step([1])
    assert not runner._episodes  # pyright: ignore
    player.pool.close()


def test_options_reach_the_task():
    env = registry.make("envpool:Hopper-v4", frame_skip=2)
    player = Player(env, [0])
    player.step([0])
    player.pool.close()
    compare(player.found[0], expected("Hopper-v4", 0, player.actions[0][:1], frame_skip=2))
    assert env.settings["environment"] == {"env": "envpool:Hopper-v4", "frame_skip": 2}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Hoper-v4", {}, "EnvPool has no environment 'Hoper-v4'; did you mean envpool:Hopper-v4 or "),
        ("Hopper-v4", {"frame_skp": 2}, "envpool:Hopper-v4 has no option frame_skp; did you mean frame_skip"),
        ("Hopper-v4", {"frame_skip": "a"}, "cannot be created with frame_skip='a': a value has the wrong type."),
        ("TicTacToe-v1", {}, "envpool:TicTacToe-v1 has 2 players, but only tasks with one are supported."),
        ("CliffWalking-v0", {}, "envpool:CliffWalking-v0 has no time limit of its own; give episode_length"),
    ],
)
def test_a_wrong_environment_is_an_error(name: str, options: dict[str, Any], message: str):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared below
        registry.make(f"envpool:{name}", **options)
    assert message in str(error.value)


def test_a_missing_package_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    adapter._import.cache_clear()
    with pytest.raises(ImportError, match=r'needs EnvPool \(.*\); install it: pip install "rookery\[envpool\]"'):
        registry.make("envpool:Hopper-v4")


def test_a_task_that_cannot_be_created_sets_the_failure():
    env = registry.make("envpool:Hopper-v4", xml_file="none.xml")
    assert env.host is not None
    env.host.reset((1,), np.asarray([0]))
    env.host.close()
    assert env.host.failure is not None
    assert "none.xml" in env.host.failure.text
