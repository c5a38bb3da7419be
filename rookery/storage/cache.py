"""The cache folder: compiled programs, and arrays that take long to compute."""

import contextlib
import hashlib
import math
import os
from pathlib import Path

import numpy as np

_DIGEST_SIZE = hashlib.sha256().digest_size


def cache_folder() -> Path:
    """The cache folder of rookery, whose files can all be computed again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rookery"


def read(name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Read an array `shape` of float32; None if its file is missing or damaged."""
    try:
        content = (cache_folder() / name).read_bytes()
    except OSError:
        return None
    digest, body = content[:_DIGEST_SIZE], content[_DIGEST_SIZE:]
    if hashlib.sha256(body).digest() != digest or len(body) != 4 * math.prod(shape):
        return None
    return np.frombuffer(body, "<f4").reshape(shape)


def write(name: str, array: np.ndarray) -> None:
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
