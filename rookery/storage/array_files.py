"""Arrays in files: `.npz` files with a JSON header, and the cache of arrays that take long to compute."""

import contextlib
import hashlib
import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

Content = TypeVar("Content")


def read(
    path: Path, version: int, take: Callable[[dict[str, Any], Mapping[str, np.ndarray]], Content], damaged: str
) -> Content:
    """Read a file whose `header` has a `format`.

    Args:
      version: the supported `format`.
      take: maps the header and the arrays (each loaded on access) to the content; raises ValueError or LookupError if
        something is missing.
      damaged: the message for a damaged file or one of another version, with the placeholders `path` and `error`.

    Raises:
      OSError: the file cannot be read.
      ValueError: the file is damaged, or has another format version.
    """
    try:
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            header = json.loads(str(file["header"]))
            if header["format"] != version:
                raise ValueError(f"format {header['format']}")
            return take(header, file)
    except (ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(damaged.format(path=path, error=error)) from error


_DIGEST_SIZE = hashlib.sha256().digest_size


def cache_folder() -> Path:
    """The cache folder of rookery, whose files can all be computed again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rookery"


def read_cached(name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Read an array `shape` of float32; None if its file is missing or damaged."""
    try:
        content = (cache_folder() / name).read_bytes()
    except OSError:
        return None
    digest, body = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
    if hashlib.sha256(body).digest() != digest or len(body) != 4 * math.prod(shape):
        return None
    return np.frombuffer(body, "<f4").reshape(shape)


def write_cached(name: str, array: np.ndarray) -> None:
    """Write a float32 array atomically, after the SHA-256 of its bytes; a folder that cannot be written is no error."""
    path, body = cache_folder() / name, array.astype("<f4").tobytes()
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(hashlib.sha256(body).digest() + body)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
