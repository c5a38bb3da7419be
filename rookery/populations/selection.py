"""Who inherits from whom: fitness `[P]` -> `parents` `[P]`, where `parents[i] == i` means that i survives.

Every strategy keeps one law: selection is by rank, and a member whose fitness is not finite ranks last, is never a
parent, and is replaced as long as anything finite exists, whatever the strategy would otherwise do in this generation.
A parent's fitness is strictly higher than its child's: among equals nobody is replaced, so that a population without
any reward yet keeps its diversity, and parents form a forest even where a parent is itself replaced.
"""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp

from rookery.populations.base import member_keys
from rookery.types import Array, Key


def ranks(fitness: Array) -> Array:
    """The place of each member, 0 the best; what is not finite comes last, ties go to the lower index. `[P]` int32."""
    chex.assert_rank(fitness, 1)
    order = jnp.argsort(jnp.where(jnp.isfinite(fitness), -fitness, jnp.inf), stable=True)
    return jnp.argsort(order).astype(jnp.int32)


def worth(fitness: Array) -> Array:
    """Fitness `[P]` to compare members by: what is not finite is -inf, below all others."""
    return jnp.where(jnp.isfinite(fitness), fitness, -jnp.inf)


def truncation(fitness: Array, key: Key, best: int, replaced: Array | int) -> Array:
    """The worst `replaced` members take a parent drawn uniformly from the best `best` (Jaderberg 2017, section 4.1.1).

    Args:
      fitness: `[P]`, higher is better.
      key: consumed; each member has a draw of its own.
      best: at least 1; only those are drawn that are better than the member, which survives if none is.
      replaced: in 0..P; fewer are replaced where fitnesses are equal.

    Returns:
      parents `[P]` int32.
    """
    size, finite, rank, value = fitness.shape[0], jnp.isfinite(fitness), ranks(fitness), worth(fitness)
    pool = jnp.clip(jnp.sum(value[None] > value[:, None], axis=1), 1, best)
    drawn = jax.vmap(jax.random.randint, in_axes=(0, None, None, 0))(member_keys(key, size), (), 0, pool)
    loses = (rank >= size - replaced) | ~finite
    return _replace(fitness, loses, jnp.argsort(rank)[drawn])


def tournament(fitness: Array, key: Key, active: Array | bool = True) -> Array:
    """Every member meets a random rival, and takes it for a parent if it is better (Jaderberg 2017, section 4.1.1).

    Args:
      fitness: `[P]`, higher is better; P at least 2.
      key: consumed; each member has a draw of its own.
      active: `[]` bool; where False only members that are not finite are replaced.

    Returns:
      parents `[P]` int32.
    Deviation: rivals are compared by one fitness; the paper asks whether the last 10 evaluations differ significantly
    (Welch).
    """
    size, finite = fitness.shape[0], jnp.isfinite(fitness)
    others = jnp.arange(1, size + 1)  # the rival of member i stands 1 to P - 1 places further on
    shift = jax.vmap(jax.random.randint, in_axes=(0, None, None, None))(member_keys(key, size), (), 0, size - 1)
    rival = (others + shift) % size
    # A member that is not finite must find a finite one, so it draws among those instead.
    rescuer = jnp.argsort(ranks(fitness))[shift % jnp.maximum(jnp.sum(finite), 1)]
    return _replace(fitness, active | ~finite, jnp.where(finite, rival, rescuer))


