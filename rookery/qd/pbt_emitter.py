"""The ME-PBT emitter: a population trained by PBT that fills a repertoire, and receives elites from it.

Source: Pierrot 2023, "Evolving Populations of Diverse RL Agents with MAP-Elites" (arXiv:2303.12803), Algorithm 1. The
emitter works with any learner and does not depend on the agent.
Deviations: no population is evaluated before the first generation, which trains every member, replaces none, and
proposes initial genotypes instead of variations of elites. A member replaced by a parent inherits the parent's
optimisers and targets as well, one replaced by an elite starts with initial ones, and all other members keep theirs.
Replay buffers stay with the slots, unless `inherit_buffer` copies the parent's; the buffer of a member that diverged is
emptied. A member with the same fitness as the best member is not replaced.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp

from rookery import trees
from rookery.agents.base import check_continuous
from rookery.hyperparams import Space
from rookery.learners.base import Bank, Learner, Member, genotype
from rookery.learners.iterations import divisible
from rookery.populations import base, selection
from rookery.populations.config import rounded
from rookery.populations.inheritance import inherit, load_where, perturb
from rookery.populations.pbt import init_members, train_member
from rookery.populations.sharding import ONE_DEVICE, Placement
from rookery.populations.stages import Work
from rookery.qd import emitters
from rookery.qd import repertoire as repertoires
from rookery.qd.base import Emitter, EmitterState, Scoring
from rookery.qd.repertoire import Added, Repertoire
from rookery.qd.staged import StagedAsk
from rookery.qd.variation import VariationConfig
from rookery.settings import FRACTION, LARGEST_COUNT, POSITIVE, SettingError, check_counts, check_fields, config_from
from rookery.types import FROM_REPERTOIRE, Array, Evaluation, Key, Metrics, PyTree


@dataclass(frozen=True)
class MePbtConfig:
    """Selection of members to replace, and perturbation of the new members' hyper-parameters.

    Raises:
      ValueError: a value outside its range.
    """

    replace_fraction: Annotated[float, FRACTION] = 0.2
    """Share of the population, the worst members, that is replaced by children of the best."""
    best_fraction: Annotated[float, FRACTION] = 0.1
    """Share of the population that those parents are drawn from; at least one member."""
    sample_fraction: Annotated[float, FRACTION] = 0.4
    """Share of the population, the next worst members, that is replaced by elites sampled from the repertoire."""
    perturb: Literal["resample", "perturb"] = "resample"
    """resample: new members sample their hyper-parameters from the space; perturb: they multiply the inherited ones."""
    perturb_factors: Annotated[tuple[float, float], POSITIVE] = (0.8, 1.25)
    """The two factors of perturb."""
    resample_probability: Annotated[float, FRACTION] = 0.25
    """Probability that perturb samples a hyper-parameter from the space instead, independently for each."""
    inherit_buffer: bool = False
    """Copy the parent's replay buffer as well; by default the buffer stays with the slot."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_fields(self)


class Counts(NamedTuple):
    """Numbers of members of the population."""

    best: int
    """Members that parents are drawn from."""
    replaced: int
    """Members that are replaced by a child of such a parent."""
    sampled: int
    """Members that are replaced by an elite."""


def counts(config: MePbtConfig, population_size: int) -> Counts:
    """The fractions as numbers of members, each rounded to the nearest.

    Raises:
      ValueError: `population_size` is below 1, or best, replaced and sampled members together exceed the population.
      TypeError: `population_size` is no whole number.
    """
    check_counts(population_size=population_size)
    rounded_counts = Counts(
        best=max(rounded(config.best_fraction, population_size), 1),
        replaced=rounded(config.replace_fraction, population_size),
        sampled=rounded(config.sample_fraction, population_size),
    )
    best, replaced, sampled = rounded_counts
    needed = replaced + sampled + (best if replaced else 0)
    if needed > population_size:
        problem = f"samples {sampled} members, which with {best} best and {replaced} replaced exceed {population_size}"
        raise SettingError(
            "sample_fraction", config.sample_fraction, problem, "lower it, {best_fraction} or {replace_fraction}"
        )
    return rounded_counts


