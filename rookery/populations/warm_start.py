"""Populations that begin with what another one has learned."""

from functools import partial

import jax

from rookery.learners.base import Learner, Member, genotype
from rookery.populations import base
from rookery.populations.base import Program, ProgramState
from rookery.populations.stages import change_init
from rookery.types import Genotype, PyTree


def begin_as(program: Program, learner: Learner, start: Genotype) -> Program:
    """The same program, whose members all begin as one genotype: its parameters and its observation statistics.

    Optimisers and targets are fresh, and hyper-parameters are each member's own.

    Args:
      program: of members that live by themselves: `pbt`, `seeds`.
      learner: the life that the program is of.
      start: e.g. one of `skill_policies(run_dir)`, or an elite's.

    Raises:
      ValueError: the program's members are of another agent, or see other observations.
    """
    state = jax.eval_shape(program.init, jax.random.key(0))
    member = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state.members)
    check_alike(genotype(member), start)
    return change_init(program, partial(_begin_as, learner, start))


def _begin_as(learner: Learner, start: Genotype, state: ProgramState) -> ProgramState:
    return state._replace(members=base.vmap(partial(_adopt, learner), (state.members,), (start,)))


def _adopt(learner: Learner, member: Member, start: Genotype) -> Member:
    return learner.load_genotype(member, start._replace(hyper=member.hyper))


def check_alike(here: Genotype, there: Genotype) -> None:
    """Refuse a genotype that cannot live here; hyper-parameters do not matter.

    Raises:
      ValueError: parameters or observation statistics differ in structure or shape; names the first difference.
    """
    wanted, given = (_shapes(one._replace(hyper=())) for one in (here, there))
    if wanted.keys() != given.keys():
        raise ValueError(
            "what the run should begin with is of another agent, or keeps observation statistics where this one does "
            "not; use the same agent, and normalize_observations as there."
        )
    for name, shape in wanted.items():
        if given[name] != shape:
            raise ValueError(
                f"what the run should begin with does not fit: {name} is {given[name]} there and {shape} here; use the "
                "same widths (hidden_sizes), and a task with the same observations and actions."
            )


def _shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    return {jax.tree_util.keystr(path): tuple(leaf.shape) for path, leaf in jax.tree.leaves_with_path(tree)}
