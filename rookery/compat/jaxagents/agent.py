"""An on-policy agent of networks, densities, losses and optimisers of one's own, for a team that all see the same.

Whoever has these functions for one observation of all agents, and losses for minibatches, has an `Agent` that any
on-policy life can lead in the world that `envs.joint.team` makes. The actors are one network, the critics another.

Hyper-parameters are any tree of one's own, with `kl_threshold`, in nats, among its attributes.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rookery import normalize
from rookery.agents import minibatch as epochs
from rookery.agents.base import Agent
from rookery.agents.ppo import draw_noise
from rookery.compat.records import Record, by_agent, check, static
from rookery.hyperparams import Space
from rookery.types import Array, Key, Metrics, PyTree, Transition


class OptimizerParams(NamedTuple):
    """What an optimiser's factory is called with, and the limit of the gradient's global norm before it."""

    learning_rate: Any = 1e-3
    eps: Any = 1e-8
    grad_clip: Any = 10.0


class TrainState(Record):
    """One network as it is learned; its optimiser is made from the hyper-parameters whenever it is needed."""

    params: PyTree
    opt_state: PyTree
    step: Array  # [] int32, optimiser's steps
    apply_fn: Callable[..., Array] = static()


class Hyper(NamedTuple):
    """Hyper-parameters of one's own as a life carries them."""

    own: Any
    discount: Array  # [] of the sums in `RolloutExtras.accumulated`, which nobody here looks at


class TrainStates(NamedTuple):
    """What is learned."""

    actor: TrainState
    critic: TrainState

    @property
    def params(self) -> PyTree:
        """The genome."""
        return self.actor.params, self.critic.params


class Rollouts(NamedTuple):
    """Steps of rollouts, `[E, T, ...]`."""

    obs: Array
    action: Array
    value: Array  # [E, T, I], as the next four that have numbers
    log_prob: Array
    reward: Array
    next_obs: Array  # the true successor's
    terminated: Array  # [E, T] bool
    next_value: Any = None
    advantage: Any = None
    truncated: Any = None  # [E, T] bool


class UserFunctions(NamedTuple):
    """What one brings. `training` is the actors' `TrainState`; an observation is that of one world.

    An epoch's minibatches are a tuple of rows, leaves `[M, ...]`, whose last part is what all of them share, leaves
    `[]`: the losses are given both.
    """

    sample: Callable[..., Array]  # key, training, observation -> [I, ...], to learn from
    policy: Callable[..., Array]  # training, observation -> [I, ...], to be judged by
    log_prob: Callable[..., Array]  # training, params, observation, action -> [I]
    advantages: Callable[..., Array]  # rollouts without them, hyper -> [E, T, I]
    actor_rows: Callable[..., tuple]  # rollouts, minds before the update, hyper, key -> an epoch's minibatches
    critic_rows: Callable[..., tuple]
    actor_loss: Callable[..., tuple[Array, Array]]  # training, *minibatch -> loss [], divergence [] or [I]
    critic_loss: Callable[..., Array]  # training, *minibatch -> loss []
    optimizers: Callable[..., tuple[optax.GradientTransformation, ...]]  # hyper -> of actors and of critics


class AgentBindings(NamedTuple):
    """What the agent is bound to."""

    own: UserFunctions
    networks: tuple[Any, Any]  # of actors and critics, with `init` and `apply` as flax's modules
    count: int  # I
    obs: Any  # shape and type of an observation
    epochs: tuple[int, int]  # passes over each rollout, of actors and critics
    minibatches: int
    action: Any = None  # shape and type of what all agents do


def bind(bindings: AgentBindings) -> AgentBindings:
    """With the shape of what all agents do.

    Raises:
      ValueError: it is not one action for each.
    """
    params: Any = jax.eval_shape(partial(init, bindings), jax.random.key(0))
    action = jax.eval_shape(bindings.own.sample, jax.random.key(0), start(bindings, params).actor, bindings.obs)
    _check_actions(bindings, bindings.own.sample, action)
    return bindings._replace(action=action)


