"""The door of a run over several processes: everybody goes in together, and every mistake gets a sentence."""

import contextlib
import json
import os
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rookery.distributed import door, doorkeeper
from rookery.distributed.door import DoorError, host_and_port, meet

HERE = f"(pid {os.getpid()} on {socket.gethostname()})"


class Peer(threading.Thread):
    """Somebody who comes to the door; `error` is what it raised."""

    def __init__(self, address: str, processes: int, process: int, seconds: float = 8.0):
        super().__init__(daemon=True)
        self.terms = (address, processes, process, seconds)
        self.error: DoorError | None = None
        self.start()

    def run(self) -> None:
        try:
            meet(*self.terms)
        except DoorError as error:
            self.error = error

    def fate(self) -> str:
        """`in`, or the sentence."""
        self.join(10)
        assert not self.is_alive()
        return "in" if self.error is None else str(self.error)


@pytest.fixture
def address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def connect(address: str) -> socket.socket:
    """A bare connection to a door that may be opening just now."""
    until = time.monotonic() + 5
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(host_and_port(address), timeout=5)
        assert time.monotonic() < until
        time.sleep(0.01)


def admitted(address: str, processes: int, process: int) -> socket.socket:
    """A bare connection of somebody who waits inside the door."""
    connection = connect(address)
    hello = {"protocol": "rookery", "process": process, "processes": processes, "host": "node7", "pid": 77}
    connection.sendall(json.dumps(hello).encode() + b"\n")
    assert json.loads(connection.recv(8192))["word"] == "wait"
    return connection


