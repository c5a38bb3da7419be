"""IPPO with the documented API of jaxagents: `from rookery.compat.jaxagents import IPPO, AgentConfig, ...`.

A user-defined subclass supplies networks, densities and optionally losses. The module `agent` builds a Rookery agent
from them, `environment` adapts the user's environment to Rookery's multi-agent interface, and `learner` trains the
agent. E is `batch_size`, T `rollout_length`, I `n_actors`, N the number of evaluation episodes.
"""

import inspect
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable
from functools import cached_property, partial
from types import MethodType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer

from rookery.compat.jaxagents import agent, checkpoint_metrics, learner, losses, stages
from rookery.compat.jaxagents.agent import OptimizerParams, TrainState, TrainStates
from rookery.compat.jaxagents.agent import Rollouts as Transition
from rookery.compat.jaxagents.environment import LimitedState as TruncationEnvState
from rookery.compat.jaxagents.environment import TimeLimit as TruncationWrapper
from rookery.compat.jaxagents.learner import Runner
from rookery.compat.records import check, check_counts, per_agent
from rookery.storage.checkpoint import Checkpointer
from rookery.types import Array, Key, PyTree

__all__ = ["IPPO", "ActionType", "AgentConfig", "HyperParameters", "IPPOBase", "MetricStats", "ObsType"]
__all__ += ["OptimizerParams", "Runner", "TrainState", "Transition", "TruncationEnvState", "TruncationWrapper"]
ObsType = ActionType = Array


class HyperParameters(NamedTuple):
    """Scalars `[]`; `jax.vmap(agent.train, in_axes=(None, 0))` trains with several sets, leaves `[sets]`."""

    gamma: Any
    gae_lambda: Any
    eps_clip: Any
    ent_coeff: Any
    kl_threshold: Any
    """Limit of an epoch's mean divergence, in nats; the first epoch that exceeds it is the last actor epoch."""
    actor_optimizer_params: Any
    critic_optimizer_params: Any
    vf_coeff: Any = 1.0


class AgentConfig(NamedTuple):
    """Static configuration: array shapes, loop lengths, networks, evaluation and checkpoints."""

    n_steps: int
    """Number of updates."""
    batch_size: int
    """E, number of parallel environments."""
    minibatch_size: int
    """Number of environments in a minibatch, each with its whole rollout."""
    rollout_length: int
    """T, steps of each environment per update."""
    actor_epochs: int
    """Passes over each rollout for the actors."""
    critic_epochs: int
    """Passes over each rollout for the critics."""
    actor_network: Callable[..., Any]
    """Class of a flax module, called with this configuration."""
    critic_network: Callable[..., Any]
    """Class of a flax module, called with this configuration."""
    optimizer: Callable[..., Any]
    """Factory of an optax optimizer."""
    eval_frequency: int = 1
    """Updates between evaluations."""
    eval_rng: Any = None
    """Key of every evaluation during training."""
    n_evals: int | None = None
    """N, episodes of each evaluation during training."""
    checkpoint_dir: Any = None
    """Checkpoint directory; None writes no checkpoints."""
    restore_agent: bool = False
    """Allow a `checkpoint_dir` that contains checkpoints, to `restore` from it."""
    max_episode_steps: int = 9999
    """Steps until truncation."""
    deterministic_mode: str = "off"
    """"off", "minimal" or "full"; accepted for compatibility, without effect."""


# Statistics of a metric [..., N] over its last axis, [...] each.
MetricStats = namedtuple("MetricStats", "episode_metric mean var std min max median has_nans")


