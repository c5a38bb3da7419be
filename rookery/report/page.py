"""`report.html`: the report of one or several runs, as one self-contained HTML file."""

import datetime
import html
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from rookery.report.page_json import to_json
from rookery.report.readers import RunRecord, open_run
from rookery.report.sections.comparison import comparison_chapter
from rookery.report.sections.run import chapters, check_metrics
from rookery.storage.run_dir import user_path, write_atomically

# Scripts of the page, in the order of their dependencies; each is inserted unchanged.
_PARTS = ("elements", "numbers", "charts")
_CHAPTERS = ("islands", "learning", "members", "lineage", "repertoire", "skills", "system", "comparison")
_PLAYER = ("player", "player_controls", "player_episode", "player_plane", "player_film")
_SPACE = ("player_ground", "player_shapes", "player_bodies")  # 3D playback, which needs an additional library
_STYLES = ("page", "player")


def write_report(run_dirs: str | Path | Sequence[str | Path], path: str | Path | None = None, refresh: int = 0) -> Path:
    """Write the report of one run, or of several runs side by side.

    Args:
      run_dirs: a run directory, or several, only read; duplicates are dropped.
      path: path of the page; by default `report.html` in the run directory, or in the current folder for several runs.
      refresh: interval in seconds at which the page reloads itself, for a run in progress; 0 for never.

    Returns:
      The page's path. The file is written atomically.

    Raises:
      ValueError: no run is given, a folder is not a run, a run has no finished generation, a table is damaged, or the
        page is no .html file, or cannot be written.

    Example:
      >>> page = rookery.report.write_report(["runs/pbt-sac"])
      >>> page.name
      'report.html'
    """
    records, target = _open(run_dirs, path)
    text = _compose(records, {"every": refresh} if refresh else None)
    try:
        write_atomically(target, text)
    except OSError as error:
        raise ValueError(f"{target} cannot be written: {error.strerror}; choose another path for the page.") from error
    return target


def check_runs(run_dirs: Sequence[str | Path], path: str | Path | None = None, begun: bool = True) -> list[Path]:
    """The absolute paths of the runs, after the checks of `write_report`, before any expensive computation. `begun`
    rejects a run without a finished generation."""
    return [record.path for record in _open(run_dirs, path, begun)[0]]


def _open(
    run_dirs: str | Path | Sequence[str | Path], path: str | Path | None, begun: bool = True
) -> tuple[list[RunRecord], Path]:
    given = [run_dirs] if isinstance(run_dirs, str | Path) else run_dirs
    runs = list(dict.fromkeys(user_path(run).resolve() for run in given))
    if not runs:
        raise ValueError("there is no run to report on; give the folder of at least one.")
    records = [open_run(run) for run in runs]
    for record in records if begun else ():
        check_metrics(record)
    default = records[0].folder.report_file if len(runs) == 1 else Path("report.html")
    target = user_path(path or default).absolute()
    if target.is_dir():
        raise ValueError(f"{target} is a folder; name the page itself, such as {target / 'report.html'}.")
    if target.suffix.lower() not in (".html", ".htm"):  # else a table of the run could be replaced
        raise ValueError(f"a page is an .html file, got {target}; choose this suffix.")
    if not target.parent.is_dir():
        raise ValueError(f"{target.parent} is not a folder; create it, or choose another path for the page.")
    return records, target


def compose(run_dirs: Sequence[Path], live: Mapping[str, int | str] | None = None) -> str:
    """The HTML text of the report of at least one run.

    `live` is how the page is updated: reload `every` so many seconds, or whenever the server reports another `version`.
    """
    return _compose([open_run(path) for path in run_dirs], live)


def _compose(records: Sequence[RunRecord], live: Mapping[str, int | str] | None) -> str:
    shown = [one for record in records for one in (record, *record.islands)]
    runs = [chapters(record) for record in shown]
    now = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    comparison = comparison_chapter(records) if len(records) > 1 else None
    data = {"runs": runs, "comparison": comparison, "written": now, "live": live}
    tops = [run for record, run in zip(shown, runs, strict=True) if record in records]
    title = " and ".join(f"{run['kind']} on {run['env']}" for run in tops[:2])
    has_bodies = any(record.episodes and record.episodes.header["kind"] == "bodies" for record in records)
    libraries = ["charts", *(["bodies"] if has_bodies else [])]
    parts = {
        "title": html.escape(title + (" and others" if len(records) > 2 else "")),
        "style": "\n".join(_file(f"{name}.css") for name in _STYLES),
        "data": to_json(data),
        "libraries": "\n".join(f"<script>{_file(f'vendor/{name}.min.js')}</script>" for name in libraries),
        "scripts": "\n".join(_file(f"{name}.js") for name in [*_PARTS, *_PLAYER, *_SPACE, *_CHAPTERS, "page"]),
    }
    page = _file("page.html")
    for name in ("title", "style", "libraries", "scripts", "data"):  # data last: it could contain a placeholder's text
        page = page.replace(f"<!--{name}-->", parts[name], 1)
    return page


def _file(name: str) -> str:
    return resources.files("rookery.report").joinpath("web", *name.split(os.sep)).read_text(encoding="utf-8")
