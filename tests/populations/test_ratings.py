"""Ratings, computed by hand, and selection by them in a game whose order of strength is known.

In `duel` each of three agents is paid its action minus half the sum of the other two's, so that the mean return of a
team is exactly 0. An agent acts with its parameter (`fixed_agents.spy`), which is its strength. Parameters are
multiples of 1/8, so that all sums are exact.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agents import multi_agent
from rookery.envs import base as envs
from rookery.envs.base import Environment, EnvSpec, Step, Team
from rookery.envs.wrappers import time_limit
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.populations import ratings
from rookery.populations.base import Program, ProgramState
from rookery.populations.pbt import pbt
from rookery.populations.ratings import rating_of
from rookery.populations.role_pbt import pbt_roles
from rookery.populations.sharding import ONE_DEVICE
from rookery.types import Genotype
from tests.learners.fixed_agents import CONFIG, spy
from tests.learners.recording import SPY_SPEC, counting
from tests.learners.rollouts import ERRAND, errand

LENGTH, SIZE, ROLES = 3, 4, 3
TEAM = Team(("first", "second", "third"), (1,) * ROLES, (1,) * ROLES, competitive=True)
DUEL = EnvSpec("duel", observation_size=1, action_size=1, episode_length=LENGTH, team=TEAM)


def duel() -> Environment:
    return time_limit.limit_episode(Environment(_reset, _step, DUEL), LENGTH)


def _reset(key: jax.Array) -> tuple[jax.Array, Step]:
    del key
    return jnp.zeros(()), envs.first_step(jnp.zeros((ROLES, 1)), jnp.zeros((0,)))


def _step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
    del key
    played = action[:, 0]
    reward = played - 0.5 * (jnp.sum(played) - played)
    return state + 1.0, envs.next_step(jnp.zeros((ROLES, 1)), reward, jnp.zeros((ROLES,), bool), jnp.zeros((0,)))


def expected_returns(params: np.ndarray, opponents: np.ndarray) -> np.ndarray:
    """`[I, R, P]`, from parameters `[P, I]` and `[R, I]`."""
    others = opponents.sum(axis=1, keepdims=True) - opponents  # [R, I]
    return LENGTH * (params.T[:, None] - 0.5 * others.T[:, :, None])


# Strength of each role's members; the best of a role plays in the worst teams of the others.
STRENGTH = np.asarray([[0.875, 0.125, 0.25], [0.5, 0.75, 0.375], [0.25, 0.375, 0.625], [0.125, 0.5, 0.75]], np.float32)


class CompiledPbt(NamedTuple):
    program: Program
    step: Callable[..., tuple[ProgramState, dict]]
    initial: ProgramState

    def stepped(self, params: np.ndarray, seed: int = 1) -> tuple[ProgramState, dict[str, np.ndarray]]:
        members = self.initial.members
        given = members._replace(state=members.state._replace(params=jnp.asarray(params, jnp.float32)))
        state, metrics = self.step(self.initial._replace(members=given), jax.random.key(seed))
        return state, {name: np.asarray(values) for name, values in metrics.items()}


def learner() -> Any:
    return on_policy(multi_agent.independent(spy(DUEL), DUEL), duel(), CONFIG)


@cache
def population(method: Callable[..., Program], opponents: int | None) -> CompiledPbt:
    """Four members; the worst is replaced by the best."""
    options: dict[str, Any] = {"replace_count": 1, "best_count": 1, "resample_probability": 0.0}
    program = method(learner(), None, SIZE, rating_opponents=opponents, **options)
    return CompiledPbt(program, jax.jit(program.step), jax.jit(program.init)(jax.random.key(0)))


# --- ratings


def points(wins: float, count: int) -> float:
    return 400.0 * np.log10((wins + 0.5) / (count - wins + 0.5))


@pytest.mark.parametrize(
    ("returns", "wins", "count"),
    [
        ([[3.0, 1.0, 2.0]], [2, 0, 1], 2),
        ([[5.0, 5.0, 2.0]], [1.5, 1.5, 0], 2),
        ([[7.0]], [0], 0),
        ([[1.0, 2.0, 3.0], [900.0, 800.0, 900.0]], [1.5, 1, 3.5], 4),  # the sizes of the returns do not matter
        ([[0.0, 1.0, -1.0], [-1.0, 0.0, 1.0], [1.0, -1.0, 0.0]], [3, 3, 3], 6),  # rock, paper, scissors
        ([[np.nan, -9.0, np.nan], [2.0, 1.0, 3.0]], [1.5, 2, 2.5], 4),  # two that failed tie
        ([[np.inf, -9.0, 0.0], [-np.inf, 1.0, 1.0]], [0, 2.5, 3.5], 4),
    ],
)
def test_ratings_computed_by_hand(returns: list, wins: list, count: int) -> None:
    found = rating_of(jnp.asarray(returns))
    assert found.dtype == jnp.float32
    is_finite = np.isfinite(returns).any(axis=0)
    expected = np.where(is_finite, [points(each, count) for each in wins], np.nan)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_opposite_scores_have_opposite_ratings_and_the_extremes_are_finite() -> None:
    found = np.asarray(rating_of(jnp.arange(30.0).reshape(5, 6)))
    np.testing.assert_array_equal(found, -found[::-1])
    assert found[-1] == np.float32(points(25, 25))
    assert np.isnan(rating_of(jnp.full((2, 3), jnp.nan))).all(), "every opponent failed"


# --- cross-play


def test_every_member_plays_every_opponent_in_each_role() -> None:
    members = population(pbt, 2).initial.members
    bank = learner().start_states(jax.random.key(0))
    opponents = np.asarray([[0.5, 0.25, 0.125], [0.125, -0.5, 1.0]], np.float32)
    statistics = jax.tree.map(lambda leaf: leaf[:2], members.normalizer)
    play = jax.jit(partial(ratings.cross_play, ONE_DEVICE, learner()))
    genotypes = Genotype(jnp.asarray(STRENGTH), members.hyper, members.normalizer)
    returns = play(genotypes, (jnp.asarray(opponents), statistics), bank, jax.random.key(1))
    np.testing.assert_array_equal(returns, expected_returns(STRENGTH, opponents))


def test_opponents_are_drawn_without_replacement_and_failed_ones_last() -> None:
    finite = jnp.ones((6, 2), bool).at[2, 1].set(False).at[4].set(False)
    drawn = np.stack([ratings._draw(jax.random.key(seed), finite) for seed in range(8)])
    assert (np.sort(drawn, axis=1) == np.arange(6)).all()
    assert (np.sort(drawn[:, 4:], axis=1) == [2, 4]).all()
    assert len({tuple(row) for row in drawn[:, :4].tolist()}) > 2


# --- selection


def test_members_of_a_zero_sum_team_with_equal_mean_returns_are_selected_by_rating() -> None:
    state, metrics = population(pbt, 2).stepped(STRENGTH)
    by_role = np.stack([rating_of(jnp.asarray(np.tile(STRENGTH[:, role], (2, 1)))) for role in range(ROLES)])
    np.testing.assert_allclose(metrics["rating"], by_role.mean(axis=0), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(metrics["fitness"], np.zeros(SIZE))
    best, worst = int(metrics["rating"].argmax()), int(metrics["rating"].argmin())
    assert (best, worst) == (1, 0)
    expected = np.arange(SIZE)
    expected[worst] = best
    np.testing.assert_array_equal(state.shared.parents, expected)
    np.testing.assert_array_equal(state.members.state.params, STRENGTH[expected])
    np.testing.assert_array_equal(state.shared.recent[:, 0], metrics["rating"][expected])
    assert population(pbt, 2).program.settings["rating_opponents"] == 2


def test_roles_are_selected_by_rating_whatever_team_a_member_was_matched_with() -> None:
    """Equal members have equal ratings, since they play the same opponents."""
    misled = False
    for seed in range(4):
        state, metrics = population(pbt_roles, 1).stepped(STRENGTH, seed)
        rating = metrics["rating"].reshape(SIZE, ROLES)
        for role in range(ROLES):
            order = np.argsort(STRENGTH[:, role])
            np.testing.assert_array_equal(np.argsort(rating[:, role]), order)
            parents = np.arange(SIZE)
            parents[order[0]] = order[-1]
            found = np.asarray(state.shared.parents).reshape(SIZE, ROLES)[:, role]
            np.testing.assert_array_equal(found, parents * ROLES + role)
            misled |= int(metrics["fitness"].reshape(SIZE, ROLES)[:, role].argmax()) != order[-1]
        params = STRENGTH.copy()
        params[3] = params[0]
        rating = population(pbt_roles, 1).stepped(params, seed)[1]["rating"].reshape(SIZE, ROLES)
        np.testing.assert_array_equal(rating[0], rating[3])
        rating = population(pbt, 2).stepped(params, seed)[1]["rating"]
        assert rating[0] == rating[3]
    assert misled, "the returns of the matched teams have another order"


def test_a_diverged_member_has_no_rating_and_is_replaced_by_the_best() -> None:
    params = STRENGTH.copy()
    params[1, 2] = np.nan
    state, metrics = population(pbt, 2).stepped(params)
    assert np.isnan(metrics["rating"]).tolist() == [False, True, False, False]
    assert int(state.shared.parents[1]) == int(np.nanargmax(metrics["rating"]))
    state, metrics = population(pbt_roles, 1).stepped(params)
    rating = metrics["rating"].reshape(SIZE, ROLES)
    assert np.argwhere(np.isnan(rating)).tolist() == [[1, 2]]
    parents = np.asarray(state.shared.parents).reshape(SIZE, ROLES) // ROLES
    assert parents[1, 2] == np.nanargmax(rating[:, 2])
    assert np.isfinite(np.asarray(state.members.state.params)).all()


def test_ratings_are_smoothed_where_fitness_is() -> None:
    program = pbt(learner(), None, SIZE, rating_opponents=2, smooth=2)
    metrics = jax.eval_shape(program.step, jax.eval_shape(program.init, jax.random.key(0)), jax.random.key(0))[1]
    assert metrics["smoothed_rating"].shape == metrics["rating"].shape == (SIZE,)
    assert "smoothed_fitness" not in metrics


COOPERATING: Any = on_policy(multi_agent.independent(spy(ERRAND), ERRAND), errand(), CONFIG)
ALONE: Any = on_policy(spy(SPY_SPEC), counting(), OnPolicyConfig(2, 3))
SHARING: Any = on_policy(multi_agent.shared(spy(DUEL), DUEL), duel(), CONFIG)


@pytest.mark.parametrize(
    ("method", "learner", "options", "message"),
    [
        (pbt, ALONE, {}, "ratings compare agents that compete, and counting is an environment for a single agent"),
        (pbt_roles, COOPERATING, {}, r"compete, and errand lets its agents cooperate; select by fitness\.$"),
        (pbt, SHARING, {}, r"needs separate parameters; train with rookery\.agents\.independent"),
        (pbt_roles, learner(), {"rating_opponents": 0}, "rating_opponents must be at least 1, got 0"),
        (pbt_roles, learner(), {"rating_opponents": 5}, "rating_opponents .* at most the population of 4, got 5"),
    ],
)
def test_what_cannot_be_rated_is_refused(method: Any, learner: Any, options: dict, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        method(learner, **{"population_size": 4, "rating_opponents": 1, **options})
