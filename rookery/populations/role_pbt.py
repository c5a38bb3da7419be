"""Population Based Training of the roles of a team: each role is a separate population.

In each generation the members of all roles are matched at random into teams, which train and are evaluated; then
selection takes place within each role, by the return of that role or by ratings (`ratings`). The member of role i in
slot p is row `[p, i]` of the members' arrays; environment states belong to the teams' slots. In the tables of a run it
is member `p I + i`.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import hyperparams, trees
from rookery.factories import SettingError
from rookery.hyperparams import Space
from rookery.learners.base import Bank, Learner, Member
from rookery.learners.rollout import PREFIX
from rookery.populations import base, pb2, ratings, rebuild
from rookery.populations.base import Program, ProgramState
from rookery.populations.config import PbtConfig
from rookery.populations.pbt import (
    PbtBindings,
    PbtShared,
    PbtState,
    WorkOfMember,
    as_program,
    bind,
    exploit,
    has_diverged,
    is_rated,
    keep_last,
    metrics_of,
    no_fitness,
    prepare,
    proven,
    record_fitness,
    restart,
    settings_of,
    smoothed,
    still_unproven,
)
from rookery.populations.pbt import advance as pbt_advance
from rookery.populations.pbt import evaluate_member as pbt_evaluate_member
from rookery.populations.sharding import ONE_DEVICE, MoveFn, Placement, move_here
from rookery.populations.stages import Work
from rookery.types import Array, Evaluation, HyperT, Key, Metrics, PyTree, StateT


class RolePbtBindings(NamedTuple):
    """The static arguments of a PBT program of roles."""

    role: PbtBindings
    """The arguments of the PBT program of each role."""
    names: tuple[str, ...]
    """`[I]`, the names of the roles."""

    @property
    def role_count(self) -> int:
        """I, the number of roles."""
        return len(self.names)


def create(bindings: RolePbtBindings, keys: Key, bank: Bank) -> ProgramState:
    """Create members with initial parameters; hyper-parameters are sampled separately for each role and member."""
    size, space = bindings.role.population_size, bindings.role.space
    hyper_key, member_key = keys
    keys = base.member_keys(hyper_key, size * bindings.role_count).reshape(size, bindings.role_count)
    hyper = jax.vmap(jax.vmap(partial(hyperparams.sample, space)))(keys)
    members = bindings.role.placement.map(
        bindings.role.learner.init, (base.member_keys(member_key, size), hyper), (bank,)
    )
    recent, unproven = no_fitness(bindings.role, bindings.role_count, size)
    history = pb2.empty(space, size) if bindings.role.config.perturb == "pb2" else ()
    history = trees.stack([history] * bindings.role_count)
    parents = jnp.arange(size * bindings.role_count, dtype=jnp.int32)
    return ProgramState(members, PbtShared(jnp.zeros((), jnp.int32), parents, recent, history, unproven))


def match(key: Key, size: int, count: int) -> Array:
    """Match members into teams: `[P, I]`, the slot that the member of each role comes from; the key is consumed."""
    keys = base.member_keys(key, count)
    return jax.vmap(jax.random.permutation, in_axes=(0, None), out_axes=1)(keys, size)


def permute_roles(members: Member, places: Array, move: MoveFn = move_here) -> Member:
    """Permute the members of each role over the slots; environment states and buffers stay with the slot.

    Args:
      members: `[P, I, ...]`.
      places: `[P, I]` int32; slot p gets the member of role i that was in slot `places[p, i]`.
      move: moves rows between slots.

    Returns:
      The members `[P, I, ...]`.
    """
    of_roles = _swap_axes((members.state, members.hyper, members.normalizer))
    permuted = jax.lax.map(lambda role: move(*role), (of_roles, places.T))
    state, hyper, normalizer = _swap_axes(permuted)
    return members._replace(state=state, hyper=hyper, normalizer=normalizer)


def _swap_axes(tree: PyTree) -> PyTree:
    """Transpose `[P, I, ...]` to `[I, P, ...]`, or back."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), tree)


def begin(bindings: RolePbtBindings, state: ProgramState, bank: Bank, keys: Key) -> tuple[ProgramState, Work]:
    """Match the members of all roles into teams; they stay in the slots of their teams until `finish`."""
    one_role, size = bindings.role, bindings.role.population_size
    places = match(keys[0], size, bindings.role_count)
    teams = permute_roles(state.members, places, one_role.placement.move)
    work = prepare(one_role, teams, bank, keys[1], keys[2:])
    return state._replace(members=teams), work._replace(shared=(*work.shared, places))


