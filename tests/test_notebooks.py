"""The notebooks are those of their scripts, and the scripts run each night (`pytest -m nightly`)."""

import json
import re
import runpy
from pathlib import Path

import matplotlib as mpl
import pytest

pytest.importorskip("IPython")
NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
BUILD = runpy.run_path(str(NOTEBOOKS / "build.py"))
SCRIPTS = sorted((NOTEBOOKS / "src").glob("*.py"))


def test_cells_of_text_code_and_commands():
    made = BUILD["notebook"](
        "# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\n# %pip install x\n\n# %%\n# why\ny = 1  # %\n"
    )
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in made["cells"]] == [
        ("markdown", "# Title\n\nText."),
        ("code", "%pip install x"),
        ("code", "# why\ny = 1  # %"),
    ]
    assert [cell["id"] for cell in made["cells"]] == ["cell-0", "cell-1", "cell-2"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_is_that_of_its_script(script):
    assert (NOTEBOOKS / f"{script.stem}.ipynb").read_text() == BUILD["written"](script), "run python notebooks/build.py"


def test_every_notebook_has_a_script_and_installs_first():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {path.stem for path in SCRIPTS}
    for script in SCRIPTS:
        code = [cell for cell in BUILD["notebook"](script.read_text())["cells"] if cell["cell_type"] == "code"]
        assert "".join(code[0]["source"]) == "%pip install -q -e .."


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_notebook_has_its_outputs(script):
    cells = json.loads((NOTEBOOKS / f"{script.stem}.ipynb").read_text())["cells"]
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and re.search(r"^(print|display|plt\.show)\(", source, re.MULTILINE):
            assert cell["outputs"], f"run python notebooks/build.py {script.stem}: no output of\n{source}"


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "runs", "says"),
    [
        ("quickstart", ["quickstart"], "mean return of each member on fresh episodes"),
        ("pbt", ["search", "pbt"], "copies; the best member's ancestors"),
        ("repertoire", ["arms", "trap"], "corrected coverage"),
        ("ask_tell", ["catapult"], "the same settings: True"),
    ],
)
def test_a_notebook_runs(name, runs, says, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ROOKERY_SMALL", "1")
    monkeypatch.chdir(tmp_path)
    with mpl.rc_context({"backend": "agg", "figure.max_open_warning": 0}):
        runpy.run_path(str(NOTEBOOKS / "src" / f"{name}.py"), run_name="__main__")
    assert says in capsys.readouterr().out
    assert all((tmp_path / "runs" / run / "report.html").exists() for run in runs)
