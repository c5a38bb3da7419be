"""Builds a run from its config: environment, agent, learner, population program and device mesh."""

import dataclasses
import math
from typing import NamedTuple

from rookery.distributed import layout
from rookery.distributed.mesh import (
    Mesh,
    check_platform,
    check_population,
    here,
    make_mesh,
    mesh_for,
    use_cores,
    use_precision,
)
from rookery.experiments import programs
from rookery.experiments.agents import DISCOVERIES
from rookery.experiments.build_parts import learner_of, option_values, scoring
from rookery.experiments.cells import CellsConfig, find_cells
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.settings import MapElitesRun, MePbtRun, PbtRun, ProgramRun, RecordedRun
from rookery.hyperparams import Space
from rookery.learners.base import Learner
from rookery.learners.evaluation import measures_episodes
from rookery.learners.on_policy import OnPolicyConfig
from rookery.populations.base import Program
from rookery.populations.independent import seeds
from rookery.populations.pbt import pbt
from rookery.populations.replay import replay
from rookery.populations.role_pbt import pbt_roles
from rookery.populations.sharding import Placement
from rookery.qd.base import Emitter, Scoring
from rookery.qd.cma.emitter import cma_mae
from rookery.qd.emitters import iso_line
from rookery.qd.map_elites import map_elites
from rookery.qd.me_pbt import me_pbt
from rookery.qd.pbt_emitter import counts
from rookery.qd.policy_gradient.factories import dcrl_me, gradient_count, pga_me
from rookery.qd.scoring import descriptor_of
from rookery.storage.lineage import Schedule, at_steps


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
    config: RecordedRun | None = None
    """The config with the defaults filled in that depend on the machine or the environment."""

    @property
    def has_repertoire(self) -> bool:
        """Whether the result is a repertoire of elites, not a population alone."""
        return self.program.table is not None

    @property
    def has_separate_roles(self) -> bool:
        """Whether each role of a team has a separate population."""
        return self.program.settings.get("member") == "agent"

    @property
    def has_skills(self) -> bool:
        """Whether the agents discover skills."""
        return self.learner is not None and self.learner.spec.skill is not None

    @property
    def discovery(self) -> str:
        """The name of the method of skill discovery; "" without skills, or if it is unknown."""
        return next((name for name in DISCOVERIES if name in self.program.settings), "")

    @property
    def agent(self) -> str:
        """The name of the agent; "" if it is unknown."""
        return str(self.program.settings.get("agent", {}).get("name", ""))


def on_one_device(config: RecordedRun) -> Built:
    """Build a config on the first device of this machine, to read a run's files whatever devices it ran on."""
    use_cores(1)
    return build(config, over=here())


def build(
    config: RecordedRun, schedule: Schedule | None = None, over: Mesh | None = None, populations: int = 1
) -> Built:
    """Build the environment, learner, program and mesh that a config describes.

    Args:
      config: of any kind of run.
      schedule: hyper-parameters per generation that independent members train with.
      over: the mesh; by default the devices that the config requests.
      populations: number of such populations that share the memory, as islands do.

    Raises:
      ValueError: the task is unknown, an optional dependency is missing, the devices cannot divide the population
        evenly, the search space is invalid, or parts of the config are incompatible.
    """
    if isinstance(config, ProgramRun):
        return _program(config, over)
    if config.learner is None:
        return _map_elites(config, over)
    if config.cells is not None:
        return _me_pbt(config, over, populations)
    mesh = _mesh(config.environment, over, population=config.population)
    config, learner, space = learner_of(config, mesh, schedule, populations)
    placement = layout.placement(mesh, config.environment.exact)
    if config.pbt is None:
        program = seeds(learner, space, config.population, config.draw_hyper, placement)
    else:
        config = _selection(config, learner)
        method = pbt_roles if config.has_separate_roles else pbt
        program = method(learner, space, config.population, config.pbt, placement, config.rating_opponents)
    if schedule is not None:
        program = replay(program, at_steps(schedule, learner.steps_per_generation, config.run.generations))
    return Built(program, mesh, space, learner, config)


def of_program(program: Program, over: Mesh) -> Built:
    """The parts of a run, from its program.

    Args:
      program: as it was built in Python.
      over: the devices to bind it to.
    """
    program = layout.place(program, over)
    return Built(program, over, program.space, program.learner)


def _program(config: ProgramRun, over: Mesh | None) -> Built:
    devices = config.environment.devices
    if over is None:
        use_cores(devices)  # the population is not known before the program is built, which may start JAX
    program = programs.make(config.factory, option_values(config.option))
    if over is None:
        over = layout.mesh_of(program) if devices is None else _requested_mesh(devices)
        check_population(program.population_size, over)
    return of_program(program, over)._replace(config=config)


