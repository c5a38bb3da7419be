"""The evolution strategy: ranks, one step computed by hand, and what its statistics and generations see."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import rookery
from rookery.learners import evolution
from rookery.types import Genotype
from tests.envs.parameterized import LENGTH, priced
from tests.learners.fixed_agents import started
from tests.tiny import assert_equal

DIRECTIONS = 3


def learner(env: Any, **settings: Any) -> rookery.Learner:
    policy = rookery.qd.policy(env.spec, rookery.qd.PolicyConfig(hidden_sizes=(4,)))
    return rookery.evolution_strategy(policy, env, directions=DIRECTIONS, eval_episodes=1, start_states=4, **settings)


def test_equal_fitnesses_share_a_rank_and_those_that_are_not_finite_have_the_lowest():
    found = evolution.ranks(jnp.asarray([3.0, jnp.nan, 7.0, 3.0, -jnp.inf]))
    np.testing.assert_allclose(found, np.array([2.5, 0.5, 4.0, 2.5, 0.5]) / 4 - 0.5)
    np.testing.assert_array_equal(evolution.ranks(jnp.full(6, jnp.nan)), 0.0)
    used = jax.jit(evolution.ranks).lower(jnp.zeros(4096)).compile().memory_analysis()
    assert used is None or used.temp_size_in_bytes < 2**20, "not all pairs"


def test_a_step_is_that_of_adam_along_the_ranked_perturbations():
    env = rookery.make("point_goal", episode_length=6)
    made = learner(env, normalize_observations=False, objective="approach")
    member, bank = started(made, learning_rate=0.02, noise_scale=0.03, weight_decay=0.1)
    after, metrics = jax.jit(made.step)(member, bank, key := jax.random.key(2), jnp.int32(0))

    noise_key, episode_key, _ = jax.random.split(key, 3)
    mean, unravel = ravel_pytree(member.state.params)
    noise = np.asarray(jax.random.normal(noise_key, (DIRECTIONS, len(mean))))
    evaluate = jax.jit(made.evaluate)
    fitness = np.zeros((2, DIRECTIONS))
    for i in range(DIRECTIONS):
        start = jax.tree.map(lambda leaf, i=i: jnp.roll(leaf, -i, axis=0), bank)  # one for both policies of a direction
        for place, sign in enumerate((1.0, -1.0)):
            genotype = Genotype(unravel(mean + sign * 0.03 * noise[i]), member.hyper, None)
            fitness[place, i] = evaluate(genotype, start, jax.random.fold_in(episode_key, i)).fitness
    assert len(np.unique(fitness)) == 2 * DIRECTIONS
    ranks = np.argsort(np.argsort(fitness.ravel())).reshape(2, -1) / (2 * DIRECTIONS - 1) - 0.5
    gradient = -(ranks[0] - ranks[1]) @ noise / (2 * DIRECTIONS * 0.03)
    np.testing.assert_allclose(ravel_pytree(optax.tree.get(after.state.moments, "mu"))[0], 0.1 * gradient, rtol=1e-4)
    expected = mean - 0.02 * (gradient / (np.abs(gradient) + 1e-8) + 0.1 * mean)
    np.testing.assert_allclose(ravel_pytree(after.state.params)[0], expected, rtol=1e-4, atol=1e-6)
    assert (metrics["train_episodes"], metrics["train_episode_length"]) == (2 * DIRECTIONS, 6)


def test_the_statistics_are_those_of_the_policy_between_the_trials():
    made = learner(rookery.make("point_room", episode_length=20))
    member, bank = started(made)
    after, _ = jax.jit(made.step)(member, bank, jax.random.key(2), jnp.int32(0))
    assert after.normalizer.count == evolution.NUM_ENVS * evolution.ROLLOUT_LENGTH
    assert (np.abs(after.normalizer.mean) > 0).all()
    restarted = made.restart(after, bank, jax.random.key(3), jnp.asarray(True))
    assert_equal(restarted.state, after.state)
    with pytest.raises(AssertionError):
        assert_equal(restarted.env_state.env_batch.observation, after.env_state.env_batch.observation)


def test_trials_are_in_the_environment_of_the_member_and_evaluations_in_that_of_the_task():
    made = learner(priced(), normalize_observations=False)
    member, bank = started(made, env_bonus=3.0)
    _, metrics = jax.jit(made.step)(member, bank, jax.random.key(2), jnp.int32(0))
    evaluation = jax.jit(made.evaluate)(rookery.genotype(member), bank, jax.random.key(3))
    np.testing.assert_allclose(metrics["train_return"] - evaluation.fitness, 3.0 * LENGTH, rtol=1e-5)


def test_an_environment_on_the_host_is_refused():
    with pytest.raises(ValueError, match="CartPole-v1 runs on the host"):
        learner(rookery.make("gym:CartPole-v1"))
