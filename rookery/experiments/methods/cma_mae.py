"""CMA-MAE: a repertoire by covariance matrix adaptation with annealed thresholds."""

from dataclasses import dataclass, field
from typing import Annotated

from rookery.distributed.mesh import Mesh
from rookery.experiments.cells import ANNEALED_RATE, CellsConfig
from rookery.experiments.methods import map_elites
from rookery.experiments.spec import Built, RunSpec
from rookery.populations.sharding import Placement
from rookery.qd.base import Emitter, Scoring
from rookery.qd.cma.config import CmaMaeConfig
from rookery.qd.cma.emitter import cma_mae
from rookery.settings import Within
from rookery.storage.lineage import Schedule


@dataclass(frozen=True)
class Settings(map_elites.OfFunctions):
    """The settings of CMA-MAE."""

    batch_size: Annotated[int, Within(1)] = 540
    """Genotypes sampled and evaluated in each generation (a multiple of `emitters`, at least two for each, and of the
    number of devices)."""
    cells: CellsConfig = field(default=CellsConfig(archive_learning_rate=ANNEALED_RATE))
    cma_mae: CmaMaeConfig = field(default_factory=CmaMaeConfig)


def emitter(scored: Scoring, settings: Settings, placement: Placement) -> Emitter:
    """The emitter of a search with these settings."""
    return cma_mae(scored, settings.batch_size, settings.cma_mae, placement)


def build(spec: RunSpec[Settings], _: Schedule | None, over: Mesh | None, populations: int) -> Built:
    """Build the program; see `Method.build`."""
    del populations
    return map_elites.search(spec, over, emitter, ranked=True)


METHOD = map_elites.METHOD._replace(
    name="cma-mae",
    title="CMA-MAE: a repertoire of small policies, or of inputs of a test function, by covariance matrix adaptation.",
    sources=(
        "Fontaine 2023 (arXiv:2205.10752)",
        "with --archive-learning-rate 1 CMA-ME, Fontaine 2020 (arXiv:1912.02400)",
    ),
    settings=Settings(),
    build=build,
)
