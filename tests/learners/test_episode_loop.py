"""The loop over full episodes: mapped over members it gives what it gives for each, and leaves out those that ended."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agents import backend
from rookery.learners.episode_loop import LANES, ROUND, EpisodeLoop, run_episodes
from rookery.types import Array, Key, PyTree
from tests.tiny import assert_equal

LENGTH, EPISODES = 3 * ROUND + 5, 2
MEMBERS = 5 * LANES // (2 * EPISODES)
"""Of two and a half groups, so that the last group has empty places."""


class Run(NamedTuple):
    """Episodes that end after the steps that their member's genotype names."""

    active: Array
    total: Array
    executed: Array
    """The steps that were executed, also those of ended episodes."""


def advance(genotype: Array, key: Key, run: Run, time: Array, records: bool = False) -> tuple[Run, PyTree]:
    noise = jax.random.uniform(jax.random.fold_in(key, time), run.active.shape)
    total = run.total + jnp.where(run.active, noise, 0.0)
    left = run.active & (time + 1 < genotype)
    row = (jnp.where(run.active, noise, 0.0), run.active) if records else ()
    return Run(left, total, run.executed + 1), row


def start() -> Run:
    return Run(jnp.ones(EPISODES, bool), jnp.zeros(EPISODES), jnp.zeros(EPISODES, jnp.int32))


def record() -> tuple[Array, Array]:
    return jnp.zeros((LENGTH, EPISODES)), jnp.zeros((LENGTH, EPISODES), bool)


def members() -> tuple[Array, Array]:
    """Lifetimes `[P, N]` (the first member's episodes outlast the loop), and keys `[P]`."""
    terminations = jax.random.randint(jax.random.key(1), (MEMBERS, EPISODES), 1, LENGTH)
    return terminations.at[0].set(10 * LENGTH).at[1].set(1), jax.random.split(jax.random.key(2), MEMBERS)


@pytest.mark.parametrize(("records", "together"), [(False, False), (True, False), (True, True)])
def test_many_members_are_as_each_alone(records: bool, together: bool) -> None:
    loop = EpisodeLoop(partial(advance, records=records), EPISODES, LENGTH, together)
    run = partial(run_episodes, loop, start=start(), record=record() if records else ())
    found, recorded = jax.jit(jax.vmap(run))(*members())
    alone, alone_recorded = jax.jit(lambda given: jax.lax.map(lambda own: run(*own), given))(members())
    assert_equal(found._replace(executed=()), alone._replace(executed=()))
    assert_equal(recorded, alone_recorded)
    if records:
        assert np.asarray(recorded[1]).sum() == np.minimum(members()[0], LENGTH).sum()


def test_members_that_ended_are_not_stepped() -> None:
    terminations = jnp.ones((MEMBERS, EPISODES), jnp.int32).at[::11].set(LENGTH)  # four of forty reach the end
    loop, keys = EpisodeLoop(advance, EPISODES, LENGTH), members()[1]

    def executed(loop: EpisodeLoop) -> np.ndarray:
        run = jax.jit(jax.vmap(lambda own, key: run_episodes(loop, own, key, start())[0].executed))
        return np.asarray(run(terminations, keys))[:, 0]

    steps = executed(loop)
    assert (steps[::11] == LENGTH).all()
    # All in the first round, then one group.
    assert steps.sum() <= MEMBERS * ROUND + (LANES // EPISODES) * (LENGTH - ROUND)
    assert (executed(loop._replace(together=True)) == LENGTH).all()
    with backend.tracing_for("gpu"):
        assert (executed(loop) == LENGTH).all()


def test_maps_may_be_nested_and_share_what_they_do_not_map() -> None:
    terminations, _ = members()
    loop, key = EpisodeLoop(advance, EPISODES, LENGTH), jax.random.key(3)

    def total(termination: Array) -> Array:
        return run_episodes(loop, termination, key, start())[0].total

    twice = jax.jit(jax.vmap(jax.vmap(total)))(terminations.reshape(2, -1, EPISODES))
    alone = jax.jit(lambda given: jax.lax.map(total, given))(terminations)
    assert_equal(twice.reshape(alone.shape), alone)
