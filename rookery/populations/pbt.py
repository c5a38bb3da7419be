"""Population Based Training: train, evaluate, replace the worst members by copies of the best, perturb the copies.

Source: Jaderberg 2017, "Population Based Training of Neural Networks" (arXiv:1711.09846). The paper's "explore" is
called `perturb` here, because agents also explore. A selection is one array, `parents` `[P]`: `parents[i] == i` means
that member i survives.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp

from rookery import hyperparams, trees
from rookery.hyperparams import Space
from rookery.learners import widths
from rookery.learners.base import Bank, Learner, Member, check_learner, genotype
from rookery.learners.iterations import divisible
from rookery.learners.rollout import PREFIX
from rookery.populations import base, pb2, ratings, rebuild, selection
from rookery.populations.base import Program, ProgramState
from rookery.populations.config import PbtConfig, Timing, check_population, counts, timing
from rookery.populations.inheritance import inherit, perturb, resize, shrink_and_perturb
from rookery.populations.selection import Rounds
from rookery.populations.sharding import ONE_DEVICE, Placement
from rookery.populations.stages import StagedInit, StagedStep, Work
from rookery.settings import AGENT_RETURN, METRIC_NAMES, SettingError, check_names, config_from
from rookery.types import Array, Evaluation, Hyper, HyperT, Key, Metrics, PyTree, StateT


class PbtBindings(NamedTuple, Generic[StateT, HyperT]):
    """The static arguments of a PBT program."""

    learner: Learner[StateT, HyperT]
    space: Space[HyperT]
    config: PbtConfig
    population_size: int
    placement: Placement
    rating_opponents: int | None = None
    """R, the opponents of the ratings that members are selected by; None to select by fitness."""


class PbtShared(NamedTuple):
    """The state of the population that is not stored per member."""

    generation: Array
    """`[]` int32, the number of generations finished."""
    parents: Array
    """`[P]` int32, the member of the last generation that each member was copied from."""
    recent: Array
    """`[P, smooth]`, the latest values of each member's lineage that it was selected by (fitness or rating), newest
    first; 0 before the first ones, or NaN if training episodes give the fitness."""
    history: PyTree
    """The observations of the PB2 bandit, which also begins the rounds of an automatic interval; () without one."""
    unproven: Array | None = None
    """`[P]` bool, members in whose slots no training episode has ended yet, where these give the fitness; else None."""
    rounds: Rounds | None = None
    """The rounds of an automatic interval; None without one."""
    league: PyTree = None
    """The earlier members that act as opponents, a `role_pbt.League`; None without a league."""


PbtState = ProgramState[Member[StateT, HyperT], PbtShared]
"""The state of a PBT program."""


class WorkOfMember(NamedTuple):
    """The temporary data of one member during a generation."""

    train_key: Key
    evaluate_key: Key
    log: PyTree
    """The training log of the member, see `Training`."""
    opponents: PyTree = ()
    """`Member.opponents` of this generation."""


def create(bindings: PbtBindings, keys: Key, bank: Bank) -> PbtState:
    """Create members with initial parameters, and hyper-parameters sampled from the space."""
    size = bindings.population_size
    members = init_members(bindings.learner, bindings.space, size, bindings.placement, keys, bank)
    return ProgramState(members, first_shared(bindings))


def first_shared(bindings: PbtBindings) -> PbtShared:
    """The state of the population before its first generation."""
    size, config = bindings.population_size, bindings.config
    history = pb2.empty(bindings.space, size) if config.has_bandit else ()
    recent, unproven = no_fitness(bindings, size)
    begun = selection.first_round() if config.is_automatic else None
    return PbtShared(jnp.zeros((), jnp.int32), jnp.arange(size, dtype=jnp.int32), recent, history, unproven, begun)


def no_fitness(bindings: PbtBindings, *shape: int) -> tuple[Array, Array | None]:
    """The fields `recent` and `unproven` of new members, `[*shape, smooth]` and `[*shape]`."""
    if bindings.learner.rate_training is None:
        return jnp.zeros((*shape, bindings.config.smooth)), None
    return jnp.full((*shape, bindings.config.smooth), jnp.nan), jnp.ones(shape, bool)


def init_members(
    learner: Learner[StateT, HyperT], space: Space[HyperT], size: int, placement: Placement, keys: Key, bank: Bank
) -> Member[StateT, HyperT]:
    """Initialise `size` members, each with separate keys from `keys` `[2]`, for its hyper-parameters and for itself."""
    hyper_keys, member_keys = (base.member_keys(key, size) for key in keys)
    hyper = jax.vmap(partial(hyperparams.sample, space))(hyper_keys)
    return placement.map(learner.init, (member_keys, hyper), (bank,))


def begin(bindings: PbtBindings, state: PbtState, bank: Bank, keys: Key) -> tuple[PbtState, Work]:
    """Create the keys and the empty log of each member."""
    return state, prepare(bindings, state.members, bank, keys[0], keys[1:])


def prepare(bindings: PbtBindings, members: Member, bank: Bank, members_key: Key, later: Key) -> Work:
    """Create the `Work` of a generation: `members_key` is consumed, the keys `later` are stored for `finish`."""
    log = bindings.placement.map(divisible(bindings.learner.step).start, (members,), (bank,))
    keys = jax.vmap(jax.random.split)(base.member_keys(members_key, bindings.population_size))
    return Work(WorkOfMember(keys[:, 0], keys[:, 1], log), (bank, later))


def advance(
    bindings: PbtBindings, state: PbtState, work: Work, first: Array | int, last: Array | int
) -> tuple[PbtState, Work]:
    """Train every member for some iterations of the generation."""
    training = state.members, work.members.log, work.members.train_key
    shared = (work.shared[0], state.shared.generation, jnp.asarray(first, jnp.int32), jnp.asarray(last, jnp.int32))
    members, log = bindings.placement.map(partial(train_member, bindings.learner), training, shared)
    return state._replace(members=members), work._replace(members=work.members._replace(log=log))


def train_member(
    learner: Learner, member: Member, log: PyTree, key: Key, bank: Bank, *when: Array
) -> tuple[Member, PyTree]:
    """Train one member for some iterations; `when` is the generation, the first iteration and the one after the
    last."""
    return divisible(learner.step).advance(member, log, bank, key, *when)


def evaluate_member(
    learner: Learner, member: Member, work: WorkOfMember, bank: Bank
) -> tuple[Evaluation, Array, Metrics]:
    """Evaluate a trained member, or rate its training; whether what it learned is finite, `[]`; and the metrics of its
    training. If it is not, fitness is NaN, and not for broken physics."""
    if learner.rate_training is None:
        evaluation = learner.evaluate(genotype(member), bank, work.evaluate_key)
    else:
        evaluation = learner.rate_training(work.log)
    is_finite = trees.all_finite((member.state, member.normalizer))
    fitness, broken = jnp.where(is_finite, evaluation.fitness, jnp.nan), jnp.where(is_finite, evaluation.broken, 0)
    evaluation = evaluation._replace(fitness=fitness, broken=broken)
    return evaluation, is_finite, divisible(learner.step).summarize(work.log)


def has_diverged(learner: Learner, fitness: Array, is_finite: Array, broken: Array) -> Array:
    """Whether the parameters of members are why their fitness is missing, `[P]` bool, not broken physics or the lack of
    a training episode."""
    return ~jnp.isfinite(fitness) & (broken == 0) if learner.rate_training is None else ~is_finite


def keep_last(shared: PbtShared, fitness: Array, is_known: Array) -> tuple[PbtShared, Array]:
    """The fitness with the last one of members in whose generation no training episode ended.

    Args:
      shared: before the generation.
      fitness: `[P]`, or `[I, P]` of the roles of a team.
      is_known: of the same shape, bool: the fitness is that of this generation.
    """
    if shared.unproven is None:
        return shared, fitness
    fitness = jnp.where(is_known, fitness, shared.recent[..., 0])
    return shared._replace(unproven=shared.unproven & ~is_known), fitness


def proven(shared: PbtShared, fitness: Array) -> Array:
    """The fitness without that of members of which no training episode has ended: a child's is that of its parent."""
    return fitness if shared.unproven is None else jnp.where(shared.unproven, jnp.nan, fitness)


