"""The learner interface: `Learner`, the training of one member from initialisation to evaluation.

A learner binds an agent, an environment and a buffer. It is written for one member; a program maps it over many. Start
states are drawn once per generation for the whole population (`start_states`) and passed in: resets pick from them, and
every member is evaluated on the same start states.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rookery.agents.base import ActFn, IntrinsicReward
from rookery.envs.base import Environment, EnvSpec
from rookery.hyperparams import Space
from rookery.settings import SettingError, Within, check_fields, type_of
from rookery.types import (
    NO_SETTINGS,
    Array,
    Evaluation,
    Genotype,
    GenotypeT,
    HyperT,
    Key,
    Metrics,
    PyTree,
    Settings,
    StateT,
)


class Member(NamedTuple, Generic[StateT, HyperT]):
    """One member of a population. A child inherits the first three fields; the last two stay in the slot."""

    state: StateT
    """The agent's `State`."""
    hyper: HyperT
    """The member's hyper-parameters."""
    normalizer: PyTree
    """Running statistics of the observations, or None."""
    env_state: PyTree
    """Environment states and observations, `[E, ...]`."""
    buffer: PyTree
    """The transitions that the member learns from."""
    opponents: PyTree = ()
    """Of a team in training, `Opponents`; () where it acts alone in all its environments."""


class Opponents(NamedTuple):
    """Policies of other members, which act in some of a team's E environments: with each of its I agents in m of them.

    There one agent of the team learns, and the policies act for all others.
    """

    policies: Genotype
    """`[I, I, ...]`: row i acts where agent i learns; its own policy of agent i is not used."""
    environments: Array
    """`[I, m]` int32, distinct: the environments in which each agent learns."""
    active: Array
    """`[]` bool: if False, the whole team acts and learns there too."""

    def learns(self, num_envs: int) -> Array:
        """`[E, I]` bool: the agents of the team that act and learn in each environment."""
        roles, each = self.environments.shape
        own = jnp.eye(roles, dtype=bool) | ~self.active
        everywhere = jnp.ones((num_envs, roles), bool)
        return everywhere.at[self.environments.reshape(-1)].set(jnp.repeat(own, each, axis=0))


def without_data(tree: PyTree) -> PyTree:
    """A tree whose `Member` records have no environments and no buffers: what policies are read from."""

    def strip(node: PyTree) -> PyTree:
        return node._replace(env_state=(), buffer=()) if isinstance(node, Member) else node

    return jax.tree.map(strip, tree, is_leaf=lambda node: isinstance(node, Member))


def check_learner(learner: object, space: object = None) -> None:
    """Check that a population method is given a learner, and a search space or none.

    Raises:
      TypeError: it is something else; the message contains the remedy.
    """
    if not isinstance(learner, Learner):
        remedy = "give an agent and its environment to a learner: rookery.off_policy(agent, env)"
        raise TypeError(f"the members of a population need a Learner, got {type_of(learner)}; {remedy}.")
    if not isinstance(space, Space | None):
        meant = "rookery.choose(learner.space, discount=0.98)"
        meant = f"population_size={space}" if isinstance(space, int) else meant
        raise TypeError(f"space must be a search space, got {type_of(space)}; did you mean {meant}?")


Bank = PyTree
"""Start states and their first steps, `[K, ...]`."""


class StartStatesFn(Protocol):
    """Draw the start states of a generation; the key is consumed."""

    def __call__(self, key: Key) -> Bank: ...


class InitFn(Protocol[StateT, HyperT]):
    """Initialise a member with the given hyper-parameters; the key is consumed."""

    def __call__(self, key: Key, hyper: HyperT, bank: Bank) -> Member[StateT, HyperT]: ...


class LoadGenotypeFn(Protocol[StateT, HyperT]):
    """Load a genotype into a slot, with new targets and optimisers; the slot keeps its data. The only way to do so."""

    def __call__(self, member: Member[StateT, HyperT], genotype: Genotype[Any, HyperT]) -> Member[StateT, HyperT]: ...


class RestartFn(Protocol[StateT, HyperT]):
    """Where `needed` (`[]` bool), reset environments and empty the buffer, for a slot whose member diverged."""

    def __call__(
        self, member: Member[StateT, HyperT], bank: Bank, key: Key, needed: Array
    ) -> Member[StateT, HyperT]: ...


class StepFn(Protocol[StateT, HyperT]):
    """Train for one generation: repeatedly collect transitions, store them and learn.

    Args:
      member: the member to train.
      bank: start states of the generation.
      key: consumed.
      generation: `[]` int32, never batched, so that conditions on warm-up and delayed updates stay branches.

    Returns:
      The trained member, and metrics `[]`.
    """

    def __call__(
        self, member: Member[StateT, HyperT], bank: Bank, key: Key, generation: Array
    ) -> tuple[Member[StateT, HyperT], Metrics]: ...


class ResizeFn(Protocol[StateT, HyperT]):
    """Give a member's networks the width that its hyper-parameter `hidden_size` says; the key is consumed."""

    def __call__(self, member: Member[StateT, HyperT], key: Key) -> Member[StateT, HyperT]: ...


class EvaluateFn(Protocol[GenotypeT]):
    """Run full deterministic episodes from the first N start states of the bank; stores no transitions."""

    def __call__(self, genotype: GenotypeT, bank: Bank, key: Key) -> Evaluation: ...


