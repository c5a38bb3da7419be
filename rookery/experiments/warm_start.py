"""What a run begins with: members, skills or a repertoire of another run."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import hyperparams, trees
from rookery.distributed import programs
from rookery.experiments import build, config_io
from rookery.experiments.build import Built
from rookery.experiments.kinds import AgentRun, AnyDiaynRun, AnyMePbtRun, AnyRun, MapElitesRun, kind_of
from rookery.experiments.on_policy_kinds import PbtIppoRun
from rookery.hyperparams import Space
from rookery.learners.base import Learner, genotype
from rookery.learners.skills import freeze_skills
from rookery.populations.base import Program, ProgramState
from rookery.populations.warm_start import begin_as
from rookery.qd import repertoire as repertoires
from rookery.qd.map_elites import begin_from, repertoire_of
from rookery.qd.scoring import learner_scoring
from rookery.storage import run_dir as folder
from rookery.storage.best_checkpoint import find
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.csv_log import read_csv
from rookery.types import Genotype, Hyper


class Origin(NamedTuple):
    """A run that another begins with, at its newest whole checkpoint."""

    path: Path
    config: AnyRun
    built: Built
    state: ProgramState
    generation: int


def open_origin(run_dir: str | Path, checkpoint: str = "last") -> Origin:
    """Read a run; it is not changed.

    Args:
      run_dir: its folder.
      checkpoint: "last"; "best", by the metric that the run was told; or a generation.

    Raises:
      ValueError: the folder is no run, or was started from Python, or `checkpoint` is none of the three.
      CheckpointError: it has no whole checkpoint.
    """
    opened = folder.open_existing(run_dir)
    if opened.config.get("kind") == config_io.PYTHON:
        raise ValueError(
            f"{opened.path} was started from Python; begin with it there: begin_as(program, learner, genotype), "
            "begin_from, begin_with."
        )
    config = config_io.from_record(opened.config)
    built = build.on_one_device(config)
    checkpoints = Checkpointer(opened.checkpoints, read_only=True)
    chosen = find(opened, checkpoints, checkpoint, config.run.best_by)
    state, _, generation = checkpoints.restore(programs.template(built.program, built.mesh), chosen)
    return Origin(opened.path, config, built, state, generation)


def skill_policies(run_dir: str | Path, member: int | None = None) -> Genotype:
    """The skills of a run's newest checkpoint, each as an agent by itself for the world without skills.

    Args:
      run_dir: the folder of a run that discovers skills; only read.
      member: whose; by default the member that was best when last judged.

    Returns:
      `[M, ...]`, one genotype per listed skill: `act(sac(env.spec, config), take(genotypes, k), observation)`.

    Raises:
      ValueError: the folder is no run of skills, or the member does not exist.
      CheckpointError: it has no whole checkpoint.
    """
    origin = open_origin(run_dir)
    if not isinstance(origin.config, AnyDiaynRun):
        raise ValueError(f"{origin.path} is a run of kind {kind_of(origin.config)}, which discovers no skills.")
    size = origin.config.population
    if member is not None and not 0 <= member < size:
        raise ValueError(f"member {member} does not exist; choose one in 0..{size - 1}.")
    return _skills(origin, _best_member(origin) if member is None else member)


def _skills(origin: Origin, member: int) -> Genotype:
    assert origin.built.learner is not None
    assert isinstance(origin.config, AnyDiaynRun)
    spec = origin.built.learner.spec
    return freeze_skills(build.wrapped_agent(origin.config, spec), spec, _member(origin, member))


def _member(origin: Origin, member: int) -> Genotype:
    return trees.take(jax.vmap(genotype)(origin.state.members), member)


def best_member(run_dir: str | Path, generation: int, state: ProgramState) -> int:
    """The slot of who was best when a checkpoint's generation was judged, among those whom nobody replaced since.

    Whoever shows, freezes or begins with "the" member of a run means this one.

    Args:
      run_dir: the folder of a run whose members live by themselves.
      generation: of the checkpoint.
      state: what it holds.
    """
    return int(np.argmax(standing(run_dir, generation, state)))


def standing(run_dir: str | Path, generation: int, state: ProgramState) -> np.ndarray:
    """The fitness of each member of a checkpoint, -inf where it was not finite or somebody else has come instead.

    Args:
      run_dir: the folder of a run whose members live by themselves.
      generation: of the checkpoint.
      state: what it holds.

    Returns:
      `[P]`; of roles that were bred apart `[P I]`, member `p I + i` being that of role i in slot p.
    """
    table = read_csv(folder.open_existing(run_dir).lineage_file)
    fitness = table["fitness"][table["generation"] == generation - 1]
    stays = np.asarray(state.shared.parents) == np.arange(len(fitness))
    return np.where(stays & np.isfinite(fitness), fitness, -np.inf)


def best(origin: Origin) -> tuple[int | None, Genotype]:
    """Who was best when last judged: slot and genotype; of roles that were bred apart the best of each, without one."""
    if not (isinstance(origin.config, PbtIppoRun) and origin.config.member == "agent"):
        member = _best_member(origin)
        return member, _member(origin, member)
    assert origin.built.learner is not None
    assert origin.built.learner.spec.team is not None
    roles = np.arange(len(origin.built.learner.spec.team.names))
    fitness = standing(origin.path, origin.generation, origin.state).reshape(-1, len(roles))
    slots = fitness.argmax(axis=0)
    return None, jax.tree.map(lambda leaf: leaf[slots, roles], jax.vmap(genotype)(origin.state.members))


def _best_member(origin: Origin) -> int:
    return best_member(origin.path, origin.generation, origin.state)


def begin(config: AnyRun, built: Built) -> Program:
    """The program of a run, begun as `init_from` says.

    Raises:
      ValueError: the run to begin with is of another kind, agent or task than this one can begin with, or has no such
        skill.
      CheckpointError: it has no whole checkpoint.
    """
    skill = getattr(config, "skill", None)
    if config.init_from is None:
        if skill is not None:
            raise ValueError("skill says which of --init-from; give the run that discovered it, or leave skill out.")
        return built.program
    if config.run.run_dir is not None and Path(config.init_from).resolve() == Path(config.run.run_dir).resolve():
        raise ValueError(f"{config.init_from} cannot begin with itself; choose another folder by --run-dir.")
    origin = open_origin(config.init_from)
    if isinstance(config, MapElitesRun):
        return _begin_repertoire(config, built, origin)
    assert built.learner is not None
    _check_origin(config, built.learner, origin)
    if isinstance(config, AnyMePbtRun):
        return _begin_repertoire(config, built, origin)
    return begin_as(built.program, built.learner, _one(config, origin, skill))


def _begin_repertoire(config: MapElitesRun | AnyMePbtRun, built: Built, origin: Origin) -> Program:
    """With genotypes that are judged in this run's world, by this run's measure."""
    if isinstance(config, MapElitesRun):
        if not isinstance(origin.config, MapElitesRun):
            raise ValueError(
                f"{origin.path} is a run of kind {kind_of(origin.config)}; "
                "map-elites begins with a map-elites run only."
            )
        return begin_from(built.program, build.scoring(config), _elites(origin))
    space = built.space
    assert built.learner is not None
    assert space is not None
    if isinstance(origin.config, AnyDiaynRun):
        genotypes = _skills(origin, _best_member(origin))
    elif isinstance(origin.config, AnyMePbtRun):
        genotypes = _elites(origin)
    else:
        genotypes = jax.vmap(genotype)(origin.state.members)
    genotypes = genotypes._replace(hyper=jax.vmap(partial(_inside, space))(genotypes.hyper))
    return begin_from(built.program, learner_scoring(built.learner, space), genotypes)


def _elites(origin: Origin) -> Genotype:
    """All of its repertoire, `[M, ...]`."""
    repertoire = repertoire_of(origin.state)
    occupied = np.flatnonzero(repertoire.occupied)
    if not len(occupied):
        raise ValueError(f"the repertoire of {origin.path} is empty; let that run find somebody first.")
    return trees.take(repertoire.genotypes, jnp.asarray(occupied))


def _inside(space: Space, hyper: Hyper) -> Hyper:
    """What evolves, inside the bounds of this run; the rest as this run holds it."""
    evolving = {name: getattr(hyper, name) for name in space.domains}
    return hyperparams.clip(space, hyperparams.defaults(space)._replace(**evolving))


def _one(config: AgentRun, origin: Origin, skill: int | None) -> Genotype:
    """Who everybody begins as."""
    discovers = isinstance(origin.config, AnyDiaynRun) and not isinstance(config, AnyDiaynRun)
    if skill is not None and not discovers:
        raise ValueError(f"{origin.path} has no skills to choose from here; leave skill out.")
    if isinstance(origin.config, AnyMePbtRun):
        return repertoires.best(repertoire_of(origin.state)).genotype
    if not discovers:
        return best(origin)[1]
    skills = _skills(origin, _best_member(origin))
    count = jax.tree.leaves(skills)[0].shape[0]
    if skill is None or not 0 <= skill < count:
        raise ValueError(
            f"{origin.path} has {count} skills; choose one by --skill 0 to {count - 1}"
            f"{'' if skill is None else f', got {skill}'}. `rookery evaluate {origin.path}` shows what each does."
        )
    return trees.take(skills, skill)


def _check_origin(config: AgentRun | AnyMePbtRun, learner: Learner, origin: Origin) -> None:
    """Refuse what has learned something else than this run's agents can be."""
    if origin.built.learner is None:
        raise ValueError(f"{origin.path} is a run of kind {kind_of(origin.config)}, in which nobody learns.")
    here, there = learner.spec, origin.built.learner.spec
    for told, mine, other in (
        ("parameters of its agents", learner.team, origin.built.learner.team),
        ("team", here.team and here.team.names, there.team and there.team.names),
        ("memory", here.memory_size, there.memory_size),
    ):
        if mine != other:
            raise ValueError(
                f"{origin.path} is another {told}: {other or 'none'} there, {mine or 'none'} here; begin with a run of "
                "the same kind, in the same world, with the same settings of the agent."
            )
    if isinstance(config, AnyDiaynRun) and not isinstance(origin.config, AnyDiaynRun):
        raise ValueError(f"{origin.path} is a run of kind {kind_of(origin.config)} and knows no skills to begin with.")
    for what in ("sensed_size", "action_size"):
        if getattr(here, what) != getattr(there, what):
            seen = "observations" if what == "sensed_size" else "actions"
            raise ValueError(
                f"{origin.path} has {seen} of {getattr(there, what)} numbers ({there.name}), but {here.name} has "
                f"{getattr(here, what)}; begin with a run in a world that looks the same."
            )
    if isinstance(config, AnyDiaynRun) and here.skill != there.skill:
        raise ValueError(f"{origin.path} has the skills {there.skill}, this run {here.skill}; give it the same.")
    assert not isinstance(origin.config, MapElitesRun)
    if type(config.agent) is not type(origin.config.agent):
        raise ValueError(
            f"{origin.path} is a run of kind {kind_of(origin.config)} and cannot begin one of {kind_of(config)}: "
            "the agents are different."
        )
