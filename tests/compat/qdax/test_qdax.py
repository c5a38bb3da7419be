"""QDax's documented environments, buffer and single agents, and what loops of one's own are made of."""

from functools import partial
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
from rookery.envs.registry import find
from tests.compat.qdax.documented import NETS, T, agent, room, rows
from tests.tiny import assert_equal

# --- environments


def test_a_batch_tells_its_sizes_and_states():
    env = room()
    assert (env.observation_size, env.action_size, env.name) == (2, 2, "point_room")
    assert (env.descriptor_length, env.state_descriptor_length) == (2, 2)
    assert env.descriptor_limits == ([-1.0, -1.0], [1.0, 1.0])
    state = env.reset(rng=jax.random.PRNGKey(0))
    assert (state.obs.shape, state.reward.shape, state.done.shape) == ((4, 2), (4,), (4,))
    assert {"truncation", "state_descriptor"} <= set(state.info)
    assert_equal(state.info["state_descriptor"], state.obs)  # a point is where it is
    assert len(np.unique(state.obs)) == 8
    assert_equal(env.reset(jax.random.key(0)).obs, state.obs)  # a typed key is the same key
    probe = room(name="probe_value")
    assert not hasattr(probe, "descriptor_length")
    assert "state_descriptor" not in probe.reset(jax.random.key(0)).info


def play(env: Any, steps: int, action: float = 0.5) -> list[Any]:
    """The states of an environment that does the same all the time, the first one included."""
    states = [env.reset(jax.random.key(3))]
    actions = jnp.full((*states[0].reward.shape, env.action_size), action)
    step = jax.jit(env.step)
    for _ in range(steps):
        states.append(step(states[-1], actions))
    return states


def test_the_clock_truncates_and_the_true_successor_is_told():
    states = play(room(), T + 1)
    assert [float(state.done[0]) for state in states] == [0, 0, 0, 0, 0, 1, 0]
    assert [float(state.info["truncation"][0]) for state in states] == [0, 0, 0, 0, 0, 1, 0]
    last, ended, following = states[-3:]
    np.testing.assert_allclose(ended.info["final_obs"], last.obs + 0.05, atol=1e-6)
    assert {tuple(row) for row in ended.obs.tolist()} <= {tuple(row) for row in states[0].obs.tolist()}
    assert_equal(ended.info["state_descriptor"], ended.obs)
    assert_equal(ended.info["final_state_descriptor"], ended.info["final_obs"])
    np.testing.assert_allclose(following.obs, ended.obs + 0.05, atol=1e-6)


def test_an_end_by_the_task_is_no_truncation():
    ended = play(room(name="probe_value"), 1)[-1]
    assert (ended.done.tolist(), ended.info["truncation"].tolist()) == ([1.0] * 4, [0.0] * 4)


def test_one_alone_has_no_leading_axis_and_goes_as_in_a_batch():
    alone, batch = play(room(None), T + 1), play(room(1), T + 1)
    for one, many in zip(alone, batch, strict=True):
        assert_equal(one, jax.tree.map(lambda leaf: leaf[0], many))


def test_episodes_may_all_begin_in_one_state():
    state = room(fixed_init_state=True).reset(jax.random.key(0))
    assert_equal(state.obs, jnp.broadcast_to(state.obs[:1], (4, 2)))
    assert_equal(room(fixed_init_state=True).reset(jax.random.key(1)).obs, state.obs)


def test_without_auto_reset_the_successor_stays():
    ended = play(room(auto_reset=False), T)[-1]
    assert ended.done.tolist() == [1.0] * 4
    assert_equal(ended.obs, ended.info["final_obs"])


