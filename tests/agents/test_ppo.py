"""PPO: the rows of an update, its actions, and the contract of agents for an agent that learns from rollouts."""

from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import gradients, hyperparams, networks, returns, trees
from rookery.agents.actor_critic import Memory, Policy, unroll
from rookery.agents.base import OnPolicyAgent, RolloutExtras
from rookery.agents.ppo import PpoConfig, PpoHyper, PpoParams, PpoState, ppo, prepare_rows
from rookery.agents.ppo import act as ppo_act
from rookery.agents.ppo_settings import SPACE
from rookery.envs.base import ActionWithCarry, EnvSpec, SkillSpec
from rookery.hyperparams import LogUniform, OneMinusLog, Uniform
from rookery.types import Observation, Transition
from tests import key_trace
from tests.agents.common import SMALL_PPO, layer, nets_of, numbers
from tests.learners.rollouts import ENVS, MASKED, PARTIAL, SPEC, STEPS, rollout
from tests.tiny import assert_equal

MEMORY = 3


class Case(NamedTuple):
    """The environment and the configuration of a variant."""

    spec: EnvSpec
    config: PpoConfig


CASES = {
    "continuous": Case(PARTIAL, SMALL_PPO(clip_value=True, normalize_rewards=True, anneal_updates=4)),
    "discrete": Case(MASKED, SMALL_PPO(actor_epochs=3, critic_epochs=1)),
    "recurrent": Case(SPEC, SMALL_PPO(recurrent=True, memory_size=MEMORY)),
}


class CompiledAgent(NamedTuple):
    """A variant with its compiled functions, and a rollout for its update."""

    case: Case
    agent: OnPolicyAgent
    begin: Callable[[jax.Array], PpoState]
    compiled_update: Callable[..., tuple[PpoState, dict]]
    explore: Callable[..., Any]
    act: Callable[..., Any]
    state: PpoState
    hyper: PpoHyper
    batch: Transition
    traces: Counter

    def update(
        self, hyper: PpoHyper | None = None, batch: Transition | None = None, step: int = 0, seed: int = 2, **held: Any
    ) -> tuple[PpoState, dict]:
        hyper = (hyper or self.hyper)._replace(**held)
        hyper = jax.tree.map(jnp.float32, hyper)
        return self.compiled_update(self.state, hyper, batch or self.batch, jax.random.key(seed), jnp.int32(step))


@cache
def compiled_agent(name: str) -> CompiledAgent:
    case = CASES[name]
    agent = ppo(case.spec, case.config)
    begin, traces = jax.jit(lambda key: agent.start(agent.init(key))), Counter()

    def counted_update(*args: Any) -> Any:
        traces["update"] += 1
        return agent.update(*args)

    return CompiledAgent(
        case=case,
        agent=agent,
        begin=begin,
        compiled_update=jax.jit(counted_update),
        explore=jax.jit(agent.explore),
        act=jax.jit(agent.act),
        state=begin(jax.random.key(0)),
        hyper=PpoHyper(actor_lr=1e-2, critic_lr=1e-2, kl_threshold=1e6),
        batch=jax.jit(
            partial(rollout, spec=case.spec, memory_size=case.config.memory_size if case.config.recurrent else 0)
        )(jax.random.key(1)),
        traces=traces,
    )


def steps_of(learned: gradients.Learned) -> np.ndarray:
    """Number of steps that its optimiser has made."""
    moments: Any = learned.moments
    return np.asarray(moments.count)


@pytest.fixture(params=CASES)
def agent_case(request: pytest.FixtureRequest) -> CompiledAgent:
    return compiled_agent(request.param)


# --- the rows of an update


def test_annealed_rates_fall_to_zero_and_then_parameters_stay_while_others_ignore_the_step() -> None:
    agent_case = compiled_agent("continuous")  # over four updates

    def moved(**given: Any) -> np.ndarray:
        state, _ = agent_case.update(**given)
        assert int(steps_of(state.policy)) == 4
        return numbers(state.params) - numbers(agent_case.state.params)

    assert np.abs(moved(step=0)).max() > 1e-3
    for step, share in ((2, 0.5), (3, 0.25)):
        slower = moved(step=0, actor_lr=share * 1e-2, critic_lr=share * 1e-2)
        np.testing.assert_allclose(moved(step=step), slower, rtol=1e-5, atol=1e-7)
    assert not moved(step=4).any()
    assert not moved(step=9).any()
    agent_case = compiled_agent("discrete")  # without annealing the step has no effect
    assert_equal(agent_case.update(step=0), agent_case.update(step=1_000))


