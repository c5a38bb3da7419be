"""The tasks of MuJoCo Playground, with their sizes for the registry."""

from typing import NamedTuple


class Sizes(NamedTuple):
    """Sizes of a task for the registry; a test compares them with the suite."""

    observation_size: int  # O
    action_size: int  # number of dimensions
    episode_length: int = 1000  # time limit of the suite, in steps
    randomized: bool = False  # whether the suite has a function that randomises the physics


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


LOCOMOTION = {
    "ApolloJoystickFlatTerrain": Sizes(112, 32),
    "BarkourJoystick": Sizes(465, 12),
    "BerkeleyHumanoidJoystickFlatTerrain": Sizes(52, 12, randomized=True),
    "BerkeleyHumanoidJoystickRoughTerrain": Sizes(52, 12, randomized=True),
    "G1JoystickFlatTerrain": Sizes(103, 29, randomized=True),
    "G1JoystickRoughTerrain": Sizes(103, 29, randomized=True),
    "Go1Footstand": Sizes(45, 12, 500, randomized=True),
    "Go1Getup": Sizes(42, 12, 300, randomized=True),
    "Go1Handstand": Sizes(45, 12, 500, randomized=True),
    "Go1JoystickFlatTerrain": Sizes(48, 12, randomized=True),
    "Go1JoystickRoughTerrain": Sizes(48, 12, randomized=True),
    "H1InplaceGaitTracking": Sizes(186, 19),
    "H1JoystickGaitTracking": Sizes(113, 19),
    "Op3Joystick": Sizes(147, 20),
    "SpotFlatTerrainJoystick": Sizes(81, 12),
    "SpotGetup": Sizes(30, 12, 300),
    "SpotJoystickGaitTracking": Sizes(69, 12),
    "T1JoystickFlatTerrain": Sizes(85, 23, randomized=True),
    "T1JoystickRoughTerrain": Sizes(85, 23, randomized=True),
}
"""Legged robots (Zakka 2025); the sizes are those of `state` where the observation is a dictionary."""

MANIPULATION = {
    "AeroCubeRotateZAxis": Sizes(14, 7, 500, randomized=True),
    "AlohaHandOver": Sizes(83, 14, 250),
    "AlohaSinglePegInsertion": Sizes(82, 14),
    "LeapCubeReorient": Sizes(57, 16, randomized=True),
    "LeapCubeRotateZAxis": Sizes(32, 16, 500, randomized=True),
    "PandaOpenCabinet": Sizes(55, 8, 150),
    "PandaPickCube": Sizes(66, 8, 150),
    "PandaPickCubeCartesian": Sizes(70, 3, 200),
    "PandaPickCubeOrientation": Sizes(66, 8, 150),
    "PandaRobotiqPushCube": Sizes(48, 7, 3000),
}
"""Arms and hands (Zakka 2025); the sizes are those of `state` where the observation is a dictionary."""

TASKS = {**CONTROL_SUITE, **LOCOMOTION, **MANIPULATION}
