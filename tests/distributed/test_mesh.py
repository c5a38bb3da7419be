"""The precision of matrix products, which matters on GPUs only."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import rookery
from rookery.distributed import mesh
from rookery.experiments import build, kinds
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
    monkeypatch.setattr(build, "use_precision", used.append)
    environment = EnvironmentConfig(env="point_room", precision="tf32", devices=1)
    build.build(kinds.configure("pbt-ppo", environment=environment, population=2))
    assert used == ["tf32"]


def test_a_run_in_float64_is_refused_and_one_inside_float32_trains(tmp_path: Path) -> None:
    learner = rookery.on_policy(rookery.ppo((env := rookery.make("point_room", episode_length=4)).spec), env)
    program = rookery.seeds(learner, population_size=1)
    with jax.enable_x64(True):
        with pytest.raises(ValueError, match="jax_enable_x64 is on, but agents train in float32"):
            rookery.run(program, generations=1, run_dir=tmp_path / "run")
        assert not (tmp_path / "run").exists()
        with jax.enable_x64(False):
            assert len(rookery.run(program, generations=1, run_dir=tmp_path / "run").history) == 1


def test_the_package_can_be_run_as_a_module() -> None:
    shown = subprocess.run([sys.executable, "-m", "rookery", "--help"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("usage: rookery")


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
