"""Recording of a run's episodes for playback in its report; `storage.played` describes their file."""

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
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
from rookery.deploy.episode_selection import Selection
from rookery.deploy.evaluate import evaluate
from rookery.deploy.policy import evaluator_of
from rookery.deploy.render import Trajectory
from rookery.envs.base import Environment, SkillSpec
from rookery.envs.rendering.scene import Picture
from rookery.envs.wrappers.skills import enumerate_skills
from rookery.experiments import warm_start
from rookery.populations.base import Program
from rookery.settings import check_counts
from rookery.storage.checkpoint import Checkpointer, CheckpointError
from rookery.storage.csv_log import read_table
from rookery.storage.island_files import best_of
from rookery.storage.played import FORMAT, Episodes, write_episodes
from rookery.storage.record import check_rebuildable
from rookery.storage.run_dir import RunFolder, open_existing
from rookery.training.config import check_seed
from rookery.types import PyTree

MOST_FRAMES = 250
BUDGET = 4_000_000  # largest size of all frames in bytes, at two bytes per number, the encoding of the report page
BATCH_SIZE = 64  # largest number of episodes that are rolled out in parallel


_BROKEN = "broken physics"


class _Recording(NamedTuple):
    """One episode, subsampled to F frames."""

    frames: PyTree  # leaves `[F, ...]`
    steps: np.ndarray  # `[F]`, the environment step of each frame
    returns: np.ndarray  # `[F, names]`, cumulative
    description: dict[str, Any]


def add_episodes(run_dir: str | Path, count: int | None = 12, seed: int = 0, program: Program | None = None) -> None:
    """Write what a run's page shows of its policies: recorded episodes, and the trajectories of its skills.

    Arguments and errors are those of `record_episodes`.
    """
    opened = open_existing(best_of(run_dir))
    if program is None:
        remedy = "in Python, rookery.load(run, program=program).report(rollouts=12) records them"
        check_rebuildable(opened.config, opened.path, remedy)
    if Checkpointer(opened.checkpoints, read_only=True).empty:
        raise CheckpointError(f"{run_dir} has no checkpoint; wait for its first, or put its folder `checkpoints` back.")
    write_episodes(run_dir, recorded := record_episodes(run_dir, count, seed, program=program))
    if "skills" in opened.config and not _is_evaluated(opened, recorded.header["generation"]):
        skills = opened.config["skills"]
        kind = SkillSpec(skills["skill_kind"], int(skills["num_skills"]))
        episodes = _EPISODES_PER_SKILL * len(enumerate_skills(kind))
        evaluate(run_dir, episodes, seed, program=program)


_EPISODES_PER_SKILL = 3


def _is_evaluated(folder: RunFolder, generation: int) -> bool:
    """Whether `skills.csv` is of this generation, as `evaluation.csv`, which is written with it."""
    table = read_table(folder.evaluation_file)
    return folder.skills_file.is_file() and generation in table.get("generation", ())


def record_episodes(
    run_dir: str | Path,
    count: int | None = 12,
    seed: int = 0,
    checkpoint: str | int = "last",
    most_frames: int = MOST_FRAMES,
    program: Program | None = None,
) -> Episodes:
    """Roll out deterministic episodes of a run's policies, all from one start state.

    `episode_selection.select` selects the policies. In an environment whose suite renders it, only the best policy is
    recorded, as a film.

    Args:
      run_dir: the run directory; only read.
      count: largest number of episodes, at least 1; None for every elite, every skill, or every member that was in the
        last evaluation and has not been replaced since.
      seed: seed of the start state.
      checkpoint: "last"; "best", by the metric that the run was configured with; or a generation.
      most_frames: largest number of frames of an episode, at least 2; fewer where all frames would exceed `BUDGET`.
        Every k-th step is stored with the smallest sufficient k, and always the first and the last.
      program: the program of a run that was started from Python.

    Raises:
      ValueError: the folder is not a run, the run was started from Python and no program is given, its environment
        cannot be rendered, its repertoire is empty, or an argument is below its minimum.
      CheckpointError: the run has no complete checkpoint.
    """
    check_counts(count=1 if count is None else count)
    check_counts(2, most_frames=most_frames)
    check_seed(seed)
    origin = warm_start.restore_run(run_dir, checkpoint, program)
    evaluator = evaluator_of(origin)
    picture, spec = render.picture_of(evaluator.environment), evaluator.environment.spec
    selection = episode_selection.select(origin, spec, 1 if picture.film else count)
    header, arrays = play_all(evaluator.act, evaluator.environment, selection, seed, most_frames)
    return Episodes({"format": FORMAT, "generation": origin.generation, **header}, arrays)


def play_all(
    act: ActFn, environment: Environment, selection: Selection, seed: int = 0, most_frames: int = MOST_FRAMES
) -> Episodes:
    """Roll out the selected policies; the header lacks `format` and `generation`.

    Where the suite of the environment, which has no automatic reset, renders it, only the first policy is recorded.
    """
    picture = render.picture_of(environment)
    record = _record_film if picture.film else _record_frames
    with jax.debug_nans(False):  # a body without a heading
        kind, arrays = record(act, environment, picture, selection, seed, most_frames)
    header = {
        "seed": seed,
        "task": environment.spec.name,
        "seconds_per_step": picture.seconds,
        "names": render.names_of(environment.spec),
    }
    return Episodes(json.loads(json.dumps({**header, **kind})), arrays)  # the same types as after reading the file


