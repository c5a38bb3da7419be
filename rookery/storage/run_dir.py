"""The run directory: the names of its files, the single-writer lock, and `config.json`."""

import contextlib
import datetime
import errno
import json
import os
import secrets
import shlex
import shutil
import socket
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from rookery.settings import nearest, user_path
from rookery.storage.record import DEFAULTS, PYTHON, SEARCH
from rookery.types import Record
from rookery.versions import version, versions

FORMAT = 2  # the format version of `config.json`, incremented whenever an older reader would misread a newer file
REPLACED: dict[Path, dict[str, str]] = {}
"""Run directory -> functions that are read in place of the recorded ones, `env` or `factory`; see `sources.replace`."""
CHECKPOINT_PREFIX = "generation_"
"""The name prefix of all files and folders of checkpoints, complete or not, inside `checkpoints/`."""
_LOAD_SEARCH = "rookery.qd.Search.load"
TEMPORARY = ".rookery-tmp"  # the end of the names of files that are being written
# The files of a run. `create(overwrite=True)` deletes only these.
_RUN_FILES = (
    *("metrics.csv", "lineage.csv", "repertoire.csv", "cells.csv", "evaluation.csv", "skills.csv", "tournament.csv"),
    *(
        "journal.jsonl",
        "imports.jsonl",
        "results.jsonl",
        "wandb.json",
        "mlflow.json",
        "source/files.json",
        "source/[0-9]*",
    ),
    *("curves.png", "repertoire.png", "skills.png", "tournament.png", "episode.gif", "episodes.npz", "report.html"),
    *("islands/[0-9]*", "publications/[0-9]*.pub", "events/events*.out.tfevents.*"),
    *(f"{folder}/{CHECKPOINT_PREFIX}[0-9]*" for folder in ("checkpoints", "interrupted")),
    *(f"{folder}*{TEMPORARY}" for folder in ("", "checkpoints/", "interrupted/", "publications/")),
    "config.json",  # deleted last: without it a folder is no run directory
)


class RunFolderError(ValueError):
    """A run directory cannot be created, opened or locked; the message names the remedy."""


class OutputWarning(UserWarning):
    """Something beside the checkpoints could not be written; the run continues, and ends with exit code 1."""


