"""The learner interface: `Learner`, the training of one member from initialisation to evaluation.

A learner binds an agent, an environment and a buffer. It is written for one member; a program maps it over many. Start
states are drawn once per generation for the whole population (`start_states`) and passed in: resets pick from them, and
every member is evaluated on the same start states.
"""

from typing import NamedTuple, Protocol

from rookery.envs.base import EnvSpec
from rookery.hyperparams import Space
from rookery.types import Array, Evaluation, Genotype, Hyper, Key, Metrics, PyTree


class Member(NamedTuple):
    """One member of a population. A child inherits the first three fields; the last two stay in the slot."""

    state: PyTree
    """The agent's `State`."""
    hyper: Hyper
    """The member's hyper-parameters."""
    normalizer: PyTree
    """Running statistics of the observations, or None."""
    env_state: PyTree
    """Environment states and observations, `[E, ...]`."""
    buffer: PyTree
    """The transitions that the member learns from."""


Bank = PyTree
"""Start states and their first steps, `[K, ...]`."""


class StartStatesFn(Protocol):
    """Draw the start states of a generation; the key is consumed."""

    def __call__(self, key: Key) -> Bank: ...


class InitFn(Protocol):
    """Initialise a member with the given hyper-parameters; the key is consumed."""

    def __call__(self, key: Key, hyper: Hyper, bank: Bank) -> Member: ...


class LoadGenotypeFn(Protocol):
    """Load a genotype into a slot, with new targets and optimisers; the slot keeps its data. The only way to do so."""

    def __call__(self, member: Member, genotype: Genotype) -> Member: ...


class RestartFn(Protocol):
    """Where `needed` (`[]` bool), reset environments and empty the buffer, for a slot whose member diverged."""

    def __call__(self, member: Member, bank: Bank, key: Key, needed: Array) -> Member: ...


class StepFn(Protocol):
    """Train for one generation: repeatedly collect transitions, store them and learn.

    Args:
      member: the member to train.
      bank: start states of the generation.
      key: consumed.
      generation: `[]` int32, never batched, so that conditions on warm-up and delayed updates stay branches.

    Returns:
      The trained member, and metrics `[]`.
    """

    def __call__(self, member: Member, bank: Bank, key: Key, generation: Array) -> tuple[Member, Metrics]: ...


class EvaluateFn(Protocol):
    """Run full deterministic episodes from the first N start states of the bank; stores no transitions."""

    def __call__(self, genotype: Genotype, bank: Bank, key: Key) -> Evaluation: ...


class TraceFn(Protocol):
    """Record the descriptors of the states that the evaluation's episodes visit.

    Returns:
      Descriptors `[N, T + 1, D]`, starting with that of the start state; and `[N, T + 1]` bool, whether the state was
      reached before the episode ended.
    """

    def __call__(self, genotype: Genotype, bank: Bank, key: Key) -> tuple[Array, Array]: ...


class Learner(NamedTuple):
    """The training loop of one member, as functions."""

    start_states: StartStatesFn
    init: InitFn
    load_genotype: LoadGenotypeFn
    restart: RestartFn
    step: StepFn
    evaluate: EvaluateFn
    spec: EnvSpec
    """Spec of the environment."""
    space: Space
    """The agent's default search space."""
    steps_per_generation: int
    """Environment steps of one member per generation."""
    evaluation_steps: int = 1
    """Maximum number of environment steps of an evaluation."""
    trace: TraceFn | None = None
    """None if the episodes cannot be traced."""
    team: str = ""
    """How the agents of a team share parameters, see `agents.base.Agent`."""
    untrained_generations: int = 0
    """Initial generations of a run without any update, after which selection would be meaningless."""


def genotype(member: Member) -> Genotype:
    """Return the part of a member that can be copied into another member."""
    return Genotype(member.state.params, member.hyper, member.normalizer)
