"""Episodes of what a run has learned, to be played in a page: what of them is kept, and the file that holds it.

`episodes.npz` is a `header`, JSON, and arrays of N episodes of F frames each:

- `step` `[N, F]` int32: after how many steps a frame was seen; `frames` `[N]` int32: how many an episode has, the rest
  repeat its last;
- `reward` `[N, F, names]` float32: returns so far;
- of a plane, B bodies as `pictures.Scene`: `position` `[N, F, B, 2]`, `heading` `[N, F, B]` float32, `visible`
  `[N, F, B]` bool;
- of bodies in space as `pictures.Pose`: `position` `[N, F, B, 3]`, `rotation` `[N, F, B, 4]` float32;
- of a film, which is one episode: `film` uint8, the bytes of a `.gif`, in place of all these.

The header has `format`, `generation` (of the checkpoint), `seed` (of the start state, which is the same in all),
`task`, `kind` ("plane", "bodies" or "film"), `seconds_per_step` (or null), `scenery` or `shapes` (as `pictures` has
them), `names` of the returns, and `episodes`: of each what `casting.Cast.told` says, `steps`, `ended` ("terminated",
"cut by the clock" or "broken physics") and `returns`.
"""

import io
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import trees
from rookery.agents.base import ActFn
from rookery.deploy import episode_selection, render
from rookery.deploy.episode_selection import Cast
from rookery.deploy.render import Watched
from rookery.envs.base import Environment
from rookery.envs.rendering.scene import Picture
from rookery.experiments import warm_start
from rookery.storage import array_files
from rookery.storage import run_dir as folder
from rookery.types import PyTree

FORMAT = 1
"""Raised whenever an older reader would misread a newer file."""
MOST_FRAMES = 250
BUDGET = 4_000_000  # bytes of all frames, at two for each number, which is what a page needs
TOGETHER = 64  # episodes at most that are lived at once


_BROKEN = "broken physics"
_SEEN = {"step", "frames", "reward", "position"}
_ARRAYS = {"plane": _SEEN | {"heading", "visible"}, "bodies": _SEEN | {"rotation"}, "film": {"film"}}


class Episodes(NamedTuple):
    """What `episodes.npz` holds; see above."""

    header: Mapping[str, Any]  # JSON values
    arrays: Mapping[str, np.ndarray]


class _Kept(NamedTuple):
    """What is kept of an episode, in F frames."""

    seen: PyTree  # leaves [F, ...]
    steps: np.ndarray  # [F]
    returns: np.ndarray  # [F, names], so far
    told: dict[str, Any]


def record_episodes(
    run_dir: str | Path,
    count: int | None = 12,
    seed: int = 0,
    checkpoint: str = "last",
    most_frames: int = MOST_FRAMES,
) -> Episodes:
    """Let who learned in a run live through deterministic episodes, all from one start state.

    `casting.choose` says who plays. Of a world that its own suite draws it is the best, once, as a film.

    Args:
      run_dir: the run's folder; only read.
      count: episodes at most, at least 1; None for every elite, skill or member that was judged and is still there.
      seed: of the start state.
      checkpoint: "last"; "best", by the metric that the run was told; or a generation.
      most_frames: of an episode, at least 2; fewer where all would take more than `BUDGET`. Every second step is kept,
        or every third and so on, and always the first and the last.

    Raises:
      ValueError: the folder is no run or was started from Python, its world cannot be drawn, its repertoire is empty,
        or a number is below its least.
      CheckpointError: it has no whole checkpoint.
    """
    if count is not None and count < 1:
        raise ValueError(f"count must be at least 1 episode, or None for all, got {count}.")
    if most_frames < 2:
        raise ValueError(f"most_frames must be at least 2, the start and the end, got {most_frames}.")
    origin = warm_start.open_origin(run_dir, checkpoint)
    evaluator = render.evaluator_of(origin.config, origin.built)
    picture, spec = render.picture_of(evaluator.environment), evaluator.environment.spec
    cast = episode_selection.choose(origin, spec, 1 if picture.film else count)
    header, arrays = play_all(evaluator.act, evaluator.environment, cast, seed, most_frames)
    return Episodes({"format": FORMAT, "generation": origin.generation, **header}, arrays)


def play_all(
    act: ActFn, environment: Environment, cast: Cast, seed: int = 0, most_frames: int = MOST_FRAMES
) -> Episodes:
    """Let a cast play; the header lacks `format` and `generation`.

    Args:
      act: parameters and observation -> action.
      environment: without automatic reset, and drawn; of one that its suite draws only the first plays.
      cast: who plays.
      seed: of the start state.
      most_frames: of an episode, see `record_episodes`.
    """
    picture = render.picture_of(environment)
    play = _filmed if picture.film else _watched
    told, arrays = play(act, environment, picture, cast, seed, most_frames)
    header = {
        "seed": seed,
        "task": environment.spec.name,
        "seconds_per_step": picture.seconds,
        "names": render.names_of(environment.spec),
    }
    return Episodes(json.loads(json.dumps({**header, **told})), arrays)  # as it will be read


def write_episodes(run_dir: str | Path, episodes: Episodes) -> Path:
    """Write `episodes.npz` into a run's folder, whole or not at all.

    Returns:
      The file.

    Raises:
      RunFolderError: the folder is no run.
      OSError: the file cannot be written.
    """
    path = folder.open_existing(run_dir).episodes_file
    content = io.BytesIO()
    arrays: dict[str, Any] = {**episodes.arrays, "header": np.asarray(json.dumps(episodes.header))}
    np.savez_compressed(content, **arrays)
    folder.write_atomically(path, content.getvalue())
    return path


