"""The waist of the lives: `Learner`, one member from its birth to its evaluation.

A learner binds an agent, an environment and a buffer. It is written for one member; a program maps it over many. Start
states are drawn once per generation for the whole population (`start_states`) and passed in: resets pick from them,
and every member is judged on the same ones.
"""

from typing import NamedTuple, Protocol

from rookery.envs.base import EnvSpec
from rookery.hyperparams import Space
from rookery.types import Array, Evaluation, Genotype, Hyper, Key, Metrics, PyTree


class Member(NamedTuple):
    """One life. The first three fields are what a child inherits; the last two stay with the slot."""

    state: PyTree  # the agent's `State`
    hyper: Hyper
    normalizer: PyTree  # running statistics of the observations, or None
    env_state: PyTree  # environment states and observations, [E, ...]
    buffer: PyTree  # the transitions it learns from


Bank = PyTree
"""Start states and their first steps, `[K, ...]`."""


class StartStatesFn(Protocol):
    """Draw a generation's start states; the key is consumed."""

    def __call__(self, key: Key) -> Bank: ...


class InitFn(Protocol):
    """A newborn with the given hyper-parameters; the key is consumed."""

    def __call__(self, key: Key, hyper: Hyper, bank: Bank) -> Member: ...


class LoadGenotypeFn(Protocol):
    """Let a genotype live in this slot: fresh targets and optimiser, the slot's data. The only way in."""

    def __call__(self, member: Member, genotype: Genotype) -> Member: ...


class RestartFn(Protocol):
    """Where `needed` (`[]` bool): fresh environment states and an empty buffer, for a slot whose member diverged."""

    def __call__(self, member: Member, bank: Bank, key: Key, needed: Array) -> Member: ...


class StepFn(Protocol):
    """One generation of learning: collect, store, learn, over and over.

    Args:
      generation: `[]` int32, never batched, so that warm-up and delayed updates stay branches.
    """

    def __call__(self, member: Member, bank: Bank, key: Key, generation: Array) -> tuple[Member, Metrics]: ...


class EvaluateFn(Protocol):
    """Full deterministic episodes from the first N start states of the bank; nothing is stored."""

    def __call__(self, genotype: Genotype, bank: Bank, key: Key) -> Evaluation: ...


class TraceFn(Protocol):
    """Where the episodes of an evaluation go: descriptors of the states they reach, `[N, T + 1, D]` with that of the
    start, and which of them were reached while the episode lived, `[N, T + 1]` bool."""

    def __call__(self, genotype: Genotype, bank: Bank, key: Key) -> tuple[Array, Array]: ...


class Learner(NamedTuple):
    """The life of one member."""

    start_states: StartStatesFn
    init: InitFn
    load_genotype: LoadGenotypeFn
    restart: RestartFn
    step: StepFn
    evaluate: EvaluateFn
    spec: EnvSpec
    space: Space  # the agent's default search space
    steps_per_generation: int  # environment steps of one member
    evaluation_steps: int = 1  # environment steps of an evaluation at its longest
    trace: TraceFn | None = None  # None: nobody can follow the episodes
    team: str = ""  # how the agents of a team share parameters, see `agents.api.Agent`
    untrained_generations: int = 0  # at the start of a run, in which no update is made: nothing to select by


def genotype(member: Member) -> Genotype:
    """What of a member can be copied into another life."""
    return Genotype(member.state.params, member.hyper, member.normalizer)