class PbtEmitterBindings(NamedTuple):
    """The static arguments of the emitter."""

    learner: Learner
    space: Space
    config: MePbtConfig
    counts: Counts
    population_size: int
    variations: Emitter
    """Proposes variations of elites, in addition to the population."""
    placement: Placement


class PbtEmitterShared(NamedTuple):
    """The state of the population that is not stored per member."""

    generation: Array
    """`[]` int32, the number of generations proposed."""
    parents: Array
    """`[P]` int32, the member that each member was copied from in this generation, or FROM_REPERTOIRE."""
    fitness: Array
    """`[P]`, evaluated at the end of the last generation."""
    diverged: Array
    """`[P]` bool, members whose fitness is not finite for another reason than broken physics."""


def init(bindings: PbtEmitterBindings, key: Key, bank: Bank) -> EmitterState:
    """Create members with initial parameters, and hyper-parameters sampled from the space."""
    size = bindings.population_size
    keys = jax.random.split(key)
    members = init_members(bindings.learner, bindings.space, size, bindings.placement, keys, bank)
    shared = PbtEmitterShared(
        jnp.zeros((), jnp.int32), jnp.arange(size, dtype=jnp.int32), jnp.zeros((size,)), jnp.zeros((size,), bool)
    )
    return EmitterState(members, shared)


def ask(bindings: PbtEmitterBindings) -> StagedAsk:
    """Exploit, train, and propose variations of elites followed by the trained members (Pierrot 2023, Algorithm 1)."""
    iterations = divisible(bindings.learner.step).iterations
    return StagedAsk(partial(begin, bindings), partial(advance, bindings), partial(propose, bindings), iterations)


def begin(
    bindings: PbtEmitterBindings, state: EmitterState, repertoire: Repertoire, bank: Bank, key: Key
) -> tuple[EmitterState, Work]:
    """Exploit, and create the empty log of each member; the key is consumed.

    Before the first generation there is no fitness, and no member is replaced.
    """
    exploit_key, train_key, vary_key = jax.random.split(key, 3)
    members, parents = exploit(bindings, state, repertoire, bank, exploit_key)
    log = bindings.placement.map(divisible(bindings.learner.step).start, (members,), (bank,))
    keys = base.member_keys(train_key, bindings.population_size)
    shared = state.shared._replace(parents=parents)
    return EmitterState(members, shared), Work((keys, log), (bank, vary_key))


def advance(
    bindings: PbtEmitterBindings, state: EmitterState, work: Work, first: Array | int, last: Array | int
) -> tuple[EmitterState, Work]:
    """Train every member for some iterations of the generation."""
    (keys, log), (bank, _) = work
    shared = (bank, state.shared.generation, jnp.asarray(first, jnp.int32), jnp.asarray(last, jnp.int32))
    train = partial(train_member, bindings.learner)
    members, log = bindings.placement.map(train, (state.members, log, keys), shared)
    return state._replace(members=members), work._replace(members=(keys, log))


def propose(
    bindings: PbtEmitterBindings, state: EmitterState, work: Work, repertoire: Repertoire
) -> tuple[EmitterState, PyTree, Metrics]:
    """Propose variations of elites (initial genotypes while there are none), followed by the trained members."""
    (_, log), (bank, vary_key) = work
    learned = bindings.placement.map(divisible(bindings.learner.step).summarize, (log,), ())
    _, variations, _ = bindings.variations.ask(EmitterState((), ()), repertoire, bank, vary_key)
    members = jax.vmap(genotype)(state.members)
    proposals = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), variations, members)
    shared = state.shared._replace(generation=state.shared.generation + 1)
    return state._replace(shared=shared), proposals, learned


