"""The rule by which the members of an island are replaced by members that other islands published.

Source: Petrenko 2023, "DexPBT" (arXiv:2305.12127), section IV: each agent reads what others have saved, compares itself
only with those of at most its own experience, and, if it is among the worst, takes the parameters of one of the best.
Deviations: an island has several members, of which only the worst are compared; its own best are candidates as well,
so that a member takes a migrant's genotype only if it draws one. A migrant must be strictly better, as in every
selection of this library; DexPBT requires a margin.
"""

import jax.numpy as jnp
import numpy as np

from rookery.populations import selection
from rookery.populations.config import rounded
from rookery.types import Array, Key


def sources(fitness: Array, migrants: Array, fraction: float, key: Key) -> Array:
    """The migrant that each member of an island is replaced by.

    Members and migrants are ranked together. Each of the worst `fraction` of the members (at least one) draws uniformly
    from the best `fraction` of all (at least one), among those that are strictly better than itself; it is replaced if
    it draws a migrant. Ranks are stable, and values that are not finite rank last.

    Args:
      fitness: `[P]`, of the members, higher is better.
      migrants: `[S]`, of the published genotypes that the island may compare itself with.
      fraction: in [0, 1]; 0 replaces no member.
      key: consumed; each member draws separately.

    Returns:
      `[P]` int32: the index of the migrant, or -1 where the member stays.
    """
    size = fitness.shape[0]
    count = max(1, rounded(fraction, size))
    together = jnp.concatenate([fitness, migrants])
    best = max(1, rounded(fraction, together.shape[0]))
    parents = selection.truncation(together, key, best, together.shape[0])[:size]
    takes = (selection.ranks(fitness) >= size - count) & (parents >= size) & (fraction > 0)
    return jnp.where(takes, parents - size, -1).astype(jnp.int32)


def sampled(occupied: np.ndarray, fraction: float, seed: np.random.Generator) -> np.ndarray:
    """The cells whose elites an island publishes: a random share of the occupied ones (`[C]` bool), at least one,
    ascending.

    `fraction` in [0, 1]; 0 publishes none.
    """
    cells = np.flatnonzero(occupied)
    count = min(len(cells), max(1, rounded(fraction, len(cells)))) if fraction > 0 else 0
    return np.sort(seed.permutation(cells)[:count])
