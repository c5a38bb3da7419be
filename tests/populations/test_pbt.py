"""Population Based Training: selection against values computed by hand, and the invariants of inheritance."""

import importlib
from functools import cache, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import hyperparams, normalize, trees
from rookery.agents.sac import SPACE
from rookery.learners.base import genotype
from rookery.learners.iterations import divisible
from rookery.populations import base, pb2
from rookery.populations.config import PbtConfig, check_population, counts
from rookery.populations.independent import seeds
from rookery.populations.inheritance import inherit, perturb
from rookery.populations.pbt import pbt
from rookery.populations.replay import replay
from rookery.populations.sharding import ONE_DEVICE
from rookery.types import Evaluation
from tests import tiny, walks

pbt_module = importlib.import_module("rookery.populations.pbt")  # the package has a function of this name


@pytest.mark.parametrize("roles", [(), jnp.ones((2, 1))])
def test_returns_of_agents_are_of_teams_alone(roles):
    returns = {"return/prey": jnp.asarray([[1.0, 3.0], [2.0, 2.0]])}
    evaluation = Evaluation(*[jnp.ones((2, 1))] * 4, broken=jnp.zeros(2, int), episodes=returns, roles=roles)
    report = partial(pbt_module.metrics_of, SPACE.defaults, jnp.arange(2), evaluation, {}, jnp.zeros(2, bool))
    if len(roles):
        assert report()["return/prey"].tolist() == [2.0, 2.0]
    else:
        with pytest.raises(ValueError, match="the metric of an evaluation 'return/prey' needs another name"):
            report()


class TestCounts:
    def test_a_fraction_rounds_to_the_nearest_count_and_a_count_takes_precedence(self):
        for fraction, size, expected in ((0.05, 10, 1), (0.25, 10, 3), (0.2, 16, 3)):
            assert counts(PbtConfig(replace_fraction=fraction, best_fraction=0.1), size)[1] == expected
        assert counts(PbtConfig(best_fraction=0.0, replace_count=1), 4)[0] == 1, "there is always a parent"
        assert counts(PbtConfig(best_count=2, replace_count=5), 10) == (2, 5)

    @pytest.mark.parametrize(
        ("options", "size", "message"),
        [
            ({"frequencies": (10,)}, 8, "frequencies must be two or more"),
            ({"exploit": "tournement"}, 8, "exploit must be .* got 'tournement'; did you mean tournament"),
            ({}, 1, "population_size must be at least 2 with exploit truncation, got 1; .* or give exploit none"),
            ({"replace_fraction": 0.05}, 8, "replace_fraction replaces no member of .* 8, got 0.05; .* replace_count"),
            ({"exploit": "multi-frequency"}, 12, "population_size must be a multiple of 4 from 16 on, .* got 12"),
            ({"best_count": 3, "replace_count": 6}, 8, "replace_count replaces 6 .* with the 3 best exceed .* of 8"),
        ],
    )
    def test_invalid_settings_and_populations_too_small_for_them_are_errors(self, options, size, message):
        with pytest.raises(ValueError, match=message):
            check_population(PbtConfig(**options), size)

    def test_settings_of_other_strategies_are_not_checked(self):
        check_population(PbtConfig(exploit="none", best_count=9), 2)
        check_population(PbtConfig(exploit="multi-frequency", frequencies=(1, 3)), 8)


class TestPerturb:
    def test_children_of_one_parent_differ_and_survivors_keep_theirs(self):
        hyper = jax.vmap(lambda _: hyperparams.sample(SPACE, jax.random.key(3)))(jnp.arange(6))  # six equal members
        is_child = jnp.asarray([False, True, True, True, True, False])
        config = PbtConfig(perturb="perturb", resample_probability=1.0)
        changed = perturb(config, SPACE, hyper, jax.random.key(0), is_child)
        for name, domain in SPACE.domains.items():
            values = getattr(changed, name)
            assert len(set(values[1:5].tolist())) == 4, f"siblings share {name}"
            assert values[0] == values[5] == getattr(hyper, name)[0]
            assert ((values >= domain.low) & (values <= domain.high)).all()
        assert jnp.array_equal(changed.tau, hyper.tau)  # does not evolve


def restart(member, bank, key, needed):
    """Restart that also empties the buffer."""
    member = walks._restart(member, bank, key, needed)
    return member._replace(buffer=jnp.where(needed, 0.0, member.buffer))


LEARNER = walks.learner()._replace(restart=restart)


