"""MAP-Elites as a program: on functions with known values, on policies, and in a run directory."""

from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import trees
from rookery.envs import base as envs
from rookery.envs import registry
from rookery.envs.base import Environment, EnvSpec
from rookery.envs.wrappers import auto_reset, time_limit
from rookery.learners import evaluation
from rookery.learners.base import EvaluationConfig
from rookery.qd import centroids, scoring
from rookery.qd.archives import annealed, dominated_novelty
from rookery.qd.centroids import grid
from rookery.qd.cma.config import CmaMaeConfig
from rookery.qd.cma.emitter import cma_mae
from rookery.qd.emitters import iso_line, mix
from rookery.qd.map_elites import bounded, map_elites, repertoire_of
from rookery.qd.scoring import PolicyConfig, function_scoring, host_scoring, learner_scoring, policy_scoring
from rookery.qd.variation import VariationConfig
from rookery.storage.csv_log import read_csv
from rookery.storage.events import Diverged
from rookery.types import Array, Genotype, Observation
from tests import tiny, walks

NAN = np.nan
GRID = grid((8, 8), (-1.0, -1.0), (1.0, 1.0))


def bowl(x, key):
    """The optimum is in the middle."""
    del key
    return -jnp.sum(jnp.square(x)), x[:2]


def seldom_feasible(x, key):
    """Fitness is finite in 3 % of the space."""
    fitness, descriptor = bowl(x, key)
    return jnp.where(x[2] < 0.84, NAN, fitness), descriptor


def nothing(x, key):
    del key
    return jnp.full((), NAN), x[:2]


def init_genotype(key):
    return jax.random.uniform(key, (3,), minval=-0.9, maxval=0.9)


def program_of(score, batch: int = 24, init=init_genotype):
    searched = function_scoring(score, init, (-1.0, -1.0), (1.0, 1.0), qd_offset=-3.0, bounds=(-1.0, 1.0))
    return map_elites(searched, GRID, iso_line(searched, batch, VariationConfig(0.3, 0.5)))


def run(program, generations: int, seed: int = 0, **options) -> Any:
    """A run; without options only the functions of the program, which compile faster, with the keys of a run."""
    if options:
        return rookery.run(program, generations=generations, seed=seed, **{"quiet": True, **options})
    init_key, run_key = jax.random.split(jax.random.key(seed))
    state, step, history = jax.jit(program.init)(init_key), jax.jit(program.step), []
    for generation in range(generations):
        state, metrics = step(state, jax.random.fold_in(run_key, generation))
        history.append(jax.device_get(metrics))
    return SimpleNamespace(state=state, history=history)


@pytest.fixture(scope="module")
def bowl_run():
    return run(program_of(bowl), 12)


