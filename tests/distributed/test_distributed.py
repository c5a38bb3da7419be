"""Two processes on one machine: the same run as on one device, also after signals and losses."""

import contextlib
import random
import re
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rookery.cli import app
from rookery.distributed import initialize, layout, programs
from rookery.distributed.heartbeat import Watch
from rookery.distributed.initialize import NOT_CONNECTED, ProcessesConfig, ProcessGroup, host_and_port, join
from rookery.distributed.mesh import make_mesh
from rookery.distributed.signals import Interrupted
from rookery.populations.pbt import pbt
from rookery.storage.checkpoint import Checkpointer, CheckpointError
from rookery.storage.csv_log import read_csv
from rookery.training.loop import run
from tests import tiny, walks
from tests.commandline import call
from tests.training.test_resume import (
    COMMAND,
    TIMING,
    assert_same_run,
    await_generation,
    environment,
    generations,
    run_events,
)

# Compiles within a second, so that processes can be started several times.
ARM = (
    "map-elites --env arm --grid 16 16 --shard-repertoire --batch-size 4096 --generations 40 --checkpoint-every 1 "
    "--keep 2 --exact"
).split()
LAST = 40


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(code: str, *arguments: str, devices: int = 1, **cluster: str) -> subprocess.Popen:
    """Start a process with `devices` devices; it compiles as the tests do, and shares their cache."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment() | {"JAX_NUM_CPU_DEVICES": str(devices)} | cluster,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_two(*arguments: str, code: str = COMMAND) -> tuple[subprocess.Popen, ...]:
    """Start two processes of two devices."""
    where = ("--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", "2", "--lost-after", "5")
    return tuple(start(code, *arguments, *where, "--process-id", str(i), devices=2) for i in range(2))


def start_by_slurm(*arguments: str) -> tuple[subprocess.Popen, ...]:
    """Start two processes of two devices, as `srun` does: environment variables have their indices."""
    job = random.randrange(10**6)  # JAX makes a port of it
    step = {"SLURM_JOB_ID": str(job), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    tasks = [{"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)} for i in range(2)]
    flags = (*arguments, "--distributed", "--lost-after", "5")
    return tuple(start(COMMAND, *flags, devices=2, **step, **task) for task in tasks)


def finish(*processes: subprocess.Popen) -> list[tuple[int, str, str]]:
    """Exit code, standard output and standard error of each process."""
    results = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=200)
        except subprocess.TimeoutExpired:
            for one in processes:
                one.kill()
            raise
        results.append((process.returncode, out, err))
    return results


def test_after_signals_and_losses_a_run_stops_in_time_and_resumes_on_any_layout(tmp_path):
    """On one, two and four devices of one and two processes; it starts from the repertoire of another run."""
    origin, whole, run = tmp_path / "origin", tmp_path / "whole", tmp_path / "run"
    assert call("train", *ARM, "--generations", "2", "--run-dir", str(origin), "--devices", "1")[0] == 0
    flags = ("train", *ARM, "--init-from", str(origin))
    assert call(*flags, "--run-dir", str(whole), "--devices", "1")[0] == 0

    processes = start_two(*flags, "--run-dir", str(run))
    await_generation(processes[0], run, 2)
    processes[1].send_signal(signal.SIGTERM)
    first, second = finish(*processes)
    assert (first[0], second[0]) == (143, 143), first[2] + second[2]
    reached = generations(run)
    assert 2 <= reached < LAST
    assert f"stopped after generation {reached}, which is saved" in first[2]
    assert "on 4 cpu devices of 2 processes" in first[1]
    assert "Gloo" not in first[1]
    assert second[1] == "", "only process 0 prints"
    assert run_events(run) == ["began", "compiled", "ended: interrupted by SIGTERM"], "only process 0 writes"
    assert "coordinator" not in (run / "config.json").read_text(), "the address of process 0 is no setting of the run"

    processes = start_by_slurm("resume", str(run))
    await_generation(processes[0], run, reached + 1)
    processes[1].kill()
    first, second = finish(*processes)
    assert (first[0], second[0]) == (75, -signal.SIGKILL), first[2]
    assert f"process 1 (pid {processes[1].pid} on {socket.gethostname()}) is lost" in first[2]
    assert f"continue with: rookery resume {run}" in first[2]
    reached = generations(run)
    assert reached < LAST

    processes = start_two("resume", str(run))
    await_generation(processes[0], run, reached + 1)
    processes[0].kill()
    first, second = finish(*processes)
    assert first[0] == -signal.SIGKILL
    assert second[0] in (-signal.SIGABRT, 75, 1), "JAX aborts it; jaxlib 0.8 ended it with 1"
    assert second[2], "JAX's own message"
    assert generations(run) < LAST

    assert call("resume", str(run))[0] == 0
    assert_same_run(whole, run)


IN_PYTHON = """
import sys, jax
import rookery
from rookery.distributed import make_mesh, mesh_for, placement, process_group, sync
from rookery.distributed.signals import Interrupted
from rookery.training import CallbackError, Required
from rookery.training.loop import run
from tests import walks

