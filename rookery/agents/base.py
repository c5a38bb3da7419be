"""The agent interface: `OffPolicyAgent` and `OnPolicyAgent`, written for ONE member.

This docstring is the guide to writing an agent. An agent consists of pure functions over three separate types:

- `Config`, a frozen dataclass: static settings that determine shapes. The factory (`sac.sac(spec, config)`) validates
  and binds it.
- `Hyper`, a NamedTuple of `[]` leaves: traced, so that the members of a population can hold and change different
  values. The annotation of each field states its meaning and domain (`hyperparams.Field`).
- `State`, a NamedTuple: the learned quantities. It contains `params`, the parameters that can be copied into other
  members.

An off-policy agent (SAC, TD3) learns from batches of stored transitions. Its random numbers for an update are drawn
beforehand, by `noise`. An on-policy agent (PPO) learns from its latest rollout; its update consumes a key.

To add an agent, write one file in the order of `sac.py`: source, `Config`, `Hyper` and its space, `State`, losses,
`update`, factory. Do not store a random key in the state, do not read a hyper-parameter from the config, and add the
agent to the test suite in `tests/agents/test_agents.py`, which checks both.
"""

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, Protocol

from typing_extensions import TypeVar

from rookery.envs.base import EnvSpec, Previous, Step, check_categories
from rookery.hyperparams import Space
from rookery.types import (
    NO_SETTINGS,
    Array,
    HyperT,
    Key,
    Metrics,
    Observation,
    ParamsT,
    PyTree,
    Settings,
    StateT,
    Transition,
)

NoiseT = TypeVar("NoiseT", infer_variance=True)


class RolloutExtras(NamedTuple):
    """Additional data of a step for an on-policy agent, in `Transition.extras`."""

    log_prob: Array
    """`[]`, log density of the action when it was drawn, in nats."""
    ended: Array
    """`[]` bool: the next step in time belongs to another episode."""
    counts: Array
    """`[]` bool: False after the agent's task has ended while the tasks of its team mates continue."""
    accumulated: Array
    """`[]`, discounted sum of the rewards of the episode so far."""
    broken: Array
    """`[]` bool: the simulation produced non-finite numbers in the step, which counts in no statistics."""


class InitFn(Protocol[ParamsT]):
    """Initialise parameters; the key is consumed."""

    def __call__(self, key: Key) -> ParamsT: ...


class StartFn(Protocol[ParamsT, StateT]):
    """Build a state from parameters, with new targets and optimisers. The only conversion of parameters to a state."""

    def __call__(self, params: ParamsT) -> StateT: ...


class ExploreFn(Protocol[StateT, HyperT]):
    """Return an exploratory action `[A]` for an observation; the key is consumed."""

    def __call__(self, state: StateT, hyper: HyperT, observation: Observation, key: Key) -> Array: ...


class SampleFn(Protocol[StateT, HyperT]):
    """Draw an action `[A]` from the policy for an observation; return it with its log density `[]`, in nats.

    The key is consumed. The action of a recurrent agent is an `ActionWithCarry`.
    """

    def __call__(self, state: StateT, hyper: HyperT, observation: Observation, key: Key) -> tuple[PyTree, Array]: ...


class ActFn(Protocol[ParamsT]):
    """Return the deterministic action `[A]` for an observation, for evaluation; takes parameters, not a state.

    The action of a recurrent agent is an `ActionWithCarry`.
    """

    def __call__(self, params: ParamsT, observation: Observation) -> PyTree: ...


class NoiseFn(Protocol[NoiseT]):
    """Draw all random numbers that an update consumes, leaves `[batch_size, ...]`, independently for each row.

    It is separate from `update` so that a block of U updates draws its noise in one call for U x B rows and splits it
    into batches (1.1 to 1.35 times as fast).
    """

    def __call__(self, key: Key, batch_size: int) -> NoiseT: ...


