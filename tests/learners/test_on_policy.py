"""Training of an on-policy agent that records its inputs, in an environment whose every step is known."""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery.agents import multi_agent
from rookery.agents.base import OnPolicyAgent
from rookery.agents.ppo import PpoConfig, ppo
from rookery.agents.sac import sac
from rookery.envs.base import Environment, Step
from rookery.envs.wrappers import auto_reset
from rookery.learners import rollout
from rookery.learners.base import Learner, Member, genotype
from rookery.learners.on_policy import OnPolicyConfig, collect, on_policy, start_actors
from rookery.types import Evaluation, Observation, PyTree, Transition
from tests.learners.fixed_agents import CONFIG, ENVS, LOG_PROB, STEPS, SpyHyper, spy, started
from tests.learners.recording import SPY_SPEC, counting
from tests.learners.rollouts import ELSEWHERE, ERRAND, PAY, errand
from tests.tiny import assert_equal

# --- one rollout


def test_a_rollout_equals_steps_with_automatic_reset_and_one_key_each() -> None:
    env, num_envs, length = rookery.make("point_room", episode_length=2), 3, 7
    keys = jax.random.split(jax.random.key(1), length)
    bank = jax.jit(lambda key: auto_reset.start_bank(env, key, 5))(jax.random.key(0))
    start = jax.jit(lambda key: start_actors(rollout.start_environments(env, bank, key, num_envs), env.spec))
    begun = start(jax.random.key(2))
    actors, rows, _ = jax.jit(lambda keys: collect(_wander, env, bank, 0.5, begun, keys))(keys)

    def step(env_batch: rollout.EnvBatchState, key: jax.Array) -> tuple[rollout.EnvBatchState, Transition]:
        explore_key, env_key = jax.random.split(key)
        action, _ = _wander(env_batch.observation, jax.random.split(explore_key, num_envs))
        return rollout.advance(auto_reset.auto_reset(env, bank), env_batch, action, env_key)[:2]

    env_batch, expected = jax.jit(lambda keys: jax.lax.scan(step, begun.env_batch, keys))(keys)
    assert_equal(rows._replace(extras=()), expected)
    assert_equal(actors.env_batch, env_batch)
    assert np.asarray(rows.extras.ended).sum(axis=0).tolist() == [3, 3, 3]
    firsts = np.asarray(rows.observation.features)[2::2].reshape(-1, env.spec.observation_size)
    assert len(np.unique(firsts, axis=0)) > 1  # several start states


