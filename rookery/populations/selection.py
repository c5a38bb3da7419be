"""Selection: fitness `[P]` -> `parents` `[P]`, where `parents[i] == i` means that member i survives.

Every strategy keeps these invariants: selection is by rank, except for `threshold`; a member whose fitness is not
finite ranks last, is never a parent, and is replaced in every generation in which any member has a finite fitness. A
parent's fitness is strictly higher than that of the member it replaces: among equal members none is replaced, so that a
population that has not found any reward keeps its diversity, and parents form a forest even where a parent is itself
replaced.
"""

from collections.abc import Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rookery import trees
from rookery.populations.base import member_keys
from rookery.types import Array, Key


def ranks(fitness: Array) -> Array:
    """The rank `[P]` int32 of each member, 0 the best; values that are not finite rank last, ties by lower index."""
    chex.assert_rank(fitness, 1)
    order = jnp.argsort(jnp.where(jnp.isfinite(fitness), -fitness, jnp.inf), stable=True)
    return jnp.argsort(order).astype(jnp.int32)


def comparable(fitness: Array) -> Array:
    """Fitness `[P]` with every value that is not finite replaced by -inf, so that it compares below all others."""
    return jnp.where(jnp.isfinite(fitness), fitness, -jnp.inf)


def truncation(fitness: Array, key: Key, best: int, replaced: Array | int) -> Array:
    """Truncation selection (Jaderberg 2017, section 4.1.1).

    Each of the worst `replaced` members gets a parent drawn uniformly from the best `best` members.

    Args:
      fitness: `[P]`, higher is better.
      key: consumed; each member draws separately.
      best: number of potential parents, at least 1; a member draws only from those that are better than itself, and
        survives if there are none.
      replaced: in 0..P; fewer members are replaced if fitnesses are equal.

    Returns:
      parents `[P]` int32.
    """
    size, finite, rank, value = fitness.shape[0], jnp.isfinite(fitness), ranks(fitness), comparable(fitness)
    pool = jnp.clip(jnp.sum(value[None] > value[:, None], axis=1), 1, best)
    drawn = jax.vmap(trees.indices, in_axes=(0, None, 0))(member_keys(key, size), (), pool)
    loses = (rank >= size - replaced) | ~finite
    return _replace(fitness, loses, jnp.argsort(rank)[drawn])


def tournament(fitness: Array, key: Key, active: Array | bool = True) -> Array:
    """Binary tournament selection (Jaderberg 2017, section 4.1.1).

    Every member is compared with a random opponent, which becomes its parent if it is better.

    Args:
      fitness: `[P]`, higher is better; P at least 2.
      key: consumed; each member draws separately.
      active: `[]` bool; if False, only members whose fitness is not finite are replaced.

    Returns:
      parents `[P]` int32.
    Deviation: opponents are compared by one fitness; the paper tests whether the last 10 evaluations differ
    significantly (Welch's t-test).
    """
    size, finite = fitness.shape[0], jnp.isfinite(fitness)
    others = jnp.arange(1, size + 1)  # the opponent of member i is at index i + 1 to i + P - 1, modulo P
    shift = jax.vmap(trees.indices, in_axes=(0, None, None))(member_keys(key, size), (), size - 1)
    opponent = (others + shift) % size
    # The opponent of a member whose fitness is not finite must be finite, so it is drawn from the finite members.
    finite_opponent = jnp.argsort(ranks(fitness))[shift % jnp.maximum(jnp.sum(finite), 1)]
    return _replace(fitness, active | ~finite, jnp.where(finite, opponent, finite_opponent))


def threshold(fitness: Array, key: Key, stds: float, margin: float, active: Array | bool = True) -> Array:
    """Threshold selection, the rule of Isaac Lab's Population Based Training with rl_games.

    Leaders have a fitness above `mean + max(stds * std, margin)`, underperformers one below
    `mean - max(stds * std, margin)`; mean and standard deviation are those of the finite fitnesses. Each underperformer
    gets a parent drawn uniformly from the leaders; without a leader none is replaced.

    Args:
      fitness: `[P]`, higher is better.
      key: consumed; each member draws separately.
      stds: distance from the mean in standard deviations, at least 0.
      margin: distance from the mean in units of the fitness, at least 0.
      active: `[]` bool; if False, only members whose fitness is not finite are replaced.

    Returns:
      parents `[P]` int32.
    Deviations: without a leader Isaac Lab perturbs the hyper-parameters of the underperformers. A member whose fitness
    is not finite is replaced, without a leader by any finite member.
    """
    size, finite = fitness.shape[0], jnp.isfinite(fitness)
    count = jnp.maximum(jnp.sum(finite), 1)
    scale = jnp.where(jnp.any(finite & (jnp.abs(fitness) > 1e15)), 1e-25, 1.0)  # so that no square overflows
    scaled = fitness * scale
    mean = jnp.sum(jnp.where(finite, scaled, 0.0)) / count.astype(fitness.dtype)
    std = jnp.sqrt(jnp.sum(jnp.square(jnp.where(finite, scaled - mean, 0.0))) / count.astype(fitness.dtype))
    distance = jnp.maximum(stds * std, margin * scale)
    leaders = jnp.sum(finite & (scaled > mean + distance))
    pool = jnp.where(leaders > 0, leaders, count)
    drawn = jax.vmap(trees.indices, in_axes=(0, None, None))(member_keys(key, size), (), pool)
    loses = (active & (leaders > 0) & (scaled < mean - distance)) | ~finite
    return _replace(fitness, loses, jnp.argsort(ranks(fitness))[drawn])


