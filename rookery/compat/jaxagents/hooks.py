"""The documented methods of `IPPOBase` that training and evaluation are made of; a subclass may replace each of them.

A rollout is `on_policy.collect`, an epoch is `minibatch.epoch`, and an evaluation is `evaluation.evaluate`. Unlike
`learners.train.train`, which trains for equal generations, a training makes exactly the requested number of updates in
stages, the last of which may be shorter, draws new start states for every update, and evaluates from the same start
states after every stage.
"""

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from types import MethodType
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rookery import normalize
from rookery.agents.minibatch import UpdateSpec, epoch, guarded_epoch
from rookery.compat.jaxagents.environment import (
    TruncationEnvState,
    TruncationWrapper,
    joint_observation,
    shared_features,
    team_environment,
)
from rookery.compat.jaxagents.records import (
    AgentConfig,
    HyperParameters,
    Network,
    OptimizerParams,
    Runner,
    TrainState,
    Transition,
)
from rookery.compat.jaxagents.results import RESULTS, checked
from rookery.compat.records import check, per_agent, typed_key
from rookery.envs.base import Environment
from rookery.envs.wrappers.auto_reset import start_bank
from rookery.learners import evaluation, rollout
from rookery.learners.base import EvaluationConfig
from rookery.learners.on_policy import collect, start_actors
from rookery.types import Array, Genotype, Key, Metrics, Observation, PyTree, Scalar
from rookery.types import Transition as Rows

ObsType = ActionType = Array
HYPERPARAMETERS = HyperParameters(0.0, 0.0, 0.0, 0.0, 0.0, OptimizerParams(), OptimizerParams())
"""Hyper-parameters for functions of which only the shapes are evaluated."""

INSIDE = {
    **dict.fromkeys(("_make_rollout_runners", "_rollout"), "_update_step"),
    **dict.fromkeys(("_actor_epoch", "_actor_training_cond", "_actor_minibatch_update"), "_actor_update"),
    **dict.fromkeys(("_critic_epoch", "_critic_minibatch_update"), "_critic_update"),
    **dict.fromkeys(("_eval_body", "_eval_cond"), "_eval_agent"),
}
"""Documented methods inside the loops over steps, epochs and episodes, which are the library's -> the documented method
that runs the loop, and may be replaced."""


