"""Saved states of environment objects, as arrays: of Gymnasium's MuJoCo tasks, and of those with methods for it."""

import json
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

_STATELESS = {"OrderEnforcing", "PassiveEnvChecker", "ClipAction", "RescaleAction", "FlattenObservation"}
"""Wrappers of Gymnasium without a state that a running episode needs."""
_RANDOM_BYTES = 512  # bytes that hold the state of a random generator as JSON


@runtime_checkable
class Resumable(Protocol):
    """A user-defined environment whose running episodes can be saved; all arrays keep their shapes."""

    def save_state(self) -> Mapping[str, np.ndarray]:
        """The complete state of the episode."""
        ...

    def load_state(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue an episode that `save_state` returned."""
        ...


def save(env: Any) -> dict[str, np.ndarray] | None:
    """The state of a running episode, or None if it cannot be saved."""
    inner = env.unwrapped
    layers = wrappers(env)
    if not {type(layer).__name__ for layer in layers} <= _STATELESS | {"TimeLimit"}:
        return None
    if isinstance(inner, Resumable):
        arrays = {f"state/{name}": np.asarray(value) for name, value in inner.save_state().items()}
    elif type(inner).__module__.startswith("gymnasium.envs.mujoco."):
        arrays = {f"state/{name}": np.array(value) for name, value in _data_arrays(inner).items()}
        arrays["state/time"] = np.asarray(inner.data.time)
        arrays["random"] = _random_state(inner.np_random)
    else:
        return None
    elapsed = [layer._elapsed_steps for layer in layers if type(layer).__name__ == "TimeLimit"]
    return {"elapsed": np.asarray(elapsed, np.int64), **arrays}


def load(env: Any, arrays: Mapping[str, np.ndarray]) -> None:
    """Continue a saved episode in an environment object that was reset; a KeyError or ValueError where it has not the
    saved arrays, or of other shapes."""
    inner = env.unwrapped
    saved = {name.removeprefix("state/"): value for name, value in arrays.items() if name.startswith("state/")}
    if isinstance(inner, Resumable):
        inner.load_state(saved)
    else:
        inner.data.time = float(saved.pop("time"))
        own = _data_arrays(inner)
        for name, value in saved.items():
            own[name][...] = value
        inner.np_random.bit_generator.state = json.loads(arrays["random"].tobytes().rstrip(b" "))
    limits = [layer for layer in wrappers(env) if type(layer).__name__ == "TimeLimit"]
    for layer, steps in zip(limits, arrays["elapsed"].tolist(), strict=True):
        layer._elapsed_steps = steps


def wrappers(env: Any) -> list[Any]:
    """The wrappers of an environment, from the outermost to the innermost."""
    found = []
    while env is not env.unwrapped:
        found.append(env)
        env = env.env
    return found


def _data_arrays(inner: Any) -> dict[str, np.ndarray]:
    """Views of the arrays of a task's MuJoCo data that have the same size in every step.

    All of them and not only positions and velocities: MuJoCo computes the poses of bodies before it integrates, so that
    some observations lag behind the positions.
    """
    data, arrays = inner.data, {}
    fresh = type(data)(inner.model)  # has no contacts yet, so that the arrays of a varying size are empty
    for name in dir(data):
        value = None if name.startswith("_") else getattr(fresh, name)
        if isinstance(value, np.ndarray) and value.dtype != object and value.size:
            arrays[name] = getattr(data, name)
    return arrays


def _random_state(generator: np.random.Generator) -> np.ndarray:
    text = json.dumps(generator.bit_generator.state).encode()
    return np.frombuffer(text.ljust(_RANDOM_BYTES), np.uint8)