class UpdateFn(Protocol[StateT, HyperT, NoiseT]):
    """Apply one gradient update from a batch `[B, ...]`.

    Args:
      state: the state before the update.
      hyper: the member's hyper-parameters.
      batch: the transitions.
      noise: the result of `NoiseFn`.
      step: `[]` int32, number of updates before this one; or an int, see `UpdateLayout.group`. It is one scalar for the
        whole population and never batched, so that `lax.cond(step % delay == 0, ...)` stays a branch that is skipped.

    Returns:
      The new state, and metrics `[]`.
    """

    def __call__(
        self, state: StateT, hyper: HyperT, batch: Transition, noise: NoiseT, step: Array
    ) -> tuple[StateT, Metrics]: ...


class RolloutUpdateFn(Protocol[StateT, HyperT]):
    """Apply one update: all epochs over a rollout `[T, E, ...]`, whose extras are `RolloutExtras`.

    Args:
      state: the state before the update.
      hyper: the member's hyper-parameters.
      batch: the transitions of the rollout.
      key: consumed.
      step: as in `UpdateFn`.

    Returns:
      The new state, and metrics `[]`.
    """

    def __call__(
        self, state: StateT, hyper: HyperT, batch: Transition, key: Key, step: Array
    ) -> tuple[StateT, Metrics]: ...


class KeepFn(Protocol):
    """Return the data to store in `Transition.extras`: any pytree with the same structure for every step."""

    def __call__(self, step: Step) -> PyTree: ...


class ObserveFn(Protocol[StateT]):
    """Update the state from the latest steps `[E, ...]`; called before these steps can be sampled for learning.

    Steps that broke the physics (`Step.broken`) must not count.
    """

    def __call__(self, state: StateT, steps: Step) -> StateT: ...


class MeasureFn(Protocol[ParamsT]):
    """Return further quantities that an evaluation sums over the steps of an episode: name -> `[]`.

    `step.final_observation` and `step.previous` are preprocessed like the observations that the agent acts on.
    """

    def __call__(self, params: ParamsT, step: Step) -> Mapping[str, Array]: ...


class ConcludeFn(Protocol):
    """Compute the fitness from whole episodes.

    Args:
      sums: name -> `[N]`, the measured quantities.
      returns: `[N]`, returns of the environment's reward.
      lengths: `[N]` int32, in steps.

    Returns:
      The fitness `[]`, and the values to report for each episode, name -> `[N]`.
    """

    def __call__(
        self, sums: Mapping[str, Array], returns: Array, lengths: Array
    ) -> tuple[Array, Mapping[str, Array]]: ...


class TowardsFn(Protocol[ParamsT]):
    """Choose the skill `[S]` that leads from a state to a goal; both have preprocessed observations."""

    def __call__(self, params: ParamsT, state: Previous, goal: Previous) -> Array: ...


class IntrinsicReward(NamedTuple, Generic[ParamsT, StateT]):
    """The functions that a learner calls for an agent that computes its own reward."""

    keep: KeepFn
    observe: ObserveFn[StateT]
    measure: MeasureFn[ParamsT]
    conclude: ConcludeFn
    towards: TowardsFn[ParamsT] | None = None
    """None: the agent's skills reach no goals."""


def _unchanged(state: StateT) -> StateT:
    return state


class UpdateLayout(NamedTuple, Generic[StateT]):
    """An arrangement of an agent's updates in fewer, larger operations, for `backend.prefers_few_kernels`.

    Checkpoints and evaluations contain the state that is not packed.
    """

    pack: Callable[[StateT], StateT] = _unchanged
    """Rearranges the state for training; `update` and `explore` accept both arrangements."""
    unpack: Callable[[StateT], StateT] = _unchanged
    """The inverse of `pack`."""
    period: int = 1
    """Updates after which the agent's update recurs: its computation depends on its number only modulo the period."""
    group: int = 1
    """Updates in each repetition of the loop, a multiple of the period. An update then receives its place in the group,
    an int, as its `step`. With 1, whatever the period, an update receives its number, an array."""


