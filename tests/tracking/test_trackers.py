"""Trackers: what they send of a run is read back from W&B's offline files and from MLflow's database."""

import concurrent.futures
import contextlib
import functools
import importlib
import json
import math
import os
import shlex
import socket
import sqlite3
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rookery.populations.base import Program
from rookery.populations.pbt import pbt
from rookery.storage.csv_log import read_csv
from rookery.storage.lineage import lineage
from rookery.storage.run_dir import open_existing
from rookery.tracking import (
    MlflowTracker,
    TrackerError,
    TrackingConfig,
    WandbTracker,
    continued,
    records,
    trackers,
    wandb_tracker,
)
from rookery.training import CallbackWarning, Generation, Start
from rookery.training.loop import run
from rookery.trees import flatten_mapping
from tests import walks
from tests.tracking import wandb_server
from tests.tracking.wandb_file import offline_files, read
from tests.training import test_loop

OPTIONS = {"checkpoint_every": 3, "quiet": True}
RECORD = {"project": "birds", "id": "abc", "finished": 1}
walking = functools.cache(test_loop.walks)


@functools.cache
def evolving() -> Program:
    return pbt(walks.learner(), walks.SPACE, 4, replace_count=1)


@pytest.fixture(autouse=True)
def _without_network(monkeypatch, tmp_path_factory):
    """No server, no settings of this user's, no reports about the use of the packages."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path_factory.getbasetemp() / "wandb"))
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("NETRC", str(tmp_path_factory.getbasetemp() / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_DIR", "WANDB_BASE_URL", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    yield
    if wandb := sys.modules.get("wandb"):
        wandb.teardown()  # it reads the environment once


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> Path:
    """A folder for MLflow; the creation of its database takes seconds."""
    return tmp_path_factory.mktemp("mlflow") / "a?b%20#[0]"


def mlflow_run(run_dir: Path) -> tuple[Any, dict[str, dict[int, float]]]:
    """The run in MLflow, and its metrics: name -> step -> value."""
    from mlflow import MlflowClient

    record = json.loads((run_dir / "mlflow.json").read_text())
    client = MlflowClient(record["uri"])
    found = client.get_run(record["run_id"])
    metrics = {}
    for name in found.data.metrics:
        history = client.get_metric_history(record["run_id"], name)
        metrics[name] = {entry.step: entry.value for entry in history}
        assert len(metrics[name]) == len(history), f"{name} has a step twice"
    return found, metrics


def expected(run_dir: Path, history: list[dict[str, np.ndarray]]) -> dict[str, dict[int, float]]:
    """Every value that a tracker has to have: name -> step -> value."""
    table = read_csv(run_dir / "metrics.csv")
    found = {name: dict(enumerate(values.tolist())) for name, values in table.items() if name != "generation"}
    for step, metrics in enumerate(history):
        for name, values in metrics.items():
            if values.ndim:
                for member, value in enumerate(values.tolist()):
                    found.setdefault(f"member/{member}/{name}", {})[step] = float(value)
    finite = {
        name: {step: value for step, value in curve.items() if math.isfinite(value)} for name, curve in found.items()
    }
    return {name: curve for name, curve in finite.items() if curve}


def test_both_trackers_have_every_curve_of_every_member_also_after_a_resume(tmp_path, database):
    path, program = tmp_path / "run", evolving()
    history = []
    for generations in (4, 6):
        callbacks = [WandbTracker("team/birds", quiet=True), MlflowTracker(database, quiet=True)]
        again = generations > 4
        options = {"run_dir": str(path), "resume": again, "callbacks": callbacks, **OPTIONS}
        history += run(program, generations=generations, **options).history
        if again:
            break
        before = (path / "wandb.json").read_text()
    curves, config = expected(path, history), open_existing(path).config
    assert {"member/3/fitness", "member/0/parent", "member/2/hyper/discount", "member/1/stride"} <= set(curves)

    first, second = offline_files(path)
    record = json.loads((path / "wandb.json").read_text())
    assert record == {**json.loads(before), "finished": 6}
    assert first.id == second.id == record["id"]
    assert (first.project, first.name, first.exit_code, second.exit_code) == ("birds", "run", 0, 0)
    assert [entry["_step"] for entry in first.history + second.history] == [0, 1, 2, 3, 4, 5]
    sent: dict[str, dict[int, float]] = {}
    for entry in first.history + second.history:
        for name in entry.keys() - {"_step", "_timestamp", "_runtime"}:
            sent.setdefault(name, {})[entry["_step"]] = entry[name]
    assert sent == curves
    assert {name: value for name, value in second.config.items() if name != "_wandb"} == config
    assert first.summaries["best_fitness"] == "max"

    found, metrics = mlflow_run(path)
    assert metrics == curves
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.params["run.seed"] == "0"
    assert found.data.params.keys() == flatten_mapping(config).keys()

    run(
        program, generations=7, run_dir=str(path), resume=True, callbacks=[WandbTracker("nests", quiet=True)], **OPTIONS
    )
    third = offline_files(path)[-1]
    assert third.id != second.id, "another project begins another run"
    assert [entry["_step"] for entry in third.history] == [6]


def test_generations_that_a_killed_run_computes_again_are_not_sent_twice(tmp_path, database):
    path, calls = tmp_path / "run", []

    def die(generation):
        calls.append(generation)
        if len(calls) == 5:
            raise GeneratorExit("as a kill would")  # no checkpoint of generation 5

    both = lambda: [WandbTracker("birds", quiet=True), MlflowTracker(database, quiet=True)]  # noqa: E731
    with pytest.raises(GeneratorExit):
        run(walking(), generations=7, run_dir=str(path), callbacks=[*both(), die], **OPTIONS)
    assert mlflow_run(path)[0].info.status == "FAILED"
    run(walking(), generations=7, run_dir=str(path), resume=True, callbacks=[*both(), die], **OPTIONS)
    assert [generation.number for generation in calls] == [0, 1, 2, 3, 4, 3, 4, 5, 6]
    found, metrics = mlflow_run(path)
    assert found.info.status == "FINISHED"
    assert sorted(metrics["best_fitness"]) == list(range(7))
    assert [[entry["_step"] for entry in file.history] for file in offline_files(path)] == [[0, 1, 2, 3, 4], [5, 6]]
    assert [file.exit_code for file in offline_files(path)] == [1, 0]


def test_what_a_kill_lost_is_sent_from_the_tables(tmp_path, database):
    """W&B's process, and the thread that sends to MLflow, lose the latest generations when a run is killed."""
    from mlflow import MlflowClient

    path, program = tmp_path / "run", evolving()
    run(program, generations=4, run_dir=str(path), **OPTIONS)
    uri = MlflowTracker(database, quiet=True)._uri
    client = MlflowClient(uri)
    lost = client.create_run(client.create_experiment("lost")).info.run_id
    client.log_metric(lost, "env_steps", 1.0, step=0)
    records.write_record(path, "mlflow", {"uri": uri, "run_id": lost})
    records.write_record(path, "wandb", RECORD)
    callbacks = [WandbTracker("birds", quiet=True), MlflowTracker(database, quiet=True)]
    run(program, generations=5, run_dir=str(path), resume=True, callbacks=callbacks, **OPTIONS)
    (file,) = offline_files(path)
    table = lineage(path)
    assert [entry["_step"] for entry in file.history] == [1, 2, 3, 4]
    for entry in file.history:
        for member in range(4):
            at = entry["_step"], member
            assert entry[f"member/{member}/fitness"] == table.fitness[at]
            assert entry[f"member/{member}/parent"] == table.parents[at]
            assert entry[f"member/{member}/hyper/discount"] == table.hyper["discount"][at]
    metrics = mlflow_run(path)[1]
    assert metrics["member/2/fitness"] == {step: table.fitness[step, 2] for step in range(1, 5)}
    assert json.loads((path / "wandb.json").read_text())["finished"] == 5


