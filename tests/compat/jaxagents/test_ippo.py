"""The documented IPPO: its names, training, updates, environment and errors."""

import inspect
import pickle
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rookery import returns
from rookery.agents.base import RolloutExtras
from rookery.compat import jaxagents as documented
from rookery.compat.jaxagents import (
    IPPO,
    AgentConfig,
    HyperParameters,
    OptimizerParams,
    Runner,
    TruncationWrapper,
    hooks,
)
from rookery.types import Observation
from rookery.types import Transition as Rows
from tests.compat.jaxagents.goals import (
    CONFIG,
    EVAL_KEY,
    HYPER,
    Actor,
    Continuous,
    Critic,
    Discrete,
    Goals,
    Params,
    numbers,
)
from tests.tiny import assert_equal

Metrics = dict[str, jax.Array]


def agent(kind: type[IPPO] = Continuous, env: Any = None, evaluated: bool = True, **changes: Any) -> IPPO:
    return kind(env or Goals(), Params(), CONFIG._replace(**changes), evaluated)


@cache
def shared() -> IPPO:
    """An agent that is compiled once for all tests."""
    return agent()


@cache
def trained() -> tuple[Runner, Metrics]:
    return shared().train(jax.random.key(0), HYPER)


def steps(runner: Runner) -> tuple[int, int]:
    """Optimiser steps of actors and critics."""
    return int(runner.actor_training.step), int(runner.critic_training.step)


# --- the documented names

EMPTY = inspect.Parameter.empty
REQUIRED = "n_steps batch_size minibatch_size rollout_length actor_epochs critic_epochs actor_network critic_network"


def test_records_have_the_documented_fields_and_defaults():
    assert AgentConfig._fields[:9] == (*REQUIRED.split(), "optimizer")
    assert AgentConfig._field_defaults == {
        **{"eval_frequency": 1, "eval_rng": None, "n_evals": None, "checkpoint_dir": None, "restore_agent": False},
        **{"max_episode_steps": 9999, "deterministic_mode": "off"},
    }
    fields = "gamma gae_lambda eps_clip ent_coeff kl_threshold actor_optimizer_params critic_optimizer_params vf_coeff"
    assert HyperParameters._fields == tuple(fields.split())
    assert HyperParameters._field_defaults == {"vf_coeff": 1.0}
    assert OptimizerParams() == (1e-3, 1e-8, 10.0)
    assert OptimizerParams._fields == ("learning_rate", "eps", "grad_clip")
    fields = "obs action value log_prob reward next_obs terminated next_value advantage"
    assert documented.Transition._fields[:9] == tuple(fields.split())
    stats = "episode_metric mean var std min max median has_nans"
    assert list(inspect.signature(documented.MetricStats).parameters) == stats.split()
    runner = "actor_training critic_training envstate obs rng hyperparams actor_loss critic_loss"
    assert list(inspect.signature(Runner).parameters) == runner.split()


