"""MAP-Elites: ask an emitter, evaluate, keep the best genotype of each cell, tell the emitter.

Source: Mouret 2015, "Illuminating search spaces by mapping elites" (arXiv:1504.04909). It is a `Program`, so the
training loop, checkpoints, resume, logs and progress work as for any other method.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import trees
from rookery.learners.evaluation import evaluate as evaluate_episodes
from rookery.populations import base, rebuild
from rookery.populations.base import Program, ProgramState
from rookery.populations.sharding import ONE_DEVICE, Placement
from rookery.populations.stages import StagedInit, StagedStep, Work
from rookery.qd import archives, emitters
from rookery.qd import repertoire as repertoires
from rookery.qd.archives import Archive
from rookery.qd.base import (
    Bank,
    Emitter,
    EmitterState,
    Scoring,
    check_proposals,
    check_scoring,
    checked_extras,
    emitted,
)
from rookery.qd.repertoire import Added, Repertoire
from rookery.qd.staged import staged_ask
from rookery.settings import RESERVED_COLUMNS, check_counts, check_names, type_of
from rookery.types import Array, Evaluation, Key, Metrics, PyTree


class MapElitesBindings(NamedTuple):
    """The static arguments of a MAP-Elites program."""

    scoring: Scoring
    emitter: Emitter
    archive: Archive
    placement: Placement


class MapElitesShared(NamedTuple):
    """The replicated part of the state: the emitter's shared state, and the repertoire without its genotypes."""

    emitter: PyTree
    fitnesses: Array
    """`[C]`."""
    descriptors: Array
    """`[C, D]`."""
    centroids: Array
    """`[C, D]`."""
    thresholds: PyTree = ()
    """`[C]`, see `Repertoire`."""
    extras: Mapping[str, Array] = {}
    """Name -> `[C, ...]`, see `Repertoire`."""


def repertoire_of(state: ProgramState) -> Repertoire:
    """The repertoire in a state of MAP-Elites, e.g. `repertoire_of(run(program).state)`.

    Example:
      >>> arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
      >>> cells = rookery.qd.grid((8, 8), arm.descriptor.lower, arm.descriptor.upper)
      >>> result = rookery.run(rookery.map_elites(arm, cells), generations=2, quiet=True)
      >>> rookery.qd.repertoire_of(result.state).fitnesses.shape
      (64,)
    """
    return Repertoire(genotypes=state.cells, **{name: getattr(state.shared, name) for name in _REPLICATED})


def with_repertoire(state: ProgramState, repertoire: Repertoire) -> ProgramState:
    """Replace the repertoire of a state by another one with the same cells."""
    shared = state.shared._replace(**{name: getattr(repertoire, name) for name in _REPLICATED})
    return state._replace(cells=repertoire.genotypes, shared=shared)


_REPLICATED = tuple(name for name in Repertoire._fields if name != "genotypes")
"""The fields of a repertoire that are replicated on every device."""


def create(bindings: MapElitesBindings, keys: Key, bank: Bank) -> ProgramState:
    """Create an empty repertoire and the initial state of the emitter."""
    genotype = jax.eval_shape(bindings.scoring.init_genotype, keys[0], bank)
    state = emitted("init", bindings.emitter.init(keys[0], bank))
    repertoire = archives.empty(bindings.archive, genotype, bindings.scoring.qd_offset)
    repertoire = repertoire._replace(extras=_no_extras(bindings, genotype, keys[0], bank))
    shared = MapElitesShared(state.shared, **{name: getattr(repertoire, name) for name in _REPLICATED})
    return ProgramState(state.members, shared, repertoire.genotypes)


def _no_extras(bindings: MapElitesBindings, genotype: PyTree, key: Key, bank: Bank) -> dict[str, Array]:
    """Zeros `[C, ...]` of the values that are stored with an elite."""
    if bindings.scoring.extras is None and bindings.scoring.evaluator is not None:
        return {}
    shapes = jax.eval_shape(partial(evaluate_genotype, bindings.scoring), genotype, key, bank).extras
    count = bindings.archive.centroids.shape[0]
    return jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), dict(shapes))


