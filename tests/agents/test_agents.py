"""The contract of off-policy agents.

A new agent is one more entry of `AGENTS`.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import hyperparams
from rookery.agents.base import OffPolicyAgent
from rookery.agents.dqn import DqnConfig, dqn
from rookery.agents.sac import SacConfig, sac
from rookery.agents.skills import smerl
from rookery.agents.skills.diayn import diayn
from rookery.agents.skills.metra import LsdConfig, MetraConfig, lsd, metra
from rookery.agents.td3 import Td3Config, td3
from rookery.envs.base import EnvSpec
from rookery.trees import take, where
from rookery.types import PyTree, Transition
from tests import key_trace
from tests.agents.common import BATCH, CHOOSING, SKILLED, SPEC, SPHERE, drawn_transitions, numbers
from tests.tiny import assert_equal

MEMBERS = 3


class Case(NamedTuple):
    """An agent, and what the suite must know about it."""

    build: Callable[[EnvSpec], OffPolicyAgent]
    targets: dict[str, str]  # path in the state -> path in the parameters that it follows
    inert: frozenset[str] = frozenset()  # hyper-parameters without effect in this configuration
    chosen: Mapping[str, float] = MappingProxyType({})  # values at which all others have an effect
    updates: int = 2  # number after which all parameters have changed
    spec: EnvSpec = SPEC
    prepare: Callable[[Any], Any] = lambda state: state  # sets the state in which all its parts have an effect
    reads_ends: bool = False  # whether it learns from the observation that an episode terminated in


def near_the_best(state: Any) -> Any:
    """Set returns high enough for a diversity reward."""
    return state._replace(returns=smerl.Returns(jnp.asarray([9.5]), jnp.asarray([True]), jnp.float32(10.0)))


def explored_enough(state: Any) -> Any:
    """Set as many updates that the share of random actions is epsilon."""
    return state._replace(updates=jnp.int32(4))


def small_dqn(**options: Any) -> Callable[[EnvSpec], OffPolicyAgent]:
    return partial(dqn, config=DqnConfig((4,), exploration_updates=4, **options))


SMALL_SAC = partial(sac, config=SacConfig(hidden_sizes=(4,)))
SIMBA = partial(sac, config=SacConfig(hidden_sizes=(4,), critic_hidden_sizes=(4, 4), network="simba"))
FIXED_ALPHA = partial(sac, config=SacConfig(hidden_sizes=(4,), fix_alpha=True, layer_norm=True, critics=3))
SMALL_TD3 = partial(td3, config=Td3Config(hidden_sizes=(4,)))
TD3_CHOSEN = {"noise_clip": 0.2}  # one standard deviation: some of the noise is clipped, and some is not

WRAPPED_SAC = {"agent.target_critic": "agent.critic"}
WRAPPED_TD3 = {"agent.target_policy": "agent.policy", "agent.target_critic": "agent.critic"}

AGENTS = {
    "sac": Case(SMALL_SAC, {"target_critic": "critic"}),
    "td3_delay_3": Case(
        partial(td3, config=Td3Config((4,), policy_delay=3, policy_critic="mean", layer_norm=True, critics=3)),
        {"target_policy": "policy", "target_critic": "critic"},
        chosen=TD3_CHOSEN,
        updates=3,
    ),
    "diayn_simba": Case(
        lambda spec: diayn(SIMBA(spec), spec, discriminator_hidden_sizes=(4,)), WRAPPED_SAC, spec=SKILLED
    ),
    "smerl_td3_sphere": Case(  # all options of DIAYN that the case above does not have
        lambda spec: diayn(
            SMALL_TD3(spec), spec, descriptor_full_state=True, discriminator_hidden_sizes=(4,), smerl=True
        ),
        WRAPPED_TD3,
        chosen=TD3_CHOSEN,
        spec=SPHERE,
        prepare=near_the_best,
        reads_ends=True,
    ),
    "metra_fixed_alpha": Case(
        lambda spec: metra(FIXED_ALPHA(spec), spec, MetraConfig(phi_hidden_sizes=(4,))),
        WRAPPED_SAC,
        frozenset({"alpha_lr"}),
        spec=SKILLED._replace(has_previous=True),
    ),
    "lsd_td3_sphere": Case(  # what the case above does not have
        lambda spec: lsd(SMALL_TD3(spec), spec, LsdConfig(True, phi_hidden_sizes=(4,), smerl=True)),
        WRAPPED_TD3,
        chosen=TD3_CHOSEN,
        spec=SPHERE._replace(has_previous=True),
        prepare=near_the_best,
        reads_ends=True,
    ),
    "dqn": Case(small_dqn(), {"target": "network"}, chosen={"epsilon": 0.5}, spec=CHOOSING, prepare=explored_enough),
    "dqn_of_quantiles": Case(  # what the case above does not have
        small_dqn(double=False, dueling=True, quantiles=3, layer_norm=False, target_period=2),
        {"target": "network"},
        chosen={"epsilon": 0.5},
        spec=CHOOSING,
        prepare=explored_enough,
    ),
}


class CompiledAgent(NamedTuple):
    """An agent with its compiled functions, and one batch for its update."""

    case: Case
    agent: OffPolicyAgent
    init: Callable[[jax.Array], PyTree]
    update: Callable[..., tuple[PyTree, Any]]
    explore: Callable[..., Any]
    act: Callable[..., Any]
    state: PyTree
    hyper: Any
    batch: Transition  # rows 0 and 1 are terminated
    noise: PyTree
    traces: Counter


@pytest.fixture(scope="module", params=AGENTS)
def agent_case(request: pytest.FixtureRequest) -> CompiledAgent:
    case = AGENTS[request.param]
    agent = case.build(case.spec)
    init, traces = jax.jit(agent.init), Counter()

    def counted_update(*args: Any) -> Any:
        traces["update"] += 1
        return agent.update(*args)

    return CompiledAgent(
        case=case,
        agent=agent,
        init=init,
        update=jax.jit(counted_update),
        explore=jax.jit(agent.explore),
        act=jax.jit(agent.act),
        state=case.prepare(agent.start(init(jax.random.key(0)))),
        hyper=hyperparams.defaults(hyperparams.choose(agent.space, **case.chosen)),
        batch=drawn_transitions(jax.random.key(1), case.spec),
        noise=agent.noise(jax.random.key(2), BATCH),
        traces=traces,
    )


def learn(
    agent_case: CompiledAgent, hyper: Any = None, batch: Transition | None = None, noise: Any = None, state: Any = None
) -> PyTree:
    """The state after the case's updates from one batch."""
    state = agent_case.state if state is None else state
    noise = agent_case.noise if noise is None else noise
    inputs = hyper or agent_case.hyper, batch or agent_case.batch, noise
    for step in range(agent_case.case.updates):
        state, _ = agent_case.update(state, *inputs, jnp.int32(step))
    return state


