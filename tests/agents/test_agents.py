"""One contract for every agent.

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
from rookery.agents import diayn, sac, smerl, td3
from rookery.agents.base import OffPolicyAgent
from rookery.agents.diayn import DiaynConfig, DiaynState
from rookery.agents.sac import SacConfig
from rookery.agents.td3 import Td3Config
from rookery.envs.base import EnvSpec
from rookery.types import PyTree, Transition
from tests.agents.common import BATCH, SKILLED, SPEC, SPHERE, compiled, drawn_transitions, transitions
from tests.tiny import assert_equal

MEMBERS = 3


class Case(NamedTuple):
    """How the suite treats an agent."""

    build: Callable[[EnvSpec], OffPolicyAgent]
    targets: dict[str, str]  # path in the state -> path in the genome that it follows
    inert: frozenset[str] = frozenset()  # hyper-parameters that this configuration has no use for
    chosen: Mapping[str, float] = MappingProxyType({})  # values at which every other one has an effect
    updates: int = 2  # after which everything has moved
    spec: EnvSpec = SPEC
    prepare: Callable[[Any], Any] = lambda state: state  # what it must have lived through for all of it to count
    reads_ends: bool = False  # whether it learns from the observation that an episode terminated in


def diayn_of(inner: Callable[[EnvSpec], OffPolicyAgent], **options: Any) -> Callable[[EnvSpec], OffPolicyAgent]:
    config = DiaynConfig(discriminator_hidden_sizes=(4,), **options)
    return lambda spec: diayn.diayn(inner(spec), spec, config)


def near_the_best(state: DiaynState) -> DiaynState:
    """It has returned enough to be rewarded for diversity."""
    return state._replace(returns=smerl.Returns(jnp.asarray([9.5]), jnp.asarray([True]), jnp.float32(10.0)))


SMALL_SAC = partial(sac.sac, config=SacConfig(hidden_sizes=(4,)))
SMALL_TD3 = partial(td3.td3, config=Td3Config(hidden_sizes=(4,)))
TD3_TARGETS = {"target_policy": "policy", "target_critic": "critic"}
TD3_CHOSEN = {"noise_clip": 0.2}  # one standard deviation: some of the noise is clipped, and some is not

WRAPPED_SAC = {"agent.target_critic": "agent.critic"}
WRAPPED_TD3 = {"agent.target_policy": "agent.policy", "agent.target_critic": "agent.critic"}

AGENTS = {
    "sac": Case(SMALL_SAC, {"target_critic": "critic"}),
    "sac_fix_alpha": Case(
        partial(sac.sac, config=SacConfig(hidden_sizes=(4,), fix_alpha=True)),
        {"target_critic": "critic"},
        frozenset({"alpha_lr"}),
    ),
    "td3": Case(SMALL_TD3, TD3_TARGETS, chosen=TD3_CHOSEN),
    "td3_delay_3": Case(
        partial(td3.td3, config=Td3Config(hidden_sizes=(4,), policy_delay=3)),
        TD3_TARGETS,
        chosen=TD3_CHOSEN,
        updates=3,
    ),
    "diayn_sac": Case(diayn_of(SMALL_SAC), WRAPPED_SAC, spec=SKILLED),
    "smerl_td3_sphere": Case(  # all that DIAYN can be beside the case above
        diayn_of(SMALL_TD3, descriptor_full_state=True, smerl=True),
        WRAPPED_TD3,
        chosen=TD3_CHOSEN,
        spec=SPHERE,
        prepare=near_the_best,
        reads_ends=True,
    ),
}


class Mind(NamedTuple):
    """An agent with its compiled functions, and one batch to learn from."""

    case: Case
    agent: OffPolicyAgent
    update: Callable[..., tuple[PyTree, Any]]
    explore: Callable[..., Any]
    act: Callable[..., Any]
    state: PyTree
    hyper: Any
    batch: Transition  # rows 0 and 1 are terminated
    noise: PyTree
    traces: Counter


@pytest.fixture(scope="module", params=AGENTS)
def mind(request: pytest.FixtureRequest) -> Mind:
    case = AGENTS[request.param]
    agent = case.build(case.spec)
    traces: Counter = Counter()

    def counted_update(*args: Any) -> Any:
        traces["update"] += 1
        return agent.update(*args)

    return Mind(
        case=case,
        agent=agent,
        update=compiled(counted_update),
        explore=compiled(agent.explore),
        act=compiled(agent.act),
        state=compiled(lambda key: case.prepare(agent.start(agent.init(key))))(jax.random.key(0)),
        hyper=hyperparams.defaults(hyperparams.choose(agent.space, **case.chosen)),
        batch=drawn_transitions(jax.random.key(1), case.spec),
        noise=agent.noise(jax.random.key(2), BATCH),
        traces=traces,
    )


def learn(mind: Mind, hyper: Any = None, batch: Transition | None = None) -> PyTree:
    """The state after the case's updates from one batch."""
    state = mind.state
    for step in range(mind.case.updates):
        state, _ = mind.update(state, hyper or mind.hyper, batch or mind.batch, mind.noise, jnp.int32(step))
    return state