def begin(bindings: MapElitesBindings, state: ProgramState, bank: Bank, keys: Key) -> tuple[ProgramState, Work]:
    """Run the emitter's stage before training."""
    ask_key, evaluate_key = keys
    emitter_state = EmitterState(state.members, state.shared.emitter)
    emitter_state, work = staged_ask(bindings.emitter.ask).begin(emitter_state, repertoire_of(state), bank, ask_key)
    return with_emitter(state, emitter_state), work._replace(shared=(work.shared, bank, evaluate_key))


def advance(
    bindings: MapElitesBindings, state: ProgramState, work: Work, first: Array | int, last: Array | int
) -> tuple[ProgramState, Work]:
    """Train the emitter's members for some iterations of the generation."""
    ask_shared, *rest = work.shared
    emitter_state, work = EmitterState(state.members, state.shared.emitter), work._replace(shared=ask_shared)
    emitter_state, work = staged_ask(bindings.emitter.ask).advance(emitter_state, work, first, last)
    return with_emitter(state, emitter_state), work._replace(shared=(work.shared, *rest))


def finish(bindings: MapElitesBindings, state: ProgramState, work: Work) -> tuple[ProgramState, Metrics]:
    """Evaluate the emitter's proposals, and keep the best genotype of each cell.

    Returns:
      The next state, and metrics: those of the repertoire after the generation (see `repertoire.metrics`); `added`,
      `improved`, `rejected` and `outside`, the number of proposals that filled a cell, replaced an elite, were not
      finite, or had a descriptor outside of the limits; `evaluation_steps`, the environment steps of the evaluation;
      `broken_episodes`, its episodes in which the physics broke, which rejects a genotype; `fitness` and, of an
      environment with measures, `return` and `measure/...`, of the emitter's population `[P]`, or of all proposals
      `[B]` if it has none; and the metrics of the emitter.
    """
    ask_shared, bank, evaluate_key = work.shared
    state, genotypes, proposed = propose(bindings, state, work._replace(shared=ask_shared))
    # Evaluate, each proposal on one device.
    keys = base.member_keys(evaluate_key, bindings.emitter.batch_size)
    evaluator = partial(evaluate_genotype, bindings.scoring, record=bindings.emitter.learns_from_transitions)
    evaluation = bindings.placement.map(evaluator, (genotypes, keys), (bank,))
    # Replicate the evaluation: every device computes the same competition for the cells.
    evaluation = bindings.placement.everywhere(lambda replicated: replicated, evaluation)
    return keep(bindings, state, genotypes, evaluation, proposed)


def propose(bindings: MapElitesBindings, state: ProgramState, work: Work) -> tuple[ProgramState, PyTree, Metrics]:
    """The first half of `finish`: the state, the emitter's proposals `[B, ...]` within the bounds, and its metrics."""
    emitter_state, ask = EmitterState(state.members, state.shared.emitter), staged_ask(bindings.emitter.ask)
    emitter_state, genotypes, metrics = ask.propose(emitter_state, work, repertoire_of(state))
    check_proposals(genotypes, state.cells, bindings.emitter.batch_size)
    return with_emitter(state, emitter_state), bounded(genotypes, bindings.scoring.bounds), metrics


