"""Team wrappers: a single-agent environment as a team of one agent, and observations with the agent's index."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from rookery.envs.base import Environment, EnvSpec, EnvState, Step, Team, parameterize_inside
from rookery.types import Array, Key

AGENT = "agent"  # the name of the agent of a single-agent environment that is wrapped as a team


def check_alone(spec: EnvSpec) -> None:
    """Raise a ValueError, which names the run kinds for teams, if an environment is a multi-agent environment."""
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
    if spec.skill is not None or spec.recurrent:
        raise ValueError(f"{spec.name} has skills or a memory; apply as_team before adding them.")
    team = Team((AGENT,), (spec.observation_size,), (spec.action_size,))
    return environment._replace(
        reset=partial(_reset, environment, _add_agent_axis),
        step=partial(_step_single, environment),
        spec=spec._replace(team=team),
        announce=None,
        parameterize=parameterize_inside(environment, as_team),
    )


def identify(environment: Environment) -> Environment:
    """Add the agent's one-hot index, `[I, I]`, to the observations of a team.

    Agents with shared parameters can then behave differently.

    Raises:
      ValueError: the environment is a single-agent environment.

    Example:
      >>> env = rookery.make("pursuit_continuous")
      >>> rookery.envs.identify(env).reset(jax.random.key(0))[1].observation.agent.shape  # two agents
      (2, 2)
    """
    spec = environment.spec
    if spec.team is None:
        raise ValueError(f"{spec.name} is a single-agent environment; only a team needs the agent's index.")
    return environment._replace(
        reset=partial(_reset, environment, _add_index),
        step=partial(_step_with_index, environment),
        spec=spec._replace(identified=True),
        parameterize=parameterize_inside(environment, identify),
        settings={**environment.settings, "identify": True},
    )


def _reset(environment: Environment, transform: Callable[[Step], Step], key: Key) -> tuple[EnvState, Step]:
    state, step = environment.reset(key)
    return state, transform(step)


def _step_single(environment: Environment, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]:
    state, step = environment.step(state, action[0], key)
    return state, _add_agent_axis(step)


def _step_with_index(environment: Environment, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]:
    state, step = environment.step(state, action, key)
    return state, _add_index(step)


def _add_agent_axis(step: Step) -> Step:
    names = ("observation", "reward", "terminated", "truncated", "final_observation")
    return step._replace(**{name: jax.tree.map(lambda leaf: leaf[None], getattr(step, name)) for name in names})


def _add_index(step: Step) -> Step:
    return step.observing(agent=jnp.eye(step.reward.shape[0]))
