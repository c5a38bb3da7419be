"""One episode of what a run has learned, as pictures need it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import trees
from rookery.agents.base import ActFn
from rookery.envs.base import Environment, EnvSpec, EnvState, Step
from rookery.envs.rendering.scene import Picture, Scene
from rookery.envs.wrappers.skills import listed
from rookery.experiments import build, warm_start
from rookery.experiments.build import Built
from rookery.experiments.kinds import AnyMePbtRun, AnyRun, MapElitesRun
from rookery.experiments.warm_start import Origin
from rookery.learners import rollout
from rookery.learners.base import genotype
from rookery.qd import repertoire as repertoires
from rookery.qd.map_elites import repertoire_of
from rookery.types import Array, Genotype, Key, PyTree


class Played(NamedTuple):
    """An episode, of which nothing follows the step that ended it for everybody; on the host."""

    picture: Picture
    states: PyTree  # [T + 1, ...], the first that of the reset
    rewards: np.ndarray  # [T + 1], or [T + 1, I]; of the reset 0
    names: tuple[str, ...]  # [I], or one
    title: str
    generation: int  # of the checkpoint
    member: int | None  # who acted; None for the best of a repertoire, or of each role

    @property
    def returns(self) -> dict[str, np.ndarray]:
        """Name -> return so far, `[T + 1]`."""
        totals = np.cumsum(self.rewards.astype(np.float64), axis=0).reshape(len(self.rewards), -1)
        return dict(zip(self.names, totals.T, strict=True))

    @property
    def scenes(self) -> Scene | None:
        """What is to be seen of the states, `[T + 1, bodies, ...]`; None where the suite draws its own film."""
        if self.picture.scene is None:
            return None
        return jax.device_get(jax.jit(jax.vmap(self.picture.scene))(self.states))


def render(
    run_dir: str | Path,
    member: int | None = None,
    skill: int | None = None,
    seed: int = 0,
    checkpoint: str = "last",
) -> Played:
    """Let who learned in a run live through one deterministic episode.

    Args:
      run_dir: the run's folder; only read.
      member: who acts; by default who was best when last judged. Of a repertoire it is always the best elite.
      skill: which of a run that discovers skills, counted from 0, which is the default.
      seed: of the start state.
      checkpoint: "last"; "best", by the metric that the run was told; or a generation.

    Raises:
      ValueError: the folder is no run or was started from Python, its world cannot be drawn, or it has no such member,
        skill or checkpoint.
      CheckpointError: it has no whole checkpoint.
    """
    origin = warm_start.open_origin(run_dir, checkpoint)
    evaluator = evaluator_of(origin.config, origin.built)
    environment, spec = evaluator.environment, evaluator.environment.spec
    picture = picture_of(environment)
    if picture.bodies is not None:
        raise ValueError(
            f"{spec.name} is seen in space and not as a film; `rookery report {origin.path}` plays it in its page."
        )
    slot = slot_of(origin, spec, skill)
    member, actor = actor_of(origin, member)
    states, rewards = play(evaluator.act, environment, actor, jax.random.key(seed), slot)
    title = spec.name if spec.skill is None else f"{spec.name}  skill {slot}"
    return Played(picture, states, rewards, names_of(spec), title, origin.generation, member)


def film(played: Played, path: str | Path) -> Path:
    """Draw an episode with its suite's own visualiser.

    Raises:
      ValueError: the path does not end in `.gif`, or the suite has no visualiser.
    """
    if played.picture.film is None:
        raise ValueError(f"{played.title} has no film of its own; draw its scenes.")
    if Path(path).suffix != ".gif":
        raise ValueError(f"{played.title} is drawn by its own suite, as .gif only, got {str(path)!r}.")
    played.picture.film(played.states, jnp.asarray(played.rewards), str(path))
    return Path(path)


def play(act: ActFn, environment: Environment, actor: Genotype, key: Key, slot: int = 0) -> tuple[PyTree, np.ndarray]:
    """One full deterministic episode.

    Args:
      act: parameters and observation -> action.
      environment: without automatic reset.
      actor: who acts.
      key: consumed.
      slot: where episodes that begin from one start state differ, as with skills: which of them.

    Returns:
      States `[T + 1, ...]` and rewards `[T + 1]`, or `[T + 1, I]`, on the host; the first are those of the reset.
    """
    watched = jax.device_get(jax.jit(partial(watch, act, environment, whole))(actor, key, slot))
    length = length_of(watched.over)
    return jax.tree.map(lambda leaf: leaf[: length + 1], watched.seen), watched.rewards[: length + 1]


class Watched(NamedTuple):
    """An episode, and what follows it until the clock of its world has run out."""

    seen: PyTree  # leaves [T + 1, ...], the first of the reset
    rewards: Array  # [T + 1], or [T + 1, I]; of the reset 0
    over: Array  # [T] bool: whether the episode was over for everybody after the step
    truncated: Array  # [T] bool: whether the clock ended it for anybody
    broken: Array  # [T] bool: whether the physics broke in the step


def watch(
    act: ActFn,
    environment: Environment,
    see: Callable[[EnvState], PyTree],
    actor: Genotype,
    key: Key,
    slot: Array | int,
) -> Watched:
    """One deterministic episode, of whose states only what `see` makes of them is kept. To be traced, and mapped.

    Args:
      act: parameters and observation -> action.
      environment: without automatic reset.
      see: an environment's state -> what is kept of it.
      actor: who acts.
      key: consumed.
      slot: where episodes that begin from one start state differ: which of them, `[]` int32.
    """
    start_key, steps_key = jax.random.split(key)
    start = environment.reset(start_key)
    if environment.assignment is not None:
        start = environment.assignment.first(start, jnp.asarray(slot), None)
    step_keys = jax.random.split(steps_key, environment.spec.episode_length)
    lives = start[0], start[1].observation
    _, steps = jax.lax.scan(partial(_advance, act, environment, see, actor), lives, step_keys)
    seen = jax.tree.map(_before, see(start[0]), steps.seen)
    return steps._replace(seen=seen, rewards=_before(start[1].reward, steps.rewards))


def _advance(
    act: ActFn,
    environment: Environment,
    see: Callable[[EnvState], PyTree],
    actor: Genotype,
    lives: tuple[EnvState, Array],
    key: Key,
) -> tuple[tuple[EnvState, Array], Watched]:
    state, observation = lives
    action = act(actor.params, rollout.view(actor.normalizer, observation))
    step: Step
    state, step = environment.step(state, action, key)
    return (state, step.observation), Watched(see(state), step.reward, step.over, jnp.any(step.truncated), step.broken)


def whole(state: EnvState) -> EnvState:
    """All of a state, for who wants to `watch` that."""
    return state


def _before(first: Array, others: Array) -> Array:
    return jnp.concatenate([first[None], others])


def length_of(over: np.ndarray) -> int:
    """How many steps an episode has, by whether it was over after each, `[T]` bool."""
    return int(np.argmax(over)) + 1 if over.any() else len(over)


def names_of(spec: EnvSpec) -> tuple[str, ...]:
    """What a world's returns are called: by agent, or one."""
    return spec.team.names if spec.team else ("return",)


