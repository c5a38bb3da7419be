"""Checkpoints: exact, asynchronous, whole or not at all."""

import errno
import gc
import json
import resource
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rookery.runs import manifest
from rookery.runs.checkpoint import Checkpointer, CheckpointError, CheckpointWarning


class State(NamedTuple):
    params: Any
    counter: Any
    keys: Any
    nothing: Any
    empty: Any
    flags: Any
    python: Any


def make_state(seed: int) -> State:
    normal = jax.random.normal(jax.random.key(seed), (4, 3))
    return State(
        params={"kernel": normal, "half": normal.astype(jnp.bfloat16), "nan": jnp.array([jnp.nan, -0.0, jnp.inf])},
        counter=jnp.asarray(seed, jnp.int32),
        keys=jax.random.split(jax.random.key(seed), 3),
        nothing=None,
        empty=(jnp.zeros((0, 5)), jax.random.split(jax.random.key(0), 0), np.zeros((2, 0), np.int8)),
        flags=[jnp.array([True, False]), jnp.asarray(2**32 - 1, jnp.uint32), np.arange(3), np.float64(1 / 3)],
        python=(True, 7 + seed, 0.1),
    )


def bits(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf).tobytes()


def assert_same(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, jax.Array) if isinstance(b, jax.Array) else type(a) is type(b)
        assert getattr(a, "dtype", None) == getattr(b, "dtype", None)
        assert bits(a) == bits(b)


def save_all(directory: Path, *generations: int, keep: int = 10) -> None:
    with Checkpointer(directory, keep=keep) as checkpointer:
        for generation in generations:
            checkpointer.save(generation, make_state(generation), {"made": generation})


def step_files(directory: Path, generation: int) -> list[Path]:
    folder = directory / f"generation_{generation:08d}"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"_METADATA", "manifest.ocdbt", "_CHECKPOINT_METADATA"} <= {path.name for path in files}
    assert any(path.parent.name == "d" and path.stat().st_size > 100 for path in files), "no data file"
    return [*files, directory / f"generation_{generation:08d}.json"]


@pytest.fixture(scope="module")
def two_saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("two")
    save_all(directory, 1, 2)
    return directory


@pytest.fixture
def two(two_saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_saved, tmp_path / "copy"))


def test_everything_comes_back_bit_equal(two):
    state, metadata, generation = Checkpointer(two).restore(make_state(0))
    assert (generation, metadata) == (2, {"made": 2})
    assert isinstance(state, State)
    assert_same(state, make_state(2))


def test_an_older_generation_can_be_asked_for(two):
    state, metadata, generation = Checkpointer(two).restore(make_state(0), generation=1)
    assert (generation, metadata) == (1, {"made": 1})
    assert_same(state, make_state(1))


def test_metadata_floats_are_exact(tmp_path):
    metadata = {"best": 1 / 3, "names": ["a", None], "low": float("-inf")}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, {"x": jnp.ones(1)}, metadata)
        assert checkpointer.restore({"x": jnp.ones(1)})[1] == metadata


def test_shardings_follow_the_template(tmp_path):
    mesh = Mesh(np.array(jax.devices()[:2]), ("pop",))
    split, everywhere = NamedSharding(mesh, PartitionSpec("pop")), NamedSharding(mesh, PartitionSpec())
    state = {
        "split": jax.device_put(jnp.arange(4.0), split),
        "keys": jax.device_put(jax.random.split(jax.random.key(1), 4), split),
        "replicated": jax.device_put(jnp.arange(3), everywhere),
        "second": jax.device_put(jnp.ones(2), jax.devices()[1]),
        "free": jnp.ones(3),
        "empty": jax.device_put(jnp.zeros((0, 2)), everywhere),
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
    # A leaf that was free to follow others still is: no "incompatible devices".
    jax.jit(lambda a, b: a.sum() + b.sum())(restored["free"], restored["split"])


def test_a_template_without_sharding_gives_uncommitted_arrays(two):
    template = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, jax.Array) else x, make_state(0)
    )
    state = Checkpointer(two).restore(template)[0]
    assert_same(state, make_state(2))
    assert not any(leaf.committed for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array))


def test_donation_right_after_save_cannot_reach_the_saved_data(tmp_path):
    step = jax.jit(lambda tree: jax.tree.map(lambda x: -x - 1, tree), donate_argnums=0)
    state = {str(i): jax.random.normal(jax.random.key(i), (300_000,)) for i in range(6)}
    jax.block_until_ready(step(jax.tree.map(jnp.copy, state)))
    expected = jax.tree.map(np.array, state)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, state, {})
        template = state
        for _ in range(20):
            state = step(state)
        jax.block_until_ready(state)
        assert template["0"].is_deleted()
        checkpointer.wait()
        restored = checkpointer.restore(template)[0]
    for name, array in expected.items():
        np.testing.assert_array_equal(np.asarray(restored[name]), array)


def test_a_restored_state_can_be_donated(two):
    state = Checkpointer(two).restore(make_state(0))[0].params
    step = jax.jit(lambda tree: jax.tree.map(lambda x: x + x, tree), donate_argnums=0)
    assert_same(step(state), jax.tree.map(lambda x: x + x, make_state(2).params))


