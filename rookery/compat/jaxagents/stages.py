"""A life in stages: so many updates, then a judgement, again and again; on the host or within a trace.

`lifetime.train` is a whole life of generations that are alike. Here a training has exactly as many updates as it was
asked for, every update has start states of its own, everybody is judged by the same episodes, and one can look in
between, stop, and go on later. Learners are to make one update in a generation.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.compat.records import typed
from rookery.envs.wrappers import auto_reset
from rookery.learners import rollout
from rookery.learners.base import Learner, Member
from rookery.types import Evaluation, Genotype, Hyper, Key, Metrics, PyTree

Stage = Callable[[int, Any], tuple[Any, PyTree]]
"""(updates, where one is) -> where one is then, and what is told of it. The number is static."""


class Underway(NamedTuple):
    """A life in the middle of it."""

    member: Member
    key: Key  # consumed by the next update, which leaves another


def begin(learner: Learner, key: Key, hyper: Hyper) -> Underway:
    """Nothing learned yet; the key, raw or typed, is consumed."""
    bank_key, member_key, key = jax.random.split(typed(key), 3)
    return Underway(learner.init(member_key, hyper, learner.start_states(bank_key)), key)


def learn(learner: Learner, updates: int, life: Underway) -> tuple[Underway, Metrics]:
    """So many updates, at least 1; metrics `[]` are their means."""
    life, metrics = jax.lax.scan(partial(_learn_once, learner), life, length=updates)
    return life, jax.tree.map(partial(jnp.mean, axis=0), metrics)


def _learn_once(learner: Learner, life: Underway, _: None) -> tuple[Underway, Metrics]:
    key, bank_key, step_key = jax.random.split(life.key, 3)
    bank = learner.start_states(bank_key)
    member, metrics = learner.step(life.member, bank, step_key, jnp.zeros((), jnp.int32))
    return Underway(member, key), metrics


def evaluate(evaluator: rollout.Evaluator, genotype: Genotype, key: Key) -> Evaluation:
    """Full episodes that begin alike whenever the key, raw or typed, is the same."""
    bank_key, key = jax.random.split(typed(key))
    return rollout.evaluate(
        evaluator, genotype, auto_reset.start_bank(evaluator.environment, bank_key, evaluator.episodes), key
    )


def stages(updates: int, every: int) -> list[int]:
    """How many updates each stage has: `every`, and at last those that are left; both are at least 1."""
    every = min(every, updates)
    return [min(every, updates - done) for done in range(0, updates, every)]


def through(stage: Stage, counts: list[int], begun: Any, first: PyTree) -> tuple[Any, PyTree]:
    """All stages within a trace; stages that are alike are compiled once.

    Args:
      stage: pure.
      counts: from `stages`.
      begun: where one begins.
      first: what is told of that.

    Returns:
      Where one is then; and what was told, leaves `[len(counts) + 1, ...]`.
    """
    alike = [count for count in counts if count == counts[0]]
    now, rows = jax.lax.scan(lambda now, _: stage(counts[0], now), begun, length=len(alike))
    parts = [trees.stack([first]), rows]
    for count in counts[len(alike) :]:
        now, row = stage(count, now)
        parts.append(trees.stack([row]))
    return now, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def watched(
    stage: Stage, counts: list[int], begun: Any, first: PyTree, tell: Callable[[int, Any, PyTree], None]
) -> tuple[Any, PyTree]:
    """The same on the host, with a look at each stage's end: the stage is waited for, and `tell` is given how many
    updates it had, where one is, and what is told of it."""
    now, rows = begun, [first]
    for count in counts:
        now, row = jax.block_until_ready(stage(count, now))
        rows.append(row)
        tell(count, now, row)
    return now, trees.stack(rows)
