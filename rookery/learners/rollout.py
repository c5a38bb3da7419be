"""Acting in environments: steps for training, and the checks that every learner makes of its parts."""

import collections
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rookery import hyperparams, normalize, trees
from rookery.agents import backend
from rookery.agents.base import ActFn, Agent, KeepFn, OffPolicyAgent, OnPolicyAgent, StartFn
from rookery.envs.base import Environment, EnvSpec, EnvState, Step
from rookery.envs.check import check_interface
from rookery.envs.wrappers import auto_reset
from rookery.hyperparams import Space
from rookery.learners.base import (
    Bank,
    Member,
)
from rookery.settings import RETURN, TRAIN_RETURN, check_names
from rookery.types import (
    Array,
    Evaluation,
    Genotype,
    HyperT,
    Key,
    Metrics,
    Observation,
    ParamsT,
    PyTree,
    StateT,
    Transition,
)


class EpisodeSums(NamedTuple):
    """Sums over the running episodes of a member's environments, from which its training returns are computed."""

    scores: Mapping[str, Array]
    """`return`, and the objective by its name -> `[E]`, or `[E, I]` of the agents of a team."""
    length: Array
    """`[E]` int32, steps."""
    whole: Array
    """`[E]` bool: the sums began with the episode, which did not begin later, as `stagger_episodes` lets it."""


class Finished(NamedTuple):
    """Sums over the episodes that ended in a step, or in several; those in which the physics broke are left out."""

    ended_episodes: Array
    """`[]` int32, number of episodes."""
    ended_scores: Mapping[str, Array]
    """Name -> `[]`, or `[I]`."""
    ended_length: Array
    """`[]`, steps."""


class EnvBatchState(NamedTuple):
    """A member's environments, each in the middle of an episode."""

    state: EnvState
    """`[E, ...]`."""
    observation: Observation
    """`[E, ...]`."""
    sums: EpisodeSums | None = None
    """Of the running episodes; None: no training returns are computed."""

    @property
    def num_envs(self) -> int:
        """E."""
        return self.observation.features.shape[0]


def start_environments(environment: Environment, bank: Bank, key: Key, num_envs: int) -> EnvBatchState:
    """Start `num_envs` episodes from states drawn from the bank; the key is consumed."""
    state, step = auto_reset.start_environments(environment, bank, key, num_envs)
    return EnvBatchState(state, step.observation)


def with_sums(
    env_batch: EnvBatchState, spec: EnvSpec, bank: Bank, objective: str | None, whole: Array | bool = True
) -> EnvBatchState:
    """Environments whose episodes have just begun, with the sums of training returns; see `EpisodeSums`."""
    count = env_batch.num_envs
    scores = {RETURN: jnp.zeros((count, *spec.agents))}
    if objective is not None:
        scores[objective] = jnp.zeros((count, *bank[1].measures[objective].shape[1:]))
    return env_batch._replace(sums=EpisodeSums(scores, jnp.zeros(count, jnp.int32), jnp.full(count, whole)))


def count_episodes(
    sums: EpisodeSums | None, steps: Step, counts: Array | None = None
) -> tuple[EpisodeSums | None, Finished | None]:
    """Add a step of every environment to the sums, which begin again where an episode ended.

    Args:
      sums: before the step; None: nothing is counted.
      steps: `[E, ...]`.
      counts: `[E, I]` bool, the agents of a team whose tasks had not ended before the step; None: all.

    Returns:
      The sums after the step, and those of the episodes that ended in it.
    """
    if sums is None:
        return None, None
    scores = {}
    for name, total in sums.scores.items():
        added = steps.reward if name == RETURN else (steps.measures or {})[name]
        if counts is not None:
            added = jnp.where(counts if added.ndim == counts.ndim else counts.any(axis=-1), added, 0.0)
        scores[name] = total + added
    after, over = EpisodeSums(scores, sums.length + 1, sums.whole), jax.vmap(jnp.all)(steps.ended)
    known = over & sums.whole & ~steps.broken
    sums_of_episodes = scores, after.length.astype(jnp.float32)
    ended = trees.where(known, sums_of_episodes, _zeros(sums_of_episodes))
    finished = Finished(jnp.sum(known, dtype=jnp.int32), *jax.tree.map(partial(jnp.sum, axis=0), ended))
    return trees.where(over, _zeros(after)._replace(whole=jnp.ones_like(over)), after), finished