def _check_actions(bindings: AgentBindings, function: Callable[..., Array], action: Any) -> None:
    count, shape, name = bindings.count, action.shape, _name(function)
    fits = shape[:1] == (count,) or (count == 1 and not shape)
    check(fits, f"{name} gives actions of shape {shape} for {count} actors; make it ({count}, ...).")


def init(bindings: AgentBindings, key: Key) -> tuple[PyTree, PyTree]:
    """Draw the parameters of actors and critics."""
    actor_key, critic_key = jax.random.split(key)
    (actor, critic), blank = bindings.networks, jnp.zeros((1, bindings.obs.size))
    return actor.init(actor_key, blank), critic.init(critic_key, blank)


def start(bindings: AgentBindings, params: tuple[PyTree, PyTree]) -> TrainStates:
    """Without optimisers, which need hyper-parameters: see `equip`."""
    none = jnp.zeros((), jnp.int32)
    return TrainStates(
        *(TrainState(of, (), none, net.apply) for of, net in zip(params, bindings.networks, strict=True))
    )


def equip(bindings: AgentBindings, minds: TrainStates, hyper: Any) -> TrainStates:
    """With fresh optimisers; a newborn needs them before it can learn."""
    made = zip(minds, bindings.own.optimizers(hyper), strict=True)
    return TrainStates(*(training.replace(opt_state=optimizer.init(training.params)) for training, optimizer in made))


def optimizer(factory: Callable[..., optax.GradientTransformation], params: Any) -> optax.GradientTransformation:
    """A limit of the gradient's norm, then what a factory makes of those of `OptimizerParams` that it takes.

    Raises:
      ValueError: it takes none of them.
    """
    given, takes = params._asdict(), inspect.signature(factory).parameters
    grad_clip = given.pop("grad_clip")
    taken = {name: value for name, value in given.items() if name in takes}
    check(bool(taken), f"the optimizer takes none of {', '.join(given)}, only {', '.join(takes)}; give another.")
    return optax.chain(optax.clip_by_global_norm(grad_clip), factory(**taken))


def follow(bindings: AgentBindings, params: TrainState, observation: Array) -> Array:
    """What everybody does when judged, `[I, A]`, by the actors' whole training."""
    action = bindings.own.policy(params, observation[0].reshape(bindings.obs.shape))
    _check_actions(bindings, bindings.own.policy, action)
    return action.reshape(bindings.count, -1)


def act(bindings: AgentBindings, params: tuple[PyTree, PyTree], observation: Array) -> Array:
    """Likewise by the genome; the actors' training is then without an optimiser, at step 0."""
    return follow(bindings, start(bindings, params).actor, observation)


def _explore(
    bindings: AgentBindings, state: TrainStates, hyper: Hyper, observation: Array, key: Key
) -> tuple[Array, Array]:
    del hyper
    obs = observation[0].reshape(bindings.obs.shape)
    action = bindings.own.sample(key, state.actor, obs)
    log_prob = bindings.own.log_prob(state.actor, state.actor.params, obs, action)
    return action.reshape(bindings.count, -1), by_agent(_name(bindings.own.log_prob), bindings.count, log_prob)


def _name(function: Callable[..., Array]) -> str:
    """What its author calls it."""
    return getattr(function, "__name__", str(function))


def of_rows(function: Callable[..., Array], *given: Any) -> Callable[..., Array]:
    """A function of one observation, whose first arguments are given, for rows `[..., ..., *]`."""
    return jax.vmap(jax.vmap(partial(function, *given)))


def values(training: TrainState, obs: Array, count: int) -> Array:
    """Of observations `[..., ..., *]`, `[..., ..., I]`."""
    return by_agent("critic_network", count, of_rows(training.apply_fn, training.params)(obs), 2)


