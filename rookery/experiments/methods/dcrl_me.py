"""DCRL-ME: a repertoire of policies, varied by the gradient of critics that are conditioned on descriptors."""

from dataclasses import dataclass, field

from rookery.distributed.mesh import Mesh
from rookery.experiments.methods import map_elites, pga_me
from rookery.experiments.spec import Built, RunSpec
from rookery.qd.policy_gradient.config import DcrlMeConfig
from rookery.qd.policy_gradient.factories import dcrl_me
from rookery.storage.lineage import Schedule


@dataclass(frozen=True)
class Settings(pga_me.Varied):
    """The settings of DCRL-ME."""

    dcrl_me: DcrlMeConfig = field(default_factory=DcrlMeConfig)


def build(spec: RunSpec[Settings], _: Schedule | None, over: Mesh | None, populations: int) -> Built:
    """Build the program; see `Method.build`."""
    del populations
    return pga_me.search(spec, over, dcrl_me, spec.method.dcrl_me)


METHOD = map_elites.METHOD._replace(
    name="dcrl-me",
    title="DCRL-ME: a repertoire of policies, varied by the gradient of critics conditioned on descriptors.",
    sources=("Faldor 2024 (arXiv:2401.08632)", "Fujimoto 2018 (arXiv:1802.09477)"),
    settings=Settings(),
    build=build,
)
