"""PGA-ME and DCRL-ME: gradient steps, stored transitions, the actor among the proposals, and conditions by hand."""

import math
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rookery
from rookery import buffers, networks, trees
from rookery.agents.td3 import Td3Config, networks_of
from rookery.envs import base as envs
from rookery.envs import registry
from rookery.envs.base import Environment
from rookery.learners.base import EvaluationConfig, Evaluator
from rookery.learners.evaluation import Recorded, evaluate
from rookery.populations.base import member_keys
from rookery.qd import repertoire as repertoires
from rookery.qd.base import EmitterState, Scoring
from rookery.qd.centroids import grid
from rookery.qd.map_elites import map_elites
from rookery.qd.policy_gradient import conditions, variation
from rookery.qd.policy_gradient.conditions import Conditions
from rookery.qd.policy_gradient.config import DcrlMeConfig, PgaMeConfig
from rookery.qd.policy_gradient.factories import dcrl_me, pga_me
from rookery.qd.repertoire import Repertoire
from rookery.qd.scoring import PolicyConfig, named_scoring, policy_scoring
from rookery.types import Observation, Transition
from tests import tiny

POLICY = PolicyConfig(hidden_sizes=(4,))
ONE_EPISODE = EvaluationConfig(eval_episodes=1, start_states=8)
SMALL = {
    "critic_steps": 4,
    "policy_gradient_steps": 3,
    "gradient_batch_size": 5,
    "buffer_size": 200,
    "critic_hidden_sizes": (4,),
}
ENV = registry.make("point_room", episode_length=6)
SCORING = policy_scoring(ENV, POLICY, ONE_EPISODE)
EVALUATOR = cast(Evaluator, SCORING.evaluator)
KEY = jax.random.key(0)


def generation(emitter, state: EmitterState, repertoire: Repertoire, bank, key):
    """Ask, evaluate with transitions, and tell: the asked state, the proposals, their evaluation, the state after."""
    asked, proposals, metrics = emitter.ask(state, repertoire, bank, key)
    keys = member_keys(key, emitter.batch_size)
    score = partial(evaluate, EVALUATOR, record=True)
    evaluation = jax.vmap(score, in_axes=(0, None, 0))(proposals, bank, keys)
    _, added = repertoires.add(repertoire, proposals, evaluation.fitness, evaluation.descriptor)
    return asked, proposals, evaluation, emitter.tell(asked, evaluation, added)[0], metrics


def two_generations(emitter):
    """The first state, and the results of a generation on an empty repertoire and of one on four elites."""
    bank = SCORING.start_states(jax.random.key(9))
    genotype = jax.eval_shape(SCORING.init_genotype, KEY, bank)
    descriptor = SCORING.descriptor
    empty = repertoires.empty(genotype, grid((2, 2), descriptor.lower, descriptor.upper))
    run, initial = jax.jit(partial(generation, emitter)), jax.jit(emitter.init)(jax.random.key(8), bank)
    first = run(initial, empty, bank, jax.random.key(1))
    rows = jax.tree.map(lambda leaf: leaf[:4], first[1])
    filled, _ = repertoires.add(empty, rows, jnp.arange(4.0), empty.centroids)
    return initial, first, run(first[3], filled, bank, jax.random.key(2)), filled, bank


@pytest.fixture(scope="module")
def pga():
    fast = PgaMeConfig(**SMALL, critic_lr=0.1)  # after four updates the critics differ from their targets
    emitter = pga_me(SCORING, 8, fast, POLICY)
    return emitter, two_generations(emitter)


@pytest.fixture(scope="module")
def dcrl():
    return two_generations(dcrl_me(SCORING, 8, DcrlMeConfig(**SMALL), POLICY))


