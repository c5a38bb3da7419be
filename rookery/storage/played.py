"""The files of episodes that a run's policies played: `episodes.npz`, for playback in its report, and `tournament.csv`.

`episodes.npz` has a JSON `header`, and arrays of N episodes of F frames each:

- `step` `[N, F]` int32: environment step of each frame; `frames` `[N]` int32: number of frames of each episode, after
  which its last frame is repeated;
- `reward` `[N, F, names]` float32: cumulative returns;
- kind "plane", B bodies as in `rendering.scene.Scene`: `position` `[N, F, B, 2]`, `heading` `[N, F, B]` float32,
  `visible` `[N, F, B]` bool;
- kind "bodies", B bodies in 3D as in `rendering.scene.Pose`: `position` `[N, F, B, 3]`, `rotation` `[N, F, B, 4]`
  float32;
- kind "film", a single episode: `film` uint8, the bytes of a `.gif`, in place of all other arrays.

The header has `format`, `generation` (of the checkpoint), `seed` (of the start state, which all episodes share),
`task`, `kind`, `seconds_per_step` (or null), `scenery` or `shapes` (as in `rendering.scene`), `names` of the returns,
and `episodes`: for each its `episode_selection.Selection.descriptions`, `steps`, `ended` ("terminated", "cut by the
clock" or "broken physics") and `returns`.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.storage import array_files
from rookery.storage.csv_log import write_table
from rookery.storage.run_dir import RunFolder, open_existing, output_to, write_atomically

FORMAT = 1  # version of the file format; incremented whenever an older reader would misread a newer file
_COMMON = {"step", "frames", "reward", "position"}
_ARRAYS = {"plane": _COMMON | {"heading", "visible"}, "bodies": _COMMON | {"rotation"}, "film": {"film"}}


class Episodes(NamedTuple):
    """Content of `episodes.npz`; see the module's docstring."""

    header: Mapping[str, Any]  # JSON values
    arrays: Mapping[str, np.ndarray]


def write_episodes(run_dir: str | Path, episodes: Episodes) -> Path:
    """Write `episodes.npz` into a run directory, atomically.

    Raises:
      RunFolderError: the folder is not a run.
      OSError: the file cannot be written.
    """
    path = open_existing(run_dir).episodes_file
    content = io.BytesIO()
    arrays: dict[str, Any] = {**episodes.arrays, "header": np.asarray(json.dumps(episodes.header))}
    np.savez_compressed(content, **arrays)
    write_atomically(path, content.getvalue())
    return path


def read_episodes(run_dir: str | Path) -> Episodes | None:
    """Read the file written by `write_episodes`; None where there is no file.

    Raises:
      RunFolderError: the folder is not a run.
      ValueError: the file is damaged, or of another version.
    """
    try:
        return array_files.read(open_existing(run_dir).episodes_file, FORMAT, _complete, _DAMAGED)
    except FileNotFoundError:
        return None


def _complete(header: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Episodes:
    """Check that the arrays required by the header's `kind` are present."""
    missing = _ARRAYS[header["kind"]] - set(arrays)
    if missing:
        raise ValueError(f"no {', '.join(sorted(missing))}")
    return Episodes(header, {name: arrays[name] for name in arrays if name != "header"})


_DAMAGED = "{path} is damaged, or of another version of rookery ({error}); delete it, or record the episodes again."


class Tournament(NamedTuple):
    """The results of the P members of a run against Q opponents, which are the members of the same or another run."""

    agents: tuple[str, ...]
    """`[I]`, the names of the roles."""
    returns: np.ndarray
    """`[I, P, Q]` float64, the mean return of role i's member p in a team with the members of all other roles in slot
    q; NaN where an action was not finite or the physics broke."""
    ratings: np.ndarray
    """`[I, P]`, the rating of role i's member p among the members of its role, see `rating_of`."""
    generation: int
    """The generation of the run's checkpoint."""


def write_tournament(folder: RunFolder, result: Tournament) -> None:
    """Write `tournament.csv`, with a row for each member and opponent; an `OutputWarning` if that fails."""
    _, size, opponents = result.returns.shape
    member, opponent = np.divmod(np.arange(size * opponents), opponents)
    returns = {f"return/{name}": values.ravel() for name, values in zip(result.agents, result.returns, strict=True)}
    with output_to(folder.tournament_file):
        write_table(folder.tournament_file, {"member": member, "opponent": opponent, **returns})
