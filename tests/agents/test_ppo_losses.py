"""PPO's losses against values computed by hand, and the number of its epochs."""

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agents.actor_critic import Policy
from rookery.agents.minibatch import PACKED_ROWS, shuffle
from rookery.agents.ppo import PpoConfig, PpoHyper, Rows, critic_loss, policy_loss, ppo
from rookery.distributions import bounded_log_std
from rookery.envs.base import EnvSpec
from rookery.types import Observation, PyTree
from tests.agents.common import SMALL_PPO, layer, nets_of
from tests.learners.rollouts import ENVS, SPEC, STEPS, rollout
from tests.tiny import assert_equal

# --- the losses by hand


DEFAULT = PpoHyper()
CHOICE = EnvSpec("choice", observation_size=1, action_size=3, episode_length=1, discrete=True)
LOGITS = np.log([0.2, 0.3, 0.5])
CHOOSER = Policy(layer([[0.0, 0.0, 0.0]], LOGITS.tolist()), ())


def rows(action: list, log_prob: list, advantage: list, counts: list, **given: list) -> Rows:
    """Rows of one step `[1, N]`, observation 0."""
    nothing = [0.0] * len(counts)
    columns = {"observation": [[0.0]] * len(counts), "value": nothing, "target": nothing, **given}
    columns |= {"action": action, "log_prob": log_prob, "advantage": advantage, "counts": counts}
    arrays = {name: jnp.asarray(values)[None] for name, values in columns.items()}
    observation = Observation(arrays.pop("observation"))
    return Rows(observation, **arrays, begins=jnp.zeros((1, len(counts)), bool))


RATIOS = np.asarray([1.5, 0.5, 1.5, 0.5, 1.1, 9.0])
ADVANTAGES = np.asarray([3.0, 3.0, -1.0, -1.0, 1.0, 1e3])  # of the unmasked rows: mean 1, deviation sqrt(16 / 5)
COUNTS = [True] * 5 + [False]
ACTIONS = np.asarray([0, 1, 2, 0, 1, 2])


@pytest.fixture(scope="module")
def surrogate() -> Callable[..., Any]:
    nets = nets_of(CHOICE)

    @jax.jit
    def differentiate(hyper: PpoHyper, given: Rows) -> tuple:
        slope, metrics = jax.grad(policy_loss, has_aux=True)(CHOOSER, nets, hyper, given)
        return metrics, slope.network["params"]["Dense_0"]["bias"]

    given = rows(ACTIONS.tolist(), (LOGITS[ACTIONS] - np.log(RATIOS)).tolist(), ADVANTAGES.tolist(), COUNTS)
    return lambda hyper=DEFAULT, **changed: differentiate(jax.tree.map(jnp.float32, hyper), given._replace(**changed))


def test_the_clipped_objective_by_hand(surrogate: Callable) -> None:
    metrics, slope = surrogate(PpoHyper(clip_epsilon=0.2, entropy_coefficient=0.0))
    a, chances = math.sqrt(5 / 16), np.exp(LOGITS)  # one unit of advantage
    # Better than the mean: at most 1.2 times; worse: at least 0.8 times. The last is the mean itself.
    expected = (1.2 * 2 * a + 0.5 * 2 * a - 1.5 * 2 * a - 0.8 * 2 * a + 1.1 * 0.0) / 5
    assert float(metrics["actor_loss"]) == pytest.approx(-expected, rel=1e-5)
    assert float(metrics["clipped"]) == pytest.approx(4 / 5)
    # Clipped rows have no gradient; rows 1 (ratio 0.5, better) and 2 (ratio 1.5, worse) have:
    # d ratio / d logits = ratio (one-hot - probabilities).
    free = 0.5 * 2 * a * (np.eye(3)[1] - chances) + 1.5 * -2 * a * (np.eye(3)[2] - chances)
    np.testing.assert_allclose(slope, -free / 5, rtol=1e-4, atol=1e-6)


def test_entropy_and_divergence_are_means_over_the_unmasked_rows(surrogate: Callable) -> None:
    plain, _ = surrogate(PpoHyper(entropy_coefficient=0.0))
    metrics, _ = surrogate(PpoHyper(entropy_coefficient=0.5))
    entropy = -float(np.sum(np.exp(LOGITS) * LOGITS))
    assert float(metrics["entropy"]) == pytest.approx(entropy, rel=1e-5)
    assert float(metrics["actor_loss"]) == pytest.approx(float(plain["actor_loss"]) - 0.5 * entropy, rel=1e-5)
    ratio = RATIOS[:5]
    assert float(metrics["kl"]) == pytest.approx(np.mean(ratio - 1 - np.log(ratio)), rel=1e-5)


