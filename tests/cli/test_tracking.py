"""The flags `--wandb` and `--mlflow`, and the continuation of a tracked run."""

import json
import sys

import pytest

from rookery.storage.island_files import islands_of
from tests.cli.test_cli import TRAIN_ARM
from tests.commandline import call
from tests.islands.runs import PBT
from tests.tracking.wandb_file import offline_files

RUN = [*TRAIN_ARM, "run", "--quiet"]


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_CONFIG_DIR": str(tmp_path / "config"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "NETRC": str(tmp_path / "netrc"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    if wandb := sys.modules.get("wandb"):
        wandb.teardown()


@pytest.mark.parametrize(
    ("flags", "package", "code", "message"),
    [
        ("--wandb", None, 2, "error: --wandb must be a word, got nothing."),
        ("--wandb=", None, 2, "error: --wandb is empty; give it a value, or leave it out."),
        ("--wandb team/", None, 1, "error: the W&B project 'team/' has no name; give PROJECT or ENTITY/PROJECT."),
        ("--wandb birds", "wandb", 1, 'error: wandb is not installed; pip install "rookery[wandb]"'),
        ("--mlflow runs", "mlflow", 1, 'error: mlflow is not installed; pip install "rookery[mlflow]"'),
        ("--mlflow http://127.0.0.1:9", None, 1, "error: MLflow at http://127.0.0.1:9 cannot be used (Connection"),
    ],
)
def test_a_tracker_that_cannot_be_used_is_an_error_before_anything_is_written(
    tmp_path, monkeypatch, flags, package, code, message
):
    if package:
        monkeypatch.setitem(sys.modules, package, None)
    given, out, err = call(*RUN, *flags.split())
    assert (given, out) == (code, "")
    assert err.startswith(message), err
    assert not (tmp_path / "run").exists()


def test_wandb_without_a_key(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    code, _, err = call(*RUN, "--wandb", "birds")
    assert (code, err.startswith("error: W&B has no key of yours; run `wandb login`")) == (1, True)
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
    """W&B groups them; a resumed run continues all of them without naming the trackers, and added islands join them."""
    from mlflow import MlflowClient

    flags = f"train {PBT} --run-dir birds --generations 1 --wandb p --mlflow mlruns".split()
    assert call(*flags) == (0, "", "")
    assert call("resume", "birds", "--generations", "2", "--islands", "3", "--quiet") == (0, "", "")
    folders = islands_of(tmp_path / "birds")
    records = [json.loads((path / "mlflow.json").read_text()) for path in folders]
    client = MlflowClient(records[0]["uri"])
    names = [client.get_run(record["run_id"]).info.run_name for record in records]
    assert names == ["birds/0", "birds/1", "birds/2"]
    for record in records:
        assert [entry.step for entry in client.get_metric_history(record["run_id"], "env_steps")] == [0, 1]
    for name, folder in zip(names, folders, strict=True):
        found = offline_files(folder)
        assert {(file.project, file.name, file.group) for file in found} == {("p", name, "birds")}
        assert [row["_step"] for file in found for row in file.history] == [0, 1]