def test_save_returns_before_the_checkpoint_is_whole_and_the_next_waits(tmp_path, monkeypatch):
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
        assert manifest.is_whole(tmp_path, 1)
        checkpointer.wait()
        assert checkpointer.latest() == 2


def test_keep(tmp_path):
    save_all(tmp_path, 1, 2, 3, 4, keep=2)
    assert Checkpointer(tmp_path).whole_generations() == [3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "generation_00000003",
        "generation_00000003.json",
        "generation_00000004",
        "generation_00000004.json",
    ]


def test_the_newest_stays_although_older_ones_are_damaged(two):
    step_files(two, 2)[-1].write_text("{}")
    save_all(two, 3, keep=2)
    assert Checkpointer(two).whole_generations() == [1, 3]
    assert not (two / "generation_00000002").exists()


def test_a_rewound_run_drops_its_abandoned_future(two):
    save_all(two, 5, 6, keep=10)
    save_all(two, 3, keep=1)
    assert Checkpointer(two).whole_generations() == [3]


def test_the_same_generation_is_replaced_only_when_whole(two, monkeypatch):
    checkpointer = Checkpointer(two, keep=1)

    def fail(*_: Any) -> None:
        assert manifest.is_whole(two, 2)
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
    assert Checkpointer(directory).whole_generations() == [1]


def test_a_flipped_byte_in_any_file_is_seen(two):
    for path in step_files(two, 2):
        content = path.read_bytes()
        for at in {0, len(content) // 2, len(content) - 1} if content else ():
            path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
            assert not manifest.is_whole(two, 2), f"{path} at {at}"
        if content:
            assert_falls_back(two, str(path))
        path.write_bytes(content)
    assert Checkpointer(two).latest() == 2


def test_a_truncated_file_is_seen(two):
    for path in step_files(two, 2):
        content = path.read_bytes()
        if content:
            path.write_bytes(content[:-1])
            assert_falls_back(two, str(path))
        path.write_bytes(content)
    assert Checkpointer(two).latest() == 2


def test_a_missing_file_is_seen(two):
    for path in step_files(two, 2):
        content = path.read_bytes()
        path.unlink()
        assert_falls_back(two, f"{path} is missing")
        path.write_bytes(content)
    assert Checkpointer(two).latest() == 2


def test_a_missing_folder_is_seen(two):
    shutil.rmtree(two / "generation_00000002")
    assert_falls_back(two, "is missing")


def test_a_manifest_of_another_format_is_not_read(two, monkeypatch):
    monkeypatch.setattr(manifest, "FORMAT", 2)
    with pytest.warns(CheckpointWarning, match="has format 1"), pytest.raises(CheckpointError):
        Checkpointer(two).restore(make_state(0))


def test_no_whole_checkpoint_names_the_remedy(tmp_path, two):
    for path in two.glob("*.json"):
        path.unlink()
    with pytest.warns(CheckpointWarning), pytest.raises(CheckpointError, match=r"no whole checkpoint.*--overwrite"):
        Checkpointer(two).restore(make_state(0))
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        Checkpointer(tmp_path / "absent", read_only=True).restore(make_state(0))
    assert not (tmp_path / "absent").exists()


def test_a_damaged_generation_that_was_asked_for_is_an_error(two):
    step_files(two, 1)[0].unlink()
    with pytest.raises(CheckpointError, match=r"generation 1 cannot be used: .* is missing; whole .* \[2\]"):
        Checkpointer(two).restore(make_state(0), generation=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"counter": jnp.asarray(0, jnp.uint32)}, r"\.counter is int32 \[\] in the checkpoint and uint32 \[\] in the"),
        ({"counter": jnp.zeros(2, jnp.int32)}, r"\.counter is int32 \[\] in the checkpoint and int32 \[2\]"),
        ({"nothing": jnp.zeros(1)}, r"\.nothing is absent in the checkpoint and float32 \[1\]"),
        (
            {"params": {"kernel": jnp.zeros((4, 3))}},
            r"\.params\['half'\] is bfloat16 \[4, 3\] .* and absent in the run",
        ),
        ({"keys": jax.random.split(jax.random.key(0, impl="rbg"), 3)}, r"\.keys is key<fry> \[3\] .* key<rbg> \[3\]"),
        ({"empty": (jnp.zeros((0, 6)), *make_state(0).empty[1:])}, r"\.empty\[0\] is float32 \[0, 5\]"),
        ({"python": (1, 7, 0.1)}, r"\.python\[0\] is Python bool"),
    ],
)
def test_another_template_is_refused(two, change, message):
    with pytest.raises(CheckpointError, match=message):
        Checkpointer(two).restore(make_state(0)._replace(**change))


def test_unreadable_though_whole_is_an_error_and_no_fallback(two, monkeypatch):
    body = manifest.read(two, 2)
    shutil.rmtree(two / "generation_00000002")
    (two / "generation_00000002").mkdir()
    manifest.write(two, body)
    with pytest.raises(CheckpointError, match="is whole but could not be read"):
        Checkpointer(two).restore(make_state(0))
    gc.collect()  # what orbax leaves behind would complain here


