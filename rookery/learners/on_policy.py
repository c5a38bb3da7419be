"""The life of an on-policy agent: act in E environments for a while, learn from just that, again.

Environments go on where they were, from one rollout to the next. Everything serves one agent and teams alike: of a
team, what is `[E]` by an agent is `[E, I]`.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery import normalize, trees
from rookery.agents.base import Agent, RolloutExtras
from rookery.envs import base as envs
from rookery.envs.wrappers import auto_reset
from rookery.envs.wrappers.recurrence import remembering
from rookery.learners import rollout
from rookery.learners.base import Bank, Learner, Member
from rookery.learners.iterations import training
from rookery.types import Array, Hyper, Key, Metrics, PyTree, Transition


@dataclass(frozen=True)
class OnPolicyConfig(rollout.EvaluationConfig):
    """Trip counts and sizes of one member's life.

    Raises:
      ValueError: a count below 1.
    """

    num_envs: int = 16
    """Environments that each member acts in at once (at least 1)."""
    rollout_length: int = 128
    """Steps of each environment between two updates (at least 1)."""
    evaluate_every: int = 10
    """Updates in a generation, after which each member is judged (at least 1)."""
    normalize_observations: bool | None = None
    """Normalise observations by their running mean and variance, clipped to +-5; by default as the agent likes it: PPO
    does, but not in a team."""
    fitness: str | None = None
    """Name of the agent of a team whose mean return is the team's fitness; the mean of all agents by default."""

    def __post_init__(self) -> None:
        """Check what can be checked without an environment."""
        rollout.check_evaluation(self)
        for name in ("num_envs", "rollout_length", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")

    @property
    def steps_per_generation(self) -> int:
        """Environment steps of each member per generation."""
        return self.evaluate_every * self.rollout_length * self.num_envs


class OnPolicyBindings(NamedTuple):
    """What a learner is bound to."""

    agent: Agent
    environment: envs.Environment  # with the agent's memory
    config: OnPolicyConfig


class Actors(NamedTuple):
    """A member's environments, each in the middle of an episode."""

    lives: rollout.EnvBatchState
    counts: Array  # [E] bool: the agent's task goes on
    accumulated: Array  # [E] discounted sum of the rewards of the episode so far


def begin(bindings: OnPolicyBindings, bank: Bank, key: Key) -> Actors:
    """Episodes begun from the bank; the key is consumed."""
    return going_on(rollout.begin(bindings.environment, bank, key, bindings.config.num_envs))


def going_on(lives: rollout.EnvBatchState) -> Actors:
    """Episodes in the middle, in which everybody's task goes on; discounted sums begin here."""
    shape = lives.observation.shape[:-1]
    return Actors(lives, jnp.ones(shape, bool), jnp.zeros(shape))


def init(bindings: OnPolicyBindings, key: Key, hyper: Hyper, bank: Bank) -> Member:
    """A newborn: fresh parameters, episodes begun from the bank; there is no buffer."""
    agent_key, begin_key = jax.random.split(key)
    return Member(
        state=bindings.agent.start(bindings.agent.init(agent_key)),
        hyper=hyper,
        normalizer=_statistics(bindings) if _normalizes(bindings) else None,
        env_state=begin(bindings, bank, begin_key),
        buffer=(),
    )


def _normalizes(bindings: OnPolicyBindings) -> bool:
    chosen = bindings.config.normalize_observations
    return bindings.agent.normalize if chosen is None else chosen


def _statistics(bindings: OnPolicyBindings) -> normalize.RunningStatistics:
    """Of observations; of independent agents, those of each apart."""
    spec = bindings.environment.spec
    statistics = normalize.init(spec.sensed_size)
    if bindings.agent.team != "independent":
        return statistics
    assert spec.team is not None
    return trees.stack([statistics] * len(spec.team.names))


def restart(bindings: OnPolicyBindings, member: Member, bank: Bank, key: Key, needed: Array) -> Member:
    """Fresh environment states where `needed`."""
    return member._replace(env_state=trees.where(needed, begin(bindings, bank, key), member.env_state))


def iterate(bindings: OnPolicyBindings, member: Member, bank: Bank, key: Key, count: Array) -> tuple[Member, tuple]:
    """One rollout, then one update; its statistics of observations are those that it was made under.

    See `training.IterateFn`; reports the agent's metrics, the mean reward of an agent's step, and in how many steps the
    physics broke, `[]` each.
    """
    bindings = bindings._replace(environment=auto_reset.auto_reset(bindings.environment, bank))
    act_key, learn_key = jax.random.split(key)
    keys = jax.random.split(act_key, bindings.config.rollout_length)
    actors, (rows, broken) = jax.lax.scan(partial(_act, bindings, member), member.env_state, keys)
    batch = rows._replace(
        observation=rollout.view(member.normalizer, rows.observation),
        next_observation=rollout.view(member.normalizer, rows.next_observation),
    )
    noise = bindings.agent.noise(learn_key, rows.reward.size)
    state, metrics = bindings.agent.update(member.state, member.hyper, batch, noise, count)
    counts = rows.extras.counts
    member = member._replace(
        state=state,
        env_state=actors,
        normalizer=_seen(bindings, member.normalizer, rows.observation, counts),
    )
    return member, (metrics, normalize.mean_of(counts, rows.reward), jnp.sum(broken))


def summarize(log: tuple) -> Metrics:
    """Metrics `[]` of a generation's rollouts: the agent's, averaged over the updates; `reward`, the mean of an agent's
    step; `broken_steps`, how many steps the physics broke in."""
    metrics, reward, broken = log
    averages = jax.tree.map(jnp.mean, metrics)
    return {**averages, "reward": jnp.mean(reward), "broken_steps": jnp.sum(broken)}


def _act(
    bindings: OnPolicyBindings, member: Member, actors: Actors, key: Key
) -> tuple[Actors, tuple[Transition, Array]]:
    """One step of every environment: one pass of each network for all of them."""
    explore_key, env_key = jax.random.split(key)
    seen = rollout.view(member.normalizer, actors.lives.observation)
    keys = jax.random.split(explore_key, bindings.config.num_envs)
    choose = jax.vmap(bindings.agent.explore, in_axes=(None, None, 0, 0))
    action, log_prob = choose(member.state, member.hyper, seen, keys)
    given = action if bindings.environment.spec.unbounded else _bounded(action)
    lives, rows, stepped = rollout.advance(bindings.environment, actors.lives, given, env_key)
    discount = jnp.broadcast_to(member.hyper.discount, stepped.reward.shape)
    accumulated = stepped.reward + discount * actors.accumulated
    ended = stepped.ended | ~actors.counts
    lived = RolloutExtras(log_prob, ended, actors.counts, accumulated)
    over = jax.vmap(jnp.all)(stepped.ended)
    after = Actors(lives, trees.where(over, True, ~ended), jnp.where(ended, 0.0, accumulated))
    return after, (rows._replace(action=action, extras=lived), stepped.broken)


def _bounded(action: PyTree) -> PyTree:
    """What the world is given of an action: a normal's draw may lie outside [-1, 1]."""
    if isinstance(action, envs.ActionWithCarry):
        return action._replace(action=_bounded(action.action))
    return action if jnp.issubdtype(action.dtype, jnp.integer) else jnp.clip(action, -1.0, 1.0)


def _seen(bindings: OnPolicyBindings, statistics: PyTree, observation: Array, counts: Array) -> PyTree:
    """The statistics after a rollout, `[T, E, O]`; those of independent agents each from its own observations."""
    if statistics is None:
        return None
    sensed = observation[..., : bindings.environment.spec.sensed_size]
    if bindings.agent.team != "independent":
        return normalize.update(statistics, sensed.reshape(-1, sensed.shape[-1]), counts.reshape(-1))
    rows = sensed.reshape(-1, *sensed.shape[-2:])
    return jax.vmap(normalize.update, in_axes=(0, 1, 1))(statistics, rows, counts.reshape(-1, counts.shape[-1]))


def on_policy(agent: Agent, environment: envs.Environment, config: OnPolicyConfig | None = None) -> Learner:
    """Bind an on-policy agent (PPO, a team of them) to a world.

    Raises:
      ValueError: the agent learns off-policy, or is a team's where the world is not, or the other way round; the
        rollout cannot be cut into its minibatches; or nobody is called what `fitness` says.
    """
    config = config or OnPolicyConfig()
    spec = environment.spec
    _check(agent, spec, config)
    _check_flags(environment)
    environment = remembering(environment, agent.memory_size)
    bindings = OnPolicyBindings(agent, environment, config)
    role = spec.team.names.index(config.fitness) if spec.team and config.fitness else None
    evaluator = rollout.evaluator(agent.act, environment, config)._replace(role=role)
    return Learner(
        start_states=partial(auto_reset.start_bank, environment, size=rollout.bank_size(evaluator)),
        init=partial(init, bindings),
        load_genotype=partial(rollout.load_genotype, agent),
        restart=partial(restart, bindings),
        step=training(partial(iterate, bindings), summarize, config.evaluate_every),
        evaluate=partial(rollout.evaluate, evaluator),
        spec=environment.spec,
        space=agent.space,
        steps_per_generation=config.steps_per_generation,
        evaluation_steps=evaluator.episodes * spec.episode_length,
        trace=partial(rollout.trace, evaluator),
        team=agent.team,
    )


def _check(agent: Agent, spec: envs.EnvSpec, config: OnPolicyConfig) -> None:
    if not agent.minibatches:
        raise ValueError("this agent learns off-policy, from stored steps; bind it by off_policy instead.")
    if spec.team is None and agent.team:
        raise ValueError(f"{spec.name} is a world for one agent; make it a team's by rookery.as_team(environment).")
    if spec.team is not None and not agent.team:
        raise ValueError(
            f"{spec.name} is a world for a team of {len(spec.team.names)}; use ippo, or wrap the agent by "
            "rookery.independent or rookery.shared."
        )
    names = spec.team.names if spec.team else ()
    if config.fitness is not None and config.fitness not in names:
        known = ", ".join(names) or "of a team, and here is only one"
        raise ValueError(f"fitness must name one of the agents {known}; got {config.fitness!r}.")
    _check_minibatches(agent, config, len(names) if agent.team == "shared" else 1)


def _check_flags(environment: envs.Environment) -> None:
    """Every agent of a team has a reward and flags of its own, from the first step to the last."""
    spec = environment.spec
    agents = (len(spec.team.names),) if spec.team else ()
    start = jax.eval_shape(environment.reset, jax.random.key(0))[1]
    for name in ("reward", "terminated", "truncated"):
        if getattr(start, name).shape != agents:
            raise ValueError(
                f"{spec.name} gives {name} of shape {getattr(start, name).shape} instead of {agents}: agents may end "
                "before the others, whose flags then stay set until the episode is over, but they cannot come later or "
                "come back."
            )


def _check_minibatches(agent: Agent, config: OnPolicyConfig, sharing: int) -> None:
    """Each has as many sequences, and at least two steps, or there is no spread to normalise advantages by."""
    sequences, length = config.num_envs * sharing, config.rollout_length
    what = "sequences"
    if not agent.memory_size:
        sequences, length, what = sequences * length, 1, "rows"
    fitting = [
        count for count in range(1, sequences + 1) if sequences % count == 0 and sequences // count * length >= 2
    ]
    if agent.minibatches not in fitting:
        near = sorted(sorted(fitting, key=lambda count: abs(count - agent.minibatches))[:3])
        remedy = f"use {' or '.join(map(str, near))}" if near else "give more environments or longer rollouts"
        raise ValueError(
            f"minibatches must divide the {sequences} {what} of a rollout, with two steps or more in each, got "
            f"{agent.minibatches}; {remedy}."
        )
