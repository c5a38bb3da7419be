"""Repertoires outside of a run: saved, loaded for the same task only, read from a run directory, and used."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import hyperparams, normalize
from rookery.envs import base
from rookery.envs.base import Environment, EnvSpec
from rookery.envs.wrappers import auto_reset, time_limit
from rookery.learners import evaluation
from rookery.qd import repertoire as repertoires
from rookery.storage.run_dir import open_existing
from rookery.types import Genotype, Observation
from tests import walks
from tests.tiny import assert_equal

KEY = jax.random.key(0)
CELLS = rookery.qd.grid((3, 3), (0, 0), (1, 1))


def scoring(name="hill", lower=(0.0, 0.0), size=3, **more):
    def score(genotype, key):
        del key
        return -jnp.sum(genotype["x"] ** 2), genotype["x"][:2]

    def init(key):
        return {"x": jax.random.uniform(key, (size,)), "n": jnp.asarray(7, jnp.int32)}

    return rookery.qd.function_scoring(score, init, lower, (1.0, 1.0), name=name, **more)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    program = rookery.map_elites(scoring(), CELLS, rookery.qd.iso_line(scoring(), 8))
    run_dir = tmp_path_factory.mktemp("hill") / "run"
    return program, rookery.run(program, generations=4, run_dir=str(run_dir), quiet=True)


class TestFile:
    def test_round_trip_is_bit_equal(self, result, tmp_path):
        stored = rookery.qd.repertoire_of(result[1].state)
        rookery.experiments.save_repertoire(tmp_path / "hill", stored, scoring())
        assert [path.name for path in tmp_path.iterdir()] == ["hill.npz"], "no temporary file remains"
        for name in ("hill", "hill.npz"):
            assert_equal(rookery.experiments.load_repertoire(tmp_path / name, scoring()), stored)

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            (scoring(name="valley"), "name is hill there and valley here"),
            (scoring(lower=(-1.0, 0.0)), r"lower is \[0.0, 0.0\] there and \[-1.0, 0.0\] here"),
            (scoring(qd_offset=-3.0), "QD offset is 0.0 there and -3.0 here"),
            (scoring(size=4), r"float32 \[9, 3\] in the checkpoint and float32 \[9, 4\]"),
        ],
    )
    def test_a_repertoire_of_another_task_or_agent_is_rejected(self, result, tmp_path, other, message):
        rookery.experiments.save_repertoire(tmp_path / "hill.npz", rookery.qd.repertoire_of(result[1].state), scoring())
        with pytest.raises(ValueError, match=message):
            rookery.experiments.load_repertoire(tmp_path / "hill.npz", other)

    def test_a_file_without_a_repertoire_is_rejected(self, result, tmp_path, monkeypatch):
        path = tmp_path / "hill.npz"
        with pytest.raises(FileNotFoundError):
            rookery.experiments.load_repertoire(path, scoring())
        rookery.experiments.save_repertoire(path, rookery.qd.repertoire_of(result[1].state), scoring())
        whole = path.read_bytes()
        for content in (b"no zip at all", whole[: len(whole) // 2]):
            path.write_bytes(content)
            with pytest.raises(ValueError, match="is no repertoire, is damaged, or was written by another version"):
                rookery.experiments.load_repertoire(path, scoring())
        path.write_bytes(whole)
        monkeypatch.setattr("rookery.experiments.repertoire_io.FORMAT", 2)
        with pytest.raises(ValueError, match="format 1"):
            rookery.experiments.load_repertoire(path, scoring())


class TestRun:
    def test_a_python_run_needs_its_program_and_a_repertoire(self, result):
        program, done = result
        assert_equal(rookery.experiments.repertoire(done.run_dir, program), rookery.qd.repertoire_of(done.state))
        with pytest.raises(ValueError, match=r"cannot build its program; give it: repertoire\(run_dir, program\)"):
            rookery.experiments.repertoire(done.run_dir)
        with pytest.raises(ValueError, match="which has no repertoire"):
            rookery.experiments.repertoire(done.run_dir, rookery.pbt(walks.learner(), population_size=4))
        config = open_existing(done.run_dir).config
        assert config["environment"] == {"env": "hill"}
        assert config["descriptor"]["upper"] == [1.0, 1.0]


class TestBeginWith:
    def test_elites_are_added_to_the_nearest_of_other_cells(self, result):
        stored = rookery.qd.repertoire_of(result[1].state)
        finer = rookery.qd.grid((5, 4), (0, 0), (1, 1))
        program = rookery.qd.begin_with(rookery.map_elites(scoring(), finer), stored)
        start = jax.jit(program.init)(KEY)
        initial = rookery.qd.repertoire_of(start)
        expected, _ = jax.jit(repertoires.add)(
            repertoires.empty({"x": jnp.zeros(3), "n": jnp.zeros((), jnp.int32)}, finer),
            jax.tree.map(lambda leaf: leaf[stored.occupied], stored.genotypes),
            stored.fitnesses[stored.occupied],
            stored.descriptors[stored.occupied],
        )
        assert_equal(initial, expected)
        assert int(initial.occupied.sum()) > 3
        after, _ = jax.jit(program.step)(start, KEY)
        assert (rookery.qd.repertoire_of(after).fitnesses >= initial.fitnesses).all()

    def test_other_genotypes_are_rejected(self, result):
        stored = rookery.qd.repertoire_of(result[1].state)
        with pytest.raises(ValueError, match="of another task or another agent"):
            rookery.qd.begin_with(rookery.map_elites(scoring(size=4), CELLS), stored)
        with pytest.raises(ValueError, match="only a program with a repertoire"):
            rookery.qd.begin_with(rookery.pbt(walks.learner(), population_size=4), stored)


def test_a_scoring_function_with_wrong_shapes_is_rejected():
    for score, shapes in (
        (lambda g, _: (g[0], g[:1]), r"\[\] and a descriptor \[2\] for one genotype, got the shapes \[\] and \[1\]"),
        (lambda g, _: (g[:1], g[:2]), r"\[1\] and \[2\]"),
    ):
        wrong = rookery.qd.function_scoring(score, lambda key: jax.random.uniform(key, (3,)), (0, 0), (1, 1))
        with pytest.raises(ValueError, match=shapes):
            rookery.run(rookery.map_elites(wrong, CELLS), generations=1, quiet=True)


def test_limits_may_be_arrays():
    for lower in (np.zeros(2, np.float32), jnp.zeros(2), np.zeros(2, int)):
        limits = scoring(lower=lower).descriptor.lower
        assert limits == (0.0, 0.0)
        assert all(type(limit) is float for limit in limits)


class TestAct:
    def test_an_elite_acts_on_observations_normalised_by_its_statistics(self):
        env = rookery.make("point_room", episode_length=10)
        agent = rookery.sac(env.spec, rookery.agents.SacConfig(hidden_sizes=(8,)))
        statistics = normalize.update(normalize.init(2), jnp.asarray([[0.1, 2.0], [0.9, 1.0], [0.4, -0.5]]))
        genotype = Genotype(agent.init(KEY), hyperparams.defaults(agent.space), statistics)
        features = jnp.asarray([0.3, -0.7])
        observation = Observation(features)
        normalized = Observation(normalize.normalize(statistics, features))
        action = rookery.act(agent, genotype, observation)
        assert jnp.array_equal(action, rookery.act(agent, genotype, features))
        assert jnp.array_equal(action, agent.act(genotype.params, normalized))
        assert not jnp.allclose(action, agent.act(genotype.params, observation)), (
            "statistics that do nothing prove nothing"
        )


def breaking_environment(after: int) -> Environment:
    """A point that moves right by 0.1 in each step, with reward -1; the physics break in step `after`."""
    spec = EnvSpec("glass", 1, 1, 20, descriptor=base.descriptor_spec("final x", "final", (-1.0,), (1.0,)))

    def reset(key):
        del key
        return jnp.zeros((), jnp.int32), base.first_step(jnp.zeros(1), jnp.zeros(1))

    def step(state, action, key):
        del action, key
        state = state + 1
        place = jnp.where(state < after, 0.1 * state.astype(jnp.float32), jnp.nan)[None]
        return state, base.next_step(place, jnp.asarray(-1.0), jnp.asarray(False), place)

    return time_limit.limit_episode(time_limit.guard_physics(Environment(reset, step, spec)), 20)


def test_a_genotype_that_breaks_the_physics_is_counted_and_rejected():
    env = breaking_environment(after=6)
    config = rookery.learners.EvaluationConfig(eval_episodes=2, start_states=2)
    policy = rookery.qd.policy(env.spec, rookery.qd.PolicyConfig((4,)))
    evaluator = evaluation.evaluator(policy.act, env, config)

    @jax.jit
    def evaluate(key):
        bank = auto_reset.start_bank(env, key, 2)
        return evaluation.evaluate(evaluator, Genotype(policy.init(key), (), None), bank, key)

    result = evaluate(KEY)
    assert int(result.broken) == 2
    np.testing.assert_allclose(result.descriptor, [0.5], rtol=1e-6)
    searched = rookery.qd.policy_scoring(env, rookery.qd.PolicyConfig((4,)), config)
    program = rookery.map_elites(searched, rookery.qd.grid((5,), (-1.0,), (1.0,)), rookery.qd.iso_line(searched, 3))
    state, metrics = jax.jit(lambda key: program.step(program.init(key), key))(KEY)
    assert int(metrics["rejected"]) == 3
    assert int(metrics["broken_episodes"]) == 3 * 2
    assert not metrics["diverged"].any(), "it is the physics that broke"
    assert not rookery.qd.repertoire_of(state).occupied.any()


def test_a_generation_moves_only_the_cells_that_it_writes():
    big = rookery.qd.function_scoring(
        lambda g, _: (-jnp.sum(g * g), g[:2]), lambda key: jax.random.uniform(key, (1000,)), (0, 0), (1, 1)
    )
    program = rookery.map_elites(big, rookery.qd.grid((50, 50), (0, 0), (1, 1)), rookery.qd.iso_line(big, 4))
    state = jax.eval_shape(program.init, KEY)
    for function, donated in ((program.step, 0), (program.evaluate, ())):
        compiled = jax.jit(function, donate_argnums=donated).lower(state, KEY).compile()
        memory = compiled.memory_analysis()
        assert memory is not None
        assert memory.temp_size_in_bytes < 1e6, "the repertoire itself is 10 MB"