class Hooks(ABC):
    """Settings and documented methods of an agent of I actors that share one observation.

    For one observation, `policy` and `_sample_actions` return `[I]` or `[I, A]`, `_log_prob` and `_entropy` return
    `[I]`. The trajectory methods are one step of a recursion backwards in time: (next result, columns of `_advantages`
    or `_returns`, `[E, I]` each) -> the result, twice. The losses are scalars `[]` of one minibatch
    `[minibatch_size, T, ...]`; the actor loss also returns the divergence from the policy that collected the rollout,
    `[]` or `[I]`. The `_input` methods return all minibatches of an epoch, with one leading axis more, followed by the
    hyper-parameters; `update_runner` is the runner after the rollout and before the update, with a different key `rng`
    in every epoch.
    """

    name: str
    """Of the environment."""
    n_actors: int
    config: AgentConfig
    env: TruncationWrapper
    env_params: PyTree
    eval_during_training: bool = True

    def __init_subclass__(cls) -> None:
        """Check what its methods return."""
        for name in RESULTS.keys() & vars(cls).keys():
            setattr(cls, name, checked(name, vars(cls)[name]))

    @abstractmethod
    def policy(self, training: TrainState, obs: ObsType) -> ActionType: ...
    @abstractmethod
    def _sample_actions(self, rng: Key, training: TrainState, obs: ObsType) -> ActionType: ...
    @abstractmethod
    def _log_prob(self, training: TrainState, params: PyTree, obs: ObsType, action: ActionType) -> Array: ...
    @abstractmethod
    def _entropy(self, training: TrainState, obs: ObsType) -> Array: ...
    @abstractmethod
    def _trajectory_returns(self, value: Array, traj: tuple[Array, ...]) -> tuple[Array, Array]: ...
    @abstractmethod
    def _trajectory_advantages(self, advantage: Array, traj: tuple[Array, ...]) -> tuple[Array, Array]: ...
    @abstractmethod
    def _actor_loss(
        self,
        training: TrainState,
        obs: Array,
        actions: Array,
        log_prob_old: Array,
        advantage: Array,
        hyperparams: HyperParameters,
    ) -> tuple[Array, Array]: ...
    @abstractmethod
    def _critic_loss(self, training: TrainState, obs: Array, targets: Array, hyperparams: HyperParameters) -> Array: ...
    @abstractmethod
    def _actor_loss_input(self, update_runner: Runner, traj_batch: Transition) -> tuple: ...
    @abstractmethod
    def _critic_loss_input(self, update_runner: Runner, traj_batch: Transition) -> tuple: ...

    def __getattr__(self, name: str) -> Any:
        if hasattr(type(self), name):  # a property in which a method of a subclass has failed
            return object.__getattribute__(self, name)
        loop = INSIDE.get(name)
        found = f"{type(self).__name__} has no {name!r}"
        raise AttributeError(f"{found}: it is inside a loop of the library; replace {loop}." if loop else f"{found}.")

    def _check_replaced(self) -> None:
        """Raise a `ValueError` if a subclass defines a method that is never called."""
        for name, loop in INSIDE.items():
            called = not hasattr(type(self), name) or getattr(type(self), loop) is not getattr(Hooks, loop)
            remedy = f"replace {loop}, which runs the whole loop, or a method that the loop calls"
            check(called, f"{name} of {type(self).__name__} would not be called: that loop is the library's; {remedy}.")

    # --- environment

    @partial(jax.jit, static_argnums=0)
    def env_reset(self, rng: Key) -> tuple[Key, ObsType, TruncationEnvState]:
        """Reset the environment: the next key, the first observation and the state."""
        rng, reset_rng = jax.random.split(rng)
        return rng, *self.env.reset(reset_rng, self.env_params)

    @partial(jax.jit, static_argnums=0)
    def env_step(self, rng: Key, envstate: TruncationEnvState, actions: ActionType) -> tuple:
        """Step with automatic reset: the next key, observation, state, reward `[I]`, done, info.

        In training and evaluation it steps without reset, so that the observation is the true successor.
        """
        rng, step_rng = jax.random.split(rng)
        return rng, *self.env.step(step_rng, envstate, actions, self.env_params)

    @cached_property
    def _environment(self) -> Environment:
        """Rookery's environment of `env_reset` and `env_step`; the next episodes begin in states of a bank."""
        kind, remedy = (
            type(self.env).__name__,
            "give it the methods of TruncationWrapper, or wrap the inner environment",
        )
        check(hasattr(type(self.env), "step_env"), f"{kind}, the env of this agent, has no method step_env; {remedy}.")
        bare: Any = copy.copy(self)
        bare.env = copy.copy(self.env)
        bare.env.step = self.env.step_env
        return team_environment(bare, self.config.max_episode_steps, self._observation, self._action)

    @cached_property
    def _observation(self) -> jax.ShapeDtypeStruct:
        return jax.eval_shape(self.env_reset, jax.random.key(0))[1]

    @cached_property
    def _action(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of the joint action."""
        key = jax.random.key(0)
        given = self.config.actor_network, HYPERPARAMETERS.actor_optimizer_params
        actors = jax.eval_shape(lambda: self._create_training(key, *given))
        action = jax.eval_shape(self._sample_actions, key, actors, self._observation)
        self._check_actions("_sample_actions", action)
        return action

    def _check_actions(self, name: str, action: jax.ShapeDtypeStruct | Array) -> None:
        count, shape = self.n_actors, action.shape
        fits = shape[:1] == (count,) or (count == 1 and not shape)
        check(fits, f"{name} gives actions of shape {shape} for {count} actors; make it ({count}, ...).")

    # --- initial states

    def _init_optimizer(self, optimizer_params: OptimizerParams) -> optax.GradientTransformation:
        """The optimizer of these parameters, which may be traced."""
        return optimizer(self.config.optimizer, optimizer_params)

    @cached_property
    def _modules(self) -> dict[Callable[..., Network], Network]:
        """The network of each factory, built once, since training states are compared by it."""
        return {}

    def _init_network(self, rng: Key, network: Callable[..., Network]) -> tuple[Network, PyTree]:
        """The network of a factory and its initial parameters; the key is consumed."""
        if network not in self._modules:
            self._modules[network] = network(self.config)
        module = self._modules[network]
        return module, module.init(rng, jnp.zeros((1, self._observation.size)))

    def _create_training(
        self, rng: Key, network: Callable[..., Network], optimizer_params: OptimizerParams
    ) -> TrainState:
        """The initial training state of a network; the key is consumed."""
        module, params = self._init_network(rng, network)
        return TrainState.create(apply_fn=module.apply, params=params, tx=self._init_optimizer(optimizer_params))

    def _create_empty_trainstate(self, network: Callable[..., Network]) -> TrainState:
        """A training state with the structure of a network's checkpoints."""
        return self._create_training(jax.random.key(1), network, OptimizerParams())

    @partial(jax.jit, static_argnums=0)
    def _create_update_runner(
        self, rng: Key, actor_training: TrainState, critic_training: TrainState, hyperparams: HyperParameters
    ) -> Runner:
        """The runner before the first update, with E new episodes; the key is consumed."""
        rng, bank_key, begin_key = jax.random.split(rng, 3)
        environment, count, none = self._environment, self.config.batch_size, jnp.zeros((1,))
        env_batch = rollout.start_environments(environment, start_bank(environment, bank_key, count), begin_key, count)
        obs = joint_observation(self._observation.shape, env_batch.observation)
        return Runner(actor_training, critic_training, env_batch.state, obs, rng, hyperparams, none, none)

    # --- training

    def _begin(
        self, rng: Key, hyperparams: HyperParameters, before: Runner | None = None
    ) -> tuple[Runner, dict[str, Array]]:
        """The first runner of a training and its metrics; the key, raw or typed, is consumed.

        With `before`, training continues from that runner under the new hyper-parameters.
        """
        hyperparams = jax.tree.map(lambda number: jnp.asarray(number, jnp.float32), hyperparams)
        if before is None:
            actor_key, critic_key, runner_key = jax.random.split(typed_key(rng), 3)
            config = self.config
            actor = self._create_training(actor_key, config.actor_network, hyperparams.actor_optimizer_params)
            critic = self._create_training(critic_key, config.critic_network, hyperparams.critic_optimizer_params)
            runner = self._create_update_runner(runner_key, actor, critic, hyperparams)
        else:
            none = jnp.zeros((1,))
            runner = before.replace(hyperparams=hyperparams, actor_loss=none, critic_loss=none)
        return runner, self._generate_metrics(runner=runner, update_step=0) if self.eval_during_training else {}

    def _training(
        self, rng: Key, hyperparams: HyperParameters, before: Runner | None = None
    ) -> tuple[Runner, dict[str, Array]]:
        """Train as one pure function, which can be mapped over keys and hyper-parameters: the final runner, and all
        metrics, leaves `[stages + 1, ...]`."""
        runner, first = self._begin(rng, hyperparams, before)
        stages = jnp.arange(-(-self.config.n_steps // self.config.eval_frequency))
        runner, rest = jax.lax.scan(self._training_step, runner, stages)
        return runner, jax.tree.map(lambda row, rows: jnp.concatenate([jnp.asarray(row)[None], rows]), first, rest)

    def _training_step(self, update_runner: Runner, i_training_batch: Array) -> tuple[Runner, dict[str, Array]]:
        """Make the updates of stage `i_training_batch`, and compute the metrics; the losses are means over the updates.

        A stage makes `eval_frequency` updates, and the last one the remainder.
        """
        every, names = self.config.eval_frequency, ("actor_loss", "critic_loss")
        count = jnp.minimum(every, self.config.n_steps - every * i_training_batch)

        def update(index: Array, carry: tuple[Runner, dict[str, Array]]) -> tuple[Runner, dict[str, Array]]:
            runner = self._update_step(index, carry[0])
            return runner, {name: carry[1][name] + getattr(runner, name) for name in names}

        runner, sums = jax.lax.fori_loop(0, count, update, (update_runner, dict.fromkeys(names, jnp.zeros((1,)))))
        runner = runner.replace(**{name: sums[name] / count.astype(jnp.float32) for name in names})
        if not self.eval_during_training:
            return runner, {}
        return runner, self._generate_metrics(runner=runner, update_step=i_training_batch)

    @partial(jax.jit, static_argnums=0)
    def _update_step(self, i_update_step: Array, update_runner: Runner) -> Runner:
        """Collect a rollout and train on it; `i_update_step` is the number of the update in its stage."""
        del i_update_step
        rng, bank_key, rollout_key, update_key = jax.random.split(update_runner.rng, 4)
        runner, traj_batch = self._collect(update_runner, bank_key, rollout_key)
        traj_batch = self._process_trajectory(runner, traj_batch, runner.obs)
        runner = runner.replace(rng=update_key)
        actor, actor_loss = self._actor_update(runner, traj_batch)
        critic, critic_loss = self._critic_update(runner, traj_batch)
        losses = {"actor_loss": jnp.reshape(actor_loss, (1,)), "critic_loss": jnp.reshape(critic_loss, (1,))}
        return runner.replace(actor_training=actor, critic_training=critic, rng=rng, **losses)

    def _collect(self, runner: Runner, bank_key: Key, rollout_key: Key) -> tuple[Runner, Transition]:
        """Collect one rollout, with automatic resets to new start states; the keys are consumed."""
        environment = self._environment
        bank = start_bank(environment, bank_key, self.config.batch_size)
        features = jax.vmap(partial(shared_features, self.n_actors))(runner.obs)
        actors = start_actors(rollout.EnvBatchState(runner.envstate, Observation(features)), environment.spec)
        keys = jax.random.split(rollout_key, self.config.rollout_length)
        explore = partial(self._explore, runner.actor_training)
        actors, rows, _ = collect(explore, environment, bank, runner.hyperparams.gamma, actors, keys)
        obs = joint_observation(self._observation.shape, actors.env_batch.observation)
        return runner.replace(envstate=actors.env_batch.state, obs=obs), self._transitions(runner, rows)

    def _explore(self, training: TrainState, observation: Observation, keys: Key) -> tuple[Array, Array]:
        """Sampled actions `[E, I, A]` for observations `[E, I, O]`, and their log densities `[E, I]`."""
        obs = joint_observation(self._observation.shape, observation)
        action = jax.vmap(self._sample_actions, in_axes=(0, None, 0))(keys, training, obs)
        log_prob = jax.vmap(self._density, in_axes=(None, None, 0, 0))(training, training.params, obs, action)
        log_prob = per_agent("_log_prob", self.n_actors, log_prob, 1)
        return action.reshape(*log_prob.shape, -1), log_prob

    @property
    def _density(self) -> MethodType:
        """`_log_prob` without decorators: published subclasses decorate it with a `jit` that declares the actions
        static, but traced actions cannot be static."""
        return MethodType(inspect.unwrap(type(self)._log_prob), self)

    def _transitions(self, runner: Runner, rows: Rows) -> Transition:
        """Convert a rollout `[T, E, I, ...]` to the transitions `[E, T, ...]` of `_make_transition`."""
        rows = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), rows)
        obs, next_obs = (
            joint_observation(self._observation.shape, o) for o in (rows.observation, rows.next_observation)
        )
        terminated = rows.terminated[:, :, 0]
        made = jax.vmap(jax.vmap(lambda row: self._make_transition(**row)))(
            {
                "obs": obs,
                "actions": rows.action.reshape(*terminated.shape, *self._action.shape),
                "value": values(runner.critic_training, obs, self.n_actors),
                "log_prob": rows.extras.log_prob,
                "reward": rows.reward,
                "next_obs": next_obs,
                "terminated": terminated,
            }
        )
        traj_batch = jax.tree.map(lambda leaf: leaf[:, :, 0] if made.terminated.ndim > 2 else leaf, made)
        return traj_batch._replace(truncated=rows.extras.ended[:, :, 0] & ~terminated)

    def _make_transition(
        self,
        obs: ObsType,
        actions: ActionType,
        value: Array,
        log_prob: Array,
        reward: Array,
        next_obs: ObsType,
        terminated: Array,
    ) -> Transition:
        """The transition of one step of one environment, with a leading axis of 1."""
        transition = Transition(obs, actions, value, log_prob, reward, next_obs, terminated)
        return jax.tree.map(lambda leaf: leaf[None], transition)

    def _process_trajectory(self, update_runner: Runner, traj_batch: Transition, last_obs: ObsType) -> Transition:
        """Add next values and advantages to transitions `[E, T, ...]`; `last_obs` `[E, ...]` follow the last step."""
        traj_batch = self._add_next_values(traj_batch, last_obs, update_runner.critic_training)
        chosen = update_runner.hyperparams
        advantage = self._advantages(traj_batch, chosen.gamma, chosen.gae_lambda)
        return self._add_advantages(traj_batch, per_agent("_advantages", self.n_actors, advantage, 2))

    def _add_next_values(self, traj_batch: Transition, last_obs: ObsType, critic_training: TrainState) -> Transition:
        """Add the values `[E, T, I]` of the true successors, whatever `last_obs` are."""
        del last_obs
        return traj_batch._replace(next_value=values(critic_training, traj_batch.next_obs, self.n_actors))

    def _add_advantages(self, traj_batch: Transition, advantage: Array) -> Transition:
        """Add the advantages `[E, T, I]`."""
        return traj_batch._replace(advantage=advantage)

    def _advantages(self, traj_batch: Transition, gamma: Scalar, gae_lambda: Scalar) -> Array:
        """Advantages `[E, T, I]` by the recursion `_trajectory_advantages`.

        Its columns are reward, value, next_value, terminated (0 or 1), discount and lambda; lambda is 0 where an
        episode was truncated, so that no reward of the next episode enters.
        """
        terminated, discount, lambda_ = _weights(traj_batch, gamma, gae_lambda)
        columns = (traj_batch.reward, traj_batch.value, traj_batch.next_value, terminated, discount, lambda_)
        return _backwards(self._trajectory_advantages, jnp.zeros_like(traj_batch.value[:, 0]), columns)

    def _returns(
        self, traj_batch: Transition, last_next_state_value: Array, gamma: Scalar, gae_lambda: Scalar
    ) -> Array:
        """Returns `[E, T, I]` by the recursion `_trajectory_returns`.

        Its columns are reward, discount (0 at a termination), next_value and lambda (0 at a truncation); the next value
        of the last step is `last_next_state_value`, `[E, I]`, or `[E]` for a single actor.
        """
        terminated, discount, lambda_ = _weights(traj_batch, gamma, gae_lambda)
        last = per_agent("last_next_state_value", self.n_actors, last_next_state_value, 1)
        next_value = traj_batch.next_value.at[:, -1].set(last)
        columns = (traj_batch.reward, discount * (1.0 - terminated), next_value, lambda_)
        return _backwards(self._trajectory_returns, last, columns)

    @partial(jax.jit, static_argnums=0)
    def _actor_update(self, update_runner: Runner, traj_batch: Transition) -> tuple[TrainState, Array]:
        """Train the actors for `actor_epochs`, up to the first that exceeds `kl_threshold`: the training state after
        it, and the mean loss `[]`."""
        before, chosen = update_runner.actor_training, update_runner.hyperparams
        keys = jax.random.split(jax.random.split(update_runner.rng)[0], self.config.actor_epochs)
        apply = partial(_apply, self._init_optimizer(chosen.actor_optimizer_params))
        minibatches = partial(_minibatches, update_runner, traj_batch, self._actor_loss_input)
        spec = UpdateSpec(partial(_actor_loss, self, before), apply, minibatches)
        step = partial(guarded_epoch, spec, chosen.kl_threshold)
        (training, _), (applied, metrics) = jax.lax.scan(step, (before, jnp.asarray(False)), keys)
        return training, normalize.mean_of(applied, metrics["actor_loss"])

    @partial(jax.jit, static_argnums=0)
    def _critic_update(self, update_runner: Runner, traj_batch: Transition) -> tuple[TrainState, Array]:
        """Train the critics for `critic_epochs`: the training state after them, and the mean loss `[]`."""
        before, chosen = update_runner.critic_training, update_runner.hyperparams
        keys = jax.random.split(jax.random.split(update_runner.rng)[1], self.config.critic_epochs)
        apply = partial(_apply, self._init_optimizer(chosen.critic_optimizer_params))
        minibatches = partial(_minibatches, update_runner, traj_batch, self._critic_loss_input)
        spec = UpdateSpec(partial(_critic_loss, self, before), apply, minibatches)
        training, metrics = jax.lax.scan(partial(epoch, spec), before, keys)
        return training, jnp.mean(metrics["critic_loss"])

    # --- evaluation

    def _generate_metrics(self, runner: Runner, update_step: Array | int) -> dict[str, Array]:
        """Metrics of a runner: those of its evaluation, `actor_loss` and `critic_loss` `[1]`."""
        del update_step
        rng, episodes = self.config.eval_rng, self.config.n_evals
        metrics = {}
        if self.eval_during_training and rng is not None and episodes is not None:
            metrics = self._eval_agent(rng, runner.actor_training, runner.critic_training, episodes)
        return {**metrics, "actor_loss": runner.actor_loss, "critic_loss": runner.critic_loss}

    def _eval_agent(
        self, rng: Key, actor_training: TrainState, critic_training: TrainState, n_episodes: int = 1
    ) -> dict[str, Array]:
        """Evaluate the actors in full episodes: `_eval_metrics`. Equal keys, raw or typed, give equal start states."""
        del critic_training
        return self._eval_metrics(*self._episodes(typed_key(rng), actor_training, n_episodes))

    @partial(jax.jit, static_argnums=(0, 3))
    def _episodes(self, rng: Key, actor_training: TrainState, n_episodes: int) -> tuple[Array, ...]:
        """The arguments of `_eval_metrics`, which is called outside, since it need not be compiled after training."""
        config = EvaluationConfig(eval_episodes=n_episodes, start_states=n_episodes)
        evaluator = evaluation.evaluator(self._act, self._environment, config)
        bank_key, key = jax.random.split(rng)
        bank = start_bank(self._environment, bank_key, n_episodes)
        found = evaluation.evaluate(evaluator, Genotype(actor_training, (), None), bank, key)
        # An actor that has diverged acted by 0; `roles` is NaN for it, and for all where the physics broke.
        episodes, acted = found.episodes, jnp.isfinite(found.roles) | (found.broken > 0)
        ends = (episodes[f"{name}/0"] > 0 for name in ("terminated", "truncated"))
        agents = range(self.n_actors)
        return (
            *ends,
            *(
                jnp.where(acted, jnp.stack([episodes[f"{name}/{i}"] for i in agents], axis=-1), jnp.nan)
                for name in ("final_reward", "return")
            ),
        )

    def _eval_metrics(
        self, terminated: Array, truncated: Array, final_rewards: Array, returns: Array
    ) -> dict[str, Array]:
        """Metrics of N episodes: `terminated` and `truncated`, `[N]` bool; `final_rewards` and `returns`, `[N, I]`."""
        return {"terminated": terminated, "truncated": truncated, "final_rewards": final_rewards, "returns": returns}

    def _act(self, params: TrainState, observation: Observation) -> Array:
        """Deterministic actions `[I, A]` of all actors for their observations `[I, O]`."""
        action = self.policy(params, joint_observation(self._observation.shape, observation))
        self._check_actions("policy", action)
        other = f"but _sample_actions of shape {self._action.shape}; make them equal"
        check(action.size == self._action.size, f"policy gives actions of shape {action.shape}, {other}.")
        return action.reshape(self.n_actors, -1)


def optimizer(
    factory: Callable[..., optax.GradientTransformation], params: OptimizerParams
) -> optax.GradientTransformation:
    """Clip the gradient by its global norm, then apply the optimizer of an optax `factory`, which is called with those
    fields of `params` that its signature contains; a ValueError if it takes none."""
    remedy = "or replace _init_optimizer, which reads them."
    check(hasattr(params, "grad_clip"), f"actor_ and critic_optimizer_params must be OptimizerParams; {remedy}")
    given, takes = params._asdict(), inspect.signature(factory).parameters
    grad_clip = given.pop("grad_clip")
    taken = {name: value for name, value in given.items() if name in takes}
    check(bool(taken), f"the optimizer takes none of {', '.join(given)}, only {', '.join(takes)}; use another factory.")
    return optax.chain(optax.clip_by_global_norm(grad_clip), factory(**taken))


def over_rows(function: Callable[..., Array], *given: PyTree) -> Callable[..., Array]:
    """Map a function of one observation over the two leading axes `[..., ..., *]`; `given` are its first arguments."""
    return jax.vmap(jax.vmap(partial(function, *given)))


def values(training: TrainState, obs: Array, count: int) -> Array:
    """Critic values `[..., ..., I]` of observations `[..., ..., *]`."""
    return per_agent("critic_network", count, over_rows(training.apply_fn, training.params)(obs), 2)


def _minibatches(
    runner: Runner, traj: Transition, make: Callable[[Runner, Transition], tuple], key: Key
) -> tuple[PyTree, ...]:
    """The minibatches of an epoch, `[M, ...]`, from an `_input` method, whose last result all minibatches share."""
    *parts, shared = make(runner.replace(rng=key), traj)
    count = parts[0].shape[0]
    return *parts, jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), shared)


