"""The environment interface `Environment(reset, step, spec)`, which all tasks, suite adapters and wrappers share.

An environment describes one episode; `jax.vmap` makes a batch of them. Termination (the task ended) and truncation (the
time limit was reached) are separate flags, and `final_observation` is the true successor observation even when an
automatic reset has already put the next episode's first observation into `observation`.

In a multi-agent environment (`EnvSpec.team`) observations, actions, rewards and both flags have a leading axis of I
agents, sizes are those of the largest agent, and the flags of an agent whose task has ended stay set until the episode
is over. The episode is over when it has ended for all agents. Every function here supports both kinds.
"""

import functools
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rookery import trees
from rookery.envs import descriptors
from rookery.envs.host.base import Host
from rookery.envs.rendering import scene
from rookery.features import Part, Shape
from rookery.hyperparams import Space
from rookery.types import NO_SETTINGS, Array, Key, Observation, PyTree, Settings

EnvState = PyTree


class DescriptorSpec(NamedTuple):
    """Meaning and limits of a task's descriptor."""

    meaning: str
    """Short description, for example "final x, y"."""
    kind: descriptors.Kind
    """How the state descriptors of an episode are reduced to one descriptor."""
    lower: tuple[float, ...]
    """Lower limits, `[D]`."""
    upper: tuple[float, ...]
    """Upper limits, `[D]`."""
    cell: float | None = None
    """Side of the cells in which visited positions are counted, in the unit of the descriptor; None: the descriptor is
    not a position. Goals are positions between the limits."""
    observed: bool = False
    """Whether the first D features of an observation are the descriptor of its state."""
    names: tuple[str, ...] | None = None
    """Name of each dimension, `[D]`; None: they are taken from letters in the meaning, or numbered."""

    @property
    def size(self) -> int:
        """D, at least 1."""
        return len(self.lower)


class SkillSpec(NamedTuple):
    """Format of an observation's skill, see `envs/wrappers/skills.py`."""

    kind: str
    """One of "one-hot" and "sphere"."""
    size: int
    """Length of the skill vector: the number of skills, or the dimension of the sphere's space."""


class Team(NamedTuple):
    """The agents of a multi-agent environment and the unpadded sizes of their observations and actions."""

    names: tuple[str, ...]
    """Unique names, `[I]`."""
    observation_sizes: tuple[int, ...]
    """Sizes before the padding to a common size, `[I]`."""
    action_sizes: tuple[int, ...]
    """Sizes before the padding to a common size, `[I]`."""
    competitive: bool = False
    """Whether agents compete, so that the mean of their returns does not measure a team's performance."""


class TakenAction(NamedTuple):
    """Actions as an environment takes them, where they are not those of its agents."""

    type: str
    """NumPy's name of their type."""
    shape: tuple[int, ...]
    """Their shape; `()` for one discrete number."""
    low: tuple[float, ...]
    """Their lower bounds, which stand for -1; of discrete numbers the first ones."""
    high: tuple[float, ...]
    """Their upper bounds, which stand for 1; of discrete numbers the last ones."""


