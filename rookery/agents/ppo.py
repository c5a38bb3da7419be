"""Proximal policy optimisation (PPO) with the clipped objective.

Sources: Schulman 2017, "Proximal Policy Optimization Algorithms" (arXiv:1707.06347); for the advantages Schulman 2016
(arXiv:1506.02438); for the scale of rewards Engstrom 2020 (arXiv:2005.12729) and Andrychowicz 2021 (arXiv:2006.05990).
Actor and critic are two networks with separate optimisers, learning rates, gradient clipping and epochs. Settings and
defaults are in `ppo_settings`.
"""

import math
from functools import partial
from typing import Any, NamedTuple, Self

import chex
import jax
import jax.numpy as jnp

from rookery import distributions, gradients, networks, normalize, returns
from rookery.agents import backend, discrete
from rookery.agents.actor_critic import (
    ActorCritic,
    Memory,
    Policy,
    distribution,
    log_prob_and_entropy,
    memory_of,
    unroll,
)
from rookery.agents.base import OnPolicyAgent, check_spec
from rookery.agents.encoders import EncoderName, apart, reader
from rookery.agents.minibatch import UpdateSpec, annealed, clipped_adam, cut_rows, shuffle, train_both
from rookery.agents.ppo_settings import PpoConfig, PpoHyper, environment_defaults, optional_space, resolve_defaults
from rookery.envs.base import ActionWithCarry, EnvSpec
from rookery.features import has_image
from rookery.settings import config_from
from rookery.types import Array, Key, Metrics, Observation, PyTree, Scalar, Transition, named

REWARD_LIMIT = 10.0  # normalised rewards are clipped to +-REWARD_LIMIT


class PpoParams(NamedTuple):
    """The parameters that can be copied into other members."""

    policy: Policy
    critic: PyTree

    def with_hyper(self, hyper: object) -> Self:
        """The parameters with the activation that a member's hyper-parameters choose."""
        return networks.activated(self, hyper)


class PpoState(NamedTuple):
    """The learned state of one member."""

    policy: gradients.Learned
    critic: gradients.Learned
    discounted: normalize.RunningStatistics
    """Statistics of discounted returns, of size `[1]`."""

    @property
    def params(self) -> PpoParams:
        """The parameters that can be copied into other members."""
        return PpoParams(self.policy.params, self.critic.params)


class Rows(NamedTuple):
    """The data of one epoch: sequences in time, `[L, B, ...]`; L is 1 for networks without a memory."""

    observation: Observation
    action: Array
    log_prob: Array
    """Log density of the action when it was drawn, in nats."""
    advantage: Array
    value: Array
    """Value before the update."""
    target: Array
    """Target of the value."""
    counts: Array
    """bool: whether the row is used."""
    begins: Array
    """bool: the first step of an episode."""


def clipped_objective(log_ratio: Array, advantage: Array, clip_epsilon: Scalar) -> Array:
    """The clipped surrogate objective of each row, `[...]` (Schulman 2017, Eq. 7)."""
    ratio = jnp.exp(log_ratio)
    bound = jnp.clip(ratio, 1.0 - clip_epsilon, 1.0 + clip_epsilon)
    return jnp.minimum(ratio * advantage, bound * advantage)


def divergence(log_ratio: Array) -> Array:
    """Non-negative estimate of each row's KL divergence from the acting policy, `[...]`, in nats (Schulman 2020,
    "Approximating KL Divergence", k3)."""
    return jnp.expm1(log_ratio) - log_ratio


def surrogate(
    log_prob: Array,
    drawn_log_prob: Array,
    advantage: Array,
    counts: Array,
    clip_epsilon: Scalar,
    plain: Array | None = None,
) -> tuple[Array, Metrics]:
    """The clipped surrogate objective, with advantages normalised over the rows where `counts` is True.

    Args:
      log_prob: `[...]`, log densities of the actions under the policy being learned, in nats.
      drawn_log_prob: `[...]`, those under the acting policy.
      advantage: `[...]`.
      counts: `[...]` bool, the rows to average over.
      clip_epsilon: `[]`.
      plain: `[]` bool, whether advantages are not normalised.

    Returns:
      Scalar `[]`, and metrics `[]`: kl from the acting policy, in nats; clipped, the share of rows whose probability
      ratio is clipped.
    """
    log_ratio = jnp.where(counts, log_prob - drawn_log_prob, 0.0)
    mean = partial(normalize.mean_of, counts)
    centred = advantage - mean(advantage)
    normalised = centred / (jnp.sqrt(mean(centred**2)) + 1e-8)
    advantage = normalised if plain is None else jnp.where(plain, advantage, normalised)
    objective = mean(clipped_objective(log_ratio, advantage, clip_epsilon))
    clipped = mean((jnp.abs(jnp.exp(log_ratio) - 1.0) > clip_epsilon).astype(jnp.float32))
    return objective, {"kl": mean(divergence(log_ratio)), "clipped": clipped}


