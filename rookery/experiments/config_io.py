"""Converts a config to the plain values stored in a run's `config.json`, and back."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

from rookery.experiments.config import DevicesConfig
from rookery.experiments.kinds import KINDS, as_flags, choices, with_space
from rookery.experiments.settings import ProgramRun, RecordedRun
from rookery.hyperparams import Space
from rookery.storage.island_files import ISLAND
from rookery.storage.record import DEFAULTS, DESCRIPTOR, INDEPENDENT, KEYS, PROGRAM, PYTHON, SCHEDULE
from rookery.training.config import RunConfig
from rookery.trees import flatten_mapping

_PROGRAM_KEYS = (SCHEDULE, DESCRIPTOR, INDEPENDENT, KEYS, DEFAULTS, ISLAND)  # not fields of the config


def to_record(config: RecordedRun) -> dict[str, Any]:
    """Convert a config to JSON values."""
    space = {} if isinstance(config, ProgramRun) or not config.trains_agents else {"space": choices(config)}
    return {"kind": config.kind, **dataclasses.asdict(config), **space}


def run_record(config: RecordedRun, space: Space | None = None) -> dict[str, Any]:
    """The entries of `config.json` of a run: its config, and the defaults from which that differs.

    Args:
      config: of the run.
      space: its search space, which is recorded in full, so that later versions may change the defaults.
    """
    record = to_record(with_space(config, space))
    kind = KINDS.get(config.kind)
    if kind is None:
        return record
    usual, chosen = (flatten_mapping(part) for part in (to_record(kind()), to_record(config) | {"space": {}}))
    differs = {name: usual.get(name) for name, value in chosen.items() if value != usual.get(name)}
    return {**record, DEFAULTS: differs}


def from_record(record: Mapping[str, Any]) -> RecordedRun:
    """Convert the result of `to_record`, after a round trip through JSON, back to a config.

    Raises:
      ValueError: the kind or a field is unknown, or a field without a default is missing, because another version of
        rookery wrote the record; or the run was started from Python.
    """
    values = {name: value for name, value in record.items() if name not in _PROGRAM_KEYS}
    kind = values.pop("kind", None)
    if kind == PYTHON:
        raise ValueError(
            "this run was started from Python; continue it there: rookery.run(program, run_dir=..., resume=True); "
            "rookery.load(run_dir, program=program) evaluates, renders and exports it."
        )
    if kind != PROGRAM and kind not in KINDS:
        raise ValueError(f"this version has no run kind {kind!r}; use one of {', '.join(KINDS)}.")
    try:
        if kind == PROGRAM:
            return program_run(values)
        config = _from_values(KINDS[kind], values, kind)
        return dataclasses.replace(config, space=as_flags(config.space)) if config.trains_agents else config
    except (TypeError, ValueError) as error:
        raise ValueError(f"config.json: {error}") from error


def program_run(record: Mapping[str, Any]) -> ProgramRun:
    """The config of a run of a user-defined program, without the recorded settings of the program.

    Args:
      record: the content of the run's `config.json`; a run that was started from Python has no factory.
    """
    known = {field.name for field in dataclasses.fields(RunConfig)}
    run, environment = (record.get(name, {}) for name in ("run", "environment"))
    for name, part in (("run", run), ("environment", environment)):
        _check_table(name, part)
    run = RunConfig(**{name: value for name, value in run.items() if name in known})
    return ProgramRun(
        record.get("factory", ""), record.get("option", ()), DevicesConfig(environment.get("devices")), run
    )


def _check_table(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a table of settings, got {value!r}.")


def _from_values(cls: type, values: Any, where: str) -> Any:
    _check_table(where, values)
    fields = dataclasses.fields(cls)
    names = {entry.name for entry in fields}
    needed = {entry.name for entry in fields if entry.default is MISSING and entry.default_factory is MISSING}
    different = sorted((set(values) - names) | (needed - set(values)))
    if different:
        raise ValueError(
            f"an incompatible version of rookery wrote it: {where} differs in {', '.join(different)}; use that "
            "version, which it names."
        )
    types = typing.get_type_hints(cls)
    # A field added after the run was recorded takes its default, which equals the behaviour at the time of the run.
    return cls(**{name: _from_value(types[name], value, name) for name, value in values.items()})


def _from_value(hint: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _from_values(typing.cast(type, hint), value, name)
    if typing.is_typeddict(hint):
        _check_table(name, value)
    return tuple(value) if isinstance(value, list) else value
