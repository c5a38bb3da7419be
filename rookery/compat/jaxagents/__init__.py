"""jaxagents' IPPO by its documented names: `from rookery.compat.jaxagents import IPPO, AgentConfig, ...`.

A user's subclass brings networks, densities, and losses if it wants to; `agents.joint` makes them an agent of this
library, `envs.joint` the environment a team's, and `learners.joint` leads their life. E is `batch_size`, T
`rollout_length`, I `n_actors`, N an evaluation's episodes.
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

from rookery.compat.jaxagents import agent, checkpoint_metrics, stages
from rookery.compat.jaxagents import learner as lives
from rookery.compat.jaxagents import losses as usual
from rookery.compat.jaxagents.agent import OptimizerParams, TrainState, TrainStates
from rookery.compat.jaxagents.agent import Rollouts as Transition
from rookery.compat.jaxagents.environment import LimitedState as TruncationEnvState
from rookery.compat.jaxagents.environment import TimeLimit as TruncationWrapper
from rookery.compat.jaxagents.learner import Runner
from rookery.compat.records import by_agent, check, check_counts
from rookery.storage.checkpoint import Checkpointer
from rookery.types import Array, Key, PyTree

__all__ = ["IPPO", "ActionType", "AgentConfig", "HyperParameters", "IPPOBase", "MetricStats", "ObsType"]
__all__ += ["OptimizerParams", "Runner", "TrainState", "Transition", "TruncationEnvState", "TruncationWrapper"]
ObsType = ActionType = Array


class HyperParameters(NamedTuple):
    """Numbers `[]`; `jax.vmap(agent.train, in_axes=(None, 0))` trains sets of them, `[sets]` each."""

    gamma: Any
    gae_lambda: Any
    eps_clip: Any
    ent_coeff: Any
    kl_threshold: Any  # in nats, of an epoch's mean; the epoch that is above it is the actors' last
    actor_optimizer_params: Any
    critic_optimizer_params: Any
    vf_coeff: Any = 1.0


class AgentConfig(NamedTuple):
    """What decides shapes and trip counts."""

    n_steps: int  # updates of a training
    batch_size: int  # environments
    minibatch_size: int  # environments whose whole rollouts a minibatch has
    rollout_length: int
    actor_epochs: int
    critic_epochs: int
    actor_network: Callable[..., Any]  # a flax module's class, called with this configuration
    critic_network: Callable[..., Any]
    optimizer: Callable[..., Any]  # an optax factory
    eval_frequency: int = 1  # updates between evaluations
    eval_rng: Any = None  # the key of every evaluation while training
    n_evals: int | None = None
    checkpoint_dir: Any = None
    restore_agent: bool = False
    max_episode_steps: int = 9999
    deterministic_mode: str = "off"  # "minimal" and "full" are understood, and change nothing


# What a metric [..., N] is over its last axis, [...] each.
MetricStats = namedtuple("MetricStats", "episode_metric mean var std min max median has_nans")


class IPPOBase(ABC):
    """Actors that share an observation and learn from it side by side, in a gymnax-style `env` with `n_actors`.

    A subclass supplies the methods without a body, of which `IPPO` lacks the first four; arguments are positional.
    `policy` and `_sample_actions` give `[I]` or `[I, A]` for one observation, `_log_prob` and `_entropy` `[I]`; for the
    trajectories see `agents.joint_losses`. Losses `[]` (with the actors' comes the divergence from who acted, `[]` or
    `[I]`) are of minibatches `[minibatch_size, T, ...]`; the `_input` methods make an epoch's, with one axis more, and
    end in the hyper-parameters; `update_runner.rng` is another key in every epoch.

    With `eval_during_training` they are judged before training and after every `eval_frequency` updates.

    Raises:
      ValueError: one sentence says which value, and the remedy; what a method or the environment returns is checked
        where it is used first, in `train` or `eval`.
    """

    def __init__(self, env: Any, env_params: Any, config: AgentConfig, eval_during_training: bool = True) -> None:
        _check_config(config, eval_during_training)
        check(hasattr(env, "n_actors"), f"{type(env).__name__} does not say how many act in it; give it n_actors.")
        check_counts(n_actors=env.n_actors)
        self.n_actors, self.config, self.env_params = env.n_actors, config, env_params
        self.eval_during_training = eval_during_training
        self.env = TruncationWrapper(env, config.max_episode_steps)
        # Without a `jit` of its own: published subclasses call its actions static, which traced ones are not.
        self._density = MethodType(inspect.unwrap(type(self)._log_prob), self)
        self.agent_trained, self.previous_training_max_step = False, 0
        self.training_runner = self.training_metrics = self.eval_steps_in_training = None
        self.actor_training = self.critic_training = None
        folder = config.checkpoint_dir
        self._store = None if folder is None else Checkpointer(folder, keep=checkpoint_metrics.ALL)
        if self._store and not config.restore_agent:
            remedy = "restore_agent=True goes on from them, another checkpoint_dir leaves them alone."
            check(self._store.empty, f"{folder} has checkpoints already; {remedy}")
            (self._store.directory / "training_configuration.txt").write_text(str(self))
        self._stretches = stages.stages(config.n_steps, config.eval_frequency)
        self._trained = jax.jit(lambda *given: lives.train(self._life, self._stretches, *given))
        self._opened = jax.jit(lambda *given: lives.enter(self._life, *given))
        self._learned = jax.jit(lambda *given: lives.stage(self._life, *given), static_argnums=0)
        self._judged = jax.jit(lambda *given: lives.evaluator(self._life, *given), static_argnums=0)

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
        """The next key, and an episode's first observation and state."""
        rng, reset_rng = jax.random.split(rng)
        return rng, *self.env.reset(reset_rng, self.env_params)

    @partial(jax.jit, static_argnums=0)
    def env_step(self, rng: Key, envstate: TruncationEnvState, actions: ActionType) -> tuple:
        """A step, and a reset after the last: the next key, observation, state, reward `[I]`, done, info."""
        rng, step_rng = jax.random.split(rng)
        return rng, *self.env.step(step_rng, envstate, actions, self.env_params)

    def _advantages(self, traj: Transition, gamma: Array, gae_lambda: Array) -> Array:
        return usual.advantages(self._trajectory_advantages, traj, gamma, gae_lambda)

    def _returns(self, traj: Transition, gamma: Array, gae_lambda: Array) -> Array:
        return usual.lambda_returns(self._trajectory_returns, traj, gamma, gae_lambda)

    @cached_property
    def _life(self) -> lives.Life:
        config, make = self.config, partial(agent.optimizer, self.config.optimizer)
        own = agent.UserFunctions(
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
        sizes = lives.Sizes(config.batch_size, config.rollout_length, *epochs, count)
        episodes = (config.n_evals or 0) if self.eval_during_training else 0
        return lives.life(own, networks, self.env, self.env_params, sizes, episodes, config.eval_rng)

    def train(self, rng: Key, hyperparams: HyperParameters) -> tuple[Runner, dict[str, Array]]:
        """Train anew; or go on from the runner that was restored, or collected with the steps before it.

        Within `jax.jit` or `jax.vmap` it is pure; elsewhere it shows a bar and writes checkpoints. Metrics are those of
        `eval`, and `actor_loss`, `critic_loss` `[1]`, means over the updates since the evaluation before; each
        `[evaluations + 1, ...]`, the first row the untrained actors'. There are none without evaluations.
        """
        begun = self.training_runner if self.previous_training_max_step else None
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((rng, hyperparams))):
            remedy = "leave checkpoint_dir out."
            check(self._store is None, f"a training within jax.jit or jax.vmap writes no checkpoints; {remedy}")
            return self._trained(rng, hyperparams, begun)
        shape, remedy = max(map(jnp.shape, jax.tree.leaves(hyperparams))), "jax.vmap(agent.train, in_axes=(None, 0))"
        check(not shape, f"a hyper-parameter has shape {shape}; train sets by {remedy}.")
        newest, done = (self._store and self._store.latest()) or 0, self.previous_training_max_step
        remedy = "restore() goes on from there, another checkpoint_dir begins anew."
        check(newest <= done, f"{self.config.checkpoint_dir} has checkpoints up to step {newest}; {remedy}")
        begun = self._opened(rng, hyperparams, begun)
        return checkpoint_metrics.train(self._learned, self._stretches, begun, self._store, done)

    def eval(self, rng: Key, n_evals: int = 32) -> dict[str, Array]:
        """Judge the trained actors: `terminated`, `truncated` `[N]`, `final_rewards`, `returns` `[N, I]`."""
        check(self.agent_trained, "nobody is trained yet; collect_training(runner, metrics) or restore() first.")
        check_counts(n_evals=n_evals)
        return self._judged(n_evals, rng, self.actor_training)

    def collect_training(self, runner: Any = None, metrics: Any = None, previous_training_max_step: int = 0) -> None:
        """Keep what `train` returned, to evaluate and act by; with steps before it, `train` will go on from there."""
        check(runner is not None, "collect_training needs the runner that train returned; got None.")
        self.agent_trained, self.previous_training_max_step = True, int(previous_training_max_step)
        self.training_runner, self.training_metrics = runner, metrics
        self.actor_training, self.critic_training = runner.actor_training, runner.critic_training
        steps = jnp.arange(len(next(iter(metrics.values()))) if metrics else 0) * self.config.eval_frequency
        self.eval_steps_in_training = jnp.minimum(steps, self.config.n_steps)

    def restore(self, mode: str = "best", best_fn: Callable[[dict[str, Array]], int] | None = None) -> None:
        """Take up a checkpoint, the "last", or the "best" by `best_fn(metrics)`, the index of an evaluation: `train`
        goes on from it, and the metrics are those of all checkpoints."""
        check(self._store is not None, "there is nothing to restore from; give checkpoint_dir in the configuration.")
        check(mode in ("best", "last"), f"mode must be 'best' or 'last', got {mode!r}.")
        check(mode == "last" or best_fn is not None, "mode 'best' needs best_fn(metrics) -> index of an evaluation.")
        assert self._store is not None
        steps, metrics = checkpoint_metrics.read(self._store)
        where, remedy = self._store.directory, "train first, or give another checkpoint_dir."
        check(bool(steps), f"{where} has no whole checkpoint; {remedy}")
        chosen = steps[-1] if mode == "last" or best_fn is None else steps[int(best_fn(metrics))]
        numbers = HyperParameters._make([0.0] * 5 + [OptimizerParams()] * 2 + [0.0])
        template = jax.eval_shape(partial(lives.begin, self._life), jax.random.key(0), numbers)
        self.collect_training(self._store.restore(template, chosen)[0], metrics, steps[-1])
        self.eval_steps_in_training = jnp.asarray(steps)

    def log_hyperparams(self, hyperparams: HyperParameters) -> None:
        """Write them to `hyperparameters.txt` in `checkpoint_dir`, if there is one."""
        if self._store:
            (self._store.directory / "hyperparameters.txt").write_text(_listed("Hyperparameters:", hyperparams))

    def summarize(self, metrics: Any) -> MetricStats:
        """What a metric `[..., N]` is over its last axis; N of 0 is a `ValueError`."""
        check(jnp.shape(metrics)[-1:] != (0,), f"metrics of shape {jnp.shape(metrics)} are of no episode.")
        metrics, kinds = jnp.asarray(metrics), (jnp.mean, jnp.var, jnp.std, jnp.min, jnp.max, jnp.median)
        told = [kind(metrics, axis=-1) for kind in kinds]
        return MetricStats._make([metrics, *told, jnp.isnan(metrics).any(axis=-1)])