def policy_loss(policy: Policy, nets: ActorCritic, hyper: PpoHyper, rows: Rows) -> tuple[Array, Metrics]:
    """The clipped surrogate objective with an entropy bonus, negated (Schulman 2017, Eq. 7 and 9).

    Args:
      policy: parameters of the policy being learned.
      nets: the networks.
      hyper: the member's hyper-parameters.
      rows: `[L, B, ...]`.

    Returns:
      Scalar `[]`, and metrics `[]`: actor_loss; entropy, in nats; kl from the acting policy, in nats; clipped, the
      share of rows whose probability ratio is clipped.
    Deviation: none.
    """
    observation, mask = rows.observation, rows.observation.action_mask
    memory, network = memory_of(observation).policy[0], networks.activated(policy.network, hyper)
    outputs = unroll(nets.policy, network, memory, observation, rows.begins)
    parameters = distribution(nets, policy, outputs, mask)
    log_prob, entropy = log_prob_and_entropy(nets, parameters, rows.action, mask)
    advantages = getattr(hyper, "advantages", None)
    plain = None if advantages is None else advantages > 0
    objective, metrics = surrogate(log_prob, rows.log_prob, rows.advantage, rows.counts, hyper.clip_epsilon, plain)
    mean_entropy = normalize.mean_of(rows.counts, entropy)
    loss = -objective - hyper.entropy_coefficient * mean_entropy
    return loss, {"actor_loss": loss, "entropy": mean_entropy, **metrics}


def critic_loss(
    critic: PyTree, nets: ActorCritic, config: PpoConfig, hyper: PpoHyper, rows: Rows
) -> tuple[Array, Metrics]:
    """Half the squared error of the values (Schulman 2017, Eq. 9), times `value_coefficient`.

    Args:
      critic: parameters of the critic being learned.
      nets: the networks.
      config: whether to clip values, if `hyper` has no `value_clipping`.
      hyper: the member's hyper-parameters.
      rows: `[L, B, ...]`.

    Returns:
      Scalar `[]` in squared units of (normalised) reward, and metrics `[]`: critic_loss, without the coefficient, and
      value.
    Deviation: with `clip_value`, the larger of this error and the error of a value that moves by at most
    `clip_epsilon`, as in the authors' code.
    """
    memory = memory_of(rows.observation).critic[0]
    value = unroll(nets.critic, networks.activated(critic, hyper), memory, rows.observation, rows.begins)[..., 0]
    error = (value - rows.target) ** 2
    chosen = getattr(hyper, "value_clipping", None)
    if config.clip_value or chosen is not None:
        clipped = rows.value + jnp.clip(value - rows.value, -hyper.clip_epsilon, hyper.clip_epsilon)
        larger = jnp.maximum(error, (clipped - rows.target) ** 2)
        error = larger if chosen is None else jnp.where(chosen > 0, larger, error)
    loss = 0.5 * normalize.mean_of(rows.counts, error)
    return hyper.value_coefficient * loss, {"critic_loss": loss, "value": normalize.mean_of(rows.counts, value)}


def init(nets: ActorCritic, config: PpoConfig, key: Key) -> PpoParams:
    """Initialise the networks and, for continuous actions, the log standard deviation."""
    policy_key, critic_key = jax.random.split(key)
    log_std = math.log(config.initial_std)
    log_stds = () if nets.spec.discrete else jnp.full((nets.spec.action_size,), log_std, jnp.float32)
    return PpoParams(Policy(nets.policy.init(policy_key), log_stds), nets.critic.init(critic_key))


def start(params: PpoParams) -> PpoState:
    """Return a state with new optimisers and empty return statistics."""
    return PpoState(gradients.start(params.policy), gradients.start(params.critic), normalize.init(1))


