"""The parents that every strategy selects, against values computed by hand, and the invariants that they share."""

import jax
import jax.numpy as jnp
import pytest

from rookery.populations import selection

NAN, INF = jnp.nan, jnp.inf
truncation = jax.jit(selection.truncation, static_argnums=(2, 3))
tournament = jax.jit(selection.tournament)
threshold = jax.jit(selection.threshold, static_argnums=(2, 3))
multi_frequency = jax.jit(selection.multi_frequency, static_argnums=2)
donors = jax.jit(selection.donors, static_argnums=2)


def parents_of(fitness, best, replaced, seed=0):
    return truncation(jnp.asarray(fitness, jnp.float32), jax.random.key(seed), best, replaced).tolist()


def test_ranks_put_non_finite_values_last_and_ties_in_order():
    assert selection.ranks(jnp.asarray([2.0, NAN, 5.0, 2.0, INF, -1.0])).tolist() == [1, 4, 0, 2, 5, 3]


class TestTruncation:
    def test_the_worst_inherit_from_the_best(self):
        assert parents_of([3.0, 1.0, 4.0, 2.0], best=1, replaced=2) == [0, 2, 2, 2]
        assert parents_of([1.0, 2.0, 3.0], best=1, replaced=0) == [0, 1, 2]
        assert parents_of([3.0], best=1, replaced=0) == [0]
        for replaced in range(6):
            parents = parents_of([0.0, 5.0, 1.0, 4.0, 2.0, 3.0], best=1, replaced=replaced)
            assert sum(parent != member for member, parent in enumerate(parents)) == replaced

    def test_children_draw_their_parents_from_all_of_the_best_and_independently(self):
        pairs = {tuple(parents_of([9.0, 8.0, 1.0, 0.0], best=2, replaced=2, seed=s)[2:]) for s in range(40)}
        assert pairs == {(0, 0), (0, 1), (1, 0), (1, 1)}

    def test_of_the_best_only_those_that_are_better_are_drawn(self):
        # Member 0 ranks second, but is not better than the last two.
        for seed in range(20):
            assert parents_of([0.0, 0.0, 1.0, 0.0, 0.0], best=2, replaced=2, seed=seed) == [0, 1, 2, 2, 2]

    def test_a_diverged_member_is_replaced_and_never_a_parent(self):
        for bad in (NAN, INF, -INF):
            for seed in range(8):
                parents = parents_of([bad, 1.0, 2.0, bad], best=3, replaced=1, seed=seed)
                assert parents[1:3] == [1, 2]
                assert {parents[0], parents[3]} <= {1, 2}
        assert parents_of([NAN, NAN, 0.0, NAN], best=2, replaced=1) == [2, 2, 2, 2]
        assert parents_of([NAN, INF, -INF], best=1, replaced=1) == [0, 1, 2]


class TestTournament:
    def test_every_opponent_is_drawn_equally_often(self):
        fitness = jnp.asarray([0.0, 3.0, 2.0, 1.0])
        meet = jax.vmap(lambda key: tournament(fitness, key)[0])
        met = jnp.bincount(meet(jax.random.split(jax.random.key(0), 3_000)), length=4)
        assert met[0] == 0
        assert (abs(met[1:] - 1_000) < 150).all()  # five standard deviations

    def test_a_diverged_member_gets_a_finite_parent_also_in_an_inactive_selection(self):
        for seed in range(8):
            parents = tournament(jnp.asarray([NAN, 1.0, NAN, INF]), jax.random.key(seed)).tolist()
            assert parents == [1, 1, 1, 1]
        parents = tournament(jnp.asarray([NAN, 1.0, 2.0]), jax.random.key(0), active=False).tolist()
        assert parents[1:] == [1, 2]
        assert parents[0] in (1, 2)