class EnvSpec(NamedTuple):
    """Static properties of an environment; agents are built from these alone."""

    name: str
    """Name of the task."""
    observation_size: int
    """O, size of the features of an observation."""
    action_size: int
    """A, number of dimensions, each in [-1, 1] unless `unbounded`; or the number of discrete actions, where they have
    parts the sum of `categories`."""
    episode_length: int
    """Steps until truncation."""
    discrete: bool = False
    """Whether actions are int32 indices."""
    descriptor: DescriptorSpec | None = None
    """None: the task has no descriptor."""
    qd_offset: float = 0.0
    """Reward per step, added for the QD score so that the worst known behaviour counts as 0: at least minus the lowest
    reward of a step. With rewards below 0 and an offset of 0 every elite counts as 0, and so does the QD score."""
    skill: SkillSpec | None = None
    """None: observations have no skill."""
    team: Team | None = None
    """None: a single-agent environment."""
    masked: bool = False
    """Whether observations have an action mask."""
    recurrent: bool = False
    """Whether observations have a carry, and actions are `ActionWithCarry`, see `wrappers/recurrence.py`."""
    identified: bool = False
    """Whether observations have the agent's index in its team, see `wrappers/teams.py`."""
    unbounded: bool = False
    """Whether continuous actions are arbitrary real numbers that are never clipped."""
    has_previous: bool = False
    """Whether a `Step` has the state before it, see `Step.previous`."""
    observation_shape: Shape | None = None
    """Shape of the features before `flatten_features`, such as (10, 10, 4) for an image, or a pytree of shapes; None:
    they are a vector."""
    parameters: Space | None = None
    """Parameters that a population can evolve during training, such as reward weights, by `hyperparams.declared`; None:
    the environment has none."""
    measures: Mapping[str, str] | None = None
    """Name -> meaning of each measure of a step (`Step.measures`), whose sum over an episode can be the fitness; None:
    it has none."""
    given: tuple[Part, ...] | None = None
    """Parts of an observation as an environment on the host gives them; None: in the shape of the features."""
    taken: TakenAction | None = None
    """Actions as an environment on the host takes them; None: those of its agents."""
    categories: tuple[int, ...] = ()
    """Numbers of categories of the K parts of a discrete action, which is `[K]` then, as in Gymnasium's MultiDiscrete;
    a mask `[A]` has the categories of all parts one after another. (): an action is one index."""

    @property
    def descriptor_size(self) -> int:
        """D, or 0 for a task without a descriptor."""
        return self.descriptor.size if self.descriptor else 0

    @property
    def agents(self) -> tuple[int, ...]:
        """Shape of the agent axis: `(I,)` for a team, `()` for a single agent."""
        return (len(self.team.names),) if self.team else ()

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of an action: `(A,)`, for discrete ones `()` or `(K,)`; for a team with the agent axis before it."""
        return (
            *self.agents,
            *((len(self.categories),) * bool(self.categories) if self.discrete else (self.action_size,)),
        )

    def allows_action(self, mask: Array) -> Array:
        """Whether a mask `[..., A]` allows an action, for which each part needs a category; `[...]` bool."""
        parts = self.categories or (self.action_size,)
        ends = itertools.accumulate(parts)
        found = [mask[..., end - size : end].any(axis=-1) for size, end in zip(parts, ends, strict=True)]
        return functools.reduce(operator.and_, found)

    @property
    def action_type(self) -> jax.typing.DTypeLike:
        """Type of an action: int32 or float32."""
        return jnp.int32 if self.discrete else jnp.float32

    @property
    def sizes(self) -> tuple[int, int, bool, tuple[int, ...]]:
        """What an agent's networks depend on: `input_size`, `action_size`, `discrete`, `categories`."""
        return self.input_size, self.action_size, self.discrete, self.categories

    @property
    def input_size(self) -> int:
        """Size of a network's input: the agent's index, the features and the skill, see `networks.input_vector`."""
        index = len(self.team.names) if self.team and self.identified else 0
        return index + self.observation_size + (self.skill.size if self.skill else 0)


class Previous(NamedTuple):
    """The state in which a step began."""

    observation: Observation
    """The observation that the action was chosen for."""
    descriptor: Array
    """State descriptor, `[D]`."""


class Step(NamedTuple):
    """Output of a reset or of one environment step."""

    observation: Observation
    """Observation for the next action; after an automatic reset the new episode's first."""
    reward: Array
    """Reward of the step, `[]`."""
    terminated: Array
    """Whether the task ended, `[]` bool; of a team `[I]`, from then on True until the episode is over."""
    truncated: Array
    """Whether the time limit was reached, `[]` bool."""
    final_observation: Observation
    """True successor observation, also when the episode ended in this step."""
    descriptor: Array
    """State descriptor of the true successor, `[D]`; D = 0 for a task without a descriptor."""
    broken: Array
    """Whether the episode was terminated because the physics returned a non-finite number, `[]` bool. Nothing learns
    from such a step, and an evaluation that contains one has no finite fitness."""
    episode_return: Array | None = None
    """Sum of the episode's rewards so far, `[]`, in an environment with skills; None in others."""
    measures: Mapping[str, Array] | None = None
    """Name -> measure of the step, `[]`, or `[I]` for each agent of a team; 0 after a reset. None without measures."""
    previous: Previous | None = None
    """The state before the step (after a reset the start state), if the spec has `has_previous`; None in others."""

    @property
    def ended(self) -> Array:
        """Whether the episode has ended for the agent, terminated or truncated; `[]` bool, or `[I]`."""
        return self.terminated | self.truncated

    @property
    def over(self) -> Array:
        """Whether the episode has ended for all agents; `[]` bool. Defined for a single step: use `vmap` on a batch."""
        return jnp.all(self.ended)

    def observing(self, **parts: PyTree) -> "Step":
        """The step with other parts of its observation and of its final observation."""
        observation, final = (one._replace(**parts) for one in (self.observation, self.final_observation))
        return self._replace(observation=observation, final_observation=final)


class ActionWithCarry(NamedTuple):
    """Action of a recurrent agent, see `envs/wrappers/recurrence.py`."""

    action: Array
    """Action for the wrapped environment, `[A]`."""
    carry: PyTree
    """Recurrent state that the next observation will contain."""


