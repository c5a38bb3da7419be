"""Agents on environments whose right answer is known: values within 5 %, actions where there is a best one.

A new agent is one more entry of `AGENTS`. SAC's temperature is held at almost nothing, so that its values are those of
plain returns; TD3 explores widely, so that its critics see the actions whose values are compared, and its policy and
targets, which move every second update, have twice the rates. PPO's critic values states alone, under a policy that
still explores.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import networks
from rookery.agents.base import Agent
from rookery.agents.dqn import DqnConfig, DqnHyper, dqn
from rookery.agents.ppo import PpoConfig, PpoHyper, ppo
from rookery.agents.pqn import PqnConfig, PqnHyper, pqn
from rookery.agents.sac import SacConfig, SacHyper, sac
from rookery.agents.skills.diayn import DiaynConfig, diayn
from rookery.agents.td3 import Td3Config, Td3Hyper, td3
from rookery.envs import base as envs
from rookery.envs import registry
from rookery.envs.base import Environment, EnvSpec, Step
from rookery.envs.wrappers.skills import skills
from rookery.envs.wrappers.time_limit import limit_episode
from rookery.learners.base import Learner, Member, genotype
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.trees import take
from rookery.types import Observation, PyTree

DISCOUNT = 0.9
HIDDEN = (64,)
ON_POLICY_HIDDEN = (32,)
CONFIG = OffPolicyConfig(
    num_envs=8,
    steps_per_generation=1_600,
    batch_size=64,
    buffer_size=1_600,
    warmup_steps=400,
    eval_episodes=1,
    start_states=32,
)
ON_POLICY = OnPolicyConfig(
    num_envs=16,
    rollout_length=16,
    evaluate_every=100,
    normalize_observations=False,
    stagger_episodes=False,
    eval_episodes=1,
    start_states=32,
)
ON_POLICY_TRAINED = PpoConfig(
    hidden_sizes=ON_POLICY_HIDDEN, actor_epochs=4, critic_epochs=4, minibatches=4, normalize_rewards=False
)  # the values equal the rewards
SCALE = 0.2  # of the rewards that PQN learns from
TRIED = (-0.9, -0.5, 0.0, 0.5, 0.9)  # actions whose values are compared


class Case(NamedTuple):
    """How an agent is put to the test."""

    build: Callable[[EnvSpec], Any]
    hyper: Any
    value: Callable[[Any, jax.Array, jax.Array], jax.Array]  # genotype, observation [1], action [1] -> estimates
    live: Callable[[Any, Environment], Learner] = partial(off_policy, config=CONFIG)
    of_states: bool = False  # whether values are of states alone
    discrete: bool = False  # whether it chooses among `TRIED`


class TrainedAgents(NamedTuple):
    """The parameters of an agent after a training on each of the probe environments, `[6 or 7, ...]`."""

    case: Case
    agent: Agent
    values: Callable[..., jax.Array]  # that of the case, compiled
    params: PyTree

    def value(self, probe_env: str, observation: float, action: float) -> np.ndarray:
        params = take(self.params, ALL.index(probe_env))
        return np.asarray(self.values(params, jnp.asarray([observation]), jnp.asarray([action])))

    def action(self, probe_env: str, observation: float) -> float:
        params = take(self.params, ALL.index(probe_env))
        given = Observation(jnp.asarray([observation]))
        if not self.case.discrete:
            return float(self.agent.act(params, given)[0])
        mask = available(jnp.int32(ALL.index(probe_env)), given.features)
        return TRIED[int(self.agent.act(params, given._replace(action_mask=mask)))]


def twin_value(params: Any, observation: jax.Array, action: jax.Array) -> jax.Array:
    """Both critics'; `[2]`."""
    return networks.twin(networks.mlp((1, 1), HIDDEN, 1)).apply(params.critic, observation, action)


