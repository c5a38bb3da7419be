"""Population Based Training of the roles of a team: each role is a separate population.

In each generation the members of all roles are matched at random into teams, which train and are evaluated; then
selection takes place within each role, by the return of that role or by ratings (`ratings`). The member of role i in
slot p is row `[p, i]` of the members' arrays; environment states belong to the teams' slots. In the tables of a run it
is member `p I + i`.

With a league, a pool of earlier members, one agent of a team at a time learns against an entry of the pool in a share
of the environments. The entries are drawn by prioritised fictitious self-play (PFSP; Vinyals 2019, "Grandmaster level
in StarCraft II using multi-agent reinforcement learning", Nature 575:350, Methods): with a probability proportional to
(1 - p)^k, where p is the probability that the learner wins against the entry.
Deviation: returns of different roles have no winner. A win of the learner is a higher return against the entry than
against an opponent of the current population (`beaten`), and p is estimated over all members of the role.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rookery import hyperparams, trees
from rookery.hyperparams import Space
from rookery.learners.base import Bank, Learner, Member, Opponents, genotype
from rookery.learners.rollout import PREFIX
from rookery.populations import base, pb2, ratings, rebuild, selection
from rookery.populations.base import Program, ProgramState
from rookery.populations.config import LeagueConfig, PbtConfig
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
from rookery.settings import SettingError, SettingTypeError
from rookery.types import Array, Evaluation, Genotype, HyperT, Key, Metrics, PyTree, StateT


class RolePbtBindings(NamedTuple):
    """The static arguments of a PBT program of roles."""

    role: PbtBindings
    """The arguments of the PBT program of each role."""
    names: tuple[str, ...]
    """`[I]`, the names of the roles."""
    league: LeagueConfig | None = None
    """The pool of earlier members; None: all opponents are of the current population."""

    @property
    def role_count(self) -> int:
        """I, the number of roles."""
        return len(self.names)


class League(NamedTuple):
    """The pool of earlier members: each of its K entries has a member of every role, the best when it entered."""

    policies: Genotype
    """`[K, I, ...]`."""
    entered: Array
    """`[K]` int32, the generations that were finished when the entry entered; 0 while it is empty."""
    beaten: Array
    """`[I, K]`, the estimated probability p, in (0, 1), that a current member of role i has a higher return against the
    entry than against a current opponent; 1 while it is empty."""


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
    league = None if bindings.league is None else _empty_league(bindings, genotype(members))
    shared = PbtShared(jnp.zeros((), jnp.int32), parents, recent, history, unproven, league=league)
    return ProgramState(members, shared)


def _empty_league(bindings: RolePbtBindings, policies: Genotype) -> League:
    assert bindings.league is not None
    size = bindings.league.league_size
    none = jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape[1:]), leaf.dtype), policies)
    return League(none, jnp.zeros(size, jnp.int32), jnp.ones((bindings.role_count, size)))


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
    teams, roles = places.shape
    of_roles = members.state, members.hyper, members.normalizer
    rows = jax.tree.map(lambda leaf: leaf.reshape(teams * roles, *leaf.shape[2:]), of_roles)
    permuted = move(rows, (places * roles + jnp.arange(roles)[None]).reshape(-1))
    state, hyper, normalizer = jax.tree.map(lambda leaf: leaf.reshape(teams, roles, *leaf.shape[1:]), permuted)
    return members._replace(state=state, hyper=hyper, normalizer=normalizer)


def _swap_axes(tree: PyTree) -> PyTree:
    """Transpose `[P, I, ...]` to `[I, P, ...]`, or back."""
    return jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), tree)


def begin(bindings: RolePbtBindings, state: ProgramState, bank: Bank, keys: Key) -> tuple[ProgramState, Work]:
    """Match the members of all roles into teams; they stay in the slots of their teams until `finish`."""
    one_role, size, opponents = bindings.role, bindings.role.population_size, ()
    match_key = keys[0]
    if bindings.league is not None:
        match_key, deal_key = jax.random.split(match_key)
        opponents = deal(bindings, bindings.league, state.shared.league, deal_key)
    places = match(match_key, size, bindings.role_count)
    teams = permute_roles(state.members, places, one_role.placement.move)
    work = prepare(one_role, teams._replace(opponents=opponents), bank, keys[1], keys[2:])
    members = work.members._replace(opponents=opponents)
    return state._replace(members=teams), work._replace(members=members, shared=(*work.shared, places))


def environments_of(learner: Learner, config: LeagueConfig) -> np.ndarray:
    """The environments `[I, m]` int32 in which each role learns against the league, spread over all E.

    Raises:
      ValueError: the share gives no environment to each role, or leaves none whose episodes give the fitness.
    """
    assert learner.spec.team is not None
    roles, share = len(learner.spec.team.names), config.league_share
    each = min(round(share * learner.num_envs / roles), learner.num_envs // roles)
    if share > 0 and each == 0:
        problem = f"must give each of the {roles} roles an environment of the {learner.num_envs}"
        raise SettingError("league_share", share, problem, "raise it, give more {num_envs}, or 0")
    if learner.rate_training is not None and roles * each == learner.num_envs:
        problem = "must leave environments whose training episodes give the fitness"
        raise SettingError("league_share", share, problem, "lower it, or give {fitness_from} evaluation")
    dealt = np.arange(roles * each) * learner.num_envs // max(roles * each, 1)
    return dealt.reshape(each, roles).T.astype(np.int32)


def log_chances(league: League, power: float) -> Array:
    """The logarithm of the weight with which each role's learners draw each entry, `[I, K]`: the weight is
    (1 - p)^power, which float32 may not have itself, and 0 of an empty one."""
    there = league.entered > 0
    return jnp.where(there, power * jnp.log1p(-jnp.where(there, league.beaten, 0.0)), -jnp.inf)


def deal(bindings: RolePbtBindings, config: LeagueConfig, league: League, key: Key) -> Opponents | tuple[()]:
    """Draw an entry of the league for each role of each team, with leaves `[P, ...]`; the key is consumed.

    While the league is empty, the teams act alone.
    """
    environments = environments_of(bindings.role.learner, config)
    if not environments.size:
        return ()
    shape = bindings.role.population_size, bindings.role_count
    draw = partial(jax.random.categorical, axis=-1, shape=shape)
    rows = bindings.role.placement.everywhere(
        lambda key, league: draw(key, log_chances(league, config.league_power)).astype(jnp.int32), key, league
    )
    dealt = partial(_dealt, jnp.asarray(environments))
    return bindings.role.placement.map(dealt, (rows,), (league,))


def _dealt(environments: Array, rows: Array, league: League) -> Opponents:
    return Opponents(trees.take(league.policies, rows), environments, (league.entered > 0).any())


def advance(
    bindings: RolePbtBindings, state: ProgramState, work: Work, first: Array | int, last: Array | int
) -> tuple[ProgramState, Work]:
    """Train every team for some iterations of the generation."""
    *shared, places = work.shared
    playing = state._replace(members=state.members._replace(opponents=work.members.opponents))
    state, work = pbt_advance(bindings.role, playing, work._replace(shared=tuple(shared)), first, last)
    state = state._replace(members=state.members._replace(opponents=()))
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
      with selection by rating, `rating` are `[P I]`, per member of a role; those of `league_metrics` are `[]`; all
      others are `[P]`, per team of this generation.
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

    keys = [exploit_key, exploit_key] if bindings.league is None else jax.random.split(exploit_key)
    # Exploit within each role, then clear what does not belong to a copy.
    trained = members
    shared, members, parents, means = _exploit(bindings, shared, members, fitness, is_known, keys[0])
    if bindings.league is not None:
        scores = proven(shared, means.T)
        shared = shared._replace(league=renew(bindings, bindings.league, shared, (trained, scores), bank, keys[1]))
        metrics |= league_metrics(bindings.names, shared.league)
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


def renew(
    bindings: RolePbtBindings,
    config: LeagueConfig,
    shared: PbtShared,
    trained: tuple[Member, Array],
    bank: Bank,
    key: Key,
) -> League:
    """The league after a generation: every `league_every` generations the best members enter, and all are rated.

    Args:
      bindings: the static arguments of the program.
      config: of the league.
      shared: the state with the league before.
      trained: the members `[P, I, ...]` before selection, and the values `[I, P]` that they are selected by.
      bank: start states of the generation.
      key: consumed.
    """
    members, scores = trained
    placement, count = bindings.role.placement, min(bindings.role.population_size, config.league_size)

    def change() -> League:
        draw_key, play_key = jax.random.split(key)
        best = jnp.argmax(selection.comparable(scores), axis=1)
        of_slots = placement.take(genotype(members), best)  # [I, I, ...]: all roles of the slots of the best
        entry = jax.tree.map(lambda leaf: jnp.moveaxis(jnp.diagonal(leaf), -1, 0), of_slots)
        known = jnp.isfinite(scores).any(axis=1).all()
        league = placement.everywhere(enter, shared.league, entry, shared.generation + 1, known)
        current, _ = ratings.draw_opponents(placement, members, count, draw_key)
        both = jax.tree.map(lambda *rows: jnp.concatenate(rows), ratings.played(league.policies), current)
        found = ratings.cross_play(placement, bindings.role.learner, genotype(members), both, bank, play_key)
        rate = partial(beaten, entries=config.league_size)
        share = placement.everywhere(rate, found)
        return league._replace(beaten=jnp.where(league.entered > 0, share, 1.0))

    is_due = (shared.generation + 1) % config.league_every == 0
    return jax.lax.cond(is_due, change, lambda: shared.league)


def enter(league: League, entry: Genotype, generation: Array, known: Array) -> League:
    """Put an entry into the league, in place of the one that current members beat most often in the mean over roles.

    The oldest of several such entries is replaced; empty ones, with p = 1, come first. Not simply the oldest: an entry
    that is beaten always teaches nothing and is hardly drawn, however new, while an old one that beats current members
    is what they have forgotten.

    Args:
      league: before.
      entry: `[I, ...]`, the best member of each role.
      generation: `[]` int32, the generations that are finished.
      known: `[]` bool: every role has a member with a finite value; if False, nothing changes.
    """
    easy = jnp.mean(league.beaten, axis=0)
    place = jnp.argmin(jnp.where(easy == jnp.max(easy), league.entered, jnp.iinfo(jnp.int32).max))
    put = jax.tree.map(lambda rows, row: rows.at[place].set(row), league.policies, entry)
    changed = league._replace(policies=put, entered=league.entered.at[place].set(generation))
    return trees.where(known, changed, league)


def beaten(returns: Array, entries: int) -> Array:
    """How often members beat each entry of the league.

    Args:
      returns: `[I, K + R, P]`, of role i's member p against the K entries and against R current opponents.
      entries: K.

    Returns:
      `[I, K]`, (w + 1/2) / (n + 1) for w wins in n comparisons: each return against the entry is compared with the same
      member's return against each current opponent; an equal one counts 1/2, one that is not finite is left out. The
      half win and the half loss keep p within (0, 1), as in `ratings.rating_of`.
    """
    entry, current = returns[:, :entries, None], returns[:, None, entries:]  # [I, K, 1, P], [I, 1, R, P]
    known = jnp.isfinite(entry) & jnp.isfinite(current)
    halves = jnp.where(known, 2 * (entry > current).astype(jnp.int32) + (entry == current).astype(jnp.int32), 0)
    wins, count = 0.5 * jnp.sum(halves, axis=(2, 3)).astype(jnp.float32), jnp.sum(known, axis=(2, 3))
    return (wins + 0.5) / (count.astype(jnp.float32) + 1.0)


def league_metrics(names: tuple[str, ...], league: League) -> dict[str, Array]:
    """`league_entered/<k>`, and `league_rating/<role>/<k>`, the rating of entry k as an opponent of each role's members
    among current opponents: 400 log10((1 - p) / p), 0 for one as hard as they are; NaN where an entry is empty."""
    ratings_of = 400.0 * (jnp.log10(1.0 - league.beaten) - jnp.log10(league.beaten))
    shown = jnp.where(league.entered > 0, jnp.stack([league.entered.astype(jnp.float32), *ratings_of]), jnp.nan)
    labels = "league_entered", *(f"league_rating/{name}" for name in names)
    return {f"{label}/{k}": shown[i, k] for i, label in enumerate(labels) for k in range(shown.shape[1])}


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
    league: LeagueConfig | None = None,
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
      league: if the agents compete: the pool of earlier members that they also learn against; None: all opponents are
        members of the current population.
      **options: fields of `PbtConfig`, instead of `config`.

    Returns:
      The program.

    Raises:
      ValueError: the learner's agents are not independent, parameters of the environment are in the space, an invalid
        configuration, or members that cannot be rated or play in a league.
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
    settings = {**settings_of("pbt_roles", role), "member": "agent"}
    if league is not None:
        if not isinstance(league, LeagueConfig):
            raise SettingTypeError("league", league, "must be a LeagueConfig", "build one")
        ratings.check_roles(learner, "train without a league")
        environments_of(learner, league)
        settings["league"] = vars(league)
    bindings = RolePbtBindings(role, learner.spec.team.names, league)
    program = as_program(role, *(partial(stage, bindings) for stage in (create, begin, advance, finish)))
    program = program._replace(settings=settings)
    again = (space, population_size, role.config)
    return rebuild.with_recipe(
        program, lambda learner, place: pbt_roles(learner, *again, place, rating_opponents, league), placement
    )
