"""The kinds of run of agents that learn on-policy: PPO, alone or in teams."""

import dataclasses
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from rookery.agents.ppo_settings import CONTINUOUS, DISCRETE, TEAM, PpoConfig, settled, usual
from rookery.envs.base import EnvSpec
from rookery.experiments.config import RunConfig, WorldConfig, space_flags
from rookery.experiments.population_settings import PbtRun, SeedsRun
from rookery.learners.on_policy import OnPolicyConfig

PpoSpace = space_flags(DISCRETE.space, CONTINUOUS.space)
TeamSpace = space_flags(TEAM.space)


@dataclass(frozen=True)
class OnPolicyRun:
    """What every run of PPO is told in place of what off-policy runs are."""

    run: RunConfig = field(default_factory=lambda: RunConfig(best_by="best_fitness"))
    learner: OnPolicyConfig = field(default_factory=OnPolicyConfig)
    agent: PpoConfig = field(default_factory=PpoConfig)
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
    space: TeamSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """The search space: two bounds let a hyper-parameter evolve between them, one value or `fixed` holds it."""
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

_Run = TypeVar("_Run", bound=AnyOnPolicyRun)


def settle(config: _Run, spec: EnvSpec) -> _Run:
    """The config with the defaults written out that depend on the environment, so that a resumed run keeps them.

    `anneal_updates` of independent members of one agent stays open, which says "the whole run": see `annealing`. Where
    a population evolves there is none: a member's rates are what is searched, PBT makes a schedule of them by itself
    (Jaderberg 2017, section 4), and rates that fall to 0 would end the search before the run.

    Args:
      config: of the run.
      spec: of the environment, a team's in a run of teams.
    """
    agent, learner = config.agent, config.learner
    shared = isinstance(config, AnyTeamRun) and config.parameters == "shared"
    sharing = len(spec.team.names) if spec.team and shared else 1
    sequences = sharing * learner.num_envs * (1 if agent.recurrent else learner.rollout_length)
    chosen = settled(agent, spec, sequences)._asdict()
    if agent.anneal_updates is None and not isinstance(config, PpoRun):
        chosen["anneal_updates"] = 0
    observations = learner.normalize_observations
    if observations is None:
        observations = usual(spec).normalize_observations
    return dataclasses.replace(
        config,
        agent=dataclasses.replace(agent, **chosen),
        learner=dataclasses.replace(learner, normalize_observations=observations),
    )


def annealing(config: AnyOnPolicyRun, scheduled: bool) -> PpoConfig:
    """The agent's config with the updates over which its rates fall; by default all of the run.

    They fall with the share of the run's steps that are made: a run that is resumed with more generations goes on with
    the rates that a run of that length has there.

    Args:
      config: settled.
      scheduled: whether the rates follow another run's schedule, and do not fall besides.
    """
    whole = 0 if scheduled else config.run.generations * config.learner.evaluate_every
    updates = config.agent.anneal_updates
    return dataclasses.replace(config.agent, anneal_updates=whole if updates is None else updates)
