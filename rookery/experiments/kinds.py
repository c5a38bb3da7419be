"""The kinds of run: one frozen dataclass each. The command line and `config.json` are derived from them.

Their fields are the configs of the lower packages, so that each setting is declared, documented and checked once.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rookery.agents import diayn, ppo_settings, sac, td3
from rookery.agents.diayn import DiaynConfig
from rookery.envs.wrappers.skills import SkillsConfig
from rookery.experiments.cells import CellsConfig
from rookery.experiments.config import FLAG, Chosen, EnvironmentConfig, RunConfig, space_flags
from rookery.experiments.on_policy_kinds import AnyOnPolicyRun, IppoRun, PbtIppoRun, PbtPpoRun, PpoRun
from rookery.experiments.population_settings import PbtRun, SeedsRun
from rookery.hyperparams import Space, describe
from rookery.learners.off_policy import OffPolicyConfig
from rookery.learners.rollout import EvaluationConfig
from rookery.populations.config import PbtConfig
from rookery.qd.pbt_emitter import MePbtConfig
from rookery.qd.scoring import PolicyConfig
from rookery.qd.variation import VariationConfig

SacSpace = space_flags(sac.SPACE)
Td3Space = space_flags(td3.SPACE)
DiaynSacSpace = space_flags(diayn.space(sac.SPACE))
DiaynTd3Space = space_flags(diayn.space(td3.SPACE))


def _long_run() -> RunConfig:
    """500 short generations: as many environment steps as the shorter runs of the papers."""
    return RunConfig(generations=500, checkpoint_every=25)


def _select_by_steps() -> PbtConfig:
    """Select every 10,000 environment steps of a member: within one short generation its fitness hardly changes."""
    return PbtConfig(exploit_interval=10_000)


@dataclass(frozen=True)
class SacRun(SeedsRun):
    """Soft actor-critic: independent members, one by default.

    Source: Haarnoja 2018 (arXiv:1812.05905).
    """

    run: RunConfig = field(default_factory=_long_run)
    agent: sac.SacConfig = field(default_factory=sac.SacConfig)
    space: SacSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """Search space: two bounds (low high) let a hyper-parameter evolve within them; one value, or `fixed` for its
    default, keeps it constant."""


@dataclass(frozen=True)
class Td3Run(SeedsRun):
    """Twin delayed deep deterministic policy gradient: independent members, one by default.

    Source: Fujimoto 2018 (arXiv:1802.09477).
    """

    run: RunConfig = field(default_factory=_long_run)
    agent: td3.Td3Config = field(default_factory=td3.Td3Config)
    space: Td3Space = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """Search space: two bounds (low high) let a hyper-parameter evolve within them; one value, or `fixed` for its
    default, keeps it constant."""


@dataclass(frozen=True)
class PbtSacRun(PbtRun):
    """Population Based Training of soft actor-critic agents.

    Sources: Jaderberg 2017 (arXiv:1711.09846), Haarnoja 2018 (arXiv:1812.05905).
    """

    run: RunConfig = field(default_factory=_long_run)
    pbt: PbtConfig = field(default_factory=_select_by_steps)
    agent: sac.SacConfig = field(default_factory=sac.SacConfig)
    space: SacSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """Search space: two bounds (low high) let a hyper-parameter evolve within them; one value, or `fixed` for its
    default, keeps it constant."""


@dataclass(frozen=True)
class PbtTd3Run(PbtRun):
    """Population Based Training of twin delayed deep deterministic policy gradient agents.

    Sources: Jaderberg 2017 (arXiv:1711.09846), Fujimoto 2018 (arXiv:1802.09477).
    """

    run: RunConfig = field(default_factory=_long_run)
    pbt: PbtConfig = field(default_factory=_select_by_steps)
    agent: td3.Td3Config = field(default_factory=td3.Td3Config)
    space: Td3Space = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """Search space: two bounds (low high) let a hyper-parameter evolve within them; one value, or `fixed` for its
    default, keeps it constant."""


def _point_trap() -> EnvironmentConfig:
    return EnvironmentConfig(env="point_trap")


def _four_episodes() -> EvaluationConfig:
    return EvaluationConfig(eval_episodes=4)


@dataclass(frozen=True)
class MapElitesRun:
    """MAP-Elites: evolve a repertoire of policies, or of inputs of a test function, without gradients.

    Sources: Mouret 2015 (arXiv:1504.04909), Vassiliades 2018 (arXiv:1610.05729, arXiv:1804.03906).
    """

    batch_size: int = 256
    """Children created and evaluated in each generation (at least 1; a multiple of the number of devices)."""
    dimensions: int | None = None
    """Length of a genotype of a test function (arm, sphere, rastrigin; at least 1); by default the standard length of
    the function. Not allowed for environments."""
    init_from: str | None = None
    """Run directory of a map-elites run whose elites fill the initial repertoire; task settings that are not given are
    taken from that run."""
    environment: EnvironmentConfig = field(default_factory=_point_trap)
    run: RunConfig = field(default_factory=RunConfig)
    cells: CellsConfig = field(default_factory=CellsConfig)
    variation: VariationConfig = field(default_factory=VariationConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    evaluation: EvaluationConfig = field(default_factory=_four_episodes)


@dataclass(frozen=True)
class MePbtRun:
    """MAP-Elites with Population Based Training."""

    population: int = 10
    """P, number of members that train (at least 1; a multiple of the number of devices)."""
    ga_population: int = 30
    """Children of elites, created by variation, that are evaluated in addition to the members in each generation (at
    least 1; a multiple of the number of devices)."""
    init_from: str | None = None
    """Run directory whose elites, skills or members fill the initial repertoire; task and network settings that are not
    given are taken from that run."""
    environment: EnvironmentConfig = field(default_factory=_point_trap)
    run: RunConfig = field(default_factory=_long_run)
    cells: CellsConfig = field(default_factory=CellsConfig)
    variation: VariationConfig = field(default_factory=VariationConfig)
    me_pbt: MePbtConfig = field(default_factory=MePbtConfig)
    learner: OffPolicyConfig = field(default_factory=OffPolicyConfig)


@dataclass(frozen=True)
class MePbtSacRun(MePbtRun):
    """A repertoire of diverse soft actor-critic agents: MAP-Elites with Population Based Training (ME-PBT).

    Sources: Pierrot 2023 (arXiv:2303.12803), Haarnoja 2018 (arXiv:1812.05905).
    """

    agent: sac.SacConfig = field(default_factory=lambda: sac.SacConfig(output_scale=1.0))
    space: SacSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """Search space: two bounds (low high) let a hyper-parameter evolve within them; one value, or `fixed` for its
    default, keeps it constant."""


@dataclass(frozen=True)
class MePbtTd3Run(MePbtRun):
    """A repertoire of diverse TD3 agents: MAP-Elites with Population Based Training (ME-PBT).

    Sources: Pierrot 2023 (arXiv:2303.12803), Fujimoto 2018 (arXiv:1802.09477).
    """

    agent: td3.Td3Config = field(default_factory=lambda: td3.Td3Config(output_scale=1.0))
    space: Td3Space = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """Search space: two bounds (low high) let a hyper-parameter evolve within them; one value, or `fixed` for its
    default, keeps it constant."""


def _point_room() -> EnvironmentConfig:
    return EnvironmentConfig(env="point_room")


def _inherit_buffer() -> PbtConfig:
    """Stored transitions contain the skills of the agent that collected them, so a child needs its parent's buffer."""
    return PbtConfig(inherit_buffer=True)


