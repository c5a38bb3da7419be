"""The description of a run (`RunSpec`), of a kind of run, and of a population method."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Self

from typing_extensions import TypeVar

from rookery import networks
from rookery.distributed.mesh import Mesh
from rookery.experiments.agents import AgentRow, Unwrapped
from rookery.experiments.config import EnvironmentConfig, Rule
from rookery.hyperparams import Chosen, Space, describe
from rookery.learners.base import Learner
from rookery.learners.evolution import EvolutionConfig
from rookery.learners.off_policy import OffPolicyConfig
from rookery.learners.on_policy import OnPolicyConfig
from rookery.populations.base import Program
from rookery.settings import SettingTypeError, suggestion
from rookery.storage.lineage import Schedule
from rookery.storage.record import SKILL_METHODS
from rookery.training.config import RunConfig

LearnerConfig = OffPolicyConfig | OnPolicyConfig | EvolutionConfig
MethodT = TypeVar("MethodT", default=Any)  # the settings of a population method, a frozen dataclass

OTHER_NAMES = {
    "total_timesteps": "steps",
    "num_timesteps": "steps",
    "gamma": "discount",
    "net_arch": "hidden_sizes",
    "n_envs": "num_envs",
    "n_steps": "rollout_length",
    "n_epochs": "actor_epochs",
    "clip_range": "clip_epsilon",
    "ent_coef": "entropy_coefficient",
    "learning_starts": "warmup_steps",
    "gradient_steps": "updates_per_step",
    "n_eval_episodes": "eval_episodes",
    "discounting": "discount",
    "unroll_length": "rollout_length",
    "entropy_cost": "entropy_coefficient",
}
"""Names in Stable-Baselines3 and Brax -> the names here, for messages."""


def name_here(name: str) -> str:
    """The name of a setting here, given another library's; "lr" ends those of learning rates."""
    return OTHER_NAMES.get(name, name).replace("learning_rate", "lr")


class Method(NamedTuple):
    """A population method. A module in `experiments/methods` has one, and `METHODS` lists them.

    In the texts, `{heading}` and `{agents}` are those of the agent, and `{short_title}` is its name.
    """

    name: str
    """Name of its kinds of run on the command line, in which `{agent}` is that of the agent."""
    title: str
    """One sentence."""
    sources: tuple[str, ...]
    """Papers, besides those of the agent."""
    subject: str
    """Heading of its kinds of run in the help."""
    guide: str
    """Name of its guide in `docs/guides`."""
    settings: Any
    """A frozen dataclass with the defaults of its settings; `population`, if it has members that train."""
    build: "Callable[[RunSpec, Schedule | None, Mesh | None, int], Built]"
    """Builds the program of a run. It takes the run; hyper-parameters per generation that independent members train
    with, or None; the mesh, by default the devices that the settings request; and the number of such populations that
    share the memory, as islands do. It raises ValueError if the task is unknown, an optional dependency is missing, the
    devices cannot divide the population evenly, the search space is invalid, or settings are incompatible."""
    describe: "Callable[[RunSpec], str]"
    """A short description of a run's population."""
    trains: Callable[[AgentRow], bool] | None = None
    """Whether it can train an agent; None for a method that trains none."""
    defaults: Mapping[str, Any] = MappingProxyType({})
    """Part of a run (`environment`, `run`, ...) -> default that differs from the part's own."""
    rules: tuple[Rule, ...] = ()
    is_independent: bool = False
    """Whether the members train without selection."""
    has_repertoire: bool = False
    """Whether the result is a repertoire of elites, not a population alone."""
    has_width: bool = True
    """Whether the width of the networks can be a hyper-parameter."""
    has_task: bool = True
    """Whether the run names its task; False for a program that a user's function builds."""


