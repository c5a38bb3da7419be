"""The agents that runs can train, one row each. A new row adds the agent to every method of `kinds.METHODS`."""

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from rookery.agents import ppo_settings
from rookery.agents.base import Agent, OffPolicyAgent
from rookery.agents.diayn import DiaynConfig, diayn
from rookery.agents.diayn import space as diayn_space
from rookery.agents.metra import LsdConfig, MetraConfig, lsd, lsd_space, metra, metra_space
from rookery.agents.ppo import ppo
from rookery.agents.sac import SPACE as SAC_SPACE
from rookery.agents.sac import SacConfig, sac
from rookery.agents.td3 import SPACE as TD3_SPACE
from rookery.agents.td3 import Td3Config, td3
from rookery.envs.base import EnvSpec
from rookery.hyperparams import Space

ConfigT = TypeVar("ConfigT")


class AgentEntry(NamedTuple, Generic[ConfigT]):
    """A row of the tables: an agent, and what the kinds of run that train it need to know about it."""

    title: str
    """Name in the middle of a sentence."""
    source: str
    config: type[ConfigT]
    """Frozen dataclass of the static settings, with a default for each."""
    make: Callable[[EnvSpec, ConfigT], Agent]
    space: Space
    """Default search space; with discrete actions, where it depends on the actions."""
    continuous_space: Space | None = None
    """Default search space with continuous actions, where it differs."""
    team_space: Space | None = None
    """Default search space in a team, where it differs."""
    short_title: str | None = None
    """Name in long sentences; by default the title."""
    fill_defaults: Callable[[ConfigT, EnvSpec, int, int], ConfigT] = lambda config, *_: config
    """Fills settings that depend on the environment; takes its spec, the number of environments and the steps of each
    in a rollout. For on-policy agents."""
    anneal: Callable[[ConfigT, int], ConfigT] = lambda config, _: config
    """Sets the number of updates over which the learning rates are annealed (0: none), unless the config has one. For
    on-policy agents."""


def _fill_ppo_defaults(
    config: ppo_settings.PpoConfig, spec: EnvSpec, num_envs: int, rollout_length: int
) -> ppo_settings.PpoConfig:
    sequences = num_envs * (1 if config.recurrent else rollout_length)
    return dataclasses.replace(config, **ppo_settings.resolve_defaults(config, spec, sequences)._asdict())


def _anneal_ppo(config: ppo_settings.PpoConfig, updates: int) -> ppo_settings.PpoConfig:
    return config if config.anneal_updates is not None else dataclasses.replace(config, anneal_updates=updates)


OFF_POLICY: dict[str, AgentEntry[Any]] = {
    "sac": AgentEntry(
        title="soft actor-critic",
        source="Haarnoja 2018 (arXiv:1812.05905)",
        config=SacConfig,
        make=sac,
        space=SAC_SPACE,
    ),
    "td3": AgentEntry(
        title="twin delayed deep deterministic policy gradient",
        short_title="TD3",
        source="Fujimoto 2018 (arXiv:1802.09477)",
        config=Td3Config,
        make=td3,
        space=TD3_SPACE,
    ),
}
"""Name on the command line -> off-policy agent."""

ON_POLICY: dict[str, AgentEntry[Any]] = {
    "ppo": AgentEntry(
        title="proximal policy optimisation",
        short_title="PPO",
        source="Schulman 2017 (arXiv:1707.06347)",
        config=ppo_settings.PpoConfig,
        make=ppo,
        space=ppo_settings.DISCRETE.space,
        continuous_space=ppo_settings.CONTINUOUS.space,
        team_space=ppo_settings.TEAM.space,
        fill_defaults=_fill_ppo_defaults,
        anneal=_anneal_ppo,
    ),
}
"""Name on the command line -> on-policy agent."""


class Discovery(NamedTuple):
    """A row of `DISCOVERIES`: a method of skill discovery, which wraps an off-policy agent."""

    title: str
    """Name in the middle of a sentence."""
    source: str
    config: type[Any]
    """Frozen dataclass of the static settings, with a default for each."""
    make: Callable[[OffPolicyAgent, EnvSpec, Any], OffPolicyAgent]
    space: Callable[[Space], Space]
    """Search space of the wrapped agent -> that of both."""
    with_previous: bool = False
    """Whether it reads the state before each step, see `Step.previous`."""


DISCOVERIES = {
    "diayn": Discovery("DIAYN", "Eysenbach 2018 (arXiv:1802.06070)", DiaynConfig, diayn, diayn_space),
    "metra": Discovery("METRA", "Park 2024 (arXiv:2310.08887)", MetraConfig, metra, metra_space, True),
    "lsd": Discovery("LSD", "Park 2022 (arXiv:2202.00914)", LsdConfig, lsd, lsd_space, True),
}
"""Name on the command line, and of the part of a config -> method of skill discovery."""
