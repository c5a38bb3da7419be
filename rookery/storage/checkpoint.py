"""Checkpoints of a run: written in the background, and restored only if complete. The only file that imports orbax.

Orbax writes the arrays asynchronously and commits them atomically. A manifest is written when they could be read back;
`manifest.verified` checks a checkpoint. A manifest also has the specs of the leaves, which are compared before a
restore, since orbax silently casts a wrong dtype.
"""

import collections
import contextlib
import functools
import itertools
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rookery.distributed import sync
from rookery.settings import user_path
from rookery.storage import leaf_specs, manifest
from rookery.storage.leaf_specs import Target
from rookery.storage.manifest import Manifest
from rookery.storage.run_dir import CHECKPOINT_PREFIX
from rookery.types import Array, PyTree

if TYPE_CHECKING:  # imported on first use, since the import takes a second
    from orbax.checkpoint import StandardCheckpointer

StateT = TypeVar("StateT")
Restored = dict[str, Array | np.ndarray]
_ORBAX_TEMPORARY = ".orbax-checkpoint-tmp"
_HOST_FILE = "host.npz"
_READ_BACK = 2**28  # bytes that are read back at a time, since a state may fill most of the memory
_OPEN_FOLDERS = Path("/proc/self/fd")
_RESTORE_ATTEMPTS = 10  # the running training may replace the checkpoint that is being read by a newer one
_saves = itertools.count()
_warnings_of_orbax: collections.deque[str] = collections.deque()


class CheckpointError(OSError):
    """A checkpoint cannot be written, found, or restored into this run; the message names the remedy."""


class NoneComplete(CheckpointError):  # noqa: N818 - a kind of it
    """There is no complete checkpoint in the folder."""


class CheckpointWarning(UserWarning):
    """A damaged checkpoint was skipped (the message names the file and the damage), or a warning of orbax."""


