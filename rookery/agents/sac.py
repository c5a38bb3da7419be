"""Soft actor-critic (SAC) with a learned temperature.

Source: Haarnoja 2018, "Soft Actor-Critic Algorithms and Applications" (arXiv:1812.05905).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rookery import distributions, gradients, hyperparams, networks, returns, trees
from rookery.agents.base import OffPolicyAgent, UpdateLayout, check_continuous
from rookery.agents.encoders import EncoderName, apart, reader
from rookery.envs.base import EnvSpec
from rookery.hyperparams import Field, LogUniform, OneMinusLog, Whole
from rookery.settings import POSITIVE, Within, check_fields, config_from
from rookery.types import Array, Key, Metrics, Observation, PyTree, Scalar, Transition, named


@dataclass(frozen=True)
class SacConfig:
    """Static settings of SAC, which cannot evolve.

    Raises:
      ValueError: a temperature or a scale that is not positive, or a layer size below 1.
    """

    hidden_sizes: Annotated[tuple[int, ...] | None, Within(1)] = None
    """Widths of the hidden layers of the policy and of each critic, by default 256 256; of simba the blocks' widths, by
    default 128."""
    critic_hidden_sizes: Annotated[tuple[int, ...] | None, Within(1)] = None
    """Widths of the hidden layers of each critic; by default those of the policy, and of simba 512 512."""
    alpha_init: Annotated[float | None, POSITIVE] = None
    """Initial temperature of the entropy bonus (in units of reward per nat); by default 1, with simba 0.01."""
    fix_alpha: bool = False
    """Keep the temperature at its initial value instead of learning it."""
    target_entropy_scale: float | None = None
    """Scale of the temperature's target entropy, -scale x action size (nats); by default 1, with simba 0.5."""
    output_scale: Annotated[float, POSITIVE] = 1.0
    """Initial variance scale of the policy's last layer: a small value, such as 0.01, starts the policy near the middle
    of the action range."""
    encoder: EncoderName = "auto"
    """How the networks read observations: nature or small, convolutional encoders of images (Mnih 2015; MinAtar, Young
    2019); none, as a vector; auto, by the size of the image, and none for vectors."""
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


class SacHyper(NamedTuple):
    """Hyper-parameters that can evolve; each one changes the update."""

    discount: Annotated[Scalar, Field("discount factor of future rewards", OneMinusLog(0.9, 0.999))] = 0.99
    policy_lr: Annotated[Scalar, Field("learning rate of the policy", LogUniform(3e-5, 3e-3))] = 3e-4
    critic_lr: Annotated[Scalar, Field("learning rate of the critics", LogUniform(3e-5, 3e-3))] = 3e-4
    alpha_lr: Annotated[Scalar, Field("learning rate of the temperature", LogUniform(3e-5, 3e-3))] = 3e-4
    reward_scaling: Annotated[Scalar, Field("factor that multiplies the reward", LogUniform(0.1, 10.0))] = 1.0
    tau: Annotated[Scalar, Field("Polyak averaging rate of the target networks per update", LogUniform, high=1.0)] = (
        0.005
    )


class SacOptional(NamedTuple):
    """Further hyper-parameters, which a member has if they are chosen."""

    delay: Annotated[
        Scalar,
        Field("updates of the critics for one of the policy and the temperature", Whole(1, 4), low=1.0, evolves=False),
    ] = 1.0


SPACE = hyperparams.declared(SacHyper)._replace(
    optional=hyperparams.join(hyperparams.declared(SacOptional), gradients.ADAM)
)


class SacParams(NamedTuple):
    """The parameters that can be copied into other members."""

    policy: PyTree
    critic: PyTree
    """Parameters of the critics."""
    log_alpha: Array
    """`[]`, log temperature."""


class SacState(NamedTuple):
    """The learned state of one member."""

    policy: gradients.Learned
    critic: gradients.Learned
    log_alpha: gradients.Learned
    target_critic: PyTree

    @property
    def params(self) -> SacParams:
        """The parameters that can be copied into other members."""
        return SacParams(self.policy.params, self.critic.params, self.log_alpha.params)


class SacNoise(NamedTuple):
    """Standard normal noise for one update."""

    next_action: Array
    """`[B, A]`."""
    action: Array
    """`[B, A]`."""
    critics: Array | None = None
    """`[B, N]`, see `returns.of_random_pair`; None with two critics."""


class SacNetworks(NamedTuple):
    """The policy and critic networks."""

    policy: networks.Network
    """Observation -> mean and log standard deviation, `[..., 2 A]`."""
    critic: networks.Network
    """Observation, action -> the values of the critics, `[..., N]`."""


