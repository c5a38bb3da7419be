"""PPO's config, hyper-parameters and defaults.

The best defaults differ between continuous actions, discrete actions and teams: `CONTINUOUS`, `DISCRETE`, `TEAM`.
"""

import collections
import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from rookery import distributions, gradients, hyperparams, networks
from rookery.agents.encoders import EncoderName
from rookery.agents.minibatch import EPSILON
from rookery.envs.base import EnvSpec
from rookery.hyperparams import Choice, Field, LogUniform, OneMinusLog, Uniform, Whole
from rookery.settings import Within, check_fields
from rookery.types import Scalar


@dataclass(frozen=True)
class PpoConfig:
    """Static settings of PPO: network shapes and trip counts, which cannot evolve.

    Raises:
      ValueError: a count or a width below 1, or a standard deviation out of range.
    """

    hidden_sizes: Annotated[tuple[int, ...], Within(1)] = (64, 64)
    """Widths of the hidden layers of the policy and of the critic."""
    hidden_activation: Literal["tanh", "relu", "silu", "elu"] = "tanh"
    """Activation of the hidden layers; with a memory it is tanh."""
    actor_epochs: Annotated[int | None, Within(1)] = None
    """Epochs over each rollout that train the policy; by default 10 for continuous actions, 4 for discrete actions, and
    4 in a team."""
    critic_epochs: Annotated[int | None, Within(1)] = None
    """Epochs over each rollout that train the critic; by default the policy's default."""
    minibatches: Annotated[int | None, Within(1)] = None
    """Minibatches per epoch; must divide the rows of a rollout. By default 32 for continuous actions, 16 for discrete
    actions, and 4 in a team or with a memory."""
    encoder: EncoderName = "auto"
    """How the networks read observations: nature or small, convolutional encoders of images (Mnih 2015; MinAtar, Young
    2019); none, as a vector; auto, by the size of the image, and none for vectors."""
    recurrent: bool = False
    """Give the policy and the critic a memory, a gated recurrent unit each; minibatches then contain whole
    sequences."""
    memory_size: Annotated[int, Within(1)] = 64
    """Width of each recurrent unit."""
    clip_value: bool = False
    """Clip the change of the critic's values in an update to clip_epsilon."""
    normalize_rewards: bool = True
    """Divide rewards by the running standard deviation of discounted returns, and clip them to +-10."""
    initial_std: Annotated[float, Within(0, math.exp(distributions.LOG_STD_MAX), excluded=(0,))] = 1.0
    """Initial standard deviation of continuous actions; it is learned, independent of the observation."""
    anneal_updates: Annotated[int | None, Within(0)] = None
    """Updates over which both learning rates fall linearly to 0; with 0 they stay constant. The command line's default
    is all updates of the run (also after resuming with more generations), but 0 in a team, where the rates evolve or
    follow a schedule. The default of the Python API is 0, since it has no run length."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)


class PpoHyper(NamedTuple):
    """Hyper-parameters that can evolve; each one changes the agent's update."""

    discount: Annotated[Scalar, Field("discount factor of future rewards", OneMinusLog(0.9, 0.999))] = 0.99
    gae_lambda: Annotated[Scalar, Field("lambda of generalised advantage estimation", OneMinusLog(0.8, 0.99))] = 0.95
    clip_epsilon: Annotated[Scalar, Field("clipping range of the probability ratio around 1", Uniform(0.05, 0.4))] = 0.2
    entropy_coefficient: Annotated[
        Scalar, Field("weight of the policy's entropy bonus", LogUniform(1e-4, 1e-1), zero=True)
    ] = 0.01
    value_coefficient: Annotated[
        Scalar, Field("weight of the critic's loss, applied before its gradient norm is clipped", LogUniform)
    ] = 0.5
    kl_threshold: Annotated[
        Scalar,
        Field("mean KL divergence from the acting policy, in nats, above which the policy's epochs stop", Uniform),
    ] = 0.1
    actor_lr: Annotated[Scalar, Field("learning rate of the policy", LogUniform(3e-5, 3e-3))] = 2.5e-4
    critic_lr: Annotated[Scalar, Field("learning rate of the critic", LogUniform(3e-5, 3e-3))] = 2.5e-4
    max_grad_norm: Annotated[Scalar, Field("maximum global norm of each network's gradient", LogUniform)] = 0.5


class PpoOptional(NamedTuple):
    """Further hyper-parameters, which a member has if they are chosen."""

    advantages: Annotated[Scalar, Field("advantages of a minibatch", Choice("normalized", "plain"), evolves=False)] = (
        0.0
    )
    value_clipping: Annotated[
        Scalar, Field("clipping of the values' change by clip_epsilon", Choice("off", "on"), evolves=False)
    ] = 0.0


SPACE = hyperparams.declared(PpoHyper)


