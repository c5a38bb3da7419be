"""Proximal policy optimisation with the clipped objective.

Sources: Schulman 2017, "Proximal Policy Optimization Algorithms" (arXiv:1707.06347); for the advantages Schulman 2016
(arXiv:1506.02438); for the scale of rewards Engstrom 2020 (arXiv:2005.12729) and Andrychowicz 2021 (arXiv:2006.05990).
Actor and critic are two networks with optimisers, rates, gradient clips and epochs of their own. Settings
and defaults stand in `ppo_settings`.
"""

import math
from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rookery import distributions, gradients, networks, normalize, returns
from rookery.agents.actor_critic import ActorCritic, Policy, distribution, log_prob_and_entropy, see, unroll
from rookery.agents.base import Agent
from rookery.agents.minibatch import UpdateSpec, clipped_adam, cut_rows, epoch, guarded_epoch, shuffle
from rookery.agents.ppo_settings import PpoConfig, PpoHyper, settled, usual
from rookery.envs.base import ActionWithCarry, EnvSpec
from rookery.types import Array, Key, Metrics, PyTree, Scalar, Transition

REWARD_LIMIT = 10.0  # of normalised rewards


class PpoParams(NamedTuple):
    """The genome."""

    policy: Policy
    critic: PyTree


class PpoState(NamedTuple):
    """What one member has learned."""

    policy: gradients.Learned
    critic: gradients.Learned
    discounted: normalize.RunningStatistics  # of discounted returns, [1]

    @property
    def params(self) -> PpoParams:
        """The genome."""
        return PpoParams(self.policy.params, self.critic.params)


class Rows(NamedTuple):
    """What an epoch learns from: sequences in time, `[L, B, ...]`; of networks without a memory L is 1."""

    observation: Array
    action: Array
    log_prob: Array  # when the action was drawn
    advantage: Array
    value: Array  # before the update
    target: Array  # of the value
    counts: Array  # bool
    begins: Array  # bool: the first step of an episode


def clipped_objective(log_ratio: Array, advantage: Array, clip_epsilon: Scalar) -> Array:
    """The clipped surrogate objective of each row, `[...]` (Schulman 2017, Eq. 7)."""
    ratio = jnp.exp(log_ratio)
    bound = jnp.clip(ratio, 1.0 - clip_epsilon, 1.0 + clip_epsilon)
    return jnp.minimum(ratio * advantage, bound * advantage)


def divergence(log_ratio: Array) -> Array:
    """Of each row, `[...]`: an estimate of the divergence from who acted, in nats, that is never negative (Schulman
    2020, "Approximating KL Divergence", k3)."""
    return jnp.expm1(log_ratio) - log_ratio


def policy_loss(policy: Policy, nets: ActorCritic, hyper: PpoHyper, rows: Rows) -> tuple[Array, Metrics]:
    """The clipped surrogate objective with an entropy bonus, negated (Schulman 2017, Eq. 7 and 9).

    Advantages are normalised over the rows of the minibatch that count.

    Args:
      rows: `[L, B, ...]`.

    Returns:
      Scalar `[]`, and metrics `[]`: actor_loss; entropy, in nats; kl from the policy that acted, in nats; clipped, a
      share of the rows.
    Deviation: none.
    """
    seen = see(nets, rows.observation)
    outputs = unroll(nets.policy, policy.network, seen.policy_memory[0], seen.sensed, rows.begins)
    parameters = distribution(nets, policy, outputs, seen.exists)
    log_prob, entropy = log_prob_and_entropy(nets, parameters, rows.action, seen.exists)
    log_ratio = jnp.where(rows.counts, log_prob - rows.log_prob, 0.0)
    mean = partial(normalize.mean_of, rows.counts)
    centred = rows.advantage - mean(rows.advantage)
    advantage = centred / (jnp.sqrt(mean(centred**2)) + 1e-8)
    surrogate = mean(clipped_objective(log_ratio, advantage, hyper.clip_epsilon))
    loss = -surrogate - hyper.entropy_coefficient * mean(entropy)
    clipped = mean((jnp.abs(jnp.exp(log_ratio) - 1.0) > hyper.clip_epsilon).astype(jnp.float32))
    kl = mean(divergence(log_ratio))
    return loss, {"actor_loss": loss, "entropy": mean(entropy), "kl": kl, "clipped": clipped}


