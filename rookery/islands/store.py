"""The store of publications: a folder of files that are written once, from which islands read each other's genotypes.

A file is a line with a checksum, a line with a JSON header, and the bytes of the arrays. Nothing in it is executed, and
its name is made of numbers only. It is written to a temporary name, then renamed, so that a reader never sees half of
it, unless the file system lost the rest, which the checksum detects.
"""

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from rookery.storage.run_dir import TEMPORARY, write_atomically

FORMAT = 1
_FIRST_LINE = f"rookery publication {FORMAT} "
_LONGEST_HEADER = 2**22  # bytes
_NAME = re.compile(r"(\d{4,9})-(\d{9,12})-([0-9a-f]{16})\.pub")
_TYPES = {
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64"),
}


class StoreError(Exception):
    """A publication cannot be written or used; the message is one sentence."""


class Header(NamedTuple):
    """What a publication says about its genotypes."""

    island: int
    """Number of the island that published them."""
    generation: int
    """Number of generations that the island had finished."""
    experience: int
    """Environment steps of one member of the island."""
    fitness: float
    """The highest fitness of the genotypes."""
    hyper: Mapping[str, float]
    """Name -> hyper-parameter of the genotype with that fitness; {} without hyper-parameters."""
    member: int | None = None
    """Slot of the member that was published; None for elites."""


class Publication(NamedTuple):
    """Genotypes that an island published."""

    header: Header
    arrays: Mapping[str, np.ndarray]  # name -> array; leaves of genotypes are `[E, ...]` for E genotypes


