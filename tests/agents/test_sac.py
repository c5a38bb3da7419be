"""SAC's losses and steps against values computed by hand and in double precision with NumPy."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import networks, returns
from rookery.agents.sac import (
    SacConfig,
    SacHyper,
    SacNetworks,
    SacNoise,
    SacParams,
    SacState,
    critic_loss,
    draw_noise,
    init,
    policy_loss,
    sac,
    start,
)
from rookery.agents.sac import update as sac_update
from rookery.hyperparams import LogUniform, OneMinusLog
from rookery.types import Observation, PyTree, Transition
from tests.agents.common import SPEC, drawn_transitions, layer

ROWS = 3
HYPER = SacHyper(*(jnp.float32(x) for x in (0.9, 0.01, 0.1, 0.02, 2.0, 0.25)))
NETS = SacNetworks(policy=networks.mlp([2], [3], 4), critic=networks.twin(networks.mlp([2, 2], [3], 1)))
CONFIG = SacConfig(hidden_sizes=(3,), alpha_init=0.3, target_entropy_scale=0.5)
ALPHA = 0.3

Layers = list[np.ndarray]  # kernel, bias, kernel, bias


def layers(params: PyTree) -> Layers:
    table = params["params"]
    return [np.asarray(table[name][part], np.float64) for name in sorted(table) for part in ("kernel", "bias")]


def forward(parts: Layers, *inputs: np.ndarray) -> np.ndarray:
    hidden = np.maximum(np.concatenate(inputs, axis=1) @ parts[0] + parts[1], 0.0)
    return hidden @ parts[2] + parts[3]


def squashed(policy: Layers, observation: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Actions and log densities: a normal density through tanh, whose slope is 1 - action^2."""
    mean, log_std = np.split(forward(policy, observation), 2, axis=1)
    log_std = np.clip(log_std, -20.0, 2.0)
    action = np.tanh(mean + np.exp(log_std) * noise)
    log_normal = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
    return action, np.sum(log_normal - np.log(1 - action**2), axis=1)


def twins(critics: list[Layers], observation: np.ndarray, action: np.ndarray) -> np.ndarray:
    return np.concatenate([forward(critic, observation, action) for critic in critics], axis=1)


def slope(loss: Callable[[], float], parts: Layers) -> np.ndarray:
    """Central differences of `loss` with respect to every number of `parts`, which it reads."""
    found = []
    for part in parts:
        for index in np.ndindex(part.shape):
            value = part[index]
            ends = []
            for h in (1e-6, -1e-6):
                part[index] = value + h
                ends.append(loss())
            part[index] = value
            found.append((ends[0] - ends[1]) / 2e-6)
    return np.asarray(found)


def ordered(params: PyTree) -> np.ndarray:
    """The numbers of a network in the order of `layers`."""
    return np.concatenate([part.ravel() for part in layers(params)])


class Hand(NamedTuple):
    """A state whose targets differ from the critics, three transitions, and their NumPy copies."""

    state: SacState
    batch: Transition  # the second row is terminated
    noise: SacNoise
    policy: Layers
    critics: list[Layers]
    targets: list[Layers]
    rows: Any  # Transition
    draws: Any  # SacNoise


@pytest.fixture(scope="module")
def hand() -> Hand:
    params = jax.jit(partial(init, NETS, CONFIG))(jax.random.key(0))
    state = start(params)._replace(target_critic=jax.jit(NETS.critic.init)(jax.random.key(7)))
    spec = SPEC._replace(observation_size=2)
    batch = drawn_transitions(jax.random.key(1), spec, ROWS)._replace(terminated=jnp.asarray([False, True, False]))
    noise = draw_noise(2, jax.random.key(2), ROWS)
    double = partial(jax.tree.map, lambda leaf: np.asarray(leaf, np.float64))
    return Hand(
        state,
        batch,
        noise,
        layers(params.policy),
        [layers(critic) for critic in params.critic],
        [layers(target) for target in state.target_critic],
        double(batch)._replace(terminated=np.asarray(batch.terminated)),
        double(noise),
    )