def is_rated(learner: Learner, learned: Metrics, is_finite: Array, broken: Array) -> Array:
    """Whether a generation gives members a fitness, or a reason why they have none; `[P]` bool."""
    if learner.rate_training is None:
        return jnp.ones_like(is_finite)
    return (learned["train_episodes"] > 0) | (broken > 0) | ~is_finite


def finish(bindings: PbtBindings, state: PbtState, work: Work) -> tuple[PbtState, Metrics]:
    """Evaluate every member, then exploit, inherit, perturb.

    Returns:
      The state of the next generation, and metrics `[P]` of this one: `fitness`, `parent` (the member of the previous
      generation that each member was copied from), `hyper/...` (the values used in training), `diverged`,
      `broken_episodes` (of the evaluation), `episode_length` (steps), and the metrics of the learner; with selection by
      rating also `rating`; with an automatic interval `round`, and `exploit_interval` `[]` in generations.
    """
    size, members = bindings.population_size, state.members
    bank, (exploit_key, perturb_key, restart_key) = work.shared
    is_automatic = bindings.config.is_automatic
    restart_key, renew_key = jax.random.split(restart_key) if is_automatic else (restart_key, restart_key)
    # Evaluate, each member on the device that has it.
    evaluation, is_finite, learned = bindings.placement.map(
        partial(evaluate_member, bindings.learner), (members, work.members), (bank,)
    )
    diverged = has_diverged(bindings.learner, evaluation.fitness, is_finite, evaluation.broken)
    is_known = is_rated(bindings.learner, learned, is_finite, evaluation.broken)
    shared, selected_by = keep_last(state.shared, evaluation.fitness, is_known)
    evaluation = evaluation._replace(fitness=proven(shared, selected_by))
    metrics = metrics_of(members.hyper, state.shared.parents, evaluation, learned, diverged)
    if bindings.rating_opponents is not None:
        exploit_key, rating_key = jax.random.split(exploit_key)
        by_role = ratings.rate(
            bindings.placement, bindings.learner, members, bindings.rating_opponents, bank, rating_key
        )
        metrics["rating"] = selected_by = bindings.placement.everywhere(partial(jnp.mean, axis=0), by_role)

    # Select, by fitness smoothed along the lineage; then inherit and perturb.
    shared, fitness = record_fitness(bindings, shared, members.hyper, selected_by, is_known)
    if bindings.config.smooth > 1:
        metrics[smoothed(bindings)] = fitness
    if shared.rounds is not None:
        metrics["round"] = jnp.broadcast_to(shared.rounds.number, size)
        metrics["exploit_interval"] = shared.rounds.interval
        limits = bindings.config.round_patience, bindings.config.rounds_until
        turn = partial(selection.advance_rounds, timing_of(bindings).burn_in, *limits)
        ranked = shared.rounds, proven(shared, fitness), shared.generation
        shared = shared._replace(rounds=bindings.placement.everywhere(turn, *ranked))
    if bindings.config.exploit == "none":
        parents = jnp.arange(size, dtype=jnp.int32)
    else:
        parents, members = exploit(bindings, shared, members, fitness, (exploit_key, perturb_key))
        clear = partial(restart, bindings.learner, bindings.config.inherit_buffer)
        needed = (parents != jnp.arange(size)) & diverged
        members = bindings.placement.map(clear, (members, base.member_keys(restart_key, size), needed), (bank,))
    recent = bindings.placement.everywhere(trees.take, shared.recent, parents)
    unproven = still_unproven(shared.unproven, evaluation.broken > 0, parents != jnp.arange(size))
    if shared.rounds is not None:
        ends = shared.rounds.is_last(shared.generation)
        members = shrink_and_perturb(bindings.learner, bindings.placement, members, ends, renew_key, bank)
        recent = jnp.where(ends, jnp.nan, recent)  # the fitness of parameters that are gone
        unproven = still_unproven(unproven, jnp.zeros(size, bool), ends)
    shared = shared._replace(generation=shared.generation + 1, parents=parents, recent=recent, unproven=unproven)
    return ProgramState(members, shared), metrics


