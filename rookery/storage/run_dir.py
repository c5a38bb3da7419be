"""The run folder: the names of its files, the one-writer lock, and `config.json`."""

import contextlib
import datetime
import json
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import filelock

from rookery.versions import version, versions

FORMAT = 1
"""The schema of `config.json`; raised whenever an older reader would misread a newer file."""
CHECKPOINT_PREFIX = "generation_"
"""What the name of everything that is whole or half a checkpoint begins with, inside `checkpoints/`."""
_TEMPORARY = ".rookery-tmp"
# What a run makes. `create(overwrite=True)` deletes these and nothing else; config.json goes first, so that a run
# that is half deleted cannot be resumed.
_MADE = (
    "config.json",
    "metrics.csv",
    "lineage.csv",
    "repertoire.csv",
    "cells.csv",
    "journal.jsonl",
    "curves.png",
    "repertoire.png",
    "skills.csv",
    "skills.png",
    "episode.gif",
    "episodes.npz",
    "report.html",
    "events/events.out.tfevents.*",
    f"checkpoints/{CHECKPOINT_PREFIX}[0-9]*",
    f"interrupted/{CHECKPOINT_PREFIX}[0-9]*",
    f"*{_TEMPORARY}",
    f"checkpoints/*{_TEMPORARY}",
    f"interrupted/*{_TEMPORARY}",
)


class RunFolderError(ValueError):
    """A folder that cannot be used as asked; the message is one sentence with the remedy."""


