"""What broke the physics counts nowhere: not in training, not in evaluations, whatever the sign of the rewards."""

import dataclasses
from collections.abc import Callable
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import hyperparams, trees
from rookery.envs.host.base import LARGEST_REWARD
from rookery.envs.wrappers import auto_reset
from rookery.learners.base import EvaluationConfig
from rookery.learners.evaluation import evaluate, evaluator
from rookery.learners.off_policy import OffPolicyConfig
from rookery.learners.off_policy import summarize as off_policy_metrics
from rookery.learners.on_policy import OnPolicyConfig
from rookery.learners.on_policy import summarize as on_policy_metrics
from rookery.types import Genotype, Observation
from tests.learners.breaking import breaking, learner_of
from tests.learners.fixed_agents import idle, trained

SHORT = OffPolicyConfig(
    num_envs=8, steps_per_generation=80, warmup_steps=80, batch_size=8, buffer_size=200, eval_episodes=4, start_states=4
)


def rightwards(params: jax.Array, observation: Observation) -> jax.Array:
    """Move by the parameter."""
    return jnp.broadcast_to(params, observation.features.shape)


@cache
def evaluation(length: int = 50, team: bool = False) -> Callable[[float], rookery.types.Evaluation]:
    """A compiled evaluation of the policy that moves by a step."""
    environment = breaking(-1.0, length, team)
    episodes = evaluator(rightwards, environment, EvaluationConfig(eval_episodes=4, start_states=4))

    @jax.jit
    def evaluated(step: jax.Array) -> rookery.types.Evaluation:
        bank = auto_reset.start_bank(environment, jax.random.key(0), 4)
        return evaluate(episodes, Genotype(jnp.float32(step), (), None), bank, jax.random.key(1))

    return evaluated


def test_an_evaluation_with_a_broken_episode_has_no_fitness_and_its_return_is_unknown() -> None:
    # From -0.1 to 0.1 a step of 0.25 breaks within 8 steps; one of 0.01 reaches the edge in the first episodes only.
    for step in (-0.5, 1.0, 0.12):
        found = evaluation(length=12)(step)
        lengths = np.asarray(found.lengths)
        broken = lengths < 12
        assert int(found.broken) == broken.sum()
        for values in (found.returns, found.episodes["descriptors"][:, 0]):
            assert np.isnan(values).tolist() == broken.tolist()
        assert (np.asarray(found.returns)[~broken] == -12.0).all()
        np.testing.assert_array_equal(found.episodes["measure/steps"], np.where(broken, np.nan, 12.0))
        assert np.isnan(float(found.fitness)) == broken.any()
        assert {-0.5: broken.sum() == 0, 1.0: broken.all(), 0.12: 0 < broken.sum() < 4}[step]


def test_no_agent_of_a_team_has_a_fitness_where_the_physics_broke() -> None:
    found = evaluation(team=True)(1.0)
    assert int(found.broken) == 4
    for values in (found.fitness, found.roles, found.returns, found.episodes["return/right"]):
        assert np.isnan(values).all()
    assert np.asarray(evaluation(team=True)(-1.0).roles).tolist() == [-50.0, -50.0]


def test_a_sweep_does_not_pick_what_broke() -> None:
    env = breaking(-1.0)
    learner = rookery.off_policy(idle(rookery.td3(env.spec, hidden_sizes=(4,))), env, SHORT)
    train = jax.jit(jax.vmap(lambda key: rookery.learners.train(learner, key, generations=1)[1]))
    found = train(jax.random.split(jax.random.key(0), 8))
    broke = np.asarray(found.broken) > 0
    assert broke.any()
    assert np.isnan(found.fitness).tolist() == broke.tolist()
    assert (np.asarray(found.fitness)[~broke] == -50.0).all()


def test_off_policy_a_broken_step_is_stored_with_the_worst_value_and_is_in_no_mean() -> None:
    reward = 1.0
    env = breaking(reward)
    learner = rookery.off_policy(idle(rookery.sac(env.spec, hidden_sizes=(4,))), env, SHORT)
    member, metrics = trained(learner)
    rows, broken = member.buffer.rows, np.asarray(member.buffer.rows.terminated)[:80]
    assert broken.sum() == metrics["broken_steps"] > 0
    assert metrics["reward"] == reward
    np.testing.assert_allclose(rows.reward[:80][broken], -100.0, rtol=1e-5)  # 1 / (1 - 0.99) times -1
    assert (rows.reward[:80][~broken] == reward).all()
    assert int(member.buffer.size) == 80


