"""Independent members, one by default: a run of one agent, several seeds, or a random search."""

from dataclasses import dataclass
from typing import Annotated

from rookery.distributed import layout
from rookery.distributed.mesh import Mesh
from rookery.experiments.parts import learner_of, mesh_of
from rookery.experiments.spec import Built, Method, RunSpec
from rookery.populations.independent import seeds
from rookery.populations.replay import replay
from rookery.settings import Within, check_fields, expand_paths
from rookery.storage.lineage import Schedule, at_steps


@dataclass(frozen=True)
class Settings:
    """The settings of independent members."""

    population: Annotated[int, Within(1)] = 1
    """Number of members, each with a different random seed, trained in one compiled program (a multiple of the number
    of devices); `--seeds` is another name of this flag."""
    draw_hyper: bool = False
    """Random search: draw each member's hyper-parameters once from the search space."""
    replay_schedule: str | None = None
    """Run directory; the members train with the hyper-parameters that the ancestors of its best member had in each
    generation. Settings that are not given are taken from that run, except for the population and the seed."""
    init_from: str | None = None
    """Run directory; every member starts from the parameters of its best member. Task and network settings that are not
    given are taken from that run."""
    skill: Annotated[int | None, Within(0)] = None
    """Number of the skill of `--init-from` to start from (0 to the number of skills - 1), if that run discovered skills
    and this one does not."""

    def __post_init__(self) -> None:
        check_fields(self)
        expand_paths(self, "init_from", "replay_schedule")


def build(spec: RunSpec[Settings], schedule: Schedule | None, over: Mesh | None, populations: int) -> Built:
    """Build the program; see `Method.build`."""
    settings = spec.method
    mesh = mesh_of(spec.environment, over, population=settings.population)
    spec, learner, space = learner_of(spec, mesh, schedule, populations)
    placement = layout.placement(mesh, spec.environment.exact)
    program = seeds(learner, space, settings.population, settings.draw_hyper, placement)
    if schedule is not None:
        program = replay(program, at_steps(schedule, learner.steps_per_generation, spec.run.generations))
    return Built(program, mesh, space, learner, spec)


def describe(spec: RunSpec[Settings]) -> str:
    """The population in a run's title."""
    assert spec.kind.agent is not None
    return f"population {spec.method.population}{spec.kind.agent.wrapper.describe(spec.wrapper)}"


METHOD = Method(
    name="{agent}",
    title="{heading}, one by default.",
    sources=(),
    subject="independent agents",
    guide="single_agents",
    settings=Settings(),
    build=build,
    describe=describe,
    trains=lambda _: True,
    is_independent=True,
)
