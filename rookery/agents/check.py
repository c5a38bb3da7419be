"""Checks of user-defined agents, which report what is wrong in sentences.

The agent is called as a learner calls it, on random data of the environment's shapes.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from rookery import hyperparams, trees
from rookery.agents.base import Agent, OffPolicyAgent, OnPolicyAgent, RolloutExtras
from rookery.envs.base import ActionWithCarry, EnvSpec, Previous, Step
from rookery.factories import OWN_AGENT, RAISED, place_of
from rookery.settings import METRIC_NAMES, check_names
from rookery.types import Array, Hyper, Key, Observation, PyTree, Transition

_UPDATES = 8
"""Updates after which the effect of a hyper-parameter must show; more than any usual delay between two updates."""
_ROWS = 32
"""Transitions of a batch for an off-policy agent."""
_STEPS = 4
"""Steps of a rollout for an on-policy agent."""
_FAST_COMPILE: dict[str, bool | int | float | str] = {"xla_backend_optimization_level": 0}
"""Each function runs a few times only."""


def check_agent(agent: Agent, spec: EnvSpec, seed: int = 0) -> None:
    """Check that an agent can be trained as a member of a population, with random data in the shapes of a spec.

    It checks that parameters, states, actions and metrics have the right structures, shapes and types and stay finite;
    that all functions are pure; that the state contains no random key; that an update changes the parameters; and that
    each hyper-parameter changes the update or the exploratory actions.

    Args:
      agent: the agent, built for `spec`.
      spec: spec of the environment.
      seed: seed of the parameters and the data.

    Raises:
      ValueError: something is wrong; one sentence for each problem, each on its own line.

    Example:
      >>> env = rookery.make("point_room")
      >>> rookery.check_agent(rookery.sac(env.spec, rookery.agents.SacConfig(hidden_sizes=(8,))), env.spec)
    """
    if not isinstance(agent, OffPolicyAgent | OnPolicyAgent):
        found = type(agent).__name__
        raise ValueError(f"an agent must be a rookery.agents.OffPolicyAgent or OnPolicyAgent, got {found}.")
    if not isinstance(spec, EnvSpec):
        raise ValueError(f"check_agent takes the spec of an environment, env.spec, got {type(spec).__name__}.")
    problems: list[str] = []
    with contextlib.suppress(_StopChecking):
        _check(agent, spec, jax.random.key(seed), problems.append)
    if problems:
        raise ValueError(f"the agent is wrong, see {OWN_AGENT}: " + "\n".join(problems))


class _StopChecking(Exception):  # noqa: N818
    """A problem after which no further check is possible was reported."""


Report = Callable[[str], None]


class _Case(NamedTuple):
    """An agent with data to call it on."""

    agent: Agent
    spec: EnvSpec
    state: PyTree
    hyper: Hyper
    data: Transition
    """`[B, ...]`, or a rollout `[T, E, ...]`."""
    key: Key


def _check(agent: Agent, spec: EnvSpec, key: Key, report: Report) -> None:
    init_key, data_key, key = jax.random.split(key, 3)
    hyper = jax.tree.map(jnp.float32, agent.space.defaults)
    params = _call(report, "init(key)", agent.init, init_key)
    state = _call(report, "start(params)", agent.start, params)
    if not hasattr(state, "params"):
        _stop(report, f"the state, {type(state).__name__}, has no attribute params.")
    for problem in _differences("state.params after start(params)", params, state.params):
        report(problem)
    for problem in _key_problems(state):
        report(problem)
    if not trees.all_finite(state):
        report("start(init(key)) has numbers that are not finite.")
    observations = _observations(agent, spec, data_key, (_rows(agent),))
    _check_actions(agent, spec, params, observations, report)
    case = _Case(agent, spec, state, hyper, _data(agent, spec, state, hyper, data_key, report), key)
    _check_update(case, report)


def _call(report: Report, call: str, function: Callable[..., PyTree], *inputs: PyTree) -> PyTree:
    """Call a function under `jit`; report an exception, and a function that is not pure: two traces of it differ."""
    try:
        # A new function each time, since JAX does not trace the same one again.
        first, again = (jax.make_jaxpr(lambda *values: function(*values))(*inputs) for _ in range(2))  # noqa: PLW0108
        result = jax.jit(function, compiler_options=_FAST_COMPILE)(*inputs)
    except RAISED as error:
        first_line = (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
        report(f"{call} raised {type(error).__name__}: {first_line}{place_of(error)}.")
        raise _StopChecking from error
    if str(first) != str(again) or not trees.same_numbers(first.consts, again.consts):
        report(f"two calls of {call} with equal arguments differ; it must be a pure function.")
    return result


def _is_pair(result: object) -> bool:
    return isinstance(result, tuple) and len(result) == 2 and not hasattr(result, "_fields")


def _stop(report: Report, *problems: str) -> NoReturn:
    for problem in problems:
        report(problem)
    raise _StopChecking


def _differences(what: str, expected: PyTree, found: PyTree) -> Iterator[str]:
    """Differences of structure, shapes and types between two trees."""
    if jax.tree.structure(expected) != jax.tree.structure(found):
        yield f"{what} has another structure: {_structure(found)} instead of {_structure(expected)}."
        return
    for (path, one), other in zip(jax.tree.leaves_with_path(expected), jax.tree.leaves(found), strict=True):
        if (jnp.shape(one), jnp.result_type(one)) != (jnp.shape(other), jnp.result_type(other)):
            yield (
                f"{what} has {jax.tree_util.keystr(path) or 'an array'} of {jnp.result_type(other)} "
                f"{jnp.shape(other)} instead of {jnp.result_type(one)} {jnp.shape(one)}."
            )


def _structure(tree: PyTree) -> str:
    text = str(jax.tree.structure(tree)).removeprefix("PyTreeDef")
    return text if len(text) < 200 else f"{text[:200]}..."


def _key_problems(state: PyTree) -> Iterator[str]:
    for path, leaf in jax.tree.leaves_with_path(state):
        typed = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        if typed or (leaf.dtype == jnp.uint32 and leaf.shape[-1:] == (2,)):
            yield (
                f"the state has a random key, {jax.tree_util.keystr(path)}; functions get the keys that they need as "
                "arguments, so that a resumed run draws the same numbers."
            )


def _check_actions(agent: Agent, spec: EnvSpec, params: PyTree, observations: Observation, report: Report) -> None:
    actions = _call(report, "act(params, observation)", jax.vmap(agent.act, in_axes=(None, 0)), params, observations)
    for problem in _action_problems("act", agent, spec, actions, bounded=not spec.unbounded):
        report(problem)


def _action_problems(
    name: str, agent: Agent, spec: EnvSpec, actions: PyTree, bounded: bool, leading: tuple[int, ...] | None = None
) -> Iterator[str]:
    """Wrong shapes, types and values of the actions of several observations."""
    recurrent = bool(jax.tree.leaves(agent.carry_sizes)) if isinstance(agent, OnPolicyAgent) else False
    if isinstance(actions, ActionWithCarry) != recurrent:
        yield f"{name} must return {'an ActionWithCarry' if recurrent else 'an action'}, got {type(actions).__name__}."
        return
    values = actions.action if recurrent else actions
    leading = (_rows(agent),) if leading is None else leading
    shape = (*leading, *spec.action_shape)
    kind, name_of_kind = (jnp.integer, "int32") if spec.discrete else (jnp.floating, "float32")
    if getattr(values, "shape", None) != shape or not jnp.issubdtype(values.dtype, kind):
        expected, found = shape[len(leading) :], getattr(values, "shape", ())[len(leading) :]
        yield f"{name} must return an action of {name_of_kind} {expected}, got {values.dtype} {found}."
        return
    if spec.discrete:
        count = spec.categories or spec.action_size
        if not ((values >= 0) & (np.asarray(values) < np.asarray(count))).all():
            yield f"{name} returns actions that are not from 0 to below {count}."
    elif not jnp.isfinite(values).all():
        yield f"{name} returns actions that are not finite."
    elif bounded and (jnp.abs(values) > 1.0).any():
        yield f"{name} returns actions outside of [-1, 1]."


def _check_update(case: _Case, report: Report) -> None:
    first = _call(report, "update(state, hyper, batch, ..., step)", partial(_update, case.agent), *case[2:], 0)
    if not _is_pair(first):
        _stop(report, f"update must return (state, metrics), got {type(first).__name__}.")
    state, metrics = first
    if found := list(_differences("the state after update", case.state, state)):
        _stop(report, *found)
    # Metrics: names and shapes.
    try:
        check_names("metric of the agent", metrics, METRIC_NAMES)
    except ValueError as error:
        report(str(error))
    for name, value in metrics.items():
        if jnp.shape(value) != ():
            report(f"update returns the metric {name} of shape {jnp.shape(value)} instead of ().")
    # Several updates: numbers stay finite and parameters change.
    learn = jax.jit(partial(_updates, case), compiler_options=_FAST_COMPILE)
    final = learn(case.hyper)
    if not trees.all_finite((final, metrics)):
        report(f"{_UPDATES} updates give numbers that are not finite.")
    elif trees.same_numbers(final[0].params, case.state.params):
        report(f"{_UPDATES} updates change no parameters.")
    _check_hyper(case, learn, final, report)


def _check_hyper(case: _Case, learn: Callable[[Hyper], PyTree], final: PyTree, report: Report) -> None:
    """Every hyper-parameter, and every name of a choice, changes the `final` result of `learn`."""
    space, hyper = case.agent.space, case.hyper
    if space.optional:
        defaults = hyperparams.describe(space.optional._replace(domains={}))
        space = hyperparams.choose(space, **{name: defaults[name] for name in space.optional.fields})
        hyper = hyperparams.defaults(space)
        final = learn(hyper)
    # Large steps in narrow ranges, for what has no effect on small steps.
    bounds = {
        name: domain.high if isinstance(domain, hyperparams.LogUniform) else domain.low
        for name, domain in space.domains.items()
    }
    fastest = hyper._replace(**{name: jnp.float32(bound) for name, bound in bounds.items()})
    cases = (hyper, final), (fastest, learn(fastest))
    for name in space.fields or space.domains:
        others = [{name: jnp.float32(value)} for value in hyperparams.other_values(space, name)]
        is_wrong = any if name in hyperparams.choices_of(space) else all
        if all(
            is_wrong([trees.same_numbers(learn(before._replace(**other)), result) for other in others])
            for before, result in cases
        ):
            report(
                f"the hyper-parameter {name} changes neither {_UPDATES} updates nor an exploratory action; read it "
                "from hyper, not from the config."
            )


def _update(agent: Agent, state: PyTree, hyper: Hyper, data: Transition, key: Key, step: Array) -> PyTree:
    count = jnp.int32(step)
    if isinstance(agent, OnPolicyAgent):
        return agent.update(state, hyper, data, key, count)
    return agent.update(state, hyper, data, agent.noise(key, _ROWS), count)


def _updates(case: _Case, hyper: Hyper) -> tuple[PyTree, PyTree]:
    """The state after several updates, and exploratory actions from it."""

    def advance(state: PyTree, step: Array) -> tuple[PyTree, None]:
        return _update(case.agent, state, hyper, case.data, jax.random.fold_in(case.key, step), step)[0], None

    state = jax.lax.scan(advance, case.state, jnp.arange(_UPDATES))[0]
    observations = case.data.observation
    if isinstance(case.agent, OnPolicyAgent):
        observations = jax.tree.map(lambda leaf: leaf[0], observations)
    return state, _explore(case.agent, state, hyper, observations, case.key)


def _explore(agent: Agent, state: PyTree, hyper: Hyper, observations: Observation, key: Key) -> PyTree:
    """Exploratory actions `[B, ...]`, for an on-policy agent with their log densities."""
    keys = jax.random.split(key, observations.features.shape[0])
    return jax.vmap(agent.explore, in_axes=(None, None, 0, 0))(state, hyper, observations, keys)


def _data(agent: Agent, spec: EnvSpec, state: PyTree, hyper: Hyper, key: Key, report: Report) -> Transition:
    """Random transitions `[B, ...]`, or a rollout `[T, E, ...]` with the agent's actions and log densities."""
    if isinstance(agent, OffPolicyAgent):
        return _transitions(agent, spec, state, hyper, key, report)
    keys = jax.random.split(key, 5)
    leading = (_STEPS, _rows(agent))
    observation, following = (_observations(agent, spec, k, leading) for k in keys[:2])
    explore = jax.vmap(partial(_explore, agent), in_axes=(None, None, 0, 0))
    inputs = state, hyper, observation, jax.random.split(keys[2], _STEPS)
    drawn = _call(report, "explore(state, hyper, observation, key)", explore, *inputs)
    if not _is_pair(drawn):
        _stop(report, f"explore must return an action and its log density, got {type(drawn).__name__}.")
    action, log_prob = drawn
    if found := list(_action_problems("explore", agent, spec, action, bounded=False, leading=leading)):
        _stop(report, *found)
    axes = (*leading, *spec.agents)
    if log_prob.shape != axes:
        _stop(report, f"explore must return a log density of shape {spec.agents}, got {log_prob.shape[2:]}.")
    reward = jax.random.normal(keys[3], axes)
    ended = jax.random.bernoulli(keys[4], 0.2, leading)
    if spec.agents:
        ended = jnp.broadcast_to(ended[..., None], axes)
    extras = RolloutExtras(log_prob, ended, jnp.ones(axes, bool), reward, jnp.zeros(axes, bool))
    return Transition(observation, action, reward, following, ended, extras)


