"""Roll out one deterministic episode of a trained run, for animation."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agents.base import ActFn
from rookery.deploy.policy import Cell, elite_text, select
from rookery.envs.base import Environment, EnvSpec, EnvState
from rookery.envs.rendering.scene import Picture, Scene, Scenery
from rookery.envs.wrappers import auto_reset
from rookery.experiments import warm_start
from rookery.learners import rollout
from rookery.populations.base import Program
from rookery.report.figures.animation import animate, check_suffix
from rookery.settings import user_path
from rookery.training.config import check_seed
from rookery.types import Array, Genotype, Key, Observation, PyTree


class RenderedEpisode(NamedTuple):
    """A full episode, cut after the step in which it ended for all agents; arrays are on the host."""

    picture: Picture
    states: PyTree
    """Environment states `[T + 1, ...]`, the first from the reset."""
    rewards: np.ndarray
    """`[T + 1]`, or `[T + 1, I]` for I agents; 0 at the reset."""
    names: tuple[str, ...]
    """Names of the returns: one per agent `[I]`, or a single one."""
    title: str
    generation: int
    """Generation of the checkpoint."""
    member: int | None
    """Member that acted; None for an elite of a repertoire, or for the best members of all roles together."""
    cell: int | None = None
    """Cell of the elite that acted."""
    elite: str | None = None
    """The descriptor of that elite, and its distance from the requested one, as text; None without a repertoire."""

    @property
    def returns(self) -> dict[str, np.ndarray]:
        """Cumulative return by name, each `[T + 1]`."""
        totals = np.cumsum(self.rewards.astype(np.float64), axis=0).reshape(len(self.rewards), -1)
        return dict(zip(self.names, totals.T, strict=True))

    @property
    def scenery(self) -> Scenery | None:
        """Constant part of the planar picture; None where the environment's suite renders the film itself."""
        return self.picture.scenery

    @property
    def scenes(self) -> Scene | None:
        """Scene of each state, `[T + 1, bodies, ...]`; None where the environment's suite renders the film itself."""
        if self.picture.scene is None:
            return None
        with jax.debug_nans(False):  # a body without a heading
            return jax.device_get(jax.jit(jax.vmap(self.picture.scene))(self.states))


def render(
    run_dir: str | Path,
    member: int | None = None,
    skill: int | None = None,
    seed: int = 0,
    checkpoint: str | int = "last",
    program: Program | None = None,
    cell: Cell | None = None,
    to: str | Path | None = None,
) -> RenderedEpisode:
    """Roll out one deterministic episode with a trained policy of a run.

    Args:
      run_dir: the run directory; only read.
      member: index of the acting member; by default the best of the last evaluation.
      skill: index of the skill, for runs that discover skills; 0 by default.
      seed: seed of the start state.
      checkpoint: "last"; "best", by the metric that the run was configured with; or a generation.
      program: the program of a run that was started from Python.
      cell: the acting elite, for runs with a repertoire: "best", the default; a cell's index; or a descriptor such as
        "0.2,0.8", for the nearest elite.
      to: the file that the film will be written to, whose suffix is checked before the episode.

    Returns:
      The episode, with the environment's picture.

    Raises:
      ValueError: the folder is not a run, the run was started from Python and no program is given, its environment
        cannot be rendered, or not as a file like `to`, or the run has no such member, cell, skill or checkpoint.
      CheckpointError: the run has no complete checkpoint.
    """
    policy = select(warm_start.restore_run(run_dir, checkpoint, program), cell, member, skill)
    environment, spec = policy.evaluator.environment, policy.spec
    picture = picture_of(environment)
    if picture.bodies is not None:
        raise ValueError(
            f"{spec.name} is rendered in 3D and not as a film; `rookery report {policy.origin.path}` (in Python "
            "rookery.load(...).report(rollouts=12)) plays it in its page."
        )
    if to is not None:
        _check_suffix(picture, user_path(to), spec.name)
    key = jax.random.key(check_seed(seed))
    states, rewards = play(policy.evaluator.act, environment, policy.genotype, key, policy.skill or 0)
    title = spec.name if policy.skill is None else f"{spec.name}  skill {policy.skill}"
    generation = policy.origin.generation
    actor = policy.member, policy.cell, elite_text(policy, cell)
    return RenderedEpisode(picture, states, rewards, names_of(spec), title, generation, *actor)


def film(episode: RenderedEpisode, path: str | Path) -> Path:
    """Write an episode as a `.gif` (another suffix is a ValueError) with the visualiser of the environment's suite;
    returns the path."""
    if episode.picture.film is None:
        raise ValueError(f"{episode.title} has no visualiser of its suite; animate its scenes.")
    path = user_path(path)
    _check_suffix(episode.picture, path, episode.title)
    episode.picture.film(episode.states, jnp.asarray(episode.rewards), str(path))
    return path


