"""Configurations of SAC, TD3, their populations and DIAYN, in QDax's documented form."""

from dataclasses import dataclass

__all__ = ["DiaynConfig", "PBTSacConfig", "PBTTD3Config", "SacConfig", "TD3Config"]


@dataclass(frozen=True)
class PBTSacConfig:
    """Configuration of a population of SAC agents; the other hyper-parameters are evolved."""

    batch_size: int
    episode_length: int
    tau: float = 0.005
    normalize_observations: bool = False
    alpha_init: float = 1.0
    policy_hidden_layer_size: tuple[int, ...] = (256, 256)
    critic_hidden_layer_size: tuple[int, ...] = (256, 256)
    fix_alpha: bool = False


@dataclass(frozen=True)
class SacConfig:
    """Configuration of one SAC agent."""

    batch_size: int
    episode_length: int
    tau: float = 0.005
    normalize_observations: bool = False
    learning_rate: float = 3e-4
    alpha_init: float = 1.0
    discount: float = 0.97
    reward_scaling: float = 1.0
    critic_hidden_layer_size: tuple[int, ...] = (256, 256)
    policy_hidden_layer_size: tuple[int, ...] = (256, 256)
    fix_alpha: bool = False


@dataclass(frozen=True)
class DiaynConfig(SacConfig):
    """Configuration of DIAYN with SAC; the discriminator has the hidden layer sizes of the critics."""

    num_skills: int = 5
    descriptor_full_state: bool = False


@dataclass(frozen=True)
class PBTTD3Config:
    """Configuration of a population of TD3 agents; the other hyper-parameters are evolved."""

    episode_length: int = 1000
    batch_size: int = 256
    policy_delay: int = 2
    reward_scaling: float = 1.0
    soft_tau_update: float = 0.005
    critic_hidden_layer_size: tuple[int, ...] = (256, 256)
    policy_hidden_layer_size: tuple[int, ...] = (256, 256)


@dataclass(frozen=True)
class TD3Config:
    """Configuration of one TD3 agent."""

    episode_length: int = 1000
    batch_size: int = 256
    policy_delay: int = 2
    soft_tau_update: float = 0.005
    expl_noise: float = 0.1
    critic_hidden_layer_size: tuple[int, ...] = (256, 256)
    policy_hidden_layer_size: tuple[int, ...] = (256, 256)
    critic_learning_rate: float = 3e-4
    policy_learning_rate: float = 3e-4
    discount: float = 0.99
    noise_clip: float = 0.5
    policy_noise: float = 0.2
    reward_scaling: float = 1.0
