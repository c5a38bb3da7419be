"""The complete settings of a run, and its plan: the memory that it needs, without training."""

import dataclasses
from pathlib import Path

from rookery import factories
from rookery.cli import islands, listings
from rookery.cli.titles import run_title
from rookery.distributed.sync import is_first
from rookery.envs import custom
from rookery.experiments import build, warm_start, warm_start_settings
from rookery.experiments.settings import ProgramRun, RecordedRun
from rookery.populations import pb2
from rookery.storage.lineage import Schedule, check_agent, lineage
from rookery.storage.record import agent_of
from rookery.training import loop
from rookery.training.memory_plan import remedy
from rookery.training.terminal import terminal


def complete(config: RecordedRun) -> tuple[RecordedRun, Schedule | None]:
    """The config with its run directory and its absolute names, and the schedule that it replays."""
    schedule, name = None, config.kind
    if isinstance(config, ProgramRun):
        run_dir = config.run.run_dir or f"runs/{name}-{factories.label(config.factory)}-{config.run.seed}"
        run = dataclasses.replace(config.run, run_dir=run_dir)
        return dataclasses.replace(config, factory=factories.canonical(config.factory), run=run), None
    if config.replay_schedule is not None and config.cells is None:  # no kind with a repertoire has a schedule
        schedule = lineage(config.replay_schedule).schedule()
        check_agent(schedule, agent_of(name))
        config, name = warm_start_settings.without_population_method(config), f"replay-{agent_of(name)}"
    run_dir = config.run.run_dir or f"runs/{name}-{factories.label(config.environment.env)}-{config.run.seed}"
    environment = dataclasses.replace(config.environment, env=custom.canonical(config.environment.env))
    run = dataclasses.replace(config.run, run_dir=run_dir)
    given = {name: getattr(config, name, None) for name in _OTHER_RUNS}
    others = {name: str(Path(path).resolve()) for name, path in given.items() if path is not None}
    return dataclasses.replace(config, environment=environment, run=run, **others), schedule


_OTHER_RUNS = ("init_from", "replay_schedule")
"""Settings that name the directory of another run, which a resumed run finds from any working directory."""


def plan(config: RecordedRun) -> None:
    """`rookery train KIND --plan`."""
    config, schedule = complete(config)
    config = islands.planned(config)
    built = build.build(config, schedule)  # which turns CPU cores into devices, so JAX must not be initialised before
    built = built._replace(program=warm_start.begin(config, built))
    console = terminal(quiet=config.run.quiet or not is_first())
    console.print_line(run_title(config, built))
    console.print_line("compiling a generation, which train will find in the cache")
    planned = loop.plan(built.program, config.run, built.mesh)
    console.print(listings.plan_table(planned))
    if built.program.settings.get("pbt", {}).get("perturb") == "pb2":
        console.print_line(pb2.bounds(built.program.population_size))
    if message := remedy(planned):
        raise ValueError(message)
