"""Training with METRA in a corridor, whose length is 40 times its width: two skills, two directions, a straight phi."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import hyperparams
from rookery.agents.sac import SacConfig, sac
from rookery.agents.skills.metra import MetraConfig, metra
from rookery.envs import base as envs
from rookery.envs.base import Environment, EnvSpec, Step
from rookery.envs.wrappers import time_limit
from rookery.envs.wrappers.skills import skills
from rookery.learners.base import Member, genotype
from rookery.learners.off_policy import OffPolicyConfig
from rookery.types import Evaluation
from tests.learners.recording import Setup, setup

LENGTH, WIDTH = 2.0, 0.05  # half of the corridor's
DESCRIPTOR = envs.descriptor_spec("final x, y", "final", (-LENGTH, -WIDTH), (LENGTH, WIDTH), cell=0.1, observed=True)


def _reset(key: jax.Array) -> tuple[jax.Array, Step]:
    place = jax.random.uniform(key, (2,), minval=-WIDTH, maxval=WIDTH)
    return place, envs.first_step(place, place)


def _step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
    del key
    half = jnp.asarray([LENGTH, WIDTH])
    place = jnp.clip(state + 0.1 * action, -half, half)
    return place, envs.next_step(place, jnp.zeros(()), jnp.asarray(False), place)


def corridor() -> Environment:
    spec = EnvSpec("corridor", observation_size=2, action_size=2, episode_length=30, descriptor=DESCRIPTOR)
    return skills(time_limit.limit_episode(Environment(_reset, _step, spec), 30), 2, with_previous=True)


CONFIG = OffPolicyConfig(
    num_envs=10,
    steps_per_generation=5_000,
    updates_per_step=0.4,
    batch_size=64,
    buffer_size=10_000,
    warmup_steps=500,
    eval_episodes=4,
    start_states=8,
)


@pytest.fixture(scope="module")
def prepared() -> Setup:
    environment = corridor()
    agent = sac(environment.spec, SacConfig(hidden_sizes=(16, 16), alpha_init=0.1))
    agent = metra(agent, environment.spec, MetraConfig(phi_hidden_sizes=(16, 16)))
    made = setup(agent, environment, CONFIG)
    rates = dict.fromkeys(("policy_lr", "critic_lr", "alpha_lr", "phi_lr", "dual_lr"), jnp.float32(2e-3))
    hyper = hyperparams.defaults(made.learner.space)._replace(**rates)
    return made._replace(member=made.member._replace(hyper=hyper))


@pytest.fixture(scope="module")
def trained(prepared: Setup) -> tuple[Member, dict]:
    # One short training depends on rounding; with the keys 100 to 105 both skills reach the ends of the corridor.
    return prepared.step(prepared.member, prepared.bank, jax.random.key(100), jnp.int32(0))


@pytest.fixture(scope="module")
def evaluated(prepared: Setup, trained: tuple[Member, dict]) -> Evaluation:
    return jax.jit(prepared.learner.evaluate)(genotype(trained[0]), prepared.bank, jax.random.key(5))


def test_two_skills_are_the_two_directions_of_a_corridor(evaluated: Evaluation) -> None:
    ends = np.asarray(evaluated.episodes["descriptors"])[:, 0]  # the skills alternate
    assert (np.abs(ends) > 0.75 * LENGTH).all()
    assert (np.sign(ends[0::2]) == np.sign(ends[0])).all()
    assert (np.sign(ends[1::2]) == -np.sign(ends[0])).all()
    assert float(evaluated.fitness) == pytest.approx(np.mean(evaluated.episodes["distance"]))
    assert float(evaluated.fitness) > 1.0


def test_phi_is_nearly_linear_along_the_corridor(prepared: Setup, trained: tuple[Member, dict]) -> None:
    reward = prepared.learner.evaluator and prepared.learner.evaluator.intrinsic_reward
    assert reward is not None
    along: Any = np.linspace(-LENGTH, LENGTH, 81)  # stretches of half a step
    points = jnp.asarray(np.stack([along, np.zeros(81)], axis=1), jnp.float32)
    step = jax.tree.map(lambda leaf: leaf[0], prepared.bank[1])

    def move(before: jax.Array, after: jax.Array) -> Mapping[str, jax.Array]:
        moved = step._replace(previous=step.previous._replace(descriptor=before), descriptor=after)
        chosen = step.final_observation._replace(skill=jnp.asarray([1.0, 0.0]))
        return reward.measure(trained[0].state.params, moved._replace(final_observation=chosen))

    measured = jax.jit(jax.vmap(move))(points[:-1], points[1:])
    assert (np.asarray(measured["phi_step"]) < 1.0).all(), "or the distance would be cut off"
    stretches = np.asarray(measured["distance"])
    phi = np.concatenate([[0.0], np.cumsum(stretches)])
    assert abs(np.corrcoef(along, phi)[0, 1]) > 0.99
    assert (np.sign(stretches) == np.sign(stretches.sum())).mean() > 0.9, "phi has one direction"


def test_the_multiplier_bounds_a_step_and_stays_near_its_edge(trained: tuple[Member, dict]) -> None:
    _, metrics = trained
    assert 0.0 < float(metrics["phi_length"]) < 1.1
    assert 0.0 < float(metrics["dual"]) < 30.0, "it fell from 30 while no step violated the bound"


def test_stored_rows_have_the_descriptors_of_both_states(trained: tuple[Member, dict]) -> None:
    rows, size = trained[0].buffer.rows, int(trained[0].buffer.size)
    before, after = (np.asarray(extra)[:size] for extra in rows.extras)
    np.testing.assert_array_equal(before, np.asarray(rows.observation.features)[:size])
    np.testing.assert_array_equal(after, np.asarray(rows.next_observation.features)[:size])
    assert (np.abs(after - before) <= 0.1 + 1e-6).all(), "never the state after a reset"
