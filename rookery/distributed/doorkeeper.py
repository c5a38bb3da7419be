"""Process 0 at the door of a run: who waits, who is turned away, and when all go in (`distributed/door.py`)."""

import contextlib
import dataclasses
import errno
import json
import selectors
import socket
import time
from collections.abc import Iterable
from typing import Any

from rookery.distributed.addresses import DoorError, host_and_port, is_number, reason, resolve

_PROTOCOL = "rookery"
LONGEST_LINE = 8192  # bytes; who says more without an end of line is not one of us
TICK = 0.2  # seconds between looks at the clock, and between attempts to connect
ANSWER_SECONDS = 5.0  # for a connection to say its line; a door answers within milliseconds
_LEAVE_SECONDS = 2.0  # for the others to close first
_NOT_OURS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def line_of(facts: dict[str, Any]) -> bytes:
    """What is said over a connection: one line of JSON with the protocol's word."""
    return json.dumps({"protocol": _PROTOCOL, **facts}).encode() + b"\n"


def parse(line: bytes) -> dict[str, Any]:
    """What a line says; ValueError if it is not of this protocol."""
    facts = json.loads(line)
    if not isinstance(facts, dict) or facts.get("protocol") != _PROTOCOL:
        raise ValueError("another protocol")
    return facts


def _who(facts: dict[str, Any]) -> str:
    return f"process {facts['process']} (pid {facts['pid']} on {facts['host']})"


def _named(ids: Iterable[int]) -> str:
    ids = list(ids)
    return ("process " if len(ids) == 1 else "processes ") + ", ".join(map(str, ids))


@dataclasses.dataclass(eq=False)
class _Visitor:
    """A connection: a stranger until it is `settled`, then a guest or somebody who was turned away."""

    connection: socket.socket
    since: float
    heard: bytes = b""
    settled: bool = False
    hello: dict[str, Any] = dataclasses.field(default_factory=dict)


