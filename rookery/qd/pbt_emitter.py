"""ME-PBT: a population that trains, breeds, and is bred from the repertoire that it fills.

Source: Pierrot 2023, "Evolving Populations of Diverse RL Agents with MAP-Elites" (arXiv:2303.12803), Algorithm 1. The
emitter works over any learner: nothing here knows which agent lives in the slots.
Deviations: no population is evaluated before the first generation, which trains everybody, replaces nobody and varies
new genotypes instead of elites. Who takes a parent takes its optimisers and targets as well, who takes an elite begins
with fresh ones, and everybody else keeps their own. Replay buffers stay where they are, unless `inherit_buffer` copies
the parent's; that of a member that diverged is emptied. Who is as good as the best member is not replaced.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from rookery import hyperparams, trees
from rookery.hyperparams import Space
from rookery.learners.base import Bank, Learner, Member, genotype
from rookery.learners.iterations import divisible
from rookery.populations import base, selection
from rookery.populations.config import rounded
from rookery.populations.inheritance import inherit, perturb
from rookery.populations.sharding import ONE_DEVICE, Placement
from rookery.populations.stages import Work
from rookery.qd import emitters
from rookery.qd import repertoire as repertoires
from rookery.qd.base import Emitter, EmitterState, Scoring
from rookery.qd.repertoire import Repertoire
from rookery.qd.staged import StagedAsk
from rookery.qd.variation import VariationConfig
from rookery.types import Array, Evaluation, Genotype, Key, Metrics, PyTree

FROM_REPERTOIRE = -1
"""The parent of a member that came out of the repertoire."""


@dataclass(frozen=True)
class MePbtConfig:
    """Who is replaced by whom, and how newcomers differ.

    Raises:
      ValueError: a value outside its range.
    """

    replace_fraction: float = 0.2
    """Share of the population, the worst, that is replaced by children of the best, in [0, 1]."""
    best_fraction: float = 0.1
    """Share of the population that those parents are drawn from, in [0, 1]; at least one member."""
    sample_fraction: float = 0.4
    """Share of the population, the next worst, that is replaced by elites drawn from the repertoire, in [0, 1]."""
    perturb: Literal["resample", "perturb"] = "resample"
    """resample: newcomers draw their hyper-parameters afresh; perturb: they multiply those that they came with."""
    perturb_factors: tuple[float, float] = (0.8, 1.25)
    """The two factors of perturb (above 0)."""
    resample_probability: float = 0.25
    """Chance that perturb draws a hyper-parameter afresh, each on its own, in [0, 1]."""
    inherit_buffer: bool = False
    """Copy the parent's replay buffer as well; by default data stays with the slot."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("replace_fraction", "best_fraction", "sample_fraction", "resample_probability"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}.")
        if min(self.perturb_factors) <= 0:
            raise ValueError(f"perturb_factors must be above 0, got {self.perturb_factors}.")
        if self.perturb not in ("resample", "perturb"):
            raise ValueError(f"perturb must be 'resample' or 'perturb', got {self.perturb!r}.")


class Counts(NamedTuple):
    """How many members of the population."""

    best: int  # parents are drawn from
    replaced: int  # take such a parent
    sampled: int  # take an elite


def counts(config: MePbtConfig, population_size: int) -> Counts:
    """The fractions as whole members, each rounded to the nearest.

    Raises:
      ValueError: those who are replaced and those who are drawn from exceed the population together.
    """
    if population_size < 1:
        raise ValueError(f"population_size must be at least 1, got {population_size}.")
    told = Counts(
        best=max(rounded(config.best_fraction, population_size), 1),
        replaced=rounded(config.replace_fraction, population_size),
        sampled=rounded(config.sample_fraction, population_size),
    )
    needed = told.replaced + told.sampled + (told.best if told.replaced else 0)
    if needed > population_size:
        raise ValueError(
            f"{told.best} best members, {told.replaced} replaced from them and {told.sampled} from samples exceed the "
            f"population of {population_size}; lower best_fraction, replace_fraction or sample_fraction."
        )
    return told


