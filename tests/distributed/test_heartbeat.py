"""The heartbeats between the processes of a run, over a key-value store in memory."""

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from rookery.distributed import heartbeat
from rookery.distributed.heartbeat import LOST, Watch

LOST_AFTER = 0.16
INTERVAL = LOST_AFTER / 8
SOON = 5.0  # seconds within which an expected event happens, on a busy machine
WHILE = 4 * LOST_AFTER  # seconds within which an event that must not happen would have happened


class Store:
    """The part of the key-value store of JAX's coordinator that is used."""

    def __init__(self):
        self.entries: dict[str, str] = {}
        self.times: dict[str, float] = {}
        self.broken = False
        self.answers, self.met = threading.Event(), threading.Event()
        self.answers.set()

    def _answer(self) -> None:
        if self.broken:
            raise RuntimeError("UNAVAILABLE")
        self.answers.wait()

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:
        self._answer()
        assert allow_overwrite
        self.entries[key], self.times[key] = value, time.monotonic()

    def key_value_try_get(self, key: str) -> str:
        self._answer()
        if key not in self.entries:
            raise RuntimeError(f"NOT_FOUND: {key}")
        return self.entries[key]

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        self._answer()
        return [(key, value) for key, value in list(self.entries.items()) if key.startswith(f"{folder}/")]

    def wait_at_barrier(self, name: str, timeout_in_ms: int) -> None:
        assert name.startswith("rookery/")
        assert timeout_in_ms > 3_600_000
        assert self.met.wait(SOON)


class Ended(Exception):  # noqa: N818 - an outcome, not an error
    """The process would have ended."""


class ProcessGroup:
    """Watches that share a store, and which of them ended their process."""

    def __init__(self):
        self.store = Store()
        self.codes: dict[str, int] = {}
        self.times: dict[str, float] = {}
        self.watches: list[Watch] = []

    def join(self, process: int, processes: int = 2, lost_after: float = LOST_AFTER) -> Watch:
        name = f"pid {100 + process} on host{process}"
        one = Watch(self.store, process, processes, name, lost_after)
        for thread in one._threads:
            thread.name = str(one)
        self.watches.append(one)
        return one

    def exit(self, code: int) -> None:
        """Replaces `os._exit`: ends the calling thread, and with it the heartbeats."""
        name = threading.current_thread().name
        self.codes[name], self.times[name] = code, time.monotonic()
        next(one for one in self.watches if str(one) == name)._leaving.set()
        raise Ended

    def ended(self, one: Watch) -> int | None:
        """The exit code of the process of a watch; None if it does not end."""
        deadline = time.monotonic() + SOON
        while str(one) not in self.codes and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.codes.get(str(one))


@pytest.fixture
def group(monkeypatch):
    group = ProcessGroup()
    monkeypatch.setattr(os, "_exit", group.exit)
    yield group
    group.store.answers.set()
    for one in group.watches:
        one._leaving.set()
        for thread in one._threads:
            thread.join(SOON)


def end_silently(one: Watch) -> None:
    """End a process without a message, as `kill -9` does."""
    one._leaving.set()


