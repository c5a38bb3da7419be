"""What all trackers send of a generation, and the file in which a tracker records its run for a continuation."""

import contextlib
import importlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from rookery.settings import CALLBACK
from rookery.storage.csv_log import read_csv, read_table
from rookery.storage.lineage import is_hyper
from rookery.storage.record import CHOICES, ISLAND
from rookery.storage.run_dir import RunFolder, write_atomically
from rookery.training.callbacks import Generation, Start

MOST_MEMBERS = 64
"""Largest population whose members have curves of their own; larger ones are summarised by quantiles."""

_QUANTILES = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}


class TrackerError(ValueError):
    """A tracker cannot be used or reached; the message names the remedy.

    Args:
      message: one sentence.
      is_temporary: whether the tracker tries again later, and has lost nothing yet.
    """

    def __init__(self, message: str, is_temporary: bool = False):
        ValueError.__init__(self, message)
        self.is_temporary = is_temporary


def load_package(name: str, extra: str) -> ModuleType:
    """Import a package that a tracker needs; an ImportError names the extra to install."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing = error.name or name
        raise ImportError(f'{missing} is not installed; pip install "rookery[{extra}]"', name=missing) from error


@contextlib.contextmanager
def ended_if_it_fails(end: Callable[[BaseException], None]) -> Iterator[None]:
    """Call the `end` of a tracker if the block, a part of its `begin`, fails."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(Exception):
            end(error)
        raise


def values(generation: Generation) -> dict[str, float]:
    """The values of a generation by name: the row of `metrics.csv`, and every metric of every member.

    The curves of a member are `member/0/fitness`, `member/0/hyper/discount`, and so on. In a population of more than
    `MOST_MEMBERS` they are summarised over the members with finite values: `members/fitness/median`, and `min`, `q25`,
    `q75` and `max`. Of a hyper-parameter whose values are names, the share of the members with each name:
    `members/hyper/activation/relu`. A program without members that persist (MAP-Elites) has none of them. Values that
    are not finite are left out.
    """
    found = dict(generation.metrics)
    if "parent" in generation.members:
        size = len(generation.members["parent"])
        for name, array in generation.members.items():
            if names := generation.choices.get(name.removeprefix("hyper/")):
                found |= {f"members/{name}/{one}": float(np.mean(array == one)) for one in names}
                continue
            numbers = np.asarray(array, np.float64)
            if size <= MOST_MEMBERS:
                found |= {f"member/{member}/{name}": number for member, number in enumerate(numbers.tolist())}
            else:
                found |= _summary(name, numbers)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def recorded(start: Start, first: int) -> Iterator[Generation]:
    """The generations from `first` up to the start of a resumed run, from the tables of its run directory.

    A tracker sends those that it may have lost when the process was killed. Their members have a fitness, a parent,
    hyper-parameters and what `lineage.csv` has besides, but not the other metrics.
    """
    folder = RunFolder(start.run_dir or "")
    if start.run_dir is None or first >= start.finished or not folder.metrics_file.is_file():
        return
    table = read_csv(folder.metrics_file)
    names = start.config.get(CHOICES, {})
    lineage = read_table(folder.lineage_file, names)
    for number in range(first, start.finished):
        places = np.flatnonzero(table["generation"] == number)
        if not len(places):  # its row is lost
            continue
        row = {name: float(column[places[0]]) for name, column in table.items()}
        members = {
            f"hyper/{name}" if is_hyper(name) else name.removeprefix(CALLBACK): column[lineage["generation"] == number]
            for name, column in lineage.items()
            if name not in ("generation", "member")
        }
        members |= {f"hyper/{name}": np.array(one)[members[f"hyper/{name}"].astype(int)] for name, one in names.items()}
        yield Generation(number + 1, start.total, row, members, start.run_dir, names)


def _summary(name: str, array: np.ndarray) -> dict[str, float]:
    finite = array[np.isfinite(array)]
    if name == "parent" or not finite.size:
        return {}
    return {f"members/{name}/{label}": float(np.quantile(finite, at)) for label, at in _QUANTILES.items()}


def name_and_group(start: Start) -> tuple[str | None, str | None]:
    """Name of a tracker's run, and of the group it belongs to: the run directory's, and for an island `hopper/2` in the
    group `hopper`. None for a run without a directory, or without a group."""
    if start.run_dir is None:
        return None, None
    name = as_utf8(start.run_dir.name)
    if ISLAND not in start.config:
        return name, None
    group = as_utf8(start.run_dir.parent.parent.name)
    return f"{group}/{name}", group


def as_utf8(text: str) -> str:
    """A text in which `?` stands for bytes of a path that are no UTF-8, which trackers refuse."""
    return text.encode(errors="replace").decode()


def read_record(run_dir: Path | None, tracker: str) -> dict[str, Any]:
    """What a tracker recorded in a run directory with `write_record`; {} if there is nothing, a TrackerError if it is
    damaged, such as by an editor."""
    path = None if run_dir is None else _file(run_dir, tracker)
    if path is None or not path.is_file():
        return {}
    try:
        record = dict(json.loads(path.read_text(encoding="utf-8-sig")))
        for name, kind in _RECORDS[tracker].items():
            if not isinstance(record.get(name), kind):
                raise ValueError(f"{name} is {record.get(name)!r}")
        return record
    except (ValueError, TypeError) as error:
        raise TrackerError(f"{path} is damaged ({error}); delete it, and {tracker} begins a new run.") from error


_RECORDS = {"wandb": {"project": str, "id": str, "finished": int}, "mlflow": {"uri": str, "run_id": str}}


def write_record(run_dir: Path | None, tracker: str, record: dict[str, Any]) -> None:
    """Record JSON values of a tracker in a run directory; nothing without one."""
    if run_dir is not None:
        write_atomically(_file(run_dir, tracker), json.dumps(record, indent=2) + "\n")


def _file(run_dir: Path, tracker: str) -> Path:
    return run_dir / f"{tracker}.json"
