"""Population Based Training: train, judge, let the worst inherit from the best, perturb what they inherited.

Source: Jaderberg 2017, "Population Based Training of Neural Networks" (arXiv:1711.09846). The paper's verb "explore" is
called `perturb` here, because agents also explore. The whole decision is one array, `parents` `[P]`: `parents[i] == i`
means that i survives.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rookery import hyperparams, trees
from rookery.hyperparams import Space
from rookery.learners.api import Bank, Learner, Member, genotype
from rookery.populations import api
from rookery.populations.api import Program, ProgramState, Shared
from rookery.types import Array, Evaluation, Hyper, Key, Metrics, PyTree


@dataclass(frozen=True)
class PbtConfig:
    """Who is replaced, by whom, and how the newcomers differ.

    Raises:
      ValueError: a value outside its range.
    """

    exploit: Literal["truncation", "none"] = "truncation"
    """truncation: the worst inherit from the best; none: nobody inherits (random search, the honest baseline)."""
    replace_fraction: float = 0.25
    """Share of the population that is replaced each generation, in [0, 1]; one that rounds to 0 replaces nobody."""
    replace_count: int | None = None
    """Members replaced each generation, instead of replace_fraction (0 to P)."""
    best_fraction: float = 0.25
    """Share of the population that parents are drawn from, in [0, 1]; at least one member."""
    best_count: int | None = None
    """Members that parents are drawn from, instead of best_fraction (1 to P)."""
    perturb: Literal["perturb", "resample"] = "perturb"
    """perturb: multiply on each hyper-parameter's scale, or now and then draw afresh; resample: always draw afresh."""
    perturb_factors: tuple[float, float] = (0.8, 1.25)
    """The two factors of perturb (above 0)."""
    resample_probability: float = 0.25
    """Chance that perturb draws a hyper-parameter afresh, each on its own, in [0, 1]."""
    burn_in: int = 0
    """Generations at the start in which only members that diverged are replaced (at least 0)."""
    inherit_buffer: bool = False
    """Copy the parent's replay buffer as well; by default data stays with the slot. Over several devices, each of them
    then holds all buffers for a moment."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("replace_fraction", "best_fraction", "resample_probability"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}.")
        for name, least in (("replace_count", 0), ("best_count", 1), ("burn_in", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}.")
        if min(self.perturb_factors) <= 0:
            raise ValueError(f"perturb_factors must be above 0, got {self.perturb_factors}.")
        for name, known in (("exploit", ("truncation", "none")), ("perturb", ("perturb", "resample"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {known}, got {getattr(self, name)!r}.")


def counts(config: PbtConfig, population_size: int) -> tuple[int, int]:
    """How many members parents are drawn from, and how many are replaced each generation.

    A fraction is rounded to the nearest count; at least one member can be a parent.

    Raises:
      ValueError: the two together exceed the population.
    """
    best = _count(config.best_count, config.best_fraction, population_size)
    replaced = _count(config.replace_count, config.replace_fraction, population_size)
    if config.exploit == "none":
        return best, 0
    if replaced and best + replaced > population_size:
        raise ValueError(
            f"{best} best and {replaced} replaced members together exceed the population of {population_size}; "
            "lower best_fraction or replace_fraction (or their counts)."
        )
    return max(best, 1), replaced


def _count(count: int | None, fraction: float, population_size: int) -> int:
    return count if count is not None else math.floor(fraction * population_size + 0.5)


class Parts(NamedTuple):
    """What a PBT program is bound to."""

    learner: Learner
    space: Space
    config: PbtConfig
    population_size: int
    population_map: api.PopulationMap


def truncation(fitness: Array, key: Key, best: int, replaced: Array | int) -> Array:
    """Truncation selection by rank (Jaderberg 2017, section 4.1.1).

    The worst `replaced` members, and every member whose fitness is not finite, get a parent drawn uniformly from the
    best `best` finite ones, each its own draw. Ties rank by index, lower first. Nobody is replaced while nothing is
    finite.

    Args:
      fitness: `[P]`, higher is better.
      key: consumed.
      best: at least 1.
      replaced: in 0..P.

    Returns:
      parents `[P]` int32; `parents[i] == i` means that i survives.
    """
    chex.assert_rank(fitness, 1)
    size = fitness.shape[0]
    finite = jnp.isfinite(fitness)
    order = jnp.argsort(jnp.where(finite, -fitness, jnp.inf), stable=True)
    rank = jnp.argsort(order)
    pool = jnp.clip(jnp.sum(finite), 1, best)
    chosen = order[jax.vmap(jax.random.randint, in_axes=(0, None, None, None))(api.member_keys(key, size), (), 0, pool)]
    loses = ((rank >= size - replaced) | ~finite) & finite.any()
    return jnp.where(loses, chosen, jnp.arange(size)).astype(jnp.int32)


def inherit(members: Member, parents: Array, buffers_too: bool = False) -> Member:
    """Every member takes what `parents` `[P]` says: state, hyper-parameters, normaliser; O(parameters).

    Args:
      members: `[P, ...]`.
      buffers_too: copy the parents' rows as well, one child at a time and in place.

    Returns:
      `[P, ...]`; environment states, and by default buffers, stay with the slot.
    """
    taken = trees.take((members.state, members.hyper, members.normalizer), parents)
    members = members._replace(state=taken[0], hyper=taken[1], normalizer=taken[2])
    if buffers_too:
        survives = parents == jnp.arange(parents.shape[0])
        copy = partial(_copy_rows, jnp.argsort(survives, stable=True), parents)  # children first
        members = members._replace(buffer=jax.lax.fori_loop(0, jnp.sum(~survives), copy, members.buffer))
    return members


def _copy_rows(children: Array, parents: Array, index: Array, tree: PyTree) -> PyTree:
    """Copy the parent's row of one child in place. A parent is never a child itself, so the order is free."""
    child = children[index]

    def copy(leaf: Array) -> Array:
        row = jax.lax.dynamic_index_in_dim(leaf, parents[child], keepdims=True)
        return jax.lax.dynamic_update_slice_in_dim(leaf, row, child, axis=0)

    return jax.tree.map(copy, tree)