def still_unproven(unproven: Array | None, broken: Array, is_child: Array) -> Array | None:
    """`PbtShared.unproven` of the next generation: also children, and members in whose training the physics broke."""
    return None if unproven is None else unproven | broken | is_child


def smoothed(bindings: PbtBindings) -> str:
    """The name of the metric that members are selected by, if it is smoothed."""
    return "smoothed_fitness" if bindings.rating_opponents is None else "smoothed_rating"


def record_fitness(
    bindings: PbtBindings, shared: PbtShared, hyper: Hyper, fitness: Array, is_known: Array | bool = True
) -> tuple[PbtShared, Array]:
    """Record the fitness, or the rating, `[P]` of this generation; returns also its smoothed value `[P]`, which is used
    for selection. A bandit learns nothing from an earlier one, where `is_known` `[P]` is False."""
    history = shared.history
    if bindings.config.has_bandit:
        # Nothing is known before the first evaluation, and without updates no hyper-parameter has an effect.
        first = max(1, bindings.learner.untrained_generations)
        before = jnp.where((shared.generation >= first) & is_known, shared.recent[:, 0], jnp.nan)
        history = pb2.record(history, bindings.space, shared.generation, hyper, before, fitness)
    recent = jnp.concatenate([fitness[:, None], shared.recent[:, :-1]], axis=1)
    known = (jnp.arange(bindings.config.smooth) <= shared.generation)[None] & jnp.isfinite(recent)
    mean = jnp.sum(jnp.where(known, recent, 0.0), axis=1) / jnp.sum(known, axis=1).astype(jnp.float32)
    mean = jnp.where(jnp.isfinite(fitness), mean, jnp.nan)  # earlier ones that are missing do not count
    return shared._replace(recent=recent, history=history), mean