class TestProgram:
    def test_the_stored_values_of_every_elite_are_those_of_its_genotype(self, bowl_run):
        repertoire = repertoire_of(bowl_run.state)
        x, occupied = np.asarray(repertoire.genotypes), np.asarray(repertoire.occupied)
        assert 24 < occupied.sum() < 64
        assert abs(x).max() == 1.0, "bounds are kept, and were needed"
        np.testing.assert_allclose(repertoire.fitnesses[occupied], -np.sum(x[occupied] ** 2, axis=1), rtol=1e-5)
        assert np.array_equal(repertoire.descriptors[occupied], x[occupied][:, :2])
        home = centroids.nearest(repertoire.descriptors, GRID)
        assert jnp.array_equal(home[occupied], np.flatnonzero(occupied))
        assert not x[~occupied].any()

    def test_fitness_never_falls_and_additions_are_counted(self, bowl_run):
        history = bowl_run.history
        assert history[0]["fitness"].shape == (24,)
        for name in ("coverage", "max_fitness", "qd_score"):
            values = [metrics[name] for metrics in history]
            assert values == sorted(values)
        assert history[-1]["coverage"] > 1.5 * history[0]["coverage"]
        assert sum(metrics["added"] for metrics in history) == repertoire_of(bowl_run.state).occupied.sum()
        assert sum(metrics["improved"] for metrics in history) > 0
        assert all(metrics["rejected"] == metrics["outside"] == 0 for metrics in history)
        assert all(metrics["evaluation_steps"] == 24 for metrics in history)

    def test_an_empty_repertoire_ends_the_run_after_the_patience(self, capsys):
        with pytest.raises(Diverged, match=r"nothing was finite in 3 generations, and .* raise patience\.$"):
            rookery.run(program_of(nothing), generations=5, patience=3)
        lines = [line for line in capsys.readouterr().out.splitlines() if "steps/s" in line]
        assert len(lines) == 3
        assert "repertoire empty for 3 of at most 3 generations" in lines[-1]
        with pytest.raises(ValueError, match="patience has an effect only on a repertoire"):
            run(rookery.pbt(walks.learner(), population_size=4), 1, patience=7)

    def test_an_empty_repertoire_proposes_initial_genotypes_until_one_is_feasible_also_after_a_stop(self, tmp_path):
        searched = function_scoring(seldom_feasible, init_genotype, (-1.0, -1.0), (1.0, 1.0), bounds=(-1.0, 1.0))
        program = map_elites(searched, GRID, iso_line(searched, 4))
        begun = run(program, 2, seed=2, run_dir=str(tmp_path / "run"))
        resumed = run(program, 40, seed=2, resume=True, run_dir=str(tmp_path / "run"))
        assert [metrics["coverage"] for metrics in begun.history] == [0.0, 0.0]
        assert resumed.history[-1]["coverage"] > 0.0

    def test_bounds_apply_to_all_numbers_and_a_non_finite_genotype_is_rejected_whatever_its_fitness(self):
        def init(key):
            numbers = {"choice": jax.random.randint(key, (), 0, 9), "flag": jnp.asarray(True)}
            return {"x": init_genotype(key), "unused": jnp.where(jax.random.bernoulli(key), NAN, 0.0), **numbers}

        def score(genotype, key):
            fitness, descriptor = bowl(genotype["x"], key)
            return jnp.where(genotype["x"][1] < 0, NAN, fitness), descriptor

        result = run(program_of(score, init=init), 6)
        repertoire = repertoire_of(result.state)
        genotypes = repertoire.genotypes
        assert 0 < result.history[0]["rejected"] < 24
        for metrics in result.history:
            assert metrics["rejected"] == np.isnan(metrics["fitness"]).sum()
        assert (genotypes["x"][:, 1] >= 0).all()
        assert jnp.isfinite(repertoire.fitnesses[repertoire.occupied]).all()
        assert trees.all_finite(genotypes)
        assert genotypes["choice"].dtype == jnp.int32
        assert set(genotypes["choice"].tolist()) <= {-1, 0, 1}
        assert genotypes["flag"].dtype == bool
        assert float(abs(genotypes["x"]).max()) <= 1.0

    def test_a_search_over_whole_numbers_spreads(self):
        def score(genotype, key):
            return -jnp.abs(genotype.astype(jnp.float32) - 3.0).sum(), genotype[:2].astype(jnp.float32)

        def init(key):
            return jax.random.randint(key, (6,), 0, 2).astype("uint8")

        searched = function_scoring(score, init, (0.0, 0.0), (9.0, 9.0), bounds=(-0.5, 9.5))
        result = run(map_elites(searched, grid((10, 10), (0.0, 0.0), (9.0, 9.0)), iso_line(searched, 32)), 60)
        assert repertoire_of(result.state).genotypes.dtype == "uint8"
        assert result.history[-1]["coverage"] > 3 * result.history[0]["coverage"]
        assert result.history[-1]["max_fitness"] > result.history[0]["max_fitness"]

    def test_centroids_that_do_not_fit(self):
        searched = function_scoring(bowl, init_genotype, (-1.0, -1.0), (1.0, 1.0))
        for shape in ((64, 3), (0, 2), (64,)):
            with pytest.raises(ValueError, match=r"centroids must be \[C, 2\] with at least one cell"):
                map_elites(searched, jnp.zeros(shape))
        masked = np.ma.array(np.eye(2), mask=np.eye(2, dtype=bool))
        for cells in (jnp.zeros((4, 2)).at[3, 0].set(jnp.nan), masked, [[0.0, 1e300], [1.0, 1.0]]):
            for archive in (lambda cells: cells, annealed, dominated_novelty):
                with pytest.raises(ValueError, match="centroids must be finite"):
                    map_elites(searched, archive(cast(Any, cells)))
        made = map_elites(searched, cast(Any, [[0.0, 0.0], [0.5, 0.5]]))
        assert made.archive is not None
        assert made.archive.centroids.shape == (2, 2)


