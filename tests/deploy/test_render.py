"""An episode of a run: who acts, in which world, until when, and what is refused."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import trees
from rookery.agents.sac import SacConfig
from rookery.deploy import render
from rookery.envs import base, registry
from rookery.envs.base import Environment, EnvSpec, Step, Team
from rookery.envs.rendering.scene import Picture
from rookery.envs.wrappers import time_limit
from rookery.envs.wrappers.skills import skills
from rookery.experiments import build, warm_start
from rookery.experiments.cells import CellsConfig
from rookery.experiments.config import EnvironmentConfig, RunConfig
from rookery.experiments.config_io import to_record
from rookery.experiments.kinds import MapElitesRun, SacRun
from rookery.learners.off_policy import OffPolicyConfig
from rookery.learners.rollout import EvaluationConfig
from rookery.qd.scoring import PolicyConfig
from rookery.report.figures import animation
from rookery.storage import run_dir
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.csv_log import RunLog
from rookery.types import Genotype
from tests.agents.common import compiled

WORLD = EnvironmentConfig(env="point_room", episode_length=6, devices=1)
LIFE = OffPolicyConfig(
    num_envs=2, steps_per_generation=20, batch_size=4, buffer_size=32, warmup_steps=4, eval_episodes=1, start_states=2
)
LEARNING = SacRun(population=2, environment=WORLD, learner=LIFE, agent=SacConfig(hidden_sizes=(4,)))
BREEDING = MapElitesRun(
    environment=WORLD,
    batch_size=2,
    cells=CellsConfig(grid=(2, 2)),
    policy=PolicyConfig(hidden_sizes=(4,)),
    evaluation=EvaluationConfig(eval_episodes=1, start_states=2),
)


def kept(config: Any, path: Path, fitness: tuple[float, ...] = (1.0, 2.0)) -> Path:
    """The folder of a run whose only checkpoint is its beginning; as told, the second member was best."""
    config = dataclasses.replace(config, run=RunConfig(generations=1, run_dir=str(path), quiet=True))
    program = build.build(config).program
    state = compiled(program.init)(jax.random.key(0))
    if program.table is not None:  # a repertoire is empty before the first generation
        state, _ = compiled(program.step)(state, jax.random.key(1))
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(run_dir.create(path, to_record(config)))
        checkpoints = stack.enter_context(Checkpointer(opened.checkpoints, keep=1))
        log = stack.enter_context(RunLog(opened))
        log.write(0, {"env_steps": 40}, {"parent": np.arange(len(fitness)), "fitness": np.asarray(fitness)})
        checkpoints.save(1, state, {})
    return path


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kept(LEARNING, tmp_path_factory.mktemp("render") / "learned")


def same(one: render.RenderedEpisode, other: render.RenderedEpisode) -> bool:
    return bool(np.array_equal(one.states.inner, other.states.inner))


def test_the_best_member_acts_from_the_start_that_the_seed_draws(learned: Path) -> None:
    played = render.render(learned)
    assert (played.member, played.generation, played.title, played.names) == (1, 1, "point_room", ("return",))
    assert same(played, render.render(learned, member=1, checkpoint="1"))
    assert not same(played, render.render(learned, member=0))
    assert not same(played, render.render(learned, seed=1))


def test_states_and_rewards_are_those_of_the_member_in_its_world(learned: Path) -> None:
    played = render.render(learned)
    env = registry.make("point_room", episode_length=6)
    genotype = rookery.genotype(trees.take(warm_start.open_origin(learned).state.members, 1))
    agent = rookery.sac(env.spec, LEARNING.agent)
    start_key, _ = jax.random.split(jax.random.key(0))
    state, step = env.reset(start_key)
    for time in range(7):
        np.testing.assert_allclose(played.states.inner[time], state.inner, atol=1e-6)
        np.testing.assert_allclose(played.rewards[time], step.reward, atol=1e-6)
        state, step = env.step(state, rookery.act(agent, genotype, step.observation), start_key)
    assert len(played.rewards) == 7
    np.testing.assert_allclose(played.returns["return"], np.cumsum(played.rewards), atol=1e-6)


def test_what_was_played_can_be_drawn(learned: Path, tmp_path: Path) -> None:
    played = render.render(learned)
    scenery, scenes = played.scenery, played.scenes
    assert scenery is not None
    assert scenes is not None
    np.testing.assert_array_equal(scenes.position[:, 0], played.states.inner)
    path = animation.animate(scenery, scenes, played.returns, tmp_path / "room.gif", played.title)
    assert path.stat().st_size > 0
    with pytest.raises(ValueError, match=r"^point_room has no visualiser of its suite; animate its scenes\.$"):
        render.film(played, tmp_path / "room.gif")


def test_the_best_elite_of_a_repertoire_acts(tmp_path: Path) -> None:
    bred = kept(BREEDING, tmp_path / "bred")
    played = render.render(bred)
    assert played.member is None
    elite = rookery.best(rookery.repertoire(bred)).genotype
    env = registry.make("point_room", episode_length=6)
    act = rookery.policy(env.spec, BREEDING.policy).act
    states, rewards = render.play(act, env, elite, jax.random.key(0))
    np.testing.assert_allclose(played.states.inner, states.inner, atol=1e-6)
    np.testing.assert_allclose(played.rewards, rewards, atol=1e-6)
    with pytest.raises(ValueError, match=r"has a repertoire, whose best elite is shown; leave member out\.$"):
        render.render(bred, member=0)


def test_members_skills_and_checkpoints_that_there_are_not(learned: Path) -> None:
    with pytest.raises(ValueError, match=r"^member 2 does not exist; choose one in 0\.\.1\.$"):
        render.render(learned, member=2)
    with pytest.raises(ValueError, match=r"has no skills to choose from; leave skill out\.$"):
        render.render(learned, skill=0)
    with pytest.raises(ValueError, match=r"^checkpoint must be best, last or the number of a generation, got 'new'\.$"):
        render.render(learned, checkpoint="new")


def test_worlds_without_a_picture_are_refused(tmp_path: Path) -> None:
    probe = dataclasses.replace(LEARNING, environment=EnvironmentConfig(env="probe_truncation", devices=1))
    with pytest.raises(
        ValueError,
        match=r"^probe_truncation cannot be rendered; the environments of this package that can are point_maze, ",
    ):
        render.render(kept(probe, tmp_path / "probe"))


def test_worlds_in_space_are_played_in_the_page(learned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "picture_of", lambda _: Picture(bodies=lambda state: state))
    with pytest.raises(ValueError, match=r"^point_room is rendered in 3D .*; `rookery report .*/learned` plays it in "):
        render.render(learned)


def counted(lifetimes: tuple[int, int]) -> Environment:
    """A world for two that die after so many steps, each after its own; the state counts them."""

    def reset(key: jax.Array) -> tuple[jax.Array, Step]:
        return jnp.zeros(()), base.first_step(jnp.zeros((2, 1)), jnp.zeros(0))

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        time = state + 1.0
        ended = time >= jnp.asarray(lifetimes, jnp.float32)
        return time, base.next_step(jnp.full((2, 1), time), action[:, 0], ended, jnp.zeros(0))

    spec = EnvSpec("counted", 1, 1, 5, team=Team(("one", "other"), (1, 1), (1, 1)))
    return time_limit.limit_episode(Environment(reset, step, spec), 5)


def follow(params: jax.Array, observation: jax.Array) -> jax.Array:
    return params * observation


@pytest.mark.parametrize(("lifetimes", "length"), [((2, 4), 4), ((1, 1), 1), ((9, 2), 5)])
def test_an_episode_ends_with_its_last_agent(lifetimes: tuple[int, int], length: int) -> None:
    actor = Genotype(jnp.asarray(0.5), (), None)
    states, rewards = render.play(follow, counted(lifetimes), actor, jax.random.key(0))
    assert states.inner.tolist() == list(range(length + 1))
    # Who acts sees the step before: nothing at first, then half of the count.
    assert rewards.tolist() == [[0.0] * 2, *([time / 2] * 2 for time in range(length))]


def told(params: jax.Array, observation: jax.Array) -> jax.Array:
    """Go right with the first skill, up with the second, nowhere with the third."""
    return params * observation[2:4]


def test_a_slot_chooses_the_skill() -> None:
    env = skills(registry.make("point_room", episode_length=2), 3)
    ways = []
    for slot in range(3):
        states, _ = render.play(told, env, Genotype(jnp.asarray(1.0), (), None), jax.random.key(0), slot)
        assert env.picture is not None
        assert env.picture.scene is not None
        position = np.asarray(jax.vmap(env.picture.scene)(states).position)
        ways.append((position[-1] - position[0])[0])
    np.testing.assert_allclose(ways, [[0.2, 0.0], [0.0, 0.2], [0.0, 0.0]], atol=1e-6)


def test_a_film_of_the_suite_gets_states_rewards_and_path(tmp_path: Path) -> None:
    drawn = []
    picture = Picture(film=lambda states, rewards, path: drawn.append((states, rewards.tolist(), path)))
    played = render.RenderedEpisode(picture, np.arange(3), np.asarray([0.0, 1.0, 2.0]), ("return",), "robot", 1, 0)
    assert played.scenes is None
    assert render.film(played, tmp_path / "robot.gif") == tmp_path / "robot.gif"
    assert drawn[0][1:] == ([0.0, 1.0, 2.0], str(tmp_path / "robot.gif"))
    with pytest.raises(
        ValueError, match=r"^robot is rendered by its suite, as \.gif only, got '.*robot\.mp4'; choose a path "
    ):
        render.film(played, tmp_path / "robot.mp4")
