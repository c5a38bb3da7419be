"""Training loop of an on-policy agent: repeatedly act in E environments for one rollout, and update from it.

Environments continue from one rollout to the next. All functions support single agents and teams: an array that is
`[E]` for a single agent is `[E, I]` for a team.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import normalize, returns, trees
from rookery.agents.base import OnPolicyAgent, RolloutExtras
from rookery.envs import base as envs
from rookery.envs.wrappers import auto_reset, time_limit
from rookery.envs.wrappers.recurrence import with_carry
from rookery.learners import evaluation, rollout
from rookery.learners.base import Bank, FitnessConfig, Learner, Member, Opponents, check_evaluation
from rookery.learners.iterations import training
from rookery.settings import (
    METRIC_NAMES,
    SettingError,
    Within,
    check_counts,
    check_fields,
    check_names,
    config_from,
    divisors,
    unknown_name,
    verbatim,
)
from rookery.types import (
    Array,
    Evaluation,
    Genotype,
    HyperT,
    Key,
    Metrics,
    Observation,
    PyTree,
    Scalar,
    StateT,
    Transition,
    named,
)


@dataclass(frozen=True)
class OnPolicyConfig(FitnessConfig):
    """Trip counts and sizes of one member's training loop.

    Raises:
      ValueError: a count below 1.
    """

    num_envs: Annotated[int, Within(1)] = 16
    """Environments that each member steps at once."""
    rollout_length: Annotated[int, Within(1)] = 128
    """Steps of each environment between two updates."""
    evaluate_every: Annotated[int, Within(1)] = 10
    """Updates per generation, after which each member is evaluated."""
    normalize_observations: bool | None = None
    """Normalise observations by their running mean and variance, clipped to +-10; by default the agent decides: PPO
    normalises, except in a team."""
    stagger_episodes: bool = True
    """Spread the ends of the environments' first episodes evenly over the time limit, so that every rollout has rows of
    all phases of an episode; without effect on environments on the host."""
    fitness: str | None = None
    """Name of the agent of a team whose mean return is the team's fitness; by default the mean over all agents."""

    def __post_init__(self) -> None:
        """Check the settings that do not depend on an environment."""
        check_fields(self)
        check_evaluation(self)
        check_counts(**{"num_envs x rollout_length": self.num_envs * self.rollout_length})

    @property
    def steps_per_generation(self) -> int:
        """Environment steps of each member per generation."""
        return self.evaluate_every * self.rollout_length * self.num_envs


class OnPolicyBindings(NamedTuple):
    """The static arguments that the learner's functions are bound to."""

    agent: OnPolicyAgent
    environment: envs.Environment
    """The environment, wrapped to carry the agent's recurrent state."""
    config: OnPolicyConfig


class Actors(NamedTuple):
    """A member's environments, each in the middle of an episode."""

    env_batch: rollout.EnvBatchState
    """Environment states and observations."""
    counts: Array
    """`[E]` bool: whether the agent's task has not ended."""
    accumulated: Array
    """`[E]`, discounted sum of the rewards of the current episode."""


def start_episodes(bindings: OnPolicyBindings, bank: Bank, key: Key) -> Actors:
    """Start episodes from the bank; the key is consumed."""
    config, environment = bindings.config, bindings.environment
    env_batch = rollout.start_environments(environment, bank, key, config.num_envs)
    spec, whole = environment.spec, True
    if config.stagger_episodes:
        state, whole = time_limit.stagger(env_batch.state, config.num_envs, spec.episode_length)
        env_batch = env_batch._replace(state=state)
    return start_actors(rollout.with_sums(env_batch, spec, bank, config.trained_objective, whole), spec)


def start_actors(env_batch: rollout.EnvBatchState, spec: envs.EnvSpec) -> Actors:
    """Wrap running episodes: every agent's task is active, and discounted sums start at 0."""
    shape = (env_batch.num_envs, *spec.agents)
    return Actors(env_batch, jnp.ones(shape, bool), jnp.zeros(shape))


