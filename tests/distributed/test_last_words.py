"""Last words: a process that was killed is spoken for, with the way on; one that said goodbye is not."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rookery.distributed import last_words
from rookery.distributed.addresses import DoorError
from rookery.distributed.last_words import LastWords

HOST = socket.gethostname()
# A parent of its own: it loads the one file without the rest of rookery (and JAX), so that it starts at once.
PARENT = f"""
import importlib.util, os, signal, sys, time, types
sys.modules["rookery.distributed.addresses"] = addresses = types.ModuleType("addresses")
addresses.host_and_port = lambda address: (address.rpartition(":")[0], int(address.rpartition(":")[2]))
spec = importlib.util.spec_from_file_location("last_words", {last_words.__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
process, processes, address, run, end = sys.argv[1:]
words = module.LastWords(int(process), int(processes), address or None)
if run:
    words.run("elsewhere")
    words.run(run)
exec(end)
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
JAX_ENDED_IT = ", or JAX ended it because another process was lost (then its message is above)"


def end(process: int, processes: int, address: str, run: str | Path, how: str) -> tuple[str, int]:
    """What stands on stderr when a parent has ended in that way, and its pid. Waits for the child, which holds it."""
    command = [sys.executable, "-S", "-c", PARENT, str(process), str(processes), address, str(run), how]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as parent:
        return parent.communicate(timeout=8)[1], parent.pid


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose newest checkpoint is of generation 100, and files that are none."""
    (tmp_path / "checkpoints").mkdir()
    saved = [f"{generation:08d}.json" for generation in (40, 9, 50, 100, 60, 30, 70, 20)]
    for name in (*saved, "00000200.json.rookery-tmp", "00000300", "x.json"):
        (tmp_path / "checkpoints" / f"generation_{name}").touch()
    return tmp_path


def unspoken(process: int, processes: int, pid: int) -> str:
    return (
        f"rookery: process {process} of {processes} (pid {pid} on {HOST}) ended without a message: "
        f"it was killed, or ran out of memory{JAX_ENDED_IT if processes > 1 else ''}\n"
    )


@pytest.mark.parametrize("how", [KILL, "os.abort()", "os._exit(1)"])
def test_who_was_killed_is_spoken_for(run: Path, how: str):
    said, pid = end(0, 1, "", run, how)
    way_on = f"rookery: the newest checkpoint is of generation 100; continue with: rookery resume {run}\n"
    assert said == unspoken(0, 1, pid) + way_on


def test_a_process_whose_coordinator_lives_was_lost_alone(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as coordinator:
        said, pid = end(1, 2, f"127.0.0.1:{coordinator.getsockname()[1]}", tmp_path / "a run", KILL)
    assert said == unspoken(1, 2, pid) + f"rookery: no checkpoint was saved yet in {tmp_path / 'a run'}\n"


def test_process_0_took_the_others_with_it(run: Path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = f"127.0.0.1:{listener.getsockname()[1]}"
    said, _ = end(1, 2, gone, "", KILL)
    assert said == f"rookery: process 0 at {gone} has ended, and process 1 of 2 ended with it\n"
    said, pid = end(0, 2, gone, "", KILL)  # process 0 itself held it
    assert said == unspoken(0, 2, pid)


def test_a_folder_for_the_shell(run: Path):
    odd = run / "a 'run'\udcff"
    run.joinpath("checkpoints").rename(run / "kept")
    odd.mkdir()
    (run / "kept").rename(odd / "checkpoints")
    command = [sys.executable, "-S", "-c", PARENT, "0", "1", "", str(odd), KILL]
    said = subprocess.run(command, stderr=subprocess.PIPE, check=False, timeout=8).stderr
    assert said.endswith(b"rookery resume '" + os.fsencode(run) + b"/a '\"'\"'run'\"'\"'\xff'\n")


@pytest.mark.parametrize("how", ["words.goodbye()", "words.goodbye(); words.goodbye(); words.run('x')"])
def test_who_said_goodbye_is_not_spoken_for(run: Path, how: str):
    assert end(1, 2, "127.0.0.1:1", run, how)[0] == ""


def test_a_fork_that_holds_the_pipe_does_not_hide_the_death(run: Path):
    fork = "child = os.fork()\nif child == 0:\n    os.close(2)\n    time.sleep(6)\n    os._exit(0)\n"
    began = time.monotonic()
    said, pid = end(0, 1, "", "", fork + f"os.write(2, str(child).encode() + b'\\n')\n{KILL}")
    assert time.monotonic() - began < 4
    forked, _, sentence = said.partition("\n")
    os.kill(int(forked), signal.SIGKILL)
    assert sentence == unspoken(0, 1, pid)


def child_of(words: LastWords) -> subprocess.Popen[bytes]:
    assert words._child is not None
    return words._child


def test_the_child_is_in_a_session_of_its_own():
    words = LastWords(0, 1, None)
    listener = child_of(words)
    assert os.getsid(listener.pid) == listener.pid
    words.goodbye()
    assert listener.returncode == 0


def test_a_dead_child_is_ignored(tmp_path: Path):
    words = LastWords(0, 1, None)
    child_of(words).kill()
    child_of(words).wait()
    words.run(tmp_path)
    words.goodbye()
    words.goodbye()


def test_a_child_that_does_not_listen_never_blocks(monkeypatch):
    assert last_words._LEAVE_SECONDS == 2.0
    monkeypatch.setattr(last_words, "_LEAVE_SECONDS", 0.3)
    words = LastWords(0, 1, None)
    listener = child_of(words)
    listener.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    for _ in range(100):
        words.run("x" * 3000)  # more than a pipe takes
    assert time.monotonic() - began < 1
    words.goodbye()
    assert 0.3 <= time.monotonic() - began < 2
    assert listener.returncode == -signal.SIGKILL


def test_no_child_can_be_had(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    words = LastWords(0, 2, "node1:1234")
    words.run("x")
    words.goodbye()


def test_an_address_that_is_none():
    with pytest.raises(DoorError, match="'node1' is not HOST:PORT"):
        LastWords(0, 2, "node1")


# The child's own code, which says when it begins to listen, with one part of it replaced.
CHILD = f"""
import importlib.util, signal, sys, time
spec = importlib.util.spec_from_file_location("last_words", {last_words.__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
listen = module._listen
module._listen = lambda: print("ready", flush=True) or listen()
exec(sys.argv[1])
module._main()
"""


def child(part: str) -> subprocess.Popen[bytes]:
    command, pipe = [sys.executable, "-S", "-c", CHILD, part], subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


FACTS = {"process": 0, "processes": 1, "pid": os.getpid(), "machine": HOST, "address": None, "place": None, "run": "x"}


def test_the_child_hears_no_signal_of_the_run(tmp_path: Path):
    process = child("pass")
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(signum)
    _, said = process.communicate(json.dumps(FACTS | {"run": str(tmp_path)}).encode() + b"\n", timeout=8)
    assert said.decode() == unspoken(0, 1, os.getpid()) + f"rookery: no checkpoint was saved yet in {tmp_path}\n"
    assert process.returncode == 0


def test_a_file_system_that_hangs_does_not_keep_the_child():
    hang = "signal.signal(signal.SIGALRM, signal.SIG_IGN); module._SPEAK_SECONDS = 1; "
    process = child(hang + "module.way_on = lambda _: time.sleep(30)")
    _, said = process.communicate(json.dumps(FACTS).encode() + b"\n", timeout=8)
    assert said.decode() == unspoken(0, 1, os.getpid())
    assert process.returncode == -signal.SIGALRM
