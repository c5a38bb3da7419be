"""Summary section of a report: the run's result, state, settings, hardware and problems, as text."""

import contextlib
import itertools
import math
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from rookery.report.formatting import (
    SKILL_METRICS,
    Settings,
    counted,
    duration,
    fitness_metric,
    no_qd_score,
    number,
    objective,
    part,
    signed,
    steps_text,
)
from rookery.report.page_json import JsonObject
from rookery.report.readers import Event, RunRecord, Table
from rookery.report.runs import Run, finite_or_nan, worst_fitness
from rookery.report.statistics import estimate, mean, over_runs
from rookery.settings import AGENT_RETURN, MEASURE, RETURN
from rookery.storage.record import (
    CHOICES,
    DEFAULTS,
    DESCRIPTOR,
    INDEPENDENT,
    ISLAND,
    KEYS,
    PROGRAM,
    PYTHON,
    SCALES,
    SCHEDULE,
    environment_label,
    kind_label,
)
from rookery.trees import flatten_mapping

PHASES = ("seconds", "seconds_tables", "seconds_checkpoint")
"""Columns of `metrics.csv` that add up to the wall time of a generation; older runs have only the first."""
_SHOWN_ELSEWHERE = {"kind", "space", DEFAULTS, SCALES, CHOICES, SCHEDULE, DESCRIPTOR, INDEPENDENT, KEYS, ISLAND}
_WITHOUT_EFFECT = {"run.run_dir", "run.overwrite", "run.quiet", "run.live"}  # no effect on results
_ENDS = ("ended", "failed")  # events after which a run does not go on by itself
_PROBLEMS = {
    "diverged": "members whose fitness was not finite",
    "rejected": "genotypes or descriptors that were not finite, and were rejected",
    "broken_episodes": "evaluation episodes in which the physics diverged",
    "broken_steps": "training steps in which the physics diverged",
    "outside": "descriptors outside their limits, assigned to the outermost cell",
    "below_offset": "elites below the offset of the QD score",
}


def head(record: RunRecord) -> JsonObject:
    """The head of a run's page, as JSON values; the errors are those of `chapters`."""
    config, journal, metrics, seeds = record.config, record.journal, record.metrics, record.seeds
    return {
        "name": record.name,
        "kind": kind_label(config),
        "env": environment_label(config),
        "result": result(config, metrics, seeds),
        "state": _state_of_islands(record) if record.islands else state(config, journal, metrics),
        "command": command(journal),
        "settings": differences(config),
        "settings_title": _settings_title(config),
        "space": space(config, record.lineage.hyper if record.has_members else {}),
        "facts": facts(config, record.folder.versions, journal, metrics, len(seeds))
        + evaluated(config, record.evaluation)
        + league(metrics),
        "events": [_event(event) for event in journal],
        "wrongs": problems(metrics, [*journal, *({"event": "warned", "message": loss} for loss in record.losses)]),
        "compiled": compile_seconds(journal),
        "memory": next((event["memory"] for event in reversed(journal) if event.get("memory")), None),
    }


def differences(config: Settings) -> list[dict[str, str]]:
    """The settings that differed from the defaults when the run started: `name`, `value` and `default` as text.

    All settings of a run that did not record its defaults.
    """
    defaults = config.get(DEFAULTS)
    hidden = {name for name in flatten_mapping(config) if name.split(".")[0] in _SHOWN_ELSEWHERE} | _WITHOUT_EFFECT
    return [
        {"name": name, "value": _text(value), "default": _text((defaults or {}).get(name))}
        for name, value in flatten_mapping(config).items()
        if name not in hidden
        and (_text(value) if defaults is None else _text(value) != _text(defaults.get(name, value)))
    ]


def _settings_title(config: Settings) -> str:
    if DEFAULTS in config:
        return "Settings that differ from the defaults"
    if config.get("kind") in (PYTHON, PROGRAM):
        return "Settings of the program"
    return "All settings, since an older version did not record which differ from the defaults"


