"""Inheritance: a child copies its parent's state and hyper-parameters, and perturbs the hyper-parameters."""

from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp

from rookery import hyperparams, trees
from rookery.hyperparams import Space
from rookery.learners.base import Bank, Learner, Member
from rookery.populations import base
from rookery.populations.sharding import MoveFn, Placement, move_here
from rookery.types import Array, Genotype, HyperT, Key, PyTree, StateT

SHRINK, PERTURB = 0.4, 0.1  # factors of the parameters of a member and of new ones


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


def shrink_and_perturb(
    learner: Learner, placement: Placement, members: Member, needed: Array, key: Key, bank: Bank
) -> Member:
    """Where `needed` (`[]` bool), shrink the parameters of all members `[P, ...]` and add a part of newly drawn ones.

    Optimisers and target networks begin anew; hyper-parameters, buffers and environments stay. The key is consumed, by
    each member separately.

    Source: Ash 2020, "On Warm-Starting Neural Network Training" (arXiv:1910.08475), with the factors of Zaidi 2022
    (arXiv:2206.10011). Deviation: in the configuration of the authors of IPBT (`selection.Rounds`) they are 0.2 and 0.1
    for one half of the members, and the parameters of the other half are new.
    """
    learned = members._replace(env_state=(), buffer=())
    keys = base.member_keys(key, jax.tree.leaves(members.hyper)[0].shape[0])
    state = placement.map(partial(_shrink_where, learner), (learned, keys), (bank, needed))
    return members._replace(state=state)


def _shrink_where(learner: Learner, member: Member, key: Key, bank: Bank, needed: Array) -> PyTree:
    # A branch on a value that is not batched: other generations do not compute it.
    return jax.lax.cond(needed, partial(_shrunk, learner, bank), lambda member, _: member.state, member, key)


def _shrunk(learner: Learner, bank: Bank, member: Member, key: Key) -> PyTree:
    def mix(own: Array, new: Array) -> Array:
        return SHRINK * own + PERTURB * new if jnp.issubdtype(own.dtype, jnp.inexact) else own

    params = jax.tree.map(mix, member.state.params, learner.init(key, member.hyper, bank).state.params)
    return learner.load_genotype(member, Genotype(params, member.hyper, member.normalizer)).state
