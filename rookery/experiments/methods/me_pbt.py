"""ME-PBT: a repertoire of agents, whose members train in a population between the cells and the selection."""

from dataclasses import dataclass, field
from typing import Annotated

from rookery.distributed.mesh import Mesh
from rookery.experiments.cells import CellsConfig, find_cells
from rookery.experiments.config import ISLAND_RULES, EnvironmentConfig, IslandsConfig
from rookery.experiments.parts import learner_of, mesh_of, placement_of, sharded_cells
from rookery.experiments.spec import Built, Method, RunSpec
from rookery.qd.me_pbt import me_pbt
from rookery.qd.pbt_emitter import MePbtConfig, counts
from rookery.qd.scoring import descriptor_of
from rookery.qd.variation import VariationConfig
from rookery.settings import Within, check_fields, expand_paths
from rookery.storage.lineage import Schedule


@dataclass(frozen=True)
class Settings:
    """The settings of MAP-Elites with Population Based Training."""

    population: Annotated[int, Within(1)] = 10
    """P, number of members that train (a multiple of the number of devices)."""
    ga_population: Annotated[int, Within(1)] = 30
    """Children of elites, created by variation, that are evaluated in addition to the members in each generation (a
    multiple of the number of devices)."""
    init_from: str | None = None
    """Run directory whose elites, skills or members fill the initial repertoire; task and network settings that are not
    given are taken from that run."""
    cells: CellsConfig = field(default_factory=CellsConfig)
    variation: VariationConfig = field(default_factory=VariationConfig)
    me_pbt: MePbtConfig = field(default_factory=MePbtConfig)
    islands: IslandsConfig = field(default_factory=IslandsConfig)

    def __post_init__(self) -> None:
        check_fields(self)
        expand_paths(self, "init_from")


def build(spec: RunSpec[Settings], _: Schedule | None, over: Mesh | None, populations: int) -> Built:
    """Build the program; see `Method.build`."""
    settings = spec.method
    counts(settings.me_pbt, settings.population)
    both = settings.population, settings.ga_population
    sizes = sharded_cells(settings.cells) | dict(zip(("population", "ga_population"), both, strict=True))
    mesh = mesh_of(spec.environment, over, **sizes)
    spec, learner, space = learner_of(spec, mesh, None, populations)
    cells = find_cells(settings.cells, descriptor_of(learner.spec))
    placement = placement_of(mesh, spec.environment, settings.cells)
    program = me_pbt(learner, cells, space, *both, settings.me_pbt, settings.variation, placement)
    return Built(program, mesh, space, learner, spec)


def describe(spec: RunSpec[Settings]) -> str:
    """The population in a run's title."""
    settings = spec.method
    return f"{settings.cells.count} cells, population {settings.population} and {settings.ga_population} variations"


METHOD = Method(
    name="me-pbt-{agent}",
    title="A repertoire of diverse {short_title} agents: MAP-Elites with Population Based Training (ME-PBT).",
    sources=("Pierrot 2023 (arXiv:2303.12803)",),
    subject="quality diversity",
    guide="repertoires",
    settings=Settings(),
    build=build,
    describe=describe,
    trains=lambda row: row.is_off_policy and not (row.wrapper.has_skills or row.discrete),
    defaults={"environment": EnvironmentConfig(env="point_trap")},
    rules=ISLAND_RULES,
    has_repertoire=True,
    has_width=False,
)
