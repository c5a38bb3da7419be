"""Subclasses of QDax's documented classes: what they replace is called, or refused."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from rookery.compat.qdax import (
    PBT,
    PBTSAC,
    PBTTD3,
    SAC,
    TD3,
    PBTSacTrainingState,
    PBTTrainingState,
    environments,
)
from tests.compat.qdax.documented import T, agent, make_env, population, reshaped

TRAINING = {"select_action", "play_step_fn", "update", "_compute_reward", "_update_networks"}
EVALUATION = {"select_action", "play_step_fn", "eval_policy_fn"}
DESCRIBED = {"select_action", "play_step_fn", "play_qd_step_fn", "eval_qd_policy_fn"}


def recording(kind: Any, name: str, calls: set[str]) -> Any:
    """A subclass with one method that notes its calls."""

    def call(self: Any, *given: Any, **named: Any) -> Any:
        calls.add(name)
        return getattr(super(kind_of_own, self), name)(*given, **named)

    kind_of_own: Any = type("Own", (kind,), {name: call})
    return kind_of_own


@pytest.mark.parametrize("kind", [PBTSAC, PBTTD3])
def test_every_function_of_a_population_calls_the_methods_of_a_subclass(kind: Any):
    _, states, buffers = population(kind, 2)
    env = make_env(4)
    first = jax.eval_shape(lambda key: reshaped(env.reset(key), 2, 2), jax.random.key(0))
    extract = environments.descriptor_extractor["point_room"]
    for name in TRAINING | EVALUATION | DESCRIBED:
        calls: set[str] = set()
        learner = recording(kind, name, calls)(agent(kind)._config, 2)
        train = learner.get_train_fn(env, num_iterations=3, env_batch_size=2, grad_updates_per_step=1.0)
        _, metrics = jax.eval_shape(train, states, first, buffers)
        assert metrics["critic_loss"].shape == (2, 3)
        assert calls == {name} & TRAINING
        for evaluate, used in (
            (learner.get_eval_fn(env), EVALUATION),
            (learner.get_eval_qd_fn(env, extract), DESCRIBED),
        ):
            calls.clear()
            jax.eval_shape(evaluate, states, first)
            assert calls == {name} & used


class Rewarded:
    """A wrapper, as of Brax: every step has the reward 3."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, state: Any, action: Any) -> Any:
        return self.env.step(state, action).replace(reward=jnp.full(action.shape[:-1], 3.0))


def test_a_wrapped_environment_is_stepped_by_its_wrapper():
    learner, states, buffers = population(PBTSAC, 2, capacity=64)
    env: Any = Rewarded(make_env(4))
    first = reshaped(env.reset(jax.random.key(0)), 2, 2)
    extract = environments.descriptor_extractor["point_room"]

    @jax.jit
    def run(states: Any) -> tuple:
        trained, _ = learner.get_train_fn(env, 2, 2, 1.0)(states, first, buffers)
        evaluated = [learner.get_eval_fn(env), learner.get_eval_qd_fn(env, extract)]
        return trained[2].state.rows.rewards[:, 12:16], *(evaluate(states, first)[0] for evaluate in evaluated)

    stored, returns, described = run(states)
    assert (stored == 3.0).all()
    assert returns.tolist() == described.tolist() == [3.0 * T] * 2


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_a_subclass_chooses_the_actions_that_are_played(kind: Any):
    class Own(kind):
        def select_action(self, obs: Any, policy_params: Any, key: Any, expl_noise: Any = 0.1, **mode: Any) -> Any:
            assert policy_params is not None
            assert mode == {"deterministic": False}
            return jnp.full_like(obs, expl_noise)

    learner, env = Own(agent(kind)._config, 2), make_env()
    play = jax.jit(partial(learner.play_step_fn, env=env))
    _, _, row = play(env.reset(jax.random.key(0)), learner.init(jax.random.key(1), 2, 2))
    assert (row.actions == jnp.float32(0.1)).all()


@pytest.mark.parametrize("name", ["_update_alpha", "_update_critic", "_update_actor"])
def test_a_method_that_would_not_be_called_is_refused(name: str):
    with pytest.raises(ValueError, match=f"^{name} of Own would not be called; replace _update_networks, which is one"):
        type("Own", (SAC,), {name: lambda *_: None})(agent(SAC)._config, 2)


class Fixed(PBTSacTrainingState):
    """A state whose new discount is always 0.5."""

    @classmethod
    def resample_hyperparams(cls, training_state: Any) -> Any:
        return PBTSacTrainingState.resample_hyperparams(training_state).replace(discount=jnp.float32(0.5))


def test_children_get_the_hyper_parameters_of_a_subclass():
    _, states, buffers = population(PBTSAC, 4)
    own = Fixed(**vars(states))
    children, _ = PBT(4, 1, 2).update_states_and_buffer(jax.random.key(0), jnp.arange(4.0), own, buffers)
    assert type(children) is Fixed
    assert (children.discount[:2] == 0.5).all()
    assert (children.discount[2:] == states.discount[2:]).all()
    assert len({float(rate) for rate in children.policy_lr}) == 4


def test_states_of_other_algorithms_are_refused():
    with pytest.raises(
        ValueError, match=r"^Other is the state of no agent of this library; derive it from PBTSac.*\.$"
    ):
        type("Other", (PBTTrainingState,), {})
    _, states, buffers = population(PBTSAC, 4)
    with pytest.raises(ValueError, match=r"^training_state must be a PBTTrainingState, .* got SacState\.$"):
        PBT(4, 1, 2).update_states_and_buffer(jax.random.key(0), jnp.arange(4.0), states.learned, buffers)
