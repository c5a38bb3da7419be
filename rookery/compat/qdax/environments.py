"""This library's tasks by the documented names: `create`, `descriptor_extractor`, `reward_offset`."""

from functools import partial, wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.compat.qdax import env_batch
from rookery.compat.qdax.records import QDTransition
from rookery.envs import descriptors, registry
from rookery.types import Array

_WRITTEN = {"anttrap": "ant_trap", "humanoidtrap": "humanoid_trap", "antmaze": "ant_maze", "pointmaze": "point_maze"}
"""Documented names -> this library's, where these differ."""


@wraps(env_batch.make, assigned=())
def create(env_name: str, **options: Any) -> env_batch.Batch:
    """A batch of environments of one task, by its documented name or ours; see `rookery.compat.qdax.env_batch.make`."""
    return env_batch.make(_WRITTEN.get(env_name, env_name), **options)


class Extractor(NamedTuple):
    """A task's own descriptor of whole episodes."""

    kind: descriptors.Kind

    def __call__(self, transitions: QDTransition, mask: Array) -> Array:
        """`[B, D]` of transitions `[B, T, ...]` and a mask `[B, T]`, set after each episode's end."""
        summarise = jax.vmap(partial(descriptors.summarise, self.kind))
        return summarise(transitions.next_state_desc, ~jnp.asarray(mask, bool))


_DESCRIBED = {name: registry.find(_WRITTEN.get(name, name)) for name in (*registry.described(), *_WRITTEN)}
descriptor_extractor = {name: Extractor(task.descriptor.kind) for name, task in _DESCRIBED.items() if task.descriptor}
reward_offset = {name: task.qd_offset for name, task in _DESCRIBED.items()}
