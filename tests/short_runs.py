"""One real run each of four kinds, trained by the command line in this process; seconds, most of them compiling."""

from pathlib import Path

import pytest

from rookery import cli

_TINY = "--num-envs 2 --hidden-sizes 4 --eval-episodes 2 --start-states 2 --devices 1 --quiet"
_OFF_POLICY = f"{_TINY} --steps-per-generation 20 --batch-size 4 --buffer-size 32 --warmup-steps 4"
KINDS = {
    "pbt-sac": (
        f"--env inverted_pendulum --episode-length 300 --population 3 --replace-count 1 --generations 3 "
        f"--exploit-interval 20 {_OFF_POLICY}"
    ),
    "me-pbt-sac": (
        "--env point_room --episode-length 12 --population 2 --ga-population 4 --grid 4 4 --generations 3 "
        f"--checkpoint-every 1 {_OFF_POLICY}"
    ),
    "diayn": (
        "--env point_room --episode-length 12 --num-skills 3 --generations 2 --updates-per-step 0.5 "
        f"--discriminator-hidden-sizes 4 {_OFF_POLICY}"
    ),
    "ippo": (
        f"--episode-length 60 --seeds 2 --generations 2 --rollout-length 6 --minibatches 2 --evaluate-every 1 {_TINY}"
    ),
}
"""Kind -> its flags. The first is a world of bodies in space, the others lie in the plane."""


def train_and_report(folder: Path) -> None:
    """A run of each kind in a folder named after it, page and episodes included."""
    runs = {kind: folder / kind for kind in KINDS}
    for kind, flags in KINDS.items():
        command("train", kind, *flags.split(), "--run-dir", str(runs[kind]))
        command("report", str(runs[kind]), "--rollouts", "all" if kind == "me-pbt-sac" else "2")


def command(*words: str) -> None:
    """`rookery` with these words."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("sys.argv", ["rookery", *words])
        patched.setattr(cli, "keep_compiled_programs", lambda: None)  # the tests have a cache of their own
        patched.setattr("warnings.showwarning", None)  # the command sets it; this puts it back
        cli.main()
