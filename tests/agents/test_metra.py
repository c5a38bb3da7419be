"""METRA and LSD: reward, loss of phi and multiplier, against values computed by hand."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import gradients, hyperparams
from rookery.agents.base import OffPolicyAgent
from rookery.agents.sac import sac
from rookery.agents.skills.metra import LsdConfig, MetraConfig, PhiParams, PhiState, conclude, direction, lsd, metra
from rookery.agents.skills.smerl import Returns
from rookery.envs.base import EnvSpec, Previous, SkillSpec, first_step
from rookery.hyperparams import LogUniform
from rookery.types import Observation, PyTree, Transition
from tests.agents.common import PLACE, SPEC, layer
from tests.learners.recording import skill_following
from tests.tiny import assert_equal

SPEC2 = SPEC._replace(descriptor=PLACE, has_previous=True)
SPHERE2 = SPEC2._replace(skill=SkillSpec("sphere", 2))
THREE = SPEC2._replace(skill=SkillSpec("one-hot", 3))
KERNEL = np.asarray([[0.5, -0.25], [1.0, 0.75]])
BEFORE = np.asarray([[0.0, 0.0], [1.0, -1.0], [0.5, 0.5], [0.25, 0.0]])
AFTER = np.asarray([[0.5, 0.5], [1.0, -0.9], [-1.5, 1.5], [0.25, 0.0]])
SKILLS = np.asarray([[1.0, 0.0], [0.0, -1.0], [0.6, 0.8], [-0.6, 0.8]])
MOVED = (AFTER - BEFORE) @ KERNEL
SLACK, DUAL = 1e-3, 30.0


def linear(kernel: Any) -> PyTree:
    """A network without hidden layers."""
    return layer(kernel, np.full(np.shape(kernel)[1], 0.5))


def batch_of(spec: EnvSpec, before: np.ndarray, after: np.ndarray, skills: np.ndarray) -> Transition:
    rows, (first, last, skill) = len(before), (jnp.asarray(values, jnp.float32) for values in (before, after, skills))
    observation = Observation(jnp.zeros((rows, spec.observation_size)), skill)
    return Transition(
        observation, jnp.zeros((rows, 2)), jnp.ones(rows), observation, jnp.zeros(rows, bool), (first, last)
    )


def updated(
    agent: OffPolicyAgent, kernel: np.ndarray, batch: Transition, vectors: PyTree = ()
) -> tuple[PhiState, dict]:
    """The result of one update; `state.agent.batch` is the batch of the wrapped agent."""
    log_dual = () if vectors else jnp.float32(math.log(DUAL))

    def update(batch: Transition) -> tuple:
        state = agent.start(PhiParams(jnp.ones(()), linear(kernel), log_dual, vectors))
        hyper = hyperparams.defaults(agent.space)
        return agent.update(state, hyper, batch, jnp.zeros(len(batch.reward)), jnp.int32(0))

    return jax.jit(update)(batch)


def metra_of(spec: EnvSpec, rows: int = 4, **options: Any) -> OffPolicyAgent:
    return metra(skill_following(spec, rows), spec, MetraConfig(phi_hidden_sizes=(), **options))


BATCH = batch_of(SPHERE2, BEFORE, AFTER, SKILLS)


@pytest.fixture(scope="module")
def after_update() -> tuple[PhiState, dict]:
    return updated(metra_of(SPHERE2), KERNEL, BATCH)


# --- the reward


def test_with_smerl_the_task_is_learned_and_distance_rewarded_for_good_skills() -> None:
    skills, kernel = np.eye(3), np.concatenate([KERNEL, [[0.25], [-1.0]]], axis=1)[:, :3]
    agent = metra_of(THREE, 3, smerl=True)
    state = agent.start(PhiParams(jnp.ones(()), linear(kernel), jnp.float32(0.0), ()))
    assert not np.asarray(state.returns.known).any()
    returns = Returns(jnp.asarray([9.5, 8.0, 9.9]), jnp.asarray([True, True, False]), jnp.float32(10.0))
    hyper = hyperparams.defaults(agent.space)._replace(diversity_scale=jnp.float32(0.5))
    batch = batch_of(THREE, BEFORE[:3], AFTER[:3], skills)
    after, metrics = jax.jit(agent.update)(state._replace(returns=returns), hyper, batch, jnp.zeros(3), jnp.int32(0))
    distance = ((AFTER[:3] - BEFORE[:3]) @ kernel * (1.5 * skills - 0.5)).sum(axis=1)
    np.testing.assert_allclose(after.agent.batch.reward, 1.0 + 0.5 * distance * [1, 0, 0], rtol=1e-5, atol=1e-6)
    assert float(metrics["diverse"]) == pytest.approx(1 / 3)
    assert type(after.returns) is Returns


def test_the_reward_is_the_distance_in_phi_along_the_skill(after_update: tuple[PhiState, dict]) -> None:
    state, metrics = after_update
    reward = (MOVED * SKILLS).sum(axis=1)
    given = state.agent.batch
    np.testing.assert_allclose(given.reward, reward, rtol=1e-5, atol=1e-6)
    assert given.reward[3] == 0.0, "a state that stays the same"
    # All else is passed on as it was; `test_agents` has that the wrapped agent gets its hyper-parameters.
    assert_equal(given._replace(reward=BATCH.reward, extras=BATCH.extras), BATCH)
    assert given.extras == ()
    assert float(metrics["phi_reward"]) == pytest.approx(reward.mean(), rel=1e-5)
    assert float(metrics["phi_length"]) == pytest.approx(np.linalg.norm(MOVED, axis=1).mean(), rel=1e-5)
    assert float(metrics["dual"]) == pytest.approx(DUAL, rel=1e-5)


def test_a_one_hot_skill_is_centred() -> None:
    found = np.asarray(direction(SkillSpec("one-hot", 3), jnp.eye(3)))
    np.testing.assert_allclose(found, [[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]])
    np.testing.assert_array_equal(direction(SkillSpec("one-hot", 2), jnp.eye(2)), [[1.0, -1.0], [-1.0, 1.0]])
    np.testing.assert_array_equal(
        direction(SkillSpec("sphere", 2), jnp.asarray([0.6, 0.8])), np.asarray([0.6, 0.8], np.float32)
    )


# --- phi and its multiplier


def first_moment(learned: gradients.Learned) -> PyTree:
    """The gradient of the first update, from Adam's moment."""
    moments: Any = learned.moments
    return jax.tree.map(lambda leaf: np.asarray(leaf) / 0.1, moments.mu)


