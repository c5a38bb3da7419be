"""A subclass that implements every method, with user-defined networks; training in stages on the host."""

from types import SimpleNamespace
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
    TrainState,
    Transition,
    hooks,
)
from rookery.compat.jaxagents.results import RESULTS
from tests.compat.jaxagents.goals import numbers
from tests.tiny import assert_equal


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


def test_given_parameters_are_evaluated_and_an_actor_whose_actions_are_not_finite_has_no_return():
    agent = custom()
    runner, _ = agent._compiled_begin(jax.random.key(0), HYPER)
    for second, returned, last in ((0.0, -1.25, -0.25), (jnp.nan, np.nan, np.nan)):
        actors = runner.actor_training.replace(params=jnp.asarray([0.5, second]))
        evaluation = agent._eval_agent(jax.random.key(2), actors, runner.critic_training, 3)
        np.testing.assert_allclose(evaluation["returns"], [[0.0, returned]] * 3, atol=1e-6)
        np.testing.assert_allclose(evaluation["final_rewards"], [[0.0, last]] * 3, atol=1e-6)


class InNumpy(TowardsHalf):
    def _eval_metrics(self, terminated: Any, truncated: Any, final_rewards: Any, returns: Any) -> dict[str, Any]:
        return {"mean": np.asarray(returns).mean()}


def test_an_evaluation_after_training_need_not_be_compiled():
    agent = InNumpy(Echo(), 0.5, CONFIG, eval_during_training=False)
    agent.collect_training(agent._compiled_begin(jax.random.key(0), HYPER)[0])
    assert agent.eval(jax.random.key(2), 3)["mean"] == -1.25


class SingleActor(TowardsHalf):
    """Its advantages `[E, T]` and targets have no axis of actors."""

    n_actors = 1

    def _advantages(self, traj_batch: Any, *_: Any) -> jax.Array:
        return traj_batch.reward[..., 0]


def test_numbers_of_a_single_actor_may_lack_the_axis_of_actors():
    """As many minibatches of rollouts as steps: the values `[3, 3, 1]` and targets `[3, 3]` would give `[3, 3, 3]`."""
    agent: Any = SingleActor.__new__(SingleActor)
    critic = TrainState.create(apply_fn=lambda params, obs: params * obs, params=jnp.ones((1,)), tx=optax.sgd(1.0))
    obs = jnp.arange(9.0).reshape(3, 3, 1)
    loss = IPPO._critic_loss(agent, critic, obs, obs[..., 0] + 2.0, HYPER)
    assert float(loss) == HYPER.vf_coeff * 4.0
    zeros = jnp.zeros((3, 3, 1))
    traj = Transition(obs, zeros, zeros, zeros, obs, obs, zeros[..., 0] > 0)
    runner: Any = SimpleNamespace(critic_training=critic, hyperparams=HYPER)
    np.testing.assert_array_equal(agent._process_trajectory(runner, traj, obs[:, -1]).advantage, obs)


# --- methods that may be replaced


class Changed(TowardsHalf):
    """Observations, rewards and metrics of its own; the second reward counts in training only."""

    def env_step(self, rng: Any, envstate: Any, actions: Any) -> tuple:
        rng, obs, envstate, reward, done, info = TowardsHalf.env_step(self, rng, envstate, actions)
        return rng, obs + 1.0, envstate, 2.0 * reward, done, info

    def _make_transition(self, **step: Any) -> Any:
        made = TowardsHalf._make_transition(self, **step)
        assert made.reward.shape == (1, 2)
        return made._replace(reward=made.reward + 100.0)

    def _eval_metrics(self, terminated: Any, truncated: Any, final_rewards: Any, returns: Any) -> Any:
        return {"truncated": truncated, "returns": returns, "success": final_rewards > -0.2}

    def _generate_metrics(self, runner: Any, update_step: Any) -> Any:
        return {**TowardsHalf._generate_metrics(self, runner, update_step), "step": jnp.asarray(update_step)}

    def _pp(self) -> None:
        assert self.training_runner is not None
        self.processed = int(self.training_runner.actor_training.step)


