"""The population methods, one module each; `METHODS` lists them."""

from rookery.experiments.methods import (
    cma_mae,
    dcrl_me,
    independent,
    map_elites,
    me_pbt,
    pbt,
    pga_me,
    program,
    roles,
)
from rookery.experiments.spec import Method

__all__ = ["METHODS"]

METHODS: list[Method] = [
    module.METHOD for module in (independent, pbt, roles, map_elites, cma_mae, pga_me, dcrl_me, me_pbt, program)
]
"""All methods; a package that adds one appends it."""
