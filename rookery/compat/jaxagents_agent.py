"""An agent of this library, and its world, made of the methods and the environment of a user of jaxagents' IPPO.

The actors are a team that learns together: each is shown all that there is to see, and has a reward of its own.
"""

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rookery import hyperparams as spaces
from rookery import normalize
from rookery.agents import epochs
from rookery.agents.api import Agent
from rookery.agents.ppo import draw_noise
from rookery.compat.jaxagents_records import HyperParameters, Runner, TrainState, Transition, TruncationEnvState
from rookery.envs import api as envs
from rookery.records import check
from rookery.types import Array, Key, Metrics, PyTree
from rookery.types import Transition as Rows


class Parts(NamedTuple):
    """What is made into an agent."""

    hooks: Any  # an `IPPOBase`
    networks: tuple[Any, Any]  # of actors and critics
    obs: Any  # shape and type of an observation, and of what all actors do
    action: Any = None


class Hyper(NamedTuple):
    """The documented hyper-parameters as the library's learner reads them."""

    discount: Array
    documented: HyperParameters


class Minds(NamedTuple):
    """What is learned."""

    actor: TrainState
    critic: TrainState

    @property
    def params(self) -> PyTree:
        """The genome."""
        return self.actor.params, self.critic.params


def parts_of(hooks: Any) -> Parts:
    """What a user's object consists of.

    Raises:
      ValueError: its actions are not one for each actor.
    """
    key, config = jax.random.key(0), hooks.config
    obs = jax.eval_shape(lambda key: hooks.env.reset(key, hooks.env_params)[0], key)
    parts = Parts(hooks, (config.actor_network(config), config.critic_network(config)), obs)
    params: Any = jax.eval_shape(partial(init, parts), key)
    training = _training(parts.networks[0], params[0], ())
    action = jax.eval_shape(hooks._sample_actions, key, training, obs)
    _check_actions(hooks, "_sample_actions", action)
    return parts._replace(action=action)


def _check_actions(hooks: Any, name: str, action: Any) -> None:
    count, shape = hooks.n_actors, action.shape
    fits = shape[:1] == (count,) or (count == 1 and not shape)
    check(fits, f"{name} gives actions of shape {shape} for {count} actors; make it ({count}, ...).")


def by_actor(what: str, count: int, numbers: Array, leading: int = 0) -> Array:
    """Numbers `[..., I]` of a user's code, which gave them for each of so many leading axes.

    Raises:
      ValueError: it gave another number of them.
    """
    numbers = jnp.asarray(numbers)
    shape = numbers.shape[leading:]
    check(math.prod(shape) == count, f"{what} gives shape {shape} for {count} actors; make it ({count},).")
    return numbers.reshape(*numbers.shape[:leading], count)


