"""This library's tasks by the documented names: `create`, `descriptor_extractor`, `reward_offset`."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery.compat.records import QDTransition
from rookery.envs import batch, descriptors, tasks
from rookery.records import check
from rookery.types import Array


def create(
    env_name: str,
    *,
    batch_size: int | None = None,
    episode_length: int = 1000,
    auto_reset: bool = True,
    eval_metrics: bool = False,
    fixed_init_state: bool = False,
    backend: str = "spring",
    **overrides: Any,
) -> batch.Batch:
    """A batch of environments of one task, e.g. `walker2d_uni`; outside of any trace.

    Args:
      env_name: one of `rookery envs`, with continuous actions and one agent.
      batch_size: E, at least 1; None for one environment without a leading axis.
      episode_length: steps until truncation, at least 1.
      auto_reset: begin the next episode in the step that ends the last one.
      eval_metrics: count finished episodes and their returns, see `envs.batch.EvalMetrics`.
      fixed_init_state: every episode begins in the same state.
      backend: of Brax's physics; other tasks have none.
      **overrides: what else the task lets one choose.

    Raises:
      ImportError: the task's suite is not installed.
      ValueError: there is no such task, or a value is out of its range.
    """
    for name, only in (("action_repeat", 1), ("qdax_wrappers_kwargs", None)):
        given = overrides.pop(name, only)
        check(given == only, f"{name} is not supported, got {given!r}; leave it out.")
    physics = {"backend": backend} if "backend" in tasks.find(env_name).overrides else {}
    world = tasks.make(env_name, episode_length=episode_length, **physics, **overrides)
    return batch.Batch(world, batch_size, batch.Options(auto_reset, eval_metrics, fixed_init_state))


class Extractor(NamedTuple):
    """A task's own descriptor of whole episodes."""

    kind: descriptors.Kind

    def __call__(self, transitions: QDTransition, mask: Array) -> Array:
        """`[B, D]` of transitions `[B, T, ...]` and a mask `[B, T]`, set after each episode's end."""
        summarise = jax.vmap(partial(descriptors.summarise, self.kind))
        return summarise(transitions.next_state_desc, ~jnp.asarray(mask, bool))


_DESCRIBED = {name: tasks.find(name) for name in tasks.described()}
descriptor_extractor: Mapping[str, Extractor] = MappingProxyType(
    {name: Extractor(task.descriptor.kind) for name, task in _DESCRIBED.items() if task.descriptor}
)
reward_offset: Mapping[str, float] = MappingProxyType({name: task.qd_offset for name, task in _DESCRIBED.items()})