class ResetFn(Protocol):
    """Start an episode; the key is consumed. The returned step has reward 0 and no flag set."""

    def __call__(self, key: Key) -> tuple[EnvState, Step]: ...


class StepFn(Protocol):
    """Advance one step with an action `[A]` in [-1, 1] (or `[]` int32); the key is consumed."""

    def __call__(self, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]: ...


class FirstFn(Protocol):
    """Turn a start state into the start of a slot's first episode; `slot` is counted from 0, `[]` int32.

    The key is consumed. If it is None, as in an evaluation, the result depends on the start state and the slot only.
    """

    def __call__(self, start: tuple[EnvState, Step], slot: Array, key: Key | None) -> tuple[EnvState, Step]: ...


class NextFn(Protocol):
    """Turn a start state into the start of the episode after the one that ended in state `last`; consumes the key."""

    def __call__(self, start: tuple[EnvState, Step], last: EnvState, key: Key) -> tuple[EnvState, Step]: ...


class AnnounceFn(Protocol):
    """Let the host begin the step that `step` will take from the returned state with the same action, while the device
    does other work; only for environments on the host."""

    def __call__(self, state: EnvState, action: Array) -> EnvState: ...


class ParameterizeFn(Protocol):
    """Return the same environment with other values of its parameters: a record of the type of
    `spec.parameters.defaults`, each value a number or a traced `[]`.

    The shapes of states and steps do not change. Start states are drawn by the environment with the default values, so
    values may affect `step` and `assignment` only.
    """

    def __call__(self, values: PyTree, /) -> "Environment": ...


class Assignment(NamedTuple):
    """Assigns a goal, such as a skill, to each episode that begins from a shared start state."""

    first: FirstFn
    """For the first episode of a slot."""
    next: NextFn
    """For every later episode."""


class Environment(NamedTuple):
    """An environment as pure functions and a spec."""

    reset: ResetFn
    """Starts an episode."""
    step: StepFn
    """Advances an episode by one step."""
    spec: EnvSpec
    """Static properties."""
    assignment: Assignment | None = None
    """None: an episode is determined by its start state."""
    picture: scene.Picture | None = None
    """None: the environment cannot be drawn."""
    announce: AnnounceFn | None = None
    """None: steps are computed on the device."""
    host: Host | None = None
    """The environment objects of an environment on the host, see `envs/host`; None for one that is computed on the
    device. The state of an episode on the host exists once, so it must be stepped once and not be kept."""
    settings: Settings = NO_SETTINGS
    """The name and options that it was made from, recorded in the run directory."""
    parameterize: ParameterizeFn | None = None
    """None: the environment has no parameters."""

    def recorded(self, **options: object) -> Settings:
        """The settings with further options of the environment."""
        return {**self.settings, "environment": {**self.settings.get("environment", {}), **options}}


def check_categories(spec: EnvSpec) -> None:
    """Raise a ValueError if the categories are no tuple of whole numbers, such as an array or Gymnasium's `nvec`."""
    sizes: Any = spec.categories
    if not (isinstance(sizes, tuple | list) and all(hasattr(size, "__index__") for size in sizes)):
        remedy = "give whole numbers: tuple(map(int, categories))"
        raise ValueError(f"spec.categories must be a tuple, such as (2, 3), got {sizes!r}; {remedy}.")


def announce_inside(environment: Environment, field: str) -> AnnounceFn | None:
    """The `announce` of a wrapper whose state holds that of the wrapped environment in `field`."""
    inner = environment.announce
    if inner is None:
        return None
    return lambda state, action: state._replace(**{field: inner(getattr(state, field), action)})


def parameterize_inside(environment: Environment, wrap: Callable[[Environment], Environment]) -> ParameterizeFn | None:
    """The `parameterize` of a wrapper: it wraps the environment with new values again; None if it has no parameters.

    Args:
      environment: the environment that is wrapped.
      wrap: the wrapper.

    Example:
      >>> env = rookery.make("point_goal")
      >>> parameterize = rookery.envs.parameterize_inside(env, rookery.envs.guard_physics)
    """
    inner = environment.parameterize
    return None if inner is None else lambda values: wrap(inner(values))


_NARROWEST, _WIDEST = 1e-15, 1e18  # between which a thousandth of a range has a square in float32


