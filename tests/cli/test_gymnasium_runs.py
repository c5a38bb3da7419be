"""Every command for the run of an environment on the host, whose observations are pixels."""

import json
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageSequence

import rookery
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.parts import environment_of
from rookery.storage.csv_log import read_csv
from tests.commandline import call, printed
from tests.deploy.untrained_runs import run_script
from tests.pixel_walk import ID, SIZE

TINY = "--encoder small --hidden-sizes 8 --num-envs 2 --rollout-length 8 --minibatches 1 --generations 1"
TINY += " --eval-episodes 2 --start-states 2 --devices 1 --option workers=1 --quiet --objective is_success"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host") / "run"
    printed("train", "ppo", "--env", ID, *TINY.split(), "--run-dir", folder)
    return folder


def images() -> np.ndarray:
    """Images with the column at the left, in the middle and at the right, `[3, height, width, 1]`."""
    found = np.full((3, SIZE, SIZE, 1), 10, np.uint8)
    for row, column in enumerate((0, SIZE // 2, SIZE - 1)):
        found[row, :, column] = 250
    return found


def test_an_exported_policy_reads_the_pixels_of_the_environment(run: Path) -> None:
    out = printed("export", run)
    assert "policy.stablehlo  equal actions on 8 observations, to within 0" in out
    about = json.loads((run / "policy" / "policy.json").read_text())
    sizes = about["observation"]["size"], about["observation"]["type"], about["observation"]["shape"]
    assert sizes == (SIZE * SIZE, "uint8", [SIZE, SIZE, 1])
    assert about["action"]["environment"] == {"type": "int64", "shape": [], "low": [0], "high": [1]}
    policy = rookery.load(run).policy()
    expected = [policy(image) for image in images()]
    assert all(type(action) is int for action in expected), "as the environment takes it"
    assert policy(images()[0].reshape(-1)) == expected[0]
    assert run_script(run / "policy", "act", images()).tolist() == expected
    with pytest.raises(ValueError, match=r"^the policy reads pixels, uint8 in 0\.\.255, got float32; do not divide"):
        policy(jnp.zeros((SIZE, SIZE, 1)))


def test_render_and_report_show_the_film(run: Path) -> None:
    out = printed("render", run)
    assert "member 0, generation 1: 8 steps, return " in out
    with Image.open(run / "episode.gif") as film:
        assert (film.size, len(list(ImageSequence.Iterator(film)))) <= ((SIZE, SIZE), 9)
    out = printed("report", run)
    assert "note" not in out
    assert "data:image/gif;base64," in (run / "report.html").read_text() or (run / "episodes.npz").exists()


def test_evaluate(run: Path) -> None:
    out = printed("evaluate", run, "--episodes", "2")
    assert "2 episodes per member" in out
    assert re.search(r"fitness return .* is_success length\n.*\n +0 .* 8\n", out), out
    (row,) = read_csv(run / "metrics.csv")["measure/is_success"]
    assert 0.0 <= row <= 1.0


@pytest.mark.parametrize("objective", ["is_success", "episode"])
def test_an_objective_that_cut_episodes_do_not_report_is_refused(objective: str) -> None:
    words = f"train sac --env gym:Pendulum-v1 --episode-length 50 --objective {objective}".split()
    code, _, error = call(*words)
    message = "--objective is unknown where --episode-length ends an episode of gym:Pendulum-v1: a step's info lacks it"
    assert (code, error) == (2, f"error: {message}, got '{objective}'; leave out one of the two.\n")
    task = EnvironmentConfig(env=ID, episode_length=4)
    assert set(environment_of(task, "is_success").spec.measures or {}) == {"is_success"}


def test_envs_describes_gymnasiums_environments() -> None:
    code, out, _ = call("envs", "gym:CartPole-v1")
    assert code == 0
    assert ["suite", "gymnasium"] in [line.split() for line in out.splitlines()]
    assert "2, discrete" in out
    assert "500" in out
    code, _, error = call("envs", "gym:CartPol-v1")
    assert code == 1
    assert error.startswith("error: Gymnasium has no environment 'CartPol-v1'; did you mean gym:CartPole-v1")
    assert call("envs", "gymnasium")[1].startswith("any environment of Gymnasium is gym: and its id, such as gym:Hop")


def test_the_memory_plan_of_a_run_on_the_host(tmp_path: Path) -> None:
    words = f"ppo --env {ID} {TINY} --run-dir {tmp_path / 'planned'} --plan"
    assert "working memory of a generation" in printed("train", *words.replace(" --quiet", "").split())
    assert not (tmp_path / "planned").exists()
