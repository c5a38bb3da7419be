"""The examples run, at their small size, each night (`pytest -m nightly`)."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


EXAMPLES_SAY = {
    "diayn.py": "the first action of skill 2 is [",
    "map_elites_arm.py": "nearest to (0.9, 0.5): end position [",
    "me_pbt.py": "the elite nearest to (0.0, 0.9) ends at [",
    "own_agent.py": "best return: ",
    "own_environment.py": "best return: ",
    "own_parameters.py": "success of member ",
    "own_network.py": "mean return: ",
    "own_program.py": "on fresh episodes: ",
    "pbt_sac.py": "best return",
    "pursuit.py": "the predator's first turn: ",
    "replay_schedule.py": "four new agents with that schedule: ",
    "tracker.py": "finished; see ",
    "tune_anything.py": "on other digits: ",
}
NEEDED = {"tune_anything.py": "sklearn"}


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "says"), EXAMPLES_SAY.items())
def test_an_example_runs(name, says, tmp_path, monkeypatch, capsys):
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    monkeypatch.setattr("sys.argv", [name, "--small", "--run-dir", str(tmp_path / "run")])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert says in capsys.readouterr().out
    assert (tmp_path / "run" / ("tuner.json" if name in NEEDED else "metrics.csv")).exists()


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXAMPLES_SAY)