TRAINING = "rng network optimizer_params"
LOSS = "training obs actions log_prob_old advantage hyperparams"
METHODS = {
    "__init__": "env env_params config eval_during_training",
    "__str__": "",
    "_init_env": "env env_params",
    "_init_checkpointer": "",
    "_create_empty_trainstate": "network",
    "restore": "mode best_fn",
    "_init_optimizer": "optimizer_params",
    "_init_network": "rng network",
    "env_reset": "rng",
    "env_step": "rng envstate actions",
    "_make_transition": "obs actions value log_prob reward next_obs terminated",
    "_generate_metrics": "runner update_step",
    "_create_training": TRAINING,
    "_create_update_runner": "rng actor_training critic_training hyperparams",
    "_add_next_values": "traj_batch last_obs critic_training",
    "_add_advantages": "traj_batch advantage",
    "_returns": "traj_batch last_next_state_value gamma gae_lambda",
    "_advantages": "traj_batch gamma gae_lambda",
    "_process_trajectory": "update_runner traj_batch last_obs",
    **dict.fromkeys(["_actor_update", "_critic_update"], "update_runner traj_batch"),
    "_update_step": "i_update_step update_runner",
    **dict.fromkeys(["_checkpoint", "_checkpoint_base"], "update_runner metrics i_training_step"),
    "_training_step": "update_runner i_training_batch",
    "train": "rng hyperparams",
    "_trajectory_returns": "value traj",
    "_trajectory_advantages": "advantage traj",
    "_actor_loss": LOSS,
    "_critic_loss": "training obs targets hyperparams",
    **dict.fromkeys(["_actor_loss_input", "_critic_loss_input"], "update_runner traj_batch"),
    "_entropy": "training obs",
    "_log_prob": "training params obs action",
    "_sample_actions": "rng training obs",
    "policy": "training obs",
    "_eval_agent": "rng actor_training critic_training n_episodes",
    "_eval_metrics": "terminated truncated final_rewards returns",
    "eval": "rng n_evals",
    "log_hyperparams": "hyperparams",
    "collect_training": "runner metrics previous_training_max_step",
    "_pp": "",
    "summarize": "metrics",
}
DEFAULTS = {"eval_during_training": True, "n_evals": 32, "n_episodes": 1, "previous_training_max_step": 0}
DEFAULTS |= {"mode": "best", "best_fn": None}


def test_every_documented_method_is_called_or_refused():
    assert len(METHODS) + len(hooks.INSIDE) == 52
    assert METHODS.keys() >= set(hooks.INSIDE.values())


@pytest.mark.parametrize(("name", "parameters"), METHODS.items())
def test_methods_have_the_documented_signatures(name: str, parameters: str):
    found = inspect.signature(getattr(IPPO, name)).parameters
    assert list(found)[1:] == parameters.split()
    optional = {"runner": None, "metrics": None} if name == "collect_training" else {}
    defaults = {**DEFAULTS, **optional}
    assert {key: it.default for key, it in found.items() if it.default is not EMPTY} == {
        key: defaults[key] for key in parameters.split() if key in defaults
    }


# --- training


def test_training_makes_every_update_and_reports_every_evaluation():
    runner, metrics = trained()
    assert steps(runner) == (5 * 2 * 2, 5 * 3 * 2)  # updates, epochs, minibatches
    shapes = {name: metrics[name].shape for name in sorted(metrics)}
    assert shapes == {
        **{"actor_loss": (4, 1), "critic_loss": (4, 1), "terminated": (4, 6), "truncated": (4, 6)},
        **{"final_rewards": (4, 6, 2), "returns": (4, 6, 2)},
    }
    assert metrics["terminated"].dtype == metrics["truncated"].dtype == bool
    assert (metrics["terminated"] ^ metrics["truncated"]).all()
    assert float(metrics["actor_loss"][0, 0]) == float(metrics["critic_loss"][0, 0]) == 0.0
    assert (metrics["critic_loss"][1:] > 0.0).all()
    assert runner.obs.shape == (8, 1, 2)
    assert runner.envstate.step.shape == (8,)
    np.testing.assert_array_equal(runner.obs[:, 0], runner.envstate.envstate.goals)


class Counted(Continuous):
    """An update counts itself, and its loss is its number in the stage."""

    def _update_step(self, i_update_step: Any, update_runner: Runner) -> Runner:
        actors, number = update_runner.actor_training, jnp.full((1,), i_update_step, jnp.float32)
        actors = actors.replace(step=actors.step + 1)
        return update_runner.replace(actor_training=actors, actor_loss=number, critic_loss=-number)

    def _eval_agent(self, *_: Any) -> dict[str, jax.Array]:
        return {}


@pytest.mark.parametrize(
    ("updates", "every", "losses"),
    [(5, 2, [0, 0.5, 0.5, 0]), (3, 7, [0, 1])],
)
def test_the_stages_make_the_configured_updates(updates: int, every: int, losses: list[float]):
    counted = agent(Counted, n_steps=updates, eval_frequency=every)
    runner, metrics = counted.train(jax.random.key(0), HYPER)
    assert int(runner.actor_training.step) == updates
    assert metrics["actor_loss"][:, 0].tolist() == losses
    assert metrics["critic_loss"][:, 0].tolist() == [-loss for loss in losses]
    counted.collect_training(runner, metrics)
    assert np.asarray(counted.eval_steps_in_training).tolist() == sorted({*range(0, updates, every), updates})