def descriptor_spec(
    meaning: str | Sequence[str],
    kind: descriptors.Kind,
    lower: tuple[float, ...],
    upper: tuple[float, ...],
    cell: float | None = None,
    observed: bool = False,
) -> DescriptorSpec:
    """Build the spec of a descriptor and check it.

    Args:
      meaning: short description, for example "final x, y", or the name of each dimension, `("position", "speed")`.
      kind: one of `descriptors.KINDS`.
      lower: lower limits, `[D]`, finite.
      upper: upper limits, `[D]`, finite and above `lower`.
      cell: see `DescriptorSpec.cell`; above 0, and only for the kind "final".
      observed: see `DescriptorSpec.observed`.

    Raises:
      ValueError: the descriptor has size 0, its limits or names differ in size, its limits are not finite, do not
        increase, or are less than 1e-15 or more than 1e18 apart in its widest dimension, `kind` is unknown, or `cell`
        is not above 0 or is given for another kind than "final".

    Example:
      >>> rookery.envs.descriptor_spec("final x, y", "final", (-1.0, -1.0), (1.0, 1.0)).size
      2
    """
    names = None if isinstance(meaning, str) else tuple(meaning)
    meaning = meaning if isinstance(meaning, str) else ", ".join(meaning)
    lower, upper = (tuple(map(float, np.atleast_1d(trees.unmasked(side, np.float64)))) for side in (lower, upper))
    if not lower or len(lower) != len(upper):
        raise ValueError(f"descriptor {meaning!r} needs limits of one equal size >= 1, got {lower} and {upper}.")
    if names is not None and len(names) != len(lower):
        raise ValueError(f"descriptor {meaning!r} has {len(names)} names for {len(lower)} dimensions.")
    if not trees.are_finite_in_float32((*lower, *upper)):
        raise ValueError(f"descriptor {meaning!r} needs finite limits, got {lower} and {upper}.")
    if any(low >= high for low, high in zip(lower, upper, strict=True)):
        raise ValueError(f"descriptor {meaning!r} needs lower < upper in every dimension, got {lower} and {upper}.")
    widest = max(high - low for low, high in zip(lower, upper, strict=True))
    if not _NARROWEST <= widest <= _WIDEST:
        raise ValueError(
            f"descriptor {meaning!r} has limits {widest:.3g} apart, whose squares float32 does not hold; "
            f"give it in another unit, with limits {_NARROWEST:g} to {_WIDEST:g} apart."
        )
    if kind not in descriptors.KINDS:
        raise ValueError(f"descriptor kind {kind!r} is unknown; use one of {sorted(descriptors.KINDS)}.")
    if cell is not None and not (cell > 0.0 and kind == "final"):
        raise ValueError(
            f"descriptor {meaning!r} with a cell is a position, so the cell must be above 0 and the kind 'final'; got "
            f"{cell} and {kind!r}."
        )
    return DescriptorSpec(meaning, kind, lower, upper, None if cell is None else float(cell), observed, names)


def first_step(
    features: Array, descriptor: Array, action_mask: Array | None = None, measures: Mapping[str, Array] | None = None
) -> Step:
    """Build the step that a reset returns: reward 0 and no flag set.

    Args:
      features: `[O]`, or `[I, O]` for a team; other shapes by `flatten_features`.
      descriptor: `[D]`.
      action_mask: `[A]` bool, or `[I, A]` for a team; only in an environment whose spec is `masked`.
      measures: zeros, name -> `[]` or `[I]`; only in an environment whose spec has measures.

    Example:
      >>> rookery.envs.first_step(jnp.zeros(3), jnp.zeros(2)).reward.shape
      ()
    """
    observation, agents = Observation(features, action_mask=action_mask), features.shape[:-1]
    false = jnp.zeros(agents, bool)
    step = Step(observation, jnp.zeros(agents), false, false, observation, descriptor, jnp.asarray(False))
    return step._replace(measures=measures)


def next_step(
    features: Array,
    reward: Array,
    terminated: Array,
    descriptor: Array,
    action_mask: Array | None = None,
    measures: Mapping[str, Array] | None = None,
) -> Step:
    """Build the step of an environment without a time limit and without automatic resets.

    Args:
      features: `[O]`, or `[I, O]` for a team; other shapes by `flatten_features`.
      reward: `[]` or `[I]`.
      terminated: `[]` or `[I]` bool.
      descriptor: `[D]`.
      action_mask: see `first_step`.
      measures: name -> `[]` or `[I]` float32, as the spec declares them.

    Example:
      >>> step = rookery.envs.next_step(jnp.zeros(3), jnp.ones(()), jnp.asarray(False), jnp.zeros(2))
    """
    observation = Observation(features, action_mask=action_mask)
    return Step(
        observation=observation,
        reward=jnp.asarray(reward, jnp.float32),
        terminated=jnp.asarray(terminated, bool),
        truncated=jnp.zeros(features.shape[:-1], bool),
        final_observation=observation,
        descriptor=descriptor,
        broken=jnp.asarray(False),
        measures=measures,
    )
