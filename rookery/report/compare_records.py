"""What a comparison of runs found, as records."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rookery.report.groups import Group
from rookery.report.statistics import Estimate


class Setting(NamedTuple):
    """What all groups on one environment are held against."""

    budget: float  # environment steps at which every run is scored
    gamma: float  # the score of the optimality gap
    floor: float  # what a run that diverged is worth
    unequal: bool  # whether the runs had different budgets
    score: str  # what runs are held against each other by, in words
    fresh: int = 0  # fresh episodes behind each score; 0 where the runs' own evaluations score


class Row(NamedTuple):
    """A group in numbers, all in units of fitness unless said otherwise.

    `final` is the interquartile mean of each run's last generation, whatever its budget: equal to
    `interquartile_mean` where budgets are, and not comparable between groups elsewhere.
    """

    group: Group
    env_steps: float  # of the generation that is scored; the most among the runs
    scores: np.ndarray  # [runs] at the common budget
    diverged: int  # runs that had diverged by then, scored as the setting's floor
    interquartile_mean: Estimate
    median: Estimate  # over runs
    mean: Estimate
    optimality_gap: Estimate
    final: Estimate

    @property
    def chosen(self) -> str:
        """Of how many members a run's score is the highest; "" where it is that of one, or of an elite."""
        several = self.group.selected and self.group.population != "1"
        return f"best of {self.group.population}" if several else ""


class Pair(NamedTuple):
    """Two groups on the same environment, the one with the better interquartile mean first."""

    first: Group
    second: Group
    probability: Estimate  # that a run of the first scores better than one of the second, in [0, 1]

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves out 0.5, at which neither is better, and there are runs enough to say so.

        With fewer than 4 runs against 4 (or 3 against 5, ...) the most extreme order of the runs comes by chance more
        often than 5 % of the time, while the bootstrap's interval of such an order has no width.
        """
        sizes = len(self.first.runs), len(self.second.runs)
        enough = 2 / math.comb(sum(sizes), sizes[0]) < 0.05
        return enough and bool(self.probability.low > 0.5 or self.probability.high < 0.5)


class Comparison(NamedTuple):
    """What `compare` found."""

    groups: list[Group]
    settings: dict[str, Setting]  # by environment
    rows: list[Row]  # one per group, in the groups' order
    pairs: list[Pair]
    notes: list[str]  # sentences that a reader of the numbers must know
    picture: Path | None
