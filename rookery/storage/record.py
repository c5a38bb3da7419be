"""The keys of a run's `config.json`, and the labels that follow from its content."""

from collections.abc import Mapping
from typing import Any

from rookery.agents import backend
from rookery.factories import label
from rookery.trees import flatten_mapping
from rookery.types import Record

SCHEDULE = "schedule"
"""Key of `config.json` for the schedule that a run replays; stored, so that the run directory is self-contained."""

PYTHON = "python"
"""Kind stored in `config.json` for a run started from Python, whose program the command line cannot rebuild."""

PROGRAM = "program"  # kind of a run of a program that a user-defined factory builds, which `config.json` names

DESCRIPTOR = "descriptor"
"""Key of `config.json` for the meaning and the limits of the descriptor, used to plot the repertoire."""

SCALES = "scales"
"""Key of `config.json` for the scales of the hyper-parameters that evolve: name -> class of its domain, such as
`LogUniform`. It is absent from older runs."""

CHOICES = "choices"
"""Key of `config.json` for the hyper-parameters whose values are names: name -> all names, in the order of the numbers
that stand for them in the state. It is absent from runs without any."""

INDEPENDENT = "independent"
"""Key of `config.json` that is true if the members are independent runs: no member replaces another, and all have the
same configuration. It is absent from runs that were recorded before this key existed."""

DEFAULTS = "defaults"
"""Key of `config.json` for the settings that differed from the defaults when the run started: dotted name -> default.
Later versions may have other defaults. It is absent from older runs, and from runs of user-defined programs."""

SEARCH = "search"
"""Key of `config.json` for the arguments of a `qd.Search`, from which it is loaded; {} if they cannot be recorded."""

SKILL_METHODS = ("diayn", "metra", "lsd")
"""Keys of `config.json` for the settings of the method of skill discovery, of which a run has one at most."""

KEYS = "keys"
"""Key of `config.json` for the implementation of random keys; absent from older runs, which had JAX's own."""

ISLAND = "island"
"""Key of an island's `config.json`: its `number`, the number of `islands`, `migrate_every` and `migrate_fraction`."""

PROGRAM_KEYS = (SCHEDULE, SCALES, CHOICES, DESCRIPTOR, INDEPENDENT, KEYS, DEFAULTS, SEARCH, ISLAND)
"""Keys of `config.json` beside the settings of a run."""


def key_implementation() -> str:
    """The implementation of JAX's random keys: other ones give other random numbers."""
    name, offset = str(backend.switch("jax_default_prng_impl")), backend.switch("jax_random_seed_offset")
    if "fry" in name and not backend.switch("jax_threefry_partitionable"):
        name += ", not partitionable"
    return f"{name}, offset {offset}" if offset else name


def recorded_keys(record: Record) -> str:
    """The implementation of random keys of a run."""
    return str(record.get(KEYS, "threefry2x32"))


def check_keys(record: Record, run_dir: object) -> None:
    """Raise ValueError if a run was run with other random keys than those of this process, and cannot be continued."""
    if (recorded := recorded_keys(record)) != key_implementation():
        raise ValueError(
            f"{run_dir} was run with the random keys {recorded}, but JAX now has {key_implementation()}, which draws "
            "other numbers; set JAX_DEFAULT_PRNG_IMPL, JAX_THREEFRY_PARTITIONABLE and JAX_RANDOM_SEED_OFFSET as they "
            "were."
        )


def are_independent(record: Record) -> bool:
    """Whether the members are independent runs, each with a separate score and separate environment steps.

    Members with drawn hyper-parameters (`--draw-hyper`) are not: together they are one random search, whose result is
    the best member.
    """
    return bool(record.get(INDEPENDENT, record.get("draw_hyper") is False))


def without_defaults(record: Record) -> dict[str, Any]:
    """The settings of a run alone, without the defaults that it had at its start."""
    return {name: value for name, value in record.items() if name != DEFAULTS}


def with_first_defaults(record: Record, before: Record) -> dict[str, Any]:
    """The new settings `record` of a run that is continued, with the defaults that it had at its start."""
    others = without_defaults(record)
    if DEFAULTS not in before:
        return others
    now, then = (flatten_mapping({**settings, "space": {}, DEFAULTS: {}}) for settings in (others, before))
    # What the run has changed since had its default before.
    changed = {name: then.get(name) for name, value in now.items() if _plain(value) != _plain(then.get(name))}
    return {**others, DEFAULTS: {**changed, **before[DEFAULTS]}}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def environment_label(record: Record) -> str:
    """A short name of the run's environment for titles: a task, or `mass` for `path/mass.py:make`; "" if unknown."""
    environment = record.get("environment")
    return label(str(environment.get("env", ""))) if isinstance(environment, Mapping) else ""


def agent_of(kind: str) -> str:
    """The name of the agent that a kind of run trains: `pbt-sac` -> `sac`, `pbt-diayn-td3` -> `diayn-td3`."""
    return kind.removeprefix("me-").removeprefix("pbt-")


def method_of(record: Record) -> str:
    """The population method and the agent of a run that was started from Python, such as `pbt-sac`; "" if unknown."""
    parts = record.get("population_method"), agent_name(record)
    return "-".join(str(part) for part in parts if part)


def agent_name(record: Record) -> str | None:
    """The agent of a run that was started from Python, named as `agent_of` does; None if it is unknown."""
    agent = record.get("agent")
    name = agent.get("name") if isinstance(agent, Mapping) else None
    discovery = next((known for known in SKILL_METHODS if record.get(known)), None)
    if name is None or not (discovery or record.get("parameters")):
        return name
    return f"{discovery}-{name}".removesuffix("-sac") if discovery else f"i{name}"


def check_rebuildable(record: Record, path: object, remedy: str) -> None:
    """Raise a ValueError with a remedy for a run that was started from Python: its record cannot build its program."""
    if SEARCH in record:
        raise ValueError(f"{path} is a search by ask and tell; open it in Python: rookery.qd.Search.load(run_dir).")
    if record.get("kind") == PYTHON:
        raise ValueError(f"{path} was started from Python, and its record cannot build its program; {remedy}.")


def kind_label(record: Record) -> str:
    """The kind of a run for titles: `pbt-sac`, or `python pbt-sac` for a run that was started from Python."""
    kind, method = str(record.get("kind", "run")), method_of(record)
    return f"{kind} {method}" if method else kind
