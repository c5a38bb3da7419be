"""What the processes of a run say to each other: where there is only one, nothing. Several are in test_distributed."""

import ctypes
import os
import threading

import pytest

from rookery.distributed import mesh, sync
from rookery.trees import flatten_mapping
from rookery.versions import version, versions


def test_who_is_alone_is_the_first_and_hears_itself():
    assert sync.is_first()
    assert sync.key_value_store() is None
    assert sync.runtime().num_processes in (None, 1)
    assert sync.of_first(7) == 7
    assert sync.of_first(True) is True


@pytest.mark.parametrize("signum", [None, 15])
@pytest.mark.parametrize("saves", [False, True])
def test_who_is_alone_agrees_with_itself(signum, saves):
    assert sync.agree(signum, saves) == (signum, saves)


def test_who_is_alone_waits_for_nobody_and_is_alike():
    sync.barrier()
    sync.connect(mesh.make_mesh(1))
    sync.check_alike({"no JSON": object()})


def test_a_record_is_compared_field_by_field():
    record = {
        "run": {"seed": 1, "environment": {"env": "point_room"}},
        "kind": "pbt-sac",
        "empty": {},
        "list": [{"a": 1}],
    }
    assert flatten_mapping(record) == {
        "run.seed": 1,
        "run.environment.env": "point_room",
        "kind": "pbt-sac",
        "list": [{"a": 1}],
    }


def test_versions_are_of_what_decides_the_numbers():
    told = versions(sync.PACKAGES)
    assert {"python", "rookery", "jax", "jaxlib", "numpy"} <= told.keys()
    assert all(version[0].isdigit() for version in told.values())
    assert version("a-package-that-nobody-has") == "unknown"


def test_what_libraries_print_is_hushed_and_what_python_prints_is_not(capfd):
    library = ctypes.CDLL(None)
    print("before")
    with sync._silenced_stdout():
        library.puts(b"of a library, held back")
        os.write(1, b"of a library, at once\n")
    print("after")
    library.puts(b"of a library, later")
    library.fflush(None)
    out, err = capfd.readouterr()
    assert out.splitlines() == ["before", "after", "of a library, later"]
    assert err == ""


def test_an_error_while_hushed_gives_the_output_back(capfd):
    open_before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    with pytest.raises(KeyError), sync._silenced_stdout():
        raise KeyError("while hushed")
    print("after")
    assert capfd.readouterr().out == "after\n"
    if open_before is not None:
        assert len(os.listdir("/proc/self/fd")) == open_before


def test_another_file_of_the_same_name_is_not_what_process_0_sees(tmp_path, monkeypatch):
    owner = tmp_path / ".owner.json"
    assert sync.file_matches_process_zero(owner), "no file is no file, for all"
    owner.write_text('{"pid": 7}')
    assert sync.file_matches_process_zero(owner)
    told = sync._checksum(owner)
    monkeypatch.setattr(sync, "of_first", lambda _: told)
    owner.write_text('{"pid": 8}')
    assert not sync.file_matches_process_zero(owner, seconds=0.1)
    owner.unlink()
    assert not sync.file_matches_process_zero(owner, seconds=0.1)
    late = threading.Timer(0.2, owner.write_text, ['{"pid": 7}'])  # as over a network
    late.start()
    assert sync.file_matches_process_zero(owner, seconds=5.0)
    late.join()
