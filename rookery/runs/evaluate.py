"""Judge what a run has learned, on fresh start states."""

import dataclasses
from pathlib import Path

import jax
import numpy as np

from rookery import devices, trees
from rookery.envs.skills import listed
from rookery.learners.api import Learner, genotype
from rookery.populations.api import ProgramState
from rookery.runs import build, folder, origins, record
from rookery.runs.best import find
from rookery.runs.checkpoint import Checkpointer
from rookery.runs.log import write_table


def evaluate(
    run_dir: str | Path, episodes: int = 100, seed: int = 0, checkpoint: str = "last"
) -> tuple[int, dict[str, np.ndarray]]:
    """Evaluate every member of a run's newest whole checkpoint, or every elite of its repertoire.

    Args:
      run_dir: the run's folder; only read, but for the trajectories of skills, `skills.csv`.
      episodes: full deterministic episodes of each, at least 1; all start from the same states.
      seed: of the start states.
      checkpoint: "last"; "best", by the metric that the run was told; or a generation.

    Returns:
      The checkpoint's generation, and the metrics of `Program.examine`: `fitness` `[P]`, `returns` `[P, N]`, `lengths`
      `[P, N]` in steps, `descriptor` `[P, D]`, and the hyper-parameters `[P]`; for a repertoire the same by cells, with
      what it claimed (`stored...`) and what it would be with these evaluations (`corrected/...`). Where there are
      skills, also `best_member` `[]` (whose trajectories are written), `skill` `[N]` (whose episode it was), `accuracy`
      and `diversity_return` `[P, N]`; episodes are rounded up until each skill has as many.

    Raises:
      ValueError: the folder is no run, was not started by the command line, or `episodes` is below 1; or `checkpoint`
        is none of the three.
      CheckpointError: it has no whole checkpoint.
    """
    opened = folder.open_existing(run_dir)
    recorded = record.from_record(opened.config)
    part = "evaluation" if hasattr(recorded, "evaluation") else "learner"
    told = getattr(recorded, part)
    judged = dataclasses.replace(told, eval_episodes=episodes, start_states=max(episodes, told.start_states))
    world = dataclasses.replace(recorded.world, devices=None)  # those of this machine, not of the one that trained
    built = build.build(dataclasses.replace(recorded, world=world, **{part: judged}))
    compiled = devices.compile_program(built.program, built.mesh)
    checkpoints = Checkpointer(opened.checkpoints, read_only=True)
    chosen = find(opened, checkpoints, checkpoint, recorded.run.best_by)
    state, _, generation = checkpoints.restore(devices.template(built.program, built.mesh), chosen)
    metrics = jax.device_get(compiled.examine(state, jax.random.key(seed)))
    spec = built.learner.spec if built.learner else None
    if spec is not None and spec.team is not None:
        metrics["agents"] = np.asarray(spec.team.names)
    skill = spec.skill if spec else None
    if built.learner is not None and skill is not None:
        metrics["skill"] = np.arange(metrics["returns"].shape[1]) % len(listed(skill))
        metrics["best_member"] = np.asarray(origins.best_member(opened.path, generation, state))
        columns = _trajectories(built.learner, state, metrics, jax.random.key(seed))
        if columns:
            write_table(opened.skills_file, columns)
    return generation, metrics


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
    bank_key, members_key = jax.random.split(key)  # as `Program.examine` does
    bank = jax.jit(learner.start_states)(bank_key)
    trace_key = jax.random.fold_in(members_key, member)
    reached, lived = jax.device_get(jax.jit(learner.trace)(shown, bank, trace_key))
    count = int(skill.max()) + 1
    drawn = min(len(skill), count * max(1, min(_DRAWN_PER_SKILL, _DRAWN // count)))
    episode, step = np.nonzero(lived[:drawn])
    columns = {"skill": skill[episode], "episode": episode // count, "step": step}
    return columns | {f"descriptor/{i}": reached[episode, step, i] for i in range(size)}


_DRAWN, _DRAWN_PER_SKILL = 64, 5  # trajectories at most, one of each skill at least