def test_hyperparameters_that_are_mapped_inside_jit_train_as_single_ones_and_keys_may_be_raw():
    rates = jnp.asarray([3e-3, 1e-2])
    sets = HYPER._replace(
        gamma=jnp.asarray([0.9, 0.5]), actor_optimizer_params=OptimizerParams(rates, 1e-8 * jnp.ones(2), jnp.ones(2))
    )
    axes = jax.tree.map(lambda leaf: 0 if jnp.ndim(leaf) else None, sets)
    train = jax.jit(jax.vmap(shared().train, in_axes=(None, axes)))
    runners, metrics = train(jax.random.PRNGKey(0), sets)
    assert metrics["returns"].shape == (2, 4, 6, 2)
    for i in range(2):
        one = jax.tree.map(lambda leaf, i=i: leaf[i] if jnp.ndim(leaf) else leaf, sets)
        runner, expected = shared().train(jax.random.key(0), one)
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name][i], value, rtol=2e-3, atol=2e-4, err_msg=name)
        alone = jax.tree.leaves(runner.actor_training.params)
        for many, single in zip(jax.tree.leaves(runners.actor_training.params), alone, strict=True):
            np.testing.assert_allclose(many[i], single, rtol=1e-3, atol=1e-4)
    assert not np.allclose(metrics["returns"][0], metrics["returns"][1])
    assert_equal(numbers(shared().train(jax.random.PRNGKey(0), HYPER)), numbers(trained()))


def test_the_epoch_that_exceeds_the_kl_threshold_is_the_last():
    runner, _ = shared().train(jax.random.key(0), HYPER._replace(kl_threshold=0.0))
    assert steps(runner) == (5 * 1 * 2, 5 * 3 * 2)


def test_the_first_evaluation_is_before_training_and_all_share_start_states():
    runner, metrics = trained()
    shared().collect_training(runner, metrics)
    last = shared().eval(EVAL_KEY, 6)
    for name, value in last.items():
        np.testing.assert_allclose(metrics[name][-1], value, rtol=1e-5, atol=1e-6)
    shared().collect_training(shared()._compiled_begin(jax.random.key(0), HYPER)[0], metrics)
    first = shared().eval(EVAL_KEY, 6)
    np.testing.assert_allclose(metrics["returns"][0], first["returns"], rtol=1e-5)
    assert np.asarray(shared().eval_steps_in_training).tolist() == [0, 2, 4, 5]


def test_summarize_reduces_the_last_axis():
    stats = shared().summarize(np.asarray([[1.0, 2.0, 6.0], [0.0, np.nan, 1.0]]))
    assert stats.mean[0] == 3.0
    assert stats.median[0] == 2.0
    assert stats.std[0] == pytest.approx(np.std([1, 2, 6]))
    assert stats.var[0] == pytest.approx(np.var([1, 2, 6]))
    assert (stats.min[0], stats.max[0]) == (1.0, 6.0)
    assert stats.has_nans.tolist() == [False, True]
    assert stats.episode_metric.shape == (2, 3)
    assert stats.replace(mean=0.0).mean == 0.0


# --- parts of an update


def trajectories() -> documented.Transition:
    """Two environments of four steps: the first terminates in its second step, the other is truncated there."""
    numbers = iter(jax.random.normal(jax.random.key(3), (4, 2, 4, 2)))
    ends = jnp.zeros((2, 4), bool)
    return documented.Transition(
        obs=jnp.arange(16.0).reshape(2, 4, 1, 2),
        action=next(numbers),
        value=next(numbers),
        log_prob=jnp.zeros((2, 4, 2)),
        reward=next(numbers),
        next_obs=jnp.zeros((2, 4, 1, 2)),
        terminated=ends.at[0, 1].set(True),
        next_value=next(numbers),
        truncated=ends.at[1, 1].set(True),
    )