class Doorkeeper:
    """Process 0's side: who waits here, and who has not said a word yet. Nobody can make it wait for a single one."""

    def __init__(self, address: str, hello: dict[str, Any], seconds: float):
        self.address, self.hello, self.seconds = address, hello, seconds
        self.deadline = time.monotonic() + seconds
        self.guests: dict[int, _Visitor] = {}
        self.turned_away: list[str] = []
        listeners = _listeners(address, self.deadline)
        self.selector = selectors.DefaultSelector()
        for listener in listeners:
            listener.setblocking(False)
            self.selector.register(listener, selectors.EVENT_READ)

    def gather(self) -> None:
        """Returns when all have come and been told to go in; DoorError, told to all, when somebody did not come."""
        while len(self.guests) < self.hello["processes"] - 1:
            if time.monotonic() >= self.deadline:
                absence = self._absence()
                self._dismiss("out", reason=absence)
                raise DoorError(absence)
            self._look(TICK)
        self._dismiss("in")

    def close(self) -> None:
        """Lets go of everything, whatever happened."""
        self._stop_listening()
        for visitor in self._visitors():
            self._forget(visitor)
        self.selector.close()

    def _visitors(self) -> list[_Visitor]:
        return [key.data for key in self.selector.get_map().values() if key.data is not None]

    def _stop_listening(self) -> None:
        for listener in [key.fileobj for key in self.selector.get_map().values() if key.data is None]:
            self.selector.unregister(listener)
            listener.close()  # pyright: ignore[reportAttributeAccessIssue]

    def _dismiss(self, word: str, **facts: Any) -> None:
        """Nobody may find the listener who has heard that he can go in; so it goes first, and the port's guests after.

        They close before we do, so that no connection lingers (TIME_WAIT) at the port that JAX is about to open.
        """
        self._stop_listening()
        for guest in self.guests.values():
            _say(guest, word, **facts)
        until = time.monotonic() + _LEAVE_SECONDS
        while self.guests and time.monotonic() < until:
            self._look(TICK)

    def _look(self, seconds: float) -> None:
        for key, _ in self.selector.select(seconds):
            if key.data is None:
                self._open(key.fileobj)  # pyright: ignore[reportArgumentType]
            elif key.data.connection.fileno() >= 0:  # it may have been forgotten a moment ago
                self._hear(key.data)
        guests, now = set(self.guests.values()), time.monotonic()
        for visitor in self._visitors():
            if visitor not in guests and now - visitor.since > ANSWER_SECONDS:
                self._forget(visitor)

    def _open(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it has gone again
            connection, _ = listener.accept()
            connection.setblocking(False)
            self.selector.register(connection, selectors.EVENT_READ, _Visitor(connection, time.monotonic()))

    def _hear(self, visitor: _Visitor) -> None:
        try:
            said = visitor.connection.recv(LONGEST_LINE)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._forget(visitor)
        elif not visitor.settled:
            visitor.heard += said
            line, end, _ = visitor.heard.partition(b"\n")
            if end or len(line) > LONGEST_LINE:
                self._settle(visitor, line)

    def _settle(self, visitor: _Visitor, line: bytes) -> None:
        try:
            facts = parse(line)
            hello: dict[str, Any] = {name: int(facts[name]) for name in ("process", "processes", "pid")}
            hello["host"] = str(facts["host"])[:256]
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            self._forget(visitor)
            return
        visitor.settled, visitor.hello = True, hello
        if objection := self._objection(hello):
            self.turned_away.append(f"{_who(hello)} with --num-processes {hello['processes']}")
            _say(visitor, "out", reason=objection)
            return
        self.guests[hello["process"]] = visitor
        _say(visitor, "wait", seconds=self.deadline - time.monotonic())

    def _objection(self, hello: dict[str, Any]) -> str:
        """Why somebody cannot be let in; empty if he can."""
        process, processes = hello["process"], self.hello["processes"]
        if hello["processes"] != processes:
            return (
                f"process {process} connected to {self.address} with --num-processes {hello['processes']}, "
                f"and {_who(self.hello)} with {processes}: give all of them the same number"
            )
        if process in self.guests:
            self._hear(self.guests[process])  # if it died, its end may stand unread behind this hello
        here = {0: self.hello, **{other: guest.hello for other, guest in self.guests.items()}}
        if process not in range(processes) or process in here:
            fact = f"is already connected: {_who(here[process])}" if process in here else "does not exist"
            missing = [str(other) for other in range(processes) if other not in here]
            return (
                f"process {process} of {processes} {fact} (connected to {self.address}: {_named(sorted(here))}): "
                f"give each process a unique id; --process-id {' or '.join(missing)} has not connected yet"
            )
        return ""

    def _absence(self) -> str:
        processes = self.hello["processes"]
        absent = [other for other in range(1, processes) if other not in self.guests]
        here = ", ".join(_who(self.guests[other].hello) for other in sorted(self.guests))
        turned_away = f"; rejected: {', '.join(self.turned_away[-3:])}" if self.turned_away else ""
        return (
            f"{_named(absent)} of {processes} did not connect to {self.address} within {self.seconds:g} s (connected: "
            f"{_who(self.hello)}{', ' + here if here else ''}{turned_away}): start all within that time, each with "
            f"--coordinator {self.address} --num-processes {processes}, and check that this port can be reached from "
            "their hosts"
        )

    def _forget(self, visitor: _Visitor) -> None:
        if self.guests.get(visitor.hello.get("process", -1)) is visitor:
            del self.guests[visitor.hello["process"]]
        self.selector.unregister(visitor.connection)
        if not visitor.settled:  # a reset leaves no TIME_WAIT, but would take unread words with it
            visitor.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        visitor.connection.close()


def _say(visitor: _Visitor, word: str, **facts: Any) -> None:
    with contextlib.suppress(OSError):  # if it has gone, its end will be read
        visitor.connection.send(line_of({"word": word, **facts}))


def _listeners(address: str, deadline: float) -> list[socket.socket]:
    """Sockets that listen at the address if it is a number of this machine's (or localhost), else everywhere.

    A name is no number: on its own machine it may mean the loopback only (Debian's 127.0.1.1), elsewhere the network's.
    """
    host, port = host_and_port(address)
    places = resolve(host, port, deadline)
    listeners: list[socket.socket] = []
    try:
        for family, place in places if host == "localhost" or is_number(host) else []:
            try:
                listeners.append(socket.create_server(place, family=family, backlog=1024))
            except OSError as error:
                if error.errno not in _NOT_OURS:
                    raise
        if not listeners:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            listeners.append(socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=both))
    except OSError as error:
        for listener in listeners:
            listener.close()
        taken = error.errno == errno.EADDRINUSE
        why = "another process 0, or another program, uses it" if taken else reason(error)
        raise DoorError(
            f"port {port} of {socket.gethostname()} cannot be opened ({why}): choose another port"
        ) from error
    return listeners
