"""Transitions, replay buffer and training states in QDax's documented form; for a population, leaves are `[P, ...]`."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rookery import buffers, hyperparams, types
from rookery.agents.base import StartFn
from rookery.agents.sac import SPACE as SAC_SPACE
from rookery.agents.sac import SacState
from rookery.agents.sac import start as start_sac
from rookery.agents.skills.diayn import DiaynState
from rookery.agents.td3 import SPACE as TD3_SPACE
from rookery.agents.td3 import Td3State
from rookery.agents.td3 import start as start_td3
from rookery.compat.records import Record, check, split_key, static_field, typed_key
from rookery.gradients import Learned
from rookery.hyperparams import Space
from rookery.learners.base import Member
from rookery.types import Array, Hyper, Key, Observation, PyTree

__all__ = ["DiaynTrainingState", "PBTSacTrainingState", "PBTTD3TrainingState", "PBTTrainingState", "QDTransition"]
__all__ += ["ReplayBuffer", "SacTrainingState", "TD3TrainingState", "Transition"]


Paths = Mapping[str, tuple[str, ...]]


class Transition(Record):
    """Environment steps; `next_obs` is the true successor, also in the last step of an episode."""

    obs: Array
    """`[..., O]`."""
    next_obs: Array
    """`[..., O]`."""
    rewards: Array
    """`[...]`."""
    dones: Array
    """`[...]`, 1 where the episode ended, by termination or truncation."""
    truncations: Array
    """`[...]`, 1 where the time limit ended the episode."""
    actions: Array
    """`[..., A]`."""

    @property
    def reward(self) -> Array:
        """`rewards`, by the name that Rookery's learners read."""
        return self.rewards

    @property
    def terminated(self) -> Array:
        """`[...]` bool, where the episode ended by termination."""
        return (self.dones > 0.5) & (self.truncations < 0.5)

    @classmethod
    def init_dummy(cls, observation_dim: int, action_dim: int) -> "Transition":
        """A batch of one zero transition, which defines the shapes of a replay buffer."""
        obs, scalar = jnp.zeros((1, observation_dim)), jnp.zeros((1,))
        return Transition(obs, obs, scalar, scalar, scalar, jnp.zeros((1, action_dim)))

    @property
    def flatten_dim(self) -> int:
        """F, the number of columns of `flatten`."""
        return sum(math.prod(shape) for shape in self._shapes().values())

    def flatten(self) -> Array:
        """Concatenate all fields in their order, `[..., F]`."""
        widths = {name: math.prod(shape) for name, shape in self._shapes().items()}
        shape = self.rewards.shape
        return jnp.concatenate([getattr(self, name).reshape(*shape, n) for name, n in widths.items() if n], -1)

    @classmethod
    def from_flatten(cls, flattened_transition: Array, transition: "Transition") -> Self:
        """Restore the fields from the result of `flatten`.

        Args:
          flattened_transition: `[..., F]`.
          transition: defines the shape of each field; its batch axes are ignored.

        Raises:
          ValueError: there are not F columns.
        """
        columns, expected = flattened_transition.shape[-1], transition.flatten_dim
        check(columns == expected, f"transitions like this one have {expected} columns, got {columns}.")
        leading, dtype = flattened_transition.shape[:-1], flattened_transition.dtype
        fields, end = {}, 0
        for name, shape in transition._shapes().items():
            begin, end = end, end + math.prod(shape)
            # XLA's compiler crashes on slices of size 0.
            part = flattened_transition[..., begin:end] if end > begin else jnp.zeros((*leading, 0), dtype)
            fields[name] = part.reshape(*leading, *shape)
        return cls(**{field.name: fields[field.name] for field in dataclasses.fields(cls)})

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each field of a single transition, by name, in order."""
        rank = self.rewards.ndim
        return {field.name: getattr(self, field.name).shape[rank:] for field in dataclasses.fields(self)}


class QDTransition(Transition):
    """Transition with the state descriptors before the step and of the true successor."""

    state_desc: Array
    """`[..., D]`."""
    next_state_desc: Array
    """`[..., D]`."""

    @classmethod
    def init_dummy(cls, observation_dim: int, action_dim: int, descriptor_dim: int) -> "QDTransition":  # pyright: ignore[reportIncompatibleMethodOverride]
        """A batch of one zero transition, which defines the shapes of a replay buffer."""
        descriptor = jnp.zeros((1, descriptor_dim))
        row = vars(Transition.init_dummy(observation_dim, action_dim))
        return QDTransition(**row, state_desc=descriptor, next_state_desc=descriptor)


class ReplayBuffer(Record):
    """Ring buffer of transitions; an insert writes only the new rows, and drops rows with non-finite values, such as
    the reward of a step in which the physics broke."""

    paths: ClassVar[Paths] = {"current_size": ("state", "size"), "current_position": ("state", "position")}

    state: buffers.BufferState
    buffer_size: int = static_field()

    @classmethod
    def init(cls, buffer_size: int, transition: Transition) -> "ReplayBuffer":
        """An empty buffer of `buffer_size` transitions with the shapes of `transition`, which may be a batch."""
        rank = transition.rewards.ndim
        alone = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[rank:], leaf.dtype), transition)
        return cls(buffers.ring(buffer_size).init(alone), buffer_size)

    @property
    def data(self) -> Array:
        """The stored transitions flattened, `[buffer_size, F]`, the oldest first, with NaN in rows not yet written.

        This is a copy: the buffer stores each field separately.
        """
        flat, size = self.state.rows.flatten(), self.current_size[..., None]
        place = jnp.broadcast_to(jnp.arange(self.buffer_size), flat.shape[:-1])
        oldest = jnp.where(size == self.buffer_size, self.current_position[..., None], 0)
        by_age = jnp.take_along_axis(flat, ((oldest + place) % self.buffer_size)[..., None], axis=-2)
        return jnp.where((place < size)[..., None], by_age, jnp.nan)

    def insert(self, transitions: Transition) -> "ReplayBuffer":
        """Overwrite the oldest transitions with `transitions`, which may have any leading axes.

        Raises:
          ValueError: there are more transitions than the buffer's capacity, or their class or shapes differ from those
            the buffer was created for.
        """
        made_for, given = type(self.state.rows).__name__, type(transitions).__name__
        check(made_for == given, f"this buffer was created for {made_for}, got {given}; insert the same class.")
        got = f"got rewards {transitions.rewards.shape} with obs {transitions.obs.shape}"
        check(transitions.rewards.ndim < transitions.obs.ndim, f"rewards have one axis less than obs, {got}.")
        held, count = self.state.rows._shapes(), transitions.rewards.size
        for name, shape in transitions._shapes().items():
            check(shape == held[name], f"{name} of this buffer have shape {held[name]}, got {shape}.")
        rows = jax.tree.map(lambda leaf, row: leaf.reshape(count, *row.shape[1:]), transitions, self.state.rows)
        return self.replace(state=buffers.add(self.state, rows)) if count else self

    def sample(self, key: Key, sample_size: int) -> PyTree:
        """Sample transitions `[sample_size, ...]` uniformly with replacement; the key is consumed.

        Raises:
          ValueError: the buffer is empty; not checked for traced buffers, whose transitions are then 0.
        """
        size = self.current_size
        is_filled = isinstance(size, Tracer) or bool(np.asarray(size).all())
        check(is_filled, "the replay buffer is empty; insert transitions.")
        return buffers.take(self.state, buffers.draw(self.state, typed_key(key), (sample_size,)))

    def functions(self) -> buffers.Buffer:
        """The functions by which Rookery's learners read and write this buffer."""
        return buffers.ring(self.buffer_size)._replace(add=_add, take=_take)


