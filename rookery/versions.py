"""Versions of Python and of installed packages."""

import importlib.metadata
import platform
from collections.abc import Iterable


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the version of each package, and of `python`."""
    return {name: version(name) for name in packages} | {"python": platform.python_version()}


def version(package: str) -> str:
    """Return the version of an installed package, or "unknown" if it runs from a source tree."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