@cache
def walking(method=pbt, **options) -> tuple[Any, Any]:
    """The initial state of a population of random walks, and its compiled step."""
    program = method(LEARNER, **{"population_size": 4, **options})
    return jax.jit(program.init)(jax.random.key(0)), jax.jit(program.step)


@pytest.fixture(scope="module")
def step():
    return walking(best_count=1, replace_count=2)[1]


@pytest.fixture(scope="module")
def start():
    return walking(best_count=1, replace_count=2)[0]


class TestProgram:
    def test_members_start_different(self, start):
        for name in walks.SPACE.domains:
            assert len(set(getattr(start.members.hyper, name).tolist())) == 4
        assert len(np.unique(start.members.state.position)) == 12

    def test_the_metrics_have_the_hyper_parameters_trained_with_and_the_next_ones_the_parents(self, step, start):
        state, first = step(start, jax.random.key(1))
        expected = np.argsort(-first["fitness"], stable=True)
        assert state.shared.parents[expected[0]] == expected[0]
        assert (state.shared.parents[expected[2:]] == expected[0]).all()
        for name in walks.SPACE.domains:
            assert jnp.array_equal(first[f"hyper/{name}"], getattr(start.members.hyper, name))
            assert not jnp.array_equal(first[f"hyper/{name}"], getattr(state.members.hyper, name))
        _, second = step(state, jax.random.key(2))
        assert first["parent"].tolist() == [0, 1, 2, 3]
        assert second["parent"].tolist() == state.shared.parents.tolist()

    def test_survivors_keep_all_that_they_learned_and_children_copy_their_parent(self, step, start):
        state, _ = step(start, jax.random.key(1))
        trained, _ = walking(exploit="none")[1](start, jax.random.key(1))  # the same generation
        inherited = trees.take(trained.members.state, state.shared.parents)
        tiny.assert_equal(state.members.state, inherited)
        tiny.assert_equal(state.members.buffer, trained.members.buffer)  # data stays with the slot
        tiny.assert_equal(state.members.env_state, trained.members.env_state)

    def test_clones_of_one_parent_train_with_different_keys(self, step, start):
        clones = start._replace(members=trees.take(start.members, jnp.zeros((4,), jnp.int32)))
        _, metrics = step(clones, jax.random.key(5))
        assert len(set(metrics["stride"].tolist())) == 4

    def test_a_diverged_member_is_counted_replaced_and_recovers(self, step, start):
        state, metrics = step(walks.poison(start, 1), jax.random.key(1))
        assert jnp.isnan(metrics["fitness"]).tolist() == metrics["diverged"].tolist() == [False, True, False, False]
        assert state.shared.parents[1] != 1
        assert trees.all_finite(state.members)
        assert state.members.buffer.any(axis=1).tolist() == [True, False, True, True]
        kept = (state.members.env_state == start.members.env_state).all(axis=1)
        assert kept.tolist() == [True, False, True, True]
        assert int(state.shared.parents[0]) != 1
        _, metrics = step(state, jax.random.key(2))
        assert jnp.isfinite(metrics["fitness"]).all()

    @pytest.mark.parametrize("part", ["momentum", "squares"])
    def test_a_member_diverged_if_anything_that_it_learned_is_not_finite(self, part):
        learner, bank = walks.learner(), walks.learner().start_states(jax.random.key(0))
        member = learner.init(jax.random.key(1), hyperparams.defaults(walks.SPACE), bank)
        member = member._replace(normalizer=normalize.init(2))
        infinite = jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaf + jnp.inf if part in jax.tree_util.keystr(path) else leaf, member
        )
        work = pbt_module.WorkOfMember(
            jax.random.key(2), jax.random.key(3), divisible(learner.step).start(member, bank)
        )
        for given, finite in ((member, True), (infinite, False)):
            assert jnp.isfinite(learner.evaluate(genotype(given), bank, jax.random.key(3)).fitness)
            evaluation, *_ = pbt_module.evaluate_member(learner, given, work, bank)
            assert bool(jnp.isfinite(evaluation.fitness)) == finite

    def test_a_completely_diverged_population_replaces_no_member_and_the_callers_arrays_survive(self, step, start):
        broken = start
        for member in range(4):
            broken = walks.poison(broken, member)
        before = jax.tree.map(np.array, broken)
        state, metrics = step(broken, jax.random.key(1))
        assert not jnp.isfinite(metrics["fitness"]).any()
        assert state.shared.parents.tolist() == [0, 1, 2, 3]
        tiny.assert_equal(broken, before)

    def test_members_are_evaluated_from_the_same_start_states(self):
        def evaluate(genotype, bank, key):
            evaluation = walks.learner().evaluate(genotype, bank, key)
            return evaluation._replace(returns=evaluation.fitness + jnp.sum(bank, keepdims=True))

        program = pbt(walks.learner()._replace(evaluate=evaluate), population_size=2, exploit="none")
        state = jax.jit(program.init)(jax.random.key(1))
        twins = state._replace(members=trees.take(state.members, jnp.zeros((2,), jnp.int32)))
        metrics = jax.jit(program.evaluate)(twins, jax.random.key(0))
        assert jnp.array_equal(metrics["returns"][0], metrics["returns"][1])
        assert not jnp.allclose(metrics["returns"], metrics["fitness"][:, None])

    def test_burn_in_replaces_only_what_diverged(self):
        start, step = walking(best_count=1, replace_count=2, burn_in=1)
        state, _ = step(start, jax.random.key(1))
        assert state.shared.parents.tolist() == [0, 1, 2, 3]
        poisoned, _ = step(walks.poison(start, 2), jax.random.key(1))
        assert poisoned.shared.parents[2] != 2
        state, _ = step(state, jax.random.key(2))
        assert int(jnp.sum(state.shared.parents != jnp.arange(4))) == 2

    def test_keys_depend_on_the_member_alone(self):
        few, many = base.member_keys(jax.random.key(0), 3), base.member_keys(jax.random.key(0), 8)
        assert jnp.array_equal(jax.random.key_data(few), jax.random.key_data(many)[:3])


