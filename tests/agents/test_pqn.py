"""PQN: targets and loss by hand, schedules, masks, and what data have no effect; `test_check` has the contract."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rookery
from rookery import networks
from rookery.agents.pqn import PqnConfig, PqnHyper, PqnState, Rows, prepare_rows, value_loss
from rookery.experiments import build
from rookery.experiments.kinds import configure
from rookery.experiments.parts import with_annealing
from rookery.types import Observation, Transition
from tests.agents.common import layer, numbers
from tests.learners.rollouts import CHOOSING, ENVS, MASKED, STEPS, rollout
from tests.tiny import assert_equal

CONFIG = PqnConfig(hidden_sizes=(4,), epochs=2, minibatches=2, anneal_updates=4, exploration_updates=4)
AGENT = rookery.pqn(MASKED, CONFIG)
UPDATE = jax.jit(AGENT.update)
STATE = AGENT.start(jax.jit(AGENT.init)(jax.random.key(0)))
HYPER = PqnHyper(learning_rate=1e-2)
BATCH = rollout(jax.random.key(1), MASKED)


def updated(batch: Transition = BATCH, step: int = 0, **held: float) -> tuple[PqnState, Any]:
    hyper = jax.tree.map(jnp.float32, HYPER._replace(**held))
    return UPDATE(STATE, hyper, batch, jax.random.key(2), jnp.int32(step))


def linear() -> tuple[networks.Network, Any]:
    """A linear network of three features and three actions, whose second action has the greatest value by far."""
    kernel = jnp.asarray([[0.5, 1.0, -1.0], [-1.0, 0.0, 0.5], [0.25, 2.0, 1.0]])
    network = networks.mlp([3], [], 3)
    return network, layer(kernel, [0.5, 50.0, -0.25])


@pytest.mark.parametrize("spec", [MASKED, CHOOSING])
def test_targets_equal_a_plain_loop_over_terminations_and_truncations(spec: Any) -> None:
    network, params = linear()
    batch = rollout(jax.random.key(1), spec)
    hyper = PqnHyper(discount=0.9, q_lambda=0.6, reward_scaling=0.5)
    rows = jax.jit(lambda batch: prepare_rows(network, params, hyper, batch))(batch)
    values = np.asarray(batch.next_observation.features) @ np.asarray(params["params"]["Dense_0"]["kernel"])
    values += np.asarray(params["params"]["Dense_0"]["bias"])
    best = values[..., [0, 2] if spec.masked else slice(3)].max(axis=-1)
    expected = np.zeros((STEPS, ENVS))
    for env in range(ENVS):
        following = 0.0
        for time in reversed(range(STEPS)):
            last = time == STEPS - 1 or batch.extras.ended[time, env]
            after = best[time, env] if last else 0.4 * best[time, env] + 0.6 * following
            following = 0.5 * batch.reward[time, env] + (0.0 if batch.terminated[time, env] else 0.9 * after)
            expected[time, env] = following
    assert batch.terminated.sum() == 1
    assert batch.extras.ended.sum() == 2
    np.testing.assert_allclose(rows.target, expected.ravel(), rtol=1e-5)
    np.testing.assert_array_equal(rows.action, np.asarray(batch.action).ravel())


def test_the_loss_is_half_the_mean_square_of_the_rows_that_count() -> None:
    network, params = linear()
    observation = Observation(jnp.asarray([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [9.0, 9.0, 9.0]]))
    rows = Rows(observation, jnp.asarray([0, 2, 1]), jnp.asarray([1.0, 1.25, -99.0]), jnp.asarray([True, True, False]))
    loss, metrics = value_loss(params, network, rows)  # values 1.5 and 0.25: 0.5 x (0.5^2 + 1^2) / 2
    assert float(loss) == pytest.approx(0.3125)
    assert float(metrics["value"]) == pytest.approx(0.875)


def test_rates_and_exploration_follow_the_updates_of_the_run() -> None:
    moved = {step: numbers(updated(step=step)[0].params) - numbers(STATE.params) for step in (0, 2, 4)}
    slower = numbers(updated(step=0, learning_rate=0.5e-2)[0].params) - numbers(STATE.params)
    np.testing.assert_allclose(moved[2], slower, rtol=1e-4, atol=1e-7)
    assert moved[0].any()
    assert not moved[4].any()
    state, metrics = updated(step=1)
    assert (int(STATE.updates), int(state.updates), float(metrics["exploration"])) == (0, 2, 1.0)
    observation = Observation(jnp.zeros(3))
    keys = jax.random.split(jax.random.key(0), 400)
    draw = jax.jit(jax.vmap(AGENT.explore, in_axes=(None, None, None, 0)))
    for updates, share in ((0, 1.0), (2, 0.6), (4, 0.2), (9, 0.2)):
        log_prob = draw(STATE._replace(updates=jnp.int32(updates)), HYPER, observation, keys)[1]
        chances = np.unique(np.exp(np.round(log_prob, 4)))
        assert {round(float(chance), 3) for chance in chances} <= {round(share / 3, 3), round(1 - share * 2 / 3, 3)}


def test_the_norm_of_each_gradient_is_limited() -> None:
    limited, other = (updated(max_grad_norm=limit)[0].network.moments for limit in (1e-3, 1e3))
    assert np.linalg.norm(numbers(optax.tree.get(limited, "mu"))) <= 1e-3
    assert np.linalg.norm(numbers(optax.tree.get(other, "mu"))) > 1e-3


def test_an_unavailable_action_is_never_taken() -> None:
    layers = STATE.params["params"]
    last = {**layers["Dense_1"], "bias": jnp.asarray([0.0, 50.0, 1.0])}
    params = {"params": {**layers, "Dense_1": last}}
    observed = jax.tree.map(lambda leaf: leaf[0, 0], BATCH.observation)
    state = STATE._replace(network=STATE.network._replace(params=params))
    draw = jax.jit(jax.vmap(AGENT.explore, in_axes=(None, None, None, 0)))
    for updates in (0, 4):
        found = state._replace(updates=jnp.int32(updates))
        action, _ = draw(found, HYPER, observed, jax.random.split(jax.random.key(1), 200))
        assert set(np.asarray(action).tolist()) == {0, 2}
    assert int(AGENT.act(params, observed._replace(action_mask=jnp.ones(3, bool)))) == 1


def test_a_step_that_does_not_count_has_no_effect() -> None:
    skipped = ~BATCH.extras.counts  # the step before ended the agent's task
    over = BATCH._replace(
        terminated=BATCH.terminated.at[4, 0].set(True),
        extras=BATCH.extras._replace(ended=BATCH.extras.ended.at[4, 0].set(True)),
    )
    other = over._replace(reward=jnp.where(skipped, 99.0, over.reward))
    assert_equal(updated(other), updated(over))
    assert_equal(updated(), updated())


def test_a_run_fills_in_the_lengths_of_the_schedules() -> None:
    single, evolving = (configure(kind).with_run(generations=30) for kind in ("pqn", "pbt-pqn"))
    for spec, scheduled, anneals in ((single, False, 300), (single, True, 0)):
        config = with_annealing(spec, scheduled)
        assert (config.anneal_updates, config.exploration_updates) == (anneals, 60)
    built = build.build(evolving.replace(population=2, devices=1)).spec
    assert built is not None
    assert built.agent == PqnConfig((256, 256), anneal_updates=0), (
        "the schedule is that of the run's length, also when resumed"
    )
    chosen = single.replace(exploration_updates=7, anneal_updates=0)
    assert with_annealing(chosen, scheduled=False) == PqnConfig(exploration_updates=7, anneal_updates=0)
