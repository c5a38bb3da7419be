"""Small agents, environments and rows for tests of QDax's documented classes."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.compat import qdax
from rookery.compat.qdax import PBTSAC, PBTTD3, SAC, TD3, PBTEmitter, PBTEmitterConfig, Transition, environments
from rookery.envs import Environment, EnvSpec, first_step, limit_episode, next_step
from rookery.envs.base import descriptor_spec

T = 5  # steps of an episode
NETS: dict[str, Any] = {"policy_hidden_layer_size": (8,), "critic_hidden_layer_size": (8,)}
KINDS = {SAC: qdax.SacConfig, TD3: qdax.TD3Config, PBTSAC: qdax.PBTSacConfig, PBTTD3: qdax.PBTTD3Config}


def agent(kind: Any, action_size: int = 2, **changes: Any) -> Any:
    """Build an agent with 8 hidden units, batches of 8 and episodes of `T` steps."""
    return kind(KINDS[kind](**{"batch_size": 8, "episode_length": T, **NETS, **changes}), action_size)


def make_env(size: int | None = 4, name: str = "point_room", **options: Any) -> Any:
    """Create a batch of environments; the default task has observations and actions of size 2."""
    return environments.create(name, batch_size=size, **{"episode_length": T, **options})


def breaking_env(size: int) -> environments.Batch:
    """A task with rewards of -1, in which the physics breaks in the third step of an environment that moves right."""
    spec = EnvSpec("breaks", observation_size=2, action_size=2, episode_length=T)
    spec = spec._replace(descriptor=descriptor_spec("position", "final", (-1.0, -1.0), (1.0, 1.0)))

    def reset(key: Any) -> tuple:
        x = jax.random.uniform(key, (2,), minval=-0.01, maxval=0.01)
        return x, first_step(x, x)

    def step(state: Any, action: Any, key: Any) -> tuple:
        del key
        x = state + 0.1 * jnp.sign(action)
        x = jnp.where(x[0] > 0.25, jnp.nan, x)
        return x, next_step(x, jnp.float32(-1.0), jnp.asarray(False), x)

    return environments.Batch(limit_episode(Environment(reset, step, spec), T), size, eval_metrics=True)


def rows(count: int, seed: int = 0) -> Transition:
    """Random transitions `[count, ...]` of a task with observations and actions of size 2."""
    keys = jax.random.split(jax.random.key(seed), 4)
    obs, reached, action = (jax.random.uniform(key, (count, 2), minval=-1.0) for key in keys[:3])
    none = jnp.zeros(count)
    return Transition(obs, reached, jax.random.normal(keys[3], (count,)), none, none, action)


@cache
def _largest_population(kind: Any, capacity: int, stored: int) -> tuple[Any, Any, Any]:
    learner = agent(kind)
    batch = jax.tree.map(lambda leaf: leaf.reshape(16, stored, *leaf.shape[1:]), rows(16 * stored))

    @jax.jit
    def begin(key: Any) -> Any:
        states, buffers = learner.get_init_fn(16, 2, 2, capacity)(key)
        return states, jax.vmap(lambda buffer, batch: buffer.insert(batch))(buffers, batch)

    return learner, *jax.device_get(begin(jax.random.key(1)))


def population(kind: Any, size: int, capacity: int = 16, stored: int = 12) -> tuple[Any, Any, Any]:
    """Build an agent, and a population of it with different rows in each buffer; compiled once for all sizes to 16."""
    learner, *whole = _largest_population(kind, capacity, stored)
    return learner, *jax.tree.map(lambda leaf: jnp.asarray(leaf[:size]), whole)


EMITTER = {"buffer_size": 16, "num_training_iterations": 1, "env_batch_size": 2, "grad_updates_per_step": 1.0}
EMITTER |= {"pg_population_size_per_device": 2, "ga_population_size_per_device": 3, "num_devices": 1}
EMITTER |= {"fraction_best_to_replace_from": 0.5, "fraction_to_replace_from_best": 0.0}
EMITTER |= {"fraction_to_replace_from_samples": 0.5, "fraction_sort_exchange": 0.1}


def make_emitter(
    kind: Any = PBTTD3, env_size: int | None = None, sigmas: tuple[float, float] = (0.01, 0.0), **changes: Any
) -> PBTEmitter:
    """Build an ME-PBT emitter configured with `EMITTER` and `changes`, in as many environments as it needs."""
    config: Any = PBTEmitterConfig(**{**EMITTER, **changes})
    needed = config.pg_population_size_per_device * config.env_batch_size
    vary = partial(qdax.sac_pbt_variation_fn, iso_sigma=sigmas[0], line_sigma=sigmas[1])
    return PBTEmitter(agent(kind), config, make_env(needed if env_size is None else env_size), vary)


def row(tree: Any, index: int) -> Any:
    """Row `index` of every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def distinct(values: jax.Array) -> int:
    """The number of different rows."""
    return len({tuple(np.ravel(value).tolist()) for value in values})


def reshaped(states: Any, *shape: int) -> Any:
    """Reshape environment states from `[P * E, ...]` to `shape`."""
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), states)


def data(key: jax.Array) -> jax.Array:
    """The data of a raw or typed key."""
    return jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