def perturb(config: PbtConfig, space: Space, hyper: Hyper, key: Key, is_child: Array) -> Hyper:
    """New hyper-parameters for the children, each drawn from its own key; survivors keep theirs.

    Args:
      hyper: `[P]`, already inherited.
      key: consumed.
      is_child: `[P]` bool.
    """
    keys = api.member_keys(key, is_child.shape[0])
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


def init(parts: Parts, key: Key) -> ProgramState:
    """Newborn members with hyper-parameters drawn from the space."""
    size = parts.population_size
    bank_key, hyper_key, member_key = jax.random.split(key, 3)
    hyper = jax.vmap(partial(hyperparams.sample, parts.space))(api.member_keys(hyper_key, size))
    bank = parts.learner.start_states(bank_key)
    keys = api.member_keys(member_key, size)
    members = parts.population_map(parts.learner.init, (keys, hyper), (bank,))
    return ProgramState(members, Shared(jnp.zeros((), jnp.int32), jnp.arange(size, dtype=jnp.int32)))


def live(learner: Learner, member: Member, key: Key, bank: Bank, generation: Array) -> tuple[Member, tuple]:
    """One member's generation: learn, then be judged. Fitness is NaN if anything it learned is not finite."""
    learn_key, evaluate_key = jax.random.split(key)
    member, metrics = learner.step(member, bank, learn_key, generation)
    evaluation = learner.evaluate(genotype(member), bank, evaluate_key)
    sound = trees.all_finite(member.state)
    return member, (evaluation._replace(fitness=jnp.where(sound, evaluation.fitness, jnp.nan)), metrics)


