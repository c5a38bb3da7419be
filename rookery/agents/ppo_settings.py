"""What PPO can be told, and what is usual where it is told nothing: its config, its hyper-parameters, its defaults.

What is best differs between continuous and discrete actions, and so do the defaults: `CONTINUOUS`, `DISCRETE`, `TEAM`.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from rookery import distributions, hyperparams
from rookery.agents.base import check_hidden_sizes
from rookery.envs.base import EnvSpec
from rookery.types import Scalar


@dataclass(frozen=True)
class PpoConfig:
    """What decides shapes and trip counts, and so cannot evolve.

    Raises:
      ValueError: a count or a width below 1, or a spread that is not positive.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers of the policy and of the critic (at least 1)."""
    actor_epochs: int | None = None
    """Passes over each rollout that train the policy (at least 1); by default 10 where actions are continuous, 4 where
    they are discrete, and 4 in a team."""
    critic_epochs: int | None = None
    """Passes over each rollout that train the critic (at least 1); by default as many as the policy's default."""
    minibatches: int | None = None
    """Parts that each pass is cut into (at least 1); they must divide the rows of a rollout. By default 32 where
    actions are continuous, 16 where they are discrete, and 4 in a team or with a memory."""
    recurrent: bool = False
    """Give policy and critic a memory, a gated recurrent unit each; minibatches are then of whole sequences."""
    memory_size: int = 64
    """Width of each recurrent unit (at least 1)."""
    clip_value: bool = False
    """Clip how far an update can move the critic's values, by clip_epsilon."""
    normalize_rewards: bool = True
    """Divide rewards by the running standard deviation of discounted returns, and clip them to +-10."""
    initial_std: float = 1.0
    """Standard deviation of continuous actions at birth, in (0, 7.38]; it is learned, one for all observations."""
    anneal_updates: int | None = None
    """Updates over which both learning rates fall linearly to 0; with 0 they stay. By default all updates of the run,
    a longer one if it is resumed with more generations; but 0 in a team, where rates evolve or follow a schedule, and
    from Python, where nobody knows how long a run will be."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_hidden_sizes(self.hidden_sizes)
        for name in ("actor_epochs", "critic_epochs", "minibatches", "memory_size"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if not 0.0 < self.initial_std <= math.exp(distributions.LOG_STD_MAX):
            raise ValueError(f"initial_std must be above 0 and at most 7.38, got {self.initial_std}.")
        if self.anneal_updates is not None and self.anneal_updates < 0:
            raise ValueError(f"anneal_updates must not be negative, got {self.anneal_updates}.")


class PpoHyper(NamedTuple):
    """What can evolve; every field changes the agent. `SPACE` says what each means, and which do by default."""

    discount: Scalar = 0.99
    gae_lambda: Scalar = 0.95
    clip_epsilon: Scalar = 0.2
    entropy_coefficient: Scalar = 0.01
    value_coefficient: Scalar = 0.5
    kl_threshold: Scalar = 0.1
    actor_lr: Scalar = 2.5e-4
    critic_lr: Scalar = 2.5e-4
    max_grad_norm: Scalar = 0.5


_DOMAINS = {
    "discount": hyperparams.OneMinusLog(0.9, 0.999),
    "gae_lambda": hyperparams.OneMinusLog(0.8, 0.99),
    "clip_epsilon": hyperparams.Uniform(0.05, 0.4),
    "entropy_coefficient": hyperparams.LogUniform(1e-4, 1e-1),
    "actor_lr": hyperparams.LogUniform(3e-5, 3e-3),
    "critic_lr": hyperparams.LogUniform(3e-5, 3e-3),
}
_FIELDS = {
    "discount": hyperparams.Field("weight of the next step's value", hyperparams.OneMinusLog),
    "gae_lambda": hyperparams.Field("weight of later residuals in an advantage", hyperparams.OneMinusLog),
    "clip_epsilon": hyperparams.Field("how far from 1 the ratio of probabilities is rewarded", hyperparams.Uniform),
    "entropy_coefficient": hyperparams.Field("weight of the policy's entropy", hyperparams.LogUniform, zero=True),
    "value_coefficient": hyperparams.Field(
        "weight of the critic's loss, which moves the limit of its gradient's norm", hyperparams.LogUniform
    ),
    "kl_threshold": hyperparams.Field(
        "mean divergence from the acting policy, in nats, after which an epoch is the policy's last",
        hyperparams.Uniform,
    ),
    "actor_lr": hyperparams.Field("Adam's step size for the policy", hyperparams.LogUniform),
    "critic_lr": hyperparams.Field("Adam's step size for the critic", hyperparams.LogUniform),
    "max_grad_norm": hyperparams.Field("limit of the norm of each network's gradient", hyperparams.LogUniform),
}
SPACE = hyperparams.space(PpoHyper(), _DOMAINS, _FIELDS)


class Usual(NamedTuple):
    """What is usual for environments of one kind, where a config leaves it open."""

    epochs: int
    minibatches: int
    normalize_observations: bool
    space: hyperparams.Space


CONTINUOUS = Usual(
    epochs=10,
    minibatches=32,
    normalize_observations=True,
    space=hyperparams.space(
        PpoHyper(entropy_coefficient=0.0, actor_lr=3e-4, critic_lr=3e-4),
        {name: domain for name, domain in _DOMAINS.items() if name != "entropy_coefficient"},
        _FIELDS,
    ),
)
"""Those of CleanRL's `ppo_continuous_action.py` (Huang 2022, JMLR 23), after Schulman 2017, Table 3: 10 epochs of 32
minibatches over 2,048 steps, Adam's rate 3e-4, no entropy bonus, observations and rewards normalised.

