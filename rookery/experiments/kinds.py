"""The kinds of run: one frozen dataclass each. The command line and `config.json` are derived from them.

The parts are the configs of the rooms below, so that a setting is declared, documented and checked in one place only.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rookery.agents import diayn, ppo_settings, sac, td3
from rookery.agents.diayn import DiaynConfig
from rookery.envs.wrappers.skills import SkillsConfig
from rookery.experiments.cells import CellsConfig
from rookery.experiments.config import FLAG, Chosen, RunConfig, WorldConfig, space_flags
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


def _long() -> RunConfig:
    """As many steps as the papers' short runs, in short generations."""
    return RunConfig(generations=500, checkpoint_every=25)


def _by_steps() -> PbtConfig:
    """Selection by steps: within a short generation a member's fitness hardly changes."""
    return PbtConfig(exploit_interval=10_000)


@dataclass(frozen=True)
class SacRun(SeedsRun):
    """Soft actor-critic: independent members, one by default.

    Source: Haarnoja 2018 (arXiv:1812.05905).
    """

    run: RunConfig = field(default_factory=_long)
    agent: sac.SacConfig = field(default_factory=sac.SacConfig)
    space: SacSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


@dataclass(frozen=True)
class Td3Run(SeedsRun):
    """Twin delayed deep deterministic policy gradient: independent members, one by default.

    Source: Fujimoto 2018 (arXiv:1802.09477).
    """

    run: RunConfig = field(default_factory=_long)
    agent: td3.Td3Config = field(default_factory=td3.Td3Config)
    space: Td3Space = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


@dataclass(frozen=True)
class PbtSacRun(PbtRun):
    """Population Based Training of soft actor-critic agents.

    Sources: Jaderberg 2017 (arXiv:1711.09846), Haarnoja 2018 (arXiv:1812.05905).
    """

    run: RunConfig = field(default_factory=_long)
    pbt: PbtConfig = field(default_factory=_by_steps)
    agent: sac.SacConfig = field(default_factory=sac.SacConfig)
    space: SacSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


@dataclass(frozen=True)
class PbtTd3Run(PbtRun):
    """Population Based Training of twin delayed deep deterministic policy gradient agents.

    Sources: Jaderberg 2017 (arXiv:1711.09846), Fujimoto 2018 (arXiv:1802.09477).
    """

    run: RunConfig = field(default_factory=_long)
    pbt: PbtConfig = field(default_factory=_by_steps)
    agent: td3.Td3Config = field(default_factory=td3.Td3Config)
    space: Td3Space = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


def _described_world() -> WorldConfig:
    return WorldConfig(env="point_trap")


def _few_episodes() -> EvaluationConfig:
    return EvaluationConfig(eval_episodes=4)


