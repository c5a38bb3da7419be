"""Recorded episodes: their policies, their frames, the content of the file, and rejected arguments."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery.deploy import episode_selection, episodes, render
from rookery.deploy.episode_selection import Selection
from rookery.deploy.policy import evaluator_of
from rookery.envs import base
from rookery.envs.base import Environment, EnvSpec, Step
from rookery.envs.rendering.scene import Picture, Pose, Shape
from rookery.envs.wrappers import time_limit
from rookery.experiments import warm_start
from rookery.experiments.config import EnvironmentConfig
from rookery.experiments.kinds import configure
from rookery.storage import played, run_dir
from rookery.types import Genotype, Observation
from tests.deploy.untrained_runs import (
    DIAYN_RUN,
    MAP_ELITES_RUN,
    PURSUIT,
    ROLES_RUN,
    SAC_RUN,
    TEAM_LEARNER,
    save_run,
    unchanged,
    with_elites,
)


@pytest.fixture(scope="module")
def sac_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(SAC_RUN, tmp_path_factory.mktemp("episodes") / "sac_run", (1.0, 2.0), unchanged)


@pytest.fixture(scope="module")
def map_elites_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(MAP_ELITES_RUN, tmp_path_factory.mktemp("episodes") / "map_elites_run", (), with_elites)


@pytest.fixture(scope="module")
def recorded(sac_run: Path) -> played.Episodes:
    with jax.debug_nans(True):  # a body has no heading
        return episodes.record_episodes(sac_run, seed=3)


def test_episodes_of_members_the_best_first_equal_rendered_ones(sac_run: Path, recorded: played.Episodes) -> None:
    descriptions = recorded.header["episodes"]
    assert [episode["member"] for episode in descriptions] == [1, 0]
    assert [episode["fitness"] for episode in descriptions] == [2.0, 1.0]
    assert [episode["label"] for episode in descriptions] == ["member 1", "member 0"]
    rendered = render.render(sac_run, member=0, seed=3)
    np.testing.assert_allclose(recorded.arrays["position"][1, :, 0], rendered.states.inner, atol=1e-6)
    np.testing.assert_allclose(recorded.arrays["reward"][1, :, 0], rendered.returns["return"], atol=1e-6)
    assert descriptions[1]["returns"]["return"] == pytest.approx(rendered.returns["return"][-1], abs=1e-6)
    assert not np.array_equal(recorded.arrays["position"][0], recorded.arrays["position"][1])
    assert recorded.arrays["step"].tolist() == [list(range(7))] * 2
    assert recorded.arrays["frames"].tolist() == [7, 7]
    assert {episode["ended"] for episode in descriptions} == {"cut by the clock"}


def test_members_replaced_after_the_evaluation_are_excluded(sac_run: Path) -> None:
    origin = warm_start.restore_run(sac_run)
    replaced = origin.state.shared._replace(parents=jnp.asarray([0, 0]))
    spec = evaluator_of(origin).environment.spec
    selection = episode_selection.select(origin._replace(state=origin.state._replace(shared=replaced)), spec, None)
    assert [each["member"] for each in selection.descriptions] == [0]
    assert [each["member"] for each in episode_selection.select(origin, spec, 1).descriptions] == [1]


def test_header_and_arrays_of_a_plane(recorded: played.Episodes) -> None:
    header, arrays = recorded
    assert {name: header[name] for name in ("format", "generation", "seed", "task", "kind", "seconds_per_step")} == {
        "format": 1,
        "generation": 1,
        "seed": 3,
        "task": "point_room",
        "kind": "plane",
        "seconds_per_step": None,
    }
    assert header["names"] == ["return"]
    assert header["scenery"]["upper"] == [1.0, 1.0]
    assert header["scenery"]["bodies"] == ["point"]
    assert {name: (array.shape, str(array.dtype)) for name, array in arrays.items()} == {
        "step": ((2, 7), "int32"),
        "frames": ((2,), "int32"),
        "position": ((2, 7, 1, 2), "float32"),
        "heading": ((2, 7, 1), "float32"),
        "visible": ((2, 7, 1), "bool"),
        "reward": ((2, 7, 1), "float32"),
    }


def test_the_file_is_read_as_written(sac_run: Path, recorded: played.Episodes) -> None:
    assert played.read_episodes(sac_run) is None
    path = played.write_episodes(sac_run, recorded)
    assert path == sac_run / "episodes.npz"
    read = played.read_episodes(sac_run)
    assert read is not None
    assert read.header == recorded.header
    assert sorted(read.arrays) == sorted(recorded.arrays)
    for name, array in recorded.arrays.items():
        np.testing.assert_array_equal(read.arrays[name], array)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"episodes\.npz is damaged, or of another version of rookery .*; delete it"):
        played.read_episodes(sac_run)
    half = {name: array for name, array in recorded.arrays.items() if name not in ("position", "step")}
    played.write_episodes(sac_run, recorded._replace(arrays=half))
    with pytest.raises(ValueError, match=r"episodes\.npz is damaged, .*\(no position, step\); delete it"):
        played.read_episodes(sac_run)
    played.write_episodes(sac_run, recorded._replace(header={**recorded.header, "format": 2}))
    with pytest.raises(ValueError, match=r"another version of rookery \(format 2\)"):
        played.read_episodes(sac_run)
    path.unlink()


def test_a_new_run_in_the_folder_deletes_the_episodes(tmp_path: Path) -> None:
    run_dir.create(tmp_path, {}).release()
    file = played.write_episodes(tmp_path, played.Episodes({"format": 1}, {}))
    run_dir.create(tmp_path, {}, overwrite=True).release()
    assert not file.exists()


def test_episodes_of_elites_the_best_first(map_elites_run: Path) -> None:
    repertoire = rookery.experiments.repertoire(map_elites_run)
    occupied = np.flatnonzero(repertoire.occupied)
    recorded = episodes.record_episodes(map_elites_run, count=None)
    cells = [episode["cell"] for episode in recorded.header["episodes"]]
    assert cells[0] == int(np.argmax(repertoire.fitnesses))
    assert sorted(cells) == occupied.tolist()
    for episode in recorded.header["episodes"]:
        assert episode["fitness"] == float(repertoire.fitnesses[episode["cell"]])
        assert episode["descriptor"] == np.asarray(repertoire.descriptors)[episode["cell"]].astype(float).tolist()
        assert episode["label"] == f"cell {episode['cell']}"
    best = render.render(map_elites_run)
    np.testing.assert_allclose(recorded.arrays["position"][0, :, 0], best.states.inner, atol=1e-6)


def test_spread_of_cells() -> None:
    centroids = np.asarray([[0.0, 0.0], [1.0, 0.0], [4.0, 0.0], [4.0, 3.0], [9.0, 9.0]])
    occupied = np.asarray([True, True, True, True, False])
    assert episode_selection.spread(centroids, occupied, first=1, count=3).tolist() == [1, 3, 2]
    assert episode_selection.spread(centroids, occupied, first=1, count=None).tolist() == [1, 3, 2, 0]
    assert episode_selection.spread(centroids, occupied, first=0, count=1).tolist() == [0]
    twins = np.zeros((3, 2))
    assert episode_selection.spread(twins, np.ones(3, bool), first=2, count=9).tolist() == [2, 0, 1]


@pytest.fixture(scope="module")
def diayn_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(DIAYN_RUN, tmp_path_factory.mktemp("episodes") / "diayn_run", (0.0,), unchanged)


def test_one_episode_of_every_skill_of_the_best_member(diayn_run: Path) -> None:
    recorded = episodes.record_episodes(diayn_run)
    descriptions = recorded.header["episodes"]
    assert [(episode["skill"], episode["member"], episode["label"]) for episode in descriptions] == [
        (0, 0, "skill 0"),
        (1, 0, "skill 1"),
        (2, 0, "skill 2"),
    ]
    last = render.render(diayn_run, skill=2).states.inner.inner  # unwraps the skills and the time limit
    np.testing.assert_allclose(recorded.arrays["position"][2, :, 0], last, atol=1e-6)
    assert not np.array_equal(recorded.arrays["position"][0], recorded.arrays["position"][2])


@pytest.mark.parametrize(("kind", "size", "count"), [("one-hot", 3, 9), ("sphere", 2, 24)])
def test_three_trajectories_of_every_skill_are_added(
    diayn_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, size: int, count: int
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(episodes, "record_episodes", lambda *_, **__: SimpleNamespace(header={"generation": 1}))
    monkeypatch.setattr(episodes, "write_episodes", lambda *_: None)
    monkeypatch.setattr(episodes, "evaluate", lambda _, number, *__, **___: asked.append(number))
    run = Path(shutil.copytree(diayn_run, tmp_path / "run"))
    about = json.loads((run / "config.json").read_text())
    about["config"]["skills"] |= {"skill_kind": kind, "num_skills": size}
    (run / "config.json").write_text(json.dumps(about))
    episodes.add_episodes(run)
    assert asked == [count]
    (run / "skills.csv").write_text("")
    # The checkpoint is of generation 1; a copied folder has other times.
    for generation, at, again in ((0, 2**32, [count]), (1, 1, [])):
        (run / "evaluation.csv").write_text(f"generation,episode\n{generation},0\n")
        os.utime(run / "skills.csv", (at, at))
        asked.clear()
        episodes.add_episodes(run)
        assert asked == again


def test_one_episode_of_the_best_team(tmp_path: Path) -> None:
    config = configure("ippo", population=2, environment=PURSUIT, learner=TEAM_LEARNER, agent=ROLES_RUN.agent)
    header, arrays = episodes.record_episodes(save_run(config, tmp_path / "team", (1.0, 2.0), unchanged))
    (description,) = header["episodes"]
    assert (description["member"], description["label"], description["fitness"]) == (1, "member 1", 2.0)
    assert header["names"] == ["predator", "prey"]
    assert header["scenery"]["bodies"] == ["predator", "prey"]
    last = arrays["frames"][0] - 1
    assert description["steps"] == arrays["step"][0, last]
    assert description["returns"] == pytest.approx(
        {"predator": arrays["reward"][0, last, 0], "prey": arrays["reward"][0, last, 1]}
    )
    assert arrays["position"].shape[2:] == (*arrays["reward"].shape[2:], 2)


def test_the_best_agents_of_all_roles_form_a_team(tmp_path: Path) -> None:
    # Members are predator and prey of the first slot, then of the second.
    origin = warm_start.restore_run(save_run(ROLES_RUN, tmp_path / "roles", (1.0, 4.0, 2.0, 3.0), unchanged))
    selection = episode_selection.select(origin, evaluator_of(origin).environment.spec, 12)
    assert selection.descriptions == [
        {"member": None, "label": "the best of each role", "fitness": None, "descriptor": None}
    ]
    team, members = (jax.tree.leaves(actors.params)[0] for actors in (selection.actors, _genotypes(origin)))
    np.testing.assert_array_equal(team[0], [members[1, 0], members[0, 1]])


def _genotypes(origin: warm_start.RestoredRun) -> Any:
    """`[slot, role, ...]`."""
    return jax.vmap(rookery.genotype)(origin.state.members)


def falling(length: int, breaks: bool = False) -> Environment:
    """A body that rises by the action; the state is its height, NaN once the physics break."""

    def reset(key: jax.Array) -> tuple[jax.Array, Step]:
        return jnp.zeros(2), base.first_step(jnp.zeros(1), jnp.zeros(0))

    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        height, time = state[0] + action[0], state[1] + 1.0
        ended = time >= length
        height = jnp.where(ended & breaks, jnp.nan, height)
        return jnp.stack([height, time]), base.next_step(height[None], height, ended, jnp.zeros(0))

    def bodies(state: jax.Array) -> Pose:
        return Pose(jnp.stack([state[0], state[0] * 0.0, state[0] * 0.0])[None], jnp.asarray([[1.0, 0.0, 0.0, 0.0]]))

    ball = Shape(0, "sphere", (0.5,), (0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0))
    picture = Picture(bodies=bodies, shapes=(ball,), seconds=0.25)
    return time_limit.limit_episode(
        time_limit.guard_physics(Environment(reset, step, EnvSpec("falling", 1, 1, 9), picture=picture)), 9
    )


def constant(params: jax.Array, observation: Observation) -> jax.Array:
    return jnp.broadcast_to(params, (1,))


def rising(environment: Environment, rises: list[float], most_frames: int = 250) -> played.Episodes:
    """Episodes of policies with constant actions."""
    count = len(rises)
    selection = Selection(Genotype(jnp.asarray(rises), (), None), np.arange(count), np.zeros(count, int), [{}] * count)
    return episodes.play_all(constant, environment, selection, 0, most_frames)


def test_poses_and_shapes_of_bodies_in_3d() -> None:
    header, arrays = rising(falling(3), [1.0, -0.5])
    assert header["kind"] == "bodies"
    assert header["seconds_per_step"] == 0.25
    ball = {"link": 0, "kind": "sphere", "size": [0.5], "position": [0.0, 0.0, 0.0], "rotation": [1.0, 0.0, 0.0, 0.0]}
    assert header["shapes"] == [{**ball, "colour": None, "role": "body"}]
    assert arrays["position"][:, :, 0, 0].tolist() == [[0.0, 1.0, 2.0, 3.0], [0.0, -0.5, -1.0, -1.5]]
    assert arrays["position"].shape == (2, 4, 1, 3)
    assert arrays["rotation"].tolist() == [[[[1.0, 0.0, 0.0, 0.0]]] * 4] * 2
    assert arrays["reward"][:, :, 0].tolist() == [[0.0, 1.0, 3.0, 6.0], [0.0, -0.5, -1.5, -3.0]]
    last = {"steps": 3, "ended": "terminated"}
    assert header["episodes"] == [{**last, "returns": {"return": 6.0}}, {**last, "returns": {"return": -3.0}}]


def test_a_shorter_episode_repeats_its_last_frame() -> None:
    def step(state: jax.Array, action: jax.Array, key: jax.Array) -> tuple[jax.Array, Step]:
        after, result = long.step(state, action, key)
        return after, result._replace(terminated=result.terminated | (after.inner[0] > 2.5))

    long = falling(20)
    header, arrays = rising(long._replace(step=step), [1.0, 0.25])
    assert arrays["frames"].tolist() == [4, 10]
    assert arrays["step"].tolist() == [[0, 1, 2, *[3] * 7], list(range(10))]
    assert arrays["position"][0, :, 0, 0].tolist() == [0.0, 1.0, 2.0, *[3.0] * 7]
    assert [episode["ended"] for episode in header["episodes"]] == ["terminated", "cut by the clock"]
    assert [episode["steps"] for episode in header["episodes"]] == [3, 9]


def test_an_episode_does_not_begin_where_the_reset_broke_the_physics() -> None:
    unlucky = jax.random.uniform(jax.random.split(jax.random.key(0))[0])

    def reset(key: jax.Array) -> tuple[time_limit.TimeLimitState, Step]:
        state, first = sound.reset(key)
        height = jnp.where(jax.random.uniform(key) == unlucky, jnp.nan, 0.5)
        return state._replace(inner=state.inner.at[0].set(height)), first.observing(features=height[None])

    sound = falling(3)
    header, arrays = rising(sound._replace(reset=reset), [1.0])
    assert arrays["position"][0, :, 0, 0].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert header["episodes"][0]["returns"] == {"return": 7.5}


def test_broken_physics_are_recorded_without_the_broken_state() -> None:
    header, arrays = rising(falling(3, breaks=True), [1.0])
    assert [(episode["ended"], episode["steps"]) for episode in header["episodes"]] == [("broken physics", 3)]
    assert header["episodes"][0]["returns"] == {"return": 3.0}  # the broken step has no reward
    assert arrays["position"][0, :, 0, 0].tolist() == [0.0, 1.0, 2.0]
    assert arrays["step"].tolist() == [[0, 1, 2]]


def test_many_episodes_are_recorded_in_batches_of_equal_size_and_share_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rises = [float(index) for index in range(5)]
    whole = rising(falling(20), rises)
    monkeypatch.setattr(episodes, "BATCH_SIZE", 2)  # batches of two, two and one, which is with_elites up
    batched = rising(falling(20), rises)
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(batched.arrays[name], array)
    uneven = [[0, 2, 4, 6, 8, 9]]  # evenly spaced, except for the last
    assert rising(falling(20), rises[:1], most_frames=6).arrays["step"].tolist() == uneven
    # A frame has 3 + 4 numbers of the pose and one return, at two bytes each: 4 frames of 5 episodes.
    monkeypatch.setattr(episodes, "BUDGET", 5 * 4 * 16)
    assert rising(falling(20), rises).arrays["step"].tolist() == [[0, 3, 6, 9]] * 5
    monkeypatch.setattr(episodes, "BUDGET", 0)
    assert rising(falling(20), rises).arrays["step"].tolist() == [[0, 9]] * 5


def test_a_film_gets_the_stored_frames_and_the_sums_of_the_rewards_between_them() -> None:
    drawn = []

    def film(states: Any, rewards: jax.Array, path: str) -> None:
        drawn.append((states.inner[:, 0].tolist(), rewards.tolist()))
        Path(path).write_bytes(b"GIF89a")

    environment = falling(20)._replace(picture=Picture(film=film))
    header, arrays = rising(environment, [1.0], most_frames=4)
    assert drawn == [([0.0, 3.0, 6.0, 9.0], [0.0, 6.0, 15.0, 24.0])]
    assert header["kind"] == "film"
    assert header["episodes"] == [{"steps": 9, "ended": "cut by the clock", "returns": {"return": 45.0}}]
    assert sorted(arrays) == ["film"]
    assert arrays["film"].tobytes() == b"GIF89a"
    assert arrays["film"].dtype == np.uint8


def test_environments_that_cannot_be_rendered_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^falling cannot be rendered; "):
        rising(falling(3)._replace(picture=None), [1.0])
    arm = configure(
        "map-elites",
        environment=EnvironmentConfig(env="arm", devices=1),
        batch_size=2,
        cells=MAP_ELITES_RUN.method.cells,
    )
    with pytest.raises(ValueError, match=r"^arm is a scoring function without a policy; "):
        episodes.record_episodes(save_run(arm, tmp_path / "arm", (), unchanged))


def test_an_empty_repertoire_is_rejected(map_elites_run: Path) -> None:
    origin = warm_start.restore_run(map_elites_run)
    spec = evaluator_of(origin).environment.spec
    state = origin.state
    empty = jax.tree.map(lambda leaf: jnp.full_like(leaf, -jnp.inf) if leaf.dtype == jnp.float32 else leaf, state)
    with pytest.raises(ValueError, match=r"^the repertoire of .* is empty; continue that run until it has an elite\.$"):
        episode_selection.select(origin._replace(state=empty), spec, 12)
