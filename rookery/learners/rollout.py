"""Acting in environments: steps for training, and the checks that every learner makes of its parts."""

import collections
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp

from rookery import hyperparams, normalize, trees
from rookery.agents.base import ActFn, Agent, KeepFn, OffPolicyAgent, OnPolicyAgent
from rookery.envs.base import Environment, EnvSpec, EnvState, Step
from rookery.envs.check import check_interface
from rookery.envs.wrappers import auto_reset
from rookery.factories import check_names
from rookery.hyperparams import Space
from rookery.learners.base import (
    Bank,
    Member,
)
from rookery.types import Array, Genotype, HyperT, Key, Observation, ParamsT, PyTree, StateT, Transition


class EnvBatchState(NamedTuple):
    """A member's environments, each in the middle of an episode."""

    state: EnvState
    """`[E, ...]`."""
    observation: Observation
    """`[E, ...]`."""

    @property
    def num_envs(self) -> int:
        """E."""
        return self.observation.features.shape[0]


def start_environments(environment: Environment, bank: Bank, key: Key, num_envs: int) -> EnvBatchState:
    """Start `num_envs` episodes from states drawn from the bank; the key is consumed."""
    state, step = auto_reset.start_environments(environment, bank, key, num_envs)
    return EnvBatchState(state, step.observation)


def load_genotype(agent: Agent, member: Member[Any, HyperT], genotype: Genotype[Any, HyperT]) -> Member[Any, HyperT]:
    """Load a genotype into a member's slot: see `learners.base.LoadGenotypeFn`."""
    state = agent.start(genotype.params)
    return member._replace(state=state, hyper=genotype.hyper, normalizer=genotype.normalizer)


PREFIX = "env_"
"""Prefix of the environment's parameters among the hyper-parameters of a member."""


def space_with_parameters(space: Space[HyperT], environment: Environment) -> Space[HyperT]:
    """The search space of an agent, with the environment's parameters as optional fields `env_<name>`."""
    parameters = environment.spec.parameters
    check_names("hyper-parameter of the agent", space.defaults._fields, [PREFIX])
    if parameters is None:
        return space
    kind = collections.namedtuple("Parameters", [PREFIX + name for name in parameters.defaults._fields])
    domains = {PREFIX + name: domain for name, domain in parameters.domains.items()}
    fields = {PREFIX + name: field for name, field in parameters.fields.items()}
    return space._replace(optional=hyperparams.space(kind(*parameters.defaults), domains, fields))


class _Bindings(Protocol):
    """The parts of a learner's bindings that depend on the environment's parameters."""

    @property
    def agent(self) -> Agent: ...

    @property
    def environment(self) -> Environment: ...


BindingsT = TypeVar("BindingsT", bound=_Bindings)


def parameterized(bindings: BindingsT, member: Member) -> tuple[BindingsT, Member]:
    """The bindings with the member's values of the environment's parameters, and the member with the agent's
    hyper-parameters alone; both unchanged if no parameter was chosen."""
    environment: Any = bindings.environment
    parameters = environment.spec.parameters
    names = [name for name in parameters.defaults._fields if hasattr(member.hyper, PREFIX + name)] if parameters else []
    if not names:
        return bindings, member
    values = parameters.defaults._replace(**{name: getattr(member.hyper, PREFIX + name) for name in names})
    own = hyperparams.select(bindings.agent.space.defaults, member.hyper)
    changed: Any = bindings
    return changed._replace(environment=environment.parameterize(values)), member._replace(hyper=own)


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
    return actor.act(genotype.params, normalize_features(genotype.normalizer, observation))


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
    return EnvBatchState(state, step.observation), transition, step


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
    extras, action = keep(first) if keep else (), jnp.zeros((environment.spec.action_size,))
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
    if agent.sizes not in (None, (spec.input_size, spec.action_size)):
        built, sizes = agent.sizes, (spec.input_size, spec.action_size)
        raise ValueError(
            f"the agent was built for {built[0]} numbers of an observation and {built[1]} of an action, but "
            f"{spec.name} has {sizes[0]} and {sizes[1]}; build it from the spec of that environment with all wrappers."
        )