def exploit(
    bindings: PbtEmitterBindings, state: EmitterState, repertoire: Repertoire, bank: Bank, key: Key
) -> tuple[Member, Array]:
    """Replace the worst members by children of the best, and the next worst by elites of the repertoire.

    New members get new hyper-parameters; all other members keep their state, including optimisers and targets.

    Args:
      bindings: the static arguments of the emitter.
      state: with the fitness of the last generation.
      repertoire: the source of elites.
      bank: start states `[K, ...]` for members whose data is discarded.
      key: consumed.

    Returns:
      The members, and the origin of each, `[P]` int32: its own index if it survived, the index of its parent, or
      FROM_REPERTOIRE.
    """
    size, fitness = bindings.population_size, state.shared.fitness
    parents_key, sample_key, perturb_key, restart_key = jax.random.split(key, 4)
    evaluated = state.shared.generation > bindings.learner.untrained_generations
    elites_exist = repertoire.occupied.any()
    decide = partial(origins, bindings.counts)
    parents, takes_elite = bindings.placement.everywhere(decide, fitness, parents_key, evaluated, elites_exist)

    members = inherit(state.members, parents, buffers_too=bindings.config.inherit_buffer, move=bindings.placement.move)
    cells = repertoires.draw(repertoire, sample_key, size)
    elites = bindings.placement.cells.take(repertoire.genotypes, cells)
    members = bindings.placement.map(partial(load_where, bindings.learner), (members, elites, takes_elite), ())

    is_new = takes_elite | (parents != jnp.arange(size))
    members = members._replace(hyper=perturb(bindings.config, bindings.space, members.hyper, perturb_key, is_new))
    # The data of a diverged member is discarded; a buffer that was just inherited is the parent's and is kept.
    diverged = is_new & state.shared.diverged
    cleared = diverged & (takes_elite if bindings.config.inherit_buffer else True)
    keys = base.member_keys(restart_key, size)
    members = bindings.placement.map(partial(_restart, bindings.learner), (members, keys, diverged, cleared), (bank,))
    return members, jnp.where(takes_elite, FROM_REPERTOIRE, parents)


def origins(
    counts: Counts, fitness: Array, key: Key, evaluated: Array | bool = True, elites_exist: Array | bool = True
) -> tuple[Array, Array]:
    """Select the members to replace by rank, and their parents.

    The groups of `counts` never overlap, and no member with the same fitness as the best one is replaced.

    Args:
      counts: the sizes of the groups; fewer members are replaced if fitnesses are equal, see `selection.truncation`.
      fitness: `[P]`, higher is better; a member whose fitness is not finite ranks last, is always replaced and is never
        a parent.
      key: consumed; each member draws separately.
      evaluated: `[]` bool, whether there is a fitness to select by; if False, no member is replaced.
      elites_exist: `[]` bool; if False, no member is replaced by an elite, and a member whose fitness is not finite is
        replaced by a parent.

    Returns:
      The parents `[P]` int32, the member itself if it survives; and `[P]` bool, the members that are replaced by an
      elite, whose entry in parents is the member itself. If no fitness is finite, every member is replaced by an elite.
    """
    size, rank = fitness.shape[0], selection.ranks(fitness)
    members = jnp.arange(size, dtype=jnp.int32)
    replaced = jnp.where(evaluated, counts.replaced, 0)
    parents = selection.truncation(fitness, key, counts.best, replaced)
    last, value = size - counts.replaced, selection.comparable(fitness)
    sampled = (rank >= last - counts.sampled) & (rank < last) & (value < jnp.max(value))
    takes_elite = evaluated & elites_exist & (sampled | ~jnp.isfinite(fitness).any())
    return jnp.where(takes_elite | ~jnp.asarray(evaluated), members, parents), takes_elite


def _restart(learner: Learner, member: Member, key: Key, needed: Array, cleared: Array, bank: Bank) -> Member:
    restart_key, clear_key = jax.random.split(key)
    fresh = learner.restart(member, bank, restart_key, needed)
    emptied = learner.restart(member, bank, clear_key, cleared)
    return fresh._replace(buffer=emptied.buffer)