@pytest.fixture(scope="module")
def updated(hand: Hand) -> tuple[SacState, dict]:
    update = jax.jit(partial(sac_update, NETS, CONFIG))
    return update(hand.state, HYPER, hand.batch, hand.noise, jnp.int32(0))


def target_by_hand(hand: Hand) -> np.ndarray:
    """2 r + 0.9 (min of the target critics - alpha log density), the bracket only where nothing terminated."""
    action, log_prob = squashed(hand.policy, hand.rows.next_observation.features, hand.draws.next_action)
    value = twins(hand.targets, hand.rows.next_observation.features, action).min(axis=1) - ALPHA * log_prob
    target = 2.0 * hand.rows.reward + 0.9 * value
    target[1] = 2.0 * hand.rows.reward[1]
    return target


def critic_loss_by_hand(hand: Hand, critics: list[Layers], target: np.ndarray) -> float:
    values = twins(critics, hand.rows.observation.features, hand.rows.action)
    return float(np.mean(0.5 * ((values[:, 0] - target) ** 2 + (values[:, 1] - target) ** 2)))


def policy_loss_by_hand(hand: Hand, policy: Layers, critics: list[Layers]) -> float:
    action, log_prob = squashed(policy, hand.rows.observation.features, hand.draws.action)
    return float(np.mean(ALPHA * log_prob - twins(critics, hand.rows.observation.features, action).min(axis=1)))


def test_critic_loss_and_its_slope_by_hand(hand: Hand, updated: tuple[SacState, dict]) -> None:
    state, metrics = updated
    target = target_by_hand(hand)
    assert float(metrics["critic_loss"]) == pytest.approx(critic_loss_by_hand(hand, hand.critics, target), rel=1e-5)
    value = twins(hand.critics, hand.rows.observation.features, hand.rows.action).mean()
    assert float(metrics["value"]) == pytest.approx(value, rel=1e-4)
    for index, critic in enumerate(hand.critics):
        expected = slope(lambda: critic_loss_by_hand(hand, hand.critics, target), critic)
        moments: Any = state.critic.moments
        # Adam's first moment is 0.1 of the first slope; the first step is the rate against its sign.
        np.testing.assert_allclose(10 * ordered(moments.mu[index]), expected, rtol=1e-3, atol=1e-5)
        step = ordered(state.critic.params[index]) - ordered(hand.state.critic.params[index])
        steep = np.abs(expected) > 1e-4
        np.testing.assert_allclose(step[steep], -0.1 * np.sign(expected[steep]), rtol=1e-3)


def test_policy_loss_and_its_slope_by_hand_use_the_updated_critics(hand: Hand, updated: tuple[SacState, dict]) -> None:
    state, metrics = updated
    critics = [layers(critic) for critic in state.critic.params]
    loss = partial(policy_loss_by_hand, hand, hand.policy)
    assert float(metrics["actor_loss"]) == pytest.approx(loss(critics), rel=1e-4)
    assert loss(hand.critics) != pytest.approx(loss(critics), rel=1e-2), "the line above distinguishes the critics"
    expected = slope(lambda: loss(critics), hand.policy)
    moments: Any = state.policy.moments
    np.testing.assert_allclose(10 * ordered(moments.mu), expected, rtol=1e-3, atol=1e-5)
    step = ordered(state.policy.params) - ordered(hand.state.policy.params)
    steep = np.abs(expected) > 1e-4
    np.testing.assert_allclose(step[steep], -0.01 * np.sign(expected[steep]), rtol=1e-3)


