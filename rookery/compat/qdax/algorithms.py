"""Configurations of SAC, TD3, their populations and DIAYN, and the classes SAC and TD3, in QDax's documented form."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from rookery import buffers, hyperparams, types
from rookery.agents import diayn, sac, td3
from rookery.agents.base import OffPolicyAgent
from rookery.compat.qdax import off_policy, records
from rookery.compat.qdax.env_batch import Batch, first_episodes, unroll
from rookery.compat.qdax.env_batch import BatchState as State
from rookery.compat.qdax.records import QDTransition, ReplayBuffer, Transition
from rookery.compat.records import check, check_counts
from rookery.envs import base as envs
from rookery.gradients import Learned
from rookery.qd.scoring import descriptor_of
from rookery.types import Array, Hyper, Key, Metrics, PyTree

__all__ = ["SAC", "TD3", "DiaynConfig", "PBTSacConfig", "PBTTD3Config", "SacConfig", "TD3Config"]


@dataclass(frozen=True)
class PBTSacConfig:
    """Configuration of a population of SAC agents; the other hyper-parameters are evolved."""

    batch_size: int
    episode_length: int
    tau: float = 0.005
    normalize_observations: bool = False
    alpha_init: float = 1.0
    policy_hidden_layer_size: tuple[int, ...] = (256, 256)
    critic_hidden_layer_size: tuple[int, ...] = (256, 256)
    fix_alpha: bool = False


@dataclass(frozen=True)
class SacConfig:
    """Configuration of one SAC agent."""

    batch_size: int
    episode_length: int
    tau: float = 0.005
    normalize_observations: bool = False
    learning_rate: float = 3e-4
    alpha_init: float = 1.0
    discount: float = 0.97
    reward_scaling: float = 1.0
    critic_hidden_layer_size: tuple[int, ...] = (256, 256)
    policy_hidden_layer_size: tuple[int, ...] = (256, 256)
    fix_alpha: bool = False


@dataclass(frozen=True)
class DiaynConfig(SacConfig):
    """Configuration of DIAYN with SAC; the discriminator has the hidden layer sizes of the critics."""

    num_skills: int = 5
    descriptor_full_state: bool = False


@dataclass(frozen=True)
class PBTTD3Config:
    """Configuration of a population of TD3 agents; the other hyper-parameters are evolved."""

    episode_length: int = 1000
    batch_size: int = 256
    policy_delay: int = 2
    reward_scaling: float = 1.0
    soft_tau_update: float = 0.005
    critic_hidden_layer_size: tuple[int, ...] = (256, 256)
    policy_hidden_layer_size: tuple[int, ...] = (256, 256)


@dataclass(frozen=True)
class TD3Config:
    """Configuration of one TD3 agent."""

    episode_length: int = 1000
    batch_size: int = 256
    policy_delay: int = 2
    soft_tau_update: float = 0.005
    expl_noise: float = 0.1
    critic_hidden_layer_size: tuple[int, ...] = (256, 256)
    policy_hidden_layer_size: tuple[int, ...] = (256, 256)
    critic_learning_rate: float = 3e-4
    policy_learning_rate: float = 3e-4
    discount: float = 0.99
    noise_clip: float = 0.5
    policy_noise: float = 0.2
    reward_scaling: float = 1.0


_RATES = ("policy_lr", "critic_lr", "alpha_lr", "discriminator_lr")
_NAMES = {"policy_learning_rate": "policy_lr", "critic_learning_rate": "critic_lr"}
_NAMES |= {"expl_noise": "exploration_noise", "soft_tau_update": "tau"}


class PolicyState(NamedTuple):
    """The part of an agent's state, or of its parameters, that acting needs."""

    policy: PyTree
    agent: PyTree = ()
    """The same part of the inner agent of DIAYN."""