class Store:
    """A folder of publications, which any number of processes may read and write.

    Args:
      folder: created when the first publication is written.
      read_only: write nothing; `publish` only compares.
    """

    def __init__(self, folder: Path, read_only: bool = False):
        self.folder, self._read_only = folder, read_only

    def check(self) -> None:
        """Raise a StoreError if the folder cannot be written to, or its file system does not rename files."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for pattern in (".*.pub-*", f"*{TEMPORARY}"):  # of an island that was killed while it wrote
                for left in self.folder.glob(pattern):
                    left.unlink(missing_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".check-") as found:
                first, second = Path(found, "first"), Path(found, "second")
                first.write_bytes(b"1")
                second.write_bytes(b"2")
                os.replace(first, second)
                if first.exists() or second.read_bytes() != b"1":
                    raise OSError("it does not replace a file by renaming another")
        except OSError as error:
            raise StoreError(
                f"{self.folder} cannot be used by islands ({error.strerror or error}); give a --run-dir on a file "
                "system that is writable and renames files atomically."
            ) from error

    def publish(self, publication: Publication) -> str:
        """Write a publication, unless the island has published this generation already.

        Returns:
          The name of its file.

        Raises:
          StoreError: it cannot be written, or the island has published other content for this generation.
        """
        content = encode(publication)
        header = publication.header
        digest = content[len(_FIRST_LINE) : len(_FIRST_LINE) + 16].decode()
        name = f"{header.island:04}-{header.generation:09}-{digest}.pub"
        earlier = self._names(f"{header.island:04}-{header.generation:09}-")
        if earlier and earlier != [name]:
            raise StoreError(
                f"island {header.island} has published generation {header.generation} with other content before, and "
                "the first one stays; two islands have the same number, it began anew since its folder was removed, or "
                "it was resumed on other devices without --exact."
            )
        if not earlier and not self._read_only:
            self._write(name, content)
        return name

    def newest(self, island: int, experience: int) -> tuple[dict[str, Header], list[str]]:
        """The newest publication of every other island that has at most this experience of the reader.

        Returns:
          Name -> header, in the order of the islands; and a sentence for each file that was passed over because its
          header is damaged.
        """
        by_island: dict[int, list[str]] = {}
        for name in self._names():
            number = int(name.partition("-")[0])
            if number != island:
                by_island.setdefault(number, []).append(name)
        found, notes = {}, []
        for _, names in sorted(by_island.items()):
            for name in reversed(names):
                try:
                    header = self.header(name)
                except StoreError as error:
                    notes.append(str(error))
                    continue
                if header.experience <= experience:
                    found[name] = header
                    break
        return found, notes

    def header(self, name: str) -> Header:
        """The header of a publication, whose checksum is not verified; a StoreError if it is missing or damaged."""
        try:
            with open(self._path(name), "rb") as file:
                file.readline(len(_FIRST_LINE) + 65)
                header = json.loads(file.readline(_LONGEST_HEADER))["header"]
            return _header(header, name)
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            raise _damaged(name, error) from error

    def read(self, name: str) -> Publication:
        """A publication, whose checksum is verified; a StoreError if the file is missing or damaged."""
        try:
            return decode(self._path(name).read_bytes(), name)
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            raise _damaged(name, error) from error

    def size(self, name: str) -> int:
        """The bytes of a publication."""
        return self._path(name).stat().st_size

    def _names(self, prefix: str = "") -> list[str]:
        """The names of publications that begin with `prefix`, ascending: by island, then by generation."""
        try:
            with os.scandir(self.folder) as entries:  # which knows links without a request for each file
                return sorted(
                    entry.name
                    for entry in entries
                    if entry.name.startswith(prefix) and _NAME.fullmatch(entry.name) and not entry.is_symlink()
                )
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _path(self, name: str) -> Path:
        path = self.folder / name
        if not _NAME.fullmatch(name) or path.is_symlink():
            raise ValueError("its name is not that of a publication")
        return path

    def _write(self, name: str, content: bytes) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / name, content)
        except OSError as error:
            raise StoreError(
                f"{self.folder} cannot be written to ({error.strerror or error}), so this island publishes nothing at "
                "present; it goes on training, and tries again at the next exchange."
            ) from error


def encode(publication: Publication) -> bytes:
    """The bytes of a publication; a ValueError if an array is not of numbers, or the fitness is not finite."""
    header = publication.header._asdict()
    arrays = {name: np.ascontiguousarray(array) for name, array in publication.arrays.items()}
    for name, array in arrays.items():
        if str(array.dtype) not in _TYPES:
            raise ValueError(f"{name} has the type {array.dtype}, which is not published.")
    leaves = [{"name": name, "shape": array.shape, "dtype": str(array.dtype)} for name, array in arrays.items()]
    text = json.dumps({"header": header, "leaves": leaves}, allow_nan=False)
    body = text.encode() + b"\n" + b"".join(array.tobytes() for array in arrays.values())
    return f"{_FIRST_LINE}{hashlib.sha256(body).hexdigest()}\n".encode() + body


def decode(content: bytes, name: str) -> Publication:
    """The publication in the bytes of a file, with read-only arrays. Damage, or another name than that of the file, is
    a ValueError, LookupError or TypeError."""
    first, _, body = content.partition(b"\n")
    if not first.startswith(_FIRST_LINE.encode()):
        raise ValueError("it does not begin like one")
    if first != f"{_FIRST_LINE}{hashlib.sha256(body).hexdigest()}".encode():
        raise ValueError("its checksum does not match")
    text, _, data = body.partition(b"\n")
    description = json.loads(text)
    arrays, start = {}, 0
    for leaf in description["leaves"]:
        if leaf["dtype"] not in _TYPES:
            raise ValueError(f"an array has the type {leaf['dtype']!r}")
        dtype, shape = np.dtype(jnp.dtype(leaf["dtype"])), tuple(int(size) for size in leaf["shape"])
        count = math.prod(shape)
        arrays[str(leaf["name"])] = np.frombuffer(data, dtype, count, start).reshape(shape)
        start += count * dtype.itemsize
    if start != len(data):
        raise ValueError("its arrays have another size")
    if first.decode().removeprefix(_FIRST_LINE)[:16] != name.removesuffix(".pub").rpartition("-")[2]:
        raise ValueError("its checksum is not that of its name")
    return Publication(_header(description["header"], name), arrays)


def _header(values: Mapping[str, Any], name: str) -> Header:
    hyper = {str(key): float(value) for key, value in values["hyper"].items()}
    island, generation, experience = (int(values[key]) for key in ("island", "generation", "experience"))
    member = None if values["member"] is None else int(values["member"])
    header = Header(island, generation, experience, float(values["fitness"]), hyper, member)
    if name.split("-")[:2] != [f"{header.island:04}", f"{header.generation:09}"]:
        raise ValueError("its numbers are not those of its name")
    return header


def _damaged(name: str, error: Exception) -> StoreError:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return StoreError(f"the publication {name} was left out: {reason.splitlines()[0].rstrip('.')}.")
