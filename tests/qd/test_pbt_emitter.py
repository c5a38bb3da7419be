"""ME-PBT's emitter: exhaustive tests of selection, and the state of new members."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import normalize, trees
from rookery.learners.base import genotype
from rookery.populations import base
from rookery.populations.sharding import ONE_DEVICE
from rookery.qd import repertoire as repertoires
from rookery.qd.base import EmitterState
from rookery.qd.centroids import grid
from rookery.qd.emitters import iso_line
from rookery.qd.pbt_emitter import Counts, MePbtConfig, PbtEmitterBindings, counts, init, origins, pbt_emitter, tell
from rookery.qd.pbt_emitter import ask as pbt_emitter_ask
from rookery.qd.pbt_emitter import exploit as pbt_emitter_exploit
from rookery.qd.repertoire import Added, Repertoire
from rookery.qd.scoring import learner_scoring
from rookery.types import FROM_REPERTOIRE, Evaluation, Genotype
from tests import tiny, walks

NAN, INF = np.nan, np.inf
VALUES = (0.0, 1.0, NAN, INF)
EVERYTHING = np.asarray(list(itertools.product(VALUES, repeat=5)), np.float32)  # [1024, 5]


class TestCounts:
    @pytest.mark.parametrize(
        ("fractions", "size", "expected"),
        [
            ((0.1, 0.2, 0.4), 4, (1, 0, 2)),
            ((0.25, 0.0, 0.5), 10, (1, 3, 5)),
            ((0.0, 1.0, 1.0), 3, (3, 0, 3)),  # no member copies a parent, so the best may be replaced
        ],
    )
    def test_each_fraction_rounds_to_the_nearest(self, fractions, size, expected):
        replaced, best, sampled = fractions
        config = MePbtConfig(replace_fraction=replaced, best_fraction=best, sample_fraction=sampled)
        assert counts(config, size) == expected

    @pytest.mark.parametrize(
        ("size", "fractions", "ga", "message"),
        [
            (10, (0.3, 0.4, 0.5), 9, "sample_fraction samples 5 members, which with 4 best and 3 replaced exceed 10"),
            (1, (0.2, 0.1, 0.4), 9, "replace_fraction and sample_fraction .* replace no member of 1"),
            (0, (0.2, 0.1, 0.4), 9, "population_size must be at least 1, got 0"),
            (8, (0.2, 0.1, 0.4), 2**31 - 1, r"ga_population must lie in \[1, 2147483639\], got 2147483647"),
        ],
    )
    def test_invalid_settings_are_errors(self, size, fractions, ga, message):
        with pytest.raises(ValueError, match=message):
            pbt_emitter(LEARNER, SCORING, population_size=size, config=MePbtConfig(*fractions), ga_population=ga)


@pytest.fixture(scope="module")
def decide():
    """Origins of many populations at once, each with a separate key."""
    every = jax.vmap(origins, in_axes=(None, 0, 0, None, None))
    compiled = jax.jit(every, static_argnums=0)

    def decide(fitness, given: Counts, with_fitness=True, elites_exist=True, seed=0):
        keys = base.member_keys(jax.random.key(seed), len(fitness))
        parents, revived = compiled(given, jnp.asarray(fitness, jnp.float32), keys, with_fitness, elites_exist)
        return np.asarray(parents), np.asarray(revived)

    return decide


def ranks_of(fitness) -> list[int]:
    order = sorted(range(len(fitness)), key=lambda i: -fitness[i] if np.isfinite(fitness[i]) else INF)
    return [order.index(member) for member in range(len(fitness))]


class TestOrigins:
    @pytest.mark.parametrize("given", [Counts(1, 1, 2), Counts(2, 1, 1), Counts(1, 0, 5), Counts(2, 3, 0)])
    @pytest.mark.parametrize("elites_exist", [True, False])
    def test_every_population_of_five(self, decide, given, elites_exist):
        parents, revived = decide(EVERYTHING, given, elites_exist=elites_exist)
        assert parents.dtype == np.int32
        for fitness, chosen, takes_elite in zip(EVERYTHING, parents, revived, strict=True):
            finite, rank = np.isfinite(fitness), np.asarray(ranks_of(fitness))
            value = np.where(finite, fitness, -INF)
            expected = elites_exist & ((rank >= 5 - given.replaced - given.sampled) & (rank < 5 - given.replaced))
            expected = expected & (value < value.max())
            expected = expected | (elites_exist & ~finite.any())
            assert takes_elite.tolist() == expected.tolist(), fitness
            replaced = ((rank >= 5 - given.replaced) | ~finite) & ~expected & (value < value.max())
            assert (chosen != np.arange(5)).tolist() == replaced.tolist(), fitness
            assert finite[chosen[replaced]].all(), "a parent is finite"
            assert (rank[chosen[replaced]] < given.best).all(), "and one of the best"
            assert (value[chosen[replaced]] > value[replaced]).all(), "and better than its child"

    @pytest.mark.parametrize(
        ("fitness", "elites", "children"),
        [
            ([1.0, 0.0] * 5, 4, 1),
            ([0.0] * 9 + [NAN], 0, 1),
            ([7.0] * 8 + [1.0, 2.0], 1, 1),
        ],
    )
    def test_members_equal_to_the_best_survive(self, decide, fitness, elites, children):
        for seed in range(3):
            parents, revived = decide([fitness], Counts(2, 1, 4), seed=seed)
            assert revived.sum() == elites
            assert (parents != np.arange(10)).sum() == children

    def test_all_parents_of_the_best_are_drawn_and_siblings_draw_independently(self, decide):
        parents, _ = decide([[0.0, 5.0, 9.0, 8.0, 7.0]] * 200, Counts(3, 1, 0))
        assert set(parents[:, 0]) == {2, 3, 4}
        assert (parents[:, 1:] == np.arange(1, 5)).all()
        parents, _ = decide([[9.0, 8.0, 1.0, 0.0]] * 100, Counts(2, 2, 0))
        assert {tuple(pair) for pair in parents[:, 2:]} == {(0, 0), (0, 1), (1, 0), (1, 1)}

    def test_before_the_first_evaluation_no_member_is_replaced(self, decide):
        parents, revived = decide(EVERYTHING, Counts(1, 1, 2), with_fitness=False)
        assert (parents == np.arange(5)).all()
        assert not revived.any()


def restart(member, bank, key, needed):
    """Restart that also empties the buffer."""
    member = walks._restart(member, bank, key, needed)
    return member._replace(buffer=jnp.where(needed, 0.0, member.buffer))


LEARNER = walks.learner(descriptor=True)._replace(restart=restart)
SCORING = learner_scoring(LEARNER)
BANK = LEARNER.start_states(jax.random.key(7))
KEY = jax.random.key(1)


def bindings(**options) -> PbtEmitterBindings:
    config = MePbtConfig(replace_fraction=0.2, best_fraction=0.2, sample_fraction=0.4, **options)  # 1, 1, 2
    return PbtEmitterBindings(LEARNER, walks.SPACE, config, counts(config, 5), 5, iso_line(SCORING, 3), ONE_DEVICE)


@pytest.fixture(scope="module")
def exploit():
    return jax.jit(partial(pbt_emitter_exploit, bindings()))


@pytest.fixture(scope="module")
def ask():
    return jax.jit(pbt_emitter_ask(bindings()))


@pytest.fixture(scope="module")
def population() -> EmitterState:
    """A population after one generation, with optimiser momentum."""
    state = jax.jit(partial(init, bindings()))(jax.random.key(0), BANK)
    members = state.members
    momentum = jax.random.normal(jax.random.key(2), members.state.momentum.shape)
    members = members._replace(
        state=members.state._replace(momentum=momentum), env_state=jax.random.normal(jax.random.key(3), (5, 2))
    )
    return EmitterState(members, state.shared._replace(generation=jnp.asarray(3, jnp.int32)))


def with_fitness(state: EmitterState, fitness, diverged=None) -> EmitterState:
    fitness = jnp.asarray(fitness, jnp.float32)
    diverged = ~jnp.isfinite(fitness) if diverged is None else jnp.asarray(diverged)
    return state._replace(shared=state.shared._replace(fitness=fitness, diverged=diverged))


@pytest.fixture(scope="module")
def repertoire() -> Repertoire:
    """Nine elites; their fixed hyper-parameter is 100, 101, ..."""
    numbers = jnp.arange(9, dtype=jnp.float32)
    hyper = walks.Hyper(
        rate=0.01 * (numbers + 1), discount=0.6 + numbers / 100, noise=numbers / 10, fixed=numbers + 100
    )
    elites = Genotype(jax.random.normal(jax.random.key(5), (9, 3)) + 50, hyper, None)
    centroids = grid((3, 3), walks.PLACE.lower, walks.PLACE.upper)
    return repertoires.add(repertoires.empty(trees.take(elites, 0), centroids), elites, numbers, centroids)[0]


def no_elites(repertoire: Repertoire) -> Repertoire:
    return repertoires.empty(trees.take(repertoire.genotypes, 0), repertoire.centroids)


FITNESS = (3.0, NAN, 5.0, 1.0, 2.0)  # 2 is best, 0 survives; 4 and 3 are replaced by elites; 1 copies 2


class TestExploit:
    def test_survivors_keep_everything_children_copy_and_elites_have_new_momentum_and_the_slots_data(
        self, exploit, population, repertoire
    ):
        members, parents = exploit(with_fitness(population, FITNESS), repertoire, BANK, KEY)
        assert parents.tolist() == [0, 2, 2, FROM_REPERTOIRE, FROM_REPERTOIRE]
        stayed = jnp.asarray([0, 2])
        tiny.assert_equal(trees.take(members, stayed), trees.take(population.members, stayed))
        tiny.assert_equal(trees.take(members.state, 1), trees.take(population.members.state, 2))
        assert members.env_state[1].tolist() == BANK[:2].tolist(), "the slot of a diverged member is reset"
        assert not members.buffer[1].any()
        for slot in (3, 4):
            elite = int(members.hyper.fixed[slot]) - 100  # the fixed hyper-parameter identifies the elite
            assert members.state.position[slot].tolist() == repertoire.genotypes.params[elite].tolist()
            assert not members.state.momentum[slot].any()
            assert members.buffer[slot].tolist() == population.members.buffer[slot].tolist()
            assert members.env_state[slot].tolist() == population.members.env_state[slot].tolist()

    def test_new_members_draw_separate_elites_and_hyper_parameters(self, exploit, population, repertoire):
        drawn = set()
        for seed in range(12):
            members, _ = exploit(with_fitness(population, FITNESS), repertoire, BANK, jax.random.key(seed))
            drawn.add(tuple(members.hyper.fixed[3:].tolist()))
            for name, domain in walks.SPACE.domains.items():
                values, before = getattr(members.hyper, name), getattr(population.members.hyper, name)
                known = {*before.tolist(), *getattr(repertoire.genotypes.hyper, name).tolist()}
                new = [float(values[slot]) for slot in (1, 3, 4)]
                assert len({*new} - known) == 3, f"{name} is not fresh for each"
                assert all(np.float32(domain.low) <= value <= np.float32(domain.high) for value in new)
        assert len(drawn) > 6

    def test_clones_of_one_elite_have_different_hyper_parameters(self, exploit, population, repertoire):
        only = repertoire._replace(fitnesses=jnp.full((9,), -INF).at[4].set(1.0))
        members, _ = exploit(with_fitness(population, FITNESS), only, BANK, KEY)
        assert members.hyper.fixed[3:].tolist() == [104.0, 104.0]
        for name in walks.SPACE.domains:
            assert len(set(getattr(members.hyper, name)[3:].tolist())) == 2

    def test_data_stays_with_a_slot_unless_its_member_diverged(self, exploit, population, repertoire):
        members, parents = exploit(with_fitness(population, (3.0, -9.0, 5.0, 1.0, 2.0)), repertoire, BANK, KEY)
        assert parents.tolist() == [0, 2, 2, FROM_REPERTOIRE, FROM_REPERTOIRE]
        before = population.members.env_state, population.members.buffer
        tiny.assert_equal((members.env_state, members.buffer), before)
        members, parents = exploit(with_fitness(population, (NAN, INF, NAN, 1.0, 2.0)), repertoire, BANK, KEY)
        assert parents.tolist() == [FROM_REPERTOIRE, FROM_REPERTOIRE, 4, 3, 4]
        for slot in range(3):
            assert members.env_state[slot].tolist() == BANK[:2].tolist()
            assert not members.buffer[slot].any()
        tiny.assert_equal(trees.take(members, jnp.asarray([3, 4])), trees.take(population.members, jnp.asarray([3, 4])))
        # A member that broke the physics is replaced, and keeps its data.
        state = with_fitness(population, (NAN, NAN, 3.0, 1.0, 2.0), [True, False, False, False, False])
        members, parents = exploit(state, repertoire, BANK, KEY)
        assert (parents[:2] != jnp.arange(2)).all()
        assert not members.buffer[0].any()
        tiny.assert_equal(members.buffer[1], population.members.buffer[1])
        tiny.assert_equal(members.env_state[1], population.members.env_state[1])

    def test_a_completely_diverged_population_is_replaced_by_elites(self, exploit, population, repertoire):
        broken = population.members._replace(state=jax.tree.map(lambda leaf: leaf * NAN, population.members.state))
        state = with_fitness(population._replace(members=broken), [NAN] * 5)
        members, parents = exploit(state, repertoire, BANK, KEY)
        assert parents.tolist() == [FROM_REPERTOIRE] * 5
        assert trees.all_finite(members)

    def test_without_elites_a_diverged_member_is_replaced_by_a_parent(self, exploit, population, repertoire):
        members, parents = exploit(
            with_fitness(population, (NAN, INF, NAN, 1.0, 2.0)), no_elites(repertoire), BANK, KEY
        )
        assert parents.tolist() == [4, 4, 4, 3, 4]
        assert not members.buffer[:3].any()
        _, parents = exploit(with_fitness(population, FITNESS), no_elites(repertoire), BANK, KEY)
        assert parents.tolist() == [0, 2, 2, 3, 4]
        _, parents = exploit(with_fitness(population, [NAN] * 5), no_elites(repertoire), BANK, KEY)
        assert parents.tolist() == [0, 1, 2, 3, 4]

    def test_a_perturbation_starts_from_the_inherited_hyper_parameters(self, population, repertoire):
        given = bindings(perturb="perturb", resample_probability=0.0, inherit_buffer=True)
        exploit = jax.jit(partial(pbt_emitter_exploit, given))
        members, _ = exploit(with_fitness(population, FITNESS), repertoire, BANK, KEY)
        factors = [members.hyper.rate[1] / population.members.hyper.rate[2]]
        for slot in (3, 4):
            elite = int(members.hyper.fixed[slot]) - 100
            factors.append(members.hyper.rate[slot] / repertoire.genotypes.hyper.rate[elite])
        for factor in factors:
            assert min(abs(float(factor) - 0.8), abs(float(factor) - 1.25)) < 1e-4
        # An inherited buffer is kept although the member before diverged; no other buffer is lost.
        assert members.buffer.tolist() == population.members.buffer[jnp.asarray([0, 2, 2, 3, 4])].tolist()
        members, parents = exploit(with_fitness(population, (NAN, INF, NAN, 1.0, 2.0)), repertoire, BANK, KEY)
        assert parents.tolist() == [FROM_REPERTOIRE, FROM_REPERTOIRE, 4, 3, 4]
        assert not members.buffer[:2].any(), "an elite brings no data"
        assert members.buffer[2].tolist() == population.members.buffer[4].tolist()


class TestAskAndTell:
    def test_proposals_are_variations_and_then_exactly_the_trained_members(self, ask, population, repertoire):
        state = with_fitness(population, FITNESS)
        after, proposals, learned = ask(state, repertoire, BANK, KEY)
        assert jax.tree.leaves(proposals)[0].shape[0] == 3 + 5
        tiny.assert_equal(trees.take(proposals, jnp.arange(3, 8)), jax.vmap(genotype)(after.members))
        near = jnp.linalg.norm(proposals.params[:3, None] - repertoire.genotypes.params[None], axis=-1).min(axis=1)
        assert (near < 2.0).all(), "variations of elites, which stand around 50"
        assert learned["stride"].shape == (5,)
        assert int(after.shared.generation) == 4
        assert after.shared.parents.tolist() == [0, 2, 2, FROM_REPERTOIRE, FROM_REPERTOIRE]
        moved = after.members.state.position - population.members.state.position
        assert (abs(moved[jnp.asarray([0, 2])]) > 1e-4).all(), "they were trained"

    def test_every_member_trains_with_a_separate_key_and_in_the_first_generation_none_is_replaced(
        self, ask, population, repertoire
    ):
        clones = trees.take(population.members, jnp.zeros((5,), jnp.int32))
        state = with_fitness(population._replace(members=clones), FITNESS)
        state = state._replace(shared=state.shared._replace(generation=jnp.zeros((), jnp.int32)))
        after, _, learned = ask(state, repertoire, BANK, KEY)
        assert after.shared.parents.tolist() == [0, 1, 2, 3, 4]
        assert len(set(learned["stride"].tolist())) == 5

    def test_the_members_fitness_is_that_of_the_last_rows(self, population):
        own = jnp.asarray([1.0, 2.0, 3.0, 4.0, INF])
        statistics = trees.stack([normalize.init(2)] * 5)
        statistics = statistics._replace(squares=statistics.squares.at[3, 0].set(INF))
        fitness = jnp.concatenate([jnp.asarray([70.0, 80.0, 90.0]), own])
        evaluation = Evaluation(
            fitness, jnp.zeros((8, 2)), fitness[:, None], jnp.arange(16).reshape(8, 2), jnp.zeros(8, jnp.int32)
        )
        poisoned = population.members.state
        poisoned = poisoned._replace(momentum=poisoned.momentum.at[1, 0].set(NAN))
        state = population._replace(members=population.members._replace(state=poisoned, normalizer=statistics))
        parents = jnp.asarray([0, 2, 2, FROM_REPERTOIRE, FROM_REPERTOIRE], jnp.int32)
        state = state._replace(shared=state.shared._replace(parents=parents))
        none = jnp.zeros(8, jnp.int32)
        added = Added(none, none, none > 0, none > 0, fitness)
        given, metrics = tell(bindings(), state, evaluation, added)
        np.testing.assert_array_equal(metrics["fitness"], [1.0, NAN, 3.0, NAN, INF])
        np.testing.assert_array_equal(given.shared.fitness, metrics["fitness"])
        assert metrics["diverged"].tolist() == [False, True, False, True, True]
        assert metrics["parent"].tolist() == parents.tolist()
        assert int(metrics["revived"]) == 2
        assert metrics["episode_length"].tolist() == [6.5, 8.5, 10.5, 12.5, 14.5]
        assert jnp.array_equal(metrics["hyper/rate"], population.members.hyper.rate)
