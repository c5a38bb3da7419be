"""Tournaments: in a competitive environment, every member of each role plays every member of the other roles."""

from functools import partial
from pathlib import Path

import jax
import numpy as np

from rookery.deploy.evaluate import evaluation_key, open_with_episodes
from rookery.distributed import layout
from rookery.distributed.mesh import here
from rookery.experiments.warm_start import RestoredRun
from rookery.learners.base import Learner, genotype
from rookery.populations.base import Program
from rookery.populations.ratings import check_roles, cross_play, played, rating_of
from rookery.storage.island_files import best_of
from rookery.storage.played import Tournament, write_tournament
from rookery.storage.run_dir import open_existing
from rookery.types import PyTree


def tournament(
    run_dir: str | Path,
    against: str | Path | None = None,
    episodes: int = 100,
    seed: int = 0,
    checkpoint: str | int = "last",
    program: Program | None = None,
    program_against: Program | None = None,
) -> Tournament:
    """Let the members of each role of a run play all members of the other roles, and write `tournament.csv`.

    Args:
      run_dir: the directory of a run with a team of agents that compete and have separate parameters.
      against: the directory of another such run, whose members the run's members play; by default they play each other.
        Its newest checkpoint plays, in the environment of the first run.
      episodes: number of full deterministic episodes of each pair, at least 1; all pairs share the start states.
      seed: seed of the start states, see `evaluation_key`.
      checkpoint: "last"; "best", by the metric that the run was configured with; or a generation.
      program: the program of a run that was started from Python.
      program_against: that of the other run.

    Raises:
      ValueError: a folder is not a run, its agents do not compete or share parameters, it has a single member and there
        is no other run, or the runs differ in environment or networks.
      CheckpointError: a run has no complete checkpoint.

    Warns:
      OutputWarning: the table cannot be written.
    """
    folder = open_existing(best_of(run_dir))
    read = open_with_episodes(folder, episodes, checkpoint, None, program)
    learner = _learner(read)
    if against is None and read.built.program.population_size < 2:
        raise ValueError(f"{read.path} has a single member, which has no other opponents; give another run, --against.")
    members = opponents = _policies(read)
    if against is not None:
        other = open_with_episodes(open_existing(best_of(against)), episodes, "last", here(), program_against)
        _learner(other, f"give another run than {other.path}")
        opponents = _policies(other)
        _check_alike(read, other, members, opponents)
    bank_key, members_key = jax.random.split(evaluation_key(seed))  # as `Program.evaluate` does
    bank = jax.jit(learner.start_states)(bank_key)
    play = jax.jit(partial(cross_play, layout.placement(read.built.mesh), learner))
    found = jax.device_get(play(genotype(read.state.members), opponents, bank, members_key))  # [I, Q, P]
    assert learner.spec.team is not None
    result = Tournament(
        agents=learner.spec.team.names,
        returns=np.swapaxes(found, 1, 2).astype(np.float64),
        ratings=np.asarray(jax.jit(jax.vmap(rating_of))(found)),
        generation=read.generation,
    )
    write_tournament(folder, result)
    return result


def _learner(read: RestoredRun, remedy: str = "leave --tournament out") -> Learner:
    learner = read.built.learner
    if learner is None:
        raise ValueError(f"{read.path} trains no agents that could play a tournament; {remedy}.")
    check_roles(learner, remedy)
    return learner


def _policies(read: RestoredRun) -> PyTree:
    """The policies of all members, `[Q, I, ...]`, on the host."""
    return jax.device_get(played(genotype(read.state.members)))


def _check_alike(read: RestoredRun, other: RestoredRun, members: PyTree, opponents: PyTree) -> None:
    """Check that the members of one run can play those of another."""
    mine, there = _learner(read).spec, _learner(other).spec
    assert mine.team is not None
    assert there.team is not None
    if (mine.name, mine.team) != (there.name, there.team):
        raise ValueError(
            f"{other.path} was trained in {there.name} with the agents {', '.join(there.team.names)}, but {read.path} "
            f"in {mine.name} with {', '.join(mine.team.names)}; give a run of the same environment."
        )
    shapes = [jax.tree.map(lambda leaf: leaf.shape[1:], tree) for tree in (members, opponents)]
    if read.built.agent != other.built.agent or shapes[0] != shapes[1]:
        raise ValueError(
            f"{other.path} has other networks than {read.path}; give a run with the same agent, hidden_sizes and "
            "normalize_observations."
        )
