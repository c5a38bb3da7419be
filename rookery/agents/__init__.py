"""Learning algorithms. An agent is built from an `EnvSpec` and never calls an environment."""

from rookery.agents.base import Agent, OffPolicyAgent, OnPolicyAgent
from rookery.agents.diayn import DiaynConfig, diayn
from rookery.agents.multi_agent import independent, shared
from rookery.agents.ppo import PpoConfig, ppo
from rookery.agents.sac import SacConfig, sac
from rookery.agents.td3 import Td3Config, td3

__all__ = [
    "Agent",
    "DiaynConfig",
    "OffPolicyAgent",
    "OnPolicyAgent",
    "PpoConfig",
    "SacConfig",
    "Td3Config",
    "diayn",
    "independent",
    "ppo",
    "sac",
    "shared",
    "td3",
]
