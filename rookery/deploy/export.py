"""Export one policy of a run to a folder that is usable without this library."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.export
import numpy as np

from rookery.deploy import onnx, policy_files
from rookery.deploy import policy as policies
from rookery.deploy.onnx import NoOnnxError
from rookery.deploy.policy import Cell, Policy
from rookery.deploy.reference_episode import ReferenceEpisode, reference_episode
from rookery.experiments import warm_start
from rookery.networks import computing_in
from rookery.populations.base import Program
from rookery.settings import user_path
from rookery.storage.run_dir import open_existing, write_atomically
from rookery.versions import version

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
TOLERANCE = 1e-5
"""Largest permitted difference from the run's actions, which are in [-1, 1]; discrete actions must be equal."""
FOLDER = "policy"  # default folder of an exported policy, inside the run directory

_STABLEHLO, _ONNX, _DESCRIPTION = "policy.stablehlo", "policy.onnx", "policy.json"
_FILES = {_STABLEHLO, _ONNX, "act.py", "act_onnx.py", _DESCRIPTION}


class Exported(NamedTuple):
    """The written files and the result of their check."""

    path: Path
    generation: int
    """Generation of the checkpoint."""
    cell: int | None
    member: int | None
    skill: int | None
    files: tuple[str, ...]
    observations: int
    """Number of observations, of one episode, for which actions were compared."""
    differences: Mapping[str, float]
    """Largest absolute difference of any component of an action or memory, by file."""
    without_onnx: str | None
    """Reason for a missing policy.onnx, as a clause."""
    trained_in: str = "auto"
    """Precision of the run's networks; an exported policy computes in float32."""
    elite: str | None = None
    """The descriptor of the elite, and its distance from the requested one, as text; None without a repertoire."""


