"""QDax's documented environments, buffer, single agents and parts of user-defined loops."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.compat.qdax import (
    DIAYN,
    SAC,
    TD3,
    DiaynConfig,
    QDTransition,
    ReplayBuffer,
    Transition,
    do_iteration_fn,
    environments,
    warmstart_buffer,
)
from rookery.compat.qdax.environments import Batch
from rookery.compat.qdax.loops import unroll
from rookery.compat.records import split_key
from tests.compat.qdax.documented import NETS, T, agent, breaking_env, make_env, rows
from tests.tiny import assert_equal

# --- environments


def test_a_batch_has_the_documented_sizes_and_states():
    env = make_env()
    assert (env.observation_size, env.action_size, env.name) == (2, 2, "point_room")
    assert (env.descriptor_length, env.state_descriptor_length) == (2, 2)
    assert env.descriptor_limits == env.state_descriptor_limits == ([-1.0, -1.0], [1.0, 1.0])
    assert env.state_descriptor_name == "final x, y"
    assert environments.create_fn("point_room", episode_length=T)(batch_size=2).batch_size == 2
    state = env.reset(rng=jax.random.PRNGKey(0))
    assert (state.obs.shape, state.reward.shape, state.done.shape) == ((4, 2), (4,), (4,))
    assert {"truncation", "state_descriptor"} <= set(state.info)
    assert_equal(state.info["state_descriptor"], state.obs)  # the descriptor of a point is its position
    assert len(np.unique(state.obs)) == 8
    assert_equal(env.reset(jax.random.key(0)).obs, state.obs)  # a typed key is the same key
    probe = make_env(name="probe_value")
    assert not hasattr(probe, "descriptor_length")
    assert "state_descriptor" not in probe.reset(jax.random.key(0)).info


def play(env: Any, steps: int, action: float = 0.5) -> list[Any]:
    """The states of environments under a constant action, including the first."""
    states = [env.reset(jax.random.key(3))]
    actions = jnp.full((*states[0].reward.shape, env.action_size), action)
    step = jax.jit(env.step)
    for _ in range(steps):
        states.append(step(states[-1], actions))
    return states


def test_the_time_limit_truncates_and_the_true_successor_is_reported():
    states = play(make_env(), T + 1)
    assert [float(state.done[0]) for state in states] == [0, 0, 0, 0, 0, 1, 0]
    assert [float(state.info["truncation"][0]) for state in states] == [0, 0, 0, 0, 0, 1, 0]
    last, ended, next_one = states[-3:]
    np.testing.assert_allclose(ended.info["final_obs"], last.obs + 0.05, atol=1e-6)
    assert {tuple(row) for row in ended.obs.tolist()} <= {tuple(row) for row in states[0].obs.tolist()}
    assert_equal(ended.info["state_descriptor"], ended.obs)
    assert_equal(ended.info["final_state_descriptor"], ended.info["final_obs"])
    np.testing.assert_allclose(next_one.obs, ended.obs + 0.05, atol=1e-6)
    terminated = play(make_env(name="probe_value"), 1)[-1]
    assert (terminated.done.tolist(), terminated.info["truncation"].tolist()) == ([1.0] * 4, [0.0] * 4)


def test_a_single_environment_has_no_leading_axis_and_equals_a_batch_of_one():
    single, batch = play(make_env(None), T + 1), play(make_env(1), T + 1)
    for one, many in zip(single, batch, strict=True):
        assert_equal(one, jax.tree.map(lambda leaf: leaf[0], many))


def test_all_episodes_can_begin_in_the_same_state():
    state = make_env(fixed_init_state=True).reset(jax.random.key(0))
    assert_equal(state.obs, jnp.broadcast_to(state.obs[:1], (4, 2)))
    assert_equal(make_env(fixed_init_state=True).reset(jax.random.key(1)).obs, state.obs)


def test_without_auto_reset_the_observation_is_the_successor():
    ended = play(make_env(auto_reset=False), T)[-1]
    assert ended.done.tolist() == [1.0] * 4
    assert_equal(ended.obs, ended.info["final_obs"])


def test_completed_episodes_are_counted():
    metrics = play(make_env(2, "probe_truncation", eval_metrics=True), 2 * T + 2)[-1].info["completed_eval_metrics"]
    assert metrics.completed_episodes.tolist() == [2.0, 2.0]
    assert metrics.completed_episodes_metrics["reward"].tolist() == [10.0, 10.0]
    assert metrics.completed_episodes_steps.tolist() == [10.0, 10.0]
    assert metrics.current_episode_metrics["reward"].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("pursuit_continuous", {}, "discrete actions or a team"),
        ("point_room", {"action_repeat": 2}, "action_repeat"),
    ],
)
def test_options_that_do_not_fit_are_rejected(name: str, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        environments.create(name, **options)


DOCUMENTED = {"anttrap": "ant_trap", "humanoidtrap": "humanoid_trap", "antmaze": "ant_maze", "pointmaze": "point_maze"}


def test_tasks_with_walls_have_their_documented_names():
    env = environments.create("pointmaze", batch_size=3, episode_length=7)
    assert (type(env), env.name, env.batch_size, env.episode_length) == (Batch, "point_maze", 3, 7)
    assert (env.observation_size, env.action_size, env.descriptor_length) == (2, 2, 2)


def test_actions_of_another_size_are_rejected():
    env = make_env()
    with pytest.raises(ValueError, match=r"actions of point_room must be \(4, 2\) here, got \(4, 3\)"):
        env.step(env.reset(jax.random.key(0)), jnp.zeros((4, 3)))


def test_tasks_have_an_extractor_and_an_offset():
    assert environments.reward_offset["point_maze"] == 2.29
    for documented, name in DOCUMENTED.items():
        assert environments.reward_offset[documented] == environments.reward_offset[name]
        assert environments.descriptor_extractor[documented] == environments.descriptor_extractor[name]
    assert set(environments.descriptor_extractor) == set(environments.reward_offset) >= {"point_trap", "ant_uni"}
    values = jnp.arange(2 * 3 * 2.0).reshape(2, 3, 2)
    none = jnp.zeros((2, 3))
    steps = QDTransition(values, values, none, none, none, values, values, values + 100.0)
    mask = jnp.array([[0, 0, 1], [0, 0, 0]])
    final = environments.descriptor_extractor["point_room"](steps, mask)
    assert final.tolist() == [[102.0, 103.0], [110.0, 111.0]]
    mean = environments.descriptor_extractor["hopper_uni"](steps, mask.astype(jnp.float32))
    assert mean.tolist() == [[101.0, 102.0], [108.0, 109.0]]


# --- the buffer


def numbered(*numbers: float) -> Transition:
    return rows(len(numbers)).replace(rewards=jnp.array(numbers, jnp.float32))


def sampled_rewards(buffer: ReplayBuffer) -> set[float]:
    return set(buffer.sample(jax.random.PRNGKey(0), 200).rewards.tolist())


def test_a_buffer_overwrites_the_oldest_rows_and_its_data_is_in_the_order_of_age():
    buffer, reward, insert = ReplayBuffer.init(5, rows(1)), 4, jax.jit(ReplayBuffer.insert)  # the column of the rewards
    assert int(buffer.current_size) == 0
    with pytest.raises(ValueError, match="the replay buffer is empty; insert transitions"):
        buffer.sample(jax.random.key(0), 2)
    with pytest.raises(ValueError, match=r"one axis less than obs, got rewards \(2, 1\) with obs \(2, "):
        buffer.insert(rows(2).replace(rewards=jnp.zeros((2, 1))))
    for first, position, expected in ((0, 3, [0, 1, 2]), (3, 1, [1, 2, 3, 4, 5]), (6, 4, [4, 5, 6, 7, 8])):
        buffer = insert(buffer, numbered(first, first + 1, first + 2))
        assert buffer.data[: int(buffer.current_size), reward].tolist() == expected
        assert (sampled_rewards(buffer), int(buffer.current_position)) == (set(expected), position)
    assert sampled_rewards(buffer.insert(numbered())) == sampled_rewards(buffer)
    many = jax.tree.map(lambda *leaves: jnp.stack(leaves), buffer, buffer.insert(numbered(9)))
    assert many.data[..., reward].tolist() == [[4, 5, 6, 7, 8], [5, 6, 7, 8, 9]]


@pytest.mark.parametrize("size", [3, 0])
def test_transitions_are_flattened_and_restored(size: int):
    flags = {"dones": jnp.array([0.0, 1.0, 1.0]), "truncations": jnp.array([0.0, 0.0, 1.0])}
    before, after = jax.random.normal(jax.random.key(7), (2, 3, size))
    batch = QDTransition(**{**vars(rows(3)), **flags}, state_desc=before, next_state_desc=after)
    fields = [batch.obs, batch.next_obs, batch.rewards[:, None], batch.dones[:, None], batch.truncations[:, None]]
    flat, fields = batch.flatten(), [*fields, batch.actions, before, after]
    assert (flat.shape, flat.dtype) == ((3, batch.flatten_dim), jnp.float32)
    assert type(batch.flatten_dim) is int
    np.testing.assert_array_equal(flat, np.concatenate(fields, axis=1))
    like = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[:1]), batch)
    again = QDTransition.from_flatten(flat, like)
    assert type(again) is QDTransition
    assert_equal(again, batch)
    alone = jax.tree.map(lambda leaf: leaf[1], batch)
    np.testing.assert_array_equal(alone.flatten(), flat[1])
    assert_equal(QDTransition.from_flatten(flat[1], like), alone)
    assert_equal(jax.jit(lambda one: type(one).from_flatten(one.flatten(), one))(batch), batch)
    with pytest.raises(ValueError, match=f"transitions like this one have {batch.flatten_dim} columns, got 4"):
        QDTransition.from_flatten(flat[:, :4], like)


def test_the_data_of_a_buffer_is_flat_and_nan_in_unwritten_rows():
    batch = rows(3)
    buffer = ReplayBuffer.init(5, batch)
    assert (buffer.data.shape, buffer.data.dtype) == ((5, batch.flatten_dim), jnp.float32)
    assert bool(jnp.isnan(buffer.data).all())
    assert (buffer.current_size.shape, buffer.current_size.dtype) == ((), jnp.int32)
    buffer = buffer.insert(batch)
    assert int(buffer.current_size) == 3
    np.testing.assert_array_equal(buffer.data[:3], batch.flatten())
    assert bool(jnp.isnan(buffer.data[3:]).all())
    assert bool(jnp.isfinite(buffer.insert(batch).data).all())
    many = jax.tree.map(lambda *leaves: jnp.stack(leaves), ReplayBuffer.init(5, batch), buffer)
    np.testing.assert_array_equal(jnp.isnan(many.data).all(axis=-1), [[True] * 5, [False] * 3 + [True] * 2])


# --- single agents


def test_exploring_actions_are_distributed_around_those_of_the_policy():
    learner = agent(TD3)
    params = learner.init(jax.random.key(0), 2, 2).policy_params
    obs = jax.random.normal(jax.random.key(1), (3, 500, 2))
    choose = jax.jit(partial(learner.select_action, obs, params), static_argnames="deterministic")
    policy = choose(jax.random.key(0), 0.0)
    for noise in (0.1, 9.0):
        assert_equal(choose(jax.random.PRNGKey(1), noise, deterministic=True), policy)
    drawn = choose(jax.random.PRNGKey(0), 0.1)
    assert_equal(choose(jax.random.key(0), 0.1), drawn)
    assert drawn.shape == (3, 500, 2)
    assert float(jnp.abs(drawn).max()) <= 1.0
    assert float((drawn == choose(jax.random.key(1), 0.1)).mean()) < 0.2
    assert float(jnp.std((drawn - policy)[jnp.abs(drawn) < 1.0])) == pytest.approx(0.1, rel=0.15)


def test_a_transition_contains_the_true_successor():
    learner, env = agent(SAC), make_env(episode_length=1)
    before, state = env.reset(jax.random.key(0)), learner.init(jax.random.key(1), 2, 2)
    after, later, row = jax.jit(partial(learner.play_qd_step_fn, env=env))(before, state)
    assert_equal(row.obs, before.obs)
    np.testing.assert_allclose(row.next_obs, before.obs + 0.1 * row.actions, atol=1e-6)
    assert_equal((row.state_desc, row.next_state_desc), (row.obs, row.next_obs))
    assert (row.dones.tolist(), row.truncations.tolist()) == ([1.0] * 4, [1.0] * 4)
    np.testing.assert_allclose(row.rewards, -0.01 * jnp.sum(row.actions**2, axis=1), rtol=1e-5)
    assert float(jnp.abs(after.obs).max()) <= 0.05  # a new episode
    assert not np.array_equal(later.key, state.key)
    with pytest.raises(ValueError, match="probe_both has no descriptor"):
        agent(SAC, 1).play_qd_step_fn(None, None, make_env(name="probe_both"))


def test_an_evaluation_ends_with_the_first_episode():
    learner, env = agent(SAC, 1), make_env(3, "probe_value")
    state = learner.init(jax.random.key(1), 1, 1)
    play = partial(learner.play_step_fn, env=env, deterministic=True)
    mean, each = jax.jit(partial(learner.eval_policy_fn, play_step_fn=play))(state, env.reset(jax.random.key(0)))
    assert (float(mean), each.tolist()) == (1.0, [1.0, 1.0, 1.0])


def moving(learner: Any, state: Any, right: float) -> Any:
    """A state whose policy outputs constant actions, to the right or to the left."""
    last = max(state.policy_params["params"])
    policy = jax.tree.map(jnp.zeros_like, state.policy_params)
    bias = policy["params"][last]["bias"]
    policy["params"][last]["bias"] = bias.at[0].set(right)
    return state.replace(policy_params=policy)


def test_an_evaluation_in_which_the_physics_broke_has_no_return():
    """Moving right ends the episode early, with a return above all others."""
    learner, env = agent(TD3), breaking_env(3)
    state, first = learner.init(jax.random.key(1), 2, 2), env.reset(jax.random.key(0))
    play = partial(learner.play_qd_step_fn, env=env, deterministic=True)
    extract = environments.descriptor_extractor["point_room"]
    evaluate = jax.jit(
        lambda one: (learner.eval_policy_fn(one, first, play), learner.eval_qd_policy_fn(one, first, play, extract))
    )
    for right, expected in ((-1.0, -5.0), (1.0, np.nan)):
        (mean, each), of_descriptors = evaluate(moving(learner, state, right))
        np.testing.assert_array_equal([mean, *each], [expected] * 4)
        mean, _, each, places = of_descriptors
        np.testing.assert_array_equal([mean, *each], [expected] * 4)
        assert jnp.isfinite(places).all()


def test_a_step_in_which_the_physics_broke_is_neither_stored_nor_counted():
    learner, env = agent(SAC), breaking_env(3)
    state = moving(learner, learner.init(jax.random.key(1), 2, 2), 1.0)
    play = partial(learner.play_step_fn, env=env, deterministic=True)
    empty = ReplayBuffer.init(64, Transition.init_dummy(2, 2))
    buffer, env_state, _ = warmstart_buffer(empty, state, env.reset(jax.random.key(0)), play, 3 * 6, 3)
    assert int(buffer.current_size) == 3 * 4  # two of three steps in each of two episodes
    stored = buffer.data[:12]
    assert set(stored[:, 4].tolist()) == {-1.0}
    assert not stored[:, 5].any()  # no step seems to have ended an episode
    counted = env_state.info["completed_eval_metrics"]
    assert counted.completed_episodes.tolist() == counted.completed_episodes_metrics["reward"].tolist() == [0.0] * 3
    assert jnp.isnan(env_state.reward).all()
    assert env_state.done.tolist() == [1.0] * 3
    left = moving(learner, state, -1.0)
    later = unroll(play, env_state, left, T)[0].info["completed_eval_metrics"]
    assert later.completed_episodes.tolist() == [1.0] * 3
    assert later.completed_episodes_metrics["reward"].tolist() == [-5.0] * 3


# --- user-defined loops


FIRST: Any = 7.0


def count_play(env_state: Any, training_state: Any) -> tuple:
    return env_state + 1, training_state, rows(4).replace(rewards=jnp.full(4, env_state, jnp.float32))


def count_update(training_state: Any, buffer: ReplayBuffer) -> tuple:
    return training_state + 1, buffer, {"size": buffer.current_size}


@pytest.mark.parametrize(("per_step", "updates"), [(0.0, 0), (0.9, 3)])
def test_an_iteration_makes_the_configured_number_of_updates(per_step: float, updates: int):
    buffer = ReplayBuffer.init(16, rows(1))
    trained, env_state, after, metrics = do_iteration_fn(0, FIRST, buffer, 4, per_step, count_play, count_update)
    assert (int(trained), env_state, sampled_rewards(after)) == (updates, 8, {7.0})
    assert metrics["size"].tolist() == [4] * updates  # the step comes first


def test_a_buffer_is_filled_with_at_least_the_requested_steps():
    buffer, env_state, trained = warmstart_buffer(ReplayBuffer.init(16, rows(1)), 0, jnp.int32(0), count_play, 9, 4)
    assert (int(buffer.current_size), int(trained), sampled_rewards(buffer)) == (12, 0, {0.0, 1.0, 2.0})
    assert env_state == 3


# --- skills


def make_diayn(**changes: Any) -> DIAYN:
    return DIAYN(DiaynConfig(8, T, num_skills=3, **NETS, **changes), 2)


@cache
def begun() -> Any:
    """The first training state, compiled once."""
    init = partial(make_diayn().init, action_size=2, observation_size=2, descriptor_size=2)
    return jax.device_get(jax.jit(lambda key: init(random_key=key))(jax.random.key(0)))


def test_a_uniform_discriminator_gives_no_reward():
    learner, env, state = make_diayn(), make_env(3), begun()
    first, skills = env.reset(jax.random.key(1)), jnp.eye(3)
    _, _, row = jax.jit(partial(learner.play_step_fn, env=env))(first, state, skills)
    assert_equal(row.obs, jnp.concatenate([first.obs, skills], axis=1))
    assert_equal(row.next_obs[:, 2:], skills)
    assert_equal(row.next_state_desc, row.next_obs[:, :2])
    uniform = jax.tree.map(jnp.zeros_like, state.discriminator_params)
    np.testing.assert_allclose(learner._compute_diversity_reward(row, uniform), jnp.zeros(3), atol=1e-6)
    without = learner._compute_diversity_reward(row, uniform, add_log_p_z=False)
    np.testing.assert_allclose(without, jnp.full(3, -np.log(3)), rtol=1e-5)


class Halved(DIAYN):
    """A subclass as in QDax: its reward is half of the environment's."""

    def _compute_reward(self, transition: Any, training_state: Any) -> Any:
        assert training_state.discriminator_params is not None
        return 0.5 * transition.rewards


