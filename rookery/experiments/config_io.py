"""Converts a config to the plain values stored in a run's `config.json`, and back."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

from rookery.agents import backend
from rookery.experiments.config import DevicesConfig, RunConfig
from rookery.experiments.kinds import KINDS, as_flags, choices
from rookery.experiments.settings import ProgramRun, RecordedRun
from rookery.factories import label
from rookery.storage.island_files import ISLAND

SCHEDULE = "schedule"
"""Key of `config.json` for the schedule that a run replays; stored, so that the run directory is self-contained."""

PYTHON = "python"
"""Kind stored in `config.json` for a run started from Python, whose program the command line cannot rebuild."""

PROGRAM = ProgramRun.kind
"""Kind of a run of a program that a user-defined factory builds, which `config.json` names."""

DESCRIPTOR = "descriptor"
"""Key of `config.json` for the meaning and the limits of the descriptor, used to plot the repertoire."""

INDEPENDENT = "independent"
"""Key of `config.json` that is true if the members are independent runs: no member replaces another, and all have the
same configuration. It is absent from runs that were recorded before this key existed."""

KEYS = "keys"
"""Key of `config.json` for the implementation of random keys; absent from older runs, which had JAX's own."""

_PROGRAM_KEYS = (SCHEDULE, DESCRIPTOR, INDEPENDENT, KEYS, ISLAND)  # not fields of the config


def key_implementation() -> str:
    """The implementation of JAX's random keys: other ones give other random numbers."""
    name = str(backend.switch("jax_default_prng_impl"))
    return f"{name}, not partitionable" if "fry" in name and not backend.switch("jax_threefry_partitionable") else name


def recorded_keys(record: Mapping[str, Any]) -> str:
    """The implementation of random keys of a run.

    Args:
      record: the content of the run's `config.json`.
    """
    return str(record.get(KEYS, "threefry2x32"))


def check_keys(record: Mapping[str, Any], run_dir: object) -> None:
    """Check that a run can be repeated or continued with the random keys of this process.

    Args:
      record: the content of the run's `config.json`.
      run_dir: of the run, for the message.

    Raises:
      ValueError: it was run with another implementation.
    """
    if (recorded := recorded_keys(record)) != key_implementation():
        raise ValueError(
            f"{run_dir} was run with the random keys {recorded}, but JAX now has {key_implementation()}, which draws "
            "other numbers; set JAX_DEFAULT_PRNG_IMPL and JAX_THREEFRY_PARTITIONABLE as they were."
        )


def are_independent(record: Mapping[str, Any]) -> bool:
    """Whether the members are independent runs, each with a separate score and separate environment steps.

    Members with drawn hyper-parameters (`--draw-hyper`) are not: together they are one random search, whose result is
    the best member.

    Args:
      record: the content of the run's `config.json`.
    """
    return bool(record.get(INDEPENDENT, record.get("draw_hyper") is False))


def environment_label(record: Mapping[str, Any]) -> str:
    """A short name of the run's environment for titles: a task, or `mass` for `path/mass.py:make`; "" if unknown.

    Args:
      record: the content of the run's `config.json`.
    """
    environment = record.get("environment")
    return label(str(environment.get("env", ""))) if isinstance(environment, Mapping) else ""


def to_record(config: RecordedRun) -> dict[str, Any]:
    """Convert a config to JSON values."""
    space = {} if isinstance(config, ProgramRun) or not config.trains_agents else {"space": choices(config)}
    return {"kind": config.kind, **dataclasses.asdict(config), **space}


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