class Kind(NamedTuple):
    """A kind of run: a method with an agent that it trains."""

    name: str  # name on the command line
    method: Method
    agent: AgentRow | None  # None for a method that trains no agents

    def __repr__(self) -> str:
        return f"Kind({self.name!r})"

    def __deepcopy__(self, memo: object) -> Self:
        return self  # it never changes

    @property
    def title(self) -> str:
        """One sentence."""
        return self.method.title.format(**(self.agent.texts if self.agent else {}))

    @property
    def sources(self) -> str:
        """The papers, as one line."""
        found = [*self.method.sources, *(self.agent.sources if self.agent else ())]
        papers = [one for one in found if not one.startswith("with ")]  # others belong to a setting
        notes = "".join(f"; {one}" for one in found if one not in papers)
        return f"Source{'s' * (len(found) > 1)}: {', '.join(papers)}{notes}." if found else ""

    @property
    def subject(self) -> str:
        """Heading in the help."""
        return (self.agent.wrapper.subject if self.agent else "") or self.method.subject

    @property
    def guide(self) -> str:
        """Name of the guide in `docs/guides`."""
        return (self.agent.wrapper.guide if self.agent else "") or self.method.guide

    @property
    def has_skills(self) -> bool:
        """Whether the agents discover skills."""
        return self.agent is not None and self.agent.wrapper.has_skills

    @property
    def is_team(self) -> bool:
        """Whether a member is a team of several agents in one environment."""
        return self.agent is not None and self.agent.wrapper.is_team

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Conditions without which settings have no effect."""
        return self.method.rules + (self.agent.wrapper.rules if self.agent else ())

    def default(self) -> "RunSpec":
        """The run with the default of every setting; a ValueError if two settings have the same name, or those of the
        method could be changed for all runs."""
        params = getattr(self.method.settings, "__dataclass_params__", None)
        if params is None or not params.frozen:
            raise ValueError(f"settings of the method {self.method.name} are no instance of a frozen dataclass.")
        spec = self._default()
        twice = [name for name, count in Counter(_names(spec.flat, parts=False)).items() if count > 1]
        if twice:
            raise ValueError(f"{self.name} has two settings named {twice[0]}; give that of the method another name.")
        return spec

    def _default(self) -> "RunSpec":
        defaults = {"environment": EnvironmentConfig(), "run": RunConfig(), **self.method.defaults}
        plain = RunSpec(self, self.method.settings, defaults["environment"], defaults["run"])
        if self.agent is None:
            return plain
        row = self.agent
        filled = dataclasses.replace(plain, agent=row.config(), wrapper=row.wrapper.settings, learner=row.learner)
        return filled.replace(**{name: value for name, value in row.defaults.items() if name in filled.flat})


@dataclass(frozen=True)
class RunSpec(Generic[MethodT]):
    """A run: its kind, and the settings of each of its parts."""

    kind: Kind
    method: MethodT
    """Settings of the population method."""
    environment: EnvironmentConfig
    """Only a `DevicesConfig` where a user's function builds the program."""
    run: RunConfig
    agent: Any = None
    """Config of the agent; None for a method that trains none, as `learner`."""
    wrapper: Any = field(default_factory=Unwrapped)
    """Settings of what wraps the agent: of a method of skill discovery, or of a team."""
    learner: LearnerConfig | None = None
    space: Mapping[str, Chosen] = field(default_factory=dict)
    """Choices in the search space: name of the hyper-parameter -> choice."""

    def __post_init__(self) -> None:
        """Check the type of the choices."""
        if not isinstance(self.space, Mapping):
            remedy = "leave it out for the defaults" if self.space is None else ""
            raise SettingTypeError("space", self.space, "must be a dictionary, such as {{'discount': 0.98}", remedy)

    @property
    def flat(self) -> dict[str, Any]:
        """All settings by their names in `config.json`: those of the method and of the wrapper, and the other parts."""
        trained = {"agent": self.agent, "space": self.space, "learner": self.learner} if self.kind.agent else {}
        parts = {"environment": self.environment, "run": self.run}
        return {**vars(self.method), **vars(self.wrapper), **trained, **parts}

    @property
    def member_steps(self) -> int | None:
        """The environment steps that each member trains in a generation; None if the settings alone do not say it."""
        return getattr(self.learner, "steps_per_generation", None)

    def replace(self, **settings: object) -> Self:
        """The run with other values of settings: of parts, named as in `flat`, and of the fields of a part. A TypeError
        if the kind of run has no such setting, a ValueError if a value is invalid."""
        known = [*_names(self.flat)]
        if self.kind.method.is_independent and "seeds" in settings and "population" not in settings:
            settings["population"] = settings.pop("seeds")  # the flag has both names, too
        for name in (name for name in settings if name not in known):
            raise TypeError(f"a run of kind {self.kind.name} has no setting {name}; {self._remedy(name, known)}")
        replaced = _replaced(self, settings)
        for name, value in settings.items():  # what is left
            raise TypeError(f"{name} must be of type {type(self.flat[name]).__name__}, got {value!r}.")
        return replaced

    def _remedy(self, name: str, known: list[str]) -> str:
        """What to write in place of a setting that does not exist."""
        hypers = describe(self.kind.agent.default_space) if self.kind.agent else ()
        here = name_here(name)
        if meant := [hyper for hyper in hypers if hyper == here or (here == "lr" and hyper.endswith("_lr"))]:
            return f"it is a hyper-parameter: {' or '.join(f'space={{{hyper!r}: ...}}' for hyper in meant)}."
        if here == "steps":
            return "it is an argument of rookery.train: steps=..."
        otherwise = f"`rookery train {self.kind.name} --help` lists all, as flags."
        return f"did you mean {here}?" if here in known else suggestion(name, known, otherwise)

    def with_network(self) -> Self:
        """The run with the settings filled in that the network of its agent brings, if the agent has a choice of
        networks and they are None."""
        name, learner = getattr(self.agent, "network", None), self.learner
        if name is None or not isinstance(learner, OffPolicyConfig | OnPolicyConfig):
            return self
        if learner.normalize_observations is None:
            learner = dataclasses.replace(learner, normalize_observations=networks.NETWORKS[name].normalize)
        return dataclasses.replace(self, agent=networks.filled(self.agent), learner=learner)

    def with_run(self, **fields: object) -> Self:
        """The run with other values of fields of `RunConfig`."""
        return dataclasses.replace(self, run=dataclasses.replace(self.run, **fields))

    def with_environment(self, **fields: object) -> Self:
        """The run with other values of fields of its `EnvironmentConfig`."""
        return dataclasses.replace(self, environment=dataclasses.replace(self.environment, **fields))