def state_value(params: Any, observation: jax.Array, action: jax.Array) -> jax.Array:
    """Of the state, whatever the action; `[1]`."""
    return networks.core(1, ON_POLICY_HIDDEN, 1, output_gain=1.0).apply(params.critic, jnp.zeros(0), observation)[1]


def value_of_choice(params: Any, observation: jax.Array, action: jax.Array) -> jax.Array:
    """PQN's, of the nearest of `TRIED`; `[1]`."""
    values = networks.mlp((1,), ON_POLICY_HIDDEN, len(TRIED), layer_norm=True).apply(params, observation)
    return values[jnp.argmin(jnp.abs(jnp.asarray(TRIED) - action))][None] / SCALE


def quantiles_of_choice(params: Any, observation: jax.Array, action: jax.Array) -> jax.Array:
    """DQN's, of the nearest of `TRIED`: `[2]`."""
    outputs = networks.mlp((1,), HIDDEN, 2 * len(TRIED)).apply(params.network, observation)
    return outputs.reshape(-1, 2)[jnp.argmin(jnp.abs(jnp.asarray(TRIED) - action))]


def scalars(hyper: Any) -> Any:
    return jax.tree.map(jnp.float32, hyper)


AGENTS = {
    "sac": Case(
        partial(sac, config=SacConfig(hidden_sizes=HIDDEN, alpha_init=1e-4, fix_alpha=True)),
        scalars(SacHyper(discount=DISCOUNT, policy_lr=3e-3, critic_lr=3e-3, tau=0.05)),
        twin_value,
    ),
    "td3": Case(
        partial(td3, config=Td3Config(hidden_sizes=HIDDEN)),
        scalars(Td3Hyper(discount=DISCOUNT, policy_lr=6e-3, critic_lr=3e-3, exploration_noise=0.5, tau=0.1)),
        twin_value,
    ),
    "ppo": Case(
        partial(ppo, config=ON_POLICY_TRAINED),
        scalars(PpoHyper(discount=DISCOUNT, actor_lr=3e-3, critic_lr=3e-3)),
        state_value,
        partial(on_policy, config=ON_POLICY),
        of_states=True,
    ),
    "pqn": Case(
        partial(pqn, config=PqnConfig(hidden_sizes=ON_POLICY_HIDDEN, minibatches=4, anneal_updates=100)),
        scalars(PqnHyper(discount=DISCOUNT, q_lambda=0.0, learning_rate=2e-2, epsilon=0.5, reward_scaling=SCALE)),
        value_of_choice,
        partial(on_policy, config=ON_POLICY),
        discrete=True,
    ),
    "dqn": Case(
        partial(dqn, config=DqnConfig(HIDDEN, quantiles=2, layer_norm=False)),
        scalars(DqnHyper(discount=DISCOUNT, learning_rate=1.5e-2, epsilon=0.5, tau=0.1)),
        quantiles_of_choice,
        discrete=True,
    ),
}
every_agent = pytest.mark.parametrize("agent", AGENTS)


class Probe(NamedTuple):
    """The state of one of the probe environments."""

    number: jax.Array  # [] int32, its place in `PROBES`
    state: Any


PROBES = ("probe_value", "probe_discount", "probe_observation", "probe_truncation", "probe_action", "probe_both")
MASKED = "masked"
ALL = (*PROBES, MASKED)


def masked() -> Environment:
    """Two steps, observations 0 and 1, the reward of the second is the action, whose greatest is not available there:
    Q(0, a) = 0.5 x discount, Q(1, a) = a."""

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        last = state[0] > 0.5
        after = jnp.ones_like(state)
        return after, envs.next_step(after, jnp.where(last, action[0], 0.0), last, jnp.zeros((0,)))

    first = envs.first_step(jnp.zeros(1), jnp.zeros((0,)))
    spec = EnvSpec(MASKED, 1, 1, episode_length=2)
    return limit_episode(Environment(lambda key: (jnp.zeros(1), first), step, spec), 2)  # noqa: ARG005


