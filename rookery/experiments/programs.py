"""Programs of user-defined factories: `package.module:build` and `path/to/file.py:build`."""

import dataclasses
from typing import Any

from rookery.agents.base import Agent
from rookery.envs.base import Environment
from rookery.experiments.config_io import to_record
from rookery.experiments.settings import ProgramRun
from rookery.factories import OWN_PROGRAM, Product, call, is_reference, load, type_of
from rookery.learners.base import Learner
from rookery.populations.base import Program
from rookery.qd.base import Scoring
from rookery.training.program_record import program_record

PRODUCT = Product("program", "a Program", "./mine.py:build", OWN_PROGRAM)
_REMEDIES = (
    (Environment, "an Environment", "train in it by `rookery train pbt-sac --env {factory}`, or give it to a learner"),
    (Agent, "an agent", "wrap it: rookery.pbt(rookery.off_policy(agent, environment))"),
    (Learner, "a Learner", "wrap it: rookery.pbt(learner, population_size=8)"),
    (Scoring, "a Scoring", "wrap it: rookery.map_elites(scoring, centroids)"),
)


def record_of(config: ProgramRun, program: Program) -> dict[str, Any]:
    """The entry of `config.json` for a run: its factory and options, and the settings of the program that it built."""
    settings = program_record(program)
    environment = settings["environment"] | dataclasses.asdict(config.environment)
    return {**to_record(config), **settings, "environment": environment}


def make(factory: str, options: dict[str, Any]) -> Program:
    """Build the program of a user-defined factory.

    Args:
      factory: `package.module:function` or `path/to/file.py:function`.
      options: keyword arguments of the factory.

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
        return program
    text, remedy = _instead(program)
    raise ValueError(f"the factory {factory} returned {text}, not a rookery.Program; {remedy.format(factory=factory)}.")


def check_program(program: Any) -> None:
    """Check that a program is to be run.

    Raises:
      TypeError: it is something else; the message contains the remedy.
    """
    if not isinstance(program, Program):
        text, remedy = _instead(program)
        raise TypeError(f"run needs a rookery.Program, got {text}; {remedy.format(factory='FILE:FUNCTION')}.")


def _instead(found: Any) -> tuple[str, str]:
    """What was found in the place of a program, and the remedy."""
    default = type_of(found), "build one by rookery.pbt(learner) or rookery.Program(init, step, ...)"
    return next(((text, remedy) for kind, text, remedy in _REMEDIES if isinstance(found, kind)), default)
