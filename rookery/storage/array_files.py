"""Reading of `.npz` array files with a JSON header."""

import json
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
      path: the file.
      version: the supported `format`.
      take: maps the header and the arrays (each loaded on access) to the content; raises ValueError or LookupError if
        something is missing.
      damaged: the message for a damaged file or one of another version, with the placeholders `path` and `error`.

    Returns:
      The result of `take`.

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