def test_finished_episodes_are_counted():
    told = play(room(2, "probe_truncation", eval_metrics=True), 2 * T + 2)[-1].info["completed_eval_metrics"]
    assert told.completed_episodes.tolist() == [2.0, 2.0]
    assert told.completed_episodes_metrics["reward"].tolist() == [10.0, 10.0]
    assert told.completed_episodes_steps.tolist() == [10.0, 10.0]
    assert told.current_episode_metrics["reward"].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("point_rom", {}, "no task 'point_rom'; did you mean point_room"),
        ("pursuit_discrete", {}, "discrete actions or a team"),
        ("pursuit_continuous", {}, "discrete actions or a team"),
        ("point_room", {"batch_size": 0}, "batch_size must be at least 1, or None, got 0"),
        ("point_room", {"episode_length": 0}, "episode_length must be at least 1 step, got 0"),
        ("point_room", {"action_repeat": 2}, "action_repeat"),
        ("point_room", {"gravity": 2}, "no override gravity"),
    ],
)
def test_what_cannot_be_created_is_refused(name: str, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        environments.create(name, **options)


DOCUMENTED = {"anttrap": "ant_trap", "humanoidtrap": "humanoid_trap", "antmaze": "ant_maze", "pointmaze": "point_maze"}


@pytest.mark.parametrize(("documented", "own"), DOCUMENTED.items())
def test_tasks_with_walls_have_their_documented_names(documented: str, own: str):
    env = environments.create(documented, batch_size=3, episode_length=7)
    assert (type(env), env.name, env.batch_size, env.episode_length) == (Batch, own, 3, 7)
    assert (env.observation_size, env.action_size) == (find(own).observation_size, find(own).action_size)
    assert env.descriptor_length == 2


def test_actions_of_another_size_are_refused():
    env = room()
    with pytest.raises(ValueError, match=r"actions of point_room must be \(4, 2\) here, got \(4, 3\)"):
        env.step(env.reset(jax.random.key(0)), jnp.zeros((4, 3)))


def test_tasks_have_an_extractor_and_an_offset():
    assert environments.reward_offset["point_maze"] == 2.29
    for documented, own in DOCUMENTED.items():
        assert environments.reward_offset[documented] == environments.reward_offset[own]
        assert environments.descriptor_extractor[documented] == environments.descriptor_extractor[own]
    assert set(environments.descriptor_extractor) == set(environments.reward_offset) >= {"point_trap", "ant_uni"}
    told = jnp.arange(2 * 3 * 2.0).reshape(2, 3, 2)
    none = jnp.zeros((2, 3))
    steps = QDTransition(told, told, none, none, none, told, told, told + 100.0)
    mask = jnp.array([[0, 0, 1], [0, 0, 0]])
    final = environments.descriptor_extractor["point_room"](steps, mask)
    assert final.tolist() == [[102.0, 103.0], [110.0, 111.0]]
    mean = environments.descriptor_extractor["hopper_uni"](steps, mask.astype(jnp.float32))
    assert mean.tolist() == [[101.0, 102.0], [108.0, 109.0]]


# --- the buffer


def numbered(*numbers: float) -> Transition:
    return rows(len(numbers)).replace(rewards=jnp.array(numbers, jnp.float32))


def held(buffer: ReplayBuffer) -> set[float]:
    return set(buffer.sample(jax.random.PRNGKey(0), 200).rewards.tolist())


def test_a_buffer_forgets_the_oldest():
    buffer = ReplayBuffer.init(4, Transition.init_dummy(2, 2))
    assert int(buffer.current_size) == 0
    buffer = buffer.insert(numbered(1, 2, 3))
    assert (held(buffer), int(buffer.current_size)) == ({1, 2, 3}, 3)
    buffer = buffer.insert(numbered(4, 5, 6))
    assert (held(buffer), int(buffer.current_size), int(buffer.current_position)) == ({3, 4, 5, 6}, 4, 2)
    assert held(buffer.insert(numbered())) == held(buffer)


def test_rows_stay_whole_and_blocks_are_flattened():
    buffer = ReplayBuffer.init(8, rows(1))
    block = jax.tree.map(lambda leaf: leaf.reshape(2, 3, *leaf.shape[1:]), rows(6))
    drawn = buffer.insert(block).sample(jax.random.key(0), 50)
    given = rows(6)
    came_from = jnp.argmax(given.rewards[None] == drawn.rewards[:, None], axis=1)
    assert_equal(drawn, jax.tree.map(lambda leaf: leaf[came_from], given))
    assert len(set(drawn.rewards.tolist())) == 6


def test_what_is_not_finite_is_left_out():
    buffer = ReplayBuffer.init(4, rows(1)).insert(numbered(1, float("nan"), 3, float("inf")))
    assert (held(buffer), int(buffer.current_size)) == ({1, 3}, 2)


def transitions(size: int | None) -> Any:
    """Three of them with flags that differ, and descriptors of this size unless it is None."""
    told = rows(3).replace(dones=jnp.array([0.0, 1.0, 1.0]), truncations=jnp.array([0.0, 0.0, 1.0]))
    if size is None:
        return told
    described = jax.random.normal(jax.random.key(7), (2, 3, size))
    return QDTransition(**vars(told), state_desc=described[0], next_state_desc=described[1])


@pytest.mark.parametrize("size", [None, 3, 1, 0])
def test_transitions_are_flattened_and_put_together_again(size: int | None):
    told = transitions(size)
    fields = [told.obs, told.next_obs, told.rewards[:, None], told.dones[:, None], told.truncations[:, None]]
    fields += [told.actions, *([told.state_desc, told.next_state_desc] if isinstance(told, QDTransition) else [])]
    flat = told.flatten()
    assert (flat.shape, flat.dtype) == ((3, told.flatten_dim), jnp.float32)
    assert type(told.flatten_dim) is int
    np.testing.assert_array_equal(flat, np.concatenate(fields, axis=1))
    like = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[:1]), told)
    again = type(told).from_flatten(flat, like)
    assert type(again) is type(told)
    assert_equal(again, told)
    alone = jax.tree.map(lambda leaf: leaf[1], told)
    np.testing.assert_array_equal(alone.flatten(), flat[1])
    assert_equal(type(told).from_flatten(flat[1], like), alone)
    assert_equal(jax.jit(lambda one: type(one).from_flatten(one.flatten(), one))(told), told)
    with pytest.raises(ValueError, match=f"transitions like this one have {told.flatten_dim} columns, got 4"):
        type(told).from_flatten(flat[:, :4], like)