class RunFolder:
    """The names of a run's files, its configuration, and the right to write to it.

    Get one from `create` or `open_existing`; as a context manager it gives the lock back at the end. The lock is the
    kernel's: it is free at once when its holder dies, whatever it died of.

    Attributes:
      path: absolute.
      config: what the run was configured with, as `create` received it.
      versions: the `rookery`, `jax` and `python` that made the run.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path).absolute()
        self.config: dict[str, Any] = {}
        self.versions: dict[str, str] = {}
        # Not thread local: the lock belongs to the run, whichever thread of it releases it.
        self._lock = filelock.FileLock(self.path / ".lock", timeout=0, thread_local=False)

    @property
    def config_file(self) -> Path:
        """`config.json`."""
        return self.path / "config.json"

    @property
    def metrics_file(self) -> Path:
        """`metrics.csv`: a row per generation."""
        return self.path / "metrics.csv"

    @property
    def lineage_file(self) -> Path:
        """`lineage.csv`: a row per generation and member."""
        return self.path / "lineage.csv"

    @property
    def repertoire_file(self) -> Path:
        """`repertoire.csv`: a row per cell."""
        return self.path / "repertoire.csv"

    @property
    def cells_file(self) -> Path:
        """`cells.csv`: a row per saved generation and cell whose elite changed its fitness."""
        return self.path / "cells.csv"

    @property
    def journal_file(self) -> Path:
        """`journal.jsonl`: a line per event, from the first start to the last end."""
        return self.path / "journal.jsonl"

    @property
    def skills_file(self) -> Path:
        """`skills.csv`: where the episodes of each skill went, a row per state."""
        return self.path / "skills.csv"

    @property
    def skills_picture_file(self) -> Path:
        """`skills.png`."""
        return self.path / "skills.png"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def interrupted(self) -> Path:
        """The folder of the checkpoint of a generation that a signal stopped; a later checkpoint deletes it."""
        return self.path / "interrupted"

    @property
    def events(self) -> Path:
        """The folder of the TensorBoard event files."""
        return self.path / "events"

    @property
    def picture_file(self) -> Path:
        """`curves.png`."""
        return self.path / "curves.png"

    @property
    def repertoire_picture_file(self) -> Path:
        """`repertoire.png`."""
        return self.path / "repertoire.png"

    @property
    def episodes_file(self) -> Path:
        """`episodes.npz`: episodes to be played, see `deploy/episodes.py`."""
        return self.path / "episodes.npz"

    @property
    def report_file(self) -> Path:
        """`report.html`."""
        return self.path / "report.html"

    @property
    def owner_file(self) -> Path:
        """`.owner.json`: who holds the lock, for the message to whoever is refused."""
        return self.path / ".owner.json"

    def acquire(self) -> None:
        """Take the one-writer lock.

        Raises:
          RunFolderError: somebody holds it; names process, host and time.
        """
        try:
            self._lock.acquire()
        except (filelock.Timeout, RuntimeError) as error:  # RuntimeError: held by this very thread
            raise RunFolderError(
                f"{self.path} is in use: {self._owner()} writes to it; wait for it, stop it, or choose another folder."
            ) from error
        except OSError as error:
            raise RunFolderError(
                f"{self.path} cannot be written to: {error.strerror}; choose another folder."
            ) from error
        started = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "started": started}
        write_atomically(self.owner_file, json.dumps(owner))

    def release(self) -> None:
        """Give the lock back; without effect if it is not held."""
        if self._lock.is_locked:
            self.owner_file.unlink(missing_ok=True)
            self._lock.release()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def reconfigure(self, config: Mapping[str, Any]) -> None:
        """Replace the configuration, atomically; the caller holds the lock."""
        content = {"format": FORMAT, "versions": self.versions, "config": dict(config)}
        write_atomically(self.config_file, json.dumps(content, indent=2) + "\n")
        self._load()

    def _owner(self) -> str:
        try:
            owner = json.loads(self.owner_file.read_text(encoding="utf-8"))
            return f"process {owner['pid']} on {owner['host']}, started {owner['started']},"
        except (OSError, ValueError, KeyError, TypeError):  # the other one has not written it yet
            return "another process"

    def _load(self) -> None:
        content = _read_config(self.config_file)
        self.config = content["config"]
        self.versions = content["versions"]


def create(path: str | os.PathLike[str], config: Mapping[str, Any], overwrite: bool = False) -> RunFolder:
    """Make a folder for a new run, and hold its lock.

    Args:
      path: made if it does not exist, with its parents; files in it that no run makes are never touched.
      config: JSON values only; comes back bit-equal as `open_existing(path).config`.
      overwrite: delete what an earlier run made there.

    Raises:
      RunFolderError: the folder holds a run (and `overwrite` is False), is in use, or cannot be made.
    """
    folder = RunFolder(path)
    content = {"format": FORMAT, "versions": versions(("rookery", "jax")), "config": dict(config)}
    text = json.dumps(content, indent=2) + "\n"  # before anything is deleted: a value that is no JSON raises here
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder.path} cannot be made: {error.strerror}; choose another folder.") from error
    if _is_foreign(folder.config_file):  # which must not be deleted
        raise RunFolderError(f"{folder.path} holds the config.json of another program; choose another folder.")
    folder.acquire()
    try:
        if not overwrite and any(any(folder.path.glob(pattern)) for pattern in _MADE):
            raise RunFolderError(
                f"{folder.path} already holds a run: continue it with `rookery resume {folder.path}`, "
                "or replace it with `--overwrite`."
            )
        _delete_run(folder)
        write_atomically(folder.config_file, text)
        folder._load()
    except BaseException:
        folder.release()
        raise
    return folder


def open_existing(path: str | os.PathLike[str], write: bool = False) -> RunFolder:
    """Open the folder of a run; its configuration stands in `.config`.

    Args:
      path: the folder.
      write: take the lock. Readers need none: everything that matters is written atomically or line by line.

    Raises:
      RunFolderError: it is no run, its `config.json` is damaged or of another format, or (`write`) it is in use.
    """
    folder = RunFolder(path)
    if folder.path.exists() and not folder.path.is_dir():
        raise RunFolderError(f"{folder.path} is a file, not the folder of a run; give the folder.")
    if not folder.path.is_dir():
        raise RunFolderError(f"{folder.path} is no run: there is no such folder.")
    if not folder.config_file.is_file():
        raise RunFolderError(f"{folder.path} is no run: config.json is missing in it.")
    if _is_foreign(folder.config_file):
        raise RunFolderError(f"{folder.path} is no run: the config.json in it is of another program.")
    if write:
        folder.acquire()
    try:
        folder._load()
    except BaseException:
        folder.release()
        raise
    return folder


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a whole file or nothing: to a neighbour, through to the disk, then renamed into place; a text in UTF-8."""
    temporary = path.with_name(path.name + _TEMPORARY)
    try:
        with open(temporary, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to the disk, where the system can."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _delete_run(folder: RunFolder) -> None:
    for pattern in _MADE:
        for entry in list(folder.path.glob(pattern)):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    for directory in (folder.checkpoints, folder.events):
        with contextlib.suppress(OSError):  # absent, or the user keeps something there
            directory.rmdir()


def _is_foreign(config_file: Path) -> bool:
    """Whether a whole `config.json` has nothing of what every version of this library writes first."""
    try:
        content = json.loads(config_file.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and not {"format", "versions"} & set(content)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        written_by, written_as = content["versions"]["rookery"], content["format"]
    except (ValueError, KeyError, TypeError) as error:  # ValueError: no JSON, or no UTF-8
        raise RunFolderError(
            f"{path} is damaged ({type(error).__name__}: {error}); put a copy back, or start anew with `--overwrite`."
        ) from error
    if written_as != FORMAT:
        raise RunFolderError(
            f"{path} has format {written_as!r}, but rookery {version('rookery')} reads format {FORMAT}; "
            f"use rookery {written_by}, which wrote it."
        )
    if not isinstance(content.get("config"), dict):
        raise RunFolderError(
            f"{path} is damaged (no `config` in it); put a copy back, or start anew with `--overwrite`."
        )
    return content
