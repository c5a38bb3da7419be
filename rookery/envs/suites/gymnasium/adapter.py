"""Gymnasium's environments: `gym:Hopper-v5`, and those of user-defined functions (`from_gymnasium`).

They run on the host: see `rookery.envs.host`.
"""

import functools
import importlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from rookery.envs.base import DescriptorSpec, Environment
from rookery.envs.host import build
from rookery.envs.host.base import first_line
from rookery.envs.host.pool import HostPool
from rookery.envs.host.workers import ProcessRunner, Worker
from rookery.envs.rendering.scene import Picture
from rookery.envs.suites.gymnasium import film, spaces, states
from rookery.envs.suites.gymnasium.episodes import DescribeFn, Episodes, EpisodeSettings, close
from rookery.envs.suites.gymnasium.measures import By, Measure, Source, keys_of, measures_of
from rookery.factories import RAISED, make_importable, place_of
from rookery.settings import check_counts, suggestion, type_of

if TYPE_CHECKING:
    from rookery.envs.suites.gymnasium.spaces import Env

PREFIX = "gym:"  # begins the names of Gymnasium's environments
EXTRA = "gymnasium"  # extra of this package that installs the suite
INSTALL = f'pip install "rookery[{EXTRA}]"'


_CLOSE_SECONDS = 5.0  # an object may block when it is closed
_ROWS_HERE = 8
"""Up to so many environments of Gymnasium's own are stepped in the thread of the program: it takes 0.1 ms each, and
threads on two cores 0.5 ms."""


class Workers(NamedTuple):
    """How environments are divided among threads or processes."""

    number: int | None  # None: one for each core, at most 8
    kind: str  # one of "threads" and "processes"
    timeout: float  # seconds after which a reset or step counts as hanging


class Factory:
    """Creates environment objects by a function of the user, which must return a new one in each call.

    Many episodes run side by side, and one object for two of them would mix them without a word.
    """

    def __init__(self, create: Callable[[], object]):
        self.create = create
        self._made: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()

    def __call__(self) -> "Env":
        """A new environment object; the errors are those of `checked`."""
        return self.checked(self.create())

    def checked(self, env: Any) -> "Env":
        """An environment object; a ValueError if it is none, or if it or the environment in its wrappers was created
        before. From then on a warning of MuJoCo is printed once; it repeats each for every object."""
        gymnasium, mujoco = _import(), sys.modules.get("mujoco")
        if mujoco and mujoco.get_mju_user_warning() is None:
            mujoco.set_mju_user_warning(functools.cache(lambda text: print(f"MuJoCo warns: {text}", file=sys.stderr)))
        if not isinstance(env, gymnasium.Env):
            kind = "a vector environment" if isinstance(env, gymnasium.vector.VectorEnv) else type_of(env)
            raise ValueError(
                f"make_env returned {kind} instead of a gymnasium.Env; return a single environment, of which many run "
                "side by side"
            )
        with self._lock:
            inner = env.unwrapped
            if id(inner) in self._made:
                raise ValueError(
                    f"make_env returned the same {type(inner).__name__} object twice; create a new one in each call, "
                    "since many run side by side"
                )
            self._made[id(inner)] = inner
        return env

    def __reduce__(self) -> tuple[object, ...]:
        return Factory, (self.create,)  # a process has objects of its own