class TestHostScoring:
    LIMITS = (-1.0, -1.0), (1.0, 1.0)

    def test_a_function_of_the_host_gives_the_repertoire_of_one_in_jax(self):
        calls = []

        def on_host(genotypes, seeds):
            assert isinstance(genotypes["x"], np.ndarray)
            assert (seeds.dtype, len(set(seeds.tolist()))) == (np.uint32, len(seeds))
            calls.append(genotypes["x"].shape)
            return genotypes["x"].max(axis=1), genotypes["x"][:, :2]

        def init(key):
            return {"x": init_genotype(key)}

        def in_jax(genotype, key):
            return genotype["x"].max(), genotype["x"][:2]

        cells = grid((4, 4), *self.LIMITS)
        searched = host_scoring(on_host, init, *self.LIMITS), function_scoring(in_jax, init, *self.LIMITS)
        states = [run(map_elites(scoring, cells, iso_line(scoring, 6)), 3).state for scoring in searched]
        tiny.assert_equal(*map(repertoire_of, states))
        assert all(size > 1 for size, _ in calls), "a batch at once, or the share of a device"

    def test_scores_of_other_shapes(self):
        message = r"fitnesses \[6\] and descriptors \[6, 2\] for 6 genotypes, got the shapes "
        given = np.zeros((2, 3, 4)), jnp.zeros((2, 3), jnp.uint32)
        for fitness, descriptor in ((5, (6, 2)), (6, (6, 3))):
            with pytest.raises(ValueError, match=message):
                scoring._score_batch(lambda *_, f=fitness, d=descriptor: (np.zeros(f), np.zeros(d)), 2, *given)
        for nothing in (None, np.zeros(6), (np.zeros(6),)):
            with pytest.raises(ValueError, match=r"must return fitnesses and descriptors, got (None|an object)"):
                scoring._score_batch(lambda *_, nothing=nothing: nothing, 2, *given)

    def test_masked_scores_are_missing(self):
        masked = np.ma.array([1.0, 9.0], mask=[False, True]), np.ma.array(np.zeros((2, 1)), mask=[[True], [False]])
        fitness, descriptors = scoring._score_batch(lambda *_: masked, 1, np.zeros((2, 4)), jnp.zeros(2, jnp.uint32))
        assert np.isnan(fitness).tolist() == [False, True]
        assert np.isnan(descriptors).tolist() == [[True], [False]]


class TestEvaluate:
    def test_every_elite_is_evaluated_on_new_episodes_and_no_empty_cell(self, bowl_run):
        evaluate = jax.jit(program_of(bowl, batch=10).evaluate)  # in batches that do not divide the elites
        before = jax.tree.map(np.array, bowl_run.state)
        evaluated = evaluate(bowl_run.state, jax.random.key(5))
        repertoire = repertoire_of(bowl_run.state)
        occupied = np.asarray(repertoire.occupied)
        assert np.isnan(evaluated["fitness"]).tolist() == (~occupied).tolist()
        np.testing.assert_allclose(evaluated["fitness"][occupied], repertoire.fitnesses[occupied], rtol=1e-5)
        assert jnp.array_equal(evaluated["descriptor"][occupied], repertoire.descriptors[occupied])
        assert jnp.array_equal(evaluated["stored_fitness"], repertoire.fitnesses)
        for name in ("coverage", "qd_score", "max_fitness"):
            np.testing.assert_allclose(evaluated[f"corrected/{name}"], evaluated[f"stored/{name}"], rtol=1e-5)
        tiny.assert_equal(bowl_run.state, before)
        evaluated = evaluate(bowl_run.state._replace(cells=jnp.full_like(bowl_run.state.cells, 0.3)), jax.random.key(5))
        assert (evaluated["descriptor"][occupied] == 0.3).all()
        np.testing.assert_allclose(evaluated["corrected/coverage"], 100 / 64, rtol=1e-6)
        np.testing.assert_allclose(evaluated["corrected/qd_score"], 3.0 - 0.27, rtol=1e-5)
        assert evaluated["stored/coverage"] > 50


