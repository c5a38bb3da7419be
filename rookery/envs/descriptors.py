"""Streaming descriptors: reduce the state descriptors of an episode to one descriptor while the episode runs.

A task returns a state descriptor `[D]` in every step (`Step.descriptor`); an accumulator of constant size reduces this
stream to one descriptor per episode. No trajectory is stored, and a boolean instead of NaN marks the steps after the
end of the episode.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import Array


class Summary(NamedTuple):
    """Accumulator over the valid steps of an episode."""

    total: Array  # sum of the state descriptors, or the last one, `[D]`
    steps: Array  # number of steps that `total` is divided by, `[]` float32


class Descriptor(NamedTuple):
    """Functions that reduce a stream of state descriptors to one descriptor."""

    init: Callable[[int], Summary]
    """Descriptor size D -> an empty summary."""
    accumulate: Callable[[Summary, Array, Array], Summary]
    """Adds one step's state descriptor `[D]` if `alive` (`[]` bool) is true, else returns the summary unchanged."""
    finish: Callable[[Summary], Array]
    """The episode's descriptor `[D]`, which is finite for any number of steps, including zero."""


Kind = Literal["mean", "final"]


def init(size: int) -> Summary:
    """Create the summary of zero steps for descriptors of length `size`."""
    return Summary(jnp.zeros((size,), jnp.float32), jnp.zeros((), jnp.float32))


def accumulate_mean(summary: Summary, descriptor: Array, alive: Array) -> Summary:
    """Sum the valid steps."""
    added = Summary(summary.total + descriptor, summary.steps + 1.0)
    return Summary(*(jnp.where(alive, new, old) for new, old in zip(added, summary, strict=True)))


def accumulate_final(summary: Summary, descriptor: Array, alive: Array) -> Summary:
    """Keep the last valid step."""
    return Summary(jnp.where(alive, descriptor, summary.total), jnp.ones_like(summary.steps))


def finish(summary: Summary) -> Array:
    """Divide the total by the number of steps; zeros for an episode of zero steps."""
    return summary.total / jnp.maximum(summary.steps, 1.0)


KINDS: dict[str, Descriptor] = {
    "mean": Descriptor(init, accumulate_mean, finish),  # e.g. the fraction of steps in which a foot touches the ground
    "final": Descriptor(init, accumulate_final, finish),  # e.g. the position at the end of the episode
}


def summarise(kind: Kind, descriptor_t: Array, alive_t: Array) -> Array:
    """Compute the descriptor `[D]` of a stored episode of state descriptors `[T, D]`, to which the steps `alive_t`
    (`[T]` bool) belong."""
    reduction = KINDS[kind]

    def accumulate(summary: Summary, step: tuple[Array, Array]) -> tuple[Summary, None]:
        return reduction.accumulate(summary, *step), None

    return reduction.finish(
        jax.lax.scan(accumulate, reduction.init(descriptor_t.shape[-1]), (descriptor_t, alive_t))[0]
    )


def visited_cells(positions: np.ndarray, cell: float) -> int:
    """Count the distinct cells of side `cell`, with corners at its multiples, that positions `[N, D]` lie in.

    Park 2024 (arXiv:2310.08887) counts cells of 1 x 1 m.
    """
    return len(np.unique(np.floor(np.asarray(positions, np.float64) / cell), axis=0))
