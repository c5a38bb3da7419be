"""An emitter's `ask` in stages, for emitters that train a population before proposing; see `populations.stages`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rookery.populations.stages import Work
from rookery.qd.base import AskFn, Bank, EmitterState
from rookery.qd.repertoire import Repertoire
from rookery.types import Array, Key, Metrics, PyTree


@dataclass(frozen=True, eq=False)
class StagedAsk:
    """An `AskFn` in stages."""

    begin: Callable[[EmitterState, Repertoire, Bank, Key], tuple[EmitterState, Work]]
    """The stage before training; it consumes the key of the whole call."""
    advance: Callable[[EmitterState, Work, Array | int, Array | int], tuple[EmitterState, Work]]
    """Train for the iterations from the first number to the second, exclusive."""
    propose: Callable[[EmitterState, Work, Repertoire], tuple[EmitterState, PyTree, Metrics]]
    """The stage after training, which creates the proposals."""
    iterations: int
    """Training iterations in a generation; 0 for an emitter without training."""

    def __call__(
        self, state: EmitterState, repertoire: Repertoire, bank: Bank, key: Key
    ) -> tuple[EmitterState, PyTree, Metrics]:
        """Run all stages: the `AskFn`."""
        state, work = self.begin(state, repertoire, bank, key)
        if self.iterations:
            state, work = self.advance(state, work, 0, self.iterations)
        return self.propose(state, work, repertoire)


def staged_ask(ask: AskFn) -> StagedAsk:
    """Return an `AskFn` in stages; a plain function becomes a single stage."""
    return ask if isinstance(ask, StagedAsk) else StagedAsk(_keep, _advance_nothing, partial(_ask, ask), 0)


def _keep(state: EmitterState, repertoire: Repertoire, bank: Bank, key: Key) -> tuple[EmitterState, Work]:
    del repertoire
    return state, Work(shared=(bank, key))


def _advance_nothing(
    state: EmitterState, work: Work, first: Array | int, last: Array | int
) -> tuple[EmitterState, Work]:
    del first, last
    return state, work


def _ask(ask: AskFn, state: EmitterState, work: Work, repertoire: Repertoire) -> tuple[EmitterState, PyTree, Metrics]:
    return ask(state, repertoire, *work.shared)
