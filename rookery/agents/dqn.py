"""Deep Q-network (DQN): Q-learning of discrete actions from stored transitions, with its usual extensions.

Sources: Mnih 2015, "Human-level control through deep reinforcement learning"; double Q-learning, van Hasselt 2016
(arXiv:1509.06461); dueling heads, Wang 2016 (arXiv:1511.06581); quantiles (QR-DQN), Dabney 2018 (arXiv:1710.10044).
Returns over several steps (Hessel 2018, arXiv:1710.02298) are the hyper-parameter `n_step` of the learner.

Deviations: by default hidden layers are normalised, and the target network follows by Polyak averages; the optimiser is
Adam; a dueling head has no hidden layers of its own.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rookery import gradients, hyperparams, networks, returns
from rookery.agents import discrete
from rookery.agents.base import OffPolicyAgent, check_spec
from rookery.agents.encoders import EncoderName, apart, reader
from rookery.envs.base import EnvSpec
from rookery.hyperparams import Field, LogUniform, OneMinusLog
from rookery.settings import FRACTION, Within, check_fields, config_from
from rookery.types import Array, Key, Metrics, Observation, PyTree, Scalar, Transition, named


@dataclass(frozen=True)
class DqnConfig:
    """Static settings of DQN: network shapes and variants, which cannot evolve.

    Raises:
      ValueError: a count or a width below 1, or a share outside of [0, 1].
    """

    hidden_sizes: Annotated[tuple[int, ...], Within(1)] = (256, 256)
    """Widths of the hidden layers."""
    double: bool = True
    """Double Q-learning: the network chooses the next action, and the target network values it."""
    dueling: bool = False
    """Dueling heads: one for the value of the state, one for the advantages of the actions."""
    quantiles: Annotated[int, Within(1, 10_000)] = 1
    """Quantiles of the return that are learned for each action (200 in Dabney 2018); with 1 its value."""
    layer_norm: bool = True
    """Normalise each hidden layer before its ReLU, which keeps values from growing without bound (Gallici 2024,
    arXiv:2407.04811)."""
    target_period: Annotated[int, Within(1)] = 1
    """Updates from one step of the target network to the next; with tau 1 it is then a copy of the network."""
    encoder: EncoderName = "auto"
    """How the network reads observations: nature or small, convolutional encoders of images (Mnih 2015; MinAtar, Young
    2019); none, as a vector; auto, by the size of the image, and none for vectors."""
    exploration_share: Annotated[float, FRACTION] = 0.1
    """Share of the run's updates over which the share of random actions falls linearly from 1 to epsilon."""
    exploration_updates: Annotated[int | None, Within(0)] = None
    """Number of these updates, instead of a share; with 0 the share of random actions is epsilon from the start. The
    default of the Python API is 0, since it has no run length."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)


class DqnHyper(NamedTuple):
    """Hyper-parameters that can evolve; each one changes the agent's update or its exploration."""

    discount: Annotated[Scalar, Field("discount factor of future rewards", OneMinusLog(0.9, 0.999))] = 0.99
    learning_rate: Annotated[Scalar, Field("learning rate", LogUniform(3e-5, 3e-3))] = 3e-4
    epsilon: Annotated[
        Scalar, Field("share of random actions after it has fallen", LogUniform(0.01, 0.5), high=1.0, zero=True)
    ] = 0.05
    tau: Annotated[Scalar, Field("part of the way that a step of the target network goes", LogUniform, high=1.0)] = (
        0.005
    )


SPACE = hyperparams.declared(DqnHyper)._replace(optional=gradients.ADAM)


class DqnParams(NamedTuple):
    """The parameters that can be copied into other members."""

    network: PyTree


class DqnState(NamedTuple):
    """The learned state of one member."""

    network: gradients.Learned
    target: PyTree
    """Parameters of the target network."""
    updates: Array
    """`[]` int32, updates of the run so far, which exploration depends on; a state that begins anew within a run acts
    as if none were made until its first update."""

    @property
    def params(self) -> DqnParams:
        """The parameters that can be copied into other members."""
        return DqnParams(self.network.params)