class IPPO(IPPOBase):
    """With the clipped objective and GAE; a subclass supplies `policy`, `_sample_actions`, `_log_prob`, `_entropy`."""

    def _trajectory_returns(self, value: Array, traj: tuple) -> tuple[Array, Array]:
        return usual.return_step(value, traj)

    def _trajectory_advantages(self, advantage: Array, traj: tuple) -> tuple[Array, Array]:
        return usual.advantage_step(advantage, traj)

    def _actor_loss(
        self, training: TrainState, obs: Array, actions: Array, log_prob_old: Array, advantage: Array, hyperparams: Any
    ) -> tuple[Array, Array]:
        log_prob = agent.of_rows(self._density, training, training.params)(obs, actions)
        log_prob = by_agent("_log_prob", self.n_actors, log_prob, 2)
        objective, kl = usual.surrogate(log_prob, log_prob_old, advantage, hyperparams.eps_clip)
        return -objective - hyperparams.ent_coeff * agent.of_rows(self._entropy, training)(obs).mean(), kl

    def _critic_loss(self, training: TrainState, obs: Array, targets: Array, hyperparams: Any) -> Array:
        return hyperparams.vf_coeff * jnp.mean((agent.values(training, obs, self.n_actors) - targets) ** 2)

    def _actor_loss_input(self, update_runner: Runner, traj_batch: Transition) -> tuple:
        rows = traj_batch.obs, traj_batch.action, traj_batch.log_prob, traj_batch.advantage
        return *usual.whole_rollouts(update_runner.rng, rows, self.config.minibatch_size), update_runner.hyperparams

    def _critic_loss_input(self, update_runner: Runner, traj_batch: Transition) -> tuple:
        rows = traj_batch.obs, traj_batch.advantage + traj_batch.value
        return *usual.whole_rollouts(update_runner.rng, rows, self.config.minibatch_size), update_runner.hyperparams


