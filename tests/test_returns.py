"""Targets of value learning by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
    values = jnp.asarray([jnp.nan, jnp.inf, -jnp.inf])  # after a termination a value has no effect
    target = returns.td_target(jnp.asarray([1.0, 2.0, 3.0]), jnp.ones(3, bool), jnp.asarray(0.99), values)
    assert target.tolist() == [1.0, 2.0, 3.0]


def test_the_soft_value_takes_the_smaller_twin_and_adds_the_entropy() -> None:
    # min(3, 2) - 0.5 x (-1.2) = 2.6; min(-1, 4) - 0.5 x 2 = -2.
    value = returns.soft_value(jnp.asarray([[3.0, 2.0], [-1.0, 4.0]]), jnp.asarray([-1.2, 2.0]), jnp.asarray(0.5))
    np.testing.assert_allclose(value, [2.6, -2.0], rtol=1e-6)


# --- generalised advantages: discount 0.5; time 1 terminates, time 3 is truncated, time 5 ends the rollout

REWARD = [1.0, 2.0, 0.0, 3.0, 1.0, 0.0]
VALUE = [2.0, 4.0, 1.0, 2.0, 0.0, 2.0]
NEXT_VALUE = [4.0, 100.0, 2.0, 6.0, 2.0, 8.0]
TERMINATED = [False, True, False, False, False, False]
ENDED = [False, True, False, True, False, False]
RESIDUAL = [1.0, -2.0, 0.0, 4.0, 2.0, 2.0]  # e.g. at time 3: 3 + 0.5 x 6 - 2


def advantages(lambda_: float, **changed: list) -> np.ndarray:
    steps = {"reward_t": REWARD, "terminated_t": TERMINATED, "ended_t": ENDED, "value_t": VALUE}
    steps = {**steps, "value_tp1": NEXT_VALUE, **changed}
    arrays = {name: jnp.asarray(values) for name, values in steps.items()}
    return np.asarray(returns.gae(**arrays, discount=0.5, lambda_=lambda_))


@pytest.mark.parametrize(
    ("lambda_", "expected"),
    [
        (0.0, RESIDUAL),
        (0.5, [1.0 - 0.25 * 2.0, -2.0, 0.0 + 0.25 * 4.0, 4.0, 2.0 + 0.25 * 2.0, 2.0]),
        (1.0, [1.0 - 0.5 * 2.0, -2.0, 0.0 + 0.5 * 4.0, 4.0, 2.0 + 0.5 * 2.0, 2.0]),
    ],
)
def test_advantages_by_hand(lambda_: float, expected: list[float]) -> None:
    np.testing.assert_allclose(advantages(lambda_), expected, rtol=1e-6)


def test_the_next_episode_has_no_effect_on_an_advantage() -> None:
    later = advantages(0.9, reward_t=[*REWARD[:4], 1e6, -1e6], value_t=[*VALUE[:4], 77.0, -5.0])
    np.testing.assert_array_equal(later[:4], advantages(0.9)[:4])
    second = advantages(0.9, reward_t=[*REWARD[:2], 1e6, 1e6, 0.0, 0.0])
    np.testing.assert_array_equal(second[:2], advantages(0.9)[:2])


@pytest.mark.parametrize(("time", "reaches"), [(1, False), (3, True), (5, True)])
def test_only_after_a_termination_the_successors_value_has_no_effect(time: int, reaches: bool) -> None:
    values = list(NEXT_VALUE)
    values[time] += 10.0
    change = advantages(0.5, value_tp1=values) - advantages(0.5)
    assert change[time] == (5.0 if reaches else 0.0)


@pytest.mark.parametrize("lambda_", [0.0, 0.7, 1.0])
def test_lambda_returns_equal_a_plain_loop(lambda_: float) -> None:
    expected, following = [0.0] * 6, 0.0
    for time in reversed(range(6)):
        last = ENDED[time] or time == 5
        after = NEXT_VALUE[time] if last else (1 - lambda_) * NEXT_VALUE[time] + lambda_ * following
        following = expected[time] = REWARD[time] + (0.0 if TERMINATED[time] else 0.5 * after)
    arrays = (jnp.asarray(values) for values in (REWARD, TERMINATED, ENDED, NEXT_VALUE))
    found = jax.jit(returns.lambda_return)(*arrays, discount=0.5, lambda_=lambda_)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found[1] == 2.0, "a termination"
    assert found[3] == 6.0, "a truncation bootstraps from its true successor: 3 + 0.5 x 6"
    # By hand: the last step 0 + 0.5 x 8 = 4; the one before 1 + 0.5 x (0.3 x 2 + 0.7 x 4) = 2.7.
    assert lambda_ != 0.7 or found[4] == pytest.approx(2.7)


def test_no_value_is_below_the_worst_one() -> None:
    reward, terminated = (
        jnp.asarray([[1.0], [-3.0], [20.0], [-100.0]]),
        jnp.asarray([[False], [False], [True], [False]]),
    )
    counts = jnp.asarray([[True], [True], [True], [False]])  # the last is a reward of broken physics
    worst = jax.jit(returns.worst_value)
    assert worst(reward, terminated, counts, 0.5).tolist() == [-20.0]  # 3 up to twice, or 20 once
    assert worst(reward, terminated, counts, 0.9).tolist() == [pytest.approx(-30.0)]
    assert worst(reward, terminated, counts, 1.0).tolist() == [pytest.approx(-3000.0)]
    assert worst(reward, terminated, jnp.zeros_like(counts), 0.9).tolist() == [0.0]
    # What was stored as the worst value is a termination, so that the next one is the same.
    again = worst(jnp.asarray([1.0, -30.0]), jnp.asarray([False, True]), jnp.ones(2, bool), 0.9)
    assert float(again) == -30.0


def test_environments_have_separate_advantages() -> None:
    columns = [jnp.asarray(values)[:, None] for values in (REWARD, TERMINATED, ENDED, VALUE, NEXT_VALUE)]
    other = [columns[0] * 7.0, ~columns[1], columns[2], columns[3] + 1.0, columns[4]]
    pair = [jnp.concatenate(sides, axis=1) for sides in zip(columns, other, strict=True)]
    both = returns.gae(*pair, discount=0.5, lambda_=0.5)
    assert both.shape == (6, 2)
    np.testing.assert_allclose(both[:, 0], advantages(0.5), rtol=1e-6)
