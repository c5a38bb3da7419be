"""The first line that a run prints: what is trained, where."""

from rookery import factories, running
from rookery.distributed.mesh import describe
from rookery.experiments import build
from rookery.experiments.settings import AnyRun, ProgramRun, RecordedRun


def run_title(config: RecordedRun, built: build.Built) -> str:
    """A run in one line: its kind, task, population, devices and timing."""
    if isinstance(config, ProgramRun):
        return running.title(built.program, built.mesh)
    timing = f", {built.program.timing}" if built.program.timing else ""
    task = running.task_title(built.program, factories.label(config.environment.env))
    population = _population_title(config)
    return f"{config.kind} on {task}: {population} on {describe(built.mesh)}{timing}"


def _population_title(config: AnyRun) -> str:
    """A short description of a run's population."""
    if config.skills is not None:
        kind = "skills" if config.skills.skill_kind == "one-hot" else "dimensions of skills"
        return f"population {config.population} with {config.skills.num_skills} {kind}"
    if config.has_team:
        members = "each role" if config.has_separate_roles else "teams"
        return f"population {config.population} of {members}, {config.parameters} parameters"
    if config.learner is None:
        return f"{config.cells.count} cells, {config.batch_size} genotypes a generation"
    if config.cells is not None:
        return f"{config.cells.count} cells, population {config.population} and {config.ga_population} variations"
    return f"population {config.population}"
