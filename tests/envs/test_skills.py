"""Skills: their assignment to episodes, when they change, and their record in a step."""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import base as envs
from rookery.envs.base import Environment, EnvSpec, SkillSpec, Step
from rookery.envs.wrappers import auto_reset, time_limit
from rookery.envs.wrappers.skills import SkillsConfig, enumerate_skills, skills, whole_rounds
from rookery.learners import evaluation
from rookery.types import Observation, PyTree
from tests.tiny import assert_equal

SLOTS = 11


def line(length: int = 1) -> Environment:
    """A start in [0, 1), a step of 1 at a time; the reward is the position, the descriptor is drawn from the key."""
    place = envs.descriptor_spec("a draw", "final", (0.0,), (1.0,))
    spec = EnvSpec("line", observation_size=1, action_size=1, episode_length=length, descriptor=place)
    return time_limit.limit_episode(Environment(_reset, _step, spec), length)


def _reset(key: jax.Array) -> tuple[jax.Array, Step]:
    place = jax.random.uniform(key, (1,))
    return place, envs.first_step(place, place)


def _step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
    place = state + 1.0
    return place, envs.next_step(place, place[0], jnp.asarray(False), jax.random.uniform(key, (1,)))


class Walk(NamedTuple):
    """All that happened in E environments over T steps."""

    first: Observation  # [E, ...] the observations that it began from
    steps: Step  # [T, E, ...]

    @property
    def skills(self) -> np.ndarray:
        """The number of the skill that each episode of three steps had; `[episodes, E]`."""
        numbers = np.asarray(self.steps.final_observation.skill).argmax(axis=-1).reshape(-1, 3, SLOTS)
        assert (numbers == numbers[:, :1]).all()
        return numbers[:, 0]


def walk(environment: Environment, times: int, slots: int = SLOTS, starts: int = 8, seed: int = 0) -> Walk:
    def walked(key: jax.Array) -> PyTree:
        keys = jax.random.split(key, 3)
        bank = auto_reset.start_bank(environment, keys[0], starts)
        resetting = auto_reset.auto_reset(environment, bank)

        def advance(state: PyTree, key: jax.Array) -> PyTree:
            return jax.vmap(resetting.step)(state, jnp.zeros((slots, 1)), jax.random.split(key, slots))

        state, first = auto_reset.start_environments(environment, bank, keys[1], slots)
        return first.observation, jax.lax.scan(advance, state, jax.random.split(keys[2], times))[1]

    return Walk(*jax.tree.map(np.asarray, jax.jit(walked)(jax.random.key(seed))))


def begun(environment: Environment, slots: int, starts: int = 8) -> np.ndarray:
    """The skills of the first episodes of many slots; `[E, S]`."""

    def start(key: jax.Array) -> jax.Array:
        keys = jax.random.split(key)
        bank = auto_reset.start_bank(environment, keys[0], starts)
        skill = auto_reset.start_environments(environment, bank, keys[1], slots)[1].observation.skill
        assert skill is not None
        return skill

    return np.asarray(jax.jit(start)(jax.random.key(0)))


def assert_uniform(counts: np.ndarray) -> None:
    """Counts of equally likely cases: Pearson's statistic less than once in a thousand seeds exceeded.

    The bound is the Wilson-Hilferty approximation of the chi-square distribution's quantile.
    """
    degrees = counts.size - 1
    expected = counts.sum() / counts.size
    bound = degrees * (1 - 2 / (9 * degrees) + 3.09 * math.sqrt(2 / (9 * degrees))) ** 3
    assert ((counts - expected) ** 2 / expected).sum() < bound, counts


def together(*numbers: np.ndarray, count: int) -> np.ndarray:
    """How often each combination of numbers below `count` came up."""
    return np.bincount(sum(number.ravel() * count**i for i, number in enumerate(numbers)), minlength=count**2)


@pytest.fixture(scope="module")
def drawn() -> Walk:
    """Four skills, episodes of three steps, four start states."""
    return walk(skills(line(3), 4), times=2_400, starts=4)


@pytest.fixture(scope="module")
def dealt() -> Walk:
    """Four skills in turn, episodes of three steps."""
    return walk(skills(line(3), 4, balanced=True), times=48)


# --- assignment of skills


