"""Configurations of all kinds of run, and the functions that build a program from a configuration."""

from rookery.experiments.cells import cvt
from rookery.experiments.config import EnvironmentConfig, IslandsConfig
from rookery.experiments.kinds import configure
from rookery.experiments.repertoire_io import load_repertoire, repertoire, save_repertoire
from rookery.experiments.spec import RunSpec
from rookery.experiments.warm_start import skill_policies
from rookery.storage.lineage import Lineage, Schedule, at_steps, lineage
from rookery.training.config import RunConfig

__all__ = [
    "EnvironmentConfig",
    "IslandsConfig",
    "Lineage",
    "RunConfig",
    "RunSpec",
    "Schedule",
    "at_steps",
    "configure",
    "cvt",
    "lineage",
    "load_repertoire",
    "repertoire",
    "save_repertoire",
    "skill_policies",
]