class OffPolicyAgent(NamedTuple, Generic[ParamsT, StateT, HyperT, NoiseT]):
    """A learning algorithm for one member that learns from stored transitions."""

    init: InitFn[ParamsT]
    start: StartFn[ParamsT, StateT]
    explore: ExploreFn[StateT, HyperT]
    act: ActFn[ParamsT]
    noise: NoiseFn[NoiseT]
    update: UpdateFn[StateT, HyperT, NoiseT]
    space: Space[HyperT]
    """The default search space; its `defaults` are the default hyper-parameters."""
    intrinsic_reward: IntrinsicReward[ParamsT, StateT] | None = None
    """None: the agent learns from the environment's reward, and its return is the fitness."""
    encoded_size: int | None = None
    """Size of the encoder's output; None if the networks read the features as they are."""
    layout: UpdateLayout[StateT] | None = None
    """None: the updates of a block follow one another, with the state as it is."""
    normalize: bool = False
    """Whether the agent normalises observations by default."""
    settings: Settings = NO_SETTINGS
    """Its name and config, recorded in the run directory."""
    sizes: tuple[int, int, bool, tuple[int, ...]] | None = None
    """`EnvSpec.sizes` of the spec that it was built from, which its environment must have; None: not checked."""


class OnPolicyAgent(NamedTuple, Generic[ParamsT, StateT, HyperT]):
    """A learning algorithm for one member, or for the agents of a team, that learns from its latest rollout."""

    init: InitFn[ParamsT]
    start: StartFn[ParamsT, StateT]
    explore: SampleFn[StateT, HyperT]
    act: ActFn[ParamsT]
    update: RolloutUpdateFn[StateT, HyperT]
    space: Space[HyperT]
    """The default search space; its `defaults` are the default hyper-parameters, among them `discount`."""
    minibatches: int
    """Number of minibatches that each epoch splits a rollout into, at least 1."""
    carry_sizes: PyTree = None
    """Sizes of the vectors that a recurrent agent carries from step to step, see `envs/wrappers/recurrence.py`."""
    team: str = ""
    """How the agents of a team share parameters, "independent" or "shared"; empty for a single agent."""
    normalize: bool = False
    """Whether the agent normalises observations by default."""
    settings: Settings = NO_SETTINGS
    """Its name and config, recorded in the run directory."""
    sizes: tuple[int, int, bool, tuple[int, ...]] | None = None
    """`EnvSpec.sizes` of the spec that it was built from, which its environment must have; None: not checked."""


Agent = OffPolicyAgent | OnPolicyAgent


def check_spec(spec: EnvSpec, agent: str) -> None:
    """Check that an agent is built from a spec, not from an environment.

    Raises:
      ValueError: the spec is something else, which names the agent, or its categories are no whole numbers.
    """
    if not isinstance(spec, EnvSpec):
        remedy = "pass its spec: env.spec" if hasattr(spec, "spec") else "pass the spec of an environment: env.spec"
        raise ValueError(f"{agent} is built from an EnvSpec, got {type(spec).__name__}; {remedy}.")
    check_categories(spec)


def check_continuous(spec: EnvSpec, agent: str, wraps: bool = False) -> None:
    """Check that the spec is one of an environment with continuous actions; see also `check_spec`.

    Args:
      spec: of the environment.
      agent: its name for the message.
      wraps: it is a method around another agent, for which no other one is proposed.

    Raises:
      ValueError: it is not; the message names the agent and the environment.
    """
    check_spec(spec, agent)
    if spec.discrete:
        others = "" if wraps else "; use PPO" if spec.categories else "; use PPO, PQN or DQN"
        found = f"{spec.name} has {spec.action_size} discrete ones"
        raise ValueError(f"{agent} needs continuous actions, but {found}{others}.")