def critic_loss(
    critic: PyTree, nets: ActorCritic, config: PpoConfig, hyper: PpoHyper, rows: Rows
) -> tuple[Array, Metrics]:
    """Squared error of the values (Schulman 2017, Eq. 9), half of it, times `value_coefficient`.

    Args:
      rows: `[L, B, ...]`.

    Returns:
      Scalar `[]` in squared units of (normalised) reward, and metrics `[]`: critic_loss, without the coefficient, and
      value.
    Deviation: with `clip_value` the larger of two errors, the other of a value that moves by `clip_epsilon` at most,
    as the authors' code has it.
    """
    seen = see(nets, rows.observation)
    value = unroll(nets.critic, critic, seen.critic_memory[0], seen.sensed, rows.begins)[..., 0]
    error = (value - rows.target) ** 2
    if config.clip_value:
        near = rows.value + jnp.clip(value - rows.value, -hyper.clip_epsilon, hyper.clip_epsilon)
        error = jnp.maximum(error, (near - rows.target) ** 2)
    loss = 0.5 * normalize.mean_of(rows.counts, error)
    return hyper.value_coefficient * loss, {"critic_loss": loss, "value": normalize.mean_of(rows.counts, value)}


def init(nets: ActorCritic, config: PpoConfig, key: Key) -> PpoParams:
    """Draw the networks."""
    policy_key, critic_key = jax.random.split(key)
    log_std = math.log(config.initial_std)
    spread = () if nets.spec.discrete else jnp.full((nets.spec.action_size,), log_std, jnp.float32)
    return PpoParams(Policy(nets.policy.init(policy_key), spread), nets.critic.init(critic_key))


def start(params: PpoParams) -> PpoState:
    """Fresh optimisers, and no rewards seen."""
    return PpoState(gradients.start(params.policy), gradients.start(params.critic), normalize.init(1))


def explore(nets: ActorCritic, state: PpoState, hyper: PpoHyper, observation: Array, key: Key) -> tuple[PyTree, Array]:
    """An action drawn from the policy, `[A]` without bounds or `[]` int32, and its log density `[]`."""
    del hyper
    seen, policy = see(nets, observation), state.policy.params
    memory, outputs = nets.policy.apply(policy.network, seen.policy_memory, seen.sensed)
    parameters = distribution(nets, policy, outputs, seen.exists)
    if nets.spec.discrete:
        action = jax.random.categorical(key, parameters).astype(jnp.int32)
    else:
        mean, log_std = distributions.normal_parameters(parameters)
        action = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
    log_prob = log_prob_and_entropy(nets, parameters, action, seen.exists)[0]
    if not nets.critic.memory_size:
        return action, log_prob
    critic_memory = nets.critic.apply(state.critic.params, seen.critic_memory, seen.sensed)[0]
    return ActionWithCarry(action, jnp.concatenate([memory, critic_memory])), log_prob


def act(nets: ActorCritic, params: PpoParams, observation: Array) -> PyTree:
    """The most probable action: `[A]` within its bounds, or `[]` int32; NaN or -1 where the outputs are not finite."""
    seen = see(nets, observation)
    memory, outputs = nets.policy.apply(params.policy.network, seen.policy_memory, seen.sensed)
    if nets.spec.discrete:
        logits = distribution(nets, params.policy, outputs, seen.exists)
        action = jnp.where(jnp.isfinite(outputs).all(), jnp.argmax(logits), -1).astype(jnp.int32)
    else:
        bounded = outputs if nets.spec.unbounded else jnp.clip(outputs, -1.0, 1.0)
        action = jnp.where(jnp.isfinite(outputs), bounded, jnp.nan)
    if not nets.policy.memory_size:
        return action
    return ActionWithCarry(action, jnp.concatenate([memory, seen.critic_memory]))


def draw_noise(key: Key, batch_size: int) -> Key:
    """The key itself: every epoch draws its own permutation."""
    del batch_size
    return key


