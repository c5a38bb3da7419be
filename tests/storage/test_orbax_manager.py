"""The properties of orbax's `CheckpointManager` for which it is not used; the notes of the design
(`benchmarks/notes/design.md`) give the reasons.

A test that fails after an update of orbax means that a reason no longer holds.
"""

import hashlib
from pathlib import Path

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest


def manager(directory: Path, **options) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(directory, options=ocp.CheckpointManagerOptions(**options))


def save(checkpoints: ocp.CheckpointManager, step: int, force: bool = False) -> bool:
    saved = checkpoints.save(step, args=ocp.args.StandardSave({"x": jnp.arange(5_000) + step}), force=force)
    checkpoints.wait_until_finished()
    return saved


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_only_hook_before_the_deletion_precedes_changes_of_the_files(tmp_path):
    hooked = []

    def hook() -> None:
        hooked.append({path.name: digests(path) for path in tmp_path.iterdir() if path.is_dir()})

    hooks = ocp.AsyncOptions(post_finalization_callback=hook)
    with manager(tmp_path, max_to_keep=1, async_options=hooks) as checkpoints:
        assert save(checkpoints, 1)
        assert save(checkpoints, 2)
    (temporary,) = hooked[1].keys() - {"1"}
    assert hooked[1][temporary] != digests(tmp_path / "2")
    assert not (tmp_path / "1").exists()


def test_a_damaged_checkpoint_counts_among_the_kept_ones(tmp_path):
    with manager(tmp_path, max_to_keep=2) as checkpoints:
        assert save(checkpoints, 1)
        assert save(checkpoints, 2)
    data = max((path for path in (tmp_path / "2").rglob("d/*")), key=lambda path: path.stat().st_size)
    content = data.read_bytes()
    data.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with manager(tmp_path, max_to_keep=2) as checkpoints:
        assert save(checkpoints, 3)
        assert checkpoints.all_steps() == [2, 3]


def test_a_step_is_not_replaced(tmp_path):
    with manager(tmp_path) as checkpoints:
        assert save(checkpoints, 2)
        assert not save(checkpoints, 2)
        assert not save(checkpoints, 1)
        with pytest.raises(ValueError, match="already exists"):
            save(checkpoints, 2, force=True)
