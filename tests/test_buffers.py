"""The contract of buffers: stored rows, refused rows, sampling, and the cost of an insert."""

from collections import deque
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import buffers
from rookery.buffers import BufferState


class Row(NamedTuple):
    number: jax.Array  # [], identifies a row
    vector: jax.Array  # [2]
    flag: jax.Array  # [] bool
    count: jax.Array  # [] int32


ONE = Row(jnp.zeros(()), jnp.zeros((2,)), jnp.asarray(False), jnp.asarray(0, jnp.int32))


@pytest.fixture(params=[buffers.ring], ids=["ring"])
def make(request):
    """Every buffer of the contract."""
    return request.param


def rows(*numbers: float) -> Row:
    """Rows whose fields all say the same number; where it is not finite only `number` is not."""
    values = np.asarray(numbers, np.float32)
    whole = np.nan_to_num(values, posinf=0.0, neginf=0.0).astype(np.int32)
    vector = np.stack([whole, -whole], axis=1).astype(np.float32)
    return Row(*(jnp.asarray(field) for field in (values, vector, whole % 2 == 1, whole)))


def filled(make, capacity: int, *batches: tuple[float, ...]) -> tuple[buffers.Buffer, BufferState]:
    buffer, add = compiled(make, capacity)
    state = buffer.init(ONE)
    for batch in batches:
        state = add(state, rows(*batch))
    return buffer, state


@cache
def compiled(make, capacity: int) -> tuple[buffers.Buffer, Callable[..., BufferState]]:
    """A buffer, and its compiled insert."""
    buffer = make(capacity)
    return buffer._replace(take=jax.jit(buffer.take)), jax.jit(buffer.add)


def capacity(state: BufferState) -> int:
    return state.rows.number.shape[0]


def held(buffer: buffers.Buffer, state: BufferState) -> list[float]:
    """The numbers of the rows that can be sampled, sorted; checks that the fields of a row stay together."""
    taken = jax.tree.map(
        lambda leaf: np.asarray(leaf)[: int(state.size)], buffer.take(state, jnp.arange(capacity(state)))
    )
    np.testing.assert_array_equal(taken.vector, np.stack([taken.number, -taken.number], axis=1))
    np.testing.assert_array_equal(taken.count, taken.number)
    np.testing.assert_array_equal(taken.flag, taken.number % 2 == 1)
    return sorted(taken.number.tolist())


def test_a_new_buffer_is_empty_and_draws_row_zero(make) -> None:
    buffer, state = filled(make, 4)
    assert (int(state.size), int(state.position)) == (0, 0)
    assert buffer.draw(state, jax.random.key(0), (3,)).tolist() == [0, 0, 0]


def test_it_wraps_around_and_overwrites_the_oldest(make) -> None:
    assert held(*filled(make, 4, (1, 2, 3))) == [1, 2, 3]
    assert held(*filled(make, 4, (1, 2, 3), (4, 5))) == [2, 3, 4, 5]
    assert held(*filled(make, 4, (1, 2, 3), (4, 5), (6, 7, 8, 9))) == [6, 7, 8, 9]
    assert held(*filled(make, 4, (1, 2, 3), (4, 5), (6, 7, 8, 9), (10,))) == [7, 8, 9, 10]
    assert held(*filled(make, 3, (1,), (2, 3, 4))) == [2, 3, 4]


def test_rows_that_are_not_finite_are_refused_and_the_others_keep_their_order(make) -> None:
    # What remains of the first batch is 1, 2; one more row must then push out 1, not 2.
    bad = (np.nan, 1, np.inf, 2, -np.inf)
    assert held(*filled(make, 5, bad)) == [1, 2]
    assert held(*filled(make, 5, bad, (3, np.nan), (4, 5))) == [1, 2, 3, 4, 5]
    assert held(*filled(make, 5, bad, (3, np.nan), (4, 5), (6,))) == [2, 3, 4, 5, 6]
    buffer, before = filled(make, 3, (1, 2))
    for old, new in zip(*map(jax.tree.leaves, (before, buffer.add(before, rows(np.nan, np.inf)))), strict=True):
        np.testing.assert_array_equal(old, new)


def test_one_bad_number_in_any_field_refuses_the_whole_row(make) -> None:
    buffer, state = filled(make, 4)
    new = rows(1, 2, 3)
    state = buffer.add(state, new._replace(vector=new.vector.at[1, 1].set(jnp.nan)))
    assert held(buffer, state) == [1, 3]


def test_it_holds_what_a_queue_of_the_same_capacity_holds(make) -> None:
    random = np.random.default_rng(0)
    queue, number = deque(maxlen=7), 0
    buffer, state = filled(make, 7)
    add = jax.jit(buffer.add)
    for _ in range(40):
        batch = [float(number + i) for i in range(5)]
        number += 5
        batch = [np.nan if random.random() < 0.3 else value for value in batch]
        queue.extend(value for value in batch if np.isfinite(value))
        state = add(state, rows(*batch))
        assert held(buffer, state) == sorted(queue)


