"""DIAYN: its reward, its discriminator's loss and the wrapped agent's data, against values computed by hand."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import gradients, hyperparams, networks
from rookery.agents.ppo import ppo
from rookery.agents.sac import SacConfig, sac
from rookery.agents.skills.diayn import DISCOUNT, DiaynConfig, DiaynParams, DiaynState, diayn, freeze_skill, guess
from rookery.envs.base import EnvSpec, SkillSpec, first_step
from rookery.envs.wrappers.skills import enumerate_skills
from rookery.hyperparams import LogUniform
from rookery.types import Observation, PyTree, Transition
from tests.agents.common import BATCH, PLACE, SKILLED, SPEC, SPHERE, drawn_transitions, layer
from tests.learners.recording import SPY, skill_following
from tests.tiny import assert_equal

LINEAR = DiaynConfig(discriminator_hidden_sizes=())
WIDE = (16,)
TWO = SPEC._replace(descriptor=PLACE, skill=SkillSpec("one-hot", 2))


def diayn_update(
    spec: EnvSpec, params: PyTree, batch: Transition, config: DiaynConfig = LINEAR
) -> tuple[DiaynState, dict]:
    """The result of one update with this discriminator; `state.agent.batch` is the batch of the wrapped agent."""
    rows = len(batch.reward)
    agent = diayn(skill_following(spec, rows), spec, config)

    def update(params: PyTree, batch: Transition) -> tuple:
        state = agent.start(DiaynParams(jnp.ones(()), params))
        return agent.update(state, hyperparams.defaults(agent.space), batch, jnp.zeros(rows), jnp.int32(0))

    return jax.jit(update)(params, batch)


def with_skills(batch: Transition, chosen: Any) -> Transition:
    """The same rows with these skills."""
    skill = np.asarray(chosen, np.float32)
    observations = (batch.observation._replace(skill=skill), batch.next_observation._replace(skill=skill))
    return batch._replace(observation=observations[0], next_observation=observations[1])


def two_skills(extras: list[list[float]], chosen: list[int]) -> Transition:
    """Four rows whose descriptors and skills are given; the rest is random."""
    batch = jax.tree.map(np.array, drawn_transitions(jax.random.key(3), TWO, 4))
    return with_skills(batch, np.eye(2)[chosen])._replace(extras=np.asarray(extras, np.float32))


# --- the reward


def test_the_reward_is_the_log_ratio_of_posterior_and_prior() -> None:
    # Logits (x, y + 1): of (2, 0) log q = -log(1 + e^-1) and -log(1 + e); of (0, 3) -log(1 + e^4) and -log(1 + e^-4).
    batch = two_skills([[2.0, 0.0], [2.0, 0.0], [0.0, 3.0], [0.0, 3.0]], [0, 1, 0, 1])
    state, metrics = diayn_update(TWO, layer(np.eye(2), [0.0, 1.0]), batch)
    log_q = -np.log1p(np.exp([-1.0, 1.0, 4.0, -4.0]))
    given = state.agent.batch
    np.testing.assert_allclose(given.reward, log_q + math.log(2), rtol=1e-5)
    assert float(metrics["diversity_reward"]) == pytest.approx(np.mean(log_q) + math.log(2), rel=1e-5)
    assert float(metrics["discriminator_loss"]) == pytest.approx(-np.mean(log_q), rel=1e-5)
    assert float(metrics["discriminator_accuracy"]) == 0.5
    assert_equal(given._replace(reward=batch.reward), batch._replace(extras=()))  # all other fields are unchanged


def test_without_the_prior_only_the_reward_changes() -> None:
    batch = two_skills([[2.0, 0.0], [0.0, 3.0], [0.0, 0.0], [0.0, 0.0]], [1, 1, 0, 1])
    config = DiaynConfig(discriminator_hidden_sizes=(), add_log_p_z=False)
    state, metrics = diayn_update(TWO, layer(np.eye(2), [0.0, 1.0]), batch, config)
    log_q = -np.log1p(np.exp([1.0, -4.0, 1.0, -1.0]))
    np.testing.assert_allclose(state.agent.batch.reward, log_q, rtol=1e-5)
    assert float(metrics["diversity_reward"]) == pytest.approx(np.mean(log_q) + math.log(2), rel=1e-5)


def test_the_reward_on_a_sphere() -> None:
    # For every input it predicts the x axis with concentration 2: density ratio 2 cosine - log(sinh 2 / 2).
    batch = jax.tree.map(np.array, drawn_transitions(jax.random.key(0), SPHERE, 4))
    batch = with_skills(batch, [[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.6, 0.8], [0.6, 0.0, -0.8]])
    config = DiaynConfig(descriptor_full_state=True, discriminator_hidden_sizes=(), add_log_p_z=False)
    state, metrics = diayn_update(SPHERE, layer(np.zeros((3, 3)), [2.0, 0.0, 0.0]), batch, config)
    cosine = np.asarray([1.0, -1.0, 0.0, 0.6])
    ratio = 2 * cosine - math.log(math.sinh(2.0) / 2.0)
    np.testing.assert_allclose(state.agent.batch.reward, ratio - math.log(4 * math.pi), rtol=1e-4)
    assert float(metrics["discriminator_accuracy"]) == pytest.approx(np.mean((1 + cosine) / 2), rel=1e-5)
    assert float(metrics["discriminator_loss"]) == pytest.approx(math.log(4 * math.pi) - np.mean(ratio), rel=1e-4)


@pytest.mark.parametrize(("kind", "chance"), [("one-hot", 0.2), ("sphere", 0.5)])
def test_an_initial_discriminator_gives_a_reward_of_zero(kind: str, chance: float) -> None:
    def found(key: jax.Array, size: int) -> tuple:
        spec = SPEC._replace(observation_size=size, skill=SkillSpec(kind, 5))
        agent = diayn(skill_following(spec, BATCH), spec, DiaynConfig(descriptor_full_state=True))
        assert agent.intrinsic_reward is not None
        rows, every = jnp.arange(500), jnp.asarray(enumerate_skills(SkillSpec(kind, 5)))
        scale = jnp.where(rows % 2 == 0, 30.0, 1.0)[:, None]
        step = first_step(scale * jax.random.normal(key, (500, size)), jnp.zeros((500, 0)))
        reached = step.final_observation._replace(skill=every[rows % len(every)])
        step = step._replace(final_observation=reached)
        measured = agent.intrinsic_reward.measure(agent.init(key), step)
        return jnp.abs(measured["diversity_return"]).max(), jnp.mean(measured["accuracy"])

    for reward, accuracy in jax.jit(lambda key: [found(key, size) for size in (2, 30)])(jax.random.key(0)):
        assert float(reward) < 1e-3
        assert float(accuracy) == pytest.approx(chance, abs=0.1)


# --- the discriminator's loss


def rows_that_show_the_skill(carrier: jax.Array, spec: EnvSpec, key: jax.Array) -> Transition:
    """Rows in which only state, successor or descriptor shows the skill: about 1 for skill 0, -1 for skill 1."""
    rows = 64
    skill = jnp.eye(2)[jnp.arange(rows) % 2]
    sign = skill[:, :1] - skill[:, 1:] + 0.1 * jax.random.normal(key, (rows, 1))
    state, successor, descriptor = (
        jnp.broadcast_to(sign * carrier[i], (rows, size)) for i, size in enumerate((3, 3, 2))
    )
    return Transition(
        observation=Observation(state, skill),
        action=jnp.zeros((rows, 2)),
        reward=jnp.zeros(rows),
        next_observation=Observation(successor, skill),
        terminated=jnp.zeros(rows, bool),
        extras=descriptor if spec.descriptor else (),
    )


@pytest.mark.parametrize("full_state", [False, True])
def test_the_discriminator_learns_from_the_true_successor_alone(full_state: bool) -> None:
    spec = TWO._replace(descriptor=None) if full_state else TWO
    config = DiaynConfig(full_state, discriminator_hidden_sizes=(8,))
    agent = diayn(skill_following(spec, 64), spec, config)
    hyper = hyperparams.defaults(agent.space)._replace(discriminator_lr=jnp.float32(0.02))

    def train(carrier: jax.Array) -> dict:
        def learn(state: DiaynState, key: jax.Array) -> tuple:
            return agent.update(state, hyper, rows_that_show_the_skill(carrier, spec, key), jnp.zeros(64), jnp.int32(0))

        state = agent.start(agent.init(jax.random.key(0)))
        return jax.lax.scan(learn, state, jax.random.split(jax.random.key(1), 40))[1]

    measured = jax.jit(jax.vmap(train))(jnp.eye(3))
    learned = np.arange(3) == (1 if full_state else 2)
    assert np.asarray(measured["discriminator_accuracy"][:, -1]).tolist() == np.where(learned, 1.0, 0.5).tolist()
    loss, reward = np.asarray(measured["discriminator_loss"]), np.asarray(measured["diversity_reward"])
    np.testing.assert_allclose(loss[:, 0], math.log(2), atol=1e-3)
    assert (loss[learned, -1] < 0.1).all()
    assert (loss[~learned, -1] > 0.69).all()
    np.testing.assert_allclose(reward, math.log(2) - loss, atol=1e-5)


# --- the wrapped agent


def test_the_wrapped_agent_learns_from_the_replaced_reward_and_nothing_else() -> None:
    inner, seen = sac(SKILLED, SacConfig(hidden_sizes=(4,))), networks.mlp((2,), (4,), 4)
    agent = diayn(inner, SKILLED, DiaynConfig(discriminator_hidden_sizes=(4,)))
    batch, noise = drawn_transitions(jax.random.key(1), SKILLED), agent.noise(jax.random.key(2), BATCH)
    skill = batch.observation.skill
    assert skill is not None

    def both(key: jax.Array) -> tuple:
        known = seen.init(key)  # a discriminator whose predictions differ
        state = agent.start(agent.init(key))._replace(discriminator=gradients.start(known))
        logits = seen.apply(known, batch.extras)
        reward = guess(SkillSpec("one-hot", 4), logits, skill).log_ratio
        hyper, plain = (hyperparams.defaults(space) for space in (agent.space, inner.space))
        found = agent.update(state, hyper, batch, noise, jnp.int32(0))
        plain = plain._replace(discount=jnp.float32(DISCOUNT))
        given = batch._replace(reward=reward, extras=())
        return logits, reward, found, inner.update(state.agent, plain, given, noise, jnp.int32(0))

    logits, reward, (after, metrics), (expected, learned) = jax.jit(both)(jax.random.key(0))
    logits = np.asarray(logits, np.float64)
    log_q = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    by_hand = log_q[np.arange(BATCH), skill.argmax(axis=1)] + math.log(4)
    np.testing.assert_allclose(reward, by_hand, rtol=1e-4, atol=1e-5)
    assert_equal(after.agent, expected)
    assert {name: float(metrics[name]) for name in learned} == {name: float(value) for name, value in learned.items()}


def twin_value(params: Any, spec: EnvSpec, observation: Observation, action: jax.Array) -> jax.Array:
    sizes = spec.input_size, spec.action_size
    return networks.twin(networks.mlp(sizes, WIDE, 1)).apply(params.critic, observation, action)


def test_freezing_one_skill_keeps_actions_and_values() -> None:
    agent, bare = diayn(sac(SKILLED, hidden_sizes=WIDE), SKILLED), sac(SPEC, hidden_sizes=WIDE)
    seen, action, skills = np.asarray([0.5, -1.5, 1.0]), np.asarray([0.3, -0.8]), np.eye(4)

    def both(key: jax.Array, seen: jax.Array, action: jax.Array, skill: jax.Array) -> tuple:
        params = jax.tree.map(lambda leaf: leaf + 0.1, agent.init(key))  # initial biases are zero
        frozen, shown = freeze_skill(params, SKILLED, skill), Observation(seen, skill)
        bare_observation = Observation(seen)
        acted = bare.act(frozen, bare_observation), agent.act(params, shown)
        valued = twin_value(frozen, SPEC, bare_observation, action), twin_value(params.agent, SKILLED, shown, action)
        return *acted, *valued, params.agent.log_alpha, frozen.log_alpha

    each = jax.jit(jax.vmap(both, in_axes=(None, None, None, 0)))
    given = (np.float32(values) for values in (seen, action, skills))
    frozen_act, act, frozen_value, value, alpha, frozen_alpha = each(jax.random.key(0), *given)
    np.testing.assert_allclose(frozen_act, act, atol=1e-5)
    np.testing.assert_allclose(frozen_value, value, atol=1e-5)
    assert len(np.unique(np.asarray(value)[:, 0].round(4))) == 4  # the skill has an effect
    assert_equal(frozen_alpha, alpha)


# --- construction


def test_the_space_is_the_wrapped_agents_and_the_discriminators() -> None:
    inner = sac(SKILLED)
    agent, smerl = diayn(inner, SKILLED), diayn(inner, SKILLED, DiaynConfig(smerl=True))
    assert agent.space.defaults._asdict() == {
        **inner.space.defaults._asdict(),
        "discount": 0.97,
        "discriminator_lr": 3e-4,
    }
    assert dict(agent.space.domains) == {**inner.space.domains, "discriminator_lr": LogUniform(3e-5, 3e-3)}
    assert smerl.space.defaults._asdict() == {**agent.space.defaults._asdict(), "diversity_scale": 1.0}
    assert set(smerl.space.fields) == set(smerl.space.defaults._fields)


def test_a_target_without_smerl_and_an_environment_or_an_agent_that_it_cannot_use_are_errors() -> None:
    with pytest.raises(ValueError, match="smerl_target has no effect without smerl; turn it on"):
        DiaynConfig(smerl_target=0.0)
    with pytest.raises(ValueError, match=r"^DIAYN needs an environment with skills; wrap it: skills\(test,"):
        diayn(SPY, SPEC)
    with pytest.raises(ValueError, match=r"^descriptor_full_state is needed, since test has no descriptor"):
        diayn(SPY, SPHERE)
    agent: Any = ppo(SPEC)
    with pytest.raises(ValueError, match=r"^DIAYN needs an agent that learns from stored transitions, such as rookery"):
        diayn(agent, SKILLED)
