"""jaxagents' IPPO by its documented names: `from rookery.compat.jaxagents import IPPO, AgentConfig, ...`.

A user's subclass brings networks, densities, and losses if it wants to; they become an agent of this library, which
`on_policy` leads through its life and `rollout` judges, so that rollouts, start states, ends of episodes and true
successors are the library's. Here E is `batch_size`, T `rollout_length`, I `n_actors`, N an evaluation's episodes.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from rookery import returns, trees
from rookery.agents import epochs, ppo
from rookery.compat import jaxagents_agent as binding
from rookery.compat import jaxagents_life as lives
from rookery.compat.jaxagents_records import (
    ActionType,
    AgentConfig,
    HyperParameters,
    MetricStats,
    ObsType,
    OptimizerParams,
    Runner,
    TrainState,
    Transition,
    TruncationEnvState,
    TruncationWrapper,
    check_config,
    listed,
)
from rookery.records import check
from rookery.runs import manifest, progress
from rookery.runs.checkpoint import Checkpointer
from rookery.types import Array, Key, PyTree

__all__ = ["IPPO", "ActionType", "AgentConfig", "HyperParameters", "IPPOBase", "MetricStats", "ObsType"]
__all__ += ["OptimizerParams", "Runner", "TrainState", "Transition", "TruncationEnvState", "TruncationWrapper"]
ALL_CHECKPOINTS = 10**9


class IPPOBase(ABC):
    """Actors that share an observation and learn from it side by side, in an environment of the user's.

    What a subclass may supply are the methods without a body; `IPPO` has all but `policy`, `_sample_actions`,
    `_log_prob` and `_entropy`. They are called with positional arguments, for one observation at a time.

    Args:
      env: gymnax-style, with `n_actors`, `reset_env(key, params)` and `step_env(key, state, actions, params)`, whose
        reward is one number for each actor and whose end is everybody's.
      env_params: handed on to it.
      config: see `AgentConfig`.
      eval_during_training: judge the actors before training and after every `eval_frequency` updates.

    Raises:
      ValueError: a count is below 1, the minibatches do not divide the batch, what evaluations need is missing, the
        environment says nothing of its actors, or `checkpoint_dir` has checkpoints that nobody asked to restore. What
        a method or the environment returns is checked where it is used first, in `train` or `eval`.
    """

    def __init__(self, env: Any, env_params: Any, config: AgentConfig, eval_during_training: bool = True) -> None:
        check_config(config, eval_during_training)
        check(hasattr(env, "n_actors"), f"{type(env).__name__} does not say how many act in it; give it n_actors.")
        self.n_actors: int = env.n_actors
        self.config, self.env_params = config, env_params
        self.eval_during_training = eval_during_training
        self.env = TruncationWrapper(env, config.max_episode_steps)
        self.agent_trained, self.previous_training_max_step = False, 0
        self.training_runner: Runner | None = None
        self.training_metrics: Mapping[str, Array] | None = None
        self.actor_training: TrainState | None = None
        self.critic_training: TrainState | None = None
        self.eval_steps_in_training: Array | None = None
        self._store = None
        if config.checkpoint_dir is not None:
            self._store = Checkpointer(config.checkpoint_dir, keep=ALL_CHECKPOINTS)
            check(
                config.restore_agent or self._store.empty,
                f"{config.checkpoint_dir} has checkpoints already; restore_agent=True goes on from them, another "
                "checkpoint_dir leaves them alone.",
            )
            if not config.restore_agent:
                (self._store.directory / "training_configuration.txt").write_text(str(self))
        self._opened, self._trained = jax.jit(self._open), jax.jit(self._train)
        self._learned, self._judged = (jax.jit(m, static_argnums=0) for m in (self._learn, self._judge))

    def __str__(self) -> str:
        return listed("Agent configuration:", self.config)

    # --- to be supplied

    @abstractmethod
    def policy(self, training: TrainState, obs: ObsType) -> ActionType:
        """What the actors do when they are judged, of the shape of `_sample_actions`."""

    @abstractmethod
    def _sample_actions(self, rng: Key, training: TrainState, obs: ObsType) -> ActionType:
        """What they do when they learn, `[I]` or `[I, A]`."""

    @abstractmethod
    def _log_prob(self, training: TrainState, params: PyTree, obs: ObsType, action: ActionType) -> Array:
        """Of each actor's action under `params`, `[I]`."""

    @abstractmethod
    def _entropy(self, training: TrainState, obs: ObsType) -> Array:
        """Of each actor's distribution, `[I]`."""

    @abstractmethod
    def _trajectory_returns(self, value: Array, traj: tuple) -> tuple[Array, Array]:
        """A step back in time: (rewards, discounts, next_state_values, gae_lambda), `[E, I]` each -> the return, twice.

        Here as in the advantages `gae_lambda` is 0 where an episode was truncated, so that nothing leaks from the next.
        """

    @abstractmethod
    def _trajectory_advantages(self, advantage: Array, traj: tuple) -> tuple[Array, Array]:
        """A step back in time: (rewards, values, next_state_values, terminated, gamma, gae_lambda), `[E, I]` each ->
        the advantage, twice. The values of next states are those of true successors."""

    @abstractmethod
    def _actor_loss(
        self, training: TrainState, obs: Array, actions: Array, log_prob_old: Array, advantage: Array, hyperparams: Any
    ) -> tuple[Array, Array]:
        """Loss `[]` of a minibatch `[minibatch_size, T, ...]`, and the divergence from who acted, `[]` or `[I]`."""

    @abstractmethod
    def _critic_loss(self, training: TrainState, obs: Array, targets: Array, hyperparams: Any) -> Array:
        """Loss `[]` of a minibatch `[minibatch_size, T, ...]`."""

    @abstractmethod
    def _actor_loss_input(self, update_runner: Runner, traj_batch: Transition) -> tuple:
        """An epoch's minibatches `[minibatches, minibatch_size, T, ...]` and the hyper-parameters, as `_actor_loss`
        takes them; `update_runner.rng` is another key in every epoch."""

    @abstractmethod
    def _critic_loss_input(self, update_runner: Runner, traj_batch: Transition) -> tuple:
        """Likewise, as `_critic_loss` takes them."""

    # --- the world, and who acts in it

    @partial(jax.jit, static_argnums=0)
    def env_reset(self, rng: Key) -> tuple[Key, ObsType, TruncationEnvState]:
        """An episode's beginning: the next key, the observation, the state."""
        rng, reset_rng = jax.random.split(rng)
        return rng, *self.env.reset(reset_rng, self.env_params)

    @partial(jax.jit, static_argnums=0)
    def env_step(self, rng: Key, envstate: TruncationEnvState, actions: ActionType) -> tuple:
        """A step, and a reset after the last: the next key, observation, state, reward `[I]`, done, and info with
        `terminated` and `truncated`."""
        rng, step_rng = jax.random.split(rng)
        return rng, *self.env.step(step_rng, envstate, actions, self.env_params)

    # --- from rollouts to advantages

    def _advantages(self, traj: Transition, gamma: Array, gae_lambda: Array) -> Array:
        """`[E, T, I]`, by `_trajectory_advantages`."""
        terminated, gamma, gae_lambda = _weights(traj, gamma, gae_lambda)
        given = (traj.reward, traj.value, traj.next_value, terminated, gamma, gae_lambda)
        return _backwards(self._trajectory_advantages, jnp.zeros_like(traj.value[:, 0]), given)

    def _returns(self, traj: Transition, gamma: Array, gae_lambda: Array) -> Array:
        """`[E, T, I]`, by `_trajectory_returns`: targets for a user's own `_critic_loss_input`."""
        terminated, gamma, gae_lambda = _weights(traj, gamma, gae_lambda)
        given = (traj.reward, gamma * (1.0 - terminated), traj.next_value, gae_lambda)
        return _backwards(self._trajectory_returns, traj.next_value[:, -1], given)

    # --- training

    @cached_property
    def _life(self) -> lives.Life:
        return lives.life_of(self)

    def _judge(self, n_evals: int, rng: Key, training: TrainState) -> dict[str, Array]:
        return lives.judge(self._life, n_evals, rng, training)

    def _learn(self, updates: int, runner: Runner) -> tuple[Runner, dict[str, Array]]:
        """So many updates, and how well the actors do then."""
        runner = lives.learn(self._life, updates, runner)
        return runner, self._measure(runner)

    def _measure(self, runner: Runner) -> dict[str, Array]:
        """A row of the metrics."""
        if not self.eval_during_training:
            return {}
        told = self._judge(self.config.n_evals or 1, self.config.eval_rng, runner.actor_training)
        return {**told, "actor_loss": runner.actor_loss, "critic_loss": runner.critic_loss}

    def train(self, rng: Key, hyperparams: HyperParameters) -> tuple[Runner, dict[str, Array]]:
        """Train anew; or go on from the runner that was restored, or collected with the steps before it.

        Within `jax.jit` or `jax.vmap` it is pure; elsewhere it shows a bar and writes checkpoints.

        Returns:
          Where it ended; and metrics, the first row of which are the untrained actors': `terminated`, `truncated`
          `[evaluations + 1, N]` bool, `final_rewards`, `returns` `[evaluations + 1, N, I]`, `actor_loss`, `critic_loss`
          `[evaluations + 1, 1]`, means over the updates since the evaluation before, at first 0. Empty without
          evaluations.

        Raises:
          ValueError: sets of hyper-parameters without `jax.vmap`, checkpoints within it or over those of another
            training, or methods or an environment that return what does not fit the actors.
        """
        leaves = jax.tree.leaves((rng, hyperparams))
        begun = self.training_runner if self.previous_training_max_step else None
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            check(
                self.config.checkpoint_dir is None,
                "a training within jax.jit or jax.vmap writes no checkpoints; leave checkpoint_dir out.",
            )
            return self._trained(rng, hyperparams, begun)
        for shape in map(jnp.shape, jax.tree.leaves(hyperparams)):
            check(
                not shape,
                f"a hyper-parameter has shape {shape}; train sets by jax.vmap(agent.train, in_axes=(None, 0)).",
            )
        return self._train_here(rng, hyperparams, begun)

    def _open(self, rng: Key, hyperparams: HyperParameters, begun: Runner | None) -> tuple[Runner, dict[str, Array]]:
        """Where a training begins, and the first row of its metrics."""
        runner = lives.begin(self._life, rng, hyperparams)
        if begun is not None:
            none = jnp.zeros((1,))
            runner = begun.replace(hyperparams=runner.hyperparams, actor_loss=none, critic_loss=none)
        return runner, self._measure(runner)

    @property
    def _stretches(self) -> list[int]:
        """Updates before each evaluation: as many as configured, and at last those that are left."""
        every = min(self.config.eval_frequency, self.config.n_steps)
        return [min(every, self.config.n_steps - done) for done in range(0, self.config.n_steps, every)]

    def _train(self, rng: Key, hyperparams: HyperParameters, begun: Runner | None) -> tuple[Runner, dict[str, Array]]:
        """All of it, within a trace."""
        stretches = self._stretches
        alike = [count for count in stretches if count == stretches[0]]
        runner, first = self._open(rng, hyperparams, begun)
        runner, rows = jax.lax.scan(lambda runner, _: self._learn(stretches[0], runner), runner, length=len(alike))
        parts = [trees.stack([first]), rows]
        for count in stretches[len(alike) :]:
            runner, row = self._learn(count, runner)
            parts.append(trees.stack([row]))
        return runner, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

    def _train_here(
        self, rng: Key, hyperparams: HyperParameters, begun: Runner | None
    ) -> tuple[Runner, dict[str, Array]]:
        """All of it, watched from outside."""
        done = self.previous_training_max_step if begun else 0
        newest = (self._store and self._store.latest()) or 0
        check(
            newest <= done,
            f"{self.config.checkpoint_dir} has checkpoints up to step {newest}; restore() goes on from there, another "
            "checkpoint_dir begins anew.",
        )
        runner, row = self._opened(rng, hyperparams, begun)
        rows = [row]
        with progress.bar("updates", self.config.n_steps) as moved, self._store or contextlib.nullcontext():
            if not begun:
                self._save(0, runner, row)
            for count in self._stretches:
                runner, row = jax.block_until_ready(self._learned(count, runner))
                rows, done = [*rows, row], done + count
                moved(count)
                self._save(done, runner, row)
        return runner, trees.stack(rows)

    def _save(self, step: int, runner: Runner, row: Mapping[str, Array]) -> None:
        if self._store:
            self._store.save(step, runner, {name: np.asarray(value).tolist() for name, value in row.items()})

    # --- afterwards

    def eval(self, rng: Key, n_evals: int = 32) -> dict[str, Array]:
        """Judge the trained actors: `terminated`, `truncated` `[N]`, `final_rewards`, `returns` `[N, I]`.

        Raises:
          ValueError: nobody is trained.
        """
        check(self.agent_trained, "nobody is trained yet; collect_training(runner, metrics) or restore() first.")
        return self._judged(n_evals, rng, self.actor_training)

    def collect_training(self, runner: Any = None, metrics: Any = None, previous_training_max_step: int = 0) -> None:
        """Keep what `train` returned, to evaluate and act by; with steps before it, `train` will go on from there.

        Raises:
          ValueError: there is no runner.
        """
        check(runner is not None, "collect_training needs the runner that train returned; got None.")
        self.agent_trained, self.previous_training_max_step = True, int(previous_training_max_step)
        self.training_runner, self.training_metrics = runner, metrics
        self.actor_training, self.critic_training = runner.actor_training, runner.critic_training
        evaluations = len(next(iter(metrics.values()))) if metrics else 0
        self.eval_steps_in_training = jnp.minimum(
            jnp.arange(evaluations) * self.config.eval_frequency, self.config.n_steps
        )

    def restore(self, mode: str = "best", best_fn: Callable[[dict[str, Array]], int] | None = None) -> None:
        """Take up a checkpoint: `train` goes on from it, and the metrics are those of all checkpoints.

        Args:
          mode: "last", or "best" by `best_fn`.
          best_fn: metrics `[evaluations, ...]` -> which of them is the best.

        Raises:
          ValueError: there is no `checkpoint_dir`, no checkpoint in it, no `best_fn`, or no such mode.
        """
        check(self._store is not None, "there is nothing to restore from; give checkpoint_dir in the configuration.")
        check(mode in ("best", "last"), f"mode must be 'best' or 'last', got {mode!r}.")
        check(mode == "last" or best_fn is not None, "mode 'best' needs best_fn(metrics) -> index of an evaluation.")
        assert self._store is not None
        directory, steps = self._store.directory, self._store.whole_generations()
        check(bool(steps), f"{directory} has no whole checkpoint; train first, or give another checkpoint_dir.")
        rows = [manifest.read(directory, step)["metadata"] for step in steps]
        metrics = {name: jnp.asarray([row[name] for row in rows]) for name in rows[0]}
        chosen = steps[-1] if mode == "last" or best_fn is None else steps[int(best_fn(metrics))]
        numbers = HyperParameters(0.0, 0.0, 0.0, 0.0, 0.0, OptimizerParams(), OptimizerParams())
        template = jax.eval_shape(partial(lives.begin, self._life), jax.random.key(0), numbers)
        self.collect_training(self._store.restore(template, chosen)[0], metrics, steps[-1])
        self.eval_steps_in_training = jnp.asarray(steps)

    def log_hyperparams(self, hyperparams: HyperParameters) -> None:
        """Write them to `hyperparameters.txt` in `checkpoint_dir`, if there is one."""
        if self._store:
            (self._store.directory / "hyperparameters.txt").write_text(listed("Hyperparameters:", hyperparams))

    def summarize(self, metrics: Any) -> MetricStats:
        """What a metric `[..., N]` is over its last axis."""
        metrics = jnp.asarray(metrics)
        kinds = (jnp.mean, jnp.var, jnp.std, jnp.min, jnp.max, jnp.median)
        told = (kind(metrics, axis=-1) for kind in kinds)
        return MetricStats(metrics, *told, jnp.isnan(metrics).any(axis=-1))  # pyright: ignore[reportCallIssue]


