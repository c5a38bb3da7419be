"""The contract of emitters: batches, initial genotypes for an empty repertoire, keys, and rows of a mixture."""

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import trees
from rookery.envs import registry
from rookery.learners.base import EvaluationConfig, Evaluator
from rookery.learners.evaluation import evaluate
from rookery.populations.base import member_keys
from rookery.qd import repertoire as repertoires
from rookery.qd.base import Emitter, EmitterState, Scoring
from rookery.qd.centroids import grid
from rookery.qd.cma.config import CmaMaeConfig
from rookery.qd.cma.emitter import cma_mae
from rookery.qd.emitters import iso_line, mix
from rookery.qd.pbt_emitter import pbt_emitter
from rookery.qd.policy_gradient.config import DcrlMeConfig
from rookery.qd.policy_gradient.factories import dcrl_me
from rookery.qd.repertoire import Added, Repertoire
from rookery.qd.scoring import PolicyConfig, function_scoring, learner_scoring, policy_scoring
from rookery.qd.variation import VariationConfig
from rookery.types import Evaluation, Genotype
from tests import tiny, walks
from tests.tiny import compiled

LEARNER = walks.learner(descriptor=True)
AGENTS = learner_scoring(LEARNER)


def minus_square(genotype, key):
    del key
    return -jnp.sum(genotype["x"] ** 2), genotype["x"][:2]


def init_genotype(key):
    return {"x": jax.random.normal(key, (3,)), "number": jnp.asarray(4, jnp.int32)}


FUNCTION = function_scoring(minus_square, init_genotype, (-2.0, -2.0), (2.0, 2.0))
KEY = jax.random.key(0)


BOLD = VariationConfig(0.5, 0.5)


def init_vector(key):
    return jax.random.normal(key, (4,))


def minus_length(genotype, key):
    del key
    return -jnp.sum(jnp.abs(genotype)), genotype[:2]


SMOOTH = function_scoring(minus_length, init_vector, (-2.0, -2.0), (2.0, 2.0))
POLICY = PolicyConfig(hidden_sizes=(4,))
ROOM = policy_scoring(
    registry.make("point_room", episode_length=4), POLICY, EvaluationConfig(eval_episodes=1, start_states=2)
)
RECORDED = partial(evaluate, cast(Evaluator, ROOM.evaluator), record=True)
GRADIENTS = {"critic_steps": 2, "policy_gradient_steps": 2, "gradient_batch_size": 4, "buffer_size": 64}
DCRL_ME = DcrlMeConfig(**GRADIENTS, critic_hidden_sizes=(4,))


POPULATION = pbt_emitter(LEARNER, AGENTS, population_size=4, ga_population=6)
SUITE = {
    "iso_line": (compiled(iso_line(FUNCTION, 8)), FUNCTION),
    "cma_mae": (compiled(cma_mae(SMOOTH, 12, CmaMaeConfig(emitters=2))), SMOOTH),
    "dcrl_me and iso_line": (compiled(mix([dcrl_me(ROOM, 8, DCRL_ME, POLICY), iso_line(ROOM, 3, BOLD)])), ROOM),
    "pbt and iso_line": (compiled(mix([POPULATION, iso_line(AGENTS, 5, BOLD)])), AGENTS),
}


@pytest.fixture(scope="module", params=SUITE)
def case(request):
    """An emitter, its scoring, its first state and a bank."""
    emitter, scoring = SUITE[request.param]
    bank = jax.jit(scoring.start_states)(jax.random.key(9))
    state = emitter.init(jax.random.key(8), bank)
    if emitter.learns_from_transitions:  # begin with the transitions of a generation
        state, proposals, _ = emitter.ask(state, repertoire_of(scoring, bank, 0), bank, jax.random.key(5))
        state, _ = emitter.tell(state, *evaluator(scoring, proposals, bank))
    return emitter, scoring, state, bank


def repertoire_of(scoring: Scoring, bank, count: int) -> Repertoire:
    """A repertoire with `count` initial genotypes at the centres of as many cells; fitness is the cell's number."""
    return repertoire_with(scoring.init_genotype, scoring.descriptor, bank, count)


