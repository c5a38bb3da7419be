"""Rewards divided by the running deviation of discounted returns, against a plain loop over steps in double precision."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery.agents import ppo
from rookery.agents.actor_critic import Policy
from rookery.agents.api import Lived
from rookery.agents.ppo import PpoConfig, PpoHyper
from rookery.envs import api as envs
from rookery.envs.api import Environment, EnvSpec, Step
from rookery.learners.api import Learner, Member, genotype
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.types import PyTree, Transition
from tests.minds import compiled
from tests.proximal import layer, nets_of
from tests.tiny import assert_equal

DISCOUNT, STEPS, ENVS = 0.5, 4, 2
PAY = (1.0, 2.0, 4.0)  # for the steps of an episode
SPEC = EnvSpec("paid", observation_size=1, action_size=1, episode_length=100)


class Reference:
    """One return per environment, and all returns that there were."""

    def __init__(self, count: int):
        self.running, self.seen = np.zeros(count), []

    def step(self, reward: np.ndarray, ended: np.ndarray) -> None:
        self.running = reward + DISCOUNT * self.running
        self.seen.extend(self.running.tolist())
        self.running = np.where(ended, 0.0, self.running)

    @property
    def deviation(self) -> float:
        return float(np.sqrt(np.var(self.seen) + 1e-8))


# --- what an update makes of a rollout


def test_rewards_of_two_rollouts_are_those_of_the_reference() -> None:
    nets = nets_of(SPEC)
    params = ppo.PpoParams(Policy(layer([[0.0]], [0.0]), jnp.zeros(1)), layer([[0.0]], [0.0]))
    state, reference = ppo.start(params), Reference(3)
    # Without a discount the advantage of a step is its reward, and the critic gives 0.
    hyper = PpoHyper(discount=0.0, gae_lambda=0.0)
    learned_from = compiled(partial(ppo.learned_from, nets, PpoConfig(normalize_rewards=True)))
    rng = np.random.default_rng(0)
    for _ in range(2):
        reward = rng.normal(1.0, 2.0, (6, 3)).astype(np.float32)
        reward[0, 0] = 1e4  # far more than ten deviations
        ended, accumulated = rng.random((6, 3)) < 0.3, []
        for time in range(6):
            before = reference.running
            reference.step(reward[time], ended[time])
            accumulated.append(reward[time] + DISCOUNT * before)
        lived = Lived(jnp.zeros((6, 3)), jnp.asarray(ended), jnp.ones((6, 3), bool), jnp.float32(np.stack(accumulated)))
        nothing = jnp.zeros((6, 3, 1))
        batch = Transition(nothing, nothing, jnp.asarray(reward), nothing, jnp.asarray(ended), lived)
        state, rows = learned_from(state, hyper, batch)
        expected = np.clip(reward / reference.deviation, -10.0, 10.0).reshape(1, -1)
        np.testing.assert_allclose(rows.advantage, expected, rtol=1e-5, atol=1e-7)
    assert float(state.discounted.count) == 36.0


# --- what the learner accumulates


def paid(truncated: bool) -> Environment:
    """Pays by the time; ends after three steps, by itself or by the clock."""

    def reset(key: jax.Array) -> tuple[jax.Array, Step]:
        del key
        return jnp.zeros(()), envs.first_step(jnp.zeros((1,)), jnp.zeros((0,)))

    def step(time: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        del action, key
        reward = jnp.asarray(PAY)[time.astype(jnp.int32)]
        ended = (time >= 2.0) & (not truncated)
        return time + 1.0, envs.next_step(time[None] + 1.0, reward, ended, jnp.zeros((0,)))

    return envs.limit_episode(Environment(reset, step, SPEC), 3 if truncated else 100)


class Life(NamedTuple):
    learner: Learner
    members: list[Member]  # before, and after each rollout
    metrics: dict
    bank: PyTree


def learner_of(truncated: bool = False, **options: bool) -> Learner:
    environment = paid(truncated)
    config = PpoConfig(hidden_sizes=(), actor_epochs=1, critic_epochs=1, minibatches=1, **options)
    life = OnPolicyConfig(ENVS, STEPS, 1, eval_episodes=1, start_states=2)
    return on_policy(ppo.ppo(environment.spec, config), environment, life)


def live(learner: Learner, rollouts: int) -> Life:
    """Two members that differ in their discount."""
    bank = learner.start_states(jax.random.key(0))
    hyper = jax.tree.map(lambda value: jnp.full((2,), value, jnp.float32), PpoHyper())
    hyper = hyper._replace(discount=jnp.asarray([DISCOUNT, 0.0]))
    init = compiled(jax.vmap(partial(learner.init, bank=bank)))
    step = compiled(jax.vmap(learner.step, in_axes=(0, None, 0, None)))
    members, metrics = [init(jax.random.split(jax.random.key(1)), hyper)], {}
    for count in range(rollouts):
        keys = jax.random.split(jax.random.key(2 + count))
        member, metrics = step(members[-1], bank, keys, jnp.int32(count))
        members.append(member)
    return Life(learner, members, metrics, bank)


@pytest.fixture(scope="module", params=[False, True], ids=["terminated", "truncated"])
def life(request: pytest.FixtureRequest) -> Life:
    return live(learner_of(request.param), 2)


def test_returns_end_with_the_episode_and_not_with_the_rollout(life: Life) -> None:
    reference, plain, time = Reference(ENVS), [], 0
    for member in life.members[1:]:
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


def test_what_is_reported_and_evaluated_are_the_rewards_themselves(life: Life) -> None:
    last = [PAY[time % 3] for time in range(STEPS, 2 * STEPS)]
    np.testing.assert_allclose(life.metrics["reward"], [np.mean(last)] * 2, rtol=1e-6)
    one = jax.tree.map(lambda leaf: leaf[0], life.members[-1])
    judged = compiled(life.learner.evaluate)(genotype(one), life.bank, jax.random.key(3))
    assert judged.returns.tolist() == [sum(PAY)]
    assert float(judged.fitness) == sum(PAY)


def test_it_can_be_switched_off() -> None:
    life = live(learner_of(normalize_rewards=False), 1)
    assert life.members[-1].state.discounted.count.tolist() == [0.0, 0.0]


def test_a_resumed_run_has_the_statistics_of_one_that_never_stopped(tmp_path) -> None:
    learner = learner_of()
    program = rookery.seeds(learner, population_size=2)
    run = partial(rookery.run, program, seed=3, quiet=True)
    whole = run(generations=3)
    run(generations=2, run_dir=str(tmp_path / "run"))
    resumed = run(generations=3, run_dir=str(tmp_path / "run"), resume=True)
    assert whole.state.members.state.discounted.count.tolist() == [3.0 * STEPS * ENVS] * 2
    assert_equal(resumed.state.members, whole.state.members)
