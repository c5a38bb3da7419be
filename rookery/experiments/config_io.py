"""Converts a run's description to the plain values stored in its `config.json`, and back."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

from rookery.experiments.config import DevicesConfig
from rookery.experiments.kinds import kinds, with_space
from rookery.experiments.spec import RunSpec
from rookery.hyperparams import Space
from rookery.populations.base import Program
from rookery.storage.record import DEFAULTS, PROGRAM, PROGRAM_KEYS, check_rebuildable
from rookery.training.config import RunConfig
from rookery.training.program_record import program_record
from rookery.trees import flatten_mapping

_PARTS = ("agent", "learner", "environment", "run")  # of a run, each with settings of its own


def to_record(spec: RunSpec) -> dict[str, Any]:
    """Convert a run's description to JSON values."""
    return {"kind": spec.kind.name, **{name: _plain(value) for name, value in spec.flat.items()}}


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # pyright: ignore[reportArgumentType]


def run_record(spec: RunSpec, space: Space | None = None, program: Program | None = None) -> dict[str, Any]:
    """The entries of `config.json` of a run: its settings, and the defaults from which they differ.

    The search space is recorded in full, so that later versions may change the defaults; of a program that a user's
    function builds, the program's own settings.
    """
    spec = spec.with_network()
    record = to_record(with_space(spec, space))
    if not spec.kind.method.has_task:
        settings = program_record(program) if program else {}
        return {**record, **settings, "environment": settings.get("environment", {}) | record["environment"]}
    default = spec.kind.default().with_network()
    usual, chosen = (flatten_mapping(to_record(run) | {"space": {}}) for run in (default, spec))
    differs = {name: usual.get(name) for name, value in chosen.items() if value != usual.get(name)}
    return {**record, DEFAULTS: differs}


def from_record(record: Mapping[str, Any]) -> RunSpec:
    """Convert the result of `to_record`, after a round trip through JSON, back to a run's description.

    Raises:
      ValueError: the kind or a field is unknown, or a field without a default is missing, because another version of
        rookery wrote the record; or the run was started from Python.
    """
    values = {name: value for name, value in record.items() if name not in PROGRAM_KEYS}
    kind, known = values.pop("kind", None), kinds()
    remedy = "in Python, rookery.run(program, run_dir=..., resume=True) continues it, and rookery.load(run_dir, "
    check_rebuildable(record, "this run", f"{remedy}program=program) evaluates, renders and exports it")
    if kind not in known:
        raise ValueError(
            f"this version has no run kind {kind!r}; install the package that adds it, or use one of "
            f"{', '.join(known)}."
        )
    try:
        if kind == PROGRAM:
            return program_run(values)
        usual = known[kind].default()
        parts = {name: type(usual.flat[name]) for name in _PARTS if name in usual.flat}
        _check_names(kind, values, usual.flat, set(parts))  # without one, its defaults would train another task
        hints = {**typing.get_type_hints(type(usual.method)), **typing.get_type_hints(type(usual.wrapper)), **parts}
        return usual.replace(**{name: _from_value(hints.get(name), value, name) for name, value in values.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(f"config.json: {error}") from error


def program_run(record: Mapping[str, Any]) -> RunSpec:
    """The run of a user-defined program from `config.json`, without the recorded settings of the program.

    A run that was started from Python has no factory.
    """
    fields = {field.name for field in dataclasses.fields(RunConfig)}
    run, environment = (record.get(name, {}) for name in ("run", "environment"))
    for name, part in (("run", run), ("environment", environment)):
        _check_table(name, part)
    return (
        kinds()[PROGRAM]
        .default()
        .replace(
            factory=record.get("factory", ""),
            option=_from_value(None, record.get("option", ()), "option"),
            environment=DevicesConfig(environment.get("devices")),
            run=RunConfig(**{name: value for name, value in run.items() if name in fields}),
        )
    )


def _check_table(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a table of settings, got {value!r}.")


def _check_names(where: str, values: Mapping[str, Any], known: Mapping[str, Any], needed: set[str]) -> None:
    if different := sorted((set(values) - set(known)) | (needed - set(values))):
        raise ValueError(
            f"an incompatible version of rookery wrote it: {where} differs in {', '.join(different)}; use that "
            "version, which it names."
        )


def _from_value(hint: Any, value: Any, name: str) -> Any:
    if not dataclasses.is_dataclass(hint):
        if name == "space":
            _check_table(name, value)
            return {key: tuple(choice) if isinstance(choice, list) else choice for key, choice in value.items()}
        return tuple(value) if isinstance(value, list) else value
    _check_table(name, value)
    fields = {entry.name: entry for entry in dataclasses.fields(hint)}
    needed = {key for key, entry in fields.items() if entry.default is entry.default_factory is MISSING}
    needed |= {"env"} & {*fields}  # another task would be trained
    _check_names(name, value, fields, needed)
    types = typing.get_type_hints(hint)
    # A field added after the run was recorded takes its default, which equals the behaviour at the time of the run.
    return hint(**{key: _from_value(types[key], inner, key) for key, inner in value.items()})  # pyright: ignore[reportCallIssue]