def _record_frames(
    act: ActFn, environment: Environment, picture: Picture, selection: Selection, seed: int, most_frames: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of an environment with scenes or bodies."""
    extract = picture.scene or picture.bodies
    assert extract is not None
    roll_out = jax.jit(jax.vmap(partial(render.roll_out, act, environment, extract), in_axes=(0, None, 0)))
    recordings = list(_record_batches(roll_out, selection, seed, most_frames, render.names_of(environment.spec)))
    frames = np.asarray([len(episode.steps) for episode in recordings], np.int32)
    arrays = {"step": [episode.steps for episode in recordings], "reward": [episode.returns for episode in recordings]}
    arrays |= {name: [episode.frames[name] for episode in recordings] for name in recordings[0].frames}
    header = {"kind": "bodies", "shapes": [shape._asdict() for shape in picture.shapes]}
    if picture.scene:
        assert picture.scenery is not None
        header = {"kind": "plane", "scenery": picture.scenery._asdict()}
    stacked = {name: np.stack([_pad(array, frames.max()) for array in each]) for name, each in arrays.items()}
    return header | {"episodes": [episode.description for episode in recordings]}, {**stacked, "frames": frames}


def _record_batches(
    roll_out: Callable[..., Trajectory], selection: Selection, seed: int, most_frames: int, names: Sequence[str]
) -> Iterator[_Recording]:
    """Record all episodes in batches of equal size, so that only subsampled episodes stay in memory."""
    total = len(selection.rows)
    batches = -(-total // BATCH_SIZE)
    size = -(-total // batches)
    for batch in range(batches):
        chosen = np.arange(batch * size, (batch + 1) * size)
        within = np.minimum(chosen, total - 1)
        actors = trees.take(selection.actors, jnp.asarray(selection.rows[within]))
        slots = jnp.asarray(selection.slots[within])
        trajectories = jax.device_get(roll_out(actors, jax.random.key(seed), slots))
        trajectories = trajectories._replace(frames=trajectories.frames._asdict())
        numbers = sum(math.prod(leaf.shape[2:]) for leaf in (*trajectories.frames.values(), trajectories.rewards))
        most = max(2, min(most_frames, BUDGET // (2 * numbers * total)))
        for row, index in enumerate(chosen[chosen < total]):
            trajectory = jax.tree.map(itemgetter(row), trajectories)
            yield _subsample(trajectory, names, selection.descriptions[index], most)


def _record_film(
    act: ActFn, environment: Environment, picture: Picture, selection: Selection, seed: int, most_frames: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Header and arrays of an environment that its suite renders."""
    assert picture.film is not None
    roll_out = jax.jit(partial(render.roll_out, act, environment, render.full_state))
    actor = trees.take(selection.actors, int(selection.rows[0]))
    trajectory = jax.device_get(roll_out(actor, jax.random.key(seed), int(selection.slots[0])))
    recording = _subsample(trajectory, render.names_of(environment.spec), selection.descriptions[0], most_frames)
    if picture.replays:
        steps = np.arange(recording.steps[-1] + 1)
        states, rewards = jax.tree.map(itemgetter(steps), trajectory.frames), trajectory.rewards[steps]
    else:
        # Visualisers add up the rewards of the frames, so each frame gets the sum since the frame before it.
        sums = np.diff(recording.returns, axis=0, prepend=0.0)
        states, rewards = recording.frames, sums.reshape(len(recording.steps), *trajectory.rewards.shape[1:])
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "episode.gif"
        picture.film(states, jnp.asarray(rewards, jnp.float32), str(path))
        film = np.frombuffer(path.read_bytes(), np.uint8)
    return {"kind": "film", "episodes": [recording.description]}, {"film": film}


def _subsample(trajectory: Trajectory, names: Sequence[str], description: dict[str, Any], most: int) -> _Recording:
    """Reduce a trajectory `[T + 1, ...]` on the host to at most `most` frames."""
    length = render.length_of(np.asarray(trajectory.over))
    ended = "cut by the clock" if trajectory.truncated[length - 1] else "terminated"
    if trajectory.broken[length - 1]:
        ended = _BROKEN
    # A state with diverged physics cannot be drawn: the frame before it is the last one.
    steps = _steps(length - (ended == _BROKEN), most)
    returns = np.cumsum(trajectory.rewards, axis=0, dtype=np.float64).reshape(len(trajectory.rewards), -1)
    totals = dict(zip(names, returns[length].tolist(), strict=True))
    frames = jax.tree.map(itemgetter(steps), trajectory.frames)
    outcome = {"steps": length, "ended": ended, "returns": totals}
    return _Recording(frames, steps, returns[steps].astype(np.float32), {**description, **outcome})


def _steps(last: int, most: int) -> np.ndarray:
    """At most `most` steps of 0 to `last`, evenly spaced except for the last one."""
    stride = max(1, math.ceil(last / (most - 1)))
    return np.asarray([*range(0, last, stride), last], np.int32)


def _pad(array: np.ndarray, length: int) -> np.ndarray:
    """Repeat the last row up to `length` rows."""
    return array[np.minimum(np.arange(length), len(array) - 1)]