@pytest.mark.parametrize("size", [None, 2, 0])
def test_the_data_of_a_buffer_is_flat_and_not_a_number_where_nothing_was_written(size: int | None):
    told = transitions(size)
    buffer = ReplayBuffer.init(5, told)
    assert (buffer.data.shape, buffer.data.dtype) == ((5, told.flatten_dim), jnp.float32)
    assert bool(jnp.isnan(buffer.data).all())
    assert (buffer.current_size.shape, buffer.current_size.dtype) == ((), jnp.int32)
    buffer = buffer.insert(told)
    assert int(buffer.current_size) == 3
    np.testing.assert_array_equal(buffer.data[:3], told.flatten())
    assert bool(jnp.isnan(buffer.data[3:]).all())
    assert bool(jnp.isfinite(buffer.insert(told).data).all())
    many = jax.tree.map(lambda *leaves: jnp.stack(leaves), ReplayBuffer.init(5, told), buffer)
    np.testing.assert_array_equal(jnp.isnan(many.data).all(axis=-1), [[True] * 5, [False] * 3 + [True] * 2])
    np.testing.assert_array_equal(many.data[1], buffer.data)


def test_a_buffer_refuses_what_does_not_fit():
    buffer = ReplayBuffer.init(4, rows(1))
    with pytest.raises(ValueError, match="5 rows at once do not fit a buffer of 4"):
        buffer.insert(rows(5))
    with pytest.raises(ValueError, match="created for Transition, got QDTransition; insert the same class"):
        buffer.insert(QDTransition.init_dummy(2, 2, 2))


