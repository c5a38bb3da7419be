"""The precision of matrix products, which matters on GPUs only."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from rookery.distributed import mesh
from rookery.experiments import build, kinds, parts
from rookery.experiments.config import EnvironmentConfig


@pytest.mark.parametrize(("precision", "expected"), [("float32", "highest"), ("tf32", "tensorfloat32")])
def test_precision_is_set_on_a_gpu(precision: mesh.Precision, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    updates: dict[str, str] = {}
    monkeypatch.setattr(jax.config, "update", updates.__setitem__)
    mesh.use_precision(precision)
    assert not updates  # this process has CPU devices
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    mesh.use_precision(precision)
    assert updates == {"jax_default_matmul_precision": expected}


def test_the_precision_of_a_run_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    monkeypatch.setattr(parts, "use_precision", used.append)
    environment = EnvironmentConfig(env="point_room", precision="tf32", devices=1)
    build.build(kinds.configure("pbt-ppo", environment=environment, population=2))
    assert used == ["tf32"]


@pytest.mark.parametrize(
    ("platforms", "processes", "text"),
    [
        (["cpu"], [0], "1 of 2 cpu devices"),
        (["cpu", "cpu"], [0, 0], "2 cpu devices"),
        (["cuda"], [0], "1 cuda device"),  # described, not there
        (["cuda", "cuda"], [0, 1], "2 cuda devices of 2 processes"),
    ],
)
def test_a_mesh_as_text(platforms: list[str], processes: list[int], text: str) -> None:
    devices = [SimpleNamespace(platform=p, process_index=i) for p, i in zip(platforms, processes, strict=True)]
    over: Any = SimpleNamespace(devices=np.asarray(devices))
    assert mesh.describe(over) == text
