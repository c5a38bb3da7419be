"""Population methods: selection and inheritance between the members of a population."""

from rookery.populations.base import Program
from rookery.populations.config import PbtConfig
from rookery.populations.independent import seeds
from rookery.populations.pbt import pbt
from rookery.populations.ratings import rating_of
from rookery.populations.replay import replay
from rookery.populations.role_pbt import pbt_roles
from rookery.populations.stages import with_precision
from rookery.populations.warm_start import begin_as

__all__ = ["PbtConfig", "Program", "begin_as", "pbt", "pbt_roles", "rating_of", "replay", "seeds", "with_precision"]
