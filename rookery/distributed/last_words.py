"""What to say when a process of a run ends without a chance to speak, and who says it.

JAX ends a process from C++ (SIGABRT, no Python runs) as soon as it loses process 0, which holds its coordinator; `kill
-9` and the kernel's out-of-memory killer leave no word either. So a small child, which runs this file alone and imports
the standard library only, waits at the end of a pipe: if that closes without a goodbye, it says what became of the
process, and how to go on.
"""

import contextlib
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
from typing import Any

_GOODBYE = b"goodbye\n"
_POLL_SECONDS = 0.5  # between looks at whether the parent lives: a fork of it may hold the pipe open
_PROBE_SECONDS = 1.0
_LEAVE_SECONDS = 2.0  # for the child to end after the goodbye
_SPEAK_SECONDS = 4  # after that the child ends unheard, as where a network's file system hangs
_DEAF = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # they are meant for the run; the child ends with its pipe
_MANIFEST = re.compile(r"generation_(\d+)\.json")


class LastWords:
    """Speaks on stderr if this process ends without `goodbye`, whatever it dies of. Never in its way: a lost child is
    ignored.

    Args:
      process: which one this is, from 0.
      processes: of how many.
      address: `HOST:PORT` of the coordinator, which process 0 holds; None without one.

    Raises:
      DoorError: the address is no HOST:PORT.
    """

    def __init__(self, process: int, processes: int, address: str | None):
        from rookery.distributed.addresses import host_and_port  # the child, which runs this file, knows no rookery

        facts: dict[str, Any] = {"process": process, "processes": processes, "pid": os.getpid()}
        facts |= {"machine": socket.gethostname(), "address": address}
        facts["place"] = host_and_port(address) if address is not None else None
        self._child: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):
            self._child = subprocess.Popen(
                [sys.executable, "-S", "-I", __file__],  # -I is -E, and no look at the modules beside this file
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                bufsize=0,
                close_fds=True,
                start_new_session=True,  # Ctrl-C in a terminal does not reach it
            )
            assert self._child.stdin is not None
            os.set_blocking(self._child.stdin.fileno(), False)
        self._write(json.dumps(facts).encode() + b"\n")

    def run(self, path: str | os.PathLike[str]) -> None:
        """Tells the run's folder, so that the last words name its newest checkpoint; may be told again."""
        self._write(json.dumps({"run": os.path.abspath(path)}).encode() + b"\n")

    def goodbye(self) -> None:
        """This process ends in order: nothing is said. Waits for the child, 2 s at most; more than once is as once."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        with contextlib.suppress(OSError):
            child.stdin.write(_GOODBYE)
        with contextlib.suppress(OSError):
            child.stdin.close()
        try:
            child.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _write(self, line: bytes) -> None:
        if self._child is not None and self._child.stdin is not None:
            with contextlib.suppress(OSError):  # it is dead, or does not read
                self._child.stdin.write(line)


def _listen() -> dict[str, Any] | None:
    """What the parent told until it was gone; None if it said goodbye."""
    facts: dict[str, Any] = {}
    heard = b""
    while True:
        if select.select([0], [], [], _POLL_SECONDS)[0]:
            said = os.read(0, 65536)
            if not said:
                return facts
            *lines, heard = (heard + said).split(b"\n")
            if _GOODBYE.strip() in lines:
                return None
            for line in lines:
                with contextlib.suppress(ValueError):  # half a line, written into a full pipe
                    facts |= json.loads(line)
        elif facts and os.getppid() != facts["pid"]:
            return facts


def _fate(facts: dict[str, Any]) -> str:
    """The sentence about the process."""
    which = f"process {facts['process']} of {facts['processes']}"
    if facts["process"] > 0 and facts["place"] is not None and not _answers(*facts["place"]):
        return f"process 0 at {facts['address']} has ended, and {which} ended with it"
    others = ", or JAX ended it because another process was lost (then its message is above)"
    return (
        f"{which} (pid {facts['pid']} on {facts['machine']}) ended without a message: "
        "it was killed, or ran out of memory" + (others if facts["processes"] > 1 else "")
    )


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_PROBE_SECONDS).close()
    except OSError:
        return False
    return True


def way_on(run: str) -> str:
    """The sentence about the run's newest checkpoint."""
    try:
        names = os.listdir(os.path.join(run, "checkpoints"))
    except FileNotFoundError:
        names = []
    except OSError as error:
        return f"the checkpoints in {run} cannot be read ({(error.strerror or str(error)).lower()})"
    saved = [int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name))]
    if not saved:
        return f"no checkpoint was saved yet in {run}"
    return f"the newest checkpoint is of generation {max(saved)}; continue with: rookery resume {shlex.quote(run)}"


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens
        os.write(2, f"rookery: {sentence}\n".encode(errors="surrogateescape"))


def _main() -> None:
    for signum in _DEAF:
        signal.signal(signum, signal.SIG_IGN)
    facts = _listen()
    if not facts:
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the parent may have ignored it
    signal.alarm(_SPEAK_SECONDS)
    _say(_fate(facts))
    if "run" in facts:
        _say(way_on(facts["run"]))


if __name__ == "__main__":
    _main()