def world(parts: Parts) -> envs.Environment:
    """The user's environment as a team's; an episode's end is everybody's."""
    size, count = parts.obs.size, parts.hooks.n_actors
    actions = (parts.action.size // count,) * count
    spec = envs.EnvSpec(
        name=type(parts.hooks.env._env).__name__,
        observation_size=size,
        action_size=actions[0],
        episode_length=parts.hooks.config.max_episode_steps,
        discrete=not jnp.issubdtype(parts.action.dtype, jnp.inexact),
        team=envs.Team(tuple(map(str, range(count))), (size,) * count, actions),
        unbounded=True,
    )
    return envs.Environment(jax.jit(partial(_reset, parts)), jax.jit(partial(_step, parts)), spec)


def shown(parts: Parts, obs: Array) -> Array:
    """An observation as everybody is shown it, `[I, O]`."""
    return jnp.broadcast_to(jnp.ravel(obs), (parts.hooks.n_actors, obs.size))


def _reset(parts: Parts, key: Key) -> tuple[TruncationEnvState, envs.Step]:
    obs, envstate = parts.hooks.env.reset(key, parts.hooks.env_params)
    return envstate, envs.first_step(shown(parts, obs), jnp.zeros((0,)))


def _step(parts: Parts, envstate: TruncationEnvState, action: Array, key: Key) -> tuple[TruncationEnvState, envs.Step]:
    hooks, actions = parts.hooks, action.reshape(parts.action.shape)
    obs, envstate, reward, _, info = hooks.env.step_env(key, envstate, actions, hooks.env_params)
    reward = by_actor("the reward of step_env", hooks.n_actors, reward)
    terminated, truncated = (jnp.broadcast_to(info[name], reward.shape) for name in ("terminated", "truncated"))
    step = envs.next_step(shown(parts, obs), reward, terminated, jnp.zeros((0,)))
    return envstate, step._replace(truncated=truncated)


def act(parts: Parts, params: TrainState, observation: Array) -> Array:
    """What everybody does when judged, `[I, A]`; of an agent's parameters it takes the actors' whole training."""
    action = parts.hooks.policy(params, observation[0].reshape(parts.obs.shape))
    _check_actions(parts.hooks, "policy", action)
    return action.reshape(parts.hooks.n_actors, -1)


def _explore(parts: Parts, state: Minds, hyper: Hyper, observation: Array, key: Key) -> tuple[Array, Array]:
    del hyper
    obs = observation[0].reshape(parts.obs.shape)
    action = parts.hooks._sample_actions(key, state.actor, obs)
    log_prob = density(parts.hooks)(state.actor, state.actor.params, obs, action)
    count = parts.hooks.n_actors
    return action.reshape(count, -1), by_actor("_log_prob", count, log_prob)


def density(hooks: Any) -> Callable[..., Array]:
    """`_log_prob` without a `jit` of its own: published subclasses call actions static, which traced ones are not."""
    return partial(inspect.unwrap(type(hooks)._log_prob), hooks)


def values(training: TrainState, obs: Array, count: int) -> Array:
    """Of observations `[..., ..., *]`, `[..., ..., I]`."""
    value = jax.vmap(jax.vmap(training.apply_fn, (None, 0)), (None, 0))(training.params, obs)
    return by_actor("critic_network", count, value, 2)


def init(parts: Parts, key: Key) -> tuple[PyTree, PyTree]:
    """Draw the parameters of actors and critics."""
    actor_key, critic_key = jax.random.split(key)
    (actor, critic), blank = parts.networks, jnp.zeros((1, parts.obs.size))
    return actor.init(actor_key, blank), critic.init(critic_key, blank)


def minds(parts: Parts, params: tuple[PyTree, PyTree], hyperparams: HyperParameters) -> Minds:
    """Fresh optimisers. They need hyper-parameters, which the library's `start` is not given."""
    chosen = hyperparams.actor_optimizer_params, hyperparams.critic_optimizer_params
    states = [_optimizer(parts, of).init(theirs) for of, theirs in zip(chosen, params, strict=True)]
    return Minds(*map(_training, parts.networks, params, states))


def _training(network: Any, params: PyTree, state: PyTree) -> TrainState:
    return TrainState(params=params, opt_state=state, step=jnp.zeros((), jnp.int32), apply_fn=network.apply)


def _optimizer(parts: Parts, params: Any) -> optax.GradientTransformation:
    given, factory = params._asdict(), parts.hooks.config.optimizer
    grad_clip, takes = given.pop("grad_clip"), inspect.signature(factory).parameters
    taken = {name: value for name, value in given.items() if name in takes}
    check(bool(taken), f"the optimizer takes none of {', '.join(given)}, only {', '.join(takes)}; give another.")
    return optax.chain(optax.clip_by_global_norm(grad_clip), factory(**taken))


def _move(optimizer: optax.GradientTransformation, training: TrainState, gradient: PyTree) -> TrainState:
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer count
        updates, state = optimizer.update(gradient, training.opt_state, training.params)
        params = optax.apply_updates(training.params, updates)
    return training.replace(params=params, opt_state=state, step=training.step + 1)


def _update(parts: Parts, state: Minds, hyper: Hyper, batch: Rows, noise: Key, step: Array) -> tuple[Minds, Metrics]:
    """All epochs of one rollout; see `agents.api.UpdateFn`."""
    del step
    hooks, chosen, traj = parts.hooks, hyper.documented, _trajectories(parts, state, hyper, batch)
    runner = Runner(
        actor_training=state.actor,
        critic_training=state.critic,
        envstate=None,
        obs=None,
        rng=noise,
        hyperparams=chosen,
        actor_loss=jnp.zeros((1,)),
        critic_loss=jnp.zeros((1,)),
    )
    actor_key, critic_key = jax.random.split(noise)

    move = partial(_move, _optimizer(parts, chosen.actor_optimizer_params))
    cut = partial(_cut, hooks._actor_loss_input, runner, traj)
    one = partial(epochs.guarded_epoch, epochs.Improvement(partial(_actor_loss, hooks, state.actor), move, cut))
    keys = jax.random.split(actor_key, hooks.config.actor_epochs)
    begun = state.actor, jnp.asarray(False)
    (actor, _), (made, of_actor) = jax.lax.scan(partial(one, chosen.kl_threshold), begun, keys)

    move = partial(_move, _optimizer(parts, chosen.critic_optimizer_params))
    cut = partial(_cut, hooks._critic_loss_input, runner, traj)
    one = partial(epochs.epoch, epochs.Improvement(partial(_critic_loss, hooks, state.critic), move, cut))
    keys = jax.random.split(critic_key, hooks.config.critic_epochs)
    critic, of_critic = jax.lax.scan(one, state.critic, keys)
    told = {"actor_loss": normalize.mean_of(made, of_actor["actor_loss"]), **jax.tree.map(jnp.mean, of_critic)}
    return Minds(actor, critic), told


def _trajectories(parts: Parts, state: Minds, hyper: Hyper, batch: Rows) -> Transition:
    """Rollouts as the hooks know them, `[E, T, ...]`, with their advantages."""
    batch = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), batch)
    lead, count, lived = batch.reward.shape[:2], parts.hooks.n_actors, batch.extras
    obs, next_obs = (o[:, :, 0].reshape(*lead, *parts.obs.shape) for o in (batch.observation, batch.next_observation))
    terminated = batch.terminated[:, :, 0]
    traj = Transition(
        obs=obs,
        action=batch.action.reshape(*lead, *parts.action.shape),
        value=values(state.critic, obs, count),
        log_prob=lived.log_prob,
        reward=batch.reward,
        next_obs=next_obs,
        terminated=terminated,
        next_value=values(state.critic, next_obs, count),
        truncated=lived.ended[:, :, 0] & ~terminated,
    )
    chosen = hyper.documented
    return traj._replace(advantage=parts.hooks._advantages(traj, chosen.gamma, chosen.gae_lambda))


