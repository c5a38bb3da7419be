"""The exchange of an island: publish, choose from what others published, record the choice, load it."""

import warnings
from typing import NamedTuple

import jax
import numpy as np

from rookery.islands import migration as migrations
from rookery.islands.migration import Migration, Published
from rookery.islands.store import Header, Publication, Store, StoreError
from rookery.populations.base import ProgramState
from rookery.storage.island_files import Exchange, Import, ImportJournal, IslandWarning
from rookery.types import Key

_EXCHANGE = 0x69736C65  # folded into the key of a run; larger than any index of a split of the same key


class Schedule(NamedTuple):
    """When an island exchanges."""

    every: int  # generations between two exchanges
    after: int  # generations at the start without exchange: no member has made an update
    steps: int  # environment steps of one member in a generation

    def due(self, generation: int) -> bool:
        """Whether there is an exchange after this number of finished generations."""
        return generation % self.every == 0 and generation > self.after


class Island:
    """The exchange of one island, an `ExchangeFn` of its training loop.

    The choice is recorded before it is loaded, so that an island that is killed repeats it when it is resumed: the
    random numbers are those of the seed and the generation, and a publication never changes.

    Args:
      number: of the island.
      seed: of its run.
      migration: publishes, chooses and loads genotypes.
      schedule: the generations with an exchange.
      store: the publications.
      journal: the exchanges of this island.
      replays: only repeat what the journal has recorded, publish nothing, and raise an error instead of a warning.
    """

    def __init__(
        self,
        number: int,
        seed: int,
        migration: Migration,
        schedule: Schedule,
        store: Store,
        journal: ImportJournal,
        replays: bool = False,
    ):
        self._number, self._migration, self._schedule = number, migration, schedule
        self._store, self._journal, self._replays = store, journal, replays
        self._key = jax.random.fold_in(jax.random.key(seed), _EXCHANGE)
        self._warned: set[str] = set()

    def __call__(self, generation: int, state: ProgramState) -> ProgramState:
        """Exchange after a number of finished generations; see `ExchangeFn`."""
        if not self._schedule.due(generation):
            return state
        keys = jax.random.split(jax.random.fold_in(self._key, generation), 3)
        name = self._publish(generation, state, keys[0])
        recorded = self._journal.recorded(generation)
        if self._replays:
            _check_repeated(generation, recorded, name)
        exchange, chosen = self._repeat(recorded) if recorded else self._choose(generation, state, keys[1], name)
        if exchange is not recorded and not self._record(exchange):
            return state
        return self._migration.load(state, chosen, keys[2]) if chosen else state

    def _publish(self, generation: int, state: ProgramState, key: Key) -> str | None:
        found = self._migration.publish(state, key)
        if found is None:
            return None
        best = int(np.argmax(found.fitness))
        hyper = migrations.hyper_of(found, best)
        experience, fitness = generation * self._schedule.steps, float(found.fitness[best])
        header = Header(self._number, generation, experience, fitness, hyper, found.member)
        publication = Publication(header, migrations.arrays_of(found))
        try:
            return self._store.publish(publication)
        except StoreError as error:
            if self._replays:
                raise
            self._warn(str(error))
            return None

    def _choose(
        self, generation: int, state: ProgramState, key: Key, published: str | None
    ) -> tuple[Exchange, dict[int, Published]]:
        """Choose from the newest publications of all others; one that is damaged is left out, and the choice is made
        again."""
        experience = generation * self._schedule.steps
        headers, notes = self._store.newest(self._number, experience)
        if self._migration.keeps_elites:  # adding elites twice has no effect
            known = {entry.file for exchange in self._journal.before(generation) for entry in exchange.imports}
            headers = {name: header for name, header in headers.items() if name not in known}
        while True:
            names = [*headers]
            slots = self._migration.choose(state, [header.fitness for header in headers.values()], key)
            taken: dict[str, Published] = {}
            for name in dict.fromkeys(names[index] for index in slots.values()):
                try:
                    taken[name] = self._read(name)
                except StoreError as error:
                    notes.append(str(error))
                    del headers[name]
            if len(names) == len(headers):
                break
        chosen = {slot: taken[names[index]] for slot, index in slots.items()}
        imports = tuple(self._entry(slot, headers[names[index]], names[index]) for slot, index in slots.items())
        return Exchange(generation, experience, published, imports, tuple(notes)), chosen

    def _entry(self, slot: int, header: Header, name: str) -> Import:
        place = None if self._migration.keeps_elites else slot
        return Import(header.island, header.generation, name, place, header.fitness, header.member)

    def _repeat(self, recorded: Exchange) -> tuple[Exchange, dict[int, Published]]:
        """The genotypes of a recorded exchange; those that are missing now are left out, unless it is a replay."""
        chosen, kept, notes = {}, [], list(recorded.notes)
        for index, entry in enumerate(recorded.imports):
            try:
                chosen[-1 - index if entry.slot is None else entry.slot] = self._read(entry.file)
                kept.append(entry)
            except StoreError as error:
                if self._replays:
                    raise
                notes.append(str(error))
        complete = len(kept) == len(recorded.imports)
        return recorded if complete else recorded._replace(imports=tuple(kept), notes=tuple(notes)), chosen

    def _read(self, name: str) -> Published:
        return migrations.published_in(self._store.read(name), self._migration.template, name)

    def _record(self, exchange: Exchange) -> bool:
        self._warn(*exchange.notes)
        try:
            self._journal.append(exchange)
        except OSError as error:
            self._warn(
                f"imports.jsonl of island {self._number} cannot be written to ({error.strerror or error}), so nothing "
                "is imported at present; it goes on training, and tries again at the next exchange."
            )
            return False
        return True

    def _warn(self, *sentences: str) -> None:
        for sentence in set(sentences) - self._warned:
            self._warned.add(sentence)
            warnings.warn(f"island {self._number}: {sentence}", IslandWarning, stacklevel=3)


def _check_repeated(generation: int, recorded: Exchange | None, published: str | None) -> None:
    """Raise a StoreError unless a replay publishes what the island published, and the exchange is recorded."""
    if recorded is None:
        raise StoreError(f"the exchange after generation {generation} is not recorded, so it cannot be repeated.")
    if recorded.published not in (None, published):
        raise StoreError(
            f"after generation {generation} the island published {recorded.published}, and the replay {published}."
        )