def init(bindings: OnPolicyBindings, key: Key, hyper: HyperT, bank: Bank) -> Member[Any, HyperT]:
    """Initialise a member: new parameters, environments reset from the bank, no buffer."""
    agent_key, begin_key = jax.random.split(key)
    return Member(
        state=bindings.agent.start(bindings.agent.init(agent_key)),
        hyper=hyper,
        normalizer=_statistics(bindings) if _normalizes(bindings) else None,
        env_state=start_episodes(bindings, bank, begin_key),
        buffer=(),
    )


def _normalizes(bindings: OnPolicyBindings) -> bool:
    configured = bindings.config.normalize_observations
    return bindings.agent.normalize if configured is None else configured


def _statistics(bindings: OnPolicyBindings) -> normalize.RunningStatistics:
    """Initial observation statistics; independent agents get separate ones."""
    spec = bindings.environment.spec
    statistics = normalize.init(spec.observation_size)
    if bindings.agent.team != "independent":
        return statistics
    assert spec.team is not None
    return trees.stack([statistics] * len(spec.team.names))


def restart(bindings: OnPolicyBindings, member: Member, bank: Bank, key: Key, needed: Array) -> Member:
    """Reset the environments where `needed`."""
    return member._replace(env_state=trees.where(needed, start_episodes(bindings, bank, key), member.env_state))


def iterate(bindings: OnPolicyBindings, member: Member, bank: Bank, key: Key, count: Array) -> tuple[Member, tuple]:
    """Run one rollout, then one update; the rollout's observations are normalised by the statistics from before it.

    See `iterations.IterateFn`. Logs the agent's metrics, the mean reward of an agent's step and whether there is one,
    the number of steps in which the simulation produced non-finite numbers, which have no part in the mean, `[]` each,
    and `rollout.Finished`.
    """
    hyper = member.hyper
    environment, member = rollout.parameterized(bindings.agent.space, bindings.environment, member)
    bindings = bindings._replace(environment=environment)
    # Act: statistics do not change during a rollout.
    act_key, learn_key = jax.random.split(key)
    keys = jax.random.split(act_key, bindings.config.rollout_length)
    explore = partial(_explore, bindings, member)
    discount, actors = member.hyper.discount, member.env_state
    learns = member.opponents.learns(bindings.config.num_envs) if member.opponents else None
    actors, rows, finished = collect(explore, bindings.environment, bank, discount, actors, keys, learns)
    # Learn, normalised as the policy acted.
    batch = rows._replace(
        observation=rollout.normalize_features(member.normalizer, rows.observation),
        next_observation=rollout.normalize_features(member.normalizer, rows.next_observation),
    )
    state, metrics = bindings.agent.update(member.state, member.hyper, batch, learn_key, count)
    check_names("metric of the agent", metrics, METRIC_NAMES)
    # Count the rollout in the statistics of the next one.
    counts = rows.extras.counts
    member = member._replace(
        state=state,
        hyper=hyper,
        env_state=actors,
        normalizer=_update_statistics(bindings, member.normalizer, rows.observation.features, counts),
    )
    broken = rows.extras.broken
    known = counts & ~broken
    reward = normalize.mean_of(known, rows.reward), jnp.any(known).astype(jnp.float32)
    return member, (metrics, reward, jnp.sum(broken.reshape(*broken.shape[:2], -1)[..., 0]), finished)


def summarize(spec: envs.EnvSpec, log: tuple) -> Metrics:
    """Compute the metrics `[]` of a generation from its log.

    Returns:
      The agent's metrics, averaged over the updates; `reward`, the mean reward of an agent's step, NaN if all broke;
      `broken_steps`, the number of steps in which the simulation produced non-finite numbers; those of
      `rollout.training_returns`.
    """
    metrics, (reward, is_known), broken, finished = log
    averages = jax.tree.map(jnp.mean, metrics)
    steps = {"reward": rollout.average(jnp.sum(reward), jnp.sum(is_known)), "broken_steps": jnp.sum(broken)}
    return {**averages, **steps, **rollout.training_returns(finished, spec)}


