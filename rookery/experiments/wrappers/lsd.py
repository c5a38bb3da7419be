"""LSD: an agent that discovers skills which move far in a learned representation with a bounded Lipschitz constant."""

from dataclasses import dataclass, field

from rookery.agents.skills.metra import LsdConfig, lsd, lsd_space
from rookery.envs.wrappers.skills import SkillsConfig
from rookery.experiments.wrappers.skills import discovery


@dataclass(frozen=True)
class Settings:
    """The settings of LSD and of its skills."""

    skills: SkillsConfig = field(default_factory=SkillsConfig)
    lsd: LsdConfig = field(default_factory=LsdConfig)


SOURCES = ("Park 2022 (arXiv:2202.00914)", "with --smerl Kumar 2020 (arXiv:2010.14484)")
WRAPPER = discovery("lsd", "LSD", SOURCES, Settings(), lsd, lsd_space, with_previous=True)