def explored(agent_case: CompiledAgent, seed: int = 0, hyper: Any = None, scale: float = 1.0) -> np.ndarray:
    observation = jax.tree.map(partial(jnp.multiply, scale), take(agent_case.batch.observation, 0))
    return agent_case.explore(agent_case.state, hyper or agent_case.hyper, observation, jax.random.key(seed))


def test_actions_have_the_declared_shape_and_range(agent_case: CompiledAgent) -> None:
    spec = agent_case.case.spec
    for scale in (1.0, 1e3):
        observation = jax.tree.map(partial(jnp.multiply, scale), take(agent_case.batch.observation, 0))
        action = agent_case.act(agent_case.state.params, observation)
        for found in (action, explored(agent_case, scale=scale)):
            expected = ((), jnp.int32) if spec.discrete else ((spec.action_size,), jnp.float32)
            assert (found.shape, found.dtype) == expected
            assert 0 <= found < spec.action_size if spec.discrete else (np.abs(found) <= 1.0).all()


def test_act_depends_on_the_observation_and_explore_on_the_key(agent_case: CompiledAgent) -> None:
    def acted(row: int) -> list:
        return agent_case.act(agent_case.state.params, take(agent_case.batch.observation, row)).tolist()

    others = range(1, BATCH) if agent_case.case.spec.discrete else (1,)  # two of few choices may be the same
    for draw in (acted, lambda seed: explored(agent_case, seed).tolist()):
        assert draw(0) == draw(0)
        assert any(draw(0) != draw(other) for other in others)


def test_a_new_state_has_targets_equal_to_the_parameters_and_no_optimiser_history(agent_case: CompiledAgent) -> None:
    for target, followed in agent_case.case.targets.items():
        assert_equal(attrgetter(target)(agent_case.state), attrgetter(followed)(agent_case.state.params))
    params, start = learn(agent_case).params, agent_case.agent.start
    assert_equal(start(params).params, params)
    learned = {np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params)}
    for new, first in zip(*(jax.tree.leaves(start(given)) for given in (params, agent_case.state.params)), strict=True):
        assert np.array_equal(new, first) or np.asarray(new).tobytes() in learned


def test_updates_are_pure_and_finite_keep_structure_and_types_and_store_no_key(agent_case: CompiledAgent) -> None:
    inputs = agent_case.state, agent_case.hyper, agent_case.batch, agent_case.noise
    before = jax.tree.map(np.array, inputs)
    first = agent_case.update(*inputs, jnp.int32(0))
    assert_equal(jax.tree.map(np.array, inputs), before)
    assert_equal(agent_case.update(*inputs, jnp.int32(0)), first)
    state = agent_case.state
    for step in range(10):
        batch = drawn_transitions(jax.random.key(100 + step), agent_case.case.spec)
        observation = batch.observation._replace(features=10.0 * batch.observation.features)
        batch = batch._replace(reward=100.0 * batch.reward, observation=observation)
        noise = agent_case.agent.noise(jax.random.key(200 + step), BATCH)
        state, metrics = agent_case.update(state, agent_case.hyper, batch, noise, jnp.int32(step))
        assert np.isfinite(numbers(state)).all()
        assert all(value.shape == () and np.isfinite(value) for value in metrics.values())
    assert jax.tree.structure(state) == jax.tree.structure(agent_case.state)
    for new, old in zip(jax.tree.leaves(state), jax.tree.leaves(agent_case.state), strict=True):
        assert (new.shape, new.dtype, new.weak_type) == (old.shape, old.dtype, old.weak_type)
    assert (numbers(state.params) != numbers(agent_case.state.params)).any()
    for leaf in jax.tree.leaves((state.params, state)):
        assert not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        assert not jnp.issubdtype(leaf.dtype, jnp.unsignedinteger)


