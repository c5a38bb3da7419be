"""Islands of environments on the host, of skill discovery and of the other kinds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.distributed.mesh import make_mesh
from rookery.envs.host.base import HostError
from rookery.islands import engine, replay_island
from rookery.islands.failures import Outcome, failed
from rookery.islands.migration import migration
from rookery.populations.config import PbtConfig
from rookery.populations.pbt import pbt
from rookery.storage.checkpoint import CheckpointError, NoneComplete
from rookery.storage.exit_reasons import Diverged
from rookery.storage.run_dir import RunFolderError
from tests import tiny
from tests.commandline import call
from tests.islands.runs import PBT, TINY, content, contents, train

HOST = PBT.replace("point_room", "tests.envs.gymnasium_environments:resumable").replace("--episode-length 10 ", "")


def test_each_island_has_its_own_episodes_on_the_host(tmp_path):
    """An island that saves its episodes leaves those of the others alone, and all continue bit by bit."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert train(HOST, whole, "--generations", "4") == (0, "", "")
    assert train(HOST, parts, "--generations", "2") == (0, "", "")
    assert call("resume", str(parts), "--generations", "4", "--quiet") == (0, "", "")
    assert contents(parts) == contents(whole)
    for number in range(2):
        tables, exchanges = content(whole, number)
        assert not np.frombuffer(tables[0]["broken_episodes"]).any()
        assert len(exchanges) == 4
    assert replay_island(whole, 1).generation == 4


@pytest.mark.parametrize("kind", ["pbt-td3", "pbt-ppo", "pbt-ippo", "pbt-diayn", "pbt-metra"])
def test_islands_of_every_kind_are_replayed(kind, tmp_path):
    on_policy = "ppo" in kind
    env = "--env MPE_simple_spread_v3" if kind == "pbt-ippo" else "--env point_room"
    lengths = "--rollout-length 5 --evaluate-every 2" if on_policy else "--steps-per-generation 20 --batch-size 4 "
    off_policy = "" if on_policy else "--buffer-size 64 --warmup-steps 4 --updates-per-step 0.5"
    flags = f"{kind} {env} {TINY} {lengths} {off_policy} --population 4 --islands 2 --exploit-interval 10"
    run = tmp_path / "run"
    assert train(flags, run, "--generations", "3", "--migrate-fraction", "1") == (0, "", "")
    imported = [number for number in range(2) if any(exchange.imports for exchange in content(run, number)[1])]
    replay = replay_island(run, imported[0])
    assert replay.generation == 3
    assert replay.imports > 0


@pytest.mark.parametrize("inherit_buffer", [False, True])
def test_an_import_leaves_no_transitions_where_a_child_has_its_parents(inherit_buffer):
    config = PbtConfig(inherit_buffer=inherit_buffer)
    program = pbt(tiny.learner(), None, 4, config)
    exchanged = migration(program, make_mesh(1), 0.5, config)
    state = jax.jit(program.init)(jax.random.key(0))
    full = state.members.buffer._replace(size=jnp.full(4, 7, jnp.int32))
    state = state._replace(
        members=state.members._replace(buffer=full), shared=state.shared._replace(recent=jnp.arange(4.0)[:, None])
    )
    published = exchanged.publish(state, jax.random.key(1))
    assert published is not None
    loaded = exchanged.load(state, {1: published}, jax.random.key(2)).members
    assert loaded.buffer.size.tolist() == ([7, 0, 7, 7] if inherit_buffer else [7, 7, 7, 7])


@pytest.mark.parametrize("error", [CheckpointError("the disk is full."), HostError("gym:Faulty raised.")])
def test_an_error_of_one_island_leaves_the_others(error, tmp_path):
    def failing():
        yield 0
        raise error

    reached = {0: -1}
    running = failing()
    assert engine._turn(0, running, reached, tmp_path) is None
    assert engine._turn(0, running, reached, tmp_path) == failed(0, error, tmp_path)
    with pytest.raises(KeyError):
        engine._turn(0, iter_of(KeyError("x")), reached, tmp_path)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (Diverged("no member is finite any more in generation 3."), "no member is finite any more in generation 3."),
        (
            CheckpointError("Could not write the checkpoint of generation 3: the disk is full."),
            "Could not write the checkpoint of generation 3: the disk is full; once that is mended, {again}",
        ),
        (
            NoneComplete("There is no complete checkpoint; resume the run, or restart it with `--overwrite`."),
            "no checkpoint in {island}/checkpoints is complete; put a copy of this folder back, or delete it, so that "
            "the island repeats its generations and its recorded imports, and {again}",
        ),
        (
            HostError("gym:Faulty raised; mend the environment and continue with: rookery resume {island}"),
            "gym:Faulty raised; mend the environment and {again}",
        ),
        (
            RunFolderError("{island} is in use: process 7 writes to it; wait for it, or choose another folder."),
            "{island} is in use: process 7 writes to it; once that is mended, {again}",
        ),
        (MemoryError("out of\nmemory"), "MemoryError: out of memory; once that is mended, {again}"),
    ],
)
def test_the_remedy_for_an_island_leaves_the_others_alone(error, sentence, tmp_path):
    """It neither resumes the folder of an island, which is an error, nor overwrites the run."""
    names = {"island": str(tmp_path / "islands/1"), "again": f"continue with: rookery resume {tmp_path}"}
    error = type(error)(str(error).format(**names))
    assert failed(1, error, tmp_path) == Outcome(1, sentence.format(**names))


def iter_of(error):
    raise error
    yield
