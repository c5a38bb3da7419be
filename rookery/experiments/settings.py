"""The settings of each population method, and of what can be combined with it: agents, skills, teams.

`kinds` generates the class of each kind of run from these classes. Their fields are the configs of the lower packages,
so that each setting is declared, documented and checked once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from rookery.agents.diayn import DiaynConfig
from rookery.agents.metra import LsdConfig, MetraConfig
from rookery.envs.wrappers.skills import SkillsConfig
from rookery.experiments.agents import DISCOVERIES, AgentEntry, Discovery
from rookery.experiments.cells import ANNEALED_RATE, CellsConfig
from rookery.experiments.config import Chosen, DevicesConfig, EnvironmentConfig, IslandsConfig
from rookery.factories import Within, check_fields, user_path
from rookery.hyperparams import Space
from rookery.learners.base import EvaluationConfig
from rookery.learners.off_policy import OffPolicyConfig
from rookery.learners.on_policy import OnPolicyConfig
from rookery.populations.config import PbtConfig
from rookery.qd.cma.config import CmaMaeConfig
from rookery.qd.pbt_emitter import MePbtConfig
from rookery.qd.policy_gradient.config import DcrlMeConfig, PgaMeConfig
from rookery.qd.scoring import PolicyConfig
from rookery.qd.variation import VariationConfig
from rookery.training.config import RunConfig

LearnerConfig = OffPolicyConfig | OnPolicyConfig


class Run:
    """The capabilities of a kind of run, and the settings that only some kinds have, with the values of all others."""

    kind: ClassVar[str] = ""
    """Name on the command line."""
    agent_entry: ClassVar[AgentEntry[Any] | None] = None
    """The agent that the run trains; None if it trains none."""
    default_space: ClassVar[Space | None] = None
    """Default search space of the agent; with discrete actions, where it depends on the actions."""
    trains_agents: ClassVar[bool] = True
    """Whether a learner trains the members."""
    is_on_policy: ClassVar[bool] = False
    """Whether the agents learn on-policy."""
    has_independent_members: ClassVar[bool] = False
    """Whether the members train without selection."""
    has_repertoire: ClassVar[bool] = False
    """Whether the result is a repertoire of elites, not a population alone."""
    has_skills: ClassVar[bool] = False
    """Whether the agents discover skills."""
    discovery_name: ClassVar[str] = ""
    """The method of skill discovery, a key of `agents.DISCOVERIES`; "" without skills."""
    has_team: ClassVar[bool] = False
    """Whether a member is a team of several agents in one environment."""

    population: int = 0
    """Number of members that train."""
    agent: Any = None  # of the type `agent_entry.config`, whose docstring the help shows
    space: Mapping[str, Chosen] = MappingProxyType({})
    """Choices in the search space: flag, such as `space.discount` -> choice."""
    islands: Any = None
    replay_schedule: str | None = None
    skill: int | None = None
    draw_hyper: bool = False
    skills: SkillsConfig | None = None
    diayn: DiaynConfig | None = None
    metra: MetraConfig | None = None
    lsd: LsdConfig | None = None
    parameters: Literal["independent", "shared"] | None = None
    identify: bool = False
    member: Literal["team", "agent"] = "team"
    select_by: Literal["auto", "fitness", "rating"] = "fitness"
    rating_opponents: int | None = None
    dimensions: int | None = None
    me_pbt: Any = None
    variation: Any = None
    cma_mae: CmaMaeConfig | None = None
    pga_me: PgaMeConfig | None = None
    dcrl_me: DcrlMeConfig | None = None

    def __post_init__(self) -> None:
        """Check the numbers and words that are in no part, and expand the paths."""
        check_fields(self)
        for name in ("init_from", "replay_schedule"):
            if (path := getattr(self, name, None)) is not None:
                object.__setattr__(self, name, str(user_path(path)))

    @property
    def discovery(self) -> tuple[Discovery, Any] | None:
        """The method of skill discovery and its config; None without skills."""
        name = self.discovery_name
        return (DISCOVERIES[name], getattr(self, name)) if name else None

    @property
    def has_separate_roles(self) -> bool:
        """Whether each role of a team has a separate population."""
        return self.member == "agent"


@dataclass(frozen=True)
class IndependentRun(Run):
    """Independent members, one by default."""

    has_independent_members = True
    cells: ClassVar[None] = None
    pbt: ClassVar[None] = None

    population: Annotated[int, Within(1)] = 1
    """Number of members, each with a different random seed, trained in one compiled program (at least 1; a multiple of
    the number of devices); `--seeds` is another name of this flag."""
    draw_hyper: bool = False
    """Random search: draw each member's hyper-parameters once from the search space."""
    replay_schedule: str | None = None
    """Run directory; the members train with the hyper-parameters that the ancestors of its best member had in each
    generation. Settings that are not given are taken from that run, except for the population and the seed."""
    init_from: str | None = None
    """Run directory; every member starts from the parameters of its best member. Task and network settings that are not
    given are taken from that run."""
    skill: Annotated[int | None, Within(0)] = None
    """Number of the skill of `--init-from` to start from (0 to the number of skills - 1), if that run discovered skills
    and this one does not."""
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    run: RunConfig = field(default_factory=RunConfig)
    learner: LearnerConfig = field(default_factory=OffPolicyConfig)


