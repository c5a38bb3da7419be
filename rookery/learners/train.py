"""The training of one member as a pure function, to be mapped over hyper-parameters, seeds, or both."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rookery import hyperparams
from rookery.learners.base import Bank, Learner, Member, genotype
from rookery.settings import SettingError, check_counts
from rookery.types import Array, Evaluation, Hyper, Key, Metrics


def train(
    learner: Learner, key: Key, hyper: Hyper | None = None, generations: int = 10
) -> tuple[Member, Evaluation, Metrics]:
    """Train one member, and evaluate it before the first generation and after each.

    Pure: `jax.jit(jax.vmap(lambda hyper: train(learner, key, hyper)))(hypers)` trains a member for every row of a
    `Hyper` with `[S]` leaves in one compiled call. All members then share start states and random numbers; map the key
    as well to make them independent.

    Args:
      learner: the training loop of one member.
      key: consumed.
      hyper: leaves `[]`; None for the defaults of the learner's space.
      generations: at least 1.

    Returns:
      The member; its evaluations, leaves `[generations + 1, ...]`, the first before any training; and the training
      metrics, `[generations]` each.

    Raises:
      ValueError: `generations` is below 1, `hyper` lacks a number, or the learner's `fitness_from` is "training", since
        evaluations are made.

    Example:
      >>> env = rookery.make("point_room")
      >>> config = rookery.learners.OffPolicyConfig(steps_per_generation=50, warmup_steps=25)
      >>> learner = rookery.off_policy(rookery.sac(env.spec), env, config)
      >>> member, evaluation, metrics = rookery.learners.train(learner, jax.random.key(0), generations=2)
      >>> evaluation.fitness.shape  # the initial policy, and the policy after each generation
      (3,)
    """
    check_counts(generations=generations)
    if learner.rate_training is not None:
        problem = "has no effect here, where members are evaluated"
        raise SettingError("fitness_from", "training", problem, "read train_return of the metrics")
    bank_key, init_key, training_key = jax.random.split(key, 3)
    defaults = hyperparams.defaults(learner.space)
    hyper = defaults if hyper is None else hyper
    if wrong := [name for name in defaults._fields if np.ndim(getattr(hyper, name, ())) != 0]:
        remedy = "give learner.space.defaults._replace(...), and map train over several values by jax.vmap"
        raise ValueError(
            f"hyper needs a number for each hyper-parameter, and has none for {', '.join(wrong)}; {remedy}."
        )
    hyper = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), hyper)
    bank = learner.start_states(bank_key)
    member = learner.init(init_key, hyper, bank)
    initial = learner.evaluate(genotype(member), bank, jax.random.fold_in(training_key, generations))
    keys = jax.vmap(partial(jax.random.fold_in, training_key))(jnp.arange(generations))
    member, (later, metrics) = jax.lax.scan(
        partial(_train_generation, learner), member, (jnp.arange(generations), keys)
    )
    evaluations = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), initial, later)
    return member, evaluations, metrics


def _train_generation(
    learner: Learner, member: Member, inputs: tuple[Array, Key]
) -> tuple[Member, tuple[Evaluation, Metrics]]:
    """Train for one generation on newly drawn start states, then evaluate on the same start states."""
    generation, key = inputs
    bank_key, learn_key, evaluate_key = jax.random.split(key, 3)
    bank: Bank = learner.start_states(bank_key)
    member, metrics = learner.step(member, bank, learn_key, generation)
    return member, (learner.evaluate(genotype(member), bank, evaluate_key), metrics)
