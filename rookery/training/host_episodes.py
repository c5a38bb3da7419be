"""Environments on the host in a run: their failures, and the running episodes in checkpoints."""

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rookery.distributed import programs, sync
from rookery.envs.host.base import Event, Host, HostError, HostState, HostWarning
from rookery.learners.base import Bank, Learner, Member
from rookery.populations.base import Program, ProgramState, member_keys
from rookery.storage.run_dir import resume_command
from rookery.types import Key, PyTree


def host_episodes(program: Program) -> "HostEpisodes | None":
    """The running episodes of a program on the host; None if its environments are computed on the devices.

    Raises:
      ValueError: there are some, and the run has several processes.
    """
    problem = program.learner or program.scoring
    evaluator = None if problem is None else problem.evaluator
    pool = None if evaluator is None else evaluator.environment.host
    if pool is None:
        return None
    if sync.process_count() > 1:
        raise ValueError(
            f"{pool.name} runs on the host, which works in one process only; start one process with all devices."
        )
    return HostEpisodes(program, pool)


class HostEpisodes:
    """The running episodes of a program on the host.

    Args:
      program: the program of the run.
      pool: its environments.
    """

    def __init__(self, program: Program, pool: Host):
        self._program, self._pool = program, pool

    def failed(self, state: PyTree) -> bool:
        """Whether an environment has failed; also shows the pool's warnings.

        Args:
          state: of the program after the last call.
        """
        self._warn(state)
        return self._pool.failure is not None

    def _warn(self, state: PyTree) -> None:
        while self._pool.warnings:
            event = self._pool.warnings.pop(0)
            where = f", {self._located(event, state)}" if event.slots.size else ""
            text = f"{self._pool.name}{where}: it {event.text}"
            warnings.warn(text, HostWarning, stacklevel=3)

    def save(self, state: PyTree) -> dict[str, np.ndarray] | None:
        """The running episodes of a program's state, to be stored with it; None if they cannot be saved."""
        self._pool.keep(_slots(state))
        arrays = self._pool.save()
        self._warn(state)
        return arrays

    def restore(self, state: ProgramState, arrays: Mapping[str, np.ndarray] | None, key: Key) -> ProgramState:
        """Continue the running episodes of a restored state, or begin new ones where they were not saved.

        Args:
          state: of the program, from a checkpoint.
          arrays: what `save` returned.
          key: consumed, for new episodes.

        Returns:
          The state, in which only environments have changed.

        Warns:
          HostWarning: new episodes began.
        """
        running = _slots(state)
        if running <= set(() if arrays is None else arrays["slots"].tolist()):
            if running and arrays is not None:
                self._pool.load(arrays)
            return state
        text = f"the episodes of {self._pool.name} that were running could not be saved; new ones begin."
        warnings.warn(text, HostWarning, stacklevel=2)
        learner = self._program.learner
        assert learner is not None
        return state._replace(members=_map_members(partial(_begin_episodes, learner, key), state.members))

    def error(self, state: PyTree, generation: int, run_dir: Path | None, saved: bool) -> HostError:
        """The error to raise after a failure.

        Args:
          state: of the program after the failure.
          generation: number of finished generations.
          run_dir: the run directory, or None.
          saved: whether the state was saved; if not, the run continues from its newest checkpoint.
        """
        failure, name = self._pool.failure, self._pool.name
        assert failure is not None
        self._pool.failure = None  # so that the same object can be run again
        where = self._located(failure, state)
        then = f"the run stopped in generation {generation + 1}"
        if run_dir is not None:
            then += ", whose progress is saved" if saved else ", which begins again after the newest checkpoint"
            then += f"; mend the environment and continue with: {resume_command(run_dir)}"
        return HostError(f"{name}, {where}: it {failure.text}; {then}")

    def _located(self, event: Event, state: PyTree) -> str:
        tables = [np.asarray(leaf.slot) for leaf in _host_states(state)]
        return located(event, tables, self._program.population_size)


def located(event: Event, tables: list[np.ndarray], population_size: int) -> str:
    """Where an event happened, such as "member 3, environment 2", or "an evaluation, episode 1".

    A call on one of several devices has only a part of the members' rows. Its first row is found by an episode of the
    same call that goes on; if none does, it may be of an evaluation with as many episodes.

    Args:
      event: of the pool.
      tables: the slots of all members' environments after the call, `[P, E]` each.
      population_size: P.
    """
    if event.starts:
        return "a start state"
    for table in tables:
        places = {int(slot): place for place, slot in enumerate(table.reshape(-1)) if slot >= 0}
        found = [places[int(slot)] - row for row, slot in enumerate(event.slots) if int(slot) in places]
        if found or event.shape == table.shape:
            member, environment = divmod((found[0] if found else 0) + event.row, math.prod(table.shape[1:]))
            return f"member {member}, environment {environment}"
    *members, episode = np.unravel_index(event.row, event.shape) if event.shape else (0,)
    if members and any(event.shape[1:] == table.shape[1:] for table in tables):
        return f"a member on one of several devices, environment or episode {episode}"
    of_member = f", member {members[0]}" if members and event.shape[0] == population_size else ""
    return f"an evaluation{of_member}, episode {episode}"


def _host_states(state: PyTree) -> list[HostState]:
    leaves = jax.tree.leaves(state, is_leaf=_is_host_state)
    return [leaf for leaf in leaves if _is_host_state(leaf)]


def _is_host_state(node: object) -> bool:
    return isinstance(node, HostState)


def _slots(state: PyTree) -> set[int]:
    """The slots of all running episodes of a state."""
    return {int(slot) for leaf in _host_states(state) for slot in np.asarray(leaf.slot).reshape(-1) if slot >= 0}


def _map_members(change: Callable[[Member], Member], tree: PyTree) -> PyTree:
    def apply(node: PyTree) -> PyTree:
        return change(node) if isinstance(node, Member) else node

    return jax.tree.map(apply, tree, is_leaf=lambda node: isinstance(node, Member))


def _begin_episodes(learner: Learner, key: Key, members: Member) -> Member:
    """Members `[P]` with new episodes, their buffers unchanged."""
    bank_key, restart_key = jax.random.split(key)
    count = jax.tree.leaves(members)[0].shape[0]
    keys = member_keys(restart_key, count)
    fresh = jax.jit(partial(_environments, learner))(members, learner.start_states(bank_key), keys)
    return members._replace(env_state=programs.place_like(fresh, members.env_state))


def _environments(learner: Learner, members: Member, bank: Bank, keys: Key) -> PyTree:
    restart = jax.vmap(learner.restart, in_axes=(0, None, 0, None))
    return restart(members, bank, keys, jnp.asarray(True)).env_state
