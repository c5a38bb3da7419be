"""Streaming descriptors: what an episode was like, summed up while it runs.

A task says at every step where it is (`Step.descriptor`, `[D]`); an accumulator of constant size turns the stream into
one descriptor per episode. No trajectory is stored and nothing is masked with NaN: steps after the end of the episode
are told apart by a boolean.
"""

from typing import Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from rookery.types import Array


class Summary(NamedTuple):
    """Running sum over the living steps of an episode."""

    total: Array  # [D]
    steps: Array  # [] float32, number of steps summed


class InitFn(Protocol):
    """Descriptor size -> an empty `Summary`."""

    def __call__(self, size: int) -> Summary: ...


class AccumulateFn(Protocol):
    """Add one step's `[D]` state descriptor if `alive` (`[]` bool), else change nothing."""

    def __call__(self, summary: Summary, descriptor: Array, alive: Array) -> Summary: ...


class FinishFn(Protocol):
    """The episode's descriptor, `[D]`; finite for any number of steps, zero of them included."""

    def __call__(self, summary: Summary) -> Array: ...


class Descriptor(NamedTuple):
    """How a stream of state descriptors becomes one."""

    init: InitFn
    accumulate: AccumulateFn
    finish: FinishFn


Kind = Literal["mean", "final"]


def init(size: int) -> Summary:
    """A summary of no steps."""
    return Summary(jnp.zeros((size,), jnp.float32), jnp.zeros((), jnp.float32))


def accumulate_mean(summary: Summary, descriptor: Array, alive: Array) -> Summary:
    """Sum the living steps."""
    added = Summary(summary.total + descriptor, summary.steps + 1.0)
    return Summary(*(jnp.where(alive, new, old) for new, old in zip(added, summary, strict=True)))


def accumulate_final(summary: Summary, descriptor: Array, alive: Array) -> Summary:
    """Keep the last living step."""
    return Summary(jnp.where(alive, descriptor, summary.total), jnp.ones_like(summary.steps))


def finish(summary: Summary) -> Array:
    """Total over steps, or zeros for an episode of no steps."""
    return summary.total / jnp.maximum(summary.steps, 1.0)


KINDS: dict[str, Descriptor] = {
    "mean": Descriptor(init, accumulate_mean, finish),  # e.g. the share of steps that a foot touches the ground
    "final": Descriptor(init, accumulate_final, finish),  # e.g. where the episode ended
}


def summarise(kind: Kind, descriptor_t: Array, alive_t: Array) -> Array:
    """The descriptor `[D]` of a stored episode: what its steps said, `[T, D]`, and which of them lived, `[T]` bool."""
    how = KINDS[kind]

    def follow(summary: Summary, step: tuple[Array, Array]) -> tuple[Summary, None]:
        return how.accumulate(summary, *step), None

    return how.finish(jax.lax.scan(follow, how.init(descriptor_t.shape[-1]), (descriptor_t, alive_t))[0])
