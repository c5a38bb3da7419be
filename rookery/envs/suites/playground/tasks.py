"""The tasks of MuJoCo Playground, with their sizes for the registry."""

from typing import NamedTuple


class Sizes(NamedTuple):
    """Sizes of a task for the registry; a test compares them with the suite."""

    observation_size: int
    """O."""
    action_size: int
    """Number of dimensions."""
    episode_length: int = 1000
    """Time limit of the suite, in steps."""


CONTROL_SUITE = {
    "AcrobotSwingup": Sizes(6, 1),
    "AcrobotSwingupSparse": Sizes(6, 1),
    "BallInCup": Sizes(8, 2),
    "CartpoleBalance": Sizes(5, 1),
    "CartpoleBalanceSparse": Sizes(5, 1),
    "CartpoleSwingup": Sizes(5, 1),
    "CartpoleSwingupSparse": Sizes(5, 1),
    "CheetahRun": Sizes(17, 6),
    "FingerSpin": Sizes(9, 2),
    "FingerTurnEasy": Sizes(12, 2),
    "FingerTurnHard": Sizes(12, 2),
    "FishSwim": Sizes(24, 5),
    "HopperHop": Sizes(15, 4),
    "HopperStand": Sizes(15, 4),
    "HumanoidRun": Sizes(67, 21),
    "HumanoidStand": Sizes(67, 21),
    "HumanoidWalk": Sizes(67, 21),
    "PendulumSwingup": Sizes(3, 1),
    "PointMass": Sizes(4, 2),
    "ReacherEasy": Sizes(6, 2),
    "ReacherHard": Sizes(6, 2),
    "SwimmerSwimmer6": Sizes(25, 5),
    "WalkerRun": Sizes(24, 6),
    "WalkerStand": Sizes(24, 6),
    "WalkerWalk": Sizes(24, 6),
}
"""Tassa 2018, by MuJoCo Playground (Zakka 2025)."""

TASKS = {**CONTROL_SUITE}
