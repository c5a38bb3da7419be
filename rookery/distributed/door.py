"""The door of a run over several processes: they meet before JAX does, so that mistakes get a sentence.

`jax.distributed.initialize` aborts from C++ when somebody is missing, came twice or counts otherwise, and names nobody.
So process 0 listens where JAX's coordinator will listen a moment later, the others come there and say who they are, and
all go in together or hear why not. Each says a line of JSON; process 0 answers with the words `wait`, then `in` or
`out`.
"""

import contextlib
import math
import os
import socket
import time
from typing import Any

from rookery.distributed.addresses import DoorError, host_and_port, reason, resolve
from rookery.distributed.doorkeeper import ANSWER_SECONDS, LONGEST_LINE, TICK, Doorkeeper, line_of, parse

__all__ = ["DoorError", "host_and_port", "meet"]

_CONNECT_SECONDS = 2.0
_SHUT_TIMES = 3  # closed without a word so often is no door; once may be a door that is just closing
_GRACE_SECONDS = 10.0  # beyond its own deadline, for process 0 to say who is missing


def meet(address: str, processes: int, process: int, seconds: float) -> None:
    """Waits until all processes of a run stand at the door; then the door is gone, and its port free.

    Args:
      address: `HOST:PORT` where process 0 can be reached; the same for all.
      processes: how many, at least 1; with 1 nothing is opened.
      process: which one this is, from 0; process 0 listens.
      seconds: how long process 0 waits for the others, and the others for process 0 to be there; more than 0. Who has
        met process 0 waits as long as that does.

    Raises:
      DoorError: the arguments contradict each other, nobody or somebody else answers, the port is taken, processes are
        missing, or this one has the id or the number of processes wrong.
    """
    host_and_port(address)
    if processes < 1:
        raise DoorError(f"a run needs at least 1 process, got {processes}: give --num-processes 1 or more")
    if not 0 <= process < processes:
        raise DoorError(f"process {process} of {processes} does not exist: give --process-id 0 to {processes - 1}")
    if not 0 < seconds < math.inf:
        raise DoorError(
            f"the connection timeout must be finite and above 0 s, got {seconds}: give another --connect-timeout"
        )
    if processes == 1:
        return
    hello = {"process": process, "processes": processes, "host": socket.gethostname(), "pid": os.getpid()}
    if process > 0:
        _knock(address, hello, seconds)
        return
    with contextlib.closing(Doorkeeper(address, hello, seconds)) as keeper:
        keeper.gather()


def _knock(address: str, hello: dict[str, Any], seconds: float) -> None:
    """Comes again until process 0 says that all may go in."""
    deadline = time.monotonic() + seconds
    shut, met = 0, False
    while True:
        try:
            with _connect(address, deadline) as connection:
                word = _ask(connection, address, hello)
            why = "connection closed"
        except OSError as error:
            word, why = "absent", reason(error)
        if word == "in":
            return
        met = met or word == "left"
        shut = shut + 1 if word == "shut" else 0
        if shut == _SHUT_TIMES:
            raise _stranger(address, "closes the connection without an answer")
        if time.monotonic() + TICK > deadline:
            before = "; process 0 was there, and ended before all had connected" if met else ""
            raise DoorError(
                f"no process answers at {address} within {seconds:g} s ({why}{before}): start process 0 there, "
                "or correct --coordinator"
            )
        time.sleep(TICK)


def _connect(address: str, deadline: float) -> socket.socket:
    """A connection to the first place of that address which takes one; OSError if none does."""
    failure: OSError = ConnectionRefusedError("it has no address")
    for family, place in resolve(*host_and_port(address), deadline):
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(max(TICK, min(_CONNECT_SECONDS, deadline - time.monotonic())))
            connection.connect(place)
            # Where nobody listens at a port that is also one for outgoing connections, a socket may reach itself.
            if connection.getsockname() != connection.getpeername():
                return connection
            raise ConnectionRefusedError("connection refused")
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError):
                raise
            failure = error
    raise failure


def _ask(connection: socket.socket, address: str, hello: dict[str, Any]) -> str:
    """Says who this is and waits for the answer.

    Returns:
      `in`; `left` if process 0 went away while this one waited; `shut` if it closed without an answer.

    Raises:
      DoorError: turned away, with the reason of process 0; or no door is there.
    """
    heard, until, admitted = b"", time.monotonic() + ANSWER_SECONDS, False
    connection.settimeout(TICK)
    with contextlib.suppress(ConnectionError):  # a reset is an end like any other
        connection.sendall(line_of(hello))
        while said := _more(connection, until):
            heard += said
            if heard[:1] != b"{" or len(heard) > LONGEST_LINE:
                raise _stranger(address, "uses another protocol")
            *lines, heard = heard.split(b"\n")
            for line in lines:
                facts = _answer(line, address)
                if facts["word"] == "in":
                    return "in"
                admitted, until = True, time.monotonic() + facts["seconds"] + _GRACE_SECONDS
    if admitted and time.monotonic() > until:
        raise DoorError(f"process 0 at {address} stopped answering: check whether it hangs, and restart all processes")
    if not admitted and time.monotonic() > until:
        raise _stranger(address, f"sent nothing for {ANSWER_SECONDS:g} s")
    if not admitted and heard:
        raise _stranger(address, "uses another protocol")
    return "left" if admitted else "shut"


def _more(connection: socket.socket, until: float) -> bytes:
    """What has come; empty at the end of the connection or of the time."""
    while time.monotonic() <= until:
        with contextlib.suppress(TimeoutError):
            return connection.recv(LONGEST_LINE)
    return b""


def _answer(line: bytes, address: str) -> dict[str, Any]:
    """A word of process 0's: `in`, or `wait` with its seconds; DoorError for `out` and for what is no answer."""
    try:
        facts = parse(line)
        if facts["word"] == "out":
            raise DoorError(str(facts["reason"]))
        return {"word": {"in": "in", "wait": "wait"}[facts["word"]], "seconds": float(facts.get("seconds", 0))}
    except DoorError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _stranger(address, "uses another protocol") from error


def _stranger(address: str, conduct: str) -> DoorError:
    return DoorError(
        f"the program that answers at {address} is not process 0 of a starting run (it {conduct}): a run is in "
        "progress there already, or another program listens; end it, or choose another port for all processes"
    )
