"""A team: several on-policy agents in one environment."""

from dataclasses import dataclass
from typing import Any, Literal

from rookery.agents.multi_agent import independent, shared
from rookery.envs.base import Environment, EnvSpec
from rookery.envs.wrappers.teams import as_team, identify
from rookery.experiments.agents import Wrapper
from rookery.experiments.config import EnvironmentConfig, Rule
from rookery.learners.on_policy import OnPolicyConfig
from rookery.settings import check_fields


@dataclass(frozen=True)
class Settings:
    """The settings of a team."""

    parameters: Literal["independent", "shared"] = "independent"
    """independent: each agent of a team has separate parameters and a separate optimiser; shared: all agents of a team
    act with one set of parameters, which is trained on the transitions of all."""
    identify: bool = True
    """With shared parameters, prepend a one-hot index of the agent in the team to its observation."""

    def __post_init__(self) -> None:
        check_fields(self)


def _environment(environment: Environment, settings: Settings) -> Environment:
    team = as_team(environment)
    return identify(team) if settings.parameters == "shared" and settings.identify else team


def _agent(agent: object, spec: EnvSpec, settings: Settings) -> Any:
    return {"independent": independent, "shared": shared}[settings.parameters](agent, spec)


WRAPPER = Wrapper(
    name="i{agent}",
    heading="Independent {short_title} (I{short_title}), several agents in one environment: independent teams",
    agents="teams of independent {short_title} agents",
    sources=("de Witt 2020 (arXiv:2011.09533)",),
    settings=Settings(),
    learner=OnPolicyConfig,
    space=lambda row: row.team_space or row.space,
    environment=_environment,
    agent=_agent,
    sharing=lambda spec, settings: len(spec.team.names) if spec.team and settings.parameters == "shared" else 1,
    defaults={
        "environment": EnvironmentConfig(env="pursuit_continuous"),
        "learner": OnPolicyConfig(num_envs=32),
    },
    rules=(Rule("", ("identify",), lambda settings: settings["parameters"] == "shared", "with {parameters} shared"),),
    subject="teams",
    guide="teams",
    describe=lambda settings: f" of teams, {settings.parameters} parameters",
    is_team=True,
)
