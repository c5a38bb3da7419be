"""Twin delayed deep deterministic policy gradient (TD3).

Source: Fujimoto 2018, "Addressing Function Approximation Error in Actor-Critic Methods" (arXiv:1802.09477).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rookery import gradients, hyperparams, networks, returns, trees
from rookery.agents import backend
from rookery.agents.base import OffPolicyAgent, UpdateLayout, check_continuous
from rookery.agents.encoders import EncoderName, Reader, apart, reader
from rookery.envs.base import EnvSpec
from rookery.hyperparams import Field, LogUniform, OneMinusLog, Uniform, Whole
from rookery.settings import POSITIVE, Within, check_fields, config_from
from rookery.types import Array, Key, Metrics, Observation, PyTree, Scalar, Transition, named


@dataclass(frozen=True)
class Td3Config:
    """Static settings of TD3: network shapes and the policy delay, which cannot evolve.

    Raises:
      ValueError: a delay or a layer size below 1, or a scale that is not positive.
    """

    hidden_sizes: Annotated[tuple[int, ...] | None, Within(1)] = None
    """Widths of the hidden layers of the policy and of each critic, by default 256 256; of simba the blocks' widths, by
    default 128."""
    critic_hidden_sizes: Annotated[tuple[int, ...] | None, Within(1)] = None
    """Widths of the hidden layers of each critic; by default those of the policy, and of simba 512 512."""
    policy_delay: Annotated[int, Within(1)] = 2
    """Updates of the critics per update of the policy and of all targets."""
    output_scale: Annotated[float, POSITIVE] = 1.0
    """Initial variance scale of the policy's last layer: a small value, such as 0.01, starts the policy near the middle
    of the action range."""
    encoder: EncoderName = "auto"
    """How the networks read observations: nature or small, convolutional encoders of images (Mnih 2015; MinAtar, Young
    2019); none, as a vector; auto, by the size of the image, and none for vectors."""
    policy_critic: Literal["first", "smaller", "mean"] = "first"
    """Value that the policy maximises: of the first critic, as Fujimoto 2018, the smallest of all, as SBX, or their
    mean, as REDQ."""
    layer_norm: bool = False
    """Normalise each hidden layer of the critics before its ReLU (Ba 2016, arXiv:1607.06450), as RLPD does (Ball 2023,
    arXiv:2302.02948)."""
    critics: Annotated[int, Within(2, 100)] = 2
    """Number of critics. Of more than 2, a random two give the targets (REDQ, Chen 2021, arXiv:2101.05982)."""
    network: networks.NetworkName = "mlp"
    """mlp, dense layers; simba, residual blocks (Lee 2024, arXiv:2410.09754), with which observations are normalised,
    learning rates are 1e-4, and weight_decay is 0.01."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)


class Td3Hyper(NamedTuple):
    """Hyper-parameters that can evolve; each one changes the agent."""

    discount: Annotated[Scalar, Field("discount factor of future rewards", OneMinusLog(0.9, 0.999))] = 0.99
    policy_lr: Annotated[Scalar, Field("learning rate of the policy", LogUniform(3e-5, 3e-3))] = 3e-4
    critic_lr: Annotated[Scalar, Field("learning rate of the critics", LogUniform(3e-5, 3e-3))] = 3e-4
    exploration_noise: Annotated[Scalar, Field("standard deviation of the exploration noise", Uniform(0.0, 0.2))] = 0.1
    policy_noise: Annotated[
        Scalar, Field("standard deviation of the noise on the target policy's actions", Uniform(0.0, 1.0))
    ] = 0.2
    noise_clip: Annotated[
        Scalar, Field("clipping bound of the noise on the target policy's actions", Uniform(0.0, 1.0))
    ] = 0.5
    reward_scaling: Annotated[Scalar, Field("factor that multiplies the reward", LogUniform)] = 1.0
    tau: Annotated[
        Scalar, Field("Polyak averaging rate of the target networks per delayed update", LogUniform, high=1.0)
    ] = 0.005


