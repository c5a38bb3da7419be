"""From a config to what it describes: world, mind, life, people."""

from typing import NamedTuple

from rookery import devices
from rookery.agents.sac import sac
from rookery.devices import Mesh
from rookery.envs import tasks
from rookery.envs.api import Environment
from rookery.learners.off_policy import off_policy
from rookery.populations.api import Program
from rookery.populations.pbt import pbt
from rookery.populations.seeds import seeds
from rookery.runs.config import AnyRun, PbtSacRun, WorldConfig


class Built(NamedTuple):
    """What the run loop needs."""

    environment: Environment
    program: Program
    mesh: Mesh


def build(config: AnyRun) -> Built:
    """Bind a config's parts to each other.

    Raises:
      ValueError: an unknown task, an extra that is not installed, a population that the devices cannot share, or parts
        that do not fit each other.
    """
    devices.use_cores(config.population)
    mesh = devices.mesh_for(config.population, config.world.devices)
    environment = tasks.make(config.world.env, **_overrides(config.world))
    learner = off_policy(sac(environment.spec, config.agent), environment, config.learner)
    spread = devices.population_map(mesh, config.world.exact)
    if isinstance(config, PbtSacRun):
        program = pbt(learner, None, config.population, config.pbt, spread)
    else:
        program = seeds(learner, None, config.population, config.draw_hyper, spread)
    return Built(environment, program, mesh)


def _overrides(world: WorldConfig) -> dict[str, object]:
    chosen = {"episode_length": world.episode_length, "backend": world.backend}
    return {name: value for name, value in chosen.items() if value is not None}
