"""The task registry: the names, sizes and factories of all tasks. Its table also lists the scoring functions.

Listing tasks builds no environment and imports no simulator: the sizes are constants of the registry, and a test
compares them with the environments.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from rookery.envs import custom
from rookery.envs.base import DescriptorSpec, Environment
from rookery.envs.suites import gymnax
from rookery.envs.suites.brax import adapter as brax
from rookery.envs.suites.brax import feet as brax_feet
from rookery.envs.suites.brax import rewards as brax_rewards
from rookery.envs.suites.brax import walls as brax_walls
from rookery.envs.suites.envpool import adapter as envpool
from rookery.envs.suites.gymnasium import adapter as gymnasium
from rookery.envs.suites.jaxmarl import adapter as jaxmarl
from rookery.envs.suites.jaxmarl import tasks as jaxmarl_tasks
from rookery.envs.suites.playground import adapter as playground
from rookery.envs.suites.playground import brax_tasks
from rookery.envs.suites.playground import descriptors as playground_descriptors
from rookery.envs.suites.playground import tasks as playground_tasks
from rookery.envs.tasks import functions, point_maze, probes, pursuit
from rookery.hyperparams import Space
from rookery.settings import OptionError, suggestion, type_of, unknown_name
from rookery.types import Settings


class Task(NamedTuple):
    """An entry of the registry."""

    name: str
    """Name of the task."""
    suite: str
    """One of "rookery", "brax", "playground", "gymnax", "jaxmarl", "gymnasium", "user-defined", or "function" for a
    scoring function."""
    extra: str | None
    """Extra to install, as in `pip install "rookery[extra]"`; None when the task needs none."""
    build: Callable[..., Environment]
    """Factory; takes any of `overrides` by keyword."""
    observation_size: int
    """O."""
    action_size: int
    """Number of dimensions, or of discrete actions."""
    episode_length: int
    """Default steps until truncation."""
    overrides: tuple[str, ...]
    """Keyword arguments that `make` accepts for this task."""
    descriptor: DescriptorSpec | None = None
    """None: the task has no descriptor."""
    qd_offset: float = 0.0
    """Reward per step, added for the QD score so that the worst known behaviour counts as 0."""
    discrete: bool = False
    """Whether actions are int32 indices."""
    agents: int = 1
    """Number of agents."""
    parameters: Space | None = None
    """Parameters that can evolve; None: the task has none."""
    measures: Mapping[str, str] = MappingProxyType({})
    """Name -> meaning of each measure that can be the objective."""


def make(name: str, /, **overrides: object) -> Environment:
    """Build a task's environment, with the task's name in its spec, or a user-defined environment.

    Args:
      name: one of `names()`; or of a user-defined environment: `package.module:factory`, `path/to/file.py:factory`, or
        a name that was registered (`rookery.register`).
      **overrides: the task's options, `Task.overrides`: `episode_length` (steps), `backend` for Brax tasks, and the
        parameters of the pursuit tasks; for a user-defined environment the keyword arguments of its factory.

    Raises:
      ImportError: the task's suite is not installed; the message contains the command that installs it.
      ValueError: the name or an override is unknown, or the value of an override is invalid.
      TypeError: the name is no text.

    Example:
      >>> rookery.make("point_room", episode_length=20).spec.action_size
      2
    """
    if not isinstance(name, str):
        raise TypeError(f"make takes the name of a task, such as 'point_maze', got {type_of(name)}.")
    if custom.is_custom(name):
        environment = custom.make(name, **overrides)
        return environment._replace(settings=_settings(environment, custom.recorded_name(name), overrides))
    for suite in _HOST_SUITES:
        if name.startswith(suite.PREFIX):
            environment = suite.make(name, **overrides)
            return environment._replace(settings=_settings(environment, name, overrides))
    task = find(name)
    unknown = sorted(set(overrides) - set(task.overrides))
    if unknown:
        sentence = f"task {name!r} has no override {', '.join(unknown)}; it has {', '.join(task.overrides)}."
        raise OptionError("option", None, sentence)
    environment = task.build(**overrides)
    spec = environment.spec._replace(name=name, qd_offset=task.qd_offset)
    return environment._replace(spec=spec, settings=_settings(environment, name, overrides))


def _settings(environment: Environment, name: str, overrides: dict[str, object]) -> Settings:
    """What a run records of its environment: name and options, with the choices that the environment made itself.

    A default episode length is not recorded, so that `rookery compare` groups the run with those of the command line.
    """
    own = dict(environment.settings.get("environment", {}))
    own.pop("episode_length", None)
    return {"environment": {**own, **overrides, "env": name}}


def names() -> tuple[str, ...]:
    """The names of all tasks, ordered by suite; scoring functions are not included."""
    return tuple(_TASKS)


def described() -> tuple[str, ...]:
    """The names of all tasks with a descriptor."""
    return tuple(name for name, task in _TASKS.items() if task.descriptor is not None)


def find(name: str) -> Task:
    """The registry entry of a task; a ValueError, which suggests similar names, if there is none, or if it is a scoring
    function."""
    if name in _TASKS:
        return _TASKS[name]
    if name in functions.names():
        raise ValueError(
            f"{name!r} is a scoring function for MAP-Elites, not an environment; "
            f"use `rookery train map-elites --env {name}`."
        )
    known = (*_TASKS, *functions.names(), *custom.names())
    remedy = suggestion(name, known, "`rookery envs` lists them all.")
    if name.endswith(".py") or "/" in name:
        remedy = f"give the factory in the file too, as in {name.rstrip(':').removesuffix('.py')}.py:make."
    raise unknown_name("env", name, "task", known, remedy)


def describe(name: str) -> dict[str, Any]:
    """Describe a task or a scoring function as one row of a table: column name -> value.

    Limits are tuples, properties that do not apply are None, and the `action_size` of a scoring function is the size of
    its genotype.

    Raises:
      ValueError: there is no such task.
    """
    return _row(_function(name) if name in functions.names() else find(name))


def _row(task: Task) -> dict[str, object]:
    descriptor = task.descriptor
    return {
        "task": task.name,
        "suite": task.suite,
        "observation_size": task.observation_size,
        "action_size": task.action_size,
        "actions": "discrete" if task.discrete else "continuous",
        "agents": task.agents,
        "descriptor": descriptor.meaning if descriptor else None,
        "descriptor_size": descriptor.size if descriptor else 0,
        "descriptor_lower": descriptor.lower if descriptor else None,
        "descriptor_upper": descriptor.upper if descriptor else None,
        "episode_length": task.episode_length or None,
        "qd_offset": task.qd_offset if descriptor else None,
        "extra": task.extra,
        "options": task.overrides,
        "parameters": _parameter_texts(task.parameters),
        "measures": dict(task.measures),
    }


def _parameter_texts(parameters: Space | None) -> dict[str, str]:
    """Name -> meaning, valid values, default and domain of each parameter."""
    texts = {}
    if parameters is None:
        return texts
    for name, field in parameters.fields.items():
        domain, default = parameters.domains.get(name), field.shown(getattr(parameters.defaults, name))
        evolves = f"; `evolve`: {domain}" if domain else ""
        texts[name] = f"{field.meaning}, {field.range}, {default} by default{evolves}"
    return texts


def describe_environment(environment: Environment) -> dict[str, object]:
    """Describe a user-defined environment, or one on the host, as one row of a table, as `describe` does."""
    spec = environment.spec
    sizes = spec.observation_size, spec.action_size, spec.episode_length
    named = environment.settings.get("environment", {}).get("env", "")
    options = custom.options(named) if custom.is_custom(named) else ()
    task = Task(spec.name, "user-defined", None, partial(make, spec.name), *sizes, options)
    for suite, options in _HOST_SUITES.items():
        if named.startswith(suite.PREFIX):
            task = task._replace(
                suite=suite.EXTRA,
                extra=suite.EXTRA,
                overrides=("episode_length", *options, "timeout", "measure", "measure_by"),
            )
    task = task._replace(descriptor=spec.descriptor, qd_offset=spec.qd_offset, discrete=spec.discrete)
    task = task._replace(parameters=spec.parameters, measures=spec.measures or {})
    return _row(task._replace(agents=len(spec.team.names) if spec.team else 1))


def table() -> tuple[dict[str, Any], ...]:
    """The rows of all tasks, then of all scoring functions, as returned by `describe`."""
    return tuple(describe(name) for name in (*_TASKS, *functions.names()))


def _function(name: str) -> Task:
    """Registry entry of a scoring function; its `build` raises the error of `find`."""
    function = functions.function(name)
    task = Task(name, "function", None, partial(make, name), 0, function.size, 0, (), function.descriptor)
    return task._replace(qd_offset=0.0 - function.worst_fitness)


def _builtin(build: Callable[..., Environment], size: int, episode_length: int, **more: Any) -> Task:
    """Entry of a task that this package implements; observation and action have the same size."""
    return Task(build.__name__, "rookery", None, build, size, size, episode_length, ("episode_length",), **more)


def _pursuit(build: Callable[..., Environment], action_size: int) -> Task:
    """Entry of a pursuit task; its sizes are those of one predator and one prey, the defaults."""
    task = _builtin(build, 9, pursuit.EPISODE_LENGTH, discrete=action_size > 1, agents=2)
    more = ("predators", "prey", "predator_speed", "prey_speed", "capture_radius")
    task = task._replace(parameters=pursuit.PARAMETERS, measures=pursuit.MEASURES)
    return task._replace(action_size=action_size, overrides=(*task.overrides, *more))


def _brax(robot: str, observation_size: int, action_size: int) -> Task:
    build = partial(brax.make, robot)
    overrides = ("episode_length", "backend")
    task = Task(robot, "brax", "brax", build, observation_size, action_size, brax.EPISODE_LENGTH, overrides)
    return _weighted(task, robot)


def _weighted(task: Task, robot: str, included: tuple[str, ...] = brax_rewards.ALL) -> Task:
    """The entry with the parameters and measures of one of Brax's robots, and the parts of the reward that it has."""
    parameters, measures = brax_rewards.parameters_of(robot, included), brax_rewards.measures_of(robot)
    return task._replace(parameters=parameters, measures=measures)


