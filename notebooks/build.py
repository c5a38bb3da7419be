"""Makes the notebooks from the scripts in `src`: `python notebooks/build.py`.

The scripts are in the percent format of VS Code, Spyder and Jupytext: `# %%` begins a cell of code, `# %% [markdown]`
one of text, whose lines are comments. A line `# %pip` is a comment of the script and a command of the notebook.
Notebooks have no outputs, so that a change of a script is a change of the same lines of its notebook.
"""

import json
import re
from pathlib import Path
from typing import Any

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
    """The text of the notebook file of a script."""
    return json.dumps(notebook(script.read_text(encoding="utf-8")), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write all notebooks."""
    for script in sorted((FOLDER / "src").glob("*.py")):
        (FOLDER / f"{script.stem}.ipynb").write_text(written(script), encoding="utf-8")


if __name__ == "__main__":
    main()
