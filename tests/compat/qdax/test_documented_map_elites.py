"""QDax's documented repertoire, variation, MAP-Elites and ME-PBT on one device."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.compat.qdax import (
    PBTSAC,
    PBTTD3,
    Emitter,
    EmitterState,
    MAPElites,
    MapElitesRepertoire,
    MixingEmitter,
    compute_cvt_centroids,
    compute_euclidean_centroids,
    default_qd_metrics,
    isoline_variation,
    sac_pbt_variation_fn,
)
from rookery.populations.base import member_keys
from rookery.qd.variation import VariationConfig, iso_line
from tests.compat.qdax.documented import distinct, make_emitter, population, row
from tests.tiny import assert_equal

P = 8
NAN = float("nan")
HYPER = ("discount", "policy_lr", "critic_lr", "noise_clip", "policy_noise", "expl_noise")
made = cache(population)


GRID = compute_euclidean_centroids((2, 2), 0.0, 1.0)


def test_centroids_lie_between_the_limits():
    assert GRID.tolist() == [[0.25, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.75]]
    wide = compute_euclidean_centroids((1, 2), minval=[0.0, 10.0], maxval=[1.0, 30.0])
    assert wide.tolist() == [[0.5, 15.0], [0.5, 25.0]]
    cvt = partial(compute_cvt_centroids, 2, 500, 16, [0.0, -2.0], [1.0, 2.0])
    centroids = cvt(jax.random.PRNGKey(0))
    assert centroids.shape == (16, 2)
    assert distinct(centroids) == 16
    assert bool(((centroids >= jnp.array([[0.0, -2.0]])) & (centroids <= jnp.array([[1.0, 2.0]]))).all())
    assert_equal(cvt(jax.random.key(0)), centroids)
    assert not np.array_equal(cvt(jax.random.key(1)), centroids)


@pytest.mark.parametrize(
    ("shape", "cells"),
    [
        ((3,), [(0,), (1,), (2,)]),
        ((3, 2), [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]),
        ((2, 2, 2), [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1), (0, 1, 0), (0, 1, 1), (1, 1, 0), (1, 1, 1)]),
    ],
)
def test_cells_of_a_grid_have_the_documented_order(shape: tuple[int, ...], cells: list[tuple[int, ...]]):
    centroids = compute_euclidean_centroids(shape, minval=-0.5, maxval=[size - 0.5 for size in shape])
    assert centroids.tolist() == [list(map(float, cell)) for cell in cells]
    assert (type(centroids), centroids.dtype) == (type(GRID), jnp.float32)
    meshes = np.meshgrid(*map(range, shape))
    np.testing.assert_array_equal(centroids, np.stack([mesh.ravel() for mesh in meshes], axis=-1))


def filled_repertoire(columns: bool = False) -> MapElitesRepertoire:
    """Four of 7 candidates are in the first cell, two are not finite, and one is alone in the last cell."""
    places = jnp.array([[0.1, 0.1], [0.2, 0.2], [0.3, 0.3], [0.2, 0.1], [0.1, NAN], [0.1, 0.1], [0.9, 0.9]])
    fitnesses = jnp.array([1.0, 4.0, 4.0, 2.0, 9.0, NAN, -3.0])
    return MapElitesRepertoire.init({"x": jnp.arange(7.0)}, fitnesses[:, None] if columns else fitnesses, places, GRID)


def test_fitnesses_are_columns_wherever_they_are_read_and_batches_may_be_columns():
    rows, columns = filled_repertoire(), filled_repertoire(columns=True)
    assert_equal(rows, columns)
    fields = {name: getattr(rows, name) for name in ("fitnesses", "genotypes", "descriptors", "centroids")}
    built = MapElitesRepertoire(**fields, extra_scores=rows.extra_scores, keys_extra_scores=rows.keys_extra_scores)
    assert_equal(built, MapElitesRepertoire(*rows))
    added = built.add({"x": jnp.array([7.0])}, jnp.array([[0.9, 0.1]]), jnp.array([[2.0]]))
    one = jax.jit(MapElitesRepertoire.select, static_argnames="num_samples")(added, jax.random.key(0), num_samples=1)
    of_device = jax.tree.map(lambda leaf: jax.device_get(leaf[None])[0], rows)  # as notebooks keep repertoires
    for score, place in (((1, 2), (1, 2)), ((2,), (1, 2)), ((1,), (1, 1)), ((1,), (2,))):
        with pytest.raises(ValueError, match=r"fitnesses \(1,\) or \(1, 1\) and descriptors \(1, 2\), got"):
            built.add({"x": jnp.array([7.0])}, jnp.zeros(place), jnp.zeros(score))
    shapes = [cells.fitnesses.squeeze(axis=1).shape for cells in (rows, built, of_device, added, one)]
    assert shapes == [(4,), (4,), (4,), (4,), (1,)]
    mapped = jax.vmap(lambda cells: (cells.fitnesses, cells.occupied))(jax.tree.map(lambda leaf: leaf[None], rows))
    assert [leaf.shape for leaf in mapped] == [(1, 4, 1), (1, 4)]
    assert MapElitesRepertoire.init_default({"x": jnp.zeros(())}, GRID).fitnesses.shape == (4, 1)
    assert rows.replace(fitnesses=rows.fitnesses + 1.0).fitnesses[0, 0] == 5.0
    for score in (rows.fitnesses, rows.fitnesses[:, 0]):
        metrics = default_qd_metrics(rows.replace(fitnesses=score), qd_offset=5.0)
        assert [float(value) for value in metrics.values()] == [11.0, 4.0, 50.0]


def test_children_are_those_of_the_core():
    first, second = {"a": jnp.zeros((50, 3)), "b": jnp.zeros(50)}, {"a": jnp.ones((50, 3)), "b": jnp.full(50, 2.0)}
    vary = partial(isoline_variation, first, second, jax.random.PRNGKey(0))
    core, keys = partial(iso_line, config=VariationConfig(0.1, 0.5)), member_keys(jax.random.key(0), 50)
    assert_equal(vary(iso_sigma=0.1, line_sigma=0.5), jax.vmap(core)(first, second, keys))
    bounded = vary(0.0, 5.0, minval=-1.0, maxval=1.0)["a"]
    assert (float(bounded.min()), float(bounded.max())) == (-1.0, 1.0)
    assert_equal(vary(0.0, 0.0), first)


def test_learned_values_vary_and_all_others_are_the_first_parent_s():
    states = made(PBTSAC, P)[1]
    bare = states.empty_optimizers_states(states)
    vary_pairs = jax.jit(partial(sac_pbt_variation_fn, iso_sigma=0.01, line_sigma=0.0))
    child = vary_pairs(bare, jax.tree.map(lambda leaf: leaf[::-1], bare), jax.random.key(0))
    for name in ("policy_params", "critic_params", "alpha_params"):
        both = (jax.tree.leaves(getattr(tree, name)) for tree in (child, bare))
        for varied, parent in zip(*both, strict=True):
            assert 0 < np.abs(np.asarray(varied) - np.asarray(parent)).max() < 0.06
    assert_equal((child.hyper, child.steps), (bare.hyper, bare.steps))


class Counted(EmitterState):
    number: jax.Array


class Halving(Emitter):
    """A user-defined emitter, which emits a number and its half; its state is always None."""

    def emit(self, repertoire: Any, emitter_state: Any, key: Any) -> tuple[Any, dict]:
        return jnp.array([1.0, 0.5]) * jax.random.uniform(key), {"emitted": 2}


class Counting(Halving):
    """It counts genotypes and extra scores; as in QDax, arguments are given by name."""

    def init(self, *, key: Any, **others: Any) -> Any:
        assert sorted(others) == ["descriptors", "extra_scores", "fitnesses", "genotypes", "repertoire"]
        return Counted(jnp.zeros(()))

    def state_update(self, emitter_state: Any, extra_scores: Any, fitnesses: Any, **others: Any) -> Any:
        assert sorted(others) == ["descriptors", "genotypes", "repertoire"]
        more = fitnesses.shape[0] + extra_scores.get("emitted", 0) + extra_scores["scored"]
        return emitter_state.replace(number=emitter_state.number + more)


def test_map_elites_runs_with_a_user_defined_emitter():
    def score(genotypes: jax.Array, key: jax.Array) -> tuple:
        return -genotypes[:, None], jnp.stack([genotypes, genotypes], axis=1), {"scored": 1}

    search = MAPElites(score, Counting(), partial(default_qd_metrics, qd_offset=1.0))
    repertoire, state, metrics = search.init(jnp.array([0.1, 0.8, 0.9]), GRID, jax.random.PRNGKey(0))
    np.testing.assert_allclose(repertoire.fitnesses[0::3], [[-0.1], [-0.8]])
    assert (float(state.number), float(metrics["coverage"])) == (4.0, 50.0)
    carry, metrics = jax.lax.scan(search.scan_update, (repertoire, state, jax.random.PRNGKey(1)), length=20)
    assert float(carry[1].number) == 4.0 + 20 * 5
    assert metrics["max_fitness"].shape == (20,)
    assert float(metrics["max_fitness"][-1]) > -0.1


def test_what_is_evaluated_outside_is_added_as_what_is_scored():
    def score(genotypes: Any, key: Any = None) -> tuple:
        return -genotypes, np.stack([genotypes, genotypes], axis=1), {"scored": 1}

    measure = partial(default_qd_metrics, qd_offset=1.0)
    search, outside = (MAPElites(scoring, Counting(), measure) for scoring in (score, None))
    first = np.array([0.1, 0.8, 0.9], np.float32)
    given = dict(zip(("fitnesses", "descriptors", "extra_scores"), score(first), strict=True))
    begun = outside.init_ask_tell(genotypes=first, centroids=GRID, key=jax.random.PRNGKey(1), **given)
    assert_equal(begun, search.init(first, GRID, jax.random.PRNGKey(0)))
    repertoire, state, _ = begun
    genotypes, info = outside.ask(repertoire, state, jax.random.split(jax.random.key(2))[0])
    fitnesses, places, scores = score(genotypes)
    added = outside.tell(genotypes, fitnesses, places, repertoire, state, scores, info)
    assert_equal(added, search.update(repertoire, state, jax.random.key(2)))
    with pytest.raises(ValueError, match=r"^scoring_function is None; give one, or use init_ask_tell, ask and tell\.$"):
        outside.update(repertoire, state, jax.random.key(2))


def test_named_extra_scores_are_stored_with_their_elites():
    def score(genotypes: jax.Array, key: jax.Array) -> tuple:
        places = jnp.stack([genotypes, genotypes], axis=1)
        return -genotypes, places, {"scored": 1, "twice": 2.0 * genotypes, "nested": {"place": places}, "other": places}

    create = partial(MapElitesRepertoire.init, keys_extra_scores=("twice", "nested"))
    search = MAPElites(score, Halving(), lambda cells: {"twice": cells.extra_scores["twice"]}, create)
    state = search.init(jnp.array([0.1, 0.8, 0.9]), GRID, jax.random.PRNGKey(0))
    for cells, _, metrics in (state, search.update(*state[:2], jax.random.PRNGKey(1))):
        assert cells.keys_extra_scores == ("nested", "twice")
        np.testing.assert_array_equal(metrics["twice"], 2.0 * cells.genotypes)
        np.testing.assert_array_equal(cells.extra_scores["nested"]["place"], cells.descriptors)

    def own(*given: Any) -> Any:
        return given

    made: Any = MAPElites(score, Halving(), lambda _: {}, own).init(jnp.ones(1), GRID, jax.random.key(0))[0]
    assert [jax.tree.leaves(part)[0].shape for part in made[:4]] == [(1,), (1,), (1, 2), (4, 2)]
    assert sorted(made[4]) == ["nested", "other", "scored", "twice"]
    assert state[0].replace(extra_scores={}).extra_scores == {}
    with pytest.raises(ValueError, match=r"\['twice'\] are no extra scores, which are \[\]"):
        MapElitesRepertoire.init(jnp.ones(1), jnp.ones(1), jnp.ones((1, 2)), GRID, keys_extra_scores=("twice",))


def test_a_mixing_emitter_emits_variations_then_mutations():
    emitted = MixingEmitter(lambda elites, _: elites + 10.0, lambda one, other, _: one + other, 0.625, 4)
    cells = MapElitesRepertoire.init(jnp.array([1.0]), jnp.zeros(1), GRID[:1], GRID)  # one elite
    children, extra = emitted.emit(cells, emitted.init(), jax.random.PRNGKey(0))
    assert (children.tolist(), extra, emitted.batch_size) == ([2.0, 2.0, 11.0, 11.0], {}, 4)

    for arguments, message in (
        ((None, max, 0.5, 4), "mutation_fn is None, but creates 2 of 4 genotypes"),
        ((None, max, 1.5, 4), r"variation_percentage must lie in \[0, 1\]"),
    ):
        with pytest.raises(ValueError, match=message):
            MixingEmitter(*arguments)


SIZES: dict[str, Any] = {"env_batch_size": 4, "grad_updates_per_step": 0.25, "pg_population_size_per_device": 4}
SIZES |= {"fraction_best_to_replace_from": 0.25, "fraction_to_replace_from_best": 0.25}
SIZES |= {"fraction_to_replace_from_samples": 0.25}


def test_an_emitter_emits_variations_then_its_members_and_replaces_the_worst():
    _, states, _ = made(PBTTD3, P)
    bare = jax.tree.map(lambda leaf: leaf[:7], states.empty_optimizers_states(states))
    fitnesses, places = jnp.array([0.0, 0.0, 9.0, 4.0, 3.0, 2.0, 1.0]), jnp.tile(GRID[:1], (7, 1))
    repertoire = MapElitesRepertoire.init(bare, fitnesses, places, GRID)  # only the third is stored
    me_pbt = make_emitter(**SIZES)
    assert me_pbt.batch_size == 7
    init, emit = jax.jit(me_pbt.init), jax.jit(me_pbt.emit)
    initial = init(jax.random.PRNGKey(0), repertoire, bare, fitnesses, places, {})
    assert_equal(initial.training_states.policy_params, jax.tree.map(lambda leaf: leaf[-4:], bare.policy_params))
    assert initial.replay_buffers.current_size.tolist() == [0] * 4
    children, extra = emit(repertoire, initial, jax.random.key(1))
    assert extra == {}
    empty = MapElitesRepertoire.init(bare, jnp.full(7, NAN), places, GRID)
    begun = init(jax.random.PRNGKey(0), empty, bare, fitnesses, places, {}).training_states
    for tree in (begun, emit(empty, initial, jax.random.key(1))[0]):
        assert (tree.hyper.discount > 0).all(), "an empty repertoire gives the members instead of zeros"
        assert (jnp.abs(jax.tree.leaves(tree.policy_params)[-1]).max(axis=(1, 2)) > 0).all()
    assert_equal(jax.tree.map(lambda leaf: leaf[3:], children.critic_params), initial.training_states.critic_params)
    elite = jax.tree.leaves(row(bare.policy_params, 2))[-1]
    assert all(
        0 < float(jnp.abs(jax.tree.leaves(children.policy_params)[-1][i] - elite).max()) < 0.06 for i in range(3)
    )

    after = jax.jit(me_pbt.state_update)(initial, repertoire, bare, fitnesses, places, {})
    members, before = after.training_states, initial.training_states
    assert members.steps.tolist() == [1] * 4
    changed = [name for name in HYPER if np.any(getattr(members, name)[:2] != getattr(before, name)[:2])]
    assert changed == [], "the better half survives"
    assert not np.any(members.discount[2:] == before.discount[2:])
    sources = [jax.tree.leaves(tree.policy_params)[-1] for tree in (row(before, 0), row(bare, 2))]
    weights = jax.tree.leaves(members.policy_params)[-1]
    assert distinct(members.discount) == distinct(members.key) == 4
    np.testing.assert_allclose(weights[3], sources[0], atol=0.01)  # the worst: a child of the best
    np.testing.assert_allclose(weights[2], sources[1], atol=0.01)  # the next: an elite


def test_an_emitter_rejects_arguments_that_do_not_fit():
    with pytest.raises(ValueError, match=r"4 x 4 environments, .*12"):
        make_emitter(env_size=12, **SIZES)
    with pytest.raises(ValueError, match="samples 3 members, which with 1 best and 1 replaced exceed 4"):
        make_emitter(**{**SIZES, "fraction_to_replace_from_samples": 0.75})