def multi_frequency(
    fitness: Array, generation: Array, frequencies: Sequence[int], active: Array | bool = True
) -> Array:
    """Multiple-frequency selection: sub-populations evolve at different intervals and exchange migrants (MF-PBT).

    Source: "Multiple-Frequencies Population-Based Training" (arXiv:2506.03225). Sub-population f contains the members
    `f P/F .. (f + 1) P/F - 1` and evolves when `frequencies[f]` divides the number of generations finished. Then its
    worst quarter is replaced by its best quarter, rank by rank, and the quarter above the worst is replaced by the best
    members of all other sub-populations, one each, if these are better.

    Args:
      fitness: `[P]`, higher is better; P a multiple of F, with at least 4 members in each sub-population.
      generation: `[]` int32, the generation of the fitness, counted from 0.
      frequencies: F intervals in generations.
      active: `[]` bool; if False, only members whose fitness is not finite are replaced.

    Returns:
      parents `[P]` int32; `donors` gives the members whose hyper-parameters they inherit.
    Deviations: if 4 does not divide the size of a sub-population, its quarters are rounded down. Children within a
    sub-population are perturbed as `PbtConfig.perturb` defines, which may resample a hyper-parameter; in the paper it
    is only multiplied. A member is only replaced by a strictly better one.
    """
    size, finite, rank = fitness.shape[0], jnp.isfinite(fitness), ranks(fitness)
    group, count = _subpopulations(size, frequencies)
    share = count // 4
    better = rank[None, :] < rank[:, None]  # [P, P]: j is better than i
    same_group = group[None, :] == group[:, None]
    place = jnp.sum(better & same_group, axis=1)  # rank within the sub-population

    at_place = jnp.argsort(group * size + place).reshape(-1, count)  # [F, P/F] members, best first
    local_parent = at_place[group, jnp.clip(place - (count - share), 0, count - 1)]
    foreign = jnp.argsort(jnp.where(jnp.arange(len(frequencies))[:, None] == group[None], size, 0) + rank[None], axis=1)
    bracket = at_place[:, count - 2 * share : count - share]  # [F, share], best first
    migrant = jnp.arange(size).at[bracket].set(_migrants(comparable(fitness), bracket, foreign[:, : size - count]))

    due = active & ((generation + 1) % jnp.asarray(frequencies) == 0)[group]
    inside, outside = due & (place >= count - share), due & (migrant != jnp.arange(size))
    champion = at_place[group, 0]
    fallback = jnp.where(finite[champion], champion, jnp.argmin(rank))
    chosen = jnp.where(inside, local_parent, migrant)
    chosen = jnp.where(finite & finite[chosen], chosen, fallback)
    return _replace(fitness, inside | outside | ~finite, chosen)


def _migrants(value: Array, bracket: Array, foreign: Array) -> Array:
    """The member that each place of the bracket `[F, share]` gets.

    It is the next best member of the other sub-populations (`foreign`, `[F, P - P/F]`) if that is better than the
    present member, and the present member otherwise.
    """

    def migrate(arrived: Array, members: Array) -> tuple[Array, Array]:
        candidate = jnp.take_along_axis(foreign, arrived[:, None], axis=1)[:, 0]
        is_better = value[candidate] > value[members]
        return arrived + is_better.astype(jnp.int32), jnp.where(is_better, candidate, members)

    none_arrived = jnp.zeros(bracket.shape[0], jnp.int32)
    return jax.lax.scan(migrate, none_arrived, bracket.T)[1].T


def donors(fitness: Array, parents: Array, frequencies: Sequence[int]) -> Array:
    """The member whose hyper-parameters each member inherits under `multi_frequency`: MF-PBT's asymmetric migration.

    A child of its own sub-population inherits those of its parent. A migrant into a faster sub-population keeps those
    of its parent; a migrant into a slower one gets those of the best member there, so that greedily selected
    hyper-parameters do not displace those selected over long intervals; between sub-populations of equal frequency only
    the parameters migrate, and the slot keeps its hyper-parameters. A member that replaces a diverged one inherits
    those of its parent.

    Args:
      fitness: `[P]`, higher is better.
      parents: `[P]` int32, from `multi_frequency`.
      frequencies: F intervals in generations.

    Returns:
      donors `[P]` int32.
    """
    size = fitness.shape[0]
    group, count = _subpopulations(size, frequencies)
    interval = jnp.asarray(frequencies)[group]
    champion = jnp.argmin(ranks(fitness).reshape(-1, count), axis=1)[group] + group * count
    champion = jnp.where(jnp.isfinite(fitness[champion]), champion, parents)
    otherwise = jnp.where(interval == interval[parents], jnp.arange(size), champion)
    from_parent = within_subpopulation(parents, frequencies) | (interval < interval[parents]) | ~jnp.isfinite(fitness)
    return jnp.where(from_parent, parents, otherwise).astype(jnp.int32)


