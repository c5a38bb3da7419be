"""One winner per cell (invariant 8): against a reference in plain Python, by hand, and with invalid arguments."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import trees
from rookery.qd import repertoire as repertoires
from rookery.qd.centroids import grid
from rookery.qd.repertoire import Repertoire
from tests import tiny

NAN, INF = math.nan, math.inf
GRID = grid((4, 4), (0.0, 0.0), (1.0, 1.0))  # every number below is exact in float32, ties between cells included
LINE = grid((4,), (0.0,), (4.0,))  # centres 0.5, 1.5, 2.5, 3.5
add = jax.jit(repertoires.add)


def genotypes(numbers) -> dict[str, jax.Array]:
    """Every leaf contains the individual's number, in a different shape and type."""
    numbers = np.asarray(numbers)
    return {
        "number": jnp.asarray(numbers, jnp.int32),
        "half": jnp.asarray(np.tile(numbers[:, None], 3), jnp.float16),
        "odd": jnp.asarray(numbers % 2 == 1),
        "byte": jnp.asarray(np.tile(numbers[:, None, None] % 251, (1, 2, 2)), jnp.uint8),
        "negative": -jnp.asarray(numbers, jnp.float32)[:, None],
    }


def empty(centroids=GRID) -> Repertoire:
    return repertoires.empty(trees.take(genotypes([0]), 0), centroids)


def filled(fitnesses, cells) -> Repertoire:
    """Elites on the line's cells; number i + 1 with the i-th fitness."""
    numbers = np.arange(1, len(fitnesses) + 1)
    descriptors = LINE[jnp.asarray(cells)]
    return add(empty(LINE), genotypes(numbers), jnp.asarray(fitnesses, jnp.float32), descriptors)[0]


class Batch:
    """Random individuals with ties, several to a cell, and many values that are not finite."""

    def __init__(self, rng: np.random.Generator, first: int, size: int = 32, ties: bool = True):
        self.numbers = np.arange(first, first + size)
        self.fitness = rng.integers(-2, 3, size).astype(np.float32) if ties else rng.normal(size=size).astype("f4")
        self.fitness[self.fitness == 0] *= rng.choice([-1.0, 1.0], np.sum(self.fitness == 0))  # -0.0 and 0.0 tie
        self.descriptor = (rng.integers(0, 17, (size, 2)) / 16).astype(np.float32)
        for bad in (NAN, INF, -INF):
            self.fitness[rng.random(size) < 0.08] = bad
            self.descriptor[rng.random((size, 2)) < 0.05] = bad

    def added_to(self, repertoire: Repertoire):
        return add(repertoire, genotypes(self.numbers), jnp.asarray(self.fitness), jnp.asarray(self.descriptor))


class Reference:
    """The same in plain Python: cell -> (fitness, number, descriptor)."""

    def __init__(self):
        self.cells: dict[int, tuple[float, int, list[float]]] = {}

    def add(self, batch: Batch) -> tuple[list[int], list[bool]]:
        """The status of each, and whether it was rejected."""
        before, winner = dict(self.cells), {}
        rejected = []
        for index, (number, fitness, descriptor) in enumerate(
            zip(batch.numbers.tolist(), batch.fitness.tolist(), batch.descriptor.tolist(), strict=True)
        ):
            rejected.append(not all(math.isfinite(value) for value in (fitness, *descriptor)))
            if rejected[-1]:
                continue
            distances = [math.dist(descriptor, centroid) for centroid in GRID.tolist()]
            cell = distances.index(min(distances))
            if cell not in self.cells or fitness > self.cells[cell][0]:
                self.cells[cell] = (fitness, number, descriptor)
                winner[cell] = index
        status = [0] * len(rejected)
        for cell, index in winner.items():
            status[index] = 1 if cell in before else 2
        return status, rejected

    def assert_equals(self, repertoire: Repertoire) -> None:
        occupied = np.asarray(repertoire.occupied)
        assert np.flatnonzero(occupied).tolist() == sorted(self.cells)
        assert jnp.isneginf(repertoire.fitnesses[~occupied]).all()
        found = [self.cells.get(cell, (-INF, 0, [0.0, 0.0])) for cell in range(len(occupied))]
        fitnesses, numbers, descriptors = zip(*found, strict=True)
        assert np.asarray(repertoire.fitnesses).tobytes() == np.asarray(fitnesses, np.float32).tobytes()
        assert repertoire.descriptors.tolist() == list(descriptors)
        tiny.assert_equal(repertoire.genotypes, genotypes(numbers))


