"""Rounds with an automatic interval between selections, against values computed by hand."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import hyperparams, trees
from rookery.experiments.build import build
from rookery.experiments.kinds import configure
from rookery.learners import widths
from rookery.populations import base, pb2, selection
from rookery.populations.config import PbtConfig, Timing, timing
from rookery.populations.inheritance import shrink_and_perturb
from rookery.populations.pbt import pbt, select
from rookery.populations.role_pbt import pbt_roles
from rookery.populations.sharding import ONE_DEVICE
from rookery.settings import SettingError
from tests import tiny, walks

INF = np.inf


@pytest.fixture(autouse=True)
def quick_pb2(monkeypatch):
    """PB2 with few observations, steps and candidates: the quality of its fit has no importance here."""
    for name, value in {"FIT_STEPS": 2, "CANDIDATES": 16, "empty": partial(pb2.empty, rows=16)}.items():
        monkeypatch.setattr(pb2, name, value)


def follow(best: list[float], patience: int = 2, burn_in: int = 0, until: int | None = None) -> list[selection.Rounds]:
    """The rounds after each generation of two members, of which the second is worse by 1."""
    advance = jax.jit(partial(selection.advance_rounds, burn_in, patience, until))
    current, found = selection.first_round(), []
    for generation, value in enumerate(best):
        current = advance(current, jnp.asarray([value, value - 1.0]), jnp.int32(generation))
        found.append(jax.tree.map(np.asarray, current))
    return found


class TestAdvance:
    def test_a_round_ends_when_the_mean_of_three_has_no_new_maximum_and_the_interval_doubles(self):
        first = [1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0]  # means 1, 1.5, 2, 2.67, 3, 3, 3
        second = [99.0, 0.5, 99.0, 0.75, 99.0, 0.5, 99.0, 0.25]  # selected in every second generation
        found = follow([*first, *second, 99.0, 99.0, 99.0, 1.0])
        highest = [float(one.highest) for one in found]
        assert highest[:6] == pytest.approx([1, 1.5, 2, 8 / 3, 3, 3])
        assert [int(one.waited) for one in found[:6]] == [0, 0, 0, 0, 0, 1]
        assert highest[6:14] == [-INF, -INF, 0.5, 0.5, 0.625, 0.625, 0.625, 0.625]
        assert [int(one.waited) for one in found[6:14]] == [0, 0, 0, 0, 0, 0, 1, 1]
        assert highest[14:] == [-INF, -INF, -INF, -INF, 1.0]
        assert [int(one.number) for one in found] == [0] * 6 + [1] * 8 + [2] * 5
        assert [int(one.interval) for one in found] == [1] * 6 + [2] * 8 + [4] * 5
        ends = [g for g, one in enumerate(found) if one.is_last(jnp.int32(g))]
        selections = [g for g, one in enumerate(found) if one.is_selection(jnp.int32(g))]
        assert (ends, selections) == ([6, 14], [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 18])

    def test_no_round_begins_that_could_not_end_before_the_run(self):
        # The first round ends after 3 generations, the second would have selections after 5, 7 and 9.
        assert [int(one.number) for one in follow([1.0] * 9, until=9)] == [0] * 2 + [1] * 7
        assert [int(one.number) for one in follow([1.0] * 9, until=8)] == [0] * 9

    def test_nothing_is_selected_before_the_burn_in_has_ended(self):
        found = follow([9.0, 9.0, 1.0, 2.0], burn_in=2)
        assert [int(one.selected) for one in found] == [0, 0, 3, 4]
        assert float(found[-1].highest) == 1.5

    def test_a_selection_without_a_finite_fitness_does_not_count(self):
        found = follow([np.nan, 1.0, np.nan, np.nan, np.nan, 1.0, INF, 1.0], patience=2)
        assert [int(one.waited) for one in found] == [0, 0, 0, 0, 0, 1, 1, 0]
        assert [int(one.number) for one in found] == [0, 0, 0, 0, 0, 0, 0, 1]


@cache
def steady() -> tuple[Any, Callable]:
    """A population whose members begin at -2 and move by 1 in each generation; their fitness is at most 3."""
    walk = walks.learner()

    def init(key, hyper, bank):
        member = walk.init(key, hyper, bank)
        return member._replace(state=member.state._replace(position=jnp.full(3, -2.0)))

    def step(member, bank, key, generation):
        del bank, key, generation
        state = walks.State(member.state.position + 1.0, member.state.momentum + 1.0)
        return member._replace(state=state), {}

    def evaluate(genotype, bank, key):
        evaluation = walk.evaluate(genotype, bank, key)
        fitness = jnp.minimum(genotype.params[0], 3.0)
        return evaluation._replace(fitness=fitness, returns=fitness[None])

    learner = walk._replace(init=init, step=step, evaluate=evaluate)
    program = pbt(learner, population_size=4, exploit_interval="auto", round_patience=2)
    return jax.jit(program.init)(jax.random.key(0)), jax.jit(program.step)


class TestProgram:
    def test_a_round_ends_with_shrunk_parameters_and_hyper_parameters_of_the_process(self):
        state, step = steady()
        positions, changed, columns = [], [], []
        for generation in range(15):
            before = state
            state, metrics = step(state, jax.random.key(generation))
            position = np.asarray(state.members.state.position)
            assert (position == position[0, 0]).all(), "fitnesses are equal, and no member replaces another"
            positions.append(float(position[0, 0]))
            new = [
                getattr(state.members.hyper, name) != getattr(before.members.hyper, name)
                for name in walks.SPACE.domains
            ]
            changed.append(np.asarray(new).all())
            assert changed[-1] == np.asarray(new).any()
            columns.append((int(metrics["round"][3]), int(metrics["exploit_interval"])))
            if changed[-1]:
                assert not state.members.state.momentum.any(), "optimisers begin anew"
                assert len(set(state.members.hyper.rate.tolist())) == 4
                assert np.isnan(state.shared.recent).all()
            else:
                assert state.members.state.momentum.all()
            tiny.assert_equal(state.members.buffer, before.members.buffer)
            tiny.assert_equal(state.members.env_state, before.members.env_state)
        # The fitness is 3 from generation 4 on, its mean from generation 6 on; two selections later the round ends.
        # Then 7 becomes 0.4 * 7 + 0.1 * -2 = 2.6. The second round selects in the generations 10, 12 and 14.
        expected = [-1, 0, 1, 2, 3, 4, 5, 6, 2.6, 3.6, 4.6, 5.6, 6.6, 7.6, 0.4 * 8.6 - 0.2]
        assert positions == pytest.approx(expected, rel=1e-6)
        assert np.flatnonzero(changed).tolist() == [8, 14]
        assert columns == [(0, 1)] * 9 + [(1, 2)] * 6
        assert (int(state.shared.rounds.number), int(state.shared.rounds.interval)) == (2, 4)

    def test_the_process_learns_nothing_from_what_was_shrunk(self):
        state, step = steady()
        valid = []
        for generation in range(11):
            state, _ = step(state, jax.random.key(generation))
            times = np.asarray(state.shared.history.time)[np.asarray(state.shared.history.valid)]
            valid.append(sorted({*times.astype(int).tolist()}))
        assert valid[-3:] == [[5, 6, 7, 8], [6, 7, 8], [7, 8, 10]]  # the window has four generations

    def test_selection_follows_the_present_interval(self):
        state, step = steady()
        later = state.shared.rounds._replace(interval=jnp.int32(2))
        state = state._replace(shared=state.shared._replace(rounds=later))
        selects = []
        for generation in range(6):
            learned = state.members.state
            learned = learned._replace(position=learned.position.at[3].set(-9.0))
            state, _ = step(state._replace(members=state.members._replace(state=learned)), jax.random.key(generation))
            selects.append(state.shared.parents[3] != 3)
        assert selects == [False, True] * 3


@pytest.mark.parametrize("exploit", ["truncation", "tournament", "threshold"])
def test_every_strategy_selects_at_the_present_interval(exploit):
    config = PbtConfig(exploit=exploit, exploit_interval="auto")
    chosen, selects = jax.jit(partial(select, config, timing(config, 4, 10, 0))), []
    for generation, rounds in enumerate(follow([1.0] * 9)):
        parents = chosen(jnp.arange(4.0), jnp.int32(generation), jax.random.key(generation), None, rounds)
        selects.append((parents != jnp.arange(4)).any())
    assert selects == [True, True] + [True, False] * 3 + [True]


def test_parameters_are_shrunk_toward_new_ones_and_targets_follow_them():
    learner, size, keys = tiny.learner(), 3, jax.random.split(jax.random.key(0), 3)
    space, bank = rookery.choose(learner.space, hidden_size=(2, 8)), learner.start_states(keys[1])
    create = jax.jit(jax.vmap(lambda key, hyper: learner.init(key, hyper, bank)))
    hyper = jax.vmap(partial(hyperparams.sample, space))(base.member_keys(keys[0], size))
    old = create(base.member_keys(keys[1], size), hyper)
    shrink = jax.jit(partial(shrink_and_perturb, learner, ONE_DEVICE))
    tiny.assert_equal(shrink(old, jnp.asarray(False), keys[2], bank), old)
    new = shrink(old, jnp.asarray(True), keys[2], bank)
    drawn = create(base.member_keys(keys[2], size), hyper)
    found, *mixed = (jax.tree.leaves(one.state.params) for one in (new, old, drawn))
    for leaf, trained, fresh in zip(found, *mixed, strict=True):
        np.testing.assert_allclose(leaf, 0.4 * trained + 0.1 * fresh, rtol=1e-5, atol=1e-7)
    assert not trees.same_numbers(new.state.params, old.state.params)
    tiny.assert_equal(new.state.target_critic, new.state.params.critic)
    tiny.assert_equal((new.hyper, new.buffer, new.env_state), (old.hyper, old.buffer, old.env_state))
    assert learner.resize is not None
    assert widths.evolves(learner, new.hyper)
    resized = jax.jit(jax.vmap(learner.resize))(new, base.member_keys(keys[2], size))
    tiny.assert_equal(resized.state, new.state)


class TestSettings:
    @pytest.mark.parametrize("exploit", ["none", "multi-frequency"])
    def test_strategies_without_an_interval_of_their_own_are_refused(self, exploit):
        with pytest.raises(SettingError, match=f"exploit_interval cannot be automatic with exploit {exploit}, got"):
            PbtConfig(exploit=exploit, exploit_interval="auto")

    def test_ratings_and_roles_are_refused(self):
        with pytest.raises(SettingError, match="exploit_interval cannot be automatic with ratings"):
            pbt(tiny.team(), population_size=4, exploit_interval="auto", rating_opponents=2)
        with pytest.raises(SettingError, match="exploit_interval cannot be automatic with member agent"):
            pbt_roles(tiny.team(), population_size=4, exploit_interval="auto")

    def test_the_title_of_a_run_says_that_the_interval_is_automatic(self):
        chosen = timing(PbtConfig(exploit_interval="auto"), 8, 1_000, 2)
        assert chosen == Timing(2, 1, 2, True)
        assert str(chosen) == "selects at an automatic interval, first in generation 3, replaces 2 members"

    def test_a_run_knows_its_end_and_a_given_one_stays(self):
        for given, until in ((None, 9), (5, 5)):
            config = PbtConfig(exploit_interval="auto", rounds_until=given)
            settings = build(configure("pbt-sac", env="point_goal", pbt=config, generations=9)).program.settings
            assert settings["pbt"]["rounds_until"] == until
