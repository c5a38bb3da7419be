"""Starts a run from the members, the skills or the repertoire of another run (`--init-from`)."""

import warnings
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import hyperparams, trees
from rookery.distributed import layout, programs
from rookery.distributed.mesh import Mesh, here
from rookery.experiments import build, config_io
from rookery.experiments.methods.program import of_program
from rookery.experiments.parts import base_agent
from rookery.experiments.spec import Built, RunSpec
from rookery.hyperparams import Space
from rookery.learners.base import genotype, without_data
from rookery.learners.skills import freeze_skills
from rookery.populations.base import Program, ProgramState
from rookery.populations.warm_start import begin_as
from rookery.qd import repertoire as repertoires
from rookery.qd.initial import begin_from
from rookery.qd.map_elites import repertoire_of
from rookery.qd.scoring import learner_scoring
from rookery.settings import SettingError
from rookery.storage import sources
from rookery.storage.best_checkpoint import find
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.csv_log import read_members
from rookery.storage.island_files import best_of
from rookery.storage.record import agent_of, check_rebuildable
from rookery.storage.run_dir import RunFolder, open_existing
from rookery.types import FROM_REPERTOIRE, Genotype, Hyper


class LostRowsError(ValueError):
    """`lineage.csv` lacks the last evaluation of a checkpoint, by which the best member is chosen."""


class RestoredRun(NamedTuple):
    """A run opened at one of its checkpoints, to read its agents."""

    path: Path  # the run directory
    spec: RunSpec  # the description of the run
    built: Built  # the parts of the run, built on one device
    state: ProgramState  # the state in the checkpoint, without environments and replay buffers
    generation: int  # the generation of the checkpoint: the number of finished generations


def restore_run(run_dir: str | Path, checkpoint: str | int = "last", program: Program | None = None) -> RestoredRun:
    """Open a run at one of its checkpoints; the run is not changed.

    Args:
      run_dir: the run directory; of a run of islands, the best island is opened.
      checkpoint: "last"; "best", by the metric `best_by` that the run was configured with; or a generation number.
      program: the program of the run; that of a run of the command line is built from its record.

    Raises:
      ValueError: the folder is no run directory, the run was started from Python and no program is given, or
        `checkpoint` has another value.
      CheckpointError: the run has no such complete checkpoint.
    """
    opened = sources.opened(best_of(run_dir))
    if program is None:
        remedy = "in Python, rookery.load(run, program=program) opens it, and begin_as, begin_from or begin_with start"
        check_rebuildable(opened.config, opened.path, f"{remedy} from it")
    return restore(opened, *opened_on(opened, here(), program), checkpoint)


def opened_on(folder: RunFolder, over: Mesh | None, program: Program | None = None) -> tuple[RunSpec, Built]:
    """The description of a run, and its parts built anew; by default on all devices that divide the population.

    Warns:
      SourceWarning: the code of a user's functions has changed since.
    """
    sources.use(folder)
    if program is not None:
        built = of_program(program, over or layout.mesh_of(program))
        return config_io.program_run(folder.config), built
    spec = config_io.from_record(folder.config)
    spec = spec if over is not None else spec.with_environment(devices=None)  # not those that the run was trained on
    built = build.build(spec) if over is None else build.on_one_device(spec)
    if files := sources.changed(folder):
        message = f"{', '.join(files)} has changed since {folder.path} was trained; the changed code is used"
        warnings.warn(message, sources.SourceWarning, stacklevel=3)
    return spec, built


def restore(
    folder: RunFolder,
    spec: RunSpec,
    built: Built,
    checkpoint: str | int,
    checkpoints: Checkpointer | None = None,
) -> RestoredRun:
    """Restore the state in a checkpoint of a run, chosen as in `restore_run`."""
    checkpoints = checkpoints or Checkpointer(folder.checkpoints, read_only=True)
    chosen = find(folder, checkpoints, checkpoint, spec.run.best_by)
    template = without_data(programs.template(built.program, built.mesh))
    state, _, generation = checkpoints.restore(template, chosen, partial=True)
    return RestoredRun(folder.path, spec, built, state, generation)


def skill_policies(run_dir: str | Path, member: int | None = None) -> Genotype:
    """The skills in a run's newest checkpoint, each as a separate agent for the environment without skills.

    Args:
      run_dir: directory of a run that discovers skills; it is not changed.
      member: number of the member in 0..P-1; by default the best one in the last evaluation.

    Returns:
      One genotype per skill, `[M, ...]`: `act(sac(env.spec, config), take(genotypes, k), observation)`.

    Raises:
      ValueError: the folder is no run that discovers skills, or the member does not exist.
      CheckpointError: the run has no complete checkpoint.

    Example:
      >>> policies = rookery.experiments.skill_policies("runs/diayn")
    """
    origin = restore_run(run_dir)
    if not origin.built.has_skills:
        raise ValueError(f"{origin.path} is a run of kind {origin.spec.kind.name}, which discovers no skills.")
    size = origin.built.program.population_size
    if member is not None and not 0 <= member < size:
        raise SettingError("member", member, f"must be in 0..{size - 1}")
    return _skills(origin, best_member(origin) if member is None else member)


