"""Tasks of the suites whose steps compile quickly pass the check, with random actions: one of each kind.

The library's own tasks run in `test_envs.py`, with some robots. The rest is left out for its time: a check of a robot
of Brax, MABrax or MuJoCo Playground takes up to a minute, one of SMAX a quarter of it. All other tasks of gymnax and
JaxMARL are traced in `test_registry.py`.
"""

import warnings

import jax
import numpy as np
import pytest

from rookery.envs import registry
from rookery.envs.check import EnvironmentWarning, check_environment
from rookery.envs.suites import gymnax

LENGTH = 8
CHECKED = (
    *("CartPole-v1", "Pendulum-v1", "Breakout-MinAtar", "FrozenLake-misc"),  # numbers, continuous, an image, a place
    *("MPE_simple_speaker_listener_v4", "MPE_simple_facmac_v1"),  # masked, continuous
)
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


@pytest.mark.parametrize("name", CHECKED)
def test_a_task_passes_the_check(name: str) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", EnvironmentWarning)
        check_environment(registry.make(name, episode_length=LENGTH))
    one_start = [f"reset of {name} ignores its key: every episode starts in the same state"]
    assert [str(warning.message) for warning in found] == (one_start if name in ONE_START else [])


def test_starts_of_gymnax_differ_unless_listed() -> None:
    tasks = {name: registry.make(name) for name in gymnax.TASKS}

    def states(keys: jax.Array) -> dict:
        return {name: jax.vmap(task.reset)(keys)[0].inner for name, task in tasks.items()}

    found = jax.jit(states)(jax.random.split(jax.random.key(0), 8))
    same = {
        name for name, state in found.items() if all((np.asarray(x) == x[:1]).all() for x in jax.tree.leaves(state))
    }
    assert same == set(ONE_START)
