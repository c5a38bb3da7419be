"""An emitter's `ask` in stages, for emitters that train a population before proposing; see `populations.stages`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic

from rookery.populations.stages import Work, advance_nothing
from rookery.qd.base import AskFn, Bank, EmitterStateT, emitted
from rookery.qd.repertoire import Repertoire
from rookery.types import Array, GenotypeT, Key, Metrics


@dataclass(frozen=True, eq=False)
class StagedAsk(Generic[EmitterStateT, GenotypeT]):
    """An `AskFn` in stages."""

    begin: Callable[[EmitterStateT, Repertoire[GenotypeT], Bank, Key], tuple[EmitterStateT, Work]]
    """The stage before training; it consumes the key of the whole call."""
    advance: Callable[[EmitterStateT, Work, Array | int, Array | int], tuple[EmitterStateT, Work]]
    """Train for the iterations from the first number to the second, exclusive."""
    propose: Callable[[EmitterStateT, Work, Repertoire[GenotypeT]], tuple[EmitterStateT, GenotypeT, Metrics]]
    """The stage after training, which creates the proposals."""
    iterations: int
    """Training iterations in a generation; 0 for an emitter without training."""

    def __call__(
        self, state: EmitterStateT, repertoire: Repertoire[GenotypeT], bank: Bank, key: Key
    ) -> tuple[EmitterStateT, GenotypeT, Metrics]:
        """Run all stages: the `AskFn`."""
        state, work = self.begin(state, repertoire, bank, key)
        if self.iterations:
            state, work = self.advance(state, work, 0, self.iterations)
        return self.propose(state, work, repertoire)


def staged_ask(ask: AskFn[EmitterStateT, GenotypeT]) -> StagedAsk[EmitterStateT, GenotypeT]:
    """Return an `AskFn` in stages; a plain function becomes a single stage."""
    return ask if isinstance(ask, StagedAsk) else StagedAsk(_keep, advance_nothing, partial(_ask, ask), 0)


def _keep(state: EmitterStateT, repertoire: Repertoire, bank: Bank, key: Key) -> tuple[EmitterStateT, Work]:
    del repertoire
    return state, Work(shared=(bank, key))


def _ask(
    ask: AskFn[EmitterStateT, GenotypeT], state: EmitterStateT, work: Work, repertoire: Repertoire[GenotypeT]
) -> tuple[EmitterStateT, GenotypeT, Metrics]:
    return emitted("ask", ask(state, repertoire, *work.shared), ("genotypes", "metrics"), state)
