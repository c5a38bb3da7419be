"""MAP-Elites for user-defined training loops with a scoring function of batches of genotypes, e.g. another simulator.

Rookery's programs (`map_elites`, `me_pbt`) score one genotype at a time and contain their training loop. The functions
run on one device, or inside a mapped axis where each device scores its share and all devices hold the same repertoire
(`distributed.layout.shares`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.compat.qdax.pbt import RenewFn, common_key, finite_fitness, renew_members
from rookery.compat.records import Record, typed_key
from rookery.populations.base import member_keys
from rookery.populations.sharding import WHOLE, Shares, moved
from rookery.qd import pbt_emitter, variation
from rookery.qd import repertoire as repertoires
from rookery.qd.repertoire import Repertoire
from rookery.types import Array, Key, Metrics, PyTree, Scalar

Scored = tuple[Array, Array, PyTree]
"""Scores of a batch: fitnesses `[B]`, descriptors `[B, D]`, and extra scores."""


class Cells(Record):
    """A `Repertoire` with its functions as methods: C cells, each with the best genotype found in it."""

    genotypes: PyTree
    """Leaves `[C, ...]`."""
    fitnesses: Array
    """`[C]`, -inf where a cell is empty."""
    descriptors: Array
    """`[C, D]`."""
    centroids: Array
    """`[C, D]`."""

    @classmethod
    def init_default(cls, genotype: PyTree, centroids: Array) -> Self:
        """Empty cells for genotypes with the shapes of `genotype`."""
        return cls(*repertoires.empty(genotype, centroids))

    @classmethod
    def init(cls, genotypes: PyTree, fitnesses: Array, descriptors: Array, centroids: Array) -> Self:
        """Cells with the best genotypes of an initial batch `[B, ...]`; B may be 0."""
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), genotypes)
        return cls.init_default(shapes, centroids).add(genotypes, descriptors, fitnesses)

    def add(
        self,
        batch_of_genotypes: PyTree,
        batch_of_descriptors: Array,
        batch_of_fitnesses: Array,
        batch_of_extra_scores: PyTree = None,
    ) -> Self:
        """Add a batch `[B, ...]`, see `repertoire.add`; extra scores are not stored."""
        del batch_of_extra_scores
        batch = batch_of_genotypes, batch_of_fitnesses.reshape(-1), batch_of_descriptors
        return type(self)(*repertoires.add(self.repertoire, *batch)[0])

    def select(self, key: Key, num_samples: int, selector: Any = None) -> Self:
        """Sample occupied cells `[num_samples, ...]`, uniformly or by `selector.select(self, key, num_samples)`.

        Args:
          key: raw or typed; consumed.
          num_samples: number of cells.
          selector: optional selection rule.

        Raises:
          ValueError: all cells are empty; not checked for traced repertoires.
        """
        if selector is not None:
            return selector.select(self, key, num_samples)
        return trees.take(self, repertoires.sample(self.repertoire, typed_key(key), num_samples))

    def genotypes_or(self, others: PyTree, key: Key, count: int, selector: Any = None) -> PyTree:
        """Sample genotypes as `select`; if the repertoire is empty, return the `others` `[M, ...]` cyclically.

        An empty repertoire is also recognised inside traced functions.
        """
        if selector is not None:
            return selector.select(self, key, count).genotypes
        drawn = trees.take(self.genotypes, repertoires.draw(self.repertoire, typed_key(key), count))
        size = jax.tree.leaves(others)[0].shape[0]
        return trees.where(self.repertoire.occupied.any(), drawn, trees.take(others, jnp.arange(count) % size))

    @property
    def repertoire(self) -> Repertoire:
        """The cells as the `Repertoire` of `rookery.qd.repertoire`."""
        return Repertoire(self.genotypes, self.fitnesses, self.descriptors, self.centroids)


class Loop(NamedTuple):
    """The parts of a MAP-Elites generation; all genotype axes are this device's share.

    `emitter` has the methods `init(key, repertoire, genotypes, *scored)`, `emit(repertoire, state, key)`, which returns
    genotypes and a dictionary of extra scores, and `state_update(state, repertoire, genotypes, *scored)`.
    """

    score: Callable[[PyTree, Key], Scored]
    emitter: Any
    measure: Callable[[Any], Metrics]
    """Repertoire -> metrics."""
    shares: Shares = WHOLE
    """Access to the other devices' shares."""

    def begin(self, genotypes: PyTree, fill: Callable[..., Any], key: Key) -> tuple[Any, Any, Metrics]:
        """Score the initial genotypes, and create the repertoire and the emitter state.

        `fill(genotypes, fitnesses, descriptors)` creates the repertoire from the genotypes of all devices.
        """
        score_key, emitter_key = jax.random.split(key)
        scored = self.score(genotypes, score_key)
        repertoire = fill(*self.shares.gather((genotypes, *scored[:2])))
        state = self.emitter.init(emitter_key, repertoire, genotypes, *scored)
        return self._update_emitter(repertoire, state, genotypes, scored)

    def turn(self, repertoire: Any, state: Any, key: Key) -> tuple[Any, Any, Metrics]:
        """Run one generation: emit, score, `repertoire.add(genotypes, descriptors, fitnesses)`, update the emitter."""
        emit_key, score_key = jax.random.split(key)
        genotypes, emitted_scores = self.emitter.emit(repertoire, state, emit_key)
        fitnesses, descriptors, scores = self.score(genotypes, score_key)
        repertoire = repertoire.add(*self.shares.gather((genotypes, descriptors, fitnesses)))
        return self._update_emitter(
            repertoire, state, genotypes, (fitnesses, descriptors, {**scores, **emitted_scores})
        )

    def _update_emitter(
        self, repertoire: Any, state: Any, genotypes: PyTree, scored: Scored
    ) -> tuple[Any, Any, Metrics]:
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
    """Iso+line variation of B pairs of parents, see `variation.iso_line`.

    Args:
      x1: first parents, `[B, ...]`.
      x2: second parents, `[B, ...]`.
      key: raw or typed; consumed.
      iso_sigma: deviation of the isotropic noise.
      line_sigma: deviation along the line between the parents.
      minval: lower bound of the children; None for none.
      maxval: upper bound of the children; None for none.

    Returns:
      Children, `[B, ...]`.
    """
    keys = member_keys(typed_key(key), jax.tree.leaves(x1)[0].shape[0])
    vary = partial(variation.iso_line, config=variation.Sigmas(iso_sigma, line_sigma))
    children = jax.vmap(vary)(x1, x2, keys)
    if minval is None and maxval is None:
        return children
    return jax.tree.map(lambda leaf: jnp.clip(leaf, minval, maxval), children)


