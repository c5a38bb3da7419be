"""What flows between the rooms: array aliases, records, and the axis letters.

Shapes in docstrings use these letters and no others; a leading axis that a function is mapped over is left out, since
everything is written for one member, one environment, one transition:

    P  members of a population          E  environments of one member
    I  agents of a team, in one world   (a world for one agent has no such axis)
    B  rows of a batch                  N  evaluation episodes
    T  time steps                       K  start states in a bank
    O  observation size                 A  action size (dimensions, or number of discrete actions)
    D  descriptor size                  C  cells of a repertoire, or rows of a buffer (its capacity)
    U  gradient updates in a block
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

Array = jax.Array
Key = jax.Array
"""A typed PRNG key, shape `[]`. It is consumed by the function that receives it."""

Scalar = jax.Array | float
"""A `[]` array, or a Python float where a default is declared."""

PyTree = Any
Hyper = Any
"""A NamedTuple of float scalars, declared beside its agent: what evolves."""

Metrics = Mapping[str, Array]
"""Name -> `[]` or `[P]`. Names under `hyper/` are hyper-parameters."""


class Transition(NamedTuple):
    """One environment step, as learning sees it."""

    observation: Array  # [O] what the agent acted on
    action: Array  # [A] in [-1, 1], or [] int32 when discrete
    reward: Array  # []
    next_observation: Array  # [O] the true successor, never the state after a reset
    terminated: Array  # [] bool: the task ended, nothing follows; a time limit does not count
    extras: PyTree = ()  # what else is kept of the step, see `agents/base.py: IntrinsicReward` and `RolloutExtras`


class Evaluation(NamedTuple):
    """What full episodes say of one genotype."""

    fitness: Array  # [] mean return, or an agent's own measure; NaN if the policy gave an action that is not finite
    descriptor: Array  # [D] mean or median over the episodes; D = 0 for a task without descriptor
    returns: Array  # [N]; of a team, the mean over its agents
    lengths: Array  # [N] int32, steps
    broken: Array  # [] int32, episodes that ended because the physics broke
    episodes: Mapping[str, Array] = {}  # what else is known of each: name -> [N, ...]; never changed
    roles: PyTree = ()  # [I] mean return of each agent of a team, NaN for one whose action was not finite


class Genotype(NamedTuple):
    """What can be copied from one life into another: no optimiser, no targets, no data."""

    params: PyTree
    hyper: Hyper
    normalizer: PyTree  # observation statistics that the parameters were trained with, or None
