"""Evaluation by full episodes, and the fields of a learner that follow from it."""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import hyperparams, trees
from rookery.agents.base import ActFn, Agent, IntrinsicReward
from rookery.envs import base as envs
from rookery.envs import descriptors
from rookery.envs.base import Environment, EnvSpec, Step, Team
from rookery.envs.wrappers import auto_reset, skills
from rookery.envs.wrappers.time_limit import guard_physics
from rookery.learners import widths
from rookery.learners.base import (
    SUMMARIES,
    Bank,
    EvaluationConfig,
    Evaluator,
    InitFn,
    Learner,
    RestartFn,
    StepFn,
)
from rookery.learners.episode_loop import EpisodeLoop, run_episodes
from rookery.learners.rollout import (
    EnvBatchState,
    advance,
    forward_params,
    load_genotype,
    normalize_features,
    space_with_parameters,
    transition_row,
)
from rookery.settings import MEASURE, SettingError, unknown_name, verbatim
from rookery.types import Array, Evaluation, Genotype, HyperT, Key, PyTree, StateT, Transition


class Episodes(NamedTuple):
    """A running evaluation: sums over N episodes, no trajectories. In a team, arrays marked (*) are `[N, I]`."""

    env_batch: EnvBatchState
    """`[N, ...]`."""
    active: Array
    """`[N]` bool (*): the episode has not ended."""
    returns: Array
    """`[N]` (*)."""
    lengths: Array
    """`[N]` int32."""
    summary: descriptors.Summary
    """`[N, ...]`, accumulated descriptors."""
    sums: Mapping[str, Array]
    """Name -> `[N]`, sums of the quantities that an intrinsic reward measures."""
    broken: Array
    """`[N]` bool: ended because the simulation produced non-finite numbers."""
    is_finite: Array
    """`[]` bool, or `[I]`: every action before the end of the episodes was finite."""
    last: PyTree = ()
    """`LastStep` of the agents of a team."""
    measures: Mapping[str, Array] = {}
    """Name -> `[N]` or `[N, I]`, sums of the measures of the environment; {} without any."""


class Recorded(NamedTuple):
    """The transitions of an evaluation; T is the episode length of the environment."""

    transitions: Transition
    """`[T N, ...]`, with the true successors."""
    valid: Array
    """`[T N]` bool: False after the end of an episode."""
    broken: Array
    """`[T N]` bool: the physics broke in the step."""


class LastStep(NamedTuple):
    """The last step of an episode for each agent of a team, `[N, I]`."""

    final_reward: Array
    terminated: Array
    """bool."""
    truncated: Array
    """bool."""


def evaluator(
    act: ActFn, environment: Environment, config: EvaluationConfig, intrinsic_reward: IntrinsicReward | None = None
) -> Evaluator:
    """Build an `Evaluator`.

    Raises:
      ValueError: the objective is no measure of the environment.
    """
    measures, objective = environment.spec.measures or {}, config.objective
    if objective is not None and objective not in measures:
        if not measures:
            problem = f"has no effect on {verbatim(environment.spec.name)}, which has no measures"
            declared = "name a key of its info by {option} measure=KEY, or give measures to rookery.from_gymnasium"
            raise SettingError("objective", objective, problem, declared if environment.host else "leave it out")
        raise unknown_name("objective", objective, f"measure of {environment.spec.name} named", measures)
    environment = guard_physics(environment)
    return Evaluator(act, environment, config, whole_rounds(environment, config), intrinsic_reward)


def measures_episodes(evaluator: Evaluator) -> bool:
    """Whether the objective is a measure of a whole episode, `[]`, which is the same for all agents of a team."""
    if evaluator.config.objective is None:
        return False
    measures = jax.eval_shape(evaluator.environment.reset, jax.random.key(0))[1].measures
    return measures[evaluator.config.objective].shape == ()


def whole_rounds(environment: Environment, config: EvaluationConfig) -> int:
    """The number of episodes; with skills, rounded up so that all enumerated skills get equally many."""
    skill, episodes = environment.spec.skill, config.eval_episodes
    return skills.whole_rounds(skill, episodes) if skill else episodes


