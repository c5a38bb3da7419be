"""Repertoires outside of a run: taken from a run's folder, saved to one file, loaded for the task they are of."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.distributed import mesh, programs
from rookery.experiments import build, config_io
from rookery.populations.base import Program
from rookery.qd.base import Scoring
from rookery.qd.map_elites import repertoire_of
from rookery.qd.repertoire import Repertoire, empty
from rookery.storage import array_files, leaf_specs
from rookery.storage import run_dir as folder
from rookery.storage.checkpoint import Checkpointer

FORMAT = 1
"""Raised whenever an older reader would misread a newer file."""


def repertoire(run_dir: str | Path, program: Program | None = None) -> Repertoire:
    """The repertoire of a run's newest whole checkpoint, on the first device; the run is only read.

    `act(agent, nearest(repertoire("runs/me-pbt-sac-walker2d_uni-0"), (0.2, 0.8)).genotype, observation)` is what the
    policy does that comes nearest to this descriptor.

    Args:
      run_dir: the run's folder.
      program: what a run that was started from Python ran; the command line's are known by their folder.

    Raises:
      ValueError: the folder is no run, it was started from Python and no program is given, or it has no repertoire.
      CheckpointError: it has no whole checkpoint, or another program made it.
    """
    opened = folder.open_existing(run_dir)
    if program is None and opened.config.get("kind") == config_io.PYTHON:
        raise ValueError(f"{opened.path} was started from Python; give its program: repertoire(run_dir, program).")
    if program is None:
        program = build.on_one_device(config_io.from_record(opened.config)).program
    if program.table is None:
        raise ValueError(f"{opened.path} is a run of kind {opened.config['kind']}, which has no repertoire.")
    checkpoints = Checkpointer(opened.checkpoints, read_only=True)
    state, _, _ = checkpoints.restore(programs.template(program, mesh.make_mesh(1)))
    return repertoire_of(state)


def save_repertoire(path: str | Path, repertoire: Repertoire, scoring: Scoring) -> None:
    """Save a repertoire as one `.npz` file, with what it is of.

    Args:
      path: of the file; `.npz` is appended where it is missing.
      repertoire: whole, on one device or several.
      scoring: names the task and its descriptor.

    Raises:
      OSError: the file cannot be written.
    """
    named = leaf_specs.flatten(repertoire)
    header = {
        "format": FORMAT,
        "task": _task(scoring),
        "leaves": [leaf_specs.record(name, leaf) for name, leaf in named],
    }
    arrays: dict[str, Any] = {str(index): np.asarray(leaf) for index, (_, leaf) in enumerate(named)}
    half = _file(path).with_suffix(f".{os.getpid()}.npz")
    try:
        np.savez(half, **arrays, header=np.asarray(json.dumps(header)))
        half.replace(_file(path))
    finally:
        half.unlink(missing_ok=True)


def load_repertoire(path: str | Path, scoring: Scoring) -> Repertoire:
    """Load what `save_repertoire` wrote, bit by bit.

    Args:
      path: of the file.
      scoring: what it will be used for; says what a genotype is.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is no repertoire, it is damaged, it is of another task (name, descriptor, offset, or length of an
        evaluation), or its genotypes are others.
    """
    path = _file(path)
    header, arrays = array_files.read(path, FORMAT, _listed, _DAMAGED)
    task = _task(scoring)
    if header["task"] != task:
        told = "; ".join(
            f"{name} is {header['task'].get(name)} there and {task[name]} here"
            for name in task
            if header["task"].get(name) != task[name]
        )
        raise ValueError(f"{path} is the repertoire of another task: {told}; load it for that task.")
    bank = jax.eval_shape(scoring.start_states, jax.random.key(0))
    genotype = jax.eval_shape(scoring.init_genotype, jax.random.key(0), bank)
    shape = next(told["shape"] for told in header["leaves"] if told["path"] == ".centroids")
    like = jax.eval_shape(empty, genotype, jax.ShapeDtypeStruct(tuple(shape), jnp.float32))
    wanted = [leaf_specs.record(name, leaf) for name, leaf in leaf_specs.flatten(like)]
    if differences := leaf_specs.differences(header["leaves"], wanted):
        raise ValueError(
            f"the genotypes in {path} do not fit: {'; '.join(differences[:3])}; use the agent they are of."
        )
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(array) for array in arrays])


def _task(scoring: Scoring) -> dict[str, Any]:
    """What two repertoires must share, as JSON values."""
    descriptor = scoring.descriptor
    limits = {"lower": list(descriptor.lower), "upper": list(descriptor.upper)}
    told = {"name": scoring.name, "descriptor": descriptor.meaning, **limits}
    return {**told, "QD offset": scoring.qd_offset, "evaluation steps": scoring.steps}


def _file(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")


def _listed(header: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The header, and the leaves in its order."""
    return header, [arrays[str(index)] for index in range(len(header["leaves"]))]


_DAMAGED = "{path} is no repertoire, damaged, or of another version of rookery ({error}); put a copy of it back."