class TestRunFolder:
    def test_the_table_is_the_repertoire(self, tmp_path):
        whole = run(program_of(bowl), 12, run_dir=str(tmp_path / "whole"), checkpoint_every=5)
        assert not (tmp_path / "whole/lineage.csv").exists()

        cells = read_csv(tmp_path / "whole/cells.csv")
        assert sorted(set(cells["generation"].tolist())) == [4, 9, 11], "whenever it was saved"
        first = cells["cell"][cells["generation"] == 4]
        assert len(first) == len(set(first.tolist())) > 0

        repertoire, table = repertoire_of(whole.state), read_csv(tmp_path / "whole/repertoire.csv")
        last = dict(zip(cells["cell"].tolist(), cells["fitness"].tolist(), strict=True))
        occupied = np.flatnonzero(repertoire.occupied)
        assert last == dict(zip(occupied.tolist(), table["fitness"][occupied].tolist(), strict=True))
        occupied = np.asarray(repertoire.occupied)
        assert table["cell"].tolist() == list(range(64))
        assert table["fitness"].tolist() == repertoire.fitnesses.tolist()
        for axis in range(2):
            assert table[f"centroid/{axis}"].tolist() == GRID[:, axis].tolist()
            assert table[f"descriptor/{axis}"][occupied].tolist() == repertoire.descriptors[occupied, axis].tolist()
            assert np.isnan(table[f"descriptor/{axis}"][~occupied]).all()


FEW = EvaluationConfig(eval_episodes=3, start_states=3)


def three_ways(episode_length: int = 4, allowed: Array | None = None) -> Environment:
    """Three actions, of which a mask may allow some; the reward is the action, the descriptor is the start state."""

    def reset(key):
        place = jax.random.uniform(key, (1,))
        return place, envs.first_step(place, place, allowed)

    def step(state, action, key):
        del key
        place = state
        return place, envs.next_step(place, action.astype(jnp.float32), jnp.asarray(False), place, allowed)

    where = envs.descriptor_spec("start", "final", (0.0,), (9.0,))
    spec = EnvSpec("three_ways", 1, 3, episode_length, True, descriptor=where, masked=allowed is not None)
    return time_limit.limit_episode(Environment(reset, step, spec), episode_length)