def observation_of(num_skills: int, obs: Array) -> Observation:
    """The observation of an array `[..., O + num_skills]` that ends in a skill."""
    size = obs.shape[-1] - num_skills
    return Observation(obs[..., :size], skill=obs[..., size:] if num_skills else None)


def transition_of(num_skills: int, rows: Transition) -> types.Transition:
    """Rows as Rookery's transitions, with `extras` the descriptors for the discriminator."""
    reached = rows.next_state_desc if isinstance(rows, QDTransition) else ()
    obs, next_obs = (observation_of(num_skills, obs) for obs in (rows.obs, rows.next_obs))
    return types.Transition(obs, rows.actions, rows.reward, next_obs, rows.terminated, reached)


def _add(state: buffers.BufferState, rows: types.Transition, valid: Array | None = None) -> buffers.BufferState:
    """Write Rookery's transitions, with `extras` the truncation flags; those that are not `valid` are left out."""
    dones, truncations = (flags.astype(jnp.float32) for flags in (rows.terminated | rows.extras, rows.extras))
    obs, next_obs = rows.observation.features, rows.next_observation.features
    return buffers.add(state, Transition(obs, next_obs, rows.reward, dones, truncations, rows.action), valid)


def _take(state: buffers.BufferState, indices: Array) -> types.Transition:
    return transition_of(0, buffers.take(state, indices))


