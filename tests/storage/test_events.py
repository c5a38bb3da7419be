"""The journal of a run: its starts and ends, and the warnings between them."""

import contextlib
import datetime
import os
import signal
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import pytest

from rookery.distributed import device_memory, mesh
from rookery.distributed.device_memory import Usage
from rookery.distributed.signals import Interrupted
from rookery.storage.checkpoint import Checkpointer, CheckpointError, CheckpointWarning
from rookery.storage.events import Diverged, Journal, command_line, exit_reason, read_journal
from rookery.storage.run_dir import OutputWarning, RunFolder
from rookery.training.loop import run
from tests.training.test_loop import walks

COMMAND = ["rookery", "train", "pbt-sac", "--run-dir", "/data/run"]
USAGE = partial(Usage, held=3, peak=10, used=None)


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def journal_of(folder: RunFolder) -> list[tuple[str, Any]]:
    """Each event with its most informative value."""
    informative = {"began": "generation", "compiled": "event", "warned": "message", "ended": "why"}
    return [(event["event"], event[informative[event["event"]]]) for event in read_journal(folder)]


def test_damaged_events_are_ignored(folder):
    assert read_journal(folder) == [], "an older run has no journal"
    folder.path.mkdir()
    lines = ["[1]", "\xff", "{}", '{"event": 5}', '{"event": "began", "generation": "y"}', '{"event": "warned"}']
    lines += ['{"event": "noted", "message": "x"}', '{"event": ']
    folder.journal_file.write_text("\n".join(lines), encoding="latin-1")
    assert read_journal(folder) == [{"event": "noted", "message": "x"}]


def test_every_start_and_end_is_recorded(folder, monkeypatch):
    monkeypatch.setenv("ACCESS_TOKEN", "canary-of-the-environment")
    options = {"run_dir": str(folder.path), "quiet": True}
    run(walks(), generations=3, command=COMMAND, **options)
    run(walks(), generations=5, resume=True, **options)
    text = folder.journal_file.read_text()
    run(walks(), generations=5, resume=True, **options)
    assert folder.journal_file.read_text() == text, "a finished run records no further start"

    compiled, finished = ("compiled", "compiled"), ("ended", "finished")
    assert journal_of(folder) == [("began", 0), compiled, finished, ("began", 3), compiled, finished]
    began, compile_event, ended, again, *_, last = read_journal(folder)
    assert began["command"] == COMMAND
    assert "command" not in again, "Python started it"
    assert began["versions"] | {"jax": jax.__version__} == again["versions"]
    expected = {"devices": "1 of 2 cpu devices", "kind": "cpu", "processes": 1, "memory": device_memory.machine()}
    assert began["hardware"] | expected == again["hardware"]
    assert set(began["hardware"]) == {*expected, "cpu", "cores", "system"}
    assert 1 <= began["hardware"]["cores"] <= (os.cpu_count() or 1)
    assert compile_event["seconds"] > 0
    assert (ended["generation"], last["generation"]) == (3, 5)
    assert set(ended["memory"]) == {"planned", "peak", "used", "meaning"}
    assert 0 < ended["memory"]["planned"] < ended["memory"]["peak"]
    times = [datetime.datetime.fromisoformat(event["at"]) for event in (began, ended, again, last)]
    assert times == sorted(times)
    assert all(time.tzinfo for time in times)
    assert "canary" not in text
    assert str(folder.path.parent) not in text


def test_the_reason_of_an_early_end_is_recorded(folder, monkeypatch):
    def request_stop(_):
        os.kill(os.getpid(), signal.SIGTERM)

    options = {"run_dir": str(folder.path), "quiet": True, "generations": 9, "checkpoint_every": 2}
    with pytest.raises(Interrupted):
        run(walks(), after_save=request_stop, **options)
    with pytest.raises(Diverged):
        run(walks(diverge_at=5), resume=True, **options)

    def fail_to_save(checkpoints, *_):
        raise CheckpointError(f"there is no space\nin {checkpoints.directory}, nor in /home/user/else")

    monkeypatch.setattr(Checkpointer, "save", fail_to_save)
    with pytest.raises(CheckpointError, match="no space"):
        run(walks(), resume=True, **options)
    ends = [(event["generation"], event["why"]) for event in read_journal(folder) if event["event"] == "ended"]
    failed = "failed: CheckpointError: there is no space in run/checkpoints, nor in else"
    assert ends == [(3, "interrupted by SIGTERM"), (6, "diverged"), (6, failed)]


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN])
def test_the_end_of_a_session_saves_the_run_unless_nohup_ignores_it(folder, handler):
    def close_the_session(_):
        os.kill(os.getpid(), signal.SIGHUP)

    options = {"run_dir": str(folder.path), "quiet": True, "generations": 3, "checkpoint_every": 1}
    before = signal.signal(signal.SIGHUP, handler)
    try:
        with contextlib.suppress(Interrupted):
            run(walks(), after_save=close_the_session, **options)
        assert signal.getsignal(signal.SIGHUP) is handler
    finally:
        signal.signal(signal.SIGHUP, before)
    ends = [(event["generation"], event["why"]) for event in read_journal(folder) if event["event"] == "ended"]
    assert ends == [(3, "finished") if handler == signal.SIG_IGN else (2, "interrupted by SIGHUP")]
    assert Checkpointer(folder.checkpoints, read_only=True).latest() == ends[0][0]


