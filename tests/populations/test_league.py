"""The league of earlier members: the weights and the replacement computed by hand, and which agents act where.

In `swap` each of two agents is paid what the other did, which is three times its parameter (`fixed_agents.spy`) and the
normalised observation, so that a reward names the opponent. Observations are 0, and normalised to `SHIFT` by entries.
"""

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agents import multi_agent
from rookery.envs import base as envs
from rookery.envs.base import Environment, EnvSpec, Step, Team
from rookery.envs.wrappers import time_limit
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.normalize import RunningStatistics
from rookery.populations import role_pbt
from rookery.populations.base import Program, ProgramState
from rookery.populations.config import LeagueConfig
from rookery.populations.role_pbt import League, pbt_roles
from rookery.types import Genotype
from tests.learners import fixed_agents
from tests.learners.fixed_agents import spy
from tests.learners.rollouts import ERRAND, errand

ENVS, LENGTH, SIZE = 6, 3, 3
SPEC = EnvSpec("swap", 1, 1, LENGTH, team=Team(("left", "right"), (1, 1), (1, 1), competitive=True))
CONFIG = OnPolicyConfig(
    ENVS, LENGTH, 1, normalize_observations=True, stagger_episodes=False, eval_episodes=2, start_states=2
)
LEAGUE = LeagueConfig(league_size=2, league_share=0.3, league_every=2)
CURRENT = np.asarray([[0.125, 0.25], [0.0625, 0.1875], [0.25, 0.3125]], np.float32)
EARLIER = np.asarray([[-0.125, -0.25], [-0.0625, -0.1875]], np.float32)
SHIFT = 0.03125


def swap() -> Environment:
    return time_limit.limit_episode(Environment(_reset, _step, SPEC), LENGTH)


def _reset(key: jax.Array) -> tuple[jax.Array, Step]:
    del key
    return jnp.zeros(()), envs.first_step(jnp.zeros((2, 1)), jnp.zeros((0,)))


def _step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
    del key
    return state + 1.0, envs.next_step(jnp.zeros((2, 1)), action[::-1, 0], jnp.zeros(2, bool), jnp.zeros((0,)))


@pytest.fixture(autouse=True)
def six_environments(monkeypatch):
    monkeypatch.setattr(fixed_agents, "ENVS", ENVS)


def learner(**options: Any) -> Any:
    one = spy(SPEC)

    def explore(state, hyper, observation, key):
        action, log_prob = one.explore(state, hyper, observation, key)
        return action + observation.features, log_prob

    agent = multi_agent.independent(one._replace(explore=explore), SPEC)
    return on_policy(agent, swap(), dataclasses.replace(CONFIG, **options))


@cache
def compiled() -> tuple[Program, Callable, ProgramState]:
    program = pbt_roles(learner(), None, SIZE, league=LEAGUE, replace_count=1, best_count=1)
    return program, jax.jit(program.step), jax.jit(program.init)(jax.random.key(0))


def stepped(params: np.ndarray, generation: int = 0, **league: Any) -> tuple[ProgramState, dict[str, np.ndarray]]:
    """A generation of members and, if it is given, of a league with these fields."""
    _, step, initial = compiled()
    members, shared = initial.members, initial.shared
    members = members._replace(state=members.state._replace(params=jnp.asarray(params)))
    pool = shared.league
    if league:
        full = partial(jnp.full, dtype=jnp.float32)  # of the types of the first league, for which the step is compiled
        seen = RunningStatistics(full((2, 2), 4.0), full((2, 2, 1), -SHIFT), full((2, 2, 1), 4.0))
        pool = pool._replace(policies=pool.policies._replace(params=jnp.asarray(EARLIER), normalizer=seen))
        pool = pool._replace(**{name: jnp.asarray(value) for name, value in league.items()})
    shared = shared._replace(generation=jnp.int32(generation), league=pool)
    state, metrics = step(initial._replace(members=members, shared=shared), jax.random.key(1))
    return state, {name: np.asarray(values) for name, values in metrics.items()}


# --- which agents act where


def test_a_share_of_the_environments_is_spread_and_divided_among_the_roles():
    assert role_pbt.environments_of(learner(), LEAGUE).tolist() == [[0], [3]]
    assert role_pbt.environments_of(learner(), LeagueConfig(league_share=2 / 3)).tolist() == [[0, 3], [1, 4]]
    assert role_pbt.environments_of(learner(), LeagueConfig(league_share=1.0)).tolist() == [[0, 2, 4], [1, 3, 5]]
    assert role_pbt.environments_of(learner(), LeagueConfig(league_share=0.0)).shape == (2, 0)