class TestScoring:
    def test_a_task_without_a_descriptor_or_of_several_agents_is_an_error(self):
        with pytest.raises(ValueError, match="probe_value has no descriptor, which quality diversity needs; tasks"):
            policy_scoring(registry.make("probe_value"))
        with pytest.raises(ValueError, match="line has no descriptor"):
            learner_scoring(walks.learner())
        with pytest.raises(ValueError, match="pursuit_discrete is a multi-agent environment with 2 agents"):
            policy_scoring(registry.make("pursuit_discrete"))

    def test_a_policy_takes_only_actions_that_the_mask_allows(self):
        searched = policy_scoring(three_ways(allowed=jnp.arange(3) == 1), PolicyConfig((2,)), FEW)
        bank, evaluate = searched.start_states(jax.random.key(0)), jax.jit(searched.evaluate)
        for seed in range(6):
            policy = searched.init_genotype(jax.random.key(seed), bank)
            assert evaluate(policy, bank, jax.random.key(0)).fitness == 4.0

    def test_a_policy_of_discrete_actions_acts_with_the_index_of_its_largest_output(self):
        searched = policy_scoring(three_ways(), PolicyConfig((2,)), FEW)
        bank = searched.start_states(jax.random.key(0))
        evaluate = jax.jit(searched.evaluate)
        policies = [searched.init_genotype(jax.random.key(seed), bank) for seed in range(12)]
        fitnesses = {float(evaluate(policy, bank, jax.random.key(0)).fitness) for policy in policies}
        assert fitnesses <= {sum(actions) / 3 for actions in np.ndindex(9, 9, 9)}
        assert len(fitnesses) > 1

    def test_the_measures_of_every_child_are_metrics(self):
        environment = three_ways()

        def measured(stepped: tuple) -> tuple:
            return stepped[0], stepped[1]._replace(measures={"squares": stepped[1].reward ** 2})

        environment = environment._replace(
            spec=environment.spec._replace(measures={"squares": "of the rewards"}),
            reset=lambda key: measured(three_ways().reset(key)),
            step=lambda *arguments: measured(three_ways().step(*arguments)),
        )
        one = EvaluationConfig(eval_episodes=1, start_states=1, objective="squares")
        searched = policy_scoring(environment, PolicyConfig((2,)), one)
        program = map_elites(searched, grid((4,), (0.0,), (9.0,)), iso_line(searched, 3))
        metrics = run(program, 1).history[0]
        squares = metrics["return"] ** 2 / 4  # of four equal rewards
        np.testing.assert_array_equal(metrics["measure/squares"], squares)
        np.testing.assert_array_equal(metrics["fitness"], squares)

    @pytest.mark.parametrize(("summary", "expected"), [("mean", 2.0), ("median", 1.0)])
    def test_how_three_episodes_become_one_descriptor(self, summary, expected):
        environment = three_ways()
        config = EvaluationConfig(eval_episodes=3, start_states=3, eval_descriptor=summary)
        (_, time), step = auto_reset.start_bank(environment, jax.random.key(0), 3)
        places = jnp.asarray([[5.0], [0.0], [1.0]])
        bank = (
            time_limit.TimeLimitState(places, time),
            step._replace(observation=Observation(places), descriptor=places),
        )

        def act(params, observation):
            del params
            return (observation.features[0] > 0.5).astype(jnp.int32)

        result = evaluation.evaluate(
            evaluation.evaluator(act, environment, config), Genotype((), (), None), bank, jax.random.key(0)
        )
        assert result.descriptor.tolist() == [expected]
        assert result.returns.tolist() == [4.0, 0.0, 4.0]
        assert result.lengths.tolist() == [4, 4, 4]

    def test_invalid_settings_are_errors(self):
        with pytest.raises(ValueError, match=r"start_states must be at least eval_episodes \(10\), got 3"):
            EvaluationConfig(start_states=3)
        for lower, upper in (((), ()), ((0.0,), (1.0, 2.0)), ((0.0, 1.0), (1.0, 1.0))):
            with pytest.raises(ValueError, match="descriptor 'descriptor' needs"):
                function_scoring(bowl, init_genotype, lower, upper)

    def test_the_worst_return_is_the_offset_in_every_step(self):
        assert scoring.worst_return(EnvSpec("mine", 1, 1, episode_length=50, qd_offset=2.0)) == -100.0


def shapes_of(program) -> Any:
    """Trace a generation."""
    return jax.eval_shape(program.step, jax.eval_shape(program.init, jax.random.key(0)), jax.random.key(0))


@pytest.mark.parametrize("name", ["env_steps", "coverage"])  # a column of every run, one of a repertoire
def test_a_metric_of_an_emitter_cannot_replace_a_column(name):
    searched = function_scoring(bowl, lambda key: jax.random.normal(key, (2,)), (-1.0, -1.0), (1.0, 1.0))
    emitter = iso_line(searched, 4)

    def ask(*inputs):
        state, genotypes, metrics = emitter.ask(*inputs)
        return state, genotypes, {**metrics, name: jnp.float32(0.5)}

    with pytest.raises(ValueError, match=f"^the metric of the emitter '{name}' needs another name"):
        shapes_of(map_elites(searched, GRID, emitter._replace(ask=ask)))