def rate_training(bindings: OnPolicyBindings, role: int | None, log: tuple) -> Evaluation:
    """See `rollout.rate_training`."""
    *_, broken, finished = log
    return rollout.rate_training(finished, broken, bindings.environment.spec, bindings.config.trained_objective, role)


def _explore(bindings: OnPolicyBindings, member: Member, observation: Observation, keys: Key) -> tuple[PyTree, Array]:
    """Actions and log densities for all environments, with one batched forward pass of each network."""
    opponents: Opponents | tuple[()] = member.opponents
    if not isinstance(opponents, Opponents):
        return _explore_as(bindings.agent, member, observation, keys)
    pairs, places = jax.vmap(jax.random.split)(keys), opponents.environments.reshape(-1)
    own = _explore_as(bindings.agent, member, observation, pairs[:, 0])

    def act(policy: Genotype, environments: Array) -> tuple[PyTree, Array]:
        one = member._replace(state=bindings.agent.start(policy.params), hyper=policy.hyper)
        one = one._replace(normalizer=policy.normalizer)
        return _explore_as(bindings.agent, one, trees.take(observation, environments), pairs[environments, 1])

    theirs = jax.vmap(act)(opponents.policies, opponents.environments)  # [I, m, I, ...]
    theirs = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), theirs)
    chosen = trees.where(opponents.learns(len(keys))[places], trees.take(own, places), theirs)
    return trees.scatter(own, places, chosen)


def _explore_as(agent: OnPolicyAgent, member: Member, observation: Observation, keys: Key) -> tuple[PyTree, Array]:
    observation = rollout.normalize_features(member.normalizer, observation)
    explore = jax.vmap(agent.explore, in_axes=(None, None, 0, 0))
    return explore(member.state, member.hyper, observation, keys)


ExploreBatchFn = Callable[[Observation, Key], tuple[PyTree, Array]]
"""(observations `[E, ...]`, keys `[E]`) -> exploratory actions `[E, A]` and their log densities `[E]`."""


def collect(
    explore: ExploreBatchFn,
    environment: envs.Environment,
    bank: Bank,
    discount: Scalar,
    actors: Actors,
    keys: Array,
    learns: Array | None = None,
) -> tuple[Actors, Transition, rollout.Finished | None]:
    """Collect one rollout, with automatic resets.

    Args:
      explore: called once in every step, for all environments together.
      environment: without automatic reset.
      bank: start states of the next episodes.
      discount: `[]`, or `[I]` for a team, discount of `RolloutExtras.accumulated`.
      actors: the environments.
      keys: `[T]`, one for each step; consumed.
      learns: `[E, I]` bool, the agents of a team that learn from each environment: the steps of others do not count,
        and episodes in which not all learn give no training returns; None: all.

    Returns:
      The environments after the rollout; the transitions `[T, E, ...]` with extras `RolloutExtras`, where the reward of
      a broken step is the worst value of the rollout (`returns.worst_value`); and the episodes that ended.
    """
    draws = jax.vmap(partial(_draw, bank, actors.env_batch.num_envs))(keys)
    whole = None if learns is None else learns.all(axis=1)
    actors, (rows, finished) = jax.lax.scan(partial(_act, explore, environment, bank, discount, whole), actors, draws)
    if learns is not None:
        rows = rows._replace(extras=rows.extras._replace(counts=rows.extras.counts & learns[None]))
    broken = rows.extras.broken
    known = rows.reward, rows.terminated, rows.extras.counts & ~broken
    flat = (leaf.reshape(-1, *environment.spec.agents) for leaf in known)
    worst = returns.worst_value(*flat, discount=discount)
    rows = rows._replace(reward=jnp.where(broken, jnp.broadcast_to(worst, rows.reward.shape), rows.reward))
    return actors, rows, jax.tree.map(partial(jnp.sum, axis=0), finished)