def test_each_role_learns_against_the_entry_that_it_draws_in_its_share_and_nothing_else_counts():
    # Left draws entry 0 alone, and right entry 1.
    state, metrics = stepped(CURRENT, entered=[1, 1], beaten=[[0.5, 1.0], [1.0, 0.5]])
    batch = state.members.state.batch
    parents = np.asarray(state.shared.parents).reshape(SIZE, 2) // 2
    for slot in range(SIZE):
        reward, counts = (np.asarray(leaf)[slot] for leaf in (batch.reward, batch.extras.counts))  # [I, T, E]
        for role, place, other, entry in ((0, 0, 3, 0), (1, 3, 0, 1)):
            current = 3 * CURRENT[:, 1 - role]
            np.testing.assert_allclose(reward[role, :, place], 3 * EARLIER[entry, 1 - role] + SHIFT, rtol=1e-6)
            alone = [each for each in range(ENVS) if each not in (0, 3)]
            assert len(np.unique(reward[role, :, alone])) == 1, "one opponent of the current population"
            assert np.isclose(current, reward[role, 0, 1]).any()
            assert counts[role, :, [place, *alone]].all()
            assert not counts[role, :, other].any(), "an earlier member acted for this role"
    assert (parents == np.arange(SIZE)[:, None]).sum() == 2 * SIZE - 2
    np.testing.assert_array_equal(metrics["train_episodes"], ENVS - 2)
    np.testing.assert_allclose(np.sort(metrics["train_return/left"]), np.sort(LENGTH * 3 * CURRENT[:, 1]), rtol=1e-6)


def test_teams_act_alone_while_the_league_is_empty():
    state, metrics = stepped(CURRENT)
    batch = state.members.state.batch
    assert np.asarray(batch.extras.counts).all()
    assert (np.asarray(batch.reward) > 0).all()
    np.testing.assert_array_equal(metrics["train_episodes"], ENVS)
    assert np.isnan(metrics["league_entered/0"])
    assert np.isnan(metrics["league_rating/left/0"])


# --- entering


def test_the_best_of_each_role_enters_and_all_entries_are_rated():
    """Both sides are paid what the other does in an evaluation, so that the best have the largest of the other role,
    and an entry is easier the larger it is."""
    state, metrics = stepped(CURRENT, generation=1, entered=[1, 0], beaten=[[0.5, 1.0], [0.5, 1.0]])
    pool, trained = state.shared.league, metrics["fitness"].reshape(SIZE, 2)
    assert pool.entered.tolist() == [1, 2]
    best = [CURRENT[trained[:, role].argmax(), role] for role in (0, 1)]
    np.testing.assert_array_equal(pool.policies.params, [EARLIER[0], best])
    # Two opponents are drawn from three: n = 2 * 3. Entry 0 is below all of them, so that no member does better.
    np.testing.assert_allclose(pool.beaten[:, 0], [0.5 / 7, 0.5 / 7])
    rating = 400 * np.log10(6.5 / 0.5)
    np.testing.assert_allclose(metrics["league_rating/left/0"], rating, rtol=1e-5)
    assert metrics["league_entered/1"] == 2
    for role, name in enumerate(("left", "right")):
        wins = 7 * float(pool.beaten[role, 1]) - 0.5
        assert np.isclose(wins / 1.5, round(wins / 1.5)), "all three members see the same opponents; a tie is a half"
        np.testing.assert_allclose(
            metrics[f"league_rating/{name}/1"], 400 * np.log10((6.5 - wins) / (wins + 0.5)), rtol=1e-4, atol=1e-4
        )


def test_the_league_changes_in_every_second_generation_only():
    state, _ = stepped(CURRENT, generation=2, entered=[1, 0], beaten=[[0.5, 1.0], [0.25, 1.0]])
    assert state.shared.league.entered.tolist() == [1, 0]
    np.testing.assert_array_equal(state.shared.league.beaten, [[0.5, 1.0], [0.25, 1.0]])


def test_a_member_that_is_not_finite_never_enters():
    params = CURRENT.copy()
    params[:2, 0] = np.nan
    state, _ = stepped(params, generation=1)
    pool = state.shared.league
    assert pool.entered.tolist() == [2, 0]
    assert pool.policies.params[0, 0] == CURRENT[2, 0]
    assert np.isfinite(np.asarray(pool.policies.params)).all()
    assert ((np.asarray(pool.beaten) == 1.0) == [False, True]).all(), "no number is known of an empty entry"
    params[2, 0] = np.nan  # a role without any
    assert stepped(params, generation=1)[0].shared.league.entered.tolist() == [0, 0]


