"""Worlds for one agent as worlds for a team of one, and agents that are told which of a team they are."""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp

from rookery.envs.base import Environment, EnvSpec, EnvState, Step, Team
from rookery.types import Array, Key

AGENT = "agent"
"""The name of the one agent of a world that was not made for a team."""


def check_alone(spec: EnvSpec) -> None:
    """Refuse a team's world to whoever acts alone.

    Raises:
      ValueError: the sentence names the world and what can live in it.
    """
    if spec.team is not None:
        raise ValueError(
            f"{spec.name} is a world for a team of {len(spec.team.names)}; use ippo, or on_policy of a team."
        )


def as_team(environment: Environment) -> Environment:
    """A world for one agent as one for a team of one; a team's stays as it is.

    Raises:
      ValueError: the environment has skills or a memory; make it a team's first.
    """
    spec = environment.spec
    if spec.team is not None:
        return environment
    if spec.skill is not None or spec.memory_size:
        raise ValueError(f"{spec.name} has skills or a memory; make it a team's world before.")
    mask = spec.action_size if spec.masked else 0
    team = Team((AGENT,), (spec.observation_size - mask,), (spec.action_size,))
    return environment._replace(
        reset=partial(_reset, environment, _with_agents),
        step=partial(_step_alone, environment),
        spec=spec._replace(team=team),
    )


def identify(environment: Environment) -> Environment:
    """A team's world in which every observation begins with the agent's index, one-hot `[I]`: `[I, I + O]`.

    Agents that share their parameters can then differ in what they do.

    Raises:
      ValueError: the world is not one for a team.
    """
    spec = environment.spec
    if spec.team is None:
        raise ValueError(f"{spec.name} is a world for one agent, who needs no index.")
    count = len(spec.team.names)
    sizes = tuple(size + count for size in spec.team.observation_sizes)
    return environment._replace(
        reset=partial(_reset, environment, _with_index),
        step=partial(_step_identified, environment),
        spec=spec._replace(
            observation_size=spec.observation_size + count, team=spec.team._replace(observation_sizes=sizes)
        ),
    )


def _reset(environment: Environment, changed: Callable[[Step], Step], key: Key) -> tuple[EnvState, Step]:
    state, step = environment.reset(key)
    return state, changed(step)


def _step_alone(environment: Environment, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]:
    state, step = environment.step(state, action[0], key)
    return state, _with_agents(step)


def _step_identified(environment: Environment, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]:
    state, step = environment.step(state, action, key)
    return state, _with_index(step)


def _with_agents(step: Step) -> Step:
    names = ("observation", "reward", "terminated", "truncated", "final_observation")
    return step._replace(**{name: getattr(step, name)[None] for name in names})


def _with_index(step: Step) -> Step:
    index = jnp.eye(step.observation.shape[0])
    told = [jnp.concatenate([index, shown], axis=-1) for shown in (step.observation, step.final_observation)]
    return step._replace(observation=told[0], final_observation=told[1])
