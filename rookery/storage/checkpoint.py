"""Checkpoints of a run: written in the background, used only if whole. The only file that imports orbax.

Orbax stores the arrays; `manifest.py` says which checkpoints are whole. The leaves' paths, shapes and dtypes stand in
the manifest and are compared before a restore, since orbax casts a wrong dtype without a word.
"""

import functools
import itertools
import json
import logging
import os
import re
import shutil
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from rookery.distributed import sync
from rookery.storage import leaf_specs, manifest
from rookery.storage.run_dir import CHECKPOINT_PREFIX
from rookery.types import PyTree

_ORBAX_TEMPORARY = ".orbax-checkpoint-tmp"
_RETIRED_TIMES = 10  # that what is being read may be deleted for a newer one, by a run that goes on
_saves = itertools.count()


class CheckpointError(OSError):
    """A checkpoint cannot be written, found, or read into this run; the message is one sentence with the remedy."""


class CheckpointWarning(UserWarning):
    """A checkpoint was passed over; names the file and what is wrong with it."""


class Checkpointer:
    """Saves and restores the state of a run; one writer per folder, which holds the run's lock.

    Use it as a context manager, or `close` it: an interpreter that exits while a save is under way loses the save.
    Every process of a run makes one and calls `save` and `restore` alike, with the same global arrays; process 0 says
    which folder it is, writes the manifest, and verifies. All of them see the same directory.

    Args:
      directory: made if it does not exist. What killed runs left half written is removed.
      keep: how many whole checkpoints stay, at least 1.
      read_only: touch nothing; `save` is refused.
      replaces: a folder that is deleted as soon as a new checkpoint is whole.

    Raises:
      ValueError: `keep` is less than 1.
    """

    def __init__(
        self, directory: str | os.PathLike[str], keep: int = 1, read_only: bool = False, replaces: Path | None = None
    ):
        if keep < 1:
            raise ValueError(f"keep is {keep}, but at least 1 checkpoint must stay; give 1 or more.")
        self.directory = Path(directory).absolute()
        self._keep = keep
        self._read_only = read_only
        self._replaces = replaces
        self._thread: threading.Thread | None = None
        self._failure: CheckpointError | None = None
        if not read_only:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_half()

    def save(self, generation: int, state: PyTree, metadata: Mapping[str, Any], spared: int | None = None) -> None:
        """Save in the background; the arrays of `state` may be donated as soon as this returns.

        A save that is still under way is waited for. When the new checkpoint is whole, those beyond `keep` are
        deleted, and also those of later generations: they are a future that this run has not had.

        Args:
          generation: 0 or more; replaces an earlier checkpoint of the same generation, once it is whole itself.
          state: leaves are arrays of any dtype and size, typed keys, Python bools, ints and floats; and None.
          metadata: JSON values.
          spared: a generation whose checkpoint stays, however old it is.

        Raises:
          CheckpointError: this save cannot begin (a leaf that cannot be stored, too little space), or the one before
            failed; then nothing was begun.
          ValueError: `generation` is negative.
        """
        if generation < 0:
            raise ValueError(f"The generation is {generation}; a checkpoint's is 0 or more.")
        if self._read_only:
            raise CheckpointError(f"{self.directory} was opened for reading; open it without read_only to save.")
        self.wait()
        try:
            named = leaf_specs.flatten(state)
            count = manifest.free_count(self.directory, generation) if sync.is_first() else 0
            body = {
                "generation": generation,
                "folder": manifest.name(generation, sync.of_first(count)),
                "metadata": dict(metadata),
                "leaves": [leaf_specs.record(path, leaf) for path, leaf in named],
            }
            json.dumps(body)  # a value that is no JSON raises here, not in the background
            arrays = {str(i): leaf for i, (_, leaf) in enumerate(named) if leaf_specs.is_stored(leaf)}
            self._check_space(sum(array.nbytes for array in arrays.values()))
            writer = _orbax().StandardCheckpointer()
            writer.save(self.directory / body["folder"], leaf_specs.copy(arrays))
        except Exception as error:
            self._remove_half()
            raise self._error(generation, error) from error
        background = (writer, body, spared, next(_saves))  # every process counts them alike
        self._thread = threading.Thread(target=self._finish, args=background, name="rookery-checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Wait until the running save is whole and old checkpoints are deleted.

        Raises:
          CheckpointError: it failed. Raised once; the next save may succeed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def close(self) -> None:
        """The same as `wait`; the checkpointer stays usable."""
        self.wait()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self.close()
        except CheckpointError as failure:
            if error is None:
                raise
            error.add_note(str(failure))  # what ended the block matters more

    @property
    def empty(self) -> bool:
        """Whether no save was ever finished here, though a kill may have left the first one half done."""
        return manifest.none_finished(self.directory)

    def whole_generations(self) -> list[int]:
        """The generations of all whole checkpoints, ascending. Reads every byte of them."""
        found = reversed(manifest.generations(self.directory))
        return [generation for generation in found if manifest.is_whole(self.directory, generation)]

    def latest(self) -> int | None:
        """The generation of the newest whole checkpoint, or None."""
        found = manifest.generations(self.directory)
        return next((generation for generation in found if manifest.is_whole(self.directory, generation)), None)

    def restore(self, template: PyTree, generation: int | None = None) -> tuple[PyTree, dict[str, Any], int]:
        """Read the newest whole checkpoint, or that of `generation`.

        Args:
          template: a tree as it was saved, of arrays or `jax.ShapeDtypeStruct`. Gives containers, shardings, and
            whether an array is NumPy's; arrays without sharding or commitment come back uncommitted. Its values are
            not used and its arrays may be deleted ones.
          generation: take this one or none.

        Returns:
          The state, bit-equal to what was saved (a weak type comes back as a strong one), the metadata, the generation.

        Raises:
          CheckpointError: there is no whole checkpoint, or it holds another structure, shape or dtype than `template`.

        Warns:
          CheckpointWarning: a newer checkpoint is damaged and was passed over.
        """
        self.wait()
        beside_a_run = self._read_only and generation is None and sync.runtime().num_processes == 1
        for _ in range(_RETIRED_TIMES if beside_a_run else 0):
            there = manifest.generations(self.directory)
            try:
                return self._restore(template, None)
            except CheckpointError:
                if manifest.generations(self.directory) == there:
                    raise
        return self._restore(template, generation)

    def _restore(self, template: PyTree, generation: int | None) -> tuple[PyTree, dict[str, Any], int]:
        body = self._find(generation)
        named = leaf_specs.flatten(template)
        records = [leaf_specs.record(path, leaf) for path, leaf in named]
        if differences := leaf_specs.differences(body["leaves"], records):
            raise CheckpointError(
                f"The checkpoint of generation {body['generation']} in {self.directory} does not fit this run: "
                f"{'; '.join(differences[:3])}{'; ...' if len(differences) > 3 else ''}. "
                "Resume it with the configuration and the version of rookery that wrote it."
            )
        targets = {str(i): leaf_specs.target(leaf) for i, (_, leaf) in enumerate(named) if leaf_specs.is_stored(leaf)}
        arrays = self._read(body, targets)
        values = [
            leaf_specs.revive(leaf, record, arrays.get(str(i)))
            for i, ((_, leaf), record) in enumerate(zip(named, body["leaves"], strict=True))
        ]
        return jax.tree.unflatten(jax.tree.structure(template), values), body["metadata"], body["generation"]

    def _read(self, body: Mapping[str, Any], targets: Mapping[str, Any]) -> dict[str, Any]:
        try:
            with _orbax().StandardCheckpointer() as reader:
                return reader.restore(self.directory / body["folder"], targets)
        except Exception as error:  # whole, but unreadable: an older one would fare no better and hide this
            raise CheckpointError(
                f"The checkpoint of generation {body['generation']} in {self.directory} is whole but could not be "
                f"read: {_reason(error)}; resume it with the version of orbax-checkpoint that wrote it."
            ) from error

    def _finish(self, writer: Any, body: dict[str, Any], spared: int | None, number: int) -> None:
        """In the background: wait for the commit, then write the manifest, then delete what is too old."""
        try:
            writer.close()
            if sync.is_first():
                manifest.write(self.directory, body)
                manifest.retire(self.directory, body["generation"], self._keep, spared)
                if self._replaces is not None:
                    shutil.rmtree(self._replaces, ignore_errors=True)
        except Exception as error:
            self._remove_half(body["folder"])
            self._failure = self._error(body["generation"], error)
        sync.meet(f"checkpoint/{number}")  # for all it is whole at the same moment

    def _remove_half(self, folder: str | None = None) -> None:
        """Delete what orbax left unfinished, and `folder` if no manifest vouches for it."""
        if not sync.is_first():
            return
        for entry in self.directory.glob(f"{CHECKPOINT_PREFIX}*{_ORBAX_TEMPORARY}"):
            shutil.rmtree(entry, ignore_errors=True)
        if folder is not None and not manifest.vouched(self.directory, folder):
            shutil.rmtree(self.directory / folder, ignore_errors=True)

    def _check_space(self, needed: int) -> None:
        free = shutil.disk_usage(self.directory).free
        if free < needed:
            raise OSError(f"it needs up to {needed:,} bytes and the disk has {free:,} free")

    def _error(self, generation: int, error: Exception) -> CheckpointError:
        newest = self.latest()
        whole = f"the newest whole one is of generation {newest}" if newest is not None else "there is no whole one yet"
        return CheckpointError(
            f"Could not write the checkpoint of generation {generation} in {self.directory}: {_reason(error)}; {whole}."
        )

    def _find(self, generation: int | None) -> dict[str, Any]:
        """The manifest of the newest whole checkpoint, or of the one asked for: the one that process 0 verified."""
        body = self._verified(generation) if sync.is_first() else {"generation": -1}
        chosen = sync.of_first(body["generation"])
        return body if sync.is_first() else manifest.read(self.directory, chosen)

    def _verified(self, generation: int | None) -> dict[str, Any]:
        if generation is not None:
            return self._find_only(generation)
        for candidate in manifest.generations(self.directory):
            try:
                return manifest.verified(self.directory, candidate)
            except manifest.Damaged as damage:
                message = f"The checkpoint of generation {candidate} is damaged and was passed over: {damage}."
                warnings.warn(message, CheckpointWarning, stacklevel=5)
        raise CheckpointError(
            f"There is no whole checkpoint in {self.directory}; resume the run, start it anew with `--overwrite`, "
            "or put a copy of the folder back."
        )

    def _find_only(self, generation: int) -> dict[str, Any]:
        try:
            return manifest.verified(self.directory, generation)
        except manifest.Damaged as damage:
            raise CheckpointError(
                f"The checkpoint of generation {generation} cannot be used: {damage}; "
                f"whole are the generations {self.whole_generations()}."
            ) from damage


@functools.cache
def _orbax() -> Any:
    """Import orbax late, and keep its log off the terminal: what it says there is also raised."""
    import orbax.checkpoint

    logging.getLogger("absl").addFilter(lambda record: "orbax" not in record.pathname)
    return orbax.checkpoint


def _reason(error: Exception) -> str:
    """One clause from what may be pages."""
    if system := re.search(r"os_error_code='(\d+)'", str(error)):
        return os.strerror(int(system[1]))
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.splitlines()[0][:300].rstrip(".")
