"""Learning algorithms. An agent is built from an `EnvSpec` and never calls an environment."""

from rookery.agents.base import Agent, OffPolicyAgent, OnPolicyAgent
from rookery.agents.check import check_agent
from rookery.agents.dqn import DqnConfig, dqn
from rookery.agents.encoders import reader
from rookery.agents.multi_agent import independent, shared
from rookery.agents.ppo import PpoConfig, ppo
from rookery.agents.pqn import PqnConfig, pqn
from rookery.agents.sac import SacConfig, sac
from rookery.agents.skills import smerl as smerl  # a module, as `rookery.agents.smerl` of earlier versions
from rookery.agents.skills.diayn import DiaynConfig, diayn
from rookery.agents.skills.metra import LsdConfig, MetraConfig, lsd, metra
from rookery.agents.td3 import Td3Config, td3
from rookery.networks import Encoder

__all__ = [
    "Agent",
    "DiaynConfig",
    "DqnConfig",
    "Encoder",
    "LsdConfig",
    "MetraConfig",
    "OffPolicyAgent",
    "OnPolicyAgent",
    "PpoConfig",
    "PqnConfig",
    "SacConfig",
    "Td3Config",
    "check_agent",
    "diayn",
    "dqn",
    "independent",
    "lsd",
    "metra",
    "ppo",
    "pqn",
    "reader",
    "sac",
    "shared",
    "td3",
]
