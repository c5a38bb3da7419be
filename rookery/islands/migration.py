"""What an island publishes from the state of its program, and how it loads what it imports; pure functions."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import buffers, trees
from rookery.buffers import BufferState
from rookery.distributed import programs
from rookery.distributed.mesh import Mesh
from rookery.islands import exchange
from rookery.islands.store import Publication, StoreError
from rookery.learners import widths
from rookery.learners.base import genotype
from rookery.populations.base import Program, ProgramState
from rookery.populations.config import rounded
from rookery.populations.inheritance import Perturbation, load_where, perturb, resize
from rookery.populations.pbt import proven, still_unproven
from rookery.populations.rebuild import recipe_of
from rookery.populations.sharding import Placement
from rookery.qd import repertoire as repertoires
from rookery.qd.map_elites import limits_of, repertoire_of, with_repertoire
from rookery.types import FROM_REPERTOIRE, Array, Genotype, Key, PyTree

BATCH = 64  # elites that are added to a repertoire at once
_PREFIX = "genotype"


class Published(NamedTuple):
    """Genotypes to publish, on the host."""

    genotypes: PyTree  # `[E, ...]`
    fitness: np.ndarray  # `[E]`, finite
    descriptor: np.ndarray  # `[E, D]`; `[E, 0]` for members of a population
    member: int | None = None  # slot of the member; None for elites, and for genotypes that were read


class Migration(NamedTuple):
    """The functions of one kind of program by which islands exchange genotypes."""

    publish: Callable[[ProgramState, Key], Published | None]
    """The genotypes that an island publishes; None if no fitness is finite. The key is consumed."""
    choose: Callable[[ProgramState, Sequence[float], Key], dict[int, int]]
    """The fitness in the header of each publication -> slot -> index of the publication; for a repertoire, whose elites
    need no slot, `{-1 - s: s}` for all s. The key is consumed."""
    load: Callable[[ProgramState, Mapping[int, Published], Key], ProgramState]
    """Loads what was chosen, slot -> genotypes; donates the state."""
    template: PyTree
    """Shapes and types of one genotype."""
    keeps_elites: bool
    """Whether elites of a repertoire are exchanged; False for members of a population."""


def migration(program: Program, over: Mesh, fraction: float, perturbation: Perturbation) -> Migration:
    """The exchange of the genotypes of a PBT population, or of a repertoire that a population fills (ME-PBT), which is
    bound to its devices; the hyper-parameters of imported members are perturbed."""
    recipe, state = recipe_of(program), programs.template(program, over)
    placement = recipe.placement if recipe else Placement()
    layout = programs.shardings(over, program.divides_cells)
    if program.table is not None:
        template = jax.tree.map(_row, state.cells)
        merged = jax.jit(partial(_merge, program, placement), donate_argnums=0, out_shardings=layout)
        # Compiled once: the exchange between devices in `take` would otherwise be compiled at each call.
        publish = partial(_publish_elites, jax.jit(placement.cells.take), fraction)
        return Migration(publish, _choose_all, partial(_load_elites, merged), template, True)
    template = jax.tree.map(_row, jax.eval_shape(jax.vmap(genotype), state.members))
    loaded = jax.jit(partial(_load, program, perturbation, placement), donate_argnums=0, out_shardings=layout)
    count = max(1, rounded(fraction, program.population_size))
    choose = partial(_choose_members, jax.jit(exchange.sources, static_argnums=2), fraction)
    load = partial(_load_members, loaded, template, program.population_size, count)
    take = jax.jit(lambda members, best: placement.take(jax.vmap(genotype)(members), best))
    return Migration(partial(_publish_member, take), choose, load, template, False)


def arrays_of(published: Published) -> dict[str, np.ndarray]:
    """The arrays of a publication, by name."""
    leaves = jax.tree.leaves_with_path(published.genotypes)
    named = {f"{_PREFIX}{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}
    return {"fitness": published.fitness, "descriptor": published.descriptor, **named}


def published_in(publication: Publication, template: PyTree, name: str) -> Published:
    """The genotypes of the type of `template` in a publication; a StoreError, with the name of the file, if it has
    other arrays."""
    arrays, count = publication.arrays, len(publication.arrays.get("fitness", ()))
    leaves = jax.tree.leaves_with_path(template)
    expected = {f"{_PREFIX}{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}
    fits = {"fitness", "descriptor", *expected} == set(arrays) and count > 0
    for key, leaf in expected.items() if fits else ():
        if arrays[key].shape != (count, *leaf.shape) or arrays[key].dtype != leaf.dtype:
            raise StoreError(
                f"the publication {name} was left out: {key} has the shape {arrays[key].shape[1:]} and the type "
                f"{arrays[key].dtype}, but this island has {leaf.shape} and {leaf.dtype}."
            )
    if not fits:
        raise StoreError(f"the publication {name} was left out: it is of another program.")
    genotypes = jax.tree.unflatten(jax.tree.structure(template), [arrays[key] for key in expected])
    return Published(genotypes, arrays["fitness"], arrays["descriptor"])


def hyper_of(published: Published, index: int) -> dict[str, float]:
    """The finite hyper-parameters of a genotype by name; {} if it has none. A constant may be infinite, as a limit that
    limits nothing."""
    hyper = published.genotypes.hyper if isinstance(published.genotypes, Genotype) else ()
    named = hyper._asdict() if hasattr(hyper, "_asdict") else {}  # pyright: ignore[reportAttributeAccessIssue]
    found = {name: float(np.asarray(values)[index].mean()) for name, values in named.items()}
    return {name: value for name, value in found.items() if np.isfinite(value)}


def standing(state: ProgramState) -> np.ndarray:
    """The fitness of the policy in each slot of a PBT population, `[P]`: a child has that of its parent, or NaN where
    training episodes give the fitness and none of its own has ended."""
    return np.asarray(jax.device_get(proven(state.shared, state.shared.recent[:, 0])))


def _row(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _publish_member(take: Callable, state: ProgramState, key: Key) -> Published | None:
    """The best member; among equals one that was not replaced in this generation."""
    del key
    fitness = standing(state)
    if not np.isfinite(fitness).any():
        return None
    survives = np.asarray(state.shared.parents) == np.arange(len(fitness))
    order = np.lexsort((~survives, -np.where(np.isfinite(fitness), fitness, -np.inf)))
    best = jnp.asarray(order[:1].astype(np.int32))
    genotypes = jax.device_get(take(state.members, best))
    return Published(genotypes, fitness[order[:1]], np.zeros((1, 0), np.float32), int(order[0]))


def _publish_elites(take: Callable, fraction: float, state: ProgramState, key: Key) -> Published | None:
    """A random share of the elites: over time all of them."""
    repertoire = repertoire_of(state)
    occupied = np.asarray(repertoire.occupied)
    seed = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    cells = exchange.sampled(occupied, fraction, seed)
    if not len(cells):
        return None
    blocks = [_padded(cells[first : first + BATCH].astype(np.int32)) for first in range(0, len(cells), BATCH)]
    taken = [jax.device_get(take(repertoire.genotypes, jnp.asarray(block))) for block in blocks]
    genotypes = jax.tree.map(lambda *rows: np.concatenate(rows)[: len(cells)], *taken)
    return Published(genotypes, np.asarray(repertoire.fitnesses)[cells], np.asarray(repertoire.descriptors)[cells])


def _choose_members(
    rule: Callable[..., Array], fraction: float, state: ProgramState, fitness: Sequence[float], key: Key
) -> dict[int, int]:
    if not fitness:
        return {}
    found = np.asarray(rule(jnp.asarray(standing(state)), jnp.asarray(fitness, jnp.float32), fraction, key))
    unproven = state.shared.unproven
    stays = np.zeros(len(found), bool) if unproven is None else np.asarray(jax.device_get(unproven))
    return {int(slot): int(found[slot]) for slot in np.flatnonzero((found >= 0) & ~stays)}


def _choose_all(state: ProgramState, fitness: Sequence[float], key: Key) -> dict[int, int]:
    del state, key
    return {-1 - index: index for index in range(len(fitness))}


def _load_members(
    loaded: Callable,
    template: PyTree,
    size: int,
    count: int,
    state: ProgramState,
    chosen: Mapping[int, Published],
    key: Key,
) -> ProgramState:
    source, takes = np.zeros(size, np.int32), np.zeros(size, bool)
    stacked = jax.tree.map(lambda leaf: np.zeros((count, *leaf.shape), leaf.dtype), template)
    fitness = np.zeros(size, np.float32)
    for index, (slot, published) in enumerate(sorted(chosen.items())):
        source[slot], takes[slot], fitness[slot] = index, True, published.fitness[0]
        for whole, leaf in zip(jax.tree.leaves(stacked), jax.tree.leaves(published.genotypes), strict=True):
            whole[index] = leaf[0]
    return loaded(state, stacked, source, takes, fitness, key)


def _load(
    program: Program,
    perturbation: Perturbation,
    placement: Placement,
    state: ProgramState,
    genotypes: PyTree,
    source: Array,
    takes: Array,
    *rest: Array,
) -> ProgramState:
    """Load `genotypes[source]` where `takes`, and perturb their hyper-parameters; `rest`: the fitness `[P]`, a key."""
    assert program.learner is not None
    assert program.space is not None
    fitness, key = rest
    has_widths = widths.evolves(program.learner, state.members.hyper)
    perturb_key, resize_key = jax.random.split(key) if has_widths else (key, key)
    rows = trees.take(genotypes, source)
    members = placement.map(partial(load_where, program.learner), (state.members, rows, takes), ())
    if perturbation.inherit_buffer and isinstance(members.buffer, BufferState):  # the source's is not published
        members = members._replace(buffer=buffers.clear(members.buffer, takes))
    members = members._replace(hyper=perturb(perturbation, program.space, members.hyper, perturb_key, takes))
    if has_widths:
        members = resize(program.learner, placement, members, resize_key)
    shared = state.shared
    parents = jnp.where(takes, FROM_REPERTOIRE, shared.parents)
    recent = jnp.where(takes[:, None], fitness[:, None], shared.recent)
    unproven = still_unproven(shared.unproven, jnp.zeros_like(takes), takes)
    return state._replace(members=members, shared=shared._replace(parents=parents, recent=recent, unproven=unproven))


def _load_elites(merged: Callable, state: ProgramState, chosen: Mapping[int, Published], key: Key) -> ProgramState:
    """Add all elites to the repertoire, a batch at a time: one winner per cell, whatever their order."""
    del key
    for _, published in sorted(chosen.items(), reverse=True):
        for first in range(0, len(published.fitness), BATCH):
            rows = jax.tree.map(lambda leaf, first=first: leaf[first : first + BATCH], published[:3])
            state = merged(state, *jax.tree.map(_padded, rows))
    return state


def _padded(rows: np.ndarray) -> np.ndarray:
    """Rows up to `BATCH`; those that are added have no finite fitness."""
    filler = np.nan if np.issubdtype(rows.dtype, np.floating) else 0
    return np.concatenate([rows, np.full((BATCH - len(rows), *rows.shape[1:]), filler, rows.dtype)])


def _merge(
    program: Program, placement: Placement, state: ProgramState, genotypes: PyTree, fitness: Array, descriptor: Array
) -> ProgramState:
    limits = limits_of(program.scoring)
    filled, added = program.archive.add(repertoire_of(state), genotypes, fitness, descriptor, limits, placement.cells)
    return with_repertoire(state, repertoires.store_extras(filled, added, {}))
