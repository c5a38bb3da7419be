"""Agents, environments and rows for tests of QDax's documented classes, as small as they can be."""

from typing import Any

import jax
import jax.numpy as jnp

from rookery.compat import qdax
from rookery.compat.qdax import PBTSAC, PBTTD3, SAC, TD3, Transition, environments

T = 5  # steps of an episode
NETS = {"policy_hidden_layer_size": (8,), "critic_hidden_layer_size": (8,)}
KINDS = {SAC: qdax.SacConfig, TD3: qdax.TD3Config, PBTSAC: qdax.PBTSacConfig, PBTTD3: qdax.PBTTD3Config}


def agent(kind: Any, action_size: int = 2, **changes: Any) -> Any:
    """With nets of 8, batches of 8 and episodes of `T` steps."""
    return kind(KINDS[kind](**{"batch_size": 8, "episode_length": T, **NETS, **changes}), action_size)


def room(size: int | None = 4, name: str = "point_room", **options: Any) -> Any:
    """A batch of environments with two observation numbers and two action dimensions, unless another is named."""
    return environments.create(name, batch_size=size, **{"episode_length": T, **options})


def rows(count: int, seed: int = 0) -> Transition:
    """Random transitions `[count, ...]` of a task with two observation numbers and two action dimensions."""
    keys = jax.random.split(jax.random.key(seed), 4)
    obs, reached, action = (jax.random.uniform(key, (count, 2), minval=-1.0) for key in keys[:3])
    none = jnp.zeros(count)
    return Transition(obs, reached, jax.random.normal(keys[3], (count,)), none, none, action)


def population(kind: Any, size: int, capacity: int = 16, held: int = 12) -> tuple[Any, Any, Any]:
    """An agent, and a population of it whose buffers hold rows of their own."""
    made = agent(kind)
    states, buffers = jax.jit(made.get_init_fn(size, 2, 2, capacity))(jax.random.key(1))
    told = jax.tree.map(lambda leaf: leaf.reshape(size, held, *leaf.shape[1:]), rows(size * held))
    return made, states, jax.jit(jax.vmap(lambda buffer, told: buffer.insert(told)))(buffers, told)


def reshaped(states: Any, *shape: int) -> Any:
    """Environments' states `[P * E, ...]` as `[P, E, ...]`."""
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), states)


def data(key: jax.Array) -> jax.Array:
    """A key of either kind as numbers."""
    return jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