def pool(entered: list[int], beaten: list[list[float]]) -> League:
    policies = Genotype(jnp.arange(2.0 * len(entered)).reshape(-1, 2), (), ())
    return League(policies, jnp.asarray(entered, jnp.int32), jnp.asarray(beaten, jnp.float32))


@pytest.mark.parametrize(
    ("entered", "beaten", "place"),
    [
        ([4, 2, 0], [[0.5, 0.9, 1.0], [0.5, 0.9, 1.0]], 2),  # an empty entry first
        ([4, 2, 6], [[0.5, 0.6, 0.9], [0.5, 0.8, 0.6]], 2),  # the easiest in the mean over roles: 0.75
        ([4, 2, 6], [[0.5, 0.5, 0.25], [0.5, 0.5, 0.25]], 1),  # the oldest of equally easy ones
        ([0, 0, 0], [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], 0),
    ],
)
def test_an_entry_replaces_the_one_that_is_beaten_most_often(entered, beaten, place):
    entry, given = Genotype(jnp.asarray([-1.0, -2.0]), (), ()), pool(entered, beaten)
    changed = role_pbt.enter(given, entry, jnp.int32(8), jnp.asarray(True))
    expected = np.array(given.policies.params)
    expected[place] = [-1.0, -2.0]
    np.testing.assert_array_equal(changed.policies.params, expected)
    assert int(changed.entered[place]) == 8
    assert int(jnp.sum(changed.entered != given.entered)) == 1
    unknown = role_pbt.enter(given, entry, jnp.int32(8), jnp.asarray(False))
    np.testing.assert_array_equal(unknown.policies.params, given.policies.params)
    np.testing.assert_array_equal(unknown.entered, given.entered)


# --- numbers


@pytest.mark.parametrize(
    ("power", "expected"),
    [
        (2.0, [[0.25, 0.0625, 0.0], [1.0, 0.5625, 0.0]]),  # (1 - p)^2, Vinyals 2019
        (1.0, [[0.5, 0.25, 0.0], [1.0, 0.75, 0.0]]),
        (0.0, [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]),  # uniform
    ],
)
def test_weights_of_the_entries(power, expected):
    given = pool([3, 6, 0], [[0.5, 0.75, 1.0], [0.0, 0.25, 1.0]])
    np.testing.assert_allclose(np.exp(role_pbt.log_chances(given, power)), expected)


def test_the_hardest_entry_has_the_largest_weight_however_large_the_power_is():
    given = pool([3, 6, 9, 0], [[0.5, 0.25, 0.75, 1.0]])
    assert np.argsort(role_pbt.log_chances(given, 1e6)).tolist() == [[3, 2, 0, 1]]


def test_how_often_members_beat_entries():
    current = [[1.0, 5.0], [3.0, np.nan]]  # two opponents, two members
    entries = [[2.0, 5.0], [0.0, 9.0], [np.nan, np.nan]]
    found = role_pbt.beaten(jnp.asarray([[*entries, *current]]), 3)
    # Entry 0: 2 > 1, 2 < 3, 5 = 5; entry 1: 0 < 1, 0 < 3, 9 > 5; entry 2: nothing is known.
    np.testing.assert_allclose(found, [[(1.5 + 0.5) / 4, (1 + 0.5) / 4, 0.5]])


# --- what is refused


def test_what_cannot_play_in_a_league_is_refused():
    def build(learner, **options):
        return pbt_roles(learner, None, SIZE, league=LeagueConfig(**options))

    together = on_policy(multi_agent.independent(spy(ERRAND), ERRAND), errand(), CONFIG)
    with pytest.raises(ValueError, match=r"errand lets its agents cooperate; train without a league\.$"):
        build(together)
    with pytest.raises(ValueError, match=r"^league_share must give each of the 2 roles an environment of the 6, got"):
        build(learner(), league_share=0.1)
    with pytest.raises(ValueError, match=r"^league_share must leave environments whose training episodes give the"):
        build(learner(fitness_from="training"), league_share=1.0)
    for name, value, problem in (("size", 0, "at least 1"), ("share", 1.5, r"in \[0, 1\]"), ("every", 0, "at least 1")):
        with pytest.raises(ValueError, match=rf"^league_{name} must (be|lie) {problem}, got"):
            build(learner(), **{f"league_{name}": value})
    settings: Any = {"league_size": 2}
    with pytest.raises(TypeError, match=r"^league must be a LeagueConfig, got {'league_size': 2}; build one\.$"):
        pbt_roles(learner(), None, SIZE, league=settings)
