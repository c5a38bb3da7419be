"""The agent interface: `Agent(init, start, explore, act, noise, update)`, written for ONE member.

This docstring is the guide to writing an agent. An agent consists of six pure functions over three separate types:

- `Config`, a frozen dataclass: static settings that determine shapes. The factory (`sac.sac(spec, config)`) validates
  and binds it.
- `Hyper`, a NamedTuple of `[]` leaves: traced, so that the members of a population can hold and change different
  values.
- `State`, a NamedTuple: the learned quantities. It contains `params`, the parameters that can be copied into other
  members.

To add an agent, write one file in the order of `sac.py`: source, `Config`, `Hyper` and its space, `State`, losses,
`update`, factory. Do not store a random key in the state, do not read a hyper-parameter from the config, and add the
agent to the test suite in `tests/agents/test_agents.py`, which checks both.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from rookery.envs.base import EnvSpec, Step
from rookery.hyperparams import Space
from rookery.types import Array, Hyper, Key, Metrics, PyTree, Transition

Params = PyTree
State = PyTree
Noise = PyTree
Extras = PyTree


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


class InitFn(Protocol):
    """Initialise parameters; the key is consumed."""

    def __call__(self, key: Key) -> Params: ...


class StartFn(Protocol):
    """Build a state from parameters, with new targets and optimisers. The only conversion of `Params` to `State`."""

    def __call__(self, params: Params) -> State: ...


class ExploreFn(Protocol):
    """Return an exploratory action `[A]` for an observation `[O]`, and the data to store with it.

    The data are the log density `[]` for an on-policy agent, `()` for an off-policy agent. The key is consumed. For an
    agent with a memory, the observation ends in the memory, and the action is an `ActionWithCarry`.
    """

    def __call__(self, state: State, hyper: Hyper, observation: Array, key: Key) -> tuple[Array, Extras]: ...


class ActFn(Protocol):
    """Return the deterministic action `[A]` for an observation `[O]`, for evaluation; takes parameters, not a state."""

    def __call__(self, params: Params, observation: Array) -> Array: ...


class NoiseFn(Protocol):
    """Draw all random numbers that an update consumes, leaves `[batch_size, ...]`, independently for each row.

    It is separate from `update` so that a block of U updates draws its noise in one call for U x B rows and splits it
    into batches (1.1 to 1.35 times as fast). For an on-policy agent, which shuffles all rows in every epoch, the noise
    is the key itself.
    """

    def __call__(self, key: Key, batch_size: int) -> Noise: ...


class UpdateFn(Protocol):
    """Apply one gradient update from a batch `[B, ...]`; for an on-policy agent, all epochs over a rollout `[T, E,
    ...]`.

    Args:
      state: the state before the update.
      hyper: the member's hyper-parameters.
      batch: the transitions.
      noise: the result of `NoiseFn`.
      step: `[]` int32, number of updates before this one. It is one scalar for the whole population and never batched,
        so that `lax.cond(step % delay == 0, ...)` stays a branch that can be skipped.

    Returns:
      The new state, and metrics `[]`.
    """

    def __call__(
        self, state: State, hyper: Hyper, batch: Transition, noise: Noise, step: Array
    ) -> tuple[State, Metrics]: ...


class KeepFn(Protocol):
    """Return the data to store in `Transition.extras`: any pytree with the same structure for every step."""

    def __call__(self, step: Step) -> PyTree: ...


class ObserveFn(Protocol):
    """Update the state from the latest steps `[E, ...]`; called before these steps can be sampled for learning."""

    def __call__(self, state: State, steps: Step) -> State: ...


class MeasureFn(Protocol):
    """Return further quantities that an evaluation sums over the steps of an episode: name -> `[]`.

    `step.final_observation` is preprocessed like the observations that the agent acts on.
    """

    def __call__(self, params: Params, step: Step) -> Mapping[str, Array]: ...


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


class IntrinsicReward(NamedTuple):
    """The functions that a learner calls for an agent that computes its own reward."""

    keep: KeepFn
    observe: ObserveFn
    measure: MeasureFn
    conclude: ConcludeFn


class Agent(NamedTuple):
    """A learning algorithm for one member."""

    init: InitFn
    start: StartFn
    explore: ExploreFn
    act: ActFn
    noise: NoiseFn
    update: UpdateFn
    space: Space
    """The default search space; its `defaults` are the default hyper-parameters."""
    intrinsic_reward: IntrinsicReward | None = None
    """None: the agent learns from the environment's reward, and its return is the fitness."""
    memory_size: int = 0
    """Size of the memory that is carried from step to step, see `envs/wrappers/recurrence.py`."""
    team: str = ""
    """How the agents of a team share parameters, "independent" or "shared"; empty for a single agent."""
    minibatches: int = 0
    """Number of minibatches of a rollout for an on-policy agent; 0 for an off-policy agent."""
    normalize: bool = False
    """Whether an on-policy agent normalises observations by default."""


def check_hidden_sizes(
    hidden_sizes: tuple[int, ...], critic_hidden_sizes: tuple[int, ...] | None = None, name: str = "hidden_sizes"
) -> None:
    """Check that every layer has units.

    Args:
      hidden_sizes: units of each layer.
      critic_hidden_sizes: units of each layer of the critic, if they differ.
      name: name of the setting that `hidden_sizes` comes from.

    Raises:
      ValueError: a size is below 1.
    """
    for setting, sizes in ((name, hidden_sizes), ("critic_hidden_sizes", critic_hidden_sizes or ())):
        if min(sizes, default=1) < 1:
            raise ValueError(f"{setting} must all be at least 1, got {sizes}.")


def check_output_scale(output_scale: float) -> None:
    """Check the variance scale of a policy's last layer.

    Raises:
      ValueError: the scale is not above 0.
    """
    if output_scale <= 0:
        raise ValueError(f"output_scale must be above 0, got {output_scale}.")


def check_continuous(spec: EnvSpec, agent: str) -> None:
    """Check that the environment has continuous actions.

    Raises:
      ValueError: the actions are discrete; the message names the agent and the environment.
    """
    if spec.discrete:
        raise ValueError(f"{agent} needs continuous actions, but {spec.name} has {spec.action_size} discrete ones.")


class HasParams(Protocol):
    """The attribute that every agent's `State` has: its parameters."""

    @property
    def params(self) -> Params:
        """The parameters that can be copied into other members."""
        ...
