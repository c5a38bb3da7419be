"""The waist of the worlds: `Environment(reset, step, spec)`, and what wraps any of them.

An environment is written for one episode; `jax.vmap` makes it many. Termination (the task ended) and truncation (the
clock ended) are never merged, and `final_observation` is the true successor even when an automatic reset has already
put the next episode's first observation into `observation`.

In a world for a team (`EnvSpec.team`) observations, actions, rewards and both flags have an axis of I agents before any
other, sizes are those of the largest, and the flags of an agent whose task has ended stay set until the episode is
over: when those of all are. Everything here serves either kind.
"""

import math
from typing import NamedTuple, Protocol

import jax.numpy as jnp

from rookery.envs import descriptors
from rookery.envs.rendering import scene
from rookery.types import Array, Key, PyTree

EnvState = PyTree


class DescriptorSpec(NamedTuple):
    """What a task's descriptor means and where it lies."""

    meaning: str
    kind: descriptors.Kind  # how the steps of an episode become one descriptor
    lower: tuple[float, ...]  # [D]
    upper: tuple[float, ...]  # [D]

    @property
    def size(self) -> int:
        """D, at least 1."""
        return len(self.lower)


class SkillSpec(NamedTuple):
    """What the last numbers of an observation ask the agent to do, see `envs/wrappers/skills.py`."""

    kind: str  # "one-hot" or "sphere"
    size: int  # numbers: as many as there are skills, or the dimensions of the space that the sphere lies in


class Team(NamedTuple):
    """Who lives together in a world, and what each of them sees and does by itself."""

    names: tuple[str, ...]  # [I], unique
    observation_sizes: tuple[int, ...]  # [I], without the padding that makes them equal
    action_sizes: tuple[int, ...]  # [I]
    rivals: bool = False  # one wins what another loses, so that the mean of their returns says nothing of a team


class EnvSpec(NamedTuple):
    """All that a mind may know of a world."""

    name: str
    observation_size: int
    action_size: int  # dimensions, each in [-1, 1] unless `unbounded`; or the number of discrete actions
    episode_length: int  # steps until truncation
    discrete: bool = False
    descriptor: DescriptorSpec | None = None
    qd_offset: float = 0.0  # reward per step; added for the QD score, so that the worst known behaviour counts as 0
    skill: SkillSpec | None = None
    team: Team | None = None  # None: a world for one agent
    masked: bool = False  # whether observations say which actions there are, see `sensed_size`
    memory_size: int = (
        0  # numbers that an agent notes in each step and is shown in the next, see `envs/wrappers/recurrence.py`
    )
    unbounded: bool = False  # continuous actions are any real numbers, and nobody clips them

    @property
    def descriptor_size(self) -> int:
        """D, or 0 for a task without descriptor."""
        return self.descriptor.size if self.descriptor else 0

    @property
    def sensed_size(self) -> int:
        """How many numbers of an observation, the first ones, say where the agent is.

        What follows is its skill, a mask (1 for each of the discrete actions, or of the dimensions of a continuous one,
        that the agent has in this step, 0 for the others), and its memory; each only where the spec names it.
        """
        told = (self.skill.size if self.skill else 0) + (self.action_size if self.masked else 0)
        return self.observation_size - told - self.memory_size


class SkillInfo(NamedTuple):
    """What an environment with skills says in each step beside the rest."""

    skill: Array  # [S] that the step was made under
    episode_return: Array  # [] sum of the episode's rewards so far


class Step(NamedTuple):
    """What one environment step says."""

    observation: Array  # [O] what the agent acts on next (after an automatic reset: the new episode's first)
    reward: Array  # []
    terminated: Array  # [] bool: the task ended
    truncated: Array  # [] bool: the clock ended
    final_observation: Array  # [O] the true successor, also when the episode ended here
    descriptor: Array  # [D] state descriptor of the true successor; D = 0 without one
    broken: Array  # [] bool: the physics gave a number that is not finite and the episode was ended for it
    pursued: PyTree = ()  # `SkillInfo` in an environment with skills

    @property
    def ended(self) -> Array:
        """Whether it is over for the agent, for either reason; `[]` bool, or `[I]`."""
        return self.terminated | self.truncated

    @property
    def over(self) -> Array:
        """Whether the episode is over for everybody; `[]` bool. Of one step: a batch of them is mapped."""
        return jnp.all(self.ended)