def test_masked_rows_have_no_effect(surrogate: Callable) -> None:
    elsewhere = jnp.asarray([COUNTS])
    other = {
        "action": jnp.where(elsewhere, jnp.asarray([ACTIONS]), 1),
        "advantage": jnp.where(elsewhere, jnp.asarray([ADVANTAGES], jnp.float32), -1e6),
        "log_prob": jnp.where(elsewhere, jnp.asarray([LOGITS[ACTIONS] - np.log(RATIOS)], jnp.float32), -300.0),
    }
    assert_equal(surrogate(**other), surrogate())
    metrics, slope = surrogate(counts=jnp.zeros((1, 6), bool))
    assert all(float(value) == 0.0 for value in metrics.values())
    assert not np.asarray(slope).any()


def test_the_divergence_is_never_negative_and_a_small_one_is_not_lost_in_rounding(surrogate: Callable) -> None:
    log_prob = jnp.asarray([LOGITS[ACTIONS]], jnp.float32)
    shifts = jnp.asarray([[1e-2, -1e-2, 1e-3, -1e-3, 3e-4, 0.0]])
    metrics, _ = surrogate(log_prob=log_prob + shifts)
    expected = np.mean(np.asarray(shifts, np.float64)[0, :5] ** 2 / 2)
    assert float(metrics["kl"]) == pytest.approx(expected, rel=0.02)
    assert 0.0 <= float(surrogate(log_prob=log_prob)[0]["kl"]) < 1e-7
    for shift in (1e-4, -1e-4, 3e-5, -3e-5):
        divergence = float(surrogate(log_prob=log_prob + shift)[0]["kl"])
        assert divergence >= 0.0
        assert divergence == pytest.approx(shift**2 / 2, rel=0.1)


@pytest.mark.parametrize("beyond", [-20.5, 2.5])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_gradient_returns_a_deviation_from_beyond_its_bound_whatever_the_advantages(
    beyond: float, sign: float
) -> None:
    nets = nets_of(EnvSpec("reach", observation_size=1, action_size=1, episode_length=1))
    hyper, bound = PpoHyper(entropy_coefficient=0.0), min(max(beyond, -20.0), 2.0)
    actions = np.asarray([[0.1], [-0.2], [2.0], [-2.5]]) * math.exp(bound)  # two near the mean, two far from it
    log_prob = -0.5 * (actions[:, 0] / math.exp(bound)) ** 2 - bound - 0.5 * math.log(2 * math.pi)
    given = rows(actions.tolist(), log_prob.tolist(), (sign * np.asarray([1.0, 1, -1, -1])).tolist(), [True] * 4)
    slope = jax.jit(jax.value_and_grad(partial(policy_loss, nets=nets, hyper=hyper, rows=given), has_aux=True))
    (loss, metrics), gradient = slope(Policy(layer([[0.0]], [0.0]), jnp.asarray([beyond])))
    (at_bound, _), _ = slope(Policy(layer([[0.0]], [0.0]), jnp.asarray([bound])))
    assert float(loss) == float(at_bound)
    assert float(metrics["kl"]) == pytest.approx(0.0, abs=1e-6)
    inwards = float(gradient.log_std[0]) * (1.0 if beyond > 0 else -1.0)
    assert inwards >= abs(beyond - bound) * 0.999


def test_a_deviation_within_its_bounds_has_the_plain_gradient() -> None:
    given = jnp.asarray([-20.0, -1.0, 0.5, 2.0])
    value, pull = jax.vjp(bounded_log_std, given)
    np.testing.assert_array_equal(value, given)
    slopes = jnp.asarray([3.0, -2.0, 1.0, -4.0])
    np.testing.assert_array_equal(pull(slopes)[0], slopes)


VALUES, OLD, TARGETS = np.asarray([1.0, 2.0, -1.0, 7.0]), np.asarray([0.5, 2.1, 1.0, 0.0]), np.asarray([2.0, 0.0, 0, 0])