def _draw(bank: Bank, num_envs: int, key: Key) -> tuple[Array, auto_reset.Draws]:
    """The keys `[E]` that a step explores with, and the draws `[E]` of its environments; the key is consumed."""
    explore_key, env_key = jax.random.split(key)
    draws = jax.vmap(partial(auto_reset.draw, bank))(jax.random.split(env_key, num_envs))
    return jax.random.split(explore_key, num_envs), draws


def _act(
    explore: ExploreBatchFn,
    environment: envs.Environment,
    bank: Bank,
    discount: Scalar,
    whole: Array | None,
    actors: Actors,
    draws: tuple[Array, auto_reset.Draws],
) -> tuple[Actors, tuple[Transition, rollout.Finished | None]]:
    """Step every environment once; where `whole` `[E]` is False, no training returns are computed."""
    action, log_prob = explore(actors.env_batch.observation, draws[0])
    clipped = action if environment.spec.unbounded else _clip_action(action)
    stepped = jax.vmap(partial(auto_reset.step, environment, bank))(actors.env_batch.state, clipped, draws[1])
    env_batch, rows, steps = rollout.record(actors.env_batch, action, stepped)
    sums = env_batch.sums
    if sums is not None and whole is not None:
        sums = sums._replace(whole=sums.whole & whole)
    sums, finished = rollout.count_episodes(sums, steps, actors.counts if environment.spec.team else None)
    accumulated = steps.reward + jnp.broadcast_to(discount, steps.reward.shape) * actors.accumulated
    ended = steps.ended | ~actors.counts
    broken = jnp.broadcast_to(steps.broken.reshape(-1, *[1] * len(environment.spec.agents)), ended.shape)
    extras = RolloutExtras(log_prob, ended, actors.counts, accumulated, broken)
    episode_over = jax.vmap(jnp.all)(steps.ended)
    env_batch = env_batch._replace(sums=sums)
    next_actors = Actors(env_batch, trees.where(episode_over, True, ~ended), jnp.where(ended, 0.0, accumulated))
    return next_actors, (rows._replace(extras=extras), finished)


def _clip_action(action: PyTree) -> PyTree:
    """Clip continuous actions to [-1, 1] for the environment, since a normal's sample can be outside."""
    if isinstance(action, envs.ActionWithCarry):
        return action._replace(action=_clip_action(action.action))
    return action if jnp.issubdtype(action.dtype, jnp.integer) else jnp.clip(action, -1.0, 1.0)


def _update_statistics(bindings: OnPolicyBindings, statistics: PyTree, features: Array, counts: Array) -> PyTree:
    """Update the statistics with a rollout, `[T, E, O]`; independent agents update separate statistics."""
    if statistics is None:
        return None
    if bindings.agent.team != "independent":
        return normalize.update(statistics, features.reshape(-1, features.shape[-1]), counts.reshape(-1))
    rows = features.reshape(-1, *features.shape[-2:])
    return jax.vmap(normalize.update, in_axes=(0, 1, 1))(statistics, rows, counts.reshape(-1, counts.shape[-1]))


