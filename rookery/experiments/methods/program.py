"""A program that a user's function builds: `package.module:build` or `path/to/file.py:build`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rookery.agents.base import Agent
from rookery.distributed import layout
from rookery.distributed.mesh import Mesh, check_population, use_cores
from rookery.envs.base import Environment
from rookery.experiments.config import DevicesConfig
from rookery.experiments.parts import option_values, requested_mesh
from rookery.experiments.spec import Built, Method, RunSpec
from rookery.factories import OWN_PROGRAM, Product, call, is_reference, load
from rookery.learners.base import Learner
from rookery.populations.base import Program
from rookery.qd.base import Scoring
from rookery.settings import check_fields, type_of
from rookery.storage.lineage import Schedule
from rookery.storage.record import PROGRAM, PROGRAM_KEYS

PRODUCT = Product("program", "a Program", "./mine.py:build", OWN_PROGRAM)
_REMEDIES = (
    (Environment, "an Environment", "train in it by `rookery train pbt-sac --env {factory}`, or give it to a learner"),
    (Agent, "an agent", "wrap it: rookery.pbt(rookery.off_policy(agent, environment))"),
    (Learner, "a Learner", "wrap it: rookery.pbt(learner, population_size=8)"),
    (Scoring, "a Scoring", "wrap it: rookery.map_elites(scoring, centroids)"),
)


@dataclass(frozen=True)
class Settings:
    """The settings of a run of a user-defined program."""

    factory: str = ""
    """The function: path/to/file.py:build or package.module:build."""
    option: tuple[str, ...] = ()
    """Parameters of the function, each as name=value."""

    def __post_init__(self) -> None:
        check_fields(self)


def build(spec: RunSpec[Settings], _: Schedule | None, over: Mesh | None, populations: int) -> Built:
    """Build the program; see `Method.build`."""
    del populations
    devices = spec.environment.devices
    if over is None:
        use_cores(devices)  # the population is not known before the program is built, which may start JAX
    program = make(spec.method.factory, option_values(spec.method.option))
    if over is None:
        over = layout.mesh_of(program) if devices is None else requested_mesh(devices)
        check_population(program.population_size, over)
    return of_program(program, over)._replace(spec=spec)


def of_program(program: Program, over: Mesh) -> Built:
    """The parts of a run, from its program as it was built in Python."""
    program = layout.place(program, over)
    return Built(program, over, program.space, program.learner)


def make(factory: str, options: dict[str, Any]) -> Program:
    """Build the program of a factory, `package.module:function` or `path/to/file.py:function`, with these options.

    Raises:
      ValueError: the name has another form; the module, the file or the function does not exist, or the function has no
        such option, raises an exception, or returns something else.
      ImportError: an import of the module fails.
    """
    if not is_reference(factory):
        example = f"{factory.removesuffix('.py') or './mine'}.py:build" if factory.endswith(".py") else PRODUCT.example
        raise ValueError(
            f"{factory!r} names no function; give the file or the module and the function, as in {example}."
        )
    try:
        program = call(factory, load(factory, PRODUCT), options)
    except ImportError as error:
        raise ImportError(f"the program {factory} cannot be imported: {error}") from error
    if isinstance(program, Program):
        _check_settings(program)
        return program
    text, remedy = _instead(program)
    raise ValueError(f"the factory {factory} returned {text}, not a rookery.Program; {remedy.format(factory=factory)}.")


def check_program(program: object) -> None:
    """Raise a TypeError, with the remedy, if a program is something else, or a ValueError if its settings cannot be
    recorded."""
    if not isinstance(program, Program):
        text, remedy = _instead(program)
        raise TypeError(f"run needs a rookery.Program, got {text}; {remedy.format(factory='FILE:FUNCTION')}.")
    _check_settings(program)


def _check_settings(program: Program) -> None:
    """Raise a ValueError if the settings of a program are not what a run records and reads back."""
    settings = program.settings
    if not (isinstance(settings, Mapping) and all(isinstance(name, str) for name in settings)):
        raise ValueError(f"the settings of a program must be a mapping from names, got {settings!r}; change them.")
    for name in sorted({"kind", "run", *PROGRAM_KEYS} & {*settings}):
        raise ValueError(f"{name!r} in the settings of a program is a word of config.json; give it another name.")
    for name in ("agent", "cells", "environment", "policy"):
        if not isinstance(part := settings.get(name, {}), Mapping):
            raise ValueError(f"{name!r} in the settings of a program must be a mapping, got {part!r}; change it.")
    if type(size := settings.get("population", 0)) is not int:
        raise ValueError(f"'population' in the settings of a program must be a whole number, got {size!r}; change it.")


def _instead(found: object) -> tuple[str, str]:
    """What was found in the place of a program, and the remedy."""
    default = type_of(found), "build one by rookery.pbt(learner) or rookery.Program(init, step, ...)"
    return next(((text, remedy) for kind, text, remedy in _REMEDIES if isinstance(found, kind)), default)


METHOD = Method(
    name=PROGRAM,
    title="A user-defined program: a function that returns a rookery.Program. Its keyword parameters are options: "
    "`rookery train program ./mine.py:build --option width=64`.",
    sources=(),
    subject="user-defined programs",
    guide="python_runs",
    settings=Settings(),
    build=build,
    describe=lambda _: "",
    defaults={"environment": DevicesConfig()},
    has_task=False,
)
