"""The files of a run: run directory, tables, event journal and checkpoints."""

from rookery.storage.checkpoint import CheckpointError
from rookery.storage.run_dir import open_existing

__all__ = ["CheckpointError", "open_existing"]
