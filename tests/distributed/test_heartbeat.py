"""The watch over the processes of a run, on a board in memory: who is lost, who is told, and who is left in peace."""

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
SOON = 5.0  # seconds within which what must happen happens, on the busiest machine
WHILE = 4 * LOST_AFTER  # seconds in which what must not happen would have happened


class Board:
    """The key-value store of JAX's coordinator, as far as it is used."""

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


class Ended(Exception):  # noqa: N818 - it says what happened
    """The process would be no more."""


class ProcessGroup:
    """Watches on one board, and which of them ended their process."""

    def __init__(self):
        self.board = Board()
        self.codes: dict[str, int] = {}
        self.times: dict[str, float] = {}
        self.watches: list[Watch] = []

    def join(self, process: int, processes: int = 2, lost_after: float = LOST_AFTER) -> Watch:
        who = f"pid {100 + process} on host{process}"
        one = Watch(self.board, process, processes, who, lost_after)
        for thread in one._threads:
            thread.name = str(one)
        self.watches.append(one)
        return one

    def exit(self, code: int) -> None:
        """In place of `os._exit`: ends the thread that called it, and with it the signs of life."""
        name = threading.current_thread().name
        self.codes[name], self.times[name] = code, time.monotonic()
        next(one for one in self.watches if str(one) == name)._leaving.set()
        raise Ended

    def ended(self, one: Watch) -> int | None:
        """The exit code of the process whose watch it is; None if it does not end."""
        deadline = time.monotonic() + SOON
        while str(one) not in self.codes and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.codes.get(str(one))


@pytest.fixture
def company(monkeypatch):
    company = ProcessGroup()
    monkeypatch.setattr(os, "_exit", company.exit)
    yield company
    company.board.answers.set()
    for one in company.watches:
        one._leaving.set()
        for thread in one._threads:
            thread.join(SOON)


def die(one: Watch) -> None:
    """As `kill -9` would: no word is left."""
    one._leaving.set()


def told(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_as_long_as_all_live_nobody_stops(company, capsys):
    for process in range(3):
        company.join(process, 3)
    time.sleep(WHILE)
    assert company.codes == {}
    assert capsys.readouterr() == ("", "")


def test_process_0_names_who_is_lost_and_all_others_hear_it(company, capsys):
    first, second, third = (company.join(process, 3) for process in range(3))
    time.sleep(3 * INTERVAL)
    die(third)
    assert (company.ended(first), company.ended(second)) == (LOST, LOST)
    lost = "process 2 (pid 102 on host2) is lost: it sent no heartbeat for 0.16 s"
    expected = [f"rookery: process 0 of 3 stops: {lost}", f"rookery: process 1 of 3 stops: {lost}"]
    assert sorted(told(capsys)) == expected


def test_process_0_stays_until_the_others_have_read_the_board(company):
    first = company.join(0)
    assert company.ended(first) == LOST
    assert company.times[str(first)] - company.board.times["rookery/words/0"] >= 3 * INTERVAL


def test_the_others_watch_process_0_only(company, capsys):
    company.join(0, 1)  # gives signs of life, and watches nobody
    second, third = company.join(1, 3), company.join(2, 3)
    time.sleep(3 * INTERVAL)
    die(second)
    time.sleep(WHILE)
    assert company.codes == {}
    die(company.watches[0])
    assert company.ended(third) == LOST
    assert told(capsys)[0] == (
        "rookery: process 2 of 3 stops: process 0 (pid 100 on host0) is lost: it sent no heartbeat for 0.16 s"
    )


def test_a_process_that_never_gave_a_sign_is_lost_too(company, capsys):
    first = company.join(0)
    assert company.ended(first) == LOST
    lost = "process 1 is lost: it sent no heartbeat for 0.16 s"
    assert told(capsys) == [f"rookery: process 0 of 2 stops: {lost}"]


@pytest.mark.parametrize("leaver", [0, 1])
def test_who_leaves_alone_says_why_and_the_others_stop(company, capsys, leaver):
    both = [company.join(process) for process in range(2)]
    other = both[1 - leaver]
    time.sleep(3 * INTERVAL)
    both[leaver].leave("KeyError: 'gone'", 7)
    assert company.ended(other) == 7, "who stops for a mistake of another must not be tried again"
    who = f"process {leaver} (pid {100 + leaver} on host{leaver})"
    assert told(capsys) == [f"rookery: {other} stops: {who} stopped: KeyError: 'gone'"]
    assert list(company.codes) == [str(other)], "who leaves by itself has its own exit code"


def test_who_was_taken_for_lost_hears_what_to_do(company, capsys):
    company.join(0)
    second = company.join(1)
    company.board.key_value_set("rookery/words/0", f"{LOST} process 1 (pid 101 on host1) is lost: it was slow", True)
    assert company.ended(second) == LOST
    expected = "process 1 of 2 stops: the others count it as lost; if it was only busy, set --lost-after above 0.16"
    assert f"rookery: {expected}" in told(capsys)


@pytest.mark.parametrize("silence", ["broken", "hangs"])
def test_a_board_that_does_not_answer_means_that_process_0_is_lost(company, capsys, silence):
    company.join(0, 1)
    second = company.join(1)
    time.sleep(3 * INTERVAL)
    if silence == "broken":
        company.board.broken = True
    else:  # as a coordinator that was stopped: the call does not return
        company.board.answers.clear()
    began = time.monotonic()
    assert company.ended(second) == LOST
    assert time.monotonic() - began > LOST_AFTER - 2 * INTERVAL
    lost = "process 0 (pid 100 on host0) is lost: it sent no heartbeat for 0.16 s"
    assert told(capsys) == [f"rookery: process 1 of 2 stops: {lost}"]


def test_who_leaves_alone_waits_for_no_board(company):
    second = company.join(1)
    company.board.answers.clear()
    began = time.monotonic()
    second.leave("it was interrupted")
    assert time.monotonic() - began < SOON


def test_a_process_that_was_stopped_itself_finds_nobody_lost(company, monkeypatch):
    """As by Ctrl-Z and `fg`: the clock went on, and nobody could give a sign of life."""
    company.join(0)
    company.join(1)
    time.sleep(3 * INTERVAL)
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 1000)
    time.sleep(WHILE)
    assert company.codes == {}


