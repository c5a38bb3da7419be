"""Manifests, which record that checkpoints are complete: written last, and checked first, by `verified`.

A checkpoint is the folder `generation_00000040/` and the manifest `generation_00000040.json`, which stores the size and
the SHA-256 of every file in that folder, and a checksum of itself. A folder without a valid manifest is ignored.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from rookery.storage.leaf_specs import LeafSpec
from rookery.storage.run_dir import CHECKPOINT_PREFIX, remove, sync_directory, write_atomically

FORMAT = 1
# The suffix distinguishes a repeated save of a generation from the first, which it replaces only when it is complete.
_NAME = re.compile(re.escape(CHECKPOINT_PREFIX) + r"(\d{8,})(-\d+)?")


class Manifest(TypedDict):
    """The content of a manifest, apart from its own checksum."""

    generation: int
    folder: str
    """Name of the checkpoint's folder, in the directory of all checkpoints."""
    metadata: dict[str, Any]
    """JSON values of the caller."""
    leaves: list[LeafSpec]
    """In the order of `jax.tree.leaves`."""
    format: NotRequired[int]
    files: NotRequired[dict[str, tuple[int, str]]]
    """Size in bytes and SHA-256 of every file, by its path in the folder."""


class Damaged(Exception):  # noqa: N818 - a finding, not an error
    """A checkpoint is incomplete or damaged; the message names the file and the damage."""


class Unreadable(Damaged):
    """A checkpoint may be sound: a later version of this library has written it, or the user may not read it."""


def generations(directory: Path) -> list[int]:
    """All generations with a manifest or a folder, complete or not, newest first."""
    return sorted(set(_entries(directory).values()), reverse=True)


def none_finished(directory: Path) -> bool:
    """Whether no checkpoint was ever completed: no manifest, and at most the one folder that a killed run can leave.

    Several folders without a manifest indicate damage instead, since each save begins after the previous one is
    complete.
    """
    folders = [entry for entry in _entries(directory) if entry.suffix != ".json"]
    return len(folders) <= 1 and len(folders) == len(_entries(directory))


def free_count(directory: Path, generation: int) -> int:
    """The number of the next save of this generation, counted from 1; see `name`."""
    count = 1
    while (directory / name(generation, count)).exists():
        count += 1
    return count


def name(generation: int, count: int) -> str:
    """The folder name of the save number `count` of a generation."""
    return f"{CHECKPOINT_PREFIX}{generation:08d}" + (f"-{count}" if count > 1 else "")


def write(directory: Path, body: Manifest) -> None:
    """Flush the folder `body["folder"]` in the directory of all checkpoints to disk, then write the manifest of
    `body["generation"]`, to which `format` and `files` are added. Raises OSError."""
    folder = directory / body["folder"]
    files = {
        path.relative_to(folder).as_posix(): _sync_and_hash(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir()), directory]:
        sync_directory(path)
    full: Manifest = {**body, "format": FORMAT, "files": files}
    path = _path(directory, body["generation"])
    if path.is_dir():  # damage, which no file replaces
        remove(path)
    write_atomically(path, json.dumps({"sha256": digest_of(full), "body": full}))


def read(directory: Path, generation: int) -> Manifest:
    """The body of a manifest, whose files are not checked; `Damaged` if it is missing, changed, or of another
    format."""
    path = _path(directory, generation)
    try:
        with _reading(path):
            content = json.loads(path.read_bytes())
        body = content["body"]
        if digest_of(body) != content["sha256"]:
            raise Damaged(f"{path} has changed since it was written")
    except (ValueError, KeyError, TypeError):
        raise Damaged(f"{path} is not a valid manifest") from None
    if body["format"] != FORMAT:
        kind = Unreadable if body["format"] > FORMAT else Damaged
        raise kind(f"{path} has format {body['format']}, but this version of rookery reads format {FORMAT}")
    return body


def verified(directory: Path, generation: int) -> Manifest:
    """The body of a manifest after reading every byte of its files; `Damaged` names the first that is missing or
    changed."""
    body = read(directory, generation)
    for name, (size, digest) in body.get("files", {}).items():
        path = directory / body["folder"] / name
        with _reading(path), open(path, "rb") as file:
            actual = os.fstat(file.fileno()).st_size
            if actual != size:
                raise Damaged(f"{path} has {actual} bytes instead of {size}")
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise Damaged(f"{path} has changed since it was written")
    return body


def retire(directory: Path, generation: int, keep: int, retained: int | None = None) -> None:
    """Delete all checkpoints except the newest `keep` up to `generation` and that of generation `retained`.

    The caller has just written the manifest of `generation`, so at least one complete checkpoint remains. Each manifest
    is deleted before its folder, so that a kill between the two leaves no checkpoint that appears complete.
    """
    kept, recent = set(), 0
    for candidate in generations(directory):
        is_recent = candidate <= generation and recent < keep
        try:
            if is_recent or candidate == retained:
                kept.add(read(directory, candidate)["folder"])
                recent += is_recent
                continue
        except Damaged:
            pass
        remove(_path(directory, candidate))
    for entry in _entries(directory):
        if entry.suffix != ".json" and entry.name not in kept:
            remove(entry)


def is_written(directory: Path, body: Manifest) -> bool:
    """Whether the manifest of its generation names the folder of `body`."""
    try:
        return read(directory, body["generation"])["folder"] == body["folder"]
    except Damaged:
        return False


def _entries(directory: Path) -> dict[Path, int]:
    """The manifests and folders of all checkpoints, complete or not, with their generations."""
    entries = directory.iterdir() if directory.is_dir() else ()
    matches = {entry: _NAME.fullmatch(entry.name.removesuffix(".json")) for entry in entries}
    return {entry: int(match[1]) for entry, match in matches.items() if match}


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Report a file that cannot be read as damage."""
    try:
        yield
    except FileNotFoundError:
        raise Damaged(f"{path} is missing") from None
    except OSError as error:
        kind = Unreadable if isinstance(error, PermissionError) else Damaged
        raise kind(f"{path} cannot be read ({error.strerror})") from error


def _path(directory: Path, generation: int) -> Path:
    return directory / f"{CHECKPOINT_PREFIX}{generation:08d}.json"


def digest_of(content: object) -> str:
    """The digest of JSON values, the same for any order of their keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _sync_and_hash(path: Path) -> tuple[int, str]:
    """The size and digest of a file, after a flush to disk, since older checkpoints may be deleted next."""
    with open(path, "rb+") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return file.tell(), digest
