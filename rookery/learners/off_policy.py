"""Training loop of an off-policy agent: repeatedly act in E environments, store the transitions, and update."""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import buffers, normalize, returns, trees
from rookery.agents import backend, discrete
from rookery.agents.base import KeepFn, OffPolicyAgent, UpdateLayout
from rookery.envs import base as envs
from rookery.envs.wrappers import auto_reset
from rookery.envs.wrappers.teams import check_alone
from rookery.envs.wrappers.time_limit import guard_physics
from rookery.learners import evaluation, grouped_updates, n_step, rollout
from rookery.learners.base import Bank, FitnessConfig, Learner, Member, check_evaluation
from rookery.learners.iterations import Phases, training
from rookery.settings import (
    LARGEST_COUNT,
    METRIC_NAMES,
    SettingError,
    Within,
    check_counts,
    check_fields,
    check_names,
    config_from,
)
from rookery.types import Array, Evaluation, HyperT, Key, Metrics, PyTree, StateT, Transition, named

BUFFER_SIZE = 1_000_000
"""Default number of transitions in a replay buffer: Haarnoja 2018 and Fujimoto 2018."""
DISCOUNT = 0.99
"""Discount of the worst value for an agent whose hyper-parameters have none."""


@dataclass(frozen=True)
class OffPolicyConfig(FitnessConfig):
    """Trip counts and sizes of one member's training loop.

    Raises:
      ValueError: a count is below 1, steps or updates do not divide evenly, or the buffer is too small or too large.
    """

    num_envs: Annotated[int, Within(1)] = 25
    """Environments that each member steps at once."""
    steps_per_generation: Annotated[int, Within(1)] = 1_000
    """Environment steps of each member per generation, after which it is evaluated; a multiple of num_envs."""
    updates_per_step: float = 1.0
    """Gradient updates per environment step; its product with num_envs must be a whole number, at least 1."""
    batch_size: Annotated[int, Within(1)] = 256
    """Transitions per update."""
    buffer_size: Annotated[int | None, Within(1)] = None
    """Transitions in each member's replay buffer (at least a step's and a batch's); by default 1 million, as in the
    papers. The command line's default is smaller if all exceeded a sixth of the memory."""
    warmup_steps: Annotated[int, Within(0)] = 1_000
    """Environment steps of each member with uniformly random actions and no updates, at the start of the run: 1,000 in
    Fujimoto 2018 (10,000 for HalfCheetah and Ant) and in the code of Haarnoja 2018."""
    normalize_observations: bool | None = None
    """Normalise observations by their running mean and variance, clipped to +-10; by default only with simba."""

    def __post_init__(self) -> None:
        """Check the settings that do not depend on an environment."""
        check_fields(self)
        check_evaluation(self)
        if self.steps_per_generation % self.num_envs:
            lower = self.steps_per_generation // self.num_envs * self.num_envs
            remedy = f"{lower} or {lower + self.num_envs}" if lower else f"{self.num_envs}"
            problem = f"must be a multiple of {{num_envs}} ({self.num_envs})"
            raise SettingError("steps_per_generation", self.steps_per_generation, problem, f"use {remedy}")
        updates = self.updates_per_step * self.num_envs
        if updates < 1 or abs(updates - round(updates)) > 1e-6:
            nearest = max(1, round(updates)) / self.num_envs
            problem = f"x {{num_envs}} ({self.num_envs}) must be a whole number of at least 1"
            remedy = f"use {{updates_per_step}} {nearest:g}"
            raise SettingError("updates_per_step", self.updates_per_step, problem, remedy)
        check_counts(**{"updates_per_step x num_envs x batch_size": self.updates * self.batch_size})
        for name in ("num_envs", "batch_size"):
            if self.buffer_size is not None and self.buffer_size < getattr(self, name):
                problem = f"must be at least {{{name}}} ({getattr(self, name)})"
                raise SettingError("buffer_size", self.buffer_size, problem)
        largest = LARGEST_COUNT - self.num_envs  # rows that are left out receive the indices after the capacity
        if self.buffer_size is not None and self.buffer_size > largest:
            problem = f"must be at most {largest} with {{num_envs}} {self.num_envs}, since indices are int32"
            raise SettingError("buffer_size", self.buffer_size, problem)

    @property
    def iterations(self) -> int:
        """Steps of each environment per generation."""
        return self.steps_per_generation // self.num_envs

    @property
    def warmup_iterations(self) -> int:
        """Steps of each environment before the first update."""
        return -(-self.warmup_steps // self.num_envs)

    @property
    def untrained_generations(self) -> int:
        """Generations at the start of the run that consist of warm-up only, without an update."""
        return self.warmup_iterations // self.iterations

    @property
    def updates(self) -> int:
        """U, gradient updates after each step of all environments."""
        return round(self.updates_per_step * self.num_envs)


class OffPolicyBindings(NamedTuple):
    """The static arguments that the learner's functions are bound to."""

    agent: OffPolicyAgent
    environment: envs.Environment
    buffer: buffers.Buffer
    config: OffPolicyConfig
    keep: KeepFn | None = None
    """Computes the extras of the stored transitions; None: they have none."""


def init(bindings: OffPolicyBindings, key: Key, hyper: HyperT, bank: Bank) -> Member[Any, HyperT]:
    """Initialise a member: new parameters, environments reset from the bank, an empty buffer."""
    agent_key, begin_key = jax.random.split(key)
    spec = bindings.environment.spec
    row = rollout.transition_row(bindings.environment, bank, bindings.keep)
    if n_step.is_chosen(hyper):
        row = trees.take(n_step.placed(trees.stack([row]), jnp.zeros(1, bool), jnp.int32(0)), 0)
    return Member(
        state=bindings.agent.start(bindings.agent.init(agent_key)),
        hyper=hyper,
        normalizer=normalize.init(spec.observation_size) if bindings.config.normalize_observations else None,
        env_state=start_episodes(bindings, bank, begin_key),
        buffer=bindings.buffer.init(row),
    )


def start_episodes(bindings: OffPolicyBindings, bank: Bank, key: Key) -> rollout.EnvBatchState:
    """Start episodes from the bank; the key is consumed."""
    env_batch = rollout.start_environments(bindings.environment, bank, key, bindings.config.num_envs)
    return rollout.with_sums(env_batch, bindings.environment.spec, bank, bindings.config.trained_objective)


def restart(bindings: OffPolicyBindings, member: Member, bank: Bank, key: Key, needed: Array) -> Member:
    """Reset the environments and empty the buffer where `needed`, without rewriting stored rows."""
    fresh = start_episodes(bindings, bank, key)
    return member._replace(
        env_state=trees.where(needed, fresh, member.env_state), buffer=buffers.clear(member.buffer, needed)
    )


def iterate(
    bindings: OffPolicyBindings,
    member: Member,
    bank: Bank,
    key: Key,
    count: Array,
    learning: Array | bool | None = None,
) -> tuple[Member, tuple]:
    """Run one step of every environment, then U updates; see `iterations.IterateFn`.

    `learning` is False in the warm-up; by default it is computed from `count`.

    Logs, `[]` each, whether it updated the agent (1 or 0), the agent's metrics averaged over the updates, the sum of
    the rewards, the numbers of steps in which the simulation produced finite and non-finite numbers, and
    `rollout.Finished`.
    """
    hyper = member.hyper
    environment, member = rollout.parameterized(bindings.agent.space, bindings.environment, member)
    bindings = bindings._replace(environment=environment)
    config, environment = bindings.config, auto_reset.auto_reset(bindings.environment, bank)
    explore_key, warmup_key, env_key, learn_key = jax.random.split(key, 4)
    # Counted in iterations, since environment steps could overflow int32.
    learns: Array | bool = (count >= config.warmup_iterations) if learning is None else learning
    learns = learns if config.warmup_steps else True

    observation = rollout.normalize_features(member.normalizer, member.env_state.observation)
    action = rollout.explore(bindings.agent, member.state, member.hyper, observation, explore_key)
    if config.warmup_steps:
        uniform = _random_actions(environment.spec, member.env_state, warmup_key)
        action = jnp.where(learns, action, uniform)
    if environment.announce is not None and learns is not False:
        learns &= member.buffer.size > 0  # it is empty after a restart: the transition of this step comes too late
    first = (count - config.warmup_iterations) * config.updates
    update = partial(_maybe_learn, bindings, key=learn_key, first=first, learning=learns)
    advance = partial(rollout.advance, environment, action=action, key=env_key, keep=bindings.keep)
    if environment.announce is None:
        env_batch, rows, steps = advance(member.env_state)
        member = _store(bindings, member, env_batch, rows, steps, count)
        state, metrics = update(member)
        member = member._replace(state=state)
    else:  # the host steps the environments while the device learns from the transitions before this step
        announced = jax.vmap(environment.announce)(member.env_state.state, action)
        state, metrics = update(member)
        announced = rollout.after(announced, (state, metrics))
        env_batch, rows, steps = advance(member.env_state._replace(state=announced))
        member = _store(bindings, member._replace(state=state), env_batch, rows, steps, count)
    check_names("metric of the agent", metrics, METRIC_NAMES)
    sums, finished = rollout.count_episodes(env_batch.sums, steps)
    member = member._replace(hyper=hyper, env_state=env_batch._replace(sums=sums))
    counts = jnp.sum(~steps.broken, dtype=jnp.float32), jnp.sum(steps.broken)
    return member, (jnp.asarray(learns, jnp.float32), metrics, jnp.sum(steps.reward), *counts, finished)


def _random_actions(spec: envs.EnvSpec, env_batch: rollout.EnvBatchState, key: Key) -> Array:
    """Uniformly random actions of all environments, `[E, A]` or available ones `[E]` int32; the key is consumed."""
    if not spec.discrete:
        return jax.random.uniform(key, (env_batch.num_envs, spec.action_size), minval=-1.0, maxval=1.0)
    draw = partial(discrete.random, spec.action_size)
    return jax.vmap(draw)(env_batch.observation.action_mask, jax.random.split(key, env_batch.num_envs))


def _store(
    bindings: OffPolicyBindings,
    member: Member,
    env_batch: rollout.EnvBatchState,
    rows: Transition,
    steps: envs.Step,
    count: Array,
) -> Member:
    """Store the transitions of a step, and update the statistics of what was observed.

    A step that broke the physics is stored with the worst value. An agent with a reward of its own knows no value, so
    for it such a step is left out.
    """
    intrinsic_reward, valid = bindings.agent.intrinsic_reward, None
    if intrinsic_reward is not None:
        member = member._replace(state=intrinsic_reward.observe(member.state, steps))
        valid = ~steps.broken
    else:
        rows = _with_worst_value(bindings, member, rows, steps.broken)
    if n_step.is_chosen(member.hyper):
        rows = n_step.placed(rows, steps.ended, count)
    member = member._replace(env_state=env_batch, buffer=bindings.buffer.add(member.buffer, rows, valid))
    if bindings.config.normalize_observations:
        member = member._replace(normalizer=normalize.update(member.normalizer, rows.observation.features))
    return member


def _with_worst_value(bindings: OffPolicyBindings, member: Member, rows: Transition, broken: Array) -> Transition:
    """The transitions of a step, with the worst value where the physics broke, see `returns.worst_value`.

    It is that of these rewards and of the newest ones in the buffer, as many as a batch has.
    """
    indices, stored = buffers.newest(member.buffer, bindings.config.batch_size)
    before = trees.take((member.buffer.rows.reward, member.buffer.rows.terminated), indices)
    now = rows.reward, rows.terminated
    known = jax.tree.map(lambda *parts: jnp.concatenate(parts), (*before, stored), (*now, ~broken))
    worst = returns.worst_value(*known, discount=getattr(member.hyper, "discount", DISCOUNT))
    return rows._replace(reward=jnp.where(broken, worst, rows.reward))


def _maybe_learn(
    bindings: OffPolicyBindings, member: Member, key: Key, first: Array, learning: Array | bool
) -> tuple[PyTree, Metrics]:
    """Run the updates of an iteration, or none where `learning` is False; see `learn`."""
    config = bindings.config
    counts = (config.updates, config.batch_size)
    run_updates = jax.jit(partial(learn, bindings.agent, bindings.buffer, member, key, first, *counts), inline=True)
    if learning is True:
        return run_updates()
    metrics = jax.eval_shape(run_updates)[1]
    skip = partial(_skip, member.state, metrics)
    return skip() if learning is False else jax.lax.cond(learning, run_updates, skip)


def summarize(spec: envs.EnvSpec, log: tuple) -> Metrics:
    """Compute the metrics `[]` of a generation from its log.

    Returns:
      The agent's metrics, averaged over the updates; `reward`, the mean reward of an environment step; `broken_steps`,
      the number of steps in which the simulation produced non-finite numbers, which themselves count nowhere; those of
      `rollout.training_returns`. Averages of nothing are NaN, or 0 under `jax_debug_nans`.
    """
    updated, metrics, reward, finite, broken, finished = log
    count = jnp.sum(updated.astype(jnp.int32)).astype(jnp.float32)  # 0 in the warm-up
    averages = jax.tree.map(lambda values: rollout.average(jnp.sum(values), count), metrics)
    steps = {"reward": rollout.average(jnp.sum(reward), jnp.sum(finite)), "broken_steps": jnp.sum(broken)}
    return {**averages, **steps, **rollout.training_returns(finished, spec)}


def rate_training(bindings: OffPolicyBindings, log: tuple) -> Evaluation:
    """See `rollout.rate_training`."""
    *_, broken, finished = log
    return rollout.rate_training(finished, broken, bindings.environment.spec, bindings.config.trained_objective)


def _skip(state: PyTree, metrics: PyTree) -> tuple[PyTree, PyTree]:
    return state, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), metrics)


