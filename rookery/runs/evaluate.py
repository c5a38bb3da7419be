"""Judge what a run has learned, on fresh start states."""

import dataclasses
from pathlib import Path

import jax
import numpy as np

from rookery import devices
from rookery.runs import build, folder, record
from rookery.runs.checkpoint import Checkpointer


def evaluate(run_dir: str | Path, episodes: int = 100, seed: int = 0) -> tuple[int, dict[str, np.ndarray]]:
    """Evaluate every member of a run's newest whole checkpoint, or every elite of its repertoire.

    Args:
      run_dir: the run's folder; only read.
      episodes: full deterministic episodes of each, at least 1; all start from the same states.
      seed: of the start states.

    Returns:
      The checkpoint's generation, and the metrics of `Program.examine`: `fitness` `[P]`, `returns` `[P, N]`, `lengths`
      `[P, N]` in steps, `descriptor` `[P, D]`, and the hyper-parameters `[P]`; for a repertoire the same by cells, with
      what it claimed (`stored...`) and what it would be with these evaluations (`corrected/...`).

    Raises:
      ValueError: the folder is no run, was not started by the command line, or `episodes` is below 1.
      CheckpointError: it has no whole checkpoint.
    """
    opened = folder.open_existing(run_dir)
    recorded = record.from_record(opened.config)
    part = "evaluation" if hasattr(recorded, "evaluation") else "learner"
    told = getattr(recorded, part)
    judged = dataclasses.replace(told, eval_episodes=episodes, start_states=max(episodes, told.start_states))
    world = dataclasses.replace(recorded.world, devices=None)  # those of this machine, not of the one that trained
    built = build.build(dataclasses.replace(recorded, world=world, **{part: judged}))
    compiled = devices.compile_program(built.program, built.mesh)
    checkpoints = Checkpointer(opened.checkpoints, read_only=True)
    state, _, generation = checkpoints.restore(devices.template(built.program, built.mesh))
    return generation, jax.device_get(compiled.examine(state, jax.random.key(seed)))
