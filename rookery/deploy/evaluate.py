"""Evaluate the members or elites of a run on fresh start states."""

import contextlib
import json
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery import trees
from rookery.distributed import device_memory, programs
from rookery.distributed.mesh import Mesh, here
from rookery.envs.descriptors import visited_cells
from rookery.envs.wrappers.skills import enumerate_skills
from rookery.experiments import warm_start
from rookery.experiments.warm_start import RestoredRun
from rookery.learners.base import Bank, Learner, genotype
from rookery.learners.evaluation import with_episodes
from rookery.learners.goals import check_goals, reach_goals
from rookery.populations.base import Program, ProgramState, member_keys
from rookery.populations.rebuild import rebuild
from rookery.qd import repertoire as repertoires
from rookery.qd import scoring
from rookery.qd.map_elites import repertoire_of
from rookery.report.runs import Fresh
from rookery.settings import MEASURE, RETURN, check_counts, suggestion
from rookery.storage.checkpoint import Checkpointer, CheckpointError
from rookery.storage.csv_log import write_table
from rookery.storage.island_files import best_of
from rookery.storage.record import PYTHON, are_independent, without_defaults
from rookery.storage.run_dir import RunFolder, open_existing, output_to
from rookery.training.config import check_seed
from rookery.training.progress import bar
from rookery.types import Array, Evaluation, Genotype, Key


def evaluate(
    run_dir: str | Path,
    episodes: int = 100,
    seed: int = 0,
    checkpoint: str | int = "last",
    program: Program | None = None,
) -> tuple[int, dict[str, np.ndarray]]:
    """Evaluate every member of a checkpoint, or every elite of its repertoire.

    Args:
      run_dir: the run directory (of a run of islands, its best island is evaluated); only read, except for
        `evaluation.csv`, the episodes of the best member, and `skills.csv`, the trajectories of skills, which are
        written.
      episodes: number of full deterministic episodes per policy, at least 1; all policies share the start states.
      seed: seed of the start states; they differ from those of a training run with the same seed, see
        `evaluation_key`.
      checkpoint: "last"; "best", by the metric that the run was configured with; or a generation.
      program: the program of a run that was started from Python. A program without a recipe
        (`rookery.populations.rebuild`), or whose learner has no evaluator, is evaluated on the number of episodes that
        it was built with.

    Returns:
      The checkpoint's generation, and the metrics of `Program.evaluate`: `fitness` `[P]`, `returns` `[P, N]`, `lengths`
      `[P, N]` in steps, `descriptor` `[P, D]`, of a task with measures `measure/...` `[P, N]`, and the hyper-parameters
      `[P]`. For a repertoire the same by cell, with its stored values (`stored...`) and the metrics that it would have
      with these evaluations (`corrected/...`). For members that are evaluated separately, also `independent` `[]`,
      whether each member is an independent run, and `best_member` `[]`, the member with the highest fitness in the
      training run's last evaluation, unless `lineage.csv` has lost it. With skills, also `skill` `[N]` (the skill of
      each episode), what the method measures, such as `accuracy` and `diversity_return` or `distance`, `[P, N]`, and
      `skills.csv` gets the trajectories of `best_member`; the number of episodes is rounded up to a multiple of the
      number of skills. Where the descriptor is a position also `cells` `[]`, the number of distinct cells of side
      `cell` `[]` that the states of these episodes of `best_member` lie in.

    Raises:
      ValueError: the folder is not a run, the run was started from Python and no program is given, `episodes` is below
        1, or `checkpoint` is none of the three.
      CheckpointError: the run has no complete checkpoint.

    Warns:
      OutputWarning: a table cannot be written.
    """
    folder = open_existing(best_of(run_dir))
    read = open_with_episodes(folder, episodes, checkpoint, None, program)
    built, state = read.built, read.state
    compiled = programs.compile_program(built.program, built.mesh)
    with jax.debug_nans(False):  # empty cells have no fitness
        metrics = jax.device_get(compiled.evaluate(state, evaluation_key(seed)))
    spec = built.learner.spec if built.learner else None
    if spec is not None and spec.team is not None:
        metrics["agents"] = np.asarray(spec.team.names)
    if not (built.has_repertoire or built.has_separate_roles) and folder.lineage_file.is_file():
        metrics["independent"] = np.asarray(are_independent(folder.config))
        with contextlib.suppress(warm_start.LostRowsError):
            metrics["best_member"] = np.asarray(warm_start.best_member(read))
    if "best_member" in metrics:
        with output_to(folder.evaluation_file):
            write_table(folder.evaluation_file, _episodes(metrics, read.generation))
    skill = spec.skill if spec else None
    if built.learner is not None and skill is not None and "best_member" in metrics:  # elites have no trajectories
        metrics["skill"] = np.arange(metrics["returns"].shape[1]) % len(enumerate_skills(skill))
        if built.learner.spec.descriptor is not None:
            descriptors, valid = _trace(built.learner, state, int(metrics["best_member"]), evaluation_key(seed))
            with output_to(folder.skills_file):
                write_table(folder.skills_file, _columns(metrics["skill"], descriptors, valid))
            cell = built.learner.spec.descriptor.cell
            if cell is not None:
                metrics["cell"] = np.asarray(cell)
                metrics["cells"] = np.asarray(visited_cells(descriptors[valid], cell))
    return read.generation, metrics


