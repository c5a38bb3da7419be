"""The elites that a program with a repertoire starts from."""

from functools import partial

import jax
import jax.numpy as jnp

from rookery.populations import base, rebuild
from rookery.populations.base import Program, ProgramState
from rookery.populations.stages import change_init
from rookery.qd import repertoire as repertoires
from rookery.qd.archives import Archive
from rookery.qd.base import Scoring
from rookery.qd.map_elites import evaluate_genotype, limits_of, repertoire_of, with_repertoire
from rookery.qd.repertoire import Repertoire
from rookery.types import Array, Key, PyTree


def begin_with(program: Program, repertoire: Repertoire) -> Program:
    """Start a program from the elites of a repertoire, with their stored fitness and descriptor.

    Each elite is added to the cell of its descriptor in the program's repertoire, which may have other cells.

    Args:
      program: a program with a repertoire.
      repertoire: genotypes and descriptors of the same shapes as the program's.

    Returns:
      The program with the changed initial state.

    Raises:
      ValueError: the program has no repertoire, or its genotypes or descriptors have other shapes or types; when the
        run begins, the elites lack values that the program stores with each elite.

    Example:
      >>> arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
      >>> cells = rookery.qd.grid((8, 8), arm.descriptor.lower, arm.descriptor.upper)
      >>> program = rookery.map_elites(arm, cells)
      >>> result = rookery.run(program, generations=2, quiet=True)
      >>> program = rookery.qd.begin_with(program, rookery.qd.repertoire_of(result.state))
    """
    _check_initial_genotypes(program, repertoire.genotypes, repertoire.descriptors)
    begun = change_init(program, partial(_begin_with, program.archive, limits_of(program.scoring), repertoire))
    return begun._replace(settings={**program.settings, "begins": "with a repertoire"})


def _check_initial_genotypes(program: Program, genotypes: PyTree, descriptors: PyTree) -> None:
    if program.table is None:
        raise ValueError("only a program with a repertoire can start from genotypes; give one of map_elites, me_pbt.")
    state = jax.eval_shape(program.init, jax.random.key(0))
    expected, given = (
        [(jax.tree_util.keystr(path), leaf.shape[1:], leaf.dtype) for path, leaf in jax.tree.leaves_with_path(tree)]
        for tree in ((state.cells, state.shared.descriptors), (genotypes, descriptors))
    )
    if expected != given:
        raise ValueError("the repertoire is of another task or another agent: its genotypes or descriptors differ.")


def _begin_with(
    archive: Archive, limits: tuple[Array, Array], repertoire: Repertoire, state: ProgramState
) -> ProgramState:
    descriptors = jnp.where(repertoire.occupied[:, None], repertoire.descriptors, jnp.nan)
    filled, added = archive.add(repertoire_of(state), repertoire.genotypes, repertoire.fitnesses, descriptors, limits)
    return with_repertoire(state, repertoires.store_extras(filled, added, repertoire.extras))


def begin_from(program: Program, scoring: Scoring, genotypes: PyTree) -> Program:
    """Start a program from genotypes that are evaluated first: each is added to its cell if its fitness is finite.

    Args:
      program: a program with a repertoire, built with the same scoring.
      scoring: evaluates the genotypes, on separate start states.
      genotypes: `[M, ...]`, e.g. `skill_policies(run_dir)`.

    Returns:
      The program with the changed initial state.

    Raises:
      ValueError: the program has no repertoire, or its genotypes have other shapes or types.

    Example:
      >>> arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
      >>> program = rookery.map_elites(arm, rookery.qd.grid((8, 8), (0.0, 0.0), (1.0, 1.0)))
      >>> program = rookery.qd.begin_from(program, arm, jnp.zeros((3, 4)))
    """
    descriptors = jax.ShapeDtypeStruct((1, scoring.descriptor.size), jnp.float32)
    _check_initial_genotypes(program, genotypes, descriptors)

    def apply(program: Program) -> Program:
        return program._replace(init=partial(_begin_from, program, scoring, genotypes))

    begun = rebuild.changed(program, apply)
    return begun._replace(settings={**program.settings, "begins": "from genotypes"})


def _begin_from(program: Program, scoring: Scoring, genotypes: PyTree, key: Key) -> ProgramState:
    init_key, bank_key, evaluate_key = jax.random.split(key, 3)
    state, bank = program.init(init_key), scoring.start_states(bank_key)
    keys = base.member_keys(evaluate_key, jax.tree.leaves(genotypes)[0].shape[0])
    evaluation = base.vmap(partial(evaluate_genotype, scoring), (genotypes, keys), (bank,))
    filled, added = program.archive.add(
        repertoire_of(state), genotypes, evaluation.fitness, evaluation.descriptor, limits_of(scoring)
    )
    return with_repertoire(state, repertoires.store_extras(filled, added, evaluation.extras))
