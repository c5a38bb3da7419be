"""Islands on a real Ray: a cluster of two nodes on this machine, a kill, other versions, an address without Ray."""

import ast
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rookery.cli import app
from rookery.distributed.signals import Requests
from rookery.islands import plan, ray_engine, run_islands
from rookery.islands.ray_engine import IslandTask, Resources, _check_node, _share
from rookery.storage.csv_log import read_csv
from rookery.storage.island_files import islands_of, read_exchanges
from rookery.storage.run_dir import RunFolder, RunFolderError, open_existing
from rookery.versions import versions
from tests.islands.runs import PBT, train

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore:os.fork:RuntimeWarning"
)


@pytest.fixture(scope="module")
def address():
    """The address of a cluster of two nodes, whose workers share the compilation cache of the tests."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patched.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patched.setenv("JAX_COMPILATION_CACHE_DIR", os.environ["ROOKERY_TEST_CACHE"])
        patched.setenv("PYTHONPATH", str(Path(app.__file__).parents[2]))
        options = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=options)
        cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
        yield cluster.address
        cluster.shutdown()


def pid_of(island: RunFolder) -> int:
    return json.loads(island.owner_file.read_text())["pid"]


def test_a_killed_island_returns_and_a_signal_stops_all(address, tmp_path, monkeypatch):
    """The other island loses no generation; both are saved, and continue in one process."""
    folder, requests = tmp_path / "run", Requests()
    killed: list[int] = []

    def follow(self):
        """Kill island 1 once it has a checkpoint and island 0 trains; stop the run when it has come back."""
        islands = [RunFolder(folder / f"islands/{number}") for number in range(2)]
        if not all(island.metrics_file.is_file() and island.owner_file.is_file() for island in islands):
            return
        rows = [island.metrics_file.read_text().count("\n") for island in islands]
        if not killed and list(islands[1].checkpoints.glob("generation_*.json")):
            killed.extend([pid_of(island) for island in islands])
            os.kill(killed[1], signal.SIGKILL)
            killed.extend(rows)
        elif killed and pid_of(islands[1]) not in killed and rows[1] > killed[3] + 1:
            requests.signum = signal.SIGINT

    monkeypatch.setattr("rookery.islands.run.Follower.__call__", follow)
    monkeypatch.setattr("rookery.islands.run.Requests", lambda: requests)
    monkeypatch.setattr(ray_engine, "_POLL_SECONDS", 0.1)
    code, _, err = train(PBT, folder, "--generations", "100000", "--ray-address", address)
    assert code == 130
    assert "are saved; continue with: rookery resume" in err
    monkeypatch.undo()
    assert killed[0] != killed[1]  # a process for each
    events = [(path / "journal.jsonl").read_text().count('"began"') for path in islands_of(folder)]
    assert events == [1, 2]
    reached = [read_csv(path / "metrics.csv")["generation"] for path in islands_of(folder)]
    for generations in reached:
        assert generations.tolist() == list(range(len(generations)))
    assert len(reached[0]) > killed[2]
    assert any(exchange.imports for path in islands_of(folder) for exchange in read_exchanges(path / "imports.jsonl"))
    config = plan.resumed(open_existing(folder), None, {"quiet": True, "generations": max(map(len, reached)) + 1})
    run_islands(config, resume=True)
    total = config.run.generations
    assert [len(read_csv(path / "metrics.csv")["generation"]) for path in islands_of(folder)] == [total] * 2


LOST = "what it has saved is complete, so continue with: rookery resume /runs/a"
MENDED = "once that is mended, continue with: rookery resume /runs/a"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ray.exceptions.ActorDiedError(), f"The actor died unexpectedly before finishing this task; {LOST}"),
        (ray.exceptions.ActorUnavailableError("it is gone.\nMore.", None), f"The actor .* is gone; {LOST}"),
        (ray.exceptions.NodeDiedError("The node died."), f"The node died; {LOST}"),
        (RuntimeError("no memory.\nMore."), f"RuntimeError: no memory. More; {MENDED}"),
        (RunFolderError("a is in use: by 7; wait for it."), f"a is in use: by 7; {MENDED}"),
    ],
)
def test_the_outcome_of_a_lost_island(error, sentence):
    found = outcome_of(error)
    assert (found.island, found.stopped) == (3, False)
    assert found.error is not None
    assert re.fullmatch(sentence, found.error), found.error


def outcome_of(error):
    if not isinstance(error, ray.exceptions.RayError):
        error = ray.exceptions.RayTaskError("run", "", error)

    def get(_):
        raise error

    return ray_engine._outcome(SimpleNamespace(get=get, exceptions=ray.exceptions), None, 3, RunFolder("/runs/a"))


def test_an_error_of_the_settings_ends_all_islands():
    for error in (ValueError("discount must be below 1."), ImportError("no brax")):
        with pytest.raises(type(error), match=f"^{error}$"):
            outcome_of(error)


def test_an_error_of_an_island_is_one_sentence(address, tmp_path):
    code, _, err = train(PBT, tmp_path / "run", "--env", "point_rom", "--ray-address", address)
    assert code == 1
    assert err.startswith("error: ")
    assert "point_room" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("address", "error", "remedy"),
    [
        ("auto", ConnectionError("Could not find any running Ray instance.\nMore."), "start a cluster"),
        ("local", Exception("The current node timed out during startup."), "run the command again, or without --ray-"),
    ],
)
def test_a_ray_that_cannot_be_reached_is_one_sentence(address, error, remedy, tmp_path, monkeypatch):
    def fails(**_):
        raise error

    monkeypatch.setattr(ray, "init", fails)
    code, _, err = train(PBT, tmp_path / "run", "--ray-address", address)
    assert code == 2
    assert err.startswith(f"error: --ray-address cannot be used: {str(error).splitlines()[0]}".rstrip("."))
    assert f", got '{address}'; " in err
    assert f"; {remedy}" in err
    assert err.count("\n") == 1


def test_a_node_with_other_versions_or_another_folder(tmp_path):
    found = versions((*ray_engine.PACKAGES, "ray"))
    (tmp_path / ".owner.json").write_text("this run")
    task = IslandTask(2, "", "this run", found, None, tuple)
    _check_node(task, str(tmp_path))
    for name in ("python", "ray", "rookery", "jax"):
        message = f"island 2 is on a node with {name} .*, but the run was started with 0.1;"
        with pytest.raises(ValueError, match=message):
            _check_node(task._replace(versions={**found, name: "0.1"}), str(tmp_path))
    for other, folder in ((task._replace(owner="another run"), tmp_path), (task, tmp_path / "elsewhere")):
        with pytest.raises(ValueError, match="island 2 is on a node that cannot read"):
            _check_node(other, str(folder))


def test_a_ray_of_this_machine_listens_on_loopback_only(tmp_path):
    """In a process of its own, since Ray reads the setting when it is imported."""
    script = f"""