_zeros = partial(jax.tree.map, jnp.zeros_like)


def training_returns(finished: Finished | None, spec: EnvSpec) -> Metrics:
    """The metrics of the training episodes of a generation, `[]` each.

    Args:
      finished: leaves `[T, ...]`, of all steps or iterations.
      spec: of the environment.

    Returns:
      `train_episodes`, the number of episodes that ended in the generation; their mean return, `train_return`, and
      length in steps, `train_episode_length`, NaN if there are none (0 under `jax_debug_nans`); of a team
      `train_return/<agent>` as well. {} if nothing was counted.
    """
    if finished is None:
        return {}
    episodes, scores, length = mean_episode(finished)
    names = spec.team.names if spec.team else ()
    agents = {f"{TRAIN_RETURN}/{name}": scores[RETURN][i] for i, name in enumerate(names)}
    lengths = {"train_episodes": episodes, "train_episode_length": length}
    return {TRAIN_RETURN: jnp.mean(scores[RETURN]), **agents, **lengths}


def rate_training(
    finished: Finished, broken: Array, spec: EnvSpec, objective: str | None, role: int | None = None
) -> Evaluation:
    """The fitness of the training episodes of a generation; see `learners.base.RateTrainingFn`.

    Args:
      finished: leaves `[T, ...]`, of all iterations.
      broken: `[T]`, steps in which the physics broke.
      spec: of the environment.
      objective: the measure whose sum over an episode is the fitness; None: the return.
      role: index of the agent of a team whose score is the fitness; None: the mean of all agents.
    """
    episodes, scores, length = mean_episode(finished)
    score, count = scores[objective or RETURN], jnp.sum(broken)
    # An objective that is not finite counts as broken, as in an evaluation.
    count += ((episodes > 0) & ~trees.all_finite(score)).astype(count.dtype)
    is_known = (episodes > 0) & (count == 0)
    score = jnp.where(is_known, jnp.broadcast_to(score, spec.agents), jnp.nan)
    return Evaluation(
        fitness=jnp.mean(score) if role is None else score[role],
        descriptor=jnp.zeros((0,)),
        returns=jnp.mean(scores[RETURN])[None],
        lengths=length[None],
        broken=count,
        roles=score if spec.team else (),
    )


def mean_episode(finished: Finished) -> tuple[Array, Mapping[str, Array], Array]:
    """The number of episodes `[]` int32, and the means of their scores, name -> `[]` or `[I]`, and lengths `[]`."""
    total = jax.tree.map(partial(jnp.sum, axis=0), finished)
    mean = partial(average, count=total.ended_episodes.astype(jnp.float32))
    return total.ended_episodes, jax.tree.map(mean, total.ended_scores), mean(total.ended_length)


def average(total: Array, count: Array) -> Array:
    """The average of `count` (`[]` float32) values with this sum: NaN if there are none, or 0 under `jax_debug_nans`,
    which takes every NaN in a result for an error."""
    nothing = 0.0 if backend.switch("jax_debug_nans") else jnp.nan
    # On some layouts of devices XLA would replace a division of several values by one number by a product.
    divisor = jax.lax.optimization_barrier(jnp.broadcast_to(jnp.maximum(count, 1.0), total.shape))
    return jnp.where(count > 0, total / divisor, nothing)


def load_genotype(start: StartFn, member: Member[Any, HyperT], genotype: Genotype[Any, HyperT]) -> Member[Any, HyperT]:
    """Load a genotype into a member's slot, whose state `start` builds: see `learners.base.LoadGenotypeFn`."""
    state = start(genotype.params)
    return member._replace(state=state, hyper=genotype.hyper, normalizer=genotype.normalizer)


