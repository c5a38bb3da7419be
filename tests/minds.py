"""What tests of agents share: a spec, batches, and quick compilation."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rookery.envs.api import EnvSpec
from rookery.types import Transition

SPEC = EnvSpec("test", observation_size=3, action_size=2, episode_length=10)
BATCH = 8
FAST_COMPILE = {"xla_backend_optimization_level": 0}


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return jax.jit(function, compiler_options=FAST_COMPILE, **options)


def transitions(key: jax.Array, spec: EnvSpec = SPEC, rows: int = BATCH) -> Transition:
    keys = jax.random.split(key, 4)
    return Transition(
        observation=jax.random.normal(keys[0], (rows, spec.observation_size)),
        action=jax.random.uniform(keys[1], (rows, spec.action_size), minval=-1.0, maxval=1.0),
        reward=jax.random.normal(keys[2], (rows,)),
        next_observation=jax.random.normal(keys[3], (rows, spec.observation_size)),
        terminated=jnp.arange(rows) < 2,
    )