def test_phi_ascends_the_reward_and_the_multiplied_constraint(after_update: tuple[PhiState, dict]) -> None:
    state, _ = after_update
    violated = 1.0 - np.square(MOVED).sum(axis=1) < SLACK
    assert violated.tolist() == [False, False, True, False]
    slope = SKILLS - 2.0 * DUAL * np.where(violated[:, None], MOVED, 0.0)
    expected = -(AFTER - BEFORE).T @ slope / 4
    found = first_moment(state.phi)["params"]["Dense_0"]
    np.testing.assert_allclose(found["kernel"], expected, rtol=1e-4)
    np.testing.assert_allclose(found["bias"], 0.0, atol=1e-4)
    rate = 3e-4 * np.sign(expected)  # the first step of Adam
    np.testing.assert_allclose(state.phi.params["params"]["Dense_0"]["kernel"], KERNEL - rate, rtol=1e-5)


def test_the_multiplier_follows_the_mean_constraint(after_update: tuple[PhiState, dict]) -> None:
    state, _ = after_update
    constraint = np.minimum(SLACK, 1.0 - np.square(MOVED).sum(axis=1)).mean()
    assert constraint < 0.0
    assert float(first_moment(state.log_dual)) == pytest.approx(constraint, rel=1e-4)
    assert float(state.log_dual.params) == pytest.approx(math.log(DUAL) + 3e-4, abs=1e-6), "it rises"


def test_the_multiplier_falls_where_no_step_violates_the_bound() -> None:
    state, _ = updated(metra_of(SPHERE2), 0.1 * KERNEL, BATCH)
    assert float(first_moment(state.log_dual)) == pytest.approx(SLACK, rel=1e-4)
    assert float(state.log_dual.params) == pytest.approx(math.log(DUAL) - 3e-4, abs=1e-6)


def test_lsd_rewards_distances_of_a_normalised_phi() -> None:
    agent = lsd(skill_following(SPHERE2, 4), SPHERE2, LsdConfig(phi_hidden_sizes=()))
    _, sizes, right = np.linalg.svd(KERNEL)
    vectors = (jnp.asarray(right[0], jnp.float32),)
    state, metrics = updated(agent, KERNEL, BATCH, vectors)
    np.testing.assert_allclose(state.agent.batch.reward, (MOVED * SKILLS).sum(axis=1) / sizes[0], rtol=1e-4, atol=1e-6)
    assert "dual" not in metrics
    assert state.log_dual == ()
    np.testing.assert_allclose(np.abs(state.vectors[0]), np.abs(right[0]), rtol=1e-4)


# --- evaluation


