"""The flags `--wandb` and `--mlflow`, and the continuation of a tracked run."""

import json
import sys

import pytest

from rookery.storage.island_files import islands_of
from tests.cli.test_cli import TRAIN_ARM
from tests.commandline import call
from tests.tracking.wandb_file import offline_files

RUN = [*TRAIN_ARM, "run", "--quiet"]
ISLANDS = (
    "train pbt-es --env point_room --episode-length 4 --hidden-sizes 2 --directions 1 --eval-episodes 1 --devices 1 "
    "--start-states 1 --population 4 --islands 2 --exploit-interval 8 --migrate-every 1 --migrate-fraction 1 "
    "--checkpoint-every 1 --generations 1 --quiet --run-dir birds --wandb p"
)


SETTINGS = {
    "WANDB_MODE": "offline",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    for name, value in {**SETTINGS, "WANDB_CONFIG_DIR": f"{tmp_path}/config", "NETRC": f"{tmp_path}/netrc"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    if wandb := sys.modules.get("wandb"):
        wandb.teardown()


def test_a_tracker_that_cannot_be_used_is_an_error_before_anything_is_written(tmp_path):
    code, out, err = call(*RUN, "--wandb", "team/")
    assert (code, out) == (1, "")
    assert err.startswith("error: the W&B project 'team/' has no name; give PROJECT or ENTITY/PROJECT.")
    assert not (tmp_path / "run").exists()


def test_a_tracked_run_is_continued_without_naming_its_trackers(tmp_path):
    assert call(*RUN, "--wandb", "birds") == (0, "", "")
    config = json.loads((tmp_path / "run/config.json").read_text())["config"]
    assert "wandb" not in str(config)
    record = json.loads((tmp_path / "run/wandb.json").read_text())
    assert call("resume", "run", "--generations", "2", "--quiet") == (0, "", "")
    assert json.loads((tmp_path / "run/wandb.json").read_text()) == {**record, "finished": 2}
    (tmp_path / "run/mlflow.json").write_text("{}")
    assert call(*RUN, "--overwrite") == (0, "", "")
    assert not (tmp_path / "run/wandb.json").exists(), "a new run does not continue that of the old one"
    assert not (tmp_path / "run/mlflow.json").exists()


def test_each_island_has_a_run_of_its_own(tmp_path):
    """W&B groups them; a resumed run continues all of them without naming the tracker, and added islands join them."""
    assert call(*ISLANDS.split()) == (0, "", "")
    assert call("resume", "birds", "--generations", "2", "--islands", "3", "--quiet") == (0, "", "")
    for number, folder in enumerate(islands_of(tmp_path / "birds")):
        found = offline_files(folder)
        assert {(file.project, file.name, file.group) for file in found} == {("p", f"birds/{number}", "birds")}
        assert len({file.id for file in found}) == 1
        assert [row["_step"] for file in found for row in file.history] == [0, 1]
    assert number == 2
