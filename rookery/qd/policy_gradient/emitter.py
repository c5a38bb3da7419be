"""PGA-ME and DCRL-ME: half of the proposals by iso+line variation, the others by the gradient of critics.

Sources: Nilsson 2021, "Policy Gradient Assisted MAP-Elites" (PGA-ME); Faldor 2024, "Synergizing Quality-Diversity with
Descriptor-Conditioned Reinforcement Learning" (DCRL-ME, arXiv:2401.08632).
Deviations: the critics learn before a generation's proposals, not after its evaluation, which is the same order;
DCRL-ME scales a reward when it is stored. Critics that diverged begin anew, with an empty buffer.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery import returns, trees
from rookery.agents.td3 import Td3State
from rookery.learners.base import Member
from rookery.learners.rollout import transition_row
from rookery.populations.base import member_keys
from rookery.populations.sharding import Placement
from rookery.populations.stages import Work
from rookery.qd import repertoire as repertoires
from rookery.qd.base import Bank, Emitter, EmitterState, Scoring
from rookery.qd.policy_gradient import conditions, critics, variation
from rookery.qd.policy_gradient.conditions import Conditions
from rookery.qd.policy_gradient.critics import Critics, Training
from rookery.qd.policy_gradient.variation import Ascent
from rookery.qd.repertoire import Added, Repertoire
from rookery.types import Array, Evaluation, Key, Metrics, PyTree


class GradientBindings(NamedTuple):
    """The static arguments of the emitter."""

    scoring: Scoring
    critics: Critics
    hyper: PyTree
    ascent: Ascent
    steps: int
    """Gradient steps of each policy."""
    variations: Emitter
    """Proposes variations of elites."""
    varied: int
    """Number of policies that are varied by the gradient."""
    injected: int
    """Number of actors among the proposals; 1 without conditions."""
    placement: Placement
    conditions: Conditions | None = None
    """None: nothing is conditioned on a descriptor."""


class GradientShared(NamedTuple):
    """The state of the emitter."""

    training: Training
    targets: Array
    """`[B, D]`, the scaled target of each proposal, infinite where it has none; () without conditions."""


def init(bindings: GradientBindings, key: Key, bank: Bank) -> EmitterState[tuple[()], GradientShared]:
    """New critics, and an empty replay buffer."""
    scoring = bindings.scoring
    assert scoring.evaluator is not None  # or the factory would have raised
    agent, row = bindings.critics.agent, transition_row(scoring.evaluator.environment, bank)
    targets: PyTree = ()
    if bindings.conditions is not None:
        size = scoring.descriptor.size
        targets = jnp.full((_batch_size(bindings), size), jnp.inf)
        row = row._replace(
            observation=row.observation._replace(skill=jnp.zeros((size,))),
            next_observation=row.next_observation._replace(skill=jnp.zeros((size,))),
        )
    state = agent.start(agent.init(key))
    member = Member(state, jax.tree.map(jnp.float32, bindings.hyper), None, (), bindings.critics.buffer.init(row))
    return EmitterState((), GradientShared(Training(member, jnp.zeros((), jnp.int32)), targets))


def _batch_size(bindings: GradientBindings) -> int:
    return bindings.variations.batch_size + bindings.varied + bindings.injected


def begin(
    bindings: GradientBindings, state: EmitterState, repertoire: Repertoire, bank: Bank, key: Key
) -> tuple[EmitterState, Work]:
    """Create the empty log of a generation, and restart critics that diverged; the key is consumed."""
    del repertoire
    train_key, propose_key, restart_key = jax.random.split(key, 3)
    restart = partial(critics.restarted, bindings.critics)
    training = bindings.placement.everywhere(restart, state.shared.training, restart_key)
    state = state._replace(shared=state.shared._replace(training=training))
    log = critics.empty_log(bindings.critics, training)
    return state, Work(shared=(bank, train_key, propose_key, log))


def advance(
    bindings: GradientBindings, state: EmitterState, work: Work, first: Array | int, last: Array | int
) -> tuple[EmitterState, Work]:
    """Train the critics and the actor on the transitions of the evaluations so far."""
    bank, train_key, propose_key, log = work.shared
    bounds = jnp.asarray(first, jnp.int32), jnp.asarray(last, jnp.int32)
    train = partial(critics.train, bindings.critics)
    training, log = bindings.placement.everywhere(train, state.shared.training, log, train_key, *bounds)
    state = state._replace(shared=state.shared._replace(training=training))
    return state, Work(shared=(bank, train_key, propose_key, log))


def propose(
    bindings: GradientBindings, state: EmitterState, work: Work, repertoire: Repertoire
) -> tuple[EmitterState, PyTree, Metrics]:
    """Propose iso+line variations, policies varied by the gradient, and the actor, in this order.

    While the repertoire is empty all are initial genotypes, except for the actor.
    """
    bank, _, key, log = work.shared
    vary_key, parents_key, batch_key, init_key = jax.random.split(key, 4)
    _, variations, _ = bindings.variations.ask(EmitterState((), ()), repertoire, bank, vary_key)
    count = bindings.varied + bindings.injected  # a number that the devices divide
    cells = repertoires.draw(repertoire, parents_key, count)
    parents = bindings.placement.cells.take(repertoire.genotypes, cells)
    targets = None
    if bindings.conditions is not None:
        targets = conditions.scaled(bindings.conditions.descriptor, repertoire.descriptors[cells])
    exist = repertoire.occupied.any()
    varied = _ascend(bindings, state.shared.training, parents.params, targets, member_keys(batch_key, count), exist)
    actors = _actors(bindings, state.shared.training.member.state, targets, exist)
    params = jax.tree.map(lambda policies, end: jnp.concatenate([policies[: bindings.varied], end]), varied, actors)
    initial = jax.vmap(bindings.scoring.init_genotype, in_axes=(0, None))(member_keys(init_key, count), bank)
    is_actor = jnp.arange(count) >= bindings.varied
    improved = trees.where(exist | is_actor, parents._replace(params=params), initial)
    proposals = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), variations, improved)
    if targets is not None:
        none = jnp.full((bindings.variations.batch_size, targets.shape[1]), jnp.inf)
        known = jnp.concatenate([none, jnp.where(exist, targets, jnp.inf)])
        state = state._replace(shared=state.shared._replace(targets=known))
    return state, proposals, log


def _ascend(
    bindings: GradientBindings, training: Training, parents: PyTree, targets: Array | None, keys: Key, exist: Array
) -> PyTree:
    """The first policies varied by the gradient, as many as are needed and the devices divide.

    They are unchanged where no elite or no transition exists.
    """
    devices = 1 if bindings.placement.mesh is None else bindings.placement.mesh.size
    rows = -(-bindings.varied // devices) * devices
    first = jax.tree.map(lambda leaf: leaf[:rows], (parents, targets, keys))
    buffer = training.member.buffer
    observations = buffer.rows.observation if targets is None else buffer.rows.observation._replace(skill=None)
    steps = jnp.where(exist & (buffer.size > 0), bindings.steps, 0)
    shared = (training.member.state.critic.params, buffer._replace(rows=observations), steps)
    return bindings.placement.map(partial(variation.vary, bindings.ascent), first, shared)


def _actors(bindings: GradientBindings, state: Td3State, targets: Array | None, exist: Array) -> PyTree:
    """The actor's parameters `[injected, ...]`, for the last targets if it is conditioned."""
    params = state.policy.params
    if targets is None:
        return jax.tree.map(lambda leaf: leaf[None], params)
    assert bindings.conditions is not None
    wanted = jnp.where(exist, targets[bindings.varied :], 0.0)
    freeze = jax.vmap(partial(conditions.freeze, bindings.conditions), in_axes=(None, 0))
    return bindings.placement.everywhere(freeze, params, wanted)


