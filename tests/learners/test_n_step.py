"""Returns over several steps, against a loop in plain Python over the stored rows."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import buffers, trees
from rookery.hyperparams import choose
from rookery.learners import n_step
from rookery.types import Observation, Transition
from tests.agents.common import numbers
from tests.learners.fixed_agents import started

ENVS, DISCOUNT = 2, 0.5


class Hyper(NamedTuple):
    discount: jax.Array
    n_step: jax.Array


def row(step: int, reward: list[float], terminated: list[bool]) -> Transition:
    """A step of both environments; observations name it: the number of the step, and that of the next one."""
    now, later = (Observation(jnp.full((ENVS, 1), float(at))) for at in (step, step + 1))
    return Transition(now, jnp.zeros((ENVS, 1)), jnp.asarray(reward), later, jnp.asarray(terminated))


def filled(capacity: int, steps: int, left_out: int | None = None) -> buffers.BufferState:
    """Rewards are the numbers of the steps, from 1 on, times 1 and 10. The first environment's episode is cut by a time
    limit in step 3, and that of the second one ends in step 5; a row of the first one may be left out."""
    buffer, state = buffers.ring(capacity), None
    add, placed = jax.jit(buffer.add), jax.jit(n_step.placed)
    for step in range(1, steps + 1):
        rows = row(step, [step, 10.0 * step], [False, step == 5])
        rows = placed(rows, jnp.asarray([step == 3, step == 5]), jnp.int32(step - 1))
        state = buffer.init(trees.take(rows, 0)) if state is None else state
        state = add(state, rows, jnp.asarray([step != left_out, True]))
    assert state is not None
    return state


@pytest.mark.parametrize(("capacity", "left_out", "n"), [(20, None, 1), (20, None, 3), (11, None, 3), (20, 7, 3)])
def test_each_return_ends_with_the_episode_and_with_what_is_stored(capacity, left_out, n) -> None:
    state = filled(capacity, 8, left_out)
    indices = jnp.arange(int(state.size))
    read = jax.jit(n_step.read, static_argnums=3)
    batch, hyper = jax.device_get(read(state, indices, Hyper(jnp.float32(DISCOUNT), jnp.float32(n)), ENVS))
    state = jax.device_get(state)
    stored = {
        (int(environment), int(time))
        for environment, time in zip(state.rows.extras.environment, state.rows.extras.time, strict=True)
    }
    for at in range(len(indices)):
        environment, time = (int(part[at]) for part in state.rows.extras[:2])
        total, steps_taken, last = 0.0, 0, time
        for step in range(time, time + n):
            if (environment, step) not in stored or (left_out is not None and step >= left_out > time):
                break  # rows after one that is left out lie at other places
            total += DISCOUNT**steps_taken * step * (10.0 if environment else 1.0)
            steps_taken, last = steps_taken + 1, step
            if step == (5 if environment else 3):
                break
        assert float(batch.observation.features[at, 0]) == time
        assert float(batch.reward[at]) == pytest.approx(total)
        assert float(batch.next_observation.features[at, 0]) == last + 1
        assert bool(batch.terminated[at]) == (environment == 1 and last == 5)
        assert float(hyper.discount[at]) == pytest.approx(DISCOUNT**steps_taken)


def test_with_one_step_a_learner_learns_as_without() -> None:
    env = rookery.make("point_room")
    sizes: Any = {"num_envs": 2, "steps_per_generation": 24, "batch_size": 4, "buffer_size": 13, "warmup_steps": 4}
    learner = rookery.off_policy(rookery.sac(env.spec, hidden_sizes=(4,)), env, **sizes)
    step, states = jax.jit(learner.step), []  # compiled once for any number of steps
    for chosen in ({}, {"n_step": 1}, {"n_step": 3}):
        member, bank = started(learner, **chosen)
        states.append(numbers(step(member, bank, jax.random.key(2), jnp.int32(0))[0].state))
    np.testing.assert_allclose(states[1], states[0], rtol=1e-5, atol=1e-6)
    assert not np.allclose(states[2], states[0], rtol=1e-3)


def test_a_reward_that_the_agent_computes_has_no_returns() -> None:
    env = rookery.skills(rookery.make("point_room"), num_skills=2)
    learner = rookery.off_policy(rookery.diayn(rookery.sac(env.spec), env.spec), env)
    with pytest.raises(ValueError, match="no hyper-parameter here named 'n_step'"):
        choose(learner.space, n_step=2)