def described(count: int) -> QDTransition:
    skills = jnp.tile(jnp.eye(3), (count, 1))[:count]
    batch = rows(count)
    obs, reached = (jnp.concatenate([leaf, skills], axis=1) for leaf in (batch.obs, batch.next_obs))
    return QDTransition(
        **{**vars(batch), "obs": obs, "next_obs": reached}, state_desc=batch.obs, next_state_desc=batch.obs
    )


def test_diayn_is_sac_with_a_reward_that_a_subclass_may_replace():
    learner, halved = make_diayn(), Halved(make_diayn()._config, 2)
    assert isinstance(learner, SAC)
    state = begun()
    params = jax.tree.map(lambda leaf: leaf + 0.3, state.discriminator_params)
    state, batch = state.replace(discriminator_params=params), described(8)
    diversity = learner._compute_reward(batch, state)
    assert_equal(diversity, learner._compute_diversity_reward(batch, params))
    update = jax.jit(learner._update_networks)
    after, metrics = update(state, transitions=batch.replace(rewards=diversity))
    assert {"actor_loss", "critic_loss", "discriminator_loss", "alpha_loss"} <= set(metrics)
    assert int(after.steps) == 1
    other, of_other = update(state, transitions=batch.replace(rewards=diversity + 1.0))
    assert float(of_other["critic_loss"]) != float(metrics["critic_loss"])
    assert_equal(other.discriminator_params, after.discriminator_params)  # it learns from descriptors only
    buffer = ReplayBuffer.init(8, batch).insert(batch)
    updated, same, of_update = jax.jit(halved.update)(state, buffer)
    key, sample_key = split_key(state.key)
    given = buffer.sample(sample_key, 8)
    again, expected = update(state.replace(key=key), given.replace(rewards=0.5 * given.rewards))
    np.testing.assert_allclose(of_update["critic_loss"], expected["critic_loss"], rtol=1e-5)
    assert_equal(same, buffer)
    assert_equal(updated.key, again.key)