def _gymnax(name: str) -> Task:
    sizes = gymnax.TASKS[name]
    build = partial(gymnax.make, name)
    return Task(name, "gymnax", "gymnax", build, *sizes[:3], ("episode_length",), discrete=sizes.discrete)


def _jaxmarl(name: str) -> Task:
    sizes = jaxmarl_tasks.TASKS[name]
    extra = "brax,jaxmarl" if name in jaxmarl_tasks.MABRAX else "jaxmarl"
    shape = (sizes.observation_size, sizes.action_size, sizes.episode_length)
    options = {"discrete": sizes.discrete, "agents": sizes.agents}
    return Task(name, "jaxmarl", extra, partial(jaxmarl.make, name), *shape, ("episode_length",), **options)


def _playground(name: str) -> Task:
    sizes = playground_tasks.TASKS[name]
    overrides = ("episode_length", "impl", "naconmax", *(("randomize",) if sizes.randomized else ()))
    return Task(name, "playground", "playground", partial(playground.make, name), *sizes[:3], overrides)


def _playground_described(name: str, suffix: str, function: Callable, descriptor: Callable) -> Task:
    """Entry of a Playground task with a descriptor; its rewards lie in [0, 1]."""
    build = partial(playground.make, name, descriptor=partial(function, name))
    return _playground(name)._replace(name=f"{name}_{suffix}", build=build, descriptor=descriptor(name))


