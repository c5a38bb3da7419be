"""Multi-agent teams: independent or shared agents (de Witt 2020, arXiv:2011.09533; Yu 2022, arXiv:2103.01955).

The agents of a team form one more array axis. The wrapped agent can be any on-policy agent, since its update receives
rollouts `[T, E, I, ...]`.
"""

from functools import partial

import jax
import jax.numpy as jnp

from rookery.agents.base import OnPolicyAgent, check_spec
from rookery.envs.base import EnvSpec, Team
from rookery.types import Array, Hyper, HyperT, Key, Metrics, Observation, ParamsT, PyTree, StateT, Transition

AGENTS = 2  # the axis of a rollout


def independent(agent: OnPolicyAgent[ParamsT, StateT, HyperT], spec: EnvSpec) -> OnPolicyAgent[ParamsT, StateT, HyperT]:
    """Build a team without sharing: each agent has separate parameters, optimisers, gradient clipping and early
    stopping.

    Every leaf of `Params` and `State` is `[I, ...]`; hyper-parameters are `[]`, the same for all agents, or `[I]`.
    Metrics are named after the agent, such as `critic_loss/prey`.

    Args:
      agent: a single agent, built for the observation size of the environment.
      spec: spec of the team's environment.

    Raises:
      ValueError: the environment is not a team's, or the agent does not learn on-policy, or is already a team.

    Example:
      >>> env = rookery.make("pursuit_continuous")
      >>> agent = rookery.agents.independent(rookery.ppo(env.spec), env.spec)
    """
    team = _check(agent, spec)
    vmap_agents = partial(jax.vmap, axis_size=len(team.names))
    return agent._replace(
        init=partial(_init, agent, len(team.names)),
        start=vmap_agents(agent.start),
        explore=partial(_explore, agent, len(team.names)),
        act=vmap_agents(agent.act),
        update=partial(_update, agent, team),
        team="independent",
        settings={**agent.settings, "parameters": "independent"},
    )


def _init(agent: OnPolicyAgent, count: int, key: Key) -> PyTree:
    return jax.vmap(agent.init)(jax.random.split(key, count))


def _explore(
    agent: OnPolicyAgent, count: int, state: PyTree, hyper: Hyper, observation: Observation, key: Key
) -> tuple[PyTree, PyTree]:
    return jax.vmap(agent.explore)(state, _per_agent(hyper, count), observation, jax.random.split(key, count))


def _per_agent(hyper: HyperT, count: int) -> HyperT:
    """Broadcast hyper-parameters shared by the team, `[]`, to every agent, `[I]`."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count,)), hyper)


def _update(
    agent: OnPolicyAgent, team: Team, state: StateT, hyper: Hyper, batch: Transition, key: Key, step: Array
) -> tuple[StateT, Metrics]:
    """Update one agent after the other, each with a separate key.

    On a CPU this is as fast as a batched update, whose matrix products would round differently on other device counts.
    """
    batch = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, AGENTS, 0), batch)
    keys = jax.random.split(key, len(team.names))
    state, metrics = jax.lax.map(
        partial(_update_one, agent, step), (state, _per_agent(hyper, len(team.names)), batch, keys)
    )
    named = {f"{name}/{role}": values[i] for name, values in metrics.items() for i, role in enumerate(team.names)}
    return state, named


def _update_one(
    agent: OnPolicyAgent, step: Array, inputs: tuple[StateT, Hyper, Transition, Key]
) -> tuple[StateT, Metrics]:
    return agent.update(*inputs, step)


def shared(agent: OnPolicyAgent[ParamsT, StateT, HyperT], spec: EnvSpec) -> OnPolicyAgent[ParamsT, StateT, HyperT]:
    """Build a team that acts and learns with one set of parameters, from the transitions of all its agents.

    To let the agents behave differently, wrap the environment with `rookery.envs.identify`, which adds an index to the
    observations.

    Args:
      agent: a single agent, built for the observation size of the environment.
      spec: spec of the team's environment.

    Raises:
      ValueError: the environment is not a team's, or the agent does not learn on-policy, or is already a team.

    Example:
      >>> env = rookery.envs.identify(rookery.make("pursuit_continuous"))
      >>> agent = rookery.agents.shared(rookery.ppo(env.spec), env.spec)
    """
    team = _check(agent, spec)
    return agent._replace(
        explore=partial(_explore_shared, agent, len(team.names)),
        act=jax.vmap(agent.act, in_axes=(None, 0)),
        update=partial(_update_shared, agent),
        team="shared",
        settings={**agent.settings, "parameters": "shared"},
    )


def _explore_shared(
    agent: OnPolicyAgent, count: int, state: PyTree, hyper: Hyper, observation: Observation, key: Key
) -> tuple[PyTree, PyTree]:
    return jax.vmap(agent.explore, in_axes=(None, None, 0, 0))(state, hyper, observation, jax.random.split(key, count))


def _update_shared(
    agent: OnPolicyAgent, state: StateT, hyper: Hyper, batch: Transition, key: Key, step: Array
) -> tuple[StateT, Metrics]:
    """Update with the agents as further environments, `[T, E I, ...]`."""
    folded = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0], -1, *leaf.shape[AGENTS + 1 :]), batch)
    return agent.update(state, hyper, folded, key, step)


def _check(agent: OnPolicyAgent, spec: EnvSpec) -> Team:
    check_spec(spec, "a team")
    if spec.team is None:
        raise ValueError(f"{spec.name} is a single-agent environment; wrap it by rookery.envs.as_team(environment).")
    if not isinstance(agent, OnPolicyAgent):
        raise ValueError("only on-policy agents can form a team; pass an on-policy agent such as rookery.ppo(spec).")
    if agent.team:
        raise ValueError("this agent is already a team; pass the agent that each member of the team uses.")
    return spec.team
