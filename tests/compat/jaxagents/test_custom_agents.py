"""A subclass that implements every method, with user-defined networks; training in stages on the host."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rookery.compat.jaxagents import (
    IPPO,
    AgentConfig,
    HyperParameters,
    IPPOBase,
    OptimizerParams,
    checkpoint_metrics,
    training,
)
from rookery.storage.checkpoint import Checkpointer


class Echo:
    """Both agents observe 0.5; the reward is the negative squared distance of the action to it. Never terminates."""

    n_actors = 2

    def reset_env(self, _: jax.Array, target: float) -> tuple[jax.Array, tuple]:
        return jnp.full((1,), target), ()

    def step_env(self, _: jax.Array, __: tuple, actions: jax.Array, target: float) -> tuple:
        return jnp.full((1,), target), (), -((actions - target) ** 2), False, {}


class Constant(NamedTuple):
    """A network whose outputs are its two parameters, independent of the observation."""

    def init(self, _: jax.Array, __: jax.Array) -> jax.Array:
        return jnp.zeros((2,))

    def apply(self, params: jax.Array, _: jax.Array) -> jax.Array:
        return params


class TowardsHalf(IPPOBase):
    """The actors' parameters move towards a half, the critics' not at all."""

    def _sample_actions(self, rng: jax.Array, training: Any, *_: Any) -> jax.Array:
        return training.params + jax.random.normal(rng, (2,))

    def policy(self, training: Any, *_: Any) -> jax.Array:
        return training.params

    def _log_prob(self, _: Any, params: Any, __: Any, action: jax.Array) -> jax.Array:
        return -0.5 * (action - params) ** 2

    def _entropy(self, *_: Any) -> jax.Array:
        return jnp.zeros((2,))

    _trajectory_returns = IPPO._trajectory_returns
    _trajectory_advantages = IPPO._trajectory_advantages

    def _actor_loss_input(self, update_runner: Any, traj_batch: Any) -> tuple:
        halves = (leaf.reshape(2, 2, *leaf.shape[1:]) for leaf in (traj_batch.action, traj_batch.advantage))
        return *halves, update_runner.hyperparams

    _critic_loss_input = _actor_loss_input

    def _actor_loss(self, training: Any, *_: Any) -> tuple:
        return jnp.sum(jnp.abs(training.params - 0.5)), jnp.zeros((2,))

    def _critic_loss(self, training: Any, _: Any, __: Any, hyperparams: Any) -> jax.Array:
        return 0.0 * jnp.sum(training.params) + hyperparams.critic_optimizer_params.learning_rate


RATE = OptimizerParams(1 / 16, grad_clip=1e6)
HYPER = HyperParameters(0.0, 1.0, 0.2, 0.0, 1e6, RATE, RATE)
CONFIG = AgentConfig(
    n_steps=1,
    batch_size=4,
    minibatch_size=2,
    rollout_length=3,
    actor_epochs=2,
    critic_epochs=1,
    actor_network=lambda _: Constant(),
    critic_network=lambda _: Constant(),
    optimizer=optax.sgd,
    eval_rng=jax.random.key(1),
    n_evals=3,
    max_episode_steps=5,
)


def custom(kind: type[IPPOBase] = TowardsHalf) -> IPPOBase:
    return kind(Echo(), 0.5, CONFIG)


def test_user_defined_methods_are_trained_and_evaluated():
    runner, metrics = custom().train(jax.random.key(0), HYPER)
    # Two epochs of two minibatches, each a step of 1/16 towards a half.
    np.testing.assert_allclose(runner.actor_training.params, [0.25, 0.25], rtol=1e-6)
    np.testing.assert_allclose(metrics["returns"][:, 0, 0], [-5 * 0.25, -5 * 0.0625], rtol=1e-6)
    np.testing.assert_allclose(metrics["critic_loss"][:, 0], [0.0, 1 / 16], rtol=1e-6)
    assert metrics["truncated"].all()
    assert not metrics["terminated"].any()
    assert (int(runner.actor_training.step), int(runner.critic_training.step)) == (4, 2)


def test_given_parameters_are_evaluated():
    agent = custom()
    runner, _ = training.begin(agent, jax.random.key(0), HYPER)
    actors = runner.actor_training.replace(params=jnp.asarray([0.5, 0.0]))
    evaluation = training.evaluate(agent, 3, jax.random.key(2), actors)
    np.testing.assert_allclose(evaluation["returns"], [[0.0, -1.25]] * 3, atol=1e-6)


class ThreeActions(TowardsHalf):
    def policy(self, *_: Any) -> jax.Array:
        return jnp.zeros((3,))


def test_the_error_names_the_method_with_a_wrong_shape():
    with pytest.raises(
        ValueError, match=r"^policy gives actions of shape \(3,\) for 2 actors; make it \(2, \.\.\.\)\."
    ):
        custom(ThreeActions).train(jax.random.key(0), HYPER)


class Recording(TowardsHalf):
    """Records the shapes of the runner that the actors' minibatches are made from."""

    shapes: Any = None

    def _actor_loss_input(self, update_runner: Any, traj_batch: Any) -> tuple:
        self.shapes = jax.tree.map(jnp.shape, (update_runner.obs, update_runner.envstate, update_runner.actor_loss))
        return super()._actor_loss_input(update_runner, traj_batch)


def test_minibatches_are_made_from_a_whole_runner():
    agent: Any = custom(Recording)
    agent.train(jax.random.key(0), HYPER)
    assert agent.shapes[0] == (4, 1)
    assert agent.shapes[1].step == (4,)
    assert agent.shapes[2] == (1,)


# --- stages


def stage(at: jax.Array, count: int) -> tuple[jax.Array, dict[str, jax.Array]]:
    return at + count, {"at": at + count}


@pytest.mark.parametrize(("updates", "every", "counts"), [(5, 2, [2, 2, 1]), (4, 2, [2, 2]), (3, 7, [3]), (1, 1, [1])])
def test_stages_make_the_requested_updates(updates: int, every: int, counts: list):
    assert training.stage_counts(updates, every) == counts
    initial = jnp.asarray(10)
    state, rows = checkpoint_metrics.train(stage, counts, (initial, {"at": initial}))
    assert int(state) == 10 + updates
    assert rows["at"].tolist() == [10 + sum(counts[:i]) for i in range(len(counts) + 1)]


def test_a_continued_training_adds_checkpoints(tmp_path: Any):
    store, initial = Checkpointer(tmp_path, keep=checkpoint_metrics.ALL), jnp.asarray(0)
    assert checkpoint_metrics.read(store) == ([], {})
    state, first = checkpoint_metrics.train(stage, [2, 1], (initial, {"at": initial}), store)
    _, second = checkpoint_metrics.train(stage, [2], (state, {"at": state}), store, done=3)
    assert first["at"].tolist() == [0, 2, 3]
    assert second["at"].tolist() == [3, 5]
    steps, metrics = checkpoint_metrics.read(store)
    assert steps == metrics["at"].tolist() == [0, 2, 3, 5]
    assert int(store.restore(initial, 2)[0]) == 2
