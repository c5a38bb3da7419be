"""Types shared by the whole package: array aliases, records, and the letters that name array axes.

Shapes in docstrings use the letters below and no others. Functions are written for one member, one environment and one
transition; a leading axis over which a function is mapped is left out of its shapes:

    P  members of a population          E  environments of one member
    I  agents of a team that share one environment (absent in a single-agent environment)
    B  rows of a batch                  N  evaluation episodes
    T  time steps                       K  start states in a bank
    O  size of the observed features    A  action size (dimensions, or number of discrete actions)
    D  descriptor size                  C  cells of a repertoire, or rows of a buffer (its capacity)
    U  gradient updates in a block
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, Self

import jax
from jax.core import Tracer
from typing_extensions import TypeVar

Array = jax.Array
Key = jax.Array
"""A typed PRNG key, shape `[]`. The function that receives a key consumes it."""

Scalar = jax.Array | float
"""A `[]` array, or a Python float where a default is declared."""

PyTree = Any

Settings = Mapping[str, Any]
"""How an object was made: section, such as "agent", -> names and configs, which a run records in `config.json`."""
Record = Mapping[str, Any]
"""The settings of a run as JSON values, nested by section: the content of `config.json`."""
NO_SETTINGS: Settings = MappingProxyType({})


def named(name: str, config: object) -> dict[str, Any]:
    """A section of `Settings`: the name of a factory, and the fields of the config that it was given."""
    return {"name": name, **vars(config)}


class Hyper(Protocol):
    """A NamedTuple of float scalars, declared next to its agent: the hyper-parameters that can evolve."""

    @property
    def _fields(self) -> tuple[str, ...]: ...

    def _asdict(self) -> dict[str, Any]: ...

    def _replace(self, **values: object) -> Self: ...


class HasParams(Protocol):
    """The attribute that every agent's `State` has: its parameters."""

    @property
    def params(self) -> Any:
        """The parameters that can be copied into other members."""
        ...


ParamsT = TypeVar("ParamsT", infer_variance=True)
"""The parameters of an agent, a NamedTuple or any other pytree."""
StateT = TypeVar("StateT", bound=HasParams, infer_variance=True)
"""The learned state of a member."""
HyperT = TypeVar("HyperT", bound=Hyper, infer_variance=True)
"""The hyper-parameters of an agent."""
GenotypeT = TypeVar("GenotypeT", infer_variance=True)
"""A genotype, or several with leaves `[C, ...]` or `[B, ...]`: `Genotype`, or any other pytree."""
AnyHyperT = TypeVar("AnyHyperT", infer_variance=True)
"""The hyper-parameters of an agent, or () for a policy that is evolved without gradients."""

Metrics = Mapping[str, Array]
"""Metric name -> `[]` or `[P]`. Names that start with `hyper/` are hyper-parameters."""

FROM_REPERTOIRE = -1
"""The value of `parent` for a member that was replaced by an elite of the repertoire, or from another island, or that
a method drew anew."""


class Observation(NamedTuple):
    """What an agent observes in one step. A part that an environment does not have is None."""

    features: Array
    """`[O]`, what describes the state of the environment, float32, or uint8 for pixels; the only part that is
    normalised. Features of another shape are flattened, see `features.py`."""
    skill: Array | None = None
    """`[S]`, the skill of the episode, see `envs/wrappers/skills.py`."""
    action_mask: Array | None = None
    """`[A]` bool, the discrete actions or action dimensions that are available in this step."""
    carry: PyTree = None
    """The recurrent state that the agent returned in the last step, see `envs/wrappers/recurrence.py`."""
    agent: Array | None = None
    """`[I]`, one-hot index of the agent in its team, see `envs/wrappers/teams.py`."""


class Transition(NamedTuple):
    """One environment step, as stored for learning."""

    observation: Observation
    """The observation that the agent acted on."""
    action: Array
    """`[A]` in [-1, 1], or `[]` int32 for discrete actions."""
    reward: Array
    """`[]`."""
    next_observation: Observation
    """The true successor, never the observation after an automatic reset."""
    terminated: Array
    """`[]` bool: the task ended, so nothing is bootstrapped; False at a time limit."""
    extras: PyTree = ()
    """Additional data of the step, see `IntrinsicReward` and `RolloutExtras` in `agents/base.py`."""


class Evaluation(NamedTuple):
    """The results of evaluating one genotype by full episodes."""

    fitness: Array
    """`[]`, mean return, or the fitness that the agent defines; NaN if an action was not finite or the physics broke,
    since an episode that breaks ends early with reward 0, which would be the best where rewards are negative."""
    descriptor: Array
    """`[D]`, mean or median over the episodes; D = 0 for a task without descriptor."""
    returns: Array
    """`[N]`, NaN where the physics broke; in a team, the mean over its agents."""
    lengths: Array
    """`[N]` int32, in steps."""
    broken: Array
    """`[]` int32, episodes that ended because the simulation produced non-finite numbers, and those whose objective is
    not finite, for which the member's parameters are no reason."""
    episodes: Mapping[str, Array] = {}
    """Further values of each episode, name -> `[N, ...]`; never mutated."""
    roles: PyTree = ()
    """`[I]`, mean return of each agent of a team; NaN for an agent whose action was not finite, and for all if the
    physics broke."""
    transitions: PyTree = ()
    """`learners.evaluation.Recorded`, the transitions of its episodes; () where they are not recorded."""
    extras: Mapping[str, Array] = {}
    """Name -> values that are stored with the genotype if it becomes an elite; never mutated."""


class Genotype(NamedTuple, Generic[ParamsT, AnyHyperT]):
    """The part of a member that can be copied into another member: no optimiser state, target networks or data."""

    params: ParamsT
    hyper: AnyHyperT
    normalizer: PyTree
    """Observation statistics that the parameters were trained with, or None."""

    def __repr__(self) -> str:
        """The number of parameters, and the hyper-parameters; the fields have the values."""
        count = sum(getattr(leaf, "size", 1) for leaf in jax.tree.leaves(self.params))
        known = [
            f"{name}={value:.4g}"
            for name, value in getattr(self.hyper, "_asdict", dict)().items()
            if isinstance(value, float | jax.Array) and not (isinstance(value, Tracer) or getattr(value, "ndim", 0))
        ]
        return f"Genotype({', '.join([f'{count:,} parameters', *known])})"