def tell(
    bindings: PbtEmitterBindings, state: EmitterState, evaluation: Evaluation, added: Added
) -> tuple[EmitterState, Metrics]:
    """Record the fitness of the members, the last rows of the batch; NaN if what a member learned is not finite.

    The fitness is also NaN if the physics broke in the evaluation; such a member has not diverged and keeps its buffer.

    Returns:
      The state, and metrics `[P]`: `fitness`, `parent`, `diverged`, `episode_length`, `hyper/...` (the values used in
      training); and `revived` `[]`, the number of members that were replaced by an elite.
    """
    del added
    of_members = jax.tree.map(lambda leaf: leaf[-bindings.population_size :], evaluation)
    is_finite = jax.vmap(trees.all_finite)((state.members.state, state.members.normalizer))
    fitness = jnp.where(is_finite, of_members.fitness, jnp.nan)
    diverged = ~is_finite | (~jnp.isfinite(fitness) & (of_members.broken == 0))
    metrics = {
        "fitness": fitness,
        "parent": state.shared.parents,
        "diverged": diverged,
        "episode_length": jnp.mean(of_members.lengths.astype(jnp.float32), axis=1),
        **base.measure_metrics(of_members),
        "revived": jnp.sum(state.shared.parents == FROM_REPERTOIRE),
        **base.hyper_metrics(state.members.hyper),
    }
    return state._replace(shared=state.shared._replace(fitness=fitness, diverged=diverged)), metrics


def pbt_emitter(
    learner: Learner,
    scoring: Scoring,
    space: Space | None = None,
    population_size: int = 10,
    ga_population: int = 30,
    config: MePbtConfig | None = None,
    variation: VariationConfig | None = None,
    placement: Placement = ONE_DEVICE,
) -> Emitter:
    """The ME-PBT emitter, with any learner.

    Args:
      learner: the learner of one member.
      scoring: `scoring.learner_scoring(learner, space)`.
      space: the hyper-parameters that evolve; the agent's default space if None.
      population_size: P, the number of members that train, at least 1.
      ga_population: the number of variations of elites that are proposed in addition, at least 1.
      config: the selection of members to replace.
      variation: the configuration of the iso+line operator.
      placement: the placement of members and repertoire.

    Returns:
      The emitter.

    Raises:
      ValueError: a size below 1, or fractions that together exceed the population or replace no member; or the actions
        are discrete.

    Example:
      >>> env = rookery.make("point_room")
      >>> learner = rookery.off_policy(rookery.sac(env.spec), env)
      >>> scoring = rookery.qd.learner_scoring(learner)
      >>> emitter = rookery.qd.pbt_emitter(learner, scoring, population_size=4)
    """
    check_continuous(learner.spec, "ME-PBT", wraps=True)
    config, space = config_from(MePbtConfig, config, {}), space or learner.space
    sizes = counts(config, population_size)
    if sizes.replaced + sizes.sampled < 1:
        problem = f"and {{sample_fraction}} {config.sample_fraction:g} replace no member of {population_size}"
        raise SettingError(
            "replace_fraction", config.replace_fraction, problem, "raise them, or enlarge the population"
        )
    check_counts(1, LARGEST_COUNT - population_size, ga_population=ga_population)  # both are evaluated together
    variations = emitters.iso_line(scoring, ga_population, variation, placement.cells)
    bindings = PbtEmitterBindings(learner, space, config, sizes, population_size, variations, placement)
    return Emitter(
        init=partial(init, bindings),
        ask=ask(bindings),
        tell=partial(tell, bindings),
        batch_size=population_size + ga_population,
        population_size=population_size,
        steps=population_size * learner.steps_per_generation,
        settings={"me_pbt": vars(config), "ga_population": ga_population, **variations.settings},
    )