def test_sampling_is_uniform_over_the_rows_held_alone(make) -> None:
    buffer, state = filled(make, 5, (1, 2, 3), (4, 5, 6))
    indices = buffer.draw(state, jax.random.key(0), (100, 100))
    assert indices.shape == (100, 100)
    assert indices.dtype == jnp.int32
    numbers, counts = np.unique(buffer.take(state, indices).number, return_counts=True)
    assert numbers.tolist() == [2, 3, 4, 5, 6]
    assert np.abs(counts - 2000).max() < 160  # four standard deviations, sqrt(10000 x 0.2 x 0.8) = 40
    buffer, state = filled(make, 1000, (1, 2, 3))  # rows that were never written are not drawn
    assert np.unique(buffer.take(state, buffer.draw(state, jax.random.key(0), (2000,))).number).tolist() == [1, 2, 3]


def test_other_keys_draw_other_rows_and_taking_keeps_the_shape_of_the_indices(make) -> None:
    buffer, state = filled(make, 8, tuple(range(1, 9)))
    one, same, other = (buffer.draw(state, jax.random.key(seed), (50,)).tolist() for seed in (0, 0, 1))
    assert one == same != other
    taken = buffer.take(state, jnp.asarray([[0, 1, 1], [3, 2, 0]]))
    assert [leaf.shape for leaf in taken] == [(2, 3), (2, 3, 2), (2, 3), (2, 3)]
    assert taken.number.tolist() == [[1, 2, 2], [4, 3, 1]]


def test_clearing_forgets_every_row_and_the_next_ones_come_first(make) -> None:
    buffer, state = filled(make, 4, (1, 2, 3))
    state = buffers.clear(state)
    assert int(state.size) == 0
    state = buffer.add(state, rows(8, 9))
    assert held(buffer, state) == [8, 9]
    taken = buffer.take(state, buffer.draw(state, jax.random.key(0), (100,)))
    assert np.unique(taken.number).tolist() == [8, 9]


def test_types_are_preserved(make) -> None:
    buffer, state = filled(make, 4, (1, 2, 3))
    expected = [jnp.float32, jnp.float32, jnp.bool_, jnp.int32]
    assert [leaf.dtype for leaf in state.rows] == expected
    assert [leaf.dtype for leaf in buffer.take(state, jnp.asarray([0]))] == expected
    assert (state.position.dtype, state.size.dtype) == (jnp.int32, jnp.int32)


def test_each_member_refuses_its_own_rows(make) -> None:
    buffer = make(3)
    states = jax.tree.map(lambda leaf: np.stack([leaf] * 3), buffer.init(ONE))
    batches = [(1, 2, np.nan), (np.nan, np.nan, np.nan), (4, np.inf, 5)], [(6, 7), (8, np.nan), (9, 10)]
    for batch in batches:
        new = jax.tree.map(lambda *leaves: np.stack(leaves), *(rows(*member) for member in batch))
        states = jax.jit(jax.vmap(buffer.add))(states, new)
    members = [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], states) for i in range(3)]
    assert [held(buffer, member) for member in members] == [[2, 6, 7], [8], [5, 9, 10]]
    keys = jax.random.split(jax.random.key(0), 3)
    drawn = jax.jit(jax.vmap(partial(buffer.draw, shape=(200,))))(states, keys)
    assert np.asarray(drawn).max(axis=1).tolist() == [2, 0, 2]


@pytest.mark.parametrize("members", [None, 3])
def test_a_donated_insert_consumes_the_old_buffer_and_makes_no_second_one(make, members: int | None) -> None:
    buffer = make(200_000)
    state, new, add = buffer.init(ONE), rows(1, np.nan, 3), buffer.add
    if members:
        state, new = jax.tree.map(lambda leaf: jnp.asarray(np.stack([leaf] * members)), (state, new))
        add = jax.vmap(add)
    held_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state.rows))
    compiled = jax.jit(add, donate_argnums=0).lower(state, new).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < held_bytes / 100
    assert memory.alias_size_in_bytes >= held_bytes
    after = compiled(state, new)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(new))
    assert (np.asarray(after.size) == 2).all()


def test_without_donation_the_callers_buffer_survives(make) -> None:
    buffer, before = filled(make, 3, (1, 2, 3))
    after = jax.jit(buffer.add)(before, rows(4, 5))
    assert held(buffer, before) == [1, 2, 3]
    assert held(buffer, after) == [3, 4, 5]


def test_invalid_arguments_are_errors(make) -> None:
    with pytest.raises(ValueError, match=r"^the capacity of a buffer must be at least 1, got 0\.$"):
        make(0)
    with pytest.raises(
        ValueError, match=r"^the capacity of a buffer must be at most 2147483647, the largest int32, got 2147483648\.$"
    ):
        buffers.ring(2**31)
    buffer, state = filled(make, 3)
    with pytest.raises(ValueError, match=r"^4 rows at once do not fit a buffer of 3; enlarge the buffer\.$"):
        buffer.add(state, rows(1, 2, 3, 4))


def test_rows_that_are_not_valid_are_left_out():
    buffer = buffers.ring(4)
    state = buffer.add(buffer.init(jnp.zeros(())), jnp.arange(4.0), jnp.asarray([False, True, False, True]))
    assert state.rows[:2].tolist() == [1.0, 3.0]
    assert (int(state.size), int(state.position)) == (2, 2)
    state = buffer.add(state, jnp.asarray([jnp.nan, 5.0, 6.0]), jnp.asarray([True, True, False]))
    assert state.rows[:3].tolist() == [1.0, 3.0, 5.0]
    assert int(state.size) == 3
