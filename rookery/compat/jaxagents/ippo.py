"""The documented classes `IPPOBase` and `IPPO`. E is `batch_size`, T `rollout_length`, I `n_actors`, N the number of
evaluation episodes."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.typing import ArrayLike

from rookery import returns, trees
from rookery.agents import minibatch
from rookery.agents.ppo import surrogate
from rookery.compat.jaxagents import checkpoint_metrics
from rookery.compat.jaxagents.environment import GymnaxEnvironment, TruncationWrapper
from rookery.compat.jaxagents.hooks import HYPERPARAMETERS, Hooks, over_rows, values
from rookery.compat.jaxagents.records import (
    AgentConfig,
    HyperParameters,
    MetricStats,
    Runner,
    TrainState,
    Transition,
    check_config,
    check_hyperparams,
)
from rookery.compat.records import check, per_agent, typed_key
from rookery.settings import check_counts
from rookery.training import progress
from rookery.types import Array, Hyper, Key, PyTree


class IPPOBase(Hooks):
    """Independent PPO of I actors that share one observation, in a gymnax-style `env` with attribute `n_actors`.

    A subclass implements the abstract methods, see `Hooks`; `IPPO` implements all of them but the first four.

    With `eval_during_training`, the actors are evaluated before training and after every `eval_frequency` updates.

    Raises:
      ValueError: a value of the configuration is invalid. Outputs of user-defined methods and of the environment are
        checked when they are first used, in `train` or `eval`.
    """

    agent_trained: bool = False
    training_runner: Runner | None = None
    training_metrics: dict[str, Array] | None = None
    eval_steps_in_training: Array | None = None
    actor_training: TrainState | None = None
    critic_training: TrainState | None = None
    previous_training_max_step: int = 0
    checkpointing: bool
    checkpoint_manager: checkpoint_metrics.CheckpointManager | None

    def __init__(
        self, env: GymnaxEnvironment, env_params: PyTree, config: AgentConfig, eval_during_training: bool = True
    ) -> None:
        check_config(config, eval_during_training)
        self._check_replaced()
        self.name = type(env).__name__
        check(hasattr(env, "n_actors"), f"{self.name} has no attribute n_actors, the number of actors; define it.")
        check_counts(n_actors=env.n_actors)
        self.n_actors, self.config, self.eval_during_training = env.n_actors, config, eval_during_training
        self._init_checkpointer()
        self._init_env(env, env_params)
        self._compile()

    def _compile(self) -> None:
        self._compiled_train = jax.jit(self._training)
        self._compiled_begin = jax.jit(self._begin)
        self._compiled_stage = jax.jit(self._training_step)

    def __getstate__(self) -> dict[str, object]:
        """For pickle and copy: without compiled functions, which are compiled again."""
        kept = vars(self).items()
        return {name: value for name, value in kept if name != "_environment" and not name.startswith("_compiled_")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._compile()

    def __str__(self) -> str:
        return _listed("Agent configuration:", self.config)

    def _init_env(self, env: GymnaxEnvironment, env_params: PyTree) -> None:
        """Set `env`, with its time limit, and `env_params`."""
        self.env, self.env_params = TruncationWrapper(env, self.config.max_episode_steps), env_params

    def _init_checkpointer(self) -> None:
        """Set `checkpointing` and `checkpoint_manager`, and write the configuration to `checkpoint_dir`."""
        folder = self.config.checkpoint_dir
        self.checkpointing, self.checkpoint_manager = folder is not None, None
        if folder is not None:
            store = self.checkpoint_manager = checkpoint_metrics.CheckpointManager(folder)
            remedy = "set restore_agent=True to continue from them, or another checkpoint_dir to keep them."
            check(self.config.restore_agent or store.empty, f"{folder} has checkpoints already; {remedy}")
            written = store.directory / "training_configuration.txt"
            if store.empty or not written.exists():
                written.write_text(str(self))

    def train(self, rng: Key, hyperparams: HyperParameters) -> tuple[Runner, dict[str, Array]]:
        """Train from initial parameters, or continue from a runner restored or collected with its previous step count.

        Inside `jax.jit` or `jax.vmap` the method is pure; outside it shows a progress bar, and writes checkpoints and
        `hyperparameters.txt` to `checkpoint_dir`, if there is one.

        Returns:
          The runner after training; and the metrics of `eval` with `actor_loss` and `critic_loss` `[1]`, means over the
          updates since the previous evaluation. Leaves are `[evaluations + 1, ...]`, the first row from the untrained
          actors. Without evaluations during training the metrics are empty.
        """
        fit = hasattr(hyperparams, "actor_optimizer_params")
        check(fit, f"train takes HyperParameters, got {type(hyperparams).__name__}; build one of its values.")
        check_hyperparams(hyperparams)
        typed_key(rng)
        store, done = self.checkpoint_manager, self.previous_training_max_step
        initial = self.training_runner if done else None
        if _is_traced((rng, hyperparams)):
            remedy = "leave checkpoint_dir out."
            check(not self.checkpointing, f"training within jax.jit or jax.vmap writes no checkpoints; {remedy}")
            return self._compiled_train(rng, hyperparams, initial)
        shape, remedy = max(map(jnp.shape, jax.tree.leaves(hyperparams))), "jax.vmap(agent.train, in_axes=(None, 0))"
        check(not shape, f"a hyper-parameter has shape {shape}; train sets by {remedy}.")
        newest = (store and store.latest_step()) or 0
        remedy = (
            'call restore("last") to continue from there, or set another checkpoint_dir to train from the beginning.'
        )
        check(newest <= done, f"{self.config.checkpoint_dir} has checkpoints up to step {newest}; {remedy}")
        self.log_hyperparams(hyperparams)
        runner, row = self._compiled_begin(rng, hyperparams, initial)
        rows, every, total = [row], self.config.eval_frequency, self.config.n_steps
        with progress.bar("updates", total) as advance, store or contextlib.nullcontext():
            if self.checkpointing and not done:
                self._checkpoint(runner, row, 0)
            for index, before in enumerate(range(0, total, every)):
                runner, row = jax.block_until_ready(self._compiled_stage(runner, index))
                rows.append(row)
                advance(min(every, total - before))
                if self.checkpointing:
                    self._checkpoint(runner, row, min(before + every, total))
        return runner, trees.stack(rows)

    def _checkpoint(self, update_runner: Runner, metrics: dict[str, Array], i_training_step: int) -> None:
        """Write a checkpoint of a stage; called after each, outside of compiled code."""
        self._checkpoint_base(update_runner, metrics, i_training_step)

    def _checkpoint_base(self, update_runner: Runner, metrics: dict[str, Array], i_training_step: int) -> None:
        """Save the runner and its metrics as step `i_training_step` after those of previous trainings."""
        remedy = "train calls it after every stage, so leave the call out."
        check(not _is_traced(update_runner), f"_checkpoint was called inside compiled code; {remedy}")
        step = i_training_step + self.previous_training_max_step
        if self.checkpoint_manager:
            checkpoint_metrics.save(self.checkpoint_manager, step, update_runner, metrics)

    def eval(self, rng: Key, n_evals: int = 32) -> dict[str, Array]:
        """Evaluate the trained actors, see `_eval_metrics`."""
        remedy = 'call collect_training(runner, metrics) or restore("last").'
        check(self.agent_trained, f"the actors are not trained; {remedy}")
        check_counts(n_evals=n_evals)
        trained: dict[str, Any] = {name: getattr(self, name) for name in ("actor_training", "critic_training")}
        return self._eval_agent(rng, **trained, n_episodes=n_evals)

    def collect_training(
        self,
        runner: Runner | None = None,
        metrics: dict[str, Array] | None = None,
        previous_training_max_step: int = 0,
    ) -> None:
        """Store the result of `train` for evaluation and acting.

        If `previous_training_max_step` is not 0, the next `train` continues from `runner`.
        """
        if runner is None:
            raise ValueError("collect_training needs the runner that train returned; got None.")
        self.agent_trained, self.previous_training_max_step = True, int(previous_training_max_step)
        self.training_runner, self.training_metrics = runner, metrics
        self.actor_training, self.critic_training = runner.actor_training, runner.critic_training
        steps = jnp.arange(len(next(iter(metrics.values()))) if metrics else 0) * self.config.eval_frequency
        self.eval_steps_in_training = jnp.minimum(steps, self.config.n_steps)
        self._pp()

    def _pp(self) -> None:
        """Process the training that `collect_training`, which calls this last, has stored; by default nothing."""

    def restore(self, mode: str = "best", best_fn: Callable[[dict[str, Array]], int] | None = None) -> None:
        """Restore a checkpoint; `train` continues from it.

        Args:
          mode: "last", or "best" by `best_fn`.
          best_fn: metrics of all checkpoints -> index of the evaluation to restore.
        """
        store = self.checkpoint_manager
        if store is None:
            raise ValueError("there is nothing to restore from; give checkpoint_dir in the configuration.")
        check(mode in ("best", "last"), f"mode must be 'best' or 'last', got {mode!r}.")
        remedy = 'best_fn(metrics) -> index of an evaluation; give it, or call restore("last").'
        check(mode == "last" or best_fn is not None, f"mode 'best' needs {remedy}")
        steps, metrics = checkpoint_metrics.read(store)
        where, remedy = store.directory, "train first, or give another checkpoint_dir."
        check(bool(steps), f"{where} has no whole checkpoint; {remedy}")
        try:
            chosen = steps[-1] if mode == "last" or best_fn is None else steps[int(best_fn(metrics))]
        except (KeyError, IndexError, TypeError) as error:
            given = f"the metrics {', '.join(metrics) or '(none)'} of {len(steps)} checkpoints"
            raise ValueError(f"{error!r} in best_fn, which is given {given} and returns the index of one.") from error
        template, _ = jax.eval_shape(self._compiled_begin, jax.random.key(0), HYPERPARAMETERS)
        networks = {"actor_training": self.config.actor_network, "critic_training": self.config.critic_network}
        empty = {name: jax.eval_shape(partial(self._create_empty_trainstate, kind)) for name, kind in networks.items()}
        self.collect_training(store.restore(template.replace(**empty), chosen)[0], metrics, steps[-1])
        self.eval_steps_in_training = jnp.asarray(steps)

    def log_hyperparams(self, hyperparams: HyperParameters) -> None:
        """Write them to `hyperparameters.txt` in `checkpoint_dir`, if there is one; `train` does so too."""
        if self.checkpoint_manager:
            (self.checkpoint_manager.directory / "hyperparameters.txt").write_text(
                _listed("Hyperparameters:", hyperparams)
            )

    def summarize(self, metrics: ArrayLike) -> MetricStats:
        """Statistics `[...]` of a metric `[..., N]` over its last axis; N = 0 raises a `ValueError`."""
        shape = jnp.shape(metrics)
        check(shape[-1:] not in ((), (0,)), f"metrics of shape {shape} contain no episode; evaluate at least one.")
        array, names = jnp.asarray(metrics), ("mean", "var", "std", "min", "max", "median")
        statistics = {name: getattr(jnp, name)(array, axis=-1) for name in names}
        return MetricStats(episode_metric=array, **statistics, has_nans=jnp.isnan(array).any(axis=-1))


class IPPO(IPPOBase):
    """IPPO with the clipped objective (Schulman 2017, arXiv:1707.06347) and GAE (Schulman 2016, arXiv:1506.02438).

    A subclass implements `policy`, `_sample_actions`, `_log_prob` and `_entropy`.
    """

    def _trajectory_returns(self, value: Array, traj: tuple[Array, ...]) -> tuple[Array, Array]:
        """The mean of the next state's value and the next return, weighted by lambda."""
        reward, discount, next_value, lambda_ = traj
        value = reward + discount * ((1.0 - lambda_) * next_value + lambda_ * value)
        return value, value

    def _trajectory_advantages(self, advantage: Array, traj: tuple[Array, ...]) -> tuple[Array, Array]:
        reward, value, next_value, terminated, discount, lambda_ = traj
        residual = returns.td_target(reward, terminated > 0, discount, next_value) - value
        return returns.accumulate(discount, lambda_, advantage, (residual, terminated > 0))

    def _actor_loss(
        self,
        training: TrainState,
        obs: Array,
        actions: Array,
        log_prob_old: Array,
        advantage: Array,
        hyperparams: HyperParameters,
    ) -> tuple[Array, Array]:
        log_prob = over_rows(self._density, training, training.params)(obs, actions)
        log_prob = per_agent("_log_prob", self.n_actors, log_prob, 2)
        of_agents = jax.vmap(partial(surrogate, clip_epsilon=hyperparams.eps_clip), in_axes=-1)
        objective, metrics = of_agents(log_prob, log_prob_old, advantage, jnp.ones(log_prob.shape, bool))
        entropy = over_rows(self._entropy, training)(obs).mean()
        return -objective.mean() - hyperparams.ent_coeff * entropy, metrics["kl"]

    def _critic_loss(self, training: TrainState, obs: Array, targets: Array, hyperparams: HyperParameters) -> Array:
        targets = per_agent("_critic_loss_input", self.n_actors, targets, 2)
        return hyperparams.vf_coeff * jnp.mean((values(training, obs, self.n_actors) - targets) ** 2)

    def _actor_loss_input(self, update_runner: Runner, traj_batch: Transition) -> tuple:
        rows = traj_batch.obs, traj_batch.action, traj_batch.log_prob, traj_batch.advantage
        return self._shuffled(update_runner, rows)

    def _critic_loss_input(self, update_runner: Runner, traj_batch: Transition) -> tuple:
        return self._shuffled(update_runner, (traj_batch.obs, traj_batch.advantage + traj_batch.value))

    def _shuffled(self, runner: Runner, rows: tuple[Array, ...]) -> tuple:
        """Minibatches of whole rollouts, `[M, minibatch_size, T, ...]`, followed by the hyper-parameters."""
        order = minibatch.shuffle(self.config.batch_size, runner.rng).reshape(-1, self.config.minibatch_size)
        return *trees.take(rows, order), runner.hyperparams


def _is_traced(tree: PyTree) -> bool:
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def _listed(title: str, fields: Hyper) -> str:
    """Format a title and the fields of a NamedTuple, one per line."""
    return "\n".join([title, *(f"{name}: {' '.join(str(value).split())}" for name, value in fields._asdict().items())])
