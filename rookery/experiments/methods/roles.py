"""Population Based Training of teams, whole or with a separate population for each role."""

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Literal

from rookery.distributed import layout
from rookery.distributed.mesh import Mesh
from rookery.experiments.config import Rule
from rookery.experiments.methods import pbt as methods_pbt
from rookery.experiments.parts import learner_of, mesh_of
from rookery.experiments.spec import Built, RunSpec
from rookery.learners.base import Learner
from rookery.learners.evaluation import measures_episodes
from rookery.learners.on_policy import OnPolicyConfig
from rookery.populations.config import LeagueConfig
from rookery.populations.pbt import pbt
from rookery.populations.role_pbt import pbt_roles
from rookery.settings import SettingError, Within, verbatim
from rookery.storage.lineage import Schedule


@dataclass(frozen=True)
class OpponentsConfig(LeagueConfig):
    """The opponents of the members of each role."""

    opponents: Literal["current", "league"] = "current"
    """With member agent. current: the members of the other roles; league: in a share of the environments earlier
    members of the other roles, which were the best of their generation."""


@dataclass(frozen=True)
class Settings(methods_pbt.Settings):
    """The settings of Population Based Training of teams."""

    member: Literal["team", "agent"] = "team"
    """team: a member is a whole team; agent: each role has a separate population, teams are matched at random in each
    generation, and each agent is selected by its individual return, or by its rating."""
    select_by: Literal["auto", "fitness", "rating"] = "auto"
    """fitness: by returns; rating: where agents compete, in each generation all members of a role also play the same
    opponents, and are selected by their ratings; a team's rating is the mean over its agents. auto: rating where whole
    teams are selected that could otherwise be ranked by nothing, otherwise fitness."""
    rating_opponents: Annotated[int | None, Within(1)] = None
    """select-by rating: number of members of the other roles that each member plays (1 to P), with eval_episodes each;
    by default 4, or P if that is less."""
    league: OpponentsConfig = field(default_factory=OpponentsConfig)


def build(spec: RunSpec[Settings], _: Schedule | None, over: Mesh | None, populations: int) -> Built:
    """Build the program; see `Method.build`."""
    mesh = mesh_of(spec.environment, over, population=spec.method.population)
    spec, learner, space = learner_of(spec, mesh, None, populations)
    settings = _selection(spec, learner)
    placement = layout.placement(mesh, spec.environment.exact)
    common = learner, space, settings.population, settings.pbt, placement, settings.rating_opponents
    league = settings.league if settings.league.opponents == "league" else None
    program = pbt_roles(*common, league) if settings.member == "agent" else pbt(*common)
    return Built(program, mesh, space, learner, dataclasses.replace(spec, method=settings))


def _selection(spec: RunSpec[Settings], learner: Learner) -> Settings:
    """The settings with what members are selected by filled in, and the number of opponents if that is a rating.

    Raises:
      ValueError: the fitness of a team or of an agent is defined more than once, or nothing can rank members; a number
        of opponents is given without ratings; a rating chooses the best checkpoint; or whole teams have a league.
    """
    settings, fitness = spec.method, spec.learner.fitness if isinstance(spec.learner, OnPolicyConfig) else None
    blind = _cannot_rank(settings, fitness, learner)
    if settings.select_by == "auto":
        rated = blind and spec.wrapper.parameters == "independent"
        settings = dataclasses.replace(settings, select_by="rating" if rated else "fitness")
    if settings.league.opponents == "league" and settings.member == "team":
        problem = "needs a separate population for each role"
        raise SettingError("opponents", "league", problem, "give {member} agent")
    if settings.select_by == "rating":
        return _with_opponents(settings, fitness, spec.run.best_by)
    if settings.rating_opponents is not None:
        problem = "has an effect only with {select_by} rating"
        raise SettingError("rating_opponents", None, problem, "give it, or leave this out")
    if blind:
        assert learner.spec.team is not None
        remedies = f"give {{fitness}} {' or '.join(learner.spec.team.names)}, or, with separate parameters and without "
        remedies += "islands, {select_by} rating or {member} agent"
        name = verbatim(learner.spec.name)
        problem = f"cannot be by the mean return of a team: in {name} one agent wins what another loses"
        raise SettingError("select_by", None, problem, remedies)
    if settings.member == "agent" and fitness is not None:
        problem = "has no effect with {member} agent, which selects each agent by its individual return"
        raise SettingError("fitness", fitness, problem, "leave it out")
    return settings


def _cannot_rank(settings: Settings, fitness: str | None, learner: Learner) -> bool:
    """Whether members would be selected by the mean return of a team whose agents compete."""
    assert learner.evaluator is not None
    team = learner.spec.team
    ranked = fitness is not None or settings.member == "agent" or settings.pbt.exploit == "none"
    return team is not None and team.competitive and not (ranked or measures_episodes(learner.evaluator))


def _with_opponents(settings: Settings, fitness: str | None, best_by: str | None) -> Settings:
    """The settings of members that are selected by rating with the number of opponents filled in."""
    if fitness is not None:
        problem = "has no effect with {select_by} rating, which rates the agents of all roles"
        raise SettingError("fitness", fitness, problem, "leave it out")
    if best_by is not None and "rating" in best_by:
        problem = "cannot be a rating, which compares the members of one generation"
        raise SettingError("best_by", best_by, problem, "leave it out, or choose a return")
    opponents = min(_OPPONENTS, settings.population) if settings.rating_opponents is None else settings.rating_opponents
    return dataclasses.replace(settings, rating_opponents=opponents)


_OPPONENTS = 4  # default number of opponents of a rating; more cost evaluations, and average over more styles of play


def describe(spec: RunSpec[Settings]) -> str:
    """The population in a run's title."""
    members = "each role" if spec.method.member == "agent" else "teams"
    return f"population {spec.method.population} of {members}, {spec.wrapper.parameters} parameters"


_LEAGUE = Rule(
    "league",
    tuple(one.name for one in dataclasses.fields(LeagueConfig)),
    lambda league: league.opponents == "league",
    "with {opponents} league",
)
METHOD = methods_pbt.METHOD._replace(
    settings=Settings(),
    build=build,
    describe=describe,
    trains=lambda row: row.wrapper.is_team,
    rules=(*methods_pbt.METHOD.rules, _LEAGUE),
)