def test_an_evaluation_measures_the_distance_of_steps_of_at_most_one() -> None:
    agents = metra_of(SPHERE2), lsd(skill_following(SPHERE2, 4), SPHERE2, LsdConfig(phi_hidden_sizes=()))
    diagonal = np.diag([2.0, 1.0])
    params = [PhiParams((), linear(diagonal), dual, vectors) for dual, vectors in ((0.0, ()), ((), (jnp.eye(2)[0],)))]

    def measured(before: jax.Array, after: jax.Array, skill: jax.Array) -> list:
        step = first_step(jnp.zeros(3), after)
        observation = step.observation._replace(skill=skill)
        step = step._replace(final_observation=observation, previous=Previous(observation, before))
        found = [agent.intrinsic_reward for agent in agents]
        return [reward.measure(given, step) for reward, given in zip(found, params, strict=True) if reward is not None]

    rows = (jnp.asarray(values, jnp.float32) for values in (BEFORE, AFTER, SKILLS))
    bounded, free = jax.jit(jax.vmap(measured))(*rows)
    moved = (AFTER - BEFORE) @ diagonal
    along, length = (moved * SKILLS).sum(axis=1), np.linalg.norm(moved, axis=1)
    np.testing.assert_allclose(bounded["distance"], along / np.maximum(length, 1.0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(bounded["phi_step"], length, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(free["distance"], along / 2.0, rtol=1e-5, atol=1e-6)
    assert (bounded["distance"][3], bounded["phi_step"][3]) == (0.0, 0.0)


@pytest.mark.parametrize(("fitness", "expected"), [("distance", 4.0), ("return", 15.0)])
def test_the_fitness_is_the_configured_one(fitness: Any, expected: float) -> None:
    sums = {"distance": jnp.asarray([3.0, 5.0]), "phi_step": jnp.asarray([4.0, 2.0])}
    found, reported = conclude(
        MetraConfig(fitness=fitness), sums, jnp.asarray([10.0, 20.0]), jnp.asarray([4, 4], jnp.int32)
    )
    assert float(found) == expected
    assert {name: values.tolist() for name, values in reported.items()} == {
        "distance": [3.0, 5.0],
        "phi_step": [1.0, 0.5],
        "true_return": [10.0, 20.0],
    }


def test_the_skill_that_leads_to_a_goal() -> None:
    place = PLACE._replace(cell=0.1)
    here, goal = (Observation(jnp.zeros(3), None) for _ in range(2))
    ends = Previous(here, jnp.asarray([0.5, 0.5])), Previous(goal, jnp.asarray([0.5, -1.5]))
    found = []
    for spec in (SPHERE2, SPHERE2._replace(skill=SkillSpec("one-hot", 2))):
        agent = metra_of(spec._replace(descriptor=place))
        assert agent.intrinsic_reward is not None
        assert agent.intrinsic_reward.towards is not None
        params = PhiParams((), linear(KERNEL), 0.0, ())
        found.append(np.asarray(jax.jit(agent.intrinsic_reward.towards)(params, *ends)))
    np.testing.assert_allclose(found[0], -KERNEL[1] / np.linalg.norm(KERNEL[1]), rtol=1e-5)
    np.testing.assert_array_equal(found[1], [0.0, 1.0])  # phi moves by (-2, -1.5)


@pytest.mark.parametrize(
    ("descriptor", "full_state", "expected"),
    [
        (PLACE, False, False),
        (PLACE._replace(cell=0.1), False, True),
        (PLACE._replace(cell=0.1), True, False),
        (PLACE._replace(cell=0.1, observed=True), True, True),
        (None, True, False),
    ],
)
def test_skills_lead_to_goals_where_phi_reads_the_position(descriptor: Any, full_state: bool, expected: bool) -> None:
    spec = SPHERE2._replace(descriptor=descriptor)
    agent = metra(skill_following(spec, 4), spec, MetraConfig(full_state))
    assert agent.intrinsic_reward is not None
    assert (agent.intrinsic_reward.towards is not None) == expected


# --- construction


def test_the_spaces_extend_that_of_the_wrapped_agent() -> None:
    inner = sac(SPHERE2)
    found, other = metra(inner, SPHERE2).space, lsd(inner, SPHERE2).space
    assert other.defaults._asdict() == {**inner.space.defaults._asdict(), "phi_lr": 3e-4}
    assert found.defaults._asdict() == {**other.defaults._asdict(), "dual_lr": 3e-4, "slack": 1e-3}
    rates = {"phi_lr": LogUniform(3e-5, 3e-3), "dual_lr": LogUniform(3e-5, 3e-3)}
    assert dict(found.domains) == {**inner.space.domains, **rates}
    for name, value in (("slack", 2.0), ("dual_lr", 2.0), ("slack", 0.0)):
        with pytest.raises(ValueError, match=f"^{name} must lie in .*, got {value:g}"):
            hyperparams.choose(found, **{name: value})


def test_an_environment_without_the_state_before_a_step_is_an_error() -> None:
    spec = SPHERE2._replace(has_previous=False)  # what DIAYN does not read either is tested for DIAYN
    with pytest.raises(ValueError, match=r"^METRA reads the state before each step; give .*with_previous=True"):
        metra(skill_following(spec, 4), spec)