def picture_of(environment: Environment) -> Picture:
    """How a world is drawn.

    Raises:
      ValueError: nobody has drawn it.
    """
    if environment.picture is None:
        raise ValueError(
            f"nobody has drawn {environment.spec.name}; of our own worlds point_maze, point_trap, point_room, "
            "pursuit_discrete and pursuit_continuous can be seen."
        )
    return environment.picture


def evaluator_of(config: AnyRun, built: Built) -> rollout.Evaluator:
    """Who judges in a run: by what it acts, and in which world.

    Raises:
      ValueError: what was searched is a function, in which nobody acts.
    """
    if isinstance(config, MapElitesRun):
        evaluate: Any = build.scoring(config).evaluate
    else:
        assert built.learner is not None
        evaluate = built.learner.evaluate
    if not isinstance(evaluate.args[0], rollout.Evaluator):
        raise ValueError(
            f"{config.world.env} is a function, in which nobody acts; choose a run in a world (`rookery envs`)."
        )
    return evaluate.args[0]


def slot_of(origin: Origin, spec: EnvSpec, skill: int | None) -> int:
    """Which skill is meant, by its number; 0 where there are none.

    Raises:
      ValueError: there is no such skill.
    """
    if spec.skill is None:
        if skill is not None:
            raise ValueError(f"{origin.path} has no skills to choose from; leave skill out.")
        return 0
    count = len(listed(spec.skill))
    if skill is not None and not 0 <= skill < count:
        raise ValueError(f"{origin.path} has {count} skills; choose one in 0..{count - 1}, got {skill}.")
    return skill or 0


def actor_of(origin: Origin, member: int | None) -> tuple[int | None, Genotype]:
    """Who is meant, slot and genotype; without a slot the best of a repertoire, or of each role.

    Raises:
      ValueError: there is no such member.
    """
    if isinstance(origin.config, MapElitesRun | AnyMePbtRun):
        if member is not None:
            raise ValueError(f"{origin.path} has a repertoire, whose best elite is shown; leave member out.")
        return None, repertoires.best(repertoire_of(origin.state)).genotype
    size = origin.config.population
    if member is not None and not 0 <= member < size:
        raise ValueError(f"member {member} does not exist; choose one in 0..{size - 1}.")
    if member is None:
        return warm_start.best(origin)
    return member, trees.take(jax.vmap(genotype)(origin.state.members), member)
