"""Populations that start from a trained genotype."""

from functools import partial

import jax

from rookery import trees
from rookery.learners import widths
from rookery.learners.base import Learner, Member, genotype
from rookery.populations import base
from rookery.populations.base import Program, ProgramStateT
from rookery.populations.stages import change_init
from rookery.types import Genotype, PyTree


def begin_as(program: Program[ProgramStateT], learner: Learner, start: Genotype) -> Program[ProgramStateT]:
    """Start all members of a program with the parameters and observation statistics of one genotype.

    Optimisers and target networks are initialised anew, and each member keeps its initial hyper-parameters.

    Args:
      program: a program of independent members or of a PBT population: `seeds`, `pbt`.
      learner: the learner of the program's members.
      start: the genotype, e.g. one of `skill_policies(run_dir)`, or that of an elite.

    Returns:
      The program with the changed initial state.

    Raises:
      ValueError: the genotype belongs to another agent, or to a task with other observations, or is not finite; or only
        one of both has a width or an activation among its hyper-parameters.

    Example:
      >>> env = rookery.make("point_room")
      >>> learner = rookery.off_policy(rookery.sac(env.spec), env)
      >>> hyper, bank = rookery.hyperparams.defaults(learner.space), learner.start_states(jax.random.key(0))
      >>> member = learner.init(jax.random.key(1), hyper, bank)
      >>> program = rookery.populations.begin_as(rookery.pbt(learner), learner, rookery.genotype(member))
    """
    state = jax.eval_shape(program.init, jax.random.key(0))
    member = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state.members)
    check_compatible(genotype(member), start)
    if widths.evolves(learner, state.members.hyper):
        raise ValueError(
            f"members that start from a genotype have the width of its networks; leave {widths.NAME} out of the space."
        )
    if not trees.all_finite((start.params, start.normalizer)):
        raise ValueError(
            "the genotype to start from has parameters or statistics of observations that are not finite; choose "
            "another member, or an earlier checkpoint."
        )
    has_choice, had_choice = (hasattr(hyper, "activation") for hyper in (state.members.hyper, start.hyper))
    if has_choice != had_choice:
        remedy = "leave it out of the space" if has_choice else "choose it in the space, as the run that trained it did"
        raise ValueError(f"members that start from a genotype have the activation of its networks; {remedy}.")
    begun = change_init(program, partial(_begin_as, learner, start))
    return begun._replace(settings={**program.settings, "begins": "as a genotype"})


def _begin_as(learner: Learner, start: Genotype, state: ProgramStateT) -> ProgramStateT:
    return state._replace(members=base.vmap(partial(_load_genotype, learner), (state.members,), (start,)))


def _load_genotype(learner: Learner, member: Member, start: Genotype) -> Member:
    hyper = member.hyper
    if hasattr(hyper, "activation"):
        hyper = hyper._replace(activation=start.hyper.activation)
    return learner.load_genotype(member, start._replace(hyper=hyper))


def check_compatible(expected: Genotype, given: Genotype) -> None:
    """Check that a genotype can be loaded into a program's members; hyper-parameters are not compared.

    Args:
      expected: the genotype of a member of the program, arrays or shapes.
      given: the genotype to load.

    Raises:
      ValueError: parameters or observation statistics differ in structure or shape; names the first difference.
    """
    expected_shapes, given_shapes = (_shapes(one._replace(hyper=())) for one in (expected, given))
    if expected_shapes.keys() != given_shapes.keys():
        raise ValueError(
            "the genotype to start from is of another agent, or keeps observation statistics where this one does not; "
            "use the same agent and the same normalize_observations as the run that trained it."
        )
    for name, shape in expected_shapes.items():
        if given_shapes[name] != shape:
            raise ValueError(
                f"the genotype to start from does not fit: {name} has shape {given_shapes[name]}, expected {shape}; "
                "use the same widths (hidden_sizes), and a task with the same observations and actions."
            )


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    return {jax.tree_util.keystr(path): tuple(leaf.shape) for path, leaf in jax.tree.leaves_with_path(tree)}