def test_advantages_stop_at_the_end_of_an_episode_and_bootstrap_at_a_truncation():
    traj, gamma, gae_lambda = trajectories(), jnp.float32(0.9), jnp.float32(0.5)
    found = np.asarray(jax.jit(shared()._advantages)(traj, gamma, gae_lambda))
    reward, value, following = (np.asarray(leaf) for leaf in (traj.reward, traj.value, traj.next_value))
    residual = reward + gamma * following - value
    np.testing.assert_allclose(found[0, 1], reward[0, 1] - value[0, 1], rtol=1e-5)  # terminated
    np.testing.assert_allclose(found[1, 1], residual[1, 1], rtol=1e-5)  # truncated
    np.testing.assert_allclose(found[:, 3], residual[:, 3], rtol=1e-5)
    np.testing.assert_allclose(found[:, 2], residual[:, 2] + 0.45 * residual[:, 3], rtol=1e-4, atol=1e-6)
    ended = (traj.terminated | traj.truncated)[..., None] & jnp.ones((1, 1, 2), bool)
    terminated = traj.terminated[..., None] & jnp.ones((1, 1, 2), bool)
    first = jax.tree.map(
        partial(jnp.swapaxes, axis1=0, axis2=1), (traj.reward, terminated, ended, traj.value, traj.next_value)
    )
    np.testing.assert_allclose(
        found.swapaxes(0, 1), returns.gae(*first, discount=gamma, lambda_=gae_lambda), rtol=1e-5, atol=1e-6
    )


def test_returns_stop_at_the_end_of_an_episode_and_bootstrap_at_a_truncation():
    traj, gamma = trajectories(), jnp.float32(0.9)
    found = np.asarray(shared()._returns(traj, traj.next_value[:, -1], gamma, jnp.float32(1.0)))
    reward, following = np.asarray(traj.reward), np.asarray(traj.next_value)
    np.testing.assert_allclose(found[:, 3], reward[:, 3] + gamma * following[:, 3], rtol=1e-5)
    np.testing.assert_allclose(found[:, 2], reward[:, 2] + gamma * found[:, 3], rtol=1e-5)
    np.testing.assert_allclose(found[0, 1], reward[0, 1], rtol=1e-5)  # terminated
    np.testing.assert_allclose(found[1, 1], reward[1, 1] + gamma * following[1, 1], rtol=1e-5)  # truncated
    changed = np.asarray(shared()._returns(traj, jnp.zeros((2, 2)), gamma, jnp.float32(1.0)))
    np.testing.assert_allclose(changed[:, 3], reward[:, 3], rtol=1e-5)
    with pytest.raises(ValueError, match=r"last_next_state_value gives shape \(\) for 2 actors; make it \(2,\)"):
        shared()._returns(traj, jnp.zeros(2), gamma, jnp.float32(1.0))


