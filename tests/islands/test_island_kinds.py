"""Islands of environments on the host, of skill discovery and of the other kinds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import trees
from rookery.distributed.mesh import make_mesh
from rookery.envs.host.base import HostError
from rookery.experiments.config import EnvironmentConfig, IslandsConfig
from rookery.experiments.kinds import configure
from rookery.islands import engine, plan, replay_island
from rookery.islands.failures import Outcome, failed
from rookery.islands.migration import migration
from rookery.learners.base import genotype
from rookery.populations.config import PbtConfig
from rookery.populations.pbt import pbt
from rookery.storage.checkpoint import CheckpointError, NoneComplete
from rookery.storage.events import Diverged
from rookery.storage.run_dir import RunFolderError
from rookery.training.config import RunConfig
from tests import tiny
from tests.islands.runs import PBT, content, train

HOST = PBT.replace("point_room", "tests.envs.gymnasium_environments:resumable").replace("--episode-length 12 ", "")


def test_each_island_has_its_own_episodes_on_the_host(tmp_path):
    """An island that saves its episodes leaves those of the others alone: a replay, alone, has the same bits."""
    run = tmp_path / "run"
    assert train(HOST, run, "--generations", "3") == (0, "", "")
    for number in range(2):
        tables, exchanges = content(run, number)
        assert not np.frombuffer(tables[0]["broken_episodes"]).any()
        assert len(exchanges) == 3
    assert replay_island(run, 1).generation == 3


@pytest.mark.parametrize("kind", ["pbt-td3", "pbt-ppo", "pbt-pqn", "pbt-dqn", "pbt-ippo", "pbt-diayn", "pbt-metra"])
def test_islands_of_every_kind_exchange_genotypes(kind):
    tasks = {"pbt-ippo": "MPE_simple_spread_v3", "pbt-pqn": "CartPole-v1", "pbt-dqn": "CartPole-v1"}
    environment = EnvironmentConfig(env=tasks.get(kind, "point_room"), devices=1)
    islands, run = IslandsConfig(islands=2), RunConfig(run_dir="absent")
    config = plan.check(configure(kind, population=4, environment=environment, islands=islands, run=run))
    migration = plan.Builder(config).migration
    assert not migration.keeps_elites
    assert jax.tree.leaves(migration.template)


@pytest.mark.parametrize("learner", [tiny.team, tiny.discoverer])
def test_teams_and_skills_are_published_and_imported(learner):
    """They keep their transitions, as a child does where it does not inherit those of its parent."""
    config = PbtConfig()
    program = pbt(learner(), None, 4, config)
    exchanged = migration(program, make_mesh(1), 0.5, config)
    state = jax.jit(program.init)(jax.random.key(0))
    state = state._replace(shared=state.shared._replace(recent=jnp.arange(4.0)[:, None]))
    before = jax.tree.map(np.array, state.members._replace(env_state=()))
    published = exchanged.publish(state, jax.random.key(1))
    assert published is not None
    after = exchanged.load(state, {1: published}, jax.random.key(2)).members
    source, imported = published.genotypes, jax.vmap(genotype)(after)
    tiny.assert_equal(
        trees.take((imported.params, imported.normalizer), 1), trees.take((source.params, source.normalizer), 0)
    )
    assert not trees.same_numbers(trees.take(imported.hyper, 1), trees.take(source.hyper, 0)), "they are perturbed"
    others = jnp.asarray([0, 2, 3])
    tiny.assert_equal(trees.take(after._replace(env_state=()), others), trees.take(before, others))
    tiny.assert_equal(after.buffer, before.buffer)


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