def explore(
    nets: ActorCritic, state: PpoState, hyper: PpoHyper, observation: Observation, key: Key
) -> tuple[PyTree, Array]:
    """Draw an action from the policy, `[A]` unbounded or `[]` or `[K]` int32; returns it with its log density `[]`."""
    before, mask, policy = memory_of(observation), observation.action_mask, state.policy.params
    memory, outputs = nets.policy.apply(networks.activated(policy.network, hyper), before.policy, observation)
    parameters = distribution(nets, policy, outputs, mask)
    if nets.spec.discrete:
        action = jax.random.categorical(key, parameters).astype(jnp.int32)
    else:
        mean, log_std = distributions.normal_parameters(parameters)
        action = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
    log_prob = log_prob_and_entropy(nets, parameters, action, mask)[0]
    if not nets.critic.memory_size:
        return action, log_prob
    critic_memory = nets.critic.apply(state.critic.params, before.critic, observation)[0]
    return ActionWithCarry(action, Memory(memory, critic_memory)), log_prob


def act(nets: ActorCritic, params: PpoParams, observation: Observation) -> PyTree:
    """Return the most probable action: `[A]` within its bounds, or `[]` or `[K]` int32; NaN or -1 if the outputs are
    not finite."""
    before = memory_of(observation)
    memory, outputs = nets.policy.apply(params.policy.network, before.policy, observation)
    if nets.spec.discrete:
        action = discrete.greedy(outputs, observation.action_mask, nets.spec.categories)
    else:
        bounded = outputs if nets.spec.unbounded else jnp.clip(outputs, -1.0, 1.0)
        action = jnp.where(jnp.isfinite(outputs), bounded, jnp.nan)
    if not nets.policy.memory_size:
        return action
    return ActionWithCarry(action, Memory(memory, before.critic))


def update(
    nets: ActorCritic, config: PpoConfig, state: PpoState, hyper: PpoHyper, batch: Transition, key: Key, step: Array
) -> tuple[PpoState, Metrics]:
    """Train for all epochs on one rollout (Schulman 2017, Algorithm 1).

    Args:
      nets: the networks.
      config: static settings.
      state: the state before the update.
      hyper: the member's hyper-parameters.
      batch: `Transition` of `[T, E, ...]` with extras `RolloutExtras`; bootstraps from the true successor wherever
        `terminated` is False, also at a truncation and at the end of the rollout.
      key: consumed; each epoch shuffles the rows with a separate key.
      step: `[]`, updates before this one, for annealing the learning rates.

    Returns:
      The new state, and the metrics of `minibatch.train_both`.
    Deviation: KL early stopping. Algorithm 1 runs all epochs; here the epoch in which the mean KL divergence from the
    acting policy exceeds `kl_threshold` is the policy's last (OpenAI's Spinning Up stops by its `target_kl`, but after
    a gradient step instead of an epoch). The critic always runs all epochs.
    """
    chex.assert_rank(batch.reward, 2)
    state, rows = prepare_rows(nets, config, state, hyper, batch)
    count = rows.counts.shape[1]
    # Shuffle: one permutation for each epoch, cut into minibatches.
    passes = resolve_defaults(config, nets.spec)
    keys = jax.random.split(key, max(passes.actor_epochs, passes.critic_epochs))
    shuffled = jax.vmap(partial(shuffle, count))(keys).reshape(-1, passes.minibatches, count // passes.minibatches)
    rate_factor = annealed(step, config.anneal_updates)

    # Learn: policy and critic side by side, since the critic goes on where the policy stops.
    cut, limit = partial(cut_rows, rows), hyper.max_grad_norm
    loss = partial(policy_loss, nets=nets, hyper=hyper)
    policy_spec = UpdateSpec(loss, partial(clipped_adam, hyper.actor_lr * rate_factor, limit, hyper), cut)
    loss = partial(critic_loss, nets=nets, config=config, hyper=hyper)
    critic_spec = UpdateSpec(loss, partial(clipped_adam, hyper.critic_lr * rate_factor, limit, hyper), cut)
    indices = shuffled[: passes.actor_epochs], shuffled[: passes.critic_epochs]
    states, specs = (state.policy, state.critic), (policy_spec, critic_spec)
    epochs = getattr(hyper, "epochs", None)
    epochs = None if epochs is None else epochs.astype(jnp.int32)
    (policy, critic), metrics = train_both(specs, hyper.kl_threshold, states, indices, epochs)
    return state._replace(policy=policy, critic=critic), metrics


def prepare_rows(
    nets: ActorCritic, config: PpoConfig, state: PpoState, hyper: PpoHyper, batch: Transition
) -> tuple[PpoState, Rows]:
    """Compute a rollout's advantages and targets and cut it into sequences; also updates the return statistics."""
    extras, reward = batch.extras, batch.reward
    if config.normalize_rewards:
        known = extras.counts & ~extras.broken
        statistics = normalize.update(state.discounted, extras.accumulated.reshape(-1, 1), known.reshape(-1))
        deviation = jnp.sqrt(statistics.squares[0] / jnp.maximum(statistics.count, 1.0) + 1e-8)
        reward = jnp.clip(reward / deviation, -REWARD_LIMIT, REWARD_LIMIT)
        state = state._replace(discounted=statistics)
    critic = networks.activated(state.critic.params, hyper)
    value, next_value = (_value(nets, critic, o) for o in (batch.observation, batch.next_observation))
    weights = hyper.discount, hyper.gae_lambda
    advantage = returns.gae(reward, batch.terminated, extras.ended, value, next_value, *weights)
    begins = jnp.concatenate([jnp.zeros_like(extras.ended[:1]), extras.ended[:-1]])
    action = batch.action.action if isinstance(batch.action, ActionWithCarry) else batch.action
    rows = Rows(batch.observation, action, extras.log_prob, advantage, value, advantage + value, extras.counts, begins)
    if not nets.policy.memory_size:
        rows = jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), rows)
    return state, rows


