"""All runs of a contender as one compiled program, which is stopped and continued, for a GPU at hand for minutes.

A run's files are small: the state of its members without their environments, and the fitness of every generation. A run
that is continued starts new episodes, so it is not equal to one that was never stopped.
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.populations.base import Program, ProgramState
from rookery.types import Array, Key

SAVE_EVERY = 60.0
"""Seconds between two saves."""


def advance(
    program: Program, folders: Sequence[Path], seeds: Sequence[int], generations: int, until: float
) -> tuple[ProgramState, np.ndarray] | None:
    """Train the runs of some seeds together, from where their files end.

    Args:
      program: of each run.
      folders: of the runs, in which `state.npz` is written.
      seeds: of the runs.
      generations: of each run.
      until: end of this call, by `time.monotonic`, which the running generation may exceed.

    Returns:
      The state `[S, ...]` and the fitness `[S, G, P]` of finished runs; None if the time was too short.
    """
    if time.monotonic() > until:
        return None
    keys = keys_of(seeds)
    state, fitness = load(program, folders, keys)
    step = jax.jit(jax.vmap(program.step), donate_argnums=0)
    saved = time.monotonic()
    while len(fitness) < generations:
        state, metrics = step(state, jax.vmap(partial(jax.random.fold_in, data=2 * len(fitness)))(keys))
        fitness.append(np.asarray(metrics["fitness"]))  # [S, P]
        if len(fitness) == generations or time.monotonic() > min(until, saved + SAVE_EVERY):
            save(folders, state, fitness)
            saved = time.monotonic()
        if len(fitness) < generations and time.monotonic() > until:
            return None
    return state, np.stack(fitness, axis=1)


def returns(program: Program, state: ProgramState, seeds: Sequence[int], blocks: int) -> np.ndarray:
    """Returns `[S, P, N]` of the members of finished runs over new episodes."""
    evaluate = jax.jit(jax.vmap(program.evaluate))
    new = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, 2**31), blocks))(keys_of(seeds))
    return np.concatenate([np.asarray(evaluate(state, new[:, block])["returns"]) for block in range(blocks)], axis=2)


def keys_of(seeds: Sequence[int]) -> Key:
    """The key of each run."""
    return jax.vmap(jax.random.key)(jnp.asarray(seeds))


def load(program: Program, folders: Sequence[Path], keys: Key) -> tuple[ProgramState, list[np.ndarray]]:
    """The state `[S, ...]` and the fitness `[S, P]` of each generation of runs, new ones if they have no files."""
    paths = [folder / "state.npz" for folder in folders]
    stored = [dict(np.load(path)) for path in paths] if all(path.exists() for path in paths) else None
    fitness = list(np.stack([one.pop("fitness") for one in stored], axis=1)) if stored else []
    state = jax.jit(jax.vmap(program.init))(jax.vmap(partial(jax.random.fold_in, data=2 * len(fitness) + 1))(keys))
    if stored is None:
        return state, []
    kept = [jnp.stack([one[str(number)] for one in stored]) for number in range(len(stored[0]))]
    return _replace(state, kept), fitness


def save(folders: Sequence[Path], state: ProgramState, fitness: Sequence[np.ndarray]) -> None:
    """Write what `load` reads, a file for each run."""
    leaves = jax.device_get(_kept(state))
    for number, folder in enumerate(folders):
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / "part.npz"
        arrays: dict[str, Any] = {str(index): leaf[number] for index, leaf in enumerate(leaves)}
        np.savez_compressed(part, fitness=np.asarray(fitness)[:, number], **arrays)
        part.replace(folder / "state.npz")


def _kept(state: ProgramState) -> list[Array]:
    """The leaves that are stored."""
    return jax.tree.leaves(state._replace(members=state.members._replace(env_state=None)))


def _replace(state: ProgramState, leaves: Sequence[Array]) -> ProgramState:
    """The state with other leaves, and with its own environments."""
    bare = state._replace(members=state.members._replace(env_state=None))
    filled = jax.tree.unflatten(jax.tree.structure(bare), leaves)
    return filled._replace(members=filled.members._replace(env_state=state.members.env_state))
