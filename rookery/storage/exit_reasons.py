"""Messages about the end of a run."""

import signal
from pathlib import Path

from rookery.storage.checkpoint import Checkpointer
from rookery.storage.run_dir import resume_command


class Diverged(ArithmeticError):  # noqa: N818 - an outcome of the run
    """No member and no elite is finite any more; the message names the generation and the last good checkpoint."""


def stopped(generation: int, run_dir: Path | None, within: bool = False) -> str:
    """The message of a run that a signal stopped after `generation` generations, or `within` the next one."""
    where = f"within generation {generation + 1}" if within else f"after generation {generation}"
    if run_dir is None:
        return f"stopped {where}; nothing was saved, since the run has no run_dir."
    saved = "whose progress" if within else "which"
    return f"stopped {where}, {saved} is saved; continue with: {resume_command(run_dir)}"


def lost(generation: int, of_a_repertoire: bool, checkpoints: Checkpointer | None, run_dir: Path | None) -> str:
    """The message of a run that diverged; waits for the checkpoint in progress.

    Args:
      generation: the number of generations, of which the last had no finite member or elite.
      of_a_repertoire: whether the program has a repertoire instead of members.
      checkpoints: the run's checkpoints, or None.
      run_dir: the run directory, or None.
    """
    if of_a_repertoire:
        return (
            f"nothing was finite in {generation} generations, and the repertoire is empty: every fitness, descriptor "
            "or genotype contained a non-finite number; check the fitness and descriptor functions, or raise patience."
        )
    message = f"no member is finite any more in generation {generation}"
    newest = None
    if checkpoints is not None:
        checkpoints.wait()
        newest = checkpoints.latest()
    if newest is None:
        return (
            f"{message}, and no checkpoint was saved before; lower the learning rates or the reward scale, and look "
            "for rewards that are not finite: rookery.check_environment(environment)."
        )
    return f"{message}; the last good checkpoint is that of generation {newest}, in {run_dir}."


def exit_reason(error: BaseException | None) -> str:
    """The reason for the end of a run as one line of at most 200 characters; `finished` without an error."""
    if error is None:
        return "finished"
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted by {signal.Signals(getattr(error, 'signum', signal.SIGINT)).name}"
    if isinstance(error, Diverged):
        return "diverged"
    return " ".join(f"failed: {type(error).__name__}: {error}".split())[:200].removesuffix(":")