class QuantileNetwork(NamedTuple):
    """A network whose outputs are quantiles of the return of each action."""

    network: networks.Network
    """Observation -> `[..., (A + 1) N]` if it is dueling, else `[..., A N]`, for N quantiles."""
    dueling: bool
    quantiles: int

    def apply(self, params: PyTree, observation: Observation) -> Array:
        """Quantiles `[..., A, N]` of the return of each action (dueling: Wang 2016, Eq. 9)."""
        outputs = self.network.apply(params, observation)
        outputs = outputs.reshape(*outputs.shape[:-1], -1, self.quantiles)
        if not self.dueling:
            return outputs
        value, advantage = outputs[..., :1, :], outputs[..., 1:, :]
        return value + advantage - jnp.mean(advantage, axis=-2, keepdims=True)

    def values(self, params: PyTree, observation: Observation) -> Array:
        """Values `[..., A]` of the actions: the means of their quantiles."""
        return jnp.mean(self.apply(params, observation), axis=-1)


def quantile_loss(quantiles: Array, targets: Array) -> Array:
    """The quantile Huber loss of each row with the threshold 1 (Dabney 2018, Eq. 10 and Algorithm 1), `[...]`.

    With one quantile it is half the Huber loss, whose gradient is clipped as in Mnih 2015.

    Args:
      quantiles: `[..., N]`, of the network being learned.
      targets: `[..., N]`, samples of the return.
    """
    count = quantiles.shape[-1]
    error = targets[..., None, :] - quantiles[..., :, None]
    size = jnp.abs(error)
    huber = jnp.where(size <= 1.0, 0.5 * error**2, size - 0.5)
    middles = (jnp.arange(count, dtype=jnp.float32) + 0.5) / count
    weight = jnp.abs(middles.reshape(*[1] * (error.ndim - 2), count, 1) - (error < 0.0).astype(jnp.float32))
    return jnp.sum(jnp.mean(weight * huber, axis=-1), axis=-1)


def value_loss(
    params: PyTree, network: QuantileNetwork, double: bool, state: DqnState, hyper: DqnHyper, batch: Transition
) -> tuple[Array, Metrics]:
    """The quantile loss of the actions' values (Dabney 2018, Algorithm 1; van Hasselt 2016, Eq. 4).

    Args:
      params: of the network being learned; the target network is taken from `state`.
      network: the network.
      double: whether the network chooses the next action, instead of the target network.
      state: the member's state.
      hyper: the member's hyper-parameters; its discount is `[]`, or `[B]` after several steps.
      batch: `Transition` of `[B, ...]`; bootstraps where `terminated` is False, so also at a truncation.

    Returns:
      Scalar `[]` in units of reward, and metrics `[]`: critic_loss and value.
    Deviation: none.
    """
    following = network.apply(state.target, batch.next_observation)
    choosing = network.values(state.network.params, batch.next_observation) if double else jnp.mean(following, axis=-1)
    best = jnp.argmax(discrete.available(choosing, batch.next_observation.action_mask), axis=-1)
    of_best = discrete.of_action(jnp.swapaxes(following, -1, -2), best[:, None])  # [B, N]
    discount = jnp.broadcast_to(hyper.discount, batch.reward.shape)[:, None]
    reward, terminated = (jnp.broadcast_to(part[:, None], of_best.shape) for part in (batch.reward, batch.terminated))
    target = returns.td_target(reward, terminated, discount, of_best)
    found = network.apply(params, batch.observation)
    chosen = discrete.of_action(jnp.swapaxes(found, -1, -2), batch.action[:, None])
    loss = jnp.mean(quantile_loss(chosen, jax.lax.stop_gradient(target)))
    return loss, {"critic_loss": loss, "value": jnp.mean(chosen)}


def init(network: networks.Network, key: Key) -> DqnParams:
    """Initialise the network."""
    return DqnParams(network.init(key))


def start(params: DqnParams) -> DqnState:
    """Return a state with a new optimiser, and a target network equal to the network."""
    target = jax.tree.map(jnp.copy, params.network)
    return DqnState(gradients.start(params.network), target, jnp.zeros((), jnp.int32))