def _transitions(
    agent: OffPolicyAgent, spec: EnvSpec, state: PyTree, hyper: Hyper, key: Key, report: Report
) -> Transition:
    keys = jax.random.split(key, 6)
    observation, following = (_observations(agent, spec, k, (_ROWS,)) for k in keys[:2])
    call = "explore(state, hyper, observation, key)"
    action = _call(report, call, partial(_explore, agent), state, hyper, observation, keys[2])
    if found := list(_action_problems("explore", agent, spec, action, bounded=not spec.unbounded)):
        _stop(report, *found)
    reward, terminated = jax.random.normal(keys[3], (_ROWS,)), jax.random.bernoulli(keys[4], 0.2, (_ROWS,))
    batch = Transition(observation, action, reward, following._replace(skill=observation.skill), terminated)
    if agent.intrinsic_reward is None:
        return batch
    descriptor = jax.random.uniform(keys[5], (_ROWS, spec.descriptor_size))
    none = jnp.zeros((_ROWS,), bool)
    previous = Previous(observation, descriptor[::-1]) if spec.has_previous else None
    steps = Step(
        following, reward, terminated, none, batch.next_observation, descriptor, none, reward, previous=previous
    )
    return batch._replace(extras=jax.vmap(agent.intrinsic_reward.keep)(steps))


