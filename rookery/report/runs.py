"""Learning curves of runs, their scores, and the mean curve of several runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rookery.report.statistics import Estimate, over_runs

_MOST_POINTS = 150  # of a curve: more are not distinguishable, and cost time
_RESAMPLES = 2000  # bootstrap resamples of a curve's band


class Score(NamedTuple):
    """Score of a run."""

    env_steps: float  # environment steps of the scored generation
    fitness: float  # NaN where no fitness was finite


class Fresh(NamedTuple):
    """How runs are scored on fresh episodes, which had no part in the selection of the scored policies."""

    episodes: int
    """Number of episodes per scored member, at least 1."""
    evaluate: Callable[[Sequence[Path], str | None], Mapping[Path, tuple[int, np.ndarray]]]
    """Run directories, and a measure of the task, or "return" -> the generation of the scored checkpoint, and the
    measure, or without one the fitness, of its members `[N]`, NaN where it is not finite; see `deploy.evaluate.fresh`.
    """


class Run(NamedTuple):
    """Learning curve of one run: of a whole folder, or of one independent member of a folder."""

    path: Path
    """Absolute."""
    seed: int | None
    """None if config.json does not record it."""
    env_steps: np.ndarray
    """`[G]`, cumulative environment steps: of the whole population, or of the independent member."""
    best_fitness: np.ndarray
    """`[G]`, of the best finite member, or the requested score; NaN where no value was finite."""
    column: str = "best_fitness"
    """Source column of `best_fitness` in metrics.csv; "fitness" for an independent member."""
    member: int | None = None
    """Index of the independent member; None where the folder is one run."""
    fresh: Score | None = None
    """Score on fresh episodes, if requested."""
    losses: Sequence[str] = ()
    """A sentence for each table of the folder that has lost rows."""

    def score(self, budget: float) -> Score:
        """Score on fresh episodes if there is one, else of the last generation within a budget of environment steps."""
        if self.fresh is not None:
            return self.fresh
        last = int(np.searchsorted(self.env_steps, budget, side="right")) - 1
        return Score(float(self.env_steps[last]), float(self.best_fitness[last]))

    @property
    def end(self) -> Score:
        """Score of the last generation."""
        return self.score(np.inf)

    @property
    def diverged(self) -> bool:
        """Whether no fitness of the last generation is finite."""
        return not np.isfinite(self.end.fitness)


def finite_or_nan(values: np.ndarray) -> np.ndarray:
    """The values, with NaN in the place of those that are infinite."""
    return np.where(np.isfinite(values), values, np.nan)


def ranking_fitness(fitness: np.ndarray) -> np.ndarray:
    """The fitness by which members are ranked: that of a member that diverged is -inf."""
    return np.where(np.isfinite(fitness), fitness, -np.inf)


def worst_fitness(runs: Iterable[Run]) -> float:
    """The lowest fitness of any run in any generation, the score of diverged runs; NaN where no value was finite."""
    return min(
        (float(np.nanmin(run.best_fitness)) for run in runs if np.isfinite(run.best_fitness).any()), default=np.nan
    )


def curve(runs: Sequence[Run], floor: float) -> tuple[np.ndarray, Estimate[np.ndarray]]:
    """The interquartile mean over the runs of a group, up to the number of steps that all of them reached.

    Args:
      runs: at least one; a diverged run continues with the floor up to the end of the others.
      floor: fitness of a run without a finite member.

    Returns:
      Environment steps `[points]`, at most 150, and the best fitness there, each field `[points]`.
    """
    finite = [run for run in runs if np.isfinite(run.best_fitness[-1])]
    ends = [run.env_steps[-1] for run in finite or runs]
    steps = np.unique(np.concatenate([run.env_steps for run in runs]))
    steps = steps[(steps >= max(run.env_steps[0] for run in runs)) & (steps <= min(ends))]
    if len(steps) > _MOST_POINTS:
        steps = steps[np.unique(np.linspace(0, len(steps) - 1, _MOST_POINTS).round().astype(int))]
    reached = [run.best_fitness[np.searchsorted(run.env_steps, steps, side="right") - 1] for run in runs]
    return steps, over_runs(np.stack(reached, axis=1), floor, _RESAMPLES)
