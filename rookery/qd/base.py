"""The interfaces of quality diversity: `Scoring` evaluates genotypes, `Emitter` proposes new ones.

MAP-Elites connects them: ask the emitter, evaluate, add to the repertoire, tell the emitter. An emitter may keep a
population between generations (`members`, sharded over devices like any population).
"""

from typing import NamedTuple, Protocol

from rookery.envs.base import DescriptorSpec
from rookery.qd.repertoire import Repertoire
from rookery.types import Evaluation, Key, Metrics, PyTree

Bank = PyTree
"""Start states `[K, ...]` from which all genotypes of a generation are evaluated; `()` for a scoring function."""


class InitGenotypeFn(Protocol):
    """Sample an initial genotype, which has no parent; the key is consumed."""

    def __call__(self, key: Key, bank: Bank) -> PyTree: ...


class StartStatesFn(Protocol):
    """Sample the start states of a generation; the key is consumed."""

    def __call__(self, key: Key) -> Bank: ...


class EvaluateFn(Protocol):
    """Evaluate one genotype; the key is consumed."""

    def __call__(self, genotype: PyTree, bank: Bank, key: Key) -> Evaluation: ...


class Scoring(NamedTuple):
    """The search problem: initial genotypes and their evaluation. All functions are for one genotype."""

    name: str
    """Name of the task."""
    init_genotype: InitGenotypeFn
    start_states: StartStatesFn
    evaluate: EvaluateFn
    descriptor: DescriptorSpec
    qd_offset: float
    """The fitness that counts as 0 in the QD score."""
    steps: int
    """Maximum number of environment steps of an evaluation; 1 for a function."""
    bounds: tuple[float, float] | None = None
    """Lower and upper bound to which a genotype's floating-point numbers are clipped."""


class EmitterState(NamedTuple):
    """The state of an emitter between two generations."""

    members: PyTree
    """Leaves `[P, ...]`, the population that the emitter keeps between generations; () without one."""
    shared: PyTree
    """Small arrays that are replicated on every device."""


class EmitterInitFn(Protocol):
    """Create the state before the first generation; the key is consumed."""

    def __call__(self, key: Key, bank: Bank) -> EmitterState: ...


class AskFn(Protocol):
    """Propose B genotypes `[B, ...]`; the key is consumed. If the repertoire is empty, it proposes initial genotypes.

    Returns:
      The state, the genotypes, and metrics `[]` or `[P]`.
    """

    def __call__(
        self, state: EmitterState, repertoire: Repertoire, bank: Bank, key: Key
    ) -> tuple[EmitterState, PyTree, Metrics]: ...


class TellFn(Protocol):
    """Receive the evaluation `[B, ...]` of the proposals; the fitness of a rejected proposal is NaN.

    Returns:
      The state, and metrics `[]` or `[P]`; an emitter with a population reports its `fitness` `[P]`.
    """

    def __call__(self, state: EmitterState, evaluation: Evaluation) -> tuple[EmitterState, Metrics]: ...


class Emitter(NamedTuple):
    """Proposes new genotypes and receives their evaluation."""

    init: EmitterInitFn
    ask: AskFn
    tell: TellFn
    batch_size: int
    """B, the number of proposals per generation."""
    population_size: int = 0
    """P, the size of the population that it keeps; for several populations, their greatest common divisor."""
    steps: int = 0
    """Environment steps in which its population is trained in a generation."""