def test_an_exit_reason_is_one_line():
    for error, reason in (
        (KeyboardInterrupt(), "stopped by SIGINT without saving"),
        (ValueError("a\n b"), "failed: ValueError: a b"),
        (OSError("x" * 300), "failed: OSError: " + "x" * 183),
    ):
        assert exit_reason(error) == reason


def test_warnings_about_checkpoints_are_recorded(folder):
    options = {"run_dir": str(folder.path), "quiet": True, "checkpoint_every": 1}
    run(walks(), generations=2, **options)
    newest = max(folder.checkpoints.glob("generation_*.json"))
    newest.write_text(newest.read_text()[:-20])
    show = warnings.showwarning
    with pytest.warns(CheckpointWarning, match="damaged"):
        run(walks(), generations=3, resume=True, **options)
    assert warnings.showwarning is show
    began, *warned, compiled, ended = journal_of(folder)[3:]
    assert (began, compiled, ended) == (("began", 1), ("compiled", "compiled"), ("ended", "finished"))
    assert [kind for kind, _ in warned] == ["warned"]
    assert "damaged and was passed over" in warned[0][1]


def test_a_run_that_ended_before_another_one_of_a_thread_records_no_later_warning(tmp_path):
    shown, folders = [], [RunFolder(tmp_path / name) for name in "ab"]
    first, second = journals = [Journal(folder) for folder in folders]
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: shown.append(str(message))
        for folder, journal in zip(folders, journals, strict=True):
            folder.path.mkdir()
            journal.__enter__().started(0, mesh.make_mesh(1), USAGE)
        first.__exit__(None, None, None)
        warnings.warn("later", OutputWarning, stacklevel=1)
        second.__exit__(None, None, None)
        warnings.warn("after both", OutputWarning, stacklevel=1)
    assert shown == ["later", "after both"]
    began, ended = ("began", 0), ("ended", "finished")
    assert [journal_of(folder) for folder in folders] == [[began, ended], [began, ("warned", "later"), ended]]


def test_a_run_records_no_warnings_of_a_run_in_another_thread(tmp_path):
    folders = [RunFolder(tmp_path / name) for name in "ab"]
    both = threading.Barrier(2, timeout=60)

    def train(folder):
        folder.path.mkdir()
        with Journal(folder) as journal:
            journal.started(0, mesh.make_mesh(1), USAGE)
            both.wait()
            warnings.warn(folder.path.name, OutputWarning, stacklevel=1)
            both.wait()

    with warnings.catch_warnings(action="always", record=True), ThreadPoolExecutor(2) as pool:
        list(pool.map(train, folders))
    began, ended = ("began", 0), ("ended", "finished")
    assert [journal_of(folder) for folder in folders] == [[began, ("warned", name), ended] for name in "ab"]


def test_an_incomplete_line_is_ignored(folder):
    folder.path.mkdir()
    folder.journal_file.write_text('{"event": "compiled", "seconds": 1.5}\n{"event": "ended", "why": "fini')
    assert read_journal(folder) == [{"event": "compiled", "seconds": 1.5}]
    with Journal(folder) as journal:
        journal.started(4, mesh.make_mesh(1), USAGE)
        journal.reached = 6
    assert journal_of(folder) == [("compiled", "compiled"), ("began", 4), ("ended", "finished")]
    assert read_journal(folder)[-1]["generation"] == 6
    assert folder.journal_file.read_text().count("fini") == 2, "no line is ever removed"


def test_the_error_of_the_run_takes_precedence_over_one_of_the_journal(folder):
    def unreadable():
        raise OSError("no space left")

    def record(error: Exception | None) -> None:
        with Journal(folder) as journal:
            journal.started(0, mesh.make_mesh(1), unreadable)
            if error is not None:
                raise error

    with pytest.raises(ValueError, match="too early"), Journal(folder):
        raise ValueError("too early")
    assert not folder.journal_file.exists(), "it has not begun"
    folder.path.mkdir()
    with pytest.raises(ValueError, match="the reason") as caught:
        record(ValueError("the reason"))
    assert caught.value.__notes__ == ["The journal has no end: no space left."]
    with pytest.raises(OSError, match="no space left"):
        record(None)


def test_a_journal_that_cannot_be_written_does_not_stop_the_run(folder):
    run(walks(), generations=1, run_dir=str(folder.path), quiet=True)
    folder.journal_file.unlink()
    folder.journal_file.mkdir()
    with pytest.warns(OutputWarning, match=r"journal\.jsonl cannot be written \(Is a directory\)") as caught:
        result = run(walks(), generations=2, run_dir=str(folder.path), resume=True, quiet=True)
    assert len(caught) == len(result.history) == 1, "said once"
    assert read_journal(folder) == [], "a page can be written without it"
    assert Checkpointer(folder.checkpoints, read_only=True).latest() == 2


@pytest.mark.parametrize(
    ("program", "words"),
    [("bin/rookery", ["rookery"]), ("lib/rookery/__main__.py", ["python", "-m", "rookery"])],
)
def test_the_command_line_omits_the_path_of_the_program(monkeypatch, program, words):
    monkeypatch.setattr(sys, "argv", [f"/home/user/{program}", "train", "pbt-sac"])
    assert command_line() == [*words, "train", "pbt-sac"]