class IPPOBase(ABC):
    """Independent PPO of I actors that share one observation, in a gymnax-style `env` with attribute `n_actors`.

    A subclass implements the abstract methods; `IPPO` implements all of them but the first four. The methods are called
    with positional arguments. For one observation, `policy` and `_sample_actions` return `[I]` or `[I, A]`, `_log_prob`
    and `_entropy` return `[I]`. The module `losses` defines the arguments of the trajectory methods. The losses are
    scalars `[]` of one minibatch `[minibatch_size, T, ...]`; the actor loss also returns the divergence from the
    policy that collected the rollout, `[]` or `[I]`. The `_input` methods return all minibatches of an epoch, with one
    leading axis more, followed by the hyper-parameters; `update_runner.rng` is a different key in every epoch.

    With `eval_during_training`, the actors are evaluated before training and after every `eval_frequency` updates.

    Raises:
      ValueError: a value of the configuration is invalid. Outputs of user-defined methods and of the environment are
        checked when they are first used, in `train` or `eval`.
    """

    def __init__(self, env: Any, env_params: Any, config: AgentConfig, eval_during_training: bool = True) -> None:
        _check_config(config, eval_during_training)
        check(
            hasattr(env, "n_actors"),
            f"{type(env).__name__} has no attribute n_actors, the number of actors; define it.",
        )
        check_counts(n_actors=env.n_actors)
        self.n_actors, self.config, self.env_params = env.n_actors, config, env_params
        self.eval_during_training = eval_during_training
        self.env = TruncationWrapper(env, config.max_episode_steps)
        # Unwrapped: published subclasses decorate it with a `jit` that declares the actions static, but traced actions
        # cannot be static.
        self._density = MethodType(inspect.unwrap(type(self)._log_prob), self)
        self.agent_trained, self.previous_training_max_step = False, 0
        self.training_runner = self.training_metrics = self.eval_steps_in_training = None
        self.actor_training = self.critic_training = None
        folder = config.checkpoint_dir
        self._store = None if folder is None else Checkpointer(folder, keep=checkpoint_metrics.ALL)
        if self._store and not config.restore_agent:
            remedy = "set restore_agent=True to continue from them, or another checkpoint_dir to keep them."
            check(self._store.empty, f"{folder} has checkpoints already; {remedy}")
            (self._store.directory / "training_configuration.txt").write_text(str(self))
        self._stage_counts = stages.stage_counts(config.n_steps, config.eval_frequency)
        self._compiled_train = jax.jit(lambda *args: learner.train(self._setup, self._stage_counts, *args))
        self._compiled_first_runner = jax.jit(lambda *args: learner.first_runner(self._setup, *args))
        self._compiled_stage = jax.jit(lambda *args: learner.stage(self._setup, *args), static_argnums=0)
        self._compiled_evaluate = jax.jit(lambda *args: learner.evaluator(self._setup, *args), static_argnums=0)

    def __str__(self) -> str:
        return _listed("Agent configuration:", self.config)

    @abstractmethod
    def policy(self, training: TrainState, obs: ObsType) -> ActionType: ...
    @abstractmethod
    def _sample_actions(self, rng: Key, training: TrainState, obs: ObsType) -> ActionType: ...
    @abstractmethod
    def _log_prob(self, training: TrainState, params: PyTree, obs: ObsType, action: ActionType) -> Array: ...
    @abstractmethod
    def _entropy(self, training: TrainState, obs: ObsType) -> Array: ...
    @abstractmethod
    def _trajectory_returns(self, value: Array, traj: tuple) -> tuple[Array, Array]: ...
    @abstractmethod
    def _trajectory_advantages(self, advantage: Array, traj: tuple) -> tuple[Array, Array]: ...
    @abstractmethod
    def _actor_loss(
        self, training: TrainState, obs: Array, actions: Array, log_prob_old: Array, advantage: Array, hyperparams: Any
    ) -> tuple[Array, Array]: ...
    @abstractmethod
    def _critic_loss(self, training: TrainState, obs: Array, targets: Array, hyperparams: Any) -> Array: ...
    @abstractmethod
    def _actor_loss_input(self, update_runner: Runner, traj_batch: Transition) -> tuple: ...
    @abstractmethod
    def _critic_loss_input(self, update_runner: Runner, traj_batch: Transition) -> tuple: ...

    @partial(jax.jit, static_argnums=0)
    def env_reset(self, rng: Key) -> tuple[Key, ObsType, TruncationEnvState]:
        """Reset the environment: the next key, the first observation and the state."""
        rng, reset_rng = jax.random.split(rng)
        return rng, *self.env.reset(reset_rng, self.env_params)

    @partial(jax.jit, static_argnums=0)
    def env_step(self, rng: Key, envstate: TruncationEnvState, actions: ActionType) -> tuple:
        """Step with automatic reset: the next key, observation, state, reward `[I]`, done, info."""
        rng, step_rng = jax.random.split(rng)
        return rng, *self.env.step(step_rng, envstate, actions, self.env_params)

    def _advantages(self, traj: Transition, gamma: Array, gae_lambda: Array) -> Array:
        return losses.advantages(self._trajectory_advantages, traj, gamma, gae_lambda)

    def _returns(self, traj: Transition, gamma: Array, gae_lambda: Array) -> Array:
        return losses.lambda_returns(self._trajectory_returns, traj, gamma, gae_lambda)

    @cached_property
    def _setup(self) -> learner.TrainingSetup:
        config, make = self.config, partial(agent.optimizer, self.config.optimizer)
        functions = agent.UserFunctions(
            sample=self._sample_actions,
            policy=self.policy,
            log_prob=self._density,
            advantages=lambda traj, chosen: self._advantages(traj, chosen.gamma, chosen.gae_lambda),
            actor_rows=partial(_rows, self._actor_loss_input),
            critic_rows=partial(_rows, self._critic_loss_input),
            actor_loss=self._actor_loss,
            critic_loss=self._critic_loss,
            optimizers=lambda chosen: (make(chosen.actor_optimizer_params), make(chosen.critic_optimizer_params)),
        )
        networks = config.actor_network(config), config.critic_network(config)
        epochs, count = (config.actor_epochs, config.critic_epochs), config.batch_size // config.minibatch_size
        sizes = learner.Sizes(config.batch_size, config.rollout_length, *epochs, count)
        episodes = (config.n_evals or 0) if self.eval_during_training else 0
        return learner.training_setup(functions, networks, self.env, self.env_params, sizes, episodes, config.eval_rng)

    def train(self, rng: Key, hyperparams: HyperParameters) -> tuple[Runner, dict[str, Array]]:
        """Train from initial parameters, or continue from a runner restored or collected with its previous step count.

        Inside `jax.jit` or `jax.vmap` the method is pure; outside it shows a progress bar and writes checkpoints.

        Returns:
          The runner after training; and the metrics of `eval` with `actor_loss` and `critic_loss` `[1]`, means over the
          updates since the previous evaluation. Leaves are `[evaluations + 1, ...]`, the first row from the untrained
          actors. Without evaluations during training the metrics are empty.
        """
        initial = self.training_runner if self.previous_training_max_step else None
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((rng, hyperparams))):
            remedy = "leave checkpoint_dir out."
            check(self._store is None, f"training within jax.jit or jax.vmap writes no checkpoints; {remedy}")
            return self._compiled_train(rng, hyperparams, initial)
        shape, remedy = max(map(jnp.shape, jax.tree.leaves(hyperparams))), "jax.vmap(agent.train, in_axes=(None, 0))"
        check(not shape, f"a hyper-parameter has shape {shape}; train sets by {remedy}.")
        newest, done = (self._store and self._store.latest()) or 0, self.previous_training_max_step
        remedy = "call restore() to continue from there, or set another checkpoint_dir to train from the beginning."
        check(newest <= done, f"{self.config.checkpoint_dir} has checkpoints up to step {newest}; {remedy}")
        initial = self._compiled_first_runner(rng, hyperparams, initial)
        return checkpoint_metrics.train(self._compiled_stage, self._stage_counts, initial, self._store, done)

    def eval(self, rng: Key, n_evals: int = 32) -> dict[str, Array]:
        """Evaluate the trained actors: `terminated`, `truncated` `[N]`, `final_rewards`, `returns` `[N, I]`."""
        check(self.agent_trained, "the actors are not trained; call collect_training(runner, metrics) or restore().")
        check_counts(n_evals=n_evals)
        return self._compiled_evaluate(n_evals, rng, self.actor_training)

    def collect_training(self, runner: Any = None, metrics: Any = None, previous_training_max_step: int = 0) -> None:
        """Store the result of `train` for evaluation and acting.

        If `previous_training_max_step` is not 0, the next `train` continues from `runner`.
        """
        check(runner is not None, "collect_training needs the runner that train returned; got None.")
        self.agent_trained, self.previous_training_max_step = True, int(previous_training_max_step)
        self.training_runner, self.training_metrics = runner, metrics
        self.actor_training, self.critic_training = runner.actor_training, runner.critic_training
        steps = jnp.arange(len(next(iter(metrics.values()))) if metrics else 0) * self.config.eval_frequency
        self.eval_steps_in_training = jnp.minimum(steps, self.config.n_steps)

    def restore(self, mode: str = "best", best_fn: Callable[[dict[str, Array]], int] | None = None) -> None:
        """Restore a checkpoint; `train` continues from it.

        Args:
          mode: "last", or "best" by `best_fn`.
          best_fn: metrics of all checkpoints -> index of the evaluation to restore.
        """
        check(self._store is not None, "there is nothing to restore from; give checkpoint_dir in the configuration.")
        check(mode in ("best", "last"), f"mode must be 'best' or 'last', got {mode!r}.")
        check(mode == "last" or best_fn is not None, "mode 'best' needs best_fn(metrics) -> index of an evaluation.")
        assert self._store is not None
        steps, metrics = checkpoint_metrics.read(self._store)
        where, remedy = self._store.directory, "train first, or give another checkpoint_dir."
        check(bool(steps), f"{where} has no whole checkpoint; {remedy}")
        chosen = steps[-1] if mode == "last" or best_fn is None else steps[int(best_fn(metrics))]
        numbers = HyperParameters._make([0.0] * 5 + [OptimizerParams()] * 2 + [0.0])
        template = jax.eval_shape(partial(learner.begin, self._setup), jax.random.key(0), numbers)
        self.collect_training(self._store.restore(template, chosen)[0], metrics, steps[-1])
        self.eval_steps_in_training = jnp.asarray(steps)

    def log_hyperparams(self, hyperparams: HyperParameters) -> None:
        """Write them to `hyperparameters.txt` in `checkpoint_dir`, if there is one."""
        if self._store:
            (self._store.directory / "hyperparameters.txt").write_text(_listed("Hyperparameters:", hyperparams))

    def summarize(self, metrics: Any) -> MetricStats:
        """Statistics `[...]` of a metric `[..., N]` over its last axis; N = 0 raises a `ValueError`."""
        shape = jnp.shape(metrics)
        check(shape[-1:] != (0,), f"metrics of shape {shape} contain no episode; evaluate at least one.")
        metrics, kinds = jnp.asarray(metrics), (jnp.mean, jnp.var, jnp.std, jnp.min, jnp.max, jnp.median)
        statistics = [kind(metrics, axis=-1) for kind in kinds]
        return MetricStats._make([metrics, *statistics, jnp.isnan(metrics).any(axis=-1)])