def _rows(
    hook: Callable[..., tuple], traj: Transition, minds: TrainStates, hyperparams: HyperParameters, rng: Key
) -> tuple:
    none = jnp.zeros((1,))
    return hook(Runner(minds.actor, minds.critic, None, None, rng, hyperparams, none, none), traj)


def _check_config(config: AgentConfig, judged: bool) -> None:
    counts = ("n_steps", "batch_size", "minibatch_size", "rollout_length", "actor_epochs", "critic_epochs")
    check_counts(**{name: getattr(config, name) for name in (*counts, "eval_frequency", "max_episode_steps")})
    batch, minibatch, evals, mode = config.batch_size, config.minibatch_size, config.n_evals, config.deterministic_mode
    check(batch % minibatch == 0, f"minibatch_size must divide batch_size ({batch}), got {minibatch}.")
    remedy = "make minibatch_size or rollout_length 2."
    check(minibatch * config.rollout_length > 1, f"a minibatch of one step has no spread to normalise by; {remedy}")
    missing = " and ".join(name for name in ("eval_rng", "n_evals") if judged and getattr(config, name) is None)
    check(not missing, f"evaluations while training need {missing}; give them, or eval_during_training=False.")
    check(not judged or (evals or 0) >= 1, f"n_evals must be at least 1, got {evals}.")
    modes = ("off", "minimal", "full")
    check(mode in modes, f"deterministic_mode must be one of {modes}, got {mode!r}.")


def _listed(title: str, fields: Any) -> str:
    """The fields of a NamedTuple, one a line, under a title."""
    return "\n".join([title, *(f"{name}: {' '.join(str(value).split())}" for name, value in fields._asdict().items())])