def test_leaves_and_metadata_that_cannot_be_stored_are_named(tmp_path):
    checkpointer = Checkpointer(tmp_path)
    with pytest.raises(CheckpointError, match=r"generation 4 .*\['name'\] is a str"):
        checkpointer.save(4, {"name": "text"}, {})
    with pytest.raises(CheckpointError, match="not JSON serializable"):
        checkpointer.save(4, {"x": jnp.ones(1)}, {"bad": jnp.ones(1)})
    with pytest.raises(ValueError, match="generation is -1"):
        checkpointer.save(-1, {"x": jnp.ones(1)}, {})
    with pytest.raises(ValueError, match="keep is 0"):
        Checkpointer(tmp_path, keep=0)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_seen_before_writing(two, monkeypatch):
    checkpointer = Checkpointer(two)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 7, 3))  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match="3 free; the newest whole one is of generation 2") as caught:
        checkpointer.save(3, make_state(3), {})
    assert str(two) in str(caught.value)
    assert not list(two.glob("*3*"))


def test_a_disk_that_fills_while_writing(two, capfd):
    """The kernel refuses the write itself; then the next save succeeds, and nothing is printed."""
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
    message = str(caught.value)
    assert message == (
        f"Could not write the checkpoint of generation 3 in {two}: File too large; "
        "the newest whole one is of generation 2."
    )
    assert not list(two.glob("*3*")), "half a checkpoint was left"
    checkpointer.save(4, state, {})
    checkpointer.close()
    assert checkpointer.latest() == 4
    assert capfd.readouterr() == ("", "")


def test_a_disk_that_fills_at_the_manifest(two, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(manifest, "write_atomically", full)
    checkpointer = Checkpointer(two)
    checkpointer.save(3, make_state(3), {})
    with pytest.raises(CheckpointError, match="No space left on device"):
        checkpointer.close()
    checkpointer.close()  # raised once
    assert not list(two.glob("*3*"))


def test_an_error_in_the_block_is_not_hidden_by_one_of_the_save(two, monkeypatch):
    monkeypatch.setattr(manifest, "write", lambda *_: 1 / 0)

    def fail_twice() -> None:
        with Checkpointer(two) as checkpointer:
            checkpointer.save(3, make_state(3), {})
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        fail_twice()
    assert "Could not write the checkpoint of generation 3" in caught.value.__notes__[0]


def test_what_killed_runs_left_is_removed_by_the_next_writer_only(two):
    left = two / "generation_00000003.orbax-checkpoint-tmp"
    (left / "d").mkdir(parents=True)
    with Checkpointer(two, read_only=True) as reader:
        assert left.exists()
        assert reader.restore(make_state(0))[2] == 2
        with pytest.raises(CheckpointError, match="opened for reading"):
            reader.save(4, make_state(4), {})
    with warnings.catch_warnings(), Checkpointer(two) as writer:
        assert not left.exists()
        assert writer.latest() == 2


def test_empty_means_that_no_save_was_ever_finished(tmp_path, two):
    assert Checkpointer(tmp_path / "absent", read_only=True).empty
    assert Checkpointer(tmp_path / "new").empty
    half = tmp_path / "half"
    shutil.copytree(two / "generation_00000001", half / "generation_00000001")
    assert Checkpointer(half).empty
    shutil.copytree(two / "generation_00000002", half / "generation_00000002")
    assert not Checkpointer(half).empty, "two folders without manifests are damage, and no reason to begin anew"
    shutil.rmtree(two / "generation_00000001")
    shutil.rmtree(two / "generation_00000002")
    assert not Checkpointer(two).empty


KILLED = """
import json, os, signal, sys
from rookery.runs import checkpoint, manifest
import jax.numpy as jnp
early = "orbax" in " ".join(sys.modules)
checkpointer = checkpoint.Checkpointer(sys.argv[1], keep=1)
checkpointer.save(1, {"x": jnp.arange(5)}, {})
checkpointer.wait()
print(json.dumps({"early": early}), flush=True)
manifest.write = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
checkpointer.save(2, {"x": jnp.arange(6)}, {})
checkpointer.close()
"""


def test_killed_between_commit_and_manifest(tmp_path):
    """Also: orbax is imported late, and prints nothing."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert json.loads(done.stdout) == {"early": False}
    assert done.stderr == ""
    assert (tmp_path / "generation_00000002").is_dir(), "it was committed"
    with pytest.warns(CheckpointWarning, match=r"generation_00000002\.json is missing"):
        state, _, generation = Checkpointer(tmp_path).restore({"x": jnp.zeros(5, jnp.int32)})
    assert generation == 1
    np.testing.assert_array_equal(np.asarray(state["x"]), np.arange(5))
    save_all(tmp_path, 2, keep=1)
    assert Checkpointer(tmp_path).whole_generations() == [2]
    assert len(list(tmp_path.iterdir())) == 2
