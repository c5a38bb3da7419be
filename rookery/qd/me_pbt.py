"""MAP-Elites with Population Based Training (ME-PBT): a repertoire and the population that fills it, as one program.

Source: Pierrot 2023, "Evolving Populations of Diverse RL Agents with MAP-Elites" (arXiv:2303.12803).
"""

from typing import Any

from rookery.hyperparams import Space
from rookery.learners.base import Learner, check_learner
from rookery.populations import rebuild
from rookery.populations.base import Program
from rookery.populations.sharding import ONE_DEVICE, Placement
from rookery.qd.archives import Archive
from rookery.qd.map_elites import map_elites
from rookery.qd.pbt_emitter import MePbtConfig, pbt_emitter
from rookery.qd.scoring import learner_scoring
from rookery.qd.variation import VariationConfig
from rookery.settings import config_from
from rookery.types import Array


def me_pbt(
    learner: Learner,
    centroids: Array | Archive,
    space: Space | None = None,
    population_size: int = 10,
    ga_population: int = 30,
    config: MePbtConfig | None = None,
    variation: VariationConfig | None = None,
    placement: Placement = ONE_DEVICE,
    **options: Any,
) -> Program:
    """MAP-Elites with Population Based Training, with any learner whose task has a descriptor.

    Args:
      learner: the learner of one member.
      centroids: `[C, D]`, the cells of the repertoire, or an archive, as in `map_elites`.
      space: the hyper-parameters that evolve; the agent's default space if None.
      population_size: P, the number of members that train, at least 1.
      ga_population: the number of variations of elites that are evaluated in addition, at least 1.
      config: the selection of members to replace.
      variation: the configuration of the iso+line operator.
      placement: the placement of members and repertoire; `rookery.distributed.placement` for a mesh.
      **options: fields of `MePbtConfig`, instead of `config`.

    Returns:
      The program.

    Raises:
      ValueError: the task has no descriptor or has discrete actions, the centroids do not fit it, a size is below 1, or
        the fractions together exceed the population.
      TypeError: both `config` and keywords are given, or a keyword that is not a field of `MePbtConfig`.

    Example:
      >>> env = rookery.make("point_room")
      >>> learner = rookery.off_policy(rookery.sac(env.spec), env)
      >>> cells = rookery.qd.grid((8, 8), env.spec.descriptor.lower, env.spec.descriptor.upper)
      >>> program = rookery.me_pbt(learner, cells, population_size=4)
    """
    check_learner(learner, space)
    config = config_from(MePbtConfig, config, options, ("population_size", "ga_population"))
    scoring = learner_scoring(learner, space)
    emitter = pbt_emitter(learner, scoring, space, population_size, ga_population, config, variation, placement)
    program = map_elites(scoring, centroids, emitter, placement)
    settings = {**program.settings, "population_method": "me_pbt", "population": population_size}
    program = program._replace(space=space or learner.space, learner=learner, settings=settings)
    again = (centroids, space, population_size, ga_population, config, variation)
    return rebuild.with_recipe(program, lambda learner, place: me_pbt(learner, *again, place), placement)
