"""The waist of the minds: `Agent(init, start, explore, act, noise, update)`, everything for ONE member.

This page is the tutorial of the room. An agent is six pure functions over three nouns that never mix:

- `Config`, a frozen dataclass: static, decides shapes. The factory (`sac.sac(spec, config)`) validates and binds it.
- `Hyper`, a NamedTuple of `[]` leaves: traced, so a population can hold a different value per member, and change it.
- `State`, a NamedTuple: what is learned. It contains `params`, the genome that can be copied elsewhere.

To add an agent, write one file in the order of `sac.py`: source, `Config`, `Hyper` and its space, `State`, losses,
`update`, factory. Never store a key in the state, never read a hyper-parameter from the config, and put the agent into
the contract suite (`tests/test_agents.py`), which checks all of that.
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
    """What an on-policy agent is told of a step besides the rest, in `Transition.extras`."""

    log_prob: Array  # [] of the action when it was drawn, in nats
    ended: Array  # [] bool: what follows in time is another episode
    counts: Array  # [] bool: False where the agent's task had ended before, while those of others went on
    accumulated: Array  # [] discounted sum of the rewards of its episode so far


class InitFn(Protocol):
    """Draw a genome; the key is consumed."""

    def __call__(self, key: Key) -> Params: ...


class StartFn(Protocol):
    """Bring a genome to life: fresh targets and optimiser. The only way from `Params` to `State`."""

    def __call__(self, params: Params) -> State: ...


class ExploreFn(Protocol):
    """An action `[A]` to learn from, given an observation `[O]`, and what else must be stored with it (an on-policy
    agent's log density `[]`; `()` for an off-policy agent). The key is consumed.

    Of an agent with a memory, observations end in it and actions are `envs.memory.ActionWithCarry`.
    """

    def __call__(self, state: State, hyper: Hyper, observation: Array, key: Key) -> tuple[Array, Extras]: ...


class ActFn(Protocol):
    """The deterministic action `[A]` for an observation `[O]`, for evaluation. Takes the genome, not the state."""

    def __call__(self, params: Params, observation: Array) -> Array: ...


class NoiseFn(Protocol):
    """All the randomness that an update consumes, leaves `[batch_size, ...]`: for each row a draw of its own.

    Apart from `update` so that a block of U updates draws its noise in one call, for U x B rows, and cuts it into
    batches (1.1 to 1.35 times the speed). Of an on-policy agent, who shuffles all rows in every epoch: the key itself.
    """

    def __call__(self, key: Key, batch_size: int) -> Noise: ...


class UpdateFn(Protocol):
    """One gradient update from a batch of `[B, ...]`; of an on-policy agent, all epochs over a rollout `[T, E, ...]`.

    Args:
      step: `[]` int32, number of updates before this one. One scalar for the whole population and never batched, so
        that `lax.cond(step % delay == 0, ...)` stays a branch that is really skipped.
    """

    def __call__(
        self, state: State, hyper: Hyper, batch: Transition, noise: Noise, step: Array
    ) -> tuple[State, Metrics]: ...


class KeepFn(Protocol):
    """What a transition should carry besides, in `Transition.extras`: any pytree, the same for every step."""

    def __call__(self, step: Step) -> PyTree: ...


class ObserveFn(Protocol):
    """Take notice of the steps `[E, ...]` just made, all at once; called before they can be learned from."""

    def __call__(self, state: State, steps: Step) -> State: ...


class MeasureFn(Protocol):
    """What an evaluation should sum up over the steps of an episode besides the reward: name -> `[]`.

    `step.final_observation` is shown as the agent is shown observations.
    """

    def __call__(self, params: Params, step: Step) -> Mapping[str, Array]: ...


class ConcludeFn(Protocol):
    """Judge by whole episodes.

    Args:
      sums: name -> `[N]`, what was measured.
      returns: `[N]`, of the environment's own reward.
      lengths: `[N]` int32, steps.

    Returns:
      The fitness `[]`, and what should be told of each episode, name -> `[N]`.
    """

    def __call__(
        self, sums: Mapping[str, Array], returns: Array, lengths: Array
    ) -> tuple[Array, Mapping[str, Array]]: ...


class IntrinsicReward(NamedTuple):
    """What an agent that makes its own reward asks of its life."""

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
    space: Space  # the default search space; its `defaults` are the default hyper-parameters
    intrinsic_reward: IntrinsicReward | None = (
        None  # None: it learns from the environment's reward, and is judged by it
    )
    memory_size: int = 0  # numbers that it notes in each step, see `envs/wrappers/recurrence.py`
    team: str = ""  # how the agents of a team share parameters, "independent" or "shared"; empty: for one agent alone
    minibatches: int = 0  # parts that an on-policy agent cuts a rollout into; 0 for one that learns off-policy
    normalize: bool = False  # whether an on-policy agent sees normalised observations where nobody says


def check_hidden_sizes(
    hidden_sizes: tuple[int, ...], critic_hidden_sizes: tuple[int, ...] | None = None, name: str = "hidden_sizes"
) -> None:
    """Refuse layers without units.

    Args:
      hidden_sizes: units of each layer.
      critic_hidden_sizes: likewise, where a critic has others.
      name: what the setting of the first is called.

    Raises:
      ValueError: a size is below 1.
    """
    for called, sizes in ((name, hidden_sizes), ("critic_hidden_sizes", critic_hidden_sizes or ())):
        if min(sizes, default=1) < 1:
            raise ValueError(f"{called} must all be at least 1, got {sizes}.")


def check_output_scale(output_scale: float) -> None:
    """Refuse a policy whose last weights cannot be drawn.

    Raises:
      ValueError: the scale is not above 0.
    """
    if output_scale <= 0:
        raise ValueError(f"output_scale must be above 0, got {output_scale}.")


def check_continuous(spec: EnvSpec, agent: str) -> None:
    """Refuse a world with discrete actions.

    Raises:
      ValueError: the sentence names the agent and the world.
    """
    if spec.discrete:
        raise ValueError(f"{agent} needs continuous actions, but {spec.name} has {spec.action_size} discrete ones.")


class HasParams(Protocol):
    """What every agent's `State` offers: its genome."""

    @property
    def params(self) -> Params:
        """The genome."""
        ...