def numbers(tree: PyTree) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def copied(tree: PyTree) -> PyTree:
    return jax.tree.map(np.array, tree)


def test_actions_have_the_declared_shape_and_range(mind: Mind) -> None:
    for scale in (1.0, 1e3):
        observation = scale * mind.batch.observation[0]
        for action in (
            mind.act(mind.state.params, observation),
            mind.explore(mind.state, mind.hyper, observation, jax.random.key(0)),
        ):
            assert action.shape == (mind.case.spec.action_size,)
            assert action.dtype == jnp.float32
            assert (np.abs(action) <= 1.0).all()


def test_act_reads_the_observation_and_nothing_random(mind: Mind) -> None:
    first, other = mind.batch.observation[:2]
    assert mind.act(mind.state.params, first).tolist() == mind.act(mind.state.params, first).tolist()
    assert mind.act(mind.state.params, first).tolist() != mind.act(mind.state.params, other).tolist()


def test_explore_differs_by_key_and_only_by_key(mind: Mind) -> None:
    observation = mind.batch.observation[0]
    one, same, other = (
        mind.explore(mind.state, mind.hyper, observation, jax.random.key(seed)).tolist() for seed in (0, 0, 1)
    )
    assert one == same
    assert one != other


def test_a_start_has_targets_equal_to_what_they_follow_and_no_memory(mind: Mind) -> None:
    for target, followed in mind.case.targets.items():
        assert_equal(attrgetter(target)(mind.state), attrgetter(followed)(mind.state.params))
    old = learn(mind)
    assert_equal(mind.agent.start(old.params).params, old.params)
    fresh = compiled(mind.agent.start)(mind.state.params)
    assert_equal(mind.case.prepare(fresh), mind.state)


def test_no_key_is_stored(mind: Mind) -> None:
    for leaf in jax.tree.leaves((mind.state.params, mind.state, learn(mind))):
        assert not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        assert not jnp.issubdtype(leaf.dtype, jnp.unsignedinteger)


def test_members_start_from_weights_of_their_own(mind: Mind) -> None:
    one, same, other = (numbers(compiled(mind.agent.init)(jax.random.key(seed))) for seed in (0, 0, 1))
    assert (one == same).all()
    assert (one != other).any()


def test_updates_are_pure(mind: Mind) -> None:
    inputs = mind.state, mind.hyper, mind.batch, mind.noise
    before = copied(inputs)
    first = mind.update(*inputs, jnp.int32(0))
    assert_equal(copied(inputs), before)
    assert_equal(mind.update(*inputs, jnp.int32(0)), first)


def test_updates_are_finite_and_keep_structure_and_types(mind: Mind) -> None:
    state, spec = mind.state, mind.case.spec
    stretch = jnp.where(jnp.arange(spec.observation_size) < spec.sensed_size, 10.0, 1.0)[None]
    for step in range(10):
        batch = drawn_transitions(jax.random.key(100 + step), mind.case.spec)
        batch = batch._replace(reward=100.0 * batch.reward, observation=batch.observation * stretch)
        noise = mind.agent.noise(jax.random.key(200 + step), BATCH)
        state, metrics = mind.update(state, mind.hyper, batch, noise, jnp.int32(step))
        assert np.isfinite(numbers(state)).all()
        assert all(value.shape == () and np.isfinite(value) for value in metrics.values())
    assert jax.tree.structure(state) == jax.tree.structure(mind.state)
    for new, old in zip(jax.tree.leaves(state), jax.tree.leaves(mind.state), strict=True):
        assert (new.shape, new.dtype, new.weak_type) == (old.shape, old.dtype, old.weak_type)
    assert (numbers(state.params) != numbers(mind.state.params)).any()