def keep(
    bindings: MapElitesBindings, state: ProgramState, genotypes: PyTree, evaluation: Evaluation, proposed: Metrics
) -> tuple[ProgramState, Metrics]:
    """The second half of `finish`: add the proposals to the repertoire, and tell the emitter what became of them.

    Args:
      bindings: the static arguments.
      state: after `propose`.
      genotypes: `[B, ...]`, the proposals.
      evaluation: of them, `[B, ...]`.
      proposed: the metrics of `propose`.
    """
    limits = limits_of(bindings.scoring)
    repertoire, added = bindings.archive.add(
        repertoire_of(state), genotypes, evaluation.fitness, evaluation.descriptor, limits, bindings.placement.cells
    )
    repertoire = repertoires.store_extras(repertoire, added, evaluation.extras)
    emitter_state = EmitterState(state.members, state.shared.emitter)
    returned = bindings.emitter.tell(emitter_state, evaluation, added)
    emitter_state, learned = emitted("tell", returned, ("metrics",), emitter_state)
    state = with_repertoire(with_emitter(state, emitter_state), repertoire)
    diverged = ~jnp.isfinite(evaluation.fitness) & (evaluation.broken == 0)
    of_population = {"fitness": evaluation.fitness, "diverged": diverged, **base.measure_metrics(evaluation)}
    own = {**of_population, **_metrics(bindings, repertoire, added, evaluation)}
    check_names("metric of the emitter", [*proposed, *(set(learned) - set(of_population))], [*RESERVED_COLUMNS, *own])
    return state, {**own, **proposed, **learned}


def with_emitter(state: ProgramState, emitter_state: EmitterState) -> ProgramState:
    """Replace the state of the emitter in that of a program."""
    return state._replace(members=emitter_state.members, shared=state.shared._replace(emitter=emitter_state.shared))


def limits_of(scoring: Scoring) -> tuple[Array, Array]:
    """The lower and upper limits of the descriptor, `[D]` each."""
    descriptor = scoring.descriptor
    return jnp.asarray(descriptor.lower, jnp.float32), jnp.asarray(descriptor.upper, jnp.float32)


def bounded(genotypes: PyTree, bounds: tuple[float, float] | None) -> PyTree:
    """Clip numbers to the bounds, whole numbers to those inside; truth values are left unchanged."""
    if bounds is None:
        return genotypes

    def clip(leaf: Array) -> Array:
        lower, upper = bounds
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            lower, upper = (
                math.ceil(max(lower, jnp.iinfo(leaf.dtype).min)),
                math.floor(min(upper, jnp.iinfo(leaf.dtype).max)),
            )
            if lower > upper:
                raise ValueError(
                    f"the genotype has whole numbers of type {leaf.dtype}, but the bounds {bounds} have none."
                )
        return leaf if leaf.dtype == bool else jnp.clip(leaf, *np.asarray([lower, upper]).astype(leaf.dtype))

    return jax.tree.map(clip, genotypes)


def evaluate_genotype(scoring: Scoring, genotype: PyTree, key: Key, bank: Bank, record: bool = False) -> Evaluation:
    """Evaluate a genotype; the fitness is NaN if the genotype is not finite or broke the physics.

    A NaN keeps it out of the repertoire: a policy that ends episodes by breaking the physics must not become an elite.
    """
    score = scoring.evaluate
    if record and scoring.evaluator is not None:
        score = partial(evaluate_episodes, scoring.evaluator, record=True)
    evaluated = score(genotype, bank, key)
    extras = checked_extras(evaluated.extras if scoring.extras is None else scoring.extras(evaluated))
    fitness = jnp.where(trees.all_finite(genotype), evaluated.fitness, jnp.nan)
    return evaluated._replace(fitness=fitness, extras=extras)


def _metrics(bindings: MapElitesBindings, repertoire: Repertoire, added: Added, evaluation: Evaluation) -> Metrics:
    placed = archives.in_cells(bindings.archive, repertoire, limits_of(bindings.scoring))
    return {
        **repertoires.metrics(placed, bindings.scoring.qd_offset),
        "added": jnp.sum(added.status == 2),
        "improved": jnp.sum(added.status == 1),
        "rejected": jnp.sum(added.rejected),
        "outside": jnp.sum(added.outside),
        "evaluation_steps": jnp.sum(evaluation.lengths),
        "broken_episodes": jnp.sum(evaluation.broken),
    }


