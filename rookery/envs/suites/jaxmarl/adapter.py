"""Adapter for JaxMARL environments; needs the extra `jaxmarl`, which is imported on first use.

Agents keep the suite's names, and rewards are those that its `step_env` returns for each agent. (JaxMARL's logs
multiply the rewards of MPE by the number of agents; the adapter does not. It does not add Overcooked's shaped rewards
either.)

The suite merges its time limit into `done`. The adapter therefore sets the suite's limit to a number that is never
reached; `time_limit.limit_episode` truncates, so `done` means terminated. Overcooked's observation shows the last 40
steps before the limit, so there the suite's limit is the episode length and `done` is ignored. Where the suite begins
several inner episodes within one (the coin game and STORM), one inner episode is an episode here.

The task ends for all agents of a team in the same step. Deviation: a dead unit of SMAX is *not* terminated. Its mask
allows only "stop", and it gets the team's reward, including the victory's, until the battle is over; otherwise a policy
would never learn to sacrifice a unit. JaxMARL's learner does the same, although the suite marks the unit as done.
In the same way a robot of `jaxnav` that has arrived or crashed waits for the others. Environments whose agents leave
and return, or appear later, are not supported.
"""

import copy
from functools import partial
from types import ModuleType
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
from rookery.envs.suites.jaxmarl.tasks import MABRAX, OVERCOOKED, OVERCOOKED_V2, SMAX, STORM, TASKS, UNSUPPORTED
from rookery.envs.wrappers import time_limit
from rookery.types import Array, Key, PyTree

INSTALL = 'pip install "rookery[jaxmarl]"'
INSTALL_BRAX = 'pip install "rookery[brax,jaxmarl]"'
UNREACHED_LIMIT = 2**30  # steps; for environments that require a limit


class JaxmarlEnvironment(NamedTuple):
    """An environment of JaxMARL, with the properties that convert its dictionaries to arrays."""

    env: Any  # JaxMARL's environment object
    agents: tuple[str | int, ...]  # the suite's keys of the agents, `[I]`
    team: Team  # names and unpadded sizes of the agents
    discrete: bool  # whether actions are discrete
    categories: tuple[int, ...]  # of the parts of a discrete action, see `EnvSpec`
    masked: bool  # whether observations have a mask of the available actions
    done_is_time_limit: bool  # whether `done` means only that the suite's time limit was reached
    existing: Array  # actions that exist for each agent, `[I, A]` bool
    lower: Array  # lower bounds of continuous actions, `[I, A]`; 0 if actions are discrete
    upper: Array  # upper bounds of continuous actions, `[I, A]`; 0 if actions are discrete
    reports_available: bool  # whether the suite's environment reports the available actions of a state


def make(name: str, episode_length: int | None = None) -> Environment:
    """Build a JaxMARL environment.

    Features are `[I, O]` float32, flattened and padded with zeros at the end. Observations have an action mask if the
    agents' action sizes differ or the suite reports available actions. Discrete actions are int32
    `[I]`; continuous actions `[I, A]` are clipped to [-1, 1] and rescaled to the suite's bounds. Call this function
    outside of any traced function.

    Args:
      name: one of `jaxmarl_tasks.TASKS`, e.g. `MPE_simple_spread_v3`.
      episode_length: steps until truncation, at least 1; by default the suite's limit.

    Raises:
      ImportError: JaxMARL, or Brax where the task needs it, is not installed.
      ValueError: the name is unknown, the environment is not supported, or `episode_length` is below 1.
    """
    if name in UNSUPPORTED:
        raise ValueError(f"JaxMARL's {name} is not supported: {UNSUPPORTED[name]}.")
    if name not in TASKS:
        raise ValueError(f"JaxMARL has no environment {name!r}; `rookery envs` lists the supported ones.")
    length = TASKS[name].episode_length if episode_length is None else episode_length
    return _environment(name, load(name, length), length)


def from_jaxmarl(env: Any, episode_length: int | None = None) -> Environment:
    """Adapt an environment object of JaxMARL, or a user-defined one of its class `MultiAgentEnv`.

    Observations and actions are converted as by `make`. The task ends for all agents when `dones["__all__"]` is true.
    An environment with the attribute `max_steps` is copied, and the copy's limit set to a number that is never reached.

    Args:
      env: the environment.
      episode_length: steps until truncation, at least 1; by default `env.max_steps`.

    Raises:
      ValueError: the object has no `agents` and `step_env`, or no time limit while `episode_length` is None.

    Example:
      >>> env = rookery.from_jaxmarl(jaxmarl.make("MPE_simple_spread_v3"))
    """
    if not (hasattr(env, "agents") and hasattr(env, "step_env")):
        raise ValueError(
            f"from_jaxmarl takes an environment of JaxMARL, got {type(env).__name__}; for a task use make."
        )
    name, limit = str(env.name), getattr(env, "max_steps", None)
    length = limit if episode_length is None else episode_length
    if length is None:
        raise ValueError(f"{name} has no attribute max_steps; give episode_length.")
    if limit is not None:
        env = copy.copy(env)
        env.max_steps = UNREACHED_LIMIT
    return _environment(name, _with_properties(env, _reports_available_actions(env)), int(length))


