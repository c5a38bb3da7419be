"""Checkpoints are exact and asynchronous, and are used only if complete."""

import asyncio
import contextlib
import errno
import os
import resource
import shutil
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rookery.learners.rollout import EnvBatchState, EpisodeSums
from rookery.storage import checkpoint as checkpoints
from rookery.storage import leaf_specs, manifest
from rookery.storage.checkpoint import Checkpointer, CheckpointError, CheckpointWarning
from rookery.types import Observation
from tests.storage.saved_states import assert_same, make_state, save_all


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A directory with the complete checkpoints of generations 1 and 2."""
    save_all(tmp_path / "two", 1, 2)
    return tmp_path / "two"


def test_a_restored_state_is_bit_equal_and_can_be_donated(two):
    for generation in (1, 2):
        state, metadata, found = Checkpointer(two).restore(make_state(0), generation=None if generation == 2 else 1)
        assert (found, metadata) == (generation, {"made": generation})
        assert_same(state, make_state(generation))
        step = jax.jit(lambda tree: jax.tree.map(lambda x: x + x, tree), donate_argnums=0)
        assert_same(step(state.params), jax.tree.map(lambda x: x + x, make_state(generation).params))
    leaves, structure = jax.tree.flatten(make_state(0))
    leaves = [jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, jax.Array) else x for x in leaves]
    state = Checkpointer(two).restore(structure.unflatten(leaves))[0]  # a template without sharding
    assert_same(state, make_state(2))
    assert not any(leaf.committed for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array))


def test_shardings_follow_the_template(tmp_path):
    mesh = Mesh(np.array(jax.devices()[:2]), ("pop",))
    split, replicated = NamedSharding(mesh, PartitionSpec("pop")), NamedSharding(mesh, PartitionSpec())
    state = {
        "split": jax.device_put(jnp.arange(4.0), split),
        "keys": jax.device_put(jax.random.split(jax.random.key(1), 4), split),
        "replicated": jax.device_put(jnp.arange(3), replicated),
        "second": jax.device_put(jnp.ones(2), jax.devices()[1]),
        "uncommitted": jnp.ones(3),
        "empty": jax.device_put(jnp.zeros((0, 2)), replicated),
    }
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(3, state, {})
        restored = checkpointer.restore(state)[0]
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
        assert_same(restored, state)
        assert_same(checkpointer.restore(abstract)[0], state)
    for name, leaf in state.items():
        assert restored[name].sharding == leaf.sharding, name
        assert restored[name].committed == leaf.committed, name
    # An uncommitted leaf is restored uncommitted: no "incompatible devices".
    jax.jit(lambda a, b: a.sum() + b.sum())(restored["uncommitted"], restored["split"])


def test_sums_of_training_returns_begin_at_zero_in_runs_of_older_versions(tmp_path):
    before = EnvBatchState(jnp.ones(2), Observation(jnp.ones((2, 3))))
    sums = EpisodeSums({"return": jnp.ones(2)}, jnp.ones(2, jnp.int32), jnp.ones(2, bool))
    saved, template = {"envs": before, "last": jnp.ones(1)}, {"envs": before._replace(sums=sums), "last": jnp.zeros(1)}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, saved, {})
        zeros = jax.tree.map(jnp.zeros_like, sums)
        assert_same(checkpointer.restore(template)[0], {**saved, "envs": before._replace(sums=zeros)})
        part = {"envs": template["envs"]}
        assert_same(checkpointer.restore(part, partial=True)[0], {"envs": before._replace(sums=zeros)})
        with pytest.raises(CheckpointError, match=r"\['other'\] is absent in the checkpoint"):
            checkpointer.restore({**template, "other": jnp.zeros(1)})


def test_donation_right_after_save_does_not_change_the_saved_data(tmp_path):
    step = jax.jit(lambda tree: jax.tree.map(lambda x: -x - 1, tree), donate_argnums=0)
    state = {str(i): jax.random.normal(jax.random.key(i), (300_000,)) for i in range(6)}
    mutable = np.arange(300_000)
    jax.block_until_ready(step(jax.tree.map(jnp.copy, state)))
    expected = jax.tree.map(np.array, state)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, {"mutable": mutable, **state}, {})
        mutable[:] = -1
        template = state
        for _ in range(20):
            state = step(state)
        jax.block_until_ready(state)
        assert template["0"].is_deleted()
        checkpointer.wait()
        restored = checkpointer.restore({"mutable": mutable, **template})[0]
    for name, array in {"mutable": np.arange(300_000), **expected}.items():
        np.testing.assert_array_equal(np.asarray(restored[name]), array)


def test_save_returns_before_completion_and_the_next_save_waits(tmp_path, monkeypatch):
    gate, write = threading.Event(), manifest.write

    def slow_write(*arguments: Any) -> None:
        gate.wait(10)
        write(*arguments)

    monkeypatch.setattr(manifest, "write", slow_write)
    with Checkpointer(tmp_path, keep=5) as checkpointer:
        checkpointer.save(1, make_state(1), {})
        assert checkpointer.latest() is None
        threading.Timer(0.2, gate.set).start()
        checkpointer.save(2, make_state(2), {})
        assert Checkpointer(tmp_path, read_only=True).is_complete(1)
        checkpointer.wait()
        assert checkpointer.latest() == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counter": jnp.asarray(0, jnp.uint32)}, r"\.counter is int32 \[\] in the checkpoint and uint32 \[\] in the"),
        ({"nothing": jnp.zeros(1)}, r"\.nothing is absent in the checkpoint and float32 \[1\]"),
        ({"params": {"kernel": jnp.zeros((4, 3))}}, r"\.params\['half'\] is bfloat16 \[4, 3\] .* and absent in the"),
        ({"keys": jax.random.split(jax.random.key(0, impl="rbg"), 3)}, r"\.keys is key<fry> \[3\] .* key<rbg> \[3\]"),
        ({"empty": (jnp.zeros((0, 6)), *make_state(0).empty[1:])}, r"\.empty\[0\] is float32 \[0, 5\]"),
        ({"python": (1, 7, 0.1)}, r"\.python\[0\] is Python bool"),
    ],
)
def test_a_different_template_is_rejected(two, change, message):
    with pytest.raises(CheckpointError, match=message):
        Checkpointer(two).restore(make_state(0)._replace(**change))


def test_a_part_of_a_state_is_restored_without_the_rest(two):
    left_out = {"params": (), "keys": (), "empty": (), "python": ()}
    part = make_state(0)._replace(**left_out)
    state, metadata, _ = Checkpointer(two).restore(part, partial=True)
    assert metadata == {"made": 2}
    assert_same(state, make_state(2)._replace(**left_out))
    with pytest.raises(CheckpointError, match=r"does not fit this run: .* and absent in the run"):
        Checkpointer(two).restore(part)
    with pytest.raises(CheckpointError, match=r"\.params\['more'\] is absent in the checkpoint"):
        Checkpointer(two).restore(part._replace(params={"more": jnp.ones(2)}), partial=True)


def test_an_unreadable_complete_checkpoint_is_an_error_without_fallback(two, monkeypatch):
    def fail(*_: Any) -> None:
        raise ValueError("a format of the future\nand pages more")

    monkeypatch.setattr(orbax.checkpoint.StandardCheckpointer, "restore", fail)
    message = "complete but could not be read: a format of the future; resume it with"
    with pytest.raises(CheckpointError, match=message):
        Checkpointer(two).restore(make_state(0))


def test_metadata_floats_are_exact_and_what_cannot_be_stored_is_named(tmp_path):
    metadata = {"best": 1 / 3, "names": ["a", None], "low": float("-inf")}
    with Checkpointer(tmp_path / "exact") as checkpointer:
        checkpointer.save(0, {"x": jnp.ones(1)}, metadata)
        assert checkpointer.restore({"x": jnp.ones(1)})[1] == metadata
    checkpointer = Checkpointer(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"generation 4 .*\['name'\] is a str"):
        checkpointer.save(4, {"name": "text"}, {})
    with pytest.raises(CheckpointError, match="not JSON serializable"):
        checkpointer.save(4, {"x": jnp.ones(1)}, {"bad": jnp.ones(1)})
    with pytest.raises(ValueError, match="generation is -1"):
        checkpointer.save(-1, {"x": jnp.ones(1)}, {})
    with pytest.raises(ValueError, match="keep is 0"):
        Checkpointer(tmp_path / "none", keep=0)
    assert list((tmp_path / "none").iterdir()) == []


def test_a_full_disk_is_detected_before_writing(two, monkeypatch):
    checkpointer = Checkpointer(two)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3))
    with pytest.raises(CheckpointError, match="3 free; the newest complete one is of generation 2") as caught:
        checkpointer.save(3, make_state(3), {})
    assert str(two) in str(caught.value)
    assert not list(two.glob("*3*"))


def test_a_folder_that_cannot_be_written_to_leaves_no_thread_that_waits(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    folder = Path("/sys/kernel")  # in which root cannot write either
    before = {*threading.enumerate()}
    with pytest.raises(CheckpointError, match=rf"of generation 1 in {folder}: [\w -]+; there is no complete one yet"):
        save_all(folder, 1)
    assert {*threading.enumerate()} <= before


def test_a_disk_that_fills_while_writing(two, capfd):
    """The write itself fails, and prints nothing; then the next save succeeds."""
    state = {"x": jax.random.normal(jax.random.key(0), (200_000,))}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpointer = Checkpointer(two)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
        checkpointer.save(3, state, {})
        with pytest.raises(CheckpointError) as caught:
            checkpointer.save(4, state, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(caught.value) == (
        f"Could not write the checkpoint of generation 3 in {two}: File too large; "
        "the newest complete one is of generation 2."
    )
    assert not list(two.glob("*3*")), "an incomplete checkpoint was left"
    checkpointer.save(4, state, {})
    checkpointer.wait()
    assert checkpointer.latest() == 4
    assert capfd.readouterr() == ("", "")


def test_a_disk_that_is_full_when_the_manifest_is_written(two, monkeypatch):
    """An error in the `with` block takes precedence over that of the save."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def fail_twice() -> None:
        with checkpointer:
            checkpointer.save(3, make_state(3), {})
            raise KeyError("in the block")

    monkeypatch.setattr(manifest, "write_atomically", full)
    checkpointer = Checkpointer(two)
    checkpointer.save(3, make_state(3), {})
    with pytest.raises(CheckpointError, match="No space left on device"):
        checkpointer.wait()
    checkpointer.wait()  # raised once
    assert not list(two.glob("*3*"))
    with pytest.raises(KeyError) as caught:
        fail_twice()
    assert "Could not write the checkpoint of generation 3" in caught.value.__notes__[0]


