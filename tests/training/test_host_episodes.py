"""Runs in environments on the host: failures end a run with its progress saved, and running episodes are resumed."""

import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery.agents.sac import SacConfig, sac
from rookery.distributed import sync
from rookery.envs.base import Environment
from rookery.envs.host.base import ENDED, Event, HostError, HostWarning
from rookery.envs.host.pool import HostPool
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.training.host_episodes import HostEpisodes, located
from tests.envs import gymnasium_environments as own
from tests.envs.gymnasium_environments import Counter, Faulty, Resumable, adapted
from tests.tiny import assert_equal

CONFIG = OffPolicyConfig(
    num_envs=2,
    steps_per_generation=14,  # episodes of 4 or 6 steps are running at its end
    batch_size=4,
    buffer_size=64,
    updates_per_step=0.5,
    warmup_steps=2,
    eval_episodes=2,
    start_states=3,
)


def program(environment: Environment) -> rookery.Program:
    agent = sac(environment.spec, SacConfig(hidden_sizes=(4, 4)))
    return rookery.seeds(off_policy(agent, environment, CONFIG), population_size=2)


def run(environment: Environment, folder: Path, generations: int, **options: Any) -> Any:
    return rookery.run(program(environment), run_dir=str(folder), generations=generations, quiet=True, **options).state


def unnumbered(members: Any) -> Any:
    """Members without the numbers of their slots, which are given in the order of the calls."""
    states = members.env_state.state
    running = np.asarray(states.slot) >= 0
    assert running.any()
    return members._replace(env_state=members.env_state._replace(state=states._replace(slot=running)))


def named(environment: Environment, name: str) -> Environment:
    return environment._replace(spec=environment.spec._replace(name=name))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a run that was killed after generation 2, and the members that it would have after four."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    members = run(adapted(Resumable), folder, 4, checkpoint_every=2).members
    last = folder / "checkpoints/generation_00000004"
    last.with_suffix(".json").unlink()
    shutil.rmtree(last)
    return folder, members


def test_saved_episodes_continue_bit_by_bit(whole: tuple[Path, Any], tmp_path: Path) -> None:
    resumed = run(adapted(Resumable), Path(shutil.copytree(whole[0], tmp_path / "run")), 4, resume=True)
    assert_equal(unnumbered(whole[1]), unnumbered(resumed.members))


def test_episodes_that_were_not_saved_begin_anew(whole: tuple[Path, Any], tmp_path: Path, monkeypatch: Any) -> None:
    restore, given = HostEpisodes.restore, []

    def without_them(episodes: HostEpisodes, state: Any, _: Any, key: jax.Array) -> Any:
        given.append(key)
        return restore(episodes, state, None, key)

    class Unsaved(Resumable):
        def save_state(self) -> Any:
            raise SystemExit

    monkeypatch.setattr(HostEpisodes, "restore", without_them)
    unsaved = "gym:Unsaved: it cannot save its running episodes: it raised SystemExit: no message"
    anew = "gym:Unsaved that were running could not be saved; new ones begin"
    folder = Path(shutil.copytree(whole[0], tmp_path / "run"))
    with pytest.warns(HostWarning, match=unsaved), pytest.warns(HostWarning, match=anew):
        after = run(named(adapted(Unsaved), "gym:Resumable"), folder, 3, resume=True)
    stored, size = np.asarray(whole[1].buffer.rows.reward), 2 * CONFIG.steps_per_generation
    np.testing.assert_array_equal(np.asarray(after.members.buffer.rows.reward)[:, :size], stored[:, :size])
    assert after.members.buffer.size.tolist() == [42, 42]
    observed = np.asarray(after.members.env_state.observation.features)[..., 1]
    assert (observed <= 7).all(), "the new episodes are at most a generation old"
    first_key = jax.random.split(jax.random.key(0))[0]  # of the initial population, which splits it
    consumed = jax.random.key_data(jax.vmap(jax.random.fold_in, in_axes=(None, 0))(first_key, jnp.arange(1000)))
    assert jax.random.key_data(given[0]).tolist() not in consumed.tolist()


def test_a_failure_is_saved_and_the_run_goes_on_when_it_is_mended(tmp_path: Path) -> None:
    message = (
        r"^gym:Faulty, member [01], environment [01]: it raised RuntimeError in step \d: the motor is stuck "
        r"\(.*gymnasium_environments\.py, line \d+\); the run stopped "
        r"in generation 1, whose progress is saved; mend the environment and continue with: rookery resume "
    )
    with pytest.raises(HostError, match=message):
        # With other seeds no episode of the call goes on, so that the member is unknown.
        run(adapted(partial(Faulty, own.raise_error)), tmp_path, 3, seed=7)
    assert (tmp_path / "interrupted").is_dir()
    with pytest.warns(HostWarning, match="new ones begin"):
        state = run(named(adapted(Counter), "gym:Faulty"), tmp_path, 3, resume=True, seed=7)
    assert state.members.buffer.size.tolist() == [42, 42]


def test_what_cannot_run_is_an_error_before_the_first_generation(tmp_path: Path, monkeypatch: Any) -> None:
    class NeverStarts(Counter):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
            raise OSError("no level file")

    message = r"the environment gym:NeverStarts is wrong, .*: it raised OSError in reset: no level file \("
    with pytest.raises(ValueError, match=message):
        run(adapted(NeverStarts), tmp_path, 1)
    monkeypatch.setattr(sync, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="gym:Counter runs on the host, which works in one process only"):
        run(adapted(Counter), tmp_path, 1)
    assert not [*tmp_path.iterdir()]


def event(row: int, shape: tuple[int, ...], *slots: int, **more: bool) -> Event:
    return Event("", row, np.asarray(slots), shape, **more)


class TestTheirPlace:
    TABLE = np.arange(6).reshape(3, 2) + 10  # the slots of three members with two environments each

    @pytest.mark.parametrize(
        ("found", "place"),
        [
            (event(4, (3, 2), 10, 11, 12, 13, ENDED, 15), "member 2, environment 0"),
            (event(0, (1, 2), ENDED, 13), "member 1, environment 0"),
            (event(1, (2,), 14, ENDED), "member 2, environment 1"),
            (event(3, (3, 3), *range(90, 99)), "an evaluation, member 1, episode 0"),
            (event(1, (1, 3), 90, 91, 92), "an evaluation, episode 1"),
            (event(1, (1, 2), 90, 91), "a member on one of several devices, environment or episode 1"),
            (event(0, (1,), -1, starts=True), "a start state"),
        ],
        ids=["all members", "another device", "one by one", "evaluation", "evaluation on one device", "over", "start"],
    )
    def test_is_found(self, found: Event, place: str) -> None:
        assert located(found, [self.TABLE], population_size=3) == place


def test_states_of_different_shapes_cannot_be_saved() -> None:
    pool: Any = HostPool.__new__(HostPool)
    answers = [{"state": np.zeros((1, 2))}, {"state": np.zeros((1, 3))}]
    pool._workers, pool._of_slot, recorded = [None, None], {0: 0, 1: 1}, []
    pool._worker = lambda number: SimpleNamespace(submit=lambda *_: SimpleNamespace(result=lambda: answers[number]))
    pool._record = lambda event, _: recorded.append(event.text)
    assert pool.save() is None
    assert recorded == ["cannot save its running episodes: their states differ in shape."]
