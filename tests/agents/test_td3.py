"""TD3's targets, losses and delays against values computed by hand, and the matrix products that the delay skips."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import hyperparams, networks
from rookery.agents.td3 import (
    Td3Config,
    Td3Hyper,
    Td3Networks,
    Td3Params,
    Td3State,
    critic_loss,
    init,
    policy_loss,
    smoothed_action,
    start,
    td3,
)
from rookery.agents.td3 import update as td3_update
from rookery.distributed import layout, mesh
from rookery.envs import registry
from rookery.hyperparams import LogUniform, OneMinusLog, Uniform
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.populations import base
from rookery.types import Observation, PyTree, Transition
from tests.agents.common import SPEC, layer

LN2, LN3 = np.log(2.0), np.log(3.0)  # tanh(ln 2) = (4 - 1) / (4 + 1) = 0.6 and tanh(ln 3) = (9 - 1) / (9 + 1) = 0.8
VALUE = networks.mlp([1, 1], [], 1)
NETS = Td3Networks(networks.mlp([1], [], 1), networks.twin(VALUE), networks.first_twin(VALUE))
HYPER = Td3Hyper(
    *(jnp.float32(x) for x in (0.9, 0.01, 0.1, 0.3, 0.5, 0.3)), reward_scaling=jnp.float32(2.0), tau=jnp.float32(0.25)
)


def weights(params: PyTree) -> list[float]:
    dense = params["params"]["Dense_0"]
    return [*np.asarray(dense["kernel"]).ravel().tolist(), *np.asarray(dense["bias"]).tolist()]


def column(*values: float) -> jax.Array:
    return jnp.asarray(values, jnp.float32)[:, None]


POLICY, TARGET_POLICY = layer([[0.0]], [LN3]), layer([[0.0]], [LN2])  # actions of 0.8 and 0.6 everywhere
CRITICS = layer([[1.0], [2.0]], [0.0]), layer([[3.0], [-1.0]], [0.0])  # o + 2 a and 3 o - a
TARGETS = layer([[2.0], [1.0]], [0.0]), layer([[1.0], [3.0]], [0.0])  # 2 o + a and o + 3 a
STATE = start(Td3Params(POLICY, CRITICS))._replace(target_policy=TARGET_POLICY, target_critic=TARGETS)
ROWS = Transition(
    observation=Observation(column(1.0, 2.0, 0.0)),
    action=column(0.5, -0.5, 1.0),
    reward=jnp.asarray([1.0, -1.0, 0.5]),
    next_observation=Observation(column(1.0, 2.0, 7.0)),
    terminated=jnp.asarray([False, False, True]),
)
NOISE = column(0.2, 5.0, 0.0)


def test_smoothed_action_clips_the_noise_then_the_action() -> None:
    nets = NETS._replace(policy=networks.mlp([1], [], 2))
    target_policy = layer([[0.0, 0.0]], [LN3, -LN3])  # 0.8 and -0.8
    noise = jnp.asarray([[0.2, 0.4], [1.0, 1.0], [-2.0, -2.0]])  # halved: 0.1 and 0.2, then beyond +-0.3
    action = smoothed_action(nets, target_policy, HYPER, Observation(column(1.0, 2.0, 3.0)), noise)
    np.testing.assert_allclose(action, [[0.9, -0.6], [1.0, -0.5], [0.5, -1.0]], rtol=1e-6)


def test_critic_loss_and_its_slope_by_hand() -> None:
    # Next actions 0.6 + 0.1 and 0.6 + 0.3 (of 2.5); target twins (2.7, 3.1) and (4.9, 4.7); the third row terminated.
    # Targets 2 x 1 + 0.9 x 2.7 = 4.43, 2 x -1 + 0.9 x 4.7 = 2.23, 2 x 0.5 = 1.
    # Twins (2, 1, 2) and (2.5, 6.5, -1): residuals (-2.43, -1.23, 1) and (-1.93, 4.27, -2).
    loss = partial(critic_loss, nets=NETS, state=STATE, hyper=HYPER, batch=ROWS, noise=NOISE)
    (value, metrics), slope = jax.value_and_grad(loss, has_aux=True)(CRITICS)
    assert float(value) == pytest.approx(34.3756 / 3, rel=1e-5)  # sum of the squares, over three rows
    assert float(metrics["critic_loss"]) == float(value)
    assert float(metrics["value"]) == pytest.approx(13 / 6, rel=1e-5)
    # 2/3 of the residuals times the observations, the actions and 1.
    np.testing.assert_allclose(weights(slope[0]), [-3.26, 0.8 / 3, -5.32 / 3], rtol=1e-5)
    np.testing.assert_allclose(weights(slope[1]), [13.22 / 3, -3.4, 0.68 / 3], rtol=1e-4)


def test_targets_of_three_critics_are_the_smaller_value_of_the_chosen_two() -> None:
    # As above with a third critic of value 0 and a target of -9: whichever the numbers of the first row leave out.
    critics, targets = (*CRITICS, layer([[0.0], [0.0]], [0.0])), (*TARGETS, layer([[0.0], [0.0]], [-9.0]))
    nets, state = NETS._replace(critic=networks.twin(VALUE, 3)), STATE._replace(target_critic=targets)
    rows = ROWS._replace(terminated=jnp.ones(3, bool).at[0].set(False))
    for numbers, value in (([0.5, 0.9, 0.1], 2.7), ([0.1, 0.9, 0.5], -9.0), ([0.5, 0.1, 0.9], -9.0)):
        noise = jnp.concatenate([NOISE, jnp.asarray([numbers, [0.0, 1.0, 2.0], [2.0, 1.0, 0.0]])], axis=1)
        target = np.asarray([2.0 + 0.9 * value, -2.0, 1.0])
        values = np.asarray([[2.0, 1.0, 2.0], [2.5, 6.5, -1.0], [0.0, 0.0, 0.0]])
        loss, _ = critic_loss(critics, nets, state, HYPER, rows, noise)
        assert float(loss) == pytest.approx(np.sum((values - target) ** 2) / 3, rel=1e-5)


def test_policy_loss_and_its_slope_by_hand_follow_the_first_critic_alone() -> None:
    observation = Observation(column(1.0, 2.0, 3.0))
    for second in CRITICS:
        critics = CRITICS[0], second
        loss, slope = jax.value_and_grad(policy_loss)(POLICY, NETS, critics, observation)
        assert float(loss) == pytest.approx(-(2.0 + 2 * 0.8), rel=1e-6)  # the mean of o + 2 a, negated
        # d tanh(x) = 1 - 0.8^2 = 0.36; the kernel's slope has the mean observation, 2, besides.
        np.testing.assert_allclose(weights(slope), [-2 * 0.36 * 2, -2 * 0.36], rtol=1e-5)


def test_the_policy_can_follow_the_smaller_critic_or_the_mean() -> None:
    nets = NETS._replace(policy_value=networks.smaller_twin(VALUE))
    observation = Observation(column(1.0, 2.0, 3.0))
    values = [nets.critic.apply(CRITICS, observation, jnp.full((3, 1), 0.8))[:, each] for each in range(2)]
    smaller = [0 if first < second else 1 for first, second in zip(*values, strict=True)]
    assert set(smaller) == {0, 1}, "each critic is the smaller one somewhere"
    loss, slope = jax.value_and_grad(policy_loss)(POLICY, nets, CRITICS, observation)
    assert float(loss) == pytest.approx(-np.mean(np.minimum(values[0], values[1])), rel=1e-6)
    # d value / d action is the critic's second weight, d tanh(x) = 0.36.
    by_row = np.asarray([weights(CRITICS[each])[1] for each in smaller]) * 0.36
    expected = [-np.mean(by_row * np.asarray([1.0, 2.0, 3.0])), -np.mean(by_row)]
    np.testing.assert_allclose(weights(slope), expected, rtol=1e-5)
    mean = NETS._replace(policy_value=networks.mean_twin(VALUE))
    assert float(policy_loss(POLICY, mean, CRITICS, observation)) == pytest.approx(-np.mean(values), rel=1e-6)
    with pytest.raises(ValueError, match=r"^policy_critic must be first or smaller or mean, got 'both'\.$"):
        Td3Config(policy_critic="both")  # pyright: ignore[reportArgumentType]


def test_policy_loss_computes_the_products_of_one_critic() -> None:
    value = networks.mlp([3, 2], [4], 1)
    nets = Td3Networks(networks.mlp([3], [4], 2), networks.twin(value), networks.first_twin(value))
    params = init(nets, jax.random.key(0))
    slope = jax.grad(
        partial(policy_loss, nets=nets, critic_params=params.critic, observation=Observation(jnp.ones((8, 3))))
    )
    products = jax.jit(slope).lower(params.policy).as_text().count("dot_general")
    # Two layers each: forwards 2 + 2; back through the critic 2; back through the policy 2 kernels and 1 input.
    assert products <= 9


def test_an_update_steps_against_the_slopes_and_moves_the_targets() -> None:
    state, metrics = jax.jit(partial(td3_update, NETS, Td3Config(policy_delay=1)))(
        STATE, HYPER, ROWS, NOISE, jnp.int32(0)
    )
    # Adam's first step is the rate, 0.1 and 0.01, against the sign of each slope (by hand above).
    critics = [1.1, 1.9, 0.1], [2.9, -0.9, -0.1]
    np.testing.assert_allclose([weights(critic) for critic in state.critic.params], critics, rtol=1e-5)
    # The policy uses the updated critic, 1.1 o + 1.9 a + 0.1, over observations whose mean is 1.
    assert float(metrics["actor_loss"]) == pytest.approx(-(1.1 + 1.9 * 0.8 + 0.1), rel=1e-5)
    policy = [0.01, LN3 + 0.01]
    np.testing.assert_allclose(weights(state.policy.params), policy, rtol=1e-5)
    # A quarter of the way to the updated parameters.
    np.testing.assert_allclose(weights(state.target_policy), [0.0025, 0.75 * LN2 + 0.25 * (LN3 + 0.01)], rtol=1e-5)
    targets = [1.775, 1.225, 0.025], [1.475, 2.025, -0.025]
    np.testing.assert_allclose([weights(target) for target in state.target_critic], targets, rtol=1e-5)


def moved(new: PyTree, old: PyTree) -> bool:
    return any((a != b).any() for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True))


def test_policy_and_both_targets_change_every_delay_updates_and_the_critics_always() -> None:
    delay, due = 3, {2, 5}
    update = jax.jit(partial(td3_update, NETS, Td3Config(policy_delay=delay)))
    state: Td3State = STATE
    for step in range(6):
        new, metrics = update(state, HYPER, ROWS, NOISE, jnp.int32(step))
        assert moved(new.critic, state.critic)
        for part in ("policy", "target_policy", "target_critic"):
            assert moved(getattr(new, part), getattr(state, part)) == (step in due), (part, step)
        if step in due:
            loss = policy_loss(state.policy.params, NETS, new.critic.params, ROWS.observation)
            assert float(metrics["actor_loss"]) == pytest.approx(delay * float(loss), rel=1e-5)
        else:
            assert float(metrics["actor_loss"]) == 0.0
        state = new
    moments: Any = state.policy.moments
    assert int(moments.count) == len(due)


def test_noise_is_standard_normal_and_that_of_exploration_has_the_declared_size_and_stays_in_range() -> None:
    agent = td3(SPEC, Td3Config(hidden_sizes=(4,)))
    state = jax.jit(lambda key: agent.start(agent.init(key)))(jax.random.key(0))
    hyper = hyperparams.defaults(agent.space)
    observation = Observation(jnp.ones((SPEC.observation_size,)))
    quiet = agent.act(state.params, observation)
    noise = agent.noise(jax.random.key(0), 4_000)
    assert (noise.shape, np.mean(noise)) == ((4_000, SPEC.action_size), pytest.approx(0.0, abs=0.05))
    assert np.std(noise) == pytest.approx(1.0, rel=0.05)
    explore = jax.jit(jax.vmap(agent.explore, in_axes=(None, None, None, 0)))
    keys = jax.random.split(jax.random.key(1), 4_000)
    for size in (0.0, 0.1, 0.2):
        action = explore(state, hyper._replace(exploration_noise=jnp.float32(size)), observation, keys)
        np.testing.assert_allclose(np.mean(action, axis=0), quiet, atol=5 * size / np.sqrt(4_000) + 1e-6)
        np.testing.assert_allclose(np.std(action, axis=0), size, rtol=0.05, atol=1e-6)
    action = explore(state, hyper._replace(exploration_noise=jnp.float32(1e6)), observation, keys)
    assert set(np.unique(action)) == {-1.0, 1.0}


# --- the skipped half is really skipped

CONFIG = OffPolicyConfig(
    num_envs=2,
    steps_per_generation=4,
    batch_size=4,
    buffer_size=8,
    warmup_steps=0,  # or the warm-up's own branch would be counted
    eval_episodes=1,
    start_states=2,
)
MEMBERS = 4


@pytest.mark.parametrize(("own_counters", "expected"), [(False, 1), (True, 0)])
def test_the_delayed_half_is_a_branch_for_a_population_with_one_counter(own_counters: bool, expected: int) -> None:
    """The conditionals in the compiled generation of a population on two devices."""
    environment, spread = registry.make("probe_both"), layout.population_map(mesh.make_mesh(2))
    learner = off_policy(td3(environment.spec, hidden_sizes=(8,)), environment, CONFIG)

    def begin(key: jax.Array) -> tuple:
        bank, keys = learner.start_states(key), base.member_keys(key, MEMBERS)
        hyper = jax.vmap(partial(hyperparams.sample, learner.space))(keys)
        return base.vmap(learner.init, (keys, hyper), (bank,)), keys, bank

    def shared(member: PyTree, key: jax.Array, bank: PyTree, generation: jax.Array) -> Any:
        return learner.step(member, bank, key, generation)

    def own(member: PyTree, key: jax.Array, generation: jax.Array, bank: PyTree) -> Any:
        return learner.step(member, bank, key, generation)

    members, keys, bank = jax.eval_shape(begin, jax.random.key(0))
    if own_counters:
        lowered = jax.jit(partial(spread, own)).lower((members, keys, jnp.zeros(MEMBERS, jnp.int32)), (bank,))
    else:
        lowered = jax.jit(partial(spread, shared)).lower((members, keys), (bank, jnp.int32(0)))
    text = lowered.compile({"xla_backend_optimization_level": "0"}).as_text()
    assert text
    assert text.count(" conditional(") == expected


def test_the_default_search_space() -> None:
    rates = dict.fromkeys(("policy_lr", "critic_lr"), LogUniform(3e-5, 3e-3))
    noises = {
        "exploration_noise": Uniform(0.0, 0.2),
        **dict.fromkeys(("policy_noise", "noise_clip"), Uniform(0.0, 1.0)),
    }
    agent = td3(SPEC)
    assert dict(agent.space.domains) == {"discount": OneMinusLog(0.9, 0.999), **rates, **noises}
    assert agent.space.defaults == Td3Hyper(0.99, 3e-4, 3e-4, 0.1, 0.2, 0.5, 1.0, 0.005)
    assert set(agent.space.fields) == set(Td3Hyper._fields)
    assert networks.filled(Td3Config()) == Td3Config(hidden_sizes=(256, 256), policy_delay=2)