def _names(settings: Mapping[str, Any], parts: bool = True) -> Iterator[str]:
    """The names of settings and of the fields of those that are dataclasses, whose own names are left out without
    `parts`."""
    for name, value in settings.items():
        if parts or not dataclasses.is_dataclass(value):
            yield name
        if dataclasses.is_dataclass(value):
            yield from _names(vars(value), parts)


def _replaced(part: Any, settings: dict[str, Any]) -> Any:
    """A dataclass with other values of its fields, and of those of its parts, which are removed from `settings`."""
    changed = {}
    for name, value in vars(part).items():
        if not dataclasses.is_dataclass(value):
            changed |= {name: settings.pop(name)} if name in settings else {}
        elif isinstance(settings.get(name), type(value)):
            changed[name] = _replaced(settings.pop(name), settings)
        else:
            changed[name] = _replaced(value, settings)
    return dataclasses.replace(part, **changed)


class Built(NamedTuple):
    """The parts of a run, built from its description."""

    program: Program
    """The population program that the training loop runs."""
    mesh: Mesh
    """The devices that the population is sharded over."""
    space: Space | None = None
    """The search space with the run's choices applied; None if the run has no hyper-parameters."""
    learner: Learner | None = None
    """The training algorithm of one member; None if the run trains no agents."""
    spec: RunSpec | None = None
    """The run with the defaults filled in that depend on the machine or the environment; None for a program from
    Python."""

    @property
    def has_repertoire(self) -> bool:
        """Whether the result is a repertoire of elites, not a population alone."""
        return self.program.table is not None

    @property
    def has_separate_roles(self) -> bool:
        """Whether each role of a team has a separate population."""
        return self.program.settings.get("member") == "agent"

    @property
    def has_skills(self) -> bool:
        """Whether the agents discover skills."""
        return self.learner is not None and self.learner.spec.skill is not None

    @property
    def skill_method(self) -> str:
        """The name of the method of skill discovery; "" without skills, or if it is unknown."""
        return next((name for name in SKILL_METHODS if name in self.program.settings), "")

    @property
    def agent(self) -> str:
        """The name of the agent; "" if it is unknown."""
        return str(self.program.settings.get("agent", {}).get("name", ""))
