"""Rookery trains populations of reinforcement-learning agents in JAX.

import rookery

env = rookery.make("hopper")
agent = rookery.sac(env.spec)
learner = rookery.off_policy(agent, env)
program = rookery.pbt(learner, population_size=8)
result = rookery.run(program, generations=20, run_dir="runs/mine")
"""

from rookery.agents.base import Agent, OffPolicyAgent, OnPolicyAgent
from rookery.agents.diayn import DiaynConfig, diayn
from rookery.agents.multi_agent import independent, shared
from rookery.agents.ppo import PpoConfig, ppo
from rookery.agents.sac import SacConfig, sac
from rookery.agents.td3 import Td3Config, td3
from rookery.buffers import Buffer
from rookery.deploy.export import export
from rookery.envs.base import Environment, EnvSpec, Step
from rookery.envs.registry import make
from rookery.envs.tasks.functions import function
from rookery.envs.wrappers.skills import SkillsConfig, skills
from rookery.envs.wrappers.teams import as_team, identify
from rookery.experiments.cells import cvt
from rookery.experiments.config import RunConfig
from rookery.experiments.lineage import Lineage, Schedule, at_steps, lineage
from rookery.experiments.repertoire_io import load_repertoire, repertoire, save_repertoire
from rookery.experiments.warm_start import skill_policies
from rookery.hyperparams import LogUniform, OneMinusLog, Space, Uniform, choose, space
from rookery.learners.base import EvaluationConfig, Learner, Member, genotype
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.learners.rollout import act
from rookery.learners.skills import freeze_skills
from rookery.learners.train import train
from rookery.populations.base import Program
from rookery.populations.config import PbtConfig
from rookery.populations.independent import seeds
from rookery.populations.pbt import pbt
from rookery.populations.replay import replay
from rookery.populations.role_pbt import pbt_roles
from rookery.populations.warm_start import begin_as
from rookery.qd.base import Emitter, Scoring
from rookery.qd.centroids import grid
from rookery.qd.emitters import iso_line, mix
from rookery.qd.map_elites import begin_from, begin_with, map_elites, repertoire_of
from rookery.qd.me_pbt import me_pbt
from rookery.qd.pbt_emitter import MePbtConfig, pbt_emitter
from rookery.qd.repertoire import Repertoire, best, elite, nearest
from rookery.qd.scoring import (
    PolicyConfig,
    function_scoring,
    learner_scoring,
    named_scoring,
    policy,
    policy_scoring,
)
from rookery.qd.variation import VariationConfig
from rookery.report.page import write_report
from rookery.training.loop import Result, run
from rookery.types import Evaluation, Genotype, Transition

__all__ = [
    "Agent",
    "Buffer",
    "DiaynConfig",
    "Emitter",
    "EnvSpec",
    "Environment",
    "Evaluation",
    "EvaluationConfig",
    "Genotype",
    "Learner",
    "Lineage",
    "LogUniform",
    "MePbtConfig",
    "Member",
    "OffPolicyAgent",
    "OffPolicyConfig",
    "OnPolicyAgent",
    "OnPolicyConfig",
    "OneMinusLog",
    "PbtConfig",
    "PolicyConfig",
    "PpoConfig",
    "Program",
    "Repertoire",
    "Result",
    "RunConfig",
    "SacConfig",
    "Schedule",
    "Scoring",
    "SkillsConfig",
    "Space",
    "Step",
    "Td3Config",
    "Transition",
    "Uniform",
    "VariationConfig",
    "act",
    "as_team",
    "at_steps",
    "begin_as",
    "begin_from",
    "begin_with",
    "best",
    "choose",
    "cvt",
    "diayn",
    "elite",
    "export",
    "freeze_skills",
    "function",
    "function_scoring",
    "genotype",
    "grid",
    "identify",
    "independent",
    "iso_line",
    "learner_scoring",
    "lineage",
    "load_repertoire",
    "make",
    "map_elites",
    "me_pbt",
    "mix",
    "named_scoring",
    "nearest",
    "off_policy",
    "on_policy",
    "pbt",
    "pbt_emitter",
    "pbt_roles",
    "policy",
    "policy_scoring",
    "ppo",
    "repertoire",
    "repertoire_of",
    "replay",
    "run",
    "sac",
    "save_repertoire",
    "seeds",
    "shared",
    "skill_policies",
    "skills",
    "space",
    "td3",
    "train",
    "write_report",
]
