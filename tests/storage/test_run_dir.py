"""The run directory: one writer, an exact configuration, and no deletion of other files."""

import errno
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rookery.storage import run_dir as folders
from rookery.storage.run_dir import RunFolder, RunFolderError, create, open_existing, sentence_of, write_atomically

CONFIG = {"kind": "pbt-sac", "rate": 1 / 3, "sizes": [64, 64], "name": "Ä", "limit": None, "nested": {"a": True}}
HOLD = """
import sys, time
from rookery.storage.run_dir import create, open_existing
held = create(sys.argv[1], {}) if sys.argv[2] == "create" else open_existing(sys.argv[1], write=True)
print("held", flush=True)
time.sleep(60)
"""


def holder(path: Path, how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path), how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)


def test_the_configuration_is_read_back(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "run"
    with create(path, CONFIG) as made:
        assert made.config == CONFIG
        assert made.path == path
    opened = open_existing(path)
    assert opened.config == CONFIG
    assert opened.versions["python"] == platform.python_version()
    assert opened.versions["jax"]
    content = json.loads((path / "config.json").read_text())
    assert content["format"] == folders.FORMAT
    assert set(content["versions"]) == {"rookery", "jax", "python"}
    monkeypatch.setenv("HOME", str(tmp_path))  # expanded as by a shell
    assert open_existing("~/deep/run").path == path
    assert RunFolder("~no-such-user/x").path == Path.cwd() / "~no-such-user/x"
    assert RunFolder("./~/x").path == Path.cwd() / "~/x"


def test_a_directory_with_a_run_is_rejected(tmp_path):
    made = tmp_path / "config.json"
    made.write_text("precious")
    with pytest.raises(RunFolderError, match=r"already contains a run: .*`rookery resume .*`--overwrite`") as caught:
        create(tmp_path, CONFIG)
    assert made.read_text() == "precious"
    create(tmp_path, CONFIG, overwrite=True).release()
    assert caught.value.__traceback__, "it references the folder object, so the lock was released explicitly"


@pytest.mark.parametrize("made", ["metrics.csv", "checkpoints/generation_00000001.json"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_files_with_the_names_of_a_run_are_kept_where_there_is_none(tmp_path, made, overwrite):
    (tmp_path / made).parent.mkdir(exist_ok=True)
    (tmp_path / made).write_text("precious")
    with pytest.raises(RunFolderError, match=f"is no run directory, but contains {re.escape(made)}, which a run would"):
        create(tmp_path, CONFIG, overwrite=overwrite)
    assert (tmp_path / made).read_text() == "precious"


def test_overwrite_deletes_only_the_files_of_a_run(tmp_path):
    run_files = ["config.json", "metrics.csv", "lineage.csv", "curves.png", "report.html", "config.json.rookery-tmp"]
    run_files += ["repertoire.csv", "repertoire.png", "cells.csv", "journal.jsonl"]
    run_files += ["events/events.out.tfevents.1.host", "events/events0001.out.tfevents.1.host"]
    run_files += ["checkpoints/generation_00000001.json"]
    run_files += ["checkpoints/generation_00000001/d/data", "checkpoints/generation_00000002.orbax-checkpoint-tmp/d"]
    other_files = ["notes.txt", "metrics.csv.bak", "pictures/curves.png", "checkpoints/notes.txt", "events/keep"]
    other_files += ["2/config.json"]
    for name in [*run_files, *other_files]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    create(tmp_path, CONFIG, overwrite=True).release()
    assert [name for name in other_files if not (tmp_path / name).exists()] == []
    assert [name for name in run_files if (tmp_path / name).exists()] == ["config.json"]
    with pytest.raises(TypeError):  # which deletes nothing
        create(tmp_path, {"bad": object()}, overwrite=True)
    assert open_existing(tmp_path).config == CONFIG
    (tmp_path / "checkpoints/notes.txt").unlink()
    create(tmp_path, CONFIG, overwrite=True).release()
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("how", ["create", "open"])
def test_a_second_process_is_rejected_until_the_first_is_killed(tmp_path, how):
    if how == "open":
        create(tmp_path, {}).release()
    process = holder(tmp_path, how)
    try:
        attempts = (lambda: open_existing(tmp_path, write=True), lambda: create(tmp_path, CONFIG, overwrite=True))
        for attempt in attempts:
            with pytest.raises(RunFolderError, match=r"is in use: .* started \d{4}-") as caught:
                attempt()
            assert f"process {process.pid} on {socket.gethostname()}" in str(caught.value)
        assert open_existing(tmp_path).config == {}, "readers need no lock, and overwrite respects it"
    finally:
        kill(process)
    with open_existing(tmp_path, write=True) as mine:
        assert json.loads(mine.owner_file.read_text())["pid"] == os.getpid()


def test_the_lock_excludes_the_same_process_too(tmp_path):
    with create(tmp_path, CONFIG) as first:
        for owner in (None, "", "[]", "{}"):  # recorded, or not
            if owner is not None:
                first.owner_file.write_text(owner)
            message = "is in use" if owner is None else "is in use: another process writes to it"
            with pytest.raises(RunFolderError, match=message):
                open_existing(tmp_path, write=True)
        first.release()
        open_existing(tmp_path, write=True).release()
        first.release()  # without effect
    assert not first.owner_file.exists()
    with create(tmp_path / "moved", CONFIG) as moved:  # whose end would hide an error of the run
        moved.path.rename(tmp_path / "away")
        moved.path.touch()


@pytest.mark.parametrize("typed", ["maez", "."])
def test_what_is_no_run_directory_names_runs_nearby(tmp_path, typed):
    create(tmp_path / "maze", {}).release()
    with pytest.raises(RunFolderError, match=rf"; runs near it are {re.escape(str(tmp_path / 'maze'))}\.$"):
        open_existing(tmp_path / typed)


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_run_directory_or_that_of_another_program(tmp_path, overwrite):
    with pytest.raises(RunFolderError, match="not a run directory: there is no such folder"):
        open_existing(tmp_path / "absent")
    with pytest.raises(RunFolderError, match=r"not a run directory: config\.json is missing"):
        open_existing(tmp_path, write=True)
    assert list(tmp_path.iterdir()) == [], "opening created a file"
    (tmp_path / "config.json").write_text('{"theirs": 1}')
    with pytest.raises(RunFolderError, match=r"is not a run directory: the config\.json in it is of another program"):
        open_existing(tmp_path)
    with pytest.raises(RunFolderError, match=r"contains the config\.json of another program; choose another folder"):
        create(tmp_path, CONFIG, overwrite=overwrite)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("config.json", '{"theirs": 1}')]
    with pytest.raises(RunFolderError, match=r"config\.json is a file, not a run directory"):
        open_existing(tmp_path / "config.json")


def test_a_configuration_of_format_1_is_read_with_the_present_names(tmp_path):
    create(tmp_path, CONFIG).release()
    old = {"format": 1, "versions": {"rookery": "0.1.0"}, "config": {"kind": "sac", "world": {"env": "hopper"}}}
    (tmp_path / "config.json").write_text(json.dumps(old), encoding="utf-8-sig")  # with the mark of some editors
    assert open_existing(tmp_path).config == {"kind": "sac", "environment": {"env": "hopper"}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"format": 1,', "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"format": 1, "versions": {"rookery": "0"}}', "no `config`"),
        (b'{"format": 1, "versions": {"rookery": "0", "python": NaN}}', "its `versions` are .*nan"),
        (b'{"format": 1, "versions": {"rookery": "0"}, "config": {"run": 3}}', "its `run` is 3"),
        (b'{"format": 1, "versions": {"rookery": "0"}, "config": {"population": true}}', "its `population` is True"),
        (b'{"format": 99, "versions": {"rookery": "7.0"}, "config": {}}', "has format 99.*use rookery 7.0"),
    ],
)
def test_a_damaged_or_foreign_configuration(tmp_path, content, message):
    create(tmp_path, CONFIG).release()
    (tmp_path / "config.json").write_bytes(content)
    for write in (False, True):
        with pytest.raises(RunFolderError, match=message) as caught:
            open_existing(tmp_path, write=write)
    create(tmp_path, CONFIG, overwrite=True).release()
    assert caught.value.__traceback__, "it references the folder object, so the lock was released explicitly"


