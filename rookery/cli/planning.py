"""The complete settings of a run, and its plan: the memory that it needs, without training."""

from pathlib import Path

from rookery import factories, running
from rookery.cli import islands, listings
from rookery.distributed.mesh import describe
from rookery.distributed.sync import is_first
from rookery.envs import custom
from rookery.experiments import build, warm_start, warm_start_settings
from rookery.experiments.spec import Built, RunSpec
from rookery.populations import pb2
from rookery.storage.lineage import Schedule, check_agent, lineage
from rookery.storage.record import agent_of
from rookery.training import loop
from rookery.training.memory_plan import remedy
from rookery.training.terminal import terminal


def complete(spec: RunSpec) -> tuple[RunSpec, Schedule | None]:
    """The run with its run directory and its absolute names, and the schedule that it replays."""
    schedule, name, settings = None, spec.kind.name, spec.flat
    if not spec.kind.method.has_task:
        factory = settings["factory"]
        run_dir = spec.run.run_dir or f"runs/{name}-{factories.label(factory)}-{spec.run.seed}"
        return spec.replace(factory=factories.canonical(factory)).with_run(run_dir=run_dir), None
    if settings.get("replay_schedule") is not None:
        schedule = lineage(settings["replay_schedule"]).schedule()
        check_agent(schedule, agent_of(name))
        spec, name = warm_start_settings.without_population_method(spec), f"replay-{agent_of(name)}"
    run_dir = spec.run.run_dir or f"runs/{name}-{factories.label(spec.environment.env)}-{spec.run.seed}"
    given = {name: spec.flat.get(name) for name in _OTHER_RUNS}
    others = {name: str(Path(path).resolve()) for name, path in given.items() if path is not None}
    spec = spec.replace(**others).with_environment(env=custom.canonical(spec.environment.env))
    return spec.with_run(run_dir=run_dir), schedule


_OTHER_RUNS = ("init_from", "replay_schedule")
"""Settings that name the directory of another run, which a resumed run finds from any working directory."""


def plan(spec: RunSpec) -> None:
    """`rookery train KIND --plan`."""
    spec, schedule = complete(spec)
    spec = islands.planned(spec)
    built = build.build(spec, schedule)  # which turns CPU cores into devices, so JAX must not be initialised before
    built = built._replace(program=warm_start.begin(spec, built))
    console = terminal(quiet=spec.run.quiet or not is_first())
    console.print_line(run_title(spec, built))
    console.print_line("compiling a generation, which train will find in the cache")
    planned = loop.plan(built.program, spec.run, built.mesh)
    console.print(listings.plan_table(planned))
    if built.program.settings.get("pbt", {}).get("perturb") == "pb2":
        console.print_line(pb2.bounds(built.program.population_size))
    if message := remedy(planned):
        raise ValueError(message)


def run_title(spec: RunSpec, built: Built) -> str:
    """A run in one line: its kind, task, population, devices and timing."""
    if not spec.kind.method.has_task:
        return running.title(built.program, built.mesh)
    timing = f", {built.program.timing}" if built.program.timing else ""
    task = running.task_title(built.program, factories.label(spec.environment.env))
    return f"{spec.kind.name} on {task}: {spec.kind.method.describe(spec)} on {describe(built.mesh)}{timing}"
