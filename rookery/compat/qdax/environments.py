"""Rookery's tasks with the documented functions of QDax: `create`, `descriptor_extractor`, `reward_offset`."""

from functools import partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.compat.qdax import env_batch
from rookery.compat.qdax.records import QDTransition
from rookery.envs import descriptors, registry
from rookery.types import Array

_WRITTEN = {"anttrap": "ant_trap", "humanoidtrap": "humanoid_trap", "antmaze": "ant_maze", "pointmaze": "point_maze"}
"""QDax's task name -> Rookery's task name, where they differ."""


@wraps(env_batch.make, assigned=())
def create(env_name: str, **options: Any) -> env_batch.Batch:
    """Create a batch of environments by QDax's or Rookery's task name; see `rookery.compat.qdax.env_batch.make`."""
    return env_batch.make(_WRITTEN.get(env_name, env_name), **options)


class Extractor(NamedTuple):
    """Computes a task's predefined descriptor from whole episodes."""

    kind: descriptors.Kind

    def __call__(self, transitions: QDTransition, mask: Array) -> Array:
        """Descriptors `[B, D]` of transitions `[B, T, ...]`; the mask `[B, T]` is true after the end of an episode."""
        summarise = jax.vmap(partial(descriptors.summarise, self.kind))
        return summarise(transitions.next_state_desc, ~jnp.asarray(mask, bool))


_DESCRIBED = {name: registry.find(_WRITTEN.get(name, name)) for name in (*registry.described(), *_WRITTEN)}
descriptor_extractor = {name: Extractor(task.descriptor.kind) for name, task in _DESCRIBED.items() if task.descriptor}
reward_offset = {name: task.qd_offset for name, task in _DESCRIBED.items()}
