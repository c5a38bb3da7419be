"""Wrappers that make a team of a single agent, and that carry an agent's memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import registry
from rookery.envs.base import ActionWithCarry, Environment, Team
from rookery.envs.wrappers import auto_reset
from rookery.envs.wrappers.recurrence import with_carry
from rookery.envs.wrappers.skills import skills
from rookery.envs.wrappers.teams import as_team, identify
from rookery.types import Observation
from tests.learners.recording import LENGTH, counting
from tests.learners.rollouts import ERRAND, errand
from tests.learners.rollouts import LENGTH as ERRAND_LENGTH
from tests.tiny import assert_equal

ACTION = jnp.asarray([0.5, -0.25])


def followed(environment: Environment, action: Any, steps: int) -> tuple:
    """The step of a reset, and those after it, `[T, ...]`."""

    def once(state: Any, key: jax.Array) -> tuple:
        return environment.step(state, action, key)

    def walked(key: jax.Array) -> tuple:
        state, first = environment.reset(key)
        return first, jax.lax.scan(once, state, jax.random.split(key, steps))[1]

    return jax.jit(walked)(jax.random.key(3))


# --- a team of one


@pytest.fixture(scope="module")
def both() -> tuple:
    plain = counting()
    return followed(plain, ACTION, LENGTH), followed(as_team(plain), ACTION[None], LENGTH)


def test_a_team_of_one_gives_the_same_steps(both: tuple) -> None:
    for plain, team in zip(*both, strict=True):
        for name in ("reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(team, name), np.asarray(getattr(plain, name))[..., None])
        for name in ("observation", "final_observation"):
            alone = np.asarray(getattr(plain, name).features)
            assert_equal(getattr(team, name), Observation(jnp.asarray(alone[..., None, :])))
        for name in ("descriptor", "broken"):
            np.testing.assert_array_equal(getattr(team, name), getattr(plain, name))
    spec, plain_env = as_team(counting()).spec, errand()
    assert spec.team == Team(("agent",), (2,), (2,))
    assert spec._replace(team=None) == counting().spec
    assert as_team(plain_env) is plain_env
    with pytest.raises(ValueError, match=r" has skills or a memory; apply as_team before adding them\.$"):
        as_team(with_carry(counting(), 1))


# --- index of the agent


def test_every_observation_has_the_agents_index() -> None:
    environment, action = errand(), jnp.asarray([[0.5, 0.25], [-0.5, 0.0]])
    known = identify(environment)
    plain, reported = followed(environment, action, ERRAND_LENGTH), followed(known, action, ERRAND_LENGTH)
    for before, after in zip(plain, reported, strict=True):
        for name in ("observation", "final_observation"):
            observation = getattr(after, name)
            axes = observation.features.shape[:-1]
            np.testing.assert_array_equal(observation.agent, np.broadcast_to(np.eye(2), (*axes, 2)))
            assert_equal(observation._replace(agent=None), getattr(before, name))
        assert_equal(*(each._replace(observation=(), final_observation=()) for each in (after, before)))
    spec = known.spec
    assert spec == ERRAND._replace(identified=True)
    assert spec.input_size == ERRAND.input_size + 2 == 5
    with pytest.raises(ValueError, match=r"^counting is a single-agent environment; only a team needs the agent's"):
        identify(counting())


def test_the_index_is_there_after_an_automatic_reset() -> None:
    environment = identify(errand())
    bank = jax.jit(lambda key: auto_reset.start_bank(environment, key, 2))(jax.random.key(0))
    _, steps = followed(auto_reset.auto_reset(environment, bank), jnp.zeros((2, 2)), 2 * ERRAND_LENGTH)
    np.testing.assert_array_equal(steps.observation.agent, np.broadcast_to(np.eye(2), (8, 2, 2)))
    assert steps.observation.features[:, 1, 0].tolist() == [1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 3.0, 0.0]
    assert steps.final_observation.features[:, 1, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0]


# --- carry


@pytest.mark.parametrize("plain_env", [counting, errand])
def test_the_carry_is_in_the_next_observation_and_zero_at_a_start(plain_env: Callable[[], Environment]) -> None:
    environment = plain_env()
    agents = (2,) if environment.spec.team else ()
    carry = jnp.arange(3.0 * (2 if agents else 1)).reshape(*agents, 3) + 1.0
    action = jnp.full((*agents, 2), 0.5)
    recurrent = with_carry(environment, 3)
    assert recurrent.spec == environment.spec._replace(recurrent=True)
    bank = jax.jit(lambda key: auto_reset.start_bank(recurrent, key, 2))(jax.random.key(0))
    plain_bank = jax.jit(lambda key: auto_reset.start_bank(environment, key, 2))(jax.random.key(0))
    first, steps = followed(auto_reset.auto_reset(recurrent, bank), ActionWithCarry(action, carry), 8)
    plain_first, plain = followed(auto_reset.auto_reset(environment, plain_bank), action, 8)
    assert first.observation.carry.shape == carry.shape
    assert not np.asarray(first.observation.carry).any()
    assert_equal(first.observation._replace(carry=None), plain_first.observation)
    np.testing.assert_array_equal(steps.final_observation.carry, np.broadcast_to(carry, (8, *carry.shape)))
    over = np.all(np.asarray(plain.terminated | plain.truncated).reshape(8, -1), axis=1).tolist()
    assert 1 <= sum(over) < 8
    for time in range(8):
        shown = np.asarray(steps.observation.carry)[time]
        np.testing.assert_array_equal(shown, np.zeros_like(shown) if over[time] else carry)
    assert_equal(steps.observation._replace(carry=None), plain.observation)
    assert_equal(steps.final_observation._replace(carry=None), plain.final_observation)
    np.testing.assert_array_equal(steps.reward, plain.reward)


def test_a_carry_that_does_not_fit_is_an_error() -> None:
    plain = counting()
    assert with_carry(plain, None) is plain
    with pytest.raises(ValueError, match=r"^the sizes of a carry must be at least 1, got -1\.$"):
        with_carry(plain, -1)
    with pytest.raises(ValueError, match=r"^point_room has skills already; pass an environment without"):
        with_carry(skills(registry.make("point_room"), 2), 2)
