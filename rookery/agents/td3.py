"""Twin delayed deep deterministic policy gradient.

Source: Fujimoto 2018, "Addressing Function Approximation Error in Actor-Critic Methods" (arXiv:1802.09477).
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rookery import gradients, hyperparams, networks, returns
from rookery.agents.base import Agent, check_continuous, check_hidden_sizes, check_output_scale
from rookery.envs.base import EnvSpec
from rookery.types import Array, Key, Metrics, PyTree, Scalar, Transition


@dataclass(frozen=True)
class Td3Config:
    """What decides shapes and trip counts, and so cannot evolve.

    Raises:
      ValueError: a delay or a layer size below 1, or a scale that is not positive.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of the policy and of each critic (at least 1)."""
    critic_hidden_sizes: tuple[int, ...] | None = None
    """Widths of the hidden layers of each critic, where they differ from the policy's (at least 1)."""
    policy_delay: int = 2
    """Updates of the critics per update of the policy and of all targets (at least 1)."""
    output_scale: float = 0.01
    """Variance scale of the policy's last weights at birth (above 0): small ones let it begin in the middle of the
    actions, 1 lets newborns differ, as a repertoire wants them to."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.policy_delay < 1:
            raise ValueError(f"policy_delay must be at least 1, got {self.policy_delay}.")
        check_hidden_sizes(self.hidden_sizes, self.critic_hidden_sizes)
        check_output_scale(self.output_scale)


class Td3Hyper(NamedTuple):
    """What can evolve; every field changes the agent. `SPACE` says what each means, and which do by default."""

    discount: Scalar = 0.99
    policy_lr: Scalar = 3e-4
    critic_lr: Scalar = 3e-4
    exploration_noise: Scalar = 0.1
    policy_noise: Scalar = 0.2
    noise_clip: Scalar = 0.5
    reward_scaling: Scalar = 1.0
    tau: Scalar = 0.005


SPACE = hyperparams.space(
    Td3Hyper(),
    {
        "discount": hyperparams.OneMinusLog(0.9, 0.999),
        "policy_lr": hyperparams.LogUniform(3e-5, 3e-3),
        "critic_lr": hyperparams.LogUniform(3e-5, 3e-3),
        "exploration_noise": hyperparams.Uniform(0.0, 0.2),
        "policy_noise": hyperparams.Uniform(0.0, 1.0),
        "noise_clip": hyperparams.Uniform(0.0, 1.0),
    },
    {
        "discount": hyperparams.Field("weight of the next step's value", hyperparams.OneMinusLog),
        "policy_lr": hyperparams.Field("Adam's step size for the policy", hyperparams.LogUniform),
        "critic_lr": hyperparams.Field("Adam's step size for the critics", hyperparams.LogUniform),
        "exploration_noise": hyperparams.Field("standard deviation of the noise on actions", hyperparams.Uniform),
        "policy_noise": hyperparams.Field(
            "standard deviation of the noise on the target's actions", hyperparams.Uniform
        ),
        "noise_clip": hyperparams.Field("bound of the noise on the target's actions", hyperparams.Uniform),
        "reward_scaling": hyperparams.Field("the critics learn it times the reward", hyperparams.LogUniform),
        "tau": hyperparams.Field("the targets' Polyak rate per delayed update", hyperparams.LogUniform, high=1.0),
    },
)


class Td3Params(NamedTuple):
    """The genome."""

    policy: PyTree
    critic: PyTree  # twin


class Td3State(NamedTuple):
    """What one member has learned."""

    policy: gradients.Learned
    critic: gradients.Learned
    target_policy: PyTree
    target_critic: PyTree

    @property
    def params(self) -> Td3Params:
        """The genome."""
        return Td3Params(self.policy.params, self.critic.params)


class Td3Networks(NamedTuple):
    """The two functions that are learned, and one of the critics by itself."""

    policy: networks.Network  # observation -> action before its tanh, [..., A]
    critic: networks.Network  # observation, action -> two values, [..., 2]
    first_critic: networks.ApplyFn  # the critic's parameters, observation, action -> the first value, [..., 1]


def smoothed_action(nets: Td3Networks, params: PyTree, hyper: Td3Hyper, observation: Array, noise: Array) -> Array:
    """The target policy's action with clipped noise (Fujimoto 2018, Eq. 14).

    Args:
      params: the target policy.
      observation: `[B, O]`.
      noise: `[B, A]`, standard normal.

    Returns:
      `[B, A]` in [-1, 1].
    """
    clipped = jnp.clip(noise * hyper.policy_noise, -hyper.noise_clip, hyper.noise_clip)
    return jnp.clip(_action(nets, params, observation) + clipped, -1.0, 1.0)


def critic_loss(
    critic_params: PyTree, nets: Td3Networks, state: Td3State, hyper: Td3Hyper, batch: Transition, noise: Array
) -> tuple[Array, Metrics]:
    """Bellman residual of both critics against the smaller target (Fujimoto 2018, Algorithm 1).

    Args:
      critic_params: the critics being learned; the targets come from `state`.
      batch: `Transition` of `[B, ...]`; bootstraps where `terminated` is False, so also at a truncation.
      noise: `[B, A]`, standard normal, for the target's actions.

    Returns:
      Scalar `[]` in squared units of scaled reward (the mean square, summed over the twins), and metrics.
    Deviation: none.
    """
    next_action = smoothed_action(nets, state.target_policy, hyper, batch.next_observation, noise)
    next_twin = nets.critic.apply(state.target_critic, batch.next_observation, next_action)
    reward = batch.reward * hyper.reward_scaling
    target = returns.td_target(reward, batch.terminated, hyper.discount, jnp.min(next_twin, axis=-1))
    twin = nets.critic.apply(critic_params, batch.observation, batch.action)
    residual = twin - jax.lax.stop_gradient(target)[:, None]
    loss = jnp.mean(jnp.sum(residual**2, axis=-1))
    return loss, {"critic_loss": loss, "value": jnp.mean(twin)}


def policy_loss(policy_params: PyTree, nets: Td3Networks, critic_params: PyTree, observation: Array) -> Array:
    """The first critic's value of the policy's actions, negated (Fujimoto 2018, Algorithm 1).

    Args:
      observation: `[B, O]`.

    Returns:
      Scalar `[]` in units of scaled reward.
    Deviation: none.
    """
    return -jnp.mean(nets.first_critic(critic_params, observation, _action(nets, policy_params, observation)))


def init(nets: Td3Networks, key: Key) -> Td3Params:
    """Draw the networks."""
    policy_key, critic_key = jax.random.split(key)
    return Td3Params(nets.policy.init(policy_key), nets.critic.init(critic_key))


def start(params: Td3Params) -> Td3State:
    """Fresh optimisers; targets equal to what they follow."""
    targets = jax.tree.map(jnp.copy, params)
    return Td3State(gradients.start(params.policy), gradients.start(params.critic), *targets)


def explore(nets: Td3Networks, state: Td3State, hyper: Td3Hyper, observation: Array, key: Key) -> tuple[Array, tuple]:
    """The policy's action with normal noise, clipped to [-1, 1]; `[A]`, and nothing else is stored."""
    action = _action(nets, state.policy.params, observation)
    noise = hyper.exploration_noise * jax.random.normal(key, action.shape)
    return jnp.clip(action + noise, -1.0, 1.0), ()


