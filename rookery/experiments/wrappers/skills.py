"""The methods of skill discovery: DIAYN, METRA and LSD."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rookery.agents.base import OffPolicyAgent
from rookery.agents.diayn import DiaynConfig, diayn, space
from rookery.agents.metra import LsdConfig, MetraConfig, lsd, lsd_space, metra, metra_space
from rookery.envs.base import Environment, EnvSpec
from rookery.envs.wrappers.skills import SkillsConfig, skills
from rookery.experiments.agents import Wrapper
from rookery.experiments.config import EnvironmentConfig
from rookery.hyperparams import Space
from rookery.learners.off_policy import OffPolicyConfig
from rookery.populations.config import PbtConfig

INHERIT_BUFFER = PbtConfig(inherit_buffer=True)
"""Stored transitions contain the skills of the agent that collected them, so a child needs its parent's buffer."""


def _discovery(
    name: str,
    source: str,
    settings: Any,
    make: Callable[[OffPolicyAgent, EnvSpec, Any], OffPolicyAgent],
    joint_space: Callable[[Space], Space],
    with_previous: bool = False,
) -> Wrapper:
    """A method of skill discovery, which wraps an off-policy agent.

    Args:
      name: on the command line, and the name of its config among the settings.
      source: the paper.
      settings: a frozen dataclass with `skills`, a `SkillsConfig`, and the config of that name.
      make: wraps an agent; takes the spec of the environment with skills, and the config.
      joint_space: the search space of the wrapped agent -> that of both.
      with_previous: whether it reads the state before each step, see `Step.previous`.
    """

    def environment(inner: Environment, chosen: Any) -> Environment:
        drawn: SkillsConfig = chosen.skills
        return skills(inner, drawn.num_skills, drawn.skill_kind, drawn.balanced, with_previous=with_previous)

    def described(chosen: Any) -> str:
        drawn: SkillsConfig = chosen.skills
        noun = "skills" if drawn.skill_kind == "one-hot" else "dimensions of skills"
        return f" with {drawn.num_skills} {noun}"

    return Wrapper(
        name=f"{name}-{{agent}}",
        heading=f"Skill discovery without a reward ({name.upper()}) with {{short_title}}: independent members",
        agents=f"{{short_title}} agents that discover skills ({name.upper()})",
        sources=(source, "with --smerl Kumar 2020 (arXiv:2010.14484)"),
        settings=settings,
        on_policy=False,
        space=lambda row: joint_space(row.space),
        environment=environment,
        agent=lambda agent, spec, chosen: make(agent, spec, getattr(chosen, name)),
        defaults={
            "environment": EnvironmentConfig(env="point_room"),
            "learner": OffPolicyConfig(num_envs=50, steps_per_generation=5_000, updates_per_step=0.1),
            "pbt": INHERIT_BUFFER,
        },
        subject="skills",
        guide="skills",
        describe=described,
        has_skills=True,
    )


@dataclass(frozen=True)
class DiaynSettings:
    """The settings of DIAYN and of its skills."""

    skills: SkillsConfig = field(default_factory=SkillsConfig)
    diayn: DiaynConfig = field(default_factory=DiaynConfig)


@dataclass(frozen=True)
class MetraSettings:
    """The settings of METRA and of its skills."""

    skills: SkillsConfig = field(default_factory=SkillsConfig)
    metra: MetraConfig = field(default_factory=MetraConfig)


@dataclass(frozen=True)
class LsdSettings:
    """The settings of LSD and of its skills."""

    skills: SkillsConfig = field(default_factory=SkillsConfig)
    lsd: LsdConfig = field(default_factory=LsdConfig)


DIAYN = _discovery("diayn", "Eysenbach 2018 (arXiv:1802.06070)", DiaynSettings(), diayn, space)
METRA = _discovery("metra", "Park 2024 (arXiv:2310.08887)", MetraSettings(), metra, metra_space, with_previous=True)
LSD = _discovery("lsd", "Park 2022 (arXiv:2202.00914)", LsdSettings(), lsd, lsd_space, with_previous=True)
