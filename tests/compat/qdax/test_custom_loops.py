"""User-defined training loops: the core functions that QDax's documented classes call."""

import jax
import jax.numpy as jnp
import numpy as np

from rookery import trees
from rookery.agents.td3 import Td3Config, td3
from rookery.compat.qdax import PBT, PBTTD3, environments
from rookery.compat.qdax.populations import exploit
from rookery.envs.base import first_step
from rookery.learners.base import genotype
from rookery.learners.off_policy import OffPolicyConfig, off_policy
from rookery.qd.pbt_emitter import Counts
from tests.compat.qdax.documented import agent, population, reshaped

P, E, T = 4, 3, 6
CONFIG = OffPolicyConfig(
    num_envs=E, steps_per_generation=E * T, batch_size=4, buffer_size=32, warmup_steps=0, eval_episodes=E
)


def test_an_evaluation_of_a_population_equals_that_of_the_learner():
    env, algorithm = environments.create("point_maze", batch_size=P * E, episode_length=5), agent(PBTTD3)
    states, first = population(PBTTD3, P)[1], reshaped(env.reset(jax.random.key(2)), P, E)
    fitness, returns = jax.jit(algorithm.get_eval_fn(env))(states, first)
    alone, state = trees.take(states, 1), trees.take(first, 1)
    core = td3(env.environment.spec, Td3Config(hidden_sizes=(8,)))
    bank = state.pipeline_state, jax.vmap(first_step)(state.obs, state.pipeline_state.descriptor)
    learner = off_policy(core, env.environment, CONFIG)
    evaluation = jax.jit(learner.evaluate)(genotype(alone.member()), bank, jax.random.key(0))
    np.testing.assert_allclose(returns[1], evaluation.returns, rtol=1e-5)
    np.testing.assert_allclose(fitness[1], evaluation.fitness, rtol=1e-5)


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
