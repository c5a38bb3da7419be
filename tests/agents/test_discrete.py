"""Values of discrete actions: the greedy action, exploration by random actions, its schedule, and masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agents import discrete

VALUES = jnp.asarray([1.0, 5.0, 2.0, 0.0])
MASK = jnp.asarray([True, False, True, True])


def test_the_greedy_action_is_available_and_marked_where_a_value_is_not_finite() -> None:
    assert int(discrete.greedy(VALUES, None)) == 1
    assert int(discrete.greedy(VALUES, MASK)) == 2
    assert discrete.greedy(jnp.stack([VALUES, VALUES.at[0].set(jnp.nan)]), MASK).tolist() == [2, -1]
    assert int(discrete.greedy(VALUES.at[1].set(jnp.inf), MASK)) == -1
    assert discrete.greedy(VALUES, None, (1, 3)).tolist() == [0, 0]
    assert discrete.greedy(VALUES, MASK, (1, 3)).tolist() == [0, 1]
    assert discrete.greedy(VALUES.at[0].set(jnp.nan), MASK, (1, 3)).tolist() == [-1, -1]


@pytest.mark.parametrize("mask", [None, MASK])
def test_random_actions_have_the_share_epsilon_and_are_available(mask: jax.Array | None) -> None:
    epsilon, keys = 0.6, jax.random.split(jax.random.key(0), 6_000)
    draw = jax.jit(jax.vmap(lambda key: discrete.epsilon_greedy(VALUES, mask, epsilon, key)))
    action, log_prob = draw(keys)
    exists = np.ones(4, bool) if mask is None else np.asarray(mask)
    chances = np.where(exists, epsilon / exists.sum(), 0.0)
    chances[1 if mask is None else 2] += 1.0 - epsilon
    np.testing.assert_allclose(np.bincount(action, minlength=4) / len(action), chances, atol=0.02)
    np.testing.assert_allclose(np.exp(log_prob), chances[np.asarray(action)], rtol=1e-5)
    assert action.dtype == jnp.int32
    none, always = (discrete.epsilon_greedy(VALUES, mask, share, keys[0])[1] for share in (0.0, 1.0))
    np.testing.assert_allclose(np.exp([none, always]), [1.0, 1.0 / exists.sum()], rtol=1e-5)


def test_exploration_falls_linearly_and_then_stays() -> None:
    shares = [float(discrete.exploration(0.2, jnp.int32(update), 4)) for update in (0, 1, 2, 4, 5, 1_000)]
    np.testing.assert_allclose(shares, [1.0, 0.8, 0.6, 0.2, 0.2, 0.2], rtol=1e-6)
    for over in (0, None):
        assert float(discrete.exploration(0.2, jnp.int32(0), over)) == pytest.approx(0.2)


def test_the_values_of_actions_and_their_gradient() -> None:
    values, action = jnp.arange(6.0).reshape(2, 3), jnp.asarray([2, 0])
    assert discrete.of_action(values, action).tolist() == [2.0, 3.0]
    slope = jax.grad(lambda values: jnp.sum(discrete.of_action(values, action)))(values)
    assert slope.tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