class TestAdd:
    @pytest.mark.parametrize("seed", range(4))
    def test_random_batches_give_what_the_reference_gives(self, seed):
        rng, repertoire, reference = np.random.default_rng(seed), empty(), Reference()
        for number in range(6):
            batch = Batch(rng, 1 + 32 * number)
            status, rejected = reference.add(batch)
            repertoire, added = batch.added_to(repertoire)
            reference.assert_equals(repertoire)
            assert added.status.tolist() == status
            assert added.rejected.tolist() == rejected
            assert not added.outside.any(), "without limits nothing lies outside"
        assert len(reference.cells) > 8, "an almost empty repertoire shows nothing"

    @pytest.mark.parametrize("seed", range(3))
    def test_without_ties_neither_order_nor_batches_matter(self, seed):
        rng = np.random.default_rng(seed)
        whole = Batch(rng, 1, ties=False)
        expected, _ = whole.added_to(empty())
        order = rng.permutation(32)
        repertoire = empty()
        for part in np.split(order, 2):
            rows = genotypes(whole.numbers[part])
            fitness, descriptor = jnp.asarray(whole.fitness[part]), jnp.asarray(whole.descriptor[part])
            repertoire, _ = add(repertoire, rows, fitness, descriptor)
        tiny.assert_equal(repertoire, expected)

    def test_ties_go_to_the_incumbent_and_then_to_the_lower_index(self):
        repertoire, added = add(
            filled([5.0], [1]),
            genotypes([7, 8, 9, 10]),
            jnp.asarray([5.0, 3.0, 3.0, 4.0]),
            jnp.asarray([[1.2], [2.2], [2.7], [0.1]]),
        )
        assert repertoire.genotypes["number"].tolist() == [10, 1, 8, 0]
        assert repertoire.fitnesses.tolist() == [4.0, 5.0, 3.0, -INF]
        assert repertoire.descriptors[1] == 1.5, "the incumbent keeps its own"
        assert added.cell.tolist() == [1, 2, 2, 0]
        assert added.status.tolist() == [0, 2, 0, 2]

    def test_non_finite_genotypes_are_not_added_and_do_not_block_others(self):
        for bad, where in itertools.product((NAN, INF, -INF), ("fitness", "descriptor")):
            fitness = jnp.asarray([bad if where == "fitness" else 9.0, 2.0])
            descriptor = jnp.asarray([[bad if where == "descriptor" else 0.5], [0.5]])
            repertoire, added = add(empty(LINE), genotypes([1, 2]), fitness, descriptor)
            assert repertoire.genotypes["number"].tolist() == [2, 0, 0, 0]
            assert added.status.tolist() == [0, 2]
            assert added.rejected.tolist() == [True, False]
            again, added = add(repertoire, genotypes([3, 4]), fitness, descriptor)
            tiny.assert_equal(again, repertoire)
            assert added.rejected.tolist() == [True, False]
        lowest = float(np.finfo(np.float32).min)
        assert filled([lowest], [3]).occupied.tolist() == [False, False, False, True]

    def test_a_descriptor_outside_the_limits_belongs_to_the_nearest_cell_and_is_counted(self):
        limits = (jnp.asarray([0.0]), jnp.asarray([4.0]))
        descriptor = jnp.asarray([[-3.0], [4.0], [1e30], [NAN], [7.0]])
        fitness = jnp.asarray([1.0, 2.0, 3.0, 4.0, INF])
        repertoire, added = add(empty(LINE), genotypes([1, 2, 3, 4, 5]), fitness, descriptor, limits)
        assert added.cell.tolist()[:3] == [0, 3, 3]
        # The border is inside; bad ones are rejected.
        assert added.outside.tolist() == [True, False, True, False, False]
        assert added.rejected.tolist() == [False, False, False, True, True]
        assert repertoire.genotypes["number"].tolist() == [1, 0, 0, 3]
        assert repertoire.descriptors[:, 0].tolist() == [-3.0, 0.0, 0.0, np.float32(1e30)], "as they were evaluated"
        _, added = add(empty(), genotypes([1]), jnp.ones(1), jnp.asarray([[2.0, 0.3]]), (jnp.zeros(2), jnp.ones(2)))
        assert added.cell.tolist() == [3 * 4 + 1]  # clipped to (1, 0.3): row 3, column 1
        assert added.outside.tolist() == [True]

    def test_donated_genotypes_are_written_in_place(self):
        cells, numbers, batch = 10_000, 1_000, 16
        shape = jax.ShapeDtypeStruct
        genotype = shape((numbers,), jnp.float32)
        repertoire = jax.eval_shape(repertoires.empty, genotype, shape((cells, 2), jnp.float32))
        new = (shape((batch, numbers), jnp.float32), shape((batch,), jnp.float32), shape((batch, 2), jnp.float32))
        memory = jax.jit(repertoires.add, donate_argnums=0).lower(repertoire, *new).compile().memory_analysis()
        assert memory is not None
        assert memory.alias_size_in_bytes >= cells * numbers * 4
        assert memory.temp_size_in_bytes < 8 * batch * numbers * 4, "O(batch), where the cells are 40 MB"


