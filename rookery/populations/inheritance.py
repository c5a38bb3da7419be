"""What a child takes from its parent, and how its hyper-parameters then differ."""

from functools import partial
from typing import Protocol

import jax

from rookery import hyperparams, trees
from rookery.hyperparams import Space
from rookery.learners.base import Member
from rookery.populations import base
from rookery.populations.sharding import MoveFn, move_here
from rookery.types import Array, Hyper, Key


class Perturbation(Protocol):
    """What `perturb` must be told; `PbtConfig` is one."""

    @property
    def perturb(self) -> str:
        """`resample`, or anything else for a step on each scale."""
        ...

    @property
    def perturb_factors(self) -> tuple[float, float]:
        """The two factors of a step."""
        ...

    @property
    def resample_probability(self) -> float:
        """Chance that a hyper-parameter is drawn afresh instead."""
        ...


def inherit(
    members: Member, parents: Array, donors: Array | None = None, buffers_too: bool = False, move: MoveFn = move_here
) -> Member:
    """Every member takes what `parents` `[P]` says: state, hyper-parameters, normaliser; O(parameters).

    Args:
      members: `[P, ...]`.
      donors: whose hyper-parameters each takes, `[P]`; the parents' by default.
      buffers_too: copy the parents' rows as well, a few children at a time and in place.
      move: how rows are moved; `Placement.move` where members lie on several devices.

    Returns:
      `[P, ...]`; environment states, and by default buffers, stay with the slot.
    """
    # All in one move: another would be a second exchange between devices, in no order with the first, and devices of a
    # CPU that begin with different ones wait for each other for ever.
    own = (members.state, members.normalizer, members.hyper, members.buffer if buffers_too else ())
    state, normalizer, hyper, buffer = move(own, parents, in_place=True)
    if donors is not None:
        hyper = trees.take(members.hyper, donors)
    members = members._replace(state=state, hyper=hyper, normalizer=normalizer)
    return members._replace(buffer=buffer) if buffers_too else members


def perturb(config: Perturbation, space: Space, hyper: Hyper, key: Key, is_child: Array) -> Hyper:
    """New hyper-parameters for the children, each drawn from its own key; survivors keep theirs.

    Args:
      hyper: `[P]`, already inherited.
      key: consumed.
      is_child: `[P]` bool.
    """
    keys = base.member_keys(key, is_child.shape[0])
    if config.perturb == "resample":
        fresh = jax.vmap(partial(hyperparams.sample, space))(keys)
        evolving = {name: getattr(fresh, name) for name in space.domains}
        changed = hyper._replace(**evolving)
    else:
        change = partial(
            hyperparams.perturb,
            space,
            factors=config.perturb_factors,
            resample_probability=config.resample_probability,
        )
        changed = jax.vmap(change)(hyper, keys)
    return trees.where(is_child, changed, hyper)
