"""The kinds of run with on-policy agents: PPO with one agent per environment, and independent PPO (IPPO) in teams."""

import dataclasses
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from rookery.agents.ppo_settings import CONTINUOUS, DISCRETE, TEAM, PpoConfig, settled, usual
from rookery.envs.base import EnvSpec
from rookery.experiments.config import EnvironmentConfig, RunConfig, space_flags
from rookery.experiments.population_settings import PbtRun, SeedsRun
from rookery.learners.on_policy import OnPolicyConfig

PpoSpace = space_flags(DISCRETE.space, CONTINUOUS.space)
TeamSpace = space_flags(TEAM.space)


@dataclass(frozen=True)
class OnPolicyRun:
    """Settings of all PPO runs, which replace those of off-policy runs."""

    run: RunConfig = field(default_factory=lambda: RunConfig(best_by="best_fitness"))
    learner: OnPolicyConfig = field(default_factory=OnPolicyConfig)
    agent: PpoConfig = field(default_factory=PpoConfig)
    space: PpoSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """Search space: two bounds (low high) let a hyper-parameter evolve within them; one value, or `fixed` for its
    default, keeps it constant."""


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


def _pursuit() -> EnvironmentConfig:
    return EnvironmentConfig(env="pursuit_continuous")


def _many_environments() -> OnPolicyConfig:
    return OnPolicyConfig(num_envs=32)


@dataclass(frozen=True)
class TeamRun(OnPolicyRun):
    """Settings of all runs with teams of agents."""

    run: RunConfig = field(default_factory=RunConfig)
    environment: EnvironmentConfig = field(default_factory=_pursuit)
    learner: OnPolicyConfig = field(default_factory=_many_environments)
    space: TeamSpace = field(default_factory=dict)  # pyright: ignore[reportInvalidTypeForm]
    """Search space: two bounds (low high) let a hyper-parameter evolve within them; one value, or `fixed` for its
    default, keeps it constant."""
    parameters: Literal["independent", "shared"] = "independent"
    """independent: each agent of a team has separate parameters and a separate optimiser; shared: all agents of a team
    act with one set of parameters, which is trained on the transitions of all."""
    identify: bool = True
    """With shared parameters, prepend a one-hot index of the agent in the team to its observation."""


@dataclass(frozen=True)
class IppoRun(TeamRun, SeedsRun):
    """Independent PPO (IPPO), several agents in one environment: independent teams, one by default.

    Sources: de Witt 2020 (arXiv:2011.09533), Schulman 2017 (arXiv:1707.06347).
    """


@dataclass(frozen=True)
class PbtIppoRun(TeamRun, PbtRun):
    """Population Based Training of teams of independent PPO agents.

    Sources: Jaderberg 2017 (arXiv:1711.09846), de Witt 2020 (arXiv:2011.09533).
    """

    member: Literal["team", "agent"] = "team"
    """team: a member is a whole team; agent: each role has a separate population, teams are matched at random in each
    generation, and each agent is selected by its individual return."""


AnyTeamRun = IppoRun | PbtIppoRun

AnyOnPolicyRun = PpoRun | PbtPpoRun | AnyTeamRun

_Run = TypeVar("_Run", bound=AnyOnPolicyRun)


def fill_defaults(config: _Run, spec: EnvSpec) -> _Run:
    """The config with the defaults filled in that depend on the environment, so that a resumed run keeps them.

    `anneal_updates` stays None in runs of independent PPO members, which means the whole run: see `with_annealing`. In
    all other kinds it defaults to 0, no annealing: PBT searches the rates and thereby finds a schedule (Jaderberg 2017,
    section 4), and rates annealed to 0 would end the search before the end of the run.

    Args:
      config: of the run.
      spec: of the environment; in a run of teams, the spec of the team.
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


def with_annealing(config: AnyOnPolicyRun, scheduled: bool) -> PpoConfig:
    """The agent's config with `anneal_updates` filled in: by default the updates of the whole run.

    The rates fall linearly with the share of `anneal_updates` that is done: a run resumed with more generations
    continues with the rates that a run of the new length has at that generation.

    Args:
      config: with its defaults filled in by `fill_defaults`.
      scheduled: whether the hyper-parameters follow a schedule of another run; if so, they are not annealed as well.
    """
    all_updates = 0 if scheduled else config.run.generations * config.learner.evaluate_every
    updates = config.agent.anneal_updates
    return dataclasses.replace(config.agent, anneal_updates=all_updates if updates is None else updates)
