"""Two processes on one machine: the same run as on one device, also after signals and losses."""

import contextlib
import random
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax
import pytest

from rookery.cli import app
from rookery.distributed import initialize
from rookery.distributed.heartbeat import Watch
from rookery.distributed.initialize import NOT_CONNECTED, ProcessesConfig, ProcessGroup, host_and_port, join
from rookery.distributed.signals import Interrupted
from rookery.storage.checkpoint import CheckpointError
from rookery.storage.csv_log import read_csv
from tests.training.test_resume import COMMAND, assert_same_run, await_generation, environment, generations, run_events

EVOLVING = (
    "pbt-sac --env point_room --episode-length 20 --population 4 --generations 5 --steps-per-generation 400 "
    "--num-envs 4 --updates-per-step 0.5 --batch-size 8 --hidden-sizes 8 --buffer-size 5000 --warmup-steps 8 "
    "--eval-episodes 2 --checkpoint-every 1 --keep 2 --exploit-interval 400 --inherit-buffer --exact"
).split()
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


def start_two(*arguments: str, other: tuple[str, ...] = (), code: str = COMMAND) -> tuple[subprocess.Popen, ...]:
    """Start two processes of two devices; `other` has the additional arguments of process 1."""
    where = ("--coordinator", f"127.0.0.1:{free_port()}", "--num-processes", "2", "--lost-after", "5")
    given = [(*arguments, *(other if process else ())) for process in range(2)]
    return tuple(start(code, *given[i], *where, "--process-id", str(i), devices=2) for i in range(2))


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


def alone(flags: Sequence[str], run: Path) -> Path:
    """An uninterrupted run on one device of one process."""
    ((code, _, err),) = finish(start(COMMAND, "train", *flags, "--run-dir", str(run)))
    assert code == 0, err
    return run


def test_two_processes_of_two_devices_give_the_bits_of_one_device(tmp_path):
    run, one = tmp_path / "run", alone(EVOLVING, tmp_path / "alone")
    lineage = read_csv(one / "lineage.csv")
    assert (lineage["parent"] != lineage["member"]).any(), "the test needs a replaced member"
    first, second = finish(*start_two("train", *EVOLVING, "--run-dir", str(run)))
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert "population 4 on 4 cpu devices of 2 processes" in first[1]
    assert "Gloo" not in first[1]
    assert second[1:] == ("", ""), "only process 0 prints"
    assert_same_run(one, run)
    assert run_events(run) == ["began", "compiled", "ended: finished"], "only process 0 writes"
    config = (run / "config.json").read_text()
    assert "coordinator" not in config, "the address of process 0 is no setting of the run"


def test_after_signals_and_losses_a_run_stops_in_time_and_resumes_on_any_layout(tmp_path):
    run = tmp_path / "run"
    processes = start_two("train", *ARM, "--run-dir", str(run))
    await_generation(processes[0], run, 2)
    processes[1].send_signal(signal.SIGTERM)
    first, second = finish(*processes)
    assert (first[0], second[0]) == (143, 143), first[2] + second[2]
    reached = generations(run)
    assert 2 <= reached < LAST
    assert f"stopped after generation {reached}, which is saved" in first[2]

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

    ((code, _, err),) = finish(start(COMMAND, "resume", str(run)))
    assert code == 0, err
    assert_same_run(alone(ARM, tmp_path / "alone"), run)

    begun = tmp_path / "begun"  # another run of two processes starts from its repertoire
    flags = [*ARM, "--generations", "2", "--init-from", str(run), "--run-dir", str(begun)]
    first, second = finish(*start_two("train", *flags))
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert read_csv(begun / "metrics.csv")["coverage"][0] >= read_csv(run / "metrics.csv")["coverage"][-1]


def test_processes_with_different_settings_stop_at_the_start(tmp_path):
    run = tmp_path / "run"
    first, second = finish(*start_two("train", *ARM, "--run-dir", str(run), other=("--seed", "3", "--keep", "5")))
    message = (
        "process 1 is configured differently from process 0: run.keep is 5 there and 2 in process 0; "
        "run.seed is 3 there"
    )
    for code, _, err in (first, second):
        assert code == 1
        assert message in err
    assert not run.exists()