def test_parameters_and_noise_depend_on_the_key_and_noise_has_no_equal_parts(agent_case: CompiledAgent) -> None:
    def drawn(draw: Callable[[jax.Array], PyTree]) -> tuple[np.ndarray, np.ndarray]:
        one, same, other = (numbers(draw(jax.random.key(seed))) for seed in (0, 0, 1))
        assert (one == same).all()
        assert (one != other).any()
        return one, other

    drawn(agent_case.init)
    if jax.tree.leaves(agent_case.noise):
        one, other = drawn(lambda key: agent_case.agent.noise(key, BATCH))
        assert (one != other).all()
        assert len(np.unique(one)) == len(one)


def test_every_key_is_consumed_once(agent_case: CompiledAgent) -> None:
    def train(key: jax.Array) -> Any:
        keys = jax.random.split(key, 3)
        state = agent_case.agent.start(agent_case.agent.init(keys[0]))
        action = agent_case.agent.explore(state, agent_case.hyper, take(agent_case.batch.observation, 0), keys[1])
        return action, agent_case.agent.update(
            state, agent_case.hyper, agent_case.batch, agent_case.agent.noise(keys[2], BATCH), jnp.int32(0)
        )

    assert key_trace.reused(train) == []


def test_every_hyper_parameter_changes_the_update_or_the_action(agent_case: CompiledAgent) -> None:
    def outcome(hyper: Any) -> np.ndarray:
        return numbers((learn(agent_case, hyper), [explored(agent_case, seed, hyper) for seed in range(seeds)]))

    seeds = 200 if agent_case.case.spec.discrete else 1  # few draws of a choice depend on a small change

    agent_case.traces.clear()
    start = outcome(agent_case.hyper)
    for name, value in agent_case.hyper._asdict().items():
        changed = (outcome(agent_case.hyper._replace(**{name: value * 0.98})) != start).any()
        assert changed != (name in agent_case.case.inert), name
    assert agent_case.traces["update"] <= 1  # hyper-parameters are leaves: other values need no compilation


def test_the_space_contains_hyper_parameters_with_an_effect_and_their_defaults(agent_case: CompiledAgent) -> None:
    space = agent_case.agent.space
    assert set(space.domains) <= set(space.defaults._fields) - agent_case.case.inert
    for name, domain in space.domains.items():
        assert domain.low <= getattr(space.defaults, name) <= domain.high


def test_members_under_vmap_learn_the_same_as_alone_and_donated_states_are_deleted(agent_case: CompiledAgent) -> None:
    agent, case = agent_case.agent, agent_case.case

    def begin(key: jax.Array) -> tuple:
        state = case.prepare(agent.start(agent_case.init(key)))
        return state, hyperparams.sample(agent.space, key), drawn_transitions(key, case.spec), agent.noise(key, BATCH)

    members = [begin(key) for key in jax.random.split(jax.random.key(3), MEMBERS)]
    states, *inputs = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *members)  # nothing to compile
    together = jax.jit(jax.vmap(agent.update, in_axes=(0, 0, 0, 0, None)), donate_argnums=0)
    both = states
    for step in range(case.updates):
        both, _ = together(both, *inputs, jnp.int32(step))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(states))
    for i, (state, *alone) in enumerate(members):
        member, expected = jax.tree.map(lambda leaf, i=i: leaf[i], both), learn(agent_case, *alone, state=state)
        np.testing.assert_allclose(numbers(member), numbers(expected), rtol=1e-3, atol=1e-5)


def test_only_after_a_termination_the_next_observation_has_no_effect(agent_case: CompiledAgent) -> None:
    given, terminated = agent_case.batch.next_observation, agent_case.batch.terminated
    elsewhere = jax.tree.map(lambda leaf: leaf + 1.0, given)
    hidden = agent_case.batch._replace(next_observation=where(terminated, elsewhere, given))
    changed = (numbers(learn(agent_case, batch=hidden)) != numbers(learn(agent_case))).any()
    assert changed == agent_case.case.reads_ends
    used = agent_case.batch._replace(next_observation=where(terminated, given, elsewhere))
    assert (numbers(learn(agent_case, batch=used)) != numbers(learn(agent_case))).any()


@pytest.mark.parametrize("build", [SMALL_SAC, SMALL_TD3])  # `test_dqn` has the methods that wrap an agent
def test_discrete_actions_are_an_error(build: Callable[[EnvSpec], OffPolicyAgent]) -> None:
    with pytest.raises(ValueError, match=r"needs continuous actions, but test has 2 discrete ones; use PPO, PQN"):
        build(SPEC._replace(discrete=True))
