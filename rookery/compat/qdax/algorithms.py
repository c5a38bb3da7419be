"""The classes SAC, TD3 and DIAYN in QDax's documented form."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from rookery import hyperparams, normalize
from rookery.agents.base import OffPolicyAgent, UpdateFn
from rookery.agents.sac import SacConfig as sac_SacConfig
from rookery.agents.sac import SacHyper, sac
from rookery.agents.skills.diayn import DiaynConfig as diayn_DiaynConfig
from rookery.agents.skills.diayn import DiaynParams, diayn, log_prior
from rookery.agents.td3 import Td3Config, Td3Hyper, td3
from rookery.compat.qdax import records
from rookery.compat.qdax.configs import DiaynConfig, PBTSacConfig, PBTTD3Config, SacConfig, TD3Config
from rookery.compat.qdax.environments import Batch
from rookery.compat.qdax.environments import BatchState as State
from rookery.compat.qdax.loops import PlayFn, RowT, first_episodes, unroll
from rookery.compat.qdax.records import (
    DiaynTrainingState,
    QDTransition,
    ReplayBuffer,
    TrainingState,
    Transition,
    observation_of,
    transition_of,
)
from rookery.compat.records import (
    check,
    check_equal,
    shared_count,
    split_key,
    takes_random_key,
    typed_key,
)
from rookery.envs import base as envs
from rookery.gradients import Learned
from rookery.learners import rollout
from rookery.networks import input_vector
from rookery.qd.scoring import descriptor_of
from rookery.settings import SettingError, check_counts
from rookery.types import Array, Hyper, Key, Metrics, Observation, PyTree
from rookery.types import Transition as CoreTransition

__all__ = ["DIAYN", "SAC", "TD3"]

StateT = TypeVar("StateT", bound=TrainingState)
DescriptorFn = Callable[[QDTransition, Array], Array]
"""(transitions `[E, T, ...]`, mask `[E, T]` bool, true after the end of an episode) -> descriptors `[E, D]`."""

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

    kind: type[TrainingState]
    """Class of the training states."""
    row: type[Transition] = Transition
    """Class of the transitions in buffers."""
    select_action: Any
    """Chooses the actions of every played step; a subclass may replace it."""

    def __init__(
        self, config: SacConfig | PBTSacConfig | TD3Config | PBTTD3Config | DiaynConfig, action_size: int
    ) -> None:
        self._config, self._action_size = config, action_size
        self._num_skills = getattr(config, "num_skills", 0)
        counts = {name: vars(config).get(name, 1) for name in ("batch_size", "episode_length", "num_skills")}
        check_counts(action_size=action_size, **counts)
        for name in ("_update_alpha", "_update_critic", "_update_actor"):
            remedy = "replace _update_networks, which is one whole update"
            check(not hasattr(self, name), f"{name} of {type(self).__name__} would not be called; {remedy}.")
        self._hyper(self._agent(1 + self._num_skills))  # raises errors of the configuration at construction

    def _agent(self, observation_size: int, descriptor_size: int = 1) -> OffPolicyAgent:
        """Build the agent: SAC, TD3, or DIAYN with SAC; `observation_size` includes the skill."""
        config, features = self._config, observation_size - self._num_skills
        spec = envs.EnvSpec(type(self).__name__, features, self._action_size, config.episode_length)
        if isinstance(config, DiaynConfig):
            spec = spec._replace(skill=envs.SkillSpec("one-hot", config.num_skills))
        sizes = tuple(config.policy_hidden_layer_size), tuple(config.critic_hidden_layer_size)
        if isinstance(config, TD3Config | PBTTD3Config):
            agent = td3(spec, Td3Config(*sizes, policy_delay=config.policy_delay))
        else:
            agent = sac(spec, sac_SacConfig(*sizes, config.alpha_init, config.fix_alpha, 0.5))
        agent = agent._replace(update=partial(_update_from_old_state, agent.update))
        if isinstance(config, DiaynConfig):
            limits = (0.0,) * descriptor_size, (1.0,) * descriptor_size
            descriptor = envs.descriptor_spec("descriptor of the buffer", "mean", *limits)
            settings = diayn_DiaynConfig(config.descriptor_full_state, True, sizes[1])
            outer = diayn(agent, spec._replace(descriptor=descriptor), settings)
            agent = outer._replace(update=partial(_update_from_given_reward, outer.update, agent))
        return agent._replace(update=partial(_update_and_measure, agent.update))

    def _init_state(self, key: Key, action_size: int, observation_size: int, agent: OffPolicyAgent) -> TrainingState:
        made_for = self._action_size
        check(action_size == made_for, f"this algorithm was created for action_size {made_for}, got {action_size}.")
        normalized = vars(self._config).get("normalize_observations")
        key, agent_key = split_key(key)
        return self.kind(
            learned=agent.start(agent.init(agent_key)),
            hyper=self._hyper(agent),
            key=key,
            steps=jnp.zeros((), jnp.int32),
            normalizer=normalize.init(observation_size) if normalized else None,
        )

    def _hyper(self, agent: OffPolicyAgent, given: Hyper | None = None) -> Hyper:
        """The given hyper-parameters; those that are None are the configured ones."""
        values = {name: value for name, value in given._asdict().items() if value is not None} if given else {}
        if given and len(values) == len(given._fields):
            return given
        config: dict[str, float] = vars(self._config)
        source = dict.fromkeys(_RATES, "learning_rate") if "learning_rate" in config else {}
        source |= {_NAMES.get(name, name): name for name in config}
        arguments = {name: config[source[name]] for name in agent.space.fields if name in source}
        try:
            hyper = hyperparams.defaults(hyperparams.choose(agent.space, **arguments))
        except SettingError as error:  # by the name in the configuration
            raise SettingError(source[error.field], error.value, error.problem, error.remedy) from None
        return hyper._replace(**values)

    def _select_action(self, policy_params: PyTree, hyper: Hyper, obs: Array, key: Key, deterministic: bool) -> Array:
        agent, policy = self._agent(obs.shape[-1]), policy_params if deterministic else Learned(policy_params, ())
        policy_state, inputs = PolicyState(policy, PolicyState(policy)), observation_of(self._num_skills, obs)
        return agent.act(policy_state, inputs) if deterministic else _explore(agent, policy_state, hyper, inputs, key)

    def _play(
        self, before: State, state: StateT, env: Batch, deterministic: bool, evaluation: bool, skills: Array
    ) -> tuple[State, StateT, Transition]:
        """Step E environments, or a single environment without a leading axis.

        The observations end in `skills` `[E, S]`; S may be 0. An evaluation adds none to the running statistics.
        """
        observation = jnp.concatenate([before.obs, skills], axis=-1)
        inputs = rollout.normalize_features(state.normalizer, observation_of(self._num_skills, observation))
        key, explore_key = split_key(state.key)
        chosen = {"obs": input_vector(inputs), "policy_params": state.policy_params, "key": explore_key}
        if isinstance(state.hyper, Td3Hyper):
            hyper: Any = self._hyper(self._agent(observation.shape[-1]), state.hyper)
            chosen["expl_noise"] = hyper.exploration_noise
        action = self.select_action(**chosen, deterministic=deterministic)
        after, normalizer = env.step(before, action), state.normalizer
        if not evaluation and normalizer is not None:
            normalizer = normalize.update(normalizer, before.obs.reshape(-1, before.obs.shape[-1]))
        reached = jnp.concatenate([after.info["final_obs"], skills], axis=-1)
        row = Transition(observation, reached, after.reward, after.done, after.info["truncation"], action)
        return after, state.replace(key=key, normalizer=normalizer), row

    def update(self, training_state: StateT, replay_buffer: ReplayBuffer) -> tuple[StateT, ReplayBuffer, Metrics]:
        """Make one gradient update from a batch sampled from the buffer.

        The gradients of policy, critics and temperature are those of the state before the update.

        Returns:
          The training state, the unchanged buffer, and metrics `[]`: those of the agent (`actor_loss`, `critic_loss`,
          ...), and `obs_mean` and `obs_std` of the network inputs.
        """
        stored, needed = type(replay_buffer.state.rows), self.row
        fits = issubclass(stored, needed)
        check(fits, f"this algorithm learns from {needed.__name__}, but the buffer stores {stored.__name__}.")
        key, sample_key = split_key(training_state.key)
        sampled = replay_buffer.sample(sample_key, self._config.batch_size)
        transitions = self._normalized(training_state, sampled)
        transitions = transitions.replace(rewards=self._compute_reward(transitions, training_state))
        state, metrics = self._update_networks(training_state.replace(key=key), transitions)
        return state, replay_buffer, metrics

    def _compute_reward(self, transition: Transition, training_state: TrainingState) -> Array:
        """The rewards `[...]` that the agent learns from; observations are normalised."""
        del training_state
        return transition.rewards

    def _update_networks(self, training_state: StateT, transitions: Transition) -> tuple[StateT, Metrics]:
        """Make one gradient update from normalised transitions `[B, ...]` and their rewards; see `update`."""
        state = training_state
        state.check_optimizers()
        sizes = transitions.obs.shape[-1], getattr(transitions, "next_state_desc", transitions.actions).shape[-1]
        agent, batch = self._agent(*sizes), transition_of(self._num_skills, transitions)
        key, noise_key = split_key(state.key)
        inputs = self._hyper(agent, state.hyper), batch, agent.noise(noise_key, batch.reward.shape[0])
        learned, metrics = agent.update(state.learned, *inputs, shared_count(state.steps))
        return state.replace(learned=learned, key=key, steps=state.steps + 1), metrics

    def _normalized(self, state: TrainingState, rows: RowT) -> RowT:
        """Normalise the observations of transitions, but not their skills."""
        obs, next_obs = (
            input_vector(rollout.normalize_features(state.normalizer, observation_of(self._num_skills, observation)))
            for observation in (rows.obs, rows.next_obs)
        )
        return rows.replace(obs=obs, next_obs=next_obs)

    def _unroll(
        self, play: PlayFn[StateT, RowT], first_state: State, training_state: StateT
    ) -> tuple[RowT, Array, Array]:
        """The transitions `[T, E, ...]` of one episode per environment, and the results of `first_episodes`."""
        rows = unroll(play, first_state, training_state, self._config.episode_length)[2]
        return rows, *first_episodes(rows.rewards, rows.dones, rows.actions)


def _explore(agent: OffPolicyAgent, state: PyTree, hyper: Hyper, observation: Observation, key: Key) -> Array:
    """Exploring actions `[..., A]` for observations `[..., O]`; the key is consumed."""
    rows = jax.tree.map(lambda leaf: leaf.reshape(-1, leaf.shape[-1]), observation)
    action = rollout.explore(agent, state, hyper, rows, typed_key(key))
    return action.reshape(*observation.features.shape[:-1], action.shape[-1])


def _update_from_old_state(
    update: UpdateFn, state: PyTree, hyper: Hyper, batch: CoreTransition, noise: PyTree, step: Array
) -> tuple[PyTree, Metrics]:
    """Update with the policy's gradient through the critics before the update, and TD3's policy in the first update.

    Rookery's agents update the critics first. The policy is that of a second update whose critics do not move; the
    compiler merges what both have in common.
    """
    after, metrics = update(state, hyper, batch, noise, step - 1)
    before, of_policy = update(state, hyper._replace(critic_lr=0.0), batch, noise, step - 1)
    of_old = {name: getattr(before, name) for name in ("policy", "target_policy") if hasattr(before, name)}
    return after._replace(**of_old), {**metrics, "actor_loss": of_policy["actor_loss"]}


def _update_from_given_reward(
    update: UpdateFn,
    agent: OffPolicyAgent,
    state: PyTree,
    hyper: Hyper,
    batch: CoreTransition,
    noise: PyTree,
    step: Array,
) -> tuple[PyTree, Metrics]:
    """Update DIAYN's discriminator as usual, and its agent from the rewards of the batch."""
    after, metrics = update(state, hyper, batch, noise, step)
    inner = hyperparams.select(agent.space, hyper)
    learned, of_agent = agent.update(state.agent, inner, batch._replace(extras=()), noise, step)
    return after._replace(agent=learned), {**metrics, **of_agent}


