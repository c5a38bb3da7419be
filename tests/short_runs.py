"""One real run each of four kinds, trained by the command line in this process; seconds, most of them compiling."""

from pathlib import Path

from tests.commandline import call

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
"""Kind -> its flags. The first is an environment with bodies in space, the others are planar."""


def train_and_report(folder: Path) -> None:
    """A run of each kind in a folder named after it, page and episodes included."""
    runs = {kind: folder / kind for kind in KINDS}
    for kind, flags in KINDS.items():
        rollouts = "all" if kind == "me-pbt-sac" else "2"
        for words in (
            ("train", kind, *flags.split(), "--run-dir", str(runs[kind])),
            ("report", str(runs[kind]), "--rollouts", rollouts),
        ):
            code, _, err = call(*words)
            assert code == 0, err
