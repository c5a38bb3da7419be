"""Learners and evaluators with another number of evaluation episodes."""

import dataclasses
from functools import partial

from rookery.learners import evaluation
from rookery.learners.base import Evaluator, Learner
from rookery.types import HyperT, StateT


def with_episodes(learner: Learner[StateT, HyperT], episodes: int) -> Learner[StateT, HyperT]:
    """The same learner, evaluated on another number of episodes, each from a separate start state.

    Raises:
      ValueError: `episodes` is below 1, or the learner has no evaluator.
    """
    if learner.evaluator is None:
        raise ValueError(f"the learner of {learner.spec.name} has no evaluator, whose number of episodes could change.")
    evaluator = more_episodes(learner.evaluator, episodes)
    return learner._replace(
        **evaluation.evaluation_of(evaluator),
        trace=partial(evaluation.trace, evaluator),
        evaluation_steps=evaluator.steps,
    )


def more_episodes(evaluator: Evaluator, episodes: int) -> Evaluator:
    """The evaluator with another number of episodes, which skills round up, and at least as many start states."""
    starts = max(episodes, evaluator.config.start_states)
    config = dataclasses.replace(evaluator.config, eval_episodes=episodes, start_states=starts)
    return evaluator._replace(config=config, episodes=evaluation.whole_rounds(evaluator.environment, config))