class IPPO(IPPOBase):
    """IPPO with the clipped objective and GAE.

    A subclass implements `policy`, `_sample_actions`, `_log_prob` and `_entropy`.
    """

    def _trajectory_returns(self, value: Array, traj: tuple) -> tuple[Array, Array]:
        return losses.return_step(value, traj)

    def _trajectory_advantages(self, advantage: Array, traj: tuple) -> tuple[Array, Array]:
        return losses.advantage_step(advantage, traj)

    def _actor_loss(
        self, training: TrainState, obs: Array, actions: Array, log_prob_old: Array, advantage: Array, hyperparams: Any
    ) -> tuple[Array, Array]:
        log_prob = agent.over_rows(self._density, training, training.params)(obs, actions)
        log_prob = per_agent("_log_prob", self.n_actors, log_prob, 2)
        objective, kl = losses.surrogate(log_prob, log_prob_old, advantage, hyperparams.eps_clip)
        return -objective - hyperparams.ent_coeff * agent.over_rows(self._entropy, training)(obs).mean(), kl

    def _critic_loss(self, training: TrainState, obs: Array, targets: Array, hyperparams: Any) -> Array:
        return hyperparams.vf_coeff * jnp.mean((agent.values(training, obs, self.n_actors) - targets) ** 2)

    def _actor_loss_input(self, update_runner: Runner, traj_batch: Transition) -> tuple:
        rows = traj_batch.obs, traj_batch.action, traj_batch.log_prob, traj_batch.advantage
        return *losses.whole_rollouts(update_runner.rng, rows, self.config.minibatch_size), update_runner.hyperparams

    def _critic_loss_input(self, update_runner: Runner, traj_batch: Transition) -> tuple:
        rows = traj_batch.obs, traj_batch.advantage + traj_batch.value
        return *losses.whole_rollouts(update_runner.rng, rows, self.config.minibatch_size), update_runner.hyperparams


