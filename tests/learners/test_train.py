"""Whole trainings: the use of a memory, and training as one pure function."""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agents import multi_agent
from rookery.agents.ppo import PpoConfig, PpoHyper, ppo
from rookery.envs import base as envs
from rookery.envs.base import Environment, EnvSpec, Step
from rookery.learners.base import Learner
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.learners.train import train
from tests.learners.fixed_agents import ENVS
from tests.learners.rollouts import ERRAND, errand
from tests.tiny import assert_equal

# --- an environment that only an agent with memory solves


RECALL = EnvSpec("recall", observation_size=1, action_size=2, episode_length=3, discrete=True)


def recall() -> Environment:
    """The first observation, -1 or 1, determines the right action of the third step; the others are 0."""
    return Environment(_cue, _answer, RECALL)


class Recall(NamedTuple):
    cue: jax.Array  # [] 0 or 1
    time: jax.Array  # []


def _cue(key: jax.Array) -> tuple[Recall, Step]:
    cue = jax.random.bernoulli(key).astype(jnp.float32)
    return Recall(cue, jnp.zeros(())), envs.first_step((2.0 * cue - 1.0)[None], jnp.zeros((0,)))


def _answer(state: Recall, action: jax.Array, key: jax.Array) -> tuple[Recall, Step]:
    del key
    last = state.time == 2.0
    reward = jnp.where(last & (action == state.cue.astype(jnp.int32)), 1.0, 0.0)
    return state._replace(time=state.time + 1.0), envs.next_step(jnp.zeros((1,)), reward, last, jnp.zeros((0,)))


def recalling() -> Learner:
    config = PpoConfig(hidden_sizes=(), recurrent=True, memory_size=8, minibatches=1, normalize_rewards=False)
    training = OnPolicyConfig(32, 6, 40, normalize_observations=False, eval_episodes=16, start_states=16)
    return on_policy(ppo(RECALL, config), recall(), training)


def test_an_agent_with_memory_acts_on_an_early_observation() -> None:
    hyper = PpoHyper(actor_lr=2e-2, critic_lr=2e-2, entropy_coefficient=0.0, discount=0.9)
    _, evaluated, _ = jax.jit(lambda key: train(recalling(), key, hyper, 1))(jax.random.key(0))
    assert float(evaluated.fitness[-1]) == 1.0
    assert float(evaluated.fitness[0]) < 0.8  # the initial agent only guesses


# --- a whole training as one function


@cache
def small() -> Learner:
    config = PpoConfig(hidden_sizes=(4,), actor_epochs=1, critic_epochs=1, minibatches=2)
    agent = multi_agent.independent(ppo(ERRAND, config), ERRAND)
    return on_policy(agent, errand(), OnPolicyConfig(ENVS, 4, 2, eval_episodes=1, start_states=2))


def test_training_mapped_over_hyper_parameters_equals_separate_trainings() -> None:
    learner, key, size = small(), jax.random.key(3), 3
    with pytest.raises(ValueError, match=r"^generations must be at least 1, got 0\.$"):
        train(learner, key, generations=0)
    hypers = jax.tree.map(lambda value: jnp.full((size,), value), PpoHyper(critic_lr=1e-2))
    missing: Any = ()
    wrong: Any
    for wrong in (PpoHyper()._asdict(), hypers, PpoHyper(discount=missing)):
        with pytest.raises(
            ValueError, match=r"^hyper needs a number for each hyper-parameter, and has none for .*disc"
        ):
            train(learner, key, wrong)
    hypers = hypers._replace(actor_lr=jnp.asarray([0.0, 1e-2, 1e-1]))
    runs = jax.jit(jax.vmap(lambda hyper: train(learner, key, hyper, 2)))
    member, evaluated, metrics = runs(hypers)
    assert evaluated.fitness.shape == (size, 3)
    assert metrics["critic_loss/sitter"].shape == (size, 2)
    assert len(set(np.asarray(evaluated.fitness[:, 0]).tolist())) == 1  # initial members have equal policies
    np.testing.assert_array_equal(evaluated.fitness[0], evaluated.fitness[0, 0])  # a rate of 0 keeps the initial policy
    finals = np.asarray(evaluated.fitness[:, -1])
    assert len(set(finals.tolist())) == size
    assert np.isfinite(finals).all()
    assert member.state.policy.moments.count.tolist() == [[8, 8]] * size  # 2 generations x 2 updates x 2 minibatches
    alone, expected, _ = runs(jax.tree.map(lambda leaf: jnp.stack([leaf[1]] * size), hypers))
    np.testing.assert_allclose(evaluated.fitness[1], expected.fitness[0], rtol=1e-4)
    assert_equal(
        jax.tree.map(lambda leaf: leaf[0], alone.env_state.counts),
        jax.tree.map(lambda leaf: leaf[1], member.env_state.counts),
    )