def evaluate_goals(
    run_dir: str | Path, goals: int = 50, seed: int = 0, checkpoint: str | int = "last", program: Program | None = None
) -> dict[str, np.ndarray]:
    """Let the skills of a run's best member reach goals, without further training; see `learners.goals`.

    Args:
      run_dir: the run directory; only read.
      goals: number of goals, at least 1, drawn uniformly between the limits of the task's descriptor; one deterministic
        episode each.
      seed: seed of the goals and of the start states.
      checkpoint: as for `evaluate`.
      program: as for `evaluate`.

    Returns:
      `goals` `[N, D]`, `at_start` `[N]` and `left` `[N]`, the distances from the goal at the start and at the end of
      each episode, and `best_member` `[]`.

    Raises:
      ValueError: as for `evaluate`; or the task has no goals, or the agent's skills do not lead to goals.
      CheckpointError: the run has no complete checkpoint.
    """
    check_counts(goals=goals)
    folder = open_existing(best_of(run_dir))
    read = open_with_episodes(folder, goals, checkpoint, here(), program)
    learner = read.built.learner
    if learner is None or learner.evaluator is None:
        raise ValueError(f"{folder.path} trains no agents with skills, which goals need; choose a run of metra or lsd.")
    check_goals(learner.evaluator)
    member = warm_start.best_member(read)
    best, bank, key = _best(learner, read.state, member, evaluation_key(seed))
    reach = jax.jit(partial(reach_goals, learner.evaluator, count=goals))
    return {**jax.device_get(reach(best, bank, key))._asdict(), "best_member": np.asarray(member)}


def evaluation_key(seed: int) -> Key:
    """The initial random key of an evaluation.

    A training run splits `key(seed)` and folds its generation numbers into the result. With `key(seed)` itself, the
    evaluation of a run with the same seed would reuse the random keys of its initialisation and training.
    """
    return jax.random.fold_in(jax.random.key(check_seed(seed)), _EVALUATION)


_EVALUATION = 0x6576616C  # larger than any index of a split of the same key: those count from 0


def fresh_fitness(
    run_dir: str | Path,
    episodes: int = 100,
    seed: int = 0,
    checkpoint: str | int = "last",
    known: MutableMapping[str, Program] | None = None,
    metric: str | None = None,
) -> tuple[int, np.ndarray]:
    """Evaluate the policies that determine a run's score on fresh episodes; the folder is only read.

    These are all members if they are independent; of any other population the member with the highest fitness in the
    training run's last evaluation; and of a repertoire the elite with the highest stored fitness. The fresh episodes
    have no part in this selection, so their mean is unbiased, unlike the maximum of several noisy evaluations.

    Args:
      run_dir: the run directory.
      episodes: number of full deterministic episodes per policy, at least 1; all policies share the start states.
      seed: seed of the start states.
      checkpoint: as for `evaluate`.
      known: programs of runs that were evaluated before, by their settings; that of this run is added. A program of
        a run that differs only in the seed is used again, with its compiled evaluation.
      metric: a measure of the task, or "return", in place of the fitness.

    Returns:
      The checkpoint's generation, and the fitness `[N]`, NaN where it is not finite. N = 1 unless members are
      independent.

    Raises:
      ValueError: as for `evaluate`; the task has no such measure; or the roles of a team evolve separately, so that no
        member can be evaluated without the others; or the repertoire is empty.
      CheckpointError: the run has no complete checkpoint.
      ImportError: the package of its environment is not installed; the message names the extra.
    """
    check_fresh(run_dir)
    folder = open_existing(best_of(run_dir))
    known, settings = {} if known is None else known, _settings(folder)
    if settings not in known:
        known[settings] = warm_start.opened_on(folder, here())[1].program
    read = open_with_episodes(folder, episodes, checkpoint, here(), known[settings])
    bank_key, members_key = jax.random.split(evaluation_key(seed))  # as `Program.evaluate` does
    genotypes, keys = _scored(read, members_key, are_independent(folder.config))
    problem = read.built.program.learner or read.built.program.scoring
    if problem is None:
        raise ValueError(f"the program of {folder.path} has no learner to run fresh episodes with; leave the run out.")
    bank = jax.jit(problem.start_states)(bank_key)
    with jax.debug_nans(False):  # a fitness of NaN is a result
        evaluation = _evaluate_each(problem.evaluate, genotypes, bank, keys)
    found = evaluation.fitness if metric is None else _mean(evaluation, metric)
    fitness = np.asarray(jax.device_get(found), np.float64)
    return read.generation, np.where(np.isfinite(fitness), fitness, np.nan)