class TestThreshold:
    """The fitnesses 0, 0, 2, 4, 4 have the mean 2 and the standard deviation sqrt(16 / 5) = 1.79."""

    FITNESS = (0.0, 0.0, 2.0, 4.0, 4.0)

    def parents(self, fitness=FITNESS, stds=0.1, margin=0.05, seed=0, active=True):
        return threshold(jnp.asarray(fitness), jax.random.key(seed), stds, margin, active).tolist()

    def test_those_far_below_the_mean_inherit_from_those_far_above_it(self):
        drawn = {tuple(self.parents(seed=seed)) for seed in range(40)}
        assert drawn == {(one, two, 2, 3, 4) for one in (3, 4) for two in (3, 4)}
        assert self.parents((1.0, 1.9, 2.0, 2.1, 3.0), stds=1.0) == [4, 1, 2, 3, 4]  # the standard deviation is 0.64

    @pytest.mark.parametrize(("stds", "margin", "some"), [(1.1, 0.0, True), (1.2, 0.0, False), (0.0, 1.99, True)])
    def test_both_distances_must_be_exceeded(self, stds, margin, some):
        """1.1 standard deviations are 1.97, and 1.2 are 2.15; the members are 2 from the mean."""
        assert (self.parents(stds=stds, margin=margin) != [0, 1, 2, 3, 4]) == some
        assert self.parents(stds=stds, margin=2.01) == [0, 1, 2, 3, 4]
        for fitness in ((-1.0, 1.0, 2.0, 4.0, 4.0), (0.0, 0.0, 2.0, 3.0, 5.0)):  # one side is at its threshold
            assert self.parents(fitness, margin=2.0) == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("scale", [1e20, 8e37])
    def test_fitnesses_whose_squares_overflow_are_compared_as_others(self, scale):
        assert self.parents([scale * value for value in self.FITNESS], margin=0.05 * scale) == self.parents()

    def test_none_is_replaced_without_a_leader_among_equal_members_or_in_an_inactive_selection(self):
        assert self.parents((4.0, 4.0, 4.0, 4.0, 0.0), stds=0.6) == [0, 1, 2, 3, 4]  # mean 3.2, deviation 1.6
        assert self.parents((4.0, 4.0, 4.0, 4.0, 0.0), stds=0.4)[:4] == [0, 1, 2, 3]
        assert self.parents((4.0, 4.0, 4.0, 4.0, 0.0), stds=0.4)[4] != 4
        assert self.parents([7.0] * 5, stds=0.0, margin=0.0) == [0, 1, 2, 3, 4]
        assert self.parents(active=False) == [0, 1, 2, 3, 4]

    def test_a_diverged_member_is_replaced_at_once_and_counts_in_no_mean(self):
        for seed in range(8):
            parents = self.parents((NAN, 0.0, INF, 4.0, 4.0), seed=seed)  # mean 2.67, deviation 1.89
            assert {*parents[:3]} <= {3, 4}
            assert parents[3:] == [3, 4]
            inactive = self.parents((NAN, 0.0, 2.0, 4.0, 4.0), seed=seed, active=False)
            assert inactive[0] in (3, 4)
            assert inactive[1:] == [1, 2, 3, 4]
            assert self.parents((NAN, 1.0, 1.0, INF, 1.0), seed=seed)[0] in (1, 2, 4)  # there is no leader
        assert self.parents([NAN] * 5) == [0, 1, 2, 3, 4]


