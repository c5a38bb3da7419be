"""Values of an evaluation that are stored with each elite."""

import csv
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery.learners.off_policy import OffPolicyConfig
from rookery.qd import archives
from rookery.qd.centroids import grid
from rookery.qd.emitters import iso_line
from rookery.qd.initial import begin_from, begin_with
from rookery.qd.map_elites import map_elites, repertoire_of
from rookery.qd.repertoire import Repertoire, elite
from rookery.qd.scoring import PolicyConfig, function_scoring, learner_scoring, policy_scoring, with_extras

CELLS = grid((4, 4), (0.0, 0.0), (1.0, 1.0))


def score(genotype, key):
    del key
    extras = {"sum": jnp.sum(genotype), "pair": 2.0 * genotype[1:], "whole": jnp.round(9.0 * genotype[0]).astype(int)}
    return -jnp.sum(jnp.square(genotype)), genotype[:2], extras


def uniform(key):
    return jax.random.uniform(key, (3,))


SCORING = function_scoring(score, uniform, (0.0, 0.0), (1.0, 1.0), bounds=(0.0, 1.0))
RULES = {"novelty": archives.dominated_novelty(CELLS), "thresholds": archives.annealed(CELLS, 0.1)}


def check(repertoire: Repertoire) -> None:
    """Every elite has the values of its own genotype, and an empty cell zeros."""
    occupied = np.asarray(repertoire.occupied)
    assert occupied.sum() > 4
    _, _, expected = jax.vmap(score, in_axes=(0, None))(repertoire.genotypes, None)
    assert set(repertoire.extras) == {"sum", "pair", "whole"}
    for name, values in repertoire.extras.items():
        assert values.dtype == expected[name].dtype
        np.testing.assert_allclose(values[occupied], expected[name][occupied], rtol=1e-6)
        assert not np.asarray(values[~occupied]).any()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A run on disk: its folder, its program and its result."""
    folder, program = tmp_path_factory.mktemp("extras") / "run", map_elites(SCORING, CELLS)
    return folder, program, rookery.run(program, run_dir=folder, generations=2, quiet=True)


@pytest.mark.parametrize("rule", ["novelty", "thresholds"])
def test_every_elite_keeps_its_own_values(rule):
    program = map_elites(SCORING, RULES[rule])
    state, step = jax.jit(program.init)(jax.random.key(0)), jax.jit(program.step)
    for generation in range(2):
        state, _ = step(state, jax.random.key(1 + generation))
    check(repertoire_of(state))


def test_they_are_read_from_a_run(found):
    folder, program, _ = found
    repertoire = rookery.experiments.repertoire(folder, program)
    check(repertoire)
    cell = int(jnp.argmax(repertoire.fitnesses))
    assert elite(repertoire, cell).extras["pair"].tolist() == repertoire.extras["pair"][cell].tolist()
    with (folder / "repertoire.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [name for name in rows[0] if name.startswith("extra")] == ["extra/sum", "extra/whole"]
    assert float(rows[cell]["extra/sum"]) == pytest.approx(float(repertoire.extras["sum"][cell]))


def test_they_are_saved_and_loaded(found, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    repertoire = repertoire_of(found[2].state)
    rookery.experiments.save_repertoire("~/elites", repertoire, SCORING)
    loaded = rookery.experiments.load_repertoire(tmp_path / "elites", SCORING)
    jax.tree.map(np.testing.assert_array_equal, loaded, repertoire)


def test_another_program_starts_with_them(found):
    repertoire, program = repertoire_of(found[2].state), map_elites(SCORING, grid((5, 5), (0.0, 0.0), (1.0, 1.0)))
    check(repertoire_of(jax.jit(begin_with(program, repertoire).init)(jax.random.key(0))))
    genotypes = repertoire.genotypes[repertoire.occupied]
    check(repertoire_of(jax.jit(begin_from(program, SCORING, genotypes).init)(jax.random.key(0))))
    without = begin_with(program, repertoire._replace(extras={}))
    with pytest.raises(ValueError, match="the elites lack pair and sum and whole, which this repertoire stores"):
        without.init(jax.random.key(0))
    plain = function_scoring(lambda genotype, key: score(genotype, key)[:2], uniform, (0.0, 0.0), (1.0, 1.0))
    begun = jax.jit(begin_with(map_elites(plain, CELLS), repertoire).init)(jax.random.key(0))
    assert repertoire_of(begun).extras == {}


def test_values_of_the_episodes_of_agents_with_skills(tmp_path):
    """Those of every episode do not hold an evaluation of more episodes back."""
    env = rookery.skills(rookery.make("point_room", episode_length=2), num_skills=2)
    agent = rookery.diayn(rookery.td3(env.spec, hidden_sizes=(2,)), env.spec, discriminator_hidden_sizes=(2,))
    config = OffPolicyConfig(2, 2, batch_size=2, buffer_size=4, warmup_steps=0, eval_episodes=2, start_states=2)
    agents = learner_scoring(rookery.off_policy(agent, env, config))
    scoring = with_extras(agents, lambda found: {"fitness": found.fitness, "all": found.returns})
    program = map_elites(scoring, grid((2, 2), (-1, -1), (1, 1)), iso_line(scoring, 2))
    repertoire = repertoire_of(rookery.run(program, generations=1, quiet=True, run_dir=tmp_path).state)
    assert repertoire.occupied.any()
    expected = jnp.where(repertoire.occupied, repertoire.fitnesses, 0.0)
    np.testing.assert_allclose(repertoire.extras["fitness"], expected, rtol=1e-6)
    assert repertoire.extras["all"].shape == (4, 2)
    found = rookery.load(tmp_path, program=program).evaluate(episodes=4)
    assert found["returns"].shape == (4, 4)
    assert "best_member" not in found


def test_what_is_stored_has_names():
    def nameless(genotype, _) -> Any:
        return genotype.sum(), genotype[:2], genotype.max()

    def lengths(evaluation) -> Any:
        return evaluation.lengths

    policies = policy_scoring(rookery.make("point_room", episode_length=5), PolicyConfig((4,)))
    for scoring in (function_scoring(nameless, uniform, (0.0, 0.0), (1.0, 1.0)), with_extras(policies, lengths)):
        with pytest.raises(TypeError, match=r"^what is stored with an elite must be a dictionary of numbers or arrays"):
            map_elites(scoring, CELLS).init(jax.random.key(0))
