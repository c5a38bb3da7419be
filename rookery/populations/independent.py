"""Independent members: the same agent under many seeds, or random search when the hyper-parameters are drawn.

This is PBT without selection and uses the same code. No member is replaced, not even one that diverged: it is counted,
ranks last, and keeps its state, since replacing it would be selection.
"""

from rookery.hyperparams import Space
from rookery.learners.base import Learner, check_learner
from rookery.populations.base import Program
from rookery.populations.config import PbtConfig
from rookery.populations.pbt import PbtState, pbt
from rookery.populations.sharding import ONE_DEVICE, Placement
from rookery.settings import SettingError
from rookery.types import HyperT, StateT


def seeds(
    learner: Learner[StateT, HyperT],
    space: Space[HyperT] | None = None,
    population_size: int = 1,
    draw_hyper: bool = False,
    placement: Placement = ONE_DEVICE,
) -> Program[PbtState[StateT, HyperT]]:
    """P members that train independently of each other.

    Args:
      learner: the learner of one member.
      space: the space whose defaults are the members' hyper-parameters; the agent's default space if None.
      population_size: P, at least 1.
      draw_hyper: sample each member's hyper-parameters from the space instead (random search).
      placement: the placement of the members; `rookery.distributed.placement` shards them over devices.

    Raises:
      ValueError: the space has bounds of its own, but hyper-parameters are not drawn.

    Example:
      >>> env = rookery.make("point_room")
      >>> learner = rookery.off_policy(rookery.sac(env.spec), env)
      >>> program = rookery.seeds(learner, population_size=10)
    """
    check_learner(learner, space)
    space = space or learner.space
    if not draw_hyper:
        bounds = [name for name, domain in space.domains.items() if learner.space.domains.get(name) != domain]
        if bounds:
            problem = "has bounds without an effect, since independent members keep one value"
            remedy = "give one value, or {draw_hyper}, which draws one for each member"
            raise SettingError(bounds[0], None, problem, remedy)
        space = space._replace(domains={})
    program = pbt(learner, space, population_size, PbtConfig(exploit="none"), placement)
    own = {"population_method": "seeds", "population": population_size, "draw_hyper": draw_hyper}
    return program._replace(settings={**learner.settings, **own})
