"""Team wrappers: a single-agent environment as a team of one agent, and observations with the agent's index."""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp

from rookery.envs.base import Environment, EnvSpec, EnvState, Step, Team
from rookery.types import Array, Key

AGENT = "agent"
"""The name of the agent of a single-agent environment that is wrapped as a team."""


def check_alone(spec: EnvSpec) -> None:
    """Check that an environment is a single-agent environment.

    Raises:
      ValueError: it is a multi-agent environment; the message names it and the run kinds that support it.
    """
    if spec.team is not None:
        raise ValueError(
            f"{spec.name} is a multi-agent environment with {len(spec.team.names)} agents; "
            "use ippo, or on_policy with an agent for teams."
        )


def as_team(environment: Environment) -> Environment:
    """Wrap a single-agent environment as a team of one agent; a multi-agent environment is returned unchanged.

    Raises:
      ValueError: the environment has skills or a memory, which must be added after this wrapper.

    Example:
      >>> rookery.envs.as_team(rookery.make("point_room")).spec.team.names
      ('agent',)
    """
    spec = environment.spec
    if spec.team is not None:
        return environment
    if spec.skill is not None or spec.memory_size:
        raise ValueError(f"{spec.name} has skills or a memory; apply as_team before adding them.")
    mask = spec.action_size if spec.masked else 0
    team = Team((AGENT,), (spec.observation_size - mask,), (spec.action_size,))
    return environment._replace(
        reset=partial(_reset, environment, _add_agent_axis),
        step=partial(_step_single, environment),
        spec=spec._replace(team=team),
    )


def identify(environment: Environment) -> Environment:
    """Prepend the agent's one-hot index `[I]` to every observation of a team: `[I, I + O]`.

    Agents with shared parameters can then behave differently.

    Raises:
      ValueError: the environment is a single-agent environment.

    Example:
      >>> env = rookery.make("pursuit_continuous")
      >>> rookery.envs.identify(env).spec.observation_size - env.spec.observation_size  # two agents
      2
    """
    spec = environment.spec
    if spec.team is None:
        raise ValueError(f"{spec.name} is a single-agent environment; only a team needs the agent's index.")
    count = len(spec.team.names)
    sizes = tuple(size + count for size in spec.team.observation_sizes)
    return environment._replace(
        reset=partial(_reset, environment, _prepend_index),
        step=partial(_step_with_index, environment),
        spec=spec._replace(
            observation_size=spec.observation_size + count, team=spec.team._replace(observation_sizes=sizes)
        ),
    )


def _reset(environment: Environment, transform: Callable[[Step], Step], key: Key) -> tuple[EnvState, Step]:
    state, step = environment.reset(key)
    return state, transform(step)


def _step_single(environment: Environment, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]:
    state, step = environment.step(state, action[0], key)
    return state, _add_agent_axis(step)


def _step_with_index(environment: Environment, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]:
    state, step = environment.step(state, action, key)
    return state, _prepend_index(step)


def _add_agent_axis(step: Step) -> Step:
    names = ("observation", "reward", "terminated", "truncated", "final_observation")
    return step._replace(**{name: getattr(step, name)[None] for name in names})


def _prepend_index(step: Step) -> Step:
    index = jnp.eye(step.observation.shape[0])
    return step._replace(
        observation=jnp.concatenate([index, step.observation], axis=-1),
        final_observation=jnp.concatenate([index, step.final_observation], axis=-1),
    )