class RateTrainingFn(Protocol):
    """Compute the fitness of a member from the training episodes in the log of a generation, see `Training`.

    Returns:
      An evaluation of one row, `[1]`, without a descriptor; its fitness is NaN if the physics broke, or no episode
      ended (`train_episodes` in the metrics of the generation).
    """

    def __call__(self, log: PyTree) -> Evaluation: ...


class TraceFn(Protocol[GenotypeT]):
    """Record the descriptors of the states that the evaluation's episodes visit.

    Returns:
      Descriptors `[N, T + 1, D]`, starting with that of the start state; and `[N, T + 1]` bool, whether the state was
      reached before the episode ended.
    """

    def __call__(self, genotype: GenotypeT, bank: Bank, key: Key) -> tuple[Array, Array]: ...


SUMMARIES = {"mean": jnp.mean, "median": jnp.median}


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Number of evaluation episodes and start states, and the summary of descriptors.

    Raises:
      ValueError: no episode, fewer start states than episodes, or an unknown summary.
    """

    eval_episodes: Annotated[int, Within(1)] = 10
    """Full deterministic episodes per evaluation of a member in each generation."""
    start_states: Annotated[int, Within(1)] = 64
    """Start states drawn in each generation, from which episodes begin (at least eval_episodes)."""
    eval_descriptor: Literal["mean", "median"] = "mean"
    """Summary of the episodes' descriptors, in each dimension; a mean may be a behaviour that no episode shows."""
    objective: str | None = None
    """Measure of the task (`rookery envs NAME`) whose sum over an episode is the fitness; by default the return."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)
        check_evaluation(self)


@dataclass(frozen=True, kw_only=True)
class FitnessConfig(EvaluationConfig):
    """What the fitness of a member that learns is computed from."""

    fitness_from: Literal["evaluation", "training"] = "evaluation"
    """evaluation: deterministic episodes after each generation; training: the exploratory episodes that ended in it
    (docs/guides/pbt.md)."""

    @property
    def trained_objective(self) -> str | None:
        """The measure that is summed over training episodes; None: no measure."""
        return self.objective if self.fitness_from == "training" else None


def check_evaluation(config: EvaluationConfig) -> None:
    """Check the settings of an evaluation.

    Raises:
      ValueError: there are fewer start states than episodes.
    """
    if config.start_states < config.eval_episodes:
        problem = f"must be at least {{eval_episodes}} ({config.eval_episodes})"
        raise SettingError("start_states", config.start_states, problem)


class Evaluator(NamedTuple):
    """The static arguments of an evaluation."""

    act: ActFn
    """Parameters and observation -> action."""
    environment: Environment
    """The environment without automatic reset."""
    config: EvaluationConfig
    """The summary of descriptors, and the configured counts."""
    episodes: int
    """N."""
    intrinsic_reward: IntrinsicReward | None = None
    role: int | None = None
    """Index of the agent of a team whose return is the fitness; None: the mean of all agents."""

    @property
    def steps(self) -> int:
        """Maximum number of environment steps of an evaluation."""
        return self.episodes * self.environment.spec.episode_length


class Learner(NamedTuple, Generic[StateT, HyperT]):
    """The training loop of one member, as functions."""

    start_states: StartStatesFn
    init: InitFn[StateT, HyperT]
    load_genotype: LoadGenotypeFn[StateT, HyperT]
    restart: RestartFn[StateT, HyperT]
    step: StepFn[StateT, HyperT]
    evaluate: EvaluateFn[Genotype[Any, HyperT]]
    spec: EnvSpec
    """Spec of the environment."""
    space: Space[HyperT]
    """The agent's default search space, in which the environment's parameters and the width of the networks are
    optional."""
    steps_per_generation: int
    """Environment steps of one member per generation."""
    evaluation_steps: int = 1
    """Maximum number of environment steps of an evaluation."""
    trace: TraceFn[Genotype[Any, HyperT]] | None = None
    """None if the episodes cannot be traced."""
    evaluator: Evaluator | None = None
    """The policy, environment and settings that `evaluate` uses; None if it runs no episodes of an environment."""
    team: str = ""
    """How the agents of a team share parameters, see `agents.base.OnPolicyAgent`."""
    num_envs: int = 0
    """E, the environments of a team in which `Member.opponents` can act; 0 for a learner without them."""
    untrained_generations: int = 0
    """Initial generations of a run without any update, after which selection would be meaningless."""
    rate_training: RateTrainingFn | None = None
    """Where the fitness comes from training episodes; None: from `evaluate`."""
    resize: ResizeFn[StateT, HyperT] | None = None
    """None if the width of the networks cannot be chosen."""
    settings: Settings = NO_SETTINGS
    """Names and configs of environment, agent and learner, recorded in the run directory."""


def genotype(member: Member[StateT, HyperT]) -> Genotype[Any, HyperT]:
    """Return the part of a member that can be copied into another member.

    Example:
      >>> env = rookery.make("point_room")
      >>> learner = rookery.off_policy(rookery.sac(env.spec), env)
      >>> hyper, bank = rookery.hyperparams.defaults(learner.space), learner.start_states(jax.random.key(0))
      >>> policy = rookery.genotype(learner.init(jax.random.key(1), hyper, bank))
    """
    return Genotype(member.state.params, member.hyper, member.normalizer)
