"""Population methods: selection and inheritance between the members of a population."""

from typing import TYPE_CHECKING, Any

from rookery.populations.base import Program
from rookery.populations.config import LeagueConfig, PbtConfig
from rookery.populations.independent import seeds
from rookery.populations.pbt import pbt
from rookery.populations.ratings import rating_of
from rookery.populations.replay import replay
from rookery.populations.role_pbt import pbt_roles
from rookery.populations.stages import with_precision
from rookery.populations.warm_start import begin_as

if TYPE_CHECKING:
    from rookery.experiments.tuner import Tuner

__all__ = [
    "LeagueConfig",
    "PbtConfig",
    "Program",
    "Tuner",
    "begin_as",
    "pbt",
    "pbt_roles",
    "rating_of",
    "replay",
    "seeds",
    "with_precision",
]


def __getattr__(name: str) -> Any:
    """`Tuner` writes files, so that its module lies above this package and is imported when it is first used."""
    if name != "Tuner":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rookery.experiments.tuner import Tuner

    return Tuner


def __dir__() -> list[str]:
    return __all__
