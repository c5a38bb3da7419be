"""An environment whose every step is known, an agent that records its inputs, and rollouts of both.

`counting` counts its own steps and a start state determines their number, so that the contents of the buffer and the
results of an evaluation can be computed by hand. `SPY` learns nothing and records its inputs.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import hyperparams
from rookery.agents.base import OffPolicyAgent
from rookery.agents.sac import SacConfig, sac
from rookery.envs import base as envs
from rookery.envs import registry
from rookery.envs.base import Environment, EnvSpec, Step
from rookery.envs.wrappers import time_limit
from rookery.learners.base import Learner, Member
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.types import Observation, PyTree, Transition

TERMINATIONS = (2.0, 3.0, 9.0)  # steps until termination; the last is cut short by the clock
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


# --- the environment: observation (length, time), reward 1 per step; after the end all values are wrong on purpose


def counting(descriptor: bool = True, led: bool = False) -> Environment:
    """The environment; with `led`, the descriptor is the time times the action, and 0 at every start."""
    spec = SPY_SPEC._replace(descriptor=DESCRIPTOR if descriptor else None)
    size = spec.descriptor_size
    environment = Environment(partial(_reset, size), partial(_step, size, led), spec)
    return time_limit.limit_episode(environment, LENGTH)


def _reset(size: int, key: jax.Array) -> tuple[jax.Array, Step]:
    termination = jax.random.choice(key, jnp.asarray(TERMINATIONS))
    observation = jnp.stack([termination, jnp.zeros(())])
    return observation, envs.first_step(observation, jnp.zeros((size,)))


def _step(size: int, led: bool, state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
    termination, time = state[0], state[1] + 1.0
    over = time > termination  # a step after the end: nothing of it may count
    state = jnp.stack([termination, time])
    # Physics that breaks would hide its reward and its descriptor, so it breaks in the shortest episodes only.
    observation = jnp.where(over, jnp.where(termination == TERMINATIONS[0], jnp.nan, -1e3), state)
    descriptor = jnp.where(over, 1e3, time * (action if led else jnp.asarray([1.0, 2.0])))[:size]
    return state, envs.next_step(observation, jnp.where(over, 1e3, 1.0), time >= termination, descriptor)


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
    assert batch.observation.features.shape == (TINY.batch_size, 2)
    assert noise.shape == (TINY.batch_size,)
    new = Diary(
        params=state.params,
        updates=state.updates + 1,
        in_order=state.in_order & (step == state.updates),
        least=jnp.minimum(state.least, batch.observation.features.min(axis=0)),
        least_next=jnp.minimum(state.least_next, batch.next_observation.features.min(axis=0)),
        noise=noise,
        fresh=state.fresh & (noise != state.noise).all(),
    )
    return new, {"index": step.astype(jnp.float32)}


def _spy_init(key: jax.Array) -> jax.Array:
    del key  # every member acts alike
    return jnp.full((2,), OWN_ACTION)


def _spy_explore(state: Diary, hyper: NoHyper, observation: Observation, key: jax.Array) -> jax.Array:
    del hyper, observation, key
    return state.params


def _spy_act(params: jax.Array, observation: Observation) -> jax.Array:
    return jnp.where((observation.features >= 0.0).all(), params, jnp.nan)  # not finite after the end of an episode


def _spy_noise(key: jax.Array, batch_size: int) -> jax.Array:
    return jax.random.normal(key, (batch_size,))


SPY = OffPolicyAgent(
    _spy_init, _diary, _spy_explore, _spy_act, _spy_noise, _spy_update, hyperparams.space(NoHyper(), {})
)


# --- an agent for environments with skills: its action is the skill


class Recorded(NamedTuple):
    params: jax.Array  # [] how much of the skill its action is
    batch: Transition  # of the last update, as it was given


def skill_following(spec: EnvSpec, rows: int) -> OffPolicyAgent:
    """Updates come with `rows` rows; it draws no noise and has no hyper-parameters to choose."""
    start = partial(_recorded, spec, rows)
    space = hyperparams.space(NoHyper(), {})
    return OffPolicyAgent(_following_init, start, _follow_exploring, _follow, _silence, _record, space)


def _following_init(key: jax.Array) -> jax.Array:
    del key
    return jnp.ones(())


def _recorded(spec: EnvSpec, rows: int, params: jax.Array) -> Recorded:
    assert spec.skill
    observation = Observation(jnp.zeros((rows, spec.observation_size)), jnp.zeros((rows, spec.skill.size)))
    action = jnp.zeros((rows, spec.action_size))
    return Recorded(params, Transition(observation, action, jnp.zeros(rows), observation, jnp.zeros(rows, bool)))


def _follow_exploring(state: Recorded, hyper: NoHyper, observation: Observation, key: jax.Array) -> jax.Array:
    return _follow(state.params, observation)


def _follow(params: jax.Array, observation: Observation) -> jax.Array:
    assert observation.skill is not None
    return params * observation.skill


def _silence(key: jax.Array, batch_size: int) -> jax.Array:
    return jnp.zeros((batch_size,))


def _record(
    state: Recorded, hyper: NoHyper, batch: Transition, noise: jax.Array, step: jax.Array
) -> tuple[Recorded, dict]:
    return state._replace(batch=batch), {}


class Setup(NamedTuple):
    """A learner with its compiled functions and an initial member."""

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


def setup(agent: OffPolicyAgent, environment: Environment, config: OffPolicyConfig) -> Setup:
    learner = off_policy(agent, environment, config)
    traces: Counter = Counter()

    def counted_step(*args: Any) -> Any:
        traces["step"] += 1
        return learner.step(*args)

    bank = jax.jit(learner.start_states)(jax.random.key(0))
    member = jax.jit(learner.init)(jax.random.key(1), hyperparams.defaults(learner.space), bank)
    return Setup(learner, bank, member, jax.jit(counted_step), traces)


def stored(member: Member, num_envs: int) -> Transition:
    """Every row in the order of insertion, `[T, E, ...]`; the buffer must not have wrapped around."""
    size = int(member.buffer.size)
    assert int(member.buffer.position) == size
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:size].reshape(-1, num_envs, *leaf.shape[1:]), member.buffer.rows)


def changed(config: OffPolicyConfig, **options: Any) -> OffPolicyConfig:
    return OffPolicyConfig(**{**vars(config), **options})


def sac_in_the_room() -> Setup:
    """SAC in the open room, with a warm-up of one generation and normalised observations."""
    environment = registry.make("point_room", episode_length=10)
    config = OffPolicyConfig(4, 32, 0.25, 8, 80, 32, normalize_observations=True, eval_episodes=2, start_states=4)
    return setup(sac(environment.spec, SacConfig(hidden_sizes=(4,))), environment, config)
