"""MAP-Elites in QDax's documented form, with Rookery's repertoire and variation.

Rookery's program `map_elites` scores one genotype at a time; these classes score batches by any function,
on one device, or inside a mapped axis where each device scores its share and all devices hold the same repertoire.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rookery import trees
from rookery.compat.records import Record, check, typed_key
from rookery.distributed import layout
from rookery.populations.base import member_keys
from rookery.populations.sharding import WHOLE
from rookery.qd import centroids as cells
from rookery.qd import repertoire as repertoires
from rookery.qd import variation
from rookery.qd.map_elites import bounded
from rookery.settings import FRACTION, check_counts, check_numbers
from rookery.types import Array, Key, Metrics, PyTree, Scalar

__all__ = ["DistributedMAPElites", "Emitter", "EmitterState", "MAPElites", "MapElitesRepertoire", "MixingEmitter"]
__all__ += ["compute_cvt_centroids", "compute_euclidean_centroids", "default_qd_metrics", "isoline_variation"]

TreeT = TypeVar("TreeT", bound=PyTree)
Limit = float | Sequence[float] | np.ndarray | Array
"""A limit of all dimensions, or one for each."""


def compute_cvt_centroids(
    num_descriptors: int, num_init_cvt_samples: int, num_centroids: int, minval: Limit, maxval: Limit, key: Key
) -> Array:
    """Centroids `[C, D]` of a centroidal Voronoi tessellation between limits, numbers or `[D]`; see `centroids.cvt`."""
    lower, upper = limits_of(num_descriptors, minval, maxval)
    return cells.cvt(typed_key(key), num_centroids, lower, upper, num_init_cvt_samples)


def compute_euclidean_centroids(grid_shape: tuple[int, ...], minval: Limit, maxval: Limit) -> Array:
    """Centroids `[C, D]` of an even grid between limits, numbers or `[D]`.

    The order is that of numpy's `meshgrid`: in two dimensions the first varies fastest; in three dimensions the third,
    then the first, then the second.
    """
    size = len(grid_shape)
    centroids = cells.grid(tuple(grid_shape), *limits_of(size, minval, maxval))
    if size == 1:
        return centroids
    return jnp.swapaxes(centroids.reshape(*grid_shape, size), 0, 1).reshape(-1, size)


def limits_of(size: int, *limits: Limit) -> list[list[float]]:
    """Broadcast each limit, a number or `[size]`, to `[size]`; a ValueError if one has another size."""
    fit = all(np.ndim(limit) == 0 or np.shape(limit)[0] == size for limit in limits)
    check(fit, f"limits of {size} dimensions must be one number or {size} numbers, got {limits}.")
    return [np.broadcast_to(np.asarray(limit, np.float64), size).tolist() for limit in limits]


class Selector(Protocol):
    """A rule that selects cells of a repertoire, `[num_samples, ...]`; the key is raw or typed, and consumed."""

    def select(self, repertoire: "MapElitesRepertoire", key: Key, num_samples: int) -> "MapElitesRepertoire": ...


class MapElitesRepertoire(repertoires.Repertoire):
    """C cells, each with the best genotype found in it; unlike in Rookery's repertoire, `fitnesses` is `[C, 1]`."""

    def __new__(
        cls,
        genotypes: PyTree,
        fitnesses: Array,
        descriptors: Array,
        centroids: Array,
        thresholds: PyTree = (),
        extras: Mapping[str, PyTree] = repertoires.Repertoire._field_defaults["extras"],
        *,
        extra_scores: Mapping[str, PyTree] | None = None,
        keys_extra_scores: tuple[str, ...] = (),
    ) -> Self:
        """Cells of these values, `[C, ...]` each; the names of the extra scores are `keys_extra_scores`, too."""
        del keys_extra_scores
        extras = extras if extra_scores is None else extra_scores
        return repertoires.Repertoire.__new__(cls, genotypes, fitnesses, descriptors, centroids, thresholds, extras)

    @property
    def occupied(self) -> Array:
        """Whether each cell contains an elite, `[C]` bool."""
        return self._column.occupied

    @property
    def _column(self) -> repertoires.Repertoire:
        """These cells as Rookery's repertoire, with fitnesses `[C]`."""
        return repertoires.Repertoire(*self._replace(fitnesses=self.fitnesses.reshape(self.centroids.shape[:-1])))

    @classmethod
    def _of(cls, cells: repertoires.Repertoire) -> Self:
        return cls(*cells._replace(fitnesses=cells.fitnesses[..., None]))

    @property
    def extra_scores(self) -> Mapping[str, PyTree]:
        """Name -> `[C, ...]`, the extra scores that are stored; zeros where a cell is empty."""
        return self.extras

    @property
    def keys_extra_scores(self) -> tuple[str, ...]:
        """The names of the extra scores that are stored."""
        return tuple(self.extras)

    @classmethod
    def init_default(
        cls,
        genotype: PyTree,
        centroids: Array,
        one_extra_score: Mapping[str, PyTree] | None = None,
        keys_extra_scores: tuple[str, ...] = (),
    ) -> Self:
        """Empty cells for genotypes with the shapes of `genotype`, and the named extra scores with those of one.

        Raises:
          ValueError: an extra score is missing.
        """
        scores = one_extra_score or {}
        missing = sorted(set(keys_extra_scores) - set(scores))
        check(not missing, f"keys_extra_scores {missing} are no extra scores, which are {sorted(scores)}.")
        cells = repertoires.empty((genotype, {name: scores[name] for name in keys_extra_scores}), centroids)
        genotypes, extras = cells.genotypes
        return cls._of(cells._replace(genotypes=genotypes, extras=extras))

    @classmethod
    def init(
        cls,
        genotypes: PyTree,
        fitnesses: Array,
        descriptors: Array,
        centroids: Array,
        extra_scores: Mapping[str, PyTree] | None = None,
        keys_extra_scores: tuple[str, ...] = (),
    ) -> Self:
        """Cells with the best genotypes of an initial batch `[B, ...]`, and their named extra scores; B may be 0."""
        batch = genotypes, {name: score for name, score in (extra_scores or {}).items() if name in keys_extra_scores}
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch)
        cells = cls.init_default(shapes[0], centroids, shapes[1], keys_extra_scores)
        return cells.add(genotypes, descriptors, fitnesses, batch[1])

    def add(
        self,
        batch_of_genotypes: PyTree,
        batch_of_descriptors: Array,
        batch_of_fitnesses: Array,
        batch_of_extra_scores: Mapping[str, PyTree] | None = None,
    ) -> Self:
        """Add a batch `[B, ...]`, fitnesses also `[B, 1]`, see `repertoire.add`, and the extra scores stored here.

        Raises:
          ValueError: the fitnesses or the descriptors have another shape, or an extra score is missing.
        """
        count, size = jax.tree.leaves(batch_of_genotypes)[0].shape[0], self.centroids.shape[-1]
        given = batch_of_fitnesses.shape, batch_of_descriptors.shape
        fit = given[0] in ((count,), (count, 1)) and given[1] == (count, size)
        needed = f"{count} genotypes need fitnesses ({count},) or ({count}, 1) and descriptors ({count}, {size})"
        check(fit, f"{needed}, got shapes {given[0]} and {given[1]}.")
        batch = batch_of_genotypes, batch_of_fitnesses.reshape(-1), batch_of_descriptors
        return self._of(repertoires.store_extras(*repertoires.add(self._column, *batch), batch_of_extra_scores or {}))

    def select(self, key: Key, num_samples: int, selector: Selector | None = None) -> "MapElitesRepertoire":
        """Sample occupied cells `[num_samples, ...]`, uniformly or by a selector; the key, raw or typed, is consumed.

        Raises:
          ValueError: all cells are empty; not checked for traced repertoires.
        """
        if selector is not None:
            return selector.select(self, key, num_samples)
        return trees.take(self, repertoires.sample(self, typed_key(key), num_samples))

    def genotypes_or(self, others: TreeT, key: Key, count: int, selector: Selector | None = None) -> TreeT:
        """Sample genotypes as `select`; if the repertoire is empty, return the `others` `[M, ...]` cyclically.

        An empty repertoire is also recognised inside traced functions.
        """
        if selector is not None:
            return selector.select(self, key, count).genotypes
        drawn = trees.take(self.genotypes, repertoires.draw(self, typed_key(key), count))
        size = jax.tree.leaves(others)[0].shape[0]
        return trees.where(self.occupied.any(), drawn, trees.take(others, jnp.arange(count) % size))

    def replace(self, **changes: PyTree) -> Self:
        """Return a copy with the given fields changed."""
        return self._replace(**{"extras" if name == "extra_scores" else name: changes[name] for name in changes})