def exploit(
    bindings: PbtBindings, shared: PbtShared, members: Member, fitness: Array, keys: tuple[Key, Key]
) -> tuple[Array, Member]:
    """Select parents and replace members.

    Args:
      bindings: the static arguments of the program.
      shared: the state after `record_fitness`.
      members: `[P, ...]`, trained.
      fitness: `[P]`, fitness or rating, used for selection.
      keys: for selection and for perturbation; consumed.

    Returns:
      The parents `[P]` int32, and the members after inheritance and perturbation.
    """
    config, fitness = bindings.config, proven(shared, fitness)
    chosen = (fitness, shared.generation, keys[0], shared.unproven, shared.rounds)
    parents = bindings.placement.everywhere(partial(select, config, timing_of(bindings)), *chosen)
    donors, is_new = None, parents != jnp.arange(bindings.population_size)
    if config.exploit == "multi-frequency":
        donors = selection.donors(fitness, parents, config.frequencies)
        # A migrant's hyper-parameters are not perturbed, unless it replaces a member that diverged.
        is_new &= selection.within_subpopulation(parents, config.frequencies) | ~jnp.isfinite(fitness)
    has_widths, perturb_key, resize_key = widths.evolves(bindings.learner, members.hyper), keys[1], keys[1]
    inherited_widths = trees.take(members.hyper.hidden_size, parents) if has_widths else None
    members = inherit(members, parents, donors, config.inherit_buffer, bindings.placement.move)
    if has_widths:  # a migrant keeps the width of its parameters, also with the hyper-parameters of another member
        members = members._replace(hyper=members.hyper._replace(hidden_size=inherited_widths))
        perturb_key, resize_key = jax.random.split(keys[1])
    propose_key = perturb_key
    if config.perturb != "pb2":
        if shared.rounds is not None:
            perturb_key, propose_key = jax.random.split(perturb_key)
        members = members._replace(hyper=perturb(config, bindings.space, members.hyper, perturb_key, is_new))
    if config.has_bandit:
        before = shared.recent[parents, 0]
        if shared.rounds is not None:  # for all members at the end of a round, when their fitness is not known
            ends = shared.rounds.is_last(shared.generation)
            is_new, before = (is_new & (config.perturb == "pb2")) | ends, jnp.where(ends, jnp.nan, before)
        known = (shared.history, shared.generation + 1, members.hyper, before, is_new, propose_key)
        hyper = bindings.placement.map(
            partial(_proposal, bindings.space), (jnp.arange(bindings.population_size),), known
        )
        members = members._replace(hyper=hyper)
    return parents, resize(bindings.learner, bindings.placement, members, resize_key) if has_widths else members


def _proposal(
    space: Space[HyperT], member: Array, history: pb2.History, generation: Array, hyper: HyperT, *rest: Array
) -> HyperT:
    """One member's row of all proposals. Every device computes all of them: a sum over devices would change bits."""
    return trees.take(pb2.propose(history, space, generation, hyper, *rest), member)


def timing_of(bindings: PbtBindings) -> Timing:
    """The generations in which the population selects."""
    learner, size = bindings.learner, bindings.population_size
    return timing(bindings.config, size, learner.steps_per_generation, learner.untrained_generations)