def _reports_available_actions(env: Any) -> bool:
    """Whether an environment implements `get_legal_moves` or `get_avail_actions`, which the base class does not."""
    if hasattr(env, "get_legal_moves"):
        return True
    try:
        with third_party.standard_promotion():
            jax.eval_shape(lambda key: env.get_avail_actions(env.reset(key)[1]), jax.random.key(0))
    except NotImplementedError:
        return False
    return True


def _environment(name: str, suite_env: JaxmarlEnvironment, length: int) -> Environment:
    action_size = max(suite_env.team.action_sizes)
    # Jitted separately, so that training and evaluation trace the environment once, whatever their batch sizes.
    reset = jax.jit(partial(_reset, suite_env))
    step = jax.jit(partial(_step, suite_env))
    spec = EnvSpec(
        name=name,
        observation_size=max(suite_env.team.observation_sizes),
        action_size=action_size,
        episode_length=length,
        discrete=suite_env.discrete,
        categories=suite_env.categories,
        team=suite_env.team,
        masked=suite_env.masked,
    )
    environment = Environment(reset, step, spec, picture=_picture(name, suite_env.env))
    return time_limit.limit_episode(time_limit.guard_physics(environment), length)


def _picture(name: str, env: Any) -> scene.Picture | None:
    """Bodies in space for the robots of Brax, else the suite's visualiser if there is one."""
    if name in MABRAX:
        return scene.inside(brax_bodies.picture(env.env), "pipeline_state")
    film = visualizers.film(name, env)
    return None if film is None else scene.Picture(film=film)


_ADVERSARY_NAMES = ("adversary", "eve")  # parts of the suite's names for agents that oppose the others


def load(name: str, episode_length: int) -> JaxmarlEnvironment:
    """Load an environment of JaxMARL with its time limit disabled; see `make` for arguments and errors."""
    suite = third_party.imported("jaxmarl", "JaxMARL", INSTALL)
    with third_party.standard_promotion():
        env = _build(suite, name, episode_length)
    legal = name.startswith(SMAX) or name == "hanabi"
    return _with_properties(env, legal, done_is_time_limit=name.startswith(OVERCOOKED))


def _with_properties(env: Any, reports_available: bool, done_is_time_limit: bool = False) -> JaxmarlEnvironment:
    with third_party.standard_promotion():
        agents = tuple(env.agents)
        spaces = [env.action_space(agent) for agent in agents]
        starts = jax.eval_shape(partial(_first_observations, env, agents), jax.random.key(0))
    categories, *others = {tuple(np.asarray(getattr(space, "num_categories", ())).tolist()) for space in spaces}
    if others:
        raise ValueError(f"the agents of {env.name} have actions of different parts; give all the same categories.")
    discrete = hasattr(spaces[0], "n") or bool(categories)
    action_sizes = tuple(sum(categories) or int(space.n if discrete else space.shape[0]) for space in spaces)
    team = Team(
        names=tuple(agent if isinstance(agent, str) else f"agent_{agent}" for agent in agents),
        observation_sizes=tuple(sum(leaf.size for leaf in jax.tree.leaves(start)) for start in starts),
        action_sizes=action_sizes,
        competitive=len({any(word in str(agent) for word in _ADVERSARY_NAMES) for agent in agents}) > 1,
    )
    existing = np.arange(max(action_sizes)) < np.asarray(action_sizes)[:, None]
    lower, upper = np.zeros(existing.shape, np.float32), np.zeros(existing.shape, np.float32)
    for i, space in enumerate(spaces if not discrete else ()):
        lower[i, : action_sizes[i]], upper[i, : action_sizes[i]] = space.low, space.high
    if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
        raise ValueError(f"an action space of {env.name} is not bounded; give every dimension finite limits.")
    return JaxmarlEnvironment(
        env=env,
        agents=agents,
        team=team,
        discrete=discrete,
        categories=categories,
        masked=reports_available or len(set(action_sizes)) > 1,
        done_is_time_limit=done_is_time_limit,
        existing=jnp.asarray(existing),
        lower=jnp.asarray(lower),
        upper=jnp.asarray(upper),
        reports_available=reports_available,
    )