def default_qd_metrics(repertoire: MapElitesRepertoire, qd_offset: float) -> Metrics:
    """Metrics `qd_score` (sum over elites of fitness plus offset), `max_fitness`, and `coverage` in percent."""
    column = repertoire._column
    metrics = repertoires.metrics(column)
    score = jnp.sum(jnp.where(column.occupied, column.fitnesses + qd_offset, 0.0))
    return {"qd_score": score, "max_fitness": metrics["max_fitness"], "coverage": metrics["coverage"]}


def isoline_variation(
    x1: TreeT,
    x2: TreeT,
    key: Key,
    iso_sigma: Scalar,
    line_sigma: Scalar,
    minval: float | None = None,
    maxval: float | None = None,
) -> TreeT:
    """Children `[B, ...]` of B pairs of parents by iso+line variation, see `variation.iso_line`.

    `iso_sigma` is the deviation of the isotropic noise, `line_sigma` that along the line between the parents. Children
    are clipped to the bounds that are not None. The key, raw or typed, is consumed.
    """
    keys = member_keys(typed_key(key), jax.tree.leaves(x1)[0].shape[0])
    vary = partial(variation.iso_line, config=variation.Sigmas(iso_sigma, line_sigma))
    children = jax.vmap(vary)(x1, x2, keys)
    return bounded(children, (-np.inf if minval is None else minval, np.inf if maxval is None else maxval))


