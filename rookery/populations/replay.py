"""Members that follow a given schedule of hyper-parameters, such as that of the best member of an earlier run.

Source: the replay of Jaderberg 2017 (arXiv:1711.09846, section 5), which separates the effect of the schedule from the
effect of selection.
"""

from collections.abc import Mapping
from functools import partial

import jax.numpy as jnp
import numpy as np

from rookery import hyperparams
from rookery.hyperparams import Space
from rookery.learners import widths
from rookery.populations.base import Program
from rookery.populations.pbt import PbtState
from rookery.populations.stages import change_init, change_step
from rookery.settings import unknown_name
from rookery.types import Array, HyperT, StateT


def replay(
    program: Program[PbtState[StateT, HyperT]], schedule: Mapping[str, Array | np.ndarray]
) -> Program[PbtState[StateT, HyperT]]:
    """Set the hyper-parameters of all members to the values of the schedule before every generation.

    Args:
      program: independent members (`seeds`), whose state contains the generation.
      schedule: name -> `[G]`, one value or name per generation, G at least 1; the last one applies to all later
        generations. Hyper-parameters without an entry are unchanged.

    Returns:
      The program with the schedule.

    Raises:
      TypeError: a `Schedule`, which does not define the length of a generation.
      ValueError: the program's agent has no such hyper-parameter or name, or the schedule is empty.

    Example:
      >>> env = rookery.make("point_room")
      >>> learner = rookery.off_policy(rookery.sac(env.spec), env)
      >>> schedule = rookery.experiments.lineage("runs/pbt-sac").schedule()
      >>> values = rookery.experiments.at_steps(schedule, steps_per_generation=1000, generations=20)
      >>> program = rookery.populations.replay(rookery.seeds(learner), values)
    """
    if not isinstance(schedule, Mapping):
        raise TypeError(
            "replay needs a schedule as a mapping name -> values; give at_steps(schedule, steps_per_generation, "
            "generations)."
        )
    if widths.NAME in schedule and program.learner is not None and program.learner.resize is not None:
        raise ValueError(
            f"the schedule changes the width of the networks, {widths.NAME}, which cannot be replayed; replay a run "
            "whose networks have one width, or leave it out of the schedule (from Python)."
        )
    fields = program.space.defaults._fields if program.space else ()
    unknown = sorted(set(schedule) - set(fields))
    if unknown:
        raise ValueError(
            f"the schedule is of another agent: it sets {', '.join(unknown)}; known are {', '.join(fields)}."
        )
    if not schedule or min(len(values) for values in schedule.values()) < 1:
        raise ValueError("the schedule is empty; replay a run that finished a generation.")
    values = {name: jnp.asarray(_numbers(program.space, name, column)) for name, column in schedule.items()}
    follow = partial(_follow, values)
    replayed = change_step(change_init(program, follow), follow)
    return replayed._replace(settings={**program.settings, "replayed": values})


def _numbers(space: Space | None, name: str, column: Array | np.ndarray) -> np.ndarray:
    """The values of a hyper-parameter, as float32; a name is its place in the declaration of the hyper-parameter."""
    column = np.asarray(column)
    if column.dtype.kind != "U":
        return column.astype(np.float32)
    names = hyperparams.choices_of(space).get(name, ()) if space else ()
    if unknown := sorted(set(column.tolist()) - set(names)):
        raise unknown_name(name, unknown[0], f"choice of {name} named", names, "it has numbers.")
    return np.array([names.index(value) for value in column], np.float32)


def _follow(schedule: Mapping[str, Array], state: PbtState) -> PbtState:
    """Set the scheduled values of the next generation for all members."""
    hyper = state.members.hyper
    now = {
        name: jnp.full_like(getattr(hyper, name), values[jnp.minimum(state.shared.generation, len(values) - 1)])
        for name, values in schedule.items()
    }
    return state._replace(members=state.members._replace(hyper=hyper._replace(**now)))
