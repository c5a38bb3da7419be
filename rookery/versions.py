"""Which versions of Python and of packages are at work."""

import importlib.metadata
import platform
from collections.abc import Iterable


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Package -> version, and that of `python`."""
    return {name: version(name) for name in packages} | {"python": platform.python_version()}


def version(package: str) -> str:
    """Of an installed package; "unknown" where it runs from a source tree."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
