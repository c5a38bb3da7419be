"""The methods that a subclass of the documented `IPPOBase` implements, and what is built from its settings."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, partial
from types import MethodType

import jax
import jax.numpy as jnp
import optax

from rookery.compat.jaxagents.environment import TruncationWrapper, observation_shape, team_environment
from rookery.compat.jaxagents.records import (
    AgentConfig,
    HyperParameters,
    Network,
    OptimizerParams,
    Runner,
    TrainState,
    Transition,
)
from rookery.compat.records import check
from rookery.envs.base import Environment
from rookery.types import Array, Key, PyTree, Scalar

ObsType = ActionType = Array
HYPERPARAMETERS = HyperParameters(0.0, 0.0, 0.0, 0.0, 0.0, OptimizerParams(), OptimizerParams())
"""Hyper-parameters for functions of which only the shapes are evaluated."""


class Hooks(ABC):
    """Settings and user-defined methods of an agent of I actors that share one observation.

    The methods are called with positional arguments. For one observation, `policy` and `_sample_actions` return `[I]`
    or `[I, A]`, `_log_prob` and `_entropy` return `[I]`. The trajectory methods are one step of a recursion backwards
    in time: (next result, columns of `_advantages` or `_returns`, `[E, I]` each) -> the result, twice. The losses are
    scalars `[]` of one minibatch `[minibatch_size, T, ...]`; the actor loss also returns the divergence from the policy
    that collected the rollout, `[]` or `[I]`. The `_input` methods return all minibatches of an epoch, with one leading
    axis more, followed by the hyper-parameters; `update_runner` is the runner after the rollout and before the update,
    with a different key `rng` in every epoch.
    """

    n_actors: int
    config: AgentConfig
    env: TruncationWrapper
    env_params: PyTree
    eval_during_training: bool

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

    def _advantages(self, traj: Transition, gamma: Scalar, gae_lambda: Scalar) -> Array:
        """Advantages `[E, T, I]` by the recursion `_trajectory_advantages`.

        Its columns are reward, value, next_value, terminated (0 or 1), discount and lambda; lambda is 0 where an
        episode was truncated, so that no reward of the next episode enters.
        """
        terminated, discount, lambda_ = _weights(traj, gamma, gae_lambda)
        columns = (traj.reward, traj.value, traj.next_value, terminated, discount, lambda_)
        return _backwards(self._trajectory_advantages, jnp.zeros_like(traj.value[:, 0]), columns)

    def _returns(self, traj: Transition, gamma: Scalar, gae_lambda: Scalar) -> Array:
        """Returns `[E, T, I]` by the recursion `_trajectory_returns`.

        Its columns are reward, discount (0 at a termination), next_value and lambda (0 at a truncation).
        """
        terminated, discount, lambda_ = _weights(traj, gamma, gae_lambda)
        columns = (traj.reward, discount * (1.0 - terminated), traj.next_value, lambda_)
        return _backwards(self._trajectory_returns, traj.next_value[:, -1], columns)

    @property
    def _density(self) -> MethodType:
        """`_log_prob` without decorators: published subclasses decorate it with a `jit` that declares the actions
        static, but traced actions cannot be static."""
        return MethodType(inspect.unwrap(type(self)._log_prob), self)

    @cached_property
    def _networks(self) -> tuple[Network, Network]:
        return self.config.actor_network(self.config), self.config.critic_network(self.config)

    @cached_property
    def _observation(self) -> jax.ShapeDtypeStruct:
        return observation_shape(self.env, self.env_params)

    @cached_property
    def _action(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of the joint action."""
        key = jax.random.key(0)
        actors, _ = jax.eval_shape(self._init_states, key, HYPERPARAMETERS)
        action = jax.eval_shape(self._sample_actions, key, actors, self._observation)
        self._check_actions("_sample_actions", action)
        return action

    @cached_property
    def _environment(self) -> Environment:
        return team_environment(self.env, self.env_params, self._action)

    def _check_actions(self, name: str, action: jax.ShapeDtypeStruct | Array) -> None:
        count, shape = self.n_actors, action.shape
        fits = shape[:1] == (count,) or (count == 1 and not shape)
        check(fits, f"{name} gives actions of shape {shape} for {count} actors; make it ({count}, ...).")

    def _init_states(self, key: Key, hyperparams: HyperParameters) -> tuple[TrainState, TrainState]:
        """Initial training states of actors and critics."""
        blank, none = jnp.zeros((1, self._observation.size)), jnp.zeros((), jnp.int32)
        (actor, critic), optimizers = self._networks, self._optimizers(hyperparams)
        actor_key, critic_key = jax.random.split(key)
        of_actor, of_critic = actor.init(actor_key, blank), critic.init(critic_key, blank)
        return (
            TrainState(of_actor, optimizers[0].init(of_actor), none, actor.apply),
            TrainState(of_critic, optimizers[1].init(of_critic), none, critic.apply),
        )

    def _optimizers(self, hyperparams: HyperParameters) -> list[optax.GradientTransformation]:
        """Optimizers of actors and critics."""
        make = partial(optimizer, self.config.optimizer)
        return [make(hyperparams.actor_optimizer_params), make(hyperparams.critic_optimizer_params)]


def optimizer(
    factory: Callable[..., optax.GradientTransformation], params: OptimizerParams
) -> optax.GradientTransformation:
    """Clip the gradient by its global norm, then apply the optimizer of `factory`.

    Args:
      factory: optax factory, called with those fields of `params` that its signature contains.
      params: arguments of the factory, and the limit of the norm.

    Raises:
      ValueError: the factory takes none of the fields.
    """
    given, takes = params._asdict(), inspect.signature(factory).parameters
    grad_clip = given.pop("grad_clip")
    taken = {name: value for name, value in given.items() if name in takes}
    check(bool(taken), f"the optimizer takes none of {', '.join(given)}, only {', '.join(takes)}; use another factory.")
    return optax.chain(optax.clip_by_global_norm(grad_clip), factory(**taken))


def _weights(traj: Transition, gamma: Scalar, gae_lambda: Scalar) -> list[Array]:
    """Termination (0 or 1), discount and lambda of every step and actor; lambda is 0 at a truncation."""
    lambda_ = jnp.where(traj.truncated, 0.0, gae_lambda)
    weights = traj.terminated.astype(jnp.float32), jnp.full_like(lambda_, gamma), lambda_
    return [jnp.broadcast_to(weight[..., None], traj.reward.shape) for weight in weights]


def _backwards(step: Callable[..., tuple[Array, Array]], start: Array, columns: tuple[Array, ...]) -> Array:
    """Results `[E, T, I]` of a recursion backwards in time over columns `[E, T, I]`."""
    time_first = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), columns)
    return jnp.swapaxes(jax.lax.scan(step, start, time_first, reverse=True)[1], 0, 1)