class TestVariation:
    def test_gradient_steps_are_those_of_a_plain_loop(self):
        condition = jnp.asarray([0.5, -0.5])
        settings = Td3Config((4,), (6,))
        policy = networks_of(ENV.spec, settings)[0].policy
        critic = networks_of(conditions.conditioned(ENV.spec, 2), settings)[0]
        params, values = policy.init(jax.random.key(1)), critic.critic.init(jax.random.key(2))

        def act(params, observation):
            return jnp.tanh(policy.apply(params, observation))

        buffer = buffers.ring(7)
        stored = buffer.add(buffer.init(Observation(jnp.zeros(2))), Observation(jax.random.normal(KEY, (7, 2))))
        ascent = variation.Ascent(act, critic.policy_value, buffer, 5, 0.01)
        found = jax.jit(partial(variation.vary, ascent))(params, condition, KEY, values, stored, 4)

        optimiser = optax.adam(0.01)

        def loss(params, features):
            action = jnp.tanh(policy.apply(params, features))
            seen = jnp.concatenate([features, jnp.tile(condition, (len(features), 1))], axis=1)
            return -jnp.mean(critic.critic.apply(values, seen, action)[:, 0])

        @jax.jit
        def advance(expected, moments, step):
            rows = jax.random.bits(jax.random.fold_in(KEY, step), (5,)) % jnp.uint32(7)
            gradient = jax.grad(loss)(expected, stored.rows.features[rows])
            with jax.numpy_dtype_promotion("standard"):
                changes, moments = optimiser.update(gradient, moments)
            return optax.apply_updates(expected, changes), moments

        expected, moments = params, optimiser.init(params)
        for step in range(4):
            expected, moments = advance(expected, moments, step)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected)
        assert float(loss(found, stored.rows.features)) < float(loss(params, stored.rows.features))


class TestProposals:
    def test_the_first_generation_is_initial_and_trains_nothing_and_the_last_proposal_is_the_actor(self, pga):
        _, (initial, first, second, *_) = pga
        asked, proposals, _, _, metrics = first
        assert int(asked.shared.training.updates) == 0
        tiny.assert_equal(asked.shared.training.member, initial.shared.training.member)
        assert all(float(value) == 0.0 for value in metrics.values())
        assert len(np.unique(np.asarray(jax.tree.leaves(proposals.params)[-1]).reshape(8, -1), axis=0)) == 8
        for asked, proposals, *_ in (first, second):
            tiny.assert_equal(trees.take(proposals.params, -1), asked.shared.training.member.state.policy.params)
        assert int(second[0].shared.training.updates) == 4

    def test_a_policy_is_an_elite_varied_by_the_critics(self, pga):
        emitter, (*_, (asked, proposals, *_), repertoire, _) = pga
        training = asked.shared.training
        buffer = training.member.buffer
        key = jax.random.split(jax.random.split(jax.random.key(2))[1], 4)
        cells = repertoires.draw(repertoire, key[1], 4)
        parents = trees.take(repertoire.genotypes.params, cells)
        settings = PgaMeConfig(**SMALL).td3(POLICY)
        ascent = variation.Ascent(
            EVALUATOR.act, networks_of(ENV.spec, settings)[0].policy_value, buffers.ring(200), 5, 1e-3
        )
        stored = buffer._replace(rows=buffer.rows.observation)
        given = {"condition": None, "critic": training.member.state.critic.params, "stored": stored, "steps": 3}
        vary = jax.jit(partial(variation.vary, ascent, **given))
        for row in range(3):
            expected = vary(trees.take(parents, row), key=jax.random.fold_in(key[2], row))
            found = trees.take(proposals.params, 4 + row)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, expected)
        assert emitter.batch_size == 8

    def test_the_place_of_a_cut_changes_no_bit(self, pga):
        _, (_, first, _, repertoire, bank) = pga
        emitter = pga_me(SCORING, 8, PgaMeConfig(**{**SMALL, "critic_steps": 58}), POLICY)  # 29 iterations of 2 updates
        ask: Any = emitter.ask
        assert ask.iterations == 29
        state, work = jax.jit(ask.begin)(first[3], repertoire, bank, KEY)
        advance = jax.jit(ask.advance)
        whole, cut = advance(state, work, 0, 3), advance(*advance(state, work, 0, 1), 1, 3)
        tiny.assert_equal(cut[0], whole[0])
        assert int(whole[0].shared.training.updates - state.shared.training.updates) == 6
        np.testing.assert_allclose(cut[1].shared[-1]["critic_loss"], whole[1].shared[-1]["critic_loss"], rtol=1e-6)