def available(number: jax.Array, features: jax.Array) -> jax.Array:
    """`[A]` bool, the choices that are available: in the last probe not the greatest one at observation 1."""
    return ~((number == ALL.index(MASKED)) & (features > 0.5) & (jnp.arange(len(TRIED)) == len(TRIED) - 1))


def of_choices(environment: Environment, reset: Callable[..., Any]) -> tuple[Environment, Callable[..., Any]]:
    """The probes with `TRIED` as discrete actions, some of which are masked."""

    def show(state: Probe, step: Step) -> tuple[Probe, Step]:
        after = available(state.number, step.observation.features)
        final = step.final_observation._replace(action_mask=available(state.number, step.final_observation.features))
        return state, step._replace(observation=step.observation._replace(action_mask=after), final_observation=final)

    def step(state: Probe, action: jax.Array, key: jax.Array) -> tuple[Probe, Step]:
        return show(*environment.step(state, jnp.asarray(TRIED)[action][None], key))

    spec = environment.spec._replace(discrete=True, action_size=len(TRIED), masked=True)
    return (
        Environment(lambda key: show(*environment.reset(key)), step, spec),
        lambda number, key: show(*reset(number, key)),
    )


def probes(names: tuple[str, ...]) -> tuple[Environment, Callable[..., Any]]:
    """All probe environments as one, so that an agent is compiled once for them; and its reset, given the number."""
    envs_ = [masked() if name == MASKED else registry.make(name) for name in names]

    def reset(number: jax.Array, key: jax.Array) -> tuple[Probe, Step]:
        state, step = jax.lax.switch(number, [env.reset for env in envs_], key)
        return Probe(number, state), step

    def step(state: Probe, action: jax.Array, key: jax.Array) -> tuple[Probe, Step]:
        after, step = jax.lax.switch(state.number, [env.step for env in envs_], state.state, action, key)
        return Probe(state.number, after), step

    spec = EnvSpec("probes", 1, 1, max(env.spec.episode_length for env in envs_))
    return Environment(lambda key: reset(jnp.int32(0), key), step, spec), reset


@cache
def trained(name: str) -> TrainedAgents:
    """An agent after short trainings: off-policy 1,600 steps and 1,200 updates, on-policy 100 rollouts of 256."""
    case = AGENTS[name]
    names = ALL if case.discrete else PROBES
    environment, reset = of_choices(*probes(names)) if case.discrete else probes(names)
    agent = case.build(environment.spec)
    learner = case.live(agent, environment)

    def train(number: jax.Array, key: jax.Array) -> PyTree:
        keys = jax.random.split(key, 3)
        bank = jax.vmap(reset, in_axes=(None, 0))(number, jax.random.split(keys[0], CONFIG.start_states))
        member, _ = learner.step(learner.init(keys[1], case.hyper, bank), bank, keys[2], jnp.int32(0))
        return member.state.params

    numbers = jnp.arange(len(names), dtype=jnp.int32)
    params = jax.jit(jax.vmap(train, in_axes=(0, None)))(numbers, jax.random.key(0))
    return TrainedAgents(case, agent, jax.jit(case.value), params)


@every_agent
@pytest.mark.parametrize(
    ("probe_env", "observation", "expected"),
    [
        ("probe_value", 0.0, 1.0),
        ("probe_discount", 0.0, DISCOUNT),
        ("probe_discount", 1.0, 1.0),
        ("probe_observation", -1.0, -1.0),
        ("probe_observation", 1.0, 1.0),
        ("probe_truncation", 0.0, 1 / (1 - DISCOUNT)),  # 10; 4.1 at most if the clock were taken for an end
    ],
)
def test_values_that_no_action_changes(agent: str, probe_env: str, observation: float, expected: float) -> None:
    for action in TRIED:
        np.testing.assert_allclose(trained(agent).value(probe_env, observation, action), expected, rtol=0.05)


