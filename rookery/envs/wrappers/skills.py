"""Skills: a wrapper that appends to the observation what the agent is asked to do, drawn afresh for each episode.

An agent that is shown a skill learns many policies in one; what makes them differ is the business of `agents/diayn.py`.
The true successor of a step carries the skill that the step was made under, whatever the next episode's is.

Source: Eysenbach 2018, "Diversity is All You Need" (arXiv:1802.06070), Algorithm 1; the sphere is that of Hansen 2019
(arXiv:1906.05030).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.envs.base import Assignment, Environment, EnvState, SkillInfo, SkillSpec, Step
from rookery.envs.rendering import scene
from rookery.types import Array, Key

_DIRECTIONS = 8  # that stand for all of a circle


@dataclass(frozen=True)
class SkillsConfig:
    """Which skills there are, and who gets which.

    Raises:
      ValueError: fewer than two skills, an unknown kind, or balanced skills that cannot be counted.
    """

    num_skills: int = 5
    """Skills to tell apart, or the dimensions of a sphere's space (at least 2)."""
    skill_kind: Literal["one-hot", "sphere"] = "one-hot"
    """one-hot: a number for each skill, one of them 1; sphere: any direction, as a vector of length 1."""
    balanced: bool = False
    """Deal the skills in turn instead of drawing them: while episodes are equally long, each skill has as many
    environments as any other; where these do not come out even, those with one more change from episode to episode."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.num_skills < 2:
            raise ValueError(
                f"num_skills must be at least 2, or there is nothing to tell apart; got {self.num_skills}."
            )
        if self.skill_kind not in KINDS:
            raise ValueError(f"skill_kind must be one of {tuple(KINDS)}, got {self.skill_kind!r}.")
        if self.balanced and self.skill_kind == "sphere":
            raise ValueError(
                "the skills on a sphere cannot be counted; leave balanced out, or use skill_kind 'one-hot'."
            )


class Kind(NamedTuple):
    """A family of skills, all of one size S."""

    draw: Callable[[int, Key], Array]  # S and a key -> a skill [S] of the prior, which is uniform
    listed: Callable[[int], np.ndarray]  # S -> the skills [M, S] that stand for all of them


class Skilled(NamedTuple):
    """An environment's state beside what it is asked for."""

    inner: EnvState
    skill: Array  # [S]
    turn: Array  # [] int32: the slot's number, and one more for each episode it has ended
    episode_return: Array  # [] sum of the episode's rewards so far


def skills(
    environment: Environment, num_skills: int = 5, skill_kind: str = "one-hot", balanced: bool = False
) -> Environment:
    """The same world for an agent that is shown a skill: observations become `[O + S]`, the skill last.

    Every episode has a skill of its own, also where the start state is one that others begin from. Evaluations take the
    skills in turn, `listed(spec.skill)[i % M]` in episode i.

    Args:
      environment: any with a clock of its own.
      num_skills: S; see `SkillsConfig`, as for the others.
      skill_kind: "one-hot" or "sphere".
      balanced: deal the skills in turn instead of drawing them.

    Raises:
      ValueError: as `SkillsConfig` says, or the environment has skills already.
    """
    SkillsConfig(num_skills, skill_kind, balanced)  # pyright: ignore[reportArgumentType]  # checks all three
    spec = environment.spec
    if spec.skill is not None:
        raise ValueError(f"{spec.name} has skills already; give them once.")
    skill = SkillSpec(skill_kind, num_skills)
    draw = partial(KINDS[skill_kind].draw, num_skills)
    by_turn = partial(_by_turn, jnp.asarray(listed(skill)))
    return Environment(
        reset=partial(_reset, environment, draw),
        step=partial(_step, environment),
        spec=spec._replace(observation_size=spec.observation_size + num_skills, skill=skill),
        assignment=Assignment(partial(_first, draw, by_turn, balanced), partial(_next, draw, by_turn, balanced)),
        picture=scene.inside(environment.picture, "inner"),
    )


def listed(skill: SkillSpec) -> np.ndarray:
    """The skills `[M, S]` that evaluations go through and that are known by their number.

    All of them where they can be counted. Of a circle eight directions, evenly spread; of another sphere the two ends
    of each axis.
    """
    return KINDS[skill.kind].listed(skill.size)


def whole_rounds(skill: SkillSpec, episodes: int) -> int:
    """At least so many episodes, rounded up until every listed skill has equally many."""
    count = len(listed(skill))
    return -(-episodes // count) * count


def _draw_one_hot(size: int, key: Key) -> Array:
    return jax.nn.one_hot(jax.random.randint(key, (), 0, size), size)


def _list_one_hot(size: int) -> np.ndarray:
    return np.eye(size, dtype=np.float32)


def _draw_direction(size: int, key: Key) -> Array:
    normal = jax.random.normal(key, (size,))
    return normal / jnp.linalg.norm(normal)


def _list_directions(size: int) -> np.ndarray:
    if size != 2:
        return np.concatenate([np.eye(size), -np.eye(size)]).astype(np.float32)
    angles = np.arange(_DIRECTIONS) * (2 * math.pi / _DIRECTIONS)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


KINDS = {"one-hot": Kind(_draw_one_hot, _list_one_hot), "sphere": Kind(_draw_direction, _list_directions)}


def _by_turn(skills: Array, turn: Array) -> Array:
    return skills[turn % skills.shape[0]]


def _reset(environment: Environment, draw: Callable, key: Key) -> tuple[Skilled, Step]:
    reset_key, skill_key = jax.random.split(key)
    return _show(environment.reset(reset_key), draw(skill_key), jnp.zeros((), jnp.int32))


def _first(
    draw: Callable, by_turn: Callable, balanced: bool, start: tuple[Skilled, Step], slot: Array, key: Key | None
) -> tuple[Skilled, Step]:
    return _again(start, by_turn(slot) if balanced or key is None else draw(key), slot)


def _next(
    draw: Callable, by_turn: Callable, balanced: bool, start: tuple[Skilled, Step], last: Skilled, key: Key
) -> tuple[Skilled, Step]:
    return _first(draw, by_turn, balanced, start, last.turn + 1, key)


def _again(start: tuple[Skilled, Step], skill: Array, turn: Array) -> tuple[Skilled, Step]:
    """The same start, shown with another skill."""
    state, step = start
    bare = step.observation[: -skill.shape[0]]
    return _show((state.inner, step._replace(observation=bare, final_observation=bare)), skill, turn)


def _show(start: tuple[EnvState, Step], skill: Array, turn: Array) -> tuple[Skilled, Step]:
    inner, step = start
    state = Skilled(inner, skill, turn, jnp.zeros(()))
    return state, _with_skill(step, state)


def _step(environment: Environment, state: Skilled, action: Array, key: Key) -> tuple[Skilled, Step]:
    inner, step = environment.step(state.inner, action, key)
    state = state._replace(inner=inner, episode_return=state.episode_return + step.reward)
    return state, _with_skill(step, state)


def _with_skill(step: Step, state: Skilled) -> Step:
    return step._replace(
        observation=jnp.concatenate([step.observation, state.skill]),
        final_observation=jnp.concatenate([step.final_observation, state.skill]),
        pursued=SkillInfo(state.skill, state.episode_return),
    )
