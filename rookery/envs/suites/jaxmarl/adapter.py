"""JaxMARL's environments as Rookery's worlds for teams; needs the extra `jaxmarl`, imported on first use.

Agents have the suite's own names, and rewards are those that its step returns for each of them (JaxMARL's logs multiply
MPE's by the number of agents; nothing is multiplied here, and Overcooked's shaped rewards are not added).

The suite merges its clock into `done`. Here the clock is lifted out of reach, or where the observation tells of it
(Overcooked's last 40 steps) set to the episode's length and left unread; `api.limit_episode` counts, so what is left of
`done` means terminated. Where the suite begins anew within an episode (the inner episodes of the coin game and of
STORM), one such game is an episode.

A task ends for all agents of a team at once. Deviation: a dead unit of SMAX is *not* terminated. It can do nothing
(its mask leaves "stop" only) and is paid the team's reward, the victory's too, until the battle is over: a unit that is
worth dying for would otherwise never be. JaxMARL's own learner counts likewise, though the suite flags the unit as
done. A robot of `jaxnav` that has arrived or crashed waits for the others in the same way. A world whose agents leave
and come back, or are born later, is not supported.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.envs import base
from rookery.envs.base import Environment, EnvSpec, EnvState, Step, Team
from rookery.envs.rendering import scene
from rookery.envs.suites import third_party
from rookery.envs.suites.brax import adapter as brax
from rookery.envs.suites.brax import bodies as brax_bodies
from rookery.envs.suites.jaxmarl import visualizers
from rookery.envs.suites.jaxmarl.tasks import MABRAX, OVERCOOKED, OVERCOOKED_V2, REFUSED, SMAX, STORM, TASKS
from rookery.envs.wrappers import time_limit
from rookery.types import Array, Key, PyTree

INSTALL = 'pip install "rookery[jaxmarl]"'
INSTALL_BRAX = 'pip install "rookery[brax,jaxmarl]"'
NEVER = 2**30  # steps, where the suite insists on a limit


class World(NamedTuple):
    """JaxMARL's environment, and how its dictionaries become arrays."""

    env: Any
    agents: tuple[Any, ...]  # [I] the suite's keys
    team: Team
    discrete: bool
    told: bool  # whether observations end with the mask of possible actions
    clocked: bool  # whether `done` means that the clock ended, and nothing else
    possible: Array  # [I, A] bool: the actions that an agent has at all
    lower: Array  # [I, A] bounds of continuous actions; 0 where they are discrete
    upper: Array  # [I, A]


def make(name: str, episode_length: int | None = None) -> Environment:
    """Build one of JaxMARL's environments.

    Observations are `[I, O]` float32, flat and padded with zeros at the end; where agents have unequal actions, or the
    suite says which are possible, the mask follows (see `EnvSpec.sensed_size`). Discrete actions are int32 `[I]`;
    continuous ones `[I, A]` lie in [-1, 1], are clipped to that, and stand for the suite's own bounds. Call it outside
    of any traced function.

    Args:
      name: one of `jaxmarl_tasks.TASKS`, e.g. `MPE_simple_spread_v3`.
      episode_length: steps until truncation, at least 1; by default the suite's own limit.

    Raises:
      ImportError: JaxMARL, or Brax where the task needs it, is not installed.
      ValueError: the name is unknown or stands for what is not supported, or `episode_length` is below 1.
    """
    if name in REFUSED:
        raise ValueError(f"JaxMARL's {name} is not supported: {REFUSED[name]}.")
    if name not in TASKS:
        raise ValueError(f"JaxMARL has no environment {name!r}; `rookery envs` lists those it has.")
    length = TASKS[name].episode_length if episode_length is None else episode_length
    world = load(name, length)
    action_size = max(world.team.action_sizes)
    # One jit around each: training and evaluation trace the environment once, whatever their batch sizes.
    reset = jax.jit(partial(_reset, world))
    step = jax.jit(partial(_step, world))
    spec = EnvSpec(
        name=name,
        observation_size=max(world.team.observation_sizes) + (action_size if world.told else 0),
        action_size=action_size,
        episode_length=length,
        discrete=world.discrete,
        team=world.team,
        masked=world.told,
    )
    environment = Environment(reset, step, spec, picture=_picture(name, world.env))
    return time_limit.limit_episode(time_limit.guard_physics(environment), length)


def _picture(name: str, env: Any) -> scene.Picture | None:
    """By the suite's own visualiser where it has one; robots of Brax as the bodies that they are."""
    if name in MABRAX:
        return scene.inside(brax_bodies.picture(env.env), "pipeline_state")
    film = visualizers.film(name, env)
    return None if film is None else scene.Picture(film=film)


_RIVALS = ("adversary", "eve")  # how the suite calls those who play against the others