@partial(jax.jit, static_argnums=(0, 1))
def repertoire_with(init_genotype, descriptor, bank, count) -> Repertoire:
    centroids = grid((4, 4), descriptor.lower, descriptor.upper)
    rows = jax.vmap(init_genotype, in_axes=(0, None))(member_keys(jax.random.key(7), 16), bank)
    cells = jnp.arange(16)
    fitness = jnp.where(cells < count, cells.astype(jnp.float32), jnp.nan)
    return repertoires.add(repertoires.empty(trees.take(rows, 0), centroids), rows, fitness, centroids)[0]


def evaluator(scoring: Scoring, proposals, bank) -> tuple[Evaluation, Added]:
    score = RECORDED if scoring is ROOM else scoring.evaluate
    return evaluated(score, proposals, bank, repertoire_of(scoring, bank, 0))


@partial(jax.jit, static_argnums=0)
def evaluated(score, proposals, bank, repertoire) -> tuple[Evaluation, Added]:
    keys = member_keys(jax.random.key(6), len(jax.tree.leaves(proposals)[0]))
    evaluation = jax.vmap(score, in_axes=(0, None, 0))(proposals, bank, keys)
    _, added = repertoires.add(repertoire, proposals, evaluation.fitness, evaluation.descriptor)
    return evaluation, added


def rows_of(tree) -> list[bytes]:
    """Each row's floating-point leaves, hyper-parameters left out."""
    tree = tree.params if isinstance(tree, Genotype) else tree
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree) if leaf.dtype == jnp.float32]
    return [b"".join(leaf[row].tobytes() for leaf in leaves) for row in range(len(leaves[0]))]


@pytest.mark.parametrize("elites", [0, 1])
def test_contract(case, elites):
    """Finite genotypes that differ and depend on the key; neither `ask` nor `tell` changes its arguments."""
    emitter, scoring, state, bank = case
    given = (state, repertoire_of(scoring, bank, elites), bank)
    before = jax.tree.map(np.array, given)
    after, proposals, metrics = emitter.ask(*given, KEY)
    tiny.assert_equal(given, before)
    tiny.assert_equal((after, proposals, metrics), emitter.ask(*given, KEY))
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for value in metrics.values():
        assert value.shape in ((), (emitter.population_size,))

    expected = jax.eval_shape(scoring.init_genotype, KEY, bank)
    assert jax.tree.structure(proposals) == jax.tree.structure(expected)
    for leaf, one in zip(jax.tree.leaves(proposals), jax.tree.leaves(expected), strict=True):
        assert (leaf.shape, leaf.dtype) == ((emitter.batch_size, *one.shape), one.dtype)
        assert np.isfinite(leaf).all()
    rows = set(rows_of(proposals))
    least = emitter.batch_size - (scoring is ROOM)  # two actors of DCRL-ME may have the same elite's descriptor
    assert len(rows) >= least
    assert not rows & set(rows_of(emitter.ask(*given, jax.random.key(2))[1]))

    results = evaluator(scoring, proposals, bank)
    before = jax.tree.map(np.array, (after, results))
    after_tell = emitter.tell(after, *results)
    tiny.assert_equal((after, results), before)
    tiny.assert_equal(after_tell, emitter.tell(after, *results))
    assert jax.tree.structure(after_tell[0]) == jax.tree.structure(state)
    assert ("fitness" in after_tell[1]) == (emitter.population_size > 0)
    if emitter.population_size:
        assert after_tell[1]["fitness"].shape == (emitter.population_size,)


class TestIsoLine:
    def test_a_single_elite_is_both_parents(self):
        emitter = compiled(iso_line(FUNCTION, 64, VariationConfig(0.01, 1.0)))
        repertoire = repertoire_of(FUNCTION, (), 1)
        _, proposals, _ = emitter.ask(EmitterState((), ()), repertoire, (), KEY)
        noise = np.asarray(proposals["x"] - repertoire.genotypes["x"][:1])
        assert 0 < abs(noise).max() < 0.06, "no line between twins, and nothing of an empty cell's zeros"
        assert (abs(proposals["number"] - 4) <= 1).all()

    def test_both_parents_come_from_all_occupied_cells(self):
        emitter = compiled(iso_line(FUNCTION, 400, VariationConfig(0.0, 0.0)))
        repertoire = repertoire_of(FUNCTION, (), 5)
        _, proposals, _ = emitter.ask(EmitterState((), ()), repertoire, (), KEY)
        same = (proposals["x"][:, None] == repertoire.genotypes["x"][None, :5]).all(axis=2)  # [B, elites]
        assert (jnp.sum(same, axis=1) == 1).all()
        assert (abs(jnp.sum(same, axis=0) - 80) < 5 * 8).all()  # five standard deviations
        lines = compiled(iso_line(FUNCTION, 400, VariationConfig(0.0, 1.0)))
        _, proposals, _ = lines.ask(EmitterState((), ()), repertoire, (), KEY)
        moved = proposals["x"] != repertoire.genotypes["x"][jnp.argmax(same, axis=1)]
        assert 0.7 < float(jnp.mean(moved.any(axis=1))) < 0.9, "a fifth of the pairs are twins"


def floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def recording_emitter(offset: float, batch_size: int) -> Emitter:
    """An emitter that proposes its number, reports the fitness that it receives, and sums it in its state."""

    def init(key, bank):
        del key, bank
        return EmitterState((), jnp.asarray(offset))

    def ask(state, repertoire, bank, key):
        del repertoire, bank, key
        return state, jnp.full((batch_size,), offset), {"requested": jnp.asarray(offset)}

    def tell(state, evaluation, added):
        del added
        heard = {"heard": jnp.sum(evaluation.fitness), "rows": jnp.sum(jnp.ones_like(evaluation.fitness))}
        return EmitterState(state.members, state.shared + jnp.sum(evaluation.fitness)), heard

    return Emitter(init, ask, tell, batch_size, steps=batch_size)


class TestMix:
    def test_each_emitter_receives_the_evaluation_of_its_rows_only(self):
        emitter = mix([recording_emitter(1.0, 2), recording_emitter(10.0, 3), recording_emitter(100.0, 1)])
        assert (emitter.batch_size, emitter.steps, emitter.population_size) == (6, 6, 0)
        state = emitter.init(KEY, ())
        assert state.shared == (1.0, 10.0, 100.0)
        state, proposals, requested = emitter.ask(state, repertoire_of(FUNCTION, (), 0), (), KEY)
        assert proposals.tolist() == [1.0, 1.0, 10.0, 10.0, 10.0, 100.0]
        assert floats(requested) == {"requested": 1.0, "1/requested": 10.0, "2/requested": 100.0}
        fitness = jnp.asarray([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
        lengths, broken = jnp.ones((6, 1), jnp.int32), jnp.zeros(6, jnp.int32)
        evaluation = Evaluation(fitness, jnp.zeros((6, 2)), fitness[:, None], lengths, broken)
        state, after_tell = emitter.tell(state, evaluation, Added(broken, broken, broken > 0, broken > 0, fitness))
        heard = {"heard": 3.0, "1/heard": 28.0, "2/heard": 32.0}
        assert floats(after_tell) == heard | {"rows": 2.0, "1/rows": 3.0, "2/rows": 1.0}
        assert [float(shared) for shared in state.shared] == [4.0, 38.0, 132.0]

    def test_the_tables_are_those_of_the_first_emitter_with_a_population(self):
        alone, evolved = recording_emitter(1.0, 2), recording_emitter(10.0, 3)._replace(population_size=6)
        emitter = mix([alone, evolved, recording_emitter(100.0, 1)._replace(population_size=4)])
        assert emitter.population_size == 2, "what divides both"
        _, _, requested = emitter.ask(emitter.init(KEY, ()), repertoire_of(FUNCTION, (), 0), (), KEY)
        assert floats(requested) == {"requested": 10.0, "0/requested": 1.0, "2/requested": 100.0}
        with pytest.raises(ValueError, match="mix needs at least one emitter"):
            mix([])
        for other in (iso_line(FUNCTION, 4), [iso_line(FUNCTION, 4), None]):
            with pytest.raises(TypeError, match="mix takes a list of emitters"):
                mix(cast("Any", other))
        with pytest.raises(TypeError, match="batch_size must be a whole number, got '60'"):
            cma_mae(FUNCTION, cast("Any", "60"))

    def test_equal_emitters_in_a_mixture_draw_differently(self):
        emitter = compiled(mix([iso_line(FUNCTION, 4), iso_line(FUNCTION, 4)]))
        for elites in (0, 5):
            _, proposals, _ = emitter.ask(emitter.init(KEY, ()), repertoire_of(FUNCTION, (), elites), (), KEY)
            assert len(set(rows_of(proposals))) == 8
