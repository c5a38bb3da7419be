"""Which checkpoints are complete, which are kept, and how damage is detected."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rookery.storage import manifest
from rookery.storage.checkpoint import Checkpointer, CheckpointError, CheckpointWarning
from tests.storage.saved_states import assert_same, make_state, save_all


def step_files(directory: Path, generation: int) -> list[Path]:
    folder = directory / f"generation_{generation:08d}"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"_METADATA", "manifest.ocdbt", "_CHECKPOINT_METADATA"} <= {path.name for path in files}
    assert any(path.parent.name == "d" and path.stat().st_size > 100 for path in files), "no data file"
    return [*files, directory / f"generation_{generation:08d}.json"]


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A directory with the complete checkpoints of generations 1 and 2."""
    save_all(tmp_path / "two", 1, 2)
    return tmp_path / "two"


def test_only_the_newest_complete_checkpoints_are_kept(two):
    step_files(two, 2)[-1].write_text("{}")
    save_all(two, 3, keep=2)
    assert Checkpointer(two).complete_generations() == [1, 3], "a damaged one does not count"
    save_all(two, 4, keep=2)
    files = [f"generation_0000000{number}{suffix}" for number in (3, 4) for suffix in ("", ".json")]
    assert sorted(path.name for path in two.iterdir()) == files
    save_all(two, 3, keep=1)  # another continuation
    assert Checkpointer(two).complete_generations() == [3]


def test_the_same_generation_is_replaced_only_when_complete(two, monkeypatch):
    checkpointer = Checkpointer(two, keep=1)

    def fail(*_: Any) -> None:
        assert Checkpointer(two, read_only=True).is_complete(2)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(manifest, "write", fail)
        checkpointer.save(2, make_state(9), {"made": 9})
        with pytest.raises(CheckpointError):
            checkpointer.wait()
    assert checkpointer.restore(make_state(0))[1] == {"made": 2}
    checkpointer.save(2, make_state(9), {"made": 9})
    checkpointer.wait()
    assert checkpointer.restore(make_state(0))[1] == {"made": 9}
    assert [path.name for path in two.iterdir() if path.is_dir()] == ["generation_00000002-2"]


def assert_falls_back(directory: Path, reason: str) -> None:
    with pytest.warns(CheckpointWarning) as caught:
        state, _, generation = Checkpointer(directory).restore(make_state(0))
    assert generation == 1
    assert_same(state, make_state(1))
    assert [str(warning.message) for warning in caught if reason in str(warning.message)], [str(w) for w in caught]
    assert caught[0].filename == __file__
    assert Checkpointer(directory).latest() == 1
    assert Checkpointer(directory).complete_generations() == [1]


def test_a_flipped_byte_in_any_file_is_detected(two):
    for path in step_files(two, 2):
        content = path.read_bytes()
        for at in {0, len(content) // 2, len(content) - 1} if content else ():
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            assert not Checkpointer(two, read_only=True).is_complete(2), f"{path} at {at}"
        if content:
            assert_falls_back(two, str(path))
        path.write_bytes(content)
    assert Checkpointer(two).latest() == 2


def test_a_truncated_or_missing_file_is_detected(two):
    for path in step_files(two, 2):
        content = path.read_bytes()
        if content:
            path.write_bytes(content[:-1])
            size = f" has {len(content) - 1} bytes instead of {len(content)}"
            assert_falls_back(two, f"{path}{size if path.suffix != '.json' else ' is not a valid manifest'}")
        path.unlink()
        assert_falls_back(two, f"{path} is missing")
        path.write_bytes(content)
    assert Checkpointer(two).latest() == 2
    shutil.rmtree(two / "generation_00000002")
    assert_falls_back(two, "is missing")


def refused(path: Path) -> bytes:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def test_the_error_without_a_complete_checkpoint_names_the_remedy(tmp_path, two, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "FORMAT", 2)
        with pytest.warns(CheckpointWarning, match="has format 1"), pytest.raises(CheckpointError):
            Checkpointer(two).restore(make_state(0))
        patch.setattr(manifest, "FORMAT", 0)  # a checkpoint of a later version is not passed over, and not deleted
        with pytest.raises(CheckpointError, match=r"generation 2 cannot be used: .* has format 1, but this version"):
            Checkpointer(two).restore(make_state(0))
        patch.undo()
        patch.setattr(Path, "read_bytes", refused)
        with pytest.raises(
            CheckpointError, match=r"generation 2 cannot be used: .* cannot be read \(Permission denied\)"
        ):
            Checkpointer(two).restore(make_state(0))
    step_files(two, 1)[0].unlink()
    message = r"generation 1 cannot be used: .* is missing; the complete generations are \[2\]"
    with pytest.raises(CheckpointError, match=message):
        Checkpointer(two).restore(make_state(0), generation=1)
    for path in two.glob("*.json"):
        path.unlink()
    with pytest.warns(CheckpointWarning), pytest.raises(CheckpointError, match=r"no complete checkpoint.*--overwrite"):
        Checkpointer(two).restore(make_state(0))
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        Checkpointer(tmp_path / "absent", read_only=True).restore(make_state(0))
    assert not (tmp_path / "absent").exists()


def test_empty_if_no_save_was_ever_completed(tmp_path, two):
    assert Checkpointer(tmp_path / "absent", read_only=True).empty
    assert Checkpointer(tmp_path / "new").empty
    incomplete = tmp_path / "incomplete"
    shutil.copytree(two / "generation_00000001", incomplete / "generation_00000001")
    assert Checkpointer(incomplete).empty
    shutil.copytree(two / "generation_00000002", incomplete / "generation_00000002")
    assert not Checkpointer(incomplete).empty, "two folders without manifests indicate damage"
    shutil.rmtree(two / "generation_00000001")
    shutil.rmtree(two / "generation_00000002")
    assert not Checkpointer(two).empty


KILLED = """
import os, signal, sys
from rookery.storage import checkpoint, manifest
import jax.numpy as jnp
checkpointer = checkpoint.Checkpointer(sys.argv[1], keep=1)
checkpointer.save(1, {"x": jnp.arange(5)}, {})
checkpointer.wait()
manifest.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
checkpointer.save(2, {"x": jnp.arange(6)}, {})
checkpointer.wait()
"""


def test_killed_between_commit_and_manifest(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "generation_00000002").is_dir(), "it was committed"
    with pytest.warns(CheckpointWarning, match=r"generation_00000002\.json is missing"):
        state, _, generation = Checkpointer(tmp_path).restore({"x": jnp.zeros(5, jnp.int32)})
    assert generation == 1
    np.testing.assert_array_equal(np.asarray(state["x"]), np.arange(5))
    save_all(tmp_path, 2, keep=1)
    assert Checkpointer(tmp_path).complete_generations() == [2]
    assert len(list(tmp_path.iterdir())) == 2
