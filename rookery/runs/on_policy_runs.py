"""The kinds of run of agents that learn on-policy: PPO, alone or in teams."""

from dataclasses import dataclass, field
from typing import Literal

from rookery.agents import ppo
from rookery.learners.on_policy import OnPolicyConfig
from rookery.runs.config import RunConfig, WorldConfig, space_flags
from rookery.runs.members import PbtRun, SeedsRun

PpoSpace = space_flags(ppo.SPACE)


@dataclass(frozen=True)
class OnPolicyRun:
    """What every run of PPO is told in place of what off-policy runs are."""

    run: RunConfig = field(default_factory=lambda: RunConfig(best_by="best_fitness"))
    learner: OnPolicyConfig = field(default_factory=OnPolicyConfig)
    agent: ppo.PpoConfig = field(default_factory=ppo.PpoConfig)
    space: PpoSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""


@dataclass(frozen=True)
class PpoRun(OnPolicyRun, SeedsRun):
    """Proximal policy optimisation: independent members, one by default.

    Source: Schulman 2017 (arXiv:1707.06347).
    """


@dataclass(frozen=True)
class PbtPpoRun(OnPolicyRun, PbtRun):
    """Population Based Training of proximal policy optimisation agents.

    Sources: Jaderberg 2017 (arXiv:1711.09846), Schulman 2017 (arXiv:1707.06347).
    """


def _chase() -> WorldConfig:
    return WorldConfig(env="pursuit_continuous")


def _many_worlds() -> OnPolicyConfig:
    return OnPolicyConfig(num_envs=32)


@dataclass(frozen=True)
class TeamRun(OnPolicyRun):
    """What every run of teams is told besides."""

    run: RunConfig = field(default_factory=RunConfig)
    world: WorldConfig = field(default_factory=_chase)
    learner: OnPolicyConfig = field(default_factory=_many_worlds)
    parameters: Literal["independent", "shared"] = "independent"
    """independent: each agent of a team has parameters and an optimiser of its own; shared: one set acts for all and
    learns from all."""
    identify: bool = True
    """With shared parameters, show each agent which of the team it is."""


@dataclass(frozen=True)
class IppoRun(TeamRun, SeedsRun):
    """Independent PPO, many agents in one world: independent teams, one by default.

    Sources: de Witt 2020 (arXiv:2011.09533), Schulman 2017 (arXiv:1707.06347).
    """


@dataclass(frozen=True)
class PbtIppoRun(TeamRun, PbtRun):
    """Population Based Training of teams of independent PPO agents.

    Sources: Jaderberg 2017 (arXiv:1711.09846), de Witt 2020 (arXiv:2011.09533).
    """

    member: Literal["team", "agent"] = "team"
    """team: a member is a whole team; agent: each role has a population of its own, teams are matched at random in
    each generation, and everybody is selected by its own return."""


AnyTeamRun = IppoRun | PbtIppoRun

AnyOnPolicyRun = PpoRun | PbtPpoRun | AnyTeamRun
