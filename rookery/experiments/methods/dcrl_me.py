"""DCRL-ME: a repertoire of policies, varied by the gradient of critics that are conditioned on descriptors."""

from dataclasses import dataclass, field

from rookery.distributed.mesh import Mesh
from rookery.experiments.methods import map_elites
from rookery.experiments.methods.pga_me import GRADIENT_BATCH
from rookery.experiments.spec import Built, RunSpec
from rookery.learners.base import EvaluationConfig
from rookery.populations.sharding import Placement
from rookery.qd.base import Emitter, Scoring
from rookery.qd.policy_gradient.config import DcrlMeConfig
from rookery.qd.policy_gradient.factories import dcrl_me, gradient_count
from rookery.qd.variation import VariationConfig
from rookery.storage.lineage import Schedule


@dataclass(frozen=True)
class Settings(map_elites.Searched):
    """The settings of DCRL-ME."""

    evaluation: EvaluationConfig = field(default=EvaluationConfig(eval_episodes=1))
    variation: VariationConfig = field(default_factory=VariationConfig)
    dcrl_me: DcrlMeConfig = field(default_factory=DcrlMeConfig)


def _emitter(scored: Scoring, settings: Settings, placement: Placement) -> Emitter:
    given = settings.policy, settings.variation, placement
    return dcrl_me(scored, settings.batch_size, settings.dcrl_me, *given)


def build(spec: RunSpec[Settings], _: Schedule | None, over: Mesh | None, populations: int) -> Built:
    """Build the program; see `Method.build`."""
    del populations
    size = gradient_count(spec.method.batch_size, spec.method.dcrl_me)
    return map_elites.search(spec, over, _emitter, sizes={GRADIENT_BATCH: size})


METHOD = map_elites.METHOD._replace(
    name="dcrl-me",
    title="DCRL-ME: a repertoire of policies, varied by the gradient of critics conditioned on descriptors.",
    sources=("Faldor 2024 (arXiv:2401.08632)", "Fujimoto 2018 (arXiv:1802.09477)"),
    settings=Settings(),
    build=build,
)
