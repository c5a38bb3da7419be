"""Calls from compiled programs to the host: their arrays arrive bit for bit, whatever axes are mapped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs.host import calls
from rookery.envs.host.base import FRESH, HostState, Sizes


class Recorder:
    """A `calls.Host` that records the arrays that it is called with, and returns the sums of actions as features."""

    def __init__(self, sizes: Sizes):
        self.sizes, self.calls = sizes, []

    def step(self, shape, slots, seeds, actions):
        """See `calls.Host`."""
        self.calls.append((shape, *map(np.array, (slots, seeds, actions))))
        count = len(slots)
        sums = np.asarray(actions, np.float32).reshape(count, -1).sum(axis=1, keepdims=True)
        zeros = np.zeros(count, np.int32)
        return np.asarray(slots) + 1, sums, np.asarray(seeds, np.float32), zeros, np.zeros((count, 0), np.float32)


@pytest.mark.parametrize("discrete", [False, True])
def test_arrays_arrive_bit_for_bit_in_the_order_of_the_mapped_axes(discrete: bool):
    sizes = Sizes(1, np.dtype(np.float32), 0, () if discrete else (2,), discrete)
    host = Recorder(sizes)
    slots = np.array([[FRESH, 7, 2**31 - 1], [0, -2, 3]], np.int32)
    seeds = np.array([[0, 1, 2**31 - 1], [5, 6, 7]], np.int32)
    actions = np.arange(6, dtype=np.int32).reshape(2, 3) - 1
    if not discrete:
        special = np.array([-0.0, np.nan, np.inf, 1e-42, 0.25, -1.0], np.float32).reshape(2, 3)
        actions = np.stack([special, np.ones_like(special)], axis=-1)

    def step(slot, seed, action):
        return calls.step(host, HostState(slot, seed, action), action, jax.random.key(0))  # pyright: ignore[reportArgumentType]

    state, result = jax.jit(jax.vmap(jax.vmap(step)))(*map(jnp.asarray, (slots, seeds, actions)))
    assert len(host.calls) == 1
    shape, *arrived = host.calls[0]
    assert shape == (2, 3)
    for found, given in zip(arrived, (slots, seeds, actions), strict=True):
        assert found.dtype == given.dtype
        assert found.shape == (6, *given.shape[2:])
        assert found.tobytes() == given.tobytes()
    np.testing.assert_array_equal(state.slot, slots + np.int32(1))
    np.testing.assert_array_equal(result.reward, seeds.astype(np.float32))


@pytest.mark.parametrize("limit", [0, 5, 6])
def test_steps_in_the_calling_thread_are_not_announced(limit: int):
    class Announced(Recorder):
        def steps_here(self, count):
            """See `calls.Host`."""
            return count <= limit

        def announce(self, shape, slots, seeds, actions):
            """See `calls.Host`."""
            self.calls.append((shape, *map(np.array, (slots, seeds, actions))))
            return (np.asarray(slots) + 1,)

    host = Announced(Sizes(1, np.dtype(np.float32), 0, (), True))

    def announce(slot):
        return calls.announce(host, HostState(slot, slot, slot), slot)  # pyright: ignore[reportArgumentType]

    slots = jnp.arange(6, dtype=jnp.int32).reshape(2, 3)
    state = jax.block_until_ready(jax.jit(jax.vmap(jax.vmap(announce)))(slots))
    assert len(host.calls) == (limit < 6)
    np.testing.assert_array_equal(state.slot, np.arange(6).reshape(2, 3) + (limit < 6))


def test_an_exception_ends_the_program_with_its_message():
    def fail(_: np.ndarray) -> list[np.ndarray]:
        raise ValueError("a mistake on the host")

    result = [jax.ShapeDtypeStruct((2,), jnp.float32)]
    with pytest.raises(jax.errors.JaxRuntimeError, match="ValueError: a mistake on the host"):
        jax.block_until_ready(jax.jit(lambda x: calls.send(fail, result, x))(jnp.zeros(3)))


def test_calls_are_made_in_every_iteration_of_a_loop_and_on_every_device():
    def double(values: np.ndarray) -> list[np.ndarray]:
        return [values * 2.0, np.zeros((0, 4), np.float32)]

    results = [jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((0, 4), jnp.float32)]
    loop = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, x: calls.send(double, results, x)[0], x))
    for device in jax.local_devices():
        np.testing.assert_array_equal(loop(jax.device_put(jnp.arange(3.0), device)), [0.0, 32.0, 64.0])


def test_other_devices_than_cpus_use_a_callback_of_jax():
    result = [jax.ShapeDtypeStruct((3,), jnp.float32)]
    text = str(jax.make_jaxpr(lambda x: calls.send(lambda x: [x], result, x))(jnp.zeros(3)))
    assert "platforms=(('cpu',), None)" in text
    assert text.index("buffer_callback") < text.index("io_callback")  # in the order of these platforms
