"""Optional hyper-parameters: an update with one is that of the setting of the same name."""

from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rookery
from rookery import gradients, hyperparams, networks, trees
from rookery.agents.ppo import surrogate
from rookery.hyperparams import choose
from rookery.types import Genotype, Observation
from tests.agents.common import BATCH, SKILLED, SMALL_PPO, SPEC, numbers, transitions
from tests.learners.rollouts import PARTIAL, rollout


def updating(agent: Any, updates: int, batch: Any) -> Callable[..., Any]:
    """A function from choices of hyper-parameters to the states after each of some updates, which is compiled once for
    choices of the same names."""

    def once(hyper: Any, batch: Any, state: Any, step: jax.Array) -> Any:
        key = jax.random.key(2)
        noise = key if isinstance(agent, rookery.agents.OnPolicyAgent) else agent.noise(key, BATCH)
        state = agent.update(state, hyper, batch, noise, step)[0]
        return state, state

    @jax.jit
    def train(hyper: Any, batch: Any) -> Any:
        state = agent.start(agent.init(jax.random.key(1)))
        return jax.lax.scan(partial(once, hyper, batch), state, jnp.arange(updates))[1]

    return lambda **chosen: train(hyperparams.defaults(choose(agent.space, **chosen)), batch)


def test_adam_with_other_constants_is_that_of_optax() -> None:
    params = {"weight": jnp.linspace(-1.0, 1.0, 5)}
    optimizer = optax.adamw(1e-2, b1=0.8, b2=0.95, eps=1e-4, weight_decay=0.1)
    hyper = gradients.AdamHyper(*map(jnp.float32, (0.8, 0.95, 1e-4, 0.1)))
    learned, expected, moments = gradients.start(params), params, optimizer.init(params)
    for step in range(4):
        slope = jax.tree.map(lambda leaf, step=step: jnp.sin(leaf + step), params)
        learned = gradients.adam(learned, slope, 1e-2, hyper=hyper)
        with jax.numpy_dtype_promotion("standard"):
            changes, moments = optimizer.update(slope, moments, expected)
            expected = optax.apply_updates(expected, changes)
    np.testing.assert_allclose(numbers(learned.params), numbers(expected), rtol=2e-6)
    partly = namedtuple("Partly", ["weight_decay"])(jnp.float32(0.0))
    plain, same = (gradients.adam(learned, params, 1e-2, hyper=one) for one in (None, partly))
    assert trees.same_numbers(plain, same)


def test_td3s_delay_is_that_of_its_config() -> None:
    batch = transitions(jax.random.key(0))
    evolving = updating(rookery.td3(SPEC, hidden_sizes=(4,)), 4, batch)(delay=3)
    fixed = updating(rookery.td3(SPEC, hidden_sizes=(4,), policy_delay=3), 4, batch)()
    np.testing.assert_allclose(numbers(evolving), numbers(fixed), rtol=1e-5, atol=1e-7)


def test_sac_updates_its_policy_after_the_delay() -> None:
    update = updating(rookery.sac(SPEC, hidden_sizes=(4,)), 5, transitions(jax.random.key(0)))
    states = update(delay=3)
    changes = [
        [not trees.same_numbers(trees.take(part, step), trees.take(part, step + 1)) for step in range(4)]
        for part in (states.policy, states.log_alpha, states.critic, states.target_critic)
    ]
    assert changes == [[False, True, False, False]] * 2 + [[True] * 4] * 2, "after the updates 3, 6, ..."
    np.testing.assert_allclose(numbers(update(delay=1)), numbers(update()), rtol=1e-5, atol=1e-7)


def test_ppos_choices_are_those_of_its_config() -> None:
    usual: dict[str, Any] = {"actor_epochs": 3, "critic_epochs": 3}
    other = {"actor_epochs": 2, "critic_epochs": 2, "clip_value": True, "hidden_activation": "silu"}
    batch = rollout(jax.random.key(3), PARTIAL)
    plain, fixed = (updating(rookery.ppo(PARTIAL, SMALL_PPO(**config)), 2, batch) for config in (usual, usual | other))
    rest = {"advantages": "normalized", "weight_decay": 0.0, "critic_lr": 0.1}
    for expected, chosen in (
        (plain, {"epochs": 3, "value_clipping": "off", "activation": "tanh"}),
        (fixed, {"epochs": 2, "value_clipping": "on", "activation": "silu"}),
    ):
        np.testing.assert_allclose(
            numbers(plain(**rest, **chosen)), numbers(expected(critic_lr=0.1)), rtol=1e-5, atol=1e-6
        )