def explore(
    network: QuantileNetwork, config: DqnConfig, state: DqnState, hyper: DqnHyper, observation: Observation, key: Key
) -> Array:
    """Draw an epsilon-greedy action, `[]` int32."""
    epsilon = discrete.exploration(hyper.epsilon, state.updates, config.exploration_updates)
    values = network.values(state.network.params, observation)
    return discrete.epsilon_greedy(values, observation.action_mask, epsilon, key)[0]


def act(network: QuantileNetwork, params: DqnParams, observation: Observation) -> Array:
    """Return the available action of the greatest value, `[]` int32; -1 if the values are not finite."""
    return discrete.greedy(network.values(params.network, observation), observation.action_mask)


def no_noise(key: Key, batch_size: int) -> tuple[()]:
    """An update consumes no random numbers."""
    del key, batch_size
    return ()


def update(
    network: QuantileNetwork,
    config: DqnConfig,
    state: DqnState,
    hyper: DqnHyper,
    batch: Transition,
    noise: tuple[()],
    step: Array,
) -> tuple[DqnState, Metrics]:
    """Apply one gradient step to the network, then move the target network (Mnih 2015, Algorithm 1).

    Args:
      network: the network.
      config: static settings.
      state: the state before the update.
      hyper: the member's hyper-parameters.
      batch: `Transition` of `[B, ...]`.
      noise: ().
      step: `[]`, the number of updates before this one.

    Returns:
      The new state, and metrics `[]`: critic_loss; value; exploration, the share of random actions.
    """
    del noise
    chex.assert_rank([batch.action, batch.reward], 1)
    loss = partial(value_loss, network=network, double=config.double, state=state, hyper=hyper, batch=batch)
    gradient, metrics = jax.grad(loss, has_aux=True)(state.network.params)
    learned = gradients.adam(state.network, gradient, hyper.learning_rate, hyper=hyper)
    target = gradients.polyak(state.target, learned.params, hyper.tau)
    if config.target_period > 1:
        due = (step + 1) % config.target_period == 0
        target = jax.tree.map(partial(jnp.where, due), target, state.target)
    explored = discrete.exploration(hyper.epsilon, state.updates, config.exploration_updates)
    updates = jnp.maximum(state.updates, jnp.asarray(step, jnp.int32) + 1)  # beyond int32 `step` begins below 0
    after = DqnState(learned, target, updates)
    return after, {**metrics, "exploration": explored}


def dqn(
    spec: EnvSpec,
    config: DqnConfig | None = None,
    encoder: networks.Encoder | EncoderName | None = None,
    **options: Any,
) -> OffPolicyAgent[DqnParams, DqnState, DqnHyper, tuple[()]]:
    """Build DQN for an environment with discrete actions: double Q-learning by default, dueling heads and quantiles.

    Args:
      spec: sizes of the observation and the action.
      config: widths and variants.
      encoder: a user-defined network that reads the features, see `rookery.agents.reader`, or the name of a built-in
        one, which is a field of the config.
      **options: fields of `DqnConfig`, instead of `config`.

    Raises:
      ValueError: the actions are continuous, the environment has skills or a memory, or the encoder cannot read the
        features.
      TypeError: both `config` and keywords are given, or a keyword that is not a field of `DqnConfig`.

    Example:
      >>> env = rookery.make("CartPole-v1")
      >>> agent = rookery.dqn(env.spec, dueling=True, quantiles=50)
    """
    encoder, options = apart(encoder, options)
    config = config_from(DqnConfig, config, options)
    check_spec(spec, "DQN")
    discrete.check_discrete(spec, "DQN")
    read = reader(spec, config.encoder, encoder, config.layer_norm)
    outputs = (spec.action_size + config.dueling) * config.quantiles
    single = read.network(networks.mlp((read.size,), config.hidden_sizes, outputs, layer_norm=config.layer_norm))
    network = QuantileNetwork(single, config.dueling, config.quantiles)
    return OffPolicyAgent(
        init=partial(init, single),
        start=start,
        explore=partial(explore, network, config),
        act=partial(act, network),
        noise=no_noise,
        update=partial(update, network, config),
        space=SPACE,
        encoded_size=read.encoded_size,
        sizes=spec.sizes,
        settings={"agent": read.described(named("dqn", config))},
    )
