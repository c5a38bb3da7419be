"""Environments: the interface, the task registry, the wrappers, and the adapters of other suites."""

from rookery.envs.base import (
    Environment,
    EnvSpec,
    Step,
    Team,
    descriptor_spec,
    first_step,
    next_step,
    parameterize_inside,
)
from rookery.envs.check import check_environment
from rookery.envs.custom import register
from rookery.envs.registry import make
from rookery.envs.suites.brax.adapter import Descriptor, from_brax
from rookery.envs.suites.gymnasium.adapter import from_gymnasium
from rookery.envs.suites.gymnax import from_gymnax
from rookery.envs.suites.jaxmarl.adapter import from_jaxmarl
from rookery.envs.suites.playground.adapter import from_playground
from rookery.envs.tasks.functions import function
from rookery.envs.wrappers.frame_stack import stack_frames
from rookery.envs.wrappers.skills import SkillsConfig, skills
from rookery.envs.wrappers.teams import as_team, identify
from rookery.envs.wrappers.time_limit import guard_physics, limit_episode
from rookery.features import feature_size, flatten_features

__all__ = [
    "Descriptor",
    "EnvSpec",
    "Environment",
    "SkillsConfig",
    "Step",
    "Team",
    "as_team",
    "check_environment",
    "descriptor_spec",
    "feature_size",
    "first_step",
    "flatten_features",
    "from_brax",
    "from_gymnasium",
    "from_gymnax",
    "from_jaxmarl",
    "from_playground",
    "function",
    "guard_physics",
    "identify",
    "limit_episode",
    "make",
    "next_step",
    "parameterize_inside",
    "register",
    "skills",
    "stack_frames",
]
