"""Scores of runs on fresh episodes, which had no part in choosing what is scored."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from rookery.deploy import evaluate
from rookery.report.groups import Group, Run, Score
from rookery.training.progress import bar


class Fresh(NamedTuple):
    """Which fresh episodes score a run."""

    episodes: int  # of each member that is scored, at least 1
    checkpoint: str = "last"  # as for `evaluate`, the same for every run
    seed: int = 0  # of the start states


def evaluate_groups(groups: Iterable[Group], fresh: Fresh) -> list[Group]:
    """The groups, each of whose runs has the score of fresh episodes.

    Raises:
      ValueError: fewer episodes than 1, or what `evaluate.fresh_fitness` raises; so do CheckpointError and ImportError.
    """
    if fresh.episodes < 1:
        raise ValueError(f"fresh must be at least 1 episode, got {fresh.episodes}.")
    groups = list(groups)
    paths = dict.fromkeys(run.path for group in groups for run in group.runs)
    for path in paths:
        evaluate.check_fresh(path)
    found = {}
    with bar("evaluating runs", len(paths)) as advance:
        for path in paths:
            found[path] = evaluate.fresh_fitness(path, fresh.episodes, fresh.seed, fresh.checkpoint)
            advance(1)
    return [group._replace(runs=tuple(_scored(run, *found[run.path]) for run in group.runs)) for group in groups]


def _scored(run: Run, generation: int, fitness: np.ndarray) -> Run:
    return run._replace(fresh=Score(float(run.env_steps[generation - 1]), float(fitness[run.member or 0])))