def test_in_order_all_leave_together_and_are_watched_until_then(company):
    first, second = company.join(0), company.join(1)
    leaving = threading.Thread(target=first.leave)
    leaving.start()
    time.sleep(WHILE)  # process 1 has still to do
    sign = company.board.entries["rookery/alive/0"]
    time.sleep(3 * INTERVAL)
    assert company.board.entries["rookery/alive/0"] != sign
    assert leaving.is_alive()
    company.board.met.set()
    second.leave()
    leaving.join(SOON)
    signs = [company.board.entries[f"rookery/alive/{process}"] for process in range(2)]
    time.sleep(WHILE)
    assert signs == [company.board.entries[f"rookery/alive/{process}"] for process in range(2)], "signs after the end"
    assert company.codes == {}
    assert not [thread for one in (first, second) for thread in one._threads if thread.is_alive()]


def test_who_dies_while_others_wait_to_leave_is_lost(company, capsys):
    first, second = company.join(0), company.join(1)
    with contextlib.ExitStack() as stack:
        leaving = threading.Thread(target=first.leave)
        stack.callback(leaving.join, SOON)
        stack.callback(company.board.met.set)
        leaving.start()
        time.sleep(3 * INTERVAL)
        die(second)
        assert company.ended(first) == LOST
    assert "process 1 (pid 101 on host1) is lost" in told(capsys)[0]


def test_the_newest_checkpoint_and_the_way_on_are_named(company, capsys, tmp_path: Path):
    first, second = company.join(0), company.join(1)
    first.run_dir = str(tmp_path / "my run")
    time.sleep(3 * INTERVAL)
    die(second)
    assert company.ended(first) == LOST
    assert told(capsys)[1] == f"rookery: no checkpoint was saved yet in {tmp_path}/my run"


def test_a_file_system_that_hangs_keeps_nobody(company, capsys, monkeypatch):
    disk = threading.Event()
    monkeypatch.setattr(heartbeat, "newest_checkpoint", lambda _: disk.wait(2 * SOON))
    monkeypatch.setattr(heartbeat, "_DISK_SECONDS", 0.1)
    first = company.join(0)
    first.run_dir = "runs/mine"
    assert company.ended(first) == LOST
    disk.set()
    assert len(told(capsys)) == 1


def test_where_nobody_reads_what_is_said_the_process_ends_as_well(company, monkeypatch):
    monkeypatch.setattr(heartbeat.sys, "stderr", None)
    assert company.ended(company.join(0)) == LOST


def test_who_waits_for_the_watch_waits_longer_than_it_needs(company):
    first = company.join(0)
    first.wait()
    assert company.codes == {str(first): LOST}