class ActionWithCarry(NamedTuple):
    """What an agent with a memory does in a step, see `envs/wrappers/recurrence.py`."""

    action: Array  # the world's
    memory: Array  # [H]


class ResetFn(Protocol):
    """Start an episode; the key is consumed. The step's reward is 0 and none of its flags is set."""

    def __call__(self, key: Key) -> tuple[EnvState, Step]: ...


class StepFn(Protocol):
    """Advance one step with an action `[A]` in [-1, 1] (or `[]` int32); the key is consumed."""

    def __call__(self, state: EnvState, action: Array, key: Key) -> tuple[EnvState, Step]: ...


class FirstFn(Protocol):
    """Make a start state the beginning of a slot's first episode; slots are counted from 0, `[]` int32.

    The key is consumed; where it is None, as in an evaluation, the slot alone decides.
    """

    def __call__(self, start: tuple[EnvState, Step], slot: Array, key: Key | None) -> tuple[EnvState, Step]: ...


class NextFn(Protocol):
    """Make a start state the beginning of the episode after the one that ended in `last`; the key is consumed."""

    def __call__(self, start: tuple[EnvState, Step], last: EnvState, key: Key) -> tuple[EnvState, Step]: ...


class Assignment(NamedTuple):
    """How episodes that begin from one start state differ: in what they are for."""

    first: FirstFn
    next: NextFn


class Environment(NamedTuple):
    """A world for one agent; pure functions and a spec."""

    reset: ResetFn
    step: StepFn
    spec: EnvSpec
    assignment: Assignment | None = None  # None: a start state is all that there is to an episode
    picture: scene.Picture | None = None  # None: nobody has drawn it


def descriptor_spec(
    meaning: str, kind: descriptors.Kind, lower: tuple[float, ...], upper: tuple[float, ...]
) -> DescriptorSpec:
    """Declare a descriptor.

    Raises:
      ValueError: the descriptor has size 0, its limits differ in size, are not finite or do not increase, or `kind` is
        unknown.
    """
    if not lower or len(lower) != len(upper):
        raise ValueError(f"descriptor {meaning!r} needs limits of one equal size >= 1, got {lower} and {upper}.")
    if not all(math.isfinite(limit) for limit in (*lower, *upper)):
        raise ValueError(f"descriptor {meaning!r} needs finite limits, got {lower} and {upper}.")
    if any(low >= high for low, high in zip(lower, upper, strict=True)):
        raise ValueError(f"descriptor {meaning!r} needs lower < upper in every dimension, got {lower} and {upper}.")
    if kind not in descriptors.KINDS:
        raise ValueError(f"descriptor kind {kind!r} is unknown; use one of {sorted(descriptors.KINDS)}.")
    return DescriptorSpec(meaning, kind, lower, upper)


def first_step(observation: Array, descriptor: Array) -> Step:
    """The step that a reset returns: no reward, nothing ended."""
    agents = observation.shape[:-1]
    false = jnp.zeros(agents, bool)
    return Step(observation, jnp.zeros(agents), false, false, observation, descriptor, jnp.asarray(False))


def next_step(observation: Array, reward: Array, terminated: Array, descriptor: Array) -> Step:
    """The step of a world that has no clock and no automatic reset of its own."""
    return Step(
        observation=observation,
        reward=jnp.asarray(reward, jnp.float32),
        terminated=jnp.asarray(terminated, bool),
        truncated=jnp.zeros(observation.shape[:-1], bool),
        final_observation=observation,
        descriptor=descriptor,
        broken=jnp.asarray(False),
    )
