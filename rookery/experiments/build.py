"""Builds a run from its config: environment, agent, learner, population program and device mesh."""

import contextlib
import dataclasses
import math
from typing import NamedTuple, TypeVar

from rookery import hyperparams
from rookery.agents.base import OffPolicyAgent
from rookery.agents.diayn import diayn
from rookery.agents.multi_agent import independent, shared
from rookery.agents.ppo import ppo
from rookery.agents.sac import SacConfig, sac
from rookery.agents.td3 import Td3Config, td3
from rookery.distributed import layout
from rookery.distributed.device_memory import available
from rookery.distributed.mesh import Mesh, check_population, here, make_mesh, mesh_for, use_cores
from rookery.envs import registry
from rookery.envs.base import Environment, EnvSpec
from rookery.envs.tasks import functions
from rookery.envs.wrappers.skills import skills
from rookery.envs.wrappers.teams import as_team, check_alone, identify
from rookery.experiments.cells import CellsConfig, find_cells
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.kinds import (
    AgentRun,
    AnyDiaynRun,
    AnyMePbtRun,
    AnyRun,
    MapElitesRun,
    choices,
)
from rookery.experiments.lineage import Schedule, at_steps
from rookery.experiments.on_policy_kinds import AnyOnPolicyRun, AnyTeamRun, PbtIppoRun, fill_defaults, with_annealing
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
    """The parts of a run, built from its config."""

    program: Program
    """The population program that the training loop runs."""
    mesh: Mesh
    """The devices that the population is sharded over."""
    space: Space | None = None
    """The search space with the config's choices applied; None if the run has no hyper-parameters."""
    learner: Learner | None = None
    """The training algorithm of one member; None if the run trains no agents."""
    config: AnyRun | None = None
    """The config with the defaults filled in that depend on the machine or the environment."""


_Learning = TypeVar("_Learning", bound=AgentRun | AnyMePbtRun)
_OnPolicy = TypeVar("_OnPolicy", bound=AnyOnPolicyRun)

_OFF_POLICY_AGENTS = {SacConfig: sac, Td3Config: td3}


def on_one_device(config: AnyRun) -> Built:
    """Build a config on the first device of this machine, to read a run's files whatever devices it ran on."""
    use_cores(1)
    return build(config, over=here())


def build(config: AnyRun, schedule: Schedule | None = None, over: Mesh | None = None) -> Built:
    """Build the environment, learner, program and mesh that a config describes.

    Args:
      config: of any kind of run.
      schedule: hyper-parameters per generation that independent members train with.
      over: the mesh; by default the devices that the config requests.

    Raises:
      ValueError: the task is unknown, an optional dependency is missing, the devices cannot divide the population
        evenly, the search space is invalid, or parts of the config are incompatible.
    """
    if isinstance(config, MapElitesRun):
        return _map_elites(config, over)
    if config.population < 1:
        raise ValueError(f"population must be at least 1, got {config.population}.")
    if isinstance(config, AnyMePbtRun):
        return _me_pbt(config, over)
    mesh = over or _mesh(config.environment, population=config.population)
    config, learner, space = _learner(config, mesh, schedule is not None)
    placement = layout.placement(mesh, config.environment.exact)
    if isinstance(config, PbtIppoRun):
        _check_selection(config, learner.spec)
    if isinstance(config, PbtIppoRun) and config.member == "agent":
        program = pbt_roles(learner, space, config.population, config.pbt, placement)
    elif isinstance(config, PbtRun):
        program = pbt(learner, space, config.population, config.pbt, placement)
    else:
        program = seeds(learner, space, config.population, config.draw_hyper, placement)
    if schedule is not None:
        program = replay(program, at_steps(schedule, learner.steps_per_generation, config.run.generations))
    return Built(program, mesh, space, learner, config)


def _check_selection(config: PbtIppoRun, spec: EnvSpec) -> None:
    """Check that the config defines the fitness of a team or of an agent exactly once, and that it can rank members."""
    assert spec.team is not None
    fitness = config.learner.fitness
    if config.member == "agent" and fitness is not None:
        raise ValueError(
            f"with member agent each agent is selected by its individual return; leave fitness {fitness} out."
        )
    if config.member == "team" and fitness is None and spec.team.rivals and config.pbt.exploit != "none":
        raise ValueError(
            f"in {spec.name} one agent wins what another loses, so the mean return of a team cannot rank members; give "
            f"--fitness {' or '.join(spec.team.names)}, or --member agent."
        )


def _map_elites(config: MapElitesRun, over: Mesh | None) -> Built:
    mesh = over or _mesh(config.environment, **_sharded_cells(config.cells), batch=config.batch_size)
    scored = scoring(config)
    placement = _placement(mesh, config)
    emitter = iso_line(scored, config.batch_size, config.variation, placement.cells)
    program = map_elites(scored, find_cells(config.cells, scored.descriptor), emitter, placement)
    return Built(program, mesh, config=config)