def _rows(agent: Agent) -> int:
    """Rows of a batch: an on-policy agent splits a rollout's environments into minibatches."""
    return 2 * agent.minibatches if isinstance(agent, OnPolicyAgent) else _ROWS


def _observations(agent: Agent, spec: EnvSpec, key: Key, leading: tuple[int, ...]) -> Observation:
    """Random observations of the shapes of a spec."""
    feature_key, skill_key = jax.random.split(key)
    axes = (*leading, *spec.agents)
    features = jax.random.normal(feature_key, (*axes, spec.observation_size))
    skill, carry = None, None
    if spec.skill is not None:
        skill = jax.random.normal(skill_key, (*leading, spec.skill.size))
        if spec.skill.kind == "one-hot":
            skill = jax.nn.one_hot(jnp.argmax(skill, axis=-1), spec.skill.size)
        skill = skill / jnp.linalg.norm(skill, axis=-1, keepdims=True)
    if isinstance(agent, OnPolicyAgent) and jax.tree.leaves(agent.carry_sizes):
        carry = jax.tree.map(lambda size: jnp.zeros((*axes, size)), agent.carry_sizes)
    mask = jnp.ones((*axes, spec.action_size), bool) if spec.masked else None
    index = jnp.broadcast_to(jnp.eye(axes[-1]), (*axes, axes[-1])) if spec.identified else None
    return Observation(features, skill, mask, carry, index)
