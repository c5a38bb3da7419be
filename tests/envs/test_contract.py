"""All tasks of the suites whose steps compile quickly pass the check, with random actions.

The library's own tasks run in `test_envs.py`, with some robots. The rest is left out for its time: a check of a robot
of Brax, MABrax or MuJoCo Playground takes up to a minute, one of SMAX a quarter of it. The other tasks of JaxMARL are
traced in `test_jaxmarl.py`.
"""

import warnings

import pytest

from rookery.envs import registry
from rookery.envs.check import EnvironmentWarning, check_environment
from rookery.envs.suites import gymnax
from rookery.envs.suites.jaxmarl import tasks as jaxmarl_tasks

LENGTH = 8
# MPE_simple_facmac_v1 with more agents
MORE_AGENTS = ("MPE_simple_facmac_3a_v1", "MPE_simple_facmac_6a_v1", "MPE_simple_facmac_9a_v1")
MPE = tuple(name for name in jaxmarl_tasks.TASKS if name.startswith("MPE_") and name not in MORE_AGENTS)
ONE_START = {
    "Asterix-MinAtar": "the player begins in the middle of an empty board",
    "Seaquest-MinAtar": "the submarine begins at the surface of an empty sea",
    "SpaceInvaders-MinAtar": "cannon and aliens begin at fixed places",
    "DeepSea-bsuite": "the descent begins in one corner, with one map of actions for all episodes",
    "DiscountingChain-bsuite": "the rewards are those of one seed",
    "FourRooms-misc": "start and goal are fixed, unless the suite's parameters draw them",
    "Pong-misc": "the ball begins in the middle with a fixed velocity",
    "FrozenLake-misc": "the map has one start",
}
"""Task -> why each of its episodes begins in the same state."""


@pytest.mark.parametrize("name", [*gymnax.TASKS, *MPE])
def test_a_task_passes_the_check_and_starts_differ_unless_listed(name: str) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", EnvironmentWarning)
        check_environment(registry.make(name, episode_length=LENGTH))
    one_start = [f"reset of {name} ignores its key: every episode starts in the same state"]
    assert [str(warning.message) for warning in found] == (one_start if name in ONE_START else [])