class Td3Optional(NamedTuple):
    """Further hyper-parameters, which a member has if they are chosen."""

    delay: Annotated[
        Scalar, Field("updates of the critics for one of policy and targets", Whole(1, 4), low=1.0, evolves=False)
    ] = 2.0


SPACE = hyperparams.declared(Td3Hyper)._replace(
    optional=hyperparams.join(hyperparams.declared(Td3Optional), gradients.ADAM)
)


class Td3Params(NamedTuple):
    """The parameters that can be copied into other members."""

    policy: PyTree
    critic: PyTree
    """Parameters of the critics."""


class Td3State(NamedTuple):
    """The learned state of one member."""

    policy: gradients.Learned
    critic: gradients.Learned
    target_policy: PyTree
    target_critic: PyTree

    @property
    def params(self) -> Td3Params:
        """The parameters that can be copied into other members."""
        return Td3Params(self.policy.params, self.critic.params)


class Td3Networks(NamedTuple):
    """The policy and critic networks, and the value that the policy maximises."""

    policy: networks.Network
    """Observation -> action before the tanh, `[..., A]`."""
    critic: networks.Network
    """Observation, action -> the values of the critics, `[..., N]`."""
    policy_value: networks.ApplyFn
    """Parameters of the critics, observation, action -> the value that the policy maximises, `[..., 1]`."""


def smoothed_action(
    nets: Td3Networks, params: PyTree, hyper: Td3Hyper, observation: Observation, noise: Array
) -> Array:
    """The target policy's action with clipped noise (Fujimoto 2018, Eq. 14).

    Args:
      nets: the networks.
      params: parameters of the target policy.
      hyper: the member's hyper-parameters.
      observation: `[B, ...]`.
      noise: `[B, A]`, standard normal.

    Returns:
      `[B, A]` in [-1, 1].
    """
    clipped = jnp.clip(noise * hyper.policy_noise, -hyper.noise_clip, hyper.noise_clip)
    return jnp.clip(_action(nets, params, observation) + clipped, -1.0, 1.0)


def critic_loss(
    critic_params: PyTree, nets: Td3Networks, state: Td3State, hyper: Td3Hyper, batch: Transition, noise: Array
) -> tuple[Array, Metrics]:
    """Bellman residual of all critics against the smaller target of two (Fujimoto 2018, Algorithm 1).

    Args:
      critic_params: parameters of the critics being learned; the targets are taken from `state`.
      nets: the networks.
      state: the member's state.
      hyper: the member's hyper-parameters.
      batch: `Transition` of `[B, ...]`; bootstraps where `terminated` is False, so also at a truncation.
      noise: the result of `draw_noise`.

    Returns:
      Scalar `[]` in squared units of scaled reward (the mean square, summed over the critics), and metrics.
    Deviation: none.
    """
    actions, numbers = batch.action.shape[-1], None
    if noise.shape[-1] > actions:
        noise, numbers = jnp.split(noise, [actions], axis=-1)
    next_action = smoothed_action(nets, state.target_policy, hyper, batch.next_observation, noise)
    next_twin = nets.critic.apply(state.target_critic, batch.next_observation, next_action)
    next_twin = returns.of_random_pair(next_twin, numbers)
    reward = batch.reward * hyper.reward_scaling
    target = returns.td_target(reward, batch.terminated, hyper.discount, jnp.min(next_twin, axis=-1))
    twin = nets.critic.apply(critic_params, batch.observation, batch.action)
    residual = twin - jax.lax.stop_gradient(target)[:, None]
    loss = jnp.mean(jnp.sum(residual**2, axis=-1))
    return loss, {"critic_loss": loss, "value": jnp.mean(twin)}


def policy_loss(policy_params: PyTree, nets: Td3Networks, critic_params: PyTree, observation: Observation) -> Array:
    """The value of the policy's actions, negated: that of the first critic by default (Fujimoto 2018, Algorithm 1).

    Args:
      policy_params: parameters of the policy being learned.
      nets: the networks.
      critic_params: parameters of the critics.
      observation: `[B, ...]`.

    Returns:
      Scalar `[]` in units of scaled reward.
    Deviation: none, unless `Td3Config.policy_critic` is "smaller".
    """
    return -jnp.mean(nets.policy_value(critic_params, observation, _action(nets, policy_params, observation)))


