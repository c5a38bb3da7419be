"""A tiny environment of Gymnasium with images of 8 bits, which importing this module registers."""

from typing import Any, ClassVar

import gymnasium
import numpy as np

SIZE = 12
ID = "gym:PixelWalk-v0"


class PixelWalk(gymnasium.Env):
    """A bright column in a dark image; the actions move it left and right, and the reward is its position.

    It succeeds at the right."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self._column = int(self.np_random.integers(SIZE))
        return self._image(), {}

    def step(self, action: int) -> Any:
        self._column = int(np.clip(self._column + 2 * action - 1, 0, SIZE - 1))
        return self._image(), float(self._column), False, False, {"is_success": self._column >= SIZE // 2}

    def render(self) -> np.ndarray:
        return np.repeat(self._image(), 3, axis=2)

    def _image(self) -> np.ndarray:
        image = np.full((SIZE, SIZE, 1), 10, np.uint8)
        image[:, self._column] = 250
        return image


gymnasium.register("PixelWalk-v0", f"{__name__}:{PixelWalk.__name__}", max_episode_steps=8)