class TestTransitions:
    def test_those_of_all_evaluations_are_stored(self, pga):
        _, (_, first, second, _, bank) = pga
        size = 0
        for _, proposals, evaluation, after, _ in (first, second):
            valid = np.asarray(evaluation.transitions.valid)
            assert valid.sum() == evaluation.lengths.sum()
            buffer = after.shared.training.member.buffer
            assert int(buffer.size) == size + valid.sum()
            for leaf, stored in zip(
                jax.tree.leaves(evaluation.transitions.transitions), jax.tree.leaves(buffer.rows), strict=True
            ):
                assert np.array_equal(np.asarray(leaf)[valid], stored[size : size + valid.sum()])
            size += valid.sum()
            observation = np.asarray(evaluation.transitions.transitions.observation.features)
            assert np.array_equal(observation[:, 0], np.tile(bank[1].observation.features[:1], (8, 1)))
            action = EVALUATOR.act(trees.take(proposals.params, 2), Observation(jnp.asarray(observation[2])))
            np.testing.assert_allclose(evaluation.transitions.transitions.action[2], action, rtol=1e-5, atol=1e-6)

    def test_a_step_that_broke_the_physics_has_the_worst_value(self, pga):
        emitter, (_, (asked, _, evaluation, *_), *_) = pga
        recorded, broke = evaluation.transitions, jnp.arange(8)[:, None] == 2
        rows = recorded.transitions._replace(reward=jnp.ones_like(recorded.transitions.reward))
        recorded = recorded._replace(transitions=rows, broken=recorded.valid & broke)
        state, _ = jax.jit(emitter.tell)(asked, evaluation._replace(transitions=recorded), None)
        member = state.shared.training.member
        valid = np.asarray(recorded.valid)
        expected = np.where(recorded.broken, -1.0 / (1.0 - member.hyper.discount), 1.0)[valid]
        np.testing.assert_allclose(member.buffer.rows.reward[: valid.sum()], expected, rtol=1e-5)

    def test_critics_that_are_not_finite_begin_anew_without_what_they_learned_from(self, pga):
        emitter, (*_, (*_, state, _), repertoire, bank) = pga
        begin, training = jax.jit(emitter.ask.begin), state.shared.training
        tiny.assert_equal(begin(state, repertoire, bank, KEY)[0], state)
        for spoiled in ("params", "moments"):  # a square that overflows freezes a parameter that is finite
            critic = training.member.state.critic
            numbers = jax.tree.map(
                lambda leaf: leaf.at[...].set(jnp.inf) if leaf.ndim else leaf, getattr(critic, spoiled)
            )
            critic = critic._replace(**{spoiled: numbers})
            member = training.member._replace(state=training.member.state._replace(critic=critic))
            shared = state.shared._replace(training=training._replace(member=member))
            begun = begin(state._replace(shared=shared), repertoire, bank, KEY)[0].shared.training.member
            assert trees.all_finite(begun.state)
            assert int(begun.buffer.size) == 0


class TestConditions:
    LIMITS = envs.descriptor_spec("x, y", "final", (0.0, -1.0), (4.0, 1.0))

    def test_scaling_and_similarity_by_hand(self):
        scaled = conditions.scaled(self.LIMITS, jnp.asarray([[1.0, 0.5], [4.0, -1.0]]))
        assert scaled.tolist() == [[-0.5, 0.5], [1.0, -1.0]]
        found = conditions.similarity(jnp.asarray([[0.3, 0.0], [0.0, 0.0]]), jnp.asarray([[0.0, 0.4], [0.0, 0.0]]), 0.1)
        np.testing.assert_allclose(found, [math.exp(-5.0), 1.0], rtol=1e-5)

    def test_rewards_are_multiplied_and_targets_are_observed(self):
        observation = Observation(jnp.arange(12.0).reshape(2, 2, 3))
        rows = Transition(
            observation, jnp.zeros((2, 2, 1)), jnp.full((2, 2), 2.0), observation, jnp.zeros((2, 2), bool)
        )
        reached = jnp.asarray([[1.0, 0.5], [4.0, -1.0]])  # scaled: (-0.5, 0.5) and (1, -1)
        targets = jnp.asarray([[-0.5, 0.4], [jnp.inf, jnp.inf]])
        found = conditions.rows(
            Conditions(self.LIMITS, 0.1, 3, 0.5),
            Recorded(rows, jnp.ones((2, 2), bool), jnp.zeros((2, 2), bool)),
            reached,
            targets,
        )
        np.testing.assert_allclose(found.reward, [[2.5 * math.exp(-1.0)] * 2, [2.5, 2.5]], rtol=1e-5)
        expected = np.asarray([[[-0.5, 0.4]] * 2, [[1.0, -1.0]] * 2], np.float32)
        assert np.array_equal(np.asarray(found.observation.skill), expected)
        assert np.array_equal(np.asarray(found.next_observation.skill), expected)
        assert jnp.array_equal(found.observation.features, observation.features)

    def test_actors_are_proposed_for_the_descriptors_of_elites(self, dcrl):
        _, first, (asked, proposals, evaluation, after, _), repertoire, _ = dcrl
        assert jnp.isinf(first[0].shared.targets).all()
        targets = asked.shared.targets
        assert jnp.isinf(targets).all(axis=1).tolist() == [True] * 4 + [False] * 4
        elites = conditions.scaled(SCORING.descriptor, repertoire.descriptors)
        distance = jnp.abs(targets[4:, None] - elites[None]).max(axis=2)  # compiled apart, they may differ in a bit
        assert float(distance.min(axis=1).max()) < 1e-6
        params = asked.shared.training.member.state.policy.params
        for row in (6, 7):
            expected = networks.freeze_inputs(params, ENV.spec.observation_size, targets[row])
            jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), trees.take(proposals.params, row), expected)
        buffer, begun = after.shared.training.member.buffer, int(first[3].shared.training.member.buffer.size)
        reached = conditions.scaled(SCORING.descriptor, evaluation.descriptor)
        wanted = jnp.where(jnp.isinf(targets), reached, targets)
        lengths = np.asarray(evaluation.lengths[:, 0])
        stored = np.asarray(buffer.rows.observation.skill)[begun : int(buffer.size)]
        np.testing.assert_allclose(stored, np.repeat(np.asarray(wanted), lengths, axis=0), atol=1e-6)


