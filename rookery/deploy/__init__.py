"""Use of trained runs: policies, evaluation, recorded episodes, rendering, export."""

from rookery.deploy.export import export

__all__ = ["export"]