class Checkpointer:
    """Saves and restores the state of a run; one writer per directory, which holds the run's lock.

    Use it as a context manager, or call `wait`: a save in progress is lost when the interpreter exits. In a run over
    several processes, every process creates a checkpointer for the same shared directory and makes the same calls of
    `save` and `restore` with the same global arrays; process 0 names the folder, writes the manifest and verifies.

    Args:
      directory: created if it does not exist. Incomplete checkpoints of killed runs are removed.
      keep: number of complete checkpoints to keep, at least 1.
      read_only: change no files; `save` raises an error.
      replaces: a folder that is deleted as soon as a new checkpoint is complete.

    Raises:
      ValueError: `keep` is less than 1.
    """

    def __init__(
        self, directory: str | os.PathLike[str], keep: int = 1, read_only: bool = False, replaces: Path | None = None
    ):
        if keep < 1:
            raise ValueError(f"keep is {keep}, but at least 1 checkpoint must be kept; give 1 or more.")
        self.directory = user_path(directory).absolute()
        self._keep = keep
        self._read_only = read_only
        self._replaces = replaces
        self._thread: threading.Thread | None = None
        self._failure: CheckpointError | None = None
        self._intact: dict[int, Manifest] = {}
        if not read_only:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_incomplete()

    def save(
        self,
        generation: int,
        state: PyTree,
        metadata: Mapping[str, Any],
        retained: int | None = None,
        host: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Save in the background; the arrays of `state` may be donated as soon as this returns.

        The call first waits for a save in progress. When the new checkpoint is complete, older ones beyond `keep` are
        deleted, and also those of later generations, which belong to an abandoned continuation of the run.

        Args:
          generation: 0 or more; the new checkpoint replaces one of the same generation as soon as it is complete.
          state: leaves are arrays of any dtype and size, typed keys, Python bools, ints and floats; or None.
          metadata: JSON values.
          retained: a generation whose checkpoint is kept regardless of its age.
          host: arrays of the host, such as running episodes, for `host_arrays`.

        Raises:
          CheckpointError: this save cannot begin (a leaf that cannot be stored, too little disk space), or the
            previous save failed, in which case this one was not begun.
          ValueError: `generation` is negative.
        """
        if generation < 0:
            raise ValueError(f"The generation is {generation}, but a checkpoint needs 0 or more.")
        if self._read_only:
            raise CheckpointError(f"{self.directory} was opened for reading; open it without read_only to save.")
        self.wait()
        opened = contextlib.ExitStack()
        try:
            count = manifest.free_count(self.directory, generation) if sync.is_first() else 0
            body: Manifest = {
                "generation": generation,
                "folder": manifest.name(generation, sync.of_first(count)),
                "metadata": dict(metadata),
                "leaves": leaf_specs.specs(state),
            }
            json.dumps(body)  # a value that is not JSON raises here, not in the background
            arrays = leaf_specs.stored(state)
            tempfile.TemporaryFile(dir=self.directory).close()  # orbax's threads would wait for five minutes
            needed, free = sum(array.nbytes for array in arrays.values()), shutil.disk_usage(self.directory).free
            if free < needed:
                raise OSError(f"it needs up to {needed:,} bytes and the disk has {free:,} free")
            writer = _checkpointer()
            path = opened.enter_context(_without_special_characters(self.directory / body["folder"]))
            writer.save(path, leaf_specs.copy(arrays))
            opened.callback(writer.close)  # waits for the commit; before the folder is closed
        except Exception as error:
            opened.close()
            self._remove_incomplete()
            raise self._error(generation, error) from error
        written = {name: array.nbytes for name, array in arrays.items()}
        background = (opened, written, body, retained, next(_saves), host)  # the count is the same in every process
        self._thread = threading.Thread(target=self._finish, args=background, name="rookery-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the save in progress is complete and old checkpoints are deleted.

        Raises:
          CheckpointError: the save failed. Raised once; the next save may succeed.

        Warns:
          CheckpointWarning: what orbax warned of.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        while _warnings_of_orbax:
            warnings.warn(f"orbax warned: {_warnings_of_orbax.popleft()}", CheckpointWarning, stacklevel=2)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self.wait()
        except CheckpointError as failure:
            if error is None:
                raise
            error.add_note(str(failure))  # the error that ended the block takes precedence

    @property
    def empty(self) -> bool:
        """Whether no save was ever completed here; a killed run may have left an incomplete first one."""
        return manifest.none_finished(self.directory)

    def generations(self) -> list[int]:
        """The generations of all checkpoints, ascending; some may be incomplete."""
        return manifest.generations(self.directory)[::-1]

    def is_complete(self, generation: int) -> bool:
        """Whether a generation has a complete checkpoint. Reads every byte of it, once for each `Checkpointer`."""
        try:
            return bool(self._checked(generation))
        except manifest.Damaged:
            return False

    def complete_generations(self) -> list[int]:
        """The generations of all complete checkpoints, ascending."""
        return list(filter(self.is_complete, self.generations()))

    def latest(self) -> int | None:
        """The generation of the newest complete checkpoint, or None."""
        return next(filter(self.is_complete, reversed(self.generations())), None)

    def restore(
        self, template: StateT, generation: int | None = None, partial: bool = False
    ) -> tuple[StateT, dict[str, Any], int]:
        """Restore the newest complete checkpoint, or that of `generation`.

        Args:
          template: a tree with the saved structure, of arrays or `jax.ShapeDtypeStruct`. It determines the containers,
            the shardings, and whether an array is a NumPy array; arrays without sharding or commitment are restored
            uncommitted. Its values are not used, and its arrays may be deleted ones.
          generation: restore only this generation; None for the newest complete checkpoint.
          partial: whether the template may be a part of the saved state; what it leaves out is not read.

        Returns:
          The state, bit-equal to the saved one (weak types become strong), the metadata, and the generation.

        Raises:
          CheckpointError: there is no complete checkpoint, or its structure, shapes or dtypes differ from `template`.

        Warns:
          CheckpointWarning: a newer checkpoint is damaged and was skipped.
        """
        self.wait()
        may_be_training = self._read_only and generation is None and sync.process_count() == 1
        for _ in range(_RESTORE_ATTEMPTS if may_be_training else 0):
            found = manifest.generations(self.directory)
            try:
                return self._restore(template, None, partial)
            except CheckpointError:
                if manifest.generations(self.directory) == found:
                    raise
        return self._restore(template, generation, partial)

    def host_arrays(self, generation: int) -> dict[str, np.ndarray] | None:
        """The arrays of the host that were saved with a generation, None if there are none; a CheckpointError if it is
        damaged."""
        path = self.directory / self._verified(generation)["folder"] / _HOST_FILE
        if not path.exists():
            return None
        with np.load(path, allow_pickle=False) as file:
            return dict(file)

    def _restore(self, template: StateT, generation: int | None, partial: bool) -> tuple[StateT, dict[str, Any], int]:
        body, wanted = self._find(generation), leaf_specs.specs(template)
        saved = body["leaves"]
        found = leaf_specs.numbers(saved, wanted)
        there = [saved[number] for number in found if number is not None] if partial else saved
        if differences := leaf_specs.differences(there, wanted):
            raise CheckpointError(
                f"The checkpoint of generation {body['generation']} in {self.directory} does not fit this run: "
                f"{'; '.join(differences[:3])}{'; ...' if len(differences) > 3 else ''}. "
                "Resume it with the program or configuration, and the version of rookery, that wrote it."
            )
        targets = leaf_specs.restore_targets(template, found)
        read = _read_part if len(there) < len(saved) else _read_all
        try:
            arrays = read(self.directory / body["folder"], targets)
        except Exception as error:  # an older checkpoint would probably be unreadable too, and hide this error
            raise CheckpointError(
                f"The checkpoint of generation {body['generation']} in {self.directory} is complete but could not be "
                f"read: {self._reason(error)}; resume it with the version of orbax-checkpoint that wrote it."
            ) from error
        return leaf_specs.restored(template, saved, found, arrays), body["metadata"], body["generation"]

    def _finish(
        self,
        opened: contextlib.ExitStack,
        written: Mapping[str, int],
        body: Manifest,
        retained: int | None,
        number: int,
        host: Mapping[str, np.ndarray] | None,
    ) -> None:
        """In the background: wait for the commit, read it back, write the manifest, then delete old checkpoints."""
        try:
            opened.close()
            if sync.is_first():
                _read_back(self.directory / body["folder"], written)
                if host is not None:
                    arrays: dict[str, Any] = dict(host)
                    np.savez(self.directory / body["folder"] / _HOST_FILE, **arrays)
                manifest.write(self.directory, body)
                manifest.retire(self.directory, body["generation"], self._keep, retained)
                if self._replaces is not None:
                    shutil.rmtree(self._replaces, ignore_errors=True)
        except Exception as error:
            self._remove_incomplete(body)
            self._failure = self._error(body["generation"], error)
        sync.barrier(f"checkpoint/{number}")  # so that the save completes in all processes together

    def _remove_incomplete(self, body: Manifest | None = None) -> None:
        """Delete the temporary folders of orbax, and the folder of `body` if its manifest is not written."""
        if not sync.is_first():
            return
        for entry in self.directory.glob(f"{CHECKPOINT_PREFIX}*{_ORBAX_TEMPORARY}"):
            shutil.rmtree(entry, ignore_errors=True)
        if body is not None and not manifest.is_written(self.directory, body):
            shutil.rmtree(self.directory / body["folder"], ignore_errors=True)

    def _error(self, generation: int, error: Exception) -> CheckpointError:
        newest = self.latest()
        latest = (
            f"the newest complete one is of generation {newest}"
            if newest is not None
            else "there is no complete one yet"
        )
        return CheckpointError(
            f"Could not write the checkpoint of generation {generation} in {self.directory}: {self._reason(error)}; "
            f"{latest}."
        )

    def _reason(self, error: Exception) -> str:
        """The cause of an error in one short line, since the messages of orbax can be pages long."""
        if system := re.search(r"os_error_code='(\d+)'", str(error)):
            return os.strerror(int(system[1]))
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        text = re.sub(rf"{_OPEN_FOLDERS}/\d+", lambda _: str(self.directory), text)
        return text.splitlines()[0][:300].rstrip(".")

    def _find(self, generation: int | None) -> Manifest:
        """The manifest of the newest complete checkpoint, or of `generation`, as verified by process 0."""
        if not sync.is_first():
            return manifest.read(self.directory, sync.of_first(-1))
        body = self._newest() if generation is None else self._verified(generation)
        sync.of_first(body["generation"])
        return body

    def _newest(self) -> Manifest:
        for candidate in manifest.generations(self.directory):
            try:
                return self._checked(candidate)
            except manifest.Unreadable:
                return self._verified(candidate)  # an error, since training from an older one would delete it
            except manifest.Damaged as damage:
                message = f"The checkpoint of generation {candidate} is damaged and was passed over: {damage}."
                warnings.warn(message, CheckpointWarning, stacklevel=5)
        raise NoneComplete(
            f"There is no complete checkpoint in {self.directory}; put a copy of the folder back, resume the run if it "
            "was stopped before its first one, or restart it with `--overwrite`."
        )

    def _verified(self, generation: int) -> Manifest:
        try:
            return self._checked(generation)
        except manifest.Damaged as damage:
            raise CheckpointError(
                f"The checkpoint of generation {generation} cannot be used: {damage}; "
                f"the complete generations are {self.complete_generations()}."
            ) from damage

    def _checked(self, generation: int) -> Manifest:
        """The manifest of a complete checkpoint, whose files are read and compared only once; raises `Damaged`."""
        if self._intact.get(generation) != manifest.read(self.directory, generation):
            self._intact[generation] = manifest.verified(self.directory, generation)
        return self._intact[generation]


@contextlib.contextmanager
def _without_special_characters(path: Path) -> Iterator[Path]:
    """The path of a folder by the number of its open parent.

    Orbax and TensorStore take `[`, `*`, `?`, `**` and a backslash in a path for patterns, and refuse bytes that are not
    UTF-8. (A system without `/proc` gets the path itself.)
    """
    if not _OPEN_FOLDERS.is_dir():
        yield path
        return
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield _OPEN_FOLDERS / str(parent) / path.name
    finally:
        os.close(parent)


def _checkpointer() -> "StandardCheckpointer":
    """A checkpointer of orbax, whose log is hidden."""
    from orbax.checkpoint import StandardCheckpointer

    _hide_log()
    return StandardCheckpointer()


@functools.cache
def _hide_log() -> None:
    """Hide the log of orbax, whose errors are also raised, and whose warnings are shown by `Checkpointer.wait`, and
    tracebacks of writes that fail beside the first, or report to orbax's event loop after its error ended that."""
    logging.getLogger("absl").addFilter(_is_not_of_orbax)
    logging.getLogger("asyncio").addFilter(lambda record: "orbax" not in record.getMessage())
    show = sys.unraisablehook
    sys.unraisablehook = lambda found: None if str(found.exc_value) == "Event loop is closed" else show(found)


def _read_all(path: Path, targets: Mapping[str, Target]) -> Restored:
    with _checkpointer() as reader, _without_special_characters(path) as plain:
        return reader.restore(plain, targets)


def _read_part(path: Path, targets: Mapping[str, Target]) -> Restored:
    """Read some of the stored arrays, which orbax's `StandardCheckpointer` cannot."""
    from orbax import checkpoint

    return _read_with(path, targets, checkpoint.checkpoint_utils.construct_restore_args(targets))


def _read_back(path: Path, written: Mapping[str, int]) -> None:
    """Read every stored array, name -> bytes, into the memory of the host, in process 0; OSError if one cannot be."""
    from orbax.checkpoint import RestoreArgs

    ends = zip(written, itertools.accumulate(written.values()), strict=True)
    try:
        for _, part in itertools.groupby(ends, key=lambda entry: entry[1] // _READ_BACK):
            names = [name for name, _ in part]
            _read_with(path, dict.fromkeys(names, 0), dict.fromkeys(names, RestoreArgs(restore_type=np.ndarray)))
    except Exception as error:
        raise OSError(f"it could not be read back: {error}") from error


def _read_with(path: Path, targets: Mapping[str, Any], arguments: Mapping[str, Any]) -> Restored:
    """Read some of the stored arrays as `arguments` say."""
    from etils import epath
    from orbax import checkpoint

    _hide_log()
    reader = checkpoint.PyTreeCheckpointHandler()
    try:
        with _without_special_characters(path) as plain:
            return reader.restore(
                epath.Path(plain),
                args=checkpoint.args.PyTreeRestore(targets, restore_args=arguments, partial_restore=True),
            )
    finally:
        reader.close()


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    """Whether a log message is not of orbax, whose warnings are kept for `Checkpointer.wait`."""
    is_of_orbax = "orbax" in record.pathname
    if is_of_orbax and record.levelno == logging.WARNING:  # its errors are raised as well
        _warnings_of_orbax.append(" ".join(record.getMessage().split()))
    return not is_of_orbax
