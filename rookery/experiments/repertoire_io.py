"""Reads the repertoire of a run, and saves and loads a repertoire as one file."""

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
from rookery.learners.base import without_data
from rookery.populations.base import Program
from rookery.qd.base import Scoring
from rookery.qd.map_elites import repertoire_of
from rookery.qd.repertoire import Repertoire, empty
from rookery.settings import user_path
from rookery.storage import array_files, leaf_specs, sources
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.island_files import best_of
from rookery.storage.record import check_rebuildable

FORMAT = 1  # version of the file format; incremented whenever an older reader would misread a newer file


def repertoire(run_dir: str | Path, program: Program | None = None) -> Repertoire:
    """Read the repertoire of a run's newest complete checkpoint onto the first device; the run is not changed.

    `act(agent, nearest(repertoire("runs/me-pbt-sac-walker2d_uni-0"), (0.2, 0.8)).genotype, observation)` is the action
    of the elite whose descriptor is nearest to (0.2, 0.8).

    Args:
      run_dir: the run directory.
      program: the program of the run, needed only if it was started from Python; that of a run started from the command
        line is rebuilt from the run directory.

    Raises:
      ValueError: the folder is no run directory, the run was started from Python and no program is given, or the run
        has no repertoire.
      CheckpointError: the run has no complete checkpoint, or the checkpoint does not match the program.

    Example:
      >>> repertoire = rookery.experiments.repertoire("runs/me-pbt-sac")
      >>> elite = rookery.qd.best(repertoire)
    """
    opened = sources.opened(best_of(run_dir))
    if program is None:
        check_rebuildable(opened.config, opened.path, "give it: repertoire(run_dir, program)")
        program = build.on_one_device(config_io.from_record(opened.config)).program
    if program.table is None:
        raise ValueError(f"{opened.path} is a run of kind {opened.config['kind']}, which has no repertoire.")
    checkpoints = Checkpointer(opened.checkpoints, read_only=True)
    template = without_data(programs.template(program, mesh.make_mesh(1)))
    state, _, _ = checkpoints.restore(template, partial=True)
    return repertoire_of(state)


def save_repertoire(path: str | Path, repertoire: Repertoire, scoring: Scoring) -> None:
    """Save a repertoire as one `.npz` file, together with the name and the descriptor of its task.

    Args:
      path: of the file; `.npz` is appended where it is missing.
      repertoire: all cells, on one device or several; thresholds of CMA-MAE are not saved.
      scoring: the scoring function of the task.

    Raises:
      OSError: the file cannot be written.

    Example:
      >>> arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
      >>> cells = rookery.qd.grid((8, 8), arm.descriptor.lower, arm.descriptor.upper)
      >>> result = rookery.run(rookery.map_elites(arm, cells), generations=2, quiet=True)
      >>> rookery.experiments.save_repertoire("arms.npz", rookery.qd.repertoire_of(result.state), arm)
    """
    repertoire = repertoire._replace(thresholds=())  # they belong to the run, not to the elites
    header = {"format": FORMAT, "task": _task(scoring), "leaves": leaf_specs.specs(repertoire)}
    header["extras"] = sorted(repertoire.extras)
    arrays: dict[str, Any] = {str(index): np.asarray(leaf) for index, leaf in enumerate(jax.tree.leaves(repertoire))}
    temporary = _file(path).with_suffix(f".{os.getpid()}.npz")
    try:
        np.savez(temporary, **arrays, header=np.asarray(json.dumps(header)))
        temporary.replace(_file(path))
    finally:
        temporary.unlink(missing_ok=True)


def load_repertoire(path: str | Path, scoring: Scoring) -> Repertoire:
    """Load a repertoire that `save_repertoire` wrote; it is bit-identical to the saved one.

    Args:
      path: of the file; `.npz` is appended where it is missing.
      scoring: the scoring function of the task that the repertoire is loaded for; it defines the genotype's shapes.

    Raises:
      OSError: the file cannot be read.
      ValueError: the file is damaged or no repertoire, its task differs (name, descriptor, QD offset or evaluation
        steps), or its genotypes have other shapes.

    Example:
      >>> arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
      >>> cells = rookery.qd.grid((8, 8), arm.descriptor.lower, arm.descriptor.upper)
      >>> result = rookery.run(rookery.map_elites(arm, cells), generations=2, quiet=True)
      >>> rookery.experiments.save_repertoire("arms.npz", rookery.qd.repertoire_of(result.state), arm)
      >>> repertoire = rookery.experiments.load_repertoire("arms.npz", arm)
    """
    path = _file(path)
    header, arrays = array_files.read(path, FORMAT, _listed, _DAMAGED)
    task = _task(scoring)
    if header["task"] != task:
        differences = "; ".join(
            f"{name} is {header['task'].get(name)} there and {task[name]} here"
            for name in task
            if header["task"].get(name) != task[name]
        )
        raise ValueError(f"{path} is the repertoire of another task: {differences}; load it for that task.")
    bank = jax.eval_shape(scoring.start_states, jax.random.key(0))
    genotype = jax.eval_shape(scoring.init_genotype, jax.random.key(0), bank)
    shape = next(leaf["shape"] for leaf in header["leaves"] if leaf["path"] == ".centroids")
    template = jax.eval_shape(empty, genotype, jax.ShapeDtypeStruct(tuple(shape), jnp.float32))
    names = header.get("extras", [])  # the last arrays
    template = template._replace(extras=dict(zip(names, arrays[len(arrays) - len(names) :], strict=True)))
    if mismatches := leaf_specs.differences(header["leaves"], leaf_specs.specs(template)):
        raise ValueError(
            f"the genotypes in {path} do not fit: {'; '.join(mismatches[:3])}; use the agent that they were saved from."
        )
    return jax.tree.unflatten(jax.tree.structure(template), [jnp.asarray(array) for array in arrays])


def _task(scoring: Scoring) -> dict[str, Any]:
    """The properties of a task that two compatible repertoires share, as JSON values."""
    descriptor = scoring.descriptor
    limits = {"lower": list(descriptor.lower), "upper": list(descriptor.upper)}
    task = {"name": scoring.name, "descriptor": descriptor.meaning, **limits}
    return {**task, "QD offset": scoring.qd_offset, "evaluation steps": scoring.steps}


def _file(path: str | Path) -> Path:
    path = user_path(path)
    return path if path.suffix == ".npz" else path.with_name(f"{path.name}.npz")


def _listed(header: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The header, and the arrays in the order of the leaves that it lists."""
    return header, [arrays[str(index)] for index in range(len(header["leaves"]))]


_DAMAGED = (
    "{path} is no repertoire, is damaged, or was written by another version of rookery ({error}); put a copy of the "
    "file back."
)
