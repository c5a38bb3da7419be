"""Text of numbers, counts, durations and limits, and labels of metrics, for figures, tables and pages alike."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from rookery.settings import AGENT_RETURN, BEST, MEASURE, RETURN
from rookery.storage.record import SKILL_METHODS, environment_label, kind_label

Settings = Mapping[str, Any]  # JSON values by name, as in `config.json`
SKILL_METRICS = {
    "accuracy": "discriminator accuracy",
    "distance": "distance in phi along the skill",
    "true_return": "mean return",
    "diversity_return": "diversity return, nats",
    "phi_step": "distance in phi of a step",
}
"""Columns of `metrics.csv` in a run with skills, and their labels."""
REPERTOIRE_METRICS = {"coverage": "coverage, % of the cells", "qd_score": "QD score"}
"""Columns of `metrics.csv` in a run with a repertoire, and their labels."""
_FITNESS = {
    "accuracy": "accuracy",
    "diversity": "diversity_return",
    "distance": "distance",
    "return": "true_return",
}


def fitness_metric(config: Settings) -> str | None:
    """The metric of skills that is the fitness of a run; None where its configuration names none."""
    chosen = next((part(config, name)["fitness"] for name in SKILL_METHODS if "fitness" in part(config, name)), None)
    return _FITNESS.get(str(chosen))


def objective(config: Settings) -> str | None:
    """The measure of the task that is the fitness of a run; None where it is no measure."""
    return part(config, "learner").get("objective") or part(config, "evaluation").get("objective")


def individual(columns: Collection[str]) -> str:
    """What `best_fitness` is the best of: members, or the children of a generation of MAP-Elites, which has none."""
    return "child" if "coverage" in columns and "replaced" not in columns else "member"


def measure_labels(config: Settings, columns: Collection[str], seeds: bool = False) -> dict[str, str]:
    """The columns of `metrics.csv` with measures that are not the fitness, and their labels.

    They are those of the best member (of MAP-Elites, the best child of a generation), or the means of independent ones.
    """
    chosen = objective(config)
    names = [RETURN, *(name for name in columns if name.startswith(MEASURE))]
    names.remove(f"{MEASURE}{chosen}" if f"{MEASURE}{chosen}" in names else RETURN)
    agents = tuple(f"/{name.removeprefix(AGENT_RETURN)}" for name in columns if name.startswith(AGENT_RETURN))
    whose = "mean of the seeds" if seeds else f"of the best {individual(columns)}"
    labels = {name if seeds else BEST + name: f"{name.removeprefix(MEASURE)}, {whose}" for name in names}
    return {name: label for name, label in labels.items() if name in columns and not name.endswith(agents)}


def no_qd_score(last: Mapping[str, float]) -> str | None:
    """Why the QD score of a repertoire is 0, from a row of `metrics.csv`; None if it is not."""
    if last["qd_score"] != 0.0 or not last.get("below_offset"):
        return None
    return (
        "the QD score is 0, since the fitness of every elite is below 0, with the offset of the task (`qd_offset`) "
        "added to the reward of each step"
    )


def part(config: Settings, name: str) -> Settings:
    """A nested part of a configuration; {} where it is missing or, in a run from Python, not a mapping."""
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def headline(config: Settings) -> str:
    """The kind and the environment of a run, from `config.json`."""
    return " on ".join(filter(None, (kind_label(config), environment_label(config))))


def fitness_label(config: Settings) -> str:
    """What the fitness of a run measures, for axes."""
    chosen = objective(config)
    return f"mean {chosen}" if chosen else SKILL_METRICS[fitness_metric(config) or "true_return"]


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 skill", "2 skills"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def number(value: float) -> str:
    """Format with four significant digits; large numbers are rounded to integers with thousands separators."""
    return f"{value:z,.0f}" if 9999.5 <= abs(value) < 1e12 else f"{value:z.4g}"


def signed(value: float) -> str:
    """Format as an integer with its sign; 0 has the sign +."""
    return f"{round(value, 0) + 0.0:+.0f}"


def significant(value: float) -> str:
    """Format with four significant digits, without an exponent below 10 million and without separators."""
    return f"{value:z.0f}" if 1e3 <= abs(value) < 1e7 else f"{value:z.4g}"


def equal_decimals(*columns: np.ndarray) -> list[list[str]]:
    """Columns of numbers with the same number of decimals, 1 to 4, so that the largest has three significant digits."""
    magnitudes = np.abs(np.concatenate(columns))
    largest = np.max(magnitudes, where=np.isfinite(magnitudes), initial=0.0)
    decimals = int(np.clip(2 - np.floor(np.log10(largest)), 1, 4)) if largest > 0 else 1
    return [[f"{value:z.{decimals}f}" for value in column] for column in columns]


def steps_text(steps: float) -> str:
    """A count of environment steps with four significant digits at most: 950, 20k, 1.5M, 2B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if steps >= size:
            return f"{steps / size:z.4g}{unit}"
    return f"{steps:.0f}"


def duration(seconds: float) -> str:
    """Text of a duration: 12 s, 3 min 20 s, 2 h 5 min."""
    hours, rest = divmod(round(seconds) if math.isfinite(seconds) else 0, 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left} s" if minutes else f"{seconds:.3g} s"


def limits_text(lower: Sequence[float], upper: Sequence[float]) -> str:
    """The limits of several dimensions: "[0, 1] x [-1, 1]"."""
    return " x ".join(f"[{low:g}, {high:g}]" for low, high in zip(lower, upper, strict=True))
