"""Metrics stored in the metadata of checkpoints, for training without a run directory."""

import os
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from rookery.storage import manifest
from rookery.storage.checkpoint import Checkpointer
from rookery.types import Array, PyTree


class CheckpointManager(Checkpointer):
    """All checkpoints of an agent, with the documented names of their steps.

    Incomplete checkpoints are removed where a training begins, not before: another process may train in the folder.
    """

    all_steps = Checkpointer.complete_generations
    latest_step = Checkpointer.latest

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        Checkpointer.__init__(self, directory, keep=10**9, read_only=True)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._read_only = False

    def __enter__(self) -> "CheckpointManager":
        self._remove_incomplete()
        return self


def save(store: Checkpointer, step: int, state: PyTree, metrics: Mapping[str, Array]) -> None:
    """Save a checkpoint with its metrics, numbers of any shape. See `Checkpointer.save` for errors."""
    store.save(step, state, {name: np.asarray(value).tolist() for name, value in metrics.items()})


def read(store: Checkpointer) -> tuple[list[int], dict[str, Array]]:
    """Read the steps, ascending, and the metrics `[checkpoints, ...]` of all complete checkpoints, whose files are
    verified; without those that some lack or have in another shape, as where the number of episodes has changed."""
    steps = store.complete_generations()
    rows = [manifest.read(store.directory, step)["metadata"] for step in steps]
    shapes = [{name: np.shape(value) for name, value in row.items()} for row in rows]
    names = [name for name in (rows[0] if rows else ()) if all(row.get(name) == shapes[0][name] for row in shapes)]
    return steps, {name: jnp.asarray([row[name] for row in rows]) for name in names}
