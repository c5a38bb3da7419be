"""Metrics stored in the metadata of checkpoints, for training without a run directory."""

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
    stage: stages.StageFn, counts: list[int], initial: tuple[Any, Any], store: Checkpointer | None = None, done: int = 0
) -> tuple[Any, PyTree]:
    """Train stage by stage on the host, with a progress bar on a terminal and a checkpoint after every stage.

    Args:
      stage: compiled function of one stage.
      counts: updates of each stage.
      initial: the initial state and its metrics; they are saved as a checkpoint if `done` is 0.
      store: where checkpoints are written; None writes none.
      done: number of updates before this training.

    Returns:
      As `stages.run_stages`.
    """
    steps = iter(itertools.accumulate(counts, initial=done))
    with progress.bar("updates", sum(counts)) as advance, store or contextlib.nullcontext():

        def report(count: int, state: Any, metrics: Mapping[str, Array]) -> None:
            advance(count)
            step = next(steps)
            if store and (count or not done):
                save(store, step, state, metrics)

        report(0, *initial)
        return stages.run_stages(stage, counts, *initial, report)
