"""The agents that runs can train, one row each, and what can be wrapped around them.

A new row adds the agent to every method of `methods`; a new wrapper combines with every agent of its sort.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from rookery.agents import ppo_settings
from rookery.agents.base import Agent
from rookery.agents.dqn import SPACE as DQN_SPACE
from rookery.agents.dqn import DqnConfig, dqn
from rookery.agents.ppo import ppo
from rookery.agents.pqn import SPACE as PQN_SPACE
from rookery.agents.pqn import PqnConfig, pqn
from rookery.agents.sac import SPACE as SAC_SPACE
from rookery.agents.sac import SacConfig, sac
from rookery.agents.td3 import SPACE as TD3_SPACE
from rookery.agents.td3 import Td3Config, td3
from rookery.envs.base import Environment, EnvSpec
from rookery.experiments.config import EnvironmentConfig
from rookery.hyperparams import Space
from rookery.learners.evolution import SPACE as ES_SPACE
from rookery.learners.evolution import EvolutionConfig, Policy
from rookery.learners.off_policy import OffPolicyConfig
from rookery.learners.on_policy import OnPolicyConfig
from rookery.populations.config import PbtConfig
from rookery.qd.scoring import PolicyConfig, policy
from rookery.settings import LARGEST_COUNT, SettingError
from rookery.training.config import RunConfig


@dataclass(frozen=True)
class Unwrapped:
    """The settings of an agent that nothing wraps: none."""


class Wrapper(NamedTuple):
    """What is wrapped around an agent and its environment: a method of skill discovery, or a team of such agents.

    In the texts, `{title}`, `{Title}` and `{short_title}` are those of the agent.
    """

    name: str = "{agent}"
    """Name of the wrapped agent on the command line, in which `{agent}` is that of the agent."""
    heading: str = "{Title}: independent members"
    agents: str = "{title} agents"
    sources: tuple[str, ...] = ()
    """Papers, besides that of the agent."""
    settings: Any = Unwrapped()
    """A frozen dataclass with the defaults of its settings."""
    learner: type = object
    """Type of the learner's settings of the agents that it wraps, such as `OnPolicyConfig`."""
    space: "Callable[[AgentRow], Space]" = lambda row: row.space
    """Default search space of the wrapped agent."""
    environment: Callable[[Environment, Any], Environment] = lambda environment, _: environment
    """Wraps an environment; takes the settings."""
    agent: Callable[[Any, EnvSpec, Any], Any] = lambda agent, *_: agent
    """Wraps an agent; takes the spec of the wrapped environment, and the settings."""
    sharing: Callable[[EnvSpec, Any], int] = lambda *_: 1
    """Number of agents of an environment whose transitions train the same parameters."""
    defaults: Mapping[str, Any] = MappingProxyType({})
    """Part of a run (`environment`, `learner`, `pbt`) -> default that differs from the agent's."""
    rules: tuple[Any, ...] = ()
    """Rules (`spec.Rule`) of its settings."""
    subject: str = ""
    """Heading of its kinds of run in the help; by default that of the method, as the guide."""
    guide: str = ""
    describe: Callable[[Any], str] = lambda _: ""
    """What follows the size of a population in a run's title; takes the settings."""
    has_skills: bool = False
    is_team: bool = False


class AgentRow(NamedTuple):
    """A row of the table: an agent, and what the kinds of run that train it need to know about it."""

    name: str
    """Name on the command line."""
    title: str
    """Name in the middle of a sentence."""
    source: str
    """The paper; "" without one."""
    config: type[Any]
    """Frozen dataclass of the static settings, with a default for each."""
    make: Callable[[EnvSpec, Any], Agent | Policy]
    space: Space
    """Default search space; with discrete actions, where it depends on the actions."""
    learner: OffPolicyConfig | OnPolicyConfig | EvolutionConfig
    """Default settings of the learner, whose type says how the agent learns."""
    continuous_space: Space | None = None
    """Default search space with continuous actions, where it differs."""
    team_space: Space | None = None
    """Default search space in a team, where it differs."""
    short_title: str = ""
    """Name in long sentences; by default the title."""
    fill_defaults: Callable[[Any, EnvSpec, int, int], Any] = lambda config, *_: config
    """Fills settings that depend on the environment; takes its spec, the number of environments and the steps of each
    in a rollout. For on-policy agents."""
    anneal: Callable[[Any, int], Any] = lambda config, _: config
    """Sets the number of updates over which the learning rates are annealed (0: none), unless the config has one. For
    on-policy agents."""
    explore_over: Callable[[Any, int], Any] = lambda config, _: config
    """Sets the schedule of the exploration, unless the config has one; takes the updates of the run."""
    discrete: bool = False
    """Whether it needs discrete actions. Then nothing wraps it and no repertoire trains it: skills, teams and
    repertoires have agents for continuous actions or for both."""
    defaults: Mapping[str, Any] = MappingProxyType({})
    """Part of a run (`run`, `pbt`, ...) -> default that differs from the part's own."""
    wrapper: Wrapper = Wrapper()

    @property
    def is_off_policy(self) -> bool:
        """Whether the agent learns from stored transitions."""
        return isinstance(self.learner, OffPolicyConfig)

    @property
    def is_evolved(self) -> bool:
        """Whether the agent is a policy that learns from whole episodes."""
        return isinstance(self.learner, EvolutionConfig)

    @property
    def default_space(self) -> Space:
        """Default search space of the agent with its wrapper."""
        return self.wrapper.space(self)

    @property
    def sources(self) -> tuple[str, ...]:
        """The papers."""
        return (*self.wrapper.sources, *filter(None, [self.source]))

    @property
    def texts(self) -> dict[str, str]:
        """What stands for the placeholders in the texts of methods."""
        own = {"title": self.title, "Title": self.title[:1].upper() + self.title[1:]}
        own["short_title"] = self.short_title or self.title
        return own | {name: getattr(self.wrapper, name).format(**own) for name in ("heading", "agents")}

    def wrapped(self, wrapper: Wrapper) -> "AgentRow":
        """The row of the agent with a wrapper around it."""
        name = wrapper.name.format(agent=self.name)
        name = name.removesuffix("-sac") if self.name == "sac" else name  # the agent of `diayn` and `pbt-diayn`
        learner = wrapper.defaults.get("learner", self.learner)
        return self._replace(name=name, wrapper=wrapper, defaults=wrapper.defaults, learner=learner)


