"""Which checkpoints are whole: the manifest beside each one, written last and checked first.

A checkpoint is the folder `generation_00000040/` and the manifest `generation_00000040.json`, which holds the size and
the SHA-256 of every file of that folder, and its own. Without a manifest that holds, the folder counts for nothing.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rookery.storage.run_dir import CHECKPOINT_PREFIX, sync_directory, write_atomically

FORMAT = 1
# The suffix tells a second save of one generation from the first, which it replaces only when it is whole.
_NAME = re.compile(re.escape(CHECKPOINT_PREFIX) + r"(\d{8,})(-\d+)?")


class Damaged(Exception):  # noqa: N818 - a finding, not an error
    """Why a checkpoint is not whole: the file and what is wrong with it."""


def generations(directory: Path) -> list[int]:
    """Every generation that a manifest or a folder names, whole or not, newest first."""
    entries = directory.iterdir() if directory.is_dir() else ()
    matches = (_NAME.fullmatch(entry.name.removesuffix(".json")) for entry in entries)
    return sorted({int(match[1]) for match in matches if match}, reverse=True)


def none_finished(directory: Path) -> bool:
    """Whether there never was a whole checkpoint: no manifest, and at most the one folder that a kill can leave.

    Several folders without any manifest are damage instead, since each save begins after the one before is whole.
    """
    names = [entry.name for entry in directory.iterdir()] if directory.is_dir() else []
    folders = [name for name in names if _NAME.fullmatch(name)]
    return len(folders) <= 1 and not any(
        _NAME.fullmatch(name.removesuffix(".json")) for name in names if name not in folders
    )


def free_count(directory: Path, generation: int) -> int:
    """Which save of this generation a new one is, counted from 1; see `name`."""
    count = 1
    while (directory / name(generation, count)).exists():
        count += 1
    return count


def name(generation: int, count: int) -> str:
    """The name of the folder of the save `count` of a generation."""
    return f"{CHECKPOINT_PREFIX}{generation:08d}" + (f"-{count}" if count > 1 else "")


def write(directory: Path, body: Mapping[str, Any]) -> None:
    """Vouch for the folder `body["folder"]` of `body["generation"]`, once all of it has reached the disk.

    Args:
      directory: that of all checkpoints.
      body: JSON values; `files` is added.

    Raises:
      OSError: a file cannot be read or written.
    """
    folder = directory / body["folder"]
    files = {path.relative_to(folder).as_posix(): _seal(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir()), directory]:
        sync_directory(path)
    whole = {**body, "format": FORMAT, "files": files}
    write_atomically(_path(directory, body["generation"]), json.dumps({"sha256": _text_digest(whole), "body": whole}))


def read(directory: Path, generation: int) -> dict[str, Any]:
    """The body of a manifest, whose own checksum holds; the files are not looked at.

    Raises:
      Damaged: it is missing, changed, or of another format.
    """
    path = _path(directory, generation)
    try:
        content = json.loads(path.read_bytes())
        body = content["body"]
        if _text_digest(body) != content["sha256"]:
            raise Damaged(f"{path} has changed since it was written")
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError):
        raise Damaged(f"{path} is no manifest any more") from None
    if body["format"] != FORMAT:
        raise Damaged(f"{path} has format {body['format']}, but this rookery reads format {FORMAT}")
    return body


def verified(directory: Path, generation: int) -> dict[str, Any]:
    """The body of a manifest whose files are all as they were written; reads every byte of them.

    Raises:
      Damaged: the first thing found wrong.
    """
    body = read(directory, generation)
    for name, (size, digest) in body["files"].items():
        path = directory / body["folder"] / name
        try:
            actual = path.stat().st_size
            if actual != size:
                raise Damaged(f"{path} has {actual} bytes instead of {size}")
            with open(path, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    raise Damaged(f"{path} has changed since it was written")
        except FileNotFoundError:
            raise Damaged(f"{path} is missing") from None
        except OSError as error:
            raise Damaged(f"{path} cannot be read ({error.strerror})") from error
    return body


def is_whole(directory: Path, generation: int) -> bool:
    """Whether `verified` finds nothing wrong."""
    try:
        return bool(verified(directory, generation))
    except Damaged:
        return False


def retire(directory: Path, generation: int, keep: int, spared: int | None = None) -> None:
    """Delete all checkpoints but the newest `keep` up to `generation`, and that of generation `spared`.

    The caller has just written the manifest of `generation`, so a whole one always stays. A manifest goes before what
    it vouches for: a kill between the two leaves nothing that looks whole.
    """
    kept, recent = set(), 0
    for candidate in generations(directory):
        is_recent = candidate <= generation and recent < keep
        try:
            if is_recent or candidate == spared:
                kept.add(read(directory, candidate)["folder"])
                recent += is_recent
                continue
        except Damaged:
            pass
        _path(directory, candidate).unlink(missing_ok=True)
    for entry in list(directory.iterdir()):
        if entry.is_dir() and _NAME.fullmatch(entry.name) and entry.name not in kept:
            shutil.rmtree(entry)


def vouched(directory: Path, folder: str) -> bool:
    """Whether a manifest names this folder."""
    match = _NAME.fullmatch(folder)
    try:
        return match is not None and read(directory, int(match[1]))["folder"] == folder
    except Damaged:
        return False


def _path(directory: Path, generation: int) -> Path:
    return directory / f"{CHECKPOINT_PREFIX}{generation:08d}.json"


def _text_digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _seal(path: Path) -> tuple[int, str]:
    """Size and digest of a file, which is brought to the disk: its older neighbours may be deleted after this."""
    with open(path, "rb+") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return file.tell(), digest