def test_every_reset_draws_a_skill_and_all_are_equally_likely(drawn: Walk) -> None:
    assert (np.asarray(drawn.steps.final_observation.skill).sum(axis=-1) == 1.0).all()
    assert drawn.skills.shape == (800, SLOTS)
    assert_uniform(np.bincount(drawn.skills.ravel(), minlength=4))
    # The bound is worth something: a prior that leaves out one of ten draws of the last skill fails it.
    wrong = drawn.skills.ravel().copy()
    wrong[np.flatnonzero(wrong == 3)[::10]] = 0
    with pytest.raises(AssertionError):
        assert_uniform(np.bincount(wrong, minlength=4))


def test_skills_are_tied_to_no_slot_and_to_no_start_state(drawn: Walk) -> None:
    numbers = drawn.skills
    for slot in range(SLOTS):
        assert_uniform(np.bincount(numbers[:, slot], minlength=4))
    starts = drawn.steps.final_observation.features[::3, :, 0] - 1.0
    assert len(np.unique(starts.round(5))) == 4
    which = np.searchsorted(np.unique(starts.round(5)), starts.round(5))
    assert_uniform(together(which, numbers, count=4))


def test_skills_are_independent_of_those_before_and_beside_them(drawn: Walk) -> None:
    numbers, first = drawn.skills, begun(skills(line(), 4), 4_000).argmax(axis=1)
    assert_uniform(together(numbers[:-1], numbers[1:], count=4))
    assert_uniform(together(numbers[:, :-1], numbers[:, 1:], count=4))
    assert_uniform(np.bincount(first, minlength=4))  # first episodes draw as well
    assert_uniform(together(first[:-1], first[1:], count=4))
    draws = drawn.steps.descriptor[:100].ravel()  # of 1,100 numbers with 23 bits one pair is equal once in fourteen
    assert len(np.unique(draws)) >= len(draws) - 1


def test_directions_have_length_one_and_no_preference() -> None:
    directions = begun(skills(line(), 3, "sphere"), 8_000)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1.0, rtol=1e-5)
    assert_uniform(np.bincount((directions > 0) @ [1, 2, 4], minlength=8))
    # On a sphere in three dimensions each coordinate is uniform in [-1, 1] (Archimedes).
    for axis in range(3):
        assert_uniform(np.histogram(directions[:, axis], bins=10, range=(-1, 1))[0])


def test_balanced_skills_go_round(dealt: Walk) -> None:
    numbers = dealt.skills
    counts = np.stack([np.bincount(row, minlength=4) for row in numbers])
    assert np.sort(counts, axis=1).tolist() == [[2, 3, 3, 3]] * 16
    fewest = counts.argmin(axis=1)
    assert (fewest[1:] != fewest[:-1]).all()
    assert sorted(fewest[:4]) == [0, 1, 2, 3]
    for first in range(0, 16, 4):
        assert (np.sort(numbers[first : first + 4], axis=0) == np.arange(4)[:, None]).all()  # each slot, all of them


