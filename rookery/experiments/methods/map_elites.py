"""MAP-Elites: a repertoire of policies, or of inputs of a test function, by variation of elites."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any

from rookery.distributed.mesh import Mesh
from rookery.experiments.cells import CellsConfig, find_cells
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.parts import mesh_of, placement_of, scoring, sharded_cells
from rookery.experiments.spec import Built, Method, RunSpec
from rookery.learners.base import EvaluationConfig
from rookery.populations.sharding import Placement
from rookery.qd.base import Emitter, Scoring
from rookery.qd.emitters import iso_line
from rookery.qd.map_elites import map_elites
from rookery.qd.scoring import PolicyConfig
from rookery.qd.variation import VariationConfig
from rookery.settings import Within, check_fields, expand_paths
from rookery.storage.lineage import Schedule


@dataclass(frozen=True)
class Searched:
    """The settings of every search of a repertoire without agents."""

    batch_size: Annotated[int, Within(1)] = 256
    """Genotypes created and evaluated in each generation (a multiple of the number of devices)."""
    init_from: str | None = None
    """Run directory of a run of map-elites, pga-me, dcrl-me or cma-mae whose elites fill the initial repertoire; task
    settings that are not given are taken from that run."""
    cells: CellsConfig = field(default_factory=CellsConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    evaluation: EvaluationConfig = field(default=EvaluationConfig(eval_episodes=4))

    def __post_init__(self) -> None:
        check_fields(self)
        expand_paths(self, "init_from")


@dataclass(frozen=True)
class OfFunctions(Searched):
    """The settings of a search that also takes a test function."""

    dimensions: Annotated[int | None, Within(1)] = None
    """Length of a genotype of a test function (arm, sphere, rastrigin); by default the standard length of the function.
    Not allowed for environments."""


@dataclass(frozen=True)
class Settings(OfFunctions):
    """The settings of MAP-Elites."""

    variation: VariationConfig = field(default_factory=VariationConfig)


def search(
    spec: RunSpec,
    over: Mesh | None,
    emitter: Any,
    ranked: bool = False,
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> Built:
    """Build a search of a repertoire without agents, whose settings are `Searched`.

    Args:
      emitter: takes the scoring, the settings and the placement.
      ranked: whether it ranks genotypes by their improvement over a cell's threshold.
      sizes: further sizes that the devices must divide.
    """
    settings: Searched = spec.method
    mesh = mesh_of(spec.environment, over, **sharded_cells(settings.cells), batch=settings.batch_size, **sizes)
    dimensions = getattr(settings, "dimensions", None)
    scored = scoring(spec.environment, settings.policy, settings.evaluation, dimensions)
    placement = placement_of(mesh, spec.environment, settings.cells)
    cells = find_cells(settings.cells, scored.descriptor, ranked)
    return Built(map_elites(scored, cells, emitter(scored, settings, placement), placement), mesh, spec=spec)


def emitter(scored: Scoring, settings: Settings, placement: Placement) -> Emitter:
    """The emitter of a search with these settings."""
    return iso_line(scored, settings.batch_size, settings.variation, placement.cells)


def build(spec: RunSpec[Settings], _: Schedule | None, over: Mesh | None, populations: int) -> Built:
    """Build the program; see `Method.build`."""
    del populations  # it holds no data of members
    return search(spec, over, emitter)


def describe(spec: RunSpec) -> str:
    """The population in a run's title."""
    return f"{spec.method.cells.count} cells, {spec.method.batch_size} genotypes a generation"


METHOD = Method(
    name="map-elites",
    title="MAP-Elites: evolve a repertoire of policies, or of inputs of a test function, without gradients.",
    sources=("Mouret 2015 (arXiv:1504.04909)", "Vassiliades 2018 (arXiv:1610.05729, arXiv:1804.03906)"),
    subject="quality diversity",
    guide="repertoires",
    settings=Settings(),
    build=build,
    describe=describe,
    defaults={"environment": EnvironmentConfig(env="point_trap")},
    has_repertoire=True,
)