def test_rows_have_advantages_of_rewards_divided_by_the_deviation_of_the_unmasked_returns() -> None:
    agent_case = compiled_agent("continuous")
    batch, extras = agent_case.batch, agent_case.batch.extras
    kernel, bias = np.asarray([0.5, -1.0, 0.25]), 0.75
    critic = agent_case.state.critic._replace(params=layer(kernel[:, None].tolist(), [bias]))
    first, hyper = agent_case.state._replace(critic=critic), PpoHyper(discount=0.5, gae_lambda=0.5)
    prepare = jax.jit(partial(prepare_rows, nets_of(PARTIAL), agent_case.case.config))
    state, rows = prepare(first, hyper, batch)
    counted = np.asarray(extras.accumulated)[np.asarray(extras.counts)]
    assert float(state.discounted.count) == len(counted) == STEPS * ENVS - 1
    np.testing.assert_allclose(state.discounted.mean, [counted.mean()], rtol=1e-5)
    reward = np.asarray(batch.reward) / counted.std()
    value, following = (np.asarray(o.features) @ kernel + bias for o in (batch.observation, batch.next_observation))
    steps, ends = [jnp.asarray(each, jnp.float32) for each in (value, following)], (batch.terminated, extras.ended)
    advantage = returns.gae(jnp.asarray(reward), *ends, *steps, discount=0.5, lambda_=0.5).reshape(1, -1)
    np.testing.assert_allclose(rows.advantage, advantage, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rows.value, value.reshape(1, -1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rows.target, advantage + value.reshape(1, -1), rtol=1e-4, atol=1e-5)
    given = batch.observation, batch.action, extras.log_prob, extras.counts
    found = rows.observation, rows.action, rows.log_prob, rows.counts
    assert_equal(found, jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), given))
    large = [agent_case.update(batch=batch._replace(reward=jnp.full((STEPS, ENVS), size)))[0] for size in (1e3, 1e4)]
    assert_equal(*large)  # both are clipped to +10
    broken = batch._replace(extras=extras._replace(broken=jnp.zeros((STEPS, ENVS), bool).at[1, 1:3].set(True)))
    assert float(prepare(first, hyper, broken)[0].discounted.count) == len(counted) - 2
    again, _ = prepare(state, hyper, batch._replace(extras=extras._replace(accumulated=extras.accumulated + 1.0)))
    assert float(again.discounted.count) == 2 * len(counted)
    np.testing.assert_allclose(again.discounted.mean, [counted.mean() + 0.5], rtol=1e-5)
    assert int(compiled_agent("discrete").update()[0].discounted.count) == 0, "rewards that are not normalised"


def scale_and_shift(observation: Observation, where: jax.Array, scale: float, offset: float) -> Observation:
    """Change the features and the carry of the rows `[T, E]` where `where` is True; the action mask stays."""
    numeric = observation._replace(action_mask=None)
    changed = trees.where(where, jax.tree.map(lambda leaf: scale * leaf + offset, numeric), numeric)
    return changed._replace(action_mask=observation.action_mask)


def test_a_masked_step_has_no_effect(agent_case: CompiledAgent) -> None:
    skipped = ~agent_case.batch.extras.counts  # the last of its environment: only one earlier advantage depends on it
    extras = agent_case.batch.extras
    # The step before ended the agent's task, so that nothing reads what follows.
    ended = extras.ended.at[4, 0].set(True)
    terminated = agent_case.batch.terminated.at[4, 0].set(True)
    over = agent_case.batch._replace(terminated=terminated, extras=extras._replace(ended=ended))
    other = over._replace(
        observation=scale_and_shift(over.observation, skipped, -1.0, 0.0),
        next_observation=scale_and_shift(over.next_observation, skipped, 1.0, 7.0),
        reward=jnp.where(skipped, 99.0, over.reward),
        extras=over.extras._replace(
            log_prob=jnp.where(skipped, -9.0, extras.log_prob),
            accumulated=jnp.where(skipped, 999.0, extras.accumulated),
        ),
    )
    assert_equal(agent_case.update(batch=other), agent_case.update(batch=over))


# --- epochs


