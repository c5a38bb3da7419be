"""The settings of a program as the plain values that a run's `config.json` stores, and their changes since."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from rookery import hyperparams
from rookery.populations.base import Program
from rookery.settings import type_of
from rookery.storage.record import (
    CHOICES,
    DESCRIPTOR,
    INDEPENDENT,
    KEYS,
    PYTHON,
    SCALES,
    key_implementation,
    with_first_defaults,
)
from rookery.training.config import RunConfig
from rookery.trees import flatten_mapping
from rookery.types import Record


def program_record(program: Program) -> dict[str, Any]:
    """The settings of a program's environment, agent, learner and population method, as JSON values.

    Functions and classes are recorded by their names, and arrays by a digest of their values.
    """
    settings = dict(program.settings)
    environment = ({"env": program.task} if program.task else {}) | dict(settings.pop("environment", {}))
    space = {"space": hyperparams.describe(program.space)} if program.space else {}
    return {name: _plain(value) for name, value in ({"environment": environment} | settings | space).items()}


def record_of_new(program: Program, config: RunConfig, record: Record | None) -> dict[str, Any]:
    """The entries of `config.json` of a new run.

    Args:
      program: of the run.
      config: of the run.
      record: the entries that the command line gives; by default the settings of the program.
    """
    return {**(record or {"kind": PYTHON, **program_record(program), **_run(config)}), **_described(program)}


def record_of_resumed(before: Record, program: Program, config: RunConfig, record: Record | None) -> dict[str, Any]:
    """The entries of `config.json` that replace those of `before` when a run continues."""
    kept = {**before, **program_record(program)} if before.get("kind") == PYTHON else before
    return with_first_defaults({**(record or {**kept, **_run(config)}), **_described(program)}, before)


def changes(recorded: Record, program: Program) -> list[str]:
    """The settings of a program that differ from those that a run recorded, such as `population is 8, was 4`."""
    before, now = (_flat(record) for record in (recorded, program_record(program)))
    known = [(name, value, before[name]) for name, value in now.items() if name in before]
    # NaN differs from itself, but its text does not.
    return [f"{name} is {value}, was {was}" for name, value, was in known if was != value and repr(was) != repr(value)]


def _run(config: RunConfig) -> dict[str, Any]:
    run_dir = None if config.run_dir is None else str(config.run_dir)
    return {"run": dataclasses.asdict(dataclasses.replace(config, run_dir=run_dir))}


def _described(program: Program) -> dict[str, Any]:
    """The entries of `config.json` that describe a program of any kind of run."""
    found = {DESCRIPTOR: program.descriptor._asdict()} if program.descriptor else {}
    if program.space:
        found[SCALES] = {name: type(domain).__name__ for name, domain in program.space.domains.items()}
        choices = {name: list(names) for name, names in hyperparams.choices_of(program.space).items()}
        found |= {CHOICES: choices} if choices else {}
    return {INDEPENDENT: program.independent, KEYS: key_implementation(), **found}


def _flat(record: Record) -> dict[str, Any]:
    """The settings by their dotted names; a domain that an older version called otherwise has its present name."""
    older = {"LogInteger": "LogWhole"}
    return {
        name: list(value) if isinstance(value, tuple) else older.get(value, value) if isinstance(value, str) else value
        for name, value in flatten_mapping(record).items()
    }


def _plain(value: Any) -> Any:
    """A value as JSON values."""
    if isinstance(value, np.generic | jax.Array | np.ndarray):
        return _array(np.asarray(value))
    value = value.func if isinstance(value, functools.partial) else value
    fields = _fields(value)
    if fields is not None:
        return {str(name): _plain(entry) for name, entry in fields.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    name = getattr(value, "__qualname__", None)
    return f"{value.__module__}.{name}" if name else type_of(value)


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """The entries of a mapping, a dataclass or a NamedTuple; None for other values."""
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return getattr(value, "_asdict", dict)() if isinstance(value, tuple) and hasattr(value, "_fields") else None


def _array(value: np.ndarray) -> Any:
    if value.size <= _FEW and value.dtype.kind in "biuf":
        return value.tolist()
    digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:12]
    return f"{value.dtype} {list(value.shape)}, sha256 {digest}"


_FEW = 16