def _check_suffix(picture: Picture, path: Path, title: str) -> None:
    """Raise a ValueError if the picture cannot be written as a file with the suffix of `path`."""
    if picture.film is None:
        check_suffix(path)
    elif path.suffix != ".gif":
        raise ValueError(
            f"{title} is rendered by its suite, as .gif only, got {str(path)!r}; choose a path ending in .gif."
        )


def draw_episode(episode: RenderedEpisode, path: Path) -> Path:
    """Write the film of an episode: its scenes in the plane, or the film of the environment's suite; returns `path`."""
    scenery, scenes = episode.scenery, episode.scenes
    if scenery is None or scenes is None:
        return film(episode, path)
    animate(scenery, scenes, episode.returns, path, title=episode.title)
    return path


def play(act: ActFn, environment: Environment, actor: Genotype, key: Key, slot: int = 0) -> tuple[PyTree, np.ndarray]:
    """Roll out one full deterministic episode; arguments are those of `roll_out`.

    States `[T + 1, ...]` and rewards `[T + 1]`, or `[T + 1, I]`, are on the host; index 0 belongs to the reset.
    """
    trajectory = jax.device_get(jax.jit(partial(roll_out, act, environment, full_state))(actor, key, slot))
    length = length_of(trajectory.over)
    return jax.tree.map(lambda leaf: leaf[: length + 1], trajectory.frames), trajectory.rewards[: length + 1]


class Trajectory(NamedTuple):
    """A rollout of T steps, the environment's time limit, whether or not the episode ended before."""

    frames: PyTree  # extracted from the states: leaves `[T + 1, ...]`, the first from the reset
    rewards: Array  # `[T + 1]`, or `[T + 1, I]`; 0 at the reset
    over: Array  # `[T]` bool: whether the episode was over for all agents after the step
    truncated: Array  # `[T]` bool: whether the time limit ended the episode for any agent
    broken: Array  # `[T]` bool: whether the physics diverged in the step


def roll_out(
    act: ActFn,
    environment: Environment,
    extract: Callable[[EnvState], PyTree],
    actor: Genotype,
    key: Key,
    slot: Array | int,
) -> Trajectory:
    """Roll out a deterministic policy up to the time limit, storing `extract(state)` for every state.

    The function is traceable and can be mapped over `actor`, `key` and `slot`.

    Args:
      act: maps parameters and observation to an action.
      environment: environment without automatic reset.
      extract: maps an environment's state to the values to store.
      actor: genotype of the acting policy.
      key: random key; consumed.
      slot: `[]` int32, variant of the episode where several share one start state; with skills, the index of the skill.
    """

    def advance(carry: tuple[EnvState, Observation], key: Key) -> tuple[tuple[EnvState, Observation], Trajectory]:
        state, observation = carry
        action = act(rollout.forward_params(actor), rollout.normalize_features(actor.normalizer, observation))
        state, step = environment.step(state, action, key)
        over, truncated = step.over, jnp.any(step.truncated)
        return (state, step.observation), Trajectory(extract(state), step.reward, over, truncated, step.broken)

    start_key, steps_key = jax.random.split(key)
    start = auto_reset.start_state(environment, start_key)
    if environment.assignment is not None:
        start = environment.assignment.first(start, jnp.asarray(slot), None)
    step_keys = jax.random.split(steps_key, environment.spec.episode_length)
    carry = start[0], start[1].observation
    _, steps = jax.lax.scan(advance, carry, step_keys)
    frames = jax.tree.map(_prepend, extract(start[0]), steps.frames)
    return steps._replace(frames=frames, rewards=_prepend(start[1].reward, steps.rewards))


def full_state(state: EnvState) -> EnvState:
    """Extract the full state in `roll_out`."""
    return state


def _prepend(first: Array, others: Array) -> Array:
    return jnp.concatenate([first[None], others])


def length_of(over: np.ndarray) -> int:
    """Length of an episode in steps, from whether it was over after each step, `[T]` bool."""
    return int(np.argmax(over)) + 1 if over.any() else len(over)


def names_of(spec: EnvSpec) -> tuple[str, ...]:
    """Names of an environment's returns: one per agent of a team, or `return`."""
    return spec.team.names if spec.team else ("return",)


def picture_of(environment: Environment) -> Picture:
    """The description by which an environment is rendered; a ValueError if it has none."""
    if environment.picture is None and environment.host is not None:
        raise ValueError(
            f"{environment.spec.name} cannot be rendered: its environment objects draw no frames; create them in "
            'make_env with render_mode="rgb_array", if their class has that mode (metadata["render_modes"]).'
        )
    if environment.picture is None:
        raise ValueError(
            f"{environment.spec.name} cannot be rendered; the tasks point_*, pursuit_* and the robots can, and a "
            "user-defined environment with a picture: rookery.Environment(..., "
            "picture=rookery.envs.rendering.Picture(...))."
        )
    return environment.picture