Scored = tuple[Array, Array, Mapping[str, PyTree]]
"""Scores of a batch: fitnesses `[B]` or `[B, 1]`, descriptors `[B, D]`, and extra scores."""


class EmitterState(Record):
    """Base class of the state of a user's emitter: each subclass is a frozen dataclass and a pytree."""


class Emitter(Protocol):
    """An emitter of batches, `PBTEmitter` or a user's; keys are consumed, and a batch is one device's share.

    `MAPElites` passes the arguments of `init` and of `state_update` by name.
    """

    def init(
        self,
        key: Key,
        repertoire: PyTree,
        genotypes: PyTree,
        fitnesses: PyTree,
        descriptors: PyTree,
        extra_scores: PyTree,
    ) -> PyTree:
        """Return the state, from the initial genotypes and their scores (see `Scored`); by default None."""
        del key, repertoire, genotypes, fitnesses, descriptors, extra_scores
        return None

    @abstractmethod
    def emit(self, repertoire: MapElitesRepertoire, emitter_state: PyTree, key: Key) -> tuple[PyTree, dict]:
        """Return genotypes, and a dictionary of extra scores."""
        ...

    def state_update(
        self,
        emitter_state: PyTree,
        repertoire: PyTree,
        genotypes: PyTree,
        fitnesses: PyTree,
        descriptors: PyTree,
        extra_scores: PyTree,
    ) -> PyTree:
        """Return the next state, after genotypes were added, with their scores; by default the same one."""
        del repertoire, genotypes, fitnesses, descriptors, extra_scores
        return emitter_state


