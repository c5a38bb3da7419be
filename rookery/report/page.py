"""`report.html`: a run as one page that needs no network, no server and no other file."""

import datetime
import html
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from rookery.report.groups import open_run
from rookery.report.packing import to_json
from rookery.report.sections.comparison import comparison_chapter
from rookery.report.sections.run import chapters, read_metrics
from rookery.storage.run_dir import open_existing, write_atomically

# In the order in which they need each other; each is put into the page as it is.
_PARTS = ("elements", "numbers", "charts")
_CHAPTERS = ("learning", "members", "lineage", "repertoire", "skills", "system", "comparison")
_PLAYER = ("player", "player_controls", "player_episode", "player_plane", "player_film")
_SPACE = ("player_ground", "player_shapes", "player_bodies")  # of three dimensions, which need a library of their own
_STYLES = ("page", "player")


def write_report(run_dirs: Sequence[str | Path], path: str | Path | None = None, refresh: int = 0) -> Path:
    """Write the page of a run, or of several side by side.

    Args:
      run_dirs: folders of runs; one that is given twice counts once. They are only read.
      path: of the page; `report.html` in the run's own folder by default, or here for several runs.
      refresh: seconds after which the page loads itself again, for a run that goes on; 0 for never.

    Returns:
      The page's path. It is written whole or not at all.

    Raises:
      ValueError: no run is given, a folder is none, a run has no finished generation, a table is damaged, or the page
        cannot be written.
    """
    runs = check_runs(run_dirs, path)
    target = _target(runs, path)
    text = compose(runs, {"every": refresh} if refresh else None)
    try:
        write_atomically(target, text)
    except OSError as error:
        raise ValueError(f"{target} cannot be written: {error.strerror}; choose another place for the page.") from error
    return target


def check_runs(run_dirs: Sequence[str | Path], path: str | Path | None = None, begun: bool = True) -> list[Path]:
    """The folders of runs that a page can be made of, each once and absolute, before anything costs time.

    Args:
      run_dirs: as for `write_report`.
      path: as for `write_report`.
      begun: refuse a run without a finished generation.

    Raises:
      ValueError: as `write_report`.
    """
    runs = list(dict.fromkeys(Path(run).resolve() for run in run_dirs))
    if not runs:
        raise ValueError("there is no run to report on; give the folder of at least one.")
    for run in runs:
        folder = open_run(run)
        if begun:
            read_metrics(folder)
    target = _target(runs, path)
    if target.is_dir():
        raise ValueError(f"{target} is a folder; name the page itself, such as {target / 'report.html'}.")
    if not target.parent.is_dir():
        raise ValueError(f"{target.parent} is no folder; make it, or choose another place for the page.")
    return runs


def _target(runs: Sequence[Path], path: str | Path | None) -> Path:
    default = open_existing(runs[0]).report_file if len(runs) == 1 else Path("report.html")
    return Path(path or default).absolute()


def compose(run_dirs: Sequence[Path], live: Mapping[str, Any] | None = None) -> str:
    """The page itself, as `write_report` writes it; each folder is given once.

    Args:
      run_dirs: folders of runs, at least one.
      live: how the page follows the run: `every` so many seconds, or when who serves it tells another `version`.
    """
    runs = [chapters(open_existing(path)) for path in run_dirs]
    now = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    comparison = comparison_chapter(run_dirs) if len(runs) > 1 else None
    data = {"runs": runs, "comparison": comparison, "written": now, "live": live}
    title = " and ".join(f"{run['kind']} on {run['env']}" for run in runs[:2])
    blanks = {
        "title": html.escape(title + (" and others" if len(runs) > 2 else "")),
        "style": "\n".join(_file(f"{name}.css") for name in _STYLES),
        "data": to_json(data),
        "libraries": "\n".join(f"<script>{_file(f'vendor/{name}.min.js')}</script>" for name in _libraries(runs)),
        "scripts": "\n".join(_file(f"{name}.js") for name in [*_PARTS, *_PLAYER, *_SPACE, *_CHAPTERS, "page"]),
    }
    page = _file("page.html")
    for name in ("title", "style", "libraries", "scripts", "data"):  # the data last: nothing in it is a blank
        page = page.replace(f"<!--{name}-->", blanks[name], 1)
    return page


def _libraries(runs: Sequence[dict[str, Any]]) -> list[str]:
    in_space = any(run["episodes"] and run["episodes"]["kind"] == "bodies" for run in runs)
    return ["charts", "bodies"] if in_space else ["charts"]


def _file(name: str) -> str:
    return resources.files("rookery.report").joinpath("web", *name.split(os.sep)).read_text(encoding="utf-8")
