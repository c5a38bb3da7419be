"""Rookery trains populations of reinforcement-learning agents in JAX.

import rookery

env = rookery.make("hopper")
agent = rookery.sac(env.spec)
learner = rookery.off_policy(agent, env)
program = rookery.pbt(learner, population_size=8)
result = rookery.run(program, generations=20, run_dir="runs/mine")
"""

import signal as _signal
import sys as _sys
from multiprocessing import parent_process as _parent_process

if (
    ("".join(_sys.argv[:1]).rpartition("/")[2] == "rookery" or _sys.orig_argv[1:3] == ["-m", "rookery"])
    and _parent_process() is None
    and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
):
    # The command, whose imports take seconds: until `cli.main` Ctrl-C ends it, without a trace of an import.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from rookery import (
    agents,
    deploy,
    envs,
    experiments,
    hyperparams,
    islands,
    learners,
    populations,
    qd,
    report,
    tracking,
    training,
    types,
)
from rookery.agents.base import Agent
from rookery.agents.check import check_agent
from rookery.agents.dqn import dqn
from rookery.agents.ppo import ppo
from rookery.agents.pqn import pqn
from rookery.agents.sac import sac
from rookery.agents.skills.diayn import diayn
from rookery.agents.td3 import td3
from rookery.deploy.export import export
from rookery.envs.base import Environment
from rookery.envs.check import check_environment
from rookery.envs.custom import register
from rookery.envs.registry import make
from rookery.envs.suites.brax.adapter import from_brax
from rookery.envs.suites.gymnasium.adapter import from_gymnasium
from rookery.envs.suites.gymnax import from_gymnax
from rookery.envs.suites.jaxmarl.adapter import from_jaxmarl
from rookery.envs.suites.playground.adapter import from_playground
from rookery.envs.wrappers.skills import skills
from rookery.hyperparams import choose
from rookery.learners.base import Learner, genotype
from rookery.learners.evolution import evolution_strategy
from rookery.learners.off_policy import off_policy
from rookery.learners.on_policy import on_policy
from rookery.learners.rollout import act
from rookery.loading import load, train
from rookery.populations.base import Program
from rookery.populations.independent import seeds
from rookery.populations.pbt import pbt
from rookery.qd.map_elites import map_elites
from rookery.qd.me_pbt import me_pbt
from rookery.qd.repertoire import nearest
from rookery.running import run
from rookery.versions import version as _version

__version__ = _version("rookery")
"""Of the installed package; `pyproject.toml` is the only file of the package that has it."""

__all__ = [
    "Agent",
    "Environment",
    "Learner",
    "Program",
    "act",
    "agents",
    "check_agent",
    "check_environment",
    "choose",
    "deploy",
    "diayn",
    "dqn",
    "envs",
    "evolution_strategy",
    "experiments",
    "export",
    "from_brax",
    "from_gymnasium",
    "from_gymnax",
    "from_jaxmarl",
    "from_playground",
    "genotype",
    "hyperparams",
    "islands",
    "learners",
    "load",
    "make",
    "map_elites",
    "me_pbt",
    "nearest",
    "off_policy",
    "on_policy",
    "pbt",
    "populations",
    "ppo",
    "pqn",
    "qd",
    "register",
    "report",
    "run",
    "sac",
    "seeds",
    "skills",
    "td3",
    "tracking",
    "train",
    "training",
    "types",
]
