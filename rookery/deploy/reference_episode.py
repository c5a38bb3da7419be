"""One episode of a run's agent, with the inputs and outputs of its policy: what an exported policy is compared with."""

from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.deploy import render
from rookery.deploy.policy import Policy
from rookery.envs.base import ActionWithCarry, Assignment, Environment, EnvState, Step
from rookery.learners import rollout
from rookery.types import Array, Key, Observation


class ReferenceEpisode(NamedTuple):
    """Inputs and outputs of a policy in one episode of T steps, computed by the run's agent; arrays are on the host."""

    inputs: Mapping[str, np.ndarray]  # `[T, ...]` by name, as in `Policy.inputs`
    outputs: Mapping[str, np.ndarray]  # `[T, ...]` by name, as in `Policy.outputs`


def reference_episode(policy: Policy, key: Key) -> ReferenceEpisode:
    """Roll out one episode with the run's agent in the run's evaluation environment; the key is consumed."""
    environment = _with_observations(policy.evaluator.environment)
    roll_out = jax.jit(partial(render.roll_out, policy.evaluator.act, environment, attrgetter("observation")))
    trajectory = roll_out(policy.genotype, key, policy.skill or 0)
    length = render.length_of(jax.device_get(trajectory.over))  # no action on the last observation
    observations: Observation = jax.tree.map(lambda leaf: leaf[:length], trajectory.frames)
    actions = jax.jit(jax.vmap(partial(rollout.act, policy.evaluator, policy.genotype)))(observations)
    inputs, outputs = {"observation": _vector(observations, policy.types["observation"])}, {"action": actions}
    if isinstance(actions, ActionWithCarry):
        outputs = {"action": actions.action, "next_memory": actions.carry.policy}
        inputs["memory"] = observations.carry.policy
    return ReferenceEpisode(*jax.device_get((inputs, outputs)))


def _vector(observation: Observation, dtype: np.dtype) -> Array:
    """The input vector of a policy, from an observation of the run's agent."""
    parts = (observation.features, observation.action_mask)
    return jnp.concatenate([part.astype(dtype) for part in parts if part is not None], axis=-1)


class _ObservedState(NamedTuple):
    inner: EnvState
    observation: Observation


def _with_observations(environment: Environment) -> Environment:
    """The same environment, with each state's observation stored in the state."""

    def stored(result: tuple[EnvState, Step]) -> tuple[_ObservedState, Step]:
        state, step = result
        return _ObservedState(state, step.observation), step

    def first(start: tuple[_ObservedState, Step], slot: Array, key: Key | None) -> tuple[_ObservedState, Step]:
        assert assignment is not None
        return stored(assignment.first((start[0].inner, start[1]), slot, key))

    assignment = environment.assignment
    return environment._replace(
        reset=lambda key: stored(environment.reset(key)),
        step=lambda state, action, key: stored(environment.step(state.inner, action, key)),
        assignment=assignment and Assignment(first, assignment.next),
    )
