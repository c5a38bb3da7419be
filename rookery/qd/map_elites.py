"""MAP-Elites: ask an emitter, evaluate, keep the best of each cell, tell the emitter.

Source: Mouret 2015, "Illuminating search spaces by mapping elites" (arXiv:1504.04909). It is a `Program` like any
other, so the run loop, checkpoints, resume, logs and progress serve it.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.populations import base
from rookery.populations.base import Program, ProgramState
from rookery.populations.sharding import ONE_DEVICE, Placement
from rookery.populations.stages import StagedInit, StagedStep, Work, change_init
from rookery.qd import emitters
from rookery.qd import repertoire as repertoires
from rookery.qd.base import Bank, Emitter, EmitterState, Scoring
from rookery.qd.centroids import FindFn, finder
from rookery.qd.repertoire import Added, Repertoire
from rookery.qd.staged import staged_ask
from rookery.types import Array, Evaluation, Key, Metrics, PyTree


class MapElitesBindings(NamedTuple):
    """What a MAP-Elites program is bound to."""

    scoring: Scoring
    emitter: Emitter
    centroids: Array
    find: FindFn
    placement: Placement


class Shared(NamedTuple):
    """What is small: the emitter's own state, and the repertoire without its genotypes."""

    emitter: PyTree
    fitnesses: Array  # [C]
    descriptors: Array  # [C, D]
    centroids: Array  # [C, D]


def repertoire_of(state: ProgramState) -> Repertoire:
    """The repertoire that a state of MAP-Elites holds, e.g. `repertoire_of(run(program).state)`."""
    return Repertoire(state.cells, state.shared.fitnesses, state.shared.descriptors, state.shared.centroids)


def begin_with(program: Program, repertoire: Repertoire) -> Program:
    """The same program, begun with the elites of a repertoire of the same genotypes.

    Each goes into the cell that its descriptor belongs to here, so the cells may be others than those it comes from.

    Raises:
      ValueError: the program has no repertoire, or its genotypes or descriptors are others.
    """
    _check_beginning(program, repertoire.genotypes, repertoire.descriptors)
    return change_init(program, partial(_begin_with, repertoire))


def _check_beginning(program: Program, genotypes: PyTree, descriptors: Any) -> None:
    if program.table is None:
        raise ValueError("only a program with a repertoire can begin with one: map_elites, me_pbt.")
    state = jax.eval_shape(program.init, jax.random.key(0))
    here, there = (
        [(jax.tree_util.keystr(path), leaf.shape[1:], leaf.dtype) for path, leaf in jax.tree.leaves_with_path(tree)]
        for tree in ((state.cells, state.shared.descriptors), (genotypes, descriptors))
    )
    if here != there:
        raise ValueError("the repertoire is of another task or another agent: its genotypes or descriptors differ.")


def _begin_with(repertoire: Repertoire, state: ProgramState) -> ProgramState:
    descriptors = jnp.where(repertoire.occupied[:, None], repertoire.descriptors, jnp.nan)
    begun, _ = repertoires.add(repertoire_of(state), repertoire.genotypes, repertoire.fitnesses, descriptors)
    return with_repertoire(state, begun)


def begin_from(program: Program, scoring: Scoring, genotypes: PyTree) -> Program:
    """The same program, begun with genotypes that are judged first: each enters its cell, if it is finite.

    Args:
      program: over this very scoring.
      scoring: judges them, on start states of its own.
      genotypes: `[M, ...]`, e.g. `skill_policies(run_dir)`.

    Raises:
      ValueError: the program has no repertoire, or its genotypes are others.
    """
    descriptors = jax.ShapeDtypeStruct((1, scoring.descriptor.size), jnp.float32)
    _check_beginning(program, genotypes, descriptors)
    return program._replace(init=partial(_begin_from, program, scoring, genotypes))


def _begin_from(program: Program, scoring: Scoring, genotypes: PyTree, key: Key) -> ProgramState:
    init_key, bank_key, judge_key = jax.random.split(key, 3)
    state, bank = program.init(init_key), scoring.start_states(bank_key)
    keys = base.member_keys(judge_key, jax.tree.leaves(genotypes)[0].shape[0])
    judged = base.vmap(partial(_judge, scoring), (genotypes, keys), (bank,))
    begun, _ = repertoires.add(repertoire_of(state), genotypes, judged.fitness, judged.descriptor, _limits(scoring))
    return with_repertoire(state, begun)


def with_repertoire(state: ProgramState, repertoire: Repertoire) -> ProgramState:
    """The same state with another repertoire of the very same cells."""
    genotypes, *rest = repertoire
    return state._replace(cells=genotypes, shared=Shared(state.shared.emitter, *rest))