class Learner:
    """Base class of all algorithms: a Rookery agent, built for the observation sizes of the data."""

    kind: ClassVar[Any]
    """Class of the training states."""
    row: ClassVar[type] = Transition
    """Class of the transitions in buffers."""

    def __init__(self, config: Any, action_size: int) -> None:
        self._config, self._action_size = config, action_size
        counts = {name: vars(config).get(name, 1) for name in ("batch_size", "episode_length", "num_skills")}
        check_counts(action_size=action_size, **counts)
        self._agent(1 + getattr(config, "num_skills", 0))  # raises errors of the configuration at construction

    def _agent(self, observation_size: int, descriptor_size: int = 1) -> OffPolicyAgent:
        """Build the agent: SAC, TD3, or DIAYN with SAC."""
        config = self._config
        spec = envs.EnvSpec(type(self).__name__, observation_size, self._action_size, config.episode_length)
        sizes = tuple(config.policy_hidden_layer_size), tuple(config.critic_hidden_layer_size)
        if self.kind.agent_module is td3:
            agent = td3.td3(spec, td3.Td3Config(*sizes, policy_delay=config.policy_delay, output_scale=1.0))
        else:
            agent = sac.sac(spec, sac.SacConfig(*sizes, config.alpha_init, config.fix_alpha, 0.5, output_scale=1.0))
        if isinstance(config, DiaynConfig):
            limits = (0.0,) * descriptor_size, (1.0,) * descriptor_size
            descriptor = envs.descriptor_spec("descriptor of the buffer", "mean", *limits)
            spec = spec._replace(descriptor=descriptor, skill=envs.SkillSpec("one-hot", config.num_skills))
            agent = diayn.diayn(agent, spec, diayn.DiaynConfig(config.descriptor_full_state, True, sizes[1]))
        return agent._replace(update=partial(_update_and_measure, agent.update))

    def _init_state(self, key: Key, action_size: int, observation_size: int, agent: OffPolicyAgent) -> Any:
        made_for, config = self._action_size, dict(vars(self._config))
        check(action_size == made_for, f"this algorithm was created for action_size {made_for}, got {action_size}.")
        values: Any = dict.fromkeys(_RATES, config["learning_rate"]) if "learning_rate" in config else {}
        values |= {_NAMES.get(name, name): value for name, value in config.items()}
        arguments = {name: values[name] for name in agent.space.fields if name in values}
        hyper = hyperparams.choose(agent.space, **arguments).defaults
        return off_policy.init_state(
            self.kind, agent, key, hyper, config.get("normalize_observations", False) * observation_size
        )

    def _select_action(self, policy_params: PyTree, hyper: Hyper, obs: Array, key: Key, deterministic: bool) -> Array:
        agent, policy = self._agent(obs.shape[-1]), policy_params if deterministic else Learned(policy_params, ())
        policy_state = PolicyState(policy, PolicyState(policy))
        if deterministic:
            return agent.act(policy_state, obs)
        return off_policy.explore_actions(agent, policy_state, hyper, obs, key)

    def _play(
        self, before: State, agent: Any, env: Batch, deterministic: bool, evaluation: bool, skills: Array
    ) -> tuple[State, Any, tuple[Array, ...]]:
        """Step the environments: their states, the training state, and the fields of a transition."""
        definition = self._agent(before.obs.shape[-1] + skills.shape[-1])
        after, agent, outputs = off_policy.play(
            definition, env, before, agent, skills, not deterministic, not evaluation
        )
        ended = after.reward, after.done, after.info["truncation"]
        return after, agent, (outputs.observation, outputs.next_observation, *ended, outputs.action)

    def update(self, training_state: Any, replay_buffer: ReplayBuffer) -> tuple[Any, ReplayBuffer, Metrics]:
        """Make one gradient update from a batch sampled from the buffer.

        Returns:
          The training state, the unchanged buffer, and metrics `[]`: those of the agent (`actor_loss`, `critic_loss`,
          ...), and `obs_mean` and `obs_std` of the network inputs.
        """
        rows, needed = replay_buffer.state.rows, self.row.__name__
        check(
            isinstance(rows, self.row),
            f"this algorithm learns from {needed}, but the buffer stores {type(rows).__name__}.",
        )
        agent = self._agent(rows.obs.shape[-1], getattr(rows, "next_state_desc", rows.actions).shape[-1])
        learned = off_policy.learn(agent, RING, training_state, replay_buffer.state, self._config.batch_size)
        return learned[0], replay_buffer, learned[1]


def _update_and_measure(update: Any, state: PyTree, hyper: Hyper, batch: Any, noise: PyTree, step: Array) -> tuple:
    state, metrics = update(state, hyper, batch, noise, step)
    return state, {**metrics, "obs_mean": jnp.mean(batch.observation), "obs_std": jnp.std(batch.observation)}


def _add(state: buffers.BufferState, rows: types.Transition) -> buffers.BufferState:
    """Write Rookery's transitions, with `extras` the truncation flags, to the buffer."""
    dones, truncations = (flags.astype(jnp.float32) for flags in (rows.terminated | rows.extras, rows.extras))
    fields = rows.observation, rows.next_observation, rows.reward, dones, truncations, rows.action
    return buffers.add(state, Transition(*fields))