def update(
    nets: ActorCritic, config: PpoConfig, state: PpoState, hyper: PpoHyper, batch: Transition, noise: Key, step: Array
) -> tuple[PpoState, Metrics]:
    """All epochs of one rollout (Schulman 2017, Algorithm 1).

    Args:
      batch: `Transition` of `[T, E, ...]` with extras `RolloutExtras`; bootstraps where not `terminated`, from the true
        successor, also at a truncation and at the rollout's end.
      noise: a key; consumed.
      step: `[]`, updates before this one, for the annealing of the rates.

    Returns:
      The new state, and metrics `[]`: those of the losses, averaged over the minibatches (the policy's over the epochs
      that it made), and actor_epochs, how many it made before its divergence was above `kl_threshold`.
    Deviation: the divergence stop. Algorithm 1 makes all epochs; here the epoch in which the mean divergence from the
    policy that acted is above `kl_threshold` is the policy's last (as OpenAI's Spinning Up stops by its `target_kl`,
    but there by the gradient step). The critic makes all of its epochs.
    """
    chex.assert_rank([batch.reward, batch.observation], [2, 3])
    state, rows = learned_from(nets, config, state, hyper, batch)
    count = rows.counts.shape[1]
    passes = settled(config, nets.spec)
    keys = jax.random.split(noise, max(passes.actor_epochs, passes.critic_epochs))
    shuffled = jax.vmap(partial(shuffle, count))(keys).reshape(-1, passes.minibatches, count // passes.minibatches)
    left = jnp.maximum(0.0, 1.0 - step / config.anneal_updates) if config.anneal_updates else 1.0

    loss = partial(policy_loss, nets=nets, hyper=hyper)
    how = UpdateSpec(loss, partial(clipped_adam, hyper.actor_lr * left, hyper.max_grad_norm), partial(cut_rows, rows))
    begun, policy_epoch = (state.policy, jnp.asarray(False)), partial(guarded_epoch, how, hyper.kl_threshold)
    (policy, _), (made, of_policy) = jax.lax.scan(policy_epoch, begun, shuffled[: passes.actor_epochs])

    loss = partial(critic_loss, nets=nets, config=config, hyper=hyper)
    how = how._replace(loss=loss, move=partial(clipped_adam, hyper.critic_lr * left, hyper.max_grad_norm))
    critic, of_critic = jax.lax.scan(partial(epoch, how), state.critic, shuffled[: passes.critic_epochs])
    metrics = {**jax.tree.map(partial(normalize.mean_of, made), of_policy), **jax.tree.map(jnp.mean, of_critic)}
    return state._replace(policy=policy, critic=critic), {**metrics, "actor_epochs": jnp.sum(made.astype(jnp.float32))}


def learned_from(
    nets: ActorCritic, config: PpoConfig, state: PpoState, hyper: PpoHyper, batch: Transition
) -> tuple[PpoState, Rows]:
    """A rollout `[T, E, ...]` with its advantages and targets, cut into sequences; and what was seen of its rewards."""
    lived, reward = batch.extras, batch.reward
    if config.normalize_rewards:
        seen = normalize.update(state.discounted, lived.accumulated.reshape(-1, 1), lived.counts.reshape(-1))
        deviation = jnp.sqrt(seen.squares[0] / jnp.maximum(seen.count, 1.0) + 1e-8)
        reward = jnp.clip(reward / deviation, -REWARD_LIMIT, REWARD_LIMIT)
        state = state._replace(discounted=seen)
    value, next_value = (_value(nets, state.critic.params, o) for o in (batch.observation, batch.next_observation))
    weights = hyper.discount, hyper.gae_lambda
    advantage = returns.gae(reward, batch.terminated, lived.ended, value, next_value, *weights)
    begins = jnp.concatenate([jnp.zeros_like(lived.ended[:1]), lived.ended[:-1]])
    action = batch.action.action if isinstance(batch.action, ActionWithCarry) else batch.action
    rows = Rows(batch.observation, action, lived.log_prob, advantage, value, advantage + value, lived.counts, begins)
    if not nets.policy.memory_size:
        rows = jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), rows)
    return state, rows


def _value(nets: ActorCritic, critic: PyTree, observation: Array) -> Array:
    """`[...]`, with the memory that the observation ends in."""
    seen = see(nets, observation)
    return nets.critic.apply(critic, seen.critic_memory, seen.sensed)[1][..., 0]


def ppo(spec: EnvSpec, config: PpoConfig | None = None) -> Agent:
    """PPO for an environment with continuous or discrete actions.

    Of a team's world, the agent that one of them is; `multi.independent` or `multi.shared` makes the team of it.

    Args:
      spec: sizes of the observation and the action.
      config: widths, epochs and minibatches.

    Raises:
      ValueError: the world has skills or a memory, which PPO cannot read.
    """
    config = config or PpoConfig()
    if spec.skill is not None or spec.memory_size:
        raise ValueError(f"PPO brings its own memory and knows no skills, but {spec.name} has one of them already.")
    memory_size = config.memory_size if config.recurrent else 0
    build = partial(networks.core, spec.sensed_size, config.hidden_sizes, memory_size=memory_size)
    nets = ActorCritic(
        policy=build(output_size=spec.action_size, output_gain=0.01),
        critic=build(output_size=1, output_gain=1.0),
        spec=spec,
    )
    return Agent(
        init=partial(init, nets, config),
        start=start,
        explore=partial(explore, nets),
        act=partial(act, nets),
        noise=draw_noise,
        update=partial(update, nets, config),
        space=usual(spec).space,
        memory_size=2 * memory_size,
        minibatches=settled(config, spec).minibatches,
        normalize=usual(spec).normalize_observations,
    )