def create(bindings: MapElitesBindings, keys: Key, bank: Bank) -> ProgramState:
    """An empty repertoire, and the emitter's first state."""
    genotype = jax.eval_shape(bindings.scoring.init_genotype, keys[0], bank)
    state = bindings.emitter.init(keys[0], bank)
    genotypes, *rest = repertoires.empty(genotype, bindings.centroids)
    return ProgramState(state.members, Shared(state.shared, *rest), genotypes)


def begin(bindings: MapElitesBindings, state: ProgramState, bank: Bank, keys: Key) -> tuple[ProgramState, Work]:
    """What the emitter does before its members train."""
    ask_key, evaluate_key = keys
    emitting = EmitterState(state.members, state.shared.emitter)
    emitting, work = staged_ask(bindings.emitter.ask).begin(emitting, repertoire_of(state), bank, ask_key)
    return _with_emitter(state, emitting), work._replace(shared=(work.shared, bank, evaluate_key))


def advance(
    bindings: MapElitesBindings, state: ProgramState, work: Work, first: Array | int, last: Array | int
) -> tuple[ProgramState, Work]:
    """Some iterations of the training of the emitter's members."""
    asking, *rest = work.shared
    emitting = EmitterState(state.members, state.shared.emitter)
    emitting, work = staged_ask(bindings.emitter.ask).advance(emitting, work._replace(shared=asking), first, last)
    return _with_emitter(state, emitting), work._replace(shared=(work.shared, *rest))


def finish(bindings: MapElitesBindings, state: ProgramState, work: Work) -> tuple[ProgramState, Metrics]:
    """Evaluate what the emitter proposes, and keep the best of each cell.

    Returns:
      The next state, and metrics: those of the repertoire after it (see `repertoire.metrics`); `added`, `improved`,
      `rejected` and `outside`, how many of the proposals filled a cell, bettered one, were not finite, or lay outside
      of the descriptor's limits; `evaluation_steps`, environment steps that the evaluation took, and `broken_episodes`,
      how many of its episodes the physics broke in, which rejects a genotype; `fitness`, of the emitter's
      population `[P]`, or of all proposals `[B]` if it has none; what the emitter adds.
    """
    asking, bank, evaluate_key = work.shared
    repertoire = repertoire_of(state)
    emitting = EmitterState(state.members, state.shared.emitter)
    ask = staged_ask(bindings.emitter.ask)
    emitting, genotypes, asked = ask.propose(emitting, work._replace(shared=asking), repertoire)
    genotypes = _bounded(genotypes, bindings.scoring.bounds)
    keys = base.member_keys(evaluate_key, bindings.emitter.batch_size)
    evaluation = bindings.placement.map(partial(_judge, bindings.scoring), (genotypes, keys), (bank,))
    evaluation = bindings.placement.everywhere(lambda judged: judged, evaluation)  # told to all, who then all compete
    limits = _limits(bindings.scoring)
    repertoire, added = repertoires.add(
        repertoire,
        genotypes,
        evaluation.fitness,
        evaluation.descriptor,
        limits,
        bindings.placement.cells,
        bindings.find,
    )
    emitting, told = bindings.emitter.tell(emitting, evaluation)
    state = with_repertoire(_with_emitter(state, emitting), repertoire)
    metrics = {
        "fitness": evaluation.fitness,
        **_metrics(bindings.scoring, repertoire, added, evaluation),
        **asked,
        **told,
    }
    return state, metrics


def _with_emitter(state: ProgramState, emitting: EmitterState) -> ProgramState:
    return state._replace(members=emitting.members, shared=state.shared._replace(emitter=emitting.shared))


def _limits(scoring: Scoring) -> tuple[Array, Array]:
    """Of the descriptor, `[D]` each."""
    descriptor = scoring.descriptor
    return jnp.asarray(descriptor.lower, jnp.float32), jnp.asarray(descriptor.upper, jnp.float32)


def _bounded(genotypes: PyTree, bounds: tuple[float, float] | None) -> PyTree:
    """Floating-point numbers inside the bounds; others never vary, and stay as they were born."""
    if bounds is None:
        return genotypes
    lower, upper = bounds
    return jax.tree.map(
        lambda leaf: jnp.clip(leaf, lower, upper) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, genotypes
    )


def _judge(scoring: Scoring, genotype: PyTree, key: Key, bank: Bank) -> Evaluation:
    """An evaluation whose fitness is NaN if the genotype itself is not finite, or broke the physics: who ends episodes
    that way must not live on in a cell."""
    evaluation = scoring.evaluate(genotype, bank, key)
    fitness = jnp.where(trees.all_finite(genotype), evaluation.fitness, jnp.nan)
    return evaluation._replace(fitness=base.valid_fitness(fitness, evaluation.broken))


def _metrics(scoring: Scoring, repertoire: Repertoire, added: Added, evaluation: Evaluation) -> Metrics:
    return {
        **repertoires.metrics(repertoire, scoring.qd_offset),
        "added": jnp.sum(added.status == 2),
        "improved": jnp.sum(added.status == 1),
        "rejected": jnp.sum(added.rejected),
        "outside": jnp.sum(added.outside),
        "evaluation_steps": jnp.sum(evaluation.lengths),
        "broken_episodes": jnp.sum(evaluation.broken),
    }