def bank_size(evaluator: Evaluator) -> int:
    """K, start states per generation: as configured, and at least one for each episode of an evaluation."""
    return max(evaluator.config.start_states, evaluator.episodes)


def bind_learner(
    agent: Agent,
    evaluator: Evaluator,
    init: InitFn[StateT, HyperT],
    restart: RestartFn[StateT, HyperT],
    step: StepFn[StateT, HyperT],
    steps_per_generation: int,
) -> Learner[StateT, HyperT]:
    """Build the learner of an agent from its training loop and its evaluator."""
    environment, width = evaluator.environment, widths.space(agent)
    space = space_with_parameters(agent.space, environment)
    if width is not None:
        space = hyperparams.with_optional(space, width)
    return Learner(
        **evaluation_of(evaluator),
        init=init if width is None else partial(widths.narrow_init, agent, init),
        load_genotype=partial(load_genotype, agent.start),
        restart=restart,
        step=step,
        trace=partial(trace, evaluator),
        spec=environment.spec,
        space=space,
        steps_per_generation=steps_per_generation,
        evaluation_steps=evaluator.steps,
        resize=None if width is None else partial(widths.resize, agent),
    )


def evaluation_of(evaluator: Evaluator) -> dict[str, Any]:
    """The fields that a `Learner` and a `Scoring` derive from their evaluator."""
    start_states = partial(auto_reset.start_bank, evaluator.environment, size=bank_size(evaluator))
    return {"evaluator": evaluator, "evaluate": partial(evaluate, evaluator), "start_states": start_states}


def with_episodes(learner: Learner[StateT, HyperT], episodes: int) -> Learner[StateT, HyperT]:
    """The same learner, evaluated on another number of episodes, each from a separate start state.

    Raises:
      ValueError: `episodes` is below 1, or the learner has no evaluator.
    """
    if learner.evaluator is None:
        raise ValueError(f"the learner of {learner.spec.name} has no evaluator, whose number of episodes could change.")
    evaluator = more_episodes(learner.evaluator, episodes)
    return learner._replace(
        **evaluation_of(evaluator),
        trace=partial(trace, evaluator),
        evaluation_steps=evaluator.steps,
    )


def more_episodes(evaluator: Evaluator, episodes: int) -> Evaluator:
    """The evaluator with another number of episodes, which skills round up, and at least as many start states."""
    starts = max(episodes, evaluator.config.start_states)
    config = dataclasses.replace(evaluator.config, eval_episodes=episodes, start_states=starts)
    return evaluator._replace(config=config, episodes=whole_rounds(evaluator.environment, config))


def start_episodes(environment: Environment, bank: Bank, episodes: int) -> EnvBatchState:
    """Start an episode from each of the first start states of the bank; skills are assigned in turn."""
    start = trees.take(bank, jnp.arange(episodes))
    if environment.assignment is not None:
        start = jax.vmap(partial(environment.assignment.first, key=None))(start, jnp.arange(episodes))
    return EnvBatchState(start[0], start[1].observation)