def test_replaced_methods_have_an_effect():
    agent: Any = custom(Changed)
    runner, metrics = agent.train(jax.random.key(0), HYPER)
    assert sorted(metrics) == ["actor_loss", "critic_loss", "returns", "step", "success", "truncated"]
    np.testing.assert_allclose(metrics["returns"][:, 0, 0], [-2 * 5 * 0.25, -2 * 5 * 0.0625], rtol=1e-6)
    assert metrics["success"][:, 0, 0].tolist() == [False, True]
    agent.collect_training(runner, metrics)
    assert agent.processed == 4
    assert sorted(agent.eval(jax.random.key(1), 2)) == ["returns", "success", "truncated"]
    _, traj = jax.jit(agent._collect)(runner, jax.random.key(2), jax.random.key(3))
    np.testing.assert_allclose(traj.reward, 100.0 - 2.0 * (traj.action - 0.5) ** 2, rtol=1e-5)
    assert (traj.next_obs == 1.5).all()
    assert traj.obs[:, :, 0].tolist() == [[1.5, 1.5, 0.5]] * 4  # the next episode begins with env_reset


class WithoutAxis(TowardsHalf):
    """Its transitions have no leading axis."""

    def _make_transition(self, *given: Any, **step: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf[0], TowardsHalf._make_transition(self, *given, **step))


def test_a_transition_may_have_no_leading_axis():
    keys = jax.random.split(jax.random.key(2))
    runner, _ = jax.jit(custom()._begin)(jax.random.key(0), HYPER)
    assert_equal(*(numbers(jax.jit(custom(kind)._collect)(runner, *keys)) for kind in (TowardsHalf, WithoutAxis)))


def never(self: Any, *_: Any) -> Any:
    raise AssertionError("this method is not called")


@pytest.mark.parametrize(("name", "loop"), hooks.INSIDE.items())
def test_a_method_inside_a_loop_is_refused(name: str, loop: str):
    kind: Any = type("Mine", (TowardsHalf,), {name: never})
    with pytest.raises(ValueError, match=rf"^{name} of Mine would not be called: .*; replace {loop}, which"):
        custom(kind)
    custom(type("Whole", (kind,), {loop: never}))  # then the whole loop is the user's
    with pytest.raises(AttributeError, match=rf"^TowardsHalf has no '{name}': .*; replace {loop}\."):
        getattr(custom(), name)


def test_a_checkpoint_inside_compiled_code_is_refused():
    agent: Any = custom()
    runner, metrics = jax.eval_shape(agent._begin, jax.random.key(0), HYPER)
    with pytest.raises(ValueError, match=r"^_checkpoint was called inside compiled code; train calls it after every"):
        jax.eval_shape(agent._checkpoint, runner, metrics, 1)


def acting(shape: tuple[int, ...]) -> Any:
    """A subclass whose policy gives actions of this shape."""
    return type("Acting", (TowardsHalf,), {"policy": lambda *_: jnp.zeros(shape)})


class Wrapped(TowardsHalf):
    """Its env has a step, but none without reset."""

    def _init_env(self, env: Any, env_params: Any) -> None:
        TowardsHalf._init_env(self, env, env_params)
        methods = {"reset": staticmethod(self.env.reset), "step": staticmethod(self.env.step)}
        logged: Any = type("Logged", (), methods)()
        self.env = logged


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (acting((3,)), r"^policy gives actions of shape \(3,\) for 2 actors; make it \(2,"),
        (acting((2, 3)), r"^policy gives actions of shape \(2, 3\), but _sample_actions of shape \(2,\)"),
        (Wrapped, r"^Logged, the env of this agent, has no method step_env; give it"),
    ],
)
def test_the_error_names_what_is_wrong_in_a_subclass(kind: type[IPPOBase], message: str):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(custom(kind).train, jax.random.key(0), HYPER)


@pytest.mark.parametrize(
    ("name", "wrong", "meaning"),
    [
        ("_critic_loss", lambda _, training, *__: training.params, "the loss, a number"),
        ("_actor_loss", lambda _, training, *__: (training.params, 0.0), "the loss, a number, and the divergence"),
        ("_trajectory_advantages", lambda _, value, __: (value, value.sum()), "the next result twice"),
        ("_critic_loss_input", lambda _, __, traj: (traj.obs[:2], traj.action, 0.0), "arrays with one row for each"),
        ("_actor_update", lambda _, runner, __: runner.actor_training, "the training state and the loss"),
        ("_sample_actions", lambda *_: [0.0, 0.0], "an array"),
        *((name, lambda *_, **__: None, "") for name in RESULTS if name != "_trajectory_returns"),  # which IPPO calls
    ],
)
def test_the_error_names_the_method_whose_result_is_another(name: str, wrong: Any, meaning: str):
    kind: Any = type("Mine", (TowardsHalf,), {name: wrong})
    with pytest.raises(ValueError, match=rf"^{name} of Mine returns .*; return {meaning}"):
        jax.eval_shape(custom(kind).train, jax.random.key(0), HYPER)
