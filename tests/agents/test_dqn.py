"""DQN: targets and losses against hand-computed cases, variants, masks, and how the learner stores discrete actions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import hyperparams, networks
from rookery.agents.dqn import DqnConfig, DqnHyper, DqnState, QuantileNetwork, quantile_loss, start, value_loss
from rookery.agents.dqn import DqnParams as Params
from rookery.envs import base
from rookery.envs.base import Environment, EnvSpec, SkillSpec
from rookery.experiments import build
from rookery.experiments.kinds import configure
from rookery.learners.base import genotype
from rookery.types import Observation, Transition
from tests.agents.common import CHOOSING, SPEC, layer, numbers, transitions


def network_of(outputs: int, dueling: bool = False, quantiles: int = 1) -> QuantileNetwork:
    """A linear network of one feature."""
    return QuantileNetwork(networks.mlp([1], [], outputs), dueling, quantiles)


def state_of(online: Any, target: Any) -> DqnState:
    return start(Params(online))._replace(target=target)


def batch_of(mask: list[bool] | None = None) -> Transition:
    """Two steps from 1 to 2, both with action 1 and reward 3; the second ends the episode."""
    now, later = (Observation(jnp.full((2, 1), at)) for at in (1.0, 2.0))
    if mask is not None:
        later = later._replace(action_mask=jnp.broadcast_to(jnp.asarray(mask), (2, 3)))
    return Transition(now, jnp.asarray([1, 1]), jnp.full(2, 3.0), later, jnp.asarray([False, True]))


@pytest.mark.parametrize(
    ("double", "mask", "discount", "bootstrap"),
    [  # at the next observation the network has the values [2, 6, 4], the target network [10, 20, 40]
        (True, None, 0.5, 20.0),
        (False, None, 0.5, 40.0),
        (True, [True, False, True], 0.5, 40.0),
        (False, [True, True, False], 0.5, 20.0),
        (True, None, [0.125, 0.5], 20.0),  # after several steps each row has its discount
    ],
)
def test_targets_by_hand(double: bool, mask: list[bool] | None, discount: Any, bootstrap: float) -> None:
    online, target = layer([[1.0, 3.0, 2.0]], [0.0] * 3), layer([[5.0, 10.0, 20.0]], [0.0] * 3)
    hyper, network = DqnHyper(discount=jnp.asarray(discount)), network_of(3)
    first = discount[0] if isinstance(discount, list) else discount
    errors = [3.0 + first * bootstrap - 3.0, 3.0 - 3.0]  # the value of action 1 at observation 1 is 3
    loss, metrics = value_loss(online, network, double, state_of(online, target), hyper, batch_of(mask))
    huber = [0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5 for error in errors]
    assert float(loss) == pytest.approx(0.5 * np.mean(huber))
    assert float(metrics["value"]) == 3.0
    slope = jax.grad(lambda params: value_loss(params, network, double, state_of(online, target), hyper, batch_of())[0])
    found = slope(online)["params"]["Dense_0"]["bias"]
    np.testing.assert_allclose(found, [0.0, -0.25, 0.0])  # half of the clipped error, half of the rows; no target moves


def test_the_quantile_loss_by_hand() -> None:
    quantiles, targets = [0.0, 1.0], [3.0, -0.5]
    expected = 0.0
    for middle, quantile in zip((0.25, 0.75), quantiles, strict=True):
        for target in targets:
            error = target - quantile
            huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
            expected += abs(middle - (error < 0)) * huber / 2  # summed over quantiles, averaged over targets
    # 0.25 x 2.5 and 0.75 x 0.125 for the first quantile, 0.75 x 1.5 and 0.25 x 1 for the second: 2.09375 / 2.
    assert expected == 1.046875
    found = jax.jit(quantile_loss)(jnp.asarray([quantiles, quantiles]), jnp.asarray([targets, quantiles]))
    np.testing.assert_allclose(found, [expected, 0.5 * (0.25 * 0.5 + 0.25 * 0.5)])


def test_quantiles_of_two_actions_with_dueling_heads_by_hand() -> None:
    network = network_of(6, dueling=True, quantiles=2)
    params = layer([[0.0] * 6], [1.0, 2.0, 10.0, 20.0, 30.0, 60.0])  # quantiles of the state, of two advantages
    given = Observation(jnp.ones((4, 1)))
    assert network.apply(params, given)[0].tolist() == [[-9.0, -18.0], [11.0, 22.0]]
    assert network.values(params, given)[0].tolist() == [-13.5, 16.5]
    state, batch = state_of(params, params), batch_of()
    loss, metrics = value_loss(params, network, True, state, DqnHyper(discount=0.5), batch)
    chosen = jnp.asarray([11.0, 22.0])
    targets = jnp.asarray([[3.0 + 5.5, 3.0 + 11.0], [3.0, 3.0]])
    assert float(metrics["value"]) == 16.5
    assert float(loss) == pytest.approx(float(jnp.mean(quantile_loss(jnp.stack([chosen, chosen]), targets))))


@pytest.mark.parametrize(("period", "tau", "moved"), [(1, 0.25, [1, 1, 1]), (2, 1.0, [0, 1, 0])])
def test_the_target_network_follows_by_averages_or_periodic_copies(period: int, tau: float, moved: list[int]) -> None:
    agent = rookery.dqn(CHOOSING, hidden_sizes=(4,), target_period=period)
    state, batch = agent.start(agent.init(jax.random.key(0))), transitions(jax.random.key(1), CHOOSING)
    hyper = jax.tree.map(jnp.float32, DqnHyper(tau=tau, learning_rate=1e-2))
    for step, does in enumerate(moved):
        before, (state, _) = state, jax.jit(agent.update)(state, hyper, batch, (), jnp.int32(step))
        old, new = numbers(before.target), numbers(state.network.params)
        np.testing.assert_allclose(numbers(state.target), old + does * tau * (new - old), rtol=1e-5, atol=1e-6)
        assert int(state.updates) == step + 1
    after, _ = jax.jit(agent.update)(state, hyper, batch, (), jnp.int32(2**31 - 1))
    assert int(after.updates) == len(moved), "a run with more updates than int32 counts explores no more"


def errands() -> Environment:
    """Episodes of three steps whose action 2 is not available; the reward of a step is the action."""
    mask = jnp.asarray([True, True, False])

    def reset(key: jax.Array) -> tuple:
        return jnp.int32(0), base.first_step(jnp.zeros(1), jnp.zeros((0,)), mask)

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple:
        reward = jnp.where(action == 2, -1e6, action.astype(jnp.float32))
        after = jnp.full(1, state + 1, jnp.float32)
        return state + 1, base.next_step(after, reward, state >= 2, jnp.zeros((0,)), mask)

    spec = EnvSpec("errands", 1, 3, 3, discrete=True, masked=True)
    return rookery.envs.limit_episode(Environment(reset, step, spec), 3)


def test_a_learner_stores_available_actions_and_learns_returns_over_several_steps() -> None:
    env = errands()
    agent = rookery.dqn(env.spec, hidden_sizes=(16,), layer_norm=False, exploration_updates=40)
    learner = rookery.off_policy(
        agent, env, num_envs=4, steps_per_generation=160, batch_size=16, buffer_size=64, warmup_steps=40,
        eval_episodes=1, start_states=2,
    )  # fmt: skip
    space = rookery.choose(learner.space, n_step=3, learning_rate=2e-2, discount=0.5, tau=1.0)
    bank = jax.jit(learner.start_states)(jax.random.key(0))
    member = jax.jit(learner.init)(jax.random.key(1), hyperparams.defaults(space), bank)
    step = jax.jit(learner.step)
    for generation in range(6):
        member, metrics = step(member, bank, jax.random.key(2 + generation), jnp.int32(generation))
        stored = member.buffer.rows.action
        assert (stored.shape, stored.dtype) == ((64,), jnp.int32)
        assert set(np.asarray(stored).tolist()) <= {0, 1}
        assert generation or (stored == 0).any()
        assert member.buffer.rows.reward.min() >= 0.0
    assert float(metrics["exploration"]) == pytest.approx(0.05)
    assert float(jax.jit(learner.evaluate)(genotype(member), bank, jax.random.key(9)).fitness) == 3.0
    values = networks.mlp((1,), (16,), 3).apply(member.state.params.network, jnp.asarray([[0.0], [1.0], [2.0]]))
    np.testing.assert_allclose(values[:, 1], [1.75, 1.5, 1.0], atol=0.1)  # the last one ends the episode


def test_a_run_fills_in_the_length_of_the_exploration() -> None:
    learner = rookery.learners.OffPolicyConfig(4, 40, 0.5, 8, 64, 50, eval_episodes=2, start_states=2)
    spec = configure("pbt-dqn", population=2, devices=1, learner=learner, generations=5, exploration_share=0.2)
    found = build.build(spec)
    assert found.learner is not None
    # 50 iterations without the 13 of the warm-up, 2 updates each.
    assert found.learner.settings["agent"]["exploration_updates"] == round(0.2 * 2 * (50 - 13))
    assert found.spec is not None
    assert found.spec.agent == DqnConfig(exploration_share=0.2), "a resumed run has the schedule of its own length"


@pytest.mark.parametrize(("name", "make"), [("DQN", rookery.dqn), ("PQN", rookery.pqn)])
def test_other_environments_are_refused(name: str, make: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} needs discrete actions, but test has continuous ones"):
        make(SPEC)
    for spec in (CHOOSING._replace(skill=SkillSpec("one-hot", 2)), CHOOSING._replace(recurrent=True)):
        with pytest.raises(ValueError, match=rf"^{name} supports no environment with skills or a memory"):
            make(spec)


def test_skills_and_repertoires_need_continuous_actions() -> None:
    env = errands()
    agent = rookery.dqn(env.spec, hidden_sizes=(4,))
    skilled = env.spec._replace(skill=SkillSpec("one-hot", 2))
    for name, wrap in {"DIAYN": rookery.diayn, "METRA": rookery.agents.metra, "LSD": rookery.agents.lsd}.items():
        with pytest.raises(ValueError, match=rf"^{name} needs continuous actions, but errands has 3 discrete ones\.$"):
            wrap(agent, skilled)
    learner: Any = rookery.off_policy(agent, env)._replace(spec=env.spec)
    with pytest.raises(ValueError, match=r"^ME-PBT needs continuous actions, but errands has 3 discrete ones\.$"):
        rookery.qd.pbt_emitter(learner, None, population_size=2)  # pyright: ignore[reportArgumentType]
