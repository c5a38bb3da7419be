"""Names and sizes of the supported JaxMARL environments; importing this module does not import JaxMARL."""

from typing import NamedTuple

SMAX = "SMAX_"
OVERCOOKED = "overcooked_"
OVERCOOKED_V2 = "overcooked_v2_"
STORM = ("storm_2p", "storm_np")
MABRAX = {
    "ant_4x2": "ant_4x2",
    "halfcheetah_6x1": "halfcheetah_6x1",
    "hopper_3x1": "hopper_3x1",
    "humanoid_9_8": "humanoid_9|8",
    "walker2d_2x3": "walker2d_2x3",
}
"""Names of the tasks that need Brax -> JaxMARL's names."""

UNSUPPORTED = {
    "SMAX": "both of its teams learn; use `SMAX_3m` or another map, where one team plays against the suite's heuristic",
    "HeuristicEnemySMAX": "it needs a map; use `SMAX_3m` or another map",
    "LearnedPolicyEnemySMAX": "it needs a trained enemy policy; use `SMAX_3m` or another map, with a heuristic enemy",
    "overcooked": "it needs a layout; use `overcooked_cramped_room` or another layout",
    "overcooked_v2": "it needs a layout; use `overcooked_v2_cramped_room` or another layout",
    "storm": "its observations do not state which agent has which inventory; use `storm_2p` or `storm_np`",
    "humanoid_9|8": "a task name must be a valid file name; use `humanoid_9_8`",
}
"""JaxMARL's names that are not tasks -> the reason and the alternative."""


class Sizes(NamedTuple):
    """Sizes of an environment for the registry; a test compares them with the suite."""

    observation_size: int  # features of the agent with the largest observation, without the action mask
    action_size: int  # number of dimensions or of discrete actions, of the agent with the most
    agents: int  # number of agents
    episode_length: int  # time limit of the suite, in steps
    discrete: bool = True  # whether actions are discrete


TASKS = {
    "MPE_simple_v3": Sizes(4, 5, 1, 25),
    "MPE_simple_tag_v3": Sizes(16, 5, 4, 25),
    "MPE_simple_world_comm_v3": Sizes(34, 9, 6, 25, discrete=False),
    "MPE_simple_spread_v3": Sizes(18, 5, 3, 25),
    "MPE_simple_crypto_v3": Sizes(8, 4, 3, 25),
    "MPE_simple_speaker_listener_v4": Sizes(11, 5, 2, 25),
    "MPE_simple_push_v3": Sizes(19, 5, 2, 25),
    "MPE_simple_adversary_v3": Sizes(10, 5, 3, 25),
    "MPE_simple_reference_v3": Sizes(21, 50, 2, 25),
    "MPE_simple_facmac_v1": Sizes(16, 5, 4, 25, discrete=False),
    "MPE_simple_facmac_3a_v1": Sizes(16, 5, 4, 25, discrete=False),
    "MPE_simple_facmac_6a_v1": Sizes(28, 5, 8, 25, discrete=False),
    "MPE_simple_facmac_9a_v1": Sizes(40, 5, 12, 25, discrete=False),
    "SMAX_3m": Sizes(75, 8, 3, 100),
    "SMAX_2s3z": Sizes(127, 10, 5, 100),
    "SMAX_25m": Sizes(647, 30, 25, 100),
    "SMAX_3s5z": Sizes(205, 13, 8, 100),
    "SMAX_8m": Sizes(205, 13, 8, 100),
    "SMAX_5m_vs_6m": Sizes(140, 11, 5, 100),
    "SMAX_10m_vs_11m": Sizes(270, 16, 10, 100),
    "SMAX_27m_vs_30m": Sizes(738, 35, 27, 100),
    "SMAX_3s5z_vs_3s6z": Sizes(218, 14, 8, 100),
    "SMAX_3s_vs_5z": Sizes(101, 10, 3, 100),
    "SMAX_6h_vs_8z": Sizes(179, 13, 6, 100),
    "SMAX_smacv2_5_units": Sizes(127, 10, 5, 100),
    "SMAX_smacv2_10_units": Sizes(257, 15, 10, 100),
    "SMAX_smacv2_20_units": Sizes(517, 25, 20, 100),
    "overcooked_cramped_room": Sizes(520, 6, 2, 400),
    "overcooked_asymm_advantages": Sizes(1170, 6, 2, 400),
    "overcooked_coord_ring": Sizes(650, 6, 2, 400),
    "overcooked_forced_coord": Sizes(650, 6, 2, 400),
    "overcooked_counter_circuit": Sizes(1040, 6, 2, 400),
    "overcooked_v2_cramped_room": Sizes(600, 6, 2, 400),
    "overcooked_v2_asymm_advantages": Sizes(1350, 6, 2, 400),
    "overcooked_v2_coord_ring": Sizes(750, 6, 2, 400),
    "overcooked_v2_forced_coord": Sizes(750, 6, 2, 400),
    "overcooked_v2_counter_circuit": Sizes(1200, 6, 2, 400),
    "overcooked_v2_cramped_room_v2": Sizes(700, 6, 2, 400),
    "overcooked_v2_asymm_advantages_recipes_center": Sizes(1575, 6, 2, 400),
    "overcooked_v2_asymm_advantages_recipes_right": Sizes(1575, 6, 2, 400),
    "overcooked_v2_asymm_advantages_recipes_left": Sizes(1575, 6, 2, 400),
    "overcooked_v2_two_rooms": Sizes(1575, 6, 2, 400),
    "overcooked_v2_two_rooms_both": Sizes(1575, 6, 2, 400),
    "overcooked_v2_long_room": Sizes(1800, 6, 1, 400),
    "overcooked_v2_fun_coordination": Sizes(2025, 6, 2, 400),
    "overcooked_v2_more_fun_coordination": Sizes(2160, 6, 2, 400),
    "overcooked_v2_fun_symmetries": Sizes(1400, 6, 2, 400),
    "overcooked_v2_fun_symmetries_plates": Sizes(1225, 6, 2, 400),
    "overcooked_v2_fun_symmetries1": Sizes(1600, 6, 2, 400),
    "overcooked_v2_grounded_coord_simple": Sizes(1600, 6, 2, 400),
    "overcooked_v2_grounded_coord_ring": Sizes(3240, 6, 2, 400),
    "overcooked_v2_test_time_simple": Sizes(1600, 6, 2, 400),
    "overcooked_v2_test_time_wide": Sizes(1890, 6, 2, 400),
    "overcooked_v2_demo_cook_simple": Sizes(2200, 6, 2, 400),
    "overcooked_v2_demo_cook_wide": Sizes(2970, 6, 2, 400),
    "switch_riddle": Sizes(2, 3, 3, 6),
    "coin_game": Sizes(36, 5, 2, 10),
    "storm_2p": Sizes(256, 5, 2, 152),
    "storm_np": Sizes(350, 8, 2, 152),
    "hanabi": Sizes(658, 21, 2, 100),
    "jaxnav": Sizes(205, 2, 2, 500, discrete=False),
    "ant_4x2": Sizes(18, 2, 4, 1000, discrete=False),
    "halfcheetah_6x1": Sizes(9, 1, 6, 1000, discrete=False),
    "hopper_3x1": Sizes(9, 1, 3, 1000, discrete=False),
    "humanoid_9_8": Sizes(248, 9, 2, 1000, discrete=False),
    "walker2d_2x3": Sizes(10, 3, 2, 1000, discrete=False),
}
