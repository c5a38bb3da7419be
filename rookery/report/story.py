"""The head of a page: what ran, on what, how it was told to, and what came of it, in words."""

import dataclasses
import datetime
import itertools
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np

from rookery.report import style
from rookery.report.compare_picture import steps_text
from rookery.runs.folder import RunFolder
from rookery.runs.journal import read_journal
from rookery.runs.kinds import KINDS
from rookery.runs.record import DESCRIPTOR, SCHEDULE, to_record

Metrics = Mapping[str, np.ndarray]

PHASES = ("seconds", "seconds_tables", "seconds_checkpoint")
"""Columns of `metrics.csv` that add up to the wall time of a generation; an older run has only the first."""
_UNTOLD = {"kind", "space", SCHEDULE, DESCRIPTOR}  # told elsewhere
_WHERE = {"run.run_dir", "run.overwrite", "run.quiet"}  # nobody's result depends on them
_WRONGS = {
    "diverged": "members whose fitness was not finite",
    "rejected": "genotypes or descriptors that were not finite, and were rejected",
    "broken_episodes": "judged episodes in which the physics broke",
    "broken_steps": "training steps in which the physics broke",
    "outside": "descriptors outside of their limits, kept in the outermost cell",
    "below_offset": "elites below the offset of the QD score",
}


def head(folder: RunFolder, metrics: Metrics) -> dict[str, Any]:
    """What stands above everything else, as JSON values.

    Args:
      folder: of the run.
      metrics: its `metrics.csv`, with a generation at least.
    """
    config, journal = folder.config, read_journal(folder)
    settings = differences(config)
    return {
        "name": folder.path.name,
        "kind": config.get("kind", "run"),
        "env": config.get("world", {}).get("env", ""),
        "result": result(config, metrics),
        "state": state(config, journal, metrics),
        "command": command(config, settings, journal),
        "settings": settings,
        "space": space(config),
        "facts": facts(config, folder.versions, journal, metrics),
        "events": [_event(event) for event in journal],
        "wrongs": wrongs(metrics, journal),
        "memory": next((event["memory"] for event in reversed(journal) if event.get("memory")), None),
    }


