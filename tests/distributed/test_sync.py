"""Synchronisation of the processes of a run, in a run of one process; `test_distributed.py` starts several."""

import ctypes
import os
import threading

import pytest

from rookery.distributed import mesh, sync
from rookery.trees import flatten_mapping
from rookery.versions import version, versions


def test_a_single_process_is_process_zero_agrees_with_itself_and_does_not_wait():
    assert sync.is_first()
    assert sync.process_count() == 1
    with pytest.raises(ValueError, match="not available"):
        sync.key_value_store()
    assert sync.of_first(7) == 7
    assert sync.of_first(True) is True
    for signum, saves in ((None, False), (None, True), (15, False), (15, True)):
        assert sync.agree(signum, saves) == (signum, saves)
    sync.barrier()
    sync.connect(mesh.make_mesh(1))
    sync.check_alike({"no JSON": object()})


def test_a_record_is_compared_field_by_field():
    nested = {"run": {"seed": 1, "environment": {"env": "room"}}, "kind": "sac", "empty": {}, "list": [{"a": 1}]}
    flat = {"run.seed": 1, "run.environment.env": "room", "kind": "sac", "list": [{"a": 1}]}
    assert flatten_mapping(nested) == flat


def test_versions_of_the_packages_that_affect_results():
    recorded = versions(sync.PACKAGES)
    assert {"python", "rookery", "jax", "jaxlib", "numpy"} <= recorded.keys()
    assert all(version[0].isdigit() for version in recorded.values())
    assert version("a-package-that-does-not-exist") == "unknown"


def test_output_of_libraries_is_discarded_and_that_of_python_is_not_also_after_an_error(capfd):
    library = ctypes.CDLL(None)
    print("before")
    with sync._silenced_stdout():
        library.puts(b"of a library, buffered")
        os.write(1, b"of a library, at once\n")
    print("after")
    library.puts(b"of a library, later")
    library.fflush(None)
    out, err = capfd.readouterr()
    assert out.splitlines() == ["before", "after", "of a library, later"]
    assert err == ""
    open_before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    with pytest.raises(KeyError), sync._silenced_stdout():
        raise KeyError("while silenced")
    print("after")
    assert capfd.readouterr().out == "after\n"
    if open_before is not None:
        assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_file_with_other_content_than_in_process_0(tmp_path, monkeypatch):
    owner = tmp_path / ".owner.json"
    assert sync.file_matches_process_zero(owner), "missing in every process"
    owner.write_text('{"pid": 7}')
    assert sync.file_matches_process_zero(owner)
    expected = sync._checksum(owner)
    monkeypatch.setattr(sync, "of_first", lambda _: expected)
    owner.write_text('{"pid": 8}')
    assert not sync.file_matches_process_zero(owner, seconds=0.1)
    owner.unlink()
    assert not sync.file_matches_process_zero(owner, seconds=0.1)
    late = threading.Timer(0.2, owner.write_text, ['{"pid": 7}'])  # as over a network
    late.start()
    assert sync.file_matches_process_zero(owner, seconds=5.0)
    late.join()