@dataclass(frozen=True)
class PbtRun(Run):
    """Population Based Training."""

    cells: ClassVar[None] = None

    population: Annotated[int, Within(1)] = 8
    """P, number of members (at least 1; a multiple of the number of devices)."""
    replay_schedule: str | None = None
    """Run directory; one new agent trains, without selection, with the hyper-parameters that the ancestors of its best
    member had in each generation; the same as in `rookery train sac`."""
    init_from: str | None = None
    """Run directory; every member starts from the parameters of its best member. Task and network settings that are not
    given are taken from that run."""
    skill: Annotated[int | None, Within(0)] = None
    """Number of the skill of `--init-from` to start from (0 to the number of skills - 1), if that run discovered skills
    and this one does not."""
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    run: RunConfig = field(default_factory=RunConfig)
    pbt: PbtConfig = field(default_factory=PbtConfig)
    islands: IslandsConfig = field(default_factory=IslandsConfig)
    learner: LearnerConfig = field(default_factory=OffPolicyConfig)


@dataclass(frozen=True)
class MapElitesRun(Run):
    """MAP-Elites, which trains no agents, with any emitter."""

    trains_agents = False
    has_repertoire = True
    learner: ClassVar[None] = None

    batch_size: Annotated[int, Within(1)] = 256
    """Genotypes created and evaluated in each generation (at least 1; a multiple of the number of devices)."""
    init_from: str | None = None
    """Run directory of a run of map-elites, pga-me, dcrl-me or cma-mae whose elites fill the initial repertoire; task
    settings that are not given are taken from that run."""
    environment: EnvironmentConfig = field(default=EnvironmentConfig(env="point_trap"))
    run: RunConfig = field(default_factory=RunConfig)
    cells: CellsConfig = field(default_factory=CellsConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    evaluation: EvaluationConfig = field(default=EvaluationConfig(eval_episodes=4))


@dataclass(frozen=True)
class FunctionSettings:
    """Settings of methods that also search the inputs of a test function."""

    dimensions: Annotated[int | None, Within(1)] = None
    """Length of a genotype of a test function (arm, sphere, rastrigin; at least 1); by default the standard length of
    the function. Not allowed for environments."""


@dataclass(frozen=True)
class VariationSettings:
    """Settings of MAP-Elites by variation of elites."""

    variation: VariationConfig = field(default_factory=VariationConfig)


@dataclass(frozen=True)
class CmaMaeSettings(FunctionSettings):
    """Settings of CMA-MAE, which samples distributions."""

    batch_size: Annotated[int, Within(1)] = 540
    """Genotypes sampled and evaluated in each generation (a multiple of `emitters`, at least two for each, and of the
    number of devices)."""
    cells: CellsConfig = field(default=CellsConfig(archive_learning_rate=ANNEALED_RATE))
    cma_mae: CmaMaeConfig = field(default_factory=CmaMaeConfig)


@dataclass(frozen=True)
class PgaMeSettings(VariationSettings):
    """Settings of PGA-ME."""

    pga_me: PgaMeConfig = field(default_factory=PgaMeConfig)
    evaluation: EvaluationConfig = field(default=EvaluationConfig(eval_episodes=1))


@dataclass(frozen=True)
class DcrlMeSettings(VariationSettings):
    """Settings of DCRL-ME."""

    dcrl_me: DcrlMeConfig = field(default_factory=DcrlMeConfig)
    evaluation: EvaluationConfig = field(default=EvaluationConfig(eval_episodes=1))


@dataclass(frozen=True)
class MePbtRun(Run):
    """MAP-Elites with Population Based Training."""

    has_repertoire = True
    pbt: ClassVar[None] = None

    population: Annotated[int, Within(1)] = 10
    """P, number of members that train (at least 1; a multiple of the number of devices)."""
    ga_population: Annotated[int, Within(1)] = 30
    """Children of elites, created by variation, that are evaluated in addition to the members in each generation (at
    least 1; a multiple of the number of devices)."""
    init_from: str | None = None
    """Run directory whose elites, skills or members fill the initial repertoire; task and network settings that are not
    given are taken from that run."""
    environment: EnvironmentConfig = field(default=EnvironmentConfig(env="point_trap"))
    run: RunConfig = field(default_factory=RunConfig)
    cells: CellsConfig = field(default_factory=CellsConfig)
    variation: VariationConfig = field(default_factory=VariationConfig)
    me_pbt: MePbtConfig = field(default_factory=MePbtConfig)
    islands: IslandsConfig = field(default_factory=IslandsConfig)
    learner: OffPolicyConfig = field(default_factory=OffPolicyConfig)


@dataclass(frozen=True)
class ProgramRun(Run):
    """A user-defined program: a function that returns a rookery.Program.

    Its keyword parameters are options: `rookery train program ./mine.py:build --option width=64`.
    """

    kind: ClassVar[str] = "program"
    trains_agents: ClassVar[bool] = False  # by settings that the command line knows
    learner: ClassVar[None] = None
    cells: ClassVar[None] = None
    pbt: ClassVar[None] = None
    init_from: ClassVar[None] = None

    factory: str
    """The function: path/to/file.py:build or package.module:build."""
    option: tuple[str, ...] = ()
    """Parameters of the function, each as name=value."""
    environment: DevicesConfig = field(default_factory=DevicesConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        """Check the types."""
        check_fields(self)


AnyRun = IndependentRun | PbtRun | MapElitesRun | MePbtRun
"""A run of a kind that `kinds.METHODS` describes."""

RecordedRun = AnyRun | ProgramRun
"""A run that can be built from its record."""

TrainingRun = IndependentRun | PbtRun | MePbtRun


@dataclass(frozen=True)
class AgentSettings:
    """Settings of all runs that train agents; `kinds` replaces the types by those of the agent."""

    agent: Any = None
    space: Mapping[str, Chosen] = field(default_factory=dict)
    """Search space: two bounds (low high) let a hyper-parameter evolve within them; one value, or `fixed` for its
    default, keeps it constant. `--space.env.NAME` chooses a parameter of the task (`rookery envs TASK`), which is
    fixed by default; `evolve` is its declared domain."""


@dataclass(frozen=True)
class OffPolicySettings:
    """Settings of runs with off-policy agents."""

    learner: OffPolicyConfig = field(default_factory=OffPolicyConfig)


@dataclass(frozen=True)
class OnPolicySettings:
    """Settings of all runs with on-policy agents."""

    is_on_policy: ClassVar[bool] = True

    learner: OnPolicyConfig = field(default_factory=OnPolicyConfig)


@dataclass(frozen=True)
class SkillSettings(OffPolicySettings):
    """Settings of all runs with skill discovery."""

    has_skills: ClassVar[bool] = True
    discovery_name: ClassVar[str] = ""

    environment: EnvironmentConfig = field(default=EnvironmentConfig(env="point_room"))
    learner: OffPolicyConfig = field(
        default=OffPolicyConfig(num_envs=50, steps_per_generation=5_000, updates_per_step=0.1)
    )
    skills: SkillsConfig = field(default_factory=SkillsConfig)


@dataclass(frozen=True)
class DiaynSettings(SkillSettings):
    """Settings of runs with DIAYN."""

    discovery_name: ClassVar[str] = "diayn"

    diayn: DiaynConfig = field(default_factory=DiaynConfig)


@dataclass(frozen=True)
class MetraSettings(SkillSettings):
    """Settings of runs with METRA."""

    discovery_name: ClassVar[str] = "metra"

    metra: MetraConfig = field(default_factory=MetraConfig)


@dataclass(frozen=True)
class LsdSettings(SkillSettings):
    """Settings of runs with LSD."""

    discovery_name: ClassVar[str] = "lsd"

    lsd: LsdConfig = field(default_factory=LsdConfig)


@dataclass(frozen=True)
class TeamSettings(OnPolicySettings):
    """Settings of all runs with teams of agents."""

    has_team: ClassVar[bool] = True

    environment: EnvironmentConfig = field(default=EnvironmentConfig(env="pursuit_continuous"))
    learner: OnPolicyConfig = field(default=OnPolicyConfig(num_envs=32))
    parameters: Literal["independent", "shared"] = "independent"
    """independent: each agent of a team has separate parameters and a separate optimiser; shared: all agents of a team
    act with one set of parameters, which is trained on the transitions of all."""
    identify: bool = True
    """With shared parameters, prepend a one-hot index of the agent in the team to its observation."""


@dataclass(frozen=True)
class RoleSettings:
    """Settings of Population Based Training of teams."""

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