def on_policy(
    agent: OnPolicyAgent[Any, StateT, HyperT],
    environment: envs.Environment,
    config: OnPolicyConfig | None = None,
    **options: Any,
) -> Learner[StateT, HyperT]:
    """Bind an on-policy agent (PPO, or a team of PPO agents) to an environment.

    Args:
      agent: built for the spec of the environment.
      environment: of one agent or of a team, as the agent is.
      config: rollouts and evaluation; or give its fields as keywords: `on_policy(agent, env, num_envs=8)`.
      **options: fields of `OnPolicyConfig`, instead of `config`.

    Raises:
      ValueError: the agent learns off-policy; the agent is for a team but the environment is not, or the other way
        round; the rollout cannot be split into the agent's minibatches; no agent of the team has the name `fitness`, or
        the objective does not measure agents; or the environment has no such objective.
      TypeError: both `config` and keywords are given, or a keyword that is not a field of `OnPolicyConfig`.

    Example:
      >>> env = rookery.make("point_room")
      >>> rookery.on_policy(rookery.ppo(env.spec), env).steps_per_generation
      20480
    """
    config = config_from(OnPolicyConfig, config, options)
    rollout.check_arguments("on_policy", agent, environment)
    spec = environment.spec
    _check(agent, spec, config)
    rollout.check_sizes(agent, spec)
    environment = with_carry(time_limit.guard_physics(environment), agent.carry_sizes)
    bindings = OnPolicyBindings(agent, environment, config)
    role = spec.team.names.index(config.fitness) if spec.team and config.fitness else None
    evaluator = evaluation.evaluator(agent.act, environment, config)._replace(role=role)
    if role is not None and evaluation.measures_episodes(evaluator):
        problem = f"names an agent, but {{objective}} {verbatim(config.objective)} is a measure of the whole episode"
        raise SettingError("fitness", config.fitness, problem, "leave it out")
    return evaluation.bind_learner(
        agent,
        evaluator,
        init=partial(init, bindings),
        restart=partial(restart, bindings),
        step=training(partial(iterate, bindings), partial(summarize, spec), config.evaluate_every),
        steps_per_generation=config.steps_per_generation,
    )._replace(
        team=agent.team,
        num_envs=config.num_envs if agent.team == "independent" else 0,
        rate_training=partial(rate_training, bindings, role) if config.fitness_from == "training" else None,
        settings={**environment.settings, **agent.settings, "learner": named("on_policy", config)},
    )


def _check(agent: OnPolicyAgent, spec: envs.EnvSpec, config: OnPolicyConfig) -> None:
    if not isinstance(agent, OnPolicyAgent):
        raise ValueError("this agent learns off-policy, from stored transitions; use off_policy instead.")
    if spec.team is None and agent.team:
        raise ValueError(f"{spec.name} is a single-agent environment; wrap it by rookery.envs.as_team(environment).")
    if spec.team is not None and not agent.team:
        raise ValueError(
            f"{spec.name} is a multi-agent environment with {len(spec.team.names)} agents; use ippo or pbt-ippo, or "
            "wrap the agent by rookery.agents.independent or rookery.agents.shared."
        )
    names = spec.team.names if spec.team else ()
    if config.fitness is not None and config.fitness not in names:
        if not names:
            problem = f"names an agent of a team, but {verbatim(spec.name)} is a single-agent environment"
            raise SettingError("fitness", config.fitness, problem, "leave it out")
        raise unknown_name("fitness", config.fitness, f"agent of {spec.name} named", names)
    _check_minibatches(agent, config, len(names) if agent.team == "shared" else 1)


def _check_minibatches(agent: OnPolicyAgent, config: OnPolicyConfig, agents_per_policy: int) -> None:
    """Check that minibatches are equally large and have at least two steps, as advantage normalisation requires."""
    sequences, length = config.num_envs * agents_per_policy, config.rollout_length
    unit = "sequences"
    if not jax.tree.leaves(agent.carry_sizes):
        sequences, length, unit = sequences * length, 1, "rows"
    valid = [count for count in divisors(sequences) if sequences // count * length >= 2]
    if agent.minibatches not in valid:
        nearest = sorted(sorted(valid, key=lambda count: abs(count - agent.minibatches))[:3])
        remedy = f"use {' or '.join(map(str, nearest))}" if nearest else "give more environments or longer rollouts"
        problem = f"must divide the {sequences} {unit} of a rollout, with two steps or more in each"
        raise SettingError("minibatches", agent.minibatches, problem, remedy)
