"""A whole life as one pure function, to be mapped over hyper-parameters, seeds, or both."""

from functools import partial

import jax
import jax.numpy as jnp

from rookery import hyperparams
from rookery.learners.base import Bank, Learner, Member, genotype
from rookery.types import Array, Evaluation, Hyper, Key, Metrics


def train(
    learner: Learner, key: Key, hyper: Hyper | None = None, generations: int = 10
) -> tuple[Member, Evaluation, Metrics]:
    """Train one member, and judge it before the first generation and after each.

    Pure: `jax.jit(jax.vmap(lambda hyper: train(learner, key, hyper)))(hypers)` trains every row of a `Hyper` of `[S]`
    leaves, in one compiled call. All rows then share their start states and random numbers; map the key as well to give
    each its own.

    Args:
      learner: one member's life.
      key: consumed.
      hyper: leaves `[]`; the default ones of the learner's space where it is None.
      generations: at least 1.

    Returns:
      The member; its evaluations, leaves `[generations + 1, ...]`, the first of the newborn; and the metrics of
      learning, `[generations]` each.

    Raises:
      ValueError: `generations` is below 1.
    """
    if generations < 1:
        raise ValueError(f"generations must be at least 1, got {generations}.")
    bank_key, init_key, live_key = jax.random.split(key, 3)
    hyper = hyperparams.defaults(learner.space) if hyper is None else hyper
    hyper = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), hyper)
    bank = learner.start_states(bank_key)
    member = learner.init(init_key, hyper, bank)
    newborn = learner.evaluate(genotype(member), bank, jax.random.fold_in(live_key, generations))
    keys = jax.vmap(partial(jax.random.fold_in, live_key))(jnp.arange(generations))
    member, (later, metrics) = jax.lax.scan(partial(_live, learner), member, (jnp.arange(generations), keys))
    evaluations = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), newborn, later)
    return member, evaluations, metrics


def _live(learner: Learner, member: Member, inputs: tuple[Array, Key]) -> tuple[Member, tuple[Evaluation, Metrics]]:
    """A generation on start states of its own, then an evaluation on the same."""
    generation, key = inputs
    bank_key, learn_key, evaluate_key = jax.random.split(key, 3)
    bank: Bank = learner.start_states(bank_key)
    member, metrics = learner.step(member, bank, learn_key, generation)
    return member, (learner.evaluate(genotype(member), bank, evaluate_key), metrics)
