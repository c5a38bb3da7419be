"""EnvPool's environments: `envpool:Hopper-v5`, `envpool:Pong-v5` (Weng 2022, "EnvPool: A Highly Parallel Reinforcement
Learning Environment Execution Engine").

They run on the host, see `rookery.envs.host`; EnvPool's own threads step them.
"""

import functools
import os
import warnings
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from rookery.envs.base import Environment
from rookery.envs.host import build
from rookery.envs.host.base import first_line
from rookery.envs.host.pool import HostPool
from rookery.envs.host.workers import Worker
from rookery.envs.suites.envpool.episodes import Episodes, EpisodeSettings
from rookery.envs.suites.gymnasium import spaces
from rookery.envs.suites.gymnasium.measures import By, keys_of
from rookery.settings import OptionError, check_counts, suggestion

PREFIX = "envpool:"  # begins the names of EnvPool's environments
EXTRA = "envpool"  # extra of this package that installs the suite
INSTALL = f'pip install "rookery[{EXTRA}]"'
_OWN_LIMIT = ("MiniGrid-", "BabyAI-")  # begin the names of tasks whose rewards depend on the time limit
_RESERVED = (
    *("num_envs", "batch_size", "seed", "env_seed", "max_num_players", "max_episode_steps", "base_path"),
    *("thread_affinity_offset", "gym_reset_return_info"),
)
"""Settings of EnvPool that are no options of an environment here."""
_REMEDY = "EnvPool's environments cannot be wrapped; use another task."


def make(
    name: str,
    /,
    episode_length: int | None = None,
    num_threads: int | None = None,
    timeout: float = build.TIMEOUT,
    measure: str = "",
    measure_by: By = "last",
    **options: object,
) -> Environment:
    """Build an environment of EnvPool by its name.

    Every episode has a new environment, since EnvPool takes a seed only when it creates one; so runs can be repeated.
    That takes 1 to 3 ms for the MuJoCo tasks and far longer for Atari and dm_control (0.1 to 0.3 s). A
    resumed run begins new episodes, since EnvPool does not save states. Images whose channels come first, such as
    Atari's stacked frames, are transposed: `[84, 84, 4]`.

    Args:
      name: "envpool:" and one of `envpool.list_all_envs()`.
      episode_length: steps until truncation, at least 1; by default the task's own limit.
      num_threads: number of EnvPool's threads that step the environments which were created together; by default one
        for each core, at most 8.
      timeout: seconds after which a reset or step counts as hanging.
      measure: keys of a step's info, separated by commas, which become measures of these names.
      measure_by: the measure of an episode: "last" (the number of its last step), "sum" or "max" over its steps.
      **options: settings of the task, such as `frame_skip`; see `envpool.make_spec(name).config`.

    Raises:
      ImportError: EnvPool or a package that the task needs is not installed.
      ValueError: the name or an option is unknown, the value of an option is wrong, or no agent can use the spaces.

    Example:
      >>> rookery.make("envpool:Hopper-v5", episode_length=200).spec.action_size
      3
    """
    envpool, task = _import(), name.removeprefix(PREFIX)
    check_counts(num_threads=1 if num_threads is None else num_threads)
    known = envpool.list_all_envs()
    if task not in known:
        remedy = suggestion(PREFIX + task, [PREFIX + other for other in known], _LIST)
        raise ValueError(f"EnvPool has no environment {task!r}; {remedy}")
    config = _spec(name, {}).config
    _check_options(name, options, config._fields)
    spec = _spec(name, options)
    if config.max_num_players > 1:
        raise ValueError(f"{name} has {config.max_num_players} players, but only tasks with one are supported.")
    limit = config.max_episode_steps if 0 < config.max_episode_steps < np.iinfo(np.int32).max else None
    length = build.episode_length(name, limit, episode_length)
    observed = spaces.observations(spec.gymnasium_observation_space, name, _REMEDY)
    acted = spaces.actions(spec.gymnasium_action_space, name, _REMEDY)
    if not task.startswith(_OWN_LIMIT):
        # A task that ends in the step in which its limit is reached is reported as truncated.
        options = {**options, "max_episode_steps": length + 1}
    threads = num_threads or min(os.cpu_count() or 1, 8)
    measured = keys_of(measure, measure_by)
    meanings = {measure.name: measure.meaning for measure in measured}
    sizes = spaces.sizes(observed, acted, 0, meanings)
    runner_task = EpisodeSettings(partial(_instance, task, options, threads), sizes, observed, acted, length, measured)
    pool = HostPool(name, sizes, lambda number: Worker(partial(Episodes, runner_task), f"{name}-{number}"), 1, timeout)
    return build.environment(spaces.spec(name, observed, acted, length, measures=meanings), pool)


_LIST = "envpool.list_all_envs() lists them."


def _spec(name: str, options: dict[str, object]) -> Any:
    """The settings and spaces of a task, without an environment."""
    _ignore_precision()
    try:
        return _import().make_spec(name.removeprefix(PREFIX), **options)
    except ImportError as error:
        raise ImportError(f"{name} needs another package: {first_line(error)}.") from error
    except Exception as error:
        reason = "a value has the wrong type" if isinstance(error, TypeError) else first_line(error)
        given = f" with {', '.join(f'{key}={value!r}' for key, value in options.items())}" if options else ""
        raise ValueError(f"{name} cannot be created{given}: {reason}.") from error


def _check_options(name: str, options: dict[str, object], settings: Sequence[str]) -> None:
    known = sorted({*settings} - {*_RESERVED} | {"episode_length", "num_threads", "timeout", "measure", "measure_by"})
    for option in options:
        if option not in known:
            raise OptionError("option", None, f"{name} has no option {option}; {suggestion(option, known)}")


def _instance(task: str, options: dict[str, object], threads: int, seeds: Sequence[int]) -> Any:
    """An instance of EnvPool; with batches of one it steps any subset of its environments."""
    _ignore_precision()
    count = len(seeds)
    return _import().make_gymnasium(
        task, num_envs=count, batch_size=1, num_threads=min(threads, count), seed=list(seeds), **options
    )


def _ignore_precision() -> None:
    """Ignore Gymnasium's warning about float64 bounds for good: contexts of warnings disturb those of other threads."""
    warnings.filterwarnings("ignore", message=".*precision lowered by casting", category=UserWarning)


@functools.cache
def _import() -> ModuleType:
    try:
        import envpool
    except ImportError as error:
        raise ImportError(f"this environment needs EnvPool ({error}); install it: {INSTALL}") from error
    return envpool