def _build(suite: ModuleType, name: str, episode_length: int) -> Any:
    if name in MABRAX:
        return _mabrax(suite, name)
    if name.startswith(SMAX):
        from jaxmarl.environments.smax import map_name_to_scenario

        scenario = map_name_to_scenario(name.removeprefix(SMAX))
        return suite.make("HeuristicEnemySMAX", scenario=scenario, max_steps=UNREACHED_LIMIT)
    if name.startswith(OVERCOOKED_V2):
        return suite.make("overcooked_v2", layout=name.removeprefix(OVERCOOKED_V2), max_steps=episode_length)
    if name.startswith(OVERCOOKED):
        from jaxmarl.environments.overcooked import overcooked_layouts

        layout = overcooked_layouts[name.removeprefix(OVERCOOKED)]
        return suite.make("overcooked", layout=layout, max_steps=episode_length)
    if name in (*STORM, "coin_game"):
        return suite.make(name, num_inner_steps=UNREACHED_LIMIT)
    with third_party.ignored_warning("max_dist_to_goal"):  # jaxnav's default, on its default map
        env = suite.make(name)
    env.max_steps = UNREACHED_LIMIT
    return env


def _mabrax(suite: ModuleType, name: str) -> Any:
    try:
        with brax.quiet_model_load():
            return suite.make(MABRAX[name], episode_length=UNREACHED_LIMIT, auto_reset=False)
    except ImportError as error:
        raise ImportError(
            f"this task needs Brax, which cannot be imported ({error}); install it: {INSTALL_BRAX}"
        ) from error


def _first_observations(env: Any, agents: tuple[str | int, ...], key: Key) -> list[PyTree]:
    """First observation of each agent, as the suite returns it."""
    observations, _ = env.reset(key)
    return [observations[agent] for agent in agents]


def _available_actions(suite_env: JaxmarlEnvironment, state: EnvState) -> Array:
    """Actions `[I, A]` bool that exist for each agent and, if the environment says it, are available in this state."""
    if not suite_env.reports_available:
        return suite_env.existing
    env = suite_env.env
    legal = env.get_legal_moves(state) if hasattr(env, "get_legal_moves") else env.get_avail_actions(state)
    rows = [jnp.asarray(legal[agent], bool) for agent in suite_env.agents]
    longest = suite_env.existing.shape[1]
    return suite_env.existing & jnp.stack([jnp.pad(row, (0, longest - row.shape[0])) for row in rows])


def _reset(suite_env: JaxmarlEnvironment, key: Key) -> tuple[EnvState, Step]:
    with third_party.standard_promotion():
        observations, state = suite_env.env.reset(key)
        features, mask = _observe(suite_env, observations, state)
    return third_party.strongly_typed(state), base.first_step(features, jnp.zeros((0,), jnp.float32), mask)


def _step(suite_env: JaxmarlEnvironment, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]:
    with third_party.standard_promotion():
        observations, state, rewards, dones, _ = suite_env.env.step_env(key, state, _actions(suite_env, action))
        features, mask = _observe(suite_env, observations, state)
        reward = jnp.stack([jnp.asarray(rewards[agent], jnp.float32) for agent in suite_env.agents])
        ended = jnp.asarray(False) if suite_env.done_is_time_limit else jnp.asarray(dones["__all__"], bool)
    terminated = jnp.broadcast_to(ended, reward.shape)
    none = jnp.zeros((0,), jnp.float32)
    return third_party.strongly_typed(state), base.next_step(features, reward, terminated, none, mask)


def _observe(suite_env: JaxmarlEnvironment, observations: PyTree, state: EnvState) -> tuple[Array, Array | None]:
    """Features `[I, O]` of all agents, and their action masks `[I, A]`, or None."""
    longest = max(suite_env.team.observation_sizes)
    features = jnp.stack([_flat(observations[agent], longest) for agent in suite_env.agents])
    return features, _available_actions(suite_env, state) if suite_env.masked else None


def _flat(observation: PyTree, size: int) -> Array:
    """Flatten one agent's observation and pad it with zeros to `size`."""
    parts = [jnp.ravel(jnp.asarray(leaf, jnp.float32)) for leaf in jax.tree.leaves(observation)]
    vector = jnp.concatenate(parts)
    return jnp.pad(vector, (0, size - vector.shape[0]))


def _actions(suite_env: JaxmarlEnvironment, action: Array) -> PyTree:
    """Convert actions to the suite's format: a dictionary by agent, or a tuple if agents are integers."""
    if not suite_env.discrete:
        action = suite_env.lower + 0.5 * (jnp.clip(action, -1.0, 1.0) + 1.0) * (suite_env.upper - suite_env.lower)
    each = [
        row if suite_env.discrete else row[:size] for row, size in zip(action, suite_env.team.action_sizes, strict=True)
    ]
    if all(isinstance(agent, int) for agent in suite_env.agents):
        return tuple(each)
    return dict(zip(suite_env.agents, each, strict=True))