def _skills(origin: RestoredRun, member: int) -> Genotype:
    assert origin.built.learner is not None
    if not origin.spec.kind.method.has_task:
        raise ValueError(
            f"{origin.path} is a run of a user-defined program, whose skills cannot be read as separate agents here; "
            "read them in Python: rookery.learners.freeze_skills(agent, spec, genotype)."
        )
    spec = origin.built.learner.spec
    return freeze_skills(base_agent(origin.spec, spec), spec, _member(origin, member))


def _member(origin: RestoredRun, member: int) -> Genotype:
    return trees.take(jax.vmap(genotype)(origin.state.members), member)


def best_member(origin: RestoredRun) -> int:
    """The slot of the best member in a checkpoint by its last evaluation, among those not replaced since.

    Evaluation, rendering, export and warm starts use this member by default.
    """
    return int(np.argmax(current_standing(origin)))


def current_standing(origin: RestoredRun) -> np.ndarray:
    """What the members of a checkpoint are ranked by: `current_fitness`, or in the same form their ratings."""
    return _current(origin, "rating") if "rating" in _last_evaluation(origin) else current_fitness(origin)


def current_fitness(origin: RestoredRun) -> np.ndarray:
    """The fitness of each member of a checkpoint, -inf where it was not finite or the member was replaced since.

    `[P]`; with a separate population for each of I roles `[P I]`, with the agent of role i in slot p at `p I + i`.
    """
    return _current(origin, "fitness")


def _last_evaluation(origin: RestoredRun) -> dict[str, np.ndarray]:
    """The columns of `lineage.csv` in the generation before the checkpoint."""
    folder = open_existing(origin.path)
    table = read_members(folder)
    size = origin.built.program.population_size
    if origin.built.has_separate_roles and origin.built.learner and origin.built.learner.spec.team:
        size *= len(origin.built.learner.spec.team.names)
    last = {name: values[table["generation"] == origin.generation - 1] for name, values in table.items()}
    is_whole = len(last.get("fitness", ())) == size
    if not is_whole or (np.isnan(last["fitness"]) & (last["parent"] == FROM_REPERTOIRE)).all():  # `csv_log.filled`
        raise LostRowsError(
            f"{folder.lineage_file} has lost rows of generation {origin.generation - 1}, by which the best member is "
            "chosen; put a copy of the file back, or name the member."
        )
    return last


def _current(origin: RestoredRun, column: str) -> np.ndarray:
    fitness = _last_evaluation(origin)[column]
    parents = getattr(origin.state.shared, "parents", np.arange(len(fitness)))  # of a program from scratch: none
    survives = np.asarray(parents) == np.arange(len(fitness))
    return np.where(survives & np.isfinite(fitness), fitness, -np.inf)


def best_genotype(origin: RestoredRun) -> tuple[int | None, Genotype]:
    """The slot and the genotype of the best member by its last evaluation.

    With a separate population for each role, the genotype combines the best agent of each role, and the slot is None.
    """
    if not origin.built.has_separate_roles:
        member = best_member(origin)
        return member, _member(origin, member)
    assert origin.built.learner is not None
    assert origin.built.learner.spec.team is not None
    roles = np.arange(len(origin.built.learner.spec.team.names))
    slots = best_slots(origin)
    return None, jax.tree.map(lambda leaf: leaf[slots, roles], jax.vmap(genotype)(origin.state.members))


def best_slots(origin: RestoredRun) -> np.ndarray:
    """The slot of the best agent of each role, `[I]`, in a run with a separate population for each role."""
    assert origin.built.learner is not None
    assert origin.built.learner.spec.team is not None
    return current_standing(origin).reshape(-1, len(origin.built.learner.spec.team.names)).argmax(axis=0)


def start_from(spec: RunSpec, built: Built) -> Program:
    """The program of a run, with its initial state taken from the run in `init_from`, if one is given.

    Raises:
      ValueError: the kind, the agent or the task of the run in `init_from` is incompatible with this run, or it has no
        such skill.
      CheckpointError: the run in `init_from` has no complete checkpoint.
    """
    settings = spec.method
    if getattr(settings, "init_from", None) is None:
        if getattr(settings, "skill", None) is not None:
            raise SettingError("skill", None, "needs {init_from}", "give the run that discovered it, or leave this out")
        return built.program
    if spec.run.run_dir is not None and Path(settings.init_from).resolve() == Path(spec.run.run_dir).resolve():
        raise SettingError("init_from", settings.init_from, "is the run itself", "choose another {run_dir}")
    origin = restore_run(settings.init_from)
    if built.learner is None:
        return _begin_genotypes(built, origin)
    _check_origin(spec, built, origin)
    if spec.kind.method.has_repertoire:
        return _begin_agents(built, origin)
    return begin_as(built.program, built.learner, _initial_genotype(spec, origin))