def init(nets: Td3Networks, key: Key) -> Td3Params:
    """Initialise the networks."""
    policy_key, critic_key = jax.random.split(key)
    return Td3Params(nets.policy.init(policy_key), nets.critic.init(critic_key))


def start(params: Td3Params) -> Td3State:
    """Return a state with new optimisers, and target networks equal to the policy and the critics."""
    targets = jax.tree.map(jnp.copy, params)
    return Td3State(gradients.start(params.policy), gradients.start(params.critic), *targets)


def _change_critics(change: Callable[[PyTree], PyTree], state: Td3State) -> Td3State:
    return state._replace(critic=change(state.critic), target_critic=change(state.target_critic))


def explore(nets: Td3Networks, state: Td3State, hyper: Td3Hyper, observation: Observation, key: Key) -> Array:
    """Return the policy's action with Gaussian noise, clipped to [-1, 1], `[A]`."""
    action = _action(nets, state.policy.params, observation)
    noise = hyper.exploration_noise * jax.random.normal(key, action.shape)
    return jnp.clip(action + noise, -1.0, 1.0)


def act(nets: Td3Networks, params: Td3Params, observation: Observation) -> Array:
    """Return the policy's action, `[A]`."""
    return _action(nets, params.policy, observation)


def draw_noise(size: int, key: Key, batch_size: int) -> Array:
    """Draw standard normal noise `[B, A]` for the target policy's actions; of N critics, more than 2, `[B, A + N]`,
    whose last numbers choose those in the target, see `returns.of_random_pair`."""
    return jax.random.normal(key, (batch_size, size))


def update(
    nets: Td3Networks,
    config: Td3Config,
    state: Td3State,
    hyper: Td3Hyper,
    batch: Transition,
    noise: Array,
    step: Array,
) -> tuple[Td3State, Metrics]:
    """Update the critics in every call; policy and targets in every `policy_delay`-th (Fujimoto 2018, Algorithm 1).

    Args:
      nets: the networks.
      config: static settings.
      state: the state before the update.
      hyper: the member's hyper-parameters.
      batch: `Transition` of `[B, ...]`.
      noise: the result of `draw_noise`.
      step: `[]` or an int, never batched, so that updates without a policy step skip its computation, unless the
        delay is a hyper-parameter of the member.

    Returns:
      The new state, and metrics `[]`: critic_loss, value, and actor_loss. actor_loss is multiplied by `policy_delay`
      where it is computed and 0 elsewhere, so that its mean over all updates is the mean over the policy's updates.
    """
    chex.assert_rank([batch.action, batch.reward], [2, 1])
    loss = partial(critic_loss, nets=nets, state=state, hyper=hyper, batch=batch, noise=noise)
    critic_gradient, metrics = jax.grad(loss, has_aux=True)(state.critic.params)
    state = state._replace(critic=gradients.adam(state.critic, critic_gradient, hyper.critic_lr, hyper=hyper))

    # Delayed, so that the policy follows critics that have settled.
    delayed_update = partial(_update_policy_and_targets, nets, hyper, batch.observation)
    skip = partial(_skip, jnp.zeros_like(metrics["critic_loss"]))
    delay = getattr(hyper, "delay", config.policy_delay)
    due = (step + 1) % (delay if isinstance(delay, int) else delay.astype(jnp.int32)) == 0
    state, actor_loss = _where(due, delayed_update, skip, state)
    return state, {**metrics, "actor_loss": delay * actor_loss}


