"""Builds a run from its description."""

from rookery.distributed.mesh import Mesh, here, use_cores
from rookery.experiments.spec import Built, RunSpec
from rookery.populations.stages import with_precision
from rookery.settings import type_of
from rookery.storage.lineage import Schedule


def on_one_device(spec: RunSpec) -> Built:
    """Build a run on the first device of this machine, to read its files whatever devices it ran on."""
    use_cores(1)
    return build(spec, over=here())


def build(spec: RunSpec, schedule: Schedule | None = None, over: Mesh | None = None, populations: int = 1) -> Built:
    """Build the environment, learner, program and mesh of a run; see `Method.build`."""
    built = spec.kind.method.build(spec, schedule, over, populations)
    if not isinstance(built, Built):
        raise ValueError(f"build of the method {spec.kind.method.name} returned {type_of(built)}, not a Built.")
    if not spec.kind.method.has_task:  # a user's program sets its own precision
        return built
    return built._replace(program=with_precision(built.program, spec.environment.precision))