def _many_environments() -> OffPolicyConfig:
    return OffPolicyConfig(num_envs=50, steps_per_generation=5_000, updates_per_step=0.1)


@dataclass(frozen=True)
class DiscoveryRun:
    """Settings that all runs with skill discovery (DIAYN) share."""

    environment: EnvironmentConfig = field(default_factory=_point_room)
    learner: OffPolicyConfig = field(default_factory=_many_environments)
    skills: SkillsConfig = field(default_factory=SkillsConfig)
    diayn: DiaynConfig = field(default_factory=DiaynConfig)


@dataclass(frozen=True)
class DiaynRun(DiscoveryRun, SeedsRun):
    """Skill discovery without a reward (DIAYN) with soft actor-critic: independent members, one by default.

    Sources: Eysenbach 2018 (arXiv:1802.06070), Haarnoja 2018 (arXiv:1812.05905); with --smerl Kumar 2020
    (arXiv:2010.14484).
    """

    agent: sac.SacConfig = field(default_factory=sac.SacConfig)
    space: DiaynSacSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """Search space: two bounds (low high) let a hyper-parameter evolve within them; one value, or `fixed` for its
    default, keeps it constant."""


@dataclass(frozen=True)
class DiaynTd3Run(DiscoveryRun, SeedsRun):
    """Skill discovery without a reward (DIAYN) with TD3: independent members, one by default.

    Sources: Eysenbach 2018 (arXiv:1802.06070), Fujimoto 2018 (arXiv:1802.09477); with --smerl Kumar 2020
    (arXiv:2010.14484).
    """

    agent: td3.Td3Config = field(default_factory=td3.Td3Config)
    space: DiaynTd3Space = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """Search space: two bounds (low high) let a hyper-parameter evolve within them; one value, or `fixed` for its
    default, keeps it constant."""