def step(parts: Parts, state: ProgramState, key: Key) -> tuple[ProgramState, Metrics]:
    """One generation: train and judge every member, then exploit, inherit, perturb.

    Returns:
      The next generation, and metrics `[P]` of this one: `fitness`, `parent` (the member of the generation before that
      this one came from), the hyper-parameters it trained with, `diverged`, `episode_length` (steps), the learner's.
    """
    config, size = parts.config, parts.population_size
    bank_key, members_key, exploit_key, perturb_key, restart_key = jax.random.split(key, 5)
    bank = parts.learner.start_states(bank_key)
    keys = api.member_keys(members_key, size)
    shared = (bank, state.shared.generation)
    members, (evaluation, learned) = parts.population_map(partial(live, parts.learner), (state.members, keys), shared)
    diverged = ~jnp.isfinite(evaluation.fitness)
    metrics = _metrics(members.hyper, state.shared.parents, evaluation, learned, diverged)

    parents = jnp.arange(size, dtype=jnp.int32)
    if config.exploit == "truncation":
        best, replaced = counts(config, size)
        replaced = jnp.where(state.shared.generation < config.burn_in, 0, replaced)
        parents = truncation(evaluation.fitness, exploit_key, best, replaced)
        is_child = parents != jnp.arange(size)
        members = inherit(members, parents, config.inherit_buffer)
        members = members._replace(hyper=perturb(config, parts.space, members.hyper, perturb_key, is_child))
        restart = partial(_restart, parts.learner, config.inherit_buffer)
        restart_keys = api.member_keys(restart_key, size)
        members = parts.population_map(restart, (members, restart_keys, is_child & diverged), (bank,))
    return ProgramState(members, Shared(state.shared.generation + 1, parents)), metrics


def _restart(learner: Learner, keep_buffer: bool, member: Member, key: Key, needed: Array, bank: Bank) -> Member:
    """Leave a diverged member's data behind; a buffer that was just inherited is the parent's and stays."""
    fresh = learner.restart(member, bank, key, needed)
    return fresh._replace(buffer=member.buffer) if keep_buffer else fresh


def _metrics(hyper: Hyper, parents: Array, evaluation: Evaluation, learned: Metrics, diverged: Array) -> Metrics:
    descriptor = {f"descriptor/{i}": evaluation.descriptor[:, i] for i in range(evaluation.descriptor.shape[1])}
    return {
        "fitness": evaluation.fitness,
        "parent": parents,
        "diverged": diverged,
        "episode_length": jnp.mean(evaluation.lengths.astype(jnp.float32), axis=1),
        **descriptor,
        **learned,
        **api.hyper_metrics(hyper),
    }


def examine(parts: Parts, state: ProgramState, key: Key) -> Metrics:
    """Judge every member on fresh start states, changing nothing."""
    bank_key, members_key = jax.random.split(key)
    bank = parts.learner.start_states(bank_key)
    keys = api.member_keys(members_key, parts.population_size)
    judge = partial(_judge, parts.learner)
    evaluation = parts.population_map(judge, (state.members, keys), (bank,))
    return {**evaluation._asdict(), **api.hyper_metrics(state.members.hyper)}


def _judge(learner: Learner, member: Member, key: Key, bank: Bank) -> Evaluation:
    return learner.evaluate(genotype(member), bank, key)


def pbt(
    learner: Learner,
    space: Space | None = None,
    population_size: int = 8,
    config: PbtConfig | None = None,
    population_map: api.PopulationMap = api.vmap,
    **options: Any,
) -> Program:
    """Population Based Training of any learner.

    Args:
      learner: one member's life.
      space: what evolves; the agent's own space by default.
      population_size: P, at least 1.
      config: a `PbtConfig`; or give its fields as keywords: `pbt(learner, population_size=8, perturb="resample")`.
      population_map: how members are mapped; `devices.population_map` spreads them over devices.

    Raises:
      ValueError: a mistake in the configuration, or best and replaced members exceed the population.
      TypeError: both `config` and keywords are given, or a keyword that is no field of `PbtConfig`.
    """
    if config is not None and options:
        raise TypeError(f"give either config or the keywords {sorted(options)}, not both.")
    if population_size < 1:
        raise ValueError(f"population_size must be at least 1, got {population_size}.")
    config = config or PbtConfig(**options)
    counts(config, population_size)
    parts = Parts(learner, space or learner.space, config, population_size, population_map)
    return Program(
        init=partial(init, parts),
        step=partial(step, parts),
        examine=partial(examine, parts),
        population_size=population_size,
        steps_per_generation=population_size * learner.steps_per_generation,
    )
