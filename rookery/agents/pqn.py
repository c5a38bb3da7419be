"""Parallelised Q-network (PQN): Q-learning from the latest rollout, without a replay buffer and without targets.

Source: Gallici 2024, "Simplifying Deep Temporal Difference Learning" (arXiv:2407.04811), Algorithm 1 with Q(lambda) of
Peng 1996. Layer normalisation in every hidden layer stands in for the target network. Defaults are the authors'
settings for CartPole-v1 (their repository's configuration of Gymnax tasks); those of MinAtar are in the guide.

Deviations: a truncated step bootstraps from its true successor, where the authors treat it as a termination; rates are
annealed by updates instead of gradient steps, as those of PPO; a network has no memory.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rookery import gradients, hyperparams, networks, normalize, returns, trees
from rookery.agents import backend, discrete
from rookery.agents.base import OnPolicyAgent, check_spec
from rookery.agents.encoders import EncoderName, apart, reader
from rookery.agents.minibatch import UpdateSpec, annealed, epoch, shuffle
from rookery.envs.base import EnvSpec
from rookery.hyperparams import Field, LogUniform, OneMinusLog
from rookery.settings import FRACTION, Within, check_fields, config_from
from rookery.types import Array, Key, Metrics, Observation, PyTree, Scalar, Transition, named


@dataclass(frozen=True)
class PqnConfig:
    """Static settings of PQN: network shapes and trip counts, which cannot evolve.

    Raises:
      ValueError: a count or a width below 1, or a share outside of [0, 1].
    """

    hidden_sizes: Annotated[tuple[int, ...] | None, Within(1)] = None
    """Widths of the hidden layers, each with layer normalisation, by default 256 256; of simba the blocks' widths, by
    default 512 512."""
    epochs: Annotated[int, Within(1)] = 4
    """Epochs over each rollout."""
    minibatches: Annotated[int, Within(1)] = 16
    """Minibatches per epoch; must divide the rows of a rollout."""
    encoder: EncoderName = "auto"
    """How the network reads observations: nature or small, convolutional encoders of images (Mnih 2015; MinAtar, Young
    2019) with layer normalisation; none, as a vector; auto, by the size of the image, and none for vectors."""
    network: networks.NetworkName = "mlp"
    """mlp, dense layers; simba, residual blocks (Lee 2024, arXiv:2410.09754), with which observations are normalised,
    and weight_decay is 0.01."""
    exploration_share: Annotated[float, FRACTION] = 0.2
    """Share of the run's updates over which the share of random actions falls linearly from 1 to epsilon."""
    exploration_updates: Annotated[int | None, Within(0)] = None
    """Number of these updates, instead of a share; with 0 the share of random actions is epsilon from the start. The
    default of the Python API is 0, since it has no run length."""
    anneal_updates: Annotated[int | None, Within(0)] = None
    """Updates over which the learning rate falls linearly to 0; with 0 it stays constant. The command line's default is
    all updates of the run (also after resuming with more generations), but 0 in a population that evolves and in a
    team. The default of the Python API is 0, since it has no run length."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)


class PqnHyper(NamedTuple):
    """Hyper-parameters that can evolve; each one changes the agent's update or its exploration."""

    discount: Annotated[Scalar, Field("discount factor of future rewards", OneMinusLog(0.9, 0.999))] = 0.99
    q_lambda: Annotated[Scalar, Field("lambda of the returns that values are learned from", OneMinusLog(0.5, 0.99))] = (
        0.95
    )
    learning_rate: Annotated[Scalar, Field("learning rate", LogUniform(3e-5, 3e-3))] = 1e-4
    epsilon: Annotated[
        Scalar, Field("share of random actions after it has fallen", LogUniform(0.01, 0.5), high=1.0, zero=True)
    ] = 0.2
    reward_scaling: Annotated[Scalar, Field("factor that multiplies the reward", LogUniform)] = 0.1
    max_grad_norm: Annotated[Scalar, Field("maximum global norm of the gradient", LogUniform)] = 10.0


SPACE = hyperparams.declared(PqnHyper)._replace(optional=gradients.ADAM)


class PqnState(NamedTuple):
    """The learned state of one member."""

    network: gradients.Learned
    updates: Array
    """`[]` int32, updates of the run so far, which exploration depends on; a state that begins anew within a run acts
    as if none were made until its first update."""

    @property
    def params(self) -> PyTree:
        """The parameters of the network, which can be copied into other members."""
        return self.network.params


class Rows(NamedTuple):
    """The data of one epoch, `[B, ...]`."""

    observation: Observation
    action: Array
    target: Array
    """Q(lambda) return of the action, in units of scaled reward."""
    counts: Array
    """bool: whether the row is used."""


def prepare_rows(network: networks.Network, params: PyTree, hyper: PqnHyper, batch: Transition) -> Rows:
    """The rows of a rollout `[T, E, ...]`, with the targets of their values (Gallici 2024, section 4)."""
    values = network.apply(params, batch.next_observation)
    best = jnp.max(discrete.available(values, batch.next_observation.action_mask), axis=-1)
    reward, ends = batch.reward * hyper.reward_scaling, (batch.terminated, batch.extras.ended)
    target = returns.lambda_return(reward, *ends, best, hyper.discount, hyper.q_lambda)
    rows = Rows(batch.observation, batch.action, target, batch.extras.counts)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows)


