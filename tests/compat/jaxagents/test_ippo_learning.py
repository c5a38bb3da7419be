"""The documented IPPO learns nearly optimal actions, continuous and discrete, with one and two actors."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from rookery.compat.jaxagents import IPPO, OptimizerParams
from tests.compat.jaxagents.goals import CONFIG, HYPER, Actor, Continuous, Critic, Discrete, Goals, Params

UPDATES = 60
LONG = CONFIG._replace(
    n_steps=UPDATES,
    batch_size=32,
    minibatch_size=8,
    actor_epochs=4,
    critic_epochs=4,
    eval_frequency=UPDATES,
    n_evals=64,
)
FAST = OptimizerParams(learning_rate=1e-2, grad_clip=1.0)
LEARNING = HYPER._replace(gamma=0.5, actor_optimizer_params=FAST, critic_optimizer_params=FAST)


def final_rewards(kind: type[IPPO], env: Goals, **changes: Any) -> np.ndarray:
    """Mean reward of an episode's last step before and after training, `[2, I]`."""
    agent = kind(env, Params(), LONG._replace(**changes))
    runner, metrics = agent.train(jax.random.key(0), LEARNING)
    assert np.isfinite(metrics["returns"]).all()
    return np.asarray(metrics["final_rewards"].mean(axis=1))


def test_continuous_actions_reach_goals_outside_of_the_unit_interval():
    before, after = final_rewards(Continuous, Goals())
    assert (before < -0.7).all()  # untrained actions are near 0, at a mean distance of 1 from the goals
    assert (after > -0.12).all()  # actions in [-1, 1] have a mean distance of 0.25


def test_discrete_actions_are_correct():
    before, after = final_rewards(Discrete, Goals(discrete=True))
    assert (before < -0.2).all()
    assert (after > -0.06).all()


@pytest.mark.parametrize("kind", [Continuous, Discrete])
def test_a_single_actor_learns(kind: type[IPPO]):
    alone = {"actor_network": partial(Actor, outputs=1), "critic_network": partial(Critic, n_critics=1)}
    before, after = final_rewards(kind, Goals(1, discrete=kind is Discrete), **alone)
    assert before.shape == (1,)
    assert after[0] > -0.12 if kind is Continuous else after[0] > -0.06
