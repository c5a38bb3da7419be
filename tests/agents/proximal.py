"""Variants of PPO with their compiled functions, each with one rollout to learn from."""

from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import gradients, networks
from rookery.agents.actor_critic import ActorCritic
from rookery.agents.base import OnPolicyAgent
from rookery.agents.ppo import PpoConfig, PpoHyper, PpoState, ppo
from rookery.envs.base import EnvSpec
from rookery.types import PyTree, Transition
from tests.learners.rollouts import MASKED, PARTIAL, SPEC, rollout

MEMORY = 3


class Case(NamedTuple):
    """The environment and the configuration of a variant."""

    spec: EnvSpec
    config: PpoConfig


SMALL = partial(PpoConfig, hidden_sizes=(4,), actor_epochs=2, critic_epochs=3, minibatches=2, normalize_rewards=False)
CASES = {
    "continuous": Case(PARTIAL, SMALL(clip_value=True, normalize_rewards=True, anneal_updates=4)),
    "discrete": Case(MASKED, SMALL(actor_epochs=3, critic_epochs=1)),
    "recurrent": Case(SPEC, SMALL(recurrent=True, memory_size=MEMORY)),
}


class CompiledAgent(NamedTuple):
    """A variant with its compiled functions, and a rollout for its update."""

    case: Case
    agent: OnPolicyAgent
    begin: Callable[[jax.Array], PpoState]
    compiled_update: Callable[..., tuple[PpoState, dict]]
    explore: Callable[..., Any]
    act: Callable[..., Any]
    state: PpoState
    hyper: PpoHyper
    batch: Transition
    traces: Counter

    def update(
        self, hyper: PpoHyper | None = None, batch: Transition | None = None, step: int = 0, seed: int = 2, **held: Any
    ) -> tuple[PpoState, dict]:
        hyper = (hyper or self.hyper)._replace(**held)
        hyper = jax.tree.map(jnp.float32, hyper)
        return self.compiled_update(self.state, hyper, batch or self.batch, jax.random.key(seed), jnp.int32(step))


@cache
def compiled_agent(name: str) -> CompiledAgent:
    case = CASES[name]
    agent = ppo(case.spec, case.config)
    begin, traces = jax.jit(lambda key: agent.start(agent.init(key))), Counter()

    def counted_update(*args: Any) -> Any:
        traces["update"] += 1
        return agent.update(*args)

    return CompiledAgent(
        case=case,
        agent=agent,
        begin=begin,
        compiled_update=jax.jit(counted_update),
        explore=jax.jit(agent.explore),
        act=jax.jit(agent.act),
        state=begin(jax.random.key(0)),
        hyper=PpoHyper(actor_lr=1e-2, critic_lr=1e-2, kl_threshold=1e6),
        batch=jax.jit(
            partial(rollout, spec=case.spec, memory_size=case.config.memory_size if case.config.recurrent else 0)
        )(jax.random.key(1)),
        traces=traces,
    )


def steps_of(learned: gradients.Learned) -> np.ndarray:
    """Number of steps that its optimiser has made."""
    moments: Any = learned.moments
    return np.asarray(moments.count)


def linear(size: int, outputs: int) -> networks.Core:
    return networks.core(size, (), outputs, output_gain=1.0)


def layer(kernel: list[list[float]], bias: list[float]) -> PyTree:
    return {"params": {"Dense_0": {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)}}}


def nets_of(spec: EnvSpec) -> ActorCritic:
    return ActorCritic(linear(spec.input_size, spec.action_size), linear(spec.input_size, 1), spec)
