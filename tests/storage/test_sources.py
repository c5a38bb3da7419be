"""A run of a user's files is complete in itself: it moves without them, and says when they have changed."""

import importlib.metadata
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import rookery
from rookery import factories
from rookery.storage import sources
from rookery.storage.run_dir import RunFolder, create
from tests import written_runs
from tests.commandline import call, printed

TINY = "--batch-size 4 --grid 3 3 --hidden-sizes 4 --eval-episodes 1 --start-states 1 --devices 1".split()


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a run of an environment in a file, which imports another one beside it; and a copy of it."""
    place = tmp_path_factory.mktemp("sources") / "place"
    folder = place / "project"
    name = f"hill_{place.parent.name}"
    (folder / f"parts_{name}").mkdir(parents=True)
    (folder / f"{name}.py").write_text(
        f"import rookery\nfrom parts_{name}.lengths import LENGTH\n\n\n"
        'def make():\n    return rookery.make("point_room", episode_length=LENGTH)\n'
    )
    (folder / f"parts_{name}" / "lengths.py").write_text("LENGTH = 5\n")
    words = ["train", "map-elites", "--env", f"{folder}/{name}.py:make", *TINY, "--generations", "2"]
    printed(*words, "--run-dir", str(place / "run"))
    shutil.copytree(place, place.with_name("copy"))
    return place


@pytest.fixture
def trained(place) -> Path:
    """The run, with the files of its environment, as after its training, and as in a process that has not opened it."""
    factories.COPIES.clear()
    sources.REPLACED.clear()
    shutil.rmtree(place)
    shutil.copytree(place.with_name("copy"), place)
    return place / "run"


def test_a_run_moves_without_the_files_that_built_it(trained, tmp_path):
    files = json.loads((trained / "source/files.json").read_text())
    assert [sorted(name.rpartition("/")[2] for name in found)[-1] for found in files.values()] == ["lengths.py"]
    moved = shutil.move(trained, tmp_path / "elsewhere")
    shutil.rmtree(trained.parent / "project")
    out = printed("resume", moved, "--generations", "3")
    assert "continues after generation 2" in out
    assert call("report", str(moved))[0] == 0
    assert rookery.load(moved).policy()(np.zeros(2, np.float32)).shape == (2,)
    assert len(rookery.load(moved).metrics["generation"]) == 3


def test_a_file_that_is_imported_and_gone_is_found_in_the_run_directory(trained, monkeypatch):
    monkeypatch.setattr(factories, "_MODULES", {})  # as in another process
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if not entry.startswith(str(trained.parent))])
    for name in [name for name in sys.modules if name.startswith("parts_hill_")]:
        monkeypatch.delitem(sys.modules, name)
    shutil.rmtree(next((trained.parent / "project").glob("parts_*")))
    importlib.invalidate_caches()
    assert rookery.load(trained).policy()(np.zeros(2, np.float32)).shape == (2,)


def test_a_run_is_built_from_the_file_that_is_named_in_place_of_the_recorded_one(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(factories, "_MODULES", {})  # as in another process
    moved = shutil.move(trained.parent / "project", tmp_path / "moved")
    function = f"{next(Path(moved).glob('*.py'))}:make"
    shutil.rmtree(trained / "source")  # as runs of earlier versions have none
    with pytest.raises(ValueError, match=r"there is no file .*project.*hill_"):
        rookery.load(trained).policy()
    monkeypatch.setenv("HOME", str(trained.parent))
    for path in ("~/run", trained):
        assert rookery.load(path, env=function).policy()(np.zeros(2, np.float32)).shape == (2,)
    for words in (["evaluate", "--episodes", "2"], ["resume", "--generations", "3"]):
        code, _, err = call(words[0], str(trained), *words[1:], "--env", function)
        assert (code, err) == (0, ""), words
    assert json.loads((trained / "config.json").read_text())["config"]["environment"]["env"] == function
    with pytest.raises(ValueError, match=r"env must be package.module:function or path/to/file.py:function, got 'hop"):
        rookery.load(trained, env="hopper")
    with pytest.raises(ValueError, match=r"factory replaces a function of yours, and .* has none"):
        rookery.load(trained, factory=function)
    edited = written_runs.write(tmp_path / "edited", {"environment": "room"})
    with pytest.raises(ValueError, match=r"env replaces a function of yours, and .* has none"):
        rookery.load(edited, env=function)


def test_changed_code_is_said_at_resume_and_an_exact_run_refuses_it(trained, tmp_path):
    folder = RunFolder(trained)
    changed = next((trained.parent / "project").glob("parts_*/lengths.py"))
    assert sources.changed(folder) == []
    changed.write_text("LENGTH = 5  # as before\n")
    exact = shutil.copytree(trained, tmp_path / "exact")
    text = (exact / "config.json").read_text()
    (exact / "config.json").write_text(text.replace('"exact": false', '"exact": true'))
    code, _, err = call("resume", str(exact), "--generations", "3")
    assert code == 1
    assert f"{changed} has changed since the run with --exact was started" in err
    code, _, err = call("evaluate", str(trained), "--episodes", "2")
    assert (code, err) == (0, f"warning: {changed} has changed since {trained} was trained; the changed code is used\n")
    code, _, err = call("resume", str(trained), "--generations", "3")
    assert (code, err) == (
        0,
        f"warning: {changed} has changed since the run was started, and counts from generation 3 on\n",
    )
    assert "has changed" in (trained / "journal.jsonl").read_text()
    assert call("evaluate", str(trained), "--episodes", "2")[2] == "", "it is said once"


def test_a_module_of_a_package_is_recorded_by_its_version_and_hash(tmp_path):
    folder = RunFolder(tmp_path)
    folder.config = {"environment": {"env": "json.decoder:make"}, "factory": "jax.nn:build"}
    sources.save(folder)
    found = json.loads(folder.sources_file.read_text())
    assert found["jax.nn"]["version"]
    assert found["json.decoder"] == {"decoder.py": found["json.decoder"]["decoder.py"], "version": ""}
    assert not list(folder.sources.glob("[0-9]*"))


def test_modules_of_the_current_folder_move_with_the_run(tmp_path, monkeypatch):
    own, gym = (f"own_{name}_{tmp_path.name}" for name in ("module", "gym"))
    parts = f"{own}_parts"
    (project := tmp_path / "project").mkdir()
    for name in (own, gym):
        (project / f"{name}.py").write_text(f"from {parts} import length\n")
    (project / f"{parts}.py").write_text("length = 5\n")
    monkeypatch.syspath_prepend(project)
    monkeypatch.chdir(project)
    installed = importlib.metadata.packages_distributions()  # which takes half a second each time
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: installed)
    for name in (own, gym):
        importlib.import_module(name)
    folder = create(tmp_path / "run", {"environment": {"env": f"gym:{gym}:Pole-v0"}, "factory": f"{own}:make"})
    sources.save(folder)
    found = json.loads(folder.sources_file.read_text())
    expected = sorted([f"{gym}.py", f"{own}.py", f"{parts}.py", "version"])
    assert {name: sorted(files) for name, files in found.items()} == dict.fromkeys((own, gym), expected)
    assert sources.changed(folder) == []
    (project / f"{parts}.py").write_text("length = 6\n")
    assert sources.changed(folder) == [str(project / f"{parts}.py")] * 2

    for imported in (own, gym, parts):
        monkeypatch.delitem(sys.modules, imported)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(project)])
    moved = RunFolder(shutil.move(folder.path, tmp_path / "elsewhere"))
    moved.config = folder.config
    shutil.rmtree(project)
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    sources.use(moved)
    assert [importlib.import_module(name).length for name in (own, gym)] == [5, 5]
    assert sources.changed(moved) == []


@pytest.mark.parametrize("content", ['{"/x/own.py": [5]}', "null", "{"])
def test_a_damaged_list_of_files_is_that_of_an_older_run(tmp_path, content):
    folder = create(tmp_path / "run", {"environment": {"env": "/x/own.py:make"}})
    folder.sources.mkdir()
    folder.sources_file.write_text(content)
    sources.use(folder)
    assert sources.changed(folder) == []
