"""Makes the notebooks from the scripts in `src`: `python notebooks/build.py`, or with a name to run one first.

The scripts are in the percent format of VS Code, Spyder and Jupytext: `# %%` begins a cell of code, `# %% [markdown]`
one of text, whose lines are comments. A line `# %pip` is a comment of the script and a command of the notebook.
A notebook has the outputs of its latest run; a cell that changed since has none.
"""

import base64
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.pylabtools import select_figure_formats
from IPython.utils.capture import capture_output
from PIL import Image

FOLDER = Path(__file__).parent
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def notebook(script: str) -> dict[str, Any]:
    """The notebook of a script, as JSON values of format 4.5."""
    parts = re.split(r"^# %%( \[markdown\])?\n", script, flags=re.MULTILINE)[1:]
    cells = [
        _cell(index, bool(kind), text) for index, (kind, text) in enumerate(zip(parts[::2], parts[1::2], strict=True))
    ]
    return {"cells": cells, "metadata": {"kernelspec": _KERNEL}, "nbformat": 4, "nbformat_minor": 5}


def _cell(index: int, is_text: bool, text: str) -> dict[str, Any]:
    pattern = r"^# ?" if is_text else r"^# (?=%)"
    source = re.sub(pattern, "", text.strip("\n"), flags=re.MULTILINE).splitlines(keepends=True)
    common = {"id": f"cell-{index}", "metadata": {}, "source": source}
    if is_text:
        return {"cell_type": "markdown", **common}
    return {"cell_type": "code", "execution_count": None, "outputs": [], **common}


def written(script: Path) -> str:
    """The text of the notebook file of a script, with the outputs that its file has for the same cells."""
    made, file = notebook(script.read_text(encoding="utf-8")), FOLDER / f"{script.stem}.ipynb"
    before = json.loads(file.read_text(encoding="utf-8"))["cells"] if file.exists() else []
    known = {"".join(cell["source"]): cell for cell in before if cell["cell_type"] == "code"}
    for cell in made["cells"]:
        if cell["cell_type"] == "code" and (same := known.get("".join(cell["source"]))):
            cell |= {"outputs": same["outputs"], "execution_count": same["execution_count"]}
    return _text(made)


def executed(script: Path) -> str:
    """The same with the outputs of a new run, in a folder that is deleted afterwards."""
    made, shell = notebook(script.read_text(encoding="utf-8")), InteractiveShell.instance()
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # read when matplotlib is imported
    select_figure_formats(shell, {"png"})
    code = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, cell in enumerate(code[1:], 2):  # the first one installs
            with capture_output() as captured:
                shell.run_cell("".join(cell["source"])).raise_error()
            cell |= {"outputs": list(_outputs(captured, f"{folder}/")), "execution_count": number}
        os.chdir(FOLDER)
    return _text(made)


def _outputs(captured: Any, folder: str) -> Iterator[dict[str, Any]]:
    """The outputs of a cell, without the folder that it ran in and the prompt before the value of its last line."""
    if text := re.sub(r"^Out\[\d+\]: ", "", captured.stdout.replace(folder, ""), flags=re.MULTILINE):
        yield {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}
    for output in captured.outputs:
        data = {kind: _encoded(kind, value) for kind, value in output.data.items()}
        if len(data.get("text/html", "")) > _LARGEST:
            data = {"text/plain": "(The page is left out of the saved notebook: run this cell to see it.)"}
        yield {"output_type": "display_data", "data": data, "metadata": {}}


_LARGEST = 100_000
"""Characters of HTML that a saved notebook has at most."""


def _encoded(kind: str, value: Any) -> Any:
    """Text as it is, bytes in base 64; pictures with 256 colours, which are a third as large."""
    if kind == "image/png":
        picture = io.BytesIO()
        Image.open(io.BytesIO(base64.b64decode(value))).convert("RGB").quantize(256).save(picture, "png", optimize=True)
        value = picture.getvalue()
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _text(made: dict[str, Any]) -> str:
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write all notebooks, after running those that are named."""
    for script in sorted((FOLDER / "src").glob("*.py")):
        text = executed(script) if script.stem in sys.argv[1:] else written(script)
        (FOLDER / f"{script.stem}.ipynb").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