class TestInherit:
    def test_inherited_rows_are_moved_in_one_exchange(self, start):
        exchanges = []

        def move(tree, sources, in_place=False):
            exchanges.append(len(jax.tree.leaves(tree)))
            return trees.take(tree, sources)

        members = inherit(start.members, jnp.asarray([0, 0, 2, 0]), move=move)
        assert exchanges == [len(jax.tree.leaves((members.state, members.normalizer, members.hyper)))]
        tiny.assert_equal(members.hyper, trees.take(start.members.hyper, jnp.asarray([0, 0, 2, 0])))

    def test_an_inherited_buffer_of_a_diverged_member_is_its_parents(self):
        start, step = walking(best_count=1, burn_in=9, inherit_buffer=True)
        state, _ = step(walks.poison(start, 1), jax.random.key(1))
        parent = int(state.shared.parents[1])
        assert parent != 1
        assert state.members.buffer.tolist() == start.members.buffer.at[1].set(start.members.buffer[parent]).tolist()

    def test_buffers_are_copied_only_when_asked_also_along_a_chain_of_parents(self, step, start):
        state, _ = step(start, jax.random.key(1))
        parents = jnp.asarray([1, 3, 0, 3])  # 2 takes 0, which takes 1, which takes 3
        kept = inherit(state.members, parents)
        copied = jax.jit(partial(inherit, buffers_too=True))(state.members, parents)
        tiny.assert_equal(kept.buffer, state.members.buffer)
        tiny.assert_equal(copied.buffer, trees.take(state.members.buffer, parents))
        tiny.assert_equal(copied.state, trees.take(state.members.state, parents))

    def test_hyper_parameters_may_come_from_another_donor(self, start):
        parents, donors = jnp.asarray([0, 0, 2, 0]), jnp.asarray([0, 2, 2, 3])
        members = inherit(start.members, parents, donors)
        tiny.assert_equal(members.state, trees.take(start.members.state, parents))
        tiny.assert_equal(members.hyper, trees.take(start.members.hyper, donors))


