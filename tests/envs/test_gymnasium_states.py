"""Saved episodes of environment objects continue bit by bit."""

import io
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rookery.envs.base import Environment
from rookery.envs.host.base import ENDED, FRESH, HostError
from rookery.envs.host.pool import HostPool
from rookery.envs.suites.gymnasium.adapter import Factory, from_gymnasium
from tests.envs import gymnasium_environments as own
from tests.envs.gymnasium_environments import Counter, adapted, limited, pool_of

SEEDS = np.asarray([5, 6], np.int32)
MUJOCO = ("Hopper-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5", "InvertedPendulum-v5", "Reacher-v5", "Pusher-v5")
BEFORE, AFTER, LIMIT = 5, 30, 25


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MuJoCo writes its log of warnings, such as that of HalfCheetah, into the current folder."""
    monkeypatch.chdir(tmp_path)


def checked(name: str) -> gymnasium.Env:
    """A task with the environment checker and a time limit that ends episodes within the steps below."""
    return gymnasium.make(name, max_episode_steps=LIMIT, disable_env_checker=False)


def advance(pool: HostPool, slots: np.ndarray, first: int, last: int, scale: float) -> tuple[np.ndarray, list]:
    """Step two episodes with actions that depend on the time; a new episode follows each one that has ended."""
    found = []
    for t in range(first, last):
        generator = np.random.default_rng(t)
        actions = (scale * generator.uniform(-1.0, 1.0, (2, *pool.sizes.action))).astype(np.float32)
        seeds = SEEDS + t
        slots, *rows = pool.step((2,), np.where(slots == ENDED, FRESH, slots), seeds, actions)
        found.append([row.copy() for row in rows])
    return slots, found


def assert_continues(saved_by: Environment, other: Environment, scale: float = 1.0) -> list:
    """Save two episodes, continue them, and continue them in other objects; the steps of the former."""
    slots, _ = advance(pool_of(saved_by), np.full(2, FRESH), 0, BEFORE, scale)
    arrays = pool_of(saved_by).save()
    assert arrays is not None
    file = io.BytesIO()
    np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
    file.seek(0)
    arrays = dict(np.load(file, allow_pickle=False))
    assert sorted(arrays["slots"].tolist()) == sorted(slots[slots != ENDED].tolist())
    _, expected = advance(pool_of(saved_by), slots, BEFORE, BEFORE + AFTER, scale)
    pool_of(other).load(arrays)
    _, found = advance(pool_of(other), slots, BEFORE, BEFORE + AFTER, scale)
    for own_rows, other_rows in zip(expected, found, strict=True):
        for one, two in zip(own_rows, other_rows, strict=True):
            assert one.tobytes() == two.tobytes()
    return expected


def test_a_warning_of_mujoco_is_printed_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers: list = [None]
    monkeypatch.setattr("mujoco.get_mju_user_warning", lambda: handlers[-1])
    monkeypatch.setattr("mujoco.set_mju_user_warning", handlers.append)
    create = Factory(partial(checked, "Hopper-v5"))
    _ = create(), create()
    (handler,) = handlers[1:]
    for text in ("settotalmass is deprecated", "settotalmass is deprecated", "Nan in QACC"):
        handler(text)
    assert capsys.readouterr().err == "MuJoCo warns: settotalmass is deprecated\nMuJoCo warns: Nan in QACC\n"


@pytest.mark.parametrize("name", MUJOCO)
@pytest.mark.filterwarnings("ignore")  # of the checker, about the task
def test_tasks_of_mujoco_continue(name: str) -> None:
    environments = [from_gymnasium(partial(checked, name), workers=workers) for workers in (2, 1)]
    steps = assert_continues(*environments, scale=0.3)
    flags = np.asarray([rows[2] for rows in steps])
    assert flags.any(), "an episode ended and another one followed"
    assert not flags[0].any(), "the saved episodes were running"
    features = np.asarray([rows[0] for rows in steps])
    assert not (features[0] == features[1]).all()
    assert pool_of(environments[1]).failure is None


def test_objects_with_methods_for_it_continue() -> None:
    steps = assert_continues(adapted(own.Resumable, limit=8), adapted(own.Resumable, limit=8, workers=1))
    assert np.asarray([rows[2] for rows in steps]).any()


def test_slots_that_were_saved_are_not_numbered_again() -> None:
    one, other = adapted(own.Resumable, limit=8), adapted(own.Resumable, limit=8)
    slots, _ = advance(pool_of(one), np.full(2, FRESH), 0, 2, 1.0)
    arrays = pool_of(one).save()
    assert arrays is not None
    advance(pool_of(other), np.full(2, FRESH), 0, 1, 1.0)  # these are freed
    pool_of(other).load(arrays)
    fresh, _ = advance(pool_of(other), np.full(2, FRESH), 0, 1, 1.0)
    assert not set(fresh.tolist()) & set(slots.tolist())
    assert set(pool_of(other)._of_slot) == {*fresh.tolist(), *slots.tolist()}


def test_an_empty_pool_is_saved_as_such() -> None:
    pool = pool_of(adapted(Counter))
    arrays = pool.save()
    assert arrays is not None
    assert {name: array.shape for name, array in arrays.items()} == {"slots": (0,)}
    pool.load(arrays)
    slots, _ = advance(pool, np.full(2, FRESH), 0, 1, 1.0)
    assert (slots >= 0).all()


class Unknown(gymnasium.Wrapper):
    """Has a state that nothing else knows of."""


OTHERS = {
    "CartPole": lambda: gymnasium.make("CartPole-v1"),
    "wrapper": lambda: Unknown(gymnasium.make("Hopper-v5")),
    "own": partial(limited, Counter),
}


@pytest.mark.parametrize("create", OTHERS.values(), ids=OTHERS)
def test_others_cannot_be_saved(create: Any) -> None:
    pool = pool_of(from_gymnasium(create, workers=1))
    actions = np.zeros((1, *pool.sizes.action), np.int32 if pool.sizes.discrete else np.float32)
    pool.step((1,), np.full(1, FRESH), SEEDS[:1], actions)
    assert pool.save() is None


def test_states_of_another_task_are_an_error() -> None:
    pools = [pool_of(from_gymnasium(partial(checked, name), workers=1)) for name in ("Hopper-v5", "Walker2d-v5")]
    advance(pools[0], np.full(2, FRESH), 0, 1, 0.3)
    arrays = pools[0].save()
    assert arrays is not None
    with pytest.raises(HostError, match="gym:Walker2d-v5 cannot continue its saved episodes: it raised ValueError"):
        pools[1].load(arrays)