class TestMultiFrequency:
    """Members 0 to 3 evolve every generation, members 4 to 7 every second one."""

    FREQUENCIES = (1, 2)
    FITNESS = (10.0, 8.0, 3.0, 1.0, 9.0, 7.0, 5.0, 2.0)

    def parents(self, fitness=FITNESS, generation=1, active=True):
        return multi_frequency(jnp.asarray(fitness), jnp.int32(generation), self.FREQUENCIES, active).tolist()

    def donors(self, parents, fitness=FITNESS):
        return donors(jnp.asarray(fitness), jnp.asarray(parents), self.FREQUENCIES).tolist()

    def test_a_sub_population_evolves_only_in_its_generations(self):
        assert self.parents(generation=0) == [0, 1, 4, 0, 4, 5, 6, 7]  # 3 copies 0; the migrant 4 replaces 2
        assert self.parents(generation=1) == [0, 1, 4, 0, 4, 5, 0, 4]  # 7 copies 4; the migrant 0 replaces 6

    def test_a_migrant_must_be_better_and_among_equal_members_none_is_replaced(self):
        fitness = (10.0, 8.0, 3.0, 1.0, 100.0, 90.0, 80.0, 70.0)
        assert self.parents(fitness) == [0, 1, 4, 0, 4, 5, 6, 4]
        assert self.parents([7.0] * 8) == list(range(8))
        assert self.parents([7.0] * 7 + [NAN]) == [*range(7), 4]

    def test_neither_a_member_nor_a_migrant_replaces_an_equal_one(self):
        # Of eight, the last two copy the first two: 6 copies 0, but 1 equals 7. The two before them are replaced by
        # migrants: 4 by the only one that is better, so that none replaces 5. Likewise among the other eight.
        fitness = (1.0, *[0.0] * 7, 1.0, *[0.0] * 7)
        assert self.parents(fitness) == [0, 1, 2, 3, 8, 5, 0, 7, 8, 9, 10, 11, 0, 13, 8, 15]

    def test_each_migrant_replaces_one_member_best_first(self):
        eight = (80.0, 70.0, 60.0, 50.0, 7.5, 4.0, 2.0, 1.0)
        other = (7.0, 6.0, 5.0, 0.9, 0.8, 0.7, 0.6, 0.5)
        parents = self.parents(eight + other)
        # 4 is better than any migrant and survives; 5 copies the best of them; the last two copy the group's best.
        assert parents[:8] == [0, 1, 2, 3, 4, 8, 0, 1]
        assert parents[8:] == [8, 9, 10, 11, 0, 1, 8, 9]

    def test_hyper_parameters_move_asymmetrically(self):
        """Into the fast the migrant's (4), into the slow those of the best member there (4, not 0)."""
        parents = self.parents()
        assert self.donors(parents) == [0, 1, 4, 0, 4, 5, 4, 4]
        within = selection.within_subpopulation(jnp.asarray(parents), self.FREQUENCIES)
        assert within.tolist() == [1, 1, 0, 1, 1, 1, 0, 1]
        # Between equal intervals only parameters migrate.
        given = jnp.asarray([0, 1, 4, 0, 4, 5, 0, 4])
        assert donors(jnp.asarray(self.FITNESS), given, (3, 3)).tolist() == [0, 1, 2, 0, 4, 5, 6, 4]

    def test_a_diverged_member_is_replaced_at_once(self):
        fitness = (10.0, 8.0, NAN, 1.0, NAN, 7.0, 5.0, 2.0)
        assert self.parents(fitness, generation=0)[4:] == [5, 5, 6, 7]  # not their generation, but 4 diverged
        assert self.parents(fitness, generation=0, active=False) == [0, 1, 0, 3, 5, 5, 6, 7]
        # More have diverged than the quarters have places.
        assert self.parents((NAN, NAN, NAN, 1.0, 9.0, 7.0, 5.0, 2.0), generation=0)[:4] == [3, 3, 3, 3]

    def test_a_completely_diverged_sub_population_copies_the_best_of_all(self):
        fitness = (10.0, 8.0, 3.0, 1.0, NAN, NAN, INF, NAN)
        parents = self.parents(fitness, generation=0)
        assert parents[4:] == [0, 0, 0, 0]
        assert self.donors(parents, fitness)[4:] == [0, 0, 0, 0]
        # Also where intervals are equal: no member keeps the hyper-parameters with which it diverged.
        assert donors(jnp.asarray(fitness), jnp.asarray(parents), (5, 5)).tolist()[4:] == [0, 0, 0, 0]
        assert self.parents([NAN] * 8) == list(range(8))


@pytest.mark.parametrize("seed", range(4))
def test_parents_are_always_better_than_their_children(seed):
    keys = jax.random.split(jax.random.key(seed), 3)
    fitness = jnp.round(jax.random.normal(keys[0], (16,)) * 3)  # with ties
    fitness = jnp.where(jax.random.bernoulli(keys[1], 0.2, (16,)), NAN, fitness)
    value = jnp.where(jnp.isfinite(fitness), fitness, -INF)
    for parents in (
        truncation(fitness, keys[2], 4, 4),
        tournament(fitness, keys[2]),
        threshold(fitness, keys[2], 0.1, 0.05),
        multi_frequency(fitness, jnp.int32(9), (1, 10), True),
    ):
        assert parents.dtype == jnp.int32
        child = parents != jnp.arange(16)
        assert child.any()
        assert (value[parents] > value)[child].all()
        assert child[~jnp.isfinite(fitness)].all()
        assert jnp.isfinite(fitness[parents]).all()
