"""Training with an intrinsic reward: stored extras, rewards at the end of an episode, and evaluation.

In the environment `recording.counting(led=True)` the descriptor is the time times the action, and the agent's action
is the skill itself: (time, 0) for the first of two, (0, time) for the other, and (0, 0) at every start.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import gradients, normalize, trees
from rookery.agents.skills.diayn import DiaynConfig, conclude, diayn
from rookery.envs.wrappers.skills import skills
from rookery.learners import evaluation
from rookery.learners.base import EvaluationConfig, Member, genotype
from rookery.learners.off_policy import off_policy
from rookery.types import Evaluation, PyTree
from tests import tiny
from tests.learners.recording import (
    LENGTH,
    SPY,
    TERMINATIONS,
    TINY,
    Setup,
    changed,
    counting,
    setup,
    skill_following,
    stored,
)

ENVIRONMENT = skills(counting(led=True), 2)
ROWS = 200  # of a batch: of 48 rows that are stored, so each is among them a few times
CONFIG = changed(TINY, batch_size=ROWS, eval_episodes=5)
# Logits (x, y + 1.5): the second skill is always recognised, the first from time 2 on.
BIAS = np.asarray([0.0, 1.5])
HAND = {"params": {"Dense_0": {"kernel": jnp.eye(2), "bias": jnp.asarray(BIAS, jnp.float32)}}}


def log_ratio(logits: np.ndarray, skill: np.ndarray) -> np.ndarray:
    """log q(z | s') - log p(z) of logits `[..., 2]`."""
    return -np.log1p(np.exp(np.where(skill == 0, 1, -1) * (logits[..., 1] - logits[..., 0]))) + math.log(2)


def at(time: np.ndarray, skill: np.ndarray) -> np.ndarray:
    """The hand-made discriminator's log ratio for the descriptor of a time under a skill."""
    time = np.asarray(time, np.float64)
    return log_ratio(np.stack([np.where(skill == 0, time, 0), np.where(skill == 1, time, 0) + 1.5], axis=-1), skill)


def evaluating(prepared: Setup) -> Setup:
    """With the hand-made discriminator, which learns nothing."""
    member: Member = prepared.member
    hyper = member.hyper._replace(discriminator_lr=jnp.float32(0.0))
    state = member.state._replace(discriminator=gradients.start(HAND))
    return prepared._replace(member=member._replace(state=state, hyper=hyper))


@pytest.fixture(scope="module")
def led() -> Setup:
    config = DiaynConfig(discriminator_hidden_sizes=(), smerl=True)
    agent = diayn(skill_following(ENVIRONMENT.spec, ROWS), ENVIRONMENT.spec, config)
    return evaluating(setup(agent, ENVIRONMENT, CONFIG))


@pytest.fixture(scope="module")
def trained(led: Setup) -> Member:
    return led.generations(1)[0]


@pytest.fixture(scope="module")
def normalised() -> Setup:
    """It recognises skills by the whole observation, termination and time, as the agent is shown them."""
    config = DiaynConfig(descriptor_full_state=True, discriminator_hidden_sizes=())
    agent = diayn(skill_following(ENVIRONMENT.spec, ROWS), ENVIRONMENT.spec, config)
    return evaluating(setup(agent, ENVIRONMENT, changed(CONFIG, normalize_observations=True)))


@pytest.fixture(scope="module")
def shown(normalised: Setup) -> Member:
    return normalised.generations(1)[0]


# --- what is stored


def test_rows_carry_the_descriptor_that_was_reached_also_where_an_episode_ended(trained: Member) -> None:
    rows = stored(trained, CONFIG.num_envs)
    time, skill = rows.next_observation.features[..., 1], rows.next_observation.skill
    assert skill is not None
    np.testing.assert_array_equal(rows.extras, time[..., None] * skill)
    np.testing.assert_array_equal(rows.observation.skill, skill)
    cut = (time == LENGTH) & ~rows.terminated
    for ends in (rows.terminated, cut):
        assert ends.any()
        assert (rows.extras[ends].max(axis=-1) >= 2.0).all()  # and not the 0 of a start
    # What follows an end is another episode, which may have another skill.
    ended = (rows.terminated | cut)[:-1]
    before = jax.tree.map(lambda leaf: leaf[:-1], rows.next_observation)
    after = jax.tree.map(lambda leaf: leaf[1:], rows.observation)
    tiny.assert_equal(trees.take(after, ~ended), trees.take(before, ~ended))
    assert (after.features[ended][:, 1] == 0.0).all()
    same = (after.skill[ended] == before.skill[ended]).all(axis=-1).mean()
    assert 0.0 < same < 1.0


def test_training_records_the_returns_of_the_skills(trained: Member) -> None:
    # Reward 1 per step, so returns are lengths, of which the time limit's 5 is the greatest.
    returns = trained.state.returns
    assert returns.known.tolist() == [True, True]
    assert all(2.0 < mean < 5.0 for mean in returns.mean.tolist())
    assert max(returns.mean.tolist()) <= float(returns.best) < 5.0


# --- normalisation


def test_observation_statistics_exclude_the_skill(shown: Member) -> None:
    assert shown.normalizer.mean.shape == (2,)
    assert shown.buffer.rows.extras == ()  # the observation is sufficient
    rows = stored(shown, CONFIG.num_envs)
    observed = rows.observation.features.reshape(-1, 2).astype(np.float64)
    np.testing.assert_allclose(shown.normalizer.mean, observed.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(shown.normalizer.squares / len(observed), observed.var(axis=0), rtol=1e-4)


# --- evaluation


def evaluated(prepared: Setup, member: Member) -> Evaluation:
    return jax.jit(prepared.learner.evaluate)(genotype(member), prepared.bank, jax.random.key(5))


def episodes(prepared: Setup) -> tuple[np.ndarray, np.ndarray]:
    """Lengths and skills of six episodes: five were requested, and the skills are assigned in turn."""
    terminations = np.asarray(prepared.bank[1].observation.features[:6, 0])
    assert set(terminations) == set(TERMINATIONS)
    return np.minimum(terminations, LENGTH).astype(int), np.arange(6) % 2


def test_an_evaluation_reports_the_accuracy_of_each_episode(led: Setup, trained: Member) -> None:
    # Episodes that end before the clock go on: to rewards of 1000 and descriptors of 1000, which must not count.
    lengths, skill = episodes(led)
    evaluation = evaluated(led, trained)
    times = [np.arange(1, length + 1) for length in lengths]
    accuracy = np.where(skill == 0, (lengths - 1) / lengths, 1.0)
    diversity = [at(time, np.full_like(time, z)).sum() for time, z in zip(times, skill, strict=True)]
    np.testing.assert_allclose(evaluation.episodes["accuracy"], accuracy, rtol=1e-6)
    np.testing.assert_allclose(evaluation.episodes["diversity_return"], diversity, rtol=1e-5)
    np.testing.assert_array_equal(evaluation.episodes["true_return"], lengths)
    np.testing.assert_array_equal(evaluation.returns, lengths)
    reached = (lengths[:, None] + 1) / 2 * np.eye(2)[skill]  # the mean of 1..n, along the skill
    np.testing.assert_allclose(evaluation.episodes["descriptors"], reached, rtol=1e-6)
    np.testing.assert_allclose(evaluation.descriptor, reached.mean(axis=0), rtol=1e-6)
    assert float(evaluation.fitness) == pytest.approx(accuracy.mean(), rel=1e-6)


def test_evaluation_recognises_through_the_genotypes_own_statistics(normalised: Setup, shown: Member) -> None:
    lengths, skill = episodes(normalised)
    evaluation = evaluated(normalised, shown)
    terminations = np.asarray(normalised.bank[1].observation.features[:6, 0])
    for episode, length in enumerate(lengths):
        raw = np.stack([np.full(length, terminations[episode]), np.arange(1, length + 1)], axis=1)
        observed = np.asarray(normalize.normalize(shown.normalizer, jnp.asarray(raw, jnp.float32)))
        ratio = log_ratio(observed + BIAS, np.full(length, skill[episode]))
        assert float(evaluation.episodes["diversity_return"][episode]) == pytest.approx(ratio.sum(), rel=1e-4)
        assert float(evaluation.episodes["accuracy"][episode]) == pytest.approx((ratio > 0).mean())


@pytest.mark.parametrize(("fitness", "expected"), [("accuracy", 0.375), ("diversity", -1.0), ("return", 15.0)])
def test_the_fitness_is_the_configured_one(fitness: Any, expected: float) -> None:
    sums = {"accuracy": jnp.asarray([2.0, 1.0]), "diversity_return": jnp.asarray([-3.0, 1.0])}
    evaluator = partial(conclude, DiaynConfig(fitness=fitness))
    found, reported = evaluator(sums, jnp.asarray([10.0, 20.0]), jnp.asarray([4, 4]))
    assert float(found) == expected
    assert {name: values.tolist() for name, values in reported.items()} == {
        "accuracy": [0.5, 0.25],
        "diversity_return": [-3.0, 1.0],
        "true_return": [10.0, 20.0],
    }


@pytest.mark.parametrize(("requested", "held"), [(10, 16), (16, 16)])
def test_every_skill_has_equally_many_episodes_and_each_a_start_state(requested: int, held: int) -> None:
    environment = skills(counting(), 8)
    config = changed(TINY, eval_episodes=requested, start_states=max(requested, 12))
    learner = off_policy(skill_following(environment.spec, TINY.batch_size), environment, config)
    bank: PyTree = jax.eval_shape(learner.start_states, jax.random.key(0))
    assert bank[1].reward.shape == (max(held, 12),)
    assert learner.evaluation_steps == held * LENGTH
    evolved = evaluation.evaluator(
        SPY.act, environment, EvaluationConfig(eval_episodes=requested, start_states=requested)
    )
    assert (evolved.episodes, evaluation.bank_size(evolved)) == (held, held)