def evaluate(evaluator: Evaluator, genotype: Genotype, bank: Bank, key: Key, record: bool = False) -> Evaluation:
    """Evaluate a genotype by full deterministic episodes from the first start states of the bank.

    The loop ends when the last episode ends. A mask excludes steps after the end of an episode, or after the end of an
    agent's task while other agents of the team continue.

    Args:
      evaluator: agent, environment and settings.
      genotype: the genotype to evaluate.
      bank: at least N start states.
      key: consumed by the environment only.
      record: return the transitions as well; not for teams.

    Returns:
      The `Evaluation`; its fitness, the mean return or the mean sum of the objective, is NaN if any action was not
      finite, the physics broke in any episode, or the objective is not finite. `episodes` contains the descriptors
      `[N, D]`, the sum of each measure of the environment as `measure/<name>` `[N]` (of agents: their mean, and
      `measure/<name>/<agent>`), and the values that an intrinsic reward reports; for a team also `return/<agent>`,
      `final_reward/<agent>`, `terminated/<agent>` and `truncated/<agent>`, `[N]` each. What is reported of an episode
      in which the physics broke is NaN.
    """
    environment, episodes = evaluator.environment, evaluator.episodes
    spec = environment.spec
    kind = descriptors.KINDS[spec.descriptor.kind if spec.descriptor else "mean"]
    empty = jax.tree.map(lambda leaf: jnp.zeros((episodes, *leaf.shape)), kind.init(spec.descriptor_size))
    sums = {}
    if evaluator.intrinsic_reward:
        measures = jax.eval_shape(evaluator.intrinsic_reward.measure, genotype.params, trees.take(bank[1], 0))
        sums = jax.tree.map(lambda leaf: jnp.zeros((episodes,), leaf.dtype), dict(measures))
    # Start: every episode from its own start state.
    env_batch = start_episodes(environment, bank, episodes)
    # Derived from existing arrays, so that the loop carry is varying over the same mapped axes from the start.
    inactive = jnp.zeros_like(env_batch.observation.features[..., 0], bool)
    zeros, false = jnp.zeros_like(inactive, jnp.float32), jnp.zeros_like(inactive.reshape(episodes, -1)[:, 0])
    start = Episodes(
        env_batch=env_batch,
        active=~inactive,
        returns=zeros,
        lengths=jnp.zeros_like(false, jnp.int32),
        summary=trees.where(false, empty, empty),
        sums=trees.where(false, sums, sums),
        broken=false,
        is_finite=~inactive[0],
        last=LastStep(zeros, inactive, inactive) if spec.team else (),
        measures=_no_measures(spec, bank, zeros),
    )
    # Run until the last episode ends.
    step = partial(_advance_episodes, evaluator, kind, record)
    loop = EpisodeLoop(step, episodes, spec.episode_length, together=environment.host is not None)
    end, recorded = run_episodes(loop, genotype, key, start, _empty_record(evaluator, bank) if record else ())
    reached = jax.vmap(kind.finish)(end.summary)
    # Reduce to one fitness and one descriptor.
    end = end._replace(returns=trees.where(end.broken, jnp.nan, end.returns))
    counts = end.is_finite.all() & ~end.broken.any()
    spoiled = end.broken
    if evaluator.config.objective is not None:
        scores = _scores(evaluator, end).reshape(episodes, -1)
        spoiled |= ~jnp.isfinite(scores).all(axis=1) & end.is_finite.all()
    evaluation = Evaluation(
        fitness=jnp.where(counts, jnp.mean(_scores(evaluator, end)), jnp.nan),
        descriptor=SUMMARIES[evaluator.config.eval_descriptor](reached, axis=0),
        returns=end.returns,
        lengths=end.lengths,
        broken=jnp.sum(spoiled),
        episodes={"descriptors": trees.where(end.broken, jnp.nan, reached), **_reported_measures(spec.team, end)},
    )
    if record:
        rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), recorded)
        evaluation = evaluation._replace(transitions=rows)
    if spec.team:
        return _by_agents(evaluator, spec.team, end, evaluation)
    if evaluator.intrinsic_reward:
        fitness, reported = evaluator.intrinsic_reward.conclude(end.sums, end.returns, end.lengths)
        fitness = evaluation.fitness if evaluator.config.objective else jnp.where(counts, fitness, jnp.nan)
        reported = trees.where(end.broken, jax.tree.map(lambda _: jnp.nan, reported), reported)
        evaluation = evaluation._replace(fitness=fitness, episodes={**evaluation.episodes, **reported})
    return evaluation


def _empty_record(evaluator: Evaluator, bank: Bank) -> Recorded:
    """Zeros, `[T, N, ...]`."""
    shape = evaluator.environment.spec.episode_length, evaluator.episodes
    row = transition_row(evaluator.environment, bank)
    rows = jax.tree.map(lambda leaf: jnp.zeros((*shape, *leaf.shape), leaf.dtype), row)
    return Recorded(rows, *[jnp.zeros(shape, bool)] * 2)