def test_temporary_folders_of_killed_runs_are_removed_by_writers_only(two):
    temporary = two / "generation_00000003.orbax-checkpoint-tmp"
    (temporary / "d").mkdir(parents=True)
    with Checkpointer(two, read_only=True) as reader:
        assert temporary.exists()
        assert reader.restore(make_state(0))[2] == 2
        with pytest.raises(CheckpointError, match="opened for reading"):
            reader.save(4, make_state(4), {})
    with warnings.catch_warnings(), Checkpointer(two) as writer:
        assert not temporary.exists()
        assert writer.latest() == 2


def test_a_save_replaces_whatever_stands_in_the_places_of_checkpoints(two, tmp_path):
    for generation in (2, 1):  # a folder in place of a manifest, a file and a link in place of a folder
        (two / f"generation_0000000{generation}.json").unlink()
        (two / f"generation_0000000{generation}.json" / "sub").mkdir(parents=True)
        shutil.rmtree(two / f"generation_0000000{generation}")
    (two / "generation_00000002").write_text("")
    (two / "generation_00000001").symlink_to(tmp_path, target_is_directory=True)
    save_all(two, 2)
    assert sorted(path.name for path in two.iterdir()) == ["generation_00000002-2", "generation_00000002.json"]
    with Checkpointer(two, read_only=True) as reader:
        assert_same(reader.restore(make_state(0))[0], make_state(2))
    assert tmp_path.is_dir()


