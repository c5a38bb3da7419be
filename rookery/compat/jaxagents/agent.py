"""On-policy agent built from user-defined networks, densities, losses and optimizers, for actors with one observation.

The user defines functions of one joint observation, and losses of minibatches. `agent` builds an `OnPolicyAgent` from
them that can be trained in the environment of `team_environment`. One network serves all actors, another all
critics. Hyper-parameters are any user-defined pytree with the attribute `kl_threshold`, in nats.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rookery import normalize
from rookery.agents.base import OnPolicyAgent
from rookery.agents.minibatch import UpdateSpec, epoch, guarded_epoch
from rookery.compat.records import Record, check, per_agent, static_field
from rookery.hyperparams import Space
from rookery.types import Array, Key, Metrics, PyTree, Transition


class OptimizerParams(NamedTuple):
    """Arguments of an optimizer factory, and `grad_clip`, the limit of the gradient's global norm."""

    learning_rate: Any = 1e-3
    eps: Any = 1e-8
    grad_clip: Any = 10.0


class TrainState(Record):
    """Training state of one network; the optimizer is rebuilt from the hyper-parameters whenever it is needed."""

    params: PyTree
    opt_state: PyTree
    step: Array
    """`[]` int32, number of optimizer steps."""
    apply_fn: Callable[..., Array] = static_field()


class Hyper(NamedTuple):
    """User-defined hyper-parameters in the form that a learner requires."""

    user: Any
    """User-defined hyper-parameters."""
    discount: Array
    """`[]`, discount of `RolloutExtras.accumulated`, which this agent does not use."""


class TrainStates(NamedTuple):
    """Training states of the actor and the critic network."""

    actor: TrainState
    critic: TrainState

    @property
    def params(self) -> PyTree:
        """Parameters of both networks."""
        return self.actor.params, self.critic.params


class Rollouts(NamedTuple):
    """Steps of rollouts, `[E, T, ...]`."""

    obs: Array
    action: Array
    value: Array
    """`[E, T, I]`."""
    log_prob: Array
    """`[E, T, I]`."""
    reward: Array
    """`[E, T, I]`."""
    next_obs: Array
    """Observation of the true successor, also at the end of an episode."""
    terminated: Array
    """`[E, T]` bool."""
    next_value: Any = None
    """`[E, T, I]`."""
    advantage: Any = None
    """`[E, T, I]`."""
    truncated: Any = None
    """`[E, T]` bool."""


class UserFunctions(NamedTuple):
    """User-defined functions. `training` is a `TrainState` of the actors; an observation is that of one environment.

    The minibatches of an epoch are a tuple of arrays with M minibatches, leaves `[M, ...]`; its last element is shared
    by all minibatches, leaves `[]`. The losses receive both.
    """

    sample: Callable[..., Array]
    """(key, training, observation) -> sampled joint action `[I, ...]`, used during training."""
    policy: Callable[..., Array]
    """(training, observation) -> deterministic joint action `[I, ...]`, used in evaluations."""
    log_prob: Callable[..., Array]
    """(training, params, observation, action) -> `[I]`."""
    advantages: Callable[..., Array]
    """(rollouts without advantages, hyper) -> `[E, T, I]`."""
    actor_rows: Callable[..., tuple]
    """(rollouts, training states before the update, hyper, key) -> minibatches of an epoch."""
    critic_rows: Callable[..., tuple]
    """As `actor_rows`, for the critics."""
    actor_loss: Callable[..., tuple[Array, Array]]
    """(training, *minibatch) -> loss `[]`, divergence `[]` or `[I]`."""
    critic_loss: Callable[..., Array]
    """(training, *minibatch) -> loss `[]`."""
    optimizers: Callable[..., tuple[optax.GradientTransformation, ...]]
    """hyper -> optimizers of actors and of critics."""


class AgentBindings(NamedTuple):
    """Bound arguments of the agent's functions."""

    functions: UserFunctions
    networks: tuple[Any, Any]
    """Actor and critic network, with `init` and `apply` like flax modules."""
    count: int
    """I, the number of actors."""
    obs: Any
    """Shape and dtype of an observation."""
    epochs: tuple[int, int]
    """Passes over each rollout, for actors and critics."""
    minibatches: int
    """Minibatches per epoch."""
    action: Any = None
    """Shape and dtype of the joint action; set by `bind`."""