def test_rollouts_have_the_documented_axes():
    runner, _ = trained()
    size = (3, 8, 2)  # time, environments, actors
    observations = jnp.broadcast_to(jax.random.normal(jax.random.key(1), (2, 3, 8, 1, 2)), (2, *size, 2))
    ended = jnp.zeros(size, bool).at[0, 1].set(True).at[1, 2].set(True)
    terminated = jnp.zeros(size, bool).at[0, 1].set(True)
    number = jax.random.normal(jax.random.key(2), size)
    extras = RolloutExtras(number + 1.0, ended, jnp.ones(size, bool), number, jnp.zeros(size, bool))
    batch = Rows(
        Observation(observations[0]), number[..., None], number + 2.0, Observation(observations[1]), terminated, extras
    )
    process = jax.jit(
        lambda rows: shared()._process_trajectory(runner, shared()._transitions(runner, rows), runner.obs)
    )
    traj = process(batch)
    assert traj.obs.shape == traj.next_obs.shape == (8, 3, 1, 2)
    np.testing.assert_array_equal(traj.obs[5, 2, 0], observations[0, 2, 5, 0])
    np.testing.assert_array_equal(traj.action[5, 2], number[2, 5])
    np.testing.assert_array_equal(traj.log_prob[5, 2], number[2, 5] + 1.0)
    np.testing.assert_array_equal(traj.reward[5, 2], number[2, 5] + 2.0)
    assert np.argwhere(traj.terminated).tolist() == [[1, 0]]
    assert np.argwhere(traj.truncated).tolist() == [[2, 1]]
    critic = runner.critic_training
    np.testing.assert_allclose(traj.value[5, 2], critic.apply_fn(critic.params, observations[0, 2, 5, :1]), rtol=1e-5)
    np.testing.assert_allclose(
        traj.next_value[5, 2], critic.apply_fn(critic.params, observations[1, 2, 5, :1]), rtol=1e-5
    )
    at_the_end = traj.reward[2, 1] + 0.9 * traj.next_value[2, 1] - traj.value[2, 1]
    np.testing.assert_allclose(traj.advantage[2, 1], at_the_end, rtol=1e-4, atol=1e-6)


def test_minibatches_are_whole_rollouts_shuffled_in_every_epoch():
    whole = jnp.broadcast_to(jnp.arange(8.0)[:, None, None], (8, 3, 2))  # of environment i: i everywhere
    traj = documented.Transition(
        **{name: whole for name in ("action", "value", "log_prob", "reward", "next_obs")},
        **{"obs": whole, "terminated": whole[..., 0], "advantage": 10.0 * whole},
    )
    runner, orders = trained()[0], []
    for seed in range(3):
        runner = runner.replace(rng=jax.random.key(seed))
        obs, action, log_prob, advantage, hyperparams = shared()._actor_loss_input(runner, traj)
        assert obs.shape == (2, 4, 3, 2)
        assert hyperparams is runner.hyperparams
        assert sorted(obs[..., 0, 0].ravel().tolist()) == list(range(8))
        for leaf in (action, log_prob, advantage / 10.0):
            np.testing.assert_array_equal(leaf, obs)
        obs, targets, _ = shared()._critic_loss_input(runner, traj)
        np.testing.assert_array_equal(targets, 11.0 * obs)
        orders.append(obs[..., 0, 0].tolist())
    assert orders[0] != orders[1] != orders[2]


def test_the_loss_normalises_the_advantages_of_each_actor():
    runner = trained()[0]
    obs, actions = jax.random.normal(jax.random.key(1), (4, 3, 1, 2)), jax.random.normal(jax.random.key(2), (4, 3, 2))
    mus = jax.vmap(jax.vmap(partial(shared().policy, runner.actor_training)))(obs)
    now = jax.scipy.stats.norm.logpdf(actions, mus, jnp.exp(-1.0))
    old, advantage = now - 0.1, jnp.arange(24.0).reshape(4, 3, 2) ** 2
    hyper = HYPER._replace(ent_coeff=0.01)
    loss_of = jax.jit(partial(shared()._actor_loss, runner.actor_training, obs, actions, old))
    loss, kl = loss_of(advantage, hyper)
    normal = (advantage - advantage.mean((0, 1), keepdims=True)) / advantage.std((0, 1), keepdims=True)
    ratio, entropy = np.exp(0.1), -1.0 + 0.5 * np.log(2 * np.pi * np.e)
    objective = np.minimum(ratio * normal, np.clip(ratio, 0.8, 1.2) * normal).mean()
    assert float(loss) == pytest.approx(-objective - 0.01 * entropy, rel=1e-3)
    np.testing.assert_allclose(kl, [np.expm1(0.1) - 0.1] * 2, rtol=1e-3)
    scaled = advantage * jnp.asarray([[[1.0, 1000.0]]]) + jnp.asarray([[[5.0, 0.0]]])
    again, _ = loss_of(scaled, hyper)
    assert float(again) == pytest.approx(float(loss), abs=1e-5)


def sgd_by_speed(speed: float) -> optax.GradientTransformation:
    return optax.sgd(speed)