import psutil
import sys
from rookery.cli import app
from rookery.islands import ray_engine

share = ray_engine._share

def listen(*arguments):
    own = [one.pid for one in psutil.process_iter() if "ray" in one.name() or "gcs" in one.name()]
    listening = [one for one in psutil.net_connections("tcp") if one.status == "LISTEN"]
    session = {{one.laddr.ip for one in listening if one.pid in own and one.pid not in before}}
    print(sorted(session))
    raise ValueError("enough")

before = [one.pid for one in psutil.process_iter()]
ray_engine._share = listen
sys.argv = ["rookery", "train", *"{PBT}".split(), "--run-dir", "{tmp_path}/run", "--ray-address", "local"]
app.main()
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (found.returncode, found.stderr.splitlines()[-1]) == (1, "error: enough")
    addresses = ast.literal_eval(found.stdout.splitlines()[-1])
    assert addresses
    assert set(addresses) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


@pytest.mark.parametrize(
    ("nodes", "islands", "expected"),
    [
        ([{"CPU": 8.0}], 4, Resources(2.0, 0.0)),
        ([{"CPU": 9.0}], 4, Resources(2.0, 0.0)),
        ([{"CPU": 2.0}], 3, Resources(0.666, 0.0)),
        ([{"CPU": 64.0, "GPU": 8.0}], 4, Resources(16.0, 2.0)),
        ([{"CPU": 64.0, "GPU": 1.0}], 4, Resources(16.0, 0.25)),
        ([{"CPU": 64.0, "GPU": 8.0}], 12, Resources(5.0, 0.5)),  # a fraction is on one GPU
        ([{"CPU": 64.0}, {"CPU": 64.0, "GPU": 8.0}], 8, Resources(8.0, 1.0)),  # all of them where the GPUs are
        ([{"CPU": 2.0}, {"CPU": 14.0}], 4, Resources(3.0, 0.0)),  # 4 each would leave one without a node
        ([{"CPU": 1.0}, {"CPU": 1.0}], 2, Resources(1.0, 0.0)),
    ],
)
def test_the_share_of_an_island(nodes, islands, expected):
    assert _share(nodes, islands) == expected


def test_the_processes_of_ray_outlive_a_closed_session(monkeypatch):
    """It reaches them too; the command saves all islands, then stops them."""
    found, handler = [], signal.getsignal(signal.SIGHUP)
    monkeypatch.setattr(ray, "init", lambda **_: found.append(signal.getsignal(signal.SIGHUP)))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with ray_engine.connected("auto"):
        found.append(signal.getsignal(signal.SIGHUP))
    assert found == [signal.SIG_IGN, handler]


def test_the_number_of_devices_of_an_island_is_kept(tmp_path):
    config = plan.check(app.parse(["train", *PBT.split(), "--run-dir", str(tmp_path)]).spec)
    assert ray_engine._on_node(config, 0, Resources(2.0, 0.0)).environment.devices == 1
    free = dataclasses.replace(config, environment=dataclasses.replace(config.environment, devices=None))
    assert ray_engine._on_node(free, 0, Resources(3.0, 0.0)).environment.devices == 2
    assert ray_engine._on_node(free, 0, Resources(0.5, 0.0)).environment.devices == 1
    assert ray_engine._on_node(free, 0, Resources(4.0, 1.0)).environment.devices is None