def _by_agents(evaluator: Evaluator, team: Team, end: Episodes, evaluation: Evaluation) -> Evaluation:
    """Add the results of each agent of a team, and compute the team's fitness."""
    values_by_name = {"return": end.returns, **end.last._asdict()}
    columns = {
        f"{name}/{agent}": jnp.where(end.broken, jnp.nan, values[:, i].astype(jnp.float32))
        for name, values in values_by_name.items()
        for i, agent in enumerate(team.names)
    }
    by_agent, intact = jnp.mean(_scores(evaluator, end), axis=0), ~end.broken.any()
    fitness = jnp.mean(by_agent) if evaluator.role is None else by_agent[evaluator.role]
    return evaluation._replace(
        fitness=jnp.where(end.is_finite.all() & intact, fitness, jnp.nan),
        returns=jnp.mean(end.returns, axis=1),
        episodes={**evaluation.episodes, **columns},
        roles=jnp.where(end.is_finite & intact, by_agent, jnp.nan),
    )


def _advance_episodes(
    evaluator: Evaluator,
    kind: descriptors.Descriptor,
    record: bool,
    genotype: Genotype,
    key: Key,
    run: Episodes,
    time: Array,
) -> tuple[Episodes, PyTree]:
    env_batch, transition, step, action = act_once(evaluator, genotype, run.env_batch, jax.random.fold_in(key, time))
    sums = (
        _accumulate_intrinsic(evaluator.intrinsic_reward, genotype, step, run)
        if evaluator.intrinsic_reward
        else run.sums
    )
    active, last = _any_agent(run.active), run.last
    if last:
        now = LastStep(step.reward, step.terminated, step.truncated)
        last = jax.tree.map(partial(jnp.where, run.active), now, last)
    advanced = Episodes(
        env_batch=env_batch,
        active=run.active & ~step.ended,
        returns=run.returns + jnp.where(run.active, step.reward, 0.0),
        lengths=run.lengths + active.astype(jnp.int32),
        summary=jax.vmap(kind.accumulate)(run.summary, step.descriptor, active & ~step.broken),
        sums=sums,
        broken=run.broken | (active & step.broken),
        is_finite=run.is_finite & (_finite(action, run.active.ndim) | ~run.active).all(axis=0),
        last=last,
        measures=_accumulate_measures(step, run),
    )
    return advanced, Recorded(transition, active, step.broken) if record else ()


def _no_measures(spec: EnvSpec, bank: Bank, zeros: Array) -> dict[str, Array]:
    """The sums of the measures before the first step: `[N]` of zeros, or `[N, I]` of those of each agent."""
    firsts = {name: bank[1].measures[name] for name in spec.measures or {}}
    return {name: zeros if first.ndim == zeros.ndim else zeros[:, 0] for name, first in firsts.items()}


def _accumulate_measures(step: Step, run: Episodes) -> dict[str, Array]:
    """Add a step's measures to the sums of the episodes, or agents, that have not ended."""
    found = {}
    for name, total in run.measures.items():
        assert step.measures is not None
        counts = run.active if total.ndim == run.active.ndim else _any_agent(run.active)
        found[name] = total + jnp.where(counts, step.measures[name], 0.0)
    return found


def _reported_measures(team: Team | None, end: Episodes) -> dict[str, Array]:
    """The sums of the measures of each episode, `[N]`: of agents their mean, and those of each."""
    found = {}
    for name, sums in end.measures.items():
        key, known = f"{MEASURE}{name}", trees.where(end.broken, jnp.nan, sums)
        if team and sums.ndim == 2:
            found |= {f"{key}/{agent}": known[:, i] for i, agent in enumerate(team.names)}
            known = jnp.mean(known, axis=1)
        found[key] = known
    return found


