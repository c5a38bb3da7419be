"""A policy of a run as a folder that runs without this library."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from rookery.deploy import onnx, policy_files
from rookery.deploy import policy as policies
from rookery.deploy.onnx import NoOnnxError
from rookery.deploy.policy import Cell, Met, Policy
from rookery.experiments import warm_start
from rookery.storage import run_dir as folder
from rookery.versions import version

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
TOLERANCE = 1e-5
"""The largest difference of an action from the library's own, which lies in [-1, 1]; indices must be equal."""
FOLDER = "policy"
"""Where a policy is written inside of its run's folder, unless another place is named."""

_STABLEHLO, _ONNX, _ABOUT = "policy.stablehlo", "policy.onnx", "policy.json"
_MADE = {_STABLEHLO, _ONNX, "act.py", "act_onnx.py", _ABOUT}


class Exported(NamedTuple):
    """What was written, and how well it was checked."""

    path: Path
    generation: int  # of the checkpoint
    cell: int | None
    member: int | None
    skill: int | None
    files: tuple[str, ...]
    observations: int  # of an episode, on which actions were compared
    differences: Mapping[str, float]  # by file, the largest of any number of an action or a memory
    without_onnx: str | None  # why there is no policy.onnx; a clause


def export(
    run_dir: str | Path,
    to: str | Path | None = None,
    cell: Cell | None = None,
    member: int | None = None,
    skill: int | None = None,
    checkpoint: str = "last",
) -> Exported:
    """Write one policy of a run so that it acts without this library, and check that it acts alike.

    The folder then holds `policy.stablehlo` (`jax.export`, for any batch, on CPU, CUDA, ROCm and TPU), `policy.onnx`
    where the extra `onnx` is installed and its converter serves, `policy.json` (who it is, what goes in and comes out,
    and what the check found), and scripts that use them. `policy.json` is written last: without it an export is not
    whole.

    Args:
      run_dir: the run's folder; only read.
      to: where; `policy` in the run's folder by default. What an earlier export wrote there is replaced.
      cell: of a repertoire: "best", which is the default, a cell's number, or a descriptor such as "0.2,0.8", whose
        nearest elite is taken.
      member: of a population, counted from 0; by default who was best when last judged.
      skill: of a run that discovers skills, counted from 0, which is the default; it is built in.
      checkpoint: "last"; "best", by the metric that the run was told; or a generation.

    Raises:
      ValueError: the folder is no run, was started from Python or searches a function; it has no such cell (an empty
        one is told with the nearest that is not), member, skill or checkpoint; the policy's actions are not finite, or
        the exported one's differ; or `to` holds other things.
      CheckpointError: the run has no whole checkpoint.
    """
    path = _free(Path(folder.open_existing(run_dir).path / FOLDER if to is None else to))
    policy = policies.choose(warm_start.open_origin(run_dir, checkpoint), cell, member, skill)
    met = policies.meet(policy, jax.random.key(0))
    _check_finite(policy, met)
    program = stablehlo(policy)
    differences = {_STABLEHLO: difference(_run(policy, program, met), met.outputs)}
    if differences[_STABLEHLO] > TOLERANCE:
        raise ValueError(
            f"the exported policy differs from the run's own by {differences[_STABLEHLO]:.3g} in an action, more than "
            f"{TOLERANCE:g}, so nothing was written; please report it with the versions of jax and of this run."
        )
    files: dict[str, bytes] = {_STABLEHLO: program}
    without_onnx = None
    try:
        files[_ONNX], differences[_ONNX] = _onnx(policy, met)
    except NoOnnxError as why:
        without_onnx = str(why)
    files |= {name: text.encode() for name, text in policy_files.scripts(policy, _ONNX in files).items()}
    count = len(met.inputs["observation"])
    about = policy_files.describe(policy) | {
        "platforms": PLATFORMS,
        "check": {"observations": count, "tolerance": TOLERANCE, "largest_difference": differences},
        "without_onnx": without_onnx,
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    _write(path, files, about)
    who = policy.origin.generation, policy.cell, policy.member, policy.skill
    return Exported(path, *who, (*files, _ABOUT), count, differences, without_onnx)


def stablehlo(policy: Policy) -> bytes:
    """A policy as `jax.export` serialises it: a function of batches of any size, for all platforms."""
    batch = jax.export.symbolic_shape("batch")
    batches = [jax.ShapeDtypeStruct((*batch, *shape), jnp.float32) for shape in policy.inputs.values()]
    with jax.default_matmul_precision("highest"):  # or a GPU's and a TPU's products would be coarser than those checked
        exported = jax.export.export(jax.jit(jax.vmap(policies.acts(policy))), platforms=PLATFORMS)(*batches)
    return bytes(exported.serialize())


def _run(policy: Policy, program: bytes, met: Met) -> dict[str, np.ndarray]:
    outputs = jax.export.deserialize(bytearray(program)).call(*(met.inputs[name] for name in policy.inputs))
    return dict(zip(policy.outputs, jax.device_get(jax.tree.leaves(outputs)), strict=True))


def _onnx(policy: Policy, met: Met) -> tuple[bytes, float]:
    """The model and its largest difference.

    Raises:
      NoOnnxError: there is none, or it acts otherwise.
    """
    model = onnx.convert(policies.acts(policy), policy.inputs, list(policy.outputs))
    largest = difference(onnx.act(model, met.inputs), met.outputs)
    if largest > TOLERANCE:
        raise NoOnnxError(
            f"the model of jax2onnx {version('jax2onnx')} differs by {largest:.3g} in an action, more than "
            f"{TOLERANCE:g}"
        )
    return model, largest


def difference(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> float:
    """The largest of any number, name by name; infinite where shapes or types are others, or a number is not finite."""
    worst = 0.0
    for name, wanted in theirs.items():
        given = ours[name]
        if given.shape != wanted.shape or given.dtype != wanted.dtype:
            return float("inf")
        apart = np.abs(given.astype(np.float64) - wanted.astype(np.float64)).max(initial=0.0)
        worst = max(worst, float(apart) if np.isfinite(apart) else float("inf"))
    return worst


def _check_finite(policy: Policy, met: Met) -> None:
    """A policy that diverged says so by NaN, or by an index of -1."""
    action = met.outputs["action"]
    possible = action >= 0 if np.issubdtype(action.dtype, np.integer) else np.isfinite(action)
    if not possible.all():
        who = f"cell {policy.cell}" if policy.member is None else f"member {policy.member}"
        who = "the best of each role" if policy.cell is policy.member else who
        raise ValueError(f"{who} of {policy.origin.path} diverged, and its actions are not finite; choose another.")


def _free(path: Path) -> Path:
    """The place, if it holds nothing but an earlier export; one that was killed has its program, which comes first."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file; choose a folder to export to.")
    there = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    others = sorted(name for name in there - _MADE - {"__pycache__"} if not name.startswith(_ABOUT))
    if there and not others and not there & {_STABLEHLO, _ABOUT}:
        others = sorted(there)
    if others:
        raise ValueError(f"{path} holds other things ({', '.join(others[:3])}); choose a folder that is new or empty.")
    return path


def _write(path: Path, files: Mapping[str, bytes], about: Mapping[str, Any]) -> None:
    """`policy.json` goes first and comes last, so that what lies beside it is always whole and its own."""
    text = json.dumps(about, indent=2, allow_nan=False) + "\n"
    try:
        path.mkdir(parents=True, exist_ok=True)
        for name in (_ABOUT, *sorted(_MADE - {_ABOUT, *files})):
            (path / name).unlink(missing_ok=True)
        for name, content in files.items():
            with open(path / name, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        folder.write_atomically(path / _ABOUT, text)
    except OSError as error:
        raise ValueError(f"{path} cannot be written to: {error.strerror}; choose another folder.") from error