def _where(due: Array | bool, delayed_update: Callable, skip: Callable, state: Td3State) -> tuple[Td3State, Array]:
    """Apply the delayed part of an update where it is due.

    A GPU copies every array that leaves a conditional, which costs more than the part itself; there the part is
    computed in each update, unless it is known at trace time whether it is due.
    """
    if isinstance(due, bool):
        return delayed_update(state) if due else skip(state)
    if backend.prefers_few_kernels():
        return trees.where(due, delayed_update(state), skip(state))
    return jax.lax.cond(due, delayed_update, skip, state)


def _skip(no_loss: Array, state: Td3State) -> tuple[Td3State, Array]:
    return state, no_loss


def _update_policy_and_targets(
    nets: Td3Networks, hyper: Td3Hyper, observation: Observation, state: Td3State
) -> tuple[Td3State, Array]:
    """Apply the delayed part of an update."""
    loss = partial(policy_loss, nets=nets, critic_params=state.critic.params, observation=observation)
    actor_loss, policy_gradient = jax.value_and_grad(loss)(state.policy.params)
    policy = gradients.adam(state.policy, policy_gradient, hyper.policy_lr, hyper=hyper)
    state = Td3State(
        policy,
        state.critic,
        target_policy=gradients.polyak(state.target_policy, policy.params, hyper.tau),
        target_critic=gradients.polyak(state.target_critic, state.critic.params, hyper.tau),
    )
    return state, actor_loss


def _action(nets: Td3Networks, params: PyTree, observation: Observation) -> Array:
    return jnp.tanh(nets.policy.apply(params, observation))


def _group(policy_delay: int) -> int:
    """Updates per repetition of the loop: the delay, unless the loop's body would become long; see `UpdateLayout`."""
    return policy_delay if policy_delay <= _LONGEST_GROUP else 1


_LONGEST_GROUP = 4


def networks_of(
    spec: EnvSpec, config: Td3Config, encoder: networks.Encoder | None = None
) -> tuple[Td3Networks, Reader]:
    """The networks of TD3, whose config is filled in, and how they read observations; see `td3`."""
    check_continuous(spec, "TD3")
    read = reader(spec, config.encoder, encoder)
    policy, value = networks.policy_and_value(config, (read.size, spec.action_size), spec.action_size)
    value = read.network(value)
    maximised = {"first": networks.first_twin, "smaller": networks.smaller_twin, "mean": networks.mean_twin}
    critics = networks.twin(value, config.critics)
    return Td3Networks(read.network(policy), critics, maximised[config.policy_critic](value)), read


def td3(
    spec: EnvSpec,
    config: Td3Config | None = None,
    encoder: networks.Encoder | EncoderName | None = None,
    **options: Any,
) -> OffPolicyAgent[Td3Params, Td3State, Td3Hyper, Array]:
    """Build TD3 for an environment with continuous actions.

    Args:
      spec: sizes of the observation and the action.
      config: widths and the delay; the paper's delay by default.
      encoder: as in `sac`.
      **options: fields of `Td3Config`, instead of `config`.

    Raises:
      ValueError: the actions are discrete, or the encoder cannot read the features.
      TypeError: both `config` and keywords are given, or a keyword that is not a field of `Td3Config`.

    Example:
      >>> env = rookery.make("point_room")
      >>> agent = rookery.td3(env.spec, hidden_sizes=(64, 64))
    """
    encoder, options = apart(encoder, options)
    config = networks.filled(config_from(Td3Config, config, options))
    nets, read = networks_of(spec, config, encoder)
    return OffPolicyAgent(
        init=partial(init, nets),
        start=start,
        explore=partial(explore, nets),
        act=partial(act, nets),
        noise=partial(draw_noise, spec.action_size + (config.critics if config.critics > 2 else 0)),
        update=partial(update, nets, config),
        space=networks.space_of(SPACE, config),
        encoded_size=read.encoded_size,
        layout=UpdateLayout(
            pack=partial(_change_critics, networks.stack_twins),
            unpack=partial(_change_critics, networks.separate_twins),
            period=config.policy_delay,
            group=_group(config.policy_delay),
        ),
        sizes=spec.sizes,
        normalize=networks.NETWORKS[config.network].normalize,
        settings={"agent": read.described(named("td3", config))},
    )
