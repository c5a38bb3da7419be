"""Ratings of the members of a competitive team's roles, from cross-play against common opponents.

In a zero-sum environment the mean return of a team is the same for all teams, and the return of one role depends on its
opponents. Here all members of a role play the same opponents, from the same start states, and are compared pairwise.

Sources: Elo 1978, "The Rating of Chessplayers, Past and Present": ratings on a scale on which 400 points are odds of
10 to 1, as in the model of Bradley 1952, "Rank Analysis of Incomplete Block Designs: I" (Biometrika 39:324). Selection
of a population by Elo ratings: Jaderberg 2018 (arXiv:1807.01281).
Deviation: the ratings are computed anew in each generation from a balanced schedule, and not updated match by match.
"""

from functools import partial

import chex
import jax
import jax.numpy as jnp

from rookery import trees
from rookery.learners.base import Bank, Learner, Member, genotype
from rookery.populations.base import member_keys
from rookery.populations.selection import comparable
from rookery.populations.sharding import Placement
from rookery.settings import SettingError, check_counts
from rookery.types import Array, Genotype, Key, PyTree


def rating_of(returns: Array) -> Array:
    """The ratings of the members of one role.

    For each opponent, the members are compared pairwise by their returns: a win counts 1, a tie 1/2. With w wins in the
    n = R (P - 1) comparisons of a member, its rating is 400 log10((w + 1/2) / (n - w + 1/2)): the performance rating of
    its score w / n against opponents with rating 0, finite for all scores by the half win and half loss that are added
    (Haldane 1956, Annals of Human Genetics 20:309). All members have the same schedule, so the order is that of a
    Bradley-Terry fit, the order of the scores (Zermelo 1929, Mathematische Zeitschrift 29:436). Only the order of the
    returns matters, so that roles and environments with other rewards have the same scale.

    Args:
      returns: `[R, P]`, the return of each member against each opponent. A value that is not finite loses against every
        finite one.

    Returns:
      `[P]`, 0 for an average member; NaN for a member without any finite return.

    Example:
      >>> [round(float(rating)) for rating in rookery.populations.rating_of(jnp.array([[3.0, 1.0, 2.0]]))]
      [280, -280, 0]
    """
    chex.assert_rank(returns, 2)
    value, opponents = comparable(returns), returns.shape[1] - 1
    won, tied = value[:, :, None] > value[:, None, :], value[:, :, None] == value[:, None, :]
    points = jnp.sum(2 * won.astype(jnp.int32) + tied.astype(jnp.int32), axis=(0, 2)) - returns.shape[0]  # in halves
    wins, count = 0.5 * points.astype(jnp.float32), float(returns.shape[0] * opponents)
    rating = 400.0 * (jnp.log10(wins + 0.5) - jnp.log10(count - wins + 0.5))
    return jnp.where(jnp.isfinite(returns).any(axis=0), rating, jnp.nan)


def cross_play(
    placement: Placement, learner: Learner, genotypes: Genotype, opponents: PyTree, bank: Bank, key: Key
) -> Array:
    """Evaluate every member of each role in a team with each opponent in all other roles.

    Args:
      placement: the placement of the members.
      learner: the learner of a team of independent agents.
      genotypes: the members: leaves of parameters and observation statistics are `[P, I, ...]`.
      opponents: parameters and observation statistics `[R, I, ...]`, on every device.
      bank: start states, the same for all.
      key: consumed by the environments; every evaluation gets a separate one.

    Returns:
      `[I, R, P]`, the mean return of role i's member p; NaN where an action was not finite or the physics broke.
    """
    assert learner.spec.team is not None
    roles, count = len(learner.spec.team.names), jax.tree.leaves(opponents)[0].shape[0]
    pairs = (*jnp.divmod(jnp.arange(roles * count), count), member_keys(key, roles * count))
    play = partial(_play, placement, learner, (genotypes, opponents), bank)
    return jax.lax.map(play, pairs).reshape(roles, count, -1)  # one after the other: the evaluation is compiled once


