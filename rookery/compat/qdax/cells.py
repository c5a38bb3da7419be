"""MAP-Elites for loops of one's own: whoever has genotypes scored by the batch, in a simulator of theirs or elsewhere.

Programs (`map_elites`, `me_pbt`) score genotype by genotype and run by themselves. On one device, or inside a mapped
axis where each device scores its share and all have the same repertoire (`devices.shares`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.compat.qdax.pbt import RenewFn, common, is_finite, renewed
from rookery.compat.records import Record, typed
from rookery.populations.base import member_keys
from rookery.populations.sharding import WHOLE, Shares, moved
from rookery.qd import pbt_emitter, variation
from rookery.qd import repertoire as repertoires
from rookery.qd.repertoire import Repertoire
from rookery.types import Array, Key, Metrics, PyTree, Scalar

Scored = tuple[Array, Array, PyTree]
"""Of a batch: fitnesses `[B]`, descriptors `[B, D]`, and what else is known of each."""


class Cells(Record):
    """A `Repertoire` with its functions as methods; C cells, each with the best genotype found there."""

    genotypes: PyTree  # leaves [C, ...]
    fitnesses: Array  # [C]; -inf where a cell is empty
    descriptors: Array  # [C, D]
    centroids: Array  # [C, D]

    @classmethod
    def init_default(cls, genotype: PyTree, centroids: Array) -> Self:
        """Empty cells for genotypes like this one."""
        return cls(*repertoires.empty(genotype, centroids))

    @classmethod
    def init(cls, genotypes: PyTree, fitnesses: Array, descriptors: Array, centroids: Array) -> Self:
        """Cells with the best of a first batch, `[B, ...]`; B may be 0."""
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), genotypes)
        return cls.init_default(one, centroids).add(genotypes, descriptors, fitnesses)

    def add(
        self,
        batch_of_genotypes: PyTree,
        batch_of_descriptors: Array,
        batch_of_fitnesses: Array,
        batch_of_extra_scores: PyTree = None,
    ) -> Self:
        """Let a batch `[B, ...]` compete for the cells, see `repertoire.add`; what else is known is not kept."""
        del batch_of_extra_scores
        batch = batch_of_genotypes, batch_of_fitnesses.reshape(-1), batch_of_descriptors
        return type(self)(*repertoires.add(self.repertoire, *batch)[0])

    def select(self, key: Key, num_samples: int, selector: Any = None) -> Self:
        """Rows `[num_samples, ...]` of occupied cells, drawn uniformly or by `selector.select(self, key, num_samples)`.

        Args:
          key: of either kind; consumed.

        Raises:
          ValueError: all cells are empty, and this is known.
        """
        if selector is not None:
            return selector.select(self, key, num_samples)
        return trees.take(self, repertoires.sample(self.repertoire, typed(key), num_samples))

    def genotypes_or(self, others: PyTree, key: Key, count: int, selector: Any = None) -> PyTree:
        """As `select`, but from an empty repertoire the `others` `[M, ...]` in turn, also where this is not known."""
        if selector is not None:
            return selector.select(self, key, count).genotypes
        drawn = trees.take(self.genotypes, repertoires.draw(self.repertoire, typed(key), count))
        size = jax.tree.leaves(others)[0].shape[0]
        return trees.where(self.repertoire.occupied.any(), drawn, trees.take(others, jnp.arange(count) % size))

    @property
    def repertoire(self) -> Repertoire:
        """The same for the functions."""
        return Repertoire(self.genotypes, self.fitnesses, self.descriptors, self.centroids)


class Loop(NamedTuple):
    """What one turn of MAP-Elites consists of; every genotype axis is this device's share.

    `emitter` has `init(key, repertoire, genotypes, *scored)`, `emit(repertoire, state, key)`, which gives genotypes and
    what else is known of them, and `state_update(state, repertoire, genotypes, *scored)`.
    """

    score: Callable[[PyTree, Key], Scored]
    emitter: Any
    measure: Callable[[Any], Metrics]  # of the repertoire
    shares: Shares = WHOLE

    def begin(self, genotypes: PyTree, fill: Callable[..., Any], key: Key) -> tuple[Any, Any, Metrics]:
        """Score the first genotypes and `fill(genotypes, fitnesses, descriptors)` a repertoire with everybody's."""
        score_key, emitter_key = jax.random.split(key)
        scored = self.score(genotypes, score_key)
        repertoire = fill(*self.shares.gather((genotypes, *scored[:2])))
        state = self.emitter.init(emitter_key, repertoire, genotypes, *scored)
        return self._tell(repertoire, state, genotypes, scored)

    def turn(self, repertoire: Any, state: Any, key: Key) -> tuple[Any, Any, Metrics]:
        """Emit, score, add, tell the emitter; `repertoire.add(genotypes, descriptors, fitnesses)`."""
        emit_key, score_key = jax.random.split(key)
        genotypes, known = self.emitter.emit(repertoire, state, emit_key)
        fitnesses, descriptors, more = self.score(genotypes, score_key)
        repertoire = repertoire.add(*self.shares.gather((genotypes, descriptors, fitnesses)))
        return self._tell(repertoire, state, genotypes, (fitnesses, descriptors, {**more, **known}))

    def _tell(self, repertoire: Any, state: Any, genotypes: PyTree, scored: Scored) -> tuple[Any, Any, Metrics]:
        state = self.emitter.state_update(state, repertoire, genotypes, *scored)
        return repertoire, state, self.measure(repertoire)


