"""Goals: a policy that moves along its skill reaches them, through a phi that is the position itself."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import hyperparams
from rookery.agents.base import OffPolicyAgent
from rookery.agents.skills.diayn import DiaynConfig, diayn
from rookery.agents.skills.metra import MetraConfig, metra
from rookery.envs import base as envs
from rookery.envs import registry
from rookery.envs.base import Environment, descriptor_spec
from rookery.envs.descriptors import visited_cells
from rookery.envs.wrappers.frame_stack import stack_frames
from rookery.envs.wrappers.skills import skills
from rookery.learners.base import EvaluationConfig, Evaluator, genotype
from rookery.learners.evaluation import evaluator
from rookery.learners.goals import GoalEpisodes, check_goals, reach_goals
from rookery.learners.off_policy import off_policy
from rookery.types import Genotype
from tests.learners.recording import TINY, changed, counting, skill_following

COUNT, ROOM = 6, skills(registry.make("point_room", episode_length=25), 2, "sphere", with_previous=True)
KERNEL = {"params": {"Dense_0": {"kernel": jnp.eye(2), "bias": jnp.zeros(2)}}}


def metra_of(environment: Environment, full_state: bool = False) -> OffPolicyAgent:
    config = MetraConfig(full_state, phi_hidden_sizes=())
    return metra(skill_following(environment.spec, TINY.batch_size), environment.spec, config)


def evaluator_of(agent: OffPolicyAgent, environment: Environment) -> Evaluator:
    return evaluator(agent.act, environment, EvaluationConfig(), agent.intrinsic_reward)


@cache
def reaching(normalize: bool) -> Any:
    """A function from a key, the sign of phi, which reads the position, or the whole observation normalised, and the
    place at which the physics breaks."""
    agent = metra_of(ROOM, full_state=normalize)
    learner = off_policy(agent, ROOM, changed(TINY, normalize_observations=normalize))
    assert learner.evaluator is not None

    def reach(key: jax.Array, sign: jax.Array, edge: jax.Array) -> GoalEpisodes:
        assert learner.evaluator is not None
        environment = learner.evaluator.environment

        def step(state: Any, action: jax.Array, key: jax.Array) -> tuple[Any, Any]:
            state, taken = environment.step(state, action, key)
            broken = taken.descriptor[0] > edge
            return state, taken._replace(broken=broken, terminated=taken.terminated | broken)

        bank = learner.start_states(key)
        policy: Genotype = genotype(learner.init(key, hyperparams.defaults(agent.space), bank))
        phi = jax.tree.map(lambda leaf: sign * leaf, KERNEL)
        policy = policy._replace(params=policy.params._replace(phi=phi))
        if normalize:  # statistics that move and stretch the first dimension
            statistics = policy.normalizer._replace(mean=jnp.asarray([5.0, 0.0]), squares=jnp.asarray([8.0, 2.0]))
            policy = policy._replace(normalizer=statistics._replace(count=jnp.full_like(statistics.count, 2.0)))
        breaking = learner.evaluator._replace(environment=environment._replace(step=step))
        return reach_goals(breaking, policy, bank, key, COUNT)

    return jax.jit(reach)


def episodes(sign: float, normalize: bool = False, edge: float = 9.0) -> GoalEpisodes:
    return jax.device_get(reaching(normalize)(jax.random.key(3), jnp.float32(sign), jnp.float32(edge)))


def test_the_direction_in_phi_leads_to_the_goal() -> None:
    found = episodes(1.0)
    assert (np.abs(found.goals) <= 1.0).all()
    assert len(np.unique(found.goals)) == 2 * COUNT
    assert (np.abs(found.at_start - np.linalg.norm(found.goals, axis=1)) < 0.1).all(), "starts are near the centre"
    assert (found.left <= 0.1).all(), "a step has a length of 0.1"
    assert found.at_start.max() > 0.5
    opposite = episodes(-1.0)
    assert (opposite.left > opposite.at_start).all()


def test_the_distance_left_is_unknown_where_the_physics_broke() -> None:
    found = episodes(1.0, edge=0.3)
    beyond = found.goals[:, 0] > 0.3
    assert np.isnan(found.left).tolist() == beyond.tolist()
    assert 0 < beyond.sum() < COUNT


def test_goals_are_normalised_as_observations_are() -> None:
    found = episodes(1.0, normalize=True)
    assert (found.left < 0.5).all()
    assert found.left.mean() < 0.3 * found.at_start.mean()


def test_tasks_and_agents_without_goals_are_errors() -> None:
    counted = skills(counting(), 2, with_previous=True)
    with pytest.raises(ValueError, match=r"^counting has no goals, since it has no descriptor that is a position; ch"):
        check_goals(evaluator_of(metra_of(counted), counted))
    plain = diayn(skill_following(ROOM.spec, 4), ROOM.spec, DiaynConfig(discriminator_hidden_sizes=()))
    message = r"^the policies of this run on point_room cannot be given goals, which needs skills of METRA or LSD"
    with pytest.raises(ValueError, match=message):
        check_goals(evaluator_of(plain, ROOM))
    stacked = skills(envs_stacked(), 2, with_previous=True)
    with pytest.raises(ValueError, match=message):
        check_goals(evaluator_of(metra_of(stacked, full_state=True), stacked))
    assert check_goals(evaluator_of(metra_of(stacked), stacked)).cell == 0.1


def envs_stacked() -> Environment:
    """The room, whose observations start with those of an earlier step."""
    return stack_frames(registry.make("point_room"), 2)


def test_cells_are_counted_once_each() -> None:
    positions = np.asarray([[0.1, 0.1], [0.9, 0.4], [1.0, 0.0], [-0.1, 0.0], [-0.9, 0.5], [0.0, 0.0]])
    assert visited_cells(positions, 1.0) == 3
    assert visited_cells(positions, 0.5) == 5
    assert visited_cells(positions[:, :1], 1.0) == 3
    assert visited_cells(positions[:0], 1.0) == 0


@pytest.mark.parametrize(("kind", "cell"), [("mean", 1.0), ("final", 0.0)])
def test_a_cell_makes_a_descriptor_a_position(kind: envs.descriptors.Kind, cell: float) -> None:
    with pytest.raises(ValueError, match=r"^descriptor 'place' with a cell is a position, so the cell must be above 0"):
        descriptor_spec("place", kind, (0.0,), (1.0,), cell=cell)
    assert descriptor_spec("place", "final", (0.0,), (1.0,), cell=0.5).cell == 0.5
