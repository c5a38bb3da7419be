"""A member whose evaluation broke the physics has not diverged: it is replaced and keeps its data; it is counted and
shown."""

import jax
import jax.numpy as jnp
import numpy as np

from rookery.populations.pbt import pbt
from rookery.qd.centroids import grid
from rookery.qd.me_pbt import me_pbt
from rookery.qd.pbt_emitter import PbtEmitterShared
from rookery.training.loop import run
from rookery.types import Evaluation
from tests import walks

LIMIT = 100.0  # a position beyond it breaks the physics


def learner(descriptor: bool = False):
    """A learner whose evaluation breaks the physics beyond the limit, see `learners.evaluation.evaluate`."""
    walker = walks.learner(descriptor)
    return walker._replace(
        evaluate=lambda genotype, bank, key: breaking(walker.evaluate(genotype, bank, key), genotype)
    )


def breaking(evaluation: Evaluation, genotype) -> Evaluation:
    broken = genotype.params[0] > LIMIT
    fitness = jnp.where(broken, jnp.nan, -100.0 + evaluation.fitness)
    return evaluation._replace(fitness=fitness, returns=fitness[None], broken=broken.astype(jnp.int32))


def beyond(state, *members: int):
    """Set members to positions whose evaluation breaks the physics."""
    learned = state.members.state
    for member in members:
        learned = learned._replace(position=learned.position.at[member].set(2 * LIMIT))
    return state._replace(members=state.members._replace(state=learned))


def population():
    return pbt(learner(descriptor=True), population_size=4, best_count=1, replace_count=1)


def test_pbt_replaces_a_member_that_breaks_the_physics_and_keeps_its_data():
    program = population()
    before = beyond(jax.jit(program.init)(jax.random.key(0)), 2)
    after, metrics = jax.jit(program.step)(before, jax.random.key(1))
    for name in ("fitness", "descriptor/0"):
        assert np.isnan(metrics[name]).tolist() == [False, False, True, False]
    assert metrics["broken_episodes"].tolist() == [0, 0, 1, 0]
    assert not metrics["diverged"].any()
    parents = after.shared.parents.tolist()
    assert parents[2] != 2
    assert parents[2] in {0, 1, 3}
    assert after.members.buffer[2].tolist() == before.members.buffer[2].tolist()
    assert after.members.env_state[2].tolist() == before.members.env_state[2].tolist()


def test_me_pbt_distinguishes_a_broken_evaluation_from_a_diverged_member():
    program = me_pbt(learner(True), grid((4, 4), (-4, -4), (4, 4)), population_size=4, ga_population=4)
    state = walks.poison(beyond(jax.jit(program.init)(jax.random.key(0)), 1), 3)
    after, metrics = jax.jit(program.step)(state, jax.random.key(1))
    assert np.isnan(metrics["fitness"]).tolist() == [False, True, False, True]
    assert metrics["diverged"].tolist() == [False, False, False, True]
    shared = after.shared.emitter
    assert isinstance(shared, PbtEmitterShared)
    assert shared.diverged.tolist() == [False, False, False, True]


def test_a_run_whose_members_all_break_the_physics_continues():
    program = population()
    program = program._replace(init=lambda key: beyond(population().init(key), 0, 1, 2, 3))
    result = run(program, generations=2, quiet=True)
    assert len(result.history) == 2
    assert all(np.isnan(metrics["fitness"]).all() for metrics in result.history)