# --- agents of one


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_actions_are_drawn_around_those_of_the_policy(kind: Any):
    made = agent(kind)
    params = made.init(jax.random.key(0), 2, 2).policy_params
    noise = {} if kind is SAC else {"expl_noise": 0.1}
    obs = jax.random.normal(jax.random.key(1), (3, 500, 2))
    choose = partial(jax.jit(made.select_action, static_argnames="deterministic"), obs, params, **noise)
    sure = choose(jax.random.PRNGKey(0), deterministic=True)
    assert_equal(choose(jax.random.PRNGKey(1), deterministic=True), sure)
    drawn, again = choose(jax.random.PRNGKey(0)), choose(jax.random.key(0))
    assert_equal(drawn, again)
    assert drawn.shape == (3, 500, 2)
    assert float(jnp.abs(drawn).max()) <= 1.0
    assert float((drawn == choose(jax.random.PRNGKey(1))).mean()) < 0.2
    if kind is TD3:
        assert float(jnp.std((drawn - sure)[jnp.abs(drawn) < 1.0])) == pytest.approx(0.1, rel=0.15)
        assert_equal(
            made.select_action(obs, params, jax.random.key(0), 0.0),
            made.select_action(obs, params, jax.random.key(0), 9.0, True),
        )


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_a_step_is_told_with_its_true_successor(kind: Any):
    made, env = agent(kind), room(episode_length=1)
    before, state = env.reset(jax.random.key(0)), made.init(jax.random.key(1), 2, 2)
    after, later, told = made.play_qd_step_fn(before, state, env)
    assert_equal(told.obs, before.obs)
    np.testing.assert_allclose(told.next_obs, before.obs + 0.1 * told.actions, atol=1e-6)
    assert_equal((told.state_desc, told.next_state_desc), (told.obs, told.next_obs))
    assert (told.dones.tolist(), told.truncations.tolist()) == ([1.0] * 4, [1.0] * 4)
    np.testing.assert_allclose(told.rewards, -0.01 * jnp.sum(told.actions**2, axis=1), rtol=1e-5)
    assert float(jnp.abs(after.obs).max()) <= 0.05  # at the start again
    assert not np.array_equal(later.key, state.key)
    with pytest.raises(ValueError, match="probe_both has no descriptor"):
        agent(kind, 1).play_qd_step_fn(None, None, room(name="probe_both"))


def test_evaluations_end_with_the_first_episode():
    made, env = agent(SAC, 1), room(3, "probe_value")
    state = made.init(jax.random.key(1), 1, 1)
    play = partial(made.play_step_fn, env=env, deterministic=True)
    mean, each = made.eval_policy_fn(state, env.reset(jax.random.key(0)), play_step_fn=play)
    assert (float(mean), each.tolist()) == (1.0, [1.0, 1.0, 1.0])


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_evaluations_tell_returns_and_descriptors(kind: Any):
    made, env = agent(kind), room(3)
    state, first = made.init(jax.random.key(1), 2, 2), env.reset(jax.random.key(0))
    step = partial(made.play_qd_step_fn, env=env, deterministic=True)
    now, expected = first, jnp.zeros(3)
    for _ in range(T):
        now, _, told = step(now, state)
        expected += told.rewards
    extract = environments.descriptor_extractor["point_room"]
    mean, place, each, places = made.eval_qd_policy_fn(state, first, step, extract)
    np.testing.assert_allclose(each, expected, rtol=1e-5)
    np.testing.assert_allclose(mean, expected.mean(), rtol=1e-5)
    np.testing.assert_allclose(places, told.next_obs, rtol=1e-5)
    np.testing.assert_allclose(place, told.next_obs.mean(axis=0), rtol=1e-5)


def test_an_agent_that_is_not_a_number_has_no_return():
    made, env = agent(TD3), room(3)
    state = made.init(jax.random.key(1), 2, 2)
    lost = state.replace(policy_params=jax.tree.map(lambda leaf: leaf * jnp.nan, state.policy_params))
    play = partial(made.play_step_fn, env=env, deterministic=True)
    assert np.isnan(made.eval_policy_fn(lost, env.reset(jax.random.key(0)), play)[0])


@pytest.mark.parametrize("size", ["batch_size", "episode_length"])
def test_sizes_below_one_are_refused(size: str):
    with pytest.raises(ValueError, match=f"{size} must be at least 1, got 0"):
        agent(SAC, **{size: 0})


