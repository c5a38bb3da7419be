"""Choice of a policy of a run; exported policies of every kind of agent act as in the run."""

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
from rookery.agents.actor_critic import Memory
from rookery.deploy import policy as policies
from rookery.deploy.evaluate import evaluate
from rookery.deploy.export import export
from rookery.envs.wrappers.teams import identify
from rookery.experiments import warm_start
from rookery.qd.scoring import PolicyConfig
from rookery.types import Observation
from tests.deploy.untrained_runs import (
    AGENT,
    DIAYN_RUN,
    MAP_ELITES_RUN,
    RECURRENT_TEAM_RUN,
    ROLES_RUN,
    SAC_RUN,
    save_run,
    unchanged,
    with_elites,
    with_statistics,
)


@pytest.fixture(scope="module")
def map_elites_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(MAP_ELITES_RUN, tmp_path_factory.mktemp("policies") / "map_elites_run", (), with_elites)


@pytest.fixture(scope="module")
def origin(map_elites_run: Path) -> warm_start.RestoredRun:
    return warm_start.restore_run(map_elites_run)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [(None, 2), ("best", 2), ("3", 3), (0, 0), ("0.2,0.1", 3), ((0.3, -0.9), 2)],
)
def test_a_cell_is_chosen_by_best_index_or_descriptor(origin: warm_start.RestoredRun, cell: Any, expected: int) -> None:
    policy = policies.select(origin, cell)
    assert (policy.cell, policy.member) == (expected, None)
    assert policy.fitness == [1.0, None, 3.0, 2.0][expected]
    assert policy.descriptor == pytest.approx([(-0.9, -0.9), (0.0, 0.0), (0.25, -0.5), (0.1, 0.2)][expected])


