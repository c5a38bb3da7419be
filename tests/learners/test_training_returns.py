"""Training returns: sums over the episodes that end, by hand, and those of the learners."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery.envs.base import Environment, EnvSpec, Step, Team
from rookery.learners import rollout
from rookery.learners.base import Learner
from rookery.learners.on_policy import OnPolicyConfig
from rookery.learners.rollout import EpisodeSums
from rookery.types import Observation
from tests import tiny
from tests.learners.fixed_agents import idle, trained

SPEC = EnvSpec("by hand", 1, 1, 10)


def step(reward: Any, terminated: Any, truncated: Any, broken: Any, **measures: Any) -> Step:
    flags = [jnp.asarray(flag, bool) for flag in (terminated, truncated, broken)]
    observation = Observation(jnp.zeros((2, 1)))
    floats = {name: jnp.asarray(values, jnp.float32) for name, values in measures.items()}
    terminated, truncated, broken = flags
    none, rewards = jnp.zeros((2, 0)), jnp.asarray(reward, jnp.float32)
    return Step(observation, rewards, terminated, truncated, observation, none, broken, measures=floats)


def counted(sums: EpisodeSums | None, steps: list[Step], counts: list[Any] | None = None) -> rollout.Finished:
    """What ended in all steps, leaves `[T, ...]`."""
    found = []
    for i, taken in enumerate(steps):
        sums, finished = rollout.count_episodes(sums, taken, None if counts is None else jnp.asarray(counts[i]))
        found.append(finished)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)


def test_the_returns_of_two_environments() -> None:
    zeros = jnp.zeros(2)
    # The second environment's first episode began before its sums did.
    sums = EpisodeSums({"return": zeros, "height": zeros}, jnp.zeros(2, jnp.int32), jnp.asarray([True, False]))
    steps = [
        step([1, 5], [0, 0], [0, 1], [0, 0], height=[0, 9]),  # not counted: of an earlier start
        step([2, 3], [1, 0], [0, 0], [0, 0], height=[4, 0]),  # return 3 in 2 steps, height 4
        step([7, 4], [0, 1], [0, 0], [0, 0], height=[1, 2]),  # return 7 in 2 steps, height 2
        step([0, 1], [1, 0], [0, 1], [1, 0], height=[0, 1]),  # not counted: broken; return 1 in 1 step, height 1
        step([9, 9], [0, 0], [0, 0], [0, 0], height=[9, 9]),  # has not ended
    ]
    finished = counted(sums, steps)
    assert finished.ended_episodes.tolist() == [0, 1, 1, 1, 0]
    episodes, scores, length = rollout.mean_episode(finished)
    assert (int(episodes), float(length)) == (3, pytest.approx(5 / 3))
    assert {name: float(value) for name, value in scores.items()} == {
        "return": pytest.approx(11 / 3),
        "height": pytest.approx(7 / 3),
    }
    many = rollout.Finished(jnp.asarray([41]), {"return": jnp.asarray([41.0])}, jnp.asarray([41.0]))
    assert float(jax.jit(rollout.mean_episode)(many)[1]["return"]) == 1.0, "the mean of equal numbers is that number"
    nothing = rollout.training_returns(jax.tree.map(lambda leaf: leaf[:1], finished), SPEC)
    assert int(nothing["train_episodes"]) == 0
    assert np.isnan([float(nothing["train_return"]), float(nothing["train_episode_length"])]).all()


def test_the_returns_of_a_team() -> None:
    """What an agent gets after the end of its own task does not count, and the episode ends with the last one."""
    sums = EpisodeSums({"return": jnp.zeros((2, 2))}, jnp.zeros(2, jnp.int32), jnp.ones(2, bool))
    steps = [
        step([[1, 2], [3, 4]], [[1, 0], [0, 0]], np.zeros((2, 2)), [0, 0]),
        step([[50, 2], [3, 4]], [[1, 1], [0, 0]], np.zeros((2, 2)), [0, 0]),
    ]
    finished = counted(sums, steps, [np.ones((2, 2), bool), np.asarray([[False, True], [True, True]])])
    spec = SPEC._replace(team=Team(("a", "b"), (1, 1), (1, 1)))
    found = {name: float(value) for name, value in rollout.training_returns(finished, spec).items()}
    assert found == {
        "train_return/a": 1.0,
        "train_return/b": 4.0,
        "train_return": 2.5,
        "train_episodes": 1.0,
        "train_episode_length": 2.0,
    }


def rewarded(environment: Environment) -> Environment:
    """The environment with a reward of 1 in each step."""

    def step(state: Any, action: jax.Array, key: jax.Array) -> Any:
        state, taken = environment.step(state, action, key)
        return state, taken._replace(reward=jnp.ones_like(taken.reward))

    return environment._replace(step=step)


def _learner(kind: str) -> tuple[Learner, int]:
    """A learner in episodes of 10 steps with reward 1, and the number of its episodes in a generation."""
    env = rewarded(rookery.make("point_room", episode_length=10))
    if kind == "off-policy":
        return rookery.off_policy(idle(rookery.sac(env.spec, hidden_sizes=(4,))), env, tiny.CONFIG), 4
    # Environments 1 to 3 begin later in their first episodes: four episodes are whole in 20 steps, or five.
    config = OnPolicyConfig(num_envs=4, rollout_length=5, evaluate_every=4, eval_episodes=2, start_states=4)
    return rookery.on_policy(idle(rookery.ppo(env.spec, hidden_sizes=(4,), minibatches=2)), env, config), 2 + 3


@pytest.mark.parametrize("kind", ["off-policy", "on-policy"])
def test_a_generation_reports_its_training_episodes(kind: str) -> None:
    learner, episodes = _learner(kind)
    metrics = trained(learner)[1]
    found = [float(metrics[name]) for name in ("train_episodes", "train_return", "train_episode_length")]
    assert found == [episodes, 10.0, 10.0]
