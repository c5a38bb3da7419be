"""Settings as rows, to be compared and told one by one."""

from collections.abc import Mapping
from typing import Any


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as `run.generations`; a mapping without entries vanishes."""
    rows: dict[str, Any] = {}
    for name, value in tree.items():
        rows |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return rows