IN_PYTHON = """
import sys, jax
import rookery
from rookery.distributed import make_mesh, mesh_for, sync
here = dict(zip(sys.argv[1::2], sys.argv[2::2]))
where = here["--coordinator"], int(here["--num-processes"]), int(here["--process-id"])
with rookery.distributed.process_group(*where, lost_after=10.0):
    for attempt in (lambda: make_mesh(3), lambda: make_mesh(5), lambda: mesh_for(6, 4)):
        try:
            attempt()
        except ValueError as error:
            print(error)
    print([device.process_index for device in make_mesh(2).devices])
    if jax.process_index() == 1:
        raise KeyError("an unexpected error")
    sync.barrier()  # process 1 does not reach it
"""


def test_an_exception_in_one_process_ends_the_others():
    first, second = finish(*start_two(code=IN_PYTHON))
    for _, out, _ in (first, second):
        assert "3 devices were requested, but each of 2 processes must contribute equally many" in out
        assert "5 devices were requested, but there are 4" in out
        assert "a population of 6 cannot be divided evenly over 4 devices; use 4 or 8, or fewer devices" in out
        assert "[0, 1]" in out
    assert second[0] == 1
    assert "KeyError: 'an unexpected error'" in second[2]
    assert first[0] == 1
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
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr(sys, "argv", ["rookery", "resume", "runs/mine"])
    with pytest.raises((SystemExit, KeyError)):
        app.main()
    assert [call.split()[0] for call in recorder.calls] == ["await", "abandon"]
    assert recorder.calls[0] == f"await {type(error).__name__}"
    assert str(error) in capsys.readouterr().err


class TestConnecting:
    """Connecting one process, with different flags."""

    def test_process_0_is_not_running(self):
        where = f"127.0.0.1:{free_port()}"
        flags = ("--coordinator", where, "--num-processes", "2", "--process-id", "1", "--connect-timeout", "2")
        ((code, _, err),) = finish(start(COMMAND, "train", "pbt-sac", *flags))
        assert code == NOT_CONNECTED
        assert f"error: the processes of the run did not all connect at {where} within 2 s" in err

    def test_another_process_is_missing(self):
        where = f"127.0.0.1:{free_port()}"
        flags = ("--coordinator", where, "--num-processes", "2", "--process-id", "0", "--connect-timeout", "2")
        ((code, _, err),) = finish(start(COMMAND, "train", "pbt-sac", *flags))
        assert code == NOT_CONNECTED
        assert f"error: the processes of the run did not all connect at {where} within 2 s" in err

    def test_the_port_is_in_use(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with pytest.raises(ValueError, match=f"port {port} of .* cannot be opened .*choose another port"):
                join(ProcessesConfig(coordinator=f"localhost:{port}", num_processes=2, process_id=0))

    def test_two_processes_with_one_id(self):
        where = f"127.0.0.1:{free_port()}"
        flags = ("--coordinator", where, "--num-processes", "3", "--process-id", "1", "--connect-timeout", "5")
        for code, _, err in finish(*(start(COMMAND, "train", "pbt-sac", *flags) for _ in range(2))):
            assert code == NOT_CONNECTED
            assert "error: the processes of the run did not all connect" in err

    @pytest.mark.parametrize("address", ["node1", "node1:0", "node1:70000", ":1234", "http://a:1", "::1:1234", "[::1]"])
    def test_an_address_that_is_not_host_and_port(self, address):
        with pytest.raises(ValueError, match="is not HOST:PORT: give a name or an IP address and a port"):
            host_and_port(address)

    def test_host_and_port(self):
        assert host_and_port("node-1.cluster:1234") == ("node-1.cluster", 1234)
        assert host_and_port("[::1]:65535") == ("::1", 65535)

    def test_no_cluster_is_detected(self):
        ((code, _, err),) = finish(start(COMMAND, "train", "pbt-sac", "--distributed"))
        assert code == 1
        assert "error: no cluster was detected; give --coordinator HOST:PORT" in err

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"coordinator": "a:1"}, "belong together; give --num-processes, --process-id too"),
            ({"num_processes": 2, "process_id": 0}, "give --coordinator too"),
            ({"coordinator": "a:1", "num_processes": 2, "process_id": 2}, r"process_id must be in 0\.\.1, got 2"),
            ({"coordinator": "a:1", "num_processes": 0, "process_id": 0}, "num_processes must be at least 1, got 0"),
            ({"connect_timeout": 0}, "connect_timeout must be above 0 and finite, got 0"),
            ({"lost_after": 0.5}, "lost_after must be at least 1 and finite, got 0.5"),
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