def test_a_policy_beyond_the_kl_threshold_stops_after_that_epoch_and_the_critic_continues(
    agent_case: CompiledAgent,
) -> None:
    config: Any = agent_case.case.config
    free, reported = agent_case.update()
    assert int(steps_of(free.policy)) == config.actor_epochs * config.minibatches
    assert int(steps_of(free.critic)) == config.critic_epochs * config.minibatches
    stopped, metrics = agent_case.update(kl_threshold=0.0)
    assert float(metrics["actor_epochs"]) == 1.0
    assert float(reported["actor_epochs"]) == config.actor_epochs
    assert int(steps_of(stopped.policy)) == config.minibatches
    assert_equal(stopped.critic, free.critic)
    just_below, just_above = (float(metrics["kl"]) * factor for factor in (0.999, 1.001))
    assert_equal(agent_case.update(kl_threshold=just_below)[0], stopped)
    assert float(agent_case.update(kl_threshold=just_above)[1]["actor_epochs"]) >= 2.0


# --- actions


def first_observation(agent_case: CompiledAgent) -> Observation:
    return jax.tree.map(lambda leaf: leaf[0, 0], agent_case.batch.observation)


def test_actions_have_the_declared_shape_and_type_and_their_own_log_density(agent_case: CompiledAgent) -> None:
    spec, observed = agent_case.case.spec, first_observation(agent_case)
    recurrent = agent_case.case.config.recurrent
    assert agent_case.agent.carry_sizes == (Memory(MEMORY, MEMORY) if recurrent else None)
    for action, log_prob in (
        agent_case.explore(agent_case.state, agent_case.hyper, observed, jax.random.key(0)),
        (agent_case.act(agent_case.state.params, observed), jnp.zeros(())),
    ):
        if recurrent:
            assert isinstance(action, ActionWithCarry)
            assert jax.tree.map(jnp.shape, action.carry) == Memory((MEMORY,), (MEMORY,))
        done = action.action if isinstance(action, ActionWithCarry) else action
        assert done.shape == (() if spec.discrete else (spec.action_size,))
        assert done.dtype == (jnp.int32 if spec.discrete else jnp.float32)
        assert log_prob.shape == ()


def test_samples_have_the_declared_deviation_and_may_exceed_the_action_bounds() -> None:
    agent = ppo(SPEC, PpoConfig(hidden_sizes=(), initial_std=2.0))
    state = agent.start(agent.init(jax.random.key(0)))
    keys = jax.random.split(jax.random.key(1), 2_000)
    draw = jax.jit(jax.vmap(agent.explore, in_axes=(None, None, None, 0)))
    action, _ = draw(state, PpoHyper(), Observation(jnp.zeros(3)), keys)
    np.testing.assert_allclose(np.std(action, axis=0), 2.0, rtol=0.05)
    assert (np.abs(action) > 1.0).any()


def test_an_unavailable_action_is_never_taken() -> None:
    agent_case = compiled_agent("discrete")
    bias = jnp.asarray([0.0, 5.0, 0.1])  # it would be the most probable one by far
    network = agent_case.state.policy.params.network
    last = {**network["params"]["Dense_1"], "bias": bias}
    policy = Policy({"params": {**network["params"], "Dense_1": last}}, ())
    state = agent_case.state._replace(policy=agent_case.state.policy._replace(params=policy))
    keys = jax.random.split(jax.random.key(1), 500)
    observed = first_observation(agent_case)
    assert observed.action_mask is not None
    assert observed.action_mask.tolist() == [True, False, True]
    draw = jax.jit(jax.vmap(agent_case.agent.explore, in_axes=(None, None, None, 0)))
    action, log_prob = draw(state, PpoHyper(), observed, keys)
    assert set(np.asarray(action).tolist()) == {0, 2}
    chances = {int(a): float(np.exp(p)) for a, p in zip(action, log_prob, strict=True)}
    assert sum(chances.values()) == pytest.approx(1.0, rel=1e-5)
    assert int(agent_case.act(state.params, observed)) == 2
    assert int(agent_case.act(state.params, observed._replace(action_mask=jnp.ones(3, bool)))) == 1


def test_actions_are_clipped_only_where_they_are_bounded() -> None:
    bias, zero = [3.0, -0.5], [[0.0] * 2] * 3
    params = PpoParams(Policy(layer(zero, bias), jnp.zeros(2)), ())
    for unbounded, expected in ((False, [1.0, -0.5]), (True, bias)):
        nets = nets_of(SPEC._replace(unbounded=unbounded))
        assert ppo_act(nets, params, Observation(jnp.zeros(3))).tolist() == expected


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_actions_of_a_policy_that_is_not_finite_are_marked(agent_case: CompiledAgent, bad: float) -> None:
    network = jax.tree.map(lambda leaf: jnp.full_like(leaf, bad), agent_case.state.params.policy.network)
    params = agent_case.state.params._replace(policy=agent_case.state.params.policy._replace(network=network))
    action = agent_case.act(params, first_observation(agent_case))
    action = action.action if isinstance(action, ActionWithCarry) else action
    if agent_case.case.spec.discrete:
        assert int(action) == -1
    else:
        assert not np.isfinite(action).all()


