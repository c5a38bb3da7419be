"""What `config.json` says of a run: a config as plain values, and back."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

from rookery.experiments.kinds import KINDS, AnyRun, as_flags, choices, kind_of

SCHEDULE = "schedule"
"""Where `config.json` keeps the schedule that a run replays, so that the folder is complete in itself."""

PYTHON = "python"
"""The kind that `config.json` names for a run whose program the command line cannot rebuild."""

DESCRIPTOR = "descriptor"
"""Where `config.json` keeps what the descriptor means and where it lies, for whoever draws the repertoire."""

INDEPENDENT = "independent"
"""Where `config.json` says that each member of a run is a run by itself: none replaces another, and all are configured
alike. It is absent from runs that were recorded before there was such an entry."""

_OF_THE_PROGRAM = (SCHEDULE, DESCRIPTOR, INDEPENDENT)  # no settings


def are_independent(record: Mapping[str, Any]) -> bool:
    """Whether each member of a run is a run by itself, with a score and environment steps of its own.

    Members whose hyper-parameters are drawn (`--draw-hyper`) are not: the best of them is what random search returns.

    Args:
      record: what `config.json` says of the run.
    """
    return bool(record.get(INDEPENDENT, record.get("draw_hyper") is False))


def to_record(config: AnyRun) -> dict[str, Any]:
    """A config as JSON values."""
    space = {"space": choices(config)} if hasattr(config, "space") else {}
    return {"kind": kind_of(config), **dataclasses.asdict(config), **space}


def from_record(record: Mapping[str, Any]) -> AnyRun:
    """A config from what `to_record` gave, after a round trip through JSON.

    Raises:
      ValueError: the kind or a field is unknown here, or a field without a default is missing: another version wrote
        it; or the run was started from Python.
    """
    values = {name: value for name, value in record.items() if name not in _OF_THE_PROGRAM}
    kind = values.pop("kind", None)
    if kind == PYTHON:
        raise ValueError("this run was started from Python; continue it there: run(program, run_dir=..., resume=True).")
    if kind not in KINDS:
        raise ValueError(f"this version knows no run of kind {kind!r}; it knows {', '.join(KINDS)}.")
    revived = _revive(KINDS[kind], values, kind)
    return dataclasses.replace(revived, space=as_flags(revived.space)) if hasattr(revived, "space") else revived


def _revive(cls: type, values: Mapping[str, Any], where: str) -> Any:
    fields = dataclasses.fields(cls)
    names = {entry.name for entry in fields}
    needed = {entry.name for entry in fields if entry.default is MISSING and entry.default_factory is MISSING}
    strange = sorted((set(values) - names) | (needed - set(values)))
    if strange:
        raise ValueError(
            f"config.json was written by an incompatible version of rookery: {where} differs in {', '.join(strange)}; "
            "use the version that wrote it (it stands in config.json)."
        )
    types = typing.get_type_hints(cls)
    # A field that came after the run was recorded takes its default, which is what the run was made with.
    return cls(**{name: _revive_value(types[name], value, name) for name, value in values.items()})


def _revive_value(hint: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _revive(typing.cast(type, hint), value, name)
    return tuple(value) if isinstance(value, list) else value