def advance(
    bindings: RolePbtBindings, state: ProgramState, work: Work, first: Array | int, last: Array | int
) -> tuple[ProgramState, Work]:
    """Train every team for some iterations of the generation."""
    *shared, places = work.shared
    state, work = pbt_advance(bindings.role, state, work._replace(shared=tuple(shared)), first, last)
    return state, work._replace(shared=(*work.shared, places))


def evaluate_member(
    learner: Learner, member: Member, work: WorkOfMember, bank: Bank
) -> tuple[Evaluation, Array, Metrics]:
    """Evaluate a team, `is_finite` is `[I]`; the fitness of a role is NaN if what it learned is not finite."""
    evaluation, _, metrics = pbt_evaluate_member(learner, member, work, bank)
    is_finite = jax.vmap(trees.all_finite)((member.state, member.normalizer))
    return evaluation._replace(roles=jnp.where(is_finite, evaluation.roles, jnp.nan)), is_finite, metrics


def finish(bindings: RolePbtBindings, state: ProgramState, work: Work) -> tuple[ProgramState, Metrics]:
    """Evaluate the teams; then exploit, inherit and perturb within each role.

    Returns:
      The state of the next generation, and metrics of this one: `fitness`, `parent`, `diverged`, hyper-parameters and,
      with selection by rating, `rating` are `[P I]`, per member of a role; all others are `[P]`, per team of this
      generation.
    """
    one_role, size = bindings.role, bindings.role.population_size
    bank, (exploit_key, restart_key), places = work.shared
    # Evaluate the teams in which the members have trained.
    evaluation, is_finite, learned = one_role.placement.map(
        partial(evaluate_member, one_role.learner), (state.members, work.members), (bank,)
    )
    inverse = jnp.argsort(places, axis=0)  # from the slots of the teams back to the slots of the roles
    # Undo the draw of teams: selection compares the members of a role.
    members = permute_roles(state.members, inverse, one_role.placement.move)
    broken, learner = jnp.broadcast_to(evaluation.broken[:, None], inverse.shape), one_role.learner
    of_teams = has_diverged(learner, evaluation.roles, is_finite, broken)
    take = partial(one_role.placement.everywhere, partial(jnp.take_along_axis, axis=0))
    fitness, diverged = take(evaluation.roles, inverse), take(of_teams, inverse)
    is_known = take(is_rated(learner, jax.tree.map(lambda leaf: leaf[:, None], learned), is_finite, broken), inverse).T
    shared, fitness = keep_last(state.shared, fitness.T, is_known)
    reported, fitness = proven(shared, fitness).T, fitness.T
    metrics = _metrics(members, state.shared.parents, evaluation, learned, (reported, diverged))
    metrics |= {f"best_fitness/{name}": _best(reported[:, i]) for i, name in enumerate(bindings.names)}

    if one_role.rating_opponents is not None:
        exploit_key, rating_key = jax.random.split(exploit_key)
        rated = one_role.placement, one_role.learner, members, one_role.rating_opponents
        fitness = ratings.rate(*rated, bank, rating_key).T
        metrics["rating"] = fitness.reshape(-1)

    # Exploit within each role, then clear what does not belong to a copy.
    shared, members, parents, means = _exploit(bindings, shared, members, fitness, is_known, exploit_key)
    if one_role.config.smooth > 1:
        metrics[smoothed(one_role)] = means.reshape(-1)
    if one_role.config.exploit != "none":
        clear = partial(restart, one_role.learner, False)
        needed = base.member_keys(restart_key, size), of_teams.any(axis=1)
        members = one_role.placement.map(clear, (members, *needed), (bank,))
    is_child = parents != jnp.arange(size)[:, None]
    unproven = still_unproven(shared.unproven, take(broken > 0, inverse).T, is_child.T)
    parents = (parents * bindings.role_count + jnp.arange(bindings.role_count)[None]).astype(jnp.int32).reshape(-1)
    shared = shared._replace(generation=shared.generation + 1, parents=parents, unproven=unproven)
    return ProgramState(members, shared), metrics


def _best(fitness: Array) -> Array:
    """The maximum finite fitness; NaN if no fitness is finite."""
    finite = jnp.isfinite(fitness)
    return jnp.where(finite.any(), jnp.max(jnp.where(finite, fitness, -jnp.inf)), jnp.nan)