PREFIX = "env_"
"""Prefix of the environment's parameters among the hyper-parameters of a member."""


def space_with_parameters(space: Space[HyperT], environment: Environment) -> Space[HyperT]:
    """The search space of an agent, with the environment's parameters as further optional fields `env_<name>`."""
    parameters = environment.spec.parameters
    check_names("hyper-parameter of the agent", space.defaults._fields, [PREFIX])
    if parameters is None:
        return space
    kind = collections.namedtuple("Parameters", [PREFIX + name for name in parameters.defaults._fields])
    domains = {PREFIX + name: domain for name, domain in parameters.domains.items()}
    fields = {PREFIX + name: field for name, field in parameters.fields.items()}
    return hyperparams.with_optional(space, hyperparams.space(kind(*parameters.defaults), domains, fields))


def parameterized(space: Space, environment: Environment, member: Member) -> tuple[Environment, Member]:
    """The environment with the member's values of its parameters, and the member with the hyper-parameters of `space`
    alone, which is that of the agent; both unchanged if no parameter was chosen."""
    parameters = environment.spec.parameters
    names = [name for name in parameters.defaults._fields if hasattr(member.hyper, PREFIX + name)] if parameters else []
    if not parameters or not names:
        return environment, member
    values = parameters.defaults._replace(**{name: getattr(member.hyper, PREFIX + name) for name in names})
    own = hyperparams.select(space, member.hyper)
    assert environment.parameterize is not None
    return environment.parameterize(values), member._replace(hyper=own)


class Actor(Protocol[ParamsT]):
    """An object that acts from parameters: an `Agent`, or a policy that is evolved without gradients."""

    @property
    def act(self) -> ActFn[ParamsT]:
        """Map parameters and an observation to an action."""
        ...


def act(actor: Actor[ParamsT], genotype: Genotype[ParamsT, Any], observation: Observation | Array) -> PyTree:
    """Return a genotype's deterministic action `[A]` (or `[]` int32) for an observation; for a team, the actions
    `[I, A]` of all agents.

    The observation is normalised with the genotype's statistics, if it has any. For a recurrent agent it contains the
    carry (initially 0), and the action is an `ActionWithCarry`, which contains the carry for the next step.

    Args:
      actor: the agent that the genotype belongs to, or `policy(spec, config)` for a genotype that was evolved without
        gradients.
      genotype: parameters and statistics, e.g. `nearest(repertoire, descriptor).genotype`.
      observation: as in a `Step`; an array stands for an observation that has only features, `[O]` (`[I, O]` for a
        team).

    Example:
      >>> genotype = rookery.nearest(rookery.experiments.repertoire("runs/me-pbt-sac"), (0.2, 0.8)).genotype
      >>> env = rookery.make("point_room")
      >>> agent = rookery.sac(env.spec, rookery.agents.SacConfig(hidden_sizes=(4,)))
      >>> state, step = env.reset(jax.random.key(0))
      >>> rookery.act(agent, genotype, step.observation).shape
      (2,)
    """
    observation = observation if isinstance(observation, Observation) else Observation(observation)
    return actor.act(forward_params(genotype), normalize_features(genotype.normalizer, observation))


def forward_params(genotype: Genotype) -> PyTree:
    """The parameters with which a genotype acts: those of an agent whose networks depend on its hyper-parameters have
    a method for that, such as `PpoParams.with_hyper`."""
    with_hyper = getattr(genotype.params, "with_hyper", None)
    return genotype.params if with_hyper is None else with_hyper(genotype.hyper)


def normalize_features(normalizer: normalize.RunningStatistics | None, observation: Observation) -> Observation:
    """Normalise the features `[..., O]` of an observation if the member has statistics; return it unchanged
    otherwise."""
    if normalizer is None:
        return observation
    normalize_fn = normalize.normalize
    if normalizer.mean.ndim > 1:  # separate statistics for each agent of a team
        normalize_fn = jax.vmap(normalize_fn, in_axes=(0, -2), out_axes=-2)
    return observation._replace(features=normalize_fn(normalizer, observation.features))