def make(
    name: str,
    /,
    episode_length: int | None = None,
    workers: int | None = None,
    worker_kind: str = "threads",
    timeout: float = build.TIMEOUT,
    measure: str = "",
    measure_by: By = "last",
    **options: object,
) -> Environment:
    """Build an environment of Gymnasium by its id.

    Args:
      name: "gym:" and an id, such as `gym:Hopper-v5`, `gym:ALE/Pong-v5`, which imports `ale_py` first, or
        `gym:my_package:MyEnv-v0`, which imports `my_package` first.
      episode_length: steps until truncation, at least 1; by default the limit that is registered.
      workers: number of threads or processes that step environments; by default one for each core, at most 8.
      worker_kind: "threads", for simulators that release Python's lock, such as MuJoCo, or "processes".
      timeout: seconds after which a reset or step counts as hanging.
      measure: keys of a step's info, separated by commas, which become measures of these names, such as `is_success`,
        or `episode` of the wrapper `RecordEpisodeStatistics` (its return).
      measure_by: the measure of an episode: "last" (the number of its last step), "sum" or "max" over its steps.
      **options: keyword arguments of `gymnasium.make`.

    Raises:
      ImportError: Gymnasium or the package of the environment is not installed.
      ValueError: the id is unknown (the message names similar ones), an option is wrong, or no agent can use the
        spaces.
    """
    gymnasium, identifier = _import(), name.removeprefix(PREFIX)
    if identifier.startswith("ALE/"):  # the package registers its environments when it is imported
        identifier = f"ale_py:{identifier}"
    create = partial(gymnasium.make, identifier, disable_env_checker=True, **options)
    module, _, registered = identifier.rpartition(":")
    if module.startswith(".") or "/" in module or module.endswith(".py"):
        raise ValueError(
            f"gym:{identifier} names a file; give the module that registers the environment, which may be in the "
            f"current folder: gym:{Path(module).stem}:{registered}."
        )
    try:
        if module:
            make_importable(Path.cwd())
            importlib.import_module(module)  # it registers the environment
        gymnasium.spec(registered)
    except gymnasium.error.NameNotFound as error:
        raise ValueError(_unknown(identifier, list(gymnasium.registry))) from error
    except gymnasium.error.Error as error:  # an unknown version or namespace
        raise ValueError(_unknown(identifier, list(gymnasium.registry), str(error))) from error
    except ModuleNotFoundError as error:
        raise ImportError(f"gym:{identifier} needs the package {error.name}, which is not installed.") from error
    drawn = partial(create, render_mode="rgb_array")
    found = keys_of(measure, measure_by)
    return _build(name, create, episode_length, Workers(workers, worker_kind, timeout), found, drawn=drawn)


def from_gymnasium(
    make_env: Callable[[], object],
    episode_length: int | None = None,
    descriptor: DescriptorSpec | None = None,
    describe: DescribeFn | None = None,
    workers: int | None = None,
    worker_kind: str = "threads",
    timeout: float = build.TIMEOUT,
    measures: Mapping[str, Source | tuple[Source, By]] | None = None,
) -> Environment:
    """Adapt a function that creates environments of Gymnasium, with any wrappers.

    It is called several times and must create a new object in each call, since members and environments run side by
    side. Every episode is reset with a separate seed,
    so runs can be repeated if the environment draws all its random numbers from `self.np_random`. A resumed run
    continues exactly if the environment's state can be saved: MuJoCo's tasks, and objects with the methods
    `save_state() -> dict of arrays` and `load_state(arrays)`; otherwise it begins new episodes.

    Args:
      make_env: creates an environment; observations and actions of the kinds that `docs/guides/gymnasium.md` lists.
      episode_length: steps until truncation, at least 1; by default the limit of its `TimeLimit`.
      descriptor: meaning and limits of a descriptor, see `rookery.envs.descriptor_spec`.
      describe: computes the state descriptor `[D]` from the environment object and the info of a step or a reset; with
        `descriptor` only.
      workers: number of threads or processes that step environments; by default one for each core, at most 8.
      worker_kind: "threads", for simulators that release Python's lock, or "processes".
      timeout: seconds after which a reset or step counts as hanging.
      measures: name -> a function of the info and the observation of a step that returns a number, or a key of the
        info; each can be the fitness (`objective`), and is reported of every evaluation. It is the number of the
        episode's last step, or over its steps with "sum" or "max": `{"energy": (energy, "sum")}`. A key that an
        environment gives only at its own end of an episode is NaN where `episode_length` ends it before.

    Raises:
      ImportError: Gymnasium is not installed.
      ValueError: `make_env` raises an exception or returns something else, no agent can use its spaces, there is no
        time limit, or only one of `descriptor` and `describe` is given.

    Example:
      >>> env = rookery.from_gymnasium(lambda: gymnasium.make("Pendulum-v1"))
      >>> env.spec.episode_length
      200
    """
    _import()
    if not callable(make_env):
        raise ValueError(
            f"from_gymnasium takes a function that creates environments, got {type(make_env).__name__}; pass lambda: "
            "gymnasium.make(...)."
        )
    if (descriptor is None) != (describe is None):
        raise ValueError("from_gymnasium takes descriptor and describe together: limits, and the function.")
    found = measures_of(measures)
    return _build(None, make_env, episode_length, Workers(workers, worker_kind, timeout), found, descriptor, describe)