def _paths(
    *learned: str, within: tuple[str, ...] = ("learned",), targets: tuple[str, ...] = ()
) -> dict[str, tuple[str, ...]]:
    """Paths of the documented attribute names inside a training state."""
    paths = {f"{name}_params": (*within, name) for name in targets}
    for name in learned:
        word = name.removeprefix("log_")
        paths |= {f"{word}_params": (*within, name, "params"), f"{word}_optimizer_state": (*within, name, "moments")}
    return {**paths, "normalization_running_stats": ("normalizer",), "random_key": ("key",)}


_SAC, _TARGET = ("policy", "critic", "log_alpha"), ("target_critic",)
_SAC_PATHS = _paths(*_SAC, targets=_TARGET)
_TD3_PATHS = _paths("policy", "critic", targets=("target_critic", "target_policy"))
_LEARNED = Learned(None, ())
_TD3_BLANK = Td3State(_LEARNED, _LEARNED, target_policy=None, target_critic=None)
_SAC_BLANK = SacState(_LEARNED, _LEARNED, _LEARNED, target_critic=None)
_SAC_HYPER = {name: ("hyper", name) for name in SAC_SPACE.domains}
_TD3_HYPER = {name.replace("exploration", "expl"): ("hyper", name) for name in TD3_SPACE.domains}