def bind(bindings: AgentBindings) -> AgentBindings:
    """Set the shape of the joint action, from `sample`.

    Raises:
      ValueError: `sample` does not return one action per actor.
    """
    params: Any = jax.eval_shape(partial(init, bindings), jax.random.key(0))
    action = jax.eval_shape(bindings.functions.sample, jax.random.key(0), start(bindings, params).actor, bindings.obs)
    _check_actions(bindings, bindings.functions.sample, action)
    return bindings._replace(action=action)


def _check_actions(bindings: AgentBindings, function: Callable[..., Array], action: Any) -> None:
    count, shape, name = bindings.count, action.shape, _name(function)
    fits = shape[:1] == (count,) or (count == 1 and not shape)
    check(fits, f"{name} gives actions of shape {shape} for {count} actors; make it ({count}, ...).")


def init(bindings: AgentBindings, key: Key) -> tuple[PyTree, PyTree]:
    """Draw the parameters of the actor and the critic network."""
    actor_key, critic_key = jax.random.split(key)
    (actor, critic), blank = bindings.networks, jnp.zeros((1, bindings.obs.size))
    return actor.init(actor_key, blank), critic.init(critic_key, blank)


def start(bindings: AgentBindings, params: tuple[PyTree, PyTree]) -> TrainStates:
    """Training states without optimizer states, which need hyper-parameters: see `init_optimizers`."""
    none = jnp.zeros((), jnp.int32)
    return TrainStates(
        *(TrainState(of, (), none, net.apply) for of, net in zip(params, bindings.networks, strict=True))
    )


def init_optimizers(bindings: AgentBindings, states: TrainStates, hyper: Any) -> TrainStates:
    """Initialise the optimizer states, which new training states need before their first update."""
    pairs = zip(states, bindings.functions.optimizers(hyper), strict=True)
    return TrainStates(*(training.replace(opt_state=optimizer.init(training.params)) for training, optimizer in pairs))


def optimizer(factory: Callable[..., optax.GradientTransformation], params: Any) -> optax.GradientTransformation:
    """Clip the gradient by its global norm, then apply the optimizer of `factory`.

    Args:
      factory: optax factory, called with those fields of `params` that its signature contains.
      params: an `OptimizerParams`.

    Raises:
      ValueError: the factory takes none of the fields.
    """
    given, takes = params._asdict(), inspect.signature(factory).parameters
    grad_clip = given.pop("grad_clip")
    taken = {name: value for name, value in given.items() if name in takes}
    check(bool(taken), f"the optimizer takes none of {', '.join(given)}, only {', '.join(takes)}; use another factory.")
    return optax.chain(optax.clip_by_global_norm(grad_clip), factory(**taken))


def deterministic_actions(bindings: AgentBindings, params: TrainState, observation: Array) -> Array:
    """Deterministic actions `[I, A]` of all actors, from the actors' full training state."""
    action = bindings.functions.policy(params, observation[0].reshape(bindings.obs.shape))
    _check_actions(bindings, bindings.functions.policy, action)
    return action.reshape(bindings.count, -1)


def act(bindings: AgentBindings, params: tuple[PyTree, PyTree], observation: Array) -> Array:
    """Deterministic actions `[I, A]` from parameters; `policy` gets a training state without optimizer, at step 0."""
    return deterministic_actions(bindings, start(bindings, params).actor, observation)


def _explore(
    bindings: AgentBindings, state: TrainStates, hyper: Hyper, observation: Array, key: Key
) -> tuple[Array, Array]:
    del hyper
    obs = observation[0].reshape(bindings.obs.shape)
    action = bindings.functions.sample(key, state.actor, obs)
    log_prob = bindings.functions.log_prob(state.actor, state.actor.params, obs, action)
    return action.reshape(bindings.count, -1), per_agent(_name(bindings.functions.log_prob), bindings.count, log_prob)


def _name(function: Callable[..., Array]) -> str:
    return getattr(function, "__name__", str(function))


def over_rows(function: Callable[..., Array], *given: Any) -> Callable[..., Array]:
    """Map a function of one observation over the two leading axes `[..., ..., *]`; `given` are its first arguments."""
    return jax.vmap(jax.vmap(partial(function, *given)))


def values(training: TrainState, obs: Array, count: int) -> Array:
    """Critic values `[..., ..., I]` of observations `[..., ..., *]`."""
    return per_agent("critic_network", count, over_rows(training.apply_fn, training.params)(obs), 2)


