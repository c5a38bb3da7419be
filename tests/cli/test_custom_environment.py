"""A run in a user-defined environment: every command finds its factory again, also from another folder."""

import json
from pathlib import Path

import pytest

from tests.commandline import call

FILE = Path(__file__).parents[2] / "examples" / "own_environment.py"
TINY = "--num-envs 2 --hidden-sizes 4 --eval-episodes 2 --start-states 2 --devices 1 --quiet --steps-per-generation 20"
TINY += " --batch-size 4 --buffer-size 32 --warmup-steps 4"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(FILE.parent)
        words = f"sac --env ./{FILE.name}:make --option mass=2 --episode-length 12 --generations 2 {TINY}"
        code, _, error = call("train", *words.split(), "--run-dir", str(folder / "run"))
    assert (code, error) == (0, "")
    return folder / "run"


def test_the_factory_and_its_options_are_recorded(run: Path) -> None:
    environment = json.loads((run / "config.json").read_text())["config"]["environment"]
    assert environment["env"] == f"{FILE}:make"
    assert environment["option"] == ["mass=2"]
    assert "<title>" in (page := (run / "report.html").read_text())
    assert '"env": "own_environment"' in page or '"env":"own_environment"' in page


@pytest.mark.parametrize(
    "command", [["evaluate", "--episodes", "2"], ["export"], ["render"], ["resume", "--generations", "3", "--quiet"]]
)
def test_commands_find_the_factory_from_another_folder(run: Path, command: list[str], monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = call(command[0], str(run), *command[1:])
    assert (code, error) == (0, "")


def test_the_default_run_directory_has_a_short_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = f"sac --env {FILE}:make --episode-length 12 --generations 1 {TINY}"
    code, _, error = call("train", *words.split())
    assert (code, error) == (0, "")
    assert (tmp_path / "runs" / "sac-own_environment-0" / "metrics.csv").exists()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (f"{FILE}:mak", f"error: {FILE} has no function 'mak'; did you mean make"),
        ("./absent.py:make", "error: there is no file "),
        (
            "./absent.py",
            "error: there is no task './absent.py'; give the factory in the file too, as in ./absent.py:make.",
        ),
    ],
)
def test_a_wrong_factory_is_one_sentence(env: str, message: str) -> None:
    code, _, error = call("train", "sac", "--env", env)
    assert code == 1
    assert error.startswith(message)
    assert error.count("\n") == 1