def _begin_genotypes(built: Built, origin: RestoredRun) -> Program:
    """Fill the initial repertoire with the other run's elites, evaluated by this run's scoring function."""
    if origin.built.learner is not None:
        raise ValueError(
            f"{origin.path} is a run of agents, whose genotypes a run without agents cannot start from; choose a run "
            "of map-elites, pga-me, dcrl-me or cma-mae."
        )
    return begin_from(built.program, built.program.scoring, _elites(origin))


def _begin_agents(built: Built, origin: RestoredRun) -> Program:
    """Fill the initial repertoire with agents of the other run, evaluated by this run's learner."""
    space = built.space
    assert built.learner is not None
    assert space is not None
    if origin.built.has_skills:
        genotypes = _skills(origin, best_member(origin))
    elif origin.built.has_repertoire:
        genotypes = _elites(origin)
    else:
        genotypes = jax.vmap(genotype)(origin.state.members)
    genotypes = genotypes._replace(hyper=jax.vmap(partial(_inside, space))(genotypes.hyper))
    return begin_from(built.program, learner_scoring(built.learner, space), genotypes)


def _elites(origin: RestoredRun) -> Genotype:
    """The genotypes of all M elites of a run's repertoire, `[M, ...]`."""
    repertoire = repertoire_of(origin.state)
    occupied = np.flatnonzero(repertoire.occupied)
    if not len(occupied):
        raise ValueError(f"the repertoire of {origin.path} is empty; train that run until it has at least one elite.")
    return trees.take(repertoire.genotypes, jnp.asarray(occupied))


def _inside(space: Space, hyper: Hyper) -> Hyper:
    """Clip hyper-parameters of another run to this run's bounds; those that do not evolve take this run's values."""
    evolving = {name: getattr(hyper, name) for name in space.domains if hasattr(hyper, name)}
    return hyperparams.clip(space, hyperparams.defaults(space)._replace(**evolving))


def _initial_genotype(spec: RunSpec, origin: RestoredRun) -> Genotype:
    """The genotype that every member starts with."""
    skill, discovers = spec.flat.get("skill"), origin.built.has_skills and not spec.kind.has_skills
    if skill is not None and not discovers:
        raise ValueError(f"{origin.path} has no skills to choose from here; leave skill out.")
    if origin.built.has_repertoire:
        return repertoires.best(repertoire_of(origin.state)).genotype
    if not discovers:
        return best_genotype(origin)[1]
    skills = _skills(origin, best_member(origin))
    count = jax.tree.leaves(skills)[0].shape[0]
    if skill is None or not 0 <= skill < count:
        raise ValueError(
            f"{origin.path} has {count} skills; choose one by --skill 0 to {count - 1}"
            f"{'' if skill is None else f', got {skill}'}. `rookery evaluate {origin.path}` evaluates each."
        )
    return trees.take(skills, skill)


def _check_origin(spec: RunSpec, built: Built, origin: RestoredRun) -> None:
    """Raise a ValueError, which names the difference, if this run's agents cannot load the genotypes of the other."""
    if origin.built.learner is None:
        raise ValueError(
            f"{origin.path} is a run of kind {origin.spec.kind.name}, which trains no agents; start from a run that "
            "does."
        )
    learner = built.learner
    assert learner is not None
    mine, there = learner.spec, origin.built.learner.spec
    for difference, own, other in (
        ("parameters of its agents", learner.team, origin.built.learner.team),
        ("team", mine.team and mine.team.names, there.team and there.team.names),
        ("agent index", mine.identified, there.identified),
    ):
        if own != other:
            raise ValueError(
                f"{origin.path} differs in {difference}: {other or 'none'} there, {own or 'none'} here; start from a "
                "run of the same kind, in the same environment, with the same settings of the agent."
            )
    if spec.kind.has_skills and not origin.built.has_skills:
        raise ValueError(
            f"{origin.path} is a run of kind {origin.spec.kind.name} and has no skills to start from; start from a "
            "run that discovers skills."
        )
    for size in ("observation_size", "action_size"):
        if getattr(mine, size) != getattr(there, size):
            space = "observations" if size == "observation_size" else "actions"
            raise ValueError(
                f"{origin.path} has {space} of {getattr(there, size)} numbers ({there.name}), but {mine.name} has "
                f"{getattr(mine, size)}; start from a run whose environment has the same observations and actions."
            )
    if spec.kind.has_skills and built.skill_method != origin.built.skill_method:
        raise ValueError(
            f"{origin.path} is a run of kind {origin.spec.kind.name}, from which a run of kind {spec.kind.name} cannot "
            f"start, since their skills are learned differently; start from a {agent_of(spec.kind.name)} run."
        )
    if spec.kind.has_skills and mine.skill != there.skill:
        raise ValueError(
            f"{origin.path} has the skills {there.skill}, this run {mine.skill}; give this run the same --num-skills "
            "and --skill-kind."
        )
    if built.agent != origin.built.agent:
        raise ValueError(
            f"{origin.path} is a run of kind {origin.spec.kind.name}, from which a run of kind {spec.kind.name} "
            f"cannot start, since the agents are different; start from a {agent_of(spec.kind.name)} run."
        )