def evaluate(bindings: MapElitesBindings, state: ProgramState, key: Key) -> Metrics:
    """Evaluate every elite again from fresh start states without changing the state, in batches of B.

    Returns:
      Metrics `[C, ...]`: `fitness`, NaN where a cell is empty, `returns` `[C, N]`, `lengths` `[C, N]`, `descriptor`
      `[C, D]`, and the values stored in the repertoire, `stored_fitness` and `stored_descriptor`. Then, `[]` each, the
      metrics of the repertoire as `stored/...`, and as `corrected/...` those of a repertoire to which the elites were
      added with their new fitness and descriptor.
    """
    bank_key, evaluate_key = jax.random.split(key)
    bank = bindings.scoring.start_states(bank_key)
    repertoire = repertoire_of(state)
    evaluation = _evaluate_elites(bindings, repertoire, bank, evaluate_key)
    fitness = jnp.where(repertoire.occupied, evaluation.fitness, jnp.nan)
    limits = limits_of(bindings.scoring)
    rebuilt = archives.placed(bindings.archive, fitness, evaluation.descriptor, limits)
    corrected = repertoires.metrics(rebuilt, bindings.scoring.qd_offset)
    in_cells = archives.in_cells(bindings.archive, repertoire, limits)
    stored = repertoires.metrics(in_cells, bindings.scoring.qd_offset)
    return {
        **base.evaluation_metrics(evaluation),
        "fitness": fitness,
        "stored_fitness": repertoire.fitnesses,
        "stored_descriptor": repertoire.descriptors,
        **{f"stored/{name}": value for name, value in stored.items()},
        **{f"corrected/{name}": value for name, value in corrected.items()},
    }