class RunFolder:
    """A run directory: the names of its files, its configuration, and its single-writer lock.

    `create` and `open_existing` return instances; as a context manager an instance releases the lock at the end. The
    lock is a kernel lock, which is released immediately when its process ends for any reason.

    Attributes:
      path: the absolute path.
      config: the configuration of the run, as passed to `create`.
      versions: the versions of `rookery`, `jax` and `python` that created the run.
      config_file: `config.json`.
      metrics_file: `metrics.csv`, one row per generation.
      lineage_file: `lineage.csv`, one row per generation and member.
      repertoire_file: `repertoire.csv`, one row per cell.
      cells_file: `cells.csv`, one row per saved generation and cell whose elite changed its fitness.
      evaluation_file: `evaluation.csv`, one row per new episode of the best member, see `deploy/evaluate.py`.
      skills_file: `skills.csv`, the trajectories of each skill's episodes, one row per state.
      tournament_file: `tournament.csv`, the returns of each member against each opponent, see `deploy/tournament.py`.
      journal_file: `journal.jsonl`, one line per event, see `storage/events.py`.
      imports_file: `imports.jsonl`, one line per exchange of an island, see `storage/island_files.py`.
      results_file: `results.jsonl`, what a `Search` was asked for and given, see `experiments/search.py`.
      episodes_file: `episodes.npz`, recorded episodes for playback, see `deploy/episodes.py`.
      picture_file, repertoire_picture_file, skills_picture_file, tournament_picture_file: `curves.png`,
        `repertoire.png`, `skills.png`, `tournament.png`.
      report_file: `report.html`.
      owner_file: `.owner.json`, the process that holds the lock, for the error message of other processes.
      checkpoints: the folder of the checkpoints.
      interrupted: the folder of the checkpoint within a generation that a signal stopped; the next one deletes it.
      events: the folder of the TensorBoard event files.
      islands: the folder of the run directories of islands, `islands/0`, `islands/1`, ...
      sources, sources_file: the folder of the files of a user's functions, and their hashes, see `storage/sources.py`.
      publications: the folder of what islands publish, see `islands/store.py`.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = user_path(path).absolute()
        self.config_file = self.path / "config.json"
        self.metrics_file = self.path / "metrics.csv"
        self.lineage_file = self.path / "lineage.csv"
        self.repertoire_file = self.path / "repertoire.csv"
        self.cells_file = self.path / "cells.csv"
        self.evaluation_file = self.path / "evaluation.csv"
        self.skills_file = self.path / "skills.csv"
        self.tournament_file = self.path / "tournament.csv"
        self.journal_file = self.path / "journal.jsonl"
        self.imports_file = self.path / "imports.jsonl"
        self.results_file = self.path / "results.jsonl"
        self.episodes_file = self.path / "episodes.npz"
        self.picture_file = self.path / "curves.png"
        self.repertoire_picture_file = self.path / "repertoire.png"
        self.skills_picture_file = self.path / "skills.png"
        self.tournament_picture_file = self.path / "tournament.png"
        self.report_file = self.path / "report.html"
        self.owner_file = self.path / ".owner.json"
        self.checkpoints = self.path / "checkpoints"
        self.interrupted = self.path / "interrupted"
        self.events = self.path / "events"
        self.islands = self.path / "islands"
        self.publications = self.path / "publications"
        self.sources = self.path / "source"
        self.sources_file = self.sources / "files.json"
        self.config: dict[str, Any] = {}
        self.versions: dict[str, str] = {}
        # Not thread-local, since another thread of the run may release it.
        self._lock = filelock.FileLock(self.path / ".lock", timeout=0, thread_local=False)

    def acquire(self) -> None:
        """Acquire the single-writer lock; a RunFolderError if the directory is not writable, or another process (which
        the message names, with its host and time) holds it."""
        try:
            self._lock.acquire()
        except (filelock.Timeout, RuntimeError) as error:  # RuntimeError: held by this thread
            raise RunFolderError(
                f"{self.path} is in use: {self._owner()} writes to it; wait for it, stop it, or choose another folder."
            ) from error
        except OSError as error:
            path = self.path if error.filename is None else error.filename
            remedy = remedy_of(error, "choose another folder")
            raise RunFolderError(f"{path} cannot be written to: {error.strerror}; {remedy}.") from error
        started = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "started": started}
        write_atomically(self.owner_file, json.dumps(owner))

    def release(self) -> None:
        """Release the lock; no effect if it is not held."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):  # the folder was moved, or may not be written to any more
                self.owner_file.unlink()
            self._lock.release()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def reconfigure(self, config: Record) -> None:
        """Replace the configuration, atomically; the caller holds the lock."""
        content = {"format": FORMAT, "versions": self.versions, "config": dict(config)}
        write_atomically(self.config_file, json.dumps(content, indent=2) + "\n")
        self._load()

    def _owner(self) -> str:
        try:
            owner = json.loads(self.owner_file.read_text(encoding="utf-8"))
            return f"process {owner['pid']} on {owner['host']}, started {owner['started']},"
        except (OSError, ValueError, KeyError, TypeError):  # the other process has not written it yet
            return "another process"

    def _load(self) -> None:
        content = _read_config(self.config_file)
        self.config = content["config"]
        self.versions = content["versions"]


def remedy_of(error: OSError, otherwise: str) -> str:
    """What helps against an error of the system about a file, as the end of a sentence."""
    if isinstance(error, IsADirectoryError):
        return "move this folder away, since a file belongs there"
    return "move this file away, since a folder belongs there" if isinstance(error, FileExistsError) else otherwise