def learn(
    agent: OffPolicyAgent, buffer: buffers.Buffer, member: Member, key: Key, first: Array, updates: int, batch_size: int
) -> tuple[PyTree, Metrics]:
    """Run U updates; indices and noise are drawn in one call, rows are gathered one batch at a time.

    Args:
      agent: the agent that learns.
      buffer: reads the member's transitions.
      member: the member to train; its environments are not used.
      key: consumed.
      first: `[]` int32, number of updates before these, a multiple of U; never batched.
      updates: U.
      batch_size: B, transitions per update.

    Returns:
      The agent's state, and its metrics `[]` averaged over the updates.
    """
    index_key, noise_key = jax.random.split(key)
    indices = buffer.draw(member.buffer, index_key, (updates, batch_size))
    noise = jax.tree.map(
        lambda leaf: leaf.reshape(updates, batch_size, *leaf.shape[1:]), agent.noise(noise_key, updates * batch_size)
    )
    update = partial(_update, agent, buffer, member)
    if backend.prefers_few_kernels():
        layout = agent.layout or UpdateLayout()
        return grouped_updates.run(update, layout, member.state, (indices, noise), first)
    state, metrics = jax.lax.scan(update, member.state, (indices, noise, first + jnp.arange(updates)))
    return state, jax.tree.map(jnp.mean, metrics)