def test_an_action_size_that_differs_is_refused():
    with pytest.raises(ValueError, match="created for action_size 2, got 3"):
        agent(SAC).init(jax.random.key(0), action_size=3, observation_size=2)


# --- loops of one's own


BEGUN: Any = 7.0


def count_play(env_state: Any, training_state: Any) -> tuple:
    return env_state + 1, training_state, rows(4).replace(rewards=jnp.full(4, env_state, jnp.float32))


def count_update(training_state: Any, buffer: ReplayBuffer) -> tuple:
    return training_state + 1, buffer, {"held": buffer.current_size}


@pytest.mark.parametrize(("per_step", "updates"), [(0.0, 0), (0.25, 1), (0.9, 3), (2.0, 8)])
def test_an_iteration_makes_so_many_updates(per_step: float, updates: int):
    buffer = ReplayBuffer.init(16, rows(1))
    trained, env_state, after, told = do_iteration_fn(0, BEGUN, buffer, 4, per_step, count_play, count_update)
    assert (int(trained), env_state, held(after)) == (updates, 8, {7.0})
    assert told["held"].tolist() == [4] * updates  # the step comes first


def test_updates_that_round_to_none_are_refused():
    with pytest.raises(ValueError, match=r"0\.2 x 4 is less than one update.*; raise one of them"):
        do_iteration_fn(0, BEGUN, ReplayBuffer.init(16, rows(1)), 4, 0.2, count_play, count_update)


def test_a_buffer_is_warmed_with_at_least_so_many_steps():
    buffer, env_state, trained = warmstart_buffer(ReplayBuffer.init(16, rows(1)), 0, jnp.int32(0), count_play, 9, 4)
    assert (int(buffer.current_size), int(trained), held(buffer)) == (12, 0, {0.0, 1.0, 2.0})
    assert env_state == 3


# --- skills


def discoverer(**changes: Any) -> DIAYN:
    return DIAYN(DiaynConfig(8, T, num_skills=3, **NETS, **changes), 2)


def test_a_discriminator_that_cannot_tell_gives_no_reward():
    made, env = discoverer(), room(3)
    state = made.init(jax.random.key(0), action_size=2, observation_size=2, descriptor_size=2)
    begun, skills = env.reset(jax.random.key(1)), jnp.eye(3)
    _, _, told = made.play_step_fn(begun, state, skills, env)
    assert_equal(told.obs, jnp.concatenate([begun.obs, skills], axis=1))
    assert_equal(told.next_obs[:, 2:], skills)
    assert_equal(told.next_state_desc, told.next_obs[:, :2])
    blind = jax.tree.map(jnp.zeros_like, state.discriminator_params)
    np.testing.assert_allclose(made._compute_diversity_reward(told, blind), jnp.zeros(3), atol=1e-6)
    without = made._compute_diversity_reward(told, blind, add_log_p_z=False)
    np.testing.assert_allclose(without, jnp.full(3, -np.log(3)), rtol=1e-5)


def test_what_skills_cannot_be_told_by_is_refused():
    made, env, whole = discoverer(), room(3), discoverer(descriptor_full_state=True)
    state, begun = made.init(jax.random.key(0), 2, 2, 2), env.reset(jax.random.key(1))
    with pytest.raises(ValueError, match=r"skills must be \(3, 3\) here, got \(4, 3\)"):
        made.play_step_fn(begun, state, jnp.zeros((4, 3)), env)
    probe = room(3, "probe_both")
    with pytest.raises(ValueError, match=r"probe_both has no descriptor; .*descriptor_full_state=True"):
        made.play_step_fn(probe.reset(jax.random.key(0)), state, jnp.eye(3), probe)
    with pytest.raises(ValueError, match="descriptor_size 2, the size of observations; got 3"):
        whole.init(jax.random.key(0), 2, 2, 3)
    with pytest.raises(ValueError, match="env_batch_size is 4, but eval_env_first_state has 3 environments"):
        made.eval_policy_fn(state, begun, partial(made.play_step_fn, skills=jnp.eye(3), env=env), 4)
