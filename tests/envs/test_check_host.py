"""Checks of environments on the host: each mistake of an environment object is reported in one sentence."""

import warnings
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from rookery.envs.base import Environment
from rookery.envs.check import EnvironmentWarning, check_environment, check_interface
from rookery.envs.suites.gymnasium.adapter import from_gymnasium
from tests.envs.gymnasium_environments import pool_of

LENGTH = 5


class Line(gymnasium.Env):
    """A point on a line with one mistake."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    resets = 0

    def __init__(self, mistake: str = ""):
        self._mistake = mistake

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        Line.resets += 1
        if self._mistake == "reset raises":
            raise KeyError("no model")
        self._position = 0.0 if self._mistake == "same start" else self.np_random.uniform()
        self._noise = float(Line.resets) if "not seeded" in self._mistake else 0.0
        self._steps = 0
        return self._observed(self._noise if self._mistake == "start not seeded" else 0.0), {}

    def step(self, action: np.ndarray) -> Any:
        self._position += float(action[0])
        self._steps += 1
        third = self._steps == 3
        if third and self._mistake == "step raises":
            raise RuntimeError("the motor is hot")
        observed = self._observed(self._noise)
        if third and self._mistake == "long observation":
            observed = np.zeros(3, np.float32)
        reward = {"nan": float("nan"), "overflow": 1e37}.get(self._mistake, 1.0) if third else 1.0
        return observed, reward, False, False, {}

    def _observed(self, noise: float) -> np.ndarray:
        return np.asarray([self._position, noise], np.float32)


def line(mistake: str = "") -> Environment:
    return from_gymnasium(partial(Line, mistake), episode_length=LENGTH, workers=1)


NOT_SEEDED = "two episodes with the same seed and the same actions differ, so that no run can be repeated; let the"


@pytest.mark.parametrize(
    ("mistake", "problem"),
    [
        ("step not seeded", NOT_SEEDED),
        ("step raises", f"it raised RuntimeError in step 3: the motor is hot ({__file__}, line "),
        ("reset raises", f"it raised KeyError in reset: 'no model' ({__file__}, line "),
        ("long observation", "it raised ValueError in step 3: its observation has the shape (3,), but its space (2,)."),
        ("nan", "step 3 gives an observation, reward or descriptor that is not finite, or a reward beyond 1e+15; such"),
    ],
)
def test_a_mistake_is_one_sentence(mistake: str, problem: str) -> None:
    environment = line(mistake)
    with pytest.raises(ValueError, match=r"^the environment gym:Line is wrong, see ") as caught:
        check_environment(environment)
    message = str(caught.value).removeprefix("the environment gym:Line is wrong, see docs/guides/own_environment.md: ")
    assert message.startswith(problem)
    assert "\n" not in message
    assert pool_of(environment).failure is None  # so that it does not end a training


def test_a_sound_environment_passes_and_leaves_no_episode() -> None:
    environment = line()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_environment(environment)
    assert not pool_of(environment)._of_slot


def test_one_start_state_for_all_seeds_is_a_warning() -> None:
    with pytest.warns(EnvironmentWarning, match=r"reset of gym:Line ignores its key: every episode starts in the same"):
        check_environment(line("same start"))


def test_the_cheap_check_takes_one_step_of_a_new_environment() -> None:
    environment, before = line(), Line.resets
    check_interface(environment)
    check_interface(environment)
    assert Line.resets == before + 2  # of a start state, and of the episode that begins in it
    assert not pool_of(environment)._of_slot
