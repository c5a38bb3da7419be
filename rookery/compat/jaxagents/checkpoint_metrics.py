"""Metrics stored in the metadata of checkpoints, for training without a run directory."""

import contextlib
from collections.abc import Callable, Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rookery import trees
from rookery.storage import manifest
from rookery.storage.checkpoint import Checkpointer
from rookery.training import progress
from rookery.types import Array, PyTree

StateT = TypeVar("StateT")
ALL = 10**9
"""Number of checkpoints to keep so that none is deleted."""


def save(store: Checkpointer, step: int, state: PyTree, metrics: Mapping[str, Array]) -> None:
    """Save a checkpoint with its metrics, numbers of any shape. See `Checkpointer.save` for errors."""
    store.save(step, state, {name: np.asarray(value).tolist() for name, value in metrics.items()})


def read(store: Checkpointer) -> tuple[list[int], dict[str, Array]]:
    """Read the steps and metrics of all complete checkpoints. All checkpoint files are read, to verify them.

    Returns:
      The steps, ascending, and the metrics `[checkpoints, ...]`; empty without a complete checkpoint.
    """
    steps = store.complete_generations()
    rows = [manifest.read(store.directory, step)["metadata"] for step in steps]
    return steps, {name: jnp.asarray([row[name] for row in rows]) for name in (rows[0] if rows else ())}


def train(
    stage: Callable[[StateT, int], tuple[StateT, PyTree]],
    counts: list[int],
    initial: tuple[StateT, PyTree],
    store: Checkpointer | None = None,
    done: int = 0,
) -> tuple[StateT, PyTree]:
    """Train stage by stage on the host, with a progress bar on a terminal and a checkpoint after every stage.

    Args:
      stage: compiled function of one stage: (state, updates) -> next state, its metrics.
      counts: updates of each stage.
      initial: the initial state and its metrics; they are saved as a checkpoint if `done` is 0.
      store: where checkpoints are written; None writes none.
      done: number of updates before this training.

    Returns:
      As `training.train`.
    """
    state, row = initial
    rows = [row]
    with progress.bar("updates", sum(counts)) as advance, store or contextlib.nullcontext():
        if store and not done:
            save(store, 0, state, row)
        for count in counts:
            state, row = jax.block_until_ready(stage(state, count))
            rows.append(row)
            advance(count)
            done += count
            if store:
                save(store, done, state, row)
    return state, trees.stack(rows)