def isoline_variation(
    x1: PyTree,
    x2: PyTree,
    key: Key,
    iso_sigma: Scalar,
    line_sigma: Scalar,
    minval: float | None = None,
    maxval: float | None = None,
) -> PyTree:
    """Children `[B, ...]` of B pairs of parents, see `variation.iso_line`, kept between bounds where there are some.

    Args:
      x1: first parents, `[B, ...]`.
      x2: second parents, `[B, ...]`.
      key: of either kind; consumed.
    """
    keys = member_keys(typed(key), jax.tree.leaves(x1)[0].shape[0])
    breed = partial(variation.iso_line, config=variation.Sigmas(iso_sigma, line_sigma))
    children = jax.vmap(breed)(x1, x2, keys)
    if minval is None and maxval is None:
        return children
    return jax.tree.map(lambda leaf: jnp.clip(leaf, minval, maxval), children)


class Elites(NamedTuple):
    """How elites come to live again."""

    exist: Array | bool  # [] bool
    draw: Callable[[Key, int], PyTree]  # genotypes, of the whole repertoire
    revive: Callable[[PyTree], Any]  # one genotype -> an apprentice


def exploit(
    counts: pbt_emitter.Counts,
    fitness: Array,
    many: Any,
    elites: Elites,
    key: Key,
    renew: RenewFn,
    shares: Shares = WHOLE,
) -> tuple[Any, Array]:
    """ME-PBT's exploit (Pierrot 2023, arXiv:2303.12803) over apprentices: the worst take a parent from the best, the
    next worst an elite, each with a key and hyper-parameters of its own.

    Args:
      counts: of the whole population.
      fitness: this share's.
      many: this share's apprentices.
      elites: see `Elites`; where there are none, only parents are taken.
      key: consumed.
      renew: see `RenewFn`.

    Returns:
      This share's apprentices, and which of them took the place of one whose fitness was not finite, bool.
    """
    everybodys = shares.gather(is_finite(fitness, many))
    size = everybodys.shape[0]
    parents_key, elites_key, new_key = jax.random.split(common(key, many, shares), 3)
    parents, revived = pbt_emitter.origins(counts, everybodys, parents_key, elites_exist=elites.exist)
    many = moved(many, parents, shares.rows, in_place=True)
    arrived = jax.vmap(elites.revive)(shares.own(elites.draw(elites_key, size)))
    arrived = arrived.replace(steps=many.steps)  # their updates go on with everybody's
    many = trees.where(shares.own(revived), arrived, many)
    is_new = revived | (parents != jnp.arange(size))
    return renewed(many, is_new, new_key, renew, shares), shares.own(is_new & ~jnp.isfinite(everybodys))
