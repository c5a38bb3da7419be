"""Blocks of updates in groups: each update runs once, in order, with its inputs and its place in the period."""

import itertools
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import buffers
from rookery.agents import backend
from rookery.agents.base import OffPolicyAgent, UpdateLayout
from rookery.agents.td3 import Td3Config, Td3State, td3
from rookery.envs import registry
from rookery.learners import grouped_updates
from rookery.learners.base import Member
from rookery.learners.off_policy import learn
from rookery.types import Array, Observation, PyTree, Transition

MAZE = registry.make("point_maze")
MEMBERS, ROWS, BATCH = 2, 32, 8
LAYOUTS = {(period, group) for period in (1, 2, 3, 4) for group in (2, 3, 4, 6) if group % period == 0}
RUN = ((1, 2), (2, 6), (3, 3))
"""Layouts that run: groups of one period and of several, also where updates and periods have a common divisor."""


@pytest.mark.parametrize(("period", "group"), sorted(LAYOUTS))
def test_a_schedule_has_every_update_once_and_groups_begin_a_period(period: int, group: int):
    layout = UpdateLayout(period=period, group=group)
    for updates, place in itertools.product(range(1, 30), range(period)):
        found = grouped_updates.schedule(updates, layout, place)
        places = [*found.before, *list(range(group)) * found.groups, *found.after]
        assert [one % period for one in places] == [(place + k) % period for k in range(updates)]
        assert len(found.before) < period
        assert len(found.after) < group


def record(period: int, state: Array, inputs: tuple) -> tuple[Array, dict[str, Array]]:
    """An update whose result depends on its inputs, its place and the order; exact."""
    row, noise, place = inputs
    return (state * 31 + 7 * row + 3 * noise + place % period) % 9_973, {"row": row.astype(jnp.float32)}


@pytest.mark.parametrize("updates", [1, 6, 25])
@pytest.mark.parametrize(("period", "group"), RUN)
def test_updates_run_in_order_with_their_inputs_and_places(period: int, group: int, updates: int):
    layout = UpdateLayout(period=period, group=group)
    inputs = np.random.default_rng(0).integers(0, 1_000, (2, 2 * period, MEMBERS, updates), dtype=np.int32)
    run = partial(grouped_updates.run, partial(record, period), layout)
    run_members = jax.jit(jax.vmap(run, in_axes=(0, 0, None)))
    expected = state = np.arange(MEMBERS, dtype=np.int32)
    for block, (rows, noise) in enumerate(zip(*inputs, strict=True)):  # two periods of blocks
        for k in range(updates):
            place = (block * updates + k) % period
            expected = (expected * 31 + 7 * rows[:, k] + 3 * noise[:, k] + place) % 9_973
        state, metrics = run_members(state, (jnp.asarray(rows), jnp.asarray(noise)), jnp.int32(block * updates))
        np.testing.assert_array_equal(state, expected)
        np.testing.assert_allclose(metrics["row"], rows.mean(axis=1), rtol=1e-6)


def agent_with(delay: int) -> OffPolicyAgent:
    return td3(MAZE.spec, Td3Config(hidden_sizes=(4,), policy_delay=delay))


def members_of(agent: OffPolicyAgent, buffer: buffers.Buffer) -> Member:
    """A population with full buffers of random rows."""

    def init(key: Array) -> Member:
        agent_key, *keys = jax.random.split(key, 5)
        draw = partial(jax.random.normal, shape=(ROWS, MAZE.spec.observation_size))
        row = Transition(
            Observation(draw(keys[0])),
            jax.random.uniform(keys[1], (ROWS, MAZE.spec.action_size), minval=-1.0),
            jax.random.normal(keys[2], (ROWS,)),
            Observation(draw(keys[3])),
            jnp.zeros((ROWS,), bool),
        )
        stored = buffer.add(buffer.init(jax.tree.map(lambda leaf: leaf[0], row)), row)
        hyper = jax.tree.map(jnp.float32, agent.space.defaults)
        return Member(agent.start(agent.init(agent_key)), hyper, None, (), stored)

    return jax.vmap(init)(jax.random.split(jax.random.key(0), MEMBERS))


def learning(agent: OffPolicyAgent, updates: int) -> tuple[Member, Any]:
    """A population, and its block of updates."""
    buffer = buffers.ring(ROWS)

    def learn_block(member: Member, key: Array, first: Array) -> tuple[Td3State, PyTree]:
        return learn(agent, buffer, member, key, first, updates, BATCH)

    return jax.jit(partial(members_of, agent, buffer))(), jax.vmap(learn_block, in_axes=(0, 0, None))


@pytest.mark.parametrize(
    ("delay", "updates", "places"),
    [(2, 25, {0, 1}), (4, 2, {0, 1, 2, 3})],
)
def test_an_update_knows_when_it_is_traced_whether_the_policy_is_due(delay: int, updates: int, places: set[int]):
    agent, numbers = agent_with(delay), []

    def noting(state: PyTree, hyper: PyTree, batch: PyTree, noise: Array, step: Any) -> tuple[PyTree, PyTree]:
        numbers.append(step)
        return agent.update(state, hyper, batch, noise, step)

    population, block = learning(agent._replace(update=noting), updates)
    with backend.tracing_for("gpu"):
        jax.eval_shape(block, population, jax.random.split(jax.random.key(1), MEMBERS), jnp.int32(0))
    del numbers[0]  # from a trace without computation, for the shapes of the metrics
    assert all(isinstance(number, int) for number in numbers)
    assert set(numbers) == places