def test_the_optimizer_gets_the_arguments_in_its_signature():
    cases = {
        "a function": (optax.sgd, OptimizerParams(0.5, grad_clip=2.0), -1.0),  # 0.5 times a gradient clipped to 2
        "a partial": (partial(optax.sgd, momentum=0.0), OptimizerParams(0.25, grad_clip=100.0), -1.0),
    }
    for factory, params, expected in cases.values():
        made = hooks.optimizer(factory, params)
        update: Any = made.update(jnp.asarray([4.0]), made.init(jnp.zeros(1)))
        assert float(update[0][0]) == pytest.approx(expected)
    with pytest.raises(ValueError, match=r"^the optimizer takes none of learning_rate, eps, only speed; use another"):
        agent(optimizer=sgd_by_speed).train(jax.random.key(0), HYPER)


# --- the environment


def test_env_step_reports_ends_and_resets():
    agent_, rng = shared(), jax.random.key(1)
    rng, obs, state = agent_.env_reset(rng)
    assert obs.shape == (1, 2)
    ends = []
    for _ in range(40):
        above = bool(state.envstate.goals[0] > 1.5)
        before = int(state.step)
        rng, obs, state, reward, done, info = agent_.env_step(rng, state, jnp.asarray([5.0, -5.0]))
        assert info["actions"].tolist() == [5.0, -5.0]
        assert reward.shape == (2,)
        ends.append((bool(info["terminated"]), bool(info["truncated"])))
        assert ends[-1] == (above, before == 4 and not above)
        assert bool(done) == any(ends[-1])
        assert int(state.step) == (0 if done else before + 1)
        np.testing.assert_array_equal(obs[0], state.envstate.goals)
    assert {(True, False), (False, True), (False, False)} == set(ends)
    wrapper = TruncationWrapper(Goals())
    assert wrapper.max_steps == 500
    assert wrapper._env is wrapper.env


def test_discrete_actions_are_indices():
    learner = agent(Discrete, env=Goals(discrete=True))
    runner, _ = learner._compiled_begin(jax.random.key(0), HYPER)
    _, traj = jax.jit(learner._collect)(runner, jax.random.key(2), jax.random.key(3))
    assert set(np.unique(traj.action)) == {0, 1}
    correct = np.asarray(traj.obs)[:, :, 0] > 0
    np.testing.assert_array_equal(traj.reward, -np.abs(np.asarray(traj.action) - correct))
    assert learner._environment.spec.discrete


def test_an_agent_is_pickled_with_its_training_and_without_compiled_functions():
    learner = agent(evaluated=False)
    learner.collect_training(learner._compiled_begin(jax.random.key(0), HYPER)[0], previous_training_max_step=5)
    copied = pickle.loads(pickle.dumps(learner))
    assert_equal(jax.tree.leaves(copied.actor_training), jax.tree.leaves(learner.actor_training))
    assert copied.actor_training.apply_fn.__self__ is copied._init_network(jax.random.key(0), Actor)[0], "it continues"
    jax.eval_shape(copied._compiled_begin, jax.random.key(0), HYPER)


class Constant(Continuous):
    """Its metrics are a number of Python."""

    def _generate_metrics(self, runner: Runner, update_step: Any) -> Any:
        return {"constant": 1.0}


def test_metrics_may_be_replaced_and_are_left_out_without_evaluations():
    assert jax.eval_shape(agent(Constant).train, jax.random.key(0), HYPER)[1]["constant"].shape == (4,)
    assert jax.eval_shape(agent(evaluated=False).train, jax.random.key(0), HYPER)[1] == {}