def _exploit(
    bindings: RolePbtBindings, shared: PbtShared, members: Member, fitness: Array, is_known: Array, key: Key
) -> tuple[PbtShared, Member, Array, Array]:
    """Select within every role, each with a separate key, by the fitness or the ratings `[P, I]`; for `is_known`,
    `[I, P]`, see `record_fitness`.

    Returns:
      The shared state; the members; the parents `[P, I]`, as slots within the role; and the smoothed values used for
      selection, `[P, I]`.
    """
    inherited = _swap_axes((members.state, members.hyper, members.normalizer))
    recorded = shared.recent, shared.history, shared.unproven
    roles = recorded, inherited, (fitness.T, is_known), base.member_keys(key, bindings.role_count)
    # `lax.map` and not `vmap`: under `vmap` the branch of the bandit would become a select.
    selected = jax.lax.map(partial(_exploit_role, bindings.role, shared.generation), roles)
    recent, history, inherited, parents, means = selected
    state, hyper, normalizer = _swap_axes(inherited)
    members = members._replace(state=state, hyper=hyper, normalizer=normalizer)
    return shared._replace(recent=recent, history=history), members, parents.T, means.T


def _exploit_role(bindings: PbtBindings, generation: Array, role: tuple) -> tuple:
    (recent, history, unproven), inherited, (fitness, is_known), key = role
    survivors = jnp.arange(fitness.shape[0], dtype=jnp.int32)
    members = Member(*inherited, env_state=(), buffer=())
    before = PbtShared(generation, survivors, recent, history, unproven)
    shared, means = record_fitness(bindings, before, members.hyper, fitness, is_known)
    parents = survivors
    if bindings.config.exploit != "none":
        parents, members = exploit(bindings, shared, members, means, tuple(jax.random.split(key)))
    inherited = members.state, members.hyper, members.normalizer
    return shared.recent[parents], shared.history, inherited, parents, means


def _metrics(
    members: Member, parents: Array, evaluation: Evaluation, learned: Metrics, roles: tuple[Array, Array]
) -> dict[str, Array]:
    hyper = jax.tree.map(jnp.ravel, members.hyper)
    fitness, diverged = (values.reshape(-1) for values in roles)
    return metrics_of(hyper, parents, evaluation._replace(fitness=fitness), learned, diverged)


def pbt_roles(
    learner: Learner[StateT, HyperT],
    space: Space[HyperT] | None = None,
    population_size: int = 8,
    config: PbtConfig | None = None,
    placement: Placement = ONE_DEVICE,
    rating_opponents: int | None = None,
    **options: Any,
) -> Program[PbtState[StateT, HyperT]]:
    """Population Based Training of each role of a team.

    Args:
      learner: the learner of one team: `on_policy` of an `independent` agent.
      space: the hyper-parameters that evolve; the agent's default space if None.
      population_size: P, the members of each role and the number of teams; `evaluate` evaluates the teams of the
        members that share a slot.
      config: a `PbtConfig`; or give its fields as keywords.
      placement: the placement of the teams; `rookery.distributed.placement` shards them over devices.
      rating_opponents: if the agents compete: select by ratings, from the returns against this number of members of the
        other roles (1 to P); None to select by fitness.
      **options: fields of `PbtConfig`, instead of `config`.

    Returns:
      The program.

    Raises:
      ValueError: the learner's agents are not independent, parameters of the environment are in the space, an invalid
        configuration, or members that cannot be rated.
      TypeError: both `config` and keywords are given, or a keyword that is not a field of `PbtConfig`.

    Example:
      >>> env = rookery.make("pursuit_continuous")
      >>> agent = rookery.agents.independent(rookery.ppo(env.spec), env.spec)
      >>> program = rookery.populations.pbt_roles(rookery.on_policy(agent, env), population_size=8)
    """
    role = bind(learner, space, population_size, config, placement, options, rating_opponents)
    if learner.team != "independent":
        raise ValueError(
            "roles need agents with separate parameters; use rookery.agents.independent, or --parameters independent."
        )
    if role.config.is_automatic:
        problem = "cannot be automatic with {member} agent, since each role has a separate population"
        raise SettingError("exploit_interval", "auto", problem, "give a number of steps, or {member} team")
    chosen = [name for name in role.space.defaults._fields if name.startswith(PREFIX)]
    if chosen:
        problem = "belongs to the environment of a whole team, but each role has separate hyper-parameters"
        raise SettingError(chosen[0], None, problem, "leave it out, or evolve whole teams by {member} team")
    assert learner.spec.team is not None
    bindings = RolePbtBindings(role, learner.spec.team.names)
    program = as_program(role, *(partial(stage, bindings) for stage in (create, begin, advance, finish)))
    program = program._replace(settings={**settings_of("pbt_roles", role), "member": "agent"})
    again = (space, population_size, role.config)
    return rebuild.with_recipe(
        program, lambda learner, place: pbt_roles(learner, *again, place, rating_opponents), placement
    )
