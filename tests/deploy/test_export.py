"""A policy as a folder: what is written, that it acts alike without this library, what is refused."""

import hashlib
import json
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.deploy import export
from rookery.deploy import policy as policies
from rookery.populations.base import ProgramState
from tests.deploy.untrained_runs import LEARNING, OBSERVATIONS, alone, best_actions, kept, seen


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kept(LEARNING, tmp_path_factory.mktemp("export") / "learned", (1.0, 2.0), seen)


def test_the_best_member_acts_alike_where_this_library_is_not(learned: Path, tmp_path: Path) -> None:
    exported = export.export(learned, tmp_path / "policy")
    assert (exported.member, exported.cell, exported.skill, exported.generation) == (1, None, None, 1)
    assert exported.observations == 6
    assert max(exported.differences.values()) <= export.TOLERANCE
    assert sorted(entry.name for entry in exported.path.iterdir()) == sorted(exported.files)
    np.testing.assert_allclose(alone(exported.path, "act", OBSERVATIONS), best_actions(learned), atol=1e-6)


def test_what_the_folder_says_of_the_policy(learned: Path) -> None:
    exported = export.export(learned, member=0)
    assert exported.path == learned / "policy"
    about = json.loads((exported.path / "policy.json").read_text())
    assert (about["format"], about["task"], about["kind"], about["generation"]) == (1, "point_room", "sac", 1)
    assert (about["cell"], about["member"], about["skill"], about["team"]) == (None, 0, None, None)
    assert (about["fitness"], about["descriptor"], about["hidden_sizes"]) == (1.0, None, [4])
    assert (about["inputs"], about["outputs"]) == ({"observation": ["batch", 2]}, {"action": ["batch", 2]})
    assert about["action"] == {"kind": "continuous", "type": "float32", "size": 2, "low": -1.0, "high": 1.0}
    assert about["observation"] == {
        "size": 2,
        "mask": 0,
        "normalised": {"mean": [1.0, 1.0], "std": [2.0, 2.0], "limit": 5.0},
    }
    assert about["check"]["largest_difference"] == exported.differences
    assert set(about["versions"]["export"]) == {"rookery", "jax", "python"}
    for name, told in about["sha256"].items():
        assert hashlib.sha256((exported.path / name).read_bytes()).hexdigest() == told
    assert {*about["sha256"], "policy.json"} == set(exported.files)


def broken(state: ProgramState) -> ProgramState:
    members = state.members
    params = jax.tree.map(lambda leaf: leaf * jnp.nan, members.state.policy.params)
    policy = members.state.policy._replace(params=params)
    return state._replace(members=members._replace(state=members.state._replace(policy=policy)))


def test_who_diverged_is_not_exported(tmp_path: Path) -> None:
    run = kept(LEARNING, tmp_path / "broken", (1.0, 2.0), broken)
    with pytest.raises(ValueError, match=r"^member 1 of .*broken diverged, and its actions are not finite; choose ano"):
        export.export(run)
    assert not (run / "policy").exists()


def half(observation: jax.Array) -> jax.Array:
    return jnp.full((2,), 0.5)


def test_what_differs_is_not_written(learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "policy_function", lambda _: half)
    with pytest.raises(
        ValueError, match=r"^the exported policy differs from the run's policy by .* nothing was written;"
    ):
        export.export(learned, tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


@pytest.mark.parametrize(
    ("ours", "apart"),
    [([[0.0], [0.5]], 0.25), ([[0.0], [np.nan]], np.inf), ([[0.0]], np.inf), ([[0.0], [0.25]], 0.0)],
)
def test_the_largest_difference_of_any_number(ours: list[list[float]], apart: float) -> None:
    theirs = {"action": np.asarray([[0.0], [0.25]], np.float32)}
    assert export.difference({"action": np.asarray(ours, np.float32)}, theirs) == apart
    assert export.difference({"action": np.asarray([[0], [1]], np.int32)}, theirs) == np.inf


def test_without_onnx_the_rest_is_whole(learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy"
    path.mkdir()
    for stale in ("policy.json", "policy.onnx", "act_onnx.py"):
        (path / stale).write_text("of an earlier export")
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    exported = export.export(learned, path)
    assert exported.without_onnx == "jax2onnx is not installed; pip install 'rookery[onnx]'"
    assert {entry.name for entry in path.iterdir()} == {"policy.stablehlo", "act.py", "policy.json"}
    assert json.loads((path / "policy.json").read_text())["without_onnx"] == exported.without_onnx


@pytest.mark.parametrize("there", ["notes.txt", "act.py"])
def test_a_folder_with_other_things_stays_as_it_is(learned: Path, tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(ValueError, match=rf" contains other files \({there}\); choose a new or empty folder\.$"):
        export.export(learned, tmp_path)
    assert (tmp_path / there).read_text() == "mine"
    with pytest.raises(ValueError, match=r" is a file; choose a folder to export to\.$"):
        export.export(learned, tmp_path / there)


def test_a_killed_export_has_no_policy_json_and_can_be_repeated(
    learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy"
    export.export(learned, path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            export.export(learned, path, member=0)
    assert not (path / "policy.json").exists()
    assert export.export(learned, path, member=0).member == 0
    assert json.loads((path / "policy.json").read_text())["member"] == 0


def interrupt(descriptor: int) -> None:
    raise KeyboardInterrupt
