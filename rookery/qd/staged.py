"""An emitter's `ask` in stages, for emitters whose members train before they propose; see `populations.stages`."""

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
    """What happens before training; the key, which is consumed, is that of the whole call."""
    advance: Callable[[EmitterState, Work, Array | int, Array | int], tuple[EmitterState, Work]]
    """Train for the iterations from the first number up to, but without, the second."""
    propose: Callable[[EmitterState, Work, Repertoire], tuple[EmitterState, PyTree, Metrics]]
    """What happens after training."""
    iterations: int
    """Iterations of training; 0 where nothing is trained."""

    def __call__(
        self, state: EmitterState, repertoire: Repertoire, bank: Bank, key: Key
    ) -> tuple[EmitterState, PyTree, Metrics]:
        """All stages: the `AskFn`."""
        state, work = self.begin(state, repertoire, bank, key)
        if self.iterations:
            state, work = self.advance(state, work, 0, self.iterations)
        return self.propose(state, work, repertoire)


def staged_ask(ask: AskFn) -> StagedAsk:
    """Any `AskFn` in stages; one that is whole becomes a single stage."""
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