def space(config: Settings, hyper: Mapping[str, np.ndarray] = MappingProxyType({})) -> list[list[str]]:
    """Each hyper-parameter, and its value or how the values of the members `hyper`, name -> `[G, P]`, are chosen."""
    scheduled = part(part(config, SCHEDULE), "values")
    selects = "draw_hyper" not in config and part(config, "pbt").get("exploit") != "none"

    def describe(name: str, choice: object) -> str:
        # Runs started from Python record a domain as a mapping, those of the command line as a list.
        if isinstance(choice, Mapping):
            choice = choice.get("names") or [choice.get("low"), choice.get("high")]
        if name in scheduled:
            return "follows the replayed schedule"
        if not isinstance(choice, list):
            return f"is {_text(choice)}"
        if config.get("draw_hyper") is False and name in hyper:
            value, names = hyper[name][0, 0], part(config, CHOICES).get(name)
            return f"is {names[int(value)]}" if names else f"is {value:.6g}"  # the tables have numbers of float32
        values = ", ".join(map(_text, choice))
        among = f"among {values}" if name in part(config, CHOICES) else f"in [{values}]"
        return f"{'evolves' if selects else 'is drawn once'} {among}"

    return [[name, describe(name, choice)] for name, choice in part(config, "space").items()]


def command(journal: Sequence[Event]) -> str:
    """The command line that started the run; "" where the journal does not record it, as of a run from Python."""
    for event in journal:
        if event.get("event") == "began" and event.get("command") and not event.get("generation"):
            return shlex.join(map(str, event["command"]))
    return ""


def result(config: Settings, metrics: Table, seeds: Sequence[Run] = ()) -> str:
    """The result of the run so far in one line; for independent members an aggregate."""
    last = {name: values[-1] for name, values in metrics.items()}
    steps = f"{steps_text(last['env_steps'] / max(len(seeds), 1))} environment steps"
    after = f"after {steps} of each of {len(seeds)} seeds" if seeds else f"after {steps}"
    if "coverage" in last:
        best = " ".join(filter(None, ("best", objective(config), number(last["max_fitness"]))))
        parts = [f"{last['coverage']:.1f} % of {_cells(config)} covered", best]
        result = f"{', '.join(parts)}, QD score {number(last['qd_score'])}, {after}"
        return f"{result}; {reason}" if (reason := no_qd_score(last)) else result
    agents = {name.removeprefix(AGENT_RETURN): value for name, value in last.items() if name.startswith(AGENT_RETURN)}
    if 1 < len(agents) <= _MOST_AGENTS:
        returns = ", ".join(f"{name} {number(value)}" for name, value in agents.items())
        return f"{f'Mean returns of {len(seeds)} seeds' if seeds else 'Returns'}: {returns}, {after}"
    if skills := _skills_result(config, last):
        return f"{skills}, {after}"
    if not np.isfinite(last["best_fitness"]):
        return f"No member has a finite fitness, {after}"
    score = objective(config) or "fitness"
    if seeds:
        iqm = over_runs([run.end.fitness for run in seeds], worst_fitness(seeds)).item()
        interval = f"{number(iqm.low)} to {number(iqm.high)}"
        return (
            f"{score[0].upper()}{score[1:]} {number(iqm.value)} (interquartile mean, 95 % interval {interval}), {after}"
        )
    best = f"Best {score} {number(last['best_fitness'])}"
    of_many = "" if last["best_fitness"] == last["worst_fitness"] else f", median {number(last['median_fitness'])}"
    return f"{best}{of_many}, {after}"


def _skills_result(config: Settings, last: Mapping[str, float]) -> str:
    """What the method of skill discovery measured; "" without skills."""
    if "accuracy" in last:
        skills = part(config, "skills")
        size = skills.get("num_skills")
        of_sphere = skills.get("skill_kind") == "sphere"
        known = f" for {f'directions in {size} dimensions' if of_sphere else f'{size} skills'}" if size else ""
        return f"Discriminator accuracy {100 * last['accuracy']:.0f} %{known}"
    return f"Distance {number(last['distance'])} in phi along the skill" if "distance" in last else ""


_MOST_AGENTS = 6


def _cells(config: Settings) -> str:
    cells = part(config, "cells")
    sizes: Any = cells.get("grid") or [cells.get("cells")]
    with contextlib.suppress(TypeError, ValueError):  # numbers of an edited config.json
        return f"{math.prod(sizes):,} cells"
    return "the cells"