def _mjx(robot: str, observation_size: int, action_size: int) -> Task:
    build = partial(brax_tasks.make, robot)
    sizes = observation_size, action_size, brax.EPISODE_LENGTH
    task = Task(f"mjx_{robot}", "playground", "playground", build, *sizes, ("episode_length", "impl"))
    return _weighted(task, robot)


def _variant(task: Task, suffix: str, variant: brax.Variant, qd_offset: float) -> Task:
    task = _weighted(task, task.name.removeprefix("mjx_"), variant.reward_parts)
    return task._replace(
        name=f"{task.name}_{suffix}",
        build=partial(task.build, variant=variant),
        descriptor=variant.descriptor,
        qd_offset=qd_offset,
    )


def _walled(task: Task, suffix: str, variant: brax.Variant, qd_offset: float) -> Task:
    """Entry of a variant with walls, whose observation starts with the x and y of the torso."""
    return _variant(task, suffix, variant, qd_offset)._replace(observation_size=task.observation_size + 2)


_POINT = {"size": 2, "episode_length": point_maze.EPISODE_LENGTH, "descriptor": point_maze.DESCRIPTOR}
_ROBOTS = {"hopper": (11, 3), "walker2d": (17, 6), "halfcheetah": (17, 6), "ant": (27, 8), "humanoid": (244, 17)}


