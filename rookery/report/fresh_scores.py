"""Scores of runs on fresh episodes, which had no part in the selection of the scored policies."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rookery.deploy.evaluate import check_fresh, fresh_fitness
from rookery.report.run_groups import Group
from rookery.report.runs import Run, Score
from rookery.training.progress import bar


class Fresh(NamedTuple):
    """Settings of an evaluation on fresh episodes."""

    episodes: int
    """Number of episodes per scored member, at least 1."""
    checkpoint: str = "last"
    """As for `evaluate`; the same for every run."""
    seed: int = 0
    """Seed of the start states."""


def evaluate_groups(groups: Iterable[Group], fresh: Fresh) -> list[Group]:
    """Score all runs on fresh episodes.

    Returns:
      The groups, with `Run.fresh` set in every run.

    Raises:
      ValueError: fewer episodes than 1, or a run that `fresh_fitness` cannot evaluate.
      CheckpointError: a run has no complete checkpoint.
      ImportError: the package of a run's environment is not installed.
    """
    if fresh.episodes < 1:
        raise ValueError(f"fresh must be at least 1 episode, got {fresh.episodes}.")
    groups = list(groups)
    paths = dict.fromkeys(run.path for group in groups for run in group.runs)
    for path in paths:
        check_fresh(path)
    results, known = {}, {}
    with bar("evaluating runs", len(paths)) as advance:
        for path in paths:
            results[path] = fresh_fitness(path, fresh.episodes, fresh.seed, fresh.checkpoint, known)
            advance(1)
    return [group._replace(runs=tuple(_with_score(run, *results[run.path]) for run in group.runs)) for group in groups]


def _with_score(run: Run, generation: int, fitness: np.ndarray) -> Run:
    return run._replace(fresh=Score(float(run.env_steps[generation - 1]), float(fitness[run.member or 0])))