def _selection(config: PbtRun, learner: Learner) -> PbtRun:
    """The config with what members are selected by filled in, and the number of opponents if that is a rating.

    Raises:
      ValueError: the config of a team defines the fitness of a team or of an agent more than once, or none that can
        rank members; a number of opponents is given without ratings; or a rating chooses the best checkpoint.
    """
    blind = _cannot_rank(config, learner)
    if config.select_by == "auto":
        rated = blind and config.parameters == "independent"
        config = dataclasses.replace(config, select_by="rating" if rated else "fitness")
    if config.select_by == "rating":
        return _with_opponents(config)
    if config.rating_opponents is not None:
        raise ValueError("rating_opponents has an effect only with --select-by rating; give it, or leave this out.")
    if blind:
        assert learner.spec.team is not None
        raise ValueError(
            f"in {learner.spec.name} one agent wins what another loses, so the mean return of a team cannot rank "
            f"members; give --fitness {' or '.join(learner.spec.team.names)}, or, with separate parameters and without "
            "islands, --select-by rating or --member agent."
        )
    if config.has_separate_roles and (fitness := _fitness_of(config)) is not None:
        raise ValueError(
            f"with member agent each agent is selected by its individual return; leave fitness {fitness} out."
        )
    return config


def _cannot_rank(config: PbtRun, learner: Learner) -> bool:
    """Whether members would be selected by the mean return of a team whose agents compete."""
    assert learner.evaluator is not None
    team = learner.spec.team
    ranked = _fitness_of(config) is not None or config.has_separate_roles or config.pbt.exploit == "none"
    return team is not None and team.competitive and not (ranked or measures_episodes(learner.evaluator))


def _fitness_of(config: PbtRun) -> str | None:
    return config.learner.fitness if isinstance(config.learner, OnPolicyConfig) else None


def _with_opponents(config: PbtRun) -> PbtRun:
    """The config of members that are selected by rating with the number of opponents filled in."""
    if (fitness := _fitness_of(config)) is not None:
        raise ValueError(f"select_by rating rates the agents of all roles; leave fitness {fitness} out.")
    if config.run.best_by is not None and "rating" in config.run.best_by:
        raise ValueError(
            f"best_by cannot be {config.run.best_by}: ratings compare the members of one generation, so those of "
            "different generations have no order; leave it out, or choose a return."
        )
    opponents = min(_OPPONENTS, config.population) if config.rating_opponents is None else config.rating_opponents
    return dataclasses.replace(config, rating_opponents=opponents)


_OPPONENTS = 4
"""Default number of opponents of a rating; more cost evaluations, and average over more styles of play."""


def _map_elites(config: MapElitesRun, over: Mesh | None) -> Built:
    sizes = {**_sharded_cells(config.cells), "batch": config.batch_size}
    if gradients := config.pga_me or config.dcrl_me:
        sizes["gradient batch (batch_size less its variation_share)"] = gradient_count(config.batch_size, gradients)
    mesh = _mesh(config.environment, over, **sizes)
    scored = scoring(config)
    placement = _placement(mesh, config)
    program = map_elites(
        scored,
        find_cells(config.cells, scored.descriptor, config.cma_mae is not None),
        _emitter(config, scored, placement),
        placement,
    )
    return Built(program, mesh, config=config)


def _emitter(config: MapElitesRun, scored: Scoring, placement: Placement) -> Emitter:
    if config.cma_mae is not None:
        return cma_mae(scored, config.batch_size, config.cma_mae, placement)
    given = config.policy, config.variation, placement
    if config.pga_me is not None:
        return pga_me(scored, config.batch_size, config.pga_me, *given)
    if config.dcrl_me is not None:
        return dcrl_me(scored, config.batch_size, config.dcrl_me, *given)
    return iso_line(scored, config.batch_size, config.variation, placement.cells)


def _me_pbt(config: MePbtRun, over: Mesh | None, populations: int) -> Built:
    counts(config.me_pbt, config.population)
    sizes = {"population": config.population, "ga_population": config.ga_population}
    mesh = _mesh(config.environment, over, **_sharded_cells(config.cells), **sizes)
    config, learner, space = learner_of(config, mesh, populations=populations)
    cells = find_cells(config.cells, descriptor_of(learner.spec))
    both = config.population, config.ga_population
    placement = _placement(mesh, config)
    program = me_pbt(learner, cells, space, *both, config.me_pbt, config.variation, placement)
    return Built(program, mesh, space, learner, config)


def _placement(mesh: Mesh, config: MapElitesRun | MePbtRun) -> Placement:
    return layout.placement(mesh, config.environment.exact, config.cells.count, config.cells.shard_repertoire)


def _mesh(environment: EnvironmentConfig, over: Mesh | None, **sizes: int) -> Mesh:
    """The mesh `over`, or one of devices that divide all `sizes` evenly, with the requested precision.

    On a CPU, its cores become devices here, which must happen before any other call initialises JAX.
    """
    if over is None:
        divisor = math.gcd(*sizes.values())
        use_cores(environment.devices or divisor)
        over = mesh_for(divisor) if environment.devices is None else _requested_mesh(environment.devices)
    for name, size in sizes.items():
        check_population(size, over, name)
    use_precision(environment.precision)
    return over


def _requested_mesh(devices: int) -> Mesh:
    check_platform()
    try:
        return make_mesh(devices)
    except ValueError as error:
        raise ValueError(f"devices cannot be {devices}: {error}") from error


def _sharded_cells(cells: CellsConfig) -> dict[str, int]:
    """The repertoire's size, if its cells are sharded and the devices must therefore divide it."""
    return {"repertoire": cells.count} if cells.shard_repertoire else {}