def _actor_loss(agent: Hooks, training: TrainState, params: PyTree, rows: tuple) -> tuple[Array, Metrics]:
    loss, kl = agent._actor_loss(training.replace(params=params), *rows)
    return loss, {"actor_loss": loss, "kl": kl}


def _critic_loss(agent: Hooks, training: TrainState, params: PyTree, rows: tuple) -> tuple[Array, Metrics]:
    loss = agent._critic_loss(training.replace(params=params), *rows)
    return loss, {"critic_loss": loss}


def _apply(optimizer: optax.GradientTransformation, training: TrainState, gradient: PyTree) -> TrainState:
    with jax.numpy_dtype_promotion("standard"):  # optax computes powers of a float with an integer exponent
        updates, state = optimizer.update(gradient, training.opt_state, training.params)
        params = optax.apply_updates(training.params, updates)
    return training.replace(params=params, opt_state=state, step=training.step + 1)


def _weights(traj: Transition, gamma: Scalar, gae_lambda: Scalar) -> list[Array]:
    """Termination (0 or 1), discount and lambda of every step and actor; lambda is 0 at a truncation."""
    lambda_ = jnp.where(traj.truncated, 0.0, gae_lambda)
    weights = traj.terminated.astype(jnp.float32), jnp.full_like(lambda_, gamma), lambda_
    return [jnp.broadcast_to(weight[..., None], traj.reward.shape) for weight in weights]


def _backwards(step: Callable[..., tuple[Array, Array]], start: Array, columns: tuple[Array, ...]) -> Array:
    """Results `[E, T, I]` of a recursion backwards in time over columns `[E, T, I]`."""
    time_first = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), columns)
    return jnp.swapaxes(jax.lax.scan(step, start, time_first, reverse=True)[1], 0, 1)