def optional_space(epochs: int, activation: str | None = None) -> hyperparams.Space:
    """The hyper-parameters that a member has if they are chosen.

    Args:
      epochs: the largest number in an update.
      activation: of the hidden layers by default; None if all members have the same.
    """
    adam = gradients.ADAM._replace(defaults=gradients.AdamHyper(adam_epsilon=EPSILON))
    space = hyperparams.join(hyperparams.declared(PpoOptional), adam)
    if activation is not None:
        field = Field("activation of the hidden layers", Choice(*networks.ACTIVATIONS), evolves=False)
        default = collections.namedtuple("Activation", ["activation"])(float([*networks.ACTIVATIONS].index(activation)))
        space = hyperparams.join(space, hyperparams.space(default, {}, {"activation": field}))
    if epochs == 1:
        return space
    most = "use larger actor_epochs and critic_epochs"
    field = Field("epochs over each rollout", Whole(1, epochs), low=1.0, high=epochs, remedy=most, evolves=False)
    kind = collections.namedtuple("Epochs", ["epochs"])
    return hyperparams.join(space, hyperparams.space(kind(float(epochs)), {}, {"epochs": field}))


class PpoDefaults(NamedTuple):
    """Defaults for one kind of environment, used where a config is None."""

    epochs: int
    minibatches: int
    normalize_observations: bool
    space: hyperparams.Space[PpoHyper]


CONTINUOUS = PpoDefaults(
    epochs=10,
    minibatches=32,
    normalize_observations=True,
    space=hyperparams.choose(
        SPACE._replace(defaults=PpoHyper(actor_lr=3e-4, critic_lr=3e-4), optional=optional_space(10, "tanh")),
        entropy_coefficient=0.0,
    ),
)
"""Defaults of CleanRL's `ppo_continuous_action.py` (Huang 2022, JMLR 23), after Schulman 2017, Table 3: 10 epochs of 32
minibatches over 2,048 steps, learning rate 3e-4, no entropy bonus, normalised observations and rewards.

Deviations: CleanRL uses one environment, here 16 with 128 steps each; it clips values, which Andrychowicz 2021
(arXiv:2006.05990) finds harmful. Brax's training of its locomotion tasks also normalises observations and uses the same
learning rate, but is tuned for thousands of environments."""
DISCRETE = PpoDefaults(
    epochs=4,
    minibatches=16,
    normalize_observations=True,
    space=SPACE._replace(defaults=PpoHyper(actor_lr=1e-3, critic_lr=1e-3), optional=optional_space(4, "tanh")),
)
"""Defaults of CleanRL's `ppo.py` (Huang 2022, JMLR 23): 4 epochs, minibatches of 128 steps, entropy bonus 0.01.

Deviations: the learning rate is 1e-3, that of RL Baselines3 Zoo for CartPole, instead of 2.5e-4; observations and
rewards are normalised; values are not clipped; a rollout has 2,048 steps instead of 512."""
TEAM = PpoDefaults(
    epochs=4, minibatches=4, normalize_observations=False, space=SPACE._replace(optional=optional_space(4))
)
"""Defaults for each agent of a team with any kind of actions, from CleanRL's `ppo.py` (Huang 2022, JMLR 23): 4 epochs
of 4 minibatches, learning rate 2.5e-4, entropy bonus 0.01. Learning rates are not annealed, since the best response
changes while the other agents learn, and observations are not normalised.

Deviation: rewards are normalised. They differ between tasks by orders of magnitude (in a pursuit one step gives 1 or
-100), and at this learning rate a critic needs more than a million steps to fit returns in the hundreds."""
_RECURRENT_MINIBATCHES = 4  # few, since minibatches hold whole sequences and a rollout has one per environment


def environment_defaults(spec: EnvSpec) -> PpoDefaults:
    """Return the defaults for an environment: those of a team, or by the kind of its actions."""
    if spec.team is not None:
        return TEAM
    return DISCRETE if spec.discrete else CONTINUOUS


class Passes(NamedTuple):
    """Epochs and minibatches of an update, with the defaults filled in; the field names are those of the config."""

    actor_epochs: int
    critic_epochs: int
    minibatches: int


def resolve_defaults(config: PpoConfig, spec: EnvSpec, sequences: int | None = None) -> Passes:
    """Return the epochs and minibatches of a config, with the environment's defaults filled in.

    Args:
      config: fields that are None take their defaults.
      spec: spec of the environment.
      sequences: number of items that are split into minibatches: steps of a rollout, or environments if there is a
        memory. If given, a default number of minibatches is reduced to the largest number that divides it.
    """
    defaults = environment_defaults(spec)
    minibatches = config.minibatches
    if minibatches is None:
        minibatches = _RECURRENT_MINIBATCHES if config.recurrent else defaults.minibatches
        if sequences is not None:
            # Each minibatch needs at least two steps, to normalise advantages by their standard deviation.
            maximum = max(1, min(minibatches, sequences if config.recurrent else sequences // 2))
            minibatches = next(count for count in range(maximum, 0, -1) if sequences % count == 0)
    return Passes(
        actor_epochs=defaults.epochs if config.actor_epochs is None else config.actor_epochs,
        critic_epochs=defaults.epochs if config.critic_epochs is None else config.critic_epochs,
        minibatches=minibatches,
    )
