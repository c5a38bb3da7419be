"""Targets of value learning by hand."""

import jax.numpy as jnp
import numpy as np

from rookery import returns


def test_the_target_bootstraps_only_where_nothing_terminated() -> None:
    # 1 + 0.9 x 10 = 10; terminated: the reward alone; -2 + 0.9 x 5 = 2.5.
    target = returns.td_target(
        jnp.asarray([1.0, 1.0, -2.0]),
        jnp.asarray([False, True, False]),
        jnp.asarray(0.9),
        jnp.asarray([10.0, 10.0, 5.0]),
    )
    np.testing.assert_allclose(target, [10.0, 1.0, 2.5], rtol=1e-6)


def test_a_value_behind_a_termination_cannot_reach_the_target() -> None:
    values = jnp.asarray([jnp.nan, jnp.inf, -jnp.inf])
    target = returns.td_target(jnp.asarray([1.0, 2.0, 3.0]), jnp.ones(3, bool), jnp.asarray(0.99), values)
    assert target.tolist() == [1.0, 2.0, 3.0]


def test_the_soft_value_takes_the_smaller_twin_and_adds_the_entropy() -> None:
    # min(3, 2) - 0.5 x (-1.2) = 2.6; min(-1, 4) - 0.5 x 2 = -2.
    value = returns.soft_value(jnp.asarray([[3.0, 2.0], [-1.0, 4.0]]), jnp.asarray([-1.2, 2.0]), jnp.asarray(0.5))
    np.testing.assert_allclose(value, [2.6, -2.0], rtol=1e-6)
