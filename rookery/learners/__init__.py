"""Training loops of one member: an agent, its environments, and its replay buffer; or a policy that evolves."""

from rookery.learners.base import EvaluationConfig, Learner, Member, genotype
from rookery.learners.evolution import EvolutionConfig, evolution_strategy
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.learners.on_policy import OnPolicyConfig, on_policy
from rookery.learners.rollout import act
from rookery.learners.skills import freeze_skills
from rookery.learners.train import train

__all__ = [
    "EvaluationConfig",
    "EvolutionConfig",
    "Learner",
    "Member",
    "OffPolicyConfig",
    "OnPolicyConfig",
    "act",
    "evolution_strategy",
    "freeze_skills",
    "genotype",
    "off_policy",
    "on_policy",
    "train",
]