def explore(
    agent: OffPolicyAgent[Any, StateT, HyperT, Any], state: StateT, hyper: HyperT, observation: Observation, key: Key
) -> Array:
    """Return exploratory actions `[E, A]` for observations `[E, ...]`; one matmul per layer, since parameters are not
    mapped."""
    keys = jax.random.split(key, observation.features.shape[0])
    return jax.vmap(agent.explore, in_axes=(None, None, 0, 0))(state, hyper, observation, keys)


def advance(
    environment: Environment, env_batch: EnvBatchState, action: Array, key: Key, keep: KeepFn | None = None
) -> tuple[EnvBatchState, Transition, Step]:
    """Step every environment once; `environment` must reset automatically.

    Args:
      environment: the environment, written for one episode.
      env_batch: environment states and observations, `[E, ...]`.
      action: `[E, A]`.
      key: consumed.
      keep: computes the extras of the transitions; None: they have none.

    Returns:
      The environments after the step, the transitions `[E, ...]` with the true successors, and the steps `[E, ...]`.
    """
    keys = jax.random.split(key, env_batch.num_envs)
    return record(env_batch, action, jax.vmap(environment.step)(env_batch.state, action, keys), keep)


def record(
    env_batch: EnvBatchState, action: PyTree, stepped: tuple[EnvState, Step], keep: KeepFn | None = None
) -> tuple[EnvBatchState, Transition, Step]:
    """The results of `advance` from those of the environments' steps, `[E, ...]`."""
    state, step = stepped
    extras = jax.vmap(keep)(step) if keep else ()
    transition = Transition(env_batch.observation, action, step.reward, step.final_observation, step.terminated, extras)
    return env_batch._replace(state=state, observation=step.observation), transition, step


def after(state: EnvState, results: PyTree) -> EnvState:
    """The state of announced environments, whose steps are then awaited only after `results` were computed.

    The compiler orders independent work as it likes, so a number that depends on the results is added: 0, since no
    number exceeds infinity.
    """
    leaf = next(leaf for leaf in jax.tree.leaves(results) if jnp.issubdtype(leaf.dtype, jnp.floating))
    exceeds = leaf.reshape(-1)[0] > jnp.inf
    return jax.tree.map(lambda leaf: leaf + exceeds.astype(leaf.dtype), state)


def transition_row(environment: Environment, bank: Bank, keep: KeepFn | None = None) -> Transition:
    """A transition of zeros or start states, without a leading axis: the shapes of a row that is stored."""
    first = trees.take(bank[1], 0)
    spec, extras = environment.spec, keep(first) if keep else ()
    action = jnp.zeros(spec.action_shape, spec.action_type)
    return Transition(first.observation, action, jnp.zeros(()), first.observation, jnp.asarray(False), extras)


def check_arguments(learner: str, agent: Agent, environment: Environment) -> None:
    """Check an agent and an environment before a learner binds them.

    Raises:
      ValueError: the arguments are swapped or of another type, or `check_interface` finds something wrong.
    """
    if not isinstance(agent, OffPolicyAgent | OnPolicyAgent):
        found = "an environment" if isinstance(agent, Environment) else f"an object of type {type(agent).__name__}"
        raise ValueError(f"{learner} takes the agent first, then the environment; got {found} as the agent.")
    check_interface(environment)


def check_sizes(agent: Agent, spec: EnvSpec) -> None:
    """Check that an agent was built for the observations and actions of an environment.

    Raises:
      ValueError: it was built for others.
    """
    if agent.sizes not in (None, spec.sizes):
        built, found = (
            f"{inputs} numbers of an observation and "
            + (f"actions of {' x '.join(map(str, categories))} categories" if categories else f"{size} ")
            + ("" if categories else "discrete actions" if is_discrete else "of a continuous action")
            for inputs, size, is_discrete, categories in (agent.sizes, spec.sizes)
        )
        raise ValueError(
            f"the agent was built for {built}, but {spec.name} has {found}; build it from the spec of that environment "
            "with all wrappers."
        )
