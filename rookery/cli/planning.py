"""The complete settings of a run, and its plan: the memory that it needs, without training."""

from rookery import running
from rookery.cli import islands, listings
from rookery.distributed.sync import is_first
from rookery.experiments import build, warm_start
from rookery.experiments.spec import RunSpec
from rookery.populations import pb2
from rookery.training import loop
from rookery.training.memory_plan import remedy
from rookery.training.terminal import terminal


def plan(spec: RunSpec) -> None:
    """`rookery train KIND --plan`."""
    spec, schedule = running.complete(spec)
    spec = islands.planned(spec)
    built = build.build(spec, schedule)  # which turns CPU cores into devices, so JAX must not be initialised before
    built = built._replace(program=warm_start.start_from(spec, built))
    console = terminal(quiet=spec.run.quiet or not is_first())
    console.print_line(running.run_title(spec, built))
    console.print_line("compiling a generation, which train will find in the cache")
    planned = loop.plan(built.program, spec.run, built.mesh)
    console.print(listings.plan_table(planned))
    chosen = built.program.settings.get("pbt", {})
    if chosen.get("perturb") == "pb2" or chosen.get("exploit_interval") == "auto":
        console.print_line(pb2.bounds(built.program.population_size))
    if message := remedy(planned):
        raise ValueError(message)