@pytest.mark.parametrize(("seconds", "finished"), [(1_000.0, 0), (0.0, 3)])
def test_generations_count_as_recorded_when_wandb_has_written_them(tmp_path, monkeypatch, seconds, finished):
    monkeypatch.setattr(wandb_tracker, "_SETTLED_SECONDS", seconds)
    path, found = tmp_path / "run", []

    def look(generation):
        found.append(json.loads((path / "wandb.json").read_text())["finished"])

    callbacks = [WandbTracker("birds", quiet=True), look]
    run(walking(), generations=3, run_dir=str(path), callbacks=callbacks, **OPTIONS)
    assert found[-1] == finished


def test_a_large_population_is_summarised_and_children_of_a_repertoire_are_no_members():
    size = records.MOST_MEMBERS + 1
    fitness = np.arange(size, dtype=np.float32)
    fitness[0] = np.nan
    members = {"fitness": fitness, "parent": np.arange(size), "hyper/rate": np.full(size, np.inf)}
    values = records.values(Generation(1, 2, {"best_fitness": 64.0, "mean_return": np.nan}, members, None))
    summary = {"min": 1.0, "q25": 16.75, "median": 32.5, "q75": 48.25, "max": 64.0}
    assert values == {"best_fitness": 64.0, **{f"members/fitness/{name}": value for name, value in summary.items()}}
    generation = Generation(1, 2, {"coverage": 3.0}, {"fitness": np.zeros(3)}, None)
    assert records.values(generation) == {"coverage": 3.0}