def _take(state: buffers.BufferState, indices: Array) -> types.Transition:
    """Read rows as Rookery's transitions, with `extras` the descriptors for the discriminator."""
    rows = buffers.take(state, indices)
    terminated = (rows.dones > 0.5) & (rows.truncations < 0.5)
    reached = rows.next_state_desc if isinstance(rows, QDTransition) else ()
    return types.Transition(rows.obs, rows.actions, rows.rewards, rows.next_obs, terminated, reached)


RING = buffers.ring(1)._replace(add=_add, take=_take)
"""Buffer functions that give Rookery's learners access to a `ReplayBuffer`."""


class SingleAgent(Learner):
    """Methods that SAC and TD3 share."""

    def init(self, key: Key, action_size: int, observation_size: int) -> Any:
        """Initialise a training state; an agent of a population gets sampled hyper-parameters.

        Raises:
          ValueError: `action_size` differs from the constructor's.
        """
        check_counts(observation_size=observation_size)
        state = self._init_state(key, action_size, observation_size, self._agent(observation_size))
        return self.kind.resample_hyperparams(state) if issubclass(self.kind, records.PBTTrainingState) else state

    def play_step_fn(
        self, env_state: State, training_state: Any, env: Any, deterministic: bool = False, evaluation: bool = False
    ) -> tuple[State, Any, Transition]:
        """Step environments `[E, ...]`, or a single one, of `environments.create`.

        With `evaluation`, the running statistics of the observations are not updated.

        Returns:
          Environment states, training state, and the transitions.
        """
        skills = env_state.obs[..., :0]
        after, agent, fields = self._play(env_state, training_state, env, deterministic, evaluation, skills)
        return after, agent, Transition(*fields)

    def play_qd_step_fn(
        self, env_state: State, training_state: Any, env: Any, deterministic: bool = False, evaluation: bool = False
    ) -> tuple[State, Any, QDTransition]:
        """As `play_step_fn`, with state descriptors; an environment without a descriptor raises a `ValueError`."""
        descriptor_of(env.environment.spec)
        after, agent, played = self.play_step_fn(env_state, training_state, env, deterministic, evaluation)
        before, reached = env_state.info["state_descriptor"], after.info["final_state_descriptor"]
        return after, agent, QDTransition(**vars(played), state_desc=before, next_state_desc=reached)

    def eval_policy_fn(
        self, training_state: Any, eval_env_first_state: State, play_step_fn: Callable
    ) -> tuple[Array, Array]:
        """Evaluate in one episode per environment.

        Returns:
          Mean return `[]` and returns `[E]`, NaN where an action was not finite.
        """
        outputs = unroll(play_step_fn, eval_env_first_state, training_state, self._config.episode_length)[2]
        each, _ = first_episodes(outputs.rewards, outputs.dones, outputs.actions)
        return jnp.mean(each), each

    def eval_qd_policy_fn(
        self,
        training_state: Any,
        eval_env_first_state: State,
        play_step_fn: Callable,
        descriptor_extraction_fn: Callable,
    ) -> tuple[Array, Array, Array, Array]:
        """Evaluate in one episode per environment, with descriptors.

        `descriptor_extraction_fn` receives transitions `[E, T, ...]` and a mask `[E, T]` bool, true after the end of an
        episode.

        Returns:
          Mean return `[]`, mean descriptor `[D]`, returns `[E]` and descriptors `[E, D]`.
        """
        outputs = unroll(play_step_fn, eval_env_first_state, training_state, self._config.episode_length)[2]
        each, after = first_episodes(outputs.rewards, outputs.dones, outputs.actions)
        by_episode = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), outputs)
        descriptors = descriptor_extraction_fn(by_episode, after.T)
        return jnp.mean(each), jnp.mean(descriptors, axis=0), each, descriptors


class SAC(SingleAgent):
    """Soft actor-critic."""

    kind = records.SacTrainingState

    def select_action(self, obs: Array, policy_params: PyTree, key: Key, deterministic: bool = False) -> Array:
        """Actions `[..., A]` for normalised observations `[..., O]`; the key is consumed."""
        return self._select_action(policy_params, sac.SacHyper(), obs, key, deterministic)


class TD3(SingleAgent):
    """Twin delayed deep deterministic policy gradient."""

    kind = records.TD3TrainingState

    def select_action(
        self, obs: Array, policy_params: PyTree, key: Key, expl_noise: float | Array, deterministic: bool = False
    ) -> Array:
        """Actions `[..., A]` for observations `[..., O]`, with noise of deviation `expl_noise`; the key is consumed."""
        return self._select_action(policy_params, td3.Td3Hyper(exploration_noise=expl_noise), obs, key, deterministic)