@every_agent
@pytest.mark.parametrize(
    ("probe_env", "observation", "best"),
    [("probe_action", 0.0, 0.5), ("probe_both", -1.0, -0.5), ("probe_both", 1.0, 0.5)],
)
def test_values_and_policies_where_the_action_counts(
    agent: str, probe_env: str, observation: float, best: float
) -> None:
    found = trained(agent)
    for action in (best,) if found.case.of_states else TRIED:  # the reward, of the order of 1, is the whole value
        value = found.value(probe_env, observation, action)
        np.testing.assert_allclose(value, -((action - best) ** 2), atol=0.05)
    assert found.action(probe_env, observation) == pytest.approx(best, abs=0.1)  # 5 % of the range [-1, 1]


@pytest.mark.parametrize("agent", [name for name, case in AGENTS.items() if case.discrete])
def test_an_action_that_is_not_available_counts_in_no_value_and_is_not_taken(agent: str) -> None:
    found = trained(agent)
    for action in TRIED[:-1]:
        np.testing.assert_allclose(found.value(MASKED, 1.0, action), action, atol=0.05)
        np.testing.assert_allclose(found.value(MASKED, 0.0, action), DISCOUNT * TRIED[-2], atol=0.05)
    assert found.action(MASKED, 1.0) == TRIED[-2]


# --- an agent that makes its own reward


def pointing() -> Environment:
    """One step, after which the descriptor is the action; the observation is always 0, and no reward is given."""
    place = envs.descriptor_spec("action", "final", (-1.0,), (1.0,))
    return Environment(_final_step, _point, EnvSpec("pointing", 1, 1, episode_length=1, descriptor=place))


def _final_step(key: jax.Array) -> tuple[jax.Array, Step]:
    return jnp.zeros((1,)), envs.first_step(jnp.zeros((1,)), jnp.zeros((1,)))


def _point(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
    return state, envs.next_step(state, jnp.zeros(()), jnp.asarray(True), action)


def test_two_skills_point_apart_and_are_worth_what_they_can_be() -> None:
    # Once each skill is recognised for certain, its reward is log 1 - log 1/2, and the episode is over.
    case, environment = AGENTS["sac"], skills(pointing(), 2)
    agent = diayn(case.build(environment.spec), environment.spec, DiaynConfig(discriminator_hidden_sizes=(16,)))
    learner = off_policy(agent, environment, CONFIG)
    hyper = scalars(agent.space.defaults._replace(**case.hyper._asdict(), discriminator_lr=1e-2))

    def trained(key: jax.Array) -> tuple:
        keys = jax.random.split(key, 4)
        bank = learner.start_states(keys[0])

        def live(generation: jax.Array, member: Member) -> Member:
            return learner.step(member, bank, jax.random.fold_in(keys[2], generation), generation)[0]

        # By the end of the second generation the warm-up, whose actions are indistinguishable, has left the buffer.
        member = jax.lax.fori_loop(0, 2, live, learner.init(keys[1], hyper, bank))
        shown = Observation(jnp.zeros((2, 1)), skill=jnp.eye(2))
        action = jax.vmap(agent.act, in_axes=(None, 0))(member.state.params, shown)
        critic = networks.twin(networks.mlp((3, 1), HIDDEN, 1))
        value = critic.apply(member.state.params.agent.critic, shown, action)
        return action[:, 0], value, learner.evaluate(genotype(member), bank, keys[3])

    action, value, evaluation = jax.jit(trained)(jax.random.key(0))
    assert abs(float(action[0] - action[1])) > 0.5
    assert evaluation.episodes["accuracy"].tolist() == [1.0, 1.0]
    np.testing.assert_allclose(evaluation.episodes["diversity_return"], np.log(2), rtol=0.05)
    np.testing.assert_allclose(value, np.log(2), rtol=0.05)