def _value(nets: ActorCritic, critic: PyTree, observation: Observation) -> Array:
    """Values `[...]` of observations."""
    return nets.critic.apply(critic, memory_of(observation).critic, observation)[1][..., 0]


def ppo(
    spec: EnvSpec,
    config: PpoConfig | None = None,
    encoder: networks.Encoder | EncoderName | None = None,
    **options: Any,
) -> OnPolicyAgent[PpoParams, PpoState, PpoHyper]:
    """Build PPO for an environment with continuous or discrete actions.

    For a team's environment, the result is the agent of one role; `rookery.agents.independent` or
    `rookery.agents.shared` builds the team.

    Args:
      spec: sizes of the observation and the action.
      config: widths, epochs and minibatches.
      encoder: a user-defined network that reads the features, see `rookery.agents.reader`, or the name of a built-in
        one, which is a field of the config; the policy and the critic have separate parameters of it.
      **options: fields of `PpoConfig`, instead of `config`.

    Raises:
      ValueError: the environment has skills or a memory, which PPO does not support, or the encoder cannot read the
        features.
      TypeError: both `config` and keywords are given, or a keyword that is not a field of `PpoConfig`.

    Example:
      >>> env = rookery.make("point_room")
      >>> agent = rookery.ppo(env.spec, recurrent=True)
    """
    encoder, options = apart(encoder, options)
    config = config_from(PpoConfig, config, options)
    check_spec(spec, "PPO")
    if spec.skill is not None or spec.recurrent:
        raise ValueError(
            f"PPO supports no environment with skills or a memory, but {spec.name} has one; use the environment "
            "without these wrappers."
        )
    memory_size = config.memory_size if config.recurrent else 0
    read = reader(spec, config.encoder, encoder)
    build = partial(
        networks.core, read.size, config.hidden_sizes, memory_size=memory_size, activation=config.hidden_activation
    )
    nets = ActorCritic(
        policy=read.network(build(output_size=spec.action_size, output_gain=0.01)),
        critic=read.network(build(output_size=1, output_gain=1.0)),
        spec=spec,
    )
    passes = resolve_defaults(config, spec)
    has_choice = not config.recurrent and spec.team is None
    activation = config.hidden_activation if has_choice else None
    optional = optional_space(max(passes.actor_epochs, passes.critic_epochs), activation)
    return OnPolicyAgent(
        init=partial(init, nets, config),
        start=start,
        explore=partial(explore, nets),
        act=partial(act, nets),
        update=backend.in_chunks(partial(update, nets, config)),
        space=environment_defaults(spec).space._replace(optional=optional),
        carry_sizes=Memory(memory_size, memory_size) if config.recurrent else None,
        minibatches=passes.minibatches,
        normalize=environment_defaults(spec).normalize_observations and not has_image(spec.observation_shape),
        sizes=spec.sizes,
        settings={"agent": read.described(named("ppo", config))},
    )
