"""Records of a comparison of runs."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rookery.report.run_groups import Group
from rookery.report.statistics import Estimate


class Setting(NamedTuple):
    """Settings shared by all groups on one environment."""

    budget: float
    """Environment steps at which every run is scored."""
    gamma: float
    """Target score of the optimality gap."""
    floor: float
    """Score of a diverged run."""
    unequal: bool
    """Whether the runs had different budgets."""
    score: str
    """Label of the score."""
    fresh: int = 0
    """Number of fresh episodes per score; 0 where scores are evaluations recorded in training."""


class Row(NamedTuple):
    """Statistics of a group, in units of fitness unless stated otherwise."""

    group: Group
    env_steps: float
    """Environment steps of the scored generation; the largest among the runs."""
    scores: np.ndarray
    """`[runs]`, at the common budget."""
    diverged: int
    """Number of runs that had diverged by then, scored with `Setting.floor`."""
    interquartile_mean: Estimate[float]
    median: Estimate[float]
    """Median over runs."""
    mean: Estimate[float]
    optimality_gap: Estimate[float]

    @property
    def chosen(self) -> str:
        """A remark on the number of members whose best is the score; "" for a single member or an elite."""
        several = self.group.selected and self.group.population != "1"
        return f"best of {self.group.population}" if several else ""


TOO_FEW = "too few runs to tell"  # in place of an interval of a pair of groups


class Pair(NamedTuple):
    """Two groups on the same environment, the one with the better interquartile mean first."""

    first: Group
    second: Group
    probability: Estimate[float]
    """Probability in [0, 1] that a run of the first scores better than a run of the second."""

    @property
    def has_enough_runs(self) -> bool:
        """Whether the runs are enough for a difference to be clear.

        With fewer than 4 runs against 4 (or 3 against 5, ...) the most extreme order of the runs occurs by chance with
        a probability above 5 %, while the bootstrap interval of such an order has no width.
        """
        sizes = len(self.first.runs), len(self.second.runs)
        return 2 / math.comb(sum(sizes), sizes[0]) < 0.05

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0.5, at which neither group is better, and there are enough runs."""
        return self.has_enough_runs and bool(self.probability.low > 0.5 or self.probability.high < 0.5)


class Comparison(NamedTuple):
    """Result of `compare`."""

    groups: list[Group]
    settings: dict[str, Setting]
    """By environment."""
    rows: list[Row]
    """One per group, in the order of `groups`."""
    pairs: list[Pair]
    notes: list[str]
    """Limits of the comparison."""
    picture: Path | None

    def rows_on(self, environment: str) -> list[Row]:
        """The groups on an environment, in the order of `groups`."""
        return [row for row in self.rows if row.group.environment == environment]

    def pairs_on(self, environment: str) -> list[Pair]:
        """The pairs of groups on an environment."""
        return [pair for pair in self.pairs if pair.first.environment == environment]


def ranked(rows: Iterable[Row]) -> list[Row]:
    """The rows, the highest interquartile mean first."""
    return sorted(rows, key=lambda row: -row.interquartile_mean.value)