@pytest.mark.parametrize("clip_value", [False, True])
def test_the_critics_loss_by_hand(clip_value: bool) -> None:
    nets, config = nets_of(CHOICE), PpoConfig(clip_value=clip_value)
    hyper = PpoHyper(value_coefficient=0.25, clip_epsilon=0.2)
    shown = ((VALUES - 0.5) / 2.0)[:, None].tolist()  # the critic gives 2 o + 0.5
    given = rows([0] * 4, [0.0] * 4, [0.0] * 4, [True] * 3 + [False], observation=shown)
    columns = [jnp.asarray([column], jnp.float32) for column in (OLD, TARGETS)]
    given = given._replace(value=columns[0], target=columns[1])
    loss, metrics = jax.jit(partial(critic_loss, nets=nets, config=config, hyper=hyper))(
        layer([[2.0]], [0.5]), rows=given
    )
    near = np.asarray([0.7, 2.0, 0.8])  # not further than 0.2 from what it was
    error, clipped = (VALUES - TARGETS)[:3] ** 2, (near - TARGETS[:3]) ** 2
    assert (clipped > error).tolist() == [True, False, False], "the larger error is on either side"
    error = np.maximum(error, clipped) if clip_value else error
    assert float(metrics["critic_loss"]) == pytest.approx(0.5 * np.mean(error), rel=1e-5)
    assert float(loss) == pytest.approx(0.25 * 0.5 * np.mean(error), rel=1e-5)
    assert float(metrics["value"]) == pytest.approx(np.mean(VALUES[:3]), rel=1e-5)


# --- epochs


def test_a_shuffle_is_a_permutation_and_differs_by_key() -> None:
    for count in (1, 2, 24, PACKED_ROWS, PACKED_ROWS + 1):
        drawn = jax.jit(partial(shuffle, count))
        first, same, other = (np.asarray(drawn(jax.random.key(seed))) for seed in (0, 0, 1))
        assert first.dtype == np.int32
        assert (np.sort(first) == np.arange(count)).all()
        assert (first == same).all()
        if count > 2:
            assert (first != other).any()
            assert (first != np.arange(count)).any()


def test_every_order_is_equally_likely() -> None:
    orders = np.asarray(jax.jit(jax.vmap(partial(shuffle, 3)))(jax.random.split(jax.random.key(0), 6_000)))
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6
    assert np.sum((counts - 1_000.0) ** 2 / 1_000.0) < 20.5  # chi-squared of 5 degrees of freedom: p = 0.001


@pytest.mark.parametrize("recurrent", [False, True])
def test_every_epoch_uses_each_row_once_in_a_different_order(recurrent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Both losses record the rows that they receive; their gradients are 0.
    seen: dict[str, list] = {"actor": [], "critic": []}

    def spy(trained: str, params: PyTree, *args: Any, rows: Rows, **kwargs: Any) -> tuple:
        jax.debug.callback(
            lambda shown: seen[trained].append(np.asarray(shown)), rows.observation.features[..., 0], ordered=False
        )
        zero = 0.0 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params))
        return zero, {"kl": zero} if trained == "actor" else {"critic_loss": zero}

    module = sys.modules["rookery.agents.ppo"]  # the package exports a function of this name
    monkeypatch.setattr(module, "policy_loss", partial(spy, "actor"))
    monkeypatch.setattr(module, "critic_loss", partial(spy, "critic"))
    config = SMALL_PPO(hidden_sizes=(), recurrent=recurrent, memory_size=1)
    agent = ppo(SPEC, config)
    batch = jax.jit(partial(rollout, spec=SPEC, memory_size=1 if recurrent else 0))(jax.random.key(1))
    features = np.array(batch.observation.features)
    features[..., 0] = np.arange(STEPS * ENVS).reshape(STEPS, ENVS)
    batch = batch._replace(observation=batch.observation._replace(features=features))
    update = jax.jit(lambda state, key: agent.update(state, PpoHyper(), batch, key, jnp.int32(0)))
    state = jax.jit(lambda key: agent.start(agent.init(key)))(jax.random.key(0))
    shapes = {"actor": (2, 2), "critic": (3, 2)}
    orders = []
    for seed in (0, 1):
        for shown in seen.values():
            shown.clear()
        jax.block_until_ready(update(state, jax.random.key(seed)))
        jax.effects_barrier()
        for trained, (epochs, minibatches) in shapes.items():
            assert len(seen[trained]) == epochs * minibatches
            parts = np.stack(seen[trained]).reshape(epochs, minibatches, *seen[trained][0].shape)
            for order in parts:
                assert sorted(order.ravel().tolist()) == list(range(STEPS * ENVS))
            if recurrent:  # whole sequences in order of time
                assert (np.diff(parts, axis=2) == ENVS).all()
                assert parts.shape[2:] == (STEPS, ENVS // 2)
        orders.append(np.stack(seen["critic"]).reshape(3, -1))
    if not recurrent:  # four sequences have few orders
        different = {order.tobytes() for both in orders for order in both}
        assert len(different) == 6
