"""User-defined training loops: the core functions that QDax's documented classes call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import trees
from rookery.agents.sac import SacConfig, sac
from rookery.agents.td3 import Td3Config, td3
from rookery.compat.qdax import PBT, PBTTD3, MapElitesRepertoire, environments
from rookery.compat.qdax.environments import Batch
from rookery.compat.qdax.populations import exploit
from rookery.distributed import layout, mesh
from rookery.envs import descriptors
from rookery.envs.base import first_step
from rookery.learners.base import genotype
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.qd import centroids
from rookery.qd.pbt_emitter import Counts
from tests.compat.qdax.documented import agent, population, reshaped

P, E, T = 4, 3, 6
CONFIG = OffPolicyConfig(
    num_envs=E, steps_per_generation=E * T, batch_size=4, buffer_size=32, warmup_steps=0, eval_episodes=E
)


def make_env() -> Batch:
    return environments.create("point_maze", batch_size=P * E, episode_length=5)


def test_a_stored_episode_has_the_descriptor_of_the_streamed_one():
    descriptors_t, alive = jnp.arange(10.0).reshape(5, 2), jnp.asarray([True, True, True, False, False])
    assert descriptors.summarise("mean", descriptors_t, alive).tolist() == [2.0, 3.0]
    assert descriptors.summarise("final", descriptors_t, alive).tolist() == [4.0, 5.0]
    assert descriptors.summarise("mean", descriptors_t, jnp.zeros(5, bool)).tolist() == [0.0, 0.0]


def test_critics_may_have_other_layer_sizes_than_the_policy():
    spec = make_env().environment.spec
    for built in (
        sac(spec, SacConfig(hidden_sizes=(4,), critic_hidden_sizes=(7, 5))),
        td3(spec, Td3Config(hidden_sizes=(4,), critic_hidden_sizes=(7, 5))),
    ):
        params = jax.eval_shape(built.init, jax.random.key(0))
        assert params.policy["params"]["Dense_0"]["kernel"].shape == (2, 4)
        assert [layer["kernel"].shape for layer in params.critic[0]["params"].values()] == [(4, 7), (7, 5), (5, 1)]


def test_an_evaluation_of_a_population_equals_that_of_the_learner():
    env, algorithm = make_env(), agent(PBTTD3)
    states, first = population(PBTTD3, P)[1], reshaped(env.reset(jax.random.key(2)), P, E)
    fitness, returns = jax.jit(algorithm.get_eval_fn(env))(states, first)
    alone, state = trees.take(states, 1), trees.take(first, 1)
    core = td3(env.environment.spec, Td3Config(hidden_sizes=(8,)))
    bank = state.pipeline_state, jax.vmap(first_step)(state.obs, state.pipeline_state.descriptor)
    learner = off_policy(core, env.environment, CONFIG)
    evaluation = jax.jit(learner.evaluate)(genotype(alone.member()), bank, jax.random.key(0))
    np.testing.assert_allclose(returns[1], evaluation.returns, rtol=1e-5)
    np.testing.assert_allclose(fitness[1], evaluation.fitness, rtol=1e-5)
    with pytest.raises(ValueError, match="one leading axis"):
        algorithm.get_eval_fn(env)(trees.take(states, jnp.arange(3)), first)


def test_an_evaluation_of_a_population_needs_no_measures_of_its_environment():
    env, states = environments.create("point_goal", batch_size=P * E, episode_length=5), population(PBTTD3, P)[1]
    assert env.environment.spec.measures
    fitness, _ = jax.jit(agent(PBTTD3).get_eval_fn(env))(states, reshaped(env.reset(jax.random.key(2)), P, E))
    assert jnp.isfinite(fitness).all()


def test_a_member_with_a_learned_number_that_is_not_finite_ranks_last():
    _, states, buffers = population(PBTTD3, P)
    targets = jax.tree.map(lambda leaf: leaf.at[2].set(jnp.nan), states.target_critic_params)
    states = states.replace(target_critic_params=targets)
    returns = jnp.asarray([1.0, 2.0, 9.0, 3.0])
    step = jax.jit(PBT(P, 1, 1).update_states_and_buffer)
    after, inherited = step(jax.random.key(3), returns, states, buffers)
    rows = [np.asarray(tree.state.rows.rewards) for tree in (buffers, inherited)]
    parents = [next(i for i in range(P) if (rows[0][i] == row).all()) for row in rows[1]]
    assert parents in ([3, 1, 3, 3], [0, 1, 3, 3])
    assert jnp.isfinite(jax.tree.leaves(after.target_critic_params)[0]).all()


def test_exploit_loads_exactly_the_counted_number_of_elites():
    _, states, _ = population(PBTTD3, P)
    counts = Counts(best=1, replaced=1, sampled=2)
    loaded = states.replace(hyper=states.hyper._replace(tau=jnp.full(P, 0.5)), steps=states.steps + 7)
    fitness, tau = jnp.asarray([1.0, 4.0, 2.0, 3.0]), float(states.hyper.tau[0])  # tau does not evolve
    step = jax.jit(
        lambda exist: exploit(counts, fitness, states, jax.random.key(0), draw_elites=lambda *_: (exist, loaded))
    )
    after, _, replaced = step(jnp.asarray(True))
    # The last takes its parent's, the two above it an elite's.
    np.testing.assert_allclose(after.hyper.tau, [tau, tau, 0.5, 0.5])
    assert after.steps.tolist() == [0] * P
    without, _, _ = step(jnp.asarray(False))
    np.testing.assert_allclose(without.hyper.tau, [tau] * P)  # without elites only parents are copied
    assert not replaced.any()
    assert len(np.unique(np.asarray(after.key)[:, 0])) == P


def test_shares_of_a_mapped_axis_give_access_to_the_whole_array():
    over = mesh.make_mesh().devices
    rows = jnp.arange(2.0 * over.size).reshape(over.size, 2)

    def inside(share: jax.Array, *, plus: jax.Array) -> tuple:
        shares = layout.shares("p")
        whole = shares.gather(share)
        return shares.local(whole) - share, shares.rows.take(share, jnp.asarray([whole.shape[0] - 1])), share + plus

    difference, last, named = layout.map_over(inside, "p")(rows, plus=jnp.ones((over.size, 1)))
    assert not difference.any()
    assert last.tolist() == [[2.0 * over.size - 1]] * over.size
    assert named.tolist() == (rows + 1).tolist()
    with pytest.raises(ValueError, match="arguments need a row for each of"):
        layout.map_over(inside, "p")(rows[:1], plus=jnp.ones((1, 1)))
    with pytest.raises(ValueError, match="only inside a mapped axis 'p'"):
        layout.shares("p").gather(rows)


def test_an_empty_repertoire_returns_the_other_genotypes_instead_of_zeros():
    cells = MapElitesRepertoire.init_default(jnp.zeros(()), centroids.grid((3,), [0.0], [1.0]))
    others, draw = (
        jnp.asarray([4.0, 5.0]),
        jax.jit(lambda cells, others: cells.genotypes_or(others, jax.random.key(0), 3)),
    )
    assert draw(cells, others).tolist() == [4.0, 5.0, 4.0]
    filled = cells.add(jnp.asarray([7.0]), jnp.asarray([[0.5]]), jnp.asarray([1.0]))
    assert draw(filled, others).tolist() == [7.0] * 3