def test_a_large_population_needs_no_name_for_each_member():
    size = 200_000
    generation = Generation(1, 2, {}, {"fitness": np.zeros(size), "parent": np.arange(size)}, None)
    tracemalloc.start()
    records.values(generation)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50 * size


def test_the_trackers_of_a_run_are_used_again_when_it_is_resumed(tmp_path, database):
    assert continued(TrackingConfig(), tmp_path) == TrackingConfig()
    assert trackers(TrackingConfig()) == []
    records.write_record(tmp_path, "wandb", {"project": "birds", "id": "a", "finished": 0})
    records.write_record(tmp_path, "mlflow", {"uri": f"sqlite:///{database / 'mlflow.db'}", "run_id": "b"})
    found = continued(TrackingConfig(), tmp_path)
    assert found == TrackingConfig("birds", f"sqlite:///{database / 'mlflow.db'}")
    assert continued(TrackingConfig("nests"), tmp_path).wandb == "nests"
    assert [type(tracker) for tracker in trackers(found)] == [WandbTracker, MlflowTracker]
    (tmp_path / "wandb.json").write_text("{")
    with pytest.raises(TrackerError, match=r"wandb.json is damaged .* delete it, and wandb begins a new run"):
        continued(TrackingConfig(), tmp_path)


@pytest.mark.parametrize(
    ("package", "extra", "make"),
    [("wandb", "wandb", WandbTracker), ("sqlalchemy", "mlflow", MlflowTracker)],
)
def test_a_package_that_is_not_installed_is_named_with_its_extra(package, extra, make, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf'{package} is not installed; pip install "rookery\[{extra}\]"'):
        make("birds")