def load(name: str, episode_length: int) -> World:
    """JaxMARL's own environment with its clock out of the way; see `make` for arguments and errors."""
    suite = _import()
    with third_party.lenient():
        env = _build(suite, name, episode_length)
        agents = tuple(env.agents)
        spaces = [env.action_space(agent) for agent in agents]
        starts = jax.eval_shape(partial(_starts, env, agents), jax.random.key(0))
    discrete = hasattr(spaces[0], "n")
    action_sizes = tuple(int(space.n if discrete else space.shape[0]) for space in spaces)
    team = Team(
        names=tuple(agent if isinstance(agent, str) else f"agent_{agent}" for agent in agents),
        observation_sizes=tuple(sum(leaf.size for leaf in jax.tree.leaves(start)) for start in starts),
        action_sizes=action_sizes,
        rivals=len({any(word in str(agent) for word in _RIVALS) for agent in agents}) > 1,
    )
    possible = np.arange(max(action_sizes)) < np.asarray(action_sizes)[:, None]
    lower, upper = np.zeros(possible.shape, np.float32), np.zeros(possible.shape, np.float32)
    for i, space in enumerate(spaces if not discrete else ()):
        lower[i, : action_sizes[i]], upper[i, : action_sizes[i]] = space.low, space.high
    told = len(set(action_sizes)) > 1 or _says_what_is_legal(name)
    bounds = jnp.asarray(lower), jnp.asarray(upper)
    return World(env, agents, team, discrete, told, name.startswith(OVERCOOKED), jnp.asarray(possible), *bounds)


def _import() -> Any:
    """JaxMARL itself; whatever its import has to say is kept back."""
    try:
        with third_party.quiet_import():
            import jaxmarl
    except ImportError as error:
        raise ImportError(
            f"this task needs JaxMARL, which cannot be imported ({error}); install it: {INSTALL}"
        ) from error
    return jaxmarl


def _build(suite: Any, name: str, episode_length: int) -> Any:
    if name in MABRAX:
        return _mabrax(suite, name)
    if name.startswith(SMAX):
        from jaxmarl.environments.smax import map_name_to_scenario

        scenario = map_name_to_scenario(name.removeprefix(SMAX))
        return suite.make("HeuristicEnemySMAX", scenario=scenario, max_steps=NEVER)
    if name.startswith(OVERCOOKED_V2):
        return suite.make("overcooked_v2", layout=name.removeprefix(OVERCOOKED_V2), max_steps=episode_length)
    if name.startswith(OVERCOOKED):
        from jaxmarl.environments.overcooked import overcooked_layouts

        layout = overcooked_layouts[name.removeprefix(OVERCOOKED)]
        return suite.make("overcooked", layout=layout, max_steps=episode_length)
    if name in (*STORM, "coin_game"):
        return suite.make(name, num_inner_steps=NEVER)
    with third_party.ignored_warning("max_dist_to_goal"):  # jaxnav's default, on its default map
        env = suite.make(name)
    env.max_steps = NEVER
    return env


def _mabrax(suite: Any, name: str) -> Any:
    try:
        with brax.quiet_model_load():
            return suite.make(MABRAX[name], episode_length=NEVER, auto_reset=False)
    except ImportError as error:
        raise ImportError(
            f"this task needs Brax, which cannot be imported ({error}); install it: {INSTALL_BRAX}"
        ) from error


def _starts(env: Any, agents: tuple[Any, ...], key: Key) -> list[PyTree]:
    """What each agent observes first, as the suite has it."""
    observations, _ = env.reset(key)
    return [observations[agent] for agent in agents]


def _says_what_is_legal(name: str) -> bool:
    return name.startswith(SMAX) or name == "hanabi"


def _legal(world: World, state: EnvState) -> Array:
    """What each agent can do now, `[I, A]` bool."""
    if hasattr(world.env, "get_legal_moves"):
        legal = world.env.get_legal_moves(state)
    elif len(set(world.team.action_sizes)) > 1:
        return world.possible
    else:
        legal = world.env.get_avail_actions(state)
    return jnp.stack([jnp.asarray(legal[agent], bool) for agent in world.agents])


def _reset(world: World, key: Key) -> tuple[EnvState, Step]:
    with third_party.lenient():
        observations, state = world.env.reset(key)
        observation = _observe(world, observations, state)
    return third_party.firm(state), base.first_step(observation, jnp.zeros((0,), jnp.float32))


def _step(world: World, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]:
    with third_party.lenient():
        observations, state, rewards, dones, _ = world.env.step_env(key, state, _actions(world, action))
        observation = _observe(world, observations, state)
        reward = jnp.stack([jnp.asarray(rewards[agent], jnp.float32) for agent in world.agents])
        ended = jnp.asarray(False) if world.clocked else jnp.asarray(dones["__all__"], bool)
    terminated = jnp.broadcast_to(ended, reward.shape)
    return third_party.firm(state), base.next_step(observation, reward, terminated, jnp.zeros((0,), jnp.float32))


def _observe(world: World, observations: PyTree, state: EnvState) -> Array:
    longest = max(world.team.observation_sizes)
    observation = jnp.stack([_flat(observations[agent], longest) for agent in world.agents])
    if not world.told:
        return observation
    return jnp.concatenate([observation, _legal(world, state).astype(jnp.float32)], axis=-1)


def _flat(observation: PyTree, size: int) -> Array:
    """One agent's as one vector, with zeros at its end."""
    parts = [jnp.ravel(jnp.asarray(leaf, jnp.float32)) for leaf in jax.tree.leaves(observation)]
    vector = jnp.concatenate(parts)
    return jnp.pad(vector, (0, size - vector.shape[0]))


def _actions(world: World, action: Array) -> PyTree:
    """As the suite wants them: by name, or in the order of agents that it only numbers."""
    if not world.discrete:
        action = world.lower + 0.5 * (jnp.clip(action, -1.0, 1.0) + 1.0) * (world.upper - world.lower)
    each = [row if world.discrete else row[:size] for row, size in zip(action, world.team.action_sizes, strict=True)]
    if all(isinstance(agent, int) for agent in world.agents):
        return tuple(each)
    return dict(zip(world.agents, each, strict=True))