def _me_pbt(config: AnyMePbtRun, over: Mesh | None) -> Built:
    if config.ga_population < 1:
        raise ValueError(f"ga_population must be at least 1, got {config.ga_population}.")
    counts(config.me_pbt, config.population)
    sizes = {"population": config.population, "ga_population": config.ga_population}
    mesh = over or _mesh(config.environment, **_sharded_cells(config.cells), **sizes)
    config, learner, space = _learner(config, mesh)
    cells = find_cells(config.cells, descriptor_of(learner.spec))
    both = config.population, config.ga_population
    placement = _placement(mesh, config)
    program = me_pbt(learner, cells, space, *both, config.me_pbt, config.variation, placement)
    return Built(program, mesh, space, learner, config)


def _placement(mesh: Mesh, config: MapElitesRun | AnyMePbtRun) -> Placement:
    return layout.placement(mesh, config.environment.exact, config.cells.count, config.cells.shard_repertoire)


def _mesh(environment: EnvironmentConfig, **sizes: int) -> Mesh:
    """The mesh of devices that divide all `sizes` evenly.

    On a CPU, its cores become devices here, which must happen before any other call initialises JAX.
    """
    if environment.devices is not None and environment.devices < 1:
        raise ValueError(f"devices must be at least 1, got {environment.devices}.")
    divisor = math.gcd(*sizes.values())
    use_cores(divisor if environment.devices is None else environment.devices)
    mesh = mesh_for(divisor) if environment.devices is None else make_mesh(environment.devices)
    for name, size in sizes.items():
        check_population(size, mesh, name)
    return mesh


def _sharded_cells(cells: CellsConfig) -> dict[str, int]:
    """The repertoire's size, if its cells are sharded and the devices must therefore divide it."""
    return {"repertoire": cells.count} if cells.shard_repertoire else {}


def _learner(config: _Learning, mesh: Mesh, scheduled: bool = False) -> tuple[_Learning, Learner, Space]:
    """The config with its open defaults filled in, the learner of one member, and the search space."""
    environment = _environment(config.environment)
    if isinstance(config, AnyOnPolicyRun):
        return _on_policy(config, environment, scheduled)
    check_alone(environment.spec)
    if isinstance(config, AnyDiaynRun):
        environment = skills(environment, config.skills.num_skills, config.skills.skill_kind, config.skills.balanced)
    agent = base_agent(config, environment.spec)
    if isinstance(config, AnyDiaynRun):
        agent = diayn(agent, environment.spec, config.diayn)
    rows = config.learner.buffer_size or _buffer_size(config, environment.spec, mesh)
    config = dataclasses.replace(config, learner=dataclasses.replace(config.learner, buffer_size=rows))
    learner = off_policy(agent, environment, config.learner)
    return config, learner, hyperparams.choose(agent.space, **choices(config))


def _buffer_size(config: AgentRun | AnyMePbtRun, spec: EnvSpec, mesh: Mesh) -> int:
    """Transitions in each member's replay buffer: 1 million as in the papers, or as many as fit a sixth of the memory.

    While a checkpoint is written, up to three copies of the buffers exist, which is half of the memory.
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
    config = fill_defaults(config, environment.spec)
    agent = ppo(environment.spec, with_annealing(config, scheduled))
    if isinstance(config, AnyTeamRun):
        agent = {"independent": independent, "shared": shared}[config.parameters](agent, environment.spec)
    return config, on_policy(agent, environment, config.learner), hyperparams.choose(agent.space, **choices(config))


def base_agent(config: AgentRun | AnyMePbtRun, spec: EnvSpec) -> OffPolicyAgent:
    """The off-policy agent of a run's config without a wrapper for skills."""
    return _OFF_POLICY_AGENTS[type(config.agent)](spec, config.agent)


def scoring(config: MapElitesRun) -> Scoring:
    """The scoring function of a MAP-Elites run: a named test function, or policies evaluated in an environment.

    Raises:
      ValueError: `dimensions` is given for an environment or is below 1, or an environment setting is given for a
        test function.
    """
    if config.environment.env not in functions.names():
        if config.dimensions is not None:
            raise ValueError(
                f"dimensions belong to a function ({', '.join(functions.names())}), but {config.environment.env} is an "
                "environment; leave them out."
            )
        environment = _environment(config.environment)
        check_alone(environment.spec)
        return policy_scoring(environment, config.policy, config.evaluation)
    if chosen := _overrides(config.environment):
        raise ValueError(f"{config.environment.env} is a function and has no {', '.join(chosen)}; leave it out.")
    if config.dimensions is not None and config.dimensions < 1:
        raise ValueError(f"dimensions must be at least 1, got {config.dimensions}.")
    return named_scoring(functions.function(config.environment.env, config.dimensions))


def _environment(environment: EnvironmentConfig) -> Environment:
    return registry.make(environment.env, **_overrides(environment))


def _overrides(environment: EnvironmentConfig) -> dict[str, object]:
    chosen: dict[str, object] = {"episode_length": environment.episode_length, "backend": environment.backend}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    return chosen | dict(_option(word) for word in environment.option)


def _option(word: str) -> tuple[str, object]:
    """Parse `name=value` into the name and an int, a float or, if it is neither, a string."""
    name, separator, value = word.partition("=")
    if not (name and separator and value):
        raise ValueError(f"option must be name=value, such as predator_speed=3, got {word!r}.")
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return name, kind(value)
    return name, value
