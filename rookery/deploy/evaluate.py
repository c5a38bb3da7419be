"""Evaluate what a run has learned, on fresh start states."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import trees
from rookery.distributed import programs
from rookery.envs.wrappers.skills import listed
from rookery.experiments import build, config_io, warm_start
from rookery.experiments.build import Built
from rookery.experiments.kinds import AnyMePbtRun, AnyRun, MapElitesRun
from rookery.experiments.on_policy_kinds import PbtIppoRun
from rookery.learners.base import Learner, genotype
from rookery.populations.base import ProgramState, member_keys
from rookery.qd import repertoire as repertoires
from rookery.qd.map_elites import repertoire_of
from rookery.storage import run_dir as folder
from rookery.storage.best_checkpoint import find
from rookery.storage.checkpoint import Checkpointer, CheckpointError
from rookery.storage.csv_log import write_table
from rookery.storage.run_dir import RunFolder
from rookery.types import Genotype, Key


def evaluate(
    run_dir: str | Path, episodes: int = 100, seed: int = 0, checkpoint: str = "last"
) -> tuple[int, dict[str, np.ndarray]]:
    """Evaluate every member of a run's newest whole checkpoint, or every elite of its repertoire.

    Args:
      run_dir: the run's folder; only read, but for the trajectories of skills, `skills.csv`.
      episodes: full deterministic episodes of each, at least 1; all start from the same states.
      seed: of the start states; a run that was trained with the same seed has seen other ones, see `evaluation_key`.
      checkpoint: "last"; "best", by the metric that the run was configured with; or a generation.

    Returns:
      The checkpoint's generation, and the metrics of `Program.evaluate`: `fitness` `[P]`, `returns` `[P, N]`, `lengths`
      `[P, N]` in steps, `descriptor` `[P, D]`, and the hyper-parameters `[P]`; for a repertoire the same by cells, with
      what it claimed (`stored...`) and what it would be with these evaluations (`corrected/...`). Of members that are
      evaluated as they were trained, also `best_member` `[]`, the one with the highest fitness in the run's own
      evaluation, and `independent` `[]`, whether each member is a run by itself. Where there are skills, also `skill`
      `[N]` (whose episode it was), `accuracy` and `diversity_return` `[P, N]`, and the trajectories of `best_member`
      are written; episodes are rounded up until each skill has as many.

    Raises:
      ValueError: the folder is no run, was not started by the command line, or `episodes` is below 1; or `checkpoint`
        is none of the three.
      CheckpointError: it has no whole checkpoint.
    """
    read = _read(run_dir, episodes, checkpoint, build.build)
    built, state = read.built, read.state
    compiled = programs.compile_program(built.program, built.mesh)
    metrics = jax.device_get(compiled.evaluate(state, evaluation_key(seed)))
    spec = built.learner.spec if built.learner else None
    if spec is not None and spec.team is not None:
        metrics["agents"] = np.asarray(spec.team.names)
    if not isinstance(read.config, MapElitesRun | AnyMePbtRun) and not _has_roles(read.config):
        metrics["independent"] = np.asarray(config_io.are_independent(read.folder.config))
        metrics["best_member"] = np.asarray(warm_start.best_member(read.folder.path, read.generation, state))
    skill = spec.skill if spec else None
    if built.learner is not None and skill is not None:
        metrics["skill"] = np.arange(metrics["returns"].shape[1]) % len(listed(skill))
        columns = _trajectories(built.learner, state, metrics, evaluation_key(seed))
        if columns:
            write_table(read.folder.skills_file, columns)
    return read.generation, metrics


def evaluation_key(seed: int) -> Key:
    """The key that an evaluation begins with.

    A run splits `key(seed)` and folds the numbers of its generations into that, so that `key(seed)` itself would give
    the evaluation of a run's seed the very keys that the run was initialised and trained with.
    """
    return jax.random.fold_in(jax.random.key(seed), _EVALUATION)


_EVALUATION = 0x6576616C  # no number that a split of the same key can give: those count from 0


def fresh_fitness(
    run_dir: str | Path, episodes: int = 100, seed: int = 0, checkpoint: str = "last"
) -> tuple[int, np.ndarray]:
    """Evaluate on fresh episodes what a run is scored by; the folder is only read.

    Independent members are evaluated each; of any other population the member that had the highest fitness in the
    run's own evaluation, and of a repertoire the elite with the highest stored fitness. These episodes have no part in
    the choice, so that their mean is not optimistic, as the highest of several noisy evaluations is.

    Args:
      run_dir: the run's folder.
      episodes: full deterministic episodes of each, at least 1; all start from the same states.
      seed: of the start states.
      checkpoint: as for `evaluate`.

    Returns:
      The checkpoint's generation, and the fitness `[N]`, N = 1 but for independent members; NaN where it is not finite.

    Raises:
      ValueError: as `evaluate`; the roles of a team evolve apart, so that no member is evaluated by itself; or the
        repertoire is empty.
      CheckpointError: it has no whole checkpoint.
      ImportError: the package of its environment is not installed; names the extra.
    """
    check_fresh(run_dir)
    read = _read(run_dir, episodes, checkpoint, build.on_one_device)
    bank_key, members_key = jax.random.split(evaluation_key(seed))  # as `Program.evaluate` does
    genotypes, keys = _scored(read, members_key)
    scoring = build.scoring(read.config) if isinstance(read.config, MapElitesRun) else read.built.learner
    assert scoring is not None
    bank = jax.jit(scoring.start_states)(bank_key)
    evaluation = jax.jit(jax.vmap(scoring.evaluate, in_axes=(0, None, 0)))(genotypes, bank, keys)
    fitness = np.asarray(jax.device_get(evaluation.fitness), np.float64)
    return read.generation, np.where(np.isfinite(fitness), fitness, np.nan)


def check_fresh(run_dir: str | Path) -> None:
    """Refuse a run that `fresh_fitness` cannot evaluate, before anything costs time.

    Raises:
      ValueError: the folder is no run, was not started by the command line, or the roles of its team evolve apart.
      CheckpointError: it has no checkpoint yet.
    """
    opened = folder.open_existing(run_dir)
    if opened.config.get("kind") == config_io.PYTHON:
        raise ValueError(
            f"{opened.path} was started from Python, so that its program is not known here and no fresh episodes can "
            "be run; leave it out, or compare the runs' own evaluations."
        )
    if _has_roles(config_io.from_record(opened.config)):
        raise ValueError(
            f"{opened.path} evolves the roles of a team apart, so that no member has a fitness without the others; "
            "leave it out, or compare the runs by a role's return, such as --score return/prey."
        )
    if Checkpointer(opened.checkpoints, read_only=True).empty:
        raise CheckpointError(
            f"{opened.path} has no checkpoint yet, so that no fresh episodes can be run; wait for its first, or leave "
            "it out."
        )


class _Read(NamedTuple):
    """A run at a checkpoint, with the evaluation that was asked for in place of its own."""

    folder: RunFolder
    config: AnyRun
    built: Built
    state: ProgramState
    generation: int


def _read(run_dir: str | Path, episodes: int, checkpoint: str, make: Callable[[AnyRun], Built]) -> _Read:
    opened = folder.open_existing(run_dir)
    recorded = config_io.from_record(opened.config)
    part = "evaluation" if hasattr(recorded, "evaluation") else "learner"
    own = getattr(recorded, part)
    asked = dataclasses.replace(own, eval_episodes=episodes, start_states=max(episodes, own.start_states))
    world = dataclasses.replace(recorded.world, devices=None)  # those of this machine, not of the one that trained
    config = dataclasses.replace(recorded, world=world, **{part: asked})
    built = make(config)
    checkpoints = Checkpointer(opened.checkpoints, read_only=True)
    chosen = find(opened, checkpoints, checkpoint, recorded.run.best_by)
    state, _, generation = checkpoints.restore(programs.template(built.program, built.mesh), chosen)
    return _Read(opened, config, built, state, generation)


def _scored(read: _Read, key: Key) -> tuple[Genotype, Key]:
    """The genotypes that a run is scored by `[N, ...]`, and a key for the evaluation of each."""
    if isinstance(read.config, MapElitesRun | AnyMePbtRun):
        best = repertoires.best(repertoire_of(read.state)).genotype
        return jax.tree.map(lambda leaf: leaf[None], best), member_keys(key, 1)
    everything = jax.vmap(genotype)(read.state.members), member_keys(key, read.config.population)
    if config_io.are_independent(read.folder.config):
        return everything
    best = warm_start.best_member(read.folder.path, read.generation, read.state)
    return trees.take(everything, jnp.asarray([best]))


def _has_roles(config: AnyRun) -> bool:
    """Whether the roles of a team evolve apart."""
    return isinstance(config, PbtIppoRun) and config.member == "agent"


def _trajectories(
    learner: Learner, state: ProgramState, metrics: dict[str, np.ndarray], key: jax.Array
) -> dict[str, np.ndarray]:
    """Where the best member's skills go, as columns with a row per state; nothing where there is no descriptor."""
    skill, size = metrics["skill"], learner.spec.descriptor_size
    if not size:
        return {}
    assert learner.trace is not None
    member = int(metrics["best_member"])
    shown = jax.device_get(trees.take(jax.vmap(genotype)(state.members), member))
    bank_key, members_key = jax.random.split(key)  # as `Program.evaluate` does
    bank = jax.jit(learner.start_states)(bank_key)
    trace_key = jax.random.fold_in(members_key, member)
    reached, lived = jax.device_get(jax.jit(learner.trace)(shown, bank, trace_key))
    count = int(skill.max()) + 1
    drawn = min(len(skill), count * max(1, min(_DRAWN_PER_SKILL, _DRAWN // count)))
    episode, step = np.nonzero(lived[:drawn])
    columns = {"skill": skill[episode], "episode": episode // count, "step": step}
    return columns | {f"descriptor/{i}": reached[episode, step, i] for i in range(size)}


_DRAWN, _DRAWN_PER_SKILL = 64, 5  # trajectories at most, one of each skill at least
