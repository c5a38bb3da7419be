"""The head of a page: what ran, on what, how it was told to, and what came of it, in words."""

import dataclasses
import datetime
import itertools
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rookery.experiments.config import FLAG
from rookery.experiments.config_io import DESCRIPTOR, INDEPENDENT, SCHEDULE, to_record
from rookery.experiments.kinds import KINDS, usual_space
from rookery.report.figures import style
from rookery.report.figures.comparison import steps_text
from rookery.report.figures.style import number
from rookery.report.groups import Run, worst_fitness
from rookery.report.statistics import over_runs
from rookery.storage.events import read_journal
from rookery.storage.run_dir import RunFolder
from rookery.trees import flatten_mapping

Metrics = Mapping[str, np.ndarray]

PHASES = ("seconds", "seconds_tables", "seconds_checkpoint")
"""Columns of `metrics.csv` that add up to the wall time of a generation; an older run has only the first."""
_UNTOLD = {"kind", "space", SCHEDULE, DESCRIPTOR, INDEPENDENT}  # told elsewhere
_WHERE = {"run.run_dir", "run.overwrite", "run.quiet", "run.live"}  # nobody's result depends on them
_WRONGS = {
    "diverged": "members whose fitness was not finite",
    "rejected": "genotypes or descriptors that were not finite, and were rejected",
    "broken_episodes": "judged episodes in which the physics broke",
    "broken_steps": "training steps in which the physics broke",
    "outside": "descriptors outside of their limits, kept in the outermost cell",
    "below_offset": "elites below the offset of the QD score",
}


def head(folder: RunFolder, metrics: Metrics, seeds: Sequence[Run] = ()) -> dict[str, Any]:
    """What stands above everything else, as JSON values.

    Args:
      folder: of the run.
      metrics: its `metrics.csv`, with a generation at least.
      seeds: its independent members.
    """
    config, journal = folder.config, read_journal(folder)
    return {
        "name": folder.path.name,
        "kind": config.get("kind", "run"),
        "env": _part(config, "world").get("env", ""),
        "result": result(config, metrics, seeds),
        "state": state(config, journal, metrics),
        "command": command(config, journal),
        "settings": differences(config),
        "space": space(config),
        "facts": facts(config, folder.versions, journal, metrics, len(seeds)),
        "events": [_event(event) for event in journal],
        "wrongs": wrongs(metrics, journal),
        "memory": next((event["memory"] for event in reversed(journal) if event.get("memory")), None),
    }


