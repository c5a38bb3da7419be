"""METRA: an agent that discovers skills which move far in a learned representation."""

from dataclasses import dataclass, field

from rookery.agents.skills.metra import MetraConfig, metra, metra_space
from rookery.envs.wrappers.skills import SkillsConfig
from rookery.experiments.wrappers.skills import discovery


@dataclass(frozen=True)
class Settings:
    """The settings of METRA and of its skills."""

    skills: SkillsConfig = field(default_factory=SkillsConfig)
    metra: MetraConfig = field(default_factory=MetraConfig)


SOURCES = ("Park 2024 (arXiv:2310.08887)", "with --smerl Kumar 2020 (arXiv:2010.14484)")
WRAPPER = discovery("metra", "METRA", SOURCES, Settings(), metra, metra_space, with_previous=True)
