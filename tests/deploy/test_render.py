"""Rendered episodes: the policy, the environment, the length, and rejected arguments."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import trees
from rookery.deploy import render
from rookery.envs import base, registry
from rookery.envs.base import Environment, EnvSpec, Step, Team
from rookery.envs.rendering.scene import Picture
from rookery.envs.wrappers import time_limit
from rookery.envs.wrappers.skills import skills
from rookery.experiments import warm_start
from rookery.experiments.config import EnvironmentConfig
from rookery.qd.scoring import PolicyConfig
from rookery.report.figures import animation
from rookery.types import Genotype, Observation
from tests.commandline import call
from tests.deploy.untrained_runs import MAP_ELITES_RUN, SAC_RUN, save_run, unchanged, with_elites


@pytest.fixture(scope="module")
def sac_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(SAC_RUN, tmp_path_factory.mktemp("render") / "sac_run", (1.0, 2.0), unchanged)


@pytest.fixture(scope="module")
def rendered(sac_run: Path) -> render.RenderedEpisode:
    return render.render(sac_run)


@pytest.mark.parametrize(
    ("picture", "name", "said"),
    [
        (Picture(scene=lambda state: state), "room.png", "an animation is a .gif or .mp4 file"),
        (Picture(film=lambda *_, **__: None), "room.mp4", "point_room is rendered by its suite, as .gif only"),
    ],
)
def test_a_suffix_that_cannot_be_written_is_refused_before_the_episode(
    sac_run: Path, picture: Picture, name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "picture_of", lambda _: picture)
    monkeypatch.setattr(render, "play", lambda *_: pytest.fail("an episode was played"))
    with pytest.raises(ValueError, match=rf"^{re.escape(said)}, got '{name}'; choose"):
        render.render(sac_run, to=name)
    code, _, err = call("render", str(sac_run), "--to", name)
    assert (code, err.startswith(f"error: {said}")) == (1, True)


def same(one: render.RenderedEpisode, other: render.RenderedEpisode) -> bool:
    return bool(np.array_equal(one.states.inner, other.states.inner))


def test_the_best_member_acts_from_the_start_state_of_the_seed(sac_run: Path, rendered: render.RenderedEpisode) -> None:
    assert (rendered.member, rendered.generation, rendered.title, rendered.names) == (1, 1, "point_room", ("return",))
    assert same(rendered, render.render(sac_run, member=1, checkpoint="1"))
    assert not same(rendered, render.render(sac_run, member=0))
    assert not same(rendered, render.render(sac_run, seed=1))


def test_states_and_rewards_are_those_of_the_member_in_its_environment(
    sac_run: Path, rendered: render.RenderedEpisode
) -> None:
    env = registry.make("point_room", episode_length=6)
    genotype = rookery.genotype(trees.take(warm_start.restore_run(sac_run).state.members, 1))
    agent = rookery.sac(env.spec, SAC_RUN.agent)
    start_key, _ = jax.random.split(jax.random.key(0))
    state, step = env.reset(start_key)
    for time in range(7):
        np.testing.assert_allclose(rendered.states.inner[time], state.inner, atol=1e-6)
        np.testing.assert_allclose(rendered.rewards[time], step.reward, atol=1e-6)
        state, step = env.step(state, rookery.act(agent, genotype, step.observation), start_key)
    assert len(rendered.rewards) == 7
    np.testing.assert_allclose(rendered.returns["return"], np.cumsum(rendered.rewards), atol=1e-6)


def test_an_episode_can_be_animated(rendered: render.RenderedEpisode, tmp_path: Path) -> None:
    with jax.debug_nans(True):  # a body has no heading
        scenery, scenes = rendered.scenery, rendered.scenes
    assert scenery is not None
    assert scenes is not None
    np.testing.assert_array_equal(scenes.position[:, 0], rendered.states.inner)
    path = animation.animate(scenery, scenes, rendered.returns, tmp_path / "room.gif", rendered.title)
    assert path.stat().st_size > 0
    with pytest.raises(ValueError, match=r"^point_room has no visualiser of its suite; animate its scenes\.$"):
        render.film(rendered, tmp_path / "room.gif")


def test_the_best_elite_of_a_repertoire_acts(tmp_path: Path) -> None:
    map_elites_run = save_run(MAP_ELITES_RUN, tmp_path / "map_elites_run", (), with_elites)
    rendered = render.render(map_elites_run)
    assert rendered.member is None
    elite = rookery.qd.best(rookery.experiments.repertoire(map_elites_run)).genotype
    env = registry.make("point_room", episode_length=6)
    act = rookery.qd.policy(env.spec, PolicyConfig(hidden_sizes=(4,))).act
    states, rewards = render.play(act, env, elite, jax.random.key(0))
    np.testing.assert_allclose(rendered.states.inner, states.inner, atol=1e-6)
    np.testing.assert_allclose(rendered.rewards, rewards, atol=1e-6)
    named, nearest = (render.render(map_elites_run, cell=cell) for cell in (str(rendered.cell), "0.5,0.75"))
    assert (named.cell, nearest.cell) == (rendered.cell, 3)
    assert not same(nearest, rendered)
    assert re.fullmatch(r"descriptor [-\d.]+, [-\d.]+", str(named.elite))
    assert re.fullmatch(r"descriptor .*, at a distance of [\d.]+ from 0\.5, 0\.75", str(nearest.elite))


def test_environments_without_a_picture_are_rejected(tmp_path: Path) -> None:
    probe = dataclasses.replace(SAC_RUN, environment=EnvironmentConfig(env="probe_truncation", devices=1))
    with pytest.raises(ValueError, match=r"^probe_truncation cannot be rendered; the tasks point_\*, pursuit_\* and"):
        render.render(save_run(probe, tmp_path / "probe", (1.0, 2.0), unchanged))


def test_environments_in_3d_are_left_to_the_report(sac_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "picture_of", lambda _: Picture(bodies=lambda state: state))
    with pytest.raises(ValueError, match=r"^point_room is rendered in 3D .*; `rookery report .*/sac_run` "):
        render.render(sac_run)


def counting_environment(lengths: tuple[int, int]) -> Environment:
    """An environment with two agents whose episodes have the given lengths; the state counts the steps."""

    def reset(key: jax.Array) -> tuple[jax.Array, Step]:
        return jnp.zeros(()), base.first_step(jnp.zeros((2, 1)), jnp.zeros(0))

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        time = state + 1.0
        ended = time >= jnp.asarray(lengths, jnp.float32)
        return time, base.next_step(jnp.full((2, 1), time), action[:, 0], ended, jnp.zeros(0))

    spec = EnvSpec("counting_environment", 1, 1, 5, team=Team(("one", "other"), (1, 1), (1, 1)))
    return time_limit.limit_episode(Environment(reset, step, spec), 5)


def follow(params: jax.Array, observation: Observation) -> jax.Array:
    return params * observation.features


@pytest.mark.parametrize(("lengths", "length"), [((2, 4), 4), ((1, 1), 1), ((9, 2), 5)])
def test_an_episode_ends_with_its_last_agent(lengths: tuple[int, int], length: int) -> None:
    actor = Genotype(jnp.asarray(0.5), (), None)
    states, rewards = render.play(follow, counting_environment(lengths), actor, jax.random.key(0))
    assert states.inner.tolist() == list(range(length + 1))
    # The observation is that of the step before: 0 at first, then half of the count.
    assert rewards.tolist() == [[0.0] * 2, *([time / 2] * 2 for time in range(length))]


def act_by_skill(params: jax.Array, observation: Observation) -> jax.Array:
    """Move right with the first skill, up with the second, not at all with the third."""
    assert observation.skill is not None
    return params * observation.skill[:2]


def test_a_slot_chooses_the_skill() -> None:
    env = skills(registry.make("point_room", episode_length=2), 3)
    ways = []
    for slot in range(3):
        states, _ = render.play(act_by_skill, env, Genotype(jnp.asarray(1.0), (), None), jax.random.key(0), slot)
        assert env.picture is not None
        assert env.picture.scene is not None
        position = np.asarray(jax.vmap(env.picture.scene)(states).position)
        ways.append((position[-1] - position[0])[0])
    np.testing.assert_allclose(ways, [[0.2, 0.0], [0.0, 0.2], [0.0, 0.0]], atol=1e-6)


def test_a_film_of_the_suite_gets_states_rewards_and_path(tmp_path: Path) -> None:
    drawn = []
    picture = Picture(film=lambda states, rewards, path: drawn.append((states, rewards.tolist(), path)))
    rendered = render.RenderedEpisode(picture, np.arange(3), np.asarray([0.0, 1.0, 2.0]), ("return",), "robot", 1, 0)
    assert rendered.scenes is None
    assert render.film(rendered, tmp_path / "robot.gif") == tmp_path / "robot.gif"
    assert drawn[0][1:] == ([0.0, 1.0, 2.0], str(tmp_path / "robot.gif"))
    with pytest.raises(ValueError, match=r"^robot is rendered by its suite, as \.gif only, got '.*robot\.mp4'; choose"):
        render.film(rendered, tmp_path / "robot.mp4")