def test_noise_differs_by_key_and_has_no_two_equal_parts(mind: Mind) -> None:
    one, same, other = (numbers(mind.agent.noise(jax.random.key(seed), BATCH)) for seed in (0, 0, 1))
    assert (one == same).all()
    assert (one != other).all()
    assert len(np.unique(one)) == len(one)


def test_every_key_is_consumed_once(mind: Mind) -> None:
    def life(key: jax.Array) -> Any:
        keys = jax.random.split(key, 3)
        state = mind.agent.start(mind.agent.init(keys[0]))
        action = mind.agent.explore(state, mind.hyper, mind.batch.observation[0], keys[1])
        return action, mind.agent.update(state, mind.hyper, mind.batch, mind.agent.noise(keys[2], BATCH), jnp.int32(0))

    with jax.debug_key_reuse(True):  # raises where a key is used again
        assert np.isfinite(numbers(compiled(life)(jax.random.key(0)))).all()


def test_every_hyper_parameter_changes_what_the_agent_does(mind: Mind) -> None:
    def outcome(hyper: Any) -> np.ndarray:
        action = mind.explore(mind.state, hyper, mind.batch.observation[0], jax.random.key(0))
        return numbers((learn(mind, hyper), action))

    start = outcome(mind.hyper)
    for name, value in mind.hyper._asdict().items():
        changed = (outcome(mind.hyper._replace(**{name: value * 0.98})) != start).any()
        assert changed != (name in mind.case.inert), name
    assert mind.traces["update"] == 1  # hyper-parameters are leaves: other values compile nothing


def test_the_space_offers_what_has_an_effect_around_the_defaults(mind: Mind) -> None:
    space = mind.agent.space
    assert set(space.domains) <= set(space.defaults._fields) - mind.case.inert
    for name, domain in space.domains.items():
        assert domain.low <= getattr(space.defaults, name) <= domain.high


def test_members_side_by_side_learn_what_each_learns_alone(mind: Mind) -> None:
    def prepare(key: jax.Array) -> tuple:
        hyper, batch = hyperparams.sample(mind.agent.space, key), transitions(key, mind.case.spec)
        return mind.agent.start(mind.agent.init(key)), hyper, batch, mind.agent.noise(key, BATCH)

    prepared = compiled(jax.vmap(prepare))(jax.random.split(jax.random.key(3), MEMBERS))
    states, *inputs = prepared
    together = compiled(jax.vmap(mind.agent.update, in_axes=(0, 0, 0, 0, None)))
    both = states
    for step in range(mind.case.updates):
        both, _ = together(both, *inputs, jnp.int32(step))
    for i in range(MEMBERS):
        state, *alone = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], prepared)
        for step in range(mind.case.updates):
            state, _ = mind.update(state, *alone, jnp.int32(step))
        member = jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], both)
        np.testing.assert_allclose(numbers(member), numbers(state), rtol=1e-3, atol=1e-5)


def test_a_donated_state_is_consumed_whole(mind: Mind) -> None:
    state = jax.tree.map(jnp.copy, mind.state)
    expected, _ = mind.update(state, mind.hyper, mind.batch, mind.noise, jnp.int32(0))
    donated = compiled(mind.agent.update, donate_argnums=0)
    started = mind.case.prepare(mind.agent.start(state.params))
    found, _ = donated(started, mind.hyper, mind.batch, mind.noise, jnp.int32(0))
    np.testing.assert_allclose(numbers(found), numbers(expected), rtol=1e-6)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))


def test_only_a_termination_hides_what_comes_next(mind: Mind) -> None:
    elsewhere = mind.batch.next_observation + 1.0
    terminated = mind.batch.terminated[:, None]
    hidden = mind.batch._replace(next_observation=jnp.where(terminated, elsewhere, mind.batch.next_observation))
    changed = (numbers(learn(mind, batch=hidden)) != numbers(learn(mind))).any()
    assert changed == mind.case.reads_ends
    seen = mind.batch._replace(next_observation=jnp.where(terminated, mind.batch.next_observation, elsewhere))
    assert (numbers(learn(mind, batch=seen)) != numbers(learn(mind))).any()


@pytest.mark.parametrize("name", AGENTS)
def test_discrete_actions_are_answered(name: str) -> None:
    with pytest.raises(ValueError, match=r"needs continuous actions, but test has 2 discrete ones\.$"):
        AGENTS[name].build(AGENTS[name].spec._replace(discrete=True))