def messages(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_process_0_names_the_lost_process_and_all_others_read_it(group, capsys):
    first, second, third = (group.join(process, 3) for process in range(3))
    time.sleep(3 * INTERVAL)
    end_silently(third)
    assert (group.ended(first), group.ended(second)) == (LOST, LOST)
    lost = "process 2 (pid 102 on host2) is lost: it sent no heartbeat for 0.16 s"
    expected = [f"rookery: process 0 of 3 stops: {lost}", f"rookery: process 1 of 3 stops: {lost}"]
    assert sorted(messages(capsys)) == expected


def test_the_others_watch_process_0_only(group, capsys):
    group.join(0, 1)  # sends heartbeats, and watches no process
    second, third = group.join(1, 3), group.join(2, 3)
    time.sleep(3 * INTERVAL)
    end_silently(second)
    time.sleep(WHILE)
    assert group.codes == {}
    end_silently(group.watches[0])
    assert group.ended(third) == LOST
    assert messages(capsys)[0] == (
        "rookery: process 2 of 3 stops: process 0 (pid 100 on host0) is lost: it sent no heartbeat for 0.16 s"
    )


def test_a_process_that_never_sent_a_heartbeat_is_lost_and_process_0_ends_last(group, capsys):
    """It ends after the others had time to read the message."""
    first = group.join(0)
    assert group.ended(first) == LOST
    assert messages(capsys) == ["rookery: process 0 of 2 stops: process 1 is lost: it sent no heartbeat for 0.16 s"]
    assert group.times[str(first)] - group.store.times["rookery/messages/0"] >= 3 * INTERVAL


@pytest.mark.parametrize("failing", [0, 1])
def test_a_process_that_fails_posts_the_reason_and_the_others_stop(group, capsys, failing):
    both = [group.join(process) for process in range(2)]
    other = both[1 - failing]
    time.sleep(3 * INTERVAL)
    both[failing].leave("KeyError: 'gone'", 7)
    assert group.ended(other) == 7, "a retry would not help"
    name = f"process {failing} (pid {100 + failing} on host{failing})"
    assert messages(capsys) == [f"rookery: {other} stops: {name} stopped: KeyError: 'gone'"]
    assert list(group.codes) == [str(other)], "the process that fails chooses its exit code itself"


def test_a_process_that_counts_as_lost_names_the_flag(group, capsys):
    group.join(0)
    second = group.join(1)
    group.store.key_value_set("rookery/messages/0", f"{LOST} process 1 (pid 101 on host1) is lost: it was slow", True)
    assert group.ended(second) == LOST
    expected = "process 1 of 2 stops: the others count it as lost; if it was only busy, set --lost-after above 0.16"
    assert f"rookery: {expected}" in messages(capsys)


@pytest.mark.parametrize("silence", ["broken", "hangs"])
def test_process_0_is_lost_if_its_store_does_not_answer(group, capsys, silence):
    group.join(0, 1)
    second = group.join(1)
    time.sleep(3 * INTERVAL)
    if silence == "broken":
        group.store.broken = True
    else:  # a coordinator that was stopped: the call does not return
        group.store.answers.clear()
    started = time.monotonic()
    assert group.ended(second) == LOST
    assert time.monotonic() - started > LOST_AFTER - 2 * INTERVAL
    lost = "process 0 (pid 100 on host0) is lost: it sent no heartbeat for 0.16 s"
    assert messages(capsys) == [f"rookery: process 1 of 2 stops: {lost}"]


def test_a_process_that_fails_does_not_wait_for_the_store(group):
    second = group.join(1)
    group.store.answers.clear()
    started = time.monotonic()
    second.leave("interrupted")
    assert time.monotonic() - started < SOON


def test_no_process_stops_while_all_send_heartbeats_also_after_a_suspension(group, capsys, monkeypatch):
    """After Ctrl-Z and `fg` the clock has advanced, and no process could send a heartbeat."""
    for process in range(3):
        group.join(process, 3)
    time.sleep(WHILE)
    assert group.codes == {}
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 1000)
    time.sleep(WHILE)
    assert group.codes == {}
    assert capsys.readouterr() == ("", "")


def test_processes_disconnect_together_and_send_heartbeats_until_then(group):
    first, second = group.join(0), group.join(1)
    leaving = threading.Thread(target=first.leave)
    leaving.start()
    time.sleep(WHILE)  # process 1 is still running
    heartbeat = group.store.entries["rookery/heartbeats/0"]
    time.sleep(3 * INTERVAL)
    assert group.store.entries["rookery/heartbeats/0"] != heartbeat
    assert leaving.is_alive()
    group.store.met.set()
    second.leave()
    leaving.join(SOON)
    heartbeats = [group.store.entries[f"rookery/heartbeats/{process}"] for process in range(2)]
    time.sleep(WHILE)
    assert heartbeats == [group.store.entries[f"rookery/heartbeats/{process}"] for process in range(2)], (
        "heartbeats after the end"
    )
    assert group.codes == {}
    assert not [thread for one in (first, second) for thread in one._threads if thread.is_alive()]


def test_a_process_that_ends_while_others_disconnect_is_lost(group, capsys):
    first, second = group.join(0), group.join(1)
    with contextlib.ExitStack() as stack:
        leaving = threading.Thread(target=first.leave)
        stack.callback(leaving.join, SOON)
        stack.callback(group.store.met.set)
        leaving.start()
        time.sleep(3 * INTERVAL)
        end_silently(second)
        assert group.ended(first) == LOST
    assert "process 1 (pid 101 on host1) is lost" in messages(capsys)[0]


def test_the_message_names_the_newest_checkpoint(group, capsys, tmp_path: Path):
    first, second = group.join(0), group.join(1)
    first.run_dir = str(tmp_path / "my run")
    time.sleep(3 * INTERVAL)
    end_silently(second)
    assert group.ended(first) == LOST
    assert messages(capsys)[1] == f"rookery: no checkpoint was saved yet in {tmp_path}/my run"


def test_a_file_system_that_hangs_delays_no_exit(group, capsys, monkeypatch):
    disk = threading.Event()
    monkeypatch.setattr(heartbeat, "newest_checkpoint", lambda _: disk.wait(2 * SOON))
    monkeypatch.setattr(heartbeat, "_DISK_SECONDS", 0.1)
    first = group.join(0)
    first.run_dir = "runs/mine"
    assert group.ended(first) == LOST
    disk.set()
    assert len(messages(capsys)) == 1


def test_waiting_for_the_watch_takes_longer_than_the_time_limit_also_without_standard_error(group, monkeypatch):
    monkeypatch.setattr(heartbeat.sys, "stderr", None)
    first = group.join(0)
    first.wait()
    assert group.codes == {str(first): LOST}