class TestStrategies:
    """Each strategy in a whole program; its selection alone is tested in `populations/test_selection.py`."""

    def test_hyper_parameters_of_migrants_are_not_perturbed_but_of_copies_of_another_sub_population(self):
        state, step = walking(population_size=8, exploit="multi-frequency", frequencies=(1, 1_000))
        diverged = state
        for member in range(4, 8):
            diverged = walks.poison(diverged, member)
        migrated = 0
        for generation in range(4):
            before = state.members.hyper
            state, _ = step(state, jax.random.key(generation))
            parents = np.asarray(state.shared.parents)
            assert parents[4:].tolist() == [4, 5, 6, 7]  # not their generation
            for child in np.flatnonzero(parents != np.arange(8)):
                inherited = [a[child] == b[parents[child]] for a, b in zip(state.members.hyper, before, strict=True)]
                if parents[child] >= 4:
                    migrated += 1
                    assert all(inherited)
                else:
                    assert not all(inherited)
        assert migrated, "no member migrated, so the test has no effect"

        state, metrics = step(diverged, jax.random.key(1))
        best = int(np.nanargmax(metrics["fitness"]))
        assert state.shared.parents[4:].tolist() == [best] * 4
        for name in walks.SPACE.domains:
            assert len(set(getattr(state.members.hyper, name)[4:].tolist())) > 1, "clones"

    def test_the_bandit_learns_from_every_member_and_proposes_for_children(self, quick_pb2):
        state, step = walking(best_count=1, replace_count=2, perturb="pb2")
        assert not state.shared.history.valid.any()
        fitness = []
        for generation in range(3):
            before = state.members.hyper
            state, metrics = step(state, jax.random.key(generation))
            fitness.append(np.asarray(metrics["fitness"]))
            child = state.shared.parents != jnp.arange(4)
            for name in walks.SPACE.domains:
                new, old = getattr(state.members.hyper, name), getattr(before, name)
                assert ((new != old) == child).all(), "only children get proposals"
        history = state.shared.history
        assert int(history.valid.sum()) == 2 * 4  # the first generation has no gain
        gains = np.sort(np.asarray(history.gain)[np.asarray(history.valid)])
        assert np.isfinite(gains).all()
        # A gain is measured from the fitness of the state that was trained on, so from that of the parent.
        last = fitness[2] - fitness[1][np.asarray(metrics["parent"])]
        for gain in last:
            assert np.isclose(gains, gain, rtol=1e-4).any()

    def test_smoothing_averages_the_lineages_last_evaluations_and_hides_no_divergence(self):
        state, step = walking(best_count=1, replace_count=1, smooth=3)
        state, first = step(state, jax.random.key(1))
        assert jnp.array_equal(first["smoothed_fitness"], first["fitness"])
        state, second = step(state, jax.random.key(2))
        expected = (second["fitness"] + first["fitness"][second["parent"]]) / 2
        np.testing.assert_allclose(second["smoothed_fitness"], expected, rtol=1e-5)
        state, metrics = step(walks.poison(state, 2), jax.random.key(3))
        assert jnp.isnan(metrics["smoothed_fitness"]).tolist() == [False, False, True, False]
        assert state.shared.parents[2] != 2
        _, metrics = step(state, jax.random.key(4))
        assert jnp.isfinite(metrics["smoothed_fitness"]).all()


class TestReplay:
    SCHEDULE: ClassVar = {"discount": np.asarray([0.9, 0.95]), "rate": np.asarray([1e-3, 1e-4])}

    def test_members_follow_the_schedule_and_then_its_end(self):
        def schedule(learner, population_size):
            return replay(seeds(learner, population_size=population_size), self.SCHEDULE)

        state, step = walking(schedule, population_size=2)
        for generation, (discount, rate) in enumerate([(0.9, 1e-3), (0.95, 1e-4), (0.95, 1e-4)]):
            state, metrics = step(state, jax.random.key(generation))
            assert metrics["hyper/discount"].tolist() == [np.float32(discount)] * 2
            assert metrics["hyper/rate"].tolist() == [np.float32(rate)] * 2
            assert metrics["hyper/noise"].tolist() == [np.float32(0.5)] * 2  # not in the schedule: the default

    def test_invalid_arguments_are_errors(self):
        with pytest.raises(ValueError, match=r"of another agent: it sets noise_clip; known are rate, discount"):
            replay(seeds(walks.learner()), {"noise_clip": np.ones(3)})
        schedule: Any = rookery.experiments.Schedule({"rate": np.ones(3)}, 10, None)
        with pytest.raises(TypeError, match=r"give at_steps\(schedule, steps_per_generation, generations\)"):
            replay(seeds(walks.learner()), schedule)
        with pytest.raises(ValueError, match="the schedule is empty"):
            replay(seeds(walks.learner()), {})