def _goal(config: Settings) -> int:
    """The generations after which a run ends; 0 if that is not recorded, or was edited."""
    goal = part(config, "run").get("generations")
    return goal if isinstance(goal, int) else 0


def state(config: Settings, journal: Sequence[Event], metrics: Table) -> dict[str, str | bool]:
    """Progress of the run: `text`, and `over`, whether the run has ended."""
    done, goal = int(metrics["generation"][-1]) + 1, _goal(config)
    of_goal = f"{done} of {goal} generations" if goal else counted(done, "generation")
    last = journal[-1] if journal else {}
    if last.get("event") in _ENDS:
        return {"text": f"{last.get('why', last['event'])}, {of_goal}", "over": True}
    over = 0 < goal <= done
    return {"text": f"{'finished' if over else 'running, or killed'}, {of_goal}", "over": over}


def _state_of_islands(record: RunRecord) -> dict[str, str | bool]:
    """Progress of a run of islands, which is over when all of them are."""
    goal, total = _goal(record.config), part(record.config, "islands").get("islands")
    done = [len(island.metrics["generation"]) for island in record.islands]
    least, most = min(done) if len(done) == total else 0, max(done)
    states = [state(island.config, island.journal, island.metrics) for island in record.islands]
    finished = 0 < goal <= least
    over = finished or (len(done) == total and all(one["over"] for one in states))
    text = "finished" if finished else "ended" if over else "running, or killed"
    generations = f"{least}" if least == most else f"{least} to {most}"
    return {"text": f"{text}, {generations} of {goal} generations", "over": over}


def facts(
    config: Settings,
    versions: Mapping[str, str],
    journal: Sequence[Event],
    metrics: Table,
    seeds: int = 0,
) -> list[list[str]]:
    """Label and value of the run's key facts; `seeds` is the number of independent members, 0 without any."""
    steps = metrics["env_steps"][-1]
    starts = [event for event in journal if event.get("event") == "began"] or [{}]
    hardware, versions = part(starts[-1], "hardware"), {**versions, **part(starts[-1], "versions")}
    packages = [f"{name} {versions[name]}" for name in ("rookery", "jax", "python") if name in versions]
    rows = [
        ["objective", _objective(config)],
        ["independent members" if seeds else "population", str(seeds or config.get("population", ""))],
        ["seed", str(part(config, "run").get("seed", ""))],
        ["environment steps", f"{steps:,.0f}{f', {steps / seeds:,.0f} each' if seeds else ''}"],
        ["time without compilation", duration(float(seconds(metrics).sum()))],
        ["of it evaluation and selection", f"{share:.0%}" if (share := evaluation_share(metrics)) else ""],
        ["compilation", duration(compiled) if (compiled := compile_seconds(journal)) else ""],
        ["devices", hardware.get("devices", "")],
        ["processor", _processor(hardware)],
        ["versions", ", ".join(packages)],
        ["started", str(starts[0].get("at", "")).replace("T", " ")[:16]],
    ]
    return [[label, value] for label, value in rows if value]


def _objective(config: Settings) -> str:
    """What the fitness of the run is; "" where the record does not say, as of a scoring function."""
    known = SKILL_METRICS.get(fitness_metric(config) or "", RETURN) if "learner" in config else ""
    return objective(config) or known


def evaluated(config: Settings, episodes: Table) -> list[list[str]]:
    """The result of the new episodes of the best member in `evaluation.csv`, with its interval; [] without any."""
    chosen = objective(config)
    scores = episodes.get(f"{MEASURE}{chosen}" if chosen else RETURN, np.zeros(0))
    if not len(scores) or not np.isfinite(scores).all():
        return []
    found = estimate(mean, scores).item()
    which = f"member {episodes['member'][0]:.0f} after generation {episodes['generation'][0]:.0f}"
    count = counted(len(scores), "new episode")
    if found.has_interval and found.low < found.high:
        count = f"{count}, 95 % interval {number(found.low)} to {number(found.high)}"
    elif found.has_interval:  # a bootstrap interval of equal results has no width, whatever their number
        count = f"each of {count}"
    text = f"{chosen or RETURN} {number(found.value)} in {count} ({which})"
    return [["best member", text]]