@dataclass(frozen=True)
class MapElitesRun:
    """MAP-Elites: breed a repertoire of policies, or of a function's inputs, without gradients.

    Sources: Mouret 2015 (arXiv:1504.04909), Vassiliades 2018 (arXiv:1610.05729, arXiv:1804.03906).
    """

    batch_size: int = 256
    """Genotypes bred and judged in each generation (at least 1; a multiple of the devices)."""
    dimensions: int | None = None
    """Numbers in a genotype of a function (arm, sphere, rastrigin); the function's own by default."""
    init_from: str | None = None
    """Folder of a run of this kind whose repertoire this one begins with; the task that is not given is that run's."""
    world: WorldConfig = field(default_factory=_described_world)
    run: RunConfig = field(default_factory=RunConfig)
    cells: CellsConfig = field(default_factory=CellsConfig)
    variation: VariationConfig = field(default_factory=VariationConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    evaluation: EvaluationConfig = field(default_factory=_few_episodes)


@dataclass(frozen=True)
class MePbtRun:
    """MAP-Elites with Population Based Training."""

    population: int = 10
    """P, members that train (at least 1; a multiple of the devices)."""
    ga_population: int = 30
    """Variations of elites that are judged beside them in each generation (at least 1)."""
    init_from: str | None = None
    """Folder of a run whose repertoire, skills or members the repertoire begins with; task and widths that are not
    given are that run's."""
    world: WorldConfig = field(default_factory=_described_world)
    run: RunConfig = field(default_factory=_long)
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
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


@dataclass(frozen=True)
class MePbtTd3Run(MePbtRun):
    """A repertoire of diverse TD3 agents: MAP-Elites with Population Based Training (ME-PBT).

    Sources: Pierrot 2023 (arXiv:2303.12803), Fujimoto 2018 (arXiv:1802.09477).
    """

    agent: td3.Td3Config = field(default_factory=lambda: td3.Td3Config(output_scale=1.0))
    space: Td3Space = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


def _open_room() -> WorldConfig:
    return WorldConfig(env="point_room")


def _with_data() -> PbtConfig:
    """Rows name the skills of who made them, so an heir learns from its parent's and not from its predecessor's."""
    return PbtConfig(inherit_buffer=True)


def _many_environments() -> OffPolicyConfig:
    return OffPolicyConfig(num_envs=50, steps_per_generation=5_000, updates_per_step=0.1)


@dataclass(frozen=True)
class DiscoveryRun:
    """What every run that discovers skills is told besides."""

    world: WorldConfig = field(default_factory=_open_room)
    learner: OffPolicyConfig = field(default_factory=_many_environments)
    skills: SkillsConfig = field(default_factory=SkillsConfig)
    diayn: DiaynConfig = field(default_factory=DiaynConfig)


@dataclass(frozen=True)
class DiaynRun(DiscoveryRun, SeedsRun):
    """Skills without a reward (DIAYN), with soft actor-critic: independent members, one by default.

    Sources: Eysenbach 2018 (arXiv:1802.06070), Haarnoja 2018 (arXiv:1812.05905); with --smerl Kumar 2020
    (arXiv:2010.14484).
    """

    agent: sac.SacConfig = field(default_factory=sac.SacConfig)
    space: DiaynSacSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


@dataclass(frozen=True)
class DiaynTd3Run(DiscoveryRun, SeedsRun):
    """Skills without a reward (DIAYN), with TD3: independent members, one by default.

    Sources: Eysenbach 2018 (arXiv:1802.06070), Fujimoto 2018 (arXiv:1802.09477); with --smerl Kumar 2020
    (arXiv:2010.14484).
    """

    agent: td3.Td3Config = field(default_factory=td3.Td3Config)
    space: DiaynTd3Space = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


@dataclass(frozen=True)
class PbtDiaynRun(DiscoveryRun, PbtRun):
    """Population Based Training of agents that discover skills (DIAYN), with soft actor-critic.

    Sources: Jaderberg 2017 (arXiv:1711.09846), Eysenbach 2018 (arXiv:1802.06070), Haarnoja 2018 (arXiv:1812.05905).
    """

    pbt: PbtConfig = field(default_factory=_with_data)
    agent: sac.SacConfig = field(default_factory=sac.SacConfig)
    space: DiaynSacSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


@dataclass(frozen=True)
class PbtDiaynTd3Run(DiscoveryRun, PbtRun):
    """Population Based Training of agents that discover skills (DIAYN), with TD3.

    Sources: Jaderberg 2017 (arXiv:1711.09846), Eysenbach 2018 (arXiv:1802.06070), Fujimoto 2018 (arXiv:1802.09477).
    """

    pbt: PbtConfig = field(default_factory=_with_data)
    agent: td3.Td3Config = field(default_factory=td3.Td3Config)
    space: DiaynTd3Space = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


AnyDiaynRun = DiaynRun | DiaynTd3Run | PbtDiaynRun | PbtDiaynTd3Run

AgentRun = SacRun | Td3Run | PbtSacRun | PbtTd3Run | AnyDiaynRun | AnyOnPolicyRun
"""Runs whose members live by themselves: they can follow a schedule, or begin as one."""

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
    """The agent that a kind of run trains: `pbt-sac` -> `sac`, `pbt-diayn-td3` -> `diayn-td3`."""
    return kind.removeprefix("me-").removeprefix("pbt-")


def choices(config: AnyRun) -> dict[str, Chosen]:
    """What the config says of its search space, by the hyper-parameters' own names."""
    return {name.removeprefix(FLAG): choice for name, choice in getattr(config, "space", {}).items()}


def with_space(config: AnyRun, space: Space | None) -> AnyRun:
    """The config with every hyper-parameter written out, so that another version's defaults cannot change the run."""
    if space is None or isinstance(config, MapElitesRun):
        return config
    return dataclasses.replace(config, space=as_flags(_told(space)))


def usual_space(kind: str) -> dict[str, Any]:
    """The search space of a kind of run where nobody chooses: name -> bounds or value; {} where nothing evolves."""
    spaces = {"sac": sac.SPACE, "td3": td3.SPACE, "ppo": ppo_settings.DISCRETE.space}
    spaces |= {"ippo": ppo_settings.TEAM.space}
    spaces |= {"diayn": diayn.space(sac.SPACE), "diayn-td3": diayn.space(td3.SPACE)}
    found = spaces.get(agent_of(kind))
    return {} if found is None else _told(found)


def _told(space: Space) -> dict[str, Any]:
    return {name: (d["low"], d["high"]) if isinstance(d, dict) else d for name, d in describe(space).items()}


def as_flags(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Choices by name -> what the config's `space` holds."""
    return {FLAG + name: tuple(choice) if isinstance(choice, list) else choice for name, choice in chosen.items()}
