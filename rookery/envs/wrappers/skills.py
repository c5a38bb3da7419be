"""Skills: a wrapper that adds a skill vector to the observation, drawn anew for each episode.

An agent that observes the skill learns one policy per skill; `agents/skills` has the rewards that make them differ.
The true successor observation of a step contains the skill of that step's episode, also when the next episode has
another one.

Source: Eysenbach 2018, "Diversity is All You Need" (arXiv:1802.06070), Algorithm 1; skills on a sphere follow Hansen
2019 (arXiv:1906.05030).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import trees
from rookery.envs.base import (
    Assignment,
    Environment,
    EnvState,
    Previous,
    SkillSpec,
    Step,
    announce_inside,
    parameterize_inside,
)
from rookery.envs.rendering import scene
from rookery.envs.wrappers.time_limit import guard_physics
from rookery.settings import LARGEST_COUNT, SettingError, Within, check_counts, check_fields
from rookery.types import Array, Key, PyTree

_DIRECTIONS = 8  # evenly spread directions that represent the skills on a circle in evaluations


@dataclass(frozen=True)
class SkillsConfig:
    """The skills of an environment, and how they are assigned to episodes.

    Raises:
      ValueError: fewer than two skills, an unknown kind, or `balanced` with the continuous skills of a sphere.
    """

    num_skills: Annotated[int, Within(2)] = 5
    """Number of skills, or the dimension of the sphere's space."""
    skill_kind: Literal["one-hot", "sphere"] = "one-hot"
    """one-hot: discrete skills as one-hot vectors; sphere: continuous skills as vectors of length 1."""
    balanced: bool = False
    """Assign the skills in turn instead of at random. While all episodes have the same length, each skill then has the
    same number of environments, plus one for a varying subset of the skills if their number does not divide evenly."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)
        check_counts(**{"num_skills x num_skills": self.num_skills**2})  # a table of all skills
        if self.balanced and self.skill_kind == "sphere":
            remedy = "leave it out, or use {skill_kind} one-hot"
            raise SettingError("balanced", None, "needs a finite number of skills", remedy)


class Kind(NamedTuple):
    """A family of skill vectors of length S."""

    draw: Callable[[int, Key], Array]  # S and a key -> a skill `[S]` from the uniform prior
    enumerate: Callable[[int], np.ndarray]  # S -> the enumerated skills `[M, S]`, which represent all skills


class SkillState(NamedTuple):
    """State of the wrapped environment, and the skill of the episode."""

    inner: EnvState  # state of the wrapped environment
    skill: Array  # `[S]`
    turn: Array  # index of the slot plus the number of episodes that ended in it, `[]` int32
    episode_return: Array  # sum of the episode's rewards so far, `[]`
    previous: PyTree = ()  # the current state as the `Previous` of the next step; () if steps do not have it


def skills(
    environment: Environment,
    num_skills: int = 5,
    skill_kind: str = "one-hot",
    balanced: bool = False,
    with_previous: bool = False,
) -> Environment:
    """Wrap an environment so that its observations contain the skill of the episode, `[S]`.

    Each episode has a separate skill, also when several episodes begin from the same start state. Evaluations take the
    skills in turn: episode i has skill `enumerate_skills(spec.skill)[i % M]`. An assignment that the environment has
    already is applied first.

    Args:
      environment: with a time limit (`time_limit.limit_episode`) and without skills.
      num_skills: S, see `SkillsConfig.num_skills`.
      skill_kind: "one-hot" or "sphere", see `SkillsConfig.skill_kind`.
      balanced: assign the skills in turn instead of at random, see `SkillsConfig.balanced`.
      with_previous: add the state before each step to the step (`Step.previous`), which METRA and LSD read.

    Raises:
      ValueError: `SkillsConfig` rejects an argument, or the environment has skills already.

    Example:
      >>> env = rookery.skills(rookery.make("point_room"), num_skills=3)
      >>> env.spec.skill.size
      3
    """
    config = SkillsConfig(num_skills, skill_kind, balanced)  # pyright: ignore[reportArgumentType]  # checks all three
    spec = environment.spec
    if spec.skill is not None:
        raise ValueError(f"{spec.name} has skills already; apply the skills wrapper only once.")
    environment, skill = guard_physics(environment), SkillSpec(skill_kind, num_skills)
    draw, begin = partial(KINDS[skill_kind].draw, num_skills), partial(_start, with_previous)
    listed, inner = jnp.asarray(enumerate_skills(skill)), environment.assignment

    def assign(start: tuple[SkillState, Step], turn: Array, last: EnvState | None, key: Key | None) -> tuple:
        """Begin an episode: by the wrapped environment's assignment after the state `last`, if any, then the skill."""
        begun, skill_key = (start[0].inner, start[1]), key
        if inner is not None:
            inner_key, skill_key = (None, None) if key is None else jax.random.split(key)
            if last is None or inner_key is None:
                begun = inner.first(begun, turn, inner_key)
            else:
                begun = inner.next(begun, last, inner_key)
        skill = listed[turn % len(listed)] if balanced or skill_key is None else draw(skill_key)
        return begin(begun, skill, turn)

    def assign_next(start: tuple[SkillState, Step], last: SkillState, key: Key) -> tuple[SkillState, Step]:
        return assign(start, last.turn + 1, last.inner, key)

    wrap = partial(skills, num_skills=num_skills, skill_kind=skill_kind, balanced=balanced, with_previous=with_previous)
    return Environment(
        reset=partial(_reset, environment, begin, draw),
        step=partial(_step, environment),
        spec=spec._replace(skill=skill, has_previous=with_previous),
        assignment=Assignment(lambda start, slot, key: assign(start, slot, None, key), assign_next),
        picture=scene.inside(environment.picture, "inner"),
        announce=announce_inside(environment, "inner"),
        host=environment.host,
        parameterize=parameterize_inside(environment, wrap),
        settings={**environment.settings, "skills": vars(config)},
    )


