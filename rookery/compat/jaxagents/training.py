"""Training and evaluation of an agent that is defined by `Hooks`, as pure functions of a `Runner`.

A rollout is `on_policy.collect`, the epochs of an update are `minibatch.train_both`, and an evaluation is
`evaluation.evaluate`. Unlike `learners.train.train`, which trains for equal generations, a training makes exactly the
requested number of updates in stages, the last of which may be shorter, draws new start states for every update, and
evaluates from the same start states after every stage.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import optax

from rookery.agents.minibatch import UpdateSpec, train_both
from rookery.compat.jaxagents.environment import joint_observation, shared_features
from rookery.compat.jaxagents.hooks import Hooks
from rookery.compat.jaxagents.records import HyperParameters, Runner, TrainState, Transition
from rookery.compat.records import per_agent, typed_key
from rookery.envs.wrappers.auto_reset import start_bank
from rookery.learners import evaluation, rollout
from rookery.learners.base import EvaluationConfig
from rookery.learners.on_policy import collect as on_policy_collect
from rookery.learners.on_policy import start_actors
from rookery.types import Array, Genotype, Key, Metrics, Observation, PyTree
from rookery.types import Transition as Rows


def begin(
    agent: Hooks, rng: Key, hyperparams: HyperParameters, before: Runner | None = None
) -> tuple[Runner, dict[str, Array]]:
    """The first runner of a training and its metrics; the key, raw or typed, is consumed.

    With `before`, training continues from that runner under the new hyper-parameters.
    """
    hyperparams = jax.tree.map(lambda number: jnp.asarray(number, jnp.float32), hyperparams)
    none = jnp.zeros((1,))
    if before is not None:
        runner = before.replace(hyperparams=hyperparams, actor_loss=none, critic_loss=none)
        return runner, report(agent, runner)
    bank_key, init_key, rng = jax.random.split(typed_key(rng), 3)
    network_key, begin_key = jax.random.split(init_key)
    environment, count = agent._environment, agent.config.batch_size
    env_batch = rollout.begin(environment, start_bank(environment, bank_key, count), begin_key, count)
    obs = joint_observation(agent._observation.shape, env_batch.observation)
    states = agent._init_states(network_key, hyperparams)
    runner = Runner(*states, env_batch.state, obs, rng, hyperparams, none, none)
    return runner, report(agent, runner)


def report(agent: Hooks, runner: Runner) -> dict[str, Array]:
    """Metrics of a runner: its evaluation, `actor_loss` and `critic_loss` `[1]`; empty without evaluations."""
    rng, episodes = agent.config.eval_rng, agent.config.n_evals
    if not agent.eval_during_training or rng is None or episodes is None:
        return {}
    metrics = evaluate(agent, episodes, rng, runner.actor_training)
    return {**metrics, "actor_loss": runner.actor_loss, "critic_loss": runner.critic_loss}


def evaluate(agent: Hooks, episodes: int, rng: Key, training: TrainState) -> dict[str, Array]:
    """Evaluate the actors in full episodes; equal keys, raw or typed, give equal start states.

    Returns:
      `terminated` and `truncated`, `[N]` bool; `final_rewards` and `returns`, `[N, I]`.
    """
    config = EvaluationConfig(eval_episodes=episodes, start_states=episodes)
    evaluator = evaluation.evaluator(partial(_act, agent), agent._environment, config)
    bank_key, key = jax.random.split(typed_key(rng))
    bank = start_bank(agent._environment, bank_key, episodes)
    metrics = evaluation.evaluate(evaluator, Genotype(training, (), None), bank, key).episodes
    agents, columns = range(agent.n_actors), {"final_rewards": "final_reward", "returns": "return"}
    return {name: metrics[f"{name}/0"] > 0 for name in ("terminated", "truncated")} | {
        name: jnp.stack([metrics[f"{column}/{index}"] for index in agents], axis=-1) for name, column in columns.items()
    }


def _act(agent: Hooks, params: TrainState, observation: Observation) -> Array:
    """Deterministic actions `[I, A]` of all actors for their observations `[I, O]`."""
    action = agent.policy(params, joint_observation(agent._observation.shape, observation))
    agent._check_actions("policy", action)
    return action.reshape(agent.n_actors, -1)


def stage_counts(updates: int, every: int) -> list[int]:
    """Number of updates of each stage: `every`, and the remainder in the last; both arguments are at least 1."""
    return [min(every, updates - done) for done in range(0, updates, every)]


def train(
    agent: Hooks, counts: list[int], rng: Key, hyperparams: HyperParameters, before: Runner | None = None
) -> tuple[Runner, dict[str, Array]]:
    """Train as one pure function, which can be mapped over keys and hyper-parameters.

    Returns:
      The final runner, and all metrics, leaves `[len(counts) + 1, ...]`.
    """
    runner, first = begin(agent, rng, hyperparams, before)
    runner, rest = jax.lax.scan(partial(stage, agent), runner, jnp.asarray(counts))
    return runner, jax.tree.map(lambda row, rows: jnp.concatenate([row[None], rows]), first, rest)


def stage(agent: Hooks, runner: Runner, updates: Array | int) -> tuple[Runner, dict[str, Array]]:
    """Make `updates` updates, at least 1, and compute the metrics; the losses are means over the updates."""
    none, count = jnp.zeros((1,)), jnp.asarray(updates, jnp.float32)
    runner = runner.replace(actor_loss=none, critic_loss=none)
    runner = jax.lax.fori_loop(0, updates, partial(_add_update, agent), runner)
    runner = runner.replace(actor_loss=runner.actor_loss / count, critic_loss=runner.critic_loss / count)
    return runner, report(agent, runner)


def _add_update(agent: Hooks, _: Array, runner: Runner) -> Runner:
    """Make one update; its losses are added to those of the runner."""
    rng, bank_key, rollout_key, update_key = jax.random.split(runner.rng, 4)
    after, losses = update(agent, *collect(agent, runner.replace(rng=rng), bank_key, rollout_key), update_key)
    return after.replace(**{name: getattr(runner, name) + losses[name] for name in ("actor_loss", "critic_loss")})


def collect(agent: Hooks, runner: Runner, bank_key: Key, rollout_key: Key) -> tuple[Runner, Transition]:
    """Collect one rollout, with automatic resets to new start states; the keys are consumed."""
    environment = agent._environment
    bank = start_bank(environment, bank_key, agent.config.batch_size)
    features = jax.vmap(partial(shared_features, agent.n_actors))(runner.obs)
    actors = start_actors(rollout.EnvBatchState(runner.envstate, Observation(features)), environment.spec)
    keys = jax.random.split(rollout_key, agent.config.rollout_length)
    explore = partial(_explore, agent, runner.actor_training)
    actors, (rows, _) = on_policy_collect(explore, environment, bank, runner.hyperparams.gamma, actors, keys)
    obs = joint_observation(agent._observation.shape, actors.env_batch.observation)
    runner = runner.replace(envstate=actors.env_batch.state, obs=obs)
    return runner, transitions(agent, runner, rows)


def _explore(agent: Hooks, training: TrainState, observation: Observation, keys: Key) -> tuple[Array, Array]:
    """Sampled actions `[E, I, A]` for observations `[E, I, O]`, and their log densities `[E, I]`."""
    obs = joint_observation(agent._observation.shape, observation)
    action = jax.vmap(agent._sample_actions, in_axes=(0, None, 0))(keys, training, obs)
    log_prob = jax.vmap(agent._density, in_axes=(None, None, 0, 0))(training, training.params, obs, action)
    log_prob = per_agent("_log_prob", agent.n_actors, log_prob, 1)
    return action.reshape(*log_prob.shape, -1), log_prob


def over_rows(function: Callable[..., Array], *given: PyTree) -> Callable[..., Array]:
    """Map a function of one observation over the two leading axes `[..., ..., *]`; `given` are its first arguments."""
    return jax.vmap(jax.vmap(partial(function, *given)))


def values(training: TrainState, obs: Array, count: int) -> Array:
    """Critic values `[..., ..., I]` of observations `[..., ..., *]`."""
    return per_agent("critic_network", count, over_rows(training.apply_fn, training.params)(obs), 2)


def transitions(agent: Hooks, runner: Runner, rows: Rows) -> Transition:
    """Convert a rollout `[T, E, I, ...]` to the layout of the user-defined methods, with values and advantages."""
    rows, chosen = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), rows), runner.hyperparams
    obs, next_obs = (joint_observation(agent._observation.shape, o) for o in (rows.observation, rows.next_observation))
    terminated = rows.terminated[:, :, 0]
    traj = Transition(
        obs=obs,
        action=rows.action.reshape(*terminated.shape, *agent._action.shape),
        value=values(runner.critic_training, obs, agent.n_actors),
        log_prob=rows.extras.log_prob,
        reward=rows.reward,
        next_obs=next_obs,
        terminated=terminated,
        next_value=values(runner.critic_training, next_obs, agent.n_actors),
        truncated=rows.extras.ended[:, :, 0] & ~terminated,
    )
    return traj._replace(advantage=agent._advantages(traj, chosen.gamma, chosen.gae_lambda))


def update(agent: Hooks, runner: Runner, traj: Transition, key: Key) -> tuple[Runner, Metrics]:
    """Run all epochs on a rollout; the key is consumed, metrics are means over minibatches."""
    actor_key, critic_key = jax.random.split(key)
    states = runner.actor_training, runner.critic_training
    losses = partial(_actor_loss, agent, states[0]), partial(_critic_loss, agent, states[1])
    actor_optimizer, critic_optimizer = agent._optimizers(runner.hyperparams)
    minibatches = partial(_minibatches, runner, traj)
    specs = (
        UpdateSpec(losses[0], partial(_apply, actor_optimizer), partial(minibatches, agent._actor_loss_input)),
        UpdateSpec(losses[1], partial(_apply, critic_optimizer), partial(minibatches, agent._critic_loss_input)),
    )
    keys = (
        jax.random.split(actor_key, agent.config.actor_epochs),
        jax.random.split(critic_key, agent.config.critic_epochs),
    )
    (actor, critic), metrics = train_both(specs, runner.hyperparams.kl_threshold, states, keys)
    return runner.replace(actor_training=actor, critic_training=critic), metrics


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