def _rows(
    hook: Callable[..., tuple], traj: Transition, states: TrainStates, hyperparams: HyperParameters, rng: Key
) -> tuple:
    none = jnp.zeros((1,))
    return hook(Runner(states.actor, states.critic, None, None, rng, hyperparams, none, none), traj)


def _check_config(config: AgentConfig, evaluated: bool) -> None:
    counts = ("n_steps", "batch_size", "minibatch_size", "rollout_length", "actor_epochs", "critic_epochs")
    check_counts(**{name: getattr(config, name) for name in (*counts, "eval_frequency", "max_episode_steps")})
    batch, minibatch, evals, mode = config.batch_size, config.minibatch_size, config.n_evals, config.deterministic_mode
    check(batch % minibatch == 0, f"minibatch_size must divide batch_size ({batch}), got {minibatch}.")
    remedy = "make minibatch_size or rollout_length 2."
    check(
        minibatch * config.rollout_length > 1, f"advantages of a minibatch of one step cannot be normalised; {remedy}"
    )
    missing = " and ".join(name for name in ("eval_rng", "n_evals") if evaluated and getattr(config, name) is None)
    check(not missing, f"evaluations during training need {missing}; set them, or eval_during_training=False.")
    check(not evaluated or (evals or 0) >= 1, f"n_evals must be at least 1, got {evals}.")
    modes = ("off", "minimal", "full")
    check(mode in modes, f"deterministic_mode must be one of {modes}, got {mode!r}.")


def _listed(title: str, fields: Any) -> str:
    """Format a title and the fields of a NamedTuple, one per line."""
    return "\n".join([title, *(f"{name}: {' '.join(str(value).split())}" for name, value in fields._asdict().items())])