def _build(
    name: str | None,
    create: Callable[[], object],
    episode_length: int | None,
    workers: Workers,
    measured: tuple[Measure, ...],
    descriptor: DescriptorSpec | None = None,
    describe: DescribeFn | None = None,
    drawn: Callable[[], object] | None = None,
) -> Environment:
    """Build an environment; `drawn` creates an object that draws frames, if `create` does not."""
    make_env = Factory(create)
    env = _created(name or "the environment of make_env", make_env)
    try:
        registered = getattr(env.spec, "id", None) or type(env.unwrapped).__name__
        name = name or f"{PREFIX}{registered}"
        length = build.episode_length(name, _limit(env), episode_length)
        layers = (*states.wrappers(env), env.unwrapped)
        # Those of Gymnasium do not hang.
        is_own = all(type(layer).__module__.split(".")[0] == "gymnasium" for layer in layers)
        has_frames = film.has_frames(env, drawn is not None)
        observed, acted = spaces.observations(env.observation_space, name), spaces.actions(env.action_space, name)
    finally:
        closing = threading.Thread(target=close, args=(env,), daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)
    meanings = {measure.name: measure.meaning for measure in measured}
    sizes = spaces.sizes(observed, acted, descriptor.size if descriptor else 0, meanings)
    is_own = is_own and describe is None and all(measure.is_key for measure in measured)
    rows_here = _ROWS_HERE if workers.kind == "threads" and is_own else 0
    pool = _pool(
        name, EpisodeSettings(make_env, sizes, observed, acted, describe, length, measured), workers, rows_here
    )
    environment = build.environment(spaces.spec(name, observed, acted, length, descriptor, meanings), pool)
    picture = Picture(film=partial(film.film, name, drawn or create, acted.decode), replays=True)
    return environment._replace(picture=picture if has_frames else None)


def _pool(name: str, task: EpisodeSettings, workers: Workers, rows_here: int) -> HostPool:
    if workers.kind not in ("threads", "processes"):
        raise ValueError(f"worker_kind must be threads or processes, got {workers.kind!r}.")
    count = min(os.cpu_count() or 1, 8) if workers.number is None else workers.number
    check_counts(workers=count)
    create = partial(_process, task) if workers.kind == "processes" else partial(Episodes, task)
    return HostPool(
        name, task.sizes, lambda number: Worker(create, f"{name}-{number}"), count, workers.timeout, rows_here
    )


def _process(task: EpisodeSettings) -> ProcessRunner:
    import cloudpickle

    return ProcessRunner(cloudpickle.dumps(partial(Episodes, task)))


def _created(name: str, make_env: Factory) -> "Env":
    """An environment object, to read its spaces."""
    try:
        env = make_env.create()
    except _import().error.DependencyNotInstalled as error:
        raise ImportError(f"{name} needs another package: {first_line(error)}.") from error
    except RAISED as error:
        text = f"{name} raised {type(error).__name__} when it was created: {first_line(error)}{place_of(error)}."
        raise ValueError(text) from error
    return make_env.checked(env)


def _limit(env: Any) -> int | None:
    """The steps after which an environment object truncates; None if it has no time limit."""
    timed = [layer for layer in states.wrappers(env) if isinstance(layer, _import().wrappers.TimeLimit)]
    limits = [getattr(env.spec, "max_episode_steps", None), *(layer._max_episode_steps for layer in timed)]
    return min((limit for limit in limits if limit is not None), default=None)


def _unknown(identifier: str, known: list[str], error: str = "") -> str:
    remedy = suggestion(PREFIX + identifier, [PREFIX + name for name in known], _IMPORT_HINT)
    reason = f" ({error.strip().splitlines()[0].rstrip('.')})" if error else ""
    return f"Gymnasium has no environment {identifier!r}{reason}; {remedy}"


_IMPORT_HINT = "one of another package is named with the module that registers it, as in gym:my_package:MyEnv-v0."


@functools.cache
def _import() -> ModuleType:
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError(f"this environment needs Gymnasium ({error}); install it: {INSTALL}") from error
    return gymnasium