def _update_and_measure(
    update: UpdateFn, state: PyTree, hyper: Hyper, batch: CoreTransition, noise: PyTree, step: Array
) -> tuple[PyTree, Metrics]:
    state, metrics = update(state, hyper, batch, noise, step)
    inputs = input_vector(batch.observation)
    return state, {**metrics, "obs_mean": jnp.mean(inputs), "obs_std": jnp.std(inputs)}


class SingleAgent(Learner):
    """Methods that SAC and TD3 share."""

    @takes_random_key
    def init(self, key: Key, action_size: int, observation_size: int) -> TrainingState:
        """Initialise a training state; an agent of a population gets sampled hyper-parameters. A ValueError if
        `action_size` differs from the constructor's."""
        check_counts(observation_size=observation_size)
        state = self._init_state(key, action_size, observation_size, self._agent(observation_size))
        return state.resample_hyperparams(state) if isinstance(state, records.PBTTrainingState) else state

    def play_step_fn(
        self,
        env_state: State,
        training_state: StateT,
        env: Batch,
        deterministic: bool = False,
        evaluation: bool = False,
    ) -> tuple[State, StateT, Transition]:
        """Step environments `[E, ...]`, or a single one, of `environments.create`.

        With `evaluation`, the running statistics of the observations are not updated.

        Returns:
          Environment states, training state, and the transitions.
        """
        return self._play(env_state, training_state, env, deterministic, evaluation, env_state.obs[..., :0])

    def play_qd_step_fn(
        self,
        env_state: State,
        training_state: StateT,
        env: Batch,
        deterministic: bool = False,
        evaluation: bool = False,
    ) -> tuple[State, StateT, QDTransition]:
        """As `play_step_fn`, with state descriptors; an environment without a descriptor raises a `ValueError`."""
        descriptor_of(env.environment.spec)
        after, state, row = self.play_step_fn(env_state, training_state, env, deterministic, evaluation)
        return after, state, _described(row, env_state.info["state_descriptor"], after.info["final_state_descriptor"])

    def eval_policy_fn(
        self, training_state: StateT, eval_env_first_state: State, play_step_fn: PlayFn[StateT, Transition]
    ) -> tuple[Array, Array]:
        """Evaluate in one episode per environment: mean return `[]` and returns `[E]`, NaN where an action was not
        finite or the physics broke."""
        _, returns, _ = self._unroll(play_step_fn, eval_env_first_state, training_state)
        return jnp.mean(returns), returns

    def eval_qd_policy_fn(
        self,
        training_state: StateT,
        eval_env_first_state: State,
        play_step_fn: PlayFn[StateT, QDTransition],
        descriptor_extraction_fn: DescriptorFn,
    ) -> tuple[Array, Array, Array, Array]:
        """Evaluate in one episode per environment, with descriptors (see `DescriptorFn`): mean return `[]`, mean
        descriptor `[D]`, returns `[E]` and descriptors `[E, D]`."""
        rows, returns, after = self._unroll(play_step_fn, eval_env_first_state, training_state)
        by_episode = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), rows)
        descriptors = descriptor_extraction_fn(by_episode, after.T)
        return jnp.mean(returns), jnp.mean(descriptors, axis=0), returns, descriptors