def test_skills_in_which_the_physics_broke_have_no_return():
    learner, env = make_diayn(), breaking_env(3)
    state, first = begun(), env.reset(jax.random.key(1))
    play = partial(learner.play_step_fn, skills=jnp.eye(3), env=env, deterministic=True)
    evaluate = jax.jit(lambda one: learner.eval_policy_fn(one, first, play, 3))
    for right, is_finite in ((-1.0, True), (1.0, False)):
        mean, each, diverse, reached = evaluate(moving(learner, state, right))
        assert bool(jnp.isfinite(mean)) == is_finite
        assert jnp.isfinite(jnp.stack([each, diverse])).all(axis=0).tolist() == [is_finite] * 3
        assert jnp.isfinite(reached).all()


def test_descriptors_that_do_not_fit_skills_are_rejected():
    learner, env, whole = make_diayn(), make_env(3), make_diayn(descriptor_full_state=True)
    state, first = begun(), env.reset(jax.random.key(1))
    with pytest.raises(ValueError, match=r"skills must be \(3, 3\) here, got \(4, 3\)"):
        learner.play_step_fn(first, state, jnp.zeros((4, 3)), env)
    probe = make_env(3, "probe_both")
    with pytest.raises(ValueError, match=r"probe_both has no descriptor; .*descriptor_full_state=True"):
        learner.play_step_fn(probe.reset(jax.random.key(0)), state, jnp.eye(3), probe)
    with pytest.raises(ValueError, match="descriptor_size 2, the size of observations; got 3"):
        whole.init(jax.random.key(0), 2, 2, 3)
    with pytest.raises(ValueError, match="env_batch_size is 4, but eval_env_first_state has 3 environments"):
        learner.eval_policy_fn(state, first, partial(learner.play_step_fn, skills=jnp.eye(3), env=env), 4)
