"""Training of an off-policy member: collect, warm up, normalise, restart, load a genotype.

`recording` has the environment and the agents. SAC is used where real parameters matter.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import normalize
from rookery.learners.base import genotype
from rookery.learners.off_policy import OffPolicyConfig
from rookery.types import Genotype
from tests import key_trace
from tests.learners.recording import (
    LENGTH,
    OWN_ACTION,
    SPY,
    TERMINATIONS,
    TINY,
    Setup,
    changed,
    counting,
    sac_in_the_room,
    setup,
    stored,
)
from tests.tiny import assert_equal


@pytest.fixture(scope="module")
def counted() -> Setup:
    return setup(SPY, counting(), TINY)


@pytest.fixture(scope="module")
def warmed() -> Setup:
    return setup(SPY, counting(), changed(TINY, warmup_steps=58))


@pytest.fixture(scope="module")
def real() -> Setup:
    return sac_in_the_room()


# --- what is collected


def test_stored_rows_hold_true_successors_and_true_ends(counted: Setup) -> None:
    rows = stored(counted.generations(2)[0], TINY.num_envs)
    observation, next_observation = rows.observation.features, rows.next_observation.features
    termination, time = observation[..., 0], observation[..., 1]
    assert observation.shape == (24, 4, 2)
    assert set(np.unique(termination)) == set(TERMINATIONS)
    np.testing.assert_array_equal(next_observation, np.stack([termination, time + 1], axis=-1))
    np.testing.assert_array_equal(rows.terminated, time + 1 >= termination)
    assert (rows.reward == 1.0).all()
    ended = rows.terminated | (time + 1 >= LENGTH)
    cut = ended & ~rows.terminated
    assert cut.any()
    assert (termination[cut] == 9.0).all()
    # What follows an end is a start of the bank; what follows anything else is its successor, over generations too.
    np.testing.assert_array_equal(time[1:][ended[:-1]], 0.0)
    np.testing.assert_array_equal(observation[1:][~ended[:-1]], next_observation[:-1][~ended[:-1]])


def test_updates_are_counted_read_nothing_that_was_not_stored_and_metrics_are_their_means(counted: Setup) -> None:
    member, metrics = counted.generations(2)
    diary = member.state
    assert float(metrics["index"]) == pytest.approx(np.mean(np.arange(24, 48)))
    assert (float(metrics["reward"]), float(metrics["broken_steps"])) == (1.0, 0.0)
    assert int(diary.updates) == 2 * 48 * 0.5
    assert bool(diary.in_order)
    assert float(diary.least[0]) == 2.0  # an unwritten row would be 0
    assert bool(diary.fresh)


def test_generations_share_one_compilation_and_leave_the_callers_member(real: Setup) -> None:
    before = jax.tree.map(np.array, real.member)
    assert int(before.buffer.size) == 0
    assert_equal(before.normalizer, normalize.init(2))
    starts = {tuple(start) for start in np.asarray(real.bank[1].observation.features).tolist()}
    assert {tuple(now) for now in before.env_state.observation.features.tolist()} <= starts
    real.traces.clear()
    real.generations(3)
    assert real.traces["step"] <= 1
    assert_equal(jax.tree.map(np.array, real.member), before)


def test_equal_keys_give_equal_members_and_other_keys_others(real: Setup) -> None:
    zero = jnp.int32(0)
    one, same, other = (real.step(real.member, real.bank, jax.random.key(seed), zero)[0] for seed in (0, 0, 1))
    assert_equal(one, same)
    assert (np.asarray(one.buffer.rows.action[:32]) != np.asarray(other.buffer.rows.action[:32])).all()


def test_every_key_is_consumed_once(real: Setup) -> None:
    def trace(key: jax.Array) -> Any:
        keys = jax.random.split(key, 5)
        bank = real.learner.start_states(keys[0])
        member = real.learner.init(keys[1], real.member.hyper, bank)
        member, _ = real.learner.step(member, bank, keys[2], jnp.int32(1))
        member = real.learner.restart(member, bank, keys[3], jnp.asarray(True))
        return real.learner.evaluate(genotype(member), bank, keys[4]).fitness

    assert key_trace.reused(trace) == []


def test_what_a_member_without_finite_actions_does_is_not_stored(counted: Setup) -> None:
    broken = counted.member._replace(state=counted.member.state._replace(params=jnp.full((2,), jnp.nan)))
    member, _ = counted.generations(1, broken)
    assert int(member.buffer.size) == 0
    assert not np.asarray(member.buffer.rows.action).any()


# --- warm-up


def test_warm_up_acts_uniformly_and_exactly_as_long_as_it_should(warmed: Setup) -> None:
    # 58 steps at four at a time: 15 rounds begin before the 58th step; then the spy's own action, 0.9.
    rows = stored(warmed.generations(2)[0], TINY.num_envs)
    own = (rows.action == np.float32(OWN_ACTION)).all(axis=(1, 2))
    assert own.tolist() == [False] * 15 + [True] * 9
    uniform = np.sort(rows.action[:15].ravel().astype(np.float64))
    assert len(np.unique(uniform)) == len(uniform) == 120
    expected = (uniform + 1) / 2
    distance = np.abs(expected - (np.arange(120) + 0.5) / 120).max()
    assert distance < 1.95 / np.sqrt(120)  # exceeded once in a thousand seeds by a uniform law


def test_updates_begin_after_warm_up_and_count_from_zero(warmed: Setup) -> None:
    member, metrics = warmed.generations(1)
    assert int(member.state.updates) == 0
    assert np.isnan(metrics["index"])
    member, metrics = warmed.generations(2)
    assert int(member.state.updates) == 9 * 2
    assert bool(member.state.in_order)
    assert float(metrics["index"]) == pytest.approx(np.mean(np.arange(18)))  # not thinned by rounds of no update


def test_warm_up_does_not_restart_after_two_billion_steps(warmed: Setup) -> None:
    generation = jnp.int32(45_000_000)  # x 48 = 2.16e9 steps, more than an int32 holds
    member, _ = warmed.step(warmed.member, warmed.bank, jax.random.key(0), generation)
    assert int(member.state.updates) == 24
    assert (stored(member, TINY.num_envs).action == np.float32(OWN_ACTION)).all()


# --- normalisation


def test_the_agent_learns_from_normalised_observations() -> None:
    # The only update is in the last of 12 rounds, so the statistics are those of all rows stored.
    config = changed(TINY, warmup_steps=44, updates_per_step=0.25, normalize_observations=True)
    member, _ = setup(SPY, counting(), config).generations(1)
    assert int(member.state.updates) == 1
    rows = jax.tree.map(lambda leaf: leaf.reshape(48, -1).astype(np.float64), stored(member, 4))
    observation, next_observation = rows.observation.features, rows.next_observation.features
    mean, std = observation.mean(axis=0), observation.std(axis=0)
    pairs = (observation, member.state.least), (next_observation, member.state.least_next)
    for raw, least in pairs:
        shown = (raw - mean) / std
        for number in range(2):
            assert np.isclose(least[number], shown[:, number], rtol=1e-3, atol=1e-4).any()
            assert not np.isclose(least[number], raw[:, number], rtol=1e-3, atol=1e-4).any()


def test_an_evaluation_normalises_with_the_statistics_of_the_genotype(real: Setup) -> None:
    member, _ = real.generations(2)
    own = genotype(member)
    assert own.normalizer is member.normalizer
    shifted = own._replace(normalizer=own.normalizer._replace(mean=own.normalizer.mean + 1.0))
    evaluator = jax.jit(real.learner.evaluate)
    one, other = (evaluator(candidate, real.bank, jax.random.key(0)).returns for candidate in (own, shifted))
    assert (np.asarray(one) != np.asarray(other)).all()


# --- restart, and loading a genotype


def test_restart_empties_only_where_needed_and_touches_no_row(counted: Setup) -> None:
    member, _ = counted.generations(1)
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), member)
    restart = jax.jit(jax.vmap(counted.learner.restart, in_axes=(0, None, 0, 0)))
    after = restart(both, counted.bank, jax.random.split(jax.random.key(5), 2), jnp.asarray([False, True]))
    assert_equal(after.buffer.rows, both.buffer.rows)
    assert after.buffer.size.tolist() == [48, 0]
    assert after.buffer.position.tolist() == [48, 0]
    assert_equal(jax.tree.map(lambda leaf: leaf[0], after), member)
    assert after.env_state.observation.features[1, :, 1].tolist() == [0.0] * 4
    assert after.env_state.state.time[1].tolist() == [0] * 4
    for old, new in zip(
        jax.tree.leaves(both._replace(env_state=None, buffer=None)),
        jax.tree.leaves(after._replace(env_state=None, buffer=None)),
        strict=True,
    ):
        np.testing.assert_array_equal(old, new)
    assert (np.asarray(both.env_state.observation.features[1, :, 1]) > 0).any()  # or there was nothing to begin anew


def test_a_loaded_genotype_keeps_the_data_of_the_slot_with_a_new_optimiser(real: Setup) -> None:
    member, _ = real.generations(2)
    donor, _ = real.step(member, real.bank, jax.random.key(77), jnp.int32(2))
    hyper = donor.hyper._replace(discount=jnp.float32(0.5))
    given = Genotype(donor.state.params, hyper, donor.normalizer)
    loaded = real.learner.load_genotype(member, given)
    assert_equal(loaded.state.params, donor.state.params)
    assert_equal(loaded.state.target_critic, donor.state.params.critic)
    for part in ("policy", "critic", "log_alpha"):
        for leaf in jax.tree.leaves(getattr(loaded.state, part).moments):
            assert not np.asarray(leaf).any()
    assert_equal(loaded.hyper, hyper)
    assert_equal(loaded.normalizer, donor.normalizer)
    assert_equal((loaded.buffer, loaded.env_state), (member.buffer, member.env_state))


# --- construction


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_envs": 8, "steps_per_generation": 30}, r"^steps_per_generation must .* \(8\), got 30; use 24 or"),
        ({"num_envs": 8, "steps_per_generation": 3}, r"\(8\), got 3; use 8\.$"),
        (
            {"num_envs": 4, "updates_per_step": 0.3},
            r"^updates_per_step x num_envs \(4\) .*, got 0\.3; use updates_per_step 0\.25\.$",
        ),
        (
            {"num_envs": 4, "updates_per_step": 0.0},
            r"^updates_per_step x num_envs \(4\) .*, got 0; use updates_per_step 0\.25\.$",
        ),
        ({"buffer_size": 255}, r"^buffer_size must be at least batch_size \(256\), got 255\.$"),
        ({"buffer_size": 2**31 - 25}, "^buffer_size must be at most 2147483622 with num_envs 25, .* got 2147483623"),
        ({"updates_per_step": 4e5}, r"^updates_per_step x num_envs x batch_size must be at most 2147483647, the"),
        ({"start_states": 9}, r"^start_states must be at least eval_episodes \(10\), got 9\.$"),
    ],
)
def test_mistakes_in_the_configuration_are_answered(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OffPolicyConfig(**options)