def select(
    config: PbtConfig,
    when: Timing,
    fitness: Array,
    generation: Array,
    key: Key,
    stays: Array | None,
    turn: Rounds | None,
) -> Array:
    """Apply the configured exploit strategy; see `selection`.

    Args:
      config: the configuration of the population.
      when: the generations with selection; in others only members whose fitness is not finite are replaced.
      fitness: `[P]`, higher is better.
      generation: `[]` int32, the generation of the fitness, counted from 0.
      key: consumed.
      stays: `[P]` bool, members without a fitness that are not replaced; of MF-PBT they rank last in their
        sub-population, and take a place of those that would be replaced; None: none.
      turn: the rounds after this generation, which decide in place of `when`; None without an automatic interval.

    Returns:
      The parents `[P]` int32.
    """
    stay = 0 if stays is None else jnp.sum(stays)
    if turn is None:
        active = (generation >= when.burn_in) & ((generation + 1) % when.every == 0)
    else:
        active = turn.is_selection(generation)
    parents = _selected(config, when, fitness, generation, key, active, stay)
    return parents if stays is None else jnp.where(stays, jnp.arange(fitness.shape[0]), parents)


def _selected(
    config: PbtConfig, when: Timing, fitness: Array, generation: Array, key: Key, active: Array, stay: Array | int
) -> Array:
    if config.exploit == "tournament":
        return selection.tournament(fitness, key, active)
    if config.exploit == "threshold":
        return selection.threshold(fitness, key, config.threshold_std, config.threshold_abs, active)
    if config.exploit == "multi-frequency":
        return selection.multi_frequency(fitness, generation // when.every, config.frequencies, active)
    best, replaced = counts(config, fitness.shape[0])
    return selection.truncation(fitness, key, best, jnp.where(active, replaced + stay, 0))


def restart(learner: Learner, keep_buffer: bool, member: Member, key: Key, needed: Array, bank: Bank) -> Member:
    """Discard the data of a diverged member; a buffer that was just inherited is the parent's and is kept."""
    fresh = learner.restart(member, bank, key, needed)
    return fresh._replace(buffer=member.buffer) if keep_buffer else fresh


def metrics_of(
    hyper: Hyper, parents: Array, evaluation: Evaluation, learned: Metrics, diverged: Array
) -> dict[str, Array]:
    """The metrics `[P]` of a generation: evaluation, parents, training, and the hyper-parameters used in training."""
    descriptor = {f"descriptor/{i}": values for i, values in enumerate(base.known_descriptor(evaluation).T)}
    measures = base.measure_metrics(evaluation)
    others = {name: values for name, values in evaluation.episodes.items() if name not in measures}
    episodes = {name: jnp.mean(values, axis=1) for name, values in others.items() if values.ndim == 2}
    is_team = bool(jax.tree.leaves(evaluation.roles))
    taken = [name for name in METRIC_NAMES if name != AGENT_RETURN or not is_team]
    check_names("metric of an evaluation", episodes, [*taken, *learned])
    return {
        "fitness": evaluation.fitness,
        "parent": parents,
        "diverged": diverged,
        "broken_episodes": evaluation.broken,
        "episode_length": jnp.mean(evaluation.lengths.astype(jnp.float32), axis=1),
        **measures,
        **descriptor,
        **episodes,
        **learned,
        **base.hyper_metrics(hyper),
    }


def evaluate(bindings: PbtBindings, state: ProgramState, key: Key) -> Metrics:
    """Evaluate every member from fresh start states without changing the state; see `EvaluateProgramFn`."""
    bank_key, members_key = jax.random.split(key)
    bank = bindings.learner.start_states(bank_key)
    keys = base.member_keys(members_key, bindings.population_size)
    evaluator = partial(_evaluate_only, bindings.learner)
    evaluation = bindings.placement.map(evaluator, (state.members, keys), (bank,))
    return {**base.evaluation_metrics(evaluation), **base.hyper_metrics(state.members.hyper)}


def _evaluate_only(learner: Learner, member: Member, key: Key, bank: Bank) -> Evaluation:
    return learner.evaluate(genotype(member), bank, key)


def pbt(
    learner: Learner[StateT, HyperT],
    space: Space[HyperT] | None = None,
    population_size: int = 8,
    config: PbtConfig | None = None,
    placement: Placement = ONE_DEVICE,
    rating_opponents: int | None = None,
    **options: Any,
) -> Program[PbtState[StateT, HyperT]]:
    """Population Based Training of any learner.

    Args:
      learner: the learner of one member.
      space: the hyper-parameters that evolve; the agent's default space if None.
      population_size: P, at least 1.
      config: a `PbtConfig`; or give its fields as keywords: `pbt(learner, population_size=8, perturb="resample")`.
      placement: the placement of the members; `rookery.distributed.placement` shards them over devices.
      rating_opponents: for a team of agents that compete: select by the mean of the ratings of its agents, each from
        its returns against this number of other teams' agents (1 to P); None to select by fitness.
      **options: fields of `PbtConfig`, instead of `config`.

    Returns:
      The program.

    Raises:
      ValueError: an invalid configuration, best and replaced members exceed the population, or members that cannot be
        rated.
      TypeError: both `config` and keywords are given, or a keyword that is not a field of `PbtConfig`.

    Example:
      >>> env = rookery.make("point_room")
      >>> learner = rookery.off_policy(rookery.sac(env.spec), env)
      >>> program = rookery.pbt(learner, population_size=8, perturb="pb2")
    """
    bindings = bind(learner, space, population_size, config, placement, options, rating_opponents)
    program = as_program(bindings, *(partial(stage, bindings) for stage in (create, begin, advance, finish)))
    program = program._replace(
        independent=bindings.config.exploit == "none" and not bindings.space.domains,
        settings=settings_of("pbt", bindings),
    )
    again = (space, population_size, bindings.config)
    return rebuild.with_recipe(program, lambda learner, place: pbt(learner, *again, place, rating_opponents), placement)


def bind(
    learner: Learner[StateT, HyperT],
    space: Space[HyperT] | None,
    population_size: int,
    config: PbtConfig | None,
    placement: Placement,
    options: Mapping[str, Any],
    rating_opponents: int | None,
) -> PbtBindings[StateT, HyperT]:
    """Check the arguments of `pbt` and bundle them; it raises the errors of `pbt`."""
    check_learner(learner, space)
    config = config_from(PbtConfig, config, options, ("population_size", "rating_opponents"))
    check_population(config, population_size)
    if learner.rate_training is not None:
        check_rates_training(learner, space or learner.space, rating_opponents)
    if rating_opponents is not None:
        if config.is_automatic:
            problem = "cannot be automatic with ratings, whose highest one does not show whether members improve"
            raise SettingError("exploit_interval", "auto", problem, "give a number of steps, or {select_by} fitness")
        ratings.check_opponents(learner, population_size, rating_opponents)
    return PbtBindings(learner, space or learner.space, config, population_size, placement, rating_opponents)


def check_rates_training(learner: Learner, space: Space, rating_opponents: int | None) -> None:
    """Check that training episodes can give the fitness of members."""
    if rating_opponents is not None:
        problem = "has no effect on members that are selected by ratings"
        raise SettingError("fitness_from", "training", problem, "leave it out, or give {select_by} fitness")
    own = [name for name in space.domains if name.startswith(PREFIX)]
    if own and learner.evaluator and learner.evaluator.config.objective is None:
        problem = f"compares returns in different environments, since members differ in {{{own[0]}}}"
        raise SettingError("fitness_from", "training", problem, "give {objective}, or leave it out")


def as_program(
    bindings: PbtBindings, create: Callable, begin: Callable, advance: Callable, finish: Callable
) -> Program:
    """Build a program with learning members from the stages of its `init` and `step`; see `stages`."""
    learner = bindings.learner
    iterations = divisible(learner.step).iterations
    return Program(
        init=StagedInit(learner.start_states, create, keys=2),
        step=StagedStep(learner.start_states, begin, advance, finish, iterations, keys=4),
        evaluate=partial(evaluate, bindings),
        population_size=bindings.population_size,
        steps_per_generation=bindings.population_size * learner.steps_per_generation,
        space=bindings.space,
        descriptor=learner.spec.descriptor,
        task=learner.spec.name,
        timing=timing_of(bindings) if bindings.config.exploit != "none" else None,
        learner=learner,
    )


def settings_of(method: str, bindings: PbtBindings) -> dict[str, Any]:
    """The settings of a program, to record."""
    own = {"population_method": method, "population": bindings.population_size, "pbt": vars(bindings.config)}
    rated = {} if bindings.rating_opponents is None else {"rating_opponents": bindings.rating_opponents}
    return {**bindings.learner.settings, **own, **rated}
