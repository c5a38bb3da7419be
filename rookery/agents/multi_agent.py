"""Teams: one agent for each, or one for all (de Witt 2020, arXiv:2011.09533; Yu 2022, arXiv:2103.01955).

The agents of a team are one more axis. Nothing here knows what an agent does; it must learn on-policy, since its update
is given rollouts `[T, E, I, ...]`.
"""

from functools import partial

import jax
import jax.numpy as jnp

from rookery.agents.base import Agent, Params, State
from rookery.envs.base import EnvSpec, Team
from rookery.types import Array, Hyper, Key, Metrics, PyTree, Transition

AGENTS = 2  # the axis of a rollout


def independent(agent: Agent, spec: EnvSpec) -> Agent:
    """A team in which nobody shares anything: parameters, optimiser, gradient clip and early stop are each one's own.

    Every leaf of `Params` and `State` is `[I, ...]`; hyper-parameters are `[]`, the same for all, or `[I]`. Metrics are
    named after the agent, `critic_loss/prey`.

    Args:
      agent: written for one, for observations of this world's size.
      spec: the team's world.

    Raises:
      ValueError: the world is not a team's, or the agent does not learn on-policy, or is a team already.
    """
    team = _check(agent, spec)
    everybody = partial(jax.vmap, axis_size=len(team.names))
    return agent._replace(
        init=partial(_init, agent, len(team.names)),
        start=everybody(agent.start),
        explore=partial(_explore, agent, len(team.names)),
        act=everybody(agent.act),
        update=partial(_update, agent, team),
        team="independent",
    )


def _init(agent: Agent, count: int, key: Key) -> Params:
    return jax.vmap(agent.init)(jax.random.split(key, count))


def _explore(
    agent: Agent, count: int, state: State, hyper: Hyper, observation: Array, key: Key
) -> tuple[PyTree, PyTree]:
    return jax.vmap(agent.explore)(state, _each(hyper, count), observation, jax.random.split(key, count))


def _each(hyper: Hyper, count: int) -> Hyper:
    """Everybody's hyper-parameters, `[I]`, where they may be the team's, `[]`."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count,)), hyper)


def _update(
    agent: Agent, team: Team, state: State, hyper: Hyper, batch: Transition, noise: PyTree, step: Array
) -> tuple[State, Metrics]:
    """One agent after the other, as fast on a CPU as all at once, whose batched products would round differently on
    other numbers of devices. The noise of an agent that learns on-policy is a key; each gets one of its own."""
    batch = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, AGENTS, 0), batch)
    keys = jax.random.split(noise, len(team.names))
    state, metrics = jax.lax.map(partial(_learn, agent, step), (state, _each(hyper, len(team.names)), batch, keys))
    told = {f"{name}/{who}": values[i] for name, values in metrics.items() for i, who in enumerate(team.names)}
    return state, told


def _learn(agent: Agent, step: Array, one: tuple[State, Hyper, Transition, Key]) -> tuple[State, Metrics]:
    return agent.update(*one, step)


def shared(agent: Agent, spec: EnvSpec) -> Agent:
    """A team that acts and learns with one set of parameters, from what everybody lives through.

    Give it `envs.teams.identify`'s observations where agents should be able to differ.

    Args:
      agent: written for one, for observations of this world's size.
      spec: the team's world.

    Raises:
      ValueError: as `independent` says.
    """
    team = _check(agent, spec)
    return agent._replace(
        explore=partial(_explore_alike, agent, len(team.names)),
        act=jax.vmap(agent.act, in_axes=(None, 0)),
        update=partial(_update_alike, agent),
        team="shared",
    )


def _explore_alike(
    agent: Agent, count: int, state: State, hyper: Hyper, observation: Array, key: Key
) -> tuple[PyTree, PyTree]:
    return jax.vmap(agent.explore, in_axes=(None, None, 0, 0))(state, hyper, observation, jax.random.split(key, count))


def _update_alike(
    agent: Agent, state: State, hyper: Hyper, batch: Transition, noise: PyTree, step: Array
) -> tuple[State, Metrics]:
    """Agents become further environments, `[T, E I, ...]`."""
    folded = jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0], -1, *leaf.shape[AGENTS + 1 :]), batch)
    return agent.update(state, hyper, folded, noise, step)


def _check(agent: Agent, spec: EnvSpec) -> Team:
    if spec.team is None:
        raise ValueError(f"{spec.name} is a world for one agent; make it a team's by rookery.as_team(environment).")
    if agent.team:
        raise ValueError("this agent is a team already; give the agent that one of the team is.")
    if not agent.minibatches:
        raise ValueError("only agents that learn on-policy can be a team, as rookery.ppo makes them.")
    return spec.team
