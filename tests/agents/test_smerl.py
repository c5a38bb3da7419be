"""SMERL: statistics of the skills' returns, skills near the best, and their rewards, against hand-computed values."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import hyperparams
from rookery.agents.skills import smerl
from rookery.agents.skills.diayn import DiaynConfig, DiaynParams, diayn
from rookery.agents.skills.smerl import Returns, ReturnThreshold
from rookery.envs.base import SkillSpec, Step
from rookery.types import Observation
from tests.agents.common import BATCH, SKILLED, drawn_transitions, layer
from tests.learners.recording import skill_following

FOUR, SPHERE = SkillSpec("one-hot", 4), SkillSpec("sphere", 3)
BEST = ReturnThreshold(None, 0.9, 0.0)  # within a tenth of the best


def steps(skill: list[int], episode_return: list[float], ended: list[bool], truncated: bool = False) -> Step:
    """One step in each of four environments; those that are not given continue."""
    rest = 4 - len(skill)
    flags, never = np.asarray(ended + [False] * rest), np.zeros(4, bool)
    returns_of_rows = np.asarray(episode_return + [99.0] * rest, np.float32)
    nothing = np.zeros((4, 1), np.float32)
    reached = Observation(jnp.zeros((4, 1)), skill=jnp.eye(4)[jnp.asarray(skill + [0] * rest)])
    step = Step(reached, nothing[:, 0], flags, flags, reached, nothing, never, returns_of_rows)  # pyright: ignore[reportArgumentType]
    return step._replace(terminated=never) if truncated else step._replace(truncated=never)  # pyright: ignore


record = jax.jit(partial(smerl.record, FOUR))
near_best = jax.jit(smerl.near_best)


def known(mean: list[float], best: float, unknown: tuple[int, ...] = ()) -> Returns:
    held = [i not in unknown for i in range(len(mean))]
    return Returns(jnp.asarray(mean, jnp.float32), jnp.asarray(np.asarray(held)), jnp.float32(best))


def near(threshold: ReturnThreshold, returns: Returns) -> list[bool]:
    return np.asarray(near_best(threshold, returns, np.eye(4, dtype=np.float32))).tolist()


# --- statistics of returns


def test_returns_are_running_means_over_the_episodes_that_ended() -> None:
    returns = smerl.init(FOUR)
    assert not np.asarray(returns.known).any()
    # The first episode of a skill is its mean; two at once are averaged; unfinished episodes are not counted.
    returns = record(returns, steps([0, 1, 1, 2], [4.0, 1.0, 3.0, 99.0], [True, True, True, False]))
    assert returns.mean.tolist() == [4.0, 2.0, 0.0, 0.0]
    assert returns.known.tolist() == [True, True, False, False]
    assert float(returns.best) == 4.0
    # Then a fifth of the way to what has ended, terminated or cut short; two at once are two steps, 1 - 0.8^2 together.
    returns = record(returns, steps([0, 0, 2, 1], [9.0, 19.0, -5.0, 99.0], [True, True, True, False], True))
    np.testing.assert_allclose(returns.mean, [4.0 + 0.36 * (14.0 - 4.0), 2.0, -5.0, 0.0], rtol=1e-6)
    assert returns.known.tolist() == [True, True, True, False]
    np.testing.assert_allclose(returns.best, 7.6, rtol=1e-6)
    returns = record(returns, steps([0], [1.0], [True]))
    np.testing.assert_allclose(returns.mean, [7.6 + 0.2 * (1.0 - 7.6), 2.0, -5.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(returns.best, 7.6, rtol=1e-6)


def test_non_finite_returns_and_those_of_broken_episodes_are_ignored() -> None:
    before = known([1.0, 2.0, 3.0, 0.0], 3.0, unknown=(3,))
    broken = steps([0, 1, 3, 2], [math.nan, math.inf, -math.inf, 5.0], [True, True, True, True])
    after = record(before, broken)
    np.testing.assert_allclose(after.mean, [1.0, 2.0, 3.0 + 0.2 * 2.0, 0.0], rtol=1e-6)
    assert after.known.tolist() == [True, True, True, False]
    np.testing.assert_allclose(after.best, 3.4, rtol=1e-6)
    ended = steps([0, 1], [99.0, -3.0], [True, True])
    after = record(smerl.init(FOUR), ended._replace(broken=jnp.arange(4) == 0))
    assert after.mean.tolist() == [0.0, -3.0, 0.0, 0.0]
    assert after.known.tolist() == [False, True, False, False]
    assert float(after.best) == -3.0, "the best of negative returns is negative"
    assert float(record(after, steps([1], [-200.0], [True])).best) == -3.0


def test_the_initial_statistics_are_finite() -> None:
    # A member whose state is not finite has diverged, and would be replaced.
    unfinished = record(smerl.init(FOUR), steps([0, 1], [7.0, math.nan], [False, True]))
    assert not np.asarray(unfinished.known).any()
    for returns in (smerl.init(FOUR), smerl.init(SPHERE), unfinished):
        assert all(np.isfinite(leaf).all() for leaf in returns)


def test_all_skills_of_a_sphere_share_one_entry() -> None:
    step = steps([0, 1, 2], [2.0, 4.0, 50.0], [True, True, False])
    reached = step.final_observation
    assert reached.skill is not None
    directions = step._replace(final_observation=reached._replace(skill=reached.skill[:, :3]))
    returns = smerl.record(SPHERE, smerl.init(SPHERE), directions)
    assert returns.mean.tolist() == [3.0]
    assert float(returns.best) == 3.0
    chosen = -np.eye(3, dtype=np.float32)
    assert near_best(ReturnThreshold(3.0, 0.9, 0.0), returns, chosen).tolist() == [True] * 3
    assert near_best(BEST, returns, chosen).tolist() == [True] * 3
    assert near_best(BEST, returns._replace(best=jnp.float32(4.0)), chosen).tolist() == [False] * 3
    assert near_best(ReturnThreshold(-1e9, 0.9, 0.0), smerl.init(SPHERE), chosen).tolist() == [False] * 3


# --- skills near the best


@pytest.mark.parametrize(
    ("threshold", "mean", "best", "expected"),
    [
        # The configured target missed by 1 at most.
        (ReturnThreshold(5.0, 0.9, 1.0), [4.0, 3.9, 6.0, -5.0], 100.0, [True, False, True, False]),
        (BEST, [90.0, 89.0, 100.0, 0.0], 100.0, [True, False, True, False]),
        # A tenth of 100 below the best, and 5 more.
        (ReturnThreshold(None, 0.9, 5.0), [-115.0, -116.0, -100.0, 0.0], -100.0, [True, False, True, True]),
        (ReturnThreshold(None, 1.0, 0.0), [99.0, 100.0, 0.0, -1.0], 100.0, [False, True, False, False]),
    ],
)
def test_skills_near_the_target_are_rewarded(
    threshold: ReturnThreshold, mean: list, best: float, expected: list
) -> None:
    # The means lie a little inside of their bounds, which are sums of rounded numbers.
    inside = [value + 1e-3 for value in mean]
    assert near(threshold, known(inside, best)) == expected


def test_a_skill_without_a_finished_episode_is_not_rewarded() -> None:
    for threshold in (BEST, ReturnThreshold(-1e9, 0.9, 0.0), ReturnThreshold(None, 1.0, 1e9)):
        assert near(threshold, known([0.0] * 4, 0.0, unknown=(0, 2))) == [False, True, False, True]
        assert near(threshold, smerl.init(FOUR)) == [False] * 4


# --- rewards; `learners/test_diayn_training` has that the returns of episodes are recorded


def test_only_skills_near_the_best_are_rewarded_for_diversity() -> None:
    config = DiaynConfig(discriminator_hidden_sizes=(), smerl=True)
    agent = diayn(skill_following(SKILLED, BATCH), SKILLED, config)
    bias = jnp.log(jnp.asarray([0.4, 0.3, 0.2, 0.1]))  # its output for every state
    state = agent.start(DiaynParams(jnp.ones(()), layer(jnp.zeros((2, 4)), bias)))
    state = state._replace(returns=known([10.0, 8.0, 9.5, 10.0], 10.0, unknown=(3,)))
    hyper = hyperparams.defaults(agent.space)._replace(diversity_scale=jnp.float32(0.5))
    batch = drawn_transitions(jax.random.key(1), SKILLED)
    chosen = np.arange(BATCH) % 4
    batch = batch._replace(observation=batch.observation._replace(skill=jnp.eye(4)[chosen]))
    after, metrics = jax.jit(agent.update)(state, hyper, batch, jnp.zeros(BATCH), jnp.int32(0))
    bonus = np.log(np.asarray([0.4, 0.3, 0.2, 0.1]) * 4) * [0.5, 0.0, 0.5, 0.0]
    np.testing.assert_allclose(after.agent.batch.reward, batch.reward + bonus[chosen], rtol=1e-5, atol=1e-6)
    assert float(metrics["diverse"]) == pytest.approx(np.isin(chosen, [0, 2]).mean())
    assert float(metrics["diversity_reward"]) == pytest.approx(np.log([1.6, 1.2, 0.8, 0.4])[chosen].mean(), rel=1e-4)