def rollouts(bindings: AgentBindings, state: TrainStates, hyper: Any, batch: Transition) -> Rollouts:
    """Convert the learner's rollouts `[T, E, I, ...]` to the layout of the user-defined functions, with advantages."""
    batch = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), batch)
    lead, extras, terminated = batch.reward.shape[:2], batch.extras, batch.terminated[:, :, 0]
    obs, next_obs = (
        o[:, :, 0].reshape(*lead, *bindings.obs.shape) for o in (batch.observation, batch.next_observation)
    )
    converted = Rollouts(
        obs=obs,
        action=batch.action.reshape(*lead, *bindings.action.shape),
        value=values(state.critic, obs, bindings.count),
        log_prob=extras.log_prob,
        reward=batch.reward,
        next_obs=next_obs,
        terminated=terminated,
        next_value=values(state.critic, next_obs, bindings.count),
        truncated=extras.ended[:, :, 0] & ~terminated,
    )
    return converted._replace(advantage=bindings.functions.advantages(converted, hyper))


def _update(
    bindings: AgentBindings, state: TrainStates, hyper: Hyper, batch: Transition, key: Key, step: Array
) -> tuple[TrainStates, Metrics]:
    """Run all epochs of actors and critics on one rollout; see `agents.base.RolloutUpdateFn`."""
    del step
    chosen = hyper.user
    check(state.actor.opt_state != (), "these agents have no optimizer states; create them with init_optimizers.")
    functions, converted = bindings.functions, rollouts(bindings, state, chosen, batch)
    optimizers = functions.optimizers(chosen)
    actor_key, critic_key = jax.random.split(key)

    rows = partial(_cut, functions.actor_rows, converted, state, chosen)
    spec = UpdateSpec(partial(_actor_loss, functions, state.actor), partial(_move, optimizers[0]), rows)
    keys, initial = jax.random.split(actor_key, bindings.epochs[0]), (state.actor, jnp.asarray(False))
    step_epoch = partial(guarded_epoch, spec, chosen.kl_threshold)
    (actor, _), (executed, of_actor) = jax.lax.scan(step_epoch, initial, keys)

    rows = partial(_cut, functions.critic_rows, converted, state, chosen)
    spec = UpdateSpec(partial(_critic_loss, functions, state.critic), partial(_move, optimizers[1]), rows)
    keys = jax.random.split(critic_key, bindings.epochs[1])
    critic, of_critic = jax.lax.scan(partial(epoch, spec), state.critic, keys)
    metrics = {"actor_loss": normalize.mean_of(executed, of_actor["actor_loss"]), **jax.tree.map(jnp.mean, of_critic)}
    return TrainStates(actor, critic), metrics


def _cut(rows: Callable[..., tuple], *given: Any) -> tuple:
    *parts, common = rows(*given)
    count = parts[0].shape[0]
    return *parts, jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), common)


def _actor_loss(functions: UserFunctions, training: TrainState, params: PyTree, rows: tuple) -> tuple[Array, Metrics]:
    loss, kl = functions.actor_loss(training.replace(params=params), *rows)
    return loss, {"actor_loss": loss, "kl": kl}


def _critic_loss(functions: UserFunctions, training: TrainState, params: PyTree, rows: tuple) -> tuple[Array, Metrics]:
    loss = functions.critic_loss(training.replace(params=params), *rows)
    return loss, {"critic_loss": loss}


def _move(optimizer: optax.GradientTransformation, training: TrainState, gradient: PyTree) -> TrainState:
    with jax.numpy_dtype_promotion("standard"):  # optax computes powers of a float with an integer exponent
        updates, state = optimizer.update(gradient, training.opt_state, training.params)
        params = optax.apply_updates(training.params, updates)
    return training.replace(params=params, opt_state=state, step=training.step + 1)


def agent(bindings: AgentBindings) -> OnPolicyAgent:
    """Build the agent from the result of `bind`; training states of `start` need `init_optimizers` before an update."""
    return OnPolicyAgent(
        init=partial(init, bindings),
        start=partial(start, bindings),
        explore=partial(_explore, bindings),
        act=partial(act, bindings),
        update=partial(_update, bindings),
        space=Space(Hyper((), jnp.ones(())), {}),
        team="shared",
        minibatches=bindings.minibatches,
    )
