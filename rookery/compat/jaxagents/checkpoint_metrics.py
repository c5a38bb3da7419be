"""What was measured at each checkpoint, kept in the checkpoints themselves, for trainings that have no run folder."""

import contextlib
import itertools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from rookery.compat.jaxagents import stages
from rookery.storage import manifest
from rookery.storage.checkpoint import Checkpointer
from rookery.training import progress
from rookery.types import Array, PyTree

ALL = 10**9
"""How many checkpoints to keep where none is to go."""


def save(store: Checkpointer, step: int, state: PyTree, measured: Mapping[str, Array]) -> None:
    """A checkpoint with what was measured there, numbers of any shape. See `Checkpointer.save` for errors."""
    store.save(step, state, {name: np.asarray(value).tolist() for name, value in measured.items()})


def read(store: Checkpointer) -> tuple[list[int], dict[str, Array]]:
    """The steps of all whole checkpoints, ascending, and what was measured at each, `[checkpoints, ...]`; nothing
    where there is none. Reads every byte of them."""
    steps = store.whole_generations()
    rows = [manifest.read(store.directory, step)["metadata"] for step in steps]
    return steps, {name: jnp.asarray([row[name] for row in rows]) for name in (rows[0] if rows else ())}


def train(
    stage: stages.Stage, counts: list[int], begun: tuple[Any, Any], store: Checkpointer | None = None, done: int = 0
) -> tuple[Any, PyTree]:
    """A life in stages on the host, with a bar on a terminal, and a checkpoint at every stage's end.

    Args:
      stage: compiled.
      counts: updates of each stage.
      begun: where one begins, and what is measured there; a checkpoint too where nothing was done before.
      store: None writes nothing.
      done: updates before these.

    Returns:
      As `by_stages.watched`.
    """
    steps = iter(itertools.accumulate(counts, initial=done))
    with progress.bar("updates", sum(counts)) as moved, store or contextlib.nullcontext():

        def tell(count: int, now: Any, measured: Mapping[str, Array]) -> None:
            moved(count)
            step = next(steps)
            if store and (count or not done):
                save(store, step, now, measured)

        tell(0, *begun)
        return stages.watched(stage, counts, *begun, tell)