def tell(
    bindings: GradientBindings, state: EmitterState, evaluation: Evaluation, added: Added
) -> tuple[EmitterState, Metrics]:
    """Store the transitions of all evaluations, with the worst value where the physics broke, as agents do.

    Returns:
      The state, and metrics `[]`: `stored`, the number of transitions in the replay buffer; `actor_fitness`, the mean
      fitness of the actors.
    """
    del added
    store = partial(_store, bindings)
    arguments = (evaluation.transitions, evaluation.descriptor)
    training = bindings.placement.everywhere(store, state.shared.training, state.shared.targets, *arguments)
    stored = training.member.buffer.size
    actors = evaluation.fitness[_batch_size(bindings) - bindings.injected :]
    state = state._replace(shared=state.shared._replace(training=training))
    return state, {"stored": stored, "actor_fitness": jnp.mean(actors)}


def _store(
    bindings: GradientBindings, training: Training, targets: Array, recorded: PyTree, reached: Array
) -> Training:
    rows = recorded.transitions
    if bindings.conditions is not None:
        rows = conditions.rows(bindings.conditions, recorded, reached, targets)
    recorded = recorded._replace(transitions=rows)
    flat, valid, broken = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), recorded)
    known = flat.reward, flat.terminated, valid & ~broken
    worst = returns.worst_value(*known, training.member.hyper.discount)
    flat = flat._replace(reward=jnp.where(broken, worst, flat.reward))
    buffer = bindings.critics.buffer.add(training.member.buffer, flat, valid)
    return training._replace(member=training.member._replace(buffer=buffer))
