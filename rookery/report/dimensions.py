"""What a run's folder says of its descriptor: how dimensions are named, where they lie, what an episode's value is."""

import re
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Dimensions(NamedTuple):
    """Of a descriptor of size D."""

    names: list[str]  # D
    kind: str  # "final": a value is that of the last state; "mean": it is the mean over the states reached
    limits: np.ndarray | None  # [2, D], lower and upper; None where the folder does not say


def dimensions(config: Mapping[str, Any], size: int) -> Dimensions:
    """What a run's configuration tells of its descriptor.

    Args:
      config: as it stands in `config.json`; says nothing where its descriptor has another size.
      size: D, as the run's tables have it.
    """
    told = config.get("descriptor")
    told = told if isinstance(told, Mapping) and len(told.get("lower", ())) == size else {}
    limits = np.asarray([told["lower"], told["upper"]], float) if told else None
    return Dimensions(names(told.get("meaning", "descriptor"), size), told.get("kind", "final"), limits)


def names(meaning: str, size: int) -> list[str]:
    """A name for each dimension: "final x, y of the torso" says it itself, else they are numbered."""
    listed = re.search(r"\b\w(?:, \w)+\b", meaning)
    letters = listed[0].split(", ") if listed else []
    if listed and len(letters) == size:
        return [meaning[: listed.start()] + letter + meaning[listed.end() :] for letter in letters]
    return [meaning] if size == 1 else [f"{meaning} ({index + 1} of {size})" for index in range(size)]


def wrapped(name: str, width: int = 34) -> str:
    """A name in lines of so many characters."""
    return "\n".join(textwrap.wrap(name, width))
