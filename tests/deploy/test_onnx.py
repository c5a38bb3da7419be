"""Policies as ONNX models: equal actions, and exports without a model. Needs the extra `onnx`."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
import pytest

from rookery.agents.sac import SacConfig
from rookery.deploy import onnx
from rookery.deploy.export import TOLERANCE, export
from tests.deploy.untrained_runs import (
    OBSERVATIONS,
    PQN_RUN,
    RECURRENT_TEAM_RUN,
    SAC_RUN,
    best_actions,
    run_script,
    save_run,
    unchanged,
    with_statistics,
)

jax2onnx = pytest.importorskip("jax2onnx", reason="ONNX models need the extra onnx, which the extra test leaves out")


@pytest.fixture(scope="module")
def sac_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(SAC_RUN, tmp_path_factory.mktemp("onnx") / "sac_run", (1.0, 2.0), with_statistics)


def test_the_best_member_acts_equally_in_the_runtime(sac_run: Path, tmp_path: Path) -> None:
    exported = export(sac_run, tmp_path / "policy")
    assert exported.without_onnx is None
    assert exported.differences["policy.onnx"] <= TOLERANCE
    assert {"policy.onnx", "act_onnx.py"} < set(exported.files) == {entry.name for entry in exported.path.iterdir()}
    np.testing.assert_allclose(run_script(exported.path, "act_onnx", OBSERVATIONS), best_actions(sac_run), atol=1e-6)


def test_simba_acts_equally_in_the_runtime(tmp_path: Path) -> None:
    simba = dataclasses.replace(SAC_RUN, agent=SacConfig((4,), (4,), network="simba"))
    exported = export(save_run(simba, tmp_path / "simba", (1.0, 2.0), with_statistics), tmp_path / "policy")
    assert exported.without_onnx is None
    assert exported.differences["policy.onnx"] <= TOLERANCE


def test_values_of_discrete_actions_act_equally_in_the_runtime(tmp_path: Path) -> None:
    exported = export(save_run(PQN_RUN, tmp_path / "pqn_run", (1.0,), unchanged), tmp_path / "policy")
    assert exported.without_onnx is None
    assert exported.differences["policy.onnx"] == 0.0
    shown = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    actions = run_script(exported.path, "act_onnx", shown).tolist()
    assert actions == run_script(exported.path, "act", shown).tolist()
    assert {*actions} == {0, 1}


def test_a_recurrent_team_acts_as_its_stablehlo_program(tmp_path: Path) -> None:
    exported = export(save_run(RECURRENT_TEAM_RUN, tmp_path / "chase", (0.0,), with_statistics))
    assert exported.without_onnx is None
    model = (exported.path / "policy.onnx").read_bytes()
    stored = jax.export.deserialize(bytearray((exported.path / "policy.stablehlo").read_bytes()))
    memory = np.zeros((3, 2, 3), np.float32)
    for observation in np.random.default_rng(0).normal(size=(4, 3, 2, 9)).astype(np.float32):
        action, following = stored.call(observation, memory)
        given = onnx.act(model, {"observation": observation, "memory": memory})
        np.testing.assert_array_equal(given["action"], action)
        np.testing.assert_allclose(given["next_memory"], following, atol=1e-6)
        memory = given["next_memory"]
    assert np.abs(memory).max() > 0.0


def cannot(*_: Any, **__: Any) -> None:
    raise NotImplementedError("no rule for sort\nwith details")


def shifted(model: bytes, inputs: Any) -> dict[str, np.ndarray]:
    return {"action": np.full((6, 2), 2.0, np.float32)}


@pytest.mark.parametrize(
    ("where", "what", "instead", "why"),
    [
        (jax2onnx, "to_onnx", cannot, r"^jax2onnx .* cannot convert it \(NotImplementedError: no rule for sort\)$"),
        (onnx, "act", shifted, r"^the model of jax2onnx .* differs by .* in an action, more than 1e-05$"),
    ],
)
def test_a_policy_that_cannot_be_converted_has_no_model(
    sac_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, what: str, instead: Any, why: str
) -> None:
    monkeypatch.setattr(where, what, instead)
    exported = export(sac_run, tmp_path / "policy")
    assert exported.without_onnx is not None
    assert re.search(why, exported.without_onnx)
    assert {entry.name for entry in exported.path.iterdir()} == {"policy.stablehlo", "act.py", "policy.json"}
    assert json.loads((exported.path / "policy.json").read_text())["without_onnx"] == exported.without_onnx


def test_a_model_that_the_runtime_rejects() -> None:
    with pytest.raises(onnx.NoOnnxError, match=r"^onnxruntime rejects it \(InvalidProtobuf: "):
        onnx.act(b"no model", {})