def read_episodes(run_dir: str | Path) -> Episodes | None:
    """Read what `write_episodes` wrote; None where there is nothing.

    Raises:
      RunFolderError: the folder is no run.
      ValueError: the file is damaged, or of another version.
    """
    try:
        return array_files.read(folder.open_existing(run_dir).episodes_file, FORMAT, _whole, _DAMAGED)
    except FileNotFoundError:
        return None


def _whole(header: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Episodes:
    """All that the header promises, and what else there is."""
    missing = _ARRAYS[header["kind"]] - set(arrays)
    if missing:
        raise ValueError(f"no {', '.join(sorted(missing))}")
    return Episodes(header, {name: arrays[name] for name in arrays if name != "header"})


_DAMAGED = "{path} is damaged, or of another version of rookery ({error}); delete it, or record the episodes again."


def _watched(
    act: ActFn, environment: Environment, picture: Picture, cast: Cast, seed: int, most_frames: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Of a world that anybody can draw: header and arrays."""
    see = picture.scene or picture.bodies
    assert see is not None
    watch = jax.jit(jax.vmap(partial(render.watch, act, environment, see), in_axes=(0, None, 0)))
    kept = list(_live(watch, cast, seed, most_frames, render.names_of(environment.spec)))
    frames = np.asarray([len(episode.steps) for episode in kept], np.int32)
    arrays = {"step": [episode.steps for episode in kept], "reward": [episode.returns for episode in kept]}
    arrays |= {name: [episode.seen[name] for episode in kept] for name in kept[0].seen}
    told = {"kind": "bodies", "shapes": [shape._asdict() for shape in picture.shapes]}
    if picture.scene:
        assert picture.scenery is not None
        told = {"kind": "plane", "scenery": picture.scenery._asdict()}
    stacked = {name: np.stack([_padded(array, frames.max()) for array in each]) for name, each in arrays.items()}
    return told | {"episodes": [episode.told for episode in kept]}, {**stacked, "frames": frames}


def _live(
    watch: Callable[..., Watched], cast: Cast, seed: int, most_frames: int, names: Sequence[str]
) -> Iterator[_Kept]:
    """Everybody's episode; some are lived at a time, in batches of one size, and only what is kept of them stays."""
    total = len(cast.rows)
    batches = -(-total // TOGETHER)
    size = -(-total // batches)
    for batch in range(batches):
        chosen = np.arange(batch * size, (batch + 1) * size)
        within = np.minimum(chosen, total - 1)
        actors = trees.take(cast.actors, jnp.asarray(cast.rows[within]))
        lived = jax.device_get(watch(actors, jax.random.key(seed), jnp.asarray(cast.slots[within])))
        lived = lived._replace(seen=lived.seen._asdict())
        numbers = sum(math.prod(leaf.shape[2:]) for leaf in (*lived.seen.values(), lived.rewards))
        most = max(2, min(most_frames, BUDGET // (2 * numbers * total)))
        for row, index in enumerate(chosen[chosen < total]):
            yield _keep(jax.tree.map(itemgetter(row), lived), names, cast.told[index], most)


def _filmed(
    act: ActFn, environment: Environment, picture: Picture, cast: Cast, seed: int, most_frames: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Of a world that its suite draws: header and arrays."""
    assert picture.film is not None
    watch = jax.jit(partial(render.watch, act, environment, render.whole))
    actor = trees.take(cast.actors, int(cast.rows[0]))
    lived = jax.device_get(watch(actor, jax.random.key(seed), int(cast.slots[0])))
    kept = _keep(lived, render.names_of(environment.spec), cast.told[0], most_frames)
    # Visualisers add rewards up: between two frames they are given the sum.
    sums = np.diff(kept.returns, axis=0, prepend=0.0).reshape(len(kept.steps), *lived.rewards.shape[1:])
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "episode.gif"
        picture.film(kept.seen, jnp.asarray(sums, jnp.float32), str(path))
        film = np.frombuffer(path.read_bytes(), np.uint8)
    return {"kind": "film", "episodes": [kept.told]}, {"film": film}


def _keep(lived: Watched, names: Sequence[str], told: dict[str, Any], most: int) -> _Kept:
    """At most so many frames of an episode, `[T + 1, ...]` on the host."""
    length = render.length_of(np.asarray(lived.over))
    ended = "cut by the clock" if lived.truncated[length - 1] else "terminated"
    if lived.broken[length - 1]:
        ended = _BROKEN
    # What broke is no place to be in: the state before it is the last that can be seen.
    steps = _steps(length - (ended == _BROKEN), most)
    returns = np.cumsum(lived.rewards, axis=0, dtype=np.float64).reshape(len(lived.rewards), -1)
    totals = dict(zip(names, returns[length].tolist(), strict=True))
    seen = jax.tree.map(itemgetter(steps), lived.seen)
    return _Kept(
        seen, steps, returns[steps].astype(np.float32), {**told, "steps": length, "ended": ended, "returns": totals}
    )


def _steps(last: int, most: int) -> np.ndarray:
    """The steps that are kept of 0 to `last`: evenly, but for the last."""
    stride = max(1, math.ceil(last / (most - 1)))
    return np.asarray([*range(0, last, stride), last], np.int32)


def _padded(array: np.ndarray, length: int) -> np.ndarray:
    """With its last row repeated."""
    return array[np.minimum(np.arange(length), len(array) - 1)]
