"""Population Based Training of the roles of a team: each role is a population of its own.

In each generation the members of all roles are matched at random into teams, which train and are judged; then every
role selects among its own, by its own return. A member of role i is row `[p, i]` of what its slot holds; environments
belong to the teams' slots. In a run's tables member `p I + i` is that of role i in slot p.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import hyperparams, trees
from rookery.hyperparams import Space
from rookery.learners.base import Bank, Learner, Member
from rookery.populations import base, pb2, pbt
from rookery.populations.base import Program, ProgramState
from rookery.populations.config import PbtConfig
from rookery.populations.sharding import ONE_DEVICE, MoveFn, Placement, move_here
from rookery.populations.stages import Work
from rookery.types import Array, Evaluation, Key, Metrics, PyTree


class RolePbtBindings(NamedTuple):
    """What the program is bound to."""

    each: pbt.PbtBindings  # of one role
    names: tuple[str, ...]  # [I] of the roles

    @property
    def count(self) -> int:
        """I."""
        return len(self.names)


def create(bindings: RolePbtBindings, keys: Key, bank: Bank) -> ProgramState:
    """Members with fresh parameters, each with its own hyper-parameters drawn from the space."""
    size, space = bindings.each.population_size, bindings.each.space
    hyper_key, member_key = keys
    keys = base.member_keys(hyper_key, size * bindings.count).reshape(size, bindings.count)
    hyper = jax.vmap(jax.vmap(partial(hyperparams.sample, space)))(keys)
    members = bindings.each.placement.map(
        bindings.each.learner.init, (base.member_keys(member_key, size), hyper), (bank,)
    )
    recent = jnp.zeros((bindings.count, size, bindings.each.config.smooth))
    history = pb2.empty(space, size) if bindings.each.config.perturb == "pb2" else ()
    history = trees.stack([history] * bindings.count)
    parents = jnp.arange(size * bindings.count, dtype=jnp.int32)
    return ProgramState(members, pbt.Shared(jnp.zeros((), jnp.int32), parents, recent, history))


def match(key: Key, size: int, count: int) -> Array:
    """Who plays in which team: `[P, I]`, the slot that the member of each role comes from; the key is consumed."""
    keys = base.member_keys(key, count)
    return jax.vmap(jax.random.permutation, in_axes=(0, None), out_axes=1)(keys, size)


def deal(members: Member, places: Array, move: MoveFn = move_here) -> Member:
    """Members at other places: slot p holds of role i who was at `places[p, i]`. Environments stay with the slot."""
    of_roles = _across((members.state, members.hyper, members.normalizer))
    dealt = jax.lax.map(lambda role: move(*role), (of_roles, places.T))
    state, hyper, normalizer = _across(dealt)
    return members._replace(state=state, hyper=hyper, normalizer=normalizer)


def _across(tree: PyTree) -> PyTree:
    """`[P, I, ...]` as `[I, P, ...]`, and back."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), tree)


def begin(bindings: RolePbtBindings, state: ProgramState, bank: Bank, keys: Key) -> tuple[ProgramState, Work]:
    """Match the members of all roles into teams, which the state holds until the generation is over."""
    each, size = bindings.each, bindings.each.population_size
    places = match(keys[0], size, bindings.count)
    teams = deal(state.members, places, each.placement.move)
    work = pbt.prepare(each, teams, bank, keys[1], keys[2:])
    return state._replace(members=teams), work._replace(shared=(*work.shared, places))


def advance(
    bindings: RolePbtBindings, state: ProgramState, work: Work, first: Array | int, last: Array | int
) -> tuple[ProgramState, Work]:
    """Train every team for some iterations of the generation."""
    *shared, places = work.shared
    state, work = pbt.advance(bindings.each, state, work._replace(shared=tuple(shared)), first, last)
    return state, work._replace(shared=(*work.shared, places))


def evaluate_member(learner: Learner, member: Member, work: pbt.WorkOfMember, bank: Bank) -> tuple[Evaluation, Metrics]:
    """Evaluate a team; the fitness of a role is NaN if anything it learned is not finite."""
    evaluation, metrics = pbt.evaluate_member(learner, member, work, bank)
    is_finite = jax.vmap(trees.all_finite)(member.state)
    return evaluation._replace(roles=jnp.where(is_finite, evaluation.roles, jnp.nan)), metrics