def _weights(traj: Transition, gamma: Array, gae_lambda: Array) -> list[Array]:
    """Whether it terminated, 0 or 1, gamma and lambda of every step and actor; lambda is 0 at a truncation."""
    lambda_t = jnp.where(traj.truncated, 0.0, gae_lambda)
    weights = traj.terminated.astype(jnp.float32), jnp.full_like(lambda_t, gamma), lambda_t
    return [jnp.broadcast_to(weight[..., None], traj.reward.shape) for weight in weights]


def _backwards(hook: Callable[..., tuple[Array, Array]], start: Array, traj: tuple) -> Array:
    """`[E, T, I]` of a step back in time."""
    time_first = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), traj)
    return jnp.swapaxes(jax.lax.scan(hook, start, time_first, reverse=True)[1], 0, 1)


class IPPO(IPPOBase):
    """With the clipped objective (Schulman 2017, arXiv:1707.06347) and GAE (Schulman 2016, arXiv:1506.02438).

    A subclass supplies `policy`, `_sample_actions`, `_log_prob` and `_entropy`.
    """

    def _trajectory_returns(self, value: Array, traj: tuple) -> tuple[Array, Array]:
        rewards, discounts, next_state_values, gae_lambda = traj
        value = rewards + discounts * ((1.0 - gae_lambda) * next_state_values + gae_lambda * value)
        return value, value

    def _trajectory_advantages(self, advantage: Array, traj: tuple) -> tuple[Array, Array]:
        rewards, values, next_state_values, terminated, gamma, gae_lambda = traj
        residual = returns.td_target(rewards, terminated > 0, gamma, next_state_values) - values
        advantage = residual + gamma * gae_lambda * (1.0 - terminated) * advantage
        return advantage, advantage

    def _actor_loss(
        self, training: TrainState, obs: Array, actions: Array, log_prob_old: Array, advantage: Array, hyperparams: Any
    ) -> tuple[Array, Array]:
        """Advantages are normalised over the minibatch and time, each actor's apart; the divergence is `[I]`."""
        centred = advantage - advantage.mean(axis=(0, 1), keepdims=True)
        advantage = centred / (centred.std(axis=(0, 1), keepdims=True) + 1e-8)
        density = jax.vmap(jax.vmap(binding.density(self), (None, None, 0, 0)), (None, None, 0, 0))
        log_prob = density(training, training.params, obs, actions)
        log_prob = binding.by_actor("_log_prob", self.n_actors, log_prob, 2)
        log_ratio = log_prob - log_prob_old
        objective = ppo.clipped_objective(log_ratio, advantage, hyperparams.eps_clip).mean()
        entropy = jax.vmap(jax.vmap(self._entropy, (None, 0)), (None, 0))(training, obs).mean()
        return -objective - hyperparams.ent_coeff * entropy, ppo.divergence(log_ratio).mean(axis=(0, 1))

    def _critic_loss(self, training: TrainState, obs: Array, targets: Array, hyperparams: Any) -> Array:
        return hyperparams.vf_coeff * jnp.mean((binding.values(training, obs, self.n_actors) - targets) ** 2)

    def _actor_loss_input(self, update_runner: Runner, traj_batch: Transition) -> tuple:
        rows = traj_batch.obs, traj_batch.action, traj_batch.log_prob, traj_batch.advantage
        return *self._shuffled(update_runner, rows), update_runner.hyperparams

    def _critic_loss_input(self, update_runner: Runner, traj_batch: Transition) -> tuple:
        rows = traj_batch.obs, traj_batch.advantage + traj_batch.value
        return *self._shuffled(update_runner, rows), update_runner.hyperparams

    def _shuffled(self, update_runner: Runner, rows: tuple[Array, ...]) -> tuple[Array, ...]:
        """Whole rollouts in a new order, in minibatches."""
        order = epochs.shuffle(self.config.batch_size, update_runner.rng).reshape(-1, self.config.minibatch_size)
        return tuple(leaf[order] for leaf in rows)