def test_writing_is_atomic(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    write_atomically(path, "first")

    def fail(*_: object) -> None:
        raise OSError("full")

    for call in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            for attempt in (lambda: write_atomically(path, "second"), lambda: create(tmp_path / "run", CONFIG)):
                with pytest.raises(OSError, match="full"):
                    attempt()
        assert path.read_text() == "first"
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["config.json", "run"]
        assert not (tmp_path / "run/config.json").exists(), "it must only appear when it is complete"


def test_the_error_of_a_read_only_disk_names_the_file_and_what_helps(tmp_path, monkeypatch):
    def fail(path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("builtins.open", fail)
    monkeypatch.setattr(os, "unlink", fail)
    with pytest.raises(OSError, match="Read-only") as caught:
        write_atomically(tmp_path / "report.html", "text")
    assert sentence_of(caught.value) == (
        f"{tmp_path / 'report.html'}: Read-only file system; check its permissions and the free space of its disk."
    )
    folder = IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), "metrics.csv")
    assert sentence_of(folder) == "metrics.csv: Is a directory; move this folder away, since a file belongs there."
    file = FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), "events")
    assert sentence_of(file) == "events: File exists; move this file away, since a folder belongs there."


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (Path(), tmp_path):
        with pytest.raises(IsADirectoryError) as caught:
            write_atomically(path, "text")
        assert (caught.value.filename, [*tmp_path.iterdir()]) == (str(path), [])


def test_two_writers_of_a_file_do_not_disturb_each_other(tmp_path, monkeypatch):
    replace, path, names = os.replace, tmp_path / "report.html", []

    def also(temporary, target):
        names.append(temporary.name)
        if len(names) == 1:
            write_atomically(path, "second")
        replace(temporary, target)

    monkeypatch.setattr(os, "replace", also)
    write_atomically(path, "first")
    assert path.read_text() == "first"
    assert len(set(names)) == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
