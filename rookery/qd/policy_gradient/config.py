"""The settings of PGA-ME and DCRL-ME."""

from dataclasses import dataclass
from typing import Annotated

from rookery.agents.td3 import Td3Config, Td3Hyper
from rookery.qd.scoring import PolicyConfig
from rookery.settings import FRACTION, POSITIVE, SettingError, Within, check_fields


@dataclass(frozen=True)
class PgaMeConfig:
    """The critics, the gradient steps, and how the batch of a generation is divided.

    Raises:
      ValueError: a count below 1, or a share or a rate out of its range.
    """

    critic_steps: Annotated[int, Within(1)] = 300
    """Updates of the critics, and of the actor that is trained with them, in each generation."""
    policy_gradient_steps: Annotated[int, Within(1)] = 100
    """Gradient steps of each policy that is varied by the critic."""
    gradient_batch_size: Annotated[int, Within(1)] = 256
    """Transitions in each update of the critics and each gradient step of a policy."""
    buffer_size: Annotated[int, Within(1)] = 1_000_000
    """Transitions in the replay buffer (at least those of one generation: batch_size x eval_episodes x the length of an
    episode)."""
    variation_share: Annotated[float, Within(0, 1, excluded=(0, 1))] = 0.5
    """Share of the batch that is created by iso+line variation; gradient steps create the rest."""
    critic_hidden_sizes: Annotated[tuple[int, ...], Within(1)] = (256, 256)
    """Widths of the hidden layers of each critic."""
    policy_delay: Annotated[int, Within(1)] = 2
    """Updates of the critics per update of the actor and of all targets."""
    critic_lr: Annotated[float, POSITIVE] = 3e-4
    """Learning rate of the critics."""
    actor_lr: Annotated[float, POSITIVE] = 3e-4
    """Learning rate of the actor that is trained with the critics."""
    policy_lr: Annotated[float, POSITIVE] = 1e-3
    """Learning rate of the gradient steps of policies."""
    discount: Annotated[float, FRACTION] = 0.99
    """Discount factor of future rewards."""
    reward_scaling: Annotated[float, POSITIVE] = 1.0
    """Factor that multiplies the reward."""
    policy_noise: Annotated[float, Within(0)] = 0.2
    """Standard deviation of the noise on the target policy's actions."""
    noise_clip: Annotated[float, Within(0)] = 0.5
    """Clipping bound of that noise."""
    tau: Annotated[float, Within(0, 1, excluded=(0,))] = 0.005
    """Polyak averaging rate of the target networks per delayed update."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)

    @property
    def hyper(self) -> Td3Hyper:
        """The hyper-parameters of TD3."""
        return Td3Hyper(
            discount=self.discount,
            policy_lr=self.actor_lr,
            critic_lr=self.critic_lr,
            policy_noise=self.policy_noise,
            noise_clip=self.noise_clip,
            reward_scaling=self.reward_scaling,
            tau=self.tau,
        )

    def td3(self, policy: PolicyConfig) -> Td3Config:
        """The static settings of TD3 with an actor of the same network as the policies."""
        return Td3Config(policy.hidden_sizes, self.critic_hidden_sizes, self.policy_delay, 1.0, policy.encoder)


@dataclass(frozen=True)
class DcrlMeConfig(PgaMeConfig):
    """The descriptor-conditioned critics, the gradient steps, and how the batch of a generation is divided.

    Raises:
      ValueError: a count below 1, or a share or a rate out of its range.
    """

    critic_steps: Annotated[int, Within(1)] = 3_000
    """Updates of the critics, and of the actor that is trained with them, in each generation."""
    policy_gradient_steps: Annotated[int, Within(1)] = 150
    """Gradient steps of each policy that is varied by the critic."""
    gradient_batch_size: Annotated[int, Within(1)] = 100
    """Transitions in each update of the critics and each gradient step of a policy."""
    actor_share: float = 0.25
    """Share of the batch that is the actor, conditioned on the descriptors of random elites, in (0, 1 -
    variation_share)."""
    length_scale: Annotated[float, POSITIVE] = 0.1
    """l of the similarity `exp(-|d - d'| / l)` that scales a reward, for descriptors scaled to [-1, 1]."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        PgaMeConfig.__post_init__(self)
        if not 0.0 < self.actor_share < 1.0 - self.variation_share:
            problem = f"must lie in (0, {1.0 - self.variation_share:g}), below what {{variation_share}} leaves"
            raise SettingError("actor_share", self.actor_share, problem)