def test_more_episodes_than_an_array_can_have_are_refused(map_elites_run):
    with pytest.raises(ValueError, match=r"^episodes must be at most 2147483647, .* got 2147483648"):
        evaluate(map_elites_run, episodes=2**31)
    with pytest.raises(MemoryError, match=r"^the start states of 2147483647 episodes need [\d.]+ GB, but .* available"):
        evaluate(map_elites_run, episodes=2**31 - 1)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"cell": "1"}, r"^cell 1 of .*map_elites_run is empty; choose cell 0, the nearest that is not\.$"),
        ({"cell": -1}, r"map_elites_run has 4 cells; choose one in 0\.\.3, got -1\.$"),
        ({"cell": "0.5"}, r"^a descriptor of .*map_elites_run is 2 finite numbers, got '0\.5'; give as many\.$"),
        ({"cell": "nan,0"}, r"map_elites_run is 2 finite numbers, got 'nan,0'; give as many\.$"),
        ({"cell": "near"}, r"^cell must be best, a cell's index or a descriptor such as 0\.2,0\.8, got 'near'\.$"),
        ({"member": 0}, r"map_elites_run has a repertoire; choose by cell, and leave member out\.$"),
        ({"skill": 0}, r"map_elites_run has no skills to choose from; leave skill out\.$"),
        ({"skill": 0.0}, r"^skill must be a whole number, got 0\.0\.$"),
    ],
)
def test_invalid_choices_are_rejected(origin: warm_start.RestoredRun, chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policies.select(origin, **chosen)


def test_a_population_has_no_cells_and_a_single_agent_is_no_team(tmp_path: Path) -> None:
    origin = warm_start.restore_run(save_run(SAC_RUN, tmp_path / "sac_run", (1.0, 2.0), unchanged))
    with pytest.raises(ValueError, match=r"sac_run has no repertoire, and so no cells; leave cell out"):
        policies.select(origin, cell="best")
    with pytest.raises(ValueError, match=r"^member must be in 0\.\.1, got 2\.$"):
        policies.select(origin, member=2)
    number: Any = np.int64(1)
    policy = policies.select(origin, member=number)
    assert json.dumps(policy.member) == "1"
    with pytest.raises(ValueError, match="has one agent in an environment; leave agent out"):
        policies.acting(policy, 0)


def test_an_exported_elite_acts_as_in_the_repertoire(map_elites_run: Path, tmp_path: Path) -> None:
    exported = export(map_elites_run, tmp_path / "elite", cell="0.2,0.1")
    assert exported.cell == 3
    about = json.loads((exported.path / "policy.json").read_text())
    assert about["descriptor"]["value"] == pytest.approx([0.1, 0.2])
    elite = rookery.qd.elite(rookery.experiments.repertoire(map_elites_run), 3).genotype
    bare = rookery.qd.policy(rookery.make("point_room").spec, PolicyConfig(hidden_sizes=(4,)))
    observations = jax.random.normal(jax.random.key(2), (3, 2))
    actions = deserialised(exported.path)(observations)
    np.testing.assert_allclose(
        actions, jax.vmap(bare.act, (None, 0))(elite.params, Observation(observations)), atol=1e-6
    )


def deserialised(path: Path) -> Callable[..., Any]:
    return jax.export.deserialize(bytearray((path / "policy.stablehlo").read_bytes())).call


def test_an_exported_policy_has_a_fixed_skill(tmp_path: Path) -> None:
    run = save_run(DIAYN_RUN, tmp_path / "diayn", (0.0,), with_statistics)
    number: Any = np.int64(2)
    exported = export(run, skill=number)
    about = json.loads((exported.path / "policy.json").read_text())
    assert about["skill"] == {"number": 2, "vector": [0.0, 0.0, 1.0]}
    assert about["inputs"] == {"observation": ["batch", 2]}
    policy = trees.take(rookery.experiments.skill_policies(run), 2)
    agent = rookery.sac(rookery.make("point_room").spec, AGENT)
    observation = jnp.asarray([0.3, -0.7])
    action = deserialised(exported.path)(observation[None])[0]
    np.testing.assert_allclose(action, rookery.act(agent, policy, observation), atol=1e-6)


def test_an_exported_recurrent_team_acts_as_in_the_run(tmp_path: Path) -> None:
    """Its inputs have neither the agent index nor the memory of the critic."""
    run = save_run(RECURRENT_TEAM_RUN, tmp_path / "chase", (0.0,), with_statistics)
    exported = export(run)
    about = json.loads((exported.path / "policy.json").read_text())
    assert about["inputs"] == {"observation": ["batch", 2, 9], "memory": ["batch", 2, 3]}
    assert about["outputs"] == {"action": ["batch", 2], "next_memory": ["batch", 2, 3]}
    assert about["team"] == {"names": ["predator", "prey"], "observation_sizes": [9, 9], "action_sizes": [4, 4]}
    assert about["action"] == {"kind": "discrete", "type": "int32", "size": 4, "low": 0, "high": 3}
    assert len(about["observation"]["normalised"]["mean"]) == 9

    environment = rookery.make("pursuit_discrete", episode_length=5)
    identified = identify(environment)
    agent = rookery.agents.shared(rookery.ppo(identified.spec, RECURRENT_TEAM_RUN.agent), identified.spec)
    member = rookery.genotype(trees.take(warm_start.restore_run(run).state.members, 0))
    reference, act, step = (
        jax.jit(partial(rookery.act, agent)),
        jax.jit(deserialised(exported.path)),
        jax.jit(environment.step),
    )
    (state, now), carry, memory = (
        jax.jit(environment.reset)(jax.random.key(3)),
        Memory(jnp.zeros((2, 3)), jnp.zeros((2, 3))),
        jnp.zeros((1, 2, 3)),
    )
    for _ in range(4):
        action, carry = reference(member, now.observation._replace(agent=jnp.eye(2), carry=carry))
        exported_action, memory = act(now.observation.features[None], memory)
        assert exported_action.dtype == jnp.int32
        np.testing.assert_array_equal(exported_action[0], action)
        np.testing.assert_allclose(memory[0], carry.policy, atol=1e-6)
        state, now = step(state, action, jax.random.key(4))
    assert float(jnp.abs(memory).max()) > 0.0


def test_the_best_agents_of_all_roles_are_a_team_in_which_each_acts_as_alone(tmp_path: Path) -> None:
    origin = warm_start.restore_run(save_run(ROLES_RUN, tmp_path / "roles", (1.0, 4.0, 3.0, np.nan), unchanged))
    policy = policies.select(origin)
    assert (policy.member, policy.fitness) == (None, (3.0, 4.0))
    assert policies.select(origin, member=1).fitness == (3.0, None)
    assert policy.spec.team is not None
    names, inputs = policy.spec.team.names, policy.inputs
    rows = {name: jax.random.normal(jax.random.key(0), shape) for name, shape in inputs.items()}
    together = policies.acting(policy)(*rows.values())
    for index, name in enumerate(names):
        alone = policies.acting(policy, name)(*(row[index] for row in rows.values()))
        for one, all_of_them in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
            np.testing.assert_allclose(one, all_of_them[index], atol=1e-6)
    assert jax.tree.leaves(policies.acting(policy, 0)(*(row[0] for row in rows.values())))
    with pytest.raises(ValueError, match=f"has no agent 'third'; choose one of {', '.join(names)}"):
        policies.acting(policy, "third")