def _evaluate_elites(bindings: MapElitesBindings, repertoire: Repertoire, bank: Bank, key: Key) -> Evaluation:
    """The evaluation `[C, ...]` of all elites; zeros where a cell is empty."""
    count, batch = repertoire.fitnesses.shape[0], bindings.emitter.batch_size
    keys = base.member_keys(key, count)
    order, elites = jnp.argsort(~repertoire.occupied, stable=True), jnp.sum(repertoire.occupied)  # occupied first
    evaluator = partial(bindings.placement.map, partial(evaluate_genotype, bindings.scoring))

    def evaluate_batch(index: Array, results: Evaluation) -> Evaluation:
        places = index * batch + jnp.arange(batch)
        cells = order[jnp.minimum(places, count - 1)]
        batch_results = evaluator((bindings.placement.cells.take(repertoire.genotypes, cells), keys[cells]), (bank,))
        return trees.scatter(results, jnp.where(places < elites, cells, count + places), batch_results)

    genotype = jax.eval_shape(lambda tree: trees.take(tree, 0), repertoire.genotypes)
    shapes = jax.eval_shape(partial(evaluate_genotype, bindings.scoring), genotype, key, bank)
    zeros = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), shapes)
    return jax.lax.fori_loop(0, -(-elites // batch), evaluate_batch, zeros)


def table(state: ProgramState) -> dict[str, Array]:
    """Fitness, descriptor, centroid and stored numbers of each cell, column -> `[C]`; see `TableFn`."""
    repertoire = repertoire_of(state)
    occupied = repertoire.occupied
    columns = {"fitness": repertoire.fitnesses}
    for name, values in (("descriptor", repertoire.descriptors), ("centroid", repertoire.centroids)):
        known = occupied if name == "descriptor" else jnp.ones_like(occupied)
        columns |= {f"{name}/{i}": jnp.where(known, values[:, i], jnp.nan) for i in range(values.shape[1])}
    for name, values in repertoire.extras.items():
        if values.ndim == 1:
            columns[f"extra/{name}"] = jnp.where(occupied, values.astype(jnp.float32), jnp.nan)
    return columns


def map_elites(
    scoring: Scoring,
    centroids: Array | Archive,
    emitter: Emitter | None = None,
    placement: Placement = ONE_DEVICE,
) -> Program:
    """MAP-Elites with any scoring and any emitter.

    Args:
      scoring: from `function_scoring`, `policy_scoring` or `learner_scoring`.
      centroids: `[C, D]`, from `centroids.cvt` or `centroids.grid`; or an archive, which also decides which genotypes
        are kept: `dominated_novelty(centroids)`, `annealed(centroids)`.
      emitter: proposes genotypes; iso+line with a batch of 256 by default.
      placement: the placement of evaluations and repertoire; `rookery.distributed.placement` for a mesh.

    Raises:
      ValueError: the centroids do not fit the descriptor, or there are none.
      TypeError: `scoring` or `emitter` is something else.

    Example:
      >>> arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
      >>> cells = rookery.qd.grid((8, 8), arm.descriptor.lower, arm.descriptor.upper)
      >>> program = rookery.map_elites(arm, cells)
    """
    bindings = bind(scoring, centroids, emitter, placement)
    given, archive, emitter = emitter, bindings.archive, bindings.emitter
    program = Program(
        init=StagedInit(scoring.start_states, partial(create, bindings), keys=1),
        step=StagedStep(
            scoring.start_states,
            partial(begin, bindings),
            partial(advance, bindings),
            partial(finish, bindings),
            staged_ask(emitter.ask).iterations,
            keys=2,
        ),
        evaluate=partial(evaluate, bindings),
        population_size=emitter.population_size or emitter.batch_size,
        steps_per_generation=emitter.steps or emitter.batch_size * scoring.steps,
        batch_size=emitter.batch_size,
        table=table,
        divides_cells=placement.divides_cells,
        descriptor=scoring.descriptor,
        task=scoring.name,
        scoring=scoring,
        archive=archive,
        settings=_settings(scoring, archive, emitter),
    )
    if emitter.population_size:  # the emitter is bound to a placement, see `me_pbt`
        return program
    return rebuild.with_recipe(program, lambda problem, place: map_elites(problem, archive, given, place), placement)


def bind(
    scoring: Scoring, centroids: Array | Archive, emitter: Emitter | None = None, placement: Placement = ONE_DEVICE
) -> MapElitesBindings:
    """Check the arguments of `map_elites` and bundle them; it raises the errors of `map_elites`."""
    check_scoring(scoring)
    size = scoring.descriptor.size
    shape = np.shape(centroids.centroids if isinstance(centroids, Archive) else centroids)
    if len(shape) != 2 or shape[0] < 1 or shape[1] != size:
        raise ValueError(f"centroids must be [C, {size}] with at least one cell, to fit the descriptor; got {shape}.")
    archive = archives.archive_of(centroids)
    if emitter is not None and not isinstance(emitter, Emitter):
        raise TypeError(f"the emitter must be one such as rookery.qd.iso_line(scoring, 64), got {type_of(emitter)}.")
    if emitter is not None and emitter.learns_from_transitions and scoring.evaluator is None:
        raise ValueError(
            f"this emitter learns from the transitions of episodes, but {scoring.name} is a function; use "
            "policy_scoring."
        )
    emitter = emitter or emitters.iso_line(scoring, 256, rows=placement.cells)
    check_counts(batch_size=emitter.batch_size)  # of a mix that of all its emitters together
    return MapElitesBindings(scoring, emitter, archive, placement)


def _settings(scoring: Scoring, archive: Archive, emitter: Emitter) -> dict[str, Any]:
    """The settings of a program, to record."""
    cells = {"cells": archive.centroids.shape[0], "centroids": archive.centroids, "survival": "best-of-cell"}
    return {
        **scoring.settings,
        "population_method": "map_elites",
        "batch_size": emitter.batch_size,
        **emitter.settings,
        "cells": {**cells, **archive.settings},
    }