class Elites(NamedTuple):
    """How elites are loaded from a repertoire into the population."""

    exist: Array | bool
    """`[]` bool, whether the repertoire contains an elite."""
    draw: Callable[[Key, int], PyTree]
    """(key, count) -> genotypes `[count, ...]` from the whole repertoire."""
    load: Callable[[PyTree], Any]
    """One genotype -> training state."""


def exploit(
    counts: pbt_emitter.Counts,
    fitness: Array,
    states: Any,
    elites: Elites,
    key: Key,
    renew: RenewFn,
    shares: Shares = WHOLE,
) -> tuple[Any, Array]:
    """Exploit step of ME-PBT (Pierrot 2023, arXiv:2303.12803) on training states.

    The worst members copy a parent among the best, the next worst load an elite; each gets a new key and resampled
    hyper-parameters.

    Args:
      counts: for the whole population.
      fitness: of this device's share.
      states: training states of this device's share.
      elites: see `Elites`; without elites, members are only replaced by parents.
      key: consumed.
      renew: see `RenewFn`.
      shares: access to the other devices' shares.

    Returns:
      The training states of this device's share; and a bool for each, whether it replaced a member with non-finite
      fitness.
    """
    all_fitness = shares.gather(finite_fitness(fitness, states))
    size = all_fitness.shape[0]
    parents_key, elites_key, new_key = jax.random.split(common_key(key, states, shares), 3)
    parents, from_repertoire = pbt_emitter.origins(counts, all_fitness, parents_key, elites_exist=elites.exist)
    states = moved(states, parents, shares.rows, in_place=True)
    loaded = jax.vmap(elites.load)(shares.local(elites.draw(elites_key, size)))
    loaded = loaded.replace(steps=states.steps)  # all members share one update count, see `shared_count`
    states = trees.where(shares.local(from_repertoire), loaded, states)
    is_new = from_repertoire | (parents != jnp.arange(size))
    return renew_members(states, is_new, new_key, renew, shares), shares.local(is_new & ~jnp.isfinite(all_fitness))