folder, here = sys.argv[1], dict(zip(sys.argv[2::2], sys.argv[3::2]))
where = here["--coordinator"], int(here["--num-processes"]), int(here["--process-id"])

def count(generation):
    print("called", generation.number)

def stop(error, generation):
    if generation.finished == 3:
        raise error

def attempt(name, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except (CallbackError, Interrupted, ValueError) as error:
        print(name, type(error).__name__, error)

with process_group(*where, lost_after=10.0):
    over = make_mesh()
    program = rookery.pbt(
        walks.learner(), walks.SPACE, 4, placement=placement(over, True), replace_count=1, inherit_buffer=True
    )
    def train(name, *callbacks, **options):
        settings = {"run_dir": f"{folder}/{name}", "quiet": True, "generations": 5, "checkpoint_every": 100, **options}
        attempt(name, run, program, over=over, callbacks=callbacks, **settings)
    train("whole", count)
    for name, error in (("interrupt", KeyboardInterrupt()), ("exception", OSError("no quota"))):
        train(name, Required(lambda generation: stop(error, generation)))
    train("different", keep=2 + 3 * jax.process_index(), seed=3 * jax.process_index())
    attempt("three", make_mesh, 3)
    attempt("five", make_mesh, 5)
    attempt("six", mesh_for, 6, 4)
    print([device.process_index for device in make_mesh(2).devices])
    if jax.process_index() == 1:
        raise KeyError("an unexpected error")
    sync.barrier()  # process 1 does not reach it
"""


@pytest.fixture(scope="module")
def in_python(tmp_path_factory) -> tuple[Path, list[tuple[int, str, str]]]:
    """A folder of runs of two processes from Python, and what each process returned and printed."""
    folder = tmp_path_factory.mktemp("in_python")
    return folder, finish(*start_two(str(folder), code=IN_PYTHON))


def test_two_processes_of_two_devices_give_the_bits_of_one_device(in_python, tmp_path):
    folder, _ = in_python
    options: dict[str, Any] = {"replace_count": 1, "inherit_buffer": True}
    mesh = make_mesh(1)
    program = pbt(walks.learner(), walks.SPACE, 4, placement=layout.placement(mesh, True), **options)
    run(program, over=mesh, run_dir=str(tmp_path), quiet=True, generations=5, checkpoint_every=100)
    for name in ("metrics.csv", "lineage.csv"):
        one, other = read_csv(tmp_path / name), read_csv(folder / "whole" / name)
        assert one.keys() == other.keys()
        for column in one.keys() - TIMING:
            assert np.array_equal(one[column], other[column], equal_nan=True), f"{name}: {column}"
    lineage = read_csv(tmp_path / "lineage.csv")
    assert (lineage["parent"] != lineage["member"]).any(), "the test needs a replaced member"
    template = programs.template(program, mesh)
    paths = (tmp_path, folder / "whole")
    tiny.assert_equal(*(Checkpointer(path / "checkpoints", read_only=True).restore(template)[0] for path in paths))


def test_only_process_0_calls_callbacks_and_both_stop_after_the_same_generation(in_python):
    folder, ((_, first, _), (_, second, _)) = in_python
    assert [line for line in first.splitlines() if "called" in line] == [f"called {number}" for number in range(5)]
    assert "called" not in second
    for out, what in ((first, "the callback .* failed with OSError: no quota"), (second, "in process 0")):
        assert "interrupt Interrupted stopped after generation 3, which is saved" in out
        assert re.search(rf"exception CallbackError .*{what}.* ended the run after generation 3, which is saved", out)
    for name in ("interrupt", "exception"):
        assert Checkpointer(folder / name / "checkpoints", read_only=True).latest() == 3


def test_processes_with_different_settings_stop_at_the_start(in_python):
    folder, results = in_python
    for _, out, _ in results:
        assert (
            "different ValueError process 1 is configured differently from process 0: run.keep is 5 there and 2 in "
            "process 0; run.seed is 3 there"
        ) in out
    assert not (folder / "different").exists()


def test_an_exception_in_one_process_ends_the_others(in_python):
    _, (first, second) = in_python
    for _, out, _ in (first, second):
        assert "3 devices were requested, but each of 2 processes must contribute equally many" in out
        assert "5 devices were requested, but there are 4" in out
        assert "a population of 6 cannot be divided evenly over 4 devices; use 4 or 8, or fewer devices" in out
        assert "[0, 1]" in out
    assert (first[0], second[0]) == (1, 1)
    assert "KeyError: 'an unexpected error'" in second[2]
    assert "stopped: KeyError: 'an unexpected error'" in first[2]


class Recorder(ProcessGroup):
    """Replaces a group of processes, and records the calls."""

    def __init__(self):
        super().__init__()
        self.calls: list[str] = []

    @property
    def alone(self) -> bool:
        return False

    def leave(self) -> None:
        self.calls.append("leave")

    def await_lost_process(self, error: BaseException) -> None:
        self.calls.append(f"await {type(error).__name__}")

    def abandon(self, code: int, reason: str) -> None:
        self.calls.append(f"abandon {code} {reason}")


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (None, ["leave"]),
        (Interrupted(2, "stopped after generation 3"), ["leave"]),
        (KeyError("gone"), ["await KeyError", "abandon 1 KeyError: 'gone'"]),
    ],
)
def test_a_block_disconnects_in_order_unless_this_process_fails(monkeypatch, error, calls):
    recorder = Recorder()
    monkeypatch.setattr(initialize, "join", lambda _: recorder)
    with contextlib.suppress(KeyError, Interrupted), initialize.process_group():
        if error is not None:
            raise error
    assert recorder.calls == calls


class Waiting(Watch):
    """Replaces a watch, and records whether it was waited for."""

    def __init__(self):
        self.waited = False

    def wait(self) -> None:
        self.waited = True


def of_a_checkpoint(error: Exception) -> Exception:
    failure = CheckpointError("Could not write the checkpoint of generation 3")
    failure.__cause__ = error
    return failure


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (jax.errors.JaxRuntimeError("UNAVAILABLE: a task ended"), True),
        (ValueError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer"), True),
        (of_a_checkpoint(jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: Barrier timed out")), True),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), False),
        (of_a_checkpoint(OSError(28, "No space left on device")), False),
        (ValueError("a population of 6 cannot be divided"), False),
    ],
)
def test_after_a_failure_of_the_runtime_the_watch_may_detect_a_loss(error, waits):
    watch = Waiting()
    ProcessGroup(watch).await_lost_process(error)
    assert watch.waited == waits


@pytest.mark.parametrize("error", [ValueError("UNKNOWN: Gloo all-reduce failed"), KeyError("gone")])
def test_a_command_that_fails_awaits_a_lost_process_first(monkeypatch, capsys, error):
    def fail(*_: object) -> None:
        raise error

    recorder = Recorder()
    monkeypatch.setattr(app, "join", lambda _: recorder)
    monkeypatch.setattr(app, "keep_compiled_programs", lambda: None)
    monkeypatch.setattr(app, "resume", fail)
    monkeypatch.setattr(app, "raised_by_user", lambda _: None)  # it stands for a function of this library
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr(sys, "argv", ["rookery", "resume", "runs/mine"])
    with pytest.raises((SystemExit, KeyError)):
        app.main()
    assert [call.split()[0] for call in recorder.calls] == ["await", "abandon"]
    assert recorder.calls[0] == f"await {type(error).__name__}"
    assert str(error) in capsys.readouterr().err


class TestConnecting:
    """Connecting one process, with different flags."""

    def test_processes_that_cannot_connect(self):
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        group = ("--num-processes", "2", "--connect-timeout", "2")
        alone = [  # process 1 finds no process 0, and process 0 waits for process 1
            start(COMMAND, "train", "pbt-sac", "--coordinator", where, *group, "--process-id", index)
            for where, index in zip(addresses, "10", strict=True)
        ]
        *results, (code, _, err) = finish(*alone, start(COMMAND, "train", "pbt-sac", "--distributed"))
        for where, (code_of_one, _, err_of_one) in zip(addresses, results, strict=True):
            assert code_of_one == NOT_CONNECTED
            assert f"error: the processes of the run did not all connect at {where} within 2 s" in err_of_one
        assert code == 1
        assert "error: no cluster was detected; give --coordinator HOST:PORT" in err

    def test_the_port_is_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with pytest.raises(ValueError, match=f"port {port} of .* cannot be opened .*choose another port"):
                join(ProcessesConfig(coordinator=f"localhost:{port}", num_processes=2, process_id=0))

    def test_an_address_is_host_and_port(self):
        assert host_and_port("node-1.cluster:1234") == ("node-1.cluster", 1234)
        assert host_and_port("[::1]:65535") == ("::1", 65535)
        for address in ("node1", "node1:0", "node1:70000", ":1234", "http://a:1", "::1:1234", "[::1]"):
            with pytest.raises(ValueError, match="is not HOST:PORT: give a name or an IP address and a port"):
                host_and_port(address)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"coordinator": "a:1"}, "coordinator needs num_processes and process_id"),
            ({"num_processes": 2, "process_id": 0}, "num_processes needs coordinator"),
            (
                {"coordinator": "a:1", "num_processes": 2, "process_id": 2},
                r"process_id must be below num_processes \(2\), got 2",
            ),
        ],
    )
    def test_invalid_settings(self, settings, message):
        with pytest.raises(ValueError, match=message):
            ProcessesConfig(**settings)

    def test_a_single_process_needs_no_group(self):
        group = join(ProcessesConfig())
        assert group.alone
        assert str(group) == ""
        group.set_run_dir("runs/mine")
        group.abandon(3, "without effect")
        group.leave()