# --- the contract


def test_every_hyper_parameter_changes_the_update(agent_case: CompiledAgent) -> None:
    pairs = {
        "discount": (0.99, 0.97),
        "gae_lambda": (0.95, 0.9),
        "clip_epsilon": (0.2, 0.1),
        "entropy_coefficient": (0.01, 0.02),
        "value_coefficient": (0.5, 0.4),
        "kl_threshold": (0.0, 1e6),
        "actor_lr": (1e-2, 0.98e-2),
        "critic_lr": (1e-2, 0.98e-2),
        "max_grad_norm": (0.1, 0.09),
    }
    assert set(pairs) == set(PpoHyper._fields)
    agent_case.traces.clear()
    of_critic = {"discount", "gae_lambda", "value_coefficient", "critic_lr", "max_grad_norm"}
    of_critic |= {"clip_epsilon"} if agent_case.case.config.clip_value else set()
    of_actor = set(pairs) - {"value_coefficient", "critic_lr"}
    for name, values in pairs.items():
        held: list[dict[str, Any]] = [{name: value} for value in values]
        one, other = (agent_case.update(**changed)[0] for changed in held)
        changed = {
            part: (numbers(getattr(one, part)) != numbers(getattr(other, part))).any() for part in ("policy", "critic")
        }
        assert changed == {"policy": name in of_actor, "critic": name in of_critic}, name
    assert agent_case.traces["update"] <= 1  # hyper-parameters are leaves: other values need no compilation


def test_updates_are_pure_clip_each_network_separately_and_keep_structure_and_types(agent_case: CompiledAgent) -> None:
    before = jax.tree.map(np.array, (agent_case.state, agent_case.batch))
    first = agent_case.update()
    assert_equal(jax.tree.map(np.array, (agent_case.state, agent_case.batch)), before)
    assert_equal(agent_case.update(), first)
    assert (numbers(agent_case.update(seed=3)[0]) != numbers(first[0])).any()
    # A critic gradient a thousand times as large does not change the policy.
    plain, steep = (agent_case.update(max_grad_norm=0.1, value_coefficient=weight)[0].policy for weight in (0.5, 1e3))
    assert_equal(steep, plain)
    state, metrics = first
    assert jax.tree.structure(state) == jax.tree.structure(agent_case.state)
    for new, old in zip(jax.tree.leaves(state), jax.tree.leaves(agent_case.state), strict=True):
        assert (new.shape, new.dtype, new.weak_type) == (old.shape, old.dtype, old.weak_type)
    assert set(metrics) == {"actor_loss", "entropy", "kl", "clipped", "critic_loss", "value", "actor_epochs"}
    assert all(value.shape == () and np.isfinite(value) for value in metrics.values())


def test_a_new_state_has_new_optimisers_and_statistics(agent_case: CompiledAgent) -> None:
    old, _ = agent_case.update()
    fresh = agent_case.agent.start(old.params)
    assert_equal(fresh.params, old.params)
    assert (numbers(agent_case.begin(jax.random.key(1))) != numbers(agent_case.state)).any()
    assert not numbers((fresh.policy.moments, fresh.critic.moments, fresh.discounted)).any()
    for leaf in jax.tree.leaves((old.params, old)):
        assert not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        assert not jnp.issubdtype(leaf.dtype, jnp.unsignedinteger)


def test_every_key_is_consumed_once() -> None:
    agent_case = compiled_agent("discrete")

    def train(key: jax.Array) -> Any:
        keys = jax.random.split(key, 3)
        state = agent_case.agent.start(agent_case.agent.init(keys[0]))
        action, _ = agent_case.agent.explore(state, agent_case.hyper, first_observation(agent_case), keys[1])
        return action, agent_case.agent.update(state, agent_case.hyper, agent_case.batch, keys[2], jnp.int32(0))

    assert key_trace.reused(train) == []


# --- memory