def differences(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Settings that are not their kind's own: `name`, `value` and `default` as text; all where the kind is unknown."""
    return [{"name": name, "value": _text(now), "default": _text(usual)} for name, now, usual in _changed(config)]


def _changed(config: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Name, value and usual value of the settings that are not their kind's own."""
    kind = KINDS.get(str(config.get("kind")))
    usual = flatten_mapping(to_record(kind())) if kind is not None and dataclasses.is_dataclass(kind) else {}
    told = {name: value for name, value in flatten_mapping(config).items() if name.split(".")[0] not in _UNTOLD}
    told = {name: value for name, value in told.items() if name not in _WHERE}
    return [(name, now, usual.get(name)) for name, now in told.items() if _text(now) != _text(usual.get(name))]


def space(config: Mapping[str, Any]) -> list[list[str]]:
    """Each hyper-parameter and how it was chosen."""
    return [[name, _chosen(choice)] for name, choice in _part(config, "space").items()]


def _chosen(choice: Any) -> str:
    bounds = [choice.get("low"), choice.get("high")] if isinstance(choice, Mapping) else choice  # as Python tells them
    evolves = isinstance(bounds, list) and len(bounds) == 2
    return f"evolves in [{_text(bounds[0])}, {_text(bounds[1])}]" if evolves else f"is {_text(choice)}"


def command(config: Mapping[str, Any], journal: list[dict[str, Any]]) -> str:
    """The command line that the run began with; one that does the same where nobody wrote it down."""
    for event in journal:
        if event.get("event") == "began" and event.get("command") and not event.get("generation"):
            return shlex.join(map(str, event["command"]))
    if config.get("kind") not in KINDS:
        return ""
    kind, usual = str(config["kind"]), usual_space(str(config["kind"]))
    chosen = {name: now for name, now in _part(config, "space").items() if _text(now) != _text(usual.get(name))}
    words = ["rookery", "train", kind, "--env", str(_part(config, "world").get("env", ""))]
    for name, now, _ in _changed(config):
        words += _flag(name.rpartition(".")[2].replace("_", "-"), now) if name != "world.env" else []
    for name, now in chosen.items():
        words += _flag(FLAG + name.replace("_", "-"), now)
    return shlex.join(words)


def _flag(name: str, value: Any) -> list[str]:
    """The words that set a flag, to the last bit."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", *map(str, value if isinstance(value, list | tuple) else [value])]


def result(config: Mapping[str, Any], metrics: Metrics, seeds: Sequence[Run] = ()) -> str:
    """One line: what came of the run until now; of independent members what came of them together."""
    last = {name: values[-1] for name, values in metrics.items()}
    steps = f"{steps_text(last['env_steps'] / max(len(seeds), 1))} environment steps"
    after = f"after {steps} of each of {len(seeds)} seeds" if seeds else f"after {steps}"
    if "coverage" in last:
        parts = [f"{last['coverage']:.1f} % of {_cells(config)} covered", f"best {number(last['max_fitness'])}"]
        return f"{', '.join(parts)}, QD score {number(last['qd_score'])}, {after}"
    agents = {name.removeprefix("return/"): value for name, value in last.items() if name.startswith("return/")}
    if 1 < len(agents) <= _MOST_AGENTS:
        told = ", ".join(f"{name} {number(value)}" for name, value in agents.items())
        return f"{f'Mean returns of {len(seeds)} seeds' if seeds else 'Returns'}: {told}, {after}"
    if "accuracy" in last:
        skills = _part(config, "skills").get("num_skills")
        return f"{skills or 'Its'} skills told apart in {100 * last['accuracy']:.0f} % of steps, {after}"
    if not np.isfinite(last["best_fitness"]):
        return f"No member was finite in the end, {after}"
    if seeds:
        middle = over_runs([run.end.fitness for run in seeds], worst_fitness(seeds))
        interval = f"{number(middle.low)} to {number(middle.high)}"
        return f"Fitness {number(middle.value)} (interquartile mean, 95 % interval {interval}), {after}"
    best = f"Best fitness {number(last['best_fitness'])}"
    of_many = "" if last["best_fitness"] == last["worst_fitness"] else f", median {number(last['median_fitness'])}"
    return f"{best}{of_many}, {after}"


_MOST_AGENTS = 6


def _cells(config: Mapping[str, Any]) -> str:
    told = _part(config, "cells")
    count = math.prod(told["grid"]) if told.get("grid") else told.get("cells")
    return f"{count:,} cells" if count else "the cells"


def state(config: Mapping[str, Any], journal: list[dict[str, Any]], metrics: Metrics) -> dict[str, Any]:
    """How far the run is: `text`, and `over`, whether nothing more is to be expected."""
    done, goal = int(metrics["generation"][-1]) + 1, _part(config, "run").get("generations")
    of_goal = f"{done} of {goal} generations" if goal else style.counted(done, "generation")
    last = journal[-1] if journal else {}
    if last.get("event") == "ended":
        return {"text": f"{last.get('why', 'ended')}, {of_goal}", "over": True}
    over = bool(goal) and done >= int(goal)
    return {"text": f"{'finished' if over else 'running, or killed'}, {of_goal}", "over": over}


def facts(
    config: Mapping[str, Any],
    versions: Mapping[str, str],
    journal: list[dict[str, Any]],
    metrics: Metrics,
    seeds: int = 0,
) -> list[list[str]]:
    """Label and value of what one wants to know at a glance; `seeds` is how many runs the members are, if they are."""
    steps = metrics["env_steps"][-1]
    starts = [event for event in journal if event.get("event") == "began"] or [{}]
    hardware, versions = _part(starts[-1], "hardware"), {**versions, **_part(starts[-1], "versions")}
    packages = [f"{name} {versions[name]}" for name in ("rookery", "jax", "python") if name in versions]
    told = [
        ["independent members" if seeds else "population", str(seeds or config.get("population", ""))],
        ["seed", str(_part(config, "run").get("seed", ""))],
        ["environment steps", f"{steps:,.0f}{f', {steps / seeds:,.0f} each' if seeds else ''}"],
        ["time", duration(float(seconds(metrics).sum()))],
        ["devices", hardware.get("devices", "")],
        ["processor", _processor(hardware)],
        ["versions", ", ".join(packages)],
        ["begun", str(starts[0].get("at", "")).replace("T", " ")[:16]],
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
    damaged = [message for message in warned if "is damaged and was passed over" in message]
    begun = [index for index, event in enumerate(journal) if event.get("event") == "began"]
    killed = sum(all(event.get("event") != "ended" for event in journal[a:b]) for a, b in itertools.pairwise(begun))
    counted.append({"name": "damaged", "meaning": "damaged checkpoints that were passed over", "count": len(damaged)})
    counted.append({"name": "killed", "meaning": "times that the run was killed, and went on", "count": killed})
    return [*counted, *({"name": "warning", "meaning": message, "count": 1} for message in dict.fromkeys(warned))]


def _event(event: Mapping[str, Any]) -> dict[str, str]:
    """A line of the journal for a reader."""
    kind = str(event.get("event", ""))
    told = {
        "began": f"began with generation {event.get('generation', 0) + 1}",
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


def _part(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a configuration; {} where a run from Python has something else there."""
    part = config.get(name)
    return part if isinstance(part, Mapping) else {}


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return " ".join(map(_text, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)