def _scores(evaluator: Evaluator, end: Episodes) -> Array:
    """What the fitness averages for each episode, `[N]` (*): the objective, or else the return."""
    if evaluator.config.objective is None:
        return end.returns
    sums = end.measures[evaluator.config.objective]
    missing = end.returns.ndim - sums.ndim  # a measure of the whole episode counts for every agent
    return jnp.broadcast_to(sums[(..., *(None,) * missing)], end.returns.shape)


def _any_agent(active: Array) -> Array:
    """Whether an episode has not ended for at least one agent, `[N]` from `[N]` or `[N, I]`."""
    return active if active.ndim == 1 else active.any(axis=1)


def _finite(action: PyTree, rank: int) -> Array:
    """Whether all numbers of each action are finite; a discrete policy signals non-finite outputs by a negative
    index."""
    action = action.action if isinstance(action, envs.ActionWithCarry) else action
    valid = action >= 0 if jnp.issubdtype(action.dtype, jnp.integer) else jnp.isfinite(action)
    return valid.all(axis=tuple(range(rank, action.ndim)))


def _accumulate_intrinsic(
    intrinsic_reward: IntrinsicReward, genotype: Genotype, step: Step, run: Episodes
) -> Mapping[str, Array]:
    """Add a step's measured quantities to the sums of the episodes that have not ended; broken steps have none."""
    normalized = step._replace(final_observation=normalize_features(genotype.normalizer, step.final_observation))
    if step.previous is not None:
        observation = normalize_features(genotype.normalizer, step.previous.observation)
        normalized = normalized._replace(previous=step.previous._replace(observation=observation))
    measures = jax.vmap(intrinsic_reward.measure, in_axes=(None, 0))(genotype.params, normalized)
    counts = run.active & ~step.broken
    return {name: total + jnp.where(counts, measures[name], 0.0) for name, total in run.sums.items()}


def trace(evaluator: Evaluator, genotype: Genotype, bank: Bank, key: Key) -> tuple[Array, Array]:
    """Record the episodes that `evaluate` runs; see `learners.base.TraceFn`. Stores a descriptor per step."""
    env_batch = start_episodes(evaluator.environment, bank, evaluator.episodes)
    start_descriptors = trees.take(bank[1].descriptor, jnp.arange(evaluator.episodes))
    active = jnp.ones((evaluator.episodes, *evaluator.environment.spec.agents), bool)
    times = jnp.arange(evaluator.environment.spec.episode_length)
    _, (reached, was_active) = jax.lax.scan(partial(_trace_step, evaluator, genotype, key), (env_batch, active), times)
    descriptors_t = jnp.concatenate([start_descriptors[None], reached])
    active_t = jnp.concatenate([jnp.ones((1, evaluator.episodes), bool), was_active])
    return jnp.swapaxes(descriptors_t, 0, 1), jnp.swapaxes(active_t, 0, 1)


def _trace_step(
    evaluator: Evaluator, genotype: Genotype, key: Key, carry: tuple[EnvBatchState, Array], time: Array
) -> tuple[tuple[EnvBatchState, Array], tuple[Array, Array]]:
    env_batch, active = carry
    env_batch, _, step, _ = act_once(evaluator, genotype, env_batch, jax.random.fold_in(key, time))
    return (env_batch, active & ~step.ended), (step.descriptor, _any_agent(active) & ~step.broken)


def act_once(
    evaluator: Evaluator, genotype: Genotype, env_batch: EnvBatchState, key: Key
) -> tuple[EnvBatchState, Transition, Step, PyTree]:
    """Step every episode once with the genotype's actions; also returns the transitions and the actions, `[N, ...]`.

    Where an action is not finite the environment takes 0, so that an agent that diverged does not seem to break the
    physics, nor spoils the returns of its team.
    """
    observation = normalize_features(genotype.normalizer, env_batch.observation)
    action = jax.vmap(evaluator.act, in_axes=(None, 0))(forward_params(genotype), observation)
    taken = jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, jnp.zeros_like(leaf)), action)
    return *advance(evaluator.environment, env_batch, taken, key), action
