"""Quality diversity: repertoires, emitters, and MAP-Elites."""

from typing import TYPE_CHECKING, Any

from rookery.qd.archives import Archive, annealed, dominated_novelty
from rookery.qd.base import Emitter, Scoring
from rookery.qd.centroids import grid
from rookery.qd.cma.config import CmaMaeConfig
from rookery.qd.cma.emitter import cma_mae
from rookery.qd.emitters import iso_line, mix
from rookery.qd.initial import begin_from, begin_with
from rookery.qd.map_elites import map_elites, repertoire_of
from rookery.qd.me_pbt import me_pbt
from rookery.qd.pbt_emitter import MePbtConfig, pbt_emitter
from rookery.qd.policy_gradient.config import DcrlMeConfig, PgaMeConfig
from rookery.qd.policy_gradient.factories import dcrl_me, pga_me
from rookery.qd.repertoire import Repertoire, best, elite, nearest
from rookery.qd.scoring import (
    PolicyConfig,
    function_scoring,
    host_scoring,
    learner_scoring,
    named_scoring,
    policy,
    policy_scoring,
    with_extras,
)
from rookery.qd.variation import VariationConfig

if TYPE_CHECKING:
    from rookery.experiments.search import Search

__all__ = [
    "Archive",
    "CmaMaeConfig",
    "DcrlMeConfig",
    "Emitter",
    "MePbtConfig",
    "PgaMeConfig",
    "PolicyConfig",
    "Repertoire",
    "Scoring",
    "Search",
    "VariationConfig",
    "annealed",
    "begin_from",
    "begin_with",
    "best",
    "cma_mae",
    "dcrl_me",
    "dominated_novelty",
    "elite",
    "function_scoring",
    "grid",
    "host_scoring",
    "iso_line",
    "learner_scoring",
    "map_elites",
    "me_pbt",
    "mix",
    "named_scoring",
    "nearest",
    "pbt_emitter",
    "pga_me",
    "policy",
    "policy_scoring",
    "repertoire_of",
    "with_extras",
]


def __getattr__(name: str) -> Any:
    """`Search` records runs, so that its module lies above this package and is imported when it is first used."""
    if name != "Search":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rookery.experiments.search import Search

    return Search


def __dir__() -> list[str]:
    return __all__