def critic_loss(
    critic_params: PyTree,
    nets: SacNetworks,
    state: SacState,
    hyper: SacHyper,
    batch: Transition,
    noise: Array,
    numbers: Array | None = None,
) -> tuple[Array, Metrics]:
    """Soft Bellman residual of all critics (Haarnoja 2018, Eq. 5 and 6).

    Args:
      critic_params: parameters of the critics being learned; target critics and policy are taken from `state`.
      nets: the networks.
      state: the member's state.
      hyper: the member's hyper-parameters.
      batch: `Transition` of `[B, ...]`; bootstraps where `terminated` is False, so also at a truncation.
      noise: `[B, A]`, standard normal, for the next actions.
      numbers: `[B, N]`, which choose the critics in the target, see `returns.of_random_pair`.

    Returns:
      Scalar `[]` in squared units of scaled reward (half the mean square, summed over the critics), and metrics.
    Deviation: none.
    """
    next_outputs = nets.policy.apply(state.policy.params, batch.next_observation)
    next_action, next_log_prob = distributions.tanh_normal_sample(next_outputs, noise)
    next_twin = nets.critic.apply(state.target_critic, batch.next_observation, next_action)
    next_twin = returns.of_random_pair(next_twin, numbers)
    next_value = returns.soft_value(next_twin, next_log_prob, jnp.exp(state.log_alpha.params))
    target = returns.td_target(batch.reward * hyper.reward_scaling, batch.terminated, hyper.discount, next_value)
    twin = nets.critic.apply(critic_params, batch.observation, batch.action)
    residual = twin - jax.lax.stop_gradient(target)[:, None]
    loss = 0.5 * jnp.mean(jnp.sum(residual**2, axis=-1))
    return loss, {"critic_loss": loss, "value": jnp.mean(twin)}


def policy_loss(
    policy_params: PyTree, nets: SacNetworks, state: SacState, observation: Observation, noise: Array
) -> tuple[Array, Array]:
    """KL divergence of the policy from the exponentiated soft value (Haarnoja 2018, Eq. 7 and 9).

    Args:
      policy_params: parameters of the policy being learned; critics and temperature are taken from `state`.
      nets: the networks.
      state: the member's state.
      observation: `[B, ...]`.
      noise: `[B, A]`, standard normal.

    Returns:
      Scalar `[]` in units of scaled reward, and the actions' mean log density `[]` in nats.
    Deviation: uses the smaller of the two critics, as in the authors' code. With more than two critics it uses their
    mean (Chen 2021).
    """
    action, log_prob = distributions.tanh_normal_sample(nets.policy.apply(policy_params, observation), noise)
    twin = nets.critic.apply(state.critic.params, observation, action)
    twin = twin if twin.shape[-1] == 2 else jnp.mean(twin, axis=-1, keepdims=True)
    loss = -jnp.mean(returns.soft_value(twin, log_prob, jnp.exp(state.log_alpha.params)))
    return loss, jnp.mean(log_prob)


def alpha_loss(log_alpha: Array, mean_log_prob: Array, target_entropy: float) -> Array:
    """Temperature loss towards the target entropy (Haarnoja 2018, Eq. 18); scalar `[]` in units of scaled reward.

    Deviation: the log of the temperature is learned, so that the temperature stays positive.
    """
    return -jnp.exp(log_alpha) * jax.lax.stop_gradient(mean_log_prob + target_entropy)


def init(nets: SacNetworks, config: SacConfig, key: Key) -> SacParams:
    """Initialise the networks; the temperature starts at `config.alpha_init`, which `sac` fills in."""
    policy_key, critic_key = jax.random.split(key)
    log_alpha = jnp.log(jnp.asarray(config.alpha_init, jnp.float32))
    return SacParams(nets.policy.init(policy_key), nets.critic.init(critic_key), log_alpha)


def start(params: SacParams) -> SacState:
    """Return a state with new optimisers, and target critics equal to the critics."""
    policy, critic, log_alpha = (gradients.start(part) for part in params)
    return SacState(policy, critic, log_alpha, target_critic=jax.tree.map(jnp.copy, params.critic))


def _change_critics(change: Callable[[PyTree], PyTree], state: SacState) -> SacState:
    return state._replace(critic=change(state.critic), target_critic=change(state.target_critic))


LAYOUT = UpdateLayout(
    pack=partial(_change_critics, networks.stack_twins),
    unpack=partial(_change_critics, networks.separate_twins),
    group=2,  # XLA merges a few operations of neighbouring updates
)