def port_is_free(address: str) -> bool:
    """Without SO_REUSEADDR, so that a lingering connection would be seen as well."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(host_and_port(address))
        return True
    return False


@pytest.mark.parametrize(
    ("address", "expected"),
    [("node1:1234", ("node1", 1234)), ("10.0.0.1:1", ("10.0.0.1", 1)), ("[::1]:65535", ("::1", 65535))],
)
def test_an_address_is_a_host_and_a_port(address: str, expected: tuple[str, int]):
    assert host_and_port(address) == expected


WRONG = ["", "node1", "node1:", ":1234", "node1:0", "node1:65536", "node1:-1", "node1:1_0", "node1:٣", "::1:1234"]
WRONG += ["[node1]:1234", "[10.0.0.1]:1234", "[]:1", "http://node1:1234", "node 1:1234", "node1:1234/"]


@pytest.mark.parametrize("address", WRONG)
def test_what_is_no_address_is_refused(address: str):
    with pytest.raises(DoorError, match=re.escape(f"{address!r} is not HOST:PORT: give a name")):
        meet(address, 2, 0, 1.0)


TIMEOUT = "the connection timeout must be finite and above 0 s"


@pytest.mark.parametrize(
    ("processes", "process", "seconds", "message"),
    [
        (0, 0, 1.0, "a run needs at least 1 process, got 0: give --num-processes 1 or more"),
        (2, 2, 1.0, "process 2 of 2 does not exist: give --process-id 0 to 1"),
        (2, -1, 1.0, "process -1 of 2 does not exist: give --process-id 0 to 1"),
        (2, 0, 0.0, f"{TIMEOUT}, got 0.0: give another --connect-timeout"),
        (2, 0, float("nan"), f"{TIMEOUT}, got nan: give another --connect-timeout"),
    ],
)
def test_terms_that_contradict_each_other(address: str, processes: int, process: int, seconds: float, message: str):
    with pytest.raises(DoorError, match=f"^{re.escape(message)}$"):
        meet(address, processes, process, seconds)


def test_one_process_opens_nothing(address: str):
    with socket.create_server(host_and_port(address)) as taken:
        taken.settimeout(0.1)
        meet(address, 1, 0, 1.0)
        with pytest.raises(TimeoutError):
            taken.accept()


def test_all_go_in_together_and_the_port_is_free(address: str):
    early = [Peer(address, 3, 1), Peer(address, 3, 2)]
    time.sleep(0.3)
    assert all(peer.is_alive() for peer in early)
    meet(address, 3, 0, 5.0)
    assert port_is_free(address)
    assert [peer.fate() for peer in early] == ["in", "in"]


@pytest.mark.parametrize(("named", "place"), [("node1", "127.0.1.1"), ("192.0.2.1", "192.0.2.1")])
def test_a_name_and_the_number_of_another_machine_are_listened_for_everywhere(
    address: str, named: str, place: str, monkeypatch
):
    port = host_and_port(address)[1]
    monkeypatch.setattr(doorkeeper, "resolve", lambda *_: [(socket.AF_INET, (place, port))])
    keeper = Peer(f"{named}:{port}", 2, 0)
    assert Peer(address, 2, 1).fate() == "in"
    assert keeper.fate() == "in"


def test_nobody_answers(address: str):
    message = f"no process answers at {address} within 0.5 s (connection refused): start process 0 there, or correct"
    with pytest.raises(DoorError, match=re.escape(message)):
        meet(address, 2, 1, 0.5)


def test_a_socket_that_reached_itself_is_nobody(address: str, monkeypatch):
    class Mirror(socket.socket):
        def connect(self, place) -> None:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(place)
            super().connect(place)

    monkeypatch.setattr(socket, "socket", Mirror)
    with pytest.raises(DoorError, match=re.escape("within 0.3 s (connection refused)")):
        meet(address, 2, 1, 0.3)


def test_all_hear_who_did_not_come(address: str):
    keeper, peer = Peer(address, 4, 0, 1.2), Peer(address, 4, 1)
    stray = Peer(address, 5, 4)
    expected = (
        f"processes 2, 3 of 4 did not connect to {address} within 1.2 s (connected: process 0 {HERE}, process 1 {HERE}"
        f"; rejected: process 4 {HERE} with --num-processes 5): start all within that time, each with --coordinator "
        f"{address} --num-processes 4, and check that this port can be reached from their hosts"
    )
    assert keeper.fate() == peer.fate() == expected
    assert stray.fate() != "in"
    assert port_is_free(address)


def test_who_has_met_process_0_waits_as_long_as_that_does(address: str, monkeypatch):
    monkeypatch.setattr(door, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(doorkeeper, "ANSWER_SECONDS", 0.3)
    peer = Peer(address, 3, 1, 0.6)
    assert Peer(address, 3, 0, 1.2).fate() == peer.fate()
    assert "process 2 of 3 did not connect" in peer.fate()


def test_an_id_that_came_twice(address: str):
    keeper, first = Peer(address, 4, 0), admitted(address, 4, 1)
    third = admitted(address, 4, 3)
    expected = (
        f"process 1 of 4 is already connected: process 1 (pid 77 on node7) (connected to {address}: "
        "processes 0, 1, 3): give each process a unique id; --process-id 2 has not connected yet"
    )
    assert Peer(address, 4, 1).fate() == expected
    assert Peer(address, 4, 2).fate() == "in"  # nobody who came before was disturbed
    for connection in (first, third):
        with connection:
            assert json.loads(connection.recv(8192))["word"] == "in"
    assert keeper.fate() == "in"


def test_another_number_of_processes(address: str):
    keeper = Peer(address, 2, 0)
    expected = f"process 1 connected to {address} with --num-processes 3, and process 0 {HERE} with 2: give all of"
    assert Peer(address, 3, 1).fate() == f"{expected} them the same number"
    assert Peer(address, 2, 1).fate() == keeper.fate() == "in"


def test_the_port_is_taken(address: str):
    port = host_and_port(address)[1]
    expected = (
        f"port {port} of {socket.gethostname()} cannot be opened (another process 0, or another program, uses it): "
    )
    keeper = Peer(address, 2, 0)
    connect(address).close()
    assert Peer(address, 2, 0).fate() == f"{expected}choose another port"
    assert Peer(address, 2, 1).fate() == keeper.fate() == "in"


@pytest.mark.parametrize("process", [0, 1])
def test_a_host_that_nobody_knows(process: int, monkeypatch):
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    expected = f"this machine ({socket.gethostname()}) cannot resolve the host 'node1' (name or service not known): "
    began = time.monotonic()
    with pytest.raises(DoorError, match=re.escape(expected) + "correct"):
        meet("node1:1234", 2, process, 5.0)
    assert time.monotonic() - began < 2


def test_a_name_service_that_is_away_is_asked_again(address: str, monkeypatch):
    answers, known = [socket.gaierror(socket.EAI_AGAIN, "Temporary failure")] * 2, socket.getaddrinfo

    def sometimes(*terms, **options):
        if answers:
            raise answers.pop()
        return known(*terms, **options)

    monkeypatch.setattr(socket, "getaddrinfo", sometimes)
    with pytest.raises(DoorError, match="no process answers"):
        meet(address, 2, 1, 0.8)
    assert answers == []


def say(words: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(words)


def ignore(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.recv(8192)
        time.sleep(0.8)


@contextlib.contextmanager
def stranger(address: str, conduct: Callable[[socket.socket], None]) -> Iterator[None]:
    """A program that listens at the address, does what it does with each connection, and closes it."""
    listener = socket.create_server(host_and_port(address))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    conduct(connection)

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        server.join(5)


@pytest.mark.parametrize(
    ("conduct", "fact"),
    [
        (say(b""), "closes the connection without an answer"),
        (say(b"\x00\x00\x12\x04\x00\x00"), "uses another protocol"),  # HTTP/2, as of JAX's coordinator
        (say(b'{"protocol": "other"}\n'), "uses another protocol"),
        (say(b'{"protocol": "rookery", "word": "hm"}\n'), "uses another protocol"),
        (say(b'{"protocol": '), "uses another protocol"),
        (say(b"{" + b"a" * 20000), "uses another protocol"),
        (ignore, "sent nothing for 0.3 s"),
    ],
)
def test_somebody_answers_who_is_no_door(address: str, conduct: Callable, fact: str, monkeypatch):
    monkeypatch.setattr(door, "ANSWER_SECONDS", 0.3)
    expected = (
        f"the program that answers at {address} is not process 0 of a starting run (it {fact}): a run is in progress "
        "there already, or another program listens; end it, or choose another port for all processes"
    )
    with stranger(address, conduct):
        assert Peer(address, 2, 1).fate() == expected


def test_strangers_hold_nobody_up(address: str, monkeypatch):
    keeper, began = Peer(address, 2, 0), time.monotonic()
    silent = connect(address)
    garbage = [b"GET / HTTP/1.1\r\n\r\n", b"\xff\n", b"[]\n", b"null\n", b"x" * 20000, b'{"protocol": "rookery"}\n']
    garbage += [b'{"protocol": "rookery", "process": [], "processes": 2, "pid": 1, "host": ""}\n']
    for words in garbage:
        with connect(address) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(words)
            assert connection.recv(100) == b""
    assert time.monotonic() - began < 2  # thrown out at once
    with connect(address) as scanner:  # leaves with a reset
        scanner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    monkeypatch.setattr(doorkeeper, "ANSWER_SECONDS", 0.3)
    with silent, contextlib.suppress(ConnectionError):
        assert silent.recv(100) == b""  # thrown out after its time
    quiet = connect(address)
    assert Peer(address, 2, 1).fate() == keeper.fate() == "in"
    quiet.close()


def test_who_died_while_waiting_can_come_again(address: str):
    keeper = Peer(address, 3, 0)
    admitted(address, 3, 1).close()
    again = admitted(address, 3, 1)
    assert Peer(address, 3, 2).fate() == "in"
    assert json.loads(again.recv(8192))["word"] == "in"
    again.close()
    assert keeper.fate() == "in"


def test_a_death_that_stands_unread_behind_the_next_hello(address: str):
    hello = {"process": 0, "processes": 2, "host": "node0", "pid": 70}
    with contextlib.closing(doorkeeper.Doorkeeper(address, hello, 5.0)) as keeper:
        first = connect(address)
        keeper._look(1.0)
        first.sendall(doorkeeper.line_of(hello | {"process": 1}))
        keeper._look(1.0)
        second = connect(address)
        keeper._look(1.0)
        second.sendall(doorkeeper.line_of(hello | {"process": 1}))
        first.close()
        keeper._look(1.0)
        assert json.loads(second.recv(8192))["word"] == "wait"
        second.close()


def test_a_process_0_that_leaves_or_hangs(address: str, monkeypatch):
    monkeypatch.setattr(door, "_GRACE_SECONDS", 0.3)
    wait = b'{"protocol": "rookery", "word": "wait", "seconds": 0.1}\n'
    with stranger(address, say(wait)):
        fate = Peer(address, 2, 1, 0.6).fate()
    assert f"no process answers at {address} within 0.6 s (connection closed; process 0 was there, and ended" in fate
    assert "before all had connected): start process 0 there" in fate

    def hang(connection: socket.socket) -> None:
        connection.sendall(wait)
        ignore(connection)

    with stranger(address, hang):
        fate = Peer(address, 2, 1).fate()
    assert fate == f"process 0 at {address} stopped answering: check whether it hangs, and restart all processes"


def test_a_process_0_that_died_can_come_again(address: str):
    with socket.create_server(host_and_port(address)) as first:
        peer = Peer(address, 2, 1)
        connection, _ = first.accept()
        hello = json.loads(connection.recv(8192))
        assert hello == {
            "protocol": "rookery",
            "process": 1,
            "processes": 2,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        connection.sendall(b'{"protocol": "rookery", "word": "wait", "seconds": 5}\n')
        time.sleep(0.1)
        connection.close()
    meet(address, 2, 0, 5.0)
    assert peer.fate() == "in"


@pytest.fixture
def heard() -> Iterator[None]:
    """Ctrl-C is heard, whatever started the tests: who runs in the background of a script has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("process", [0, 1])
def test_control_c_ends_the_wait_at_once(address: str, process: int):
    began = time.monotonic()
    interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        meet(address, 2, process, 30.0)
    interrupt.join()
    assert time.monotonic() - began < 15.0  # not the 30 that it would have waited
    assert port_is_free(address)
