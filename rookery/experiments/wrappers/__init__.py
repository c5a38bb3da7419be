"""What can be wrapped around an agent: the methods of skill discovery, and teams."""

from rookery.experiments.agents import Wrapper
from rookery.experiments.wrappers import skills, team

__all__ = ["WRAPPERS"]

WRAPPERS: dict[str, Wrapper] = {
    "diayn": skills.DIAYN,
    "metra": skills.METRA,
    "lsd": skills.LSD,
    "team": team.WRAPPER,
}
"""Name -> wrapper; that of a method of skill discovery is the key of its config in `config.json`."""