def within_subpopulation(parents: Array, frequencies: Sequence[int]) -> Array:
    """Whether each member's parent belongs to the member's sub-population; `[P]` bool."""
    group, _ = _subpopulations(parents.shape[0], frequencies)
    return group == group[parents]


def _subpopulations(size: int, frequencies: Sequence[int]) -> tuple[Array, int]:
    """The sub-population of each member, `[P]`, and the number of members of each sub-population."""
    count = size // len(frequencies)
    return jnp.arange(size) // count, count


def _replace(fitness: Array, loses: Array, chosen: Array) -> Array:
    """The parents `[P]`: the chosen one for each member that loses, if it is better; -inf replaces no member."""
    value = comparable(fitness)
    return jnp.where(loses & (value[chosen] > value), chosen, jnp.arange(fitness.shape[0])).astype(jnp.int32)


SMOOTHED = 3  # selections whose best fitness is averaged


class Rounds(NamedTuple):
    """The rounds of a population whose interval between selections is automatic; a time is a number of generations.

    The first round selects in every generation. A round ends when its best fitness no longer rises: when its mean over
    three selections has had no new maximum for some selections. Then the interval doubles, the parameters of all
    members are shrunk and perturbed (`inheritance.shrink_and_perturb`), and the process of `pb2` proposes the
    hyper-parameters of all members from its latest 256 observations, also of earlier rounds. Replay buffers and
    statistics of observations stay.

    Source: Chebykin 2025, "Iterated Population Based Training with Task-Agnostic Restarts" (IPBT, arXiv:2511.09190).

    Deviations: the authors smooth the best fitness of a round by a Gaussian process, after z-scores, which a mean does
    not need; a selection counts as without improvement if the smoothed fitness is below that of the selection before,
    and rounds that rise slowly end too. Their population is three quarters copies of the best quarter when it is
    shrunk; here it is what its strategy selects. They then train twice as many members until the first selection. Their
    proposals rest on what the descendants of each initial setting reached in its round, and half of them are random;
    here they rest on the gains of single generations in PB2's window. No round begins that could not end again before
    the end of the run, where that is known.
    """

    number: Array
    """`[]` int32, the present round, from 0 on."""
    begun: Array
    """`[]` int32, the time at which it began."""
    interval: Array
    """`[]` int32, generations between two of its selections."""
    selected: Array
    """`[]` int32, the time of the last selection, at first that at which the round began."""
    latest: Array
    """`[SMOOTHED]`, the best fitness at the latest selections of the round, newest first; -inf where there was none."""
    highest: Array
    """`[]`, the maximum over the round's selections of the mean of `latest`; -inf before the first one."""
    waited: Array
    """`[]` int32, selections since that maximum."""

    def is_selection(self, generation: Array) -> Array:
        """Whether members are selected after this generation, `[]` bool, by the rounds after it."""
        return self.selected == generation + 1

    def is_last(self, generation: Array) -> Array:
        """Whether a round ends with this generation, `[]` bool, by the rounds after it."""
        return self.begun == generation + 1


def first_round() -> Rounds:
    """The first round before its first generation, with a selection in every generation."""
    zero, one = jnp.zeros((), jnp.int32), jnp.ones((), jnp.int32)
    return Rounds(zero, zero, one, zero, jnp.full(SMOOTHED, -jnp.inf), jnp.full((), -jnp.inf), zero)


def advance_rounds(
    burn_in: int, patience: int, until: int | None, rounds: Rounds, fitness: Array, generation: Array
) -> Rounds:
    """The rounds after a generation.

    Args:
      burn_in: generations at the start of the run without selection.
      patience: selections without a new maximum after which a round ends; one without a finite fitness does not count.
      until: generations after which no round begins that could not end by then; None for no such limit.
      rounds: before the generation.
      fitness: `[P]`, by which members are selected.
      generation: `[]` int32, the generation of the fitness, counted from 0.
    """
    time, best = generation + 1, jnp.max(comparable(fitness))
    is_known = jnp.isfinite(best)
    latest = jnp.where(is_known, jnp.concatenate([best[None], rounds.latest[:-1]]), rounds.latest)
    smoothed = jnp.mean(latest, where=jnp.isfinite(latest))
    rises = smoothed > rounds.highest  # not where it is NaN, before the first selection that counts
    highest = jnp.where(rises, smoothed, rounds.highest)
    waited = jnp.where(rises, 0, rounds.waited + is_known.astype(jnp.int32))
    later = rounds._replace(selected=time, latest=latest, highest=highest, waited=waited)
    new = first_round()._replace(number=rounds.number + 1, begun=time, interval=2 * rounds.interval, selected=time)
    is_due = (generation >= burn_in) & (time - rounds.selected >= rounds.interval)
    ends = waited >= patience
    if until is not None:
        ends &= time + new.interval * (patience + 1) <= until
    return trees.where(is_due, trees.where(ends, new, later), rounds)
