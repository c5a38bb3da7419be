"""Teams: independent agents share nothing; agents with shared parameters act as further environments of one agent."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agents import multi_agent
from rookery.agents.base import OnPolicyAgent
from rookery.agents.ppo import PpoConfig, PpoHyper, ppo
from rookery.agents.sac import SacConfig, sac
from rookery.envs.base import Team
from rookery.types import PyTree, Transition
from tests.agents.common import numbers
from tests.learners.rollouts import PARTIAL, SPEC, STEPS, rollout
from tests.tiny import assert_equal

TEAM = Team(("fox", "hare"), (3, 2), (2, 1))
TOGETHER = PARTIAL._replace(team=TEAM)
HYPER = jax.tree.map(jnp.float32, PpoHyper(actor_lr=1e-2, critic_lr=1e-2, kl_threshold=1e6))
CONFIG = PpoConfig(hidden_sizes=(4,), actor_epochs=2, critic_epochs=2, minibatches=2, normalize_rewards=False)
PAIR = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), HYPER)


def of(tree: PyTree, agent: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[agent], tree)


class CompiledTeam(NamedTuple):
    """A team with its compiled functions, and a rollout for its update."""

    agent: OnPolicyAgent
    compiled_update: Callable[..., tuple[Any, dict]]
    state: Any
    batch: Transition  # [T, E, I, ...]
    key: jax.Array

    def update(self, hyper: PpoHyper = PAIR, **changed: Any) -> tuple[Any, dict]:
        return self.compiled_update(self.state, hyper, self.batch._replace(**changed), self.key, jnp.int32(0))


@cache
def independent_pair() -> CompiledTeam:
    """Two independent agents."""
    agent = multi_agent.independent(ppo(TOGETHER, CONFIG), TOGETHER)
    return compiled_team(agent, jax.jit(partial(rollout, spec=TOGETHER, agents=(2,)))(jax.random.key(1)))


@cache
def single() -> CompiledTeam:
    """A single agent without a team; its rollout is `[T, E, ...]`."""
    agent = ppo(PARTIAL, CONFIG)
    return compiled_team(agent, jax.jit(partial(rollout, spec=PARTIAL))(jax.random.key(1)))


def compiled_team(agent: OnPolicyAgent, batch: Transition) -> CompiledTeam:
    state = jax.jit(lambda key: agent.start(agent.init(key)))(jax.random.key(0))
    return CompiledTeam(agent, jax.jit(agent.update), state, batch, jax.random.key(2))


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("what", ["reward", "observation", "log_prob", "hyper"])
def test_the_data_of_one_agent_leave_the_other_bit_equal(which: int, what: str) -> None:
    team, own = independent_pair(), (jnp.arange(2) == which).reshape(1, 1, 2)
    batch, extras, seen = team.batch, team.batch.extras, team.batch.observation
    changes: dict[str, Any] = {
        "reward": {"reward": batch.reward * jnp.where(own, 1e3, 1.0)},
        "observation": {"observation": seen._replace(features=seen.features * jnp.where(own, 1.1, 1.0)[..., None])},
        "log_prob": {"extras": extras._replace(log_prob=extras.log_prob + jnp.where(own, 0.1, 0.0))},
        "hyper": {"hyper": PAIR._replace(critic_lr=jnp.where(own[0, 0], jnp.float32(3e-3), PAIR.critic_lr))},
    }
    before, expected_metrics = team.update()
    after, metrics = team.update(**changes[what])
    assert_equal(of(after, 1 - which), of(before, 1 - which))
    assert (numbers(of(after, which)) != numbers(of(before, which))).any()
    other, changed = TEAM.names[1 - which], TEAM.names[which]
    assert_equal(*({k: v for k, v in each.items() if k.endswith(other)} for each in (metrics, expected_metrics)))
    assert any(float(metrics[k]) != float(expected_metrics[k]) for k in expected_metrics if k.endswith(changed))


def test_each_agent_learns_the_same_as_alone_with_separate_clipping_and_rates() -> None:
    # A common clip of both gradients' norm would make the second's steps shorter where the first's rewards are large.
    team = independent_pair()
    hyper = PAIR._replace(actor_lr=jnp.asarray([1e-2, 3e-3]), max_grad_norm=jnp.asarray([0.1, 0.5]))
    reward = team.batch.reward * jnp.asarray([[[1e3, 1.0]]])
    together, metrics = team.update(hyper, reward=reward)
    batch = team.batch._replace(reward=reward)
    for i, name in enumerate(TEAM.names):
        own = jax.tree.map(lambda leaf, i=i: leaf[:, :, i], batch)
        key = jax.random.split(team.key)[i]
        state, expected_metrics = single().compiled_update(of(team.state, i), of(hyper, i), own, key, jnp.int32(0))
        np.testing.assert_allclose(numbers(of(together, i)), numbers(state), rtol=1e-3, atol=1e-5)
        assert set(metrics) == {f"{key}/{agent_name}" for key in expected_metrics for agent_name in TEAM.names}
        for key, value in expected_metrics.items():
            np.testing.assert_allclose(metrics[f"{key}/{name}"], value, rtol=1e-3, atol=1e-5)


def test_agents_have_separate_policies_and_separate_noise() -> None:
    team = independent_pair()
    assert all(leaf.shape[0] == 2 for leaf in jax.tree.leaves(team.state))
    same = jax.tree.map(lambda leaf: jnp.stack([leaf[0]] * 2), team.state)
    seen = jax.tree.map(lambda leaf: jnp.stack([leaf[0, 0, 0]] * 2), team.batch.observation)
    explore, act = jax.jit(team.agent.explore), jax.jit(team.agent.act)
    action, log_prob = explore(same, HYPER, seen, jax.random.key(0))
    assert action.shape == (2, 2)
    assert log_prob.shape == (2,)
    assert (action[0] != action[1]).all()
    alike = act(same.params, seen)
    np.testing.assert_array_equal(alike[0], alike[1])
    own = act(team.state.params, seen)
    np.testing.assert_allclose(own[0], alike[0], rtol=1e-6)
    assert (own[0] != own[1]).any()


def test_agents_with_shared_parameters_learn_as_further_environments() -> None:
    spec = PARTIAL._replace(team=Team(("a", "b"), (3, 3), (2, 2)))
    agent = multi_agent.shared(ppo(spec, CONFIG), spec)
    assert agent.team == "shared"
    plain = single()
    # The plain rollout's four environments as two of two agents: environment 2 e + i is agent i in environment e.
    batch = jax.tree.map(lambda leaf: leaf.reshape(STEPS, 2, 2, *leaf.shape[2:]), plain.batch)
    found = jax.jit(agent.update)(plain.state, HYPER, batch, plain.key, jnp.int32(0))
    np.testing.assert_allclose(numbers(found), numbers(plain.update(HYPER)), rtol=1e-4, atol=1e-6)
    seen = jax.tree.map(lambda leaf: jnp.stack([leaf[0, 0]] * 2), plain.batch.observation)
    action, log_prob = jax.jit(agent.explore)(plain.state, HYPER, seen, jax.random.key(0))
    assert action.shape == (2, 2)
    assert log_prob.shape == (2,)
    assert (action[0] != action[1]).all()
    alike = jax.jit(agent.act)(plain.state.params, seen)
    np.testing.assert_array_equal(alike[0], alike[1])


@pytest.mark.parametrize("make", [multi_agent.independent, multi_agent.shared])
def test_invalid_teams_are_errors(make: Callable) -> None:
    agent = ppo(TOGETHER, CONFIG)
    with pytest.raises(ValueError, match=r"^test is a single-agent environment; wrap it by rookery\.envs\.as_team"):
        make(agent, SPEC)
    with pytest.raises(ValueError, match=r"^this agent is already a team; pass the agent that each member of the"):
        make(make(agent, TOGETHER), TOGETHER)
    with pytest.raises(ValueError, match=r"^only on-policy agents can form a team"):
        make(sac(SPEC, SacConfig(hidden_sizes=(4,))), TOGETHER)