Deviations: CleanRL acts in one environment, here in 16 for 128 steps each; it clips values, which Andrychowicz 2021
(arXiv:2006.05990) finds to harm, and normalised observations to +-10, here +-5. Brax's training of its locomotion tasks
normalises observations too, with the same rate, but is made for thousands of environments.
"""
DISCRETE = Usual(
    epochs=4,
    minibatches=16,
    normalize_observations=True,
    space=hyperparams.space(PpoHyper(actor_lr=1e-3, critic_lr=1e-3), _DOMAINS, _FIELDS),
)
"""Those of CleanRL's `ppo.py` (Huang 2022, JMLR 23): 4 epochs, minibatches of 128 steps, an entropy bonus of 0.01.

Deviations: Adam's rate is 1e-3, that of RL Baselines3 Zoo for CartPole, in place of 2.5e-4; observations and rewards
are normalised; values are not clipped; the rollout is of 2,048 steps in place of 512.
"""
TEAM = Usual(epochs=4, minibatches=4, normalize_observations=False, space=SPACE)
"""Of each agent of a team, whatever its actions: 4 epochs of 4 minibatches, Adam's rate 2.5e-4 and an entropy bonus of
0.01, as CleanRL's `ppo.py` has them (Huang 2022, JMLR 23). No rate falls, since what is best to do changes as the
others learn, and observations are as the environment gives them.

Deviation: rewards are normalised. They differ between tasks by orders of magnitude (in a pursuit one step gives 1 or
-100), and at this rate a critic of returns in the hundreds takes more than a million steps to get there.
"""
_RECURRENT_MINIBATCHES = 4  # of whole sequences, of which there are only as many as environments


def usual(spec: EnvSpec) -> Usual:
    """The defaults for an environment: a team's, or by the kind of its actions."""
    if spec.team is not None:
        return TEAM
    return DISCRETE if spec.discrete else CONTINUOUS


class Passes(NamedTuple):
    """The fields of a config that it may leave open, settled; named as they are there."""

    actor_epochs: int
    critic_epochs: int
    minibatches: int


def settled(config: PpoConfig, spec: EnvSpec, sequences: int | None = None) -> Passes:
    """What a config says, or else what is usual for an environment.

    Args:
      config: fields that are None are left open.
      spec: of the environment.
      sequences: what minibatches are cut from: steps of a rollout, or with a memory environments; if it is given, a
        number of minibatches that is left open is the largest that divides it, the usual one at most.
    """
    own = usual(spec)
    minibatches = config.minibatches
    if minibatches is None:
        minibatches = _RECURRENT_MINIBATCHES if config.recurrent else own.minibatches
        if sequences is not None:
            # With two steps or more in each, or there is no spread to normalise advantages by.
            most = max(1, min(minibatches, sequences if config.recurrent else sequences // 2))
            minibatches = next(count for count in range(most, 0, -1) if sequences % count == 0)
    return Passes(
        actor_epochs=own.epochs if config.actor_epochs is None else config.actor_epochs,
        critic_epochs=own.epochs if config.critic_epochs is None else config.critic_epochs,
        minibatches=minibatches,
    )
