"""Programs as users write them with QDax's documented classes: loops that are compiled as one scan."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.compat.qdax import (
    DIAYN,
    PBTSAC,
    DiaynConfig,
    MAPElites,
    QDTransition,
    ReplayBuffer,
    compute_cvt_centroids,
    default_qd_metrics,
    do_iteration_fn,
    warmstart_buffer,
)
from tests.compat.qdax.documented import NETS, T, make_emitter, make_env, population


def test_me_pbt_in_a_scan():
    """Every generation gives a carry of the same structure; its values are those of the tests of the emitter."""
    emitter = make_emitter(PBTSAC)

    def score(genotypes: Any, key: Any) -> tuple:
        del key
        weights = jax.tree.leaves(genotypes.policy_params)[-1].reshape(emitter.batch_size, -1)
        return jnp.sum(weights**2, axis=1), jnp.tanh(weights[:, :2]), {}

    cells = compute_cvt_centroids(
        num_descriptors=2, num_init_cvt_samples=100, num_centroids=8, minval=-1.0, maxval=1.0, key=jax.random.key(2)
    )
    search = MAPElites(score, emitter, partial(default_qd_metrics, qd_offset=0.0))
    states, _ = population(PBTSAC, emitter.batch_size)[1:]
    genotypes = jax.vmap(states.__class__.empty_optimizers_states)(states)

    def run(key: Any) -> tuple:
        repertoire, state, initial = search.init(genotypes, cells, key)
        carry, later = jax.lax.scan(search.scan_update, (repertoire, state, key), (), length=3)
        return carry[1].training_states.steps, initial, later

    steps, initial, later = jax.eval_shape(run, jax.random.key(4))
    assert steps.shape == (2,)
    for name in ("qd_score", "coverage", "max_fitness"):
        assert (initial[name].shape, later[name].shape) == ((), (3,))


def test_diayn_in_a_scan():
    num_skills, num_envs = 2, 4
    env, eval_env = make_env(num_envs), make_env(num_envs, eval_metrics=True)
    dummy = QDTransition.init_dummy(
        observation_dim=env.observation_size + num_skills, action_dim=2, descriptor_dim=env.state_descriptor_length
    )
    diayn = DIAYN(config=DiaynConfig(batch_size=8, episode_length=T, num_skills=num_skills, **NETS), action_size=2)
    skills = jnp.concatenate([jnp.eye(num_skills)] * (num_envs // num_skills), axis=0)
    play = partial(diayn.play_step_fn, skills=skills, env=env, deterministic=False)
    play_eval = partial(diayn.play_step_fn, skills=skills, env=eval_env, deterministic=True)
    iterate = partial(
        do_iteration_fn, env_batch_size=num_envs, grad_updates_per_step=0.5, play_step_fn=play, update_fn=diayn.update
    )

    def scan_iteration(carry: Any, _: Any) -> Any:
        training_state, env_state, replay_buffer, metrics = iterate(*carry)
        return (training_state, env_state, replay_buffer), metrics

    @jax.jit
    def run(key: Any) -> Any:
        state = diayn.init(key, action_size=2, observation_size=2, descriptor_size=env.state_descriptor_length)
        buffer, env_state, state = warmstart_buffer(
            ReplayBuffer.init(64, dummy), state, env.reset(rng=key), play, num_warmstart_steps=16, env_batch_size=4
        )
        carry, metrics = jax.lax.scan(scan_iteration, (state, env_state, buffer), (), length=3)
        return carry, metrics, diayn.eval_policy_fn(carry[0], eval_env.reset(rng=key), play_eval, num_envs)

    (state, _, buffer), metrics, (mean, returns, diverse, places) = run(jax.random.PRNGKey(0))
    assert (int(state.steps), int(buffer.current_size)) == (3 * 2, 16 + 3 * num_envs)
    assert metrics["discriminator_loss"].shape == metrics["discriminator_accuracy"].shape == (3, 2)
    assert (diverse.shape, places.shape) == ((num_envs,), (T, num_envs, 2))
    np.testing.assert_allclose(mean, returns.mean(), rtol=1e-5)
    assert -0.02 * T <= float(mean) <= 0.0
