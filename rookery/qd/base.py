"""The waists of quality diversity: `Scoring`, what a genotype is worth, and `Emitter`, where new ones come from.

MAP-Elites is the loop between them: ask the emitter, evaluate, add to the repertoire, tell the emitter. An emitter may
keep a population of its own that lives on between generations (`members`, divided over devices like any population).
"""

from typing import NamedTuple, Protocol

from rookery.envs.base import DescriptorSpec
from rookery.qd.repertoire import Repertoire
from rookery.types import Evaluation, Key, Metrics, PyTree

Bank = PyTree
"""Start states `[K, ...]` that everybody of a generation is judged from; `()` for a scoring function."""


class InitGenotypeFn(Protocol):
    """Draw a genotype that descends from nobody; the key is consumed."""

    def __call__(self, key: Key, bank: Bank) -> PyTree: ...


class StartStatesFn(Protocol):
    """Draw a generation's start states; the key is consumed."""

    def __call__(self, key: Key) -> Bank: ...


class EvaluateFn(Protocol):
    """Judge one genotype; the key is consumed."""

    def __call__(self, genotype: PyTree, bank: Bank, key: Key) -> Evaluation: ...


class Scoring(NamedTuple):
    """What is searched: for ONE genotype."""

    name: str  # of the task
    init_genotype: InitGenotypeFn
    start_states: StartStatesFn
    evaluate: EvaluateFn
    descriptor: DescriptorSpec
    qd_offset: float  # the fitness that counts as 0 in a QD score
    steps: int  # environment steps of an evaluation at its longest; 1 for a function
    bounds: tuple[float, float] | None = None  # between which a genotype's floating-point numbers are kept


class EmitterState(NamedTuple):
    """Where an emitter stands."""

    members: PyTree  # leaves [P, ...], a population that lives on; () without one
    shared: PyTree  # small


class EmitterInitFn(Protocol):
    """The state before the first generation; the key is consumed."""

    def __call__(self, key: Key, bank: Bank) -> EmitterState: ...


class AskFn(Protocol):
    """Propose B genotypes `[B, ...]`; the key is consumed. An empty repertoire must be answered with newborns.

    Returns:
      The state, the genotypes, and metrics `[]` or `[P]`.
    """

    def __call__(
        self, state: EmitterState, repertoire: Repertoire, bank: Bank, key: Key
    ) -> tuple[EmitterState, PyTree, Metrics]: ...


class TellFn(Protocol):
    """Hear what the proposals were worth: their evaluation `[B, ...]`, fitness NaN where they are not sound.

    Returns:
      The state, and metrics `[]` or `[P]`; an emitter with a population gives its `fitness` `[P]`.
    """

    def __call__(self, state: EmitterState, evaluation: Evaluation) -> tuple[EmitterState, Metrics]: ...


class Emitter(NamedTuple):
    """Where new genotypes come from."""

    init: EmitterInitFn
    ask: AskFn
    tell: TellFn
    batch_size: int  # B
    population_size: int = 0  # P; of several populations side by side, the greatest number that divides them all
    steps: int = 0  # environment steps that its population learns from in a generation