def _wander(observation: Observation, keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    action = 0.1 * jax.vmap(lambda key: jax.random.normal(key, (2,)))(keys) + 0.0 * observation.features[:, :2]
    return action, action[:, 0]


def test_the_first_episodes_end_at_different_steps_of_the_time_limit() -> None:
    env, num_envs, length = rookery.make("point_room", episode_length=8), 4, 16
    config = OnPolicyConfig(num_envs=num_envs, rollout_length=length, eval_episodes=1, start_states=2)
    rows = jax.jit(lambda *given: collect(_wander, env, given[1], 0.5, *given[::2])[1])
    ends = {}
    for stagger in (True, False):
        learner = on_policy(spy(env.spec), env, dataclasses.replace(config, stagger_episodes=stagger))
        member, bank = started(learner)
        ended = rows(member.env_state, bank, jax.random.split(jax.random.key(2), length)).extras.ended
        ends[stagger] = [np.flatnonzero(column).tolist() for column in np.asarray(ended).T]
    assert ends[False] == [[7, 15]] * num_envs
    assert ends[True] == [[7, 15], [5, 13], [3, 11], [1, 9]]  # as if 0, 2, 4 and 6 steps had passed


# --- the training of a team


class Trained(NamedTuple):
    learner: Learner
    evaluate: Callable[..., Evaluation]
    bank: PyTree
    initial: Member
    members: list[Member]  # after each generation
    metrics: list[dict]

    def recorded(self, generation: int) -> Transition:
        """What the agents were given, `[I, T, E, ...]`."""
        return jax.tree.map(np.asarray, self.members[generation].state.batch)


@cache
def trained() -> Trained:
    """Three generations of one rollout each, in episodes of four steps."""
    learner = on_policy(multi_agent.independent(spy(ERRAND, 1.0), ERRAND), errand(), CONFIG)
    bank = jax.jit(learner.start_states)(jax.random.key(0))
    initial = jax.jit(learner.init)(jax.random.key(1), jax.tree.map(jnp.float32, SpyHyper()), bank)
    initial = initial._replace(state=initial.state._replace(params=jnp.asarray([1.0, -0.5])))
    step, members, metrics, member = jax.jit(learner.step), [], [], initial
    for generation in range(3):
        member, reported = step(member, bank, jax.random.key(10 + generation), jnp.int32(generation))
        members.append(member)
        metrics.append(reported)
    return Trained(learner, jax.jit(learner.evaluate), bank, initial, members, metrics)


TIMES = [[0, 1, 2], [3, 0, 1], [2, 3, 0]]  # what each rollout begins its steps at, by generation


def test_environments_go_on_where_they_were() -> None:
    # The first rollout is not normalised; later ones are normalised by earlier statistics, which keeps the order.
    first = trained().recorded(0)
    for env in range(ENVS):
        assert first.observation.features[1, :, env, 0].tolist() == TIMES[0]
        assert first.next_observation.features[1, :, env, 0].tolist() == [1, 2, 3]
    for generation in (1, 2):
        observed = trained().recorded(generation).observation.features[1, :, 0, 0]
        np.testing.assert_allclose(observed, deviations(generation, TIMES[generation]), rtol=1e-5, atol=1e-6)
    # The step from time 3 ends in time 4, not in the next episode's 0.
    after = trained().recorded(1).next_observation.features[1, :, 0, 0]
    np.testing.assert_allclose(after, deviations(1, [4, 1, 2]), rtol=1e-5, atol=1e-6)


def deviations(generation: int, times: list[int]) -> np.ndarray:
    """The sitter's normalised times, given the statistics before a generation."""
    count, mean, squares = (np.asarray(leaf)[1] for leaf in trained().members[generation - 1].normalizer)
    return (np.asarray(times) - mean[0]) / np.sqrt(squares[0] / count)


def test_an_agents_steps_count_until_its_own_end_and_again_in_the_next_episode() -> None:
    counts = np.concatenate([trained().recorded(i).extras.counts for i in range(3)], axis=1)
    ended = np.concatenate([trained().recorded(i).extras.ended for i in range(3)], axis=1)
    terminated = np.concatenate([trained().recorded(i).terminated for i in range(3)], axis=1)
    for env in range(ENVS):
        assert counts[0, :, env].tolist() == [True, True, False, False, True, True, False, False, True]
        assert ended[0, :, env].tolist() == [False, True, True, True, False, True, True, True, False]
        assert terminated[0, :, env].tolist() == ended[0, :, env].tolist()
        assert counts[1].all()
        assert ended[1, :, env].tolist() == [False, False, False, True, False, False, False, True, False]
        assert not terminated[1].any()


def test_the_environment_gets_clipped_actions_and_the_agent_the_drawn_ones() -> None:
    # The walker draws 3, the sitter -1.5; the environment gets 1 and -1, and observes them beside the time.
    first = trained().recorded(0)
    np.testing.assert_array_equal(first.action[0], 3.0)
    np.testing.assert_array_equal(first.action[1], -1.5)
    np.testing.assert_array_equal(first.extras.log_prob, LOG_PROB)
    np.testing.assert_array_equal(first.next_observation.features[0, :2, :, 1], 1.0)
    np.testing.assert_array_equal(first.next_observation.features[1, :, :, 1], -1.0)
    assert first.reward[0, :, 0].tolist() == [1.0, 1.0, 0.0]
    assert first.reward[1, :, 0].tolist() == [-10.0] * 3


def test_returns_accumulate_within_an_episode_across_rollouts() -> None:
    accumulated = np.concatenate([trained().recorded(i).extras.accumulated for i in range(3)], axis=1)
    sitter = [-10.0, -15.0, -17.5, -18.75]
    for env in range(ENVS):
        np.testing.assert_allclose(accumulated[1, :, env], [*sitter, *sitter, -10.0], rtol=1e-6)
        np.testing.assert_allclose(accumulated[0, :, env], [1, 1.5, 0, 0, 1, 1.5, 0, 0, 1], rtol=1e-6)


def test_observations_are_normalised_by_each_agents_own_steps_that_counted() -> None:
    first, (after, *_) = trained().recorded(0), trained().members
    assert (first.observation.features[0, 2, :, 0] != ELSEWHERE).all()
    for agent, rows in ((0, 2), (1, 3)):
        observed = first.observation.features[agent, :rows].reshape(-1, 3)
        assert float(after.normalizer.count[agent]) == rows * ENVS
        np.testing.assert_allclose(after.normalizer.mean[agent], observed.mean(axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            after.normalizer.squares[agent] / len(observed), observed.var(axis=0), rtol=1e-5, atol=1e-6
        )
    assert trained().initial.normalizer.mean.shape == (2, 3)
    assert float(jnp.sum(trained().initial.normalizer.count)) == 0.0
    # In the second rollout the walker observes 50 in its steps that do not count; these are not learned from either.
    assert trained().members[2].normalizer.count.tolist() == [5.0 * ENVS, 9.0 * ENVS]
    assert (np.asarray(trained().members[2].normalizer.mean)[0] < 2.0).all()
    # Action masks are not normalised.
    mask = trained().recorded(1).observation.action_mask
    assert mask is not None
    np.testing.assert_array_equal(mask[1], np.broadcast_to([True, False], (3, 2, 2)))


def test_updates_are_counted_through_all_generations_and_metrics_belong_to_agents() -> None:
    for generation, metrics in enumerate(trained().metrics):
        assert trained().members[generation].state.step.tolist() == [generation] * 2
        assert float(metrics["index/walker"]) == float(metrics["index/sitter"]) == generation
        assert float(metrics["broken_steps"]) == 0.0
    # Of the first rollout's steps that count: two of the walker's, three of the sitter's.
    assert float(trained().metrics[0]["reward"]) == pytest.approx((2 * 1.0 - 3 * 10.0) / 5)


def test_a_restart_and_a_loaded_genotype_change_their_parts_only() -> None:
    whole = trained()
    member = whole.members[2]
    restart = jax.jit(whole.learner.restart)
    fresh = restart(member, whole.bank, jax.random.key(0), jnp.asarray(True))
    assert_equal(fresh._replace(env_state=()), member._replace(env_state=()))
    assert fresh.env_state.env_batch.observation.features[:, 1, 0].tolist() == [0.0, 0.0]
    assert fresh.env_state.counts.all()
    assert not np.asarray(fresh.env_state.accumulated).any()
    assert_equal(restart(member, whole.bank, jax.random.key(0), jnp.asarray(False)), member)
    loaded = whole.learner.load_genotype(whole.initial, genotype(member))
    assert_equal(genotype(loaded), genotype(member))
    assert_equal(loaded.env_state, whole.initial.env_state)
    assert loaded.state.step.tolist() == [-1, -1]


# --- evaluation by full episodes


def evaluated(params: list[float]) -> Any:
    given = genotype(trained().members[0])._replace(params=jnp.asarray(params))
    return trained().evaluate(given, trained().bank, jax.random.key(0))


def test_the_update_gets_the_extras_of_every_agent() -> None:
    evaluation = evaluated([0.5, -0.25])
    expected = {
        "return/walker": 2 * PAY[0] * 0.5,
        "return/sitter": 4 * PAY[1] * -0.25,
        "final_reward/walker": PAY[0] * 0.5,
        "final_reward/sitter": PAY[1] * -0.25,
        "terminated/walker": 1.0,
        "terminated/sitter": 0.0,
        "truncated/walker": 0.0,
        "truncated/sitter": 1.0,
    }
    assert set(evaluation.episodes) == {"descriptors", *expected}
    for name, value in expected.items():
        np.testing.assert_allclose(evaluation.episodes[name], [value] * 2, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(evaluation.roles, [1.0, -10.0], rtol=1e-6)
    np.testing.assert_allclose(evaluation.returns, [-4.5, -4.5], rtol=1e-6)
    assert float(evaluation.fitness) == pytest.approx(-4.5)
    assert evaluation.lengths.tolist() == [4, 4]
    assert int(evaluation.broken) == 0


@pytest.mark.parametrize("which", [0, 1])
def test_an_agent_whose_actions_are_not_finite_has_no_fitness(which: int) -> None:
    params = [0.5, -0.25]
    params[which] = np.nan
    evaluation = evaluated(params)
    assert np.isnan(evaluation.fitness)
    assert np.isfinite(evaluation.roles).tolist() == [which != 0, which != 1]
    assert float(evaluation.roles[1 - which]) == pytest.approx([1.0, -10.0][1 - which])


# --- one agent alone


def test_a_single_agent_gives_the_same_rollout() -> None:
    # Lengths of 2, 3 or 9 steps, the last cut short by the clock after 5; reward 1 per step.
    config = OnPolicyConfig(ENVS, STEPS, 4, eval_episodes=2, start_states=12)
    learner = on_policy(spy(SPY_SPEC, 0.3), counting(), config)
    assert learner.steps_per_generation == 4 * ENVS * STEPS

    def trained(key: jax.Array) -> tuple:
        bank = learner.start_states(key)
        member = learner.init(key, SpyHyper(), bank)
        member, metrics = learner.step(member, bank, jax.random.fold_in(key, 1), jnp.int32(2))
        return member, metrics, learner.evaluate(genotype(member), bank, key), bank

    member, metrics, evaluation, bank = jax.jit(trained)(jax.random.key(0))
    batch, terminations = member.state.batch, np.asarray(member.state.batch.observation.features[..., 0])
    time = np.asarray(batch.next_observation.features[..., 1])
    np.testing.assert_array_equal(batch.next_observation.features[..., 0], terminations)
    np.testing.assert_array_equal(batch.terminated, time >= terminations)
    np.testing.assert_array_equal(batch.extras.ended, (time >= terminations) | (time >= 5))
    assert batch.extras.counts.all()
    np.testing.assert_allclose(batch.extras.accumulated, 2.0 - 0.5 ** (time - 1.0), rtol=1e-6)
    assert int(member.state.step) == 2 * 4 + 3
    assert float(metrics["reward"]) == 1.0
    assert float(metrics["index"]) == pytest.approx(np.mean([8, 9, 10, 11]))
    expected = np.minimum(np.asarray(bank[1].observation.features)[:2, 0], 5.0)
    np.testing.assert_array_equal(evaluation.returns, expected)
    assert evaluation.roles == ()


# --- mistakes


CONTINUOUS = ppo(ERRAND, PpoConfig(hidden_sizes=()))


def ppo_of(minibatches: int, recurrent: bool = False) -> OnPolicyAgent:
    return ppo(SPY_SPEC, PpoConfig(minibatches=minibatches, recurrent=recurrent))


@pytest.mark.parametrize(
    ("agent", "environment", "options", "message"),
    [
        (sac(SPY_SPEC), counting(), {}, r"^this agent learns off-policy, from stored transitions; use off_"),
        (multi_agent.independent(CONTINUOUS, ERRAND), counting(), {}, r"^counting is a single-agent environment; wrap"),
        (CONTINUOUS, errand(), {}, r"^errand is a multi-agent environment with 2 agents; use ippo or pbt-ippo, "),
        (multi_agent.shared(CONTINUOUS, ERRAND), errand(), {"fitness": "fox"}, r" named 'fox'; use one of walker, s"),
        (ppo(SPY_SPEC), counting(), {"fitness": "fox"}, r"^fitness names an agent of a team, but .*, got 'fox'; "),
        (ppo_of(4), counting(), {"num_envs": 2, "rollout_length": 9}, r"the 18 rows .*, got 4; use 2 or 3 or 6"),
        (ppo_of(1), counting(), {"num_envs": 1, "rollout_length": 1}, r"[a-z0-9]\.$"),
        # An advantage that is normalised over itself is 0, and nothing would be learned.
        (ppo_of(4, True), counting(), {"num_envs": 4, "rollout_length": 1}, r"^minibatches "),
    ],
)
def test_what_does_not_fit_together_is_an_error(
    agent: Any, environment: Environment, options: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        on_policy(agent, environment, OnPolicyConfig(**options))


def test_agents_that_share_have_the_rows_of_all_for_minibatches() -> None:
    config, agent = OnPolicyConfig(num_envs=2, rollout_length=3), ppo(ERRAND, PpoConfig(hidden_sizes=(), minibatches=6))
    assert on_policy(multi_agent.shared(agent, ERRAND), errand(), config).team == "shared"
    with pytest.raises(ValueError, match=r"^minibatches must divide the 6 rows"):
        on_policy(multi_agent.independent(agent, ERRAND), errand(), config)


def test_agents_without_separate_flags_are_an_error() -> None:
    team_env = errand()
    merged = team_env._replace(reset=lambda key: _with_one_flag(*team_env.reset(key)))
    with pytest.raises(
        ValueError, match=r"gives terminated of shape \(\) instead of \(2,\).*must stay set until the episode is over"
    ):
        on_policy(multi_agent.independent(spy(ERRAND), ERRAND), merged, CONFIG)


def _with_one_flag(state: PyTree, step: Step) -> tuple[PyTree, Step]:
    return state, step._replace(terminated=jnp.asarray(False))