def test_plain_advantages_are_not_normalised() -> None:
    advantage, counts = jnp.asarray([1.0, 5.0, 9.0, -99.0]), jnp.asarray([True, True, True, False])
    log_prob = jnp.zeros(4)
    for plain, expected in ((None, 0.0), (False, 0.0), (True, 5.0)):  # the ratio is 1, so the mean of the advantages
        flag = None if plain is None else jnp.asarray(plain)
        objective, _ = surrogate(log_prob, log_prob, advantage, counts, jnp.float32(0.2), flag)
        assert float(objective) == pytest.approx(expected, abs=1e-6)


def test_members_act_with_their_activations() -> None:
    """Explored, evaluated and recorded actions are those of a network with this activation."""
    evolving = rookery.ppo(PARTIAL, SMALL_PPO())
    params, key = evolving.init(jax.random.key(0)), jax.random.key(2)
    observation = Observation(jax.random.normal(jax.random.key(1), (PARTIAL.observation_size,)))
    act, state, different = jax.jit(partial(rookery.act, evolving)), evolving.start(params), set()
    name: Any
    for place, name in enumerate(networks.ACTIVATIONS):
        fixed = rookery.ppo(PARTIAL, SMALL_PPO(hidden_activation=name))
        expected = rookery.act(fixed, Genotype(params, (), None), observation)
        hyper: Any = hyperparams.defaults(choose(evolving.space, activation=name))
        assert float(hyper.activation) == place
        np.testing.assert_allclose(act(Genotype(params, hyper, None), observation), expected, rtol=1e-6, err_msg=name)
        explored = evolving.explore(state, hyper, observation, key)
        same = fixed.explore(state, hyperparams.defaults(fixed.space), observation, key)
        np.testing.assert_allclose(numbers(explored), numbers(same), rtol=1e-6, err_msg=name)
        different.add(expected.tobytes())
    assert len(different) == len(networks.ACTIVATIONS)
    names = choose(evolving.space, activation="evolve").domains["activation"]
    assert names == hyperparams.Choice(*networks.ACTIVATIONS)


def test_which_agents_have_an_activation() -> None:
    memory, team = (
        rookery.ppo(PARTIAL, SMALL_PPO(recurrent=True)),
        rookery.ppo(rookery.make("pursuit_continuous").spec),
    )
    for agent in (memory, team):
        with pytest.raises(ValueError, match="no hyper-parameter here named 'activation'"):
            choose(agent.space, activation="relu")


def test_members_that_start_from_a_genotype_keep_its_activation() -> None:
    env = rookery.make("point_room")
    learner = rookery.on_policy(
        rookery.ppo(env.spec, hidden_sizes=(4,), minibatches=2), env, num_envs=2, rollout_length=8
    )
    plain, evolving = learner.space, choose(learner.space, activation=("tanh", "relu"), actor_lr="evolve")
    bank = learner.start_states(jax.random.key(0))
    made = {}
    for name, space in {"plain": plain, "relu": choose(learner.space, activation="relu")}.items():
        member = jax.jit(learner.init)(jax.random.key(1), hyperparams.defaults(space), bank)
        made[name] = rookery.genotype(member)
    program = rookery.pbt(learner, evolving, population_size=4)
    begun: Any = jax.jit(rookery.populations.begin_as(program, learner, made["relu"]).init)(jax.random.key(2))
    assert np.asarray(begun.members.hyper.activation).tolist() == [1.0] * 4
    assert len(np.unique(begun.members.hyper.actor_lr)) == 4
    with pytest.raises(ValueError, match="activation of its networks; leave it out of the space"):
        rookery.populations.begin_as(program, learner, made["plain"])
    with pytest.raises(ValueError, match="activation of its networks; choose it in the space"):
        rookery.populations.begin_as(rookery.pbt(learner, population_size=4), learner, made["relu"])


def test_a_wrapper_passes_the_optional_ones_of_its_agent() -> None:
    agent = rookery.diayn(rookery.sac(SKILLED, hidden_sizes=(4,)), SKILLED)
    update = updating(agent, 1, transitions(jax.random.key(0), SKILLED))
    slow, fast = (update(weight_decay=decay).agent.critic for decay in (1e-6, 0.1))
    assert not trees.same_numbers(slow, fast)