def league(metrics: Table) -> list[list[str]]:
    """The ratings of the earlier members that are opponents, for the members of each role, the hardest first, with the
    generation in which each entered; [] without a league, or while it is empty."""
    of_roles: dict[str, list[tuple[float, float]]] = {}
    for name in (name for name in metrics if name.startswith("league_rating/")):
        role, _, entry = name.removeprefix("league_rating/").rpartition("/")
        rating, entered = metrics[name][-1], metrics[f"league_entered/{entry}"][-1]
        if np.isfinite(rating):
            of_roles.setdefault(role, []).append((rating, entered))
    texts = {
        role: ", ".join(f"{signed(rating)} (generation {entered:.0f})" for rating, entered in sorted(of, reverse=True))
        for role, of in of_roles.items()
    }
    return [[f"ratings of earlier opponents of {role}", text] for role, text in texts.items()]


def seconds(metrics: Table) -> np.ndarray:
    """Wall time of each generation `[G]`; 0 where its row is lost, or the time is not finite."""
    return np.nan_to_num(np.sum([metrics[name] for name in PHASES if name in metrics], axis=0), posinf=0.0, neginf=0.0)


def evaluation_share(metrics: Table) -> float:
    """Share of the time of the generations that follows the training of members; 0 where it was not measured."""
    if "seconds_evaluation" not in metrics:
        return 0.0
    evaluation, whole = (np.nansum(finite_or_nan(metrics[name])) for name in ("seconds_evaluation", "seconds"))
    return float(evaluation / max(whole, 1e-9))


def compile_seconds(journal: Sequence[Event]) -> float:
    """Wall time of compilation, of all starts of the run together; 0 where the journal does not record it."""
    return sum(float(event.get("seconds", 0.0)) for event in journal if event.get("event") == "compiled")


def _processor(hardware: Settings) -> str:
    name = hardware.get("cpu") if hardware.get("kind") == "cpu" else hardware.get("kind")
    size = hardware.get("memory")  # None where the system does not say it
    memory = f", {size / 2**30:.0f} GiB" if isinstance(size, int) else ""
    cores = f", {counted(hardware['cores'], 'core')}" if hardware.get("cores") else ""
    return f"{name}{cores}{memory}" if name else ""


def problems(metrics: Table, journal: Sequence[Event]) -> list[dict[str, str | float]]:
    """Problems of the run and warnings: `name`, `meaning`, and `count` over the run."""
    found: list[dict[str, str | float]] = []
    for name, meaning in _PROBLEMS.items():
        if name in metrics:
            total = metrics[name][-1] if name == "below_offset" else np.nansum(metrics[name])
            found.append({"name": name, "meaning": meaning, "count": float(total)})
    warned = [event["message"] for event in journal if event.get("event") in ("warned", "noted")]
    damaged = [message for message in warned if "is damaged and was passed over" in message]
    begun = [index for index, event in enumerate(journal) if event.get("event") == "began"]
    killed = sum(all(event.get("event") not in _ENDS for event in journal[a:b]) for a, b in itertools.pairwise(begun))
    found.append({"name": "damaged", "meaning": "damaged checkpoints that were skipped", "count": len(damaged)})
    found.append({"name": "killed", "meaning": "times that the run was killed and continued", "count": killed})
    return [*found, *({"name": "warning", "meaning": message, "count": 1} for message in dict.fromkeys(warned))]


def _event(event: Event) -> dict[str, str]:
    """Time and text of a journal entry."""
    kind = str(event.get("event", ""))
    texts = {
        "began": f"started with generation {event.get('generation', 0) + 1}",
        "compiled": f"compiled in {event.get('seconds', 0.0):.1f} s",
        "warned": str(event.get("message", "")),
        "noted": str(event.get("message", "")),
        "failed": f"failed after generation {event.get('generation', 0)}: {event.get('message', '')}",
        "ended": f"{event.get('why', 'ended')} after generation {event.get('generation', 0)}",
    }
    return {"at": str(event.get("at", "")).replace("T", " ")[:19], "text": texts.get(kind, kind)}


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return " ".join(map(_text, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)
