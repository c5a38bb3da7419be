"""Loops of one's own: what the core has for them, apart from the documented classes that are built on it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import trees
from rookery.agents.sac import SacConfig, sac
from rookery.agents.td3 import Td3Config, td3
from rookery.compat.qdax import cells as qdax_cells
from rookery.compat.qdax import env_batch, pbt
from rookery.compat.qdax import off_policy as loop_api
from rookery.compat.records import split_key
from rookery.distributed import layout, mesh
from rookery.envs import descriptors
from rookery.learners import off_policy
from rookery.learners.base import genotype
from rookery.qd import centroids, pbt_emitter
from rookery.qd import repertoire as repertoires

P, E, T = 4, 3, 6
CONFIG = off_policy.OffPolicyConfig(
    num_envs=E, steps_per_generation=E * T, batch_size=4, buffer_size=32, warmup_steps=0, eval_episodes=E
)


def world() -> env_batch.Batch:
    return env_batch.make("point_maze", batch_size=P * E, episode_length=5)


def test_iterations_one_by_one_are_a_generation():
    env = world()
    agent = sac(env.environment.spec, SacConfig(hidden_sizes=(4,)))
    learner = off_policy.off_policy(agent, env.environment, CONFIG)
    bank_key, member_key, step_key = jax.random.split(jax.random.key(0), 3)
    bank = learner.start_states(bank_key)
    member = learner.init(member_key, jax.tree.map(jnp.float32, agent.space.defaults), bank)
    after, metrics = jax.jit(learner.step)(member, bank, step_key, jnp.asarray(2))
    bindings = off_policy.OffPolicyBindings(agent, env.environment, off_policy.buffers.ring(32), CONFIG)
    live = jax.jit(partial(off_policy.train_iterations, bindings))
    again, (learned, each, reward, _) = live(member, bank, step_key, 2 * T + jnp.arange(T))
    np.testing.assert_array_equal(
        again.state.policy.params["params"]["Dense_0"]["kernel"],
        after.state.policy.params["params"]["Dense_0"]["kernel"],
    )
    assert learned.tolist() == [1.0] * T
    np.testing.assert_allclose(jnp.mean(each["critic_loss"]), metrics["critic_loss"], rtol=1e-6)
    np.testing.assert_allclose(jnp.mean(reward), metrics["reward"], rtol=1e-6)


def test_a_stored_episode_has_the_descriptor_of_the_streamed_one():
    said, alive = jnp.arange(10.0).reshape(5, 2), jnp.asarray([True, True, True, False, False])
    assert descriptors.summarise("mean", said, alive).tolist() == [2.0, 3.0]
    assert descriptors.summarise("final", said, alive).tolist() == [4.0, 5.0]
    assert descriptors.summarise("mean", said, jnp.zeros(5, bool)).tolist() == [0.0, 0.0]


def test_critics_may_be_of_other_widths_than_the_policy():
    spec = world().environment.spec
    for agent in (
        sac(spec, SacConfig(hidden_sizes=(4,), critic_hidden_sizes=(7, 5))),
        td3(spec, Td3Config(hidden_sizes=(4,), critic_hidden_sizes=(7, 5))),
    ):
        params = agent.init(jax.random.key(0))
        assert params.policy["params"]["Dense_0"]["kernel"].shape == (2, 4)
        assert [layer["kernel"].shape for layer in params.critic[0]["params"].values()] == [(4, 7), (7, 5), (5, 1)]
    with pytest.raises(ValueError, match=r"critic_hidden_sizes must all be at least 1, got \(0,\)"):
        SacConfig(critic_hidden_sizes=(0,))


class Learner(loop_api.TrainState):
    """As whoever writes a loop may declare one."""


def newborns(agent: Any, count: int = P) -> Any:
    return jax.vmap(partial(loop_api.init_state, Learner, agent, hyper=agent.space.defaults))(
        jax.random.split(jax.random.key(1), count)
    )


def renew(agent: Any, one: Any) -> Any:
    return loop_api.resample(agent.space, one)


@pytest.fixture(scope="module")
def agent() -> Any:
    return td3(world().environment.spec, Td3Config(hidden_sizes=(4,)))


def test_the_judge_says_what_the_learner_says(agent: Any):
    env = world()
    many = newborns(agent)
    first = jax.tree.map(lambda leaf: leaf.reshape(P, E, *leaf.shape[1:]), env.reset(jax.random.key(2)))
    told = jax.jit(partial(loop_api.evaluator, agent, env))(many, first)
    learner = off_policy.off_policy(agent, env.environment, CONFIG)
    one, start = trees.take(many, 1), trees.take(env_batch.start_states_of(trees.take(first, 1)), jnp.arange(E))
    member = off_policy.Member(one.learned, one.hyper, None, (), ())
    alone = learner.evaluate(genotype(member), start, jax.random.key(0))
    np.testing.assert_allclose(told.returns[1], alone.returns, rtol=1e-5)
    with pytest.raises(ValueError, match="one leading axis"):
        loop_api.evaluator(agent, env, newborns(agent, 3), first)


def test_who_learned_a_number_that_is_not_finite_ranks_last(agent: Any):
    many = newborns(agent)
    poisoned = many.learned._replace(
        target_critic=jax.tree.map(lambda leaf: leaf.at[2].set(jnp.nan), many.learned.target_critic)
    )
    many = many.replace(learned=poisoned)
    fitness, data = jnp.asarray([1.0, 2.0, 9.0, 3.0]), jnp.arange(P)
    after, moved = pbt.truncate(fitness, many, data, jax.random.key(3), (1, 1), partial(renew, agent))
    assert moved.tolist() == [3, 1, 3, 3] or moved.tolist() == [0, 1, 3, 3]
    assert moved[2] == 3
    assert jnp.isfinite(jax.tree.leaves(after.learned.target_critic)[0]).all()


def test_the_same_key_twice_makes_other_children(agent: Any):
    many, fitness = newborns(agent), jnp.asarray([4.0, 3.0, 2.0, 1.0])
    step = jax.jit(lambda many: pbt.truncate(fitness, many, (), jax.random.key(3), (1, 2), partial(renew, agent))[0])
    once = step(many)
    key, _ = jax.vmap(split_key)(once.key)  # as any use of the members moves their keys on
    twice = step(once.replace(key=key))
    assert (once.hyper.discount[2:] != twice.hyper.discount[2:]).all()
    assert once.hyper.discount[2] != once.hyper.discount[3]
    assert once.hyper.discount[0] == twice.hyper.discount[0] == many.hyper.discount[0]


class Drift:
    """Proposes what it has, moved by its own count of turns."""

    def init(self, key: Any, repertoire: Any, genotypes: Any, *scored: Any) -> Any:
        del key, repertoire, scored
        return genotypes, jnp.zeros((), jnp.int32)

    def emit(self, repertoire: Any, state: Any, key: Any) -> tuple:
        del repertoire, key
        return state[0] + state[1].astype(jnp.float32), {"turn": state[1]}

    def state_update(self, state: Any, repertoire: Any, genotypes: Any, *scored: Any) -> Any:
        del repertoire, genotypes
        assert scored[2].keys() >= {"seen"}
        return state[0], state[1] + 1


def test_a_loop_scores_by_the_batch_and_keeps_the_best_of_each_cell():
    def score(genotypes: jax.Array, key: jax.Array) -> tuple:
        del key
        return -jnp.abs(genotypes), genotypes[:, None] / 10.0, {"seen": genotypes}

    places = centroids.grid((10,), [0.0], [1.0])
    loop = qdax_cells.Loop(score, Drift(), lambda cells: repertoires.metrics(cells.repertoire))
    cells, state, told = loop.begin(
        jnp.asarray([0.5, 3.5]), partial(qdax_cells.Cells.init, centroids=places), jax.random.key(0)
    )
    assert float(told["coverage"]) == 20.0
    for key in jax.random.split(jax.random.key(1), 2):
        cells, state, told = loop.turn(cells, state, key)
    assert sorted(cells.genotypes[cells.repertoire.occupied].tolist()) == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]
    assert int(state[1]) == 3


def test_exploit_revives_elites_for_exactly_so_many(agent: Any):
    many, counts = newborns(agent), pbt_emitter.Counts(best=1, replaced=1, sampled=2)
    born = newborns(agent)
    elites = qdax_cells.Elites(
        True, lambda *_: born.replace(hyper=born.hyper._replace(tau=jnp.full((P,), 0.5))), lambda one: one
    )
    fitness = jnp.asarray([1.0, 4.0, 2.0, 3.0])
    step = partial(qdax_cells.exploit, counts, fitness, many, key=jax.random.key(0), renew=partial(renew, agent))
    after, diverged = step(elites=elites)
    tau = float(many.hyper.tau[0])  # the last takes its parent's, the two above it an elite's; it does not evolve
    assert after.hyper.tau.tolist() == [tau, tau, 0.5, 0.5]
    assert after.steps.tolist() == [0] * P
    alone, _ = step(elites=elites._replace(exist=False))
    assert alone.hyper.tau.tolist() == [tau] * P  # without elites only parents are taken
    assert not diverged.any()
    assert len(np.unique(np.asarray(after.key)[:, 0])) == P


def test_shares_of_a_mapped_axis_reach_the_whole():
    over = mesh.make_mesh().devices
    rows = jnp.arange(2.0 * over.size).reshape(over.size, 2)

    def inside(share: jax.Array, *, plus: jax.Array) -> tuple:
        shares = layout.shares("p")
        whole = shares.gather(share)
        return shares.local(whole) - share, shares.rows.take(share, jnp.asarray([whole.shape[0] - 1])), share + plus

    own, last, named = layout.map_over(inside, "p")(rows, plus=jnp.ones((over.size, 1)))
    assert not own.any()
    assert last.tolist() == [[2.0 * over.size - 1]] * over.size
    assert named.tolist() == (rows + 1).tolist()
    with pytest.raises(ValueError, match="arguments need a row for each of"):
        layout.map_over(inside, "p")(rows[:1], plus=jnp.ones((1, 1)))
    with pytest.raises(ValueError, match="only inside a mapped axis 'p'"):
        layout.shares("p").gather(rows)


def test_an_empty_repertoire_gives_others_instead_of_zeros():
    cells = qdax_cells.Cells.init_default(jnp.zeros(()), centroids.grid((3,), [0.0], [1.0]))
    others, draw = (
        jnp.asarray([4.0, 5.0]),
        jax.jit(lambda cells, others: cells.genotypes_or(others, jax.random.key(0), 3)),
    )
    assert draw(cells, others).tolist() == [4.0, 5.0, 4.0]
    filled = cells.add(jnp.asarray([7.0]), jnp.asarray([[0.5]]), jnp.asarray([1.0]))
    assert draw(filled, others).tolist() == [7.0] * 3
