"""A run in a user-defined environment: every command finds its factory again, also from another folder."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.commandline import call, printed

FILE = Path(__file__).parents[2] / "examples" / "own_environment.py"
TINY = "--grid 3 --batch-size 2 --hidden-sizes 4 --eval-episodes 1 --start-states 1 --devices 1 --quiet"


def test_commands_find_the_factory_of_a_run_and_its_options_from_another_folder(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    words = f"--env {os.path.relpath(FILE)}:make --option mass=2 --episode-length 12 --generations 2 {TINY}"
    printed("train", "map-elites", *words.split())
    run = tmp_path / "elsewhere/runs/map-elites-own_environment-0"
    environment = json.loads((run / "config.json").read_text())["config"]["environment"]
    assert (environment["env"], environment["option"]) == (f"{FILE}:make", ["mass=2"])
    assert re.search('"env": ?"own_environment"', (run / "report.html").read_text())
    monkeypatch.chdir(tmp_path)
    for command in ("export", "render"):  # those of `tests/storage/test_sources.py` evaluate, resume and report
        printed(command, run)


ROOM = "import argparse, sys, rookery\ndef make():\n    return rookery.make('point_room', episode_length=5)\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROOM + "sys.exit(0)", "the file {file} raised SystemExit: 0 ({file}, line 4); keep what ends the program"),
        (ROOM + "import json\njson.loads('{{')", "the file {file} raised JSONDecodeError: {any} ({file}, line 5)"),
        (ROOM + "raise BaseException('lost')", "since BaseException: lost was raised ({file}, line 4)."),
        (ROOM + "def make(:", "the file {file} raised SyntaxError: {any} (own.py, line 4)"),
        (ROOM.replace("return", "sys.exit(0);"), "the factory {file}:make raised SystemExit: 0 ({file}, line 3)"),
        (
            ROOM.replace("return", "raise GeneratorExit;"),
            "since GeneratorExit: no message was raised ({file}, line 3).",
        ),
        (
            ROOM.replace("return", "env =") + "    return env._replace(step=lambda *_: sys.exit(0))",
            "step(state, action, key) raised SystemExit for an action of shape (2,) {any}: 0 ({file}, line 4)",
        ),
    ],
)
def test_what_a_file_raises_is_one_sentence_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(text.replace("{{", "{"))
    code, out, error = call("train", "sac", "--env", f"{tmp_path}/own.py:make", "--quiet")
    pattern = re.escape(message.replace("{file}", f"{tmp_path}/own.py")).replace(r"\{any\}", ".*")
    assert re.search(pattern, error), error
    assert (code, out, error.count("\n"), error[:7]) == (1, "", 1, "error: ")


def test_envs_lists_the_options_of_a_factory() -> None:
    code, out, _ = call("envs", f"{FILE}:make")
    assert code == 0
    assert re.search(r"^ *options +--option mass=\.\.\., --episode-length *$", out, re.MULTILINE), out


def test_a_file_that_parses_arguments_sees_none_of_ours(tmp_path: Path) -> None:
    parser = "parser = argparse.ArgumentParser()\nparser.add_argument('--steps', default=7)\n"
    text = ROOM.replace("=5", "=STEPS") + f"{parser}STEPS = parser.parse_args().steps\n"
    (tmp_path / "own.py").write_text(text)
    out = printed("envs", f"{tmp_path}/own.py:make")
    assert ["episode", "length", "7"] in [line.split() for line in out.splitlines()]
    (tmp_path / "strict.py").write_text(text.replace("default=7", "required=True"))
    code, _, error = call("envs", f"{tmp_path}/strict.py:make")
    assert code == 1
    assert error.startswith("usage: strict.py [-h] --steps STEPS\nstrict.py: error: ")
    assert error.splitlines()[-1].startswith(f"error: the file {tmp_path}/strict.py raised SystemExit: 2 ({tmp_path}/")
