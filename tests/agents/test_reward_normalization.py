"""Rewards divided by the running deviation of discounted returns, against a plain loop over the steps."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agents.actor_critic import Policy
from rookery.agents.base import RolloutExtras
from rookery.agents.ppo import PpoConfig, PpoHyper, PpoParams, ppo, prepare_rows, start
from rookery.envs import base as envs
from rookery.envs.base import Environment, EnvSpec, Step
from rookery.envs.wrappers import time_limit
from rookery.learners.base import Learner, Member, genotype
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.types import Observation, PyTree, Transition
from tests.agents.common import numbers
from tests.agents.proximal import layer, nets_of
from tests.tiny import assert_equal

DISCOUNT, STEPS, ENVS = 0.5, 4, 4
PAY = (1.0, 2.0, 4.0)  # for the steps of an episode
SPEC = EnvSpec("timed_rewards", observation_size=1, action_size=1, episode_length=100)
PARAMS = PpoParams(Policy(layer([[0.0]], [0.0]), jnp.zeros(1)), layer([[0.0]], [0.0]))


class Reference:
    """The running return of each environment, and all returns so far."""

    def __init__(self, count: int):
        self.running, self.seen = np.zeros(count), []

    def step(self, reward: np.ndarray, ended: np.ndarray) -> None:
        self.running = reward + DISCOUNT * self.running
        self.seen.extend(self.running.tolist())
        self.running = np.where(ended, 0.0, self.running)

    @property
    def deviation(self) -> float:
        return float(np.sqrt(np.var(self.seen) + 1e-8))


# --- the rows of an update


def test_rewards_of_two_rollouts_are_those_of_the_reference() -> None:
    nets = nets_of(SPEC)
    state, reference = start(PARAMS), Reference(3)
    # Without a discount the advantage of a step is its reward, and the critic gives 0.
    hyper = PpoHyper(discount=0.0, gae_lambda=0.0)
    learned_from = jax.jit(partial(prepare_rows, nets, PpoConfig(normalize_rewards=True)))
    rng = np.random.default_rng(0)
    for _ in range(2):
        reward = rng.normal(1.0, 2.0, (6, 3)).astype(np.float32)
        reward[0, 0] = 100.0  # as large as counts in the first rows, see `normalize.update`
        ended, accumulated = rng.random((6, 3)) < 0.3, []
        for time in range(6):
            before = reference.running
            reference.step(reward[time], ended[time])
            accumulated.append(reward[time] + DISCOUNT * before)
        extras = RolloutExtras(
            jnp.zeros((6, 3)),
            jnp.asarray(ended),
            jnp.ones((6, 3), bool),
            jnp.float32(np.stack(accumulated)),
            jnp.zeros((6, 3), bool),
        )
        nothing = jnp.zeros((6, 3, 1))
        observation = Observation(nothing)
        batch = Transition(observation, nothing, jnp.asarray(reward), observation, jnp.asarray(ended), extras)
        state, rows = learned_from(state, hyper, batch)
        expected = np.clip(reward / reference.deviation, -10.0, 10.0).reshape(1, -1)
        np.testing.assert_allclose(rows.advantage, expected, rtol=1e-5, atol=1e-7)
    assert float(state.discounted.count) == 36.0


def test_rewards_are_unchanged_without_normalisation() -> None:
    nets, state = nets_of(SPEC), start(PARAMS)
    reward = jnp.asarray([[100.0, -3.0]])
    extras = RolloutExtras(
        jnp.zeros((1, 2)), jnp.ones((1, 2), bool), jnp.ones((1, 2), bool), reward, jnp.zeros((1, 2), bool)
    )
    nothing = jnp.zeros((1, 2, 1))
    observation = Observation(nothing)
    batch = Transition(observation, nothing, reward, observation, jnp.ones((1, 2), bool), extras)
    for off, changed in ((PpoConfig(normalize_rewards=False), False), (PpoConfig(), True)):
        after, rows = jax.jit(partial(prepare_rows, nets, off))(state, PpoHyper(), batch)
        assert (rows.advantage != reward).any() == changed
        assert float(after.discounted.count) == (2.0 if changed else 0.0)


# --- the sums of the learner


class TimedState(NamedTuple):
    time: jax.Array  # []
    by_itself: jax.Array  # [] bool: the episode terminates; otherwise its time limit ends it


def timed_rewards() -> Environment:
    """Rewards depend on the time; after three steps half of the episodes terminate, the others reach the time limit."""

    def reset(key: jax.Array) -> tuple[TimedState, Step]:
        state = TimedState(jnp.zeros(()), jax.random.bernoulli(key))
        return state, envs.first_step(jnp.zeros((1,)), jnp.zeros((0,)))

    def step(state: TimedState, action: jax.Array, key: jax.Array) -> tuple[TimedState, Step]:
        del action, key
        reward = jnp.asarray(PAY)[state.time.astype(jnp.int32)]
        ended = (state.time >= 2.0) & state.by_itself
        state = state._replace(time=state.time + 1.0)
        return state, envs.next_step(state.time[None], reward, ended, jnp.zeros((0,)))

    return time_limit.limit_episode(Environment(reset, step, SPEC), len(PAY))


class TwoRollouts(NamedTuple):
    learner: Learner
    step: Callable[..., tuple[Member, dict]]
    members: list[Member]  # before, and after each rollout
    metrics: dict
    bank: PyTree


@pytest.fixture(scope="module")
def two_rollouts() -> TwoRollouts:
    """Two rollouts of two members that differ in their discount."""
    environment = timed_rewards()
    config = PpoConfig(hidden_sizes=(), actor_epochs=1, critic_epochs=1, minibatches=1)
    rollouts = OnPolicyConfig(ENVS, STEPS, 1, eval_episodes=1, start_states=8, stagger_episodes=False)
    learner = on_policy(ppo(environment.spec, config), environment, rollouts)
    hyper = jax.tree.map(lambda value: jnp.full((2,), value, jnp.float32), PpoHyper())
    hyper = hyper._replace(discount=jnp.asarray([DISCOUNT, 0.0]))

    def begin(key: jax.Array) -> tuple[PyTree, Member]:
        bank = learner.start_states(key)
        return bank, jax.vmap(partial(learner.init, bank=bank))(jax.random.split(jax.random.key(1)), hyper)

    bank, member = jax.jit(begin)(jax.random.key(0))
    step = jax.jit(jax.vmap(learner.step, in_axes=(0, None, 0, None)))
    members, metrics = [member], {}
    for count in range(2):
        member, metrics = step(member, bank, jax.random.split(jax.random.key(2 + count)), jnp.int32(count))
        members.append(member)
    return TwoRollouts(learner, step, members, metrics, bank)


def test_returns_are_reset_at_the_end_of_an_episode_and_not_of_a_rollout(two_rollouts: TwoRollouts) -> None:
    by_itself = two_rollouts.members[0].env_state.env_batch.state.inner.by_itself
    assert by_itself.any()
    assert not by_itself.all()
    reference, plain, time = Reference(ENVS), [], 0
    for member in two_rollouts.members[1:]:
        for _ in range(STEPS):
            reference.step(np.full(ENVS, PAY[time]), np.full(ENVS, time == 2))
            plain += [PAY[time]] * ENVS
            time = (time + 1) % 3
        seen = member.state.discounted
        assert seen.count.tolist() == [len(plain)] * 2
        for which, values in enumerate((reference.seen, plain)):  # without a discount a return is the reward
            np.testing.assert_allclose(seen.mean[which], [np.mean(values)], rtol=1e-6)
            np.testing.assert_allclose(seen.squares[which] / len(values), [np.var(values)], rtol=1e-5)
        np.testing.assert_allclose(member.env_state.accumulated[0], reference.running, rtol=1e-6)


def test_metrics_and_evaluations_use_unnormalised_rewards(two_rollouts: TwoRollouts) -> None:
    last = [PAY[time % 3] for time in range(STEPS, 2 * STEPS)]
    np.testing.assert_allclose(two_rollouts.metrics["reward"], [np.mean(last)] * 2, rtol=1e-6)
    one = jax.tree.map(lambda leaf: leaf[0], two_rollouts.members[-1])
    prepared_rollout = jax.jit(two_rollouts.learner.evaluate)(genotype(one), two_rollouts.bank, jax.random.key(3))
    assert prepared_rollout.returns.tolist() == [sum(PAY)]
    assert float(prepared_rollout.fitness) == sum(PAY)


def test_all_statistics_are_in_the_members_state(two_rollouts: TwoRollouts) -> None:
    # The contents of a checkpoint suffice for the same bits; training/test_resume.py kills processes.
    stored = jax.tree.map(np.array, two_rollouts.members[1])
    again, _ = two_rollouts.step(
        jax.tree.map(jnp.asarray, stored), two_rollouts.bank, jax.random.split(jax.random.key(3)), jnp.int32(1)
    )
    assert_equal(again, two_rollouts.members[2])
    forgotten = stored._replace(state=stored.state._replace(discounted=two_rollouts.members[0].state.discounted))
    other, _ = two_rollouts.step(forgotten, two_rollouts.bank, jax.random.split(jax.random.key(3)), jnp.int32(1))
    assert (numbers(other.state.critic) != numbers(two_rollouts.members[2].state.critic)).any()
