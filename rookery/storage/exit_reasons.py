"""How a run ends, in words."""

import signal
from pathlib import Path

from rookery.storage.checkpoint import Checkpointer


class Diverged(ArithmeticError):  # noqa: N818 - it says what happened
    """Nothing finite is left, neither a member nor an elite; names the generation and the last good checkpoint."""


def stopped(generation: int, run_dir: Path | None) -> str:
    """A run was asked to stop after `generation` generations."""
    if run_dir is None:
        return f"stopped after generation {generation}; nothing was saved, since the run has no run_dir."
    return f"stopped after generation {generation}, which is saved; continue with: rookery resume {run_dir}"


def stopped_within(generation: int, run_dir: Path | None) -> str:
    """A run was asked to stop, and stopped before it finished the generation after `generation` others."""
    where = f"stopped within generation {generation + 1}"
    if run_dir is None:
        return f"{where}; nothing was saved, since the run has no run_dir."
    return f"{where}, which is saved as far as it came; continue with: rookery resume {run_dir}"


def lost(generation: int, of_a_repertoire: bool, checkpoints: Checkpointer | None, run_dir: Path | None) -> str:
    """Nothing was finite in the last of `generation` generations; waits for the checkpoint that is under way."""
    if of_a_repertoire:
        return (
            f"nothing was finite in generation {generation}, and the repertoire is empty: every fitness, "
            "descriptor or genotype had a number that is not; look at what judges them."
        )
    message = f"no member is finite any more in generation {generation}"
    newest = None
    if checkpoints is not None:
        checkpoints.wait()
        newest = checkpoints.latest()
    if newest is None:
        return f"{message}, and no checkpoint was saved before; lower the learning rates or the reward scale."
    return f"{message}; the last good checkpoint is that of generation {newest}, in {run_dir}."


def why(error: BaseException | None) -> str:
    """Why a run ended, in one line of at most 200 characters; without an error it is finished."""
    if error is None:
        return "finished"
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted by {signal.Signals(getattr(error, 'signum', signal.SIGINT)).name}"
    if isinstance(error, Diverged):
        return "diverged"
    return " ".join(f"failed: {type(error).__name__}: {error}".split())[:200].removesuffix(":")
