"""Small learners for tests, which compile fast."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agents.multi_agent import independent
from rookery.agents.ppo import PpoConfig, ppo
from rookery.agents.sac import SacConfig, sac
from rookery.agents.skills.diayn import DiaynConfig, diayn
from rookery.envs import registry
from rookery.envs.tasks.pursuit import CAPTURE_RADIUS
from rookery.envs.wrappers.skills import skills
from rookery.learners.base import Bank, Learner, Member, genotype
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.qd.base import Emitter
from rookery.types import Array, Key, PyTree

CONFIG = OffPolicyConfig(
    num_envs=4,
    steps_per_generation=40,
    batch_size=8,
    buffer_size=64,
    warmup_steps=8,
    eval_episodes=2,
    start_states=4,
)


def learner(env: str = "point_room", config: OffPolicyConfig = CONFIG, **overrides: object) -> Learner:
    """SAC with 8 hidden units on a task of this package."""
    environment = registry.make(env, **{"episode_length": 10, **overrides})
    return off_policy(sac(environment.spec, SacConfig(hidden_sizes=(8,))), environment, config)


def discoverer(env: str = "point_room") -> Learner:
    """SMERL around SAC with three skills, observations normalised."""
    environment = skills(registry.make(env, episode_length=10), 3)
    agent = sac(environment.spec, SacConfig(hidden_sizes=(8,)))
    config = DiaynConfig(discriminator_hidden_sizes=(8,), smerl=True)
    config_of_learner = dataclasses.replace(CONFIG, normalize_observations=True, updates_per_step=0.25)
    return off_policy(diayn(agent, environment.spec, config), environment, config_of_learner)


TEAM_CONFIG = OnPolicyConfig(num_envs=4, rollout_length=6, evaluate_every=2, eval_episodes=2, start_states=4)


def team(config: OnPolicyConfig = TEAM_CONFIG, capture_radius: float = CAPTURE_RADIUS, **options: Any) -> Learner:
    """A predator and a prey with 8 hidden units each; options are PPO's."""
    environment = registry.make("pursuit_discrete", episode_length=10, capture_radius=capture_radius)
    agent = ppo(environment.spec, PpoConfig(**{"hidden_sizes": (8,), "minibatches": 2, **options}))
    return on_policy(independent(agent, environment.spec), environment, config)


def train_and_evaluate(learner: Learner, member: Member, key: Key, bank: Bank, generation: Array) -> tuple:
    """A generation of one member: the member, and its evaluation with the metrics of its training."""
    train_key, evaluate_key = jax.random.split(key)
    member, metrics = learner.step(member, bank, train_key, generation)
    return member, (learner.evaluate(genotype(member), bank, evaluate_key), metrics)


def compiled(emitter: Emitter) -> Emitter:
    """The emitter with compiled functions."""
    return emitter._replace(init=jax.jit(emitter.init), ask=jax.jit(emitter.ask), tell=jax.jit(emitter.tell))


def assert_equal(left: PyTree, right: PyTree) -> None:
    """Two trees are equal bit by bit."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for (path, a), b in zip(jax.tree.leaves_with_path(left), jax.tree.leaves(right), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b), equal_nan=jnp.issubdtype(a.dtype, jnp.inexact)), path