def sentence_of(error: Exception) -> str:
    """The message of an error; of one of the system, which file it is about and what helps."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    place = "a file could not be read or written" if error.filename is None else error.filename
    remedy = remedy_of(error, "check its permissions and the free space of its disk")
    return f"{place}: {error.strerror}; {remedy}."


def resume_command(run_dir: str | os.PathLike[str]) -> str:
    """The command that continues a run, quoted for a shell."""
    return f"rookery resume {shlex.quote(str(run_dir))}"


def check_new(path: str | os.PathLike[str], in_python: str = "") -> None:
    """Check that a directory contains no run.

    `in_python` is what continues the run in Python, for the message; "" for the command line.

    Raises:
      RunFolderError: it does, and the message names the remedy, in Python or on the command line; or other files have
        the names of those of a run.
    """
    folder = RunFolder(path)
    if found := _files_of_a_run(folder):
        _check_is_run(folder, found)
        remedy = f"continue it with `{resume_command(folder.path)}`, replace it with `--overwrite`, or give a --run-dir"
        if in_python:
            remedy = f"continue it with {in_python}, replace it with overwrite=True, or give another run_dir"
        raise RunFolderError(f"{folder.path} already contains a run: {remedy}.")


def create(path: str | os.PathLike[str], config: Record, overwrite: bool = False) -> RunFolder:
    """Create the directory of a new run, and acquire its lock.

    Args:
      path: the directory, which is created with its parents if it does not exist; files that are not a run's are never
        changed.
      config: JSON values only; `open_existing(path).config` returns them bit-equal.
      overwrite: delete the files of an earlier run there.

    Raises:
      RunFolderError: the directory contains a run (and `overwrite` is False), is in use, or cannot be created.
    """
    folder = RunFolder(path)
    content = {"format": FORMAT, "versions": versions(("rookery", "jax")), "config": dict(config)}
    text = json.dumps(content, indent=2) + "\n"  # before anything is deleted: a value that is not JSON raises here
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder.path} cannot be created: {error.strerror}; choose another folder.") from error
    if _is_of_another_program(folder.config_file):  # never delete a file of another program
        raise RunFolderError(f"{folder.path} contains the config.json of another program; choose another folder.")
    folder.acquire()
    try:
        if overwrite:
            _check_is_run(folder, _files_of_a_run(folder))
        else:
            check_new(path, _LOAD_SEARCH if SEARCH in config else "resume=True" if config.get("kind") == PYTHON else "")
        _delete_run(folder)
        write_atomically(folder.config_file, text)
        folder._load()
    except BaseException:
        folder.release()
        raise
    return folder


def open_existing(path: str | os.PathLike[str], write: bool = False) -> RunFolder:
    """Open the directory of an existing run and read its configuration.

    Args:
      write: acquire the lock. Readers need no lock, since all files are written atomically or line by line.

    Raises:
      RunFolderError: the path is not a run directory, its `config.json` is damaged or has another format, or (with
        `write`) it is in use.
    """
    folder = RunFolder(path)
    if folder.path.exists() and not folder.path.is_dir():
        raise RunFolderError(f"{folder.path} is a file, not a run directory; give the directory.")
    if not folder.config_file.is_file():
        problem = "config.json is missing in it" if folder.path.is_dir() else "there is no such folder"
        around = folder.path if folder.path.is_dir() else folder.path.parent
        known = {config.parent.name: config.parent for config in sorted(around.glob("*/config.json"))}
        near = nearest(folder.path.name, known) or list(known)[:3]
        beside = f"; runs near it are {', '.join(str(known[name]) for name in near)}" if near else ""
        raise RunFolderError(f"{folder.path} is not a run directory: {problem}{beside}.")
    if _is_of_another_program(folder.config_file):
        raise RunFolderError(f"{folder.path} is not a run directory: the config.json in it is of another program.")
    if write:
        folder.acquire()
    try:
        folder._load()
    except BaseException:
        folder.release()
        raise
    return folder


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file atomically: to a temporary file, which is flushed to disk and then renamed; text is UTF-8.

    The name of the temporary file is unique, since commands may write a page while the training writes it as well.
    """
    if path.is_dir():  # "." has no name, and the errors of replacing a folder differ
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
    try:
        with open(temporary, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno is not None:
            error.filename = str(path)
        with contextlib.suppress(OSError):  # it is not there, or the disk is read-only
            temporary.unlink()
        raise
    sync_directory(path.parent)


def append_line(path: Path, content: Mapping[str, object]) -> None:
    """Append a line of JSON and flush it to disk, after a line break if the last line is incomplete."""
    with open(path, "ab+") as file:
        size = file.tell()
        file.seek(max(size - 1, 0))
        start = b"" if file.read() in (b"", b"\n") else b"\n"
        file.write(start + json.dumps(content).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
    """Let a run continue with an `OutputWarning`, once until the file can be written again, if a file beside its
    checkpoints cannot be written."""
    try:
        yield
    except OSError as error:
        if path not in _unwritable:
            _unwritable.add(path)
            reason = error.strerror or error
            warnings.warn(f"{path} cannot be written ({reason}); the rest continues", OutputWarning, stacklevel=4)
    else:
        _unwritable.discard(path)


_unwritable: set[Path] = set()


def remove(path: Path) -> None:
    """Delete a file, a link or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Flush the entries of a directory to disk, on systems that support it."""
    if os.name == "posix":
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _files_of_a_run(folder: RunFolder) -> list[str]:
    """The names of the files in a directory that a run would replace."""
    return [str(path.relative_to(folder.path)) for pattern in _RUN_FILES for path in folder.path.glob(pattern)]


def _check_is_run(folder: RunFolder, found: Sequence[str]) -> None:
    """Check that files which are named as those of a run belong to one."""
    if found and not folder.config_file.is_file():
        named = ", ".join(found[:3]) + ", ..." * (len(found) > 3)
        raise RunFolderError(
            f"{folder.path} is no run directory, but contains {named}, which a run would replace; move them, or choose "
            "another folder."
        )


def _delete_run(folder: RunFolder) -> None:
    for pattern in _RUN_FILES:
        for entry in list(folder.path.glob(pattern)):
            remove(entry)
    for directory in (folder.checkpoints, folder.events, folder.islands, folder.publications, folder.sources):
        with contextlib.suppress(OSError):  # absent, or it contains other files of the user
            directory.rmdir()


def _is_of_another_program(config_file: Path) -> bool:
    """Whether a readable `config.json` lacks the keys that every version of this library writes."""
    try:
        content = json.loads(config_file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and not {"format", "versions"} & set(content)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))  # editors may begin the file with a mark
        written_by, written_format = content["versions"]["rookery"], content["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # ValueError: not JSON, or not UTF-8
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    if written_format not in (1, FORMAT):
        raise RunFolderError(
            f"{path} has format {written_format!r}, but rookery {version('rookery')} reads formats 1 and {FORMAT}; "
            f"use rookery {written_by}, which wrote it."
        )
    if not all(isinstance(one, str) for one in content["versions"].values()):
        raise _damaged(path, f"its `versions` are {content['versions']}")
    if not isinstance(content.get("config"), dict):
        raise _damaged(path, "no `config` in it")
    for part, kind in (("kind", str), ("population", int), ("run", dict), (DEFAULTS, dict)):
        if type(value := content["config"].get(part, kind())) is not kind:  # `isinstance` takes true for a number
            raise _damaged(path, f"its `{part}` is {value!r}")
    if written_format == 1 and "world" in content["config"]:  # the name of this part before format 2
        content["config"]["environment"] = content["config"].pop("world")
    functions = next((REPLACED[folder] for folder in path.resolve().parents if folder in REPLACED), {})
    for part, name in ((content["config"].get("environment"), "env"), (content["config"], "factory")):
        if isinstance(part, dict) and name in functions:
            part[name] = functions[name]
    return content


def _damaged(path: Path, reason: str) -> RunFolderError:
    of_an_island = path.parent.parent.name == "islands"  # whose run would lose all other islands
    again = "" if of_an_island else ", or start again with `--overwrite`"
    return RunFolderError(f"{path} is damaged ({reason}); restore a copy{again}.")