def _described(row: Transition, before: Array, reached: Array) -> QDTransition:
    return QDTransition(**vars(row), state_desc=before, next_state_desc=reached)


class SAC(SingleAgent):
    """Soft actor-critic."""

    kind = records.SacTrainingState

    def select_action(self, obs: Array, policy_params: PyTree, key: Key, deterministic: bool = False) -> Array:
        """Actions `[..., A]` for normalised observations `[..., O]`; the key is consumed."""
        return self._select_action(policy_params, SacHyper(), obs, key, deterministic)


class TD3(SingleAgent):
    """Twin delayed deep deterministic policy gradient."""

    kind = records.TD3TrainingState

    def select_action(
        self, obs: Array, policy_params: PyTree, key: Key, expl_noise: float | Array, deterministic: bool = False
    ) -> Array:
        """Actions `[..., A]` for observations `[..., O]`, with noise of deviation `expl_noise`; the key is consumed."""
        return self._select_action(policy_params, Td3Hyper(exploration_noise=expl_noise), obs, key, deterministic)


_SAC: Any = SAC  # DIAYN's methods take other arguments than those of the same name that they replace


class DIAYN(_SAC):
    """Skill discovery around SAC (Eysenbach 2018, arXiv:1802.06070)."""

    kind, row = DiaynTrainingState, QDTransition
    _config: DiaynConfig

    @takes_random_key
    def init(self, key: Key, action_size: int, observation_size: int, descriptor_size: int) -> TrainingState:
        """Initialise a training state.

        Args:
          key: consumed.
          action_size: A; a `ValueError` if it differs from the constructor's.
          observation_size: size of an observation without the skill.
          descriptor_size: size of the discriminator's input.
        """
        config, size = self._config, observation_size
        check_counts(observation_size=size, descriptor_size=descriptor_size)
        fits = not config.descriptor_full_state or descriptor_size == size
        check(
            fits,
            f"descriptor_full_state needs descriptor_size {size}, the size of observations; got {descriptor_size}.",
        )
        agent = self._agent(observation_size + config.num_skills, descriptor_size)
        return self._init_state(key, action_size, observation_size, agent)

    def play_step_fn(
        self, env_state: State, training_state: StateT, skills: Array, env: Batch, deterministic: bool = False
    ) -> tuple[State, StateT, QDTransition]:
        """Step E environments, with each environment's skill `[E, num_skills]` appended to its observations.

        Raises:
          ValueError: `skills` has another shape; or the environment has no descriptor and `descriptor_full_state` is
            off.
        """
        fitting = (*env_state.reward.shape, self._config.num_skills)
        check(skills.shape == fitting, f"skills must be {fitting} here, got {skills.shape}.")
        named, full = "state_descriptor" in env_state.info, self._config.descriptor_full_state
        check(
            named or full, f"{env.name} has no descriptor; use a task with a descriptor, or descriptor_full_state=True."
        )
        after, state, row = self._play(env_state, training_state, env, deterministic, deterministic, skills)
        none = jnp.zeros((*env_state.reward.shape, 2))
        before, reached = env_state.info.get("state_descriptor", none), after.info.get("final_state_descriptor", none)
        return after, state, _described(row, before, reached)

    def eval_policy_fn(
        self,
        training_state: StateT,
        eval_env_first_state: State,
        play_step_fn: PlayFn[StateT, QDTransition],
        env_batch_size: int,
    ) -> tuple[Array, Array, Array, Array]:
        """Evaluate in one episode per environment.

        Returns:
          Mean environment return `[]`, environment returns `[E]`, diversity returns `[E]`, and the state descriptors
          before each step `[T, E, D]`, which repeat the last one after the end of an episode.
        """
        count = eval_env_first_state.reward.shape[0]
        check_equal("env_batch_size", env_batch_size, count, "eval_env_first_state has {} environments")
        rows, returns, after = self._unroll(play_step_fn, eval_env_first_state, training_state)
        normalized = self._normalized(training_state, rows)
        rewards = self._compute_diversity_reward(normalized, training_state.discriminator_params)
        diverse, _ = first_episodes(jnp.where(jnp.isfinite(rows.rewards), rewards, jnp.nan), rows.dones, rows.actions)
        last = jnp.minimum(jnp.arange(after.shape[0])[:, None], jnp.sum(~after, axis=0)[None] - 1)
        reached = jnp.take_along_axis(rows.state_desc, last[..., None], axis=0)
        return jnp.mean(returns), returns, diverse, reached

    def _compute_reward(self, transition: Any, training_state: TrainingState) -> Array:
        """The diversity reward `[...]` that the agent learns from; observations are normalised."""
        return self._compute_diversity_reward(transition, training_state.discriminator_params)

    def _compute_diversity_reward(
        self, transition: QDTransition, discriminator_params: PyTree, add_log_p_z: bool = True
    ) -> Array:
        """Diversity reward `[...]` of transitions `[..., O + K]`, in nats.

        It is `log q(z | s') - log p(z)`, or `log q(z | s')` without `add_log_p_z`.
        """
        config, obs = self._config, transition.next_obs
        agent = self._agent(obs.shape[-1], transition.next_state_desc.shape[-1])
        reached = observation_of(self._num_skills, obs)
        step = envs.first_step(obs, transition.next_state_desc)._replace(final_observation=reached)
        assert agent.intrinsic_reward is not None
        reward = agent.intrinsic_reward.measure(DiaynParams((), discriminator_params), step)["diversity_return"]
        return reward if add_log_p_z else reward + log_prior(envs.SkillSpec("one-hot", config.num_skills))