def explore(nets: SacNetworks, state: SacState, hyper: SacHyper, observation: Observation, key: Key) -> Array:
    """Sample an action `[A]` from the policy; no hyper-parameter is used."""
    del hyper
    outputs = nets.policy.apply(state.policy.params, observation)
    noise = jax.random.normal(key, (outputs.shape[-1] // 2,))
    return distributions.tanh_normal_sample(outputs, noise)[0]


def act(nets: SacNetworks, params: SacParams, observation: Observation) -> Array:
    """Return the policy's squashed mean, `[A]`."""
    return distributions.tanh_normal_mode(nets.policy.apply(params.policy, observation))


def draw_noise(action_size: int, key: Key, batch_size: int, critics: int = 2) -> SacNoise:
    """Draw noise for the next actions in the critics' targets, for the actions in the policy's loss and, of more than 2
    critics, for those in the target."""
    if critics == 2:
        return SacNoise(*jax.random.normal(key, (2, batch_size, action_size)))
    actions_key, critics_key = jax.random.split(key)
    next_action, action = jax.random.normal(actions_key, (2, batch_size, action_size))
    return SacNoise(next_action, action, jax.random.uniform(critics_key, (batch_size, critics)))


def update(
    nets: SacNetworks,
    config: SacConfig,
    state: SacState,
    hyper: SacHyper,
    batch: Transition,
    noise: SacNoise,
    step: Array,
) -> tuple[SacState, Metrics]:
    """Apply one gradient step to critics, policy and temperature, then update the targets (Haarnoja 2018, Algorithm 1).

    Args:
      nets: the networks.
      config: static settings.
      state: the state before the update.
      hyper: the member's hyper-parameters.
      batch: `Transition` of `[B, ...]`.
      noise: the result of `draw_noise`.
      step: `[]`, the number of updates before this one.

    Returns:
      The new state, and metrics `[]`: critic_loss, actor_loss, alpha_loss, alpha, entropy, value.
    Deviation: none, unless `hyper` has a `delay` above 1 (Fujimoto 2018, arXiv:1802.09477). Skipped updates of
      the policy are computed all the same.
    """
    chex.assert_rank([batch.action, batch.reward], [2, 1])
    # Critics, then the policy against the new critics, then the temperature.
    loss = partial(critic_loss, nets=nets, state=state, hyper=hyper, batch=batch, noise=noise.next_action)
    loss = partial(loss, numbers=noise.critics)
    critic_gradient, metrics = jax.grad(loss, has_aux=True)(state.critic.params)
    adam = partial(gradients.adam, hyper=hyper)
    state = state._replace(critic=adam(state.critic, critic_gradient, hyper.critic_lr))

    loss = partial(policy_loss, nets=nets, state=state, observation=batch.observation, noise=noise.action)
    (actor_loss, log_prob), policy_gradient = jax.value_and_grad(loss, has_aux=True)(state.policy.params)
    assert config.target_entropy_scale is not None  # `sac` fills it in
    target_entropy = -config.target_entropy_scale * batch.action.shape[-1]
    temperature_loss, alpha_gradient = jax.value_and_grad(alpha_loss)(state.log_alpha.params, log_prob, target_entropy)

    before = state
    state = state._replace(
        policy=adam(state.policy, policy_gradient, hyper.policy_lr),
        target_critic=gradients.polyak(state.target_critic, state.critic.params, hyper.tau),
    )
    if not config.fix_alpha:
        state = state._replace(log_alpha=gradients.adam(state.log_alpha, alpha_gradient, hyper.alpha_lr))
    if (delay := getattr(hyper, "delay", None)) is not None:
        due = (step + 1) % delay.astype(jnp.int32) == 0
        kept = trees.where(due, (state.policy, state.log_alpha), (before.policy, before.log_alpha))
        state = state._replace(policy=kept[0], log_alpha=kept[1])
    alpha = jnp.exp(state.log_alpha.params)
    return state, {
        **metrics,
        "actor_loss": actor_loss,
        "alpha_loss": temperature_loss,
        "alpha": alpha,
        "entropy": -log_prob,
    }


def sac(
    spec: EnvSpec,
    config: SacConfig | None = None,
    encoder: networks.Encoder | EncoderName | None = None,
    **options: Any,
) -> OffPolicyAgent[SacParams, SacState, SacHyper, SacNoise]:
    """Build soft actor-critic for an environment with continuous actions.

    Args:
      spec: sizes of the observation and the action.
      config: widths and temperature; the paper's by default.
      encoder: a user-defined network that reads the features, see `rookery.agents.reader`, or the name of a built-in
        one, which is a field of the config; the policy and each critic have separate parameters of it.
      **options: fields of `SacConfig`, instead of `config`.

    Raises:
      ValueError: the actions are discrete, or the encoder cannot read the features.
      TypeError: both `config` and keywords are given, or a keyword that is not a field of `SacConfig`.

    Example:
      >>> env = rookery.make("point_room")
      >>> rookery.sac(env.spec, hidden_sizes=(64, 64)).space.defaults.discount
      0.99
    """
    encoder, options = apart(encoder, options)
    config = networks.filled(config_from(SacConfig, config, options))
    check_continuous(spec, "SAC")
    read, kind = reader(spec, config.encoder, encoder), networks.NETWORKS[config.network]
    policy, value = networks.policy_and_value(config, (read.size, spec.action_size), 2 * spec.action_size)
    nets = SacNetworks(read.network(kind.gaussian(policy)), networks.twin(read.network(value), config.critics))
    space = networks.space_of(SPACE, config)
    return OffPolicyAgent(
        init=partial(init, nets, config),
        start=start,
        explore=partial(explore, nets),
        act=partial(act, nets),
        noise=partial(draw_noise, spec.action_size, critics=config.critics),
        update=partial(update, nets, config),
        space=hyperparams.without(space, "alpha_lr") if config.fix_alpha else space,
        encoded_size=read.encoded_size,
        layout=LAYOUT,
        sizes=spec.sizes,
        normalize=kind.normalize,
        settings={"agent": read.described(named("sac", config))},
    )
