"""This library's tasks by the documented names: `create`, `descriptor_extractor`, `reward_offset`."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery.compat.records import QDTransition
from rookery.envs import batch, descriptors, tasks
from rookery.types import Array

create = batch.make


class Extractor(NamedTuple):
    """A task's own descriptor of whole episodes."""

    kind: descriptors.Kind

    def __call__(self, transitions: QDTransition, mask: Array) -> Array:
        """`[B, D]` of transitions `[B, T, ...]` and a mask `[B, T]`, set after each episode's end."""
        summarise = jax.vmap(partial(descriptors.summarise, self.kind))
        return summarise(transitions.next_state_desc, ~jnp.asarray(mask, bool))


_DESCRIBED = {name: tasks.find(name) for name in tasks.described()}
descriptor_extractor = {name: Extractor(task.descriptor.kind) for name, task in _DESCRIBED.items() if task.descriptor}
reward_offset = {name: task.qd_offset for name, task in _DESCRIBED.items()}