def act(nets: Td3Networks, params: Td3Params, observation: Array) -> Array:
    """The policy's action, `[A]`."""
    return _action(nets, params.policy, observation)


def draw_noise(action_size: int, key: Key, batch_size: int) -> Array:
    """Standard normal noise for the target's actions, `[B, A]`."""
    return jax.random.normal(key, (batch_size, action_size))


def update(
    nets: Td3Networks,
    config: Td3Config,
    state: Td3State,
    hyper: Td3Hyper,
    batch: Transition,
    noise: Array,
    step: Array,
) -> tuple[Td3State, Metrics]:
    """Critics every time; policy and targets every `policy_delay` updates (Fujimoto 2018, Algorithm 1).

    Args:
      batch: `Transition` of `[B, ...]`.
      noise: `[B, A]`, standard normal.
      step: `[]`, never batched, so that what is delayed costs nothing in between.

    Returns:
      The new state, and metrics `[]`: critic_loss, value, and actor_loss, which counts `policy_delay` times where it is
      computed and 0 elsewhere, so that its mean over updates is its mean.
    """
    chex.assert_rank([batch.observation, batch.action, batch.reward], [2, 2, 1])
    loss = partial(critic_loss, nets=nets, state=state, hyper=hyper, batch=batch, noise=noise)
    critic_gradient, metrics = jax.grad(loss, has_aux=True)(state.critic.params)
    state = state._replace(critic=gradients.adam(state.critic, critic_gradient, hyper.critic_lr))

    move = partial(_move_policy_and_targets, nets, hyper, batch.observation)
    due = (step + 1) % config.policy_delay == 0
    nothing = jnp.zeros_like(metrics["critic_loss"])
    state, actor_loss = jax.lax.cond(due, move, lambda state: (state, nothing), state)
    return state, {**metrics, "actor_loss": config.policy_delay * actor_loss}


def _move_policy_and_targets(
    nets: Td3Networks, hyper: Td3Hyper, observation: Array, state: Td3State
) -> tuple[Td3State, Array]:
    """The delayed half of an update."""
    loss = partial(policy_loss, nets=nets, critic_params=state.critic.params, observation=observation)
    actor_loss, policy_gradient = jax.value_and_grad(loss)(state.policy.params)
    policy = gradients.adam(state.policy, policy_gradient, hyper.policy_lr)
    state = Td3State(
        policy,
        state.critic,
        target_policy=gradients.polyak(state.target_policy, policy.params, hyper.tau),
        target_critic=gradients.polyak(state.target_critic, state.critic.params, hyper.tau),
    )
    return state, actor_loss


def _action(nets: Td3Networks, params: PyTree, observation: Array) -> Array:
    return jnp.tanh(nets.policy.apply(params, observation))


def td3(spec: EnvSpec, config: Td3Config | None = None) -> Agent:
    """TD3 for an environment with continuous actions.

    Args:
      spec: sizes of the observation and the action.
      config: widths and the delay; the paper's delay by default.

    Raises:
      ValueError: the actions are discrete.
    """
    config = config or Td3Config()
    check_continuous(spec, "TD3")
    sizes = spec.observation_size, spec.action_size
    critic_sizes = config.hidden_sizes if config.critic_hidden_sizes is None else config.critic_hidden_sizes
    value = networks.mlp(sizes, critic_sizes, 1)
    nets = Td3Networks(
        policy=networks.mlp(sizes[:1], config.hidden_sizes, spec.action_size, output_scale=config.output_scale),
        critic=networks.twin(value),
        first_critic=networks.first_twin(value),
    )
    return Agent(
        init=partial(init, nets),
        start=start,
        explore=partial(explore, nets),
        act=partial(act, nets),
        noise=partial(draw_noise, spec.action_size),
        update=partial(update, nets, config),
        space=SPACE,
    )
