"""One real run each of four kinds, trained by the command line in this process; seconds, most of them compiling."""

from pathlib import Path

from filelock import FileLock

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


class ShortRuns(dict[str, Path]):
    """Kind -> the folder of its run. The first process that asks for one trains it and writes its page."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def __missing__(self, kind: str) -> Path:
        run, done = self._folder / kind, self._folder / f"{kind}.done"
        with FileLock(self._folder / f"{kind}.lock"):
            if not done.exists():
                rollouts = "all" if kind == "me-pbt-sac" else "2"
                training = "train", kind, *KINDS[kind].split(), "--run-dir", str(run)
                for words in (training, ("report", str(run), "--rollouts", rollouts)):
                    code, _, err = call(*words)
                    assert code == 0, err
                done.touch()
        return self.setdefault(kind, run)
