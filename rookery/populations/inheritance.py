"""Inheritance: a child copies its parent's state and hyper-parameters, and perturbs the hyper-parameters."""

from functools import partial
from typing import Protocol

import jax

from rookery import hyperparams, trees
from rookery.hyperparams import Space
from rookery.learners.base import Learner, Member
from rookery.populations import base
from rookery.populations.sharding import MoveFn, Placement, move_here
from rookery.types import Array, Genotype, HyperT, Key, StateT


class Perturbation(Protocol):
    """The settings of inheritance; `PbtConfig` and `MePbtConfig` implement it."""

    @property
    def perturb(self) -> str:
        """`resample`; any other value means a multiplicative step on each hyper-parameter's scale."""
        ...

    @property
    def perturb_factors(self) -> tuple[float, float]:
        """The two factors of a step."""
        ...

    @property
    def resample_probability(self) -> float:
        """Probability that a hyper-parameter is sampled from the space instead."""
        ...

    @property
    def inherit_buffer(self) -> bool:
        """Whether a child has its parent's buffer: the transitions of a slot are of no use to another genotype."""
        ...


def inherit(
    members: Member[StateT, HyperT],
    parents: Array,
    donors: Array | None = None,
    buffers_too: bool = False,
    move: MoveFn = move_here,
) -> Member[StateT, HyperT]:
    """Copy the state, hyper-parameters and normaliser of its parent into every member; O(parameters).

    Args:
      members: `[P, ...]`.
      parents: `[P]` int32; `parents[i] == i` leaves member i unchanged.
      donors: `[P]` int32, the member whose hyper-parameters each member copies; `parents` by default.
      buffers_too: copy the parents' buffers as well, a few children at a time and in place.
      move: moves rows between slots; `Placement.move` if the members are on several devices.

    Returns:
      The members `[P, ...]`; environment states, and by default buffers, stay with the slot.
    """
    # One move for everything: a second one would be an exchange between devices that is not ordered with the first, and
    # CPU devices that start with different exchanges deadlock.
    inherited = (members.state, members.normalizer, members.hyper, members.buffer if buffers_too else ())
    state, normalizer, hyper, buffer = move(inherited, parents, in_place=True)
    if donors is not None:
        hyper = trees.take(members.hyper, donors)
    members = members._replace(state=state, hyper=hyper, normalizer=normalizer)
    return members._replace(buffer=buffer) if buffers_too else members


def resize(
    learner: Learner[StateT, HyperT], placement: Placement, members: Member[StateT, HyperT], key: Key
) -> Member[StateT, HyperT]:
    """Give all members `[P, ...]` the width that their hyper-parameters say; needed where `widths.evolves`.

    The key is consumed, by each member separately.
    """
    assert learner.resize is not None
    keys = base.member_keys(key, jax.tree.leaves(members.hyper)[0].shape[0])
    return placement.map(learner.resize, (members, keys), ())


def perturb(config: Perturbation, space: Space[HyperT], hyper: HyperT, key: Key, is_child: Array) -> HyperT:
    """Perturb the hyper-parameters of the children, each with its separate key; survivors keep theirs.

    Args:
      config: the kind of perturbation.
      space: the hyper-parameters that evolve, and their domains.
      hyper: `[P]`, already inherited.
      key: consumed.
      is_child: `[P]` bool.

    Returns:
      The hyper-parameters `[P]`.
    """
    keys = base.member_keys(key, is_child.shape[0])
    if config.perturb == "resample":
        changed = jax.vmap(partial(hyperparams.resample, space))(hyper, keys)
    else:
        change = partial(
            hyperparams.perturb,
            space,
            factors=config.perturb_factors,
            resample_probability=config.resample_probability,
        )
        changed = jax.vmap(change)(hyper, keys)
    return trees.where(is_child, changed, hyper)


def load_where(learner: Learner, member: Member, genotype: Genotype, needed: Array) -> Member:
    """Where `needed` (`[]` bool), load a genotype into the slot, which keeps its environment states and its buffer."""
    loaded = learner.load_genotype(member, genotype)
    new, old = ((one.state, one.hyper, one.normalizer) for one in (loaded, member))
    state, hyper, normalizer = trees.where(needed, new, old)
    return member._replace(state=state, hyper=hyper, normalizer=normalizer)
