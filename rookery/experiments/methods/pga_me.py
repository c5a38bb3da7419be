"""PGA-ME: a repertoire of policies, half of which are varied by the gradient of critics."""

from dataclasses import dataclass, field

from rookery.distributed.mesh import Mesh
from rookery.experiments.methods import map_elites
from rookery.experiments.spec import Built, RunSpec
from rookery.learners.base import EvaluationConfig
from rookery.populations.sharding import Placement
from rookery.qd.base import Emitter, Scoring
from rookery.qd.policy_gradient.config import PgaMeConfig
from rookery.qd.policy_gradient.factories import gradient_count, pga_me
from rookery.qd.variation import VariationConfig
from rookery.storage.lineage import Schedule


@dataclass(frozen=True)
class Settings(map_elites.Searched):
    """The settings of PGA-ME."""

    evaluation: EvaluationConfig = field(default=EvaluationConfig(eval_episodes=1))
    variation: VariationConfig = field(default_factory=VariationConfig)
    pga_me: PgaMeConfig = field(default_factory=PgaMeConfig)


GRADIENT_BATCH = "gradient batch (batch_size less its variation_share)"
"""The size that the devices must divide, for messages."""


def _emitter(scored: Scoring, settings: Settings, placement: Placement) -> Emitter:
    given = settings.policy, settings.variation, placement
    return pga_me(scored, settings.batch_size, settings.pga_me, *given)


def build(spec: RunSpec[Settings], _: Schedule | None, over: Mesh | None, populations: int) -> Built:
    """Build the program; see `Method.build`."""
    del populations
    size = gradient_count(spec.method.batch_size, spec.method.pga_me)
    return map_elites.search(spec, over, _emitter, sizes={GRADIENT_BATCH: size})


METHOD = map_elites.METHOD._replace(
    name="pga-me",
    title="PGA-ME: a repertoire of policies, half of which are varied by the gradient of critics.",
    sources=("Nilsson 2021", "Fujimoto 2018 (arXiv:1802.09477)"),
    settings=Settings(),
    build=build,
)
