"""User-defined environments by name: references, registered names, and what goes wrong."""

import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import rookery
from rookery import factories, settings
from rookery.envs import custom, registry
from rookery.envs.base import Environment
from rookery.experiments.parts import option_values

FILE = """
import rookery

def make(episode_length: int = 7) -> rookery.Environment:
    return rookery.make("point_room", episode_length=episode_length)

def raises():
    return 1 / 0

def nothing():
    return None

def needs(mass):
    return make()

def switches(dense: bool = True):
    return make(7 if dense else 9)

class OfGymnasium:
    action_space = 2
"""


def short_room(episode_length: int = 3) -> Environment:
    return rookery.make("point_room", episode_length=episode_length)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own_task.py"
    path.write_text(FILE)
    return path


def test_a_factory_in_a_file_is_a_task_with_its_parameters_as_options(file: Path) -> None:
    assert registry.make(f"{file}:make").spec.episode_length == 7
    assert registry.make(f"{file}:make", episode_length=9).spec.episode_length == 9


@pytest.mark.parametrize(("word", "steps"), [("dense=False", 9), ("dense=true", 7)])
def test_a_typed_switch_is_not_text(file: Path, word: str, steps: int) -> None:
    assert registry.make(f"{file}:switches", **option_values([word])).spec.episode_length == steps


def test_a_file_in_the_home_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(file.parent))
    assert registry.make("~/own_task.py:make").spec.episode_length == 7
    assert custom.canonical("~/own_task.py:make") == f"{file}:make"


@pytest.mark.parametrize("name", [*'a,b|a"b|a\nb|| a|../a|a=b|a\\b|/a|a/|a//b|x'.split("|"), 3, "a" * 201])
def test_the_one_rule_for_names_from_outside(name: Any) -> None:
    with pytest.raises(ValueError, match=rf"^the metric {re.escape(repr(name)[:120])} (needs another|is there)"):
        settings.check_names("metric", ["x", name])


@pytest.mark.parametrize("name", ["hyper/x", "broken_x", "fitness", "max_fitness", "member/0/x"])
def test_names_that_the_library_uses_are_reserved(name: str) -> None:
    with pytest.raises(ValueError, match=f"^the metric '{name}' needs another name, since rookery uses it itself"):
        settings.check_names("metric", [name], settings.METRIC_NAMES)
    settings.check_names("metric", ["loss/actor", "Q1", "verlust_ä", "0", "fitness_2"], settings.METRIC_NAMES)


@pytest.mark.parametrize("words", [["width=4", "width=5"], ["a,b=1"], ["a b =1"]])
def test_options_that_are_no_names_or_there_twice_are_errors(words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^the option "):
        option_values(words)


def test_a_factory_in_a_module_is_found_from_the_working_directory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(file.parent))])
    monkeypatch.chdir(file.parent)
    (file.parent / "own_package").mkdir()
    for name in ("tasks.py", "more-tasks.py"):
        (file.parent / "own_package" / name).write_text(FILE)
    assert registry.make("own_package.tasks:make").spec.episode_length == 7
    assert registry.make("own_package.more-tasks:make").spec.episode_length == 7
    assert custom.canonical("own_task.py:make") == f"{file}:make"


def test_registered_names_and_their_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom, "_FACTORIES", {})
    rookery.register("my_room", short_room)
    assert rookery.make("my_room").spec.episode_length == 3
    assert "my_room" in custom.names()
    assert custom.canonical("my_room") == f"{__name__}:short_room"
    rookery.register("my_room", f"{__name__}:short_room")
    assert rookery.make("my_room", episode_length=4).spec.episode_length == 4
    rookery.register("nameless", lambda: rookery.make("point_room"))
    with pytest.raises(ValueError, match=r"^'nameless' is registered for .*lambda>, which another process cannot"):
        custom.canonical("nameless")


def test_packages_declare_environments_as_entry_points_which_replace_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        metadata.EntryPoint(name, f"{__name__}:short_room", custom.ENTRY_POINTS)
        for name in ("declared_room", "point_maze", "arm")
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points if group == custom.ENTRY_POINTS else [])
    monkeypatch.setattr(custom, "_FACTORIES", {})
    assert rookery.make("declared_room").spec.episode_length == 3
    assert custom.canonical("declared_room") == "declared_room"
    with pytest.raises(ValueError, match=r"did you mean declared_room"):
        rookery.make("declared_rom")
    assert rookery.make("point_maze").spec.episode_length == 200
    assert custom.names() == ("declared_room",)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        *[("hopper", "hopper"), ("./a/mass.py:make", "mass"), ("lab.tasks:mass", "tasks-mass")],
        *[("lab.mass:build", "mass"), ("gym:ale_py:ALE/Pong-v5", "gym-ale_py-ALE-Pong-v5")],
    ],
)
def test_labels_have_no_separators(name: str, label: str) -> None:
    assert factories.label(name) == label


@pytest.mark.parametrize(
    ("attribute", "options", "message"),
    [
        ("mak", {}, r" has no function 'mak'; did you mean make\?$"),
        ("raises", {}, r" raised ZeroDivisionError: division by zero \(.*own_task\.py, line 8\)$"),
        ("nothing", {}, r" returned None, not a rookery\.Environment; build one by rookery\.Environment\(reset, step"),
        ("OfGymnasium", {}, r" returned an object of type .*Environment; return rookery\.from_gymnasium\(make_env\)"),
        ("make", {"mass": 2}, r" has no option mass; it has episode_length\.$"),
        ("needs", {}, r" needs mass; give --option mass=VALUE\.$"),
        ("make", {"episode_length": "two"}, r"^the option episode_length of .*:make must be a whole number, got 'two'"),
        ("switches", {"dense": "no"}, r"^the option dense of .*:switches must be true or false, got 'no'\.$"),
    ],
)
def test_a_wrong_factory_is_an_error(file: Path, attribute: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.make(f"{file}:{attribute}", **options)


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^there is no file .*absent\.py; give the path of a Python file, such as"):
        registry.make(f"{tmp_path}/absent.py:make")
    with pytest.raises(ValueError, match=r"^there is no module 'no_such_package'; run the command in its folder"):
        registry.make("no_such_package.tasks:make")
    with pytest.raises(ValueError, match=r"give the factory in the file too, as in \./mass\.py:make\.$"):
        registry.make("./mass.py")


@pytest.mark.parametrize(
    ("name", "factory", "message"),
    [
        ("a:b", short_room, r"^the name of an environment must be a word without ':' and '/', got 'a:b'\.$"),
        ("hopper", short_room, r"^the library has a task 'hopper'; register .* another name, as in 'my_hopper'\.$"),
        ("room", 3, r"^the factory of 'room' must be a function or 'package\.module:factory', got 3"),
    ],
)
def test_a_wrong_registration_is_an_error(name: str, factory: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rookery.register(name, factory)  # pyright: ignore[reportArgumentType]