class TestSeeds:
    def test_members_share_hyper_parameters_and_stay_independent(self):
        state, step = walking(seeds, population_size=3)
        assert set(state.members.hyper.discount.tolist()) == {np.float32(0.9)}
        state, metrics = step(walks.poison(state, 1), jax.random.key(1))
        assert state.shared.parents.tolist() == [0, 1, 2]
        assert metrics["diverged"].tolist() == [False, True, False]

    def test_random_search_draws_from_the_space_and_bounds_that_are_not_drawn_are_an_error(self):
        learner = walks.learner()
        own = hyperparams.choose(learner.space, rate=(1e-2, 1e-1), discount=0.9)
        with pytest.raises(ValueError, match=r"^rate has bounds without an effect, since independent members"):
            seeds(learner, own, population_size=2)
        seeds(learner, hyperparams.choose(learner.space, rate=1e-3), population_size=2)
        state = jax.jit(seeds(learner, own, population_size=3, draw_hyper=True).init)(jax.random.key(0))
        assert len(set(state.members.hyper.rate.tolist())) == 3


def test_options_and_config_exclude_each_other():
    with pytest.raises(TypeError, match="either config or the keywords"):
        pbt(walks.learner(), config=PbtConfig(), burn_in=1)
    with pytest.raises(ValueError, match="population_size must be at least 1"):
        pbt(walks.learner(), population_size=0)


@pytest.fixture
def quick_pb2(monkeypatch):
    """PB2 with few observations, steps and candidates: the quality of its fit has no importance here."""
    for name, value in {"FIT_STEPS": 2, "CANDIDATES": 16, "empty": partial(pb2.empty, rows=16)}.items():
        monkeypatch.setattr(pb2, name, value)


class TestWhatIsMissing:
    """Evaluations that are not finite, generations without updates, and migrants of another width."""

    def bindings(self, learner: Any = None, space: Any = None, size: int = 4, **config: Any) -> tuple[Any, Any]:
        learner = learner or walks.learner()
        bound = pbt_module.bind(learner, space, size, None, ONE_DEVICE, config, None)
        keys = jax.random.split(jax.random.key(0))
        return bound, jax.jit(partial(pbt_module.create, bound))(keys, learner.start_states(jax.random.key(1)))

    def test_one_generation_without_a_fitness_does_not_hold_later_selections_back(self):
        bound, state = self.bindings(smooth=3)
        shared, found = state.shared, []
        for fitness in ([1.0, 2, 3, 4], [np.nan] * 4, [3.0, 4, 5, np.nan], [5.0, 6, 7, 8]):
            shared, smoothed = pbt_module.record_fitness(bound, shared, state.members.hyper, jnp.asarray(fitness))
            shared = shared._replace(generation=shared.generation + 1)
            found.append(smoothed.tolist())
        nan = pytest.approx(np.nan, nan_ok=True)
        assert found == [[1, 2, 3, 4], [nan] * 4, [2, 3, 4, nan], [4, 5, 6, 8]]

    def test_the_bandit_learns_nothing_from_generations_without_updates_or_a_known_fitness(self):
        bound, state = self.bindings(walks.learner()._replace(untrained_generations=3), perturb="pb2")
        shared, valid = state.shared, []
        for generation in range(5):
            given, is_known = jnp.arange(4.0) + generation, jnp.arange(4) != generation
            shared, _ = pbt_module.record_fitness(bound, shared, state.members.hyper, given, is_known)
            shared = shared._replace(generation=shared.generation + 1)
            valid.append(int(shared.history.valid.sum()))
        assert valid == [0, 0, 0, 3, 7]

    def test_a_migrant_keeps_the_width_of_its_networks(self):
        learner = tiny.learner()
        space = rookery.choose(learner.space, hidden_size=(2, 8))
        fitness = jnp.asarray([10.0, 9, 8, 7, 3, 2, 1, 0])
        bound, state = self.bindings(learner, space, 8, exploit="multi-frequency", frequencies=(1, 2))
        shared = state.shared._replace(generation=jnp.asarray(1, jnp.int32))
        shared, fitness = pbt_module.record_fitness(bound, shared, state.members.hyper, fitness)
        exploit = jax.jit(partial(pbt_module.exploit, bound))
        parents, members = exploit(shared, state.members, fitness, tuple(jax.random.split(jax.random.key(1))))
        migrants = jnp.flatnonzero(parents // 4 != jnp.arange(8) // 4)
        widths = state.members.hyper.hidden_size
        assert any(widths[parents[i]] != widths[i] for i in migrants)
        assert members.hyper.hidden_size[migrants].tolist() == widths[parents[migrants]].tolist()
        moved, own = trees.take(members.state, migrants), trees.take(state.members.state, parents[migrants])
        assert trees.same_numbers(moved, own)
