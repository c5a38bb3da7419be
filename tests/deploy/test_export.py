"""Exported policies: the files, equal actions without this library, and rejected exports."""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.deploy import policy as policies
from rookery.deploy.export import TOLERANCE, Exported, difference, export
from rookery.populations.base import ProgramState
from tests.deploy.untrained_runs import OBSERVATIONS, SAC_RUN, best_actions, run_script, save_run, with_statistics


@pytest.fixture(scope="module")
def sac_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = SAC_RUN.with_environment(precision="bfloat16")  # a policy is exported in float32
    return save_run(spec, tmp_path_factory.mktemp("export") / "sac_run", (1.0, 2.0), with_statistics)


@pytest.fixture(scope="module")
def exported(sac_run: Path) -> Exported:
    return export(sac_run, sac_run.with_name("exported"))


def test_the_best_member_acts_equally_without_this_library(sac_run: Path, exported: Exported) -> None:
    assert (exported.member, exported.cell, exported.skill, exported.generation) == (1, None, None, 1)
    assert (exported.observations, exported.trained_in) == (6, "bfloat16")
    assert max(exported.differences.values()) <= TOLERANCE
    assert sorted(entry.name for entry in exported.path.iterdir()) == sorted(exported.files)
    np.testing.assert_allclose(run_script(exported.path, "act", OBSERVATIONS), best_actions(sac_run), atol=1e-6)


FEATURES = {"path": [], "shape": [2], "type": "float32", "encoding": "by type", "size": 2}
FEATURES |= {"channels_first": False, "counts": [], "starts": []}


def interrupt(descriptor: int) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_export_has_no_description_and_can_be_repeated(
    sac_run: Path, exported: Exported, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(exported.path, sac_run / "policy")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            export(sac_run, member=0)
    assert not (sac_run / "policy/policy.json").exists()
    exported = export(sac_run, member=0)
    assert exported.path == sac_run / "policy"
    about = json.loads((exported.path / "policy.json").read_text())
    assert (about["format"], about["task"], about["kind"], about["generation"]) == (1, "point_room", "sac", 1)
    assert (about["cell"], about["member"], about["skill"], about["team"]) == (None, 0, None, None)
    assert about["objective"] == "return"
    assert about["precision"] == {"run": "bfloat16", "export": "float32"}
    assert (about["fitness"], about["descriptor"], about["hidden_sizes"]) == (1.0, None, [4])
    assert (about["inputs"], about["outputs"]) == ({"observation": ["batch", 2]}, {"action": ["batch", 2]})
    assert about["action"] == {"kind": "continuous", "type": "float32", "size": 2, "low": -1.0, "high": 1.0}
    assert about["observation"] == {
        "size": 2,
        "type": "float32",
        "shape": None,
        "features": [FEATURES],
        "mask": 0,
        "normalised": {"mean": [1.0, 1.0], "std": [2.0, 2.0], "limit": 10.0},
    }
    assert about["check"]["largest_difference"] == exported.differences
    assert set(about["versions"]["export"]) == {"rookery", "jax", "python"}
    for name, digest in about["sha256"].items():
        assert hashlib.sha256((exported.path / name).read_bytes()).hexdigest() == digest
    assert {*about["sha256"], "policy.json"} == set(exported.files)


def broken(state: ProgramState) -> ProgramState:
    members = state.members
    params = jax.tree.map(lambda leaf: leaf * jnp.nan, members.state.policy.params)
    policy = members.state.policy._replace(params=params)
    return state._replace(members=members._replace(state=members.state._replace(policy=policy)))


def test_a_diverged_member_is_rejected(tmp_path: Path) -> None:
    run = save_run(SAC_RUN, tmp_path / "broken", (1.0, 2.0), broken)
    with pytest.raises(ValueError, match=r"^member 1 of .*broken diverged, and its actions are not finite; choose ano"):
        export(run)
    assert not (run / "policy").exists()


def half(observation: jax.Array) -> jax.Array:
    return jnp.full((2,), 0.5)


def test_a_policy_with_other_actions_is_not_written(
    sac_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "policy_function", lambda _: half)
    with pytest.raises(ValueError, match=r"^the exported policy differs from the run's policy by .* nothing was"):
        export(sac_run, tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


@pytest.mark.parametrize(
    ("exported_action", "expected"),
    [([[0.0], [0.5]], 0.25), ([[0.0], [np.nan]], np.inf), ([[0.0]], np.inf), ([[0.0], [0.25]], 0.0)],
)
def test_largest_difference(exported_action: list[list[float]], expected: float) -> None:
    reference = {"action": np.asarray([[0.0], [0.25]], np.float32)}
    assert difference({"action": np.asarray(exported_action, np.float32)}, reference) == expected
    assert difference({"action": np.asarray([[0], [1]], np.int32)}, reference) == np.inf


def test_without_onnx_the_other_files_are_written(
    sac_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy"
    path.mkdir()
    for stale in ("policy.json", "policy.onnx", "act_onnx.py"):
        (path / stale).write_text("of an earlier export")
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    exported = export(sac_run, path)
    assert exported.without_onnx == "jax2onnx is not installed; pip install 'rookery[onnx]'"
    assert {entry.name for entry in path.iterdir()} == {"policy.stablehlo", "act.py", "policy.json"}
    assert json.loads((path / "policy.json").read_text())["without_onnx"] == exported.without_onnx


@pytest.mark.parametrize("name", ["notes.txt", "act.py"])
def test_a_folder_with_other_files_is_not_changed(sac_run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("content")
    with pytest.raises(ValueError, match=rf" contains other files \({name}\); choose a new or empty folder\.$"):
        export(sac_run, tmp_path)
    assert (tmp_path / name).read_text() == "content"
    with pytest.raises(ValueError, match=r" is a file; choose a folder to export to\.$"):
        export(sac_run, tmp_path / name)