def test_a_reader_takes_the_next_checkpoint_if_one_is_deleted_meanwhile(two, monkeypatch):
    read_all, folder = checkpoints._read_all, manifest.read(two, 2)["folder"]

    def read_too_late(path: Path, targets: Any) -> Any:
        if path.name == folder:
            save_all(two, 3)
            shutil.rmtree(path, ignore_errors=True)
            manifest.retire(two, 3, keep=1)
        return read_all(path, targets)

    monkeypatch.setattr(checkpoints, "_read_all", read_too_late)
    with Checkpointer(two, read_only=True) as reader:
        state, _, generation = reader.restore(make_state(0))
    assert generation == 3
    assert_same(state, make_state(3))


SPECIAL = (
    *("x[0]", "a]b", "*", "**", "a?b", "a\\b", "{a,b}", "-p%20#:~$HOME 'é'", "new\nline"),
    os.fsdecode(b"by\xff\xfe"),
)


def test_a_path_may_have_all_characters_of_a_file_system(tmp_path, two):
    """Also that of a checkpoint which was written elsewhere."""
    folder = tmp_path.joinpath(*SPECIAL)
    folder.mkdir(parents=True)
    moved = two.rename(folder / "checkpoints")
    with Checkpointer(moved) as checkpointer:
        assert_same(checkpointer.restore(make_state(0))[0], make_state(2))
        checkpointer.save(3, make_state(3), {}, host={"rows": np.arange(3)})
    with Checkpointer(moved, read_only=True) as reader:
        assert_same(reader.restore(make_state(0))[0], make_state(3))
        part = make_state(0)._replace(params=())
        assert_same(reader.restore(part, partial=True)[0], make_state(3)._replace(params=()))
        np.testing.assert_array_equal((reader.host_arrays(3) or {})["rows"], np.arange(3))


