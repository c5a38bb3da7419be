"""Builds a run from its description."""

from typing import Any

from rookery.distributed.mesh import Mesh, here, use_cores
from rookery.experiments.spec import Built, RunSpec
from rookery.factories import RAISED, described
from rookery.populations.stages import with_precision
from rookery.settings import type_of
from rookery.storage.lineage import Schedule


def on_one_device(spec: RunSpec) -> Built:
    """Build a run on the first device of this machine, to read its files whatever devices it ran on."""
    use_cores(1)
    return build(spec, over=here())


def call_method(spec: RunSpec, name: str, *arguments: object) -> Any:
    """Call a function of a run's population method, `build` or `describe`.

    An exception in one of another package is a ValueError that names the function and the place.
    """
    method, function = spec.kind.method, getattr(spec.kind.method, name)
    try:
        return function(spec, *arguments)
    except (ValueError, ImportError):
        raise
    except RAISED as error:
        if function.__module__.startswith("rookery."):
            raise
        raise ValueError(f"{name} of the method {method.name} raised {described(error)}.") from error


def build(spec: RunSpec, schedule: Schedule | None = None, over: Mesh | None = None, populations: int = 1) -> Built:
    """Build the environment, learner, program and mesh of a run; see `Method.build`."""
    built = call_method(spec, "build", schedule, over, populations)
    if not isinstance(built, Built):
        raise ValueError(f"build of the method {spec.kind.method.name} returned {type_of(built)}, not a Built.")
    if not spec.kind.method.has_task:  # a user's program sets its own precision
        return built
    return built._replace(program=with_precision(built.program, spec.environment.precision))
