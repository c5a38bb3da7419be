"""Independent members: the same agent under many seeds, or random search when the hyper-parameters are drawn.

This is PBT without selection, so nothing is written twice. Nobody is replaced, a member that diverged included: it is
counted, ranks last, and stays what it is, since replacing it would be selection.
"""

from rookery.hyperparams import Space
from rookery.learners.base import Learner
from rookery.populations import base
from rookery.populations.pbt import PbtConfig, pbt
from rookery.populations.sharding import ONE_DEVICE, Placement


def seeds(
    learner: Learner,
    space: Space | None = None,
    population_size: int = 1,
    draw_hyper: bool = False,
    placement: Placement = ONE_DEVICE,
) -> base.Program:
    """P members that never meet.

    Args:
      learner: one member's life.
      space: its defaults are the members' hyper-parameters.
      population_size: P, at least 1.
      draw_hyper: draw each member's hyper-parameters from the space instead: random search.
      placement: where members lie; `rookery.distributed.placement` spreads them over devices.
    """
    space = space or learner.space
    if not draw_hyper:
        space = space._replace(domains={})
    return pbt(learner, space, population_size, PbtConfig(exploit="none"), placement)
