"""Members that follow a schedule of hyper-parameters, such as a winner's of an earlier run.

Source: the replay of Jaderberg 2017 (arXiv:1711.09846, section 5): was it the schedule, or the selection, that helped?
"""

from collections.abc import Mapping
from functools import partial

import jax.numpy as jnp
import numpy as np

from rookery.populations.base import Program, ProgramState
from rookery.populations.stages import change_init, change_step
from rookery.types import Array


def replay(program: Program, schedule: Mapping[str, Array | np.ndarray]) -> Program:
    """A program whose members' hyper-parameters are those of the schedule, in every generation anew.

    Args:
      program: independent members (`seeds`), whose state tells its generation.
      schedule: name -> `[G]`, G at least 1; the last value holds from then on. Fields that it does not name stay as
        they are.

    Raises:
      TypeError: a `Schedule`, which does not say for what length of generation.
      ValueError: the program's agent has no such hyper-parameter, or the schedule is empty.
    """
    if not isinstance(schedule, Mapping):
        raise TypeError(
            "a schedule is name -> values here; give at_steps(schedule, steps_per_generation, generations)."
        )
    fields = program.space.defaults._fields if program.space else ()
    strange = sorted(set(schedule) - set(fields))
    if strange:
        raise ValueError(
            f"the schedule is of another agent: it sets {', '.join(strange)}; known are {', '.join(fields)}."
        )
    if not schedule or min(len(values) for values in schedule.values()) < 1:
        raise ValueError("the schedule is empty; replay a run that finished a generation.")
    values = {name: jnp.asarray(column, jnp.float32) for name, column in schedule.items()}
    follow = partial(_follow, values)
    return change_step(change_init(program, follow), follow)


def _follow(schedule: Mapping[str, Array], state: ProgramState) -> ProgramState:
    """Everybody with the values of the generation that begins."""
    hyper = state.members.hyper
    now = {
        name: jnp.full_like(getattr(hyper, name), values[jnp.minimum(state.shared.generation, len(values) - 1)])
        for name, values in schedule.items()
    }
    return state._replace(members=state.members._replace(hyper=hyper._replace(**now)))