def _update(
    agent: OffPolicyAgent, buffer: buffers.Buffer, member: Member, state: PyTree, inputs: tuple[Array, PyTree, Array]
) -> tuple[PyTree, Metrics]:
    indices, noise, step = inputs
    batch, hyper = buffer.take(member.buffer, indices), member.hyper
    if n_step.is_chosen(hyper):
        batch, hyper = n_step.read(member.buffer, indices, hyper, member.env_state.num_envs)
    batch = batch._replace(
        observation=rollout.normalize_features(member.normalizer, batch.observation),
        next_observation=rollout.normalize_features(member.normalizer, batch.next_observation),
    )
    return agent.update(state, hyper, batch, noise, step)


def _phases(bindings: OffPolicyBindings) -> Phases:
    """The warm-up and the learning as separate loops, on the agent's packed state."""
    layout = bindings.agent.layout or UpdateLayout()
    return Phases(
        pack=lambda member: member._replace(state=layout.pack(member.state)),
        unpack=lambda member: member._replace(state=layout.unpack(member.state)),
        warmup=partial(iterate, bindings, learning=False),
        warmup_iterations=bindings.config.warmup_iterations,
        main=partial(iterate, bindings, learning=True),
    )


def off_policy(
    agent: OffPolicyAgent[Any, StateT, HyperT, Any],
    environment: envs.Environment,
    config: OffPolicyConfig | None = None,
    **options: Any,
) -> Learner[StateT, HyperT]:
    """Bind an off-policy agent (SAC, TD3, ...) to an environment.

    Args:
      agent: built for the spec of the environment.
      environment: one agent's. If it runs on the host, its transitions are stored after the
        updates of their step, and `warmup_steps` is at least 1.
      config: batches, buffer, evaluation; or give its fields as keywords: `off_policy(agent, env, batch_size=64)`.
      **options: fields of `OffPolicyConfig`, instead of `config`.

    Raises:
      ValueError: the environment is a multi-agent environment, or the agent is on-policy.
      TypeError: both `config` and keywords are given, or a keyword that is not a field of `OffPolicyConfig`.

    Example:
      >>> env = rookery.make("point_room")
      >>> rookery.off_policy(rookery.sac(env.spec), env).steps_per_generation
      1000
    """
    config = config_from(OffPolicyConfig, config, options)
    rollout.check_arguments("off_policy", agent, environment)
    agent = n_step.with_space(agent) if isinstance(agent, OffPolicyAgent) else agent
    environment = guard_physics(environment)
    if environment.announce is not None and not config.warmup_steps:  # updates come before the rows of their step
        config = dataclasses.replace(config, warmup_steps=1)
    spec = environment.spec
    check_alone(spec)
    if not isinstance(agent, OffPolicyAgent):
        raise ValueError("this agent learns on-policy, from its latest rollout; use on_policy instead.")
    rollout.check_sizes(agent, spec)
    if config.normalize_observations is None:
        config = dataclasses.replace(config, normalize_observations=agent.normalize)
    if agent.intrinsic_reward and config.fitness_from == "training":
        problem = "has no effect on an agent with a reward of its own, whose fitness needs evaluations"
        raise SettingError("fitness_from", config.fitness_from, problem, "leave it out")
    keep = agent.intrinsic_reward.keep if agent.intrinsic_reward else None
    bindings = OffPolicyBindings(agent, environment, buffers.ring(config.buffer_size or BUFFER_SIZE), config, keep)
    return evaluation.bind_learner(
        agent,
        evaluation.evaluator(agent.act, environment, config, agent.intrinsic_reward),
        init=partial(init, bindings),
        restart=partial(restart, bindings),
        step=training(partial(iterate, bindings), partial(summarize, spec), config.iterations, _phases(bindings)),
        steps_per_generation=config.steps_per_generation,
    )._replace(
        untrained_generations=config.untrained_generations,
        rate_training=partial(rate_training, bindings) if config.fitness_from == "training" else None,
        settings={**environment.settings, **agent.settings, "learner": named("off_policy", config)},
    )