def fresh(episodes: int, seed: int = 0, checkpoint: str | int = "last") -> Fresh:
    """How `rookery.report.compare.compare` scores runs on fresh episodes.

    Args:
      episodes: number of full deterministic episodes per scored policy, at least 1.
      seed: seed of the start states.
      checkpoint: as for `evaluate`; the same for every run.

    Example:
      >>> fresh = rookery.deploy.evaluate.fresh(100)
      >>> comparison = rookery.report.compare.compare(["runs/a", "runs/b"], fresh=fresh)
    """

    def evaluate_all(paths: Sequence[Path], metric: str | None = None) -> dict[Path, tuple[int, np.ndarray]]:
        for path in paths:
            check_fresh(path)
        results, known = {}, {}
        with bar("evaluating runs", len(paths)) as advance:
            for path in paths:
                results[path] = fresh_fitness(path, episodes, seed, checkpoint, known, metric)
                advance(1)
        return results

    return Fresh(episodes, evaluate_all)


def _mean(evaluation: Evaluation, metric: str) -> Array:
    """The mean of a measure, or of the return, over the episodes of each evaluation, `[N]`; NaN where the fitness is
    not finite, since the policy has diverged or an episode broke."""
    sums = {RETURN: evaluation.returns, **evaluation.episodes}
    name = metric if metric == RETURN else f"{MEASURE}{metric}"
    if name not in sums:
        known = [RETURN, *(key.removeprefix(MEASURE) for key in sums if key.startswith(MEASURE))]
        raise ValueError(f"metric {metric!r} is no measure of the task; {suggestion(metric, known)}")
    return jnp.where(jnp.isfinite(evaluation.fitness), jnp.mean(sums[name], axis=1), jnp.nan)


@partial(jax.jit, static_argnums=0)
def _evaluate_each(evaluate: Callable, genotypes: Genotype, bank: Bank, keys: Key) -> Any:
    return jax.vmap(evaluate, in_axes=(0, None, 0))(genotypes, bank, keys)


def _settings(folder: RunFolder) -> str:
    """The settings of a run, but for its seed and its folder; runs with the same have the same program."""
    return json.dumps(
        {**without_defaults(folder.config), "run": folder.config["run"].get("generations")}, sort_keys=True
    )


def check_fresh(run_dir: str | Path) -> None:
    """Raise a ValueError if `fresh_fitness` cannot evaluate a run (one from Python, or with roles that evolve
    separately), and a CheckpointError if it has no checkpoint yet."""
    opened = open_existing(best_of(run_dir))
    if opened.config.get("kind") == PYTHON:
        raise ValueError(
            f"{opened.path} was started from Python, so that its program cannot be rebuilt and no fresh episodes can "
            "be run; leave it out, or compare the evaluations recorded in training."
        )
    if opened.config.get("member") == "agent":
        raise ValueError(
            f"{opened.path} evolves the roles of a team separately, so that no member has a fitness without the "
            "others; leave it out, or compare the runs by a role's return, such as --score return/prey."
        )
    if Checkpointer(opened.checkpoints, read_only=True).empty:
        raise CheckpointError(
            f"{opened.path} has no checkpoint yet, so that no fresh episodes can be run; wait for its first, or leave "
            "it out."
        )