def rollouts(bindings: AgentBindings, state: TrainStates, hyper: Any, batch: Transition) -> Rollouts:
    """What was lived through, `[T, E, I, ...]`, as one's own functions know it, with its advantages."""
    batch = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), batch)
    lead, lived, terminated = batch.reward.shape[:2], batch.extras, batch.terminated[:, :, 0]
    obs, next_obs = (
        o[:, :, 0].reshape(*lead, *bindings.obs.shape) for o in (batch.observation, batch.next_observation)
    )
    found = Rollouts(
        obs=obs,
        action=batch.action.reshape(*lead, *bindings.action.shape),
        value=values(state.critic, obs, bindings.count),
        log_prob=lived.log_prob,
        reward=batch.reward,
        next_obs=next_obs,
        terminated=terminated,
        next_value=values(state.critic, next_obs, bindings.count),
        truncated=lived.ended[:, :, 0] & ~terminated,
    )
    return found._replace(advantage=bindings.own.advantages(found, hyper))


def _update(
    bindings: AgentBindings, state: TrainStates, hyper: Hyper, batch: Transition, noise: Key, step: Array
) -> tuple[TrainStates, Metrics]:
    """All epochs of one rollout; see `agents.api.UpdateFn`."""
    del step
    chosen = hyper.own
    check(state.actor.opt_state != (), "these agents have no optimisers; agents.joint.equip gives them some.")
    own, lived, optimizers = bindings.own, rollouts(bindings, state, chosen, batch), bindings.own.optimizers(chosen)
    actor_key, critic_key = jax.random.split(noise)

    rows = partial(_cut, own.actor_rows, lived, state, chosen)
    how = epochs.UpdateSpec(partial(_actor_loss, own, state.actor), partial(_move, optimizers[0]), rows)
    keys, begun = jax.random.split(actor_key, bindings.epochs[0]), (state.actor, jnp.asarray(False))
    one = partial(epochs.guarded_epoch, how, chosen.kl_threshold)
    (actor, _), (made, of_actor) = jax.lax.scan(one, begun, keys)

    rows = partial(_cut, own.critic_rows, lived, state, chosen)
    how = epochs.UpdateSpec(partial(_critic_loss, own, state.critic), partial(_move, optimizers[1]), rows)
    keys = jax.random.split(critic_key, bindings.epochs[1])
    critic, of_critic = jax.lax.scan(partial(epochs.epoch, how), state.critic, keys)
    told = {"actor_loss": normalize.mean_of(made, of_actor["actor_loss"]), **jax.tree.map(jnp.mean, of_critic)}
    return TrainStates(actor, critic), told


def _cut(rows: Callable[..., tuple], *given: Any) -> tuple:
    *parts, common = rows(*given)
    count = parts[0].shape[0]
    return *parts, jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), common)


def _actor_loss(own: UserFunctions, training: TrainState, params: PyTree, rows: tuple) -> tuple[Array, Metrics]:
    loss, kl = own.actor_loss(training.replace(params=params), *rows)
    return loss, {"actor_loss": loss, "kl": kl}


def _critic_loss(own: UserFunctions, training: TrainState, params: PyTree, rows: tuple) -> tuple[Array, Metrics]:
    loss = own.critic_loss(training.replace(params=params), *rows)
    return loss, {"critic_loss": loss}


def _move(optimizer: optax.GradientTransformation, training: TrainState, gradient: PyTree) -> TrainState:
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer count
        updates, state = optimizer.update(gradient, training.opt_state, training.params)
        params = optax.apply_updates(training.params, updates)
    return training.replace(params=params, opt_state=state, step=training.step + 1)


def agent(bindings: AgentBindings) -> Agent:
    """Bind what `bind` gave; newborns are to be given optimisers by `equip`."""
    return Agent(
        init=partial(init, bindings),
        start=partial(start, bindings),
        explore=partial(_explore, bindings),
        act=partial(act, bindings),
        noise=draw_noise,
        update=partial(_update, bindings),
        space=Space((), {}),
        team="shared",
        minibatches=bindings.minibatches,
    )