def multi_frequency(
    fitness: Array, generation: Array, frequencies: Sequence[int], active: Array | bool = True
) -> Array:
    """Sub-populations that evolve at different intervals, and take migrants from each other (MF-PBT).

    Source: "Multiple-Frequencies Population-Based Training" (arXiv:2506.03225). Sub-population f holds the members
    `f P/F .. (f + 1) P/F - 1` and evolves when `frequencies[f]` divides the number of generations finished. Then its
    worst quarter takes its best quarter for parents, place by place, and the quarter above the worst takes the best
    members of all other sub-populations, one each, where these are better.

    Args:
      fitness: `[P]`, higher is better; P a multiple of F, with at least 4 members in each sub-population.
      generation: `[]` int32, of the fitness, counted from 0.
      frequencies: F intervals in generations.
      active: `[]` bool; where False only members that are not finite are replaced.

    Returns:
      parents `[P]` int32; `donors` says whose hyper-parameters they take.
    Deviations: a sub-population of a size that 4 does not divide rounds its quarters down. Children within a
    sub-population perturb what they inherit as in all of `PbtConfig.perturb`, so they may also draw a hyper-parameter
    afresh; in the paper they only multiply it. Who is not better replaces nobody.
    """
    size, finite, rank = fitness.shape[0], jnp.isfinite(fitness), ranks(fitness)
    tribe, count = _tribes(size, frequencies)
    share = count // 4
    better = rank[None, :] < rank[:, None]  # [P, P]: j is better than i
    kin = tribe[None, :] == tribe[:, None]
    place = jnp.sum(better & kin, axis=1)  # within the sub-population

    at_place = jnp.argsort(tribe * size + place).reshape(-1, count)  # [F, P/F] members, best first
    elder = at_place[tribe, jnp.clip(place - (count - share), 0, count - 1)]
    foreign = jnp.argsort(jnp.where(jnp.arange(len(frequencies))[:, None] == tribe[None], size, 0) + rank[None], axis=1)
    bracket = at_place[:, count - 2 * share : count - share]  # [F, share], best first
    migrant = jnp.arange(size).at[bracket].set(_migrants(worth(fitness), bracket, foreign[:, : size - count]))

    due = active & ((generation + 1) % jnp.asarray(frequencies) == 0)[tribe]
    inside, outside = due & (place >= count - share), due & (migrant != jnp.arange(size))
    champion = at_place[tribe, 0]
    rescuer = jnp.where(finite[champion], champion, jnp.argmin(rank))
    chosen = jnp.where(inside, elder, migrant)
    chosen = jnp.where(finite & finite[chosen], chosen, rescuer)
    return _replace(fitness, inside | outside | ~finite, chosen)


def _migrants(value: Array, bracket: Array, foreign: Array) -> Array:
    """Who comes to each place of the bracket `[F, share]`: the next best stranger (of `[F, P]`) if it is better, or
    nobody: the member that is there."""

    def welcome(arrived: Array, members: Array) -> tuple[Array, Array]:
        stranger = jnp.take_along_axis(foreign, arrived[:, None], axis=1)[:, 0]
        comes = value[stranger] > value[members]
        return arrived + comes.astype(jnp.int32), jnp.where(comes, stranger, members)

    nobody_yet = jnp.zeros(bracket.shape[0], jnp.int32)
    return jax.lax.scan(welcome, nobody_yet, bracket.T)[1].T


def donors(fitness: Array, parents: Array, frequencies: Sequence[int]) -> Array:
    """Whose hyper-parameters each member takes under `multi_frequency`: MF-PBT's asymmetric migration.

    A child of its own sub-population takes its parent's. A migrant into a faster one brings its own along; a migrant
    into a slower one takes those of the best member there, so that what evolved greedily does not displace what
    evolved patiently; between equally fast ones nothing changes but the weights. Who diverged takes its parent's.

    Returns:
      `[P]` int32.
    """
    size = fitness.shape[0]
    tribe, count = _tribes(size, frequencies)
    interval = jnp.asarray(frequencies)[tribe]
    champion = jnp.argmin(ranks(fitness).reshape(-1, count), axis=1)[tribe] + tribe * count
    champion = jnp.where(jnp.isfinite(fitness[champion]), champion, parents)
    abroad = jnp.where(interval == interval[parents], jnp.arange(size), champion)
    follows = at_home(parents, frequencies) | (interval < interval[parents]) | ~jnp.isfinite(fitness)
    return jnp.where(follows, parents, abroad).astype(jnp.int32)


def at_home(parents: Array, frequencies: Sequence[int]) -> Array:
    """Whether each member's parent is of its own sub-population; `[P]` bool."""
    tribe, _ = _tribes(parents.shape[0], frequencies)
    return tribe == tribe[parents]


def _tribes(size: int, frequencies: Sequence[int]) -> tuple[Array, int]:
    """The sub-population of each member, `[P]`, and how many members each has."""
    count = size // len(frequencies)
    return jnp.arange(size) // count, count


def _replace(fitness: Array, loses: Array, chosen: Array) -> Array:
    """The chosen parent for all that lose, where it is better; so nobody is replaced while nothing is finite."""
    value = worth(fitness)
    return jnp.where(loses & (value[chosen] > value), chosen, jnp.arange(fitness.shape[0])).astype(jnp.int32)