def test_wandb_without_a_key_and_without_a_server(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(TrackerError, match=r"no key of yours; run `wandb login`, or set WANDB_API_KEY, or WANDB_MODE"):
        WandbTracker("birds")
    importlib.import_module("wandb").teardown()
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_HTTP_TIMEOUT", "1")
    with pytest.raises(TrackerError, match=r"W&B cannot be used: .*; check the network and the key .* WANDB_MODE=off"):
        WandbTracker("birds")


def test_an_option_that_wandb_refuses(tmp_path):
    message = "^W&B started no run: .*tags.*; correct the options of the tracker, or check the network"
    with pytest.raises(TrackerError, match=message):
        WandbTracker("birds", tags=["x" * 100]).begin(Start({}, tmp_path, 0, 1))


def test_the_record_of_a_tracker_that_was_edited(tmp_path):
    path = tmp_path / "wandb.json"
    path.write_text(json.dumps(RECORD), encoding="utf-8-sig")  # as some editors save it
    assert records.read_record(tmp_path, "wandb") == RECORD
    for edited in ({**RECORD, "id": None}, {"project": "birds", "finished": 1}):
        path.write_text(json.dumps(edited))
        with pytest.raises(TrackerError, match=r"wandb\.json is damaged \(id is None\); delete it, and"):
            records.read_record(tmp_path, "wandb")


def test_a_tracker_that_cannot_begin_ends_its_run(tmp_path, database, monkeypatch):
    def fail(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(records, "write_record", fail)
    wandb, mlflow = WandbTracker("birds", quiet=True), MlflowTracker(database, quiet=True)
    for tracker in (wandb, mlflow):
        with pytest.raises(OSError, match="No space left"):
            tracker.begin(Start({}, tmp_path, 0, 1))
    (file,) = tmp_path.rglob("*.wandb")
    assert (read(file).exit_code, mlflow._client.get_run(mlflow._run_id).info.status) == (1, "FAILED")


def test_a_run_directory_that_is_not_utf8(tmp_path, database):
    path = tmp_path / os.fsdecode(b"by\xff")
    with pytest.raises(TrackerError, match=r"W&B cannot write into .* not UTF-8; set WANDB_DIR"):
        run(walking(), generations=1, run_dir=str(path), quiet=True, callbacks=[WandbTracker("birds")])
    callbacks = [MlflowTracker(database, quiet=True)]
    run(walking(), generations=1, run_dir=str(path), overwrite=True, quiet=True, callbacks=callbacks)
    assert mlflow_run(path)[0].info.run_name == "by?"


def test_a_server_of_mlflow_that_does_not_exist_or_does_not_answer(monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with pytest.raises(TrackerError, match=r"^MLflow at http://127.0.0.1:9 cannot .* \(Connection"):
        MlflowTracker("http://127.0.0.1:9")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TrackerError, match=rf"^MLflow at {uri} cannot be used \(it did not answer in time\); give"):
            MlflowTracker(uri)


def test_a_tracker_can_be_used_for_several_runs_and_prints_their_places(database, tmp_path, capsys):
    callbacks = [WandbTracker("birds"), MlflowTracker(database)]
    uri = shlex.quote(callbacks[1]._uri)
    for name in ("first", "second"):
        run(walking(), generations=2, run_dir=str(tmp_path / name), callbacks=callbacks, **OPTIONS)
        printed = capsys.readouterr().out
        assert f"wandb      offline; send it with: wandb sync {tmp_path}/{name}/wandb/offline-run-" in printed
        assert f"mlflow     mlflow ui --backend-store-uri {uri}, experiment rookery" in printed
    for name in ("first", "second"):
        assert mlflow_run(tmp_path / name)[0].info.run_name == name
        assert [file.name for file in offline_files(tmp_path / name)] == [name]


def sent(tracker: MlflowTracker) -> Callable[[Generation], object]:
    """A callback that waits for what the tracker is sending."""
    return lambda _: concurrent.futures.wait([tracker._sender._sending] if tracker._sender._sending else [])


@pytest.mark.parametrize("returns", [True, False])
def test_a_server_that_vanishes_is_one_warning_and_its_values_are_sent_later(tmp_path, database, monkeypatch, returns):
    path, tracker, requests = tmp_path / "run", MlflowTracker(database, quiet=True), []
    send = tracker._client.log_batch

    def vanish(generation):
        def refuse(*_, **__):
            requests.append(generation.number)
            raise ConnectionError("refused")

        if generation.number == 1:
            monkeypatch.setattr(tracker._client, "log_batch", refuse)
        if generation.is_last and returns:
            monkeypatch.setattr(tracker._client, "log_batch", send)

    with pytest.warns(CallbackWarning) as caught:
        run(walking(), generations=7, run_dir=str(path), callbacks=[vanish, tracker, sent(tracker)], **OPTIONS)
    texts = [str(warning.message) for warning in caught]
    assert "ConnectionError: refused); its values are sent when MLflow answers again; the run continues" in texts[0]
    assert len(texts) == (1 if returns else 2)
    assert len(requests) == (1 if returns else 2), "it does not wait for the server in every generation"
    assert len(read_csv(path / "metrics.csv")["generation"]) == 7
    steps = list(range(7 if returns else 1))
    assert sorted(mlflow_run(path)[1]["best_fitness"]) == steps
    if not returns:
        assert "its latest values are missing there; metrics.csv and lineage.csv have all" in texts[1]


def test_a_database_that_fails_prints_no_trace(tmp_path, database, capsys):
    tracker = MlflowTracker(database, quiet=True)

    def fail(generation):
        names = ("metrics", "gone") if generation.number == 1 else ("gone", "metrics")
        if generation.number in (1, 3):
            with contextlib.closing(sqlite3.connect(database / "mlflow.db")) as connection:
                connection.execute("ALTER TABLE {} RENAME TO {}".format(*names))

    with pytest.warns(CallbackWarning, match="no such table"):
        run(
            walking(), generations=4, run_dir=str(tmp_path / "run"), callbacks=[fail, tracker, sent(tracker)], **OPTIONS
        )
    assert sorted(mlflow_run(tmp_path / "run")[1]["best_fitness"]) == list(range(4))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("vanishes", [False, True])
def test_a_run_with_a_server_of_wandb(tmp_path, monkeypatch, vanishes):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setattr(wandb_tracker, "_FINISH_SECONDS", 1.0 if vanishes else 30.0)
    path = tmp_path / "run"
    with wandb_server.serve() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)

        def vanish(generation):
            if generation.number == 3 and vanishes:
                server.stop()

        caught = pytest.warns(CallbackWarning) if vanishes else contextlib.nullcontext([])
        with caught as warned:
            callbacks = [WandbTracker("team/birds", quiet=True), vanish]
            run(walking(), generations=7, run_dir=str(path), callbacks=callbacks, **OPTIONS)
    record = json.loads((path / "wandb.json").read_text())
    assert record["finished"] == len(read_csv(path / "metrics.csv")["generation"]) == 7
    assert server.ids == {record["id"]}
    if vanishes:
        (warning,) = warned
        assert "not all values reached W&B within 1 seconds; send them with: wandb sync" in str(warning.message)
    else:
        assert server.steps == list(range(7))


def test_a_process_of_wandb_that_is_lost_is_one_warning(tmp_path):
    tracker = WandbTracker("birds", quiet=True)

    def lose(generation):
        def refuse(*_, **__):
            raise ConnectionResetError("Connection lost")

        if generation.number == 1:
            tracker._run.log = refuse

    with pytest.warns(CallbackWarning) as caught:
        run(walking(), generations=4, run_dir=str(tmp_path / "run"), callbacks=[lose, tracker], **OPTIONS)
    (warning,) = caught
    assert "W&B takes no more values (ConnectionResetError: Connection lost); metrics.csv and" in str(warning.message)


def test_a_full_disk_without_a_server_is_said_and_its_values_do_not_count_as_recorded(tmp_path, monkeypatch):
    def generation(finished):
        return Generation(finished, 3, {"env_steps": 10.0 * finished}, {}, tmp_path)

    tracker = WandbTracker("birds", quiet=True)
    tracker.begin(Start({}, tmp_path, 0, 3))
    tracker(generation(1))
    monkeypatch.setattr(wandb_tracker, "disk_usage", lambda _: SimpleNamespace(free=100))
    for fail in (lambda: tracker(generation(2)), lambda: tracker.end(None)):
        with pytest.raises(TrackerError, match=r"W&B lacks values, since the disk of .* is full; free space, or set"):
            fail()
    assert records.read_record(tmp_path, "wandb")["finished"] == 0
    with pytest.raises(TrackerError, match="is full"):
        WandbTracker("nests", quiet=True).begin(Start({}, tmp_path, 0, 3))


def test_without_a_run_dir_a_tracker_works_too(database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    callbacks = [WandbTracker("birds", quiet=True), MlflowTracker(database, quiet=True)]
    run(walking(), generations=2, quiet=True, callbacks=callbacks)
    (offline,) = offline_files(tmp_path)
    assert len(offline.history) == 2
    monkeypatch.setenv("WANDB_MODE", "disabled")
    run(walking(), generations=1, run_dir=str(tmp_path / "run"), callbacks=[WandbTracker("birds")], **OPTIONS)
    assert not (tmp_path / "run/wandb.json").exists()
