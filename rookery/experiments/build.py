"""From a config to what it describes: world, mind, life, people."""

import contextlib
import dataclasses
import math
from typing import NamedTuple, TypeVar

from rookery import hyperparams
from rookery.agents.base import Agent
from rookery.agents.diayn import diayn
from rookery.agents.multi_agent import independent, shared
from rookery.agents.ppo import PpoConfig, ppo
from rookery.agents.sac import SacConfig, sac
from rookery.agents.td3 import Td3Config, td3
from rookery.distributed import layout, sync
from rookery.distributed.device_memory import available
from rookery.distributed.mesh import Mesh, check_population, here, make_mesh, mesh_for, use_cores
from rookery.envs import registry
from rookery.envs.base import Environment, EnvSpec
from rookery.envs.tasks import functions
from rookery.envs.wrappers.skills import skills
from rookery.envs.wrappers.teams import as_team, check_alone, identify
from rookery.experiments.cells import CellsConfig, find_cells
from rookery.experiments.config import WorldConfig
from rookery.experiments.kinds import (
    AgentRun,
    AnyDiaynRun,
    AnyMePbtRun,
    AnyRun,
    MapElitesRun,
    choices,
)
from rookery.experiments.lineage import Schedule, at_steps
from rookery.experiments.on_policy_kinds import AnyOnPolicyRun, AnyTeamRun, PbtIppoRun, annealing, settle
from rookery.experiments.population_settings import PbtRun
from rookery.hyperparams import Space
from rookery.learners.base import Learner
from rookery.learners.off_policy import BUFFER_SIZE, off_policy
from rookery.learners.on_policy import on_policy
from rookery.populations.base import Program
from rookery.populations.independent import seeds
from rookery.populations.pbt import pbt
from rookery.populations.replay import replay
from rookery.populations.role_pbt import pbt_roles
from rookery.populations.sharding import Placement
from rookery.qd.base import Scoring
from rookery.qd.emitters import iso_line
from rookery.qd.map_elites import map_elites
from rookery.qd.me_pbt import me_pbt
from rookery.qd.pbt_emitter import counts
from rookery.qd.scoring import descriptor_of, named_scoring, policy_scoring


class Built(NamedTuple):
    """What the run loop needs."""

    program: Program
    mesh: Mesh
    space: Space | None = None  # as the config chose it; None where nothing has hyper-parameters
    learner: Learner | None = None  # None where nobody learns
    config: AnyRun | None = None  # with the defaults that depend on the machine written out


_Learning = TypeVar("_Learning", bound=AgentRun | AnyMePbtRun)
_OnPolicy = TypeVar("_OnPolicy", bound=AnyOnPolicyRun)

_AGENTS = {SacConfig: sac, Td3Config: td3, PpoConfig: ppo}


def on_one_device(config: AnyRun) -> Built:
    """A config's parts on the first device of this machine, to read what a run has left, whatever it was made on."""
    use_cores(1)
    return build(config, over=here())


def build(config: AnyRun, schedule: Schedule | None = None, over: Mesh | None = None) -> Built:
    """Bind a config's parts to each other.

    Args:
      config: a kind of run.
      schedule: what the hyper-parameters of independent members follow, step by step.
      over: the devices; those that the config asks for by default.

    Raises:
      ValueError: an unknown task, an extra that is not installed, a population that the devices cannot share, a search
        space that makes no sense, or parts that do not fit each other.
    """
    if isinstance(config, MapElitesRun):
        return _map_elites(config, over)
    if config.population < 1:
        raise ValueError(f"population must be at least 1, got {config.population}.")
    if isinstance(config, AnyMePbtRun):
        return _me_pbt(config, over)
    mesh = over or _mesh(config.world, population=config.population)
    config, learner, space = _learner(config, mesh, schedule is not None)
    spread = layout.placement(mesh, config.world.exact)
    if isinstance(config, PbtIppoRun):
        _check_selection(config, learner.spec)
    if isinstance(config, PbtIppoRun) and config.member == "agent":
        program = pbt_roles(learner, space, config.population, config.pbt, spread)
    elif isinstance(config, PbtRun):
        program = pbt(learner, space, config.population, config.pbt, spread)
    else:
        program = seeds(learner, space, config.population, config.draw_hyper, spread)
    if schedule is not None:
        program = replay(program, at_steps(schedule, learner.steps_per_generation, config.run.generations))
    return Built(program, mesh, space, learner, config)


def _check_selection(config: PbtIppoRun, spec: EnvSpec) -> None:
    """By whose return members are selected must be said once, and must say something."""
    assert spec.team is not None
    fitness = config.learner.fitness
    if config.member == "agent" and fitness is not None:
        raise ValueError(f"with member agent everybody is selected by its own return; leave fitness {fitness} out.")
    if config.member == "team" and fitness is None and spec.team.rivals and config.pbt.exploit != "none":
        raise ValueError(
            f"in {spec.name} one agent wins what another loses, so the mean of all would select nobody; give --fitness "
            f"{' or '.join(spec.team.names)}, or --member agent."
        )


def _map_elites(config: MapElitesRun, over: Mesh | None) -> Built:
    mesh = over or _mesh(config.world, **_divided(config.cells), batch=config.batch_size)
    searched = scoring(config)
    placement = _placement(mesh, config)
    emitter = iso_line(searched, config.batch_size, config.variation, placement.cells)
    program = map_elites(searched, find_cells(config.cells, searched.descriptor), emitter, placement)
    return Built(program, mesh, config=config)