def finish(bindings: RolePbtBindings, state: ProgramState, work: Work) -> tuple[ProgramState, Metrics]:
    """Evaluate the teams; then exploit, inherit and perturb within each role.

    Returns:
      The next generation, and metrics of this one: `fitness`, `parent`, `diverged` and hyper-parameters `[P I]`; the
      rest `[P]`, of the teams as they were matched.
    """
    each, size = bindings.each, bindings.each.population_size
    bank, (exploit_key, restart_key), places = work.shared
    evaluation, learned = each.placement.map(
        partial(evaluate_member, each.learner), (state.members, work.members), (bank,)
    )
    home = jnp.argsort(places, axis=0)
    members = deal(state.members, home, each.placement.move)
    valid = base.valid_fitness(evaluation.roles, evaluation.broken[:, None])
    take = partial(each.placement.everywhere, partial(jnp.take_along_axis, axis=0))
    fitness, diverged = take(valid, home), ~jnp.isfinite(take(evaluation.roles, home))
    metrics = _metrics(members, state.shared.parents, evaluation, learned, (fitness, diverged))
    metrics |= {f"best_fitness/{name}": _best(fitness[:, i]) for i, name in enumerate(bindings.names)}

    shared, members, parents, judged = _exploit(bindings, state.shared, members, fitness, exploit_key)
    if each.config.smooth > 1:
        metrics["smoothed_fitness"] = judged.reshape(-1)
    if each.config.exploit != "none":
        clean = partial(pbt.restart, each.learner, False)
        needed = ~jnp.isfinite(evaluation.roles).all(axis=1)
        members = each.placement.map(clean, (members, base.member_keys(restart_key, size), needed), (bank,))
    parents = (parents * bindings.count + jnp.arange(bindings.count)[None]).astype(jnp.int32).reshape(-1)
    shared = shared._replace(generation=shared.generation + 1, parents=parents)
    return ProgramState(members, shared), metrics


def _best(fitness: Array) -> Array:
    """The greatest of those that are finite; NaN without any."""
    finite = jnp.isfinite(fitness)
    return jnp.where(finite.any(), jnp.max(jnp.where(finite, fitness, -jnp.inf)), jnp.nan)


def _exploit(
    bindings: RolePbtBindings, shared: pbt.Shared, members: Member, fitness: Array, key: Key
) -> tuple[pbt.Shared, Member, Array, Array]:
    """Every role by itself, with keys of its own; parents `[P, I]`, counted within the role, and what they were judged
    by, `[P, I]`."""
    inherited = _across((members.state, members.hyper, members.normalizer))
    given = shared.recent, shared.history, inherited, fitness.T, base.member_keys(key, bindings.count)
    # One after the other, not mapped at once: a branch of the bandit's stays a branch.
    told = jax.lax.map(partial(_exploit_role, bindings.each, shared.generation), given)
    recent, history, inherited, parents, judged = told
    state, hyper, normalizer = _across(inherited)
    members = members._replace(state=state, hyper=hyper, normalizer=normalizer)
    return shared._replace(recent=recent, history=history), members, parents.T, judged.T


def _exploit_role(each: pbt.PbtBindings, generation: Array, given: tuple) -> tuple:
    recent, history, inherited, fitness, key = given
    everybody = jnp.arange(fitness.shape[0], dtype=jnp.int32)
    members = Member(*inherited, env_state=(), buffer=())
    shared, judged = pbt.judged(each, pbt.Shared(generation, everybody, recent, history), members.hyper, fitness)
    parents = everybody
    if each.config.exploit != "none":
        parents, members = pbt.exploit(each, shared, members, judged, tuple(jax.random.split(key)))
    inherited = members.state, members.hyper, members.normalizer
    return shared.recent[parents], shared.history, inherited, parents, judged


def _metrics(
    members: Member, parents: Array, evaluation: Evaluation, learned: Metrics, roles: tuple[Array, Array]
) -> dict[str, Array]:
    hyper = jax.tree.map(jnp.ravel, members.hyper)
    fitness, diverged = (values.reshape(-1) for values in roles)
    return pbt.metrics_of(hyper, parents, evaluation._replace(fitness=fitness), learned, diverged)


def pbt_roles(
    learner: Learner,
    space: Space | None = None,
    population_size: int = 8,
    config: PbtConfig | None = None,
    placement: Placement = ONE_DEVICE,
    **options: Any,
) -> Program:
    """Population Based Training of each role of a team.

    Args:
      learner: one team's life, `on_policy` of an `independent` agent.
      space: what evolves; the agent's own space by default.
      population_size: P, members of each role, and teams; `evaluate` judges the teams of who shares a slot.
      config: a `PbtConfig`; or give its fields as keywords.
      placement: where teams lie; `rookery.distributed.placement` spreads them over devices.

    Raises:
      ValueError: the learner's agents are not independent, or a mistake in the configuration.
      TypeError: both `config` and keywords are given, or a keyword that is no field of `PbtConfig`.
    """
    each = pbt.bind(learner, space, population_size, config, placement, options)
    if learner.team != "independent":
        raise ValueError("roles need agents with parameters of their own: a team made by independent.")
    assert learner.spec.team is not None
    bindings = RolePbtBindings(each, learner.spec.team.names)
    return pbt.as_program(each, *(partial(stage, bindings) for stage in (create, begin, advance, finish)))