def test_evaluations_take_the_skills_in_turn() -> None:
    def begin(environment: Environment, key: jax.Array) -> tuple:
        bank = auto_reset.start_bank(environment, key, 16)
        return bank[1].observation, evaluation.start_episodes(environment, bank, 16)

    for environment in (skills(line(), 4, balanced=True), skills(line(), 2, "sphere")):
        starts, rollouts = jax.jit(partial(begin, environment))(jax.random.key(0))
        assert environment.spec.skill is not None
        every = enumerate_skills(environment.spec.skill)
        np.testing.assert_array_equal(rollouts.observation.skill, np.concatenate([every] * (16 // len(every))))
        np.testing.assert_array_equal(rollouts.observation.features, starts.features)
        np.testing.assert_array_equal(rollouts.state.skill, rollouts.observation.skill)


def test_enumerated_skills() -> None:
    assert enumerate_skills(SkillSpec("one-hot", 3)).tolist() == np.eye(3).tolist()
    circle, half = enumerate_skills(SkillSpec("sphere", 2)), math.sqrt(0.5)
    eighths = [[1, 0], [half, half], [0, 1], [-half, half], [-1, 0], [-half, -half], [0, -1], [half, -half]]
    np.testing.assert_allclose(circle, eighths, atol=1e-6)
    ends = enumerate_skills(SkillSpec("sphere", 3)).tolist()
    assert ends == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [-1, 0, 0], [0, -1, 0], [0, 0, -1]]
    assert [whole_rounds(SkillSpec("one-hot", 8), episodes) for episodes in (1, 8, 9, 10)] == [8, 8, 16, 16]
    assert whole_rounds(SkillSpec("sphere", 2), 10) == 16
    assert whole_rounds(SkillSpec("one-hot", 8), 2**31 - 1) == 2**31 - 8, "what counts as int32"


# --- the record in a step


def test_observations_have_the_skill_and_true_successors_the_old_one(drawn: Walk) -> None:
    steps, first = drawn.steps, np.asarray(drawn.first.skill)
    chosen, following = np.asarray(steps.final_observation.skill), np.asarray(steps.observation.skill)
    assert following.shape == (2_400, SLOTS, 4)
    ended = np.asarray(steps.truncated)
    assert (ended == (np.arange(2_400) % 3 == 2)[:, None]).all()
    np.testing.assert_array_equal(following[~ended], chosen[~ended])
    # The skill of an observation is that of the next step, from the first on.
    np.testing.assert_array_equal(first, chosen[0])
    np.testing.assert_array_equal(following[:-1], chosen[1:])
    changed = (following[ended] != chosen[ended]).any(axis=1)
    assert changed.mean() == pytest.approx(0.75, abs=0.02)
    assert (steps.observation.features[ended] < 1.0).all()
    assert (steps.final_observation.features[ended] >= 3.0).all()


def test_other_fields_of_a_step_are_those_of_the_environment_and_returns_add_up(drawn: Walk) -> None:
    bare, steps = walk(line(3), times=30), jax.tree.map(lambda leaf: leaf[:30], drawn.steps)
    # The same keys, so the same draws in the environment; the starts are drawn from keys of their own.
    np.testing.assert_array_equal(steps.descriptor, bare.steps.descriptor)
    np.testing.assert_array_equal(steps.truncated, bare.steps.truncated)
    np.testing.assert_array_equal(steps.reward, steps.final_observation.features[..., 0])
    assert bare.steps.episode_return is None
    # An episode's return adds up, and begins at zero.
    reward, returned = (np.asarray(x).reshape(-1, 3, SLOTS) for x in (drawn.steps.reward, drawn.steps.episode_return))
    np.testing.assert_allclose(returned, reward.cumsum(axis=1), rtol=1e-6)
    environment = skills(line(), 4)
    _, step = jax.jit(environment.reset)(jax.random.key(0))
    assert_equal(step.observation, step.final_observation)
    assert (np.asarray(step.observation.skill).sum(), step.episode_return) == (1.0, 0.0)
    spec = environment.spec
    assert (spec.observation_size, spec.input_size, spec.skill) == (1, 5, SkillSpec("one-hot", 4))
    assert (line().spec.input_size, line().spec.skill) == (1, None)


# --- mistakes


def test_mistakes_are_answered() -> None:
    for make in (SkillsConfig, partial(skills, line())):
        with pytest.raises(ValueError, match=r"^num_skills x num_skills must be at most 2147483647, the largest int32"):
            make(num_skills=2_000_000_000)
        with pytest.raises(ValueError, match=r"^balanced needs a finite number of skills;"):
            make(skill_kind="sphere", balanced=True)


def test_skills_are_given_once_and_last() -> None:
    with pytest.raises(ValueError, match=r"^line has skills already; apply the skills wrapper only once\.$"):
        skills(skills(line()))
    with pytest.raises(ValueError, match=r"^line has skills; apply limit_episode first, then skills\.$"):
        time_limit.limit_episode(skills(line()), 3)


def test_a_step_has_the_state_before_it_if_it_is_asked_for() -> None:
    environment, plain = (skills(line(3), 2, with_previous=asked) for asked in (True, False))
    assert (environment.spec.has_previous, plain.spec.has_previous) == (True, False)
    found = walk(environment, times=7)
    steps, first = found.steps, found.first
    assert steps.previous is not None
    before = jax.tree.map(lambda one, more: np.concatenate([one[None], more[:-1]]), first, steps.observation)
    assert_equal(steps.previous.observation, before)
    # A start's descriptor is its place, which is its observation.
    ended = np.asarray(steps.truncated)[:-1, :, None]
    later = np.where(ended, steps.observation.features[:-1], steps.descriptor[:-1])
    np.testing.assert_array_equal(steps.previous.descriptor, np.concatenate([first.features[None], later]))
    assert plain.reset(jax.random.key(0))[1].previous is None