def _fill_ppo_defaults(
    config: ppo_settings.PpoConfig, spec: EnvSpec, num_envs: int, rollout_length: int
) -> ppo_settings.PpoConfig:
    sequences = num_envs * (1 if config.recurrent else rollout_length)
    return dataclasses.replace(config, **ppo_settings.resolve_defaults(config, spec, sequences)._asdict())


def _anneal(config: Any, updates: int) -> Any:
    return _filled(config, "anneal_updates", updates)


def _explore_over(config: Any, updates: int) -> Any:
    return _filled(config, "exploration_updates", round(config.exploration_share * updates))


def _filled(config: Any, name: str, updates: int) -> Any:
    """The config with a number of updates that follows from the length of the run, unless one is given."""
    if getattr(config, name) is not None:
        return config
    if updates > LARGEST_COUNT:
        problem = f"is too large, since {{{name}}} would be {updates} by default, more than the largest int32"
        raise SettingError("generations", None, problem, f"lower it, or give {{{name}}}")
    return dataclasses.replace(config, **{name: updates})


LONG_RUN = RunConfig(generations=500, checkpoint_every=25)
"""500 short generations: as many environment steps as the shorter runs of the papers."""
SELECT_BY_STEPS = PbtConfig(exploit_interval=3_000)
"""Select every 3,000 environment steps of a member: `docs/evidence/learning.md` compares 750, 1,500, 3,000, 10,000 and
30,000."""

AGENTS: dict[str, AgentRow] = {
    row.name: row
    for row in (
        AgentRow(
            name="sac",
            title="soft actor-critic",
            source="Haarnoja 2018 (arXiv:1812.05905)",
            config=SacConfig,
            make=sac,
            space=SAC_SPACE,
            learner=OffPolicyConfig(),
            defaults={"run": LONG_RUN, "pbt": SELECT_BY_STEPS},
        ),
        AgentRow(
            name="td3",
            title="twin delayed deep deterministic policy gradient",
            short_title="TD3",
            source="Fujimoto 2018 (arXiv:1802.09477)",
            config=Td3Config,
            make=td3,
            space=TD3_SPACE,
            learner=OffPolicyConfig(),
            defaults={"run": LONG_RUN, "pbt": SELECT_BY_STEPS},
        ),
        AgentRow(
            name="ppo",
            title="proximal policy optimisation",
            short_title="PPO",
            source="Schulman 2017 (arXiv:1707.06347)",
            config=ppo_settings.PpoConfig,
            make=ppo,
            space=ppo_settings.DISCRETE.space,
            learner=OnPolicyConfig(),
            continuous_space=ppo_settings.CONTINUOUS.space,
            team_space=ppo_settings.TEAM.space,
            fill_defaults=_fill_ppo_defaults,
            anneal=_anneal,
            defaults={"run": RunConfig(best_by="best_fitness")},
        ),
        AgentRow(
            name="pqn",
            title="parallelised Q-network",
            short_title="PQN",
            source="Gallici 2024 (arXiv:2407.04811)",
            config=PqnConfig,
            make=pqn,
            space=PQN_SPACE,
            learner=OnPolicyConfig(num_envs=32, rollout_length=64),
            anneal=_anneal,
            explore_over=_explore_over,
            discrete=True,
            defaults={"run": RunConfig(best_by="best_fitness"), "environment": EnvironmentConfig(env="CartPole-v1")},
        ),
        AgentRow(
            name="dqn",
            title="deep Q-network",
            short_title="DQN",
            source="Mnih 2015, van Hasselt 2016 (arXiv:1509.06461)",
            config=DqnConfig,
            make=dqn,
            space=DQN_SPACE,
            learner=OffPolicyConfig(normalize_observations=False),
            explore_over=_explore_over,
            discrete=True,
            defaults={"run": LONG_RUN, "pbt": SELECT_BY_STEPS, "environment": EnvironmentConfig(env="CartPole-v1")},
        ),
        AgentRow(
            name="es",
            title="evolution strategy",
            short_title="ES",
            source="Salimans 2017 (arXiv:1703.03864)",
            config=PolicyConfig,
            make=policy,
            space=ES_SPACE,
            learner=EvolutionConfig(),
            defaults={"run": RunConfig(generations=200, best_by="best_fitness")},
        ),
    )
}
"""Name on the command line -> agent."""


def rows(wrappers: Mapping[str, Wrapper]) -> Iterator[AgentRow]:
    """All agents, then each wrapper around all that it can be put around."""
    yield from AGENTS.values()
    wrapped = [row for row in AGENTS.values() if not row.discrete]
    for one in wrappers.values():
        yield from (row.wrapped(one) for row in wrapped if isinstance(row.learner, one.learner))