class MixingEmitter:
    """An emitter of variations of pairs of elites, followed by mutations of single ones.

    Args:
      mutation_fn: elites `[B, ...]` and a key -> as many genotypes; may be None without mutations.
      variation_fn: two batches of elites `[B, ...]` and a key -> as many genotypes; may be None without variations.
      variation_percentage: share of the batch that is variations, from 0 to 1, rounded down to whole genotypes.
      batch_size: genotypes that are emitted in each generation, on each device.
      selector: as in `MapElitesRepertoire.select`.

    Raises:
      ValueError: the share is not in [0, 1], or a function that it needs is None.
    """

    def __init__(
        self,
        mutation_fn: Callable[[PyTree, Key], PyTree] | None,
        variation_fn: Callable[[PyTree, PyTree, Key], PyTree] | None,
        variation_percentage: float,
        batch_size: int,
        selector: Selector | None = None,
    ) -> None:
        check_counts(batch_size=batch_size)
        check_numbers(FRACTION, variation_percentage=variation_percentage)
        variations = int(batch_size * variation_percentage)
        self._parts: list[tuple[Callable[..., PyTree], int, int]] = []
        for name, function, parents, count in (
            ("variation_fn", variation_fn, 2, variations),
            ("mutation_fn", mutation_fn, 1, batch_size - variations),
        ):
            if count and function is None:
                raise ValueError(f"{name} is None, but creates {count} of {batch_size} genotypes; give a function.")
            self._parts += [(function, parents, count)] if count and function else []
        self.batch_size, self._selector = batch_size, selector

    def init(self, *_: PyTree, **__: PyTree) -> None:
        """Return no state."""

    def emit(self, repertoire: MapElitesRepertoire, emitter_state: PyTree, key: Key) -> tuple[PyTree, dict]:
        """Create genotypes `[B, ...]` from elites; the key is consumed."""
        del emitter_state
        batches = []
        for index, (vary, parents, count) in enumerate(self._parts):
            keys = jax.random.split(jax.random.fold_in(typed_key(key), index), parents + 1)
            chosen = [repertoire.select(keys[n], count, self._selector).genotypes for n in range(parents)]
            batches.append(vary(*chosen, keys[-1]))
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *batches), {}

    def state_update(self, emitter_state: PyTree, *_: PyTree, **__: PyTree) -> PyTree:
        """Return the state as it is."""
        return emitter_state


Generation = tuple[MapElitesRepertoire, PyTree, Metrics]
"""Repertoire, emitter state and metrics after a generation."""