class TestSample:
    def test_is_uniform_over_the_occupied_cells(self):
        repertoire = filled([-5.0, 100.0, 0.0], [0, 1, 3])
        drawn = np.asarray(repertoires.sample(repertoire, jax.random.key(0), 6_000))
        assert drawn.dtype == np.int32
        counted = np.bincount(drawn, minlength=4)
        assert counted[2] == 0
        assert (abs(counted[[0, 1, 3]] - 2_000) < 183).all()  # five standard deviations

    def test_draws_are_independent_and_the_keys(self):
        repertoire = filled([1.0, 2.0], [0, 3])
        drawn = repertoires.sample(repertoire, jax.random.key(0), 64).tolist()
        assert drawn == repertoires.sample(repertoire, jax.random.key(0), 64).tolist()
        assert drawn != repertoires.sample(repertoire, jax.random.key(1), 64).tolist()
        pairs = set(zip(drawn[::2], drawn[1::2], strict=True))
        assert pairs == {(0, 0), (0, 3), (3, 0), (3, 3)}
        assert repertoires.sample(filled([-1.0], [2]), jax.random.key(0), 5).tolist() == [2] * 5

    def test_an_empty_repertoire_is_an_error(self):
        with pytest.raises(ValueError, match="the repertoire is empty; add genotypes"):
            repertoires.sample(empty(), jax.random.key(0), 3)
        assert repertoires.draw(empty(), jax.random.key(0), 3).tolist() == [0, 0, 0], "for callers that discard it"


class TestElites:
    REPERTOIRE = filled([1.0, 7.0, 7.0], [0, 1, 3])

    def test_the_elite_of_a_cell(self):
        elite = repertoires.elite(self.REPERTOIRE, 3)
        assert (elite.cell, float(elite.fitness), elite.descriptor.tolist()) == (3, 7.0, [3.5])
        tiny.assert_equal(elite.genotype, trees.take(genotypes([3]), 0))

    def test_the_best_and_the_nearest_elite_by_its_own_descriptor(self):
        assert repertoires.best(self.REPERTOIRE).cell == 1, "of equals the lower cell"
        for wanted, cell in ((-9.0, 0), (1.6, 1), (2.5, 1), (2.6, 3), (99.0, 3)):
            assert repertoires.nearest(self.REPERTOIRE, jnp.asarray([wanted])).cell == cell
        repertoire, _ = add(self.REPERTOIRE, genotypes([4]), jnp.ones(1), jnp.asarray([[2.99]]))
        assert repertoires.nearest(repertoire, jnp.asarray([3.2])).cell == 2  # 3.5 - 3.2 > 3.2 - 2.99
        repertoire = filled([1.0], [3])  # empty cells hold the descriptor 0
        assert repertoires.nearest(repertoire, jnp.asarray([0.0])).cell == 3
        assert repertoires.nearest(repertoire, jnp.asarray([1e30])).cell == 3, "squares overflow"

    def test_invalid_arguments_are_errors(self):
        for cell in (2, 4, -1):
            with pytest.raises(ValueError, match=rf"cell {cell} of 0\.\.3 holds no elite; `nearest` finds one"):
                repertoires.elite(self.REPERTOIRE, cell)
        with pytest.raises(ValueError, match="the repertoire is empty and has no best elite"):
            repertoires.best(empty())
        with pytest.raises(ValueError, match="the repertoire is empty and has no nearest elite"):
            repertoires.nearest(empty(), jnp.zeros(2))
        with pytest.raises(ValueError, match=r"the descriptor must be \[1\], got the shape \(2,\)"):
            repertoires.nearest(self.REPERTOIRE, jnp.zeros(2))
        with pytest.raises(ValueError, match="the descriptor must be finite"):
            repertoires.nearest(self.REPERTOIRE, jnp.asarray([NAN]))


@pytest.mark.parametrize(
    ("repertoire", "offset", "expected"),
    [
        (filled([-3.0, 1.0, 4.0], [0, 1, 3]), -1.0, (75.0, 0.0 + 2.0 + 5.0, 1.75, 4.0, 1.0)),
        (filled([2.0], [0]), 2.0, (25.0, 0.0, 0.0, 2.0, 0.0)),  # an elite at the offset
        (empty(), -5.0, (0.0, 0.0, 0.0, -INF, 0.0)),
    ],
)
def test_metrics_by_hand(repertoire, offset, expected):
    found = repertoires.metrics(repertoire, qd_offset=offset)
    names = ("coverage", "qd_score", "normalized_qd_score", "max_fitness", "below_offset")
    assert {name: float(value) for name, value in found.items()} == dict(zip(names, expected, strict=True))