def open_with_episodes(
    folder: RunFolder, episodes: int, checkpoint: str | int, over: Mesh | None, program: Program | None = None
) -> RestoredRun:
    """The run at a checkpoint, with the requested number of evaluation episodes; see `warm_start.opened_on`.

    Raises:
      ValueError: `episodes` is below 1 or above 2**31 - 1, or as `warm_start.restore_run`.
      MemoryError: the start states of the episodes exceed the memory.
      CheckpointError: the run has no such complete checkpoint.
    """
    check_counts(episodes=episodes)
    config, built = warm_start.opened_on(folder, over, program)
    requested = _with_episodes(built.program, episodes)
    problem, memory = requested.learner or requested.scoring, device_memory.machine()
    if problem is not None and memory is not None:
        needed = trees.size_in_bytes(jax.eval_shape(problem.start_states, jax.random.key(0)))
        if needed > memory:
            size = device_memory.size
            raise MemoryError(
                f"the start states of {episodes} episodes need {size(needed)}, but {size(memory)} are available; give "
                "fewer episodes."
            )
    # Restored by the run's own program: what it stores of each evaluation can depend on the number of episodes.
    read = warm_start.restore(folder, config, built, checkpoint)
    return read._replace(built=built._replace(program=requested, learner=requested.learner))


def _with_episodes(program: Program, episodes: int) -> Program:
    """The program with another number of evaluation episodes; unchanged if it cannot be built again with one."""
    problem: Any = program.learner or program.scoring
    if problem is None or problem.evaluator is None:
        return program
    more = with_episodes if program.learner else scoring.with_episodes
    return rebuild(program, problem=more(problem, episodes), known_as=episodes) or program


def _scored(read: RestoredRun, key: Key, independent: bool) -> tuple[Genotype, Key]:
    """The genotypes `[N, ...]` that determine a run's score, and their evaluation keys `[N]`."""
    if read.built.has_repertoire:
        best = repertoires.best(repertoire_of(read.state)).genotype
        return jax.tree.map(lambda leaf: leaf[None], best), member_keys(key, 1)
    members = jax.vmap(genotype)(read.state.members), member_keys(key, read.built.program.population_size)
    if independent:
        return members
    best = warm_start.best_member(read)
    return trees.take(members, jnp.asarray([best]))


def _best(learner: Learner, state: ProgramState, member: int, key: Key) -> tuple[Genotype, Bank, Key]:
    """A member's genotype, the start states of an evaluation, and the member's key."""
    best = jax.device_get(trees.take(jax.vmap(genotype)(state.members), member))
    bank_key, members_key = jax.random.split(key)  # as `Program.evaluate` does
    return best, jax.jit(learner.start_states)(bank_key), jax.random.fold_in(members_key, member)


def _trace(learner: Learner, state: ProgramState, member: int, key: Key) -> tuple[np.ndarray, np.ndarray]:
    """The descriptors of the states of a member's episodes, see `learners.base.TraceFn`."""
    assert learner.trace is not None
    return jax.device_get(jax.jit(learner.trace)(*_best(learner, state, member, key)))


def _episodes(metrics: Mapping[str, np.ndarray], generation: int) -> dict[str, np.ndarray]:
    """The new episodes of the best member, as columns with a row for each."""
    member = int(metrics["best_member"])
    names = {name: name for name in metrics if name.startswith(MEASURE)} | {"returns": RETURN, "lengths": "length"}
    if missing := [name for name in names if name not in metrics]:
        raise ValueError(
            f"evaluate of the program gives no {' and no '.join(missing)} of each member's episodes, [P, N]."
        )
    columns = {column: metrics[name][member] for name, column in names.items()}
    count = len(columns[RETURN])
    keys = {"generation": np.full(count, generation), "member": np.full(count, member), "episode": np.arange(count)}
    return keys | columns


def _columns(skill: np.ndarray, descriptors: np.ndarray, valid: np.ndarray) -> dict[str, np.ndarray]:
    """Trajectories of skills in descriptor space, as columns with a row per state."""
    count = int(skill.max()) + 1
    written = min(len(skill), count * max(1, min(_TRAJECTORIES_PER_SKILL, _TRAJECTORIES // count)))
    episode, step = np.nonzero(valid[:written])
    columns = {"skill": skill[episode], "episode": episode // count, "step": step}
    return columns | {f"descriptor/{i}": descriptors[episode, step, i] for i in range(descriptors.shape[-1])}


_TRAJECTORIES, _TRAJECTORIES_PER_SKILL = 64, 5  # upper limits; every skill gets at least one trajectory
