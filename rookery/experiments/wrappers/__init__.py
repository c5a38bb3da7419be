"""What can be wrapped around an agent: the methods of skill discovery, and teams; one module each."""

from rookery.experiments.agents import Wrapper
from rookery.experiments.wrappers import diayn, lsd, metra, team

__all__ = ["WRAPPERS"]

WRAPPERS: dict[str, Wrapper] = {
    "diayn": diayn.WRAPPER,
    "metra": metra.WRAPPER,
    "lsd": lsd.WRAPPER,
    "team": team.WRAPPER,
}
"""Name -> wrapper; that of a method of skill discovery is the key of its config in `config.json`."""
