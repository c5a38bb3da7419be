"""Off-policy learning where data are missing: steps of broken physics, a buffer that was emptied."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import buffers, hyperparams
from rookery.agents.sac import SacConfig, sac
from rookery.envs import base
from rookery.envs.base import Environment, EnvSpec
from rookery.learners.base import Learner, genotype
from rookery.learners.off_policy import OffPolicyBindings, OffPolicyConfig, iterate, off_policy
from rookery.types import Evaluation, Observation, Transition
from tests.learners.fixed_agents import started, trained
from tests.learners.recording import skill_following

CONFIG = OffPolicyConfig(
    num_envs=4, steps_per_generation=16, batch_size=8, buffer_size=64, warmup_steps=16, eval_episodes=2, start_states=4
)


def drift(breaks: float) -> Environment:
    """A point at x = 10, whose physics breaks in a step with a probability of `breaks`."""

    def reset(key):
        place = jnp.full((1,), 10.0)
        return place, base.first_step(place, place)

    def step(state, action, key):
        place = state
        place = jnp.where(jax.random.uniform(key) < breaks, jnp.nan, place + 0.1 * action)
        return place, base.next_step(place, jnp.zeros(()), jnp.asarray(False), place)

    where = base.descriptor_spec("x", "final", (0.0,), (20.0,), cell=1.0, observed=True)
    spec = EnvSpec("drift", 1, 1, 20, descriptor=where)
    return rookery.envs.limit_episode(rookery.envs.guard_physics(Environment(reset, step, spec)), 20)


def with_skills(breaks: float) -> Learner:
    env = rookery.skills(drift(breaks), 2, with_previous=True)

    def act(params: jax.Array, observation: Observation) -> jax.Array:
        return params * (0.5 + 0.5 * observation.skill[:1])  # pyright: ignore[reportOptionalSubscript]

    def explore(state: Any, hyper: Any, observation: Observation, key: jax.Array) -> jax.Array:
        return act(state.params, observation)

    inner = skill_following(env.spec, CONFIG.batch_size)._replace(act=act, explore=explore)
    return off_policy(rookery.agents.metra(inner, env.spec, phi_hidden_sizes=(4,)), env, CONFIG)


def test_skills_do_not_learn_from_a_step_in_which_the_physics_broke() -> None:
    member, metrics = trained(with_skills(0.3))
    assert 0 < metrics["broken_steps"] < 16
    assert member.buffer.size == 16 - metrics["broken_steps"]
    descriptors = [np.asarray(extra)[: int(member.buffer.size)] for extra in jax.tree.leaves(member.buffer.rows.extras)]
    assert descriptors
    assert all((rows > 5.0).all() for rows in descriptors)


def test_an_evaluation_in_which_the_physics_broke_measures_no_distance_and_has_no_fitness() -> None:
    @jax.jit
    def evaluated(breaks: float) -> Evaluation:
        learner, key = with_skills(breaks), jax.random.key(2)
        bank = learner.start_states(key)
        member = learner.init(key, hyperparams.defaults(learner.space), bank)
        return learner.evaluate(genotype(member), bank, key)

    for breaks, moves in ((0.0, True), (1.0, False)):
        found = evaluated(breaks)
        assert (np.asarray(found.episodes["phi_step"]) > 0.0).all() == moves
        assert np.isfinite(float(found.fitness)) == moves


@pytest.mark.parametrize("on_the_host", [False, True])
def test_a_restarted_member_learns_nothing_from_the_data_that_it_discarded(on_the_host: bool) -> None:
    env = drift(0.0)
    env = env._replace(announce=lambda state, _: state) if on_the_host else env

    def update(state: Any, hyper: Any, batch: Transition, noise: Any, step: Any) -> tuple[Any, dict]:
        return state, {"most": jnp.max(batch.reward)}

    agent = sac(env.spec, SacConfig(hidden_sizes=(4,)))._replace(update=update)
    learner = off_policy(agent, env, CONFIG)
    member, bank = started(learner)
    once = jax.jit(partial(iterate, OffPolicyBindings(agent, env, buffers.ring(64), CONFIG)))
    for number in range(CONFIG.iterations):
        member, _ = once(member, bank, jax.random.key(10 + number), jnp.int32(number))
    assert int(member.buffer.size) == 16
    worthless = member.buffer.rows._replace(reward=member.buffer.rows.reward.at[:16].set(1e4))
    member = member._replace(buffer=member.buffer._replace(rows=worthless))
    member = jax.jit(learner.restart)(member, bank, jax.random.key(3), jnp.asarray(True))
    member, log = once(member, bank, jax.random.key(4), jnp.int32(20))
    assert (float(log[0]), float(log[1]["most"]) < 1e3) == (0.0 if on_the_host else 1.0, True)
    member, log = once(member, bank, jax.random.key(5), jnp.int32(21))
    assert (float(log[0]), float(log[1]["most"]) < 1e3) == (1.0, True)