class PbtEmitterBindings(NamedTuple):
    """What the emitter is bound to."""

    learner: Learner
    space: Space
    config: MePbtConfig
    counts: Counts
    population_size: int
    variations: Emitter  # of elites, beside the population
    placement: Placement


class Shared(NamedTuple):
    """What the population has in common."""

    generation: Array  # [] int32, generations asked for
    parents: Array  # [P] int32, the member that each came from in this generation, or FROM_REPERTOIRE
    fitness: Array  # [P], as judged at the end of the last generation
    diverged: Array  # [P] bool, whose fitness is not finite for another reason than broken physics


def init(bindings: PbtEmitterBindings, key: Key, bank: Bank) -> EmitterState:
    """Newborn members with hyper-parameters drawn from the space."""
    size = bindings.population_size
    hyper_key, member_key = jax.random.split(key)
    hyper = jax.vmap(partial(hyperparams.sample, bindings.space))(base.member_keys(hyper_key, size))
    members = bindings.placement.map(bindings.learner.init, (base.member_keys(member_key, size), hyper), (bank,))
    shared = Shared(
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
    """Exploit, and an empty log for each member; the key is consumed.

    Before the first generation no fitness is known, and no member is replaced.
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
    span = (jnp.asarray(first, jnp.int32), jnp.asarray(last, jnp.int32))
    train = partial(_train, bindings.learner)
    members, log = bindings.placement.map(train, (state.members, log, keys), (bank, state.shared.generation, *span))
    return state._replace(members=members), work._replace(members=(keys, log))


def _train(learner: Learner, member: Member, log: PyTree, key: Key, bank: Bank, *when: Array) -> tuple[Member, PyTree]:
    return divisible(learner.step).advance(member, log, bank, key, *when)


def propose(
    bindings: PbtEmitterBindings, state: EmitterState, work: Work, repertoire: Repertoire
) -> tuple[EmitterState, PyTree, Metrics]:
    """Variations of elites, followed by the trained members; in the first generation variations are fresh genotypes."""
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
    """The worst take a parent from the best, the next worst an elite from the repertoire.

    Newcomers get hyper-parameters of their own; everybody else keeps everything, optimiser and targets included.

    Returns:
      The members, and where each came from, `[P]` int32: a member, itself if it survived, or FROM_REPERTOIRE.
    """
    size, fitness = bindings.population_size, state.shared.fitness
    parents_key, sample_key, perturb_key, restart_key = jax.random.split(key, 4)
    judged, elites_exist = state.shared.generation > bindings.learner.untrained_generations, repertoire.occupied.any()
    decide = partial(origins, bindings.counts)
    parents, revived = bindings.placement.everywhere(decide, fitness, parents_key, judged, elites_exist)

    members = inherit(state.members, parents, buffers_too=bindings.config.inherit_buffer, move=bindings.placement.move)
    cells = repertoires.draw(repertoire, sample_key, size)
    elites = bindings.placement.cells.take(repertoire.genotypes, cells)
    members = bindings.placement.map(partial(_revive, bindings.learner), (members, elites, revived), ())

    is_new = revived | (parents != jnp.arange(size))
    members = members._replace(hyper=perturb(bindings.config, bindings.space, members.hyper, perturb_key, is_new))
    # Whose data is not to be trusted begins anew; a buffer that was just inherited is the parent's and stays.
    diverged = is_new & state.shared.diverged
    cleared = diverged & (revived if bindings.config.inherit_buffer else True)
    keys = base.member_keys(restart_key, size)
    members = bindings.placement.map(partial(_restart, bindings.learner), (members, keys, diverged, cleared), (bank,))
    return members, jnp.where(revived, FROM_REPERTOIRE, parents)


def origins(
    counts: Counts, fitness: Array, key: Key, judged: Array | bool = True, elites_exist: Array | bool = True
) -> tuple[Array, Array]:
    """Who is replaced, by rank: the groups never overlap, and nobody is replaced who is as good as the best member.

    Args:
      counts: how many; fewer are replaced where fitnesses are equal, as `selection.truncation` says.
      fitness: `[P]`, higher is better; what is not finite ranks last, is always replaced and never a parent.
      key: consumed; each member has a draw of its own.
      judged: `[]` bool; where False nobody is replaced.
      elites_exist: `[]` bool; where False nobody takes an elite, and whose fitness is not finite takes a parent.

    Returns:
      parents `[P]` int32, itself for who survives; and who takes an elite instead, `[P]` bool, whose entry in parents
      is itself. Without a finite member everybody takes an elite.
    """
    size, rank = fitness.shape[0], selection.ranks(fitness)
    members = jnp.arange(size, dtype=jnp.int32)
    replaced = jnp.where(judged, counts.replaced, 0)
    parents = selection.truncation(fitness, key, counts.best, replaced)
    last, value = size - counts.replaced, selection.worth(fitness)
    sampled = (rank >= last - counts.sampled) & (rank < last) & (value < jnp.max(value))
    revived = judged & elites_exist & (sampled | ~jnp.isfinite(fitness).any())
    return jnp.where(revived | ~jnp.asarray(judged), members, parents), revived


def _revive(learner: Learner, member: Member, elite: Genotype, needed: Array) -> Member:
    """Let an elite live in this slot, with the slot's data; the buffer is not touched."""
    adopted = learner.load_genotype(member, elite)
    new, old = ((who.state, who.hyper, who.normalizer) for who in (adopted, member))
    state, hyper, normalizer = trees.where(needed, new, old)
    return member._replace(state=state, hyper=hyper, normalizer=normalizer)


def _restart(learner: Learner, member: Member, key: Key, needed: Array, cleared: Array, bank: Bank) -> Member:
    restart_key, clear_key = jax.random.split(key)
    fresh = learner.restart(member, bank, restart_key, needed)
    emptied = learner.restart(member, bank, clear_key, cleared)
    return fresh._replace(buffer=emptied.buffer)


def tell(bindings: PbtEmitterBindings, state: EmitterState, evaluation: Evaluation) -> tuple[EmitterState, Metrics]:
    """Remember the fitness of the members, last in the batch; NaN if anything they learned is not finite.

    A member whose evaluation broke the physics has no fitness either, but it has not diverged and keeps its buffer.

    Returns:
      The state, and metrics `[P]`: `fitness`, `parent`, `diverged`, `episode_length`, the hyper-parameters they trained
      with; and `revived` `[]`, how many came out of the repertoire.
    """
    own = trees.take(evaluation, jnp.arange(-bindings.population_size, 0))
    is_finite = jax.vmap(trees.all_finite)(state.members.state)
    fitness = jnp.where(is_finite, own.fitness, jnp.nan)
    diverged = ~is_finite | (~jnp.isfinite(fitness) & (own.broken == 0))
    metrics = {
        "fitness": fitness,
        "parent": state.shared.parents,
        "diverged": diverged,
        "episode_length": jnp.mean(own.lengths.astype(jnp.float32), axis=1),
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
    """ME-PBT's emitter over any learner.

    Args:
      learner: one member's life.
      scoring: `scoring.learner_scoring(learner, space)`.
      space: what evolves; the agent's own space by default.
      population_size: P, members that train, at least 1.
      ga_population: variations of elites that are proposed beside them, at least 1.
      config: who is replaced.
      variation: the iso+line operator.
      placement: where members and the repertoire lie.

    Raises:
      ValueError: a size below 1, or fractions that exceed the population.
    """
    config = config or MePbtConfig()
    told = counts(config, population_size)
    beside = emitters.iso_line(scoring, ga_population, variation, placement.cells)
    bindings = PbtEmitterBindings(learner, space or learner.space, config, told, population_size, beside, placement)
    return Emitter(
        init=partial(init, bindings),
        ask=ask(bindings),
        tell=partial(tell, bindings),
        batch_size=population_size + ga_population,
        population_size=population_size,
        steps=population_size * learner.steps_per_generation,
    )
