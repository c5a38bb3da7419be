"""From a config to what it describes: world, mind, life, people."""

from typing import NamedTuple

from rookery import devices, hyperparams
from rookery.agents.sac import SacConfig, sac
from rookery.agents.td3 import Td3Config, td3
from rookery.devices import Mesh
from rookery.envs import tasks
from rookery.envs.api import Environment
from rookery.hyperparams import Space
from rookery.learners.off_policy import off_policy
from rookery.populations.api import Program
from rookery.populations.pbt import pbt
from rookery.populations.replay import replay
from rookery.populations.seeds import seeds
from rookery.runs.config import AnyRun, PbtRun, WorldConfig, choices
from rookery.runs.lineage import Schedule, at_steps


class Built(NamedTuple):
    """What the run loop needs."""

    environment: Environment
    program: Program
    mesh: Mesh
    space: Space  # as the config chose it


_AGENTS = {SacConfig: sac, Td3Config: td3}


def build(config: AnyRun, schedule: Schedule | None = None) -> Built:
    """Bind a config's parts to each other.

    Args:
      config: a kind of run.
      schedule: what the hyper-parameters of independent members follow, step by step.

    Raises:
      ValueError: an unknown task, an extra that is not installed, a population that the devices cannot share, a search
        space that makes no sense, or parts that do not fit each other.
    """
    devices.use_cores(config.population)
    mesh = devices.mesh_for(config.population, config.world.devices)
    environment = tasks.make(config.world.env, **_overrides(config.world))
    agent = _AGENTS[type(config.agent)](environment.spec, config.agent)
    space = hyperparams.choose(agent.space, **choices(config))
    learner = off_policy(agent, environment, config.learner)
    spread = devices.population_map(mesh, config.world.exact)
    if isinstance(config, PbtRun):
        program = pbt(learner, space, config.population, config.pbt, spread)
    else:
        program = seeds(learner, space, config.population, config.draw_hyper, spread)
    if schedule is not None:
        program = replay(program, at_steps(schedule, learner.steps_per_generation, config.run.generations))
    return Built(environment, program, mesh, space)


def _overrides(world: WorldConfig) -> dict[str, object]:
    chosen = {"episode_length": world.episode_length, "backend": world.backend}
    return {name: value for name, value in chosen.items() if value is not None}