def test_alpha_loss_by_hand(hand: Hand, updated: tuple[SacState, dict]) -> None:
    state, metrics = updated
    log_prob = squashed(hand.policy, hand.rows.observation.features, hand.draws.action)[1].mean()
    excess = log_prob - 0.5 * 2  # target entropy: -0.5 x two action dimensions
    assert float(metrics["entropy"]) == pytest.approx(-log_prob, rel=1e-4)
    assert float(metrics["alpha_loss"]) == pytest.approx(-ALPHA * excess, rel=1e-4)
    moments: Any = state.log_alpha.moments
    assert 10 * float(moments.mu) == pytest.approx(-ALPHA * excess, rel=1e-4)  # d exp(x) / dx = exp(x)
    log_alpha = math.log(ALPHA) + 0.02 * np.sign(excess)
    assert float(state.log_alpha.params) == pytest.approx(log_alpha, rel=1e-4)
    assert float(metrics["alpha"]) == pytest.approx(math.exp(log_alpha), rel=1e-4)


def test_targets_move_a_quarter_of_the_way_to_the_new_critics(hand: Hand, updated: tuple[SacState, dict]) -> None:
    state, _ = updated
    for target, old, critic in zip(state.target_critic, hand.state.target_critic, state.critic.params, strict=True):
        expected = 0.75 * ordered(old) + 0.25 * ordered(critic)
        np.testing.assert_allclose(ordered(target), expected, rtol=1e-5, atol=1e-6)


def test_of_three_critics_two_are_in_the_target_and_all_in_the_policys_loss() -> None:
    # Critics of the values 1, 5 and 3 everywhere, whose targets are 10, 30 and 20; mean 0 and noise 0 give a log
    # density of -0.918939, which the temperature of 0.1 weighs.
    nets = SacNetworks(networks.mlp([1], [], 2), networks.twin(networks.mlp([1, 1], [], 1), 3))
    policy, zero = layer(jnp.zeros((1, 2)), jnp.zeros(2)), jnp.zeros((2, 1))
    critics, targets = (
        tuple(layer(zero, [value]) for value in values) for values in ((1.0, 5.0, 3.0), (10.0, 30.0, 20.0))
    )
    state = start(SacParams(policy, critics, jnp.log(jnp.float32(0.1))))._replace(target_critic=targets)
    batch = Transition(Observation(zero), zero, jnp.ones(2), Observation(zero), jnp.zeros(2, bool))
    hyper = SacHyper(discount=jnp.float32(0.5))
    for chosen, smaller in (([0.9, 0.1, 0.5], 10.0), ([0.1, 0.9, 0.5], 20.0), ([0.5, 0.9, 0.1], 10.0)):
        numbers = jnp.asarray([chosen, [0.0, 0.0, 0.0]])  # those of the first row decide for both
        loss, _ = critic_loss(critics, nets, state, hyper, batch, zero, numbers)
        target = 1.0 + 0.5 * (smaller + 0.0918939)
        assert float(loss) == pytest.approx(0.5 * sum((value - target) ** 2 for value in (1.0, 5.0, 3.0)), rel=1e-5)
    loss, _ = policy_loss(policy, nets, state, batch.observation, zero)
    assert float(loss) == pytest.approx(-(3.0 + 0.0918939), rel=1e-6)


def test_two_critics_of_five_are_chosen_equally_often() -> None:
    noise = draw_noise(1, jax.random.key(0), 2_000, 5)
    assert noise.critics is not None
    rows = noise.critics[:, None]  # the first row of 2,000 updates
    places = jax.vmap(returns.of_random_pair, in_axes=(None, 0))(jnp.arange(5.0)[None], rows)
    counts = np.bincount(np.asarray(places, int).ravel(), minlength=5)
    assert (places[..., 0] != places[..., 1]).all()
    np.testing.assert_allclose(counts / 2_000, 0.4, atol=0.04)


def test_the_default_search_space() -> None:
    rates = dict.fromkeys(("policy_lr", "critic_lr", "alpha_lr"), LogUniform(3e-5, 3e-3))
    domains = {"discount": OneMinusLog(0.9, 0.999), **rates, "reward_scaling": LogUniform(0.1, 10.0)}
    agent = sac(SPEC, SacConfig(hidden_sizes=()))
    assert dict(agent.space.domains) == domains
    assert agent.space.defaults == SacHyper(0.99, 3e-4, 3e-4, 3e-4, 1.0, 0.005)
    assert float(agent.init(jax.random.key(0)).log_alpha) == 0.0  # alpha 1