def test_reports_to_an_event_loop_that_orbax_has_closed_are_not_shown(two, monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)
    checkpoints._hide_log.cache_clear()
    Checkpointer(two, read_only=True).restore(make_state(0))
    for text in ("Event loop is closed", "another error"):
        sys.unraisablehook(SimpleNamespace(exc_value=RuntimeError(text)))  # pyright: ignore[reportArgumentType]
    assert [str(found.exc_value) for found in shown] == ["another error"]
    checkpoints._hide_log.cache_clear()


def test_writes_of_orbax_that_fail_beside_the_first_are_not_shown(two, caplog):
    Checkpointer(two, read_only=True).restore(make_state(0))
    loop = asyncio.new_event_loop()
    for text in (f"No space left in {two}/generation_00000003.orbax-checkpoint-tmp", "another error"):
        future = loop.create_future()
        future.set_exception(OSError(text))
        del future  # asyncio logs an exception that was not read
    loop.close()
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["another error"]


# The first read that fails ends orbax's event loop, which the others report to.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_cannot_be_read_back_is_not_complete(two, monkeypatch):
    """Orbax finds no files to merge under a path with brackets, and says so in a warning only."""
    monkeypatch.setattr(checkpoints, "_without_special_characters", contextlib.nullcontext)
    moved = two.rename(two.with_name("x[0]"))
    checkpointer = Checkpointer(moved)
    checkpointer.save(3, make_state(3), {})
    with (
        pytest.warns(CheckpointWarning, match="orbax warned: .*Skipping merge"),
        pytest.raises(CheckpointError, match=r"could not be read back: .*; the newest complete one is of generation 2"),
    ):
        checkpointer.wait()
    assert checkpointer.complete_generations() == [1, 2]


def test_copies_are_finished_before_the_next_program_begins():
    arrays = {"large": jnp.zeros((4096, 1024)), "host": np.ones(3)}
    copies = leaf_specs.copy(arrays)
    assert copies["large"].is_ready()
    assert copies["large"].unsafe_buffer_pointer() != arrays["large"].unsafe_buffer_pointer()
