"""A world whose every step is known beforehand, an agent that writes a diary, and lives of the two.

`counting` counts its own steps and a start state says how many it will live, so that what must stand in the buffer, and
what an evaluation must find, can be worked out by hand. `SPY` learns nothing and writes down what it was given.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import hyperparams
from rookery.agents import sac
from rookery.agents.api import Agent
from rookery.envs import api as envs
from rookery.envs import tasks
from rookery.envs.api import Environment, EnvSpec, Step
from rookery.learners.api import Learner, Member
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.types import PyTree, Transition

LIFETIMES = (2.0, 3.0, 9.0)  # steps until termination; the last is cut short by the clock
LENGTH = 5
OWN_ACTION = 0.9
DESCRIPTOR = envs.descriptor_spec("time and twice the time", "mean", (0.0, 0.0), (10.0, 20.0))
SPY_SPEC = EnvSpec("counting", observation_size=2, action_size=2, episode_length=LENGTH)
TINY = OffPolicyConfig(
    num_envs=4,
    steps_per_generation=48,
    updates_per_step=0.5,
    batch_size=6,
    buffer_size=1_000,
    warmup_steps=0,
    eval_episodes=6,
    start_states=12,
)
FAST_COMPILE = {"xla_backend_optimization_level": 0}


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(function, compiler_options=FAST_COMPILE)


# --- the world: observation (lifetime, time), reward 1 per step; after the end nothing is what it should be


def counting(descriptor: bool = True) -> Environment:
    spec = SPY_SPEC._replace(descriptor=DESCRIPTOR if descriptor else None)
    environment = Environment(partial(_reset, spec.descriptor_size), partial(_step, spec.descriptor_size), spec)
    return envs.limit_episode(environment, LENGTH)


def _reset(size: int, key: jax.Array) -> tuple[jax.Array, Step]:
    lifetime = jax.random.choice(key, jnp.asarray(LIFETIMES))
    observation = jnp.stack([lifetime, jnp.zeros(())])
    return observation, envs.first_step(observation, jnp.zeros((size,)))


def _step(size: int, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
    lifetime, time = state[0], state[1] + 1.0
    over = time > lifetime  # a step after the end: nothing of it may count
    state = jnp.stack([lifetime, time])
    observation = jnp.where(over, jnp.nan, state)
    descriptor = jnp.where(over, 1e3, time * jnp.asarray([1.0, 2.0]))[:size]
    return state, envs.next_step(observation, jnp.where(over, 1e3, 1.0), time >= lifetime, descriptor)


# --- the agent: its action is its parameter, and its state is a diary


class Diary(NamedTuple):
    params: jax.Array  # [A], the action
    updates: jax.Array  # [] how often it was updated
    in_order: jax.Array  # [] bool: the step counter was the count of updates before
    least: jax.Array  # [O] smallest of the observations, as they were shown
    least_next: jax.Array  # [O] smallest of the next observations
    noise: jax.Array  # [B] of the last update
    fresh: jax.Array  # [] bool: no update had the noise of the one before


class NoHyper(NamedTuple):
    weight: jax.Array | float = 1.0


def _diary(params: jax.Array) -> Diary:
    most = jnp.full((2,), jnp.inf)
    true = jnp.asarray(True)
    return Diary(params, jnp.zeros((), jnp.int32), true, most, most, jnp.zeros((TINY.batch_size,)), true)


def _spy_update(
    state: Diary, hyper: NoHyper, batch: Transition, noise: jax.Array, step: jax.Array
) -> tuple[Diary, dict]:
    assert batch.observation.shape == (TINY.batch_size, 2)
    assert noise.shape == (TINY.batch_size,)
    new = Diary(
        params=state.params,
        updates=state.updates + 1,
        in_order=state.in_order & (step == state.updates),
        least=jnp.minimum(state.least, batch.observation.min(axis=0)),
        least_next=jnp.minimum(state.least_next, batch.next_observation.min(axis=0)),
        noise=noise,
        fresh=state.fresh & (noise != state.noise).all(),
    )
    return new, {"index": step.astype(jnp.float32)}


def _spy_init(key: jax.Array) -> jax.Array:
    del key  # every member acts alike
    return jnp.full((2,), OWN_ACTION)


def _spy_explore(state: Diary, hyper: NoHyper, observation: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple]:
    del hyper, observation, key
    return state.params, ()


def _spy_act(params: jax.Array, observation: jax.Array) -> jax.Array:
    return jnp.where(jnp.isfinite(observation).all(), params, jnp.nan)


def _spy_noise(key: jax.Array, batch_size: int) -> jax.Array:
    return jax.random.normal(key, (batch_size,))


SPY = Agent(_spy_init, _diary, _spy_explore, _spy_act, _spy_noise, _spy_update, hyperparams.space(NoHyper(), {}))


class Life(NamedTuple):
    """A learner with its compiled functions and a newborn."""

    learner: Learner
    bank: PyTree
    member: Member
    step: Callable[..., tuple[Member, dict]]
    traces: Counter

    def generations(self, count: int, member: Member | None = None) -> tuple[Member, dict]:
        """The member after `count` generations, and the last metrics."""
        member, metrics = member or self.member, {}
        for generation in range(count):
            member, metrics = self.step(member, self.bank, jax.random.key(10 + generation), jnp.int32(generation))
        return member, metrics


def life(agent: Agent, environment: Environment, config: OffPolicyConfig) -> Life:
    learner = off_policy(agent, environment, config)
    traces: Counter = Counter()

    def counted_step(*args: Any) -> Any:
        traces["step"] += 1
        return learner.step(*args)

    bank = compiled(learner.start_states)(jax.random.key(0))
    member = compiled(learner.init)(jax.random.key(1), hyperparams.defaults(learner.space), bank)
    return Life(learner, bank, member, compiled(counted_step), traces)


def changed(config: OffPolicyConfig, **options: Any) -> OffPolicyConfig:
    return OffPolicyConfig(**{**vars(config), **options})


def sac_in_the_room() -> Life:
    """SAC in the open room, with a warm-up of one generation and normalised observations."""
    environment = tasks.make("point_room", episode_length=10)
    config = OffPolicyConfig(4, 32, 0.25, 8, 80, 32, normalize_observations=True, eval_episodes=2, start_states=4)
    return life(sac.sac(environment.spec, sac.SacConfig(hidden_sizes=(4,))), environment, config)
