"""DIAYN: an agent that discovers skills which a discriminator can tell apart."""

from dataclasses import dataclass, field

from rookery.agents.skills.diayn import DiaynConfig, diayn, space
from rookery.envs.wrappers.skills import SkillsConfig
from rookery.experiments.wrappers.skills import discovery


@dataclass(frozen=True)
class Settings:
    """The settings of DIAYN and of its skills."""

    skills: SkillsConfig = field(default_factory=SkillsConfig)
    diayn: DiaynConfig = field(default_factory=DiaynConfig)


SOURCES = ("Eysenbach 2018 (arXiv:1802.06070)", "with --smerl Kumar 2020 (arXiv:2010.14484)")
WRAPPER = discovery("diayn", "DIAYN", SOURCES, Settings(), diayn, space)
