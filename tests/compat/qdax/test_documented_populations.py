"""QDax's documented populations: hyper-parameters, training, and selection."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rookery.compat.qdax import (
    DIAYN,
    PBT,
    PBTSAC,
    PBTTD3,
    TD3,
    DiaynConfig,
    QDTransition,
    ReplayBuffer,
    environments,
)
from tests.compat.qdax.documented import agent, breaking_env, distinct, make_env, population, reshaped, row, rows
from tests.tiny import assert_equal

P = 8
SAC_HYPER = {"discount": (0.9, 0.999), "alpha_lr": (3e-5, 3e-3), "reward_scaling": (0.1, 10.0)}
TD3_HYPER = {"discount": (0.9, 0.999), "noise_clip": (0.0, 1.0), "policy_noise": (0.0, 1.0), "expl_noise": (0.0, 0.2)}
RATES = {"policy_lr": (3e-5, 3e-3), "critic_lr": (3e-5, 3e-3)}
KINDS = {PBTSAC: SAC_HYPER | RATES, PBTTD3: TD3_HYPER | RATES}
NAN = float("nan")

cached_population = cache(population)


@cache
def updated(kind: Any, **changes: Any) -> Any:
    return jax.jit(jax.vmap(agent(kind, **changes).update))


# --- training states


@pytest.mark.parametrize("kind", KINDS)
def test_initial_members_have_sampled_hyper_parameters(kind: Any):
    _, states, _ = cached_population(kind, P)
    for name, (low, high) in KINDS[kind].items():
        drawn = getattr(states, name)
        assert drawn.shape == (P,)
        assert distinct(drawn) == P
        assert low <= float(drawn.min()) <= float(drawn.max()) <= high
    assert distinct(states.key) == P
    assert states.steps.tolist() == [0] * P
    again = jax.jit(jax.vmap(type(states).resample_hyperparams))(states)
    assert all(not np.any(getattr(again, name) == getattr(states, name)) for name in KINDS[kind])
    assert not np.any(np.all(again.key == states.key, axis=1))
    assert_equal(again.policy_params, states.policy_params)


@pytest.mark.parametrize("kind", KINDS)
def test_optimizer_states_are_removed_and_initialised_again(kind: Any):
    _, states, buffers = cached_population(kind, P)
    trained, _, _ = updated(kind)(states, buffers)
    bare = jax.vmap(type(states).empty_optimizers_states)(trained)
    assert jax.tree.leaves((bare.policy_optimizer_state, bare.target_critic_params)) == []
    assert_equal((bare.policy_params, bare.critic_params), (trained.policy_params, trained.critic_params))
    with pytest.raises(ValueError, match=r"no optimizer states; .*init_optimizers_states"):
        agent(kind).update(row(bare, 0), row(buffers, 0))
    restored = jax.jit(jax.vmap(type(states).init_optimizers_states))(bare)
    assert_equal(restored.target_critic_params, trained.critic_params)
    assert_equal(restored.policy_optimizer_state, states.policy_optimizer_state)  # as after initialisation


@pytest.mark.parametrize("kind", [TD3, PBTSAC, DIAYN])
def test_training_states_are_constructed_with_the_documented_fields(kind: Any):
    learner = (
        DIAYN(DiaynConfig(8, 5, 0.005, False, 0.01, 1.0, 0.97, 1.0, (8,), (8,), num_skills=2), 2)
        if kind is DIAYN
        else agent(kind)
    )
    state = jax.jit(lambda key: learner.init(key, 2, 2, *([2] if kind is DIAYN else [])))(jax.random.key(0))
    names = ["policy", "critic", *{TD3: [], DIAYN: ["alpha", "discriminator"]}.get(kind, ["alpha"])]
    fields = {
        f"{name}_{part}": getattr(state, f"{name}_{part}") for name in names for part in ("params", "optimizer_state")
    }
    others = ["target_critic_params", *(["target_policy_params"] if kind is TD3 else []), *KINDS.get(kind, ())]
    fields |= {name: getattr(state, name) for name in others}
    fields |= {"policy_optimizer_state": optax.adam(1.0).init(state.policy_params), "key": jax.random.key(4)}
    built = type(state)(**fields, steps=jnp.array(0))
    assert_equal(built.key, jax.random.key_data(jax.random.key(4)))
    assert_equal(built.learned, state.learned)
    batch = rows(12)
    if kind is DIAYN:
        obs = jnp.concatenate([batch.obs, jnp.tile(jnp.eye(2), (6, 1))], axis=1)
        batch = QDTransition(
            **{**vars(batch), "obs": obs, "next_obs": obs}, state_desc=obs[:, :2], next_state_desc=obs[:, :2]
        )
    buffer = ReplayBuffer.init(16, batch).insert(batch)
    # A scan raises an error if a state does not have the same structure after an update.
    advance = lambda state, _: (learner.update(state, buffer)[0], None)  # noqa: E731
    jax.eval_shape(lambda state: jax.lax.scan(advance, state, length=2), built)
    with pytest.raises(TypeError, match=r"critic_params is missing, and policies is unknown\.$"):
        type(state)(**{name: value for name, value in fields.items() if name != "critic_params"}, steps=0, policies=1)


# --- updates


@pytest.mark.parametrize("kind", KINDS)
def test_every_hyper_parameter_changes_the_update(kind: Any):
    """Row 0 is unchanged, and in each other row one hyper-parameter differs."""
    _, states, buffers = cached_population(kind, P)
    names = [name for name in KINDS[kind] if name != "expl_noise"]  # it changes the actions, see below
    same = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), (states, buffers))
    changed, stored = same
    for place, name in enumerate(names, 1):
        low, high = KINDS[kind][name]
        changed = changed.replace(**{name: jnp.full(P, 0.4 * low + 0.6 * high).at[place].set(high)})
    for _ in range(2):  # targets and learning rates of the first show in the second
        changed, stored, metrics = updated(kind)(changed, stored)
    learned = [
        np.concatenate([np.ravel(leaf[place]) for leaf in jax.tree.leaves(changed.learned)]) for place in range(P)
    ]
    for place, name in enumerate(names, 1):
        assert not np.array_equal(learned[place], learned[0]), name
    assert_equal(row(changed.learned, len(names) + 1), row(changed.learned, 0))
    assert changed.steps.tolist() == [2] * P
    assert {"actor_loss", "critic_loss"} <= set(metrics)
    assert kind is PBTTD3 or {"alpha_loss", "obs_mean", "obs_std"} <= set(metrics)
    assert_equal(stored, same[1])


def test_exploration_noise_changes_the_actions():
    state, env = row(cached_population(PBTTD3, P)[1], 0), make_env()
    play = jax.jit(partial(agent(PBTTD3).play_step_fn, env=env), static_argnames="deterministic")
    first, played = jax.jit(env.reset)(jax.random.key(0)), []
    for noise, deterministic in ((0.1, False), (0.2, False), (0.0, False), (0.2, True)):
        rows = play(first, state.replace(expl_noise=jnp.float32(noise)), deterministic=deterministic)[2]
        played.append(rows.actions)
    np.testing.assert_allclose(played[1] - played[3], 2 * (played[0] - played[3]), rtol=1e-3)
    assert_equal(played[2], played[3])


def test_a_fixed_temperature_does_not_change():
    _, states, buffers = cached_population(PBTSAC, P)
    fixed, _, _ = updated(PBTSAC, fix_alpha=True)(states, buffers)
    learned, _, _ = updated(PBTSAC)(states, buffers)
    assert_equal(fixed.alpha_params, states.alpha_params)
    assert not np.any(learned.alpha_params == states.alpha_params)


@pytest.mark.parametrize("kind", KINDS)
def test_all_gradients_are_those_of_the_state_before_the_update(kind: Any):
    """The critics' learning rate changes the critics, and nothing else that the same update moves."""
    state, buffer = row(cached_population(kind, P)[1:], 0)
    same = jax.tree.map(lambda leaf: jnp.stack([leaf] * P), (state, buffer))
    states = same[0].replace(critic_lr=jnp.asarray([1e-6, 1e-1] * (P // 2), jnp.float32))
    after, _, _ = updated(kind)(states, same[1])
    slow, fast = row(after, 0), row(after, 1)
    for name in ("policy_params", "policy_optimizer_state", *(["alpha_params"] if kind is PBTSAC else [])):
        assert_equal(getattr(slow, name), getattr(fast, name))
    moved = [jax.tree.leaves(getattr(fast, name))[-1] for name in ("critic_params", "target_critic_params")]
    for leaf, other in zip(moved, (slow.critic_params, slow.target_critic_params), strict=True):
        assert not np.array_equal(leaf, jax.tree.leaves(other)[-1])
    assert not np.array_equal(jax.tree.leaves(fast.policy_params)[-1], jax.tree.leaves(state.policy_params)[-1])


# --- training and evaluation


def test_a_population_trains_and_is_evaluated():
    """The parameters of the last of 3 members are NaN."""
    learner, states, buffers = population(PBTTD3, 3, capacity=64, stored=8)
    broken = jax.tree.map(lambda leaf: leaf.at[2].multiply(jnp.nan), states.policy_params)
    states = states.replace(policy_params=broken)
    env = make_env(3 * 4)
    first = reshaped(jax.jit(env.reset)(jax.random.key(2)), 3, 4)
    train = jax.jit(learner.get_train_fn(env=env, num_iterations=6, env_batch_size=4, grad_updates_per_step=0.5))
    (trained, after, filled), metrics = train(states, first, buffers)
    assert trained.steps.tolist() == [12] * 3
    assert filled.current_size.tolist()[:2] == [8 + 24] * 2
    ended = [rows.sum(axis=1).tolist()[:2] for rows in (filled.state.rows.truncations, filled.state.rows.dones)]
    assert ended == [[4.0, 4.0]] * 2, "each environment reached its time limit once"
    assert int(filled.current_size[2]) == 8, "rows that are not finite are not stored"
    assert metrics["critic_loss"].shape == (3, 6)
    assert after.obs.shape == (3, 4, 2)
    assert_equal(states.steps, jnp.zeros(3, jnp.int32))  # the caller's arrays are unchanged
    assert not np.any(jax.tree.leaves(trained.critic_params)[-1][:2] == jax.tree.leaves(states.critic_params)[-1][:2])

    extract = environments.descriptor_extractor["point_room"]
    quick = jax.jit(learner.get_eval_qd_fn(env, extract))(trained, first)
    assert [leaf.shape for leaf in quick] == [(3,), (3, 2), (3, 4), (3, 4, 2)]
    assert np.isnan(quick[0]).tolist() == [False, False, True]
    np.testing.assert_allclose(quick[0][:2], quick[2][:2].mean(axis=1), rtol=1e-5)
    # A user-defined extractor receives the transitions.
    others = jax.jit(learner.get_eval_qd_fn(env, partial(extract)))(trained, first)
    for one, other in zip(quick, others, strict=True):
        np.testing.assert_allclose(one[:2], other[:2], rtol=1e-5, atol=1e-6)
    assert np.isnan(others[0]).tolist() == [False, False, True]


def test_members_that_break_the_physics_have_no_fitness():
    learner, states, _ = cached_population(PBTSAC, P)
    env = breaking_env(2 * P)
    first = reshaped(env.reset(jax.random.key(2)), P, 2)
    means, returns = jax.jit(learner.get_eval_fn(env))(states, first)
    assert 0 < int(jnp.isnan(means).sum()) < P
    extract = environments.descriptor_extractor["point_room"]
    fitness, _, every, places = jax.jit(learner.get_eval_qd_fn(env, partial(extract)))(states, first)
    np.testing.assert_array_equal(fitness, means)
    np.testing.assert_array_equal(every, returns)
    assert jnp.isfinite(places).all()


def test_observation_statistics_change_in_training_and_not_in_evaluation():
    learner, env = agent(PBTSAC, normalize_observations=True), make_env()

    @jax.jit
    def play(key: Any) -> Any:
        state, first = learner.init(key, 2, 2), env.reset(key)
        played = [learner.play_step_fn(first, state, env, *modes)[1] for modes in ((), (True, True))]
        return state, *played

    state, played, evaluated = play(jax.random.key(0))
    assert float(played.normalization_running_stats.count) > float(state.normalization_running_stats.count)
    assert_equal(evaluated.normalization_running_stats, state.normalization_running_stats)


def test_arguments_that_do_not_fit_a_population_are_rejected():
    learner, states, buffers = cached_population(PBTSAC, P)
    env = make_env(4 * P)
    flat = env.reset(jax.random.key(0))
    first, train = reshaped(flat, P, 4), learner.get_train_fn(env, 2, 4, 1.0)
    with pytest.raises(ValueError, match=r"must be \[P, 4, ...\], got \(32,\); reshape the result of reset"):
        train(states, flat, buffers)
    with pytest.raises(ValueError, match=r"need one leading axis, got \[\(8,\), \(4,\), \(8,\)\]"):
        train(states, jax.tree.map(lambda leaf: leaf[:4], first), buffers)
    others = jax.vmap(lambda _: ReplayBuffer.init(8, QDTransition.init_dummy(2, 2, 2)))(jnp.arange(P))
    with pytest.raises(ValueError, match="stores a Transition, but the buffers were created for QDTransition"):
        train(states, first, others)
    with pytest.raises(ValueError, match=r"no optimizer states; .*init_optimizers_states"):
        train(states.empty_optimizers_states(states), first, buffers)
    with pytest.raises(ValueError, match=r"0\.2 x 4 is less than one update"):
        learner.get_train_fn(env, 2, 4, 0.2)
    with pytest.raises(ValueError, match="auto_reset=True and eval_metrics=False"):
        learner.get_train_fn(make_env(4 * P, auto_reset=False), 2, 4, 1.0)
    with pytest.raises(ValueError, match=r"episode_length is 5, but .* point_room have 6 steps"):
        learner.get_eval_fn(make_env(episode_length=6))
    with pytest.raises(ValueError, match="probe_both has no descriptor"):
        learner.get_eval_qd_fn(make_env(name="probe_both"), environments.descriptor_extractor["point_room"])


# --- population based training


exploit = jax.jit(PBT(P, 2, 3).update_states_and_buffer)


def evolve(returns: list[float], seed: int = 0) -> tuple[list[int], Any]:
    """The parent of each member, and the states and buffers after the exploit."""
    _, states, buffers = cached_population(PBTTD3, P)
    after = exploit(jax.random.PRNGKey(seed), jnp.array(returns, jnp.float32), states, buffers)
    before, after_it = (np.reshape(jax.tree.leaves(tree.policy_params)[-1], (P, -1)) for tree in (states, after[0]))
    parents = [int(np.argmax((before == own[None]).all(axis=1))) for own in after_it]
    given, found = jax.device_get((states, buffers)), jax.device_get(after)
    for index, parent in enumerate(parents):
        assert_equal(row(found[0].learned, index), row(given[0].learned, parent))
        assert_equal(row(found[1], index), row(given[1], parent))
        if parent == index:
            assert_equal(row(found[0], index), row(given[0], index))
    return parents, after


@pytest.mark.parametrize(
    ("returns", "losers", "winners"),
    [
        ([5, 3, 8, 1, 7, 2, 6, 4], {3, 5, 1}, {2, 4}),
        ([1, 1, 1, 1, 1, 1, 2, 1], {4, 5, 7}, {6}),
        ([NAN, 3, 8, 1, 7, 2, 6, 4], {0, 3, 5}, {2, 4}),
        ([NAN] * P, set(), set()),
    ],
)
def test_the_worst_copy_better_members(returns: list, losers: set, winners: set):
    parents, _ = evolve(returns)
    assert {index for index, parent in enumerate(parents) if parent != index} == losers
    assert {parents[index] for index in losers} <= winners


def test_children_of_one_parent_differ_even_if_a_program_repeats_its_key():
    kind: Any = PBTTD3
    returns = [5.0, 3.0, 8.0, 1.0, 7.0, 2.0, 6.0, 4.0]
    parents, (states, _) = evolve(returns)
    children = jnp.array([index for index, parent in enumerate(parents) if parent != index])
    assert len(children) == 3, "at least two of them have one parent"
    before = cached_population(kind, P)[1]
    for name, (low, high) in KINDS[kind].items():
        drawn = getattr(states, name)
        assert distinct(drawn) == P, name
        assert low <= float(drawn.min()) <= float(drawn.max()) <= high
        assert not np.any(drawn[children] == getattr(before, name)[jnp.array(parents)[children]])
    assert distinct(states.key) == P
    moved = before.replace(key=before.key + 1)  # as after some training
    again, _ = exploit(jax.random.PRNGKey(0), jnp.array(returns), moved, cached_population(kind, P)[2])
    assert not np.any(again.discount[children] == states.discount[children])
    assert len({tuple(evolve(returns, seed)[0]) for seed in range(4)}) > 1


def test_counts_and_members_that_do_not_fit_the_population_are_rejected():
    PBT(4, 2, 2)
    for counts, message in (
        ((4, 3, 2), "3 best and 2 replaced members exceed the population of 4; lower one"),
        ((4, -1, 2), "-1 best and 2 replaced members must not be negative"),
    ):
        with pytest.raises(ValueError, match=message):
            PBT(*counts)
    _, states, buffers = cached_population(PBTTD3, P)
    with pytest.raises(ValueError, match="population_size is 4, but population_returns has 8 members"):
        PBT(4, 1, 1).update_states_and_buffer(jax.random.key(0), jnp.zeros(P), states, buffers)
    with pytest.raises(ValueError, match="need one leading axis"):
        PBT(4, 1, 1).update_states_and_buffer(jax.random.key(0), jnp.zeros(4), states, buffers)
