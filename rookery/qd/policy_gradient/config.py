"""The settings of PGA-ME and DCRL-ME."""

from dataclasses import dataclass
from typing import Annotated

from rookery.agents.td3 import Td3Config, Td3Hyper
from rookery.factories import Within, check_fields
from rookery.qd.scoring import PolicyConfig


@dataclass(frozen=True)
class PgaMeConfig:
    """The critics, the gradient steps, and how the batch of a generation is divided.

    Raises:
      ValueError: a count below 1, or a share or a rate out of its range.
    """

    critic_steps: Annotated[int, Within(1)] = 300
    """Updates of the critics, and of the actor that is trained with them, in each generation (at least 1)."""
    policy_gradient_steps: Annotated[int, Within(1)] = 100
    """Gradient steps of each policy that is varied by the critic (at least 1)."""
    gradient_batch_size: Annotated[int, Within(1)] = 256
    """Transitions in each update of the critics and each gradient step of a policy (at least 1)."""
    buffer_size: Annotated[int, Within(1)] = 1_000_000
    """Transitions in the replay buffer (at least those of one generation: batch_size x eval_episodes x the length of an
    episode)."""
    variation_share: float = 0.5
    """Share of the batch that is created by iso+line variation, in (0, 1); gradient steps create the rest."""
    critic_hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of each critic (each at least 1)."""
    policy_delay: Annotated[int, Within(1)] = 2
    """Updates of the critics per update of the actor and of all targets (at least 1)."""
    critic_lr: float = 3e-4
    """Learning rate of the critics (above 0)."""
    actor_lr: float = 3e-4
    """Learning rate of the actor that is trained with the critics (above 0)."""
    policy_lr: float = 1e-3
    """Learning rate of the gradient steps of policies (above 0)."""
    discount: float = 0.99
    """Discount factor of future rewards, in [0, 1]."""
    reward_scaling: float = 1.0
    """Factor that multiplies the reward (above 0)."""
    policy_noise: float = 0.2
    """Standard deviation of the noise on the target policy's actions (at least 0)."""
    noise_clip: float = 0.5
    """Clipping bound of that noise (at least 0)."""
    tau: float = 0.005
    """Polyak averaging rate of the target networks per delayed update, in (0, 1]."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)
        for name in ("critic_lr", "actor_lr", "policy_lr", "reward_scaling", "tau"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}.")
        for name in ("policy_noise", "noise_clip"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}.")
        for name in ("discount", "tau"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}.")
        if not 0.0 < self.variation_share < 1.0:
            raise ValueError(f"variation_share must lie in (0, 1), got {self.variation_share}.")

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
    """Updates of the critics, and of the actor that is trained with them, in each generation (at least 1)."""
    policy_gradient_steps: Annotated[int, Within(1)] = 150
    """Gradient steps of each policy that is varied by the critic (at least 1)."""
    gradient_batch_size: Annotated[int, Within(1)] = 100
    """Transitions in each update of the critics and each gradient step of a policy (at least 1)."""
    actor_share: float = 0.25
    """Share of the batch that is the actor, conditioned on the descriptors of random elites, in (0, 1 -
    variation_share)."""
    length_scale: float = 0.1
    """l of the similarity `exp(-|d - d'| / l)` that scales a reward, for descriptors scaled to [-1, 1] (above 0)."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        PgaMeConfig.__post_init__(self)
        if not self.length_scale > 0:
            raise ValueError(f"length_scale must be above 0, got {self.length_scale}.")
        if not 0.0 < self.actor_share < 1.0 - self.variation_share:
            raise ValueError(
                f"actor_share must lie in (0, {1.0 - self.variation_share:g}), below what variation_share leaves, got "
                f"{self.actor_share}."
            )