def export(
    run_dir: str | Path,
    to: str | Path | None = None,
    cell: Cell | None = None,
    member: int | None = None,
    skill: int | None = None,
    checkpoint: str | int = "last",
    program: Program | None = None,
) -> Exported:
    """Write one policy of a run for use without this library, and check that its actions are the same.

    The folder then contains `policy.stablehlo` (`jax.export`, for any batch size, on CPU, CUDA, ROCm and TPU),
    `policy.onnx` where the extra `onnx` is installed and its converter supports the policy, `policy.json` (the source
    of the policy, its inputs and outputs, and the result of the check), and scripts that run the policy. `policy.json`
    is written last: a folder without it is an incomplete export.

    Args:
      run_dir: the run directory; only read.
      to: folder to write; `policy` in the run directory by default. The files of an earlier export are replaced.
      cell: elite of a repertoire: "best", the default; a cell's index; or a descriptor such as "0.2,0.8", for the
        nearest elite.
      member: index of the member of a population; by default the best of the last evaluation.
      skill: index of the skill, for runs that discover skills; 0 by default. The exported policy has this skill fixed.
      checkpoint: "last"; "best", by the metric that the run was configured with; or a generation.
      program: the program of a run that was started from Python.

    Returns:
      The written files and the result of their check.

    Raises:
      ValueError: the folder is not a run, the run was started from Python and no program is given, or it optimises a
        scoring function without an environment; it has no such cell, member, skill or checkpoint, or the cell is empty
        (the message names the nearest occupied cell); the policy's actions are not finite; the exported policy's
        actions differ; or `to` contains other files.
      CheckpointError: the run has no complete checkpoint.

    Example:
      >>> exported = rookery.export("runs/pbt-sac", to="hopper")
    """
    path = _check_target(open_existing(run_dir).path / FOLDER if to is None else user_path(to))
    policy = policies.select(warm_start.restore_run(run_dir, checkpoint, program), cell, member, skill)
    with computing_in("float32"):  # JAX's own precision on a GPU is lower
        reference = reference_episode(policy, jax.random.key(0))
        _check_finite(policy, reference)
        compiled = stablehlo(policy)
    differences = {_STABLEHLO: difference(_run(policy, compiled, reference), reference.outputs)}
    if differences[_STABLEHLO] > TOLERANCE:
        raise ValueError(
            f"the exported policy differs from the run's policy by {differences[_STABLEHLO]:.3g} in an action, more "
            f"than {TOLERANCE:g}, so nothing was written; please report it with the versions of jax and of this run."
        )
    files: dict[str, bytes] = {_STABLEHLO: compiled}
    without_onnx = None
    try:
        files[_ONNX], differences[_ONNX] = _onnx(policy, reference)
    except NoOnnxError as error:
        without_onnx = str(error)
    files |= {name: text.encode() for name, text in policy_files.scripts(policy, _ONNX in files).items()}
    count = len(reference.inputs["observation"])
    description = policy_files.describe(policy) | {
        "platforms": PLATFORMS,
        "check": {"observations": count, "tolerance": TOLERANCE, "largest_difference": differences},
        "without_onnx": without_onnx,
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    _write(path, files, description)
    source = policy.origin.generation, policy.cell, policy.member, policy.skill
    results = count, differences, without_onnx, description["precision"]["run"]
    return Exported(path, *source, (*files, _DESCRIPTION), *results, policies.elite_text(policy, cell))


def stablehlo(policy: Policy) -> bytes:
    """Serialise a policy with `jax.export`, as a function of batches of any size, for all `PLATFORMS`."""
    batch = jax.export.symbolic_shape("batch")
    batches = [jax.ShapeDtypeStruct((*batch, *shape), policy.types[name]) for name, shape in policy.inputs.items()]
    exported = jax.export.export(jax.jit(jax.vmap(policies.policy_function(policy))), platforms=PLATFORMS)(*batches)
    return bytes(exported.serialize())


def _run(policy: Policy, program: bytes, reference: ReferenceEpisode) -> dict[str, np.ndarray]:
    outputs = jax.export.deserialize(bytearray(program)).call(*(reference.inputs[name] for name in policy.inputs))
    return dict(zip(policy.outputs, jax.device_get(jax.tree.leaves(outputs)), strict=True))


def _onnx(policy: Policy, reference: ReferenceEpisode) -> tuple[bytes, float]:
    """The ONNX model and its largest difference from the reference; a NoOnnxError if it is none, or too large."""
    model = onnx.convert(policies.policy_function(policy), policy.inputs, policy.types, list(policy.outputs))
    largest = difference(onnx.act(model, reference.inputs), reference.outputs)
    if largest > TOLERANCE:
        raise NoOnnxError(
            f"the model of jax2onnx {version('jax2onnx')} differs by {largest:.3g} in an action, more than "
            f"{TOLERANCE:g}"
        )
    return model, largest


def difference(exported: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> float:
    """Largest absolute difference over all outputs; infinite if shapes or types differ or a number is not finite."""
    largest = 0.0
    for name, expected in reference.items():
        actual = exported[name]
        if actual.shape != expected.shape or actual.dtype != expected.dtype:
            return float("inf")
        distance = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max(initial=0.0)
        largest = max(largest, float(distance) if np.isfinite(distance) else float("inf"))
    return largest


def _check_finite(policy: Policy, reference: ReferenceEpisode) -> None:
    """Reject a diverged policy, whose continuous actions are NaN or infinite, or whose discrete actions are -1."""
    action = reference.outputs["action"]
    valid = action >= 0 if np.issubdtype(action.dtype, np.integer) else np.isfinite(action)
    if not valid.all():
        name = f"cell {policy.cell}" if policy.member is None else f"member {policy.member}"
        name = "the best of each role" if policy.cell is policy.member else name
        raise ValueError(f"{name} of {policy.origin.path} diverged, and its actions are not finite; choose another.")


def _check_target(path: Path) -> Path:
    """Return the folder if it contains at most an earlier export, complete or interrupted.

    An interrupted export contains its StableHLO program, which is written first.
    """
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; choose a folder to export to.")
    present = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    others = sorted(name for name in present - _FILES - {"__pycache__"} if not name.startswith(_DESCRIPTION))
    if present and not others and not present & {_STABLEHLO, _DESCRIPTION}:
        others = sorted(present)
    if others:
        raise ValueError(f"{path} contains other files ({', '.join(others[:3])}); choose a new or empty folder.")
    return path


def _write(path: Path, files: Mapping[str, bytes], description: Mapping[str, Any]) -> None:
    """Write the files; `policy.json` is deleted first and written last, so that it marks a complete export."""
    text = json.dumps(description, indent=2, allow_nan=False) + "\n"
    try:
        path.mkdir(parents=True, exist_ok=True)
        for name in (_DESCRIPTION, *sorted(_FILES - {_DESCRIPTION, *files})):
            (path / name).unlink(missing_ok=True)
        for name, content in files.items():
            with open(path / name, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        write_atomically(path / _DESCRIPTION, text)
    except OSError as error:
        raise ValueError(f"{path} cannot be written to: {error.strerror}; choose another folder.") from error