def differences(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Settings that are not their kind's own: `name`, `value` and `default` as text; all where the kind is unknown."""
    kind = KINDS.get(str(config.get("kind")))
    usual = _flat(to_record(kind())) if kind is not None and dataclasses.is_dataclass(kind) else {}
    told = {name: value for name, value in _flat(config).items() if name.split(".")[0] not in _UNTOLD}
    changed = {name: value for name, value in told.items() if _text(value) != _text(usual.get(name))}
    return [
        {"name": name, "value": _text(value), "default": _text(usual.get(name))}
        for name, value in changed.items()
        if name not in _WHERE
    ]


def space(config: Mapping[str, Any]) -> list[list[str]]:
    """Each hyper-parameter and how it was chosen."""
    told = config.get("space") or {}
    chosen = {name: choice for name, choice in told.items() if isinstance(choice, list | int | float | str)}
    return [
        [name, f"evolves in [{choice[0]:g}, {choice[1]:g}]" if isinstance(choice, list) else f"is {_text(choice)}"]
        for name, choice in chosen.items()
    ]


def command(config: Mapping[str, Any], settings: list[dict[str, Any]], journal: list[dict[str, Any]]) -> str:
    """The command line that the run began with; one that does the same where nobody wrote it down."""
    for event in journal:
        if event.get("event") == "began" and event.get("command"):
            return shlex.join(map(str, event["command"]))
    if config.get("kind") not in KINDS:
        return ""
    words = ["rookery", "train", str(config["kind"]), "--env", str(config.get("world", {}).get("env", ""))]
    for setting in settings:
        flag, value = setting["name"].rpartition(".")[2].replace("_", "-"), setting["value"]
        if flag != "env":
            switch = {"true": [f"--{flag}"], "false": [f"--no-{flag}"]}
            words += switch.get(value, [f"--{flag}", *value.split()])
    return shlex.join(words)


def result(config: Mapping[str, Any], metrics: Metrics) -> str:
    """One line: what came of the run until now."""
    last = {name: values[-1] for name, values in metrics.items()}
    after = f"after {steps_text(last['env_steps'])} environment steps"
    if "coverage" in last:
        parts = [f"{last['coverage']:.1f} % of {_cells(last)} covered", f"best {number(last['max_fitness'])}"]
        return f"{', '.join(parts)}, QD score {number(last['qd_score'])}, {after}"
    agents = {name.removeprefix("return/"): value for name, value in last.items() if name.startswith("return/")}
    if 1 < len(agents) <= _MOST_AGENTS:
        told = ", ".join(f"{name} {number(value)}" for name, value in agents.items())
        return f"Returns: {told}, {after}"
    if "accuracy" in last:
        skills = config.get("skills", {}).get("num_skills")
        return f"{skills or 'Its'} skills told apart in {100 * last['accuracy']:.0f} % of steps, {after}"
    if not np.isfinite(last["best_fitness"]):
        return f"No member was finite in the end, {after}"
    best = f"Best fitness {number(last['best_fitness'])}"
    of_many = "" if last["best_fitness"] == last["worst_fitness"] else f", median {number(last['median_fitness'])}"
    return f"{best}{of_many}, {after}"


_MOST_AGENTS = 6


def _cells(last: Mapping[str, float]) -> str:
    return "the cells" if not last.get("cells") else f"{last['cells']:,.0f} cells"


def state(config: Mapping[str, Any], journal: list[dict[str, Any]], metrics: Metrics) -> dict[str, Any]:
    """How far the run is: `text`, and `over`, whether nothing more is to be expected."""
    done, goal = int(metrics["generation"][-1]) + 1, config.get("run", {}).get("generations")
    of_goal = f"{done} of {goal} generations" if goal else style.counted(done, "generation")
    last = journal[-1] if journal else {}
    if last.get("event") == "ended":
        return {"text": f"{last.get('why', 'ended')}, {of_goal}", "over": True}
    over = bool(goal) and done >= int(goal)
    return {"text": f"{'finished' if over else 'running, or killed'}, {of_goal}", "over": over}


def facts(
    config: Mapping[str, Any], versions: Mapping[str, str], journal: list[dict[str, Any]], metrics: Metrics
) -> list[list[str]]:
    """Label and value of what one wants to know at a glance."""
    began = next((event for event in reversed(journal) if event.get("event") == "began"), {})
    hardware, versions = began.get("hardware", {}), {**versions, **began.get("versions", {})}
    packages = [f"{name} {versions[name]}" for name in ("rookery", "jax", "python") if name in versions]
    told = [
        ["population", str(config.get("population", ""))],
        ["seed", str(config.get("run", {}).get("seed", ""))],
        ["environment steps", f"{metrics['env_steps'][-1]:,.0f}"],
        ["time", duration(float(seconds(metrics).sum()))],
        ["devices", hardware.get("devices", "")],
        ["processor", _processor(hardware)],
        ["versions", ", ".join(packages)],
        ["begun", began.get("at", "").replace("T", " ")[:16]],
    ]
    return [[label, value] for label, value in told if value]


def seconds(metrics: Metrics) -> np.ndarray:
    """Wall time of each generation `[G]`."""
    return np.sum([metrics[name] for name in PHASES if name in metrics], axis=0)


def _processor(hardware: Mapping[str, Any]) -> str:
    name = hardware.get("cpu") if hardware.get("kind") == "cpu" else hardware.get("kind")
    memory = f", {hardware['memory'] / 2**30:.0f} GiB" if hardware.get("memory") else ""
    cores = f", {style.counted(hardware['cores'], 'core')}" if hardware.get("cores") else ""
    return f"{name}{cores}{memory}" if name else ""


def wrongs(metrics: Metrics, journal: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Everything that went wrong, counted: `name`, `meaning`, `count` over the run, and the messages of warnings."""
    counted: list[dict[str, Any]] = []
    for name, meaning in _WRONGS.items():
        if name in metrics:
            total = metrics[name][-1] if name == "below_offset" else np.nansum(metrics[name])
            counted.append({"name": name, "meaning": meaning, "count": float(total)})
    warned = [event["message"] for event in journal if event.get("event") == "warned"]
    damaged = [message for message in warned if "checkpoint" in message]
    begun = [index for index, event in enumerate(journal) if event.get("event") == "began"]
    killed = sum(all(event.get("event") != "ended" for event in journal[a:b]) for a, b in itertools.pairwise(begun))
    counted.append({"name": "damaged", "meaning": "damaged checkpoints that were passed over", "count": len(damaged)})
    counted.append({"name": "killed", "meaning": "times that the run was killed, and went on", "count": killed})
    return [*counted, *({"name": "warning", "meaning": message, "count": 1} for message in dict.fromkeys(warned))]


def _event(event: Mapping[str, Any]) -> dict[str, str]:
    """A line of the journal for a reader."""
    kind = str(event.get("event", ""))
    told = {
        "began": f"began at generation {event.get('generation', 0)}",
        "compiled": f"compiled in {event.get('seconds', 0.0):.1f} s",
        "warned": str(event.get("message", "")),
        "ended": f"{event.get('why', 'ended')} after generation {event.get('generation', 0)}",
    }
    return {"at": str(event.get("at", "")).replace("T", " ")[:19], "text": told.get(kind, kind)}


def duration(seconds: float) -> str:
    """Of a time in words: 12 s, 3 min 20 s, 2 h 5 min."""
    whole = datetime.timedelta(seconds=round(seconds))
    hours, rest = divmod(whole.days * 86_400 + whole.seconds, 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left} s" if minutes else f"{seconds:.3g} s"


def number(value: float) -> str:
    """Four significant digits, and thousands set apart."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return " ".join(map(_text, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)