def value_loss(params: PyTree, network: networks.Network, rows: Rows) -> tuple[Array, Metrics]:
    """Half the mean squared error of the values (Gallici 2024, Algorithm 1).

    Args:
      params: of the network being learned.
      network: the network.
      rows: `[B, ...]`.

    Returns:
      Scalar `[]` in squared units of scaled reward, and metrics `[]`: critic_loss and value.
    Deviation: none.
    """
    value = discrete.of_action(network.apply(params, rows.observation), rows.action)
    loss = 0.5 * normalize.mean_of(rows.counts, (value - rows.target) ** 2)
    return loss, {"critic_loss": loss, "value": normalize.mean_of(rows.counts, value)}


def start(params: PyTree) -> PqnState:
    """Return a state with a new optimiser, before its first update."""
    return PqnState(gradients.start(params), jnp.zeros((), jnp.int32))


def explore(
    network: networks.Network,
    config: PqnConfig,
    state: PqnState,
    hyper: PqnHyper,
    observation: Observation,
    key: Key,
) -> tuple[Array, Array]:
    """Draw an epsilon-greedy action, `[]` int32; returns it with the log of its probability, `[]`."""
    epsilon = discrete.exploration(hyper.epsilon, state.updates, config.exploration_updates)
    values = network.apply(state.params, observation)
    return discrete.epsilon_greedy(values, observation.action_mask, epsilon, key)


def act(network: networks.Network, params: PyTree, observation: Observation) -> Array:
    """Return the available action of the greatest value, `[]` int32; -1 if the values are not finite."""
    return discrete.greedy(network.apply(params, observation), observation.action_mask)


def update(
    network: networks.Network,
    config: PqnConfig,
    state: PqnState,
    hyper: PqnHyper,
    batch: Transition,
    key: Key,
    step: Array,
) -> tuple[PqnState, Metrics]:
    """Train for all epochs on one rollout (Gallici 2024, Algorithm 1).

    Args:
      network: the network.
      config: static settings.
      state: the state before the update.
      hyper: the member's hyper-parameters.
      batch: `Transition` of `[T, E, ...]` with extras `RolloutExtras`; bootstraps from the true successor wherever
        `terminated` is False, also at a truncation and at the end of the rollout.
      key: consumed; each epoch shuffles the rows with a separate key.
      step: `[]`, updates before this one, for the schedules.

    Returns:
      The new state, and metrics `[]`, averaged over the minibatches: critic_loss, value; and exploration, the share of
      random actions in the rollout.
    Deviation: targets are those of the parameters before the update, as in the authors' code, not recomputed for each
    minibatch.
    """
    chex.assert_rank([batch.action, batch.reward], 2)
    rows = prepare_rows(network, state.params, hyper, batch)
    shuffled = jax.vmap(partial(shuffle, len(rows.target)))(jax.random.split(key, config.epochs))
    shuffled = shuffled.reshape(config.epochs, config.minibatches, -1)

    def descend(learned: gradients.Learned, gradient: PyTree) -> gradients.Learned:
        gradient = gradients.clip_norm(gradient, hyper.max_grad_norm)
        rate = hyper.learning_rate * annealed(step, config.anneal_updates)
        return gradients.adam(learned, gradient, rate, hyper=hyper, rectified=True)

    spec = UpdateSpec(partial(value_loss, network=network), descend, partial(trees.take, rows))
    learned, metrics = jax.lax.scan(partial(epoch, spec), state.network, shuffled)
    explored = discrete.exploration(hyper.epsilon, state.updates, config.exploration_updates)
    metrics = {**jax.tree.map(jnp.mean, metrics), "exploration": explored}
    return PqnState(learned, jnp.asarray(step, jnp.int32) + 1), metrics


def pqn(
    spec: EnvSpec,
    config: PqnConfig | None = None,
    encoder: networks.Encoder | EncoderName | None = None,
    **options: Any,
) -> OnPolicyAgent[PyTree, PqnState, PqnHyper]:
    """Build PQN for an environment with discrete actions.

    For a team's environment, the result is the agent of one role, as that of `rookery.ppo`.

    Args:
      spec: sizes of the observation and the action.
      config: widths, epochs and minibatches; the authors' by default.
      encoder: a user-defined network that reads the features, see `rookery.agents.reader`, or the name of a built-in
        one, which is a field of the config.
      **options: fields of `PqnConfig`, instead of `config`.

    Raises:
      ValueError: the actions are continuous, the environment has skills or a memory, or the encoder cannot read the
        features.
      TypeError: both `config` and keywords are given, or a keyword that is not a field of `PqnConfig`.

    Example:
      >>> env = rookery.make("CartPole-v1")
      >>> learner = rookery.on_policy(rookery.pqn(env.spec), env, num_envs=32, rollout_length=64)
    """
    encoder, options = apart(encoder, options)
    config = networks.filled(config_from(PqnConfig, config, options))
    check_spec(spec, "PQN")
    discrete.check_discrete(spec, "PQN")
    read, kind = reader(spec, config.encoder, encoder, layer_norm=True), networks.NETWORKS[config.network]
    network = read.network(kind.normalized((read.size,), config.hidden_sizes, spec.action_size))
    return OnPolicyAgent(
        init=network.init,
        start=start,
        explore=partial(explore, network, config),
        act=partial(act, network),
        update=backend.in_chunks(partial(update, network, config)),
        space=networks.space_of(SPACE, config),
        normalize=kind.normalize,
        minibatches=config.minibatches,
        sizes=spec.sizes,
        settings={"agent": read.described(named("pqn", config))},
    )