def _me_pbt(config: AnyMePbtRun, over: Mesh | None) -> Built:
    if config.ga_population < 1:
        raise ValueError(f"ga_population must be at least 1, got {config.ga_population}.")
    counts(config.me_pbt, config.population)
    sizes = {"population": config.population, "ga_population": config.ga_population}
    mesh = over or _mesh(config.world, **_divided(config.cells), **sizes)
    config, learner, space = _learner(config, mesh)
    cells = find_cells(config.cells, descriptor_of(learner.spec))
    both = config.population, config.ga_population
    placement = _placement(mesh, config)
    program = me_pbt(learner, cells, space, *both, config.me_pbt, config.variation, placement)
    return Built(program, mesh, space, learner, config)


def _placement(mesh: Mesh, config: MapElitesRun | AnyMePbtRun) -> Placement:
    return layout.placement(mesh, config.world.exact, config.cells.count, config.cells.shard_repertoire)


def _mesh(world: WorldConfig, **sizes: int) -> Mesh:
    """Devices that divide all of these sizes evenly; made from a CPU's cores before anything else starts JAX."""
    if world.devices is not None and world.devices < 1:
        raise ValueError(f"devices must be at least 1, got {world.devices}.")
    shared = math.gcd(*sizes.values())
    use_cores(shared if world.devices is None else world.devices, sync.runtime().num_processes)
    mesh = mesh_for(shared) if world.devices is None else make_mesh(world.devices)
    for name, size in sizes.items():
        check_population(size, mesh, name)
    return mesh


def _divided(cells: CellsConfig) -> dict[str, int]:
    """Cells that the devices must divide too."""
    return {"repertoire": cells.count} if cells.shard_repertoire else {}


def _learner(config: _Learning, mesh: Mesh, scheduled: bool = False) -> tuple[_Learning, Learner, Space]:
    """The config with its open settings settled, one member's training loop, and what of it evolves."""
    environment = _environment(config.world)
    if isinstance(config, AnyOnPolicyRun):
        return _on_policy(config, environment, scheduled)
    check_alone(environment.spec)
    if isinstance(config, AnyDiaynRun):
        environment = skills(environment, config.skills.num_skills, config.skills.skill_kind, config.skills.balanced)
    agent = wrapped_agent(config, environment.spec)
    if isinstance(config, AnyDiaynRun):
        agent = diayn(agent, environment.spec, config.diayn)
    rows = config.learner.buffer_size or _buffer_size(config, environment.spec, mesh)
    config = dataclasses.replace(config, learner=dataclasses.replace(config.learner, buffer_size=rows))
    learner = off_policy(agent, environment, config.learner)
    return config, learner, hyperparams.choose(agent.space, **choices(config))


def _buffer_size(config: AgentRun | AnyMePbtRun, spec: EnvSpec, mesh: Mesh) -> int:
    """Rows of each member's replay buffer: the papers' 1 million, or as many as a sixth of the memory holds.

    While a checkpoint is written there are three times as many, which is half of the memory.
    """
    memory = available(mesh)
    if memory is None:
        return BUFFER_SIZE
    row = 4 * (2 * spec.observation_size + spec.action_size + 2)  # bytes of a transition
    members = config.population // mesh.devices.size
    return max(min(BUFFER_SIZE, memory // (6 * row * members)), config.learner.num_envs)


def _on_policy(config: _OnPolicy, environment: Environment, scheduled: bool) -> tuple[_OnPolicy, Learner, Space]:
    if isinstance(config, AnyTeamRun):
        environment = as_team(environment)
        if config.parameters == "shared" and config.identify:
            environment = identify(environment)
    config = settle(config, environment.spec)
    agent = ppo(environment.spec, annealing(config, scheduled))
    if isinstance(config, AnyTeamRun):
        agent = {"independent": independent, "shared": shared}[config.parameters](agent, environment.spec)
    return config, on_policy(agent, environment, config.learner), hyperparams.choose(agent.space, **choices(config))


def wrapped_agent(config: AgentRun | AnyMePbtRun, spec: EnvSpec) -> Agent:
    """The agent that a run names, without what is wrapped around it."""
    return _AGENTS[type(config.agent)](spec, config.agent)


def scoring(config: MapElitesRun) -> Scoring:
    """A function by its name, or policies in an environment."""
    if config.world.env not in functions.names():
        if config.dimensions is not None:
            raise ValueError(f"dimensions belong to a function ({', '.join(functions.names())}); leave them out.")
        environment = _environment(config.world)
        check_alone(environment.spec)
        return policy_scoring(environment, config.policy, config.evaluation)
    if chosen := _overrides(config.world):
        raise ValueError(f"{config.world.env} is a function and has no {', '.join(chosen)}; leave it out.")
    if config.dimensions is not None and config.dimensions < 1:
        raise ValueError(f"dimensions must be at least 1, got {config.dimensions}.")
    return named_scoring(functions.function(config.world.env, config.dimensions))


def _environment(world: WorldConfig) -> Environment:
    return registry.make(world.env, **_overrides(world))


def _overrides(world: WorldConfig) -> dict[str, object]:
    chosen: dict[str, object] = {"episode_length": world.episode_length, "backend": world.backend}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    return chosen | dict(_option(word) for word in world.option)


def _option(word: str) -> tuple[str, object]:
    """`name=value` as a name and a number, whole where it is written so, or else a word."""
    name, told, value = word.partition("=")
    if not (name and told and value):
        raise ValueError(f"option must be name=value, such as predator_speed=3, got {word!r}.")
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return name, kind(value)
    return name, value
