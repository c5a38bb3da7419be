"""Evaluation by full episodes: which steps count, and results that are not finite."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.learners.base import genotype
from rookery.learners.evaluation import evaluate
from tests.learners.recording import (
    LENGTH,
    OWN_ACTION,
    SPY,
    TERMINATIONS,
    TINY,
    Setup,
    counting,
    setup,
)
from tests.tiny import assert_equal


@pytest.fixture(scope="module")
def counted() -> Setup:
    return setup(SPY, counting(), TINY)


def evaluated(prepared: Setup, seed: int = 0, **patched: Any) -> Any:
    given = genotype(prepared.member)._replace(**patched)
    return jax.jit(prepared.learner.evaluate)(given, prepared.bank, jax.random.key(seed))


def test_returns_and_lengths_stop_with_the_episode(counted: Setup) -> None:
    # Reward 1 per step until the termination or the clock; a later step would add 1000, or break the physics.
    terminations = np.asarray(counted.bank[1].observation.features[:6, 0])
    assert set(terminations) == set(TERMINATIONS)
    expected = np.minimum(terminations, LENGTH)
    evaluation = evaluated(counted)
    assert evaluation.returns.tolist() == expected.tolist()
    assert evaluation.lengths.tolist() == expected.tolist()
    assert evaluation.lengths.dtype == jnp.int32
    assert float(evaluation.fitness) == pytest.approx(expected.mean(), rel=1e-6)
    # The descriptor is the mean over the steps: times 1..n have the mean (n + 1) / 2; then the mean over the episodes.
    mean = np.mean((expected + 1) / 2)
    np.testing.assert_allclose(evaluation.descriptor, [mean, 2 * mean], rtol=1e-6)


def test_recorded_transitions_are_those_of_steps_before_the_end(counted: Setup) -> None:
    assert counted.learner.evaluator is not None
    record = jax.jit(partial(evaluate, counted.learner.evaluator, record=True))
    found = record(genotype(counted.member), counted.bank, jax.random.key(0))
    assert_equal(found._replace(transitions=()), evaluated(counted))
    rows, valid, broken = jax.tree.map(
        lambda leaf: np.asarray(leaf).reshape(LENGTH, 6, *leaf.shape[1:]), found.transitions
    )
    assert not (broken & valid).any()
    assert valid.sum() == found.lengths.sum()
    assert valid.dtype == bool
    for episode, termination in enumerate(np.asarray(counted.bank[1].observation.features[:6, 0])):
        steps = np.arange(min(termination, LENGTH))
        assert valid[:, episode].tolist() == [step < len(steps) for step in range(LENGTH)]
        for features, times in ((rows.observation.features, steps), (rows.next_observation.features, steps + 1)):
            expected = np.stack([np.full_like(times, termination), times], axis=1)
            assert np.array_equal(features[: len(steps), episode], expected)
        assert (rows.reward[: len(steps), episode] == 1).all()
        assert (rows.action[: len(steps), episode] == np.float32(OWN_ACTION)).all()
        assert rows.terminated[: len(steps), episode].tolist() == [step + 1 >= termination for step in steps]


def test_the_record_marks_the_steps_that_broke_the_physics(counted: Setup) -> None:
    assert counted.learner.evaluator is not None
    environment = counted.learner.evaluator.environment

    def step(state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, Any]:
        state, stepped = environment.step(state, action, key)
        broken = stepped.final_observation.features[0] == 3.0
        return state, stepped._replace(broken=broken & (stepped.final_observation.features[1] == 2.0))

    evaluator = counted.learner.evaluator._replace(environment=environment._replace(step=step))
    found = jax.jit(partial(evaluate, evaluator, record=True))(
        genotype(counted.member), counted.bank, jax.random.key(0)
    )
    valid, marked = (np.asarray(leaf).reshape(LENGTH, 6) for leaf in found.transitions[1:])
    terminations = np.asarray(counted.bank[1].observation.features[:6, 0])
    assert int(found.broken) == np.sum(terminations == 3.0) > 0
    assert valid.sum(axis=0).tolist() == [min(length, LENGTH) for length in terminations]
    assert [np.flatnonzero(column).tolist() for column in (valid & marked).T] == [
        [1] if length == 3.0 else [] for length in terminations
    ]


def test_an_action_that_is_not_finite_makes_the_fitness_nan(counted: Setup) -> None:
    evaluation = evaluated(counted, params=jnp.asarray([0.1, jnp.nan]))
    assert np.isnan(evaluation.fitness)
    assert np.isfinite(evaluation.returns).all()  # the environment's rewards stay finite