def _play(
    placement: Placement,
    learner: Learner,
    players: tuple[Genotype, PyTree],
    bank: Bank,
    pair: tuple[Array, Array, Key],
) -> Array:
    """The returns `[P]` of the members of a role against an opponent; `pair` is the role, the opponent's row and a
    key."""
    genotypes, opponents = players
    role, opponent, key = pair
    keys = member_keys(key, jax.tree.leaves(genotypes)[0].shape[0])
    shared = (role, trees.take(opponents, opponent), bank)
    return placement.map(partial(_return, learner), (genotypes, keys), shared)


def _return(learner: Learner, member: Genotype, key: Key, role: Array, opponent: PyTree, bank: Bank) -> Array:
    assert learner.spec.team is not None
    is_own = jnp.arange(len(learner.spec.team.names)) == role
    params, normalizer = trees.where(is_own, played(member), opponent)
    return learner.evaluate(Genotype(params, member.hyper, normalizer), bank, key).roles[role]


def played(genotype: Genotype) -> PyTree:
    """The part of a genotype that acts: parameters and observation statistics."""
    return genotype.params, genotype.normalizer


def rate(placement: Placement, learner: Learner, members: Member, opponents: int, bank: Bank, key: Key) -> Array:
    """The rating of every member in each role, from its returns against the same opponents.

    The opponents are drawn without replacement from the slots of the population, those whose learned state is not
    finite last. The opponent in a slot is its member of all other roles.

    Args:
      placement: the placement of the members.
      learner: the learner of a team of independent agents.
      members: `[P, ...]`; the leaves of their states are `[P, I, ...]`.
      opponents: R, in 1..P.
      bank: start states of the generation.
      key: consumed.

    Returns:
      `[I, P]`; NaN for a member whose learned state is not finite, or that has no finite return.
    """
    draw_key, evaluate_key = jax.random.split(key)
    drawn, is_finite = draw_opponents(placement, members, opponents, draw_key)
    returns = cross_play(placement, learner, genotype(members), drawn, bank, evaluate_key)
    return placement.everywhere(_rate_finite, returns, is_finite)


def draw_opponents(placement: Placement, members: Member, count: int, key: Key) -> tuple[PyTree, Array]:
    """The opponents of `rate`, parameters and observation statistics `[R, I, ...]`, and whether what each member has
    learned is finite, `[P, I]`; the key is consumed."""
    is_finite = placement.map(_finite_roles, ((members.state, members.normalizer),), ())
    slots = placement.everywhere(_draw, key, is_finite)[:count]
    return placement.take(played(genotype(members)), slots), is_finite


def _finite_roles(learned: PyTree) -> Array:
    return jax.vmap(trees.all_finite)(learned)


def _draw(key: Key, is_finite: Array) -> Array:
    """All slots `[P]` in a random order; those with a state that is not finite last."""
    order = jax.random.uniform(key, is_finite.shape[:1])
    return jnp.argsort(jnp.where(is_finite.all(axis=1), order, 1.0 + order))


def _rate_finite(returns: Array, is_finite: Array) -> Array:
    return jax.vmap(rating_of)(jnp.where(is_finite.T[:, None], returns, jnp.nan))


def check_roles(learner: Learner, remedy: str) -> None:
    """Check that the agents of different members can play each other.

    Args:
      learner: the learner of a team.
      remedy: the end of the message where agents do not compete.

    Raises:
      ValueError: the agents do not compete or share parameters, or there is a single agent.
    """
    team, name = learner.spec.team, learner.spec.name
    if team is None or not team.competitive:
        is_alone = team is None or len(team.names) == 1
        reason = "is an environment for a single agent" if is_alone else "lets its agents cooperate"
        raise ValueError(f"ratings compare agents that compete, and {name} {reason}; {remedy}.")
    if learner.team != "independent":
        raise ValueError(
            "ratings let agents of different members play each other, which needs separate parameters; train with "
            "rookery.agents.independent, or --parameters independent."
        )


def check_opponents(learner: Learner, population_size: int, opponents: int) -> None:
    """Check that members can be rated by cross-play.

    Raises:
      ValueError: as `check_roles`; or there is a single member, or the number of opponents is not in 1..P.
    """
    check_counts(rating_opponents=opponents)
    check_roles(learner, "select by fitness")
    if population_size < 2:
        raise SettingError("population_size", population_size, "must be at least 2 to compare members by ratings")
    if not 1 <= opponents <= population_size:
        problem = f"must be at least 1 and at most the population of {population_size}"
        raise SettingError("rating_opponents", opponents, problem)
