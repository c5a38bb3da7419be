"""IPPO with the documented API of jaxagents: `from rookery.compat.jaxagents import IPPO, AgentConfig, ...`.

`docs/migrating.md` lists the differences from jaxagents and the equivalents in Rookery's own API.
"""

from rookery.compat.jaxagents.environment import TruncationEnvState, TruncationWrapper
from rookery.compat.jaxagents.hooks import ActionType, ObsType
from rookery.compat.jaxagents.ippo import IPPO, IPPOBase
from rookery.compat.jaxagents.records import (
    AgentConfig,
    HyperParameters,
    MetricStats,
    OptimizerParams,
    Runner,
    TrainState,
    Transition,
)

__all__ = ["IPPO", "ActionType", "AgentConfig", "HyperParameters", "IPPOBase", "MetricStats", "ObsType"]
__all__ += ["OptimizerParams", "Runner", "TrainState", "Transition", "TruncationEnvState", "TruncationWrapper"]
