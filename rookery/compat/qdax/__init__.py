"""QDax's documented classes for PBT, ME-PBT and DIAYN.

`docs/migrating.md` lists the differences from QDax and the equivalents in Rookery's own API.
"""

from rookery.compat.qdax import environments  # noqa: F401
from rookery.compat.qdax.algorithms import *  # noqa: F403 - what each module names in __all__ is documented
from rookery.compat.qdax.configs import *  # noqa: F403
from rookery.compat.qdax.figures import *  # noqa: F403
from rookery.compat.qdax.loops import *  # noqa: F403
from rookery.compat.qdax.map_elites import *  # noqa: F403
from rookery.compat.qdax.me_pbt import *  # noqa: F403
from rookery.compat.qdax.populations import *  # noqa: F403
from rookery.compat.qdax.records import *  # noqa: F403