# --- errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_steps": 0}, r"^n_steps must be at least 1, got 0\.$"),
        ({"max_episode_steps": 2**31}, r"^max_episode_steps must be at most 2147483647, the largest int32, got"),
        ({"optimizer": optax.adam(1e-3)}, r"^optimizer must be a class or a function that makes it, such as optax"),
        ({"eval_rng": 3}, r"^a random key is needed, such as jax\.random\.key\(0\), got 3\.$"),
        ({"minibatch_size": 3}, r"^minibatch_size must divide batch_size \(8\), got 3\.$"),
        ({"minibatch_size": 1, "rollout_length": 1}, r"^advantages of a minibatch of one step cannot be normalised;"),
        ({"eval_rng": None}, r"^evaluations during training need eval_rng; set them, or eval_during_training=False\.$"),
        ({"n_evals": 0}, r"^n_evals must be at least 1, got 0\.$"),
        ({"deterministic_mode": "most"}, r"^deterministic_mode must be one of .*, got 'most'\.$"),
        ({"env": object()}, r"^object has no attribute n_actors, the number of actors; define it\.$"),
    ],
)
def test_invalid_settings_raise_at_construction(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        agent(**changes)


class OneReward(Goals):
    """One reward for all actors."""

    def step_env(self, key: Any, state: Any, actions: Any, params: Any) -> tuple:
        obs, state, reward, done, info = Goals.step_env(self, key, state, actions, params)
        return obs, state, reward[0], done, info


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": OneReward()}, r"^the reward of step_env gives shape \(\) for 2 actors; make it \(2,\)\."),
        ({"critic_network": partial(Critic, n_critics=3)}, r"^critic_network gives shape \(3,\) for 2 actors; make"),
        ({"actor_network": partial(Actor, outputs=3)}, r"^_sample_actions gives actions of shape \(3,\) for 2"),
    ],
)
def test_outputs_of_a_wrong_shape_raise_in_training(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(agent(evaluated=False, **changes).train, jax.random.key(0), HYPER)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ent_coeff": [0.1]}, r"^ent_coeff must be a number, got \[0\.1\]\.$"),
        ({"gae_lambda": 1.5}, r"^gae_lambda must be in \[0, 1\], got 1\.5\.$"),
        (
            {"actor_optimizer_params": OptimizerParams(learning_rate=-1.0)},
            r"^actor_optimizer_params\.learning_rate must be at least 0, got -1\.0\.$",
        ),
        ({"critic_optimizer_params": 0.1}, r"^actor_ and critic_optimizer_params must be OptimizerParams; or replace"),
    ],
)
def test_a_wrong_hyperparameter_is_one_sentence(changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        agent(evaluated=False).train(jax.random.key(0), HYPER._replace(**changes))


def test_invalid_calls_raise(tmp_path: Path):
    remedy = r'call collect_training\(runner, metrics\) or restore\("last"\)\.$'
    with pytest.raises(ValueError, match=rf"^the actors are not trained; {remedy}"):
        agent().eval(jax.random.key(0))
    with pytest.raises(ValueError, match=r"^collect_training needs the runner that train returned; got None\.$"):
        agent().collect_training()
    with pytest.raises(ValueError, match=r"^train takes HyperParameters, got dict; build one of its values\.$"):
        agent().train(jax.random.key(0), cast(Any, HYPER._asdict()))
    with pytest.raises(ValueError, match=r"^there is nothing to restore from; give checkpoint_dir"):
        agent().restore("last")
    with pytest.raises(ValueError, match=r"^a hyper-parameter has shape \(2,\); train sets by jax\.vmap"):
        agent().train(jax.random.key(0), HYPER._replace(gamma=jnp.ones(2)))
    kept = agent(checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match=r"within jax\.jit or jax\.vmap writes no checkpoints; leave checkpoint_dir"):
        jax.jit(kept.train)(jax.random.key(0), HYPER)
    with pytest.raises(ValueError, match=r"^mode must be 'best' or 'last', got 'first'\.$"):
        kept.restore("first")
    remedy = r'give it, or call restore\("last"\)\.$'
    with pytest.raises(ValueError, match=rf"^mode 'best' needs best_fn\(metrics\) -> index of an evaluation; {remedy}"):
        kept.restore()
    with pytest.raises(ValueError, match=r"has no whole checkpoint; train first, or give another checkpoint_dir\.$"):
        kept.restore("last")
