"""PGA-ME: a repertoire of policies, half of which are varied by the gradient of critics."""

from collections.abc import Callable
from dataclasses import dataclass, field

from rookery.distributed.mesh import Mesh
from rookery.experiments.methods import map_elites
from rookery.experiments.spec import Built, RunSpec
from rookery.learners.base import EvaluationConfig
from rookery.populations.sharding import Placement
from rookery.qd.base import Emitter, Scoring
from rookery.qd.policy_gradient.config import DcrlMeConfig, PgaMeConfig
from rookery.qd.policy_gradient.factories import gradient_count, pga_me
from rookery.qd.variation import VariationConfig
from rookery.storage.lineage import Schedule


@dataclass(frozen=True)
class Varied(map_elites.Searched):
    """The settings of every search with variation and the gradient of critics."""

    evaluation: EvaluationConfig = field(default=EvaluationConfig(eval_episodes=1))
    variation: VariationConfig = field(default_factory=VariationConfig)


@dataclass(frozen=True)
class Settings(Varied):
    """The settings of PGA-ME."""

    pga_me: PgaMeConfig = field(default_factory=PgaMeConfig)


def search(spec: RunSpec, over: Mesh | None, make: Callable[..., Emitter], config: PgaMeConfig | DcrlMeConfig) -> Built:
    """Build a search with variation and the gradient of critics, by `pga_me` or `dcrl_me` with its config."""

    def emitter(scored: Scoring, settings: Varied, placement: Placement) -> Emitter:
        return make(scored, settings.batch_size, config, settings.policy, settings.variation, placement)

    size = gradient_count(spec.method.batch_size, config)
    return map_elites.search(spec, over, emitter, sizes={"gradient batch (batch_size less its variation_share)": size})


def build(spec: RunSpec[Settings], _: Schedule | None, over: Mesh | None, populations: int) -> Built:
    """Build the program; see `Method.build`."""
    del populations
    return search(spec, over, pga_me, spec.method.pga_me)


METHOD = map_elites.METHOD._replace(
    name="pga-me",
    title="PGA-ME: a repertoire of policies, half of which are varied by the gradient of critics.",
    sources=("Nilsson 2021", "Fujimoto 2018 (arXiv:1802.09477)"),
    settings=Settings(),
    build=build,
)
