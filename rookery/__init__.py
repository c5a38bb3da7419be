"""Rookery trains populations of reinforcement-learning agents in JAX.

import rookery

env = rookery.make("hopper")
agent = rookery.sac(env.spec)
learner = rookery.off_policy(agent, env)
program = rookery.pbt(learner, population_size=8)
result = rookery.run(program, generations=20, run_dir="runs/mine")
"""

from rookery.agents.api import Agent
from rookery.agents.sac import SacConfig, sac
from rookery.agents.td3 import Td3Config, td3
from rookery.buffers import Buffer
from rookery.envs.api import Environment, EnvSpec, Step
from rookery.envs.tasks import make
from rookery.hyperparams import LogUniform, OneMinusLog, Space, Uniform, choose, space
from rookery.learners.api import Learner, Member
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.populations.api import Program
from rookery.populations.config import PbtConfig
from rookery.populations.pbt import pbt
from rookery.populations.replay import replay
from rookery.populations.seeds import seeds
from rookery.runs.config import RunConfig
from rookery.runs.lineage import Lineage, Schedule, at_steps, lineage
from rookery.runs.loop import Result, run
from rookery.types import Evaluation, Genotype, Transition

__all__ = [
    "Agent",
    "Buffer",
    "EnvSpec",
    "Environment",
    "Evaluation",
    "Genotype",
    "Learner",
    "Lineage",
    "LogUniform",
    "Member",
    "OffPolicyConfig",
    "OneMinusLog",
    "PbtConfig",
    "Program",
    "Result",
    "RunConfig",
    "SacConfig",
    "Schedule",
    "Space",
    "Step",
    "Td3Config",
    "Transition",
    "Uniform",
    "at_steps",
    "choose",
    "lineage",
    "make",
    "off_policy",
    "pbt",
    "replay",
    "run",
    "sac",
    "seeds",
    "space",
    "td3",
]