@dataclass(frozen=True)
class PbtDiaynRun(DiscoveryRun, PbtRun):
    """Population Based Training of soft actor-critic agents that discover skills (DIAYN).

    Sources: Jaderberg 2017 (arXiv:1711.09846), Eysenbach 2018 (arXiv:1802.06070), Haarnoja 2018 (arXiv:1812.05905).
    """

    pbt: PbtConfig = field(default_factory=_inherit_buffer)
    agent: sac.SacConfig = field(default_factory=sac.SacConfig)
    space: DiaynSacSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """Search space: two bounds (low high) let a hyper-parameter evolve within them; one value, or `fixed` for its
    default, keeps it constant."""


@dataclass(frozen=True)
class PbtDiaynTd3Run(DiscoveryRun, PbtRun):
    """Population Based Training of TD3 agents that discover skills (DIAYN).

    Sources: Jaderberg 2017 (arXiv:1711.09846), Eysenbach 2018 (arXiv:1802.06070), Fujimoto 2018 (arXiv:1802.09477).
    """

    pbt: PbtConfig = field(default_factory=_inherit_buffer)
    agent: td3.Td3Config = field(default_factory=td3.Td3Config)
    space: DiaynTd3Space = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """Search space: two bounds (low high) let a hyper-parameter evolve within them; one value, or `fixed` for its
    default, keeps it constant."""


AnyDiaynRun = DiaynRun | DiaynTd3Run | PbtDiaynRun | PbtDiaynTd3Run

AgentRun = SacRun | Td3Run | PbtSacRun | PbtTd3Run | AnyDiaynRun | AnyOnPolicyRun
"""Runs whose whole population is trained agents: only they can replay a schedule or start from a trained member."""

AnyMePbtRun = MePbtSacRun | MePbtTd3Run

AnyRun = AgentRun | MapElitesRun | AnyMePbtRun

KINDS: dict[str, type[AnyRun]] = {
    "sac": SacRun,
    "td3": Td3Run,
    "pbt-sac": PbtSacRun,
    "pbt-td3": PbtTd3Run,
    "map-elites": MapElitesRun,
    "me-pbt-sac": MePbtSacRun,
    "me-pbt-td3": MePbtTd3Run,
    "diayn": DiaynRun,
    "diayn-td3": DiaynTd3Run,
    "pbt-diayn": PbtDiaynRun,
    "pbt-diayn-td3": PbtDiaynTd3Run,
    "ppo": PpoRun,
    "ippo": IppoRun,
    "pbt-ppo": PbtPpoRun,
    "pbt-ippo": PbtIppoRun,
}
"""Name on the command line -> config."""


def kind_of(config: AnyRun) -> str:
    """A config's name on the command line."""
    return next(name for name, kind in KINDS.items() if kind is type(config))


def agent_of(kind: str) -> str:
    """The name of the agent that a kind of run trains: `pbt-sac` -> `sac`, `pbt-diayn-td3` -> `diayn-td3`."""
    return kind.removeprefix("me-").removeprefix("pbt-")


def choices(config: AnyRun) -> dict[str, Chosen]:
    """The config's choices in its search space: name of the hyper-parameter -> choice."""
    return {name.removeprefix(FLAG): choice for name, choice in getattr(config, "space", {}).items()}


def with_space(config: AnyRun, space: Space | None) -> AnyRun:
    """The config with the full search space filled in, so that changed defaults of a later version do not affect it."""
    if space is None or isinstance(config, MapElitesRun):
        return config
    return dataclasses.replace(config, space=as_flags(_bounds_or_values(space)))


def default_space(kind: str) -> dict[str, Any]:
    """The default search space of a kind of run: name -> bounds or value; {} for a kind without hyper-parameters."""
    spaces = {"sac": sac.SPACE, "td3": td3.SPACE, "ppo": ppo_settings.DISCRETE.space}
    spaces |= {"ippo": ppo_settings.TEAM.space}
    spaces |= {"diayn": diayn.space(sac.SPACE), "diayn-td3": diayn.space(td3.SPACE)}
    found = spaces.get(agent_of(kind))
    return {} if found is None else _bounds_or_values(found)


def _bounds_or_values(space: Space) -> dict[str, Any]:
    return {name: (d["low"], d["high"]) if isinstance(d, dict) else d for name, d in describe(space).items()}


def as_flags(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Convert choices by name to the value of the config's `space` field, whose keys are `space.<name>`."""
    return {FLAG + name: tuple(choice) if isinstance(choice, list) else choice for name, choice in chosen.items()}