@pytest.mark.parametrize("bounds", [(5.0, -5.0), (np.nan, 1.0), (0.0, 1e39), (-3e38, 3e38), (1.0,)])
def test_bounds_are_two_finite_numbers(bounds):
    with pytest.raises(ValueError, match=r"^bounds must be two finite numbers, the lower one first, got "):
        function_scoring(bowl, lambda _: jnp.zeros(2), (0.0,), (1.0,), bounds=bounds)


def test_initial_genotypes_come_from_a_function():
    batch: Any = jnp.zeros((100, 2))  # as QDax takes them
    with pytest.raises(TypeError, match=r"^init must be a function from a key to one genotype, got an object of type"):
        function_scoring(bowl, batch, (0.0,), (1.0,))


def test_whole_numbers_are_clipped_to_those_inside_the_bounds():
    clipped = bounded(jnp.asarray([0, 7, 4_000_000_000], jnp.uint32), (1.0, 5e9))
    assert clipped.dtype == jnp.uint32
    assert clipped.tolist() == [1, 7, 4_000_000_000]
    with pytest.raises(ValueError, match=r"whole numbers of type int32, but the bounds \(0\.2, 0\.8\) have none"):
        bounded(jnp.asarray([0]), (0.2, 0.8))


def test_an_emitter_of_another_search_or_batch_is_one_sentence():
    searched, other = (
        function_scoring(bowl, lambda key, size=size: jax.random.normal(key, (size,)), (-1.0, -1.0), (1.0, 1.0))
        for size in (2, 3)
    )
    one = iso_line(searched, 4)
    rows = r"proposes genotypes of the shapes \(4, 2\), but the search needs \(9, 2\); "
    shapes = r"proposes genotypes of the shapes \(\d, 3\), but the search needs \(\d, 2\); "
    for emitter, message in (
        (one._replace(batch_size=9), rows),
        (iso_line(other, 4), shapes),
        (mix([one, iso_line(other, 4)]), shapes),
        (cma_mae(other, 4, CmaMaeConfig(emitters=1)), shapes),
        (one._replace(batch_size=0), "batch_size must be at least 1"),
        (mix([iso_line(searched, 2**31 - 1)] * 2), "batch_size must be at most 2147483647"),
    ):
        with pytest.raises(ValueError, match=rf"^[^\n]*{message}"):
            shapes_of(map_elites(searched, GRID, emitter))


@pytest.mark.parametrize("in_mixture", [False, True])
def test_an_emitter_that_returns_something_else_is_one_sentence(in_mixture):
    searched = function_scoring(bowl, lambda key: jax.random.normal(key, (2,)), (-1.0, -1.0), (1.0, 1.0))
    emitter, genotypes = iso_line(searched, 4), jnp.zeros((4, 2))
    for changed, message in (
        ({"init": lambda *_: None}, "init of the emitter must return an EmitterState, got None"),
        (
            {"ask": lambda *_: genotypes},
            "ask of the emitter must return an EmitterState and genotypes and metrics, got",
        ),
        ({"ask": lambda state, *_: (state, genotypes, None)}, "ask of the emitter must return an EmitterState and"),
        (
            {"ask": lambda state, *_: (state._replace(shared=genotypes), genotypes, {})},
            "ask of the emitter must return a state like the one that it is given, EmitterState",
        ),
        ({"tell": lambda state, *_: state}, "tell of the emitter must return an EmitterState and metrics, got"),
        ({"tell": lambda state, *_: (state, {"x": "a"})}, "the metric x that tell .* must be a number, got 'a'"),
        ({"ask": lambda state, *_: (state, genotypes, {"x": None})}, "the metric x that ask .* number, got None"),
    ):
        given = emitter._replace(**changed)
        with pytest.raises(TypeError, match=rf"^{message}"):
            shapes_of(map_elites(searched, GRID, mix([emitter, given]) if in_mixture else given))
    with pytest.raises(TypeError, match=r"^the emitter must be one such as rookery\.qd\.iso_line"):
        map_elites(searched, GRID, cast("Any", emitter.ask))
