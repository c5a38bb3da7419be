"""What the methods of skill discovery have in common."""

from collections.abc import Callable
from typing import Any

from rookery.agents.base import OffPolicyAgent
from rookery.envs.base import Environment, EnvSpec
from rookery.envs.wrappers.skills import SkillsConfig, skills
from rookery.experiments.agents import Wrapper
from rookery.experiments.config import EnvironmentConfig
from rookery.hyperparams import Space
from rookery.learners.off_policy import OffPolicyConfig
from rookery.populations.config import PbtConfig

INHERIT_BUFFER = PbtConfig(inherit_buffer=True)
"""Stored transitions contain the skills of the agent that collected them, so a child needs its parent's buffer."""


def discovery(
    name: str,
    title: str,
    sources: tuple[str, ...],
    settings: Any,
    make: Callable[[OffPolicyAgent, EnvSpec, Any], OffPolicyAgent],
    space: Callable[[Space], Space],
    with_previous: bool = False,
) -> Wrapper:
    """A method of skill discovery, which wraps an off-policy agent.

    Args:
      name: on the command line, and the name of its config among the settings.
      title: in the middle of a sentence.
      sources: papers.
      settings: a frozen dataclass with `skills`, a `SkillsConfig`, and the config of that name.
      make: wraps an agent; takes the spec of the environment with skills, and the config.
      space: the search space of the wrapped agent -> that of both.
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
        heading=f"Skill discovery without a reward ({title}) with {{short_title}}: independent members",
        agents=f"{{short_title}} agents that discover skills ({title})",
        sources=sources,
        settings=settings,
        learner=OffPolicyConfig,
        space=lambda row: space(row.space),
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
