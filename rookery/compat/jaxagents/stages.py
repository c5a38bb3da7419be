"""Training in stages, each a number of updates and an evaluation; on the host or inside a traced function.

Unlike `lifetime.train`, which trains for equal generations, training in stages makes exactly the requested number of
updates, draws new start states for every update, uses the same episodes in all evaluations, and can report after each
stage, stop, and continue later. Learners must make one update per generation.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.compat.records import typed_key
from rookery.envs.wrappers import auto_reset
from rookery.learners import rollout
from rookery.learners.base import Learner, Member
from rookery.types import Evaluation, Genotype, Hyper, Key, Metrics, PyTree

StageFn = Callable[[int, Any], tuple[Any, PyTree]]
"""(updates, state) -> next state, its metrics. The number of updates is static."""


class TrainingState(NamedTuple):
    """State of training between updates."""

    member: Member
    key: Key
    """Consumed by the next update, which returns a new key."""


def begin(learner: Learner, key: Key, hyper: Hyper) -> TrainingState:
    """Initialise a member; the key, raw or typed, is consumed."""
    bank_key, member_key, key = jax.random.split(typed_key(key), 3)
    return TrainingState(learner.init(member_key, hyper, learner.start_states(bank_key)), key)


def learn(learner: Learner, updates: int, state: TrainingState) -> tuple[TrainingState, Metrics]:
    """Make `updates` updates, at least 1; metrics `[]` are means over the updates."""
    state, metrics = jax.lax.scan(partial(_learn_once, learner), state, length=updates)
    return state, jax.tree.map(partial(jnp.mean, axis=0), metrics)


def _learn_once(learner: Learner, state: TrainingState, _: None) -> tuple[TrainingState, Metrics]:
    key, bank_key, step_key = jax.random.split(state.key, 3)
    bank = learner.start_states(bank_key)
    member, metrics = learner.step(state.member, bank, step_key, jnp.zeros((), jnp.int32))
    return TrainingState(member, key), metrics


def evaluate(evaluator: rollout.Evaluator, genotype: Genotype, key: Key) -> Evaluation:
    """Evaluate in full episodes; equal keys, raw or typed, give equal start states."""
    bank_key, key = jax.random.split(typed_key(key))
    return rollout.evaluate(
        evaluator, genotype, auto_reset.start_bank(evaluator.environment, bank_key, evaluator.episodes), key
    )


def stage_counts(updates: int, every: int) -> list[int]:
    """Number of updates of each stage: `every`, and the remainder in the last; both arguments are at least 1."""
    every = min(every, updates)
    return [min(every, updates - done) for done in range(0, updates, every)]


def scan_stages(stage: StageFn, counts: list[int], initial: Any, first: PyTree) -> tuple[Any, PyTree]:
    """Run all stages inside a traced function; stages with equal counts are compiled once.

    Args:
      stage: pure function of one stage.
      counts: updates of each stage, see `stage_counts`.
      initial: initial state.
      first: metrics of the initial state.

    Returns:
      The final state, and all metrics, leaves `[len(counts) + 1, ...]`.
    """
    equal_counts = [count for count in counts if count == counts[0]]
    state, rows = jax.lax.scan(lambda state, _: stage(counts[0], state), initial, length=len(equal_counts))
    parts = [trees.stack([first]), rows]
    for count in counts[len(equal_counts) :]:
        state, row = stage(count, state)
        parts.append(trees.stack([row]))
    return state, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def run_stages(
    stage: StageFn, counts: list[int], initial: Any, first: PyTree, report: Callable[[int, Any, PyTree], None]
) -> tuple[Any, PyTree]:
    """Run all stages on the host, with a callback after each.

    Args:
      stage: compiled function of one stage; its result is awaited before the callback.
      counts: updates of each stage, see `stage_counts`.
      initial: initial state.
      first: metrics of the initial state.
      report: called with the number of updates of the stage, the state after it, and its metrics.

    Returns:
      The final state, and all metrics, leaves `[len(counts) + 1, ...]`.
    """
    state, rows = initial, [first]
    for count in counts:
        state, row = jax.block_until_ready(stage(count, state))
        rows.append(row)
        report(count, state, row)
    return state, trees.stack(rows)