def test_unrolling_equals_stepping_and_resets_the_memory_where_an_episode_begins() -> None:
    core = networks.core(2, (4,), 3, output_gain=1.0, memory_size=MEMORY)
    params = core.init(jax.random.key(0))
    observation = jax.random.normal(jax.random.key(1), (5, 2, 2))
    memory = jax.random.uniform(jax.random.key(2), (2, MEMORY))
    begins = jnp.asarray([[False, False], [False, False], [True, False], [False, False], [False, True]])
    outputs = jax.jit(partial(unroll, core))(params, memory, observation, begins)
    apply = jax.jit(core.apply)
    for column in range(2):
        kept = memory[column]
        for time in range(5):
            kept = jnp.zeros(MEMORY) if begins[time, column] else kept
            kept, expected = apply(params, kept, observation[time, column])
            np.testing.assert_allclose(outputs[time, column], expected, rtol=1e-4, atol=1e-6)


def with_large_outputs(agent_case: CompiledAgent) -> CompiledAgent:
    """Set a policy whose outputs are a hundred times those of an initial one."""
    network = agent_case.state.policy.params.network
    last = {**network["params"]["Dense_1"], "kernel": 100.0 * network["params"]["Dense_1"]["kernel"]}
    policy = agent_case.state.policy.params._replace(network={"params": {**network["params"], "Dense_1": last}})
    return agent_case._replace(state=agent_case.state._replace(policy=agent_case.state.policy._replace(params=policy)))


def test_a_recurrent_update_reproduces_the_log_densities_of_the_rollout() -> None:
    # Acting records the memory, the update unrolls it again: the same log densities, so the divergence is still 0.
    agent_case = with_large_outputs(compiled_agent("recurrent"))
    agent = agent_case.agent
    sensed = jax.random.normal(jax.random.key(3), (STEPS, ENVS, 3))
    ended = jnp.zeros((STEPS, ENVS), bool).at[2, 1].set(True)

    def act(memory: Memory, step: tuple) -> tuple:
        features, ended, key = step
        action: Any
        observed = Observation(features, carry=memory)
        action, log_prob = jax.vmap(agent.explore, in_axes=(None, None, 0, 0))(
            agent_case.state, agent_case.hyper, observed, jax.random.split(key, ENVS)
        )
        return trees.where(ended, jax.tree.map(jnp.zeros_like, memory), action.carry), (observed, action, log_prob)

    def extras() -> Transition:
        memory = Memory(*jax.random.uniform(jax.random.key(4), (2, ENVS, MEMORY)))
        keys = jax.random.split(jax.random.key(5), STEPS)
        _, (observed, action, log_prob) = jax.lax.scan(act, memory, (sensed, ended, keys))
        truth = jnp.ones((STEPS, ENVS), bool)
        extras = RolloutExtras(log_prob, ended, truth, jnp.zeros((STEPS, ENVS)), ~truth)
        return Transition(observed, action, agent_case.batch.reward, observed, ended, extras)

    batch = jax.jit(extras)()
    _, metrics = agent_case.update(batch=batch, actor_lr=0.0)
    assert abs(float(metrics["kl"])) < 1e-6
    assert float(metrics["clipped"]) == 0.0
    shifted = batch._replace(extras=batch.extras._replace(ended=jnp.zeros_like(ended)))
    assert float(agent_case.update(batch=shifted, actor_lr=0.0)[1]["kl"]) > 1e-4


# --- configuration


def test_an_environment_with_skills_or_a_memory_is_an_error() -> None:
    for spec in (SPEC._replace(skill=SkillSpec("one-hot", 2)), SPEC._replace(recurrent=True)):
        with pytest.raises(ValueError, match=r"^PPO supports no environment with skills or a memory, but test has"):
            ppo(spec)


def test_the_default_search_space() -> None:
    domains = {
        "discount": OneMinusLog(0.9, 0.999),
        "gae_lambda": OneMinusLog(0.8, 0.99),
        "clip_epsilon": Uniform(0.05, 0.4),
        "entropy_coefficient": LogUniform(1e-4, 1e-1),
        "actor_lr": LogUniform(3e-5, 3e-3),
        "critic_lr": LogUniform(3e-5, 3e-3),
    }
    assert dict(SPACE.domains) == domains
    assert {name: type(domain) for name, domain in SPACE.domains.items()} == {n: type(d) for n, d in domains.items()}
    found = jax.tree.leaves(hyperparams.defaults(SPACE))
    np.testing.assert_allclose(found, [0.99, 0.95, 0.2, 0.01, 0.5, 0.1, 2.5e-4, 2.5e-4, 0.5], rtol=1e-6)
    assert PpoConfig().hidden_sizes == (64, 64)