def _cut(hook: Callable[..., tuple], runner: Runner, traj: Transition, key: Key) -> tuple:
    """An epoch's minibatches, each with the hyper-parameters."""
    *rows, hyperparams = hook(runner.replace(rng=key), traj)
    count = rows[0].shape[0]
    return *rows, jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), hyperparams)


def _actor_loss(hooks: Any, training: TrainState, params: PyTree, rows: tuple) -> tuple[Array, Metrics]:
    loss, kl = hooks._actor_loss(training.replace(params=params), *rows)
    return loss, {"actor_loss": loss, "kl": kl}


def _critic_loss(hooks: Any, training: TrainState, params: PyTree, rows: tuple) -> tuple[Array, Metrics]:
    loss = hooks._critic_loss(training.replace(params=params), *rows)
    return loss, {"critic_loss": loss}


def agent(parts: Parts) -> Agent:
    """The user's actors as an agent; its `start` leaves parameters as they are, see `minds`."""
    config = parts.hooks.config
    return Agent(
        init=partial(init, parts),
        start=lambda params: params,
        explore=partial(_explore, parts),
        act=partial(act, parts),
        noise=draw_noise,
        update=partial(_update, parts),
        space=spaces.Space((), {}),
        team="shared",
        minibatches=config.batch_size // config.minibatch_size,
    )