class TrainingState(Record):
    """Training state of one agent. Every use of its key replaces it by the next key.

    Names for construction, reading and `replace`: `policy_params` and `policy_optimizer_state`, likewise for `critic`,
    `alpha` (SAC) and `discriminator` (DIAYN); `target_critic_params`, `target_policy_params` (TD3); `key`, `steps`,
    `normalization_running_stats`; and the hyper-parameters of a member of a population. The optimizer states are those
    of `optax.adam`. Hyper-parameters that a constructed state does not have are those of the algorithm's configuration.

    Raises:
      TypeError: a name is missing or unknown.
    """

    search_space: ClassVar[Space]
    """The search space of the agent."""
    start: ClassVar[StartFn]
    """Builds the agent's state from its parameters."""
    blank: ClassVar[PyTree]
    """The agent's state without values."""

    learned: PyTree
    """The agent's state."""
    hyper: Hyper
    """Hyper-parameters, `[]` each."""
    key: Array
    """`[2]` uint32."""
    steps: Array
    """`[]` int32, number of updates; the same for all members of a population."""
    normalizer: PyTree
    """Running statistics of the observations, or None."""

    def __init_subclass__(cls) -> None:
        """Register the subclass as a pytree, with the constructor of this class."""
        jax.tree_util.register_dataclass(dataclasses.dataclass(frozen=True, init=False)(cls))

    def __init__(self, **fields: object) -> None:
        if fields.keys() != {field.name for field in dataclasses.fields(self)}:
            fields = self._of_documented(fields)
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @classmethod
    def _of_documented(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        names = {*cls.paths, "key", "steps"} - {"random_key"}
        given = {("key" if name == "random_key" else name): value for name, value in given.items()}
        missing, unknown = sorted(names - given.keys() - {"normalization_running_stats"}), sorted(given.keys() - names)
        if missing or unknown:
            found = f"{', '.join(missing) or 'nothing'} is missing, and {', '.join(unknown) or 'nothing'} is unknown"
            raise TypeError(f"{cls.__name__} is made of {', '.join(sorted(names))}; {found}.")
        kind = type(cls.search_space.defaults)
        hyper = kind(*[None] * len(kind._fields))
        fields = cls.nested({"learned": cls.blank, "hyper": hyper, "normalizer": None}, given)
        return fields | {"key": jax.random.key_data(typed_key(fields["key"])), "steps": jnp.asarray(fields["steps"])}

    @classmethod
    def nested(cls, fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """As `Record.nested`; of the state of `optax.adam`, a tuple, the moments are used."""
        moments = {
            name: value[0]
            for name, value in changes.items()
            if name.endswith("_optimizer_state") and type(value) is tuple and value
        }
        return Record.nested.__func__(cls, fields, {**changes, **moments})

    def member(self, env_state: PyTree = (), buffer: PyTree = ()) -> Member:
        """This agent as a `Member`, with environment states and a buffer."""
        return Member(self.learned, self.hyper, self.normalizer, env_state, buffer)

    def of_member(self, member: Member, **changes: PyTree) -> Self:
        """Take what a member has learned, and change other fields."""
        taken = {"learned": member.state, "hyper": member.hyper, "normalizer": member.normalizer}
        return self.replace(**taken | changes)

    def check_optimizers(self) -> None:
        """Raise a ValueError if there are no optimizer states to learn with, as in genotypes."""
        parts = jax.tree.leaves(self.learned, is_leaf=lambda tree: isinstance(tree, Learned))
        bare = any(isinstance(part, Learned) and part.moments == () for part in parts)
        check(not bare, "these agents have no optimizer states; create them with init_optimizers_states.")


class SacTrainingState(TrainingState):
    """Training state of SAC."""

    search_space, start, blank = SAC_SPACE, staticmethod(start_sac), _SAC_BLANK
    paths = _SAC_PATHS


class TD3TrainingState(TrainingState):
    """Training state of TD3."""

    search_space, start, blank = TD3_SPACE, staticmethod(start_td3), _TD3_BLANK
    paths = _TD3_PATHS


class DiaynTrainingState(TrainingState):
    """Training state of DIAYN with SAC."""

    search_space, start, blank = SAC_SPACE, staticmethod(start_sac), DiaynState(_SAC_BLANK, _LEARNED, ())
    paths = _paths(*_SAC, within=("learned", "agent"), targets=_TARGET) | _paths("discriminator")


PBTStateT = TypeVar("PBTStateT", bound="PBTTrainingState")


class PBTTrainingState(TrainingState):
    """Training state with evolved hyper-parameters.

    The class methods take the state of one agent; map them over a population with `jax.vmap`. `PBT` and `PBTEmitter`
    call those of a subclass.

    Raises:
      ValueError: a subclass is neither one of `PBTSacTrainingState` nor of `PBTTD3TrainingState`.
    """

    def __init_subclass__(cls) -> None:
        """Register the subclass."""
        TrainingState.__init_subclass__.__func__(cls)
        remedy = "derive it from PBTSacTrainingState or PBTTD3TrainingState, or write an agent for rookery.pbt"
        check(hasattr(cls, "search_space"), f"{cls.__name__} is the state of no agent of this library; {remedy}.")

    @classmethod
    def resample_hyperparams(cls, training_state: PBTStateT) -> PBTStateT:
        """Resample every hyper-parameter, each on its scale."""
        key, hyper_key = split_key(training_state.key)
        hyper = hyperparams.resample(training_state.search_space, training_state.hyper, hyper_key)
        return training_state.replace(key=key, hyper=hyper)

    @classmethod
    def init_optimizers_states(cls, training_state: PBTStateT) -> PBTStateT:
        """Initialise the optimizer states, and copy the networks into their target networks."""
        return training_state.replace(learned=training_state.start(training_state.learned.params))

    @classmethod
    def empty_optimizers_states(cls, training_state: PBTStateT) -> PBTStateT:
        """Remove the optimizer states and target networks, for storage in a repertoire."""
        parts = training_state.learned._asdict().items()
        bare = {name: Learned(part.params, ()) if isinstance(part, Learned) else () for name, part in parts}
        return training_state.replace(learned=training_state.learned._replace(**bare))


class PBTSacTrainingState(PBTTrainingState):
    """Training state of one SAC agent of a population.

    Its hyper-parameters, `[]` each: `discount`, `policy_lr`, `critic_lr`, `alpha_lr`, `reward_scaling`.
    """

    search_space, start, blank = SAC_SPACE, staticmethod(start_sac), _SAC_BLANK
    paths = _SAC_PATHS | _SAC_HYPER


class PBTTD3TrainingState(PBTTrainingState):
    """Training state of one TD3 agent of a population.

    Its hyper-parameters, `[]` each: `discount`, the learning rates, `noise_clip`, `policy_noise`, `expl_noise`.
    """

    search_space, start, blank = TD3_SPACE, staticmethod(start_td3), _TD3_BLANK
    paths = _TD3_PATHS | _TD3_HYPER
