"""Files of arrays with a header of JSON, `.npz`: how they are read, and how damage is told."""

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
      path: of the file.
      version: the `format` that is understood.
      take: header and arrays, each read when it is asked for -> what is wanted; raises ValueError or LookupError where
        it is not there.
      damaged: what to say of a damaged file, or one of another version, with places for `path` and `error`.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is damaged, or of another version.
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
