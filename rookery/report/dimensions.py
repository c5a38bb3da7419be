"""Names, limits and kind of a run's descriptor, from its configuration."""

import re
import textwrap
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rookery.report.formatting import Settings


class Dimensions(NamedTuple):
    """The dimensions of a descriptor of size D."""

    names: list[str]  # `[D]`
    kind: str  # either "final", the value of the last state, or "mean", the mean over the states of the episode
    limits: np.ndarray | None  # `[2, D]`, lower and upper; None where the configuration does not record them


def dimensions(config: Settings, size: int) -> Dimensions:
    """The dimensions of a descriptor of D = `size`, with default names and without limits where a run's `config.json`
    records none of this size."""
    recorded = config.get("descriptor")
    recorded = recorded if isinstance(recorded, Mapping) and len(recorded.get("lower", ())) == size else {}
    limits = np.asarray([recorded["lower"], recorded["upper"]], float) if recorded else None
    named = recorded.get("names") or names(recorded.get("meaning", "descriptor"), size)
    return Dimensions(list(named), recorded.get("kind", "final"), limits)


def names(meaning: str, size: int) -> list[str]:
    """A name per dimension: taken from letters in the meaning, as in "final x, y of the torso", else numbered."""
    listed = re.search(r"\b\w(?:, \w)+\b", meaning)
    letters = listed[0].split(", ") if listed else []
    if listed and len(letters) == size:
        return [meaning[: listed.start()] + letter + meaning[listed.end() :] for letter in letters]
    return [meaning] if size == 1 else [f"{meaning} ({index + 1} of {size})" for index in range(size)]


def wrapped(name: str, width: int = 34) -> str:
    """Wrap a name to lines of at most `width` characters."""
    return "\n".join(textwrap.wrap(name, width))