def enumerate_skills(skill: SkillSpec) -> np.ndarray:
    """Enumerate the skills `[M, S]` of evaluations; row k is the skill with index k.

    One-hot skills are enumerated completely. A circle is represented by eight evenly spread directions, a sphere of
    higher dimension by the positive and negative unit vector of each axis.
    """
    return KINDS[skill.kind].enumerate(skill.size)


def whole_rounds(skill: SkillSpec, episodes: int) -> int:
    """Round a number of episodes up to a multiple of the number of enumerated skills; down beyond the largest int32."""
    count = len(enumerate_skills(skill))
    return min(-(-episodes // count), LARGEST_COUNT // count) * count


def _draw_direction(size: int, key: Key) -> Array:
    normal = jax.random.normal(key, (size,))
    return normal / jnp.linalg.norm(normal)


def _list_directions(size: int) -> np.ndarray:
    if size != 2:
        return np.concatenate([np.eye(size), -np.eye(size)]).astype(np.float32)
    angles = np.arange(_DIRECTIONS) * (2 * math.pi / _DIRECTIONS)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


KINDS = {
    "one-hot": Kind(
        lambda size, key: jax.nn.one_hot(trees.indices(key, (), size), size),
        lambda size: np.eye(size, dtype=np.float32),
    ),
    "sphere": Kind(_draw_direction, _list_directions),
}


def _reset(environment: Environment, begin: Callable, draw: Callable, key: Key) -> tuple[SkillState, Step]:
    reset_key, skill_key = jax.random.split(key)
    return begin(environment.reset(reset_key), draw(skill_key), jnp.zeros((), jnp.int32))


def _start(with_previous: bool, start: tuple[EnvState, Step], skill: Array, turn: Array) -> tuple[SkillState, Step]:
    inner, step = start
    state = SkillState(inner, skill, turn, jnp.zeros(()))
    step = _with_skill(step, state)
    if not with_previous:
        return state, step
    previous = Previous(step.observation, step.descriptor)
    return state._replace(previous=previous), step._replace(previous=previous)


def _step(environment: Environment, state: SkillState, action: Array, key: Key) -> tuple[SkillState, Step]:
    inner, step = environment.step(state.inner, action, key)
    state = state._replace(inner=inner, episode_return=state.episode_return + step.reward)
    step = _with_skill(step, state)
    if state.previous == ():
        return state, step
    step = step._replace(previous=state.previous)
    return state._replace(previous=Previous(step.observation, step.descriptor)), step


def _with_skill(step: Step, state: SkillState) -> Step:
    return step.observing(skill=state.skill)._replace(episode_return=state.episode_return)