def evaluate(bindings: MapElitesBindings, state: ProgramState, key: Key) -> Metrics:
    """Judge every elite again, on fresh start states, changing nothing; a batch of B at a time, occupied cells only.

    Returns:
      Metrics `[C, ...]`: `fitness`, NaN where a cell is empty, `returns` `[C, N]`, `lengths` `[C, N]`, `descriptor`
      `[C, D]`, and what the repertoire says: `stored_fitness`, `stored_descriptor`. Then, `[]` each, the repertoire's
      metrics as `stored/...`, and as `corrected/...` those of a repertoire into which the elites were put anew.
    """
    bank_key, evaluate_key = jax.random.split(key)
    bank = bindings.scoring.start_states(bank_key)
    repertoire = repertoire_of(state)
    evaluation = _evaluate_elites(bindings, repertoire, bank, evaluate_key)
    fitness = jnp.where(repertoire.occupied, evaluation.fitness, jnp.nan)
    limits = _limits(bindings.scoring)
    anew = repertoires.empty((), repertoire.centroids)
    anew, _ = repertoires.add(anew, (), fitness, evaluation.descriptor, limits, find=bindings.find)
    corrected = repertoires.metrics(anew, bindings.scoring.qd_offset)
    stored = repertoires.metrics(repertoire, bindings.scoring.qd_offset)
    return {
        **base.examined(evaluation),
        "fitness": fitness,
        "stored_fitness": repertoire.fitnesses,
        "stored_descriptor": repertoire.descriptors,
        **{f"stored/{name}": value for name, value in stored.items()},
        **{f"corrected/{name}": value for name, value in corrected.items()},
    }


def _evaluate_elites(bindings: MapElitesBindings, repertoire: Repertoire, bank: Bank, key: Key) -> Evaluation:
    """`[C, ...]`; zeros where a cell is empty."""
    count, batch = repertoire.fitnesses.shape[0], bindings.emitter.batch_size
    keys = base.member_keys(key, count)
    order, elites = jnp.argsort(~repertoire.occupied, stable=True), jnp.sum(repertoire.occupied)  # occupied first
    evaluator = partial(bindings.placement.map, partial(_judge, bindings.scoring))

    def evaluate_batch(index: Array, results: Evaluation) -> Evaluation:
        places = index * batch + jnp.arange(batch)
        cells = order[jnp.minimum(places, count - 1)]
        batch_results = evaluator((bindings.placement.cells.take(repertoire.genotypes, cells), keys[cells]), (bank,))
        return trees.scatter(results, jnp.where(places < elites, cells, count + places), batch_results)

    genotype = jax.eval_shape(lambda tree: trees.take(tree, 0), repertoire.genotypes)
    shapes = jax.eval_shape(partial(_judge, bindings.scoring), genotype, key, bank)
    nothing = jax.tree.map(lambda leaf: jnp.zeros((count, *leaf.shape), leaf.dtype), shapes)
    return jax.lax.fori_loop(0, -(-elites // batch), evaluate_batch, nothing)


def table(state: ProgramState) -> dict[str, Array]:
    """What is known of each cell, column -> `[C]`."""
    repertoire = repertoire_of(state)
    occupied = repertoire.occupied
    columns = {"fitness": repertoire.fitnesses}
    for name, values in (("descriptor", repertoire.descriptors), ("centroid", repertoire.centroids)):
        known = occupied if name == "descriptor" else jnp.ones_like(occupied)
        columns |= {f"{name}/{i}": jnp.where(known, values[:, i], jnp.nan) for i in range(values.shape[1])}
    return columns


def map_elites(
    scoring: Scoring,
    centroids: Array,
    emitter: Emitter | None = None,
    placement: Placement = ONE_DEVICE,
) -> Program:
    """MAP-Elites over any scoring, with any emitter.

    Args:
      scoring: from `function_scoring`, `policy_scoring` or `learner_scoring`.
      centroids: `[C, D]`, from `centroids.cvt` or `centroids.grid`.
      emitter: proposes; iso+line with a batch of 256 by default.
      placement: where evaluations and the repertoire lie; `rookery.distributed.placement` for a mesh.

    Raises:
      ValueError: the centroids do not fit the descriptor, or there are none.
    """
    size = scoring.descriptor.size
    if centroids.ndim != 2 or centroids.shape[0] < 1 or centroids.shape[1] != size:
        raise ValueError(
            f"centroids must be [C, {size}] with at least one cell, to fit the descriptor; got {centroids.shape}."
        )
    emitter = emitter or emitters.iso_line(scoring, 256, rows=placement.cells)
    bindings = MapElitesBindings(scoring, emitter, centroids, finder(centroids), placement)
    return Program(
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
    )