def described_probe() -> Environment:
    """`probe_action` with the action as descriptor."""
    probe = registry.make("probe_action")
    spec = probe.spec._replace(descriptor=envs.descriptor_spec("action", "final", (-1.0,), (1.0,)))

    def reset(key):
        state, step = probe.reset(key)
        return state, step._replace(descriptor=jnp.zeros((1,)))

    def step(state, action, key):
        state, stepped = probe.step(state, action, key)
        return state, stepped._replace(descriptor=jnp.clip(action, -1.0, 1.0))

    return probe._replace(reset=reset, step=step, spec=spec)


def test_the_best_action_of_a_probe_is_found():
    scoring = policy_scoring(described_probe(), PolicyConfig((8,)), ONE_EPISODE)
    rates = {"critic_lr": 1e-2, "actor_lr": 1e-2, "policy_lr": 1e-2}
    small = {**SMALL, "critic_steps": 50, "policy_gradient_steps": 10, "gradient_batch_size": 16, "buffer_size": 500}
    emitter = pga_me(scoring, 16, PgaMeConfig(**{**small, "critic_hidden_sizes": (16,), **rates}), PolicyConfig((8,)))
    program = map_elites(scoring, grid((8,), (-1.0,), (1.0,)), emitter)
    result = rookery.run(program, generations=20, quiet=True)
    last = result.history[-1]
    assert last["max_fitness"] > -1e-3
    assert last["coverage"] >= result.history[0]["coverage"] > 0
    assert last["stored"] == 20 * 16
    assert last["actor_fitness"] > -0.01, "the action 0.5, of reward 0"


class TestErrors:
    def test_tasks_that_they_cannot_learn(self):
        arm = named_scoring(rookery.envs.function("arm", 3))
        discrete = ENV._replace(spec=ENV.spec._replace(discrete=True, action_size=2))
        scoring: Scoring = SCORING._replace(evaluator=EVALUATOR._replace(environment=discrete))
        for method, name in ((pga_me, "PGA-ME"), (dcrl_me, "DCRL-ME")):
            with pytest.raises(ValueError, match=f"{name} learns from the transitions of episodes, but arm is a"):
                method(arm)
            with pytest.raises(ValueError, match=f"{name} needs continuous actions, but point_room has discrete"):
                method(scoring, 8, policy=POLICY)
        with pytest.raises(ValueError, match="learns from the transitions of episodes, but arm is a function"):
            map_elites(arm, grid((2, 2), (0.0, 0.0), (1.0, 1.0)), pga_me(SCORING, 8, PgaMeConfig(**SMALL), POLICY))
        with pytest.raises(ValueError, match=r"actor_share must lie in \(0, 0.5\), below .*, got 0.6"):
            DcrlMeConfig(actor_share=0.6)

    @pytest.mark.parametrize(
        ("batch_size", "options", "policy", "message"),
        [
            (8, {"buffer_size": 47}, POLICY, r"at least 48, the transitions of a generation \(8 policies x 1 episodes"),
            (2, {}, POLICY, "batch_size gives 1 variations, 0 gradient policies and 1 actors"),
            (8, {}, PolicyConfig((5,)), "have another network than the actor; give the same PolicyConfig"),
        ],
    )
    def test_invalid_settings(self, batch_size, options, policy, message):
        with pytest.raises(ValueError, match=message):
            pga_me(SCORING, batch_size, PgaMeConfig(**{**SMALL, **options}), policy)
