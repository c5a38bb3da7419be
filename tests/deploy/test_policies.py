"""Which policy of a run is meant, and that what leaves the run acts as it did there, whatever kind of agent it is."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import trees
from rookery.deploy import export
from rookery.deploy import policy as policies
from rookery.envs.wrappers.teams import identify
from rookery.experiments import warm_start
from rookery.experiments.config import EnvironmentConfig
from rookery.qd.scoring import PolicyConfig
from tests.agents.common import compiled
from tests.deploy.untrained_runs import (
    BREEDING,
    CHASING,
    DISCOVERING,
    LEARNING,
    MIND,
    ROLES,
    as_it_is,
    filled,
    kept,
    seen,
)


@pytest.fixture(scope="module")
def bred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kept(BREEDING, tmp_path_factory.mktemp("policies") / "bred", (), filled)


@pytest.fixture(scope="module")
def origin(bred: Path) -> warm_start.Origin:
    return warm_start.open_origin(bred)


@pytest.mark.parametrize(
    ("cell", "found"),
    [(None, 2), ("best", 2), ("3", 3), (0, 0), ("0.2,0.1", 3), ((0.3, -0.9), 2), ("-1,-1", 0)],
)
def test_a_cell_is_the_best_a_number_or_the_nearest_to_a_descriptor(
    origin: warm_start.Origin, cell: Any, found: int
) -> None:
    policy = policies.choose(origin, cell)
    assert (policy.cell, policy.member) == (found, None)
    assert policy.fitness == [1.0, None, 3.0, 2.0][found]
    assert policy.descriptor == pytest.approx([(-0.9, -0.9), (0.0, 0.0), (0.25, -0.5), (0.1, 0.2)][found])


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"cell": "1"}, r"^cell 1 of .*bred is empty; choose cell 0, the nearest that is not\.$"),
        ({"cell": "4"}, r"bred has 4 cells; choose one in 0\.\.3, got 4\.$"),
        ({"cell": -1}, r"bred has 4 cells; choose one in 0\.\.3, got -1\.$"),
        ({"cell": "0.5"}, r"^a descriptor of .*bred is 2 finite numbers, got '0\.5'; give as many\.$"),
        ({"cell": "nan,0"}, r"bred is 2 finite numbers, got 'nan,0'; give as many\.$"),
        ({"cell": "near"}, r"^cell must be best, a cell's index or a descriptor such as 0\.2,0\.8, got 'near'\.$"),
        ({"member": 0}, r"bred has a repertoire; choose by cell, and leave member out\.$"),
        ({"skill": 0}, r"bred has no skills to choose from; leave skill out\.$"),
    ],
)
def test_cells_that_cannot_be_chosen(origin: warm_start.Origin, chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policies.choose(origin, **chosen)


def test_a_population_has_no_cells(tmp_path: Path) -> None:
    origin = warm_start.open_origin(kept(LEARNING, tmp_path / "learned", (1.0, 2.0), as_it_is))
    with pytest.raises(
        ValueError, match=r"learned is a run of kind sac, which has no cells; leave cell out, or choose"
    ):
        policies.choose(origin, cell="best")
    with pytest.raises(ValueError, match=r"^member 2 does not exist; choose one in 0\.\.1\.$"):
        policies.choose(origin, member=2)


def test_an_elite_acts_as_it_was_bred(bred: Path, tmp_path: Path) -> None:
    exported = export.export(bred, tmp_path / "elite", cell="0.2,0.1")
    assert exported.cell == 3
    about = json.loads((exported.path / "policy.json").read_text())
    assert about["descriptor"]["value"] == pytest.approx([0.1, 0.2])
    elite = rookery.elite(rookery.repertoire(bred), 3).genotype
    bare = rookery.policy(rookery.make("point_room").spec, PolicyConfig(hidden_sizes=(4,)))
    observations = jax.random.normal(jax.random.key(2), (3, 2))
    actions = deserialised(exported.path)(observations)
    np.testing.assert_allclose(actions, jax.vmap(bare.act, (None, 0))(elite.params, observations), atol=1e-6)


def deserialised(path: Path) -> Callable[..., Any]:
    return jax.export.deserialize(bytearray((path / "policy.stablehlo").read_bytes())).call


def test_a_skill_is_built_in(tmp_path: Path) -> None:
    run = kept(DISCOVERING, tmp_path / "skilled", (0.0,), seen)
    exported = export.export(run, skill=2)
    about = json.loads((exported.path / "policy.json").read_text())
    assert about["skill"] == {"number": 2, "vector": [0.0, 0.0, 1.0]}
    assert about["inputs"] == {"observation": ["batch", 2]}
    policy = trees.take(rookery.skill_policies(run), 2)
    agent = rookery.sac(rookery.make("point_room").spec, MIND)
    observation = jnp.asarray([0.3, -0.7])
    action = deserialised(exported.path)(observation[None])[0]
    np.testing.assert_allclose(action, rookery.act(agent, policy, observation), atol=1e-6)


def test_a_team_with_memories_lives_its_episode_from_the_files_alone(tmp_path: Path) -> None:
    """It is shown neither who it is nor what its critic noted, and acts as the run's own agents do."""
    run = kept(CHASING, tmp_path / "chase", (0.0,), seen)
    exported = export.export(run)
    about = json.loads((exported.path / "policy.json").read_text())
    assert about["inputs"] == {"observation": ["batch", 2, 9], "memory": ["batch", 2, 3]}
    assert about["outputs"] == {"action": ["batch", 2], "next_memory": ["batch", 2, 3]}
    assert about["team"] == {"names": ["predator", "prey"], "observation_sizes": [9, 9], "action_sizes": [4, 4]}
    assert about["action"] == {"kind": "discrete", "type": "int32", "size": 4, "low": 0, "high": 3}
    assert len(about["observation"]["normalised"]["mean"]) == 9

    world = rookery.make("pursuit_discrete", episode_length=5)
    shown = identify(world)
    agent = rookery.shared(rookery.ppo(shown.spec, CHASING.agent), shown.spec)
    member = rookery.genotype(trees.take(warm_start.open_origin(run).state.members, 0))
    theirs, act, step = (
        compiled(partial(rookery.act, agent)),
        jax.jit(deserialised(exported.path)),
        compiled(world.step),
    )
    (state, now), noted, memory = compiled(world.reset)(jax.random.key(3)), jnp.zeros((2, 6)), jnp.zeros((1, 2, 3))
    for _ in range(4):
        whole = jnp.concatenate([jnp.eye(2), now.observation, noted], axis=-1)
        action, noted = theirs(member, whole)
        mine, memory = act(now.observation[None], memory)
        assert mine.dtype == jnp.int32
        np.testing.assert_array_equal(mine[0], action)
        np.testing.assert_allclose(memory[0], noted[:, :3], atol=1e-6)
        state, now = step(state, action, jax.random.key(4))
    assert float(jnp.abs(memory).max()) > 0.0


def test_the_best_of_each_role_are_a_team(tmp_path: Path) -> None:
    origin = warm_start.open_origin(kept(ROLES, tmp_path / "roles", (1.0, 4.0, 3.0, np.nan), as_it_is))
    policy = policies.choose(origin)
    assert (policy.member, policy.fitness) == (None, (3.0, 4.0))
    assert policies.choose(origin, member=1).fitness == (3.0, None)


def test_functions_have_no_policy(tmp_path: Path) -> None:
    sphere = dataclasses.replace(BREEDING, environment=EnvironmentConfig(env="sphere", devices=1), dimensions=2)
    run = kept(sphere, tmp_path / "sphere", (), as_it_is)
    with pytest.raises(
        ValueError, match=r"^sphere is a scoring function without a policy; choose a run in an environment \("
    ):
        export.export(run)