class MAPElites:
    """MAP-Elites on one device (Mouret 2015, arXiv:1504.04909).

    Args:
      scoring_function: (genotypes `[B, ...]`, key) -> `Scored`; None for `ask` and `tell` alone.
      emitter: proposes genotypes.
      metrics_function: computes metrics of a repertoire.
      repertoire_init: creates the repertoire from genotypes, fitnesses, descriptors, centroids and extra scores, e.g.
        `partial(MapElitesRepertoire.init, keys_extra_scores=("length",))`.
    """

    axis: str | None = None

    def __init__(
        self,
        scoring_function: Callable[[PyTree, Key], Scored] | None,
        emitter: Emitter,
        metrics_function: Callable[[MapElitesRepertoire], Metrics],
        repertoire_init: Callable[..., MapElitesRepertoire] = MapElitesRepertoire.init,
    ) -> None:
        self._scoring_function, self._repertoire_init = scoring_function, repertoire_init
        self._emitter, self._metrics_function = emitter, metrics_function
        self._shares = WHOLE if self.axis is None else layout.shares(self.axis)

    def init(self, genotypes: PyTree, centroids: Array, key: Key) -> Generation:
        """Score an initial batch `[B, ...]`, and create the repertoire and emitter state; the key is consumed."""
        score_key, emitter_key = jax.random.split(typed_key(key))
        fitnesses, descriptors, scores = self._score(genotypes, score_key)
        return self.init_ask_tell(genotypes, fitnesses, descriptors, centroids, emitter_key, scores)

    def init_ask_tell(
        self,
        genotypes: PyTree,
        fitnesses: Array,
        descriptors: Array,
        centroids: Array,
        key: Key,
        extra_scores: Mapping[str, PyTree] | None = None,
    ) -> Generation:
        """As `init`, from the scores of the initial batch."""
        *batch, scores = self._gathered(genotypes, (fitnesses, descriptors, extra_scores or {}))
        repertoire = self._repertoire_init(*batch, centroids, scores)
        scored = {"fitnesses": fitnesses, "descriptors": descriptors, "extra_scores": extra_scores or {}}
        state = self._emitter.init(key=typed_key(key), repertoire=repertoire, genotypes=genotypes, **scored)
        return self._update_emitter(repertoire, state, genotypes=genotypes, **scored)

    def update(self, repertoire: MapElitesRepertoire, emitter_state: PyTree, key: Key) -> Generation:
        """Run one generation: `ask`, score, `tell`; the key is consumed."""
        emit_key, score_key = jax.random.split(typed_key(key))
        genotypes, extra_info = self.ask(repertoire, emitter_state, emit_key)
        fitnesses, descriptors, scores = self._score(genotypes, score_key)
        return self.tell(genotypes, fitnesses, descriptors, repertoire, emitter_state, scores, extra_info)

    def ask(self, repertoire: MapElitesRepertoire, emitter_state: PyTree, key: Key) -> tuple[PyTree, dict]:
        """Emit genotypes `[B, ...]` and extra information, both for `tell`; the key is consumed."""
        return self._emitter.emit(repertoire, emitter_state, typed_key(key))

    def tell(
        self,
        genotypes: PyTree,
        fitnesses: Array,
        descriptors: Array,
        repertoire: MapElitesRepertoire,
        emitter_state: PyTree,
        extra_scores: Mapping[str, PyTree] | None = None,
        extra_info: Mapping[str, PyTree] | None = None,
    ) -> Generation:
        """Add genotypes `[B, ...]` with their scores, and update the emitter."""
        scores = extra_scores or {}
        repertoire = repertoire.add(*self._gathered(genotypes, (descriptors, fitnesses, scores)))
        scored = {"fitnesses": fitnesses, "descriptors": descriptors, "extra_scores": {**scores, **(extra_info or {})}}
        return self._update_emitter(repertoire, emitter_state, genotypes=genotypes, **scored)

    def _score(self, genotypes: PyTree, key: Key) -> Scored:
        if self._scoring_function is None:
            raise ValueError("scoring_function is None; give one, or use init_ask_tell, ask and tell.")
        return self._scoring_function(genotypes, key)

    def _gathered(self, genotypes: PyTree, scored: tuple) -> tuple[PyTree, ...]:
        """Genotypes and scores of all devices; an extra score without a batch axis is that of this device."""
        return jax.tree.map(lambda leaf: self._shares.gather(leaf) if np.ndim(leaf) else leaf, (genotypes, *scored))

    def _update_emitter(self, repertoire: MapElitesRepertoire, state: PyTree, **scored: PyTree) -> Generation:
        state = self._emitter.state_update(emitter_state=state, repertoire=repertoire, **scored)
        return repertoire, state, self._metrics_function(repertoire)

    def scan_update(
        self, carry: tuple[MapElitesRepertoire, PyTree, Key], _: PyTree
    ) -> tuple[tuple[MapElitesRepertoire, PyTree, Key], Metrics]:
        """Run `update` inside `jax.lax.scan`; the carry is repertoire, emitter state and key."""
        repertoire, emitter_state, key = carry
        next_key, update_key = jax.random.split(key)
        repertoire, emitter_state, metrics = self.update(repertoire, emitter_state, update_key)
        return (repertoire, emitter_state, next_key), metrics


class DistributedMAPElites(MAPElites):
    """MAP-Elites inside a mapped axis `"p"`: each device scores its share, and all hold the same repertoire."""

    axis = "p"

    def get_distributed_init_fn(self, centroids: Array, devices: Sequence[object] | None) -> Callable[..., Generation]:
        """Return `init` as a function of `genotypes` `[devices, B, ...]` and `key` `[devices]`."""
        return layout.map_over(lambda genotypes, key: self.init(genotypes, centroids, key), "p", devices)

    def get_distributed_update_fn(
        self, num_iterations: int, devices: Sequence[object] | None
    ) -> Callable[..., Generation]:
        """Return a function of `repertoire`, `emitter_state` and `key`, `[devices, ...]` each.

        It runs `update` `num_iterations` times; its metrics are `[devices, num_iterations]`.
        """

        def update(repertoire: MapElitesRepertoire, emitter_state: PyTree, key: Key) -> Generation:
            carry, metrics = jax.lax.scan(self.scan_update, (repertoire, emitter_state, key), length=num_iterations)
            return *carry[:2], metrics

        return layout.map_over(update, "p", devices)