def test_the_mean_reward_of_steps_that_all_broke_is_unknown() -> None:
    spec, nothing, broken = breaking(1.0).spec, jnp.zeros(2), jnp.full(2, 4)
    assert np.isnan(off_policy_metrics(spec, (nothing, {}, nothing, nothing, broken, None))["reward"])
    assert np.isnan(on_policy_metrics(spec, ({}, (nothing, nothing), broken, None))["reward"])
    one = jnp.asarray([-3.0, 0.0]), jnp.asarray([1.0, 0.0])  # of two rollouts the second broke
    assert on_policy_metrics(spec, ({}, one, broken, None))["reward"] == -3.0


@pytest.mark.parametrize("team", [False, True])
def test_on_policy_a_broken_step_has_the_worst_value_and_is_in_no_mean(team: bool) -> None:
    env = breaking(1.0, team=team)
    agent = rookery.ppo(env.spec, hidden_sizes=(4,), minibatches=1, actor_epochs=1, critic_epochs=1)

    def update(state, hyper, batch, key, step):
        return state, {"loss": jnp.max(jnp.abs(batch.reward))}

    config = OnPolicyConfig(num_envs=4, rollout_length=16, evaluate_every=1, eval_episodes=2, start_states=2)
    agent = agent._replace(update=update)
    agent = rookery.agents.independent(agent, env.spec) if team else agent
    learner = rookery.on_policy(agent, env, config)
    _, metrics = trained(learner)
    assert metrics["broken_steps"] > 0
    assert metrics["reward"] == 1.0
    discount = float(np.ravel(hyperparams.defaults(learner.space).discount)[0])
    worst = [value for name, value in metrics.items() if name.startswith("loss")]
    np.testing.assert_allclose(worst, 1.0 / (1.0 - discount), rtol=1e-4)


def test_no_episode_starts_where_the_reset_broke() -> None:
    """Else its first observations, which are learned from, are not finite."""
    env = breaking(1.0)

    @jax.jit
    def starts(share: float) -> tuple[jax.Array, jax.Array]:
        """What 16 resets gave, of which a share broke, and the bank of them."""

        def reset(key: jax.Array) -> tuple:
            state, step = env.reset(key)
            place = jnp.where(jax.random.bernoulli(key, share), jnp.nan, step.observation.features)
            return state, step.observing(features=place)

        key = jax.random.key(0)
        drawn = jax.vmap(reset)(jax.random.split(key, 16))[1].observation.features[:, 0]
        return drawn, auto_reset.start_bank(env._replace(reset=reset), key, 16)[1].observation.features[:, 0]

    drawn, bank = starts(0.4)
    finite = jnp.isfinite(drawn)
    assert 4 <= finite.sum() <= 12
    np.testing.assert_array_equal(bank[finite], drawn[finite])
    assert {*bank.tolist()} == {*drawn[finite].tolist()}
    assert len({*bank[~finite].tolist()}) > 3, "not always the same one"
    assert not jnp.isfinite(starts(1.0)[1]).any(), "there is no other"


# With a reward of 0 for the broken step, or without that step, PPO learns to break where rewards are -1; without it,
# TD3 where they are 1. `benchmarks.learning.broken_physics` has all agents with both signs.
@pytest.mark.parametrize(("agent", "reward"), [("ppo", -1.0), ("sac", -1.0), ("td3", 1.0)])
def test_no_agent_learns_to_break_the_physics(agent: str, reward: float) -> None:
    result = rookery.run(rookery.seeds(learner_of(agent, reward), population_size=4), generations=6, quiet=True)
    broken = [float(np.sum(metrics["broken_steps"])) for metrics in result.history]
    assert broken[0] > 20
    assert broken[-1] < 0.5 * broken[0]
    assert (result.history[-1]["fitness"] == 50.0 * reward).all()


def test_the_largest_reward_leaves_a_critic_finite() -> None:
    env = breaking(LARGEST_REWARD)
    config = dataclasses.replace(SHORT, warmup_steps=8)
    member, metrics = trained(rookery.off_policy(rookery.sac(env.spec, hidden_sizes=(4,)), env, config))
    assert metrics["broken_steps"] > 0  # they are stored with a thousand times that
    assert trees.all_finite(member.state)