def _locomotion(build: Callable[[str, int, int], Task]) -> tuple[Task, ...]:
    """The entries of the walking robots in one suite, and of their variants.

    Each offset covers the lowest reward of a step over five families of policies on Brax's spring backend, measured
    2026-11-20 by `python -m benchmarks.qd_offsets`, except one step of the ant with reward -8.05. The offsets of the
    omni and maze tasks are bounds; for the others, a policy that runs backwards faster than the measured policies gets
    a reward below minus the offset.
    """
    hopper, walker2d, halfcheetah, ant, humanoid = robots = [build(name, *sizes) for name, sizes in _ROBOTS.items()]
    return (
        *robots,
        _variant(hopper, "uni", brax_feet.ground_contact(1), 4.0),
        _variant(walker2d, "uni", brax_feet.ground_contact(2), 4.5),
        _variant(halfcheetah, "uni", brax_feet.ground_contact(2), 10.0),
        _variant(ant, "uni", brax_feet.ground_contact(4), 8.0),
        _variant(humanoid, "uni", brax_feet.ground_contact(2), 0.0),
        _variant(ant, "omni", brax.OMNI, 3.0),
        _variant(humanoid, "omni", brax.OMNI, 0.0),
        _variant(halfcheetah, "omni", brax.OMNI_PLANAR, 0.6),
        _walled(ant, "trap", brax_walls.TRAP, 8.0),
        _walled(humanoid, "trap", brax_walls.TRAP, 0.0),
        _walled(ant, "maze", brax_walls.MAZE, 57.0),
    )


_HOST_SUITES: dict[ModuleType, tuple[str, ...]] = {gymnasium: ("workers", "worker_kind"), envpool: ("num_threads",)}
"""Suites whose environments run on the host and are named by a prefix -> their options, besides those of the task."""

_BRAX = _locomotion(_brax)

_TASKS = {
    task.name: task
    for task in (
        # These offsets are bounds of the reward: the distance from the goal to the farthest corner in the maze,
        # sqrt(1.4^2 + 1.8^2) = 2.2804, and in the trap, sqrt(1^2 + 1.75^2) = 2.0156, and the largest control cost.
        _builtin(point_maze.point_maze, qd_offset=2.29, **_POINT),
        _builtin(point_maze.point_trap, qd_offset=2.02, **_POINT),
        _builtin(point_maze.point_goal, parameters=point_maze.SHAPING, measures=point_maze.MEASURES, **_POINT),
        _builtin(point_maze.point_room, qd_offset=0.02, **_POINT),
        _pursuit(pursuit.pursuit_discrete, pursuit.DIRECTIONS),
        _pursuit(pursuit.pursuit_continuous, 1),
        _builtin(probes.probe_value, 1, 1),
        _builtin(probes.probe_discount, 1, 2),
        _builtin(probes.probe_observation, 1, 1),
        _builtin(probes.probe_action, 1, 1),
        _builtin(probes.probe_both, 1, 1),
        _builtin(probes.probe_truncation, 1, probes.TRUNCATION_LENGTH),
        *_BRAX[:5],
        _brax("humanoidstandup", 244, 17),
        _brax("inverted_pendulum", 4, 1),
        _brax("inverted_double_pendulum", 8, 1),
        _brax("pusher", 23, 7),
        _brax("reacher", 11, 2),
        _brax("swimmer", 8, 2),
        *_BRAX[5:],
        *_locomotion(_mjx),
        *(_playground(name) for name in playground_tasks.TASKS),
        *(
            _playground_described(name, "uni", playground_descriptors.ground_contact, playground_descriptors.contacts)
            for name in playground_descriptors.FEET
        ),
        *(
            _playground_described(name, "omni", playground_descriptors.torso_position, playground_descriptors.position)
            for name in playground_descriptors.POSITION_AXES
        ),
        *(_gymnax(name) for name in gymnax.TASKS),
        *(_jaxmarl(name) for name in jaxmarl_tasks.TASKS),
    )
}

custom.reserve((*_TASKS, *functions.names()))
